"""The exercise of lesson 15 about traffic: bytes of each axis in a step, against messages that are really sent."""

from __future__ import annotations

import functools

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import real, shown
from ..wrong import Wrong
from . import oracle

FORBIDDEN = ("minidist.comm.mesh", "minidist.collectives", *oracle.FORBIDDEN)
counted = functools.cache(oracle.counted)
WORDS = {"tp": "tensor", "pp": "pipeline", "dp": "data"}


class StepBytes(Exam):
    name = "step_bytes"
    right = "Ten grids, three of them drawn, each beside the trace of a step that sends these messages: to the byte."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"dp {d} × pp {p} × tp {t}, {M} micro-batches", (d, p, t, M))
        for d, p, t, M in (
            (3, 4, 5, 7),
            (2, 2, 2, 3),
            (1, 1, 1, 2),
            (3, 1, 1, 2),
            (1, 3, 1, 4),
            (1, 1, 4, 2),
            (2, 3, 2, 1),
        )
    )
    cases += tuple(Case(1, f"a grid that is drawn, number {k}") for k in (1, 2, 3))

    def draw(self, case, rng):
        one = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        d, p, t, M = case.given or (one(1, 4), one(2, 4), one(2, 4), one(2, 5))
        if M == 7:  # 60 ranks take a second to count: once for all answers
            return [(d, p, t, M, 11, 20, p)]
        return [(d, p, t, M, one(3, 20), 10 * one(1, 4), p * one(1, 4))]

    def run(self, comm: Comm, yours, *given):
        return yours(*given)

    def judge(self, case, args, outcome):
        got, want = outcome.results[0], counted(*args[0])
        if not isinstance(got, dict) or set(got) != set(want):
            found = list(got) if isinstance(got, dict) else got
            raise Wrong(
                f"it returns {shown(found)}, and should return a dict with 'tp', 'pp' and 'dp'."
            )
        tokens, hidden, layers = args[0][4:]
        given = f"(tokens {tokens}, hidden {hidden}, layers {layers})"
        for axis, nbytes in want.items():
            value = got[axis]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Wrong(f"'{axis}' should be a number of bytes, not {shown(value)}.")
            value = real(value)
            if not abs(value - nbytes) < 0.5:  # divisions round
                looks = _looks(value, axis, nbytes, args[0])
                text = next(
                    (words for words, x in looks if abs(value - x) < 0.5),
                    "First count one message.",
                )
                yours = f"{value:,.0f}" if abs(value) < 1e18 else f"{value:g}"
                raise Wrong(
                    f"{given}: {WORDS[axis]} sends {yours} bytes by yours; the trace counts {nbytes:,}. {text}"
                )


def _looks(value: float, axis: str, want: int, given: list[int]) -> list[tuple[str, float]]:
    """What a wrong number of bytes looks like."""
    d, p, t, M, layers = *given[:4], given[6]
    if not want:
        return [("An axis of one rank sends nothing.", value)]
    size = {"tp": t, "dp": d, "pp": p}[axis]
    half = {
        "tp": "4 all-reduces a layer, backward's too? Each in two halves?",
        "pp": "Gradients come back, too?",
        "dp": "An all-reduce has two halves?",
    }[axis]
    looks = [
        (f"Half of it. {half} And a number has 2 bytes.", want / 2),
        (f"A quarter of it. {half} And a number has 2 bytes.", want / 4),
        ("In fp32? bf16 has 2 bytes.", want * 2),
        ("That is the mean of one rank: all of them together are asked for.", want / (d * p * t)),
        ("Every micro-batch is sent.", want / M),
        ("The replicas do the same: times dp.", want / d),
    ]
    if axis == "pp":
        return [
            ("p stages have p − 1 edges.", want / (p - 1) * p),
            ("That is one pipeline: there are dp·tp.", want / (d * t)),
            ("Each tensor rank sends its own copy to its partner: times tp.", want / t),
            *looks,
            ("Stages talk once, not once a layer.", want * layers),
        ]
    looks += [
        (
            "n − 1 is the factor for all n ranks of a ring together: one of them sends 2(n−1)/n.",
            want / (size - 1) * size,
        ),
        ("That is one rank of each group.", want / size),
    ]
    if axis == "tp":
        return [
            ("That is one stage's layers.", want / p),
            ("That is one group of one stage.", want / (d * p)),
            *looks,
            ("Together the stages have all layers, once.", want * p),
            ("That is one layer.", want / layers),
            (
                "A group of tp ranks sends 2(tp − 1)N: you count each rank of it once more.",
                want * t,
            ),
        ]
    return [
        *looks,
        ("Once a step, after the last micro-batch: not once a micro-batch.", want * M),
        ("A rank has 1/(pp·tp) of the parameters: a replica has them once.", want * p * t),
        ("That is one rank's part: there are pp·tp of them.", want / (p * t)),
        ("Parameters are cut over the stages, too.", want * p),
        ("12·hidden² a layer: all layers.", want / layers),
        ("Parameters are cut over the tensor ranks, too.", want * t),
    ]


def step_bytes(yours) -> None:
    """`step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers)`: {axis: bytes all ranks send in a step}."""
    ask(StepBytes(), yours)
