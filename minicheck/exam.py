"""An examination: what is asked, of which ranks, and what makes an answer right. Subclass `Exam`, then `ask`.

    class Double(Exam):
        name, right = "double", "n = 1…3"
        cases = tuple(Case(n, f"n = {n}") for n in (2, 1, 3))   # each in a World of n ranks
        processes = (Case(2, "2 real processes"),)              # each in n processes of its own

        def draw(self, case, rng):                              # in the guard: each rank's arguments
            return [(torch.randint(9, (4,), generator=rng),) for _ in range(case.n)]

        def run(self, comm, yours, x):                          # on each rank, beside the answer
            return yours(comm, x)

        def judge(self, case, args, outcome):                   # in the guard, which the answer never enters
            for r in range(case.n):
                same(self, case, r, outcome.results[r], 2 * args[r][0])

    def double(yours):
        ask(Double(), yours)

`draw` draws from a secret seed, after the processes were forked: no rank has another's numbers. `run` gets
what was drawn and returns plain values (plain.py): also the arguments as they are afterwards, where they
must not change, or must. `judge` raises `Wrong`, with the numbers, the rank, and what the mistake looks
like. What `run` returns comes from a process that the answer could have tampered with: `judge` believes
no part of it that it could compute itself. Each lesson's examinations stand in a file beside this one, and
their functions in `minicheck`. Who examines how: guard.py and examinee.py.
"""

from __future__ import annotations

import linecache
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
import torch

from minidist.comm.base import Comm, PeerLost
from minidist.comm.launch import launch
from minidist.comm.world.world import World

from . import refuse
from .wrong import Wrong


class Case(NamedTuple):
    """One run of an answer on `n` ranks. `what`: its name in messages ("n = 3, 7 numbers"). `given`: for `draw`."""

    n: int
    what: str
    given: Any = None


class Outcome:
    """What a case gave: `results[r]` of each rank, and each message that was sent, as (src, dst, bytes).

    time: seconds that the case took on the clock of its World; None in real processes.
    """

    def __init__(self, results: list, sent: list[tuple[int, int, int]], time: float | None = None):
        self.results = results
        self.sent = sent
        self.time = time

    def messages(self, rank: int | None = None) -> int:
        """Messages that `rank` sent, or all did."""
        return sum(1 for src, _, _ in self.sent if rank in (None, src))

    def nbytes(self, rank: int | None = None) -> int:
        """Bytes that `rank` sent, or all did."""
        return sum(nbytes for src, _, nbytes in self.sent if rank in (None, src))

    def receivers(self, rank: int) -> list[int]:
        """Ranks that `rank` sent to, without repetition."""
        return sorted({dst for src, dst, _ in self.sent if src == rank})


class Exam:
    """How one exercise is examined; see the module's text. Instances travel to the guard, so keep them small.

    name: of the exercise.  right: what has been tried, for the line that says so.
    functions: whether the answers are functions.  forbidden: modules whose functions are refused,
        beside torch's collectives.
    step: seconds that one case may take.  load: seconds that the answer may take to be loaded.
    """

    name: str
    right: str
    cases: tuple[Case, ...] = ()
    processes: tuple[Case, ...] = ()
    functions = True
    forbidden: tuple[str, ...] = ("minidist.collectives", "minidist.parallel")
    step, load = 3.0, 10.0

    def __init_subclass__(cls):
        refuse.loaded(cls.forbidden)

    def draw(self, case: Case, rng: torch.Generator) -> list[tuple]:
        """Each rank's arguments for `run`: plain values."""
        raise NotImplementedError

    def world(self, n: int, args: list[tuple]) -> World:
        """The World of a case, in the answer's process; `args` are what `draw` drew."""
        return World(n)

    def run(self, comm: Comm, *answers_and_arguments):
        """Call the answer on one rank; returns a plain value."""
        raise NotImplementedError

    def judge(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        """Raise Wrong unless the outcome is right. `args` are as they were drawn."""
        raise NotImplementedError


class Packed(NamedTuple):
    """An answer that must not be opened here. `sources`: the text of the files that it was written in."""

    data: bytes
    sources: dict[str, list[str]]


def pack(name: str, answer) -> Packed:
    """`answer` as a fresh process can open it. Wrong if it holds what cannot be sent."""
    if isinstance(answer, Packed):
        return answer
    try:
        return Packed(cloudpickle.dumps(answer), _sources(answer))
    except Exception as error:
        raise Wrong(
            f"{name}: the answer cannot be sent to another process, where it is examined: {error}"
        ) from None


def _sources(answer) -> dict[str, list[str]]:
    """The text of the cells that the answer, and the functions beside it, stand in, so that messages can show lines."""
    if not isinstance(answer, FunctionType):
        return {}
    functions = [f for f in answer.__globals__.values() if isinstance(f, FunctionType)]
    files = {
        f.__code__.co_filename for f in [answer, *functions] if f.__module__ == answer.__module__
    }
    return {file: linecache.getlines(file) for file in files}


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


def examinations(
    exam: bytes, answers: list[tuple[list[bytes], dict[str, list[str]]]], seed: int | None = None
) -> list[str | None]:
    """What is wrong with each of several answers (see `guard.examine`), none of which hears of the others.

    seed: from which `draw` draws, the same for each answer; None: a secret one for each case.
    """
    from .guard import examine

    return launch(examine, 1, exam, answers, seed)[0]
