"""The lists of a learner: `["F0", "F1", "B0", "B1"]` for each stage, read and validated."""

from __future__ import annotations

from itertools import pairwise

import torch

from minidist.comm.base import Comm
from minidist.parallel.schedules import Action, ScheduleError, validate

from ..exam import Case, Exam
from ..plain import kind_of
from ..wrong import Wrong

FORBIDDEN = ("minidist.parallel", "torch.distributed.pipelining", "minicheck.pipelines.oracle")
# (S, M), clear ones first
SIZES = ((4, 8), (3, 3), (2, 5), (1, 1), (1, 4), (4, 2), (3, 1), (8, 16), (5, 12))


def said(S: int, M: int) -> str:
    """`4 stages, 8 micro-batches`."""
    return f"{S} stage{'s' * (S != 1)}, {M} micro-batch{'es' * (M != 1)}"


class Lists(Exam):
    """An answer is a schedule(stage, S, M). `judged` gets the lists of all stages, once they are valid."""

    forbidden = FORBIDDEN
    sizes: tuple[tuple[int, int], ...] = SIZES
    drawn = 3  # cases with S and M drawn at random

    @property
    def cases(self) -> tuple[Case, ...]:
        known = tuple(Case(1, said(S, M), (S, M)) for S, M in self.sizes)
        return known + (Case(1, "stages and micro-batches drawn at random", None),) * self.drawn

    def draw(self, case, rng):
        S, M = case.given or [
            int(torch.randint(low, high, (), generator=rng)) for low, high in ((2, 13), (3, 28))
        ]
        return [(S, M, torch.randperm(S, generator=rng).tolist())]

    def run(self, comm: Comm, yours, S, M, order):
        # a stage knows nothing of the others
        lists = {stage: yours(stage, S, M) for stage in order}
        return [lists[stage] for stage in range(S)]

    def judge(self, case, args, outcome):
        S, M, _ = args[0]
        try:
            lists = [actions(stage, words) for stage, words in enumerate(outcome.results[0])]
            for stage, action in ((s, a) for s, some in enumerate(lists) for a in some):
                self.allowed(stage, action)
            try:
                validate(lists, S, M)
            except ScheduleError as error:
                raise Wrong(f"{error}.") from None
            self.judged(lists, S, M)
        except Wrong as wrong:
            raise Wrong(str(wrong) if case.given else f"{said(S, M)}: {wrong}") from None

    def allowed(self, stage: int, action: Action) -> None:
        """Raise Wrong for an action of a kind that is not asked for."""
        raise NotImplementedError

    def judged(self, lists: list[list[Action]], S: int, M: int) -> None:
        """Raise Wrong unless these valid lists are as good as is asked for."""
        raise NotImplementedError


def actions(stage: int, words) -> list[Action]:
    """The actions of a stage's words. Wrong for what is no list of words."""
    if words is None:
        raise Wrong(f"stage {stage}: it returns None. Is there a `return`?")
    if not isinstance(words, list | tuple):
        raise Wrong(
            f"stage {stage}: it returns {_kind(words)}, and should return a list of words, such as "
            '["F0", "B0"].'
        )
    for word in words:
        if not isinstance(word, str):
            raise Wrong(
                f'stage {stage}: the list has {_kind(word)} in it, and should have words only, such as "F0".'
            )
    try:
        return [Action.parse(word) for word in words]
    except ValueError as error:
        raise Wrong(f"stage {stage}: {error}.") from None


def _kind(x) -> str:
    name = kind_of(x)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def in_order(stage: int, actions: list[Action], kind: str, noun: str) -> None:
    """Raise Wrong unless the actions of a kind are in the order of the micro-batches."""
    micros = [a.micro for a in actions if a.kind == kind]
    for before, after in pairwise(micros):
        if after < before:
            raise Wrong(
                f"stage {stage}: {kind}{after} comes after {kind}{before}. {noun} in the order of the "
                "micro-batches, so that sums of gradients are added as in a serial loop."
            )
