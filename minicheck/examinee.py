"""The process of an answer: load it where it can do no harm, run it, report in plain values.

Forked by a nursery for a guard, which alone decides; a report is `{"results": …, "sent": …}` or `{"error": …}`. Never
returns: ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import pickle
import re
import resource
import select
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from types import FunctionType

from minidist.comm.base import Deadlock
from minidist.comm.message import Rings
from minidist.comm.program import located, outside, refuse_shared, seed_all, seed_of
from minidist.comm.server import warm_up
from minidist.comm.shm import Endpoint, ShmComm
from minidist.comm.trace import Trace

from . import kernel, refuse
from .asking import keep_asking
from .exam import Exam, Solo, decode, encode
from .pipe import MOST, Pipe, Silent
from .relay import Relay

# ------------------------------------------------------------
# What happened to an answer, in a learner's words: exceptions, deadlocks, endless loops, a process that ended.


def explain(name: str, what: str, error: dict) -> str:
    """The message for an error that an examinee reported, or that its guard saw (`_failure`; `Examinee.report`)."""
    kind = error["kind"]
    if kind == "unwritten":
        return f"{name} is not written yet."
    head, place = f"{name}: {what}: ", str(error.get("place") or "")[:500]
    if kind == "deadlock":
        return f"{head}a deadlock. {_hint(error['text'])}\n{error['text']}"
    if kind == "silent":
        return f"{head}no end after {error['text']} s. An endless loop?{place}"
    if kind == "dead":
        return f"{head}your code ended the whole process, or ran out of memory or time (exit, os._exit, a crash)."
    if kind == "nonsense":
        return f"{head}your code answered for the examiner."
    if kind == "large":
        return f"{head}what it returns is too large: {error['text']}."
    who = f"rank {error['rank']}" if error.get("rank") is not None else "your code"
    if kind == "refused":
        return f"{head}{error['text']}.{place}"
    return f"{head}{who} raised {error['type']}: {error['text']}{place}"


def own_line(frames: list[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """The first of (file, line, function) that stands neither in this package nor in an installed one."""
    written = [
        f for f in frames if outside([f[:2], ("", 0)]) == f[:2] and not f[0].startswith("<frozen")
    ]
    return written[0] if written else None


def _place(frame) -> str:
    return f"\n  in {frame[2]}, {located(frame[0], frame[1])}" if frame else ""


def _hint(text: str) -> str:
    """What this kind of deadlock usually comes from."""
    waits = re.findall(r"rank \d+ waits for (send|receive)", text)
    if "waits for a stream job" in text:
        return (
            "One rank waits for what it has started on a lane, and another has never started it. Does every rank start all "
            "of them, in one order, including those that none of its hooks has started?"
        )
    if "ended already" in text:
        return (
            "While others have finished, someone waits for a message that is never sent, or sends one that nobody "
            "takes: a step too many, or the wrong partner?"
        )
    if waits and set(waits) == {"send"}:
        return (
            "Every rank waits until its message is taken, and none has posted the receive for it. Start both "
            "together: comm.sendrecv."
        )
    if waits and set(waits) == {"receive"}:
        return (
            "Every rank waits to receive, and none has sent what it waits for. Who begins? Post the send first "
            "(comm.isend), or start both together: comm.sendrecv."
        )
    return "The ranks wait for each other in a circle: does every send meet its receive, in the same order?"


# ------------------------------------------------------------
# The nursery, and what it forks: a process with a World, or one rank of several.


# Of the process: seconds of computing, bytes of memory, bytes of a core dump.
LIMITS = {resource.RLIMIT_CPU: 60, resource.RLIMIT_DATA: 4 << 30, resource.RLIMIT_CORE: 0}
_HOUR = 3600.0  # the guard has the watch, not its examinee


OVER = "over"  # what a zygote says when the nursery that it has forked is no more


def zygote(reads: int, writes: int, finder) -> None:
    """In a sandbox: a nursery for each examination that the guard sends, one after the other. Never returns.

    finder: what imports the course, and forgets what answers may not call.
    """
    refuse.others()
    warm_up()
    line = Pipe(reads, writes)
    while True:
        what, *given = pickle.loads(line.receive(_HOUR))
        if what == "exam":
            [exam] = given
            pid = os.fork()
            if pid == 0:
                line.send(encode(None), _HOUR)
                nurse(exam, line, finder)
            os.waitpid(pid, 0)
        line.send(encode(OVER), _HOUR)


def nurse(exam: Exam, line: Pipe, finder=None) -> None:
    """In the nursery: refuse what answers may not call, then do what the guard asks for. Never returns."""
    try:
        _keep({line.reads, line.writes})
        refuse.library((*exam.forbidden, "minicheck.oracles"))
        keep_asking(exam)
        refuse.graders()
        if finder is not None:
            finder.forget((*exam.forbidden, "minicheck"))
        nursery = Nursery(exam)
        while True:
            what, *given = pickle.loads(line.receive(_HOUR))
            line.send(encode(getattr(nursery, what)(*given)), _HOUR)
    finally:  # the guard is gone
        os._exit(0)


class Nursery:
    """What a guard may ask for. Each gives a plain value, the reply."""

    def __init__(self, exam: Exam):
        self.exam = exam
        self.ones: list[Examinee] = []
        self.relay: Counted | None = None

    def show(self, cells: dict) -> None:
        """From now on, messages show the lines of these files."""
        linecache.cache.update(cells)

    def fork(self, packed: list[bytes], n: int) -> None:
        """The processes of an answer: `n` ranks, or one with a World if n is 0."""
        if not n:
            alone = isinstance(self.exam, Solo)
            self.ones = [Examinee(world(self.exam, packed), threads=not alone)]
            return
        relay = Relay(n)
        for r in range(n):
            relay.only(r)
            self.ones.append(Examinee(rank(self.exam, packed, relay, r)))
        self.relay = Counted(relay)

    def ask(self, given: list[bytes | None], seconds: float) -> dict:
        """Hand each process what is its own (None: nothing), and wait for all: `{"reports": …}`, or the first failure
        to come, which is the cause of the others: `{"error": …}`."""
        for one, data in zip(self.ones, given, strict=True):
            if data is not None:
                with contextlib.suppress(OSError):  # its report will say why
                    one.pipe.send(data, seconds)
        reports: dict[Examinee, dict] = {}
        until = time.monotonic() + seconds
        while len(reports) < len(self.ones):
            waiting = [one for one in self.ones if one not in reports]
            left = max(0.0, until - time.monotonic())
            heard, _, _ = select.select([one.pipe.reads for one in waiting], [], [], left)
            for one in [w for w in waiting if w.pipe.reads in heard] or waiting[:1]:
                reports[one] = one.report(seconds if heard else 0.0, seconds)
                if reports[one].get("error"):
                    return {"error": reports[one]["error"]}
        try:
            sent = self.relay.sent() if self.relay is not None else []
        except (OSError, EOFError, ValueError):  # without a count nothing is few
            return {"error": {"kind": "dead"}}
        return {"reports": [reports[one] for one in self.ones], "sent": sent}

    def leave(self) -> None:
        os._exit(0)

    def end(self) -> None:
        """End the processes of the answer."""
        for one in [*self.ones, *([self.relay] if self.relay else [])]:
            one.end()
        self.ones, self.relay = [], None


class Examinee:
    """A process of an answer, as the nursery sees it."""

    def __init__(self, serve: Callable[[Pipe], None], threads: bool = True):
        asked, ask = os.pipe()
        told, tell = os.pipe()
        alive, self._alive = os.pipe()
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115
        self.pid = _forked([asked, tell, alive, self._stack.fileno()], serve, threads)
        for fd in (asked, tell, alive):
            os.close(fd)
        self.pipe = Pipe(told, ask)

    def report(self, seconds: float, given: float) -> dict:
        """What it reports within `seconds`, or an error: its own, that it says nothing in all of the time that was
        given, or nonsense."""
        try:
            report = decode(self.pipe.receive(seconds))
        except Silent:
            return {
                "error": {"kind": "silent", "text": f"{given:g}", "place": _place(self._where())}
            }
        except EOFError:
            return {"error": {"kind": "dead"}}
        except ValueError:
            return {"error": {"kind": "nonsense"}}
        return report if isinstance(report, dict) else {"error": {"kind": "nonsense"}}

    def _where(self) -> tuple[str, int, str] | None:
        """The answer's own line at which it stands: that of the thread which is not waiting for its turn."""
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.2)
        self._stack.seek(0)
        threads = self._stack.read().decode(errors="replace").split("\n\n")
        stacks = [re.findall(r'File "(.*)", line (\d+) in (.*)', thread) for thread in threads]
        frames = [[(file, int(line), name) for file, line, name in s] for s in stacks]
        # the thread that is inside the answer first
        frames.sort(key=lambda s: not s or own_line(s[:1]) is None)
        return own_line([frame for s in frames for frame in s])

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()
        os.close(self._alive)
        self._stack.close()


