"""The exercise of lesson 17 in which numbers are foretold: rates, steps, samples, a ramp, a schedule, a message."""

from __future__ import annotations

import math

from ..exam import ask
from ..prediction import Prediction


class PredictLargeBatches(Prediction):
    name = "predict_large_batches"


def large_batches_slips(
    rate: float,
    k: int,
    noise: int,
    batch: int,
    steps: float,
    first: float,
    last: float,
    over: float,
    total: float,
    layers: int,
) -> tuple[dict, dict]:
    """Rates by two rules for a batch k times as large; steps and samples at `batch`, where the fewest are `steps`;
    steps of a ramp; warm-up and a rate of a training of `total` tokens; bytes of a message for `layers` ratios."""
    wave = (1 + math.cos(math.pi / 4)) / 2
    whole = total / last
    values = {
        "linear": k * rate,
        "root": math.sqrt(k) * rate,
        "steps": steps * (1 + noise / batch),
        "samples": steps * (batch + noise),
        "ramp": over / (last - first) * math.log(last / first),
        "warm": 0.005 * whole,
        "quarter": 0.1 + 0.9 * wave,
        "nbytes": 16 * layers,
    }
    slips = {
        "linear": {
            rate: "The batch is larger: the rate grows with it.",
            values["root"]: "That is the root rule.",
            rate / k: "The rate grows with the batch.",
        },
        "root": {
            values["linear"]: "That is the linear rule.",
            rate: "The rate grows with the batch.",
            rate / math.sqrt(k): "The rate grows with the batch.",
        },
        "steps": {
            steps * (1 + batch / noise): "That is the factor of samples.",
            steps: "Those are the fewest.",
            2 * steps: "That is at B = B_noise.",
            steps * noise / batch: "And the fewest themselves: 1 + …",
        },
        "samples": {
            steps * noise: "That is the least, with the smallest batches.",
            steps
            * batch: "Those are the fewest steps, times the batch: a batch of B takes more of them.",
            values["steps"]: "Those are steps: how many samples has each?",
            steps
            * (1 + batch / noise): "Times a factor, but the fewest samples are steps · B_noise.",
        },
        "ramp": {
            over / last: "That is without a ramp.",
            over / first: "That is if the batch stayed small.",
            2
            * over
            / (
                first + last
            ): "That is for the mean of both batches: steps are short where it is small.",
            over / (last - first): "Times ln(last/first).",
            over / (last - first) * math.log10(last / first): "The natural logarithm, ln.",
        },
        "warm": {
            0.005 * total: "Those are tokens.",
            0.5 * whole: "0.5 %, not a half.",
            whole: "That is all of it.",
            5 * whole / 1e5: "0.5 % is 0.005.",
        },
        "quarter": {
            wave: "The floor is missing.",
            0.1 + wave: "The cosine spans 0.9.",
            0.1 + 0.9 * 0.75: "That is a line.",
            0.55: "That is half of the way.",
            0.1 + 0.9 * math.cos(math.pi / 4): "(1 + cos)/2, which goes from 1 to 0.",
        },
        "nbytes": {
            8 * layers: "Two squares for each: of weights, and of the update.",
            2 * layers: "Those are numbers: how many bytes has one?",
            16.0: "For one parameter.",
            4 * layers: "Two numbers for each, and 8 bytes.",
        },
    }
    return values, slips


def predict_large_batches(linear, root, steps, samples, ramp, warm, quarter, nbytes) -> None:
    """0.1 at a batch of 256, and 4,096; B_noise = 1,000, 5,000 steps at the fewest, B = 250; a ramp from 32 K to 3.2 M
    over 4 B tokens; 0.5 % warm-up of 1.6 T tokens; a cosine to 10 %, after a quarter; 50 trust ratios."""
    values, slips = large_batches_slips(
        rate=0.1,
        k=16,
        noise=1000,
        batch=250,
        steps=5000,
        first=32e3,
        last=3.2e6,
        over=4e9,
        total=1.6e12,
        layers=50,
    )
    right = "Rates, steps, samples, a ramp, a schedule and a message, within 1 %."
    ask(
        PredictLargeBatches(list(values), values, slips, right),
        linear,
        root,
        steps,
        samples,
        ramp,
        warm,
        quarter,
        nbytes,
    )
