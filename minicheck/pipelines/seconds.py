"""The exercises of lesson 13 about time: how long lists take, and numbers foretold."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..prediction import Prediction
from ..wrong import Wrong
from .oracle import any_order, time_of, words
from .words import FORBIDDEN

KINDS = {
    "naive": "one micro-batch at a time",
    "gpipe": "all forwards first",
    "1f1b": "one forward, one backward",
    "any": "in an order drawn at random",
}
LARGE = 1e300  # an int may be larger than every float


class StepTime(Exam):
    name = "step_time"
    right = "1 to 6 stages, three schedules and orders drawn at random, slow and fast stages, and lists that hang."
    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *(
            Case(
                1,
                f"{S} stage{'s' * (S > 1)}, {M} micro-batches, {KINDS[kind]}{', stages alike' * alike}",
                (kind, S, M, alike),
            )
            for kind, S, M, alike in (
                ("gpipe", 2, 2, True),
                ("naive", 2, 2, True),
                ("1f1b", 2, 3, True),
                ("gpipe", 3, 4, False),
                ("1f1b", 4, 8, False),
                ("1f1b", 1, 3, False),
                ("naive", 3, 2, False),
                ("1f1b", 6, 13, False),
                ("gpipe", 4, 11, False),
                ("any", 3, 4, False),
                ("any", 5, 6, False),
            )
        ),
        Case(1, "3 stages that wait for each other in a circle", ("upside", 3, 4, True)),
        Case(1, "2 stages, of which one goes back before it goes forward", ("early", 2, 2, True)),
        Case(1, "4 stages, of which one leaves a forward out", ("lost", 4, 3, True)),
        Case(
            1, "3 stages, of which the last begins with the last micro-batch", ("late", 3, 2, True)
        ),
    )

    def draw(self, case, rng):
        kind, S, M, alike = case.given
        plain = {"early": "gpipe", "lost": "gpipe", "late": "naive"}.get(kind, kind)
        lists = (
            any_order(S, M, rng)
            if kind == "any"
            else [words(plain, stage, S, M) for stage in range(S)]
        )
        if kind == "early":
            lists[1] = ["B0", "F0", "F1", "B1"]
        if kind == "lost":
            lists[1].remove("F1")
            lists[1].remove("B1")
        if kind == "late":
            lists[-1] = ["F1", "B1", "F0", "B0"]
        drawn = (1 + torch.randint(15, (2, S), generator=rng).double()) / 2
        return [(lists, *([[1.0] * S, [2.0] * S] if alike else drawn.tolist()))]

    def run(self, comm: Comm, yours, lists, forward, backward):
        try:
            return {"time": yours(lists, forward, backward)}
        except ValueError as error:
            return {"refused": str(error)}

    def judge(self, case, args, outcome):
        (lists, forward, backward), got = args[0], outcome.results[0]
        want = time_of(lists, forward, backward)
        shown = "\n".join(
            f"stage {s}: {' '.join(row)}; F {forward[s]:g}, B {backward[s]:g}"
            for s, row in enumerate(lists)
        )
        if want is None and "refused" not in got:
            raise Wrong(
                f"these lists hang: a stage waits for what never comes. Raise a ValueError.\n{shown}"
            )
        if want is None:
            return
        if "refused" in got:
            raise Wrong(
                f"it raises ValueError ({got['refused']}), but these lists come to their end.\n{shown}"
            )
        number = got["time"]
        if isinstance(number, bool) or not isinstance(number, int | float):
            kind = kind_of(number)
            what = (
                "None. Is there a `return`?"
                if number is None
                else f"something of type {kind}, and not a number."
            )
            raise Wrong(f"it returns {what}")
        number = max(min(number, LARGE), -LARGE)
        if not abs(number - want) <= 1e-9 * want:  # nan, too
            raise Wrong(
                f"{number:g}, and should be {want:g}. {self._why(number, lists, forward, backward)}\n{shown}"
            )

    def _why(self, number: float, lists, forward, backward) -> str:
        M, both = len(lists[0]) // 2, [f + b for f, b in zip(forward, backward, strict=True)]
        looks = {
            "That is the busiest stage's work, without any waiting for other stages.": M
            * max(both),
            "That is the work of all stages, one after the other.": M * sum(both),
            "That takes every stage for as slow as the slowest.": time_of(
                lists, [max(forward)] * len(lists), [max(backward)] * len(lists)
            ),
            "That takes every stage for as fast as stage 0.": time_of(
                lists, forward[:1] * len(lists), backward[:1] * len(lists)
            ),
            "That is with a B as short as an F.": time_of(lists, forward, forward),
            "That is with an F as long as a B.": time_of(lists, backward, backward),
        }
        small = "Too short: an action waits for the one before it in its list, and for what it needs of a neighbour."
        large = (
            "Too long: an action starts as soon as its stage is free and what it needs is there."
        )
        return next(
            (
                text
                for text, value in looks.items()
                if value is not None and abs(value - number) < 1e-9
            ),
            small if number < time_of(lists, forward, backward) else large,
        )


class PredictPipeline(Prediction):
    name = "predict_pipeline"


def pipeline_slips(S: int, M: int, v: int, stage: int, share: float) -> tuple[dict, dict]:
    """Bubble of GPipe, what stages keep, bubble when interleaved, M for a small bubble, idle time of ZB-H1."""
    gpipe, inter = (S - 1) / (M + S - 1), (S - 1) / (v * M + S - 1)
    enough = round((S - 1) * (1 - share) / share)
    values = {
        "bubble": gpipe,
        "gpipe_keeps": M,
        "keeps": S - stage,
        "interleaved": inter,
        "enough": enough,
        "idle": (S - 1) * (1 + 1 - 1),
    }
    slips = {
        "bubble": {
            (S - 1)
            / M: "That is the bubble over the time without it: it is a share of all the time.",
            S / (M + S): "It takes S − 1 slots to fill S stages.",
            1 - gpipe: "That is the share of work.",
            (S - 1) / S: "That is the naive pipeline.",
        },
        "gpipe_keeps": {
            S: "That is 1F1B.",
            M + S - 1: "Those are slots of time.",
            1: "All forwards come first.",
        },
        "keeps": {
            S: "That is stage 0.",
            stage + 1: "It is the other way round: the last stage can go back at once.",
            S - stage - 1: "Those are the forwards to warm up; one more is under way.",
            M: "That is GPipe.",
        },
        "interleaved": {
            gpipe
            / v: "Nearly: over the time without a bubble it is divided by v; a share of all the "
            "time is asked for.",
            gpipe: "A slot is v times shorter, and there are v·M of them.",
            (S - 1) / (v * (M + S - 1)): "Nearly: v multiplies M only.",
        },
        "enough": {
            round((S - 1) / share): "Nearly: the share is of all the time, M + S − 1.",
            enough * S: "Each stage sees all micro-batches.",
            enough + 1: "One less is enough.",
        },
        "idle": {
            3 * (S - 1): "That is 1F1B: W fills a part of it.",
            2 * (S - 1): "The idle time is (S − 1)(T_F + T_I − T_W).",
            S: "It takes S − 1 slots to fill S stages.",
            0: "That is ZB-H2.",
        },
    }
    return values, slips


def step_time(yours) -> None:
    """`step_time(lists, forward, backward)`: how long the lists of all stages take; ValueError if they hang."""
    ask(StepTime(), yours)


def predict_pipeline(bubble, gpipe_keeps, keeps, interleaved, enough, idle) -> None:
    """8 stages, 32 micro-batches: bubble, and micro-batches kept by GPipe and by stage 2 of 1F1B; bubble for v = 4;
    the smallest M for a bubble of 10 %; idle slots of ZB-H1 if F, I and W take one each.
    """
    values, slips = pipeline_slips(S=8, M=32, v=4, stage=2, share=0.1)
    exam = PredictPipeline(
        list(values), values, slips, "Bubbles, activations and micro-batches, within 1 %."
    )
    ask(exam, bubble, gpipe_keeps, keeps, interleaved, enough, idle)
