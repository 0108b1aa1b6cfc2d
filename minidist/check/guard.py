"""The guard: a fresh process that examines an answer without ever opening it.

    notebook or grader ── launch ──▶ guard ── fork ──▶ a process with a World, for `exam.cases`
                                           ── fork ──▶ n processes, for each of `exam.processes`

The answer runs only in the processes on the right. The guard draws the numbers after it has forked
them, hands each rank its own, compares what comes back, and ends whoever is silent for too long. In a
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
import tempfile
import time
from collections.abc import Callable

import torch

from ..comm.processes.rings import Rings
from . import examinee
from .exam import Case, Exam, Outcome
from .explain import explain, own_line
from .pipes import Pipe, Silent
from .plain import decode, encode
from .wrong import Wrong


def examine(comm, exam: bytes, packed: list[bytes], sources: dict[str, list[str]]) -> str | None:
    """What is wrong with an answer; None if it is right. The program of a `launch` of one rank."""
    exam = pickle.loads(exam)
    linecache.cache.update({file: (0, None, lines, file) for file, lines in sources.items()})
    try:
        _worlds(exam, packed)
        for case in exam.processes:
            _processes(exam, packed, case)
    except Wrong as wrong:
        return str(wrong)
    return None


def _draw(exam: Exam, case: Case) -> list[tuple]:
    return exam.draw(case, torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little")))


def _judge(exam: Exam, case: Case, args: list[tuple], outcome: Outcome) -> None:
    try:
        exam.judge(case, args, outcome)
    except Wrong as wrong:
        raise Wrong(f"{exam.name}: {case.what}: {wrong}") from None


def _worlds(exam: Exam, packed: list[bytes]) -> None:
    with Examinee(examinee.world(exam, packed)) as one:
        if exam.cases:
            one.report(exam, Case(1, "when it is loaded"), exam.load)
        for case in exam.cases:
            args = _draw(exam, case)
            one.pipe.send(encode({"n": case.n, "args": args}), exam.step)
            report = one.report(exam, case, exam.step)
            _judge(exam, case, args, Outcome(report["results"], report["sent"], report["time"]))


def _processes(exam: Exam, packed: list[bytes], case: Case) -> None:
    rings = Rings(case.n)
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(Examinee(examinee.rank(exam, packed, rings, r))) for r in range(case.n)]
        for one in ranks:
            one.report(exam, case, exam.load)
        args = _draw(exam, case)
        for r, one in enumerate(ranks):
            one.pipe.send(encode(args[r]), exam.step)
        reports = _first_come(exam, case, ranks)
    results, sent = ([value for report in reports for value in report[key]] for key in ("results", "sent"))
    _judge(exam, case, args, Outcome(results, sent))


def _first_come(exam: Exam, case: Case, ranks: list[Examinee]) -> list[dict]:
    """The ranks' reports; the first failure to come is the cause of the others."""
    reports: dict[Examinee, dict] = {}
    until = time.monotonic() + exam.step
    while len(reports) < len(ranks):
        waiting = [one for one in ranks if one not in reports]
        heard, _, _ = select.select([one.pipe.reads for one in waiting], [], [], max(0.0, until - time.monotonic()))
        for one in [w for w in waiting if w.pipe.reads in heard] or waiting[:1]:
            reports[one] = one.report(exam, case, exam.step if heard else 0.0)
    return [reports[one] for one in ranks]


class Examinee:
    """A process of an answer, as its guard sees it; `with` ends it."""

    def __init__(self, serve: Callable[[Pipe], None]):
        asked, ask = os.pipe()
        told, tell = os.pipe()
        alive, self._alive = os.pipe()
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self.pid = os.fork()
        if self.pid == 0:
            examinee.begin(Pipe(asked, tell), alive, self._stack, serve)
        for fd in (asked, tell, alive):
            os.close(fd)
        self.pipe = Pipe(told, ask)

    def __enter__(self) -> Examinee:
        return self

    def __exit__(self, *_) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
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
        frames.sort(key=lambda s: not s or own_line(s[:1]) is None)  # the thread that is inside the answer first
        return own_line([frame for s in frames for frame in s])
