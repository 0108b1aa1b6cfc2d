"""Graders of lesson 17: who hangs, interleaved lists in groups, a backward in two halves, and W's that are held back.

As in `pipelines`, the library's simulator and validator judge an answer's lists, outside of the answer's process.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minidist.parallel import schedules
from minidist.parallel.simulate import simulate

from ..exam import (
    Case,
    Exam,
    Prediction,
    Report,
    Wrong,
    alone,
    close,
    holds,
    integer,
    matches,
    normal,
    shuffled,
    table,
    typed,
    unpacked,
)
from ..oracles.schedules import hanging, held_back, in_groups, mlp_gradients, warm_up
from .pipelines import FORBIDDEN as BEFORE
from .pipelines import in_order, in_time, keeps, said, valid

FORBIDDEN = (*BEFORE, "minicheck.oracles.schedules")


# ------------------------------------------------------------
# Who hangs: the circle, or the one action that waits for what nobody does.


MADE = {
    "1f1b": (schedules.one_f_one_b, "1F1B"),
    "zb": (schedules.zb_h1, "ZB-H1"),
    "chunks": (schedules.interleaved, "interleaved"),
}
HOW = {
    "ends": "nobody hangs",
    "alone": "one waits in vain",
    "circle": "a circle",
    "long": "a circle of three or more",
}


class WhatHangs(Report):
    """`what_hangs(lists, v)`: the circle of stages that wait for each other, or the one that waits in vain; [] if all end."""

    name = "what_hangs"
    right = (
        "1 to 5 stages with 1 to 3 chunks: circles of two and more, stages that wait in vain, stages that only stand "
        "behind them, and lists that end."
    )
    forbidden = FORBIDDEN
    cases = (
        *alone(
            {
                "2 stages in a circle": (1, "F0 B0 F1 B1 | F0 F1 B0 B1"),
                "2 stages, nobody hangs": (1, "F0 F1 B0 B1 | F0 B0 F1 B1"),
                "3 stages, the lesson's circle": (
                    1,
                    "F0 B0 F1 F2 B1 B2 | F0 F1 B0 F2 B1 B2 | F0 F1 B0 B1 F2 B2",
                ),
                "2 stages, one leaves a forward out": (1, "F0 B0 | F0 F1 B0 B1"),
                "2 stages, one goes back before it goes forward": (1, "F0 F1 B0 B1 | B0 F0 F1 B1"),
                "2 stages, a W before its I": (1, "F0 I0 W0 F1 I1 W1 | F0 I0 F1 W1 I1 W0"),
                "4 stages, two of them in the circle": (
                    1,
                    "F0 F1 B0 B1 | F0 F1 B0 B1 | F0 B0 F1 B1 | F0 F1 B0 B1",
                ),
                "2 stages with 2 chunks, one begins with its second": (
                    2,
                    "F0 F0.1 B0.1 B0 | F0.1 F0 B0.1 B0",
                ),
                "1 stage with 2 chunks, the gradient of chunk 0 first": (2, "F0 F0.1 B0 B0.1"),
                "2 stages, micro-batches 1 and 11": (1, "F1 B1 F11 B11 | F1 F11 B1 B11"),
                "2 stages, one goes back first, and the other waits for it": (1, "B0 F0 | F0 B0"),
                "3 stages, gradients that only I's make": (
                    1,
                    "F0 I0 W0 F1 I1 W1 | F0 F1 I0 W0 I1 W1 | F0 F1 I0 W0 I1 W1",
                ),
            }
        ),
        *table(
            lambda kind, S, M, v, how: (
                f"{S} stages, {M} micro-batches, {MADE[kind][1]}, {HOW[how]}"
            ),
            (
                ("1f1b", 4, 5, 1, "ends"),
                ("1f1b", 5, 6, 1, "circle"),
                ("1f1b", 4, 4, 1, "alone"),
                ("zb", 4, 5, 1, "circle"),
                ("zb", 3, 4, 1, "alone"),
                ("chunks", 3, 3, 2, "circle"),
                ("chunks", 3, 3, 2, "long"),
                ("chunks", 3, 6, 3, "long"),
                ("chunks", 3, 3, 2, "alone"),
            ),
        ),
    )

    def draw(self, case, rng):
        if len(case.given) == 2:
            v, text = case.given
            return [([row.split() for row in text.split(" | ")], v)]
        kind, S, M, v, how = case.given
        schedule = MADE[kind][0]
        made = [
            [str(a) for a in schedule(s, S, M, **({"v": v} if v > 1 else {}))] for s in range(S)
        ]
        for _ in range(2000):  # a word or two out of place, until somebody hangs in this way
            lists = [list(row) for row in made]
            for _ in range(integer(rng, 1, 3) if how != "ends" else 0):
                row = lists[integer(rng, 0, S - 1)]
                word = row.pop(integer(rng, 0, len(row) - 1))
                if how != "alone" or integer(rng, 0, 1):
                    row.insert(integer(rng, 0, len(row)), word)
            stuck, _, answers = hanging(lists, v)
            size = max(map(len, answers), default=0)
            if how == "ends" or (
                len(answers) == 1
                and (how == "alone") == (size == 1)
                and size >= {"long": 3}.get(how, 1)
                and len(stuck) > 1
            ):
                return [(lists, v)]
        raise AssertionError(f"no lists were found for {case.what}")

    def run(self, comm, yours, lists, v):
        before = [list(row) for row in lists]
        got = yours(lists, v)
        return {"got": got, "kept": lists == before}

    def check(self, case, got, lists, v):
        holds(got, {"kept": "`lists` was changed, and belongs to the caller."})
        shown = "\n".join(f"stage {s}: {' '.join(row)}" for s, row in enumerate(lists))
        try:
            self._compare(got["got"], *hanging(lists, v))
        except Wrong as wrong:
            raise Wrong(f"{wrong}\n{shown}") from None

    def _compare(self, got, stuck, waits, answers):
        example = 'a list of pairs, such as [(0, "B0"), (1, "B0")]'
        typed(got, list | tuple, "the result", example)
        found = []
        for pair in got:
            typed(pair, list | tuple, "what is in the result", 'a pair, such as (0, "B0")')
            if len(pair) != 2:
                raise Wrong(f"a pair of the result has {len(pair)} parts: (stage, word).")
            typed(pair[0], int, "a stage", "a number")
            typed(pair[1], str, "an action", 'a word, such as "B0"')
            found.append((int(pair[0]), str(pair[1])))
        if not stuck:
            if found:
                raise Wrong(f"it returns {found}, but these lists come to their end: return [].")
            return
        if not found:
            raise Wrong(f"it returns [], but these lists hang: stages {list(stuck)} never end.")
        turns = [answer[i:] + answer[:i] for answer in answers for i in range(len(answer))]
        if found in turns:
            return
        for stage, word in found:
            if stage not in stuck:
                raise Wrong(f"stage {stage} is named, and it comes to its end.")
            if stuck[stage] != word:
                raise Wrong(f"stage {stage} stands at {stuck[stage]}, not at {word}.")
        inside = {stage for answer in answers for stage, _ in answer}
        for stage, word in found:
            if stage not in inside:
                raise Wrong(
                    f"stage {stage} never starts {word}, but it is not the cause: it waits for stage {waits[stage]}, "
                    "which hangs whatever stage "
                    f"{stage} does. Follow from a stage to the one that it waits for until you come to one twice, or to "
                    "one that waits for what nobody will do."
                )
        if any(sorted(found) == sorted(turn) for turn in turns):
            raise Wrong(
                f"these are the right stages in the wrong order: {found}. Each waits for the next one, and the last for "
                "the first."
            )
        for stage, word in found:
            if waits[stage] == stage:
                raise Wrong(
                    f"{word} of stage {stage} waits for what nobody will ever do: it is the whole answer."
                )
        raise Wrong(
            f"{found} is not one whole circle, in which each stage once waits for the next, and the last for the first."
        )


# ------------------------------------------------------------
# Interleaved lists, in groups of any size that is at least S.
#
# Source: Narayanan et al. 2021, section 2.2.2; groups larger than S are in Megatron-LM, where they are the "microbatch
# group size per virtual pipeline stage".


class Interleaved(Exam):
    """`interleaved(stage, S, groups, v, ahead)`: the list of a stage with v chunks, for groups of given sizes."""

    name = "interleaved"
    right = (
        "1 to 7 stages, 1 to 4 chunks, one to four groups of S and more micro-batches, once and twice d ahead: valid, in "
        "the order of the groups, as long as the formula says."
    )
    forbidden = FORBIDDEN
    cases = (
        *table(
            lambda S, groups, v, ahead: (
                f"{S} stage{'s' * (S > 1)}, groups {list(groups)}, v = {v}, {ahead} ahead"
            ),
            (
                (4, (4, 4), 2, 2),
                (4, (4, 4), 2, 1),
                (2, (3,), 2, 2),
                (4, (5, 5), 2, 2),
                (3, (3, 5, 4), 2, 1),
                (3, (4, 3, 3), 4, 2),
                (2, (2, 5), 3, 1),
                (1, (2, 1), 3, 2),
                (4, (4, 6), 1, 1),
                (5, (5,), 2, 2),
            ),
        ),
        *(Case(1, "stages, groups and chunks drawn at random", None),) * 3,
    )

    def draw(self, case, rng):
        if case.given:
            S, groups, v, ahead = case.given
        else:
            S = integer(rng, 2, 7)
            groups = [integer(rng, S, 2 * S) for _ in range(integer(rng, 2, 4))]
            v, ahead = integer(rng, 2, 4), integer(rng, 1, 2)
        return [(S, list(groups), v, ahead, shuffled(rng, S))]

    def run(self, comm, yours, S, groups, v, ahead, order):
        lists = {stage: yours(stage, S, list(groups), v, ahead) for stage in order}
        return [lists[stage] for stage in range(S)]

    def judge(self, case, args, outcome):
        S, groups, v, ahead, _ = args[0]
        try:
            lists = valid(outcome.results[0], "FB", S, sum(groups), v)
            for stage, row in enumerate(lists):
                self._stage(stage, [str(action) for action in row], S, groups, v, ahead)
        except Wrong as wrong:
            given = f"{said(S, sum(groups))}, groups {groups}, v = {v}, ahead = {ahead}"
            raise Wrong(str(wrong) if case.given else f"{given}: {wrong}") from None

    def _stage(self, stage, words, S, groups, v, ahead):
        want = in_groups(stage, S, groups, v, ahead)
        for kind, noun in (("F", "forward"), ("B", "backward")):
            pairs = zip(*([word for word in some if word[0] == kind] for some in (words, want)))
            for k, (mine, right) in enumerate(pairs):
                if mine != right:
                    way = (
                        "from the first to the last"
                        if kind == "F"
                        else "from the last to the first"
                    )
                    raise Wrong(
                        f"stage {stage}: {noun} {k}, counted from 0, is {mine}, and should be {right}: a group goes "
                        f"through one chunk after the other, {way}, and then the next group comes. The groups are "
                        f"{groups}."
                    )
        warm = warm_up(stage, S, groups, v, ahead)
        first = next(i for i, word in enumerate(words) if word[0] == "B")
        enough = min(v * sum(groups), warm + 1)
        if first != enough:
            raise Wrong(
                f"stage {stage}: {first} forwards come before the first backward, and {enough} should: to warm up, ahead "
                f"times the {S - 1 - stage} stages after it and (v − 1) = {v - 1} times the largest group, {max(groups)}, "
                "but no more than there are; then the forward of the first turn."
            )
        if words != want:
            raise Wrong(
                f"stage {stage}: after the warm-up one forward and one backward take turns: {' '.join(words)}."
            )


# ------------------------------------------------------------
# W's that are held back, where stages have room for different numbers of micro-batches.
#
# Source: Qi et al. 2023, section 2.3.


class ZeroBubble(Exam):
    """`zero_bubble(stage, S, M, room)`: ZB-H1 where stages have unequal room for activations."""

    name = "zero_bubble"
    right = (
        "1 to 9 stages, 1 to 20 micro-batches, equal and unequal room: valid, within each stage's room, and as fast as "
        "W's that are held back can make it."
    )
    forbidden = FORBIDDEN
    cases = (
        *table(
            lambda S, M, room: f"{said(S, M)}, room for {', '.join(map(str, room))}",
            (
                (4, 8, (4, 4, 4, 4)),
                (4, 8, (4, 4, 4, 2)),
                (3, 3, (3, 3, 3)),
                (4, 8, (4, 3, 2, 1)),
                (4, 8, (6, 4, 4, 2)),
                (3, 7, (5, 5, 5)),
                (2, 5, (2, 1)),
                (1, 1, (1,)),
                (1, 4, (3,)),
                (4, 2, (4, 4, 4, 4)),
                (3, 1, (4, 3, 3)),
                (5, 12, (5, 5, 3, 4, 5)),
            ),
        ),
        *(Case(1, "stages, micro-batches and room drawn at random", None),) * 3,
    )

    def draw(self, case, rng):
        if case.given:
            S, M, room = case.given
        else:
            S, M = integer(rng, 3, 9), integer(rng, 3, 20)
            room = [S - stage + integer(rng, 0, stage + 1) for stage in range(S)]
        return [(S, M, list(room), shuffled(rng, S))]

    def run(self, comm, yours, S, M, room, order):
        lists = {stage: yours(stage, S, M, list(room)) for stage in order}
        return [lists[stage] for stage in range(S)]

    def judge(self, case, args, outcome):
        S, M, room, _ = args[0]
        try:
            lists = valid(outcome.results[0], "FIW", S, M)
            keeps(lists, [min(M, most) for most in room], "its room")
            least = simulate(self.best(S, M, room)).time
            in_time(lists, least, f"{least:g}", "F, I and W take 1 each")
            for stage, row in enumerate(lists):
                in_order(stage, row, "W", "Weights' gradients come")
        except Wrong as wrong:
            given = f"{said(S, M)}, room {room}"
            raise Wrong(str(wrong) if case.given else f"{given}: {wrong}") from None

    @staticmethod
    def best(S, M, room):
        """Each stage holds back as many W's as it has room and use for."""
        lates = [min(stage, most - (S - stage)) for stage, most in enumerate(room)]
        rows = [held_back(stage, S, M, late) for stage, late in enumerate(lates)]
        return [schedules.parse(" ".join(row)) for row in rows]


