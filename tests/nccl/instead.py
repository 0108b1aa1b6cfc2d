"""Other tests, whose ranks run over the pretended NCCL instead: the same programs, oracles and comparisons.

    round 1    each test runs until it asks for ranks, World(n).run(program, …) or launch(program, n, …), and stops;
               for each n all programs that were asked for run one after the other, in one launch of n ranks
    round 2    each test runs again, gets what its program has given, and goes on: to its verdict, or the next question

So starting ranks, which takes half a second each, is paid for a few times instead of some hundred times. A World of
one rank, which is an oracle, one of more than four, and one with options of its own are left as they are.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import cloudpickle
import torch
from _pytest.outcomes import OutcomeException

from minidist.comm import World, launch
from tests.comm.torchrun import in_its_place, over_nccl_like
from tests.nccl.rank import as_script, run_all

MOST = 4  # ranks


class Row(NamedTuple):
    """A technique, at so many ranks. tests(n, folder): what runs and compares it, each callable without arguments.
    alone: a World of one rank is over the pretence, too."""

    ns: tuple[int, ...]
    tests: Callable[[int, Any], list[Callable]]
    alone: bool = False


class Asked(BaseException):
    """A test wants ranks, and has not been given what they find yet. No test catches it."""

    def __init__(self, n: int, program: Callable, args: tuple, kwargs: dict):
        super().__init__(n)
        self.n, self.job = n, (program, args, kwargs)


class Open:
    """A test without a verdict. given: what its ranks have found, in the order of its questions."""

    def __init__(self, name: str, test: Callable, alone: bool):
        self.name = name
        self.test = test
        self.alone = alone
        self.given: list[bytes] = []  # packed: a comparison may change what it looks at
        self._next = 0

    def ask(self, n: int, program: Callable, args: tuple, kwargs: dict) -> list:
        if self._next == len(self.given):
            raise Asked(n, program, args, kwargs)
        self._next += 1
        return pickle.loads(self.given[self._next - 1])

    def run(self) -> None:
        """From its beginning, to a verdict or a question."""
        self._next = 0
        with self._starting_nothing(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # what a test draws for its ranks, it draws again
            self.test()

    @contextlib.contextmanager
    def _starting_nothing(self) -> Iterator[None]:
        """Within it the files of tests, which ask for ranks, start none."""
        with contextlib.ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith("tests.") and name != __name__:
                    for attribute, (theirs, ours) in self._instead().items():
                        if getattr(module, attribute, None) is theirs:
                            stack.enter_context(mock.patch.object(module, attribute, ours))
            yield

    def _instead(self) -> dict[str, tuple[Any, Any]]:
        """{name: (what files import under it, what takes its place)}"""
        here, ask = range(1 if self.alone else 2, MOST + 1), self.ask

        class Instead:
            def __init__(self, n: int):
                self.n = n

            def run(self, program, *args, **kwargs):
                return ask(self.n, program, args, kwargs)

        def world(n, **options):
            return Instead(n) if n in here and not options else World(n, **options)

        def launched(program, n, *args, transport="shm", **kwargs):
            return (
                ask(n, program, args, kwargs) if n in here else launch(program, n, *args, **kwargs)
            )

        def as_torchrun(program, ranks, *args):
            return ask(ranks, as_script, (program, *args), {})

        return {
            "World": (World, world),
            "launch": (launch, launched),
            "in_its_place": (in_its_place, as_torchrun),
        }


def wrong(
    rows: dict[str, Row], n: int, folder, checked: bool | None = None
) -> list[tuple[str, BaseException]]:
    """(row, what it raised) of each test of these rows, at n ranks, that raised anything."""
    open_, failed = [], []
    for name, row in rows.items():
        if n in row.ns:
            (folder / name).mkdir()
            open_ += [Open(name, test, row.alone) for test in row.tests(n, folder / name)]
    while open_:
        asked: list[tuple[Open, Asked]] = []
        for test in open_:
            try:
                test.run()
            except Asked as question:
                asked.append((test, question))
            except (Exception, OutcomeException) as error:
                failed.append((test.name, error))
        for ranks in sorted({question.n for _, question in asked}):
            failed += answer(
                [(test, question.job) for test, question in asked if question.n == ranks],
                ranks,
                checked,
            )
        open_ = [test for test, _ in asked if not any(test.name == name for name, _ in failed)]
    return failed


def answer(
    asked: list[tuple[Open, tuple]], n: int, checked: bool | None
) -> list[tuple[str, BaseException]]:
    """Run what was asked for on n ranks. Where a program raises, the row is named, and the others run again."""
    failed: list[tuple[str, BaseException]] = []
    while asked:
        jobs = [(test.name, *job) for test, job in asked]
        try:
            every = over_nccl_like(run_all, n, jobs, checked=checked)
        except Exception as error:
            guilty = [
                note.removeprefix("in ")
                for note in getattr(error, "__notes__", [])
                if note.startswith("in ")
            ]
            if not guilty:
                raise
            failed.append((guilty[0], error))
            asked = [(test, job) for test, job in asked if test.name != guilty[0]]
            continue
        for i, (test, _) in enumerate(asked):
            test.given.append(cloudpickle.dumps([of_rank[i] for of_rank in every]))
        break
    return failed