class Counted:
    """The process through which the ranks' messages pass."""

    def __init__(self, relay: Relay):
        asked, ask = os.pipe()
        told, tell = os.pipe()
        relay.only()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _keep({asked, tell})
                relay.serve(Pipe(asked, tell))
            finally:
                os._exit(1)
        os.close(asked)
        os.close(tell)
        self.pipe = Pipe(told, ask)

    def sent(self) -> list:
        """(src, dst, bytes) of each message. OSError or EOFError where an answer has ended it."""
        self.pipe.send(b"", 1.0)
        return decode(self.pipe.receive(10.0))

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()


def _forked(fds: list[int], serve: Callable[[Pipe], None], threads: bool) -> int:
    """The process that serves; `fds`: to read and to write, the end of the guard, where its stack is dumped; `threads`:
    whether it may start some."""
    pid = os.fork()
    if pid == 0:
        try:
            line = Pipe(*fds[:2])
            begin(*fds, threads)
            serve(line)
        finally:
            os._exit(0)
    return pid


def begin(reads: int, writes: int, alive: int, stack: int, threads: bool) -> None:
    """In the forked process: keep nothing of others' but the pipes, and nothing to do but to compute."""
    _keep({reads, writes, alive, stack})
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))
    threading.Thread(target=_watch, args=(alive,), daemon=True).start()
    kernel.keep_to_itself(threads)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)


