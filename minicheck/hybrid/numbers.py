"""The exercise of lesson 15 in which numbers are foretold: bytes by axis, and what the worst place costs."""

from __future__ import annotations

from ..exam import ask
from ..prediction import NUMBERS, Prediction


class PredictHybrid(Prediction):
    name = "predict_hybrid"


def hybrid_slips(
    d: int, p: int, t: int, layers: int, hidden: int, tokens: int, M: int, fast: float, slow: float
) -> tuple[dict, dict]:
    """dp, pp, tp; tokens of a micro-batch, M of them; bytes a second of NVLink and of a network card; bf16."""
    N, here = 2 * tokens * hidden, layers / p
    tensor, data = (
        8 * (t - 1) / t * N * M * here,
        2 * (d - 1) / d * 24 * hidden**2 * layers / (t * p),
    )
    pipeline = M * N
    good, bad = tensor / fast + (data + pipeline) / slow, tensor / slow + (data + pipeline) / fast
    values = {
        "replica": p * t,
        "tp_bytes": tensor,
        "dp_bytes": data,
        "pp_bytes": pipeline,
        "good": good,
        "bad": bad,
        "ratio": bad / good,
    }
    slips = {
        "replica": {
            d: "That is how many replicas there are.",
            d * p * t: "Those are all ranks.",
            t: "That is one stage of it.",
            p: "Each stage has tp ranks.",
        },
        "tp_bytes": {
            tensor / 2: "Two all-reduces forward, two backward, 2 bytes a number.",
            tensor * p: "A stage has layers/pp layers.",
            tensor / M: "Every micro-batch.",
            8 * N * M * here: "Nearly: the factor is 2(t−1)/t.",
            tensor * t: "That is what the group sends: one rank is asked for.",
            tensor / here: "That is one layer.",
        },
        "dp_bytes": {
            data / 2: NUMBERS,
            data * M: "Once a step: with no_sync.",
            data * t: "Each tensor rank has 1/tp of the matrices.",
            data * p: "Each stage has 1/pp of the layers.",
            data * t * p: "A rank holds 1/(pp·tp) of the parameters.",
            48 * hidden**2 * layers / (t * p): "Nearly: the factor is 2(d−1)/d.",
            data * d: "One rank is asked for.",
        },
        "pp_bytes": {
            2 * M * N: "The first stage sends activations only: gradients come to it.",
            N: "Every micro-batch is sent.",
            M * N / t: "Without sequence parallelism every tensor rank sends the whole.",
            M * N / 2: NUMBERS,
            M * N * t: "One rank is asked for.",
        },
        "good": {
            (tensor + data + pipeline) / fast: "Only tensor stays in the node.",
            bad: "That is the bad place.",
            tensor / fast: "Data and pipeline take time, too.",
            (tensor + data + pipeline) / slow: "Tensor has NVLink.",
        },
        "bad": {
            (tensor + data + pipeline) / slow: "In this place data and pipeline have NVLink.",
            good: "That is the good place.",
        },
        "ratio": {
            good / bad: "Upside down.",
            fast / slow: "That is the ratio of the links: not all is tensor's.",
        },
    }
    return values, slips


def predict_hybrid(replica, tp_bytes, dp_bytes, pp_bytes, good, bad, ratio) -> None:
    """dp 4 × pp 2 × tp 8; 32 layers of 8,192; 12 micro-batches of 4,096 tokens; 400 and 50 GB/s."""
    values, slips = hybrid_slips(4, 2, 8, 32, 8192, 4096, 12, 400e9, 50e9)
    exam = PredictHybrid(
        list(values), values, slips, "Ranks, bytes, seconds and their ratio, within 1 %."
    )
    ask(exam, replica, tp_bytes, dp_bytes, pp_bytes, good, bad, ratio)
