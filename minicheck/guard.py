"""The guard: a fresh process that examines an answer without ever opening it.

    notebook or grader ── launch ──▶ guard ── fork ──▶ nursery ── fork ──▶ a process with a World, for `exam.cases`
                                                               ── fork ──▶ n processes, for each of `exam.processes`

The answer runs only in the processes on the right. The guard draws the numbers after they have been
forked, hands each rank its own, compares what comes back, and ends whoever is silent for too long. In a
World all ranks share a process, so an answer could pass numbers through its globals: hence the second
row, in which it is sent nothing but messages through shared memory.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import re
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from types import ModuleType

import cloudpickle
import torch

from minidist.comm.base import PeerLost
from minidist.comm.launch import launch

from . import examinee
from .exam import Case, Exam, Outcome, Prediction, Wrong, decode, encode, pack
from .examinee import Pipe, Silent, explain, own_line


def examine(
    comm, exam: bytes, answers: list[tuple[list[bytes], dict[str, list[str]]]]
) -> list[str | None]:
    """What is wrong with each answer, given as (packed, sources); None if it is right. The program of a `launch` of
    one rank."""
    exam = pickle.loads(exam)
    with Nursery(exam) as nursery:
        return [_examined(exam, nursery, packed, sources) for packed, sources in answers]


def _examined(
    exam: Exam, nursery: Nursery, packed: list[bytes], sources: dict[str, list[str]]
) -> str | None:
    try:
        nursery.show(sources)
        _worlds(exam, nursery, packed)
        for case in exam.processes:
            _processes(exam, nursery, packed, case)
    except Wrong as wrong:
        return str(wrong)
    return None


def draw(exam: Exam, case: Case) -> list[tuple]:
    """What a case draws, from a seed that nobody knows."""
    secret = int.from_bytes(os.urandom(7), "little")
    return exam.draw(case, torch.Generator().manual_seed(secret))


def _judge(exam: Exam, case: Case, args: list[tuple], outcome: Outcome) -> None:
    try:
        exam.judge(case, args, outcome)
    except Wrong as wrong:
        raise Wrong(f"{exam.name}: {case.what}: {wrong}") from None


def _worlds(exam: Exam, nursery: Nursery, packed: list[bytes]) -> None:
    with nursery.forked(packed) as [one]:
        if exam.cases:
            one.report(exam, Case(1, "when it is loaded"), exam.load)
        for case in exam.cases:
            args = draw(exam, case)
            one.pipe.send(encode({"n": case.n, "args": args}), exam.step)
            report = one.report(exam, case, exam.step)
            _judge(exam, case, args, Outcome(report["results"], report["sent"], report["time"]))


def _processes(exam: Exam, nursery: Nursery, packed: list[bytes], case: Case) -> None:
    with nursery.forked(packed, case.n) as ranks:
        for one in ranks:
            one.report(exam, case, exam.load)
        args = draw(exam, case)
        for r, one in enumerate(ranks):
            one.pipe.send(encode(args[r]), exam.step)
        reports = _first_come(exam, case, ranks)
    results, sent = (
        [value for report in reports for value in report[key]] for key in ("results", "sent")
    )
    _judge(exam, case, args, Outcome(results, sent))


def _first_come(exam: Exam, case: Case, ranks: list[Examinee]) -> list[dict]:
    """The ranks' reports; the first failure to come is the cause of the others."""
    reports: dict[Examinee, dict] = {}
    until = time.monotonic() + exam.step
    while len(reports) < len(ranks):
        waiting = [one for one in ranks if one not in reports]
        heard, _, _ = select.select(
            [one.pipe.reads for one in waiting], [], [], max(0.0, until - time.monotonic())
        )
        for one in [w for w in waiting if w.pipe.reads in heard] or waiting[:1]:
            reports[one] = one.report(exam, case, exam.step if heard else 0.0)
    return [reports[one] for one in ranks]