def _keep(kept: set[int]) -> None:
    """Of all open files keep these; the three streams become empty ones."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    end, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for low, high in pairwise([2, *sorted(kept), end]):
        os.closerange(low + 1, high)


def _watch(alive: int) -> None:
    os.read(alive, 1)  # ends with the guard
    os._exit(1)


def load(exam: Exam, packed: list[bytes]) -> list:
    """The answers, in a process in which they can neither call the library (see `nurse`) nor reach outside."""
    refuse.outside(exam.forbidden)
    answers = [pickle.loads(data) for data in packed]
    for answer in answers if exam.functions else []:
        if not callable(answer):
            raise TypeError(
                f"{exam.name} is {'None' if answer is None else type(answer).__name__}, not a function"
            )
        _of_the_library(answer)
        refuse_shared(answer)
    return answers


def _of_the_library(answer) -> None:
    """Raise Refused if the answer, or a function beside it, is the package's code under another name."""
    beside = [f for f in getattr(answer, "__globals__", {}).values() if isinstance(f, FunctionType)]
    for f in [answer, *beside]:
        file = f.__code__.co_filename if isinstance(f, FunctionType) else ""
        # refused when it is called
        imported = f is not answer and refuse.under(f.__module__ or "", refuse.OURS)
        if file.startswith(refuse.WRITTEN) and not imported:
            raise refuse.Refused(
                "this is the library's own code: the exercise is about building it yourself"
            )


