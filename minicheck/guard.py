"""The guard: a fresh process that examines an answer without ever opening it.

    notebook or grader ── launch ──▶ guard ── fork ──▶ nursery ── fork ──▶ a process with a World, for `exam.cases`
                                                               ── fork ──▶ n processes, for each of `exam.processes`

The answer runs only in the processes on the right. The guard draws the numbers after they have been
forked, hands each rank its own, compares what comes back, and ends whoever is silent for too long. In a
World all ranks share a process, so an answer could pass numbers through its globals: hence the second
row, in which it is sent nothing but messages through shared memory.

The guard and the nursery share one pair of pipes, and from the nursery come plain values only: it may as well be in a
sandbox (sandbox.py), in which a teacher's guard examines what students hand in.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator
from types import ModuleType

import cloudpickle
import torch

from minidist.comm.base import PeerLost
from minidist.comm.launch import launch

from . import examinee
from .exam import Case, Exam, Outcome, Prediction, Wrong, decode, encode, failure, look, pack
from .examinee import explain
from .pipe import Pipe


def examine(
    comm, exam: bytes, answers: list[tuple[list[bytes], dict[str, list[str]]]]
) -> list[Wrong | None]:
    """What is wrong with each answer, given as (packed, sources); None if it is right. The program of a `launch` of
    one rank."""
    exam = pickle.loads(exam)
    with forked(exam) as nursery:
        return [examined(exam, nursery, packed, sources) for packed, sources in answers]


def examined(
    exam: Exam, nursery: Nursery, packed: list[bytes], sources: dict[str, list[str]]
) -> Wrong | None:
    """What is wrong with an answer, whose processes the nursery forks; None if it is right."""
    try:
        nursery.ask("show", {file: (0, None, lines, file) for file, lines in sources.items()})
        with contextlib.closing(_outcomes(exam, nursery, packed)) as outcomes:
            look(exam, outcomes)
    except Wrong as wrong:
        return wrong
    except Exception as error:
        return Wrong(failure(exam, error))
    return None


def draw(exam: Exam, case: Case) -> list[tuple]:
    """What a case draws, from a seed that nobody knows."""
    secret = int.from_bytes(os.urandom(7), "little")
    return exam.draw(case, torch.Generator().manual_seed(secret))


def _outcomes(
    exam: Exam, nursery: Nursery, packed: list[bytes]
) -> Generator[tuple[Case, list[tuple], Outcome]]:
    """What each case gave, and what was drawn for it."""
    with nursery.answer(packed):
        if exam.cases:
            nursery.reports(Case(1, "when it is loaded"), [None], exam.load)
        for case in exam.cases:
            args = draw(exam, case)
            given = [encode({"n": case.n, "args": args})]
            [report], _ = nursery.reports(case, given, exam.step)
            yield case, args, Outcome(report["results"], report["sent"], report["time"])
    for case in exam.processes:
        with nursery.answer(packed, case.n):
            nursery.reports(case, [None] * case.n, exam.load)
            args = draw(exam, case)
            reports, sent = nursery.reports(case, [encode(own) for own in args], exam.step)
        yield case, args, Outcome([value for r in reports for value in r["results"]], sent)


MARGIN = 30.0  # seconds that a nursery may take besides what an answer may take


class Nursery:
    """The process between the guard and the answers, as the guard sees it: nothing that answers may not call is left in
    it, so that this is done once (50 ms) for all that it forks. It runs no answer itself, and is believed no more than
    one: what comes from it is a plain value, within a time."""

    def __init__(self, name: str, line: Pipe, pid: int):
        self._name = name
        self._line = line
        self.pid = pid

    def ask(self, what: str, *given, seconds: float = 0.0):
        """The reply to one of `examinee.Nursery`'s methods."""
        said = self._reply((what, *given), seconds)
        if said == examinee.OVER:
            raise self._ended()
        return said

    def leave(self) -> None:
        """End the nursery that a zygote has forked; Wrong if it had been ended before."""
        if self._reply(("leave",), 0.0) != examinee.OVER:
            raise self._ended()

    def _reply(self, asked: tuple, seconds: float):
        try:
            self._line.send(pickle.dumps(asked), MARGIN)
            return decode(self._line.receive(seconds + MARGIN))
        except (EOFError, OSError, ValueError):  # an answer has ended its parent, or speaks for it
            raise self._ended() from None

    def _ended(self) -> Wrong:
        return Wrong(f"{self._name}: the examination was ended from outside")

    @contextlib.contextmanager
    def answer(self, packed: list[bytes], n: int = 0) -> Iterator[None]:
        """In here an answer has its processes: `n` ranks, or one with a World if n is 0."""
        self.ask("fork", packed, n)
        try:
            yield
        finally:
            # what has ended the nursery is heard at the next question
            with contextlib.suppress(Wrong):
                self.ask("end")

    def reports(
        self, case: Case, given: list[bytes | None], seconds: float
    ) -> tuple[list[dict], list]:
        """What the processes report within `seconds`, and what ranks have sent each other, as it was counted outside of
        them; Wrong if one reports an error, nothing, or nonsense."""
        said = self.ask("ask", given, seconds, seconds=seconds)
        try:
            if "error" in said:
                error = said["error"]
                if case.n == 1:  # there is no other
                    error = error | {"rank": None}
                raise Wrong(explain(self._name, case.what, error))
            reports, sent = said["reports"], said["sent"]
        except (KeyError, TypeError, AttributeError):
            reports = sent = None
        if not isinstance(reports, list) or len(reports) != len(given):
            raise Wrong(explain(self._name, case.what, {"kind": "nonsense"}))
        return reports, sent