class Nursery:
    """The process between the guard and the answers: nothing that answers may not call is left in it, so that this is
    done once (50 ms) for all that it forks. It runs no answer itself."""

    def __init__(self, exam: Exam):
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            examinee.nurse(exam, theirs)
        theirs.close()
        self._name = exam.name
        self._line = ours
        self._asks = Connection(os.dup(ours.fileno()))

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._line.close()
        self._asks.close()

    def show(self, sources: dict[str, list[str]]) -> None:
        """Here and in what is forked from now on, messages show the lines of these files."""
        cells = {file: (0, None, lines, file) for file, lines in sources.items()}
        linecache.cache.update(cells)
        self._ask("show", cells)

    def _ask(self, what: str, given=None, fds: Sequence[int] = ()):
        try:
            self._asks.send((what, given))
            if fds:
                socket.send_fds(self._line, [b"f"], fds)
            return self._asks.recv()
        except (EOFError, ConnectionError):  # an answer has ended its parent
            raise Wrong(f"{self._name}: the examination was ended from outside") from None

    @contextlib.contextmanager
    def forked(self, packed: list[bytes], n: int = 0) -> Iterator[list[Examinee]]:
        """The processes of an answer: `n` ranks, or one with a World if n is 0. They end with the context."""
        ones = [Examinee() for _ in range(max(1, n))]
        pids = self._ask("fork", (packed, n), [fd for one in ones for fd in one.theirs])
        for one, one.pid in zip(ones, pids, strict=True):
            for fd in one.theirs[:3]:
                os.close(fd)
        try:
            yield ones
        finally:
            self._ask("end")
            for one in ones:
                one.close()


class Examinee:
    """A process of an answer, as its guard sees it. `theirs`: file descriptors that it has of it."""

    pid: int

    def __init__(self):
        asked, ask = os.pipe()
        told, tell = os.pipe()
        alive, self._alive = os.pipe()
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115
        self.pipe, self.theirs = Pipe(told, ask), [asked, tell, alive, self._stack.fileno()]

    def close(self) -> None:
        self.pipe.close()
        os.close(self._alive)
        self._stack.close()

    def report(self, exam: Exam, case: Case, seconds: float) -> dict:
        """What it reports within `seconds`; Wrong if that is an error, nothing, or nonsense."""
        try:
            report = decode(self.pipe.receive(seconds))
            error = report.get("error")
        except Silent:
            error = {"kind": "silent", "text": f"{seconds:g}", "frame": self._where()}
        except EOFError:
            error = {"kind": "dead"}
        except (ValueError, AttributeError):
            error = {"kind": "nonsense"}
        if error:
            raise Wrong(explain(exam.name, case.what, error))
        return report

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


# ------------------------------------------------------------
# Ask an examination of answers, in fresh processes.


def ask(exam: Exam, *answers) -> None:
    """Examine the answers in fresh processes: print a line if they are right, raise Wrong if not.

    The cost: one `launch` (0.05 s once its server runs), 70 ms for a process without the library, 25 ms for each
    process of the answer, 2 ms for each case.
    """
    packed = [pack(exam.name, answer) for answer in answers]
    sources = {file: lines for p in packed for file, lines in p.sources.items()}
    try:
        [wrong] = examinations(cloudpickle.dumps(exam), [([p.data for p in packed], sources)])
    except PeerLost as lost:
        raise Wrong(f"{exam.name}: the examination was ended from outside: {lost.why}") from None
    if wrong is not None:
        raise Wrong(wrong)
    print(f"{exam.name}: right. {exam.right}")


def grader(exam: Exam) -> Callable[..., None]:
    """The function that examines an answer to this exercise, under the exercise's name."""

    def examined(*answers) -> None:
        ask(exam, *answers)

    examined.__name__ = examined.__qualname__ = exam.name
    examined.__doc__ = exam.__doc__
    return examined


def graders(lesson: ModuleType) -> dict[str, Callable[..., None]]:
    """A grader for each exercise of a lesson: for each class of examinations that has a name, and each prediction."""
    found = vars(lesson).values()
    exams = [value for value in found if isinstance(value, Prediction)]
    for value in found:
        if isinstance(value, type) and issubclass(value, Exam) and "name" in vars(value):
            exams.append(value())
    return {exam.name: grader(exam) for exam in exams}


def examinations(
    exam: bytes, answers: list[tuple[list[bytes], dict[str, list[str]]]]
) -> list[str | None]:
    """What is wrong with each of several answers (see `examine`), none of which hears of the others."""
    return launch(examine, 1, exam, answers)[0]