def world(exam: Exam, packed: list[bytes]) -> Callable[[Pipe], None]:
    """Serves cases, each in a World of its own unless it is on one rank: `{"n", "args"}` in, a report out, until the guard
    ends it."""

    def serve(pipe: Pipe) -> None:
        answers = _loaded(pipe, exam, packed)
        while answers is not None:
            asked = decode(pipe.receive(_HOUR))
            _report(pipe, lambda asked=asked: _in_world(exam, answers, asked["n"], asked["args"]))

    return serve


def _in_world(exam: Exam, answers: list, n: int, args: list) -> dict:
    """On one rank what is measured is this thread's: so there is no other (`begin`), and a World would be one."""
    if isinstance(exam, Solo):
        seed_all(seed_of(0, 0))
        return {"results": [exam.run(None, *answers, *args[0])], "sent": [], "time": 0.0}
    world = exam.world(n, args)
    results = world.run(lambda comm, all_args: exam.run(comm, *answers, *all_args[comm.rank]), args)
    sent = [(m.src, m.dst, m.nbytes) for m in world.trace]
    return {"results": list(results), "sent": sent, "time": world.time}


def rank(exam: Exam, packed: list[bytes], relay: Relay, r: int) -> Callable[[Pipe], None]:
    """Serves one case as rank `r` of several processes: its own arguments in, a report out."""

    def serve(pipe: Pipe) -> None:
        relay.forget(r)
        rings = relay.rings[r]
        answers = _loaded(pipe, exam, packed)
        if answers is not None:
            args = decode(pipe.receive(_HOUR))
            _report(pipe, lambda: _as_rank(exam, answers, rings, r, args))
            pipe.receive(_HOUR)  # until the guard ends it

    return serve


def _as_rank(exam: Exam, answers: list, rings: Rings, r: int, args: tuple) -> dict:
    trace = Trace(rings.n)
    # not checked: the relay passes on no more of a message than its bytes; in Worlds all is compared
    endpoint = Endpoint(rings, r, exam.step, False, trace)
    value = exam.run(ShmComm(endpoint, list(range(rings.n)), r), *answers, *args)
    endpoint.close()
    return {"results": [value]}


def _loaded(pipe: Pipe, exam: Exam, packed: list[bytes]) -> list | None:
    loaded: list = []
    _report(pipe, lambda: loaded.append(load(exam, packed)) or {})
    return loaded[0] if loaded else None


def _report(pipe: Pipe, act: Callable[[], dict]) -> None:
    try:
        report = encode(act())
        if len(report) > MOST:
            large = f"{len(report):,} bytes, and at most {MOST:,} are looked at"
            report = encode({"error": {"kind": "large", "text": large}})
    except BaseException as error:
        report = encode({"error": _failure(error)})
    pipe.send(report, _HOUR)


def _failure(error: BaseException) -> dict:
    """What a message needs to know of an exception. `place`: the answer's innermost own line, in words: a file that an
    answer names is opened here, if anywhere, and not where it is judged."""
    rank = getattr(error, "rank", None)
    error = error.__cause__ if isinstance(error.__cause__, SystemExit) else error
    frames = [
        (f.f_code.co_filename, line, f.f_code.co_name)
        for f, line in traceback.walk_tb(error.__traceback__)
    ]
    kinds = {"refused": refuse.Refused, "deadlock": Deadlock, "unwritten": NotImplementedError}
    kind = next((k for k, types in kinds.items() if isinstance(error, types)), "error")
    return {
        "kind": kind,
        "type": type(error).__name__,
        "text": _words(error)[:2000],
        "place": _place(own_line(frames[::-1])),
        "rank": rank,
    }


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:
        return f"and its words cannot be had: {type(worse).__name__}"
