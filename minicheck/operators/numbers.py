"""The exercise of lesson 09 about numbers: launches, bytes and memory, foretold."""

from __future__ import annotations

from ..exam import ask
from ..prediction import NUMBERS, Prediction


class PredictOperators(Prediction):
    name = "predict_operators"


def operator_slips(weights: int, tensors: int, heads: int, T: int) -> tuple[dict, dict]:
    """AdamW in fp32 on an H100, an addition and a product in bf16, scores in bf16; and the usual slips."""
    launch = 5e-6
    bandwidth = 3.35e12
    single = 67e12
    half = 989e12
    # ms
    start, move = (
        1e3 * 8 * tensors * launch,
        lambda numbers: 1e3 * numbers * weights * 4 / bandwidth,
    )
    scores = heads * T * T * 2 / 2**20
    edge = launch * bandwidth / 6
    ridge = 3 * half / bandwidth
    values = {
        "launches": 8 * tensors,
        "loop_ms": start + move(21),
        "flat_ms": move(7) + 1e3 * launch,
        "edge": edge,
        "scores_mib": scores,
        "ridge_n": ridge,
    }
    slips = {
        "launches": {
            tensors: "That is one a tensor: AdamW written out has eight.",
            8: "That is foreach: the loop goes through the tensors.",
            21 * tensors: "21 are the numbers moved: launches are eight a tensor.",
        },
        "loop_ms": {
            start: "Those are the launches alone: the bytes come on top.",
            move(21): "Those are the bytes alone: each launch comes on top.",
            start + move(7): "Written out it moves 21 numbers a weight, not 7.",
            max(start, move(21)): "A launch comes on top of its bytes.",
            (start + move(21)) / 1e3: "In ms.",
            start + move(21) / 4: NUMBERS,
            start / 8 + move(21): "Eight launches a tensor.",
        },
        "flat_ms": {
            move(9): "Nothing is to be copied: the gradients are in the buffer already.",
            move(21): "In one pass each number is read and written once: 7.",
            move(7) / 4: NUMBERS,
            move(7) / 1e3: "In ms.",
            move(4): "What is written moves, too: p, m and v.",
            move(7) + start: "One launch is left.",
        },
        "edge": {
            edge / 2: "bf16 has 2 bytes, not 4.",
            edge * 6: "Those are bytes: three numbers of 2 bytes each.",
            edge * 3: "It reads two and writes one: three numbers each.",
            edge * 2: "It reads two and writes one: 6 bytes each.",
            edge * 1.5: "It reads two and writes one.",
        },
        "scores_mib": {
            scores / 2: "bf16 has 2 bytes.",
            scores * 2: "bf16 has 2 bytes, not 4.",
            scores / heads: "That is one head.",
            scores * 2**20 / 1e6: "Those are MB = 10⁶: a MiB is 2²⁰ bytes.",
            scores * 2**20: "In MiB, of 2²⁰ bytes.",
            scores / 1024: "Those are GiB.",
        },
        "ridge_n": {
            6 * half / bandwidth: "bf16 has 2 bytes, and a product 2n³ FLOPs: intensity is n/3.",
            half
            / bandwidth: "Those are FLOPs a byte: a product of n × n has 2n³ FLOPs and 6n² bytes.",
            6 * single / bandwidth: "That is fp32.",
            3 * single / bandwidth: "989 TFLOP/s in bf16: 67 are those of fp32.",
            ridge / 3: "Three matrices move.",
        },
    }
    return values, slips


def predict_operators(launches, loop_ms, flat_ms, edge, scores_mib, ridge_n) -> None:
    """On an H100 by the roofline, 5 µs a launch: 10⁹ weights in 500 tensors, AdamW in fp32.

    launches: of the plain loop.  loop_ms: its milliseconds.  flat_ms: over a flat buffer that holds the gradients, too.
    edge: numbers at which a bf16 addition takes as long as its launch.  scores_mib: MiB of the scores of 16 heads,
    T = 8,192, bf16.  ridge_n: from which n on a bf16 product of n × n is bound by compute.
    """
    values, slips = operator_slips(weights=10**9, tensors=500, heads=16, T=8192)
    exam = PredictOperators(list(values), values, slips, "Launches, times and memory, within 1 %.")
    ask(exam, launches, loop_ms, flat_ms, edge, scores_mib, ridge_n)