# ------------------------------------------------------------
# Numbers foretold.


def predict_schedules(S=8, M=48, v=3):
    """8 stages, 48 micro-batches, v = 3: the bubble's share in interleaved 1F1B, the messages of a step, what stage 0
    keeps; the bubble's share in ZB-H1, what ZB-H2 keeps, and ZB-H1's bubble if a W takes half as long as an F.
    """
    chunks = 2 * (S - 1) + (v - 1) * S + 1
    h1 = (S - 1) / (3 * M + S - 1)
    values = {
        "interleaved_bubble": (S - 1) / (v * M + S - 1),
        "messages": 2 * M * (v * S - 1),
        "stage_keeps": chunks / v,
        "h1_bubble": h1,
        "h2_keeps": 2 * S - 1,
        "short_w": 1.5 * (S - 1),
    }
    slips = {
        "interleaved_bubble": {
            (S - 1) / (M + S - 1): "That is 1F1B.",
            (S - 1)
            / (
                v * M
            ): "That is the bubble over the time without it: it is a share of all the time.",
            (S - 1) / v / (M + S - 1): "The step, too, becomes shorter, by what the bubble loses.",
        },
        "messages": {
            2
            * M
            * v
            * (
                S - 1
            ): "There is an edge from the last stage back to the first, too, after each chunk but the last.",
            M * (v * S - 1): "That is one direction: activations go out, and gradients come back.",
            2 * M * (S - 1): "That is 1F1B.",
            2 * M * v * S: "The last part of the model sends nothing on.",
        },
        "stage_keeps": {
            chunks: "Those are chunks, and each has a v-th of a stage's activations.",
            (chunks - 1) / v: "Those are the forwards to warm up; one more is under way.",
            ((S - 1) + (v - 1) * S + 1)
            / v: "Stage 0 is twice its distance ahead, in Megatron-LM's order.",
            S: "That is 1F1B.",
        },
        "h1_bubble": {
            (S - 1)
            / (
                M + S - 1
            ): "That is 1F1B: a third of its bubble is left, and the rest of the step is as long.",
            (S - 1) / 3 / (M + S - 1): "The step, too, becomes shorter, by what the bubble loses.",
            (S - 1)
            / (
                3 * M
            ): "That is the bubble over the time without it: it is a share of all the time.",
        },
        "h2_keeps": {
            2 * S: "One less: a stage warms up with twice its distance, and one more is under way.",
            S: "That is ZB-H1.",
            2 * (S - 1): "Those are the forwards to warm up; one more is under way.",
        },
        "short_w": {
            S - 1: "That is with a W as long as an F.",
            (S - 1) / 2: "It is T_F + T_I − T_W for each of S − 1 stages: a shorter W fills less.",
            2.5 * (S - 1): "That is 1F1B: the W fills bubble, and is subtracted.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_schedules,
    "Bubbles, messages, and what is kept, interleaved and with zero bubble, within 1 %.",
    {
        "S": ("{} stages", (4, 6, 12)),
        "M": ("{} micro-batches", (24, 72, 96)),
    },
)


# ------------------------------------------------------------
# A backward in two: the input's gradient first, those of the weights later.
#
# Products are counted by their FLOPs, in each half: both together do the work of a whole backward, and no more.


NAN_GRADIENT = "a gradient that is nan"
ANOTHER = "It is that of a call that came in between: each `later` has tensors of its own."


class SplitBackward(Report):
    """`split_backward(x, w1, h, w2, dy)`: dx, and a function that returns (dw1, dw2)."""

    name = "split_backward"
    right = "7 shapes, float64 and float32, another call in between: the three gradients; two products in each half."
    forbidden = FORBIDDEN
    shapes = (
        (4, 2, 3, 2),
        (2, 2, 2, 2),
        (6, 3, 5, 2),
        (3, 7, 2, 4),
        (8, 4, 4, 4),
        (2, 4, 6, 3),
        (5, 6, 9, 2),
    )
    cases = (*table("{} rows, {} → {} → {}", shapes), Case(1, NAN_GRADIENT, (3, 2, 3, 2)))

    def draw(self, case, rng):
        b, i, h, o = case.given
        dtype = torch.float32 if (b, i) in ((2, 2), (3, 7), (5, 6)) else torch.float64
        x, w1, w2, dy = (
            normal(rng, shape, dtype=dtype) for shape in ((b, i), (i, h), (h, o), (b, o))
        )
        if case.what == NAN_GRADIENT:  # where every relu lets it through
            x, w1 = x.abs(), w1.abs()
            dy[0, 0] = torch.nan
        return [(x, w1, w2, dy)]

    def run(self, comm, yours, x, w1, w2, dy):
        given = [x, w1, (x @ w1).relu(), w2, dy]
        before = [t.clone() for t in given]
        with FlopCounterMode(display=False) as first:
            found = yours(*given)
        if not (isinstance(found, tuple | list) and len(found) == 2 and callable(found[1])):
            return {"kind": "None" if found is None else type(found).__name__}
        dx, later = found
        dx = dx.clone() if isinstance(dx, Tensor) else dx  # as it is now
        yours(*[2 * t for t in given])  # another micro-batch, whose weights wait, too
        with FlopCounterMode(display=False) as second:
            weights = later()
        return {
            "dx": dx,
            "weights": weights,
            "flops": [first.get_total_flops(), second.get_total_flops()],
            "kept": all(map(matches, given, before)),
        }

    def check(self, case, got, x, w1, w2, dy):
        if "kind" in got:
            raise Wrong(
                f"it returns {got['kind']}, and should return two things: dx, and a function that returns "
                "(dw1, dw2)."
            )
        kept = "one of the tensors that were given was changed: it belongs to the caller."
        holds(got, {"kept": kept})
        dx, dw1, dw2 = mlp_gradients(x, w1, w2, dy)
        active = (x @ w1 > 0).to(x.dtype)
        relu = "The relu lets a gradient through only where h > 0."
        steps = "Go back step by step: dh = dy·w2ᵀ, dz = dh where h > 0, dx = dz·w1ᵀ."
        close(got["dx"], dx, "dx", {relu: dy @ w2.T @ w1.T}, steps)
        weights = unpacked(got["weights"], ("dw1", "dw2"), "of the second half ")
        dz = dy @ w2.T * active
        turned, other = "It is transposed.", {"dw1": "It is dw2.", "dw2": "It is dw1."}
        looks = {
            "dw1": {
                relu: x.T @ (dy @ w2.T),
                turned: dw1.T,
                other["dw1"]: dw2,
                ANOTHER: 8 * dw1,
            },
            "dw2": {
                "It is made from z = x·w1: what went into w2 is h, after the relu.": (x @ w1).T
                @ dy,
                turned: dw2.T,
                other["dw2"]: dw1,
                ANOTHER: 4 * dw2,
                "It is made with dz: the gradient of what left w2 is dy.": (x @ w1).relu().T @ dz
                if dz.shape == dy.shape
                else dw2,
            },
        }
        for name, want in (("dw1", dw1), ("dw2", dw2)):
            mine = weights[name]
            if isinstance(mine, Tensor) and mine.shape != want.shape and mine.shape == want.T.shape:
                raise Wrong(f"{name} has shape {tuple(mine.shape)}. {turned}")
            close(mine, want, name, looks[name], steps)
        self._work(got["flops"], *case.given)

    def _work(self, flops, b, i, h, o):
        half = 2 * b * h * (i + o)
        first, second = flops
        if first + second > 2 * half:
            raise Wrong(
                f"the gradients are right, but both halves together take {first + second} FLOPs, and a whole "
                f"backward takes {2 * half}. Is something computed twice, or a forward run again?"
            )
        if first > half:
            raise Wrong(
                f"the gradients are right, but the first half takes {first} FLOPs, and dx alone takes {half}: "
                "the stage before waits for dx. Leave the weights' products to the second half."
            )
        if (first, second) != (half, half):
            raise Wrong(
                f"the gradients are right, but the halves take {first} and {second} FLOPs, and should take "
                f"{half} each: two products of matrices, with @."
            )
