"""The exercise of lesson 18 in which numbers are foretold: the checkpoint, the failures and the cost of a real run."""

from __future__ import annotations

import math

from ..exam import ask
from ..prediction import Prediction


class PredictSurvive(Prediction):
    name = "predict_survive"


def survive_slips(
    psi: float,
    tokens: float,
    nodes: int,
    stages: int,
    micro: int,
    rate: float,
    hours: float,
    peak: float,
    mfu: float,
) -> tuple[dict, dict]:
    """Ψ parameters, `tokens` of a run; `nodes` of 8 devices that write `rate` bytes/s each and fail every `hours`
    hours a device; a pipeline of `stages` with `micro` micro-batches; `peak` FLOP/s of a device."""
    n = 8 * nodes
    whole = 14 * psi
    save = whole / (nodes * rate)
    between = hours * 3600 / n
    every = math.sqrt(2 * save * between)
    gpu_hours = 6 * psi * tokens / (3600 * peak * mfu)
    failures = gpu_hours / hours
    values = {
        "whole_bytes": whole,
        "rank_bytes": whole / n,
        "save_seconds": save,
        "mtbf_seconds": between,
        "every_seconds": every,
        "bubble": (stages - 1) / (micro + stages - 1),
        "gpu_hours": gpu_hours,
        "failures": failures,
    }
    slips = {
        "whole_bytes": {
            16 * psi: "Gradients are not saved: they are made anew in each step.",
            12 * psi: "The half-precision parameters are missing.",
            2 * psi: "The optimizer's states are missing: 12 bytes a parameter.",
            14 * psi * n: "Replicas save once, not each.",
        },
        "rank_bytes": {
            whole: "That is the whole: all ranks share it.",
            whole / nodes: "A node has 8 ranks.",
        },
        "save_seconds": {
            whole / rate: "That is one node: all nodes write at once.",
            whole / n / rate: "8 ranks of a node share its `rate`.",
        },
        "mtbf_seconds": {
            hours / n: "Those are hours.",
            hours * 3600: "That is one device.",
            hours * 3600 / nodes: "Devices fail, not nodes: there are 8 in each.",
        },
        "every_seconds": {
            math.sqrt(save * between): "The 2 under the root is missing.",
            2 * save * between: "The root is missing.",
            every / 60: "Those are minutes.",
        },
        "bubble": {
            (stages - 1)
            / micro: "That is the bubble over the useful time; of the whole step it is less.",
            stages / (micro + stages - 1): "S−1 slots are empty, not S.",
            micro / (micro + stages - 1): "That is the useful part.",
        },
        "gpu_hours": {
            gpu_hours / n: "That is how long it takes: all GPUs together are asked for.",
            gpu_hours * 3600: "Those are seconds.",
            gpu_hours * mfu: "At its peak? A GPU reaches MFU · peak.",
            gpu_hours
            / 3: "That is the forward alone: 6 FLOPs a parameter and token with the backward.",
        },
        "failures": {
            failures / n: "That is one device's.",
            failures * n: "GPU-hours are all devices' already.",
        },
    }
    return values, slips


def predict_survive(
    whole_bytes, rank_bytes, save_seconds, mtbf_seconds, every_seconds, bubble, gpu_hours, failures
) -> None:
    """20 B parameters, 400 B tokens, 32 nodes, 8 stages, 32 micro-batches, 2 GB/s, 20,000 h, 989 TFLOP/s at 40 %."""
    values, slips = survive_slips(20e9, 400e9, 32, 8, 32, 2e9, 20_000, 989e12, 0.4)
    exam = PredictSurvive(
        list(values), values, slips, "Bytes, seconds, hours, the bubble and failures, within 1 %."
    )
    ask(
        exam,
        whole_bytes,
        rank_bytes,
        save_seconds,
        mtbf_seconds,
        every_seconds,
        bubble,
        gpu_hours,
        failures,
    )
