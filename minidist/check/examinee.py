"""The process of an answer: load it where it can do no harm, run it, report in plain values.

Forked by a guard, which alone decides; a report is `{"results": …, "sent": …}` or `{"error": …}`. Never
returns: ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import signal
import threading
import traceback
from collections.abc import Callable
from types import FunctionType

from ..comm.base import Deadlock
from ..comm.processes.endpoint import Endpoint
from ..comm.processes.rings import Rings
from ..comm.processes.shm import ShmComm
from ..comm.program import refuse_shared
from ..comm.trace import Trace
from . import refuse
from .exam import Exam
from .explain import own_line
from .pipes import Pipe
from .plain import decode, encode

# Of the process: seconds of computing, bytes of memory, bytes of a core dump.
LIMITS = {resource.RLIMIT_CPU: 60, resource.RLIMIT_DATA: 4 << 30, resource.RLIMIT_CORE: 0}
_HOUR = 3600.0  # the guard has the watch, not its examinee


def begin(pipe: Pipe, alive: int, stack, serve: Callable[[Pipe], None]) -> None:
    """In the forked process: keep nothing of the guard's but the pipes, then `serve`."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        kept = {0, 1, 2, pipe.reads, pipe.writes, alive, stack.fileno()}
        for fd in [int(name) for name in os.listdir("/dev/fd")]:
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        threading.Thread(target=_watch, args=(alive,), daemon=True).start()
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        for limit, most in LIMITS.items():
            resource.setrlimit(limit, (most, most))
        serve(pipe)
    finally:
        os._exit(0)


def _watch(alive: int) -> None:
    os.read(alive, 1)  # ends with the guard
    os._exit(1)


def load(exam: Exam, packed: list[bytes]) -> list:
    """The answers, in a process in which they can neither call the library nor reach outside."""
    refuse.library(exam.forbidden)
    refuse.graders()
    refuse.outside()
    answers = [pickle.loads(data) for data in packed]
    for answer in answers if exam.functions else []:
        if not callable(answer):
            raise TypeError(f"{exam.name} is {'None' if answer is None else type(answer).__name__}, not a function")
        _of_the_library(answer)
        refuse_shared(answer)
    return answers


def _of_the_library(answer) -> None:
    """Raise Refused if the answer, or a function beside it, is the package's code under another name."""
    beside = [f for f in getattr(answer, "__globals__", {}).values() if isinstance(f, FunctionType)]
    for f in [answer, *beside]:
        file = f.__code__.co_filename if isinstance(f, FunctionType) else ""
        imported = f is not answer and (f.__module__ or "").startswith("minidist.")  # refused when it is called
        if file.startswith(refuse.PACKAGE + os.sep) and not imported:
            raise refuse.Refused("this is the library's own code: the exercise is about building it yourself")


def world(exam: Exam, packed: list[bytes]) -> Callable[[Pipe], None]:
    """Serves cases, each in a World of its own: `{"n", "args"}` in, a report out, until the guard ends it."""

    def serve(pipe: Pipe) -> None:
        answers = _loaded(pipe, exam, packed)
        while answers is not None:
            asked = decode(pipe.receive(_HOUR))
            _report(pipe, lambda asked=asked: _in_world(exam, answers, asked["n"], asked["args"]))

    return serve


def _in_world(exam: Exam, answers: list, n: int, args: list) -> dict:
    world = exam.world(n, args)
    results = world.run(lambda comm, all_args: exam.run(comm, *answers, *all_args[comm.rank]), args)
    sent = [(m.src, m.dst, m.nbytes) for m in world.trace]
    return {"results": list(results), "sent": sent, "time": world.time}


def rank(exam: Exam, packed: list[bytes], rings: Rings, r: int) -> Callable[[Pipe], None]:
    """Serves one case as rank `r` of several processes: its own arguments in, a report out (sent: what it received)."""

    def serve(pipe: Pipe) -> None:
        answers = _loaded(pipe, exam, packed)
        if answers is not None:
            args = decode(pipe.receive(_HOUR))
            _report(pipe, lambda: _as_rank(exam, answers, rings, r, args))
            pipe.receive(_HOUR)  # until the guard ends it

    return serve


def _as_rank(exam: Exam, answers: list, rings: Rings, r: int, args: tuple) -> dict:
    trace = Trace(rings.n)
    endpoint = Endpoint(rings, r, exam.step, True, trace)
    value = exam.run(ShmComm(endpoint, list(range(rings.n)), r), *answers, *args)
    endpoint.close()
    return {"results": [value], "sent": [(m.src, m.dst, m.nbytes) for m in trace]}


def _loaded(pipe: Pipe, exam: Exam, packed: list[bytes]) -> list | None:
    loaded: list = []
    _report(pipe, lambda: loaded.append(load(exam, packed)) or {})
    return loaded[0] if loaded else None


def _report(pipe: Pipe, act: Callable[[], dict]) -> None:
    try:
        report = encode(act())
    except BaseException as error:
        report = encode({"error": _failure(error)})
    pipe.send(report, _HOUR)


def _failure(error: BaseException) -> dict:
    """What a message needs to know of an exception. `frame`: the answer's innermost own line."""
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    kinds = {"refused": refuse.Refused, "deadlock": Deadlock, "unwritten": NotImplementedError}
    kind = next((k for k, types in kinds.items() if isinstance(error, types)), "error")
    return {"kind": kind, "type": type(error).__name__, "text": str(error)[:2000], "frame": own_line(frames[::-1]),
            "rank": getattr(error, "rank", None)}  # fmt: skip