@contextlib.contextmanager
def forked(exam: Exam) -> Iterator[Nursery]:
    """A nursery that is a fork of this process."""
    asked, ask = os.pipe()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        examinee.nurse(exam, Pipe(asked, tell))
    os.close(asked)
    os.close(tell)
    line = Pipe(told, ask)
    try:
        yield Nursery(exam.name, line, pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        line.close()


# ------------------------------------------------------------
# Ask an examination of answers, in fresh processes.


def ask(exam: Exam, *answers, of=None) -> None:
    """Examine the answers in fresh processes: print a line if they are right, raise Wrong if not.

    Numbers are compared at once: nothing of them runs. `of`: the student whose numbers they are.
    The cost of functions: one `launch` (0.05 s once its server runs),
    70 ms for a process without the library, 25 ms for each process of the answer, 2 ms for each case.
    """
    packed = [pack(exam.name, answer) for answer in answers]
    if isinstance(exam, Prediction):
        exam.compare([p.number for p in packed], pack(exam.name, of).number)
    else:
        sources = {file: lines for p in packed for file, lines in p.sources.items()}
        try:
            [wrong] = examinations(cloudpickle.dumps(exam), [([p.data for p in packed], sources)])
        except PeerLost as lost:
            raise Wrong(
                f"{exam.name}: the examination was ended from outside: {lost.why}"
            ) from None
        if wrong is not None:
            raise wrong
    print(f"{exam.name}: right. {exam.right}")


def grader(exam: Exam) -> Callable[..., None]:
    """The function that examines an answer to this exercise, under the exercise's name."""

    def examined(*answers, of=None) -> None:
        ask(exam, *answers, of=of)

    examined.__name__ = examined.__qualname__ = exam.name
    examined.__doc__ = exam.__doc__
    examined.exam = exam  # type: ignore[attr-defined]  # for a guard of one's own
    if isinstance(exam, Prediction):
        examined.numbers = exam.numbers  # type: ignore[attr-defined]
    return examined


def graders(lesson: ModuleType) -> dict[str, Callable[..., None]]:
    """A grader for each exercise of a lesson: for each class of examinations that has a name, and each prediction."""
    found = vars(lesson).values()
    exams: list[Exam] = [value for value in found if isinstance(value, Prediction)]
    for value in found:
        if isinstance(value, type) and issubclass(value, Exam) and "name" in vars(value):
            exams.append(value())
    return {exam.name: grader(exam) for exam in exams}


def examinations(
    exam: bytes, answers: list[tuple[list[bytes], dict[str, list[str]]]]
) -> list[Wrong | None]:
    """What is wrong with each of several answers (see `examine`), none of which hears of the others."""
    return launch(examine, 1, exam, answers)[0]
