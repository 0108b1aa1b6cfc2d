"""The exercises of lesson 13 about lists: 1F1B written, and a zero-bubble schedule with a bug.

Any list that is a schedule, takes no longer than the formula's time, and keeps no more than its bound is right.
Sources: Narayanan et al. 2021, section 2.2.1; Qi et al. 2023, section 2.3.
"""

from __future__ import annotations

from minidist.parallel.schedules import Action, grid, in_flight, simulate

from ..exam import ask
from ..wrong import Wrong
from .words import Lists, in_order


class OneFOneB(Lists):
    name = "one_f_one_b"
    right = "1 to 12 stages, 1 to 27 micro-batches: valid, GPipe's bubble, at most S − stage micro-batches kept."

    def allowed(self, stage, action):
        if action.kind not in "FB":
            raise Wrong(f"stage {stage}: {action} is neither a forward F nor a whole backward B.")

    def judged(self, lists, S, M):
        keeps(lists, [min(M, S - stage) for stage in range(S)], "S − stage")
        in_time(
            lists, 3 * (M + S - 1), f"3(M + S − 1) = {3 * (M + S - 1)}", "F takes 1 and B takes 2"
        )
        for stage, actions in enumerate(lists):
            for kind, noun in (("F", "Forwards come"), ("B", "Backwards come")):
                in_order(stage, actions, kind, noun)


def keeps(lists: list[list[Action]], most: list[int], name: str) -> None:
    """Raise Wrong for a stage that keeps the activations of more micro-batches than it needs to."""
    for stage, actions in enumerate(lists):
        count = in_flight(actions)
        if count > most[stage]:
            hint = ""
            if [a.kind for a in actions] == sorted(
                (a.kind for a in actions), reverse=True
            ) and count > 1:
                hint = " All its forwards come first: that is GPipe."
            elif all(in_flight(some) == count for some in lists) and len(lists) > 1:
                hint = " All stages keep alike: later stages need fewer forwards to warm up."
            raise Wrong(
                f"the lists are valid, but stage {stage} keeps the activations of {count} micro-batches at "
                f"once, and {name} = {most[stage]} are enough.{hint}{drawn(lists)}"
            )


def in_time(lists: list[list[Action]], most: float, words: str, units: str) -> None:
    """Raise Wrong if a schedule takes longer."""
    took = simulate(lists).time
    if took > most + 1e-9:
        busy = 3 * sum(a.kind == "F" for a in lists[0])
        naive = (
            " It is the naive pipeline: one stage is busy at a time."
            if took == busy * len(lists)
            else ""
        )
        raise Wrong(
            f"the lists are valid, but the step takes {took:g}, and {words} is enough, where {units}.{naive}"
            f" Where does a stage wait that need not?{drawn(lists)}"
        )


def drawn(lists: list[list[Action]]) -> str:
    """The grid of small schedules, for a message."""
    picture = grid(lists)
    return f"\n{picture}" if max(map(len, picture.splitlines())) <= 100 else ""


class ZeroBubble(Lists):
    name = "zero_bubble"
    right = "1 to 12 stages, 1 to 27 micro-batches: valid, a third of 1F1B's bubble, at most S micro-batches kept."

    def allowed(self, stage, action):
        if action.kind not in "FIW":
            raise Wrong(
                f"stage {stage}: {action} is none of F, I and W. Here every backward is split."
            )

    def judged(self, lists, S, M):
        keeps(lists, [min(M, S)] * S, "min(M, S)")
        if M >= S:
            in_time(lists, 3 * M + S - 1, f"3M + S − 1 = {3 * M + S - 1}", "F, I and W take 1 each")
        for stage, actions in enumerate(lists):
            in_order(stage, actions, "W", "Weights' gradients come")


def one_f_one_b(yours) -> None:
    """`one_f_one_b(stage, S, M)`: the list of a stage, GPipe's bubble with at most S − stage micro-batches kept."""
    ask(OneFOneB(), yours)


def zero_bubble(yours) -> None:
    """`zero_bubble(stage, S, M)`: ZB-H1, repaired: a bubble of S − 1, and at most S micro-batches kept."""
    ask(ZeroBubble(), yours)
