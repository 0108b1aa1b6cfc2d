"""Where and how the system runs the fibers of a World: of threads that never run at once, one core is enough."""

from __future__ import annotations

import contextlib
import ctypes
import os


def core() -> set[int] | None:
    """The core that this thread is on, for all fibers, so that a hand-over does not wake another one. Only for fibers
    that compute nothing (meta tensors): a pinned thread's parallel loops would stay on that core. None on macOS."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return {ctypes.CDLL(None).sched_getcpu()}


def stay(there: set[int] | None) -> None:
    """Keep this thread `there`, and let it wake without interrupting: a fiber that is handed the baton would
    otherwise start at once, find the interpreter's lock taken and sleep again. Halves the cost of a hand-over."""
    if not hasattr(os, "sched_getscheduler"):
        return
    if there is not None:
        os.sched_setaffinity(0, there)
    # chosen by the user; threads of one real-time class wait, too
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # a container may forbid it: then hand-overs are only slower
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
