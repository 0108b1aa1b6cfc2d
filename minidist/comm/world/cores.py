"""Where and how the system runs the fibers of a World: of threads that never run at once, one core is enough."""

from __future__ import annotations

import contextlib
import os


def core() -> set[int] | None:
    """One of this process's cores for all fibers, so that a hand-over does not wake another one. Only for fibers
    that compute nothing (meta tensors): a pinned thread's parallel loops would stay on that core. None on macOS."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return {cores[os.getpid() % len(cores)]}


def stay(there: set[int]) -> None:
    """Keep this thread `there`, and let it wake without interrupting: a fiber that is handed the baton would
    otherwise start at once, find the interpreter's lock taken and sleep again. Halves the cost of a hand-over."""
    os.sched_setaffinity(0, there)
    if os.sched_getscheduler(0) != os.SCHED_OTHER:  # chosen by the user; threads of one real-time class wait, too
        return
    with contextlib.suppress(PermissionError):  # a container may forbid it: then hand-overs are only slower
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
