"""The exercise of lesson 04, Data parallel, about numbers: what a step costs, and what slips do to it."""

from __future__ import annotations

from ..exam import ask
from ..prediction import ALL, HALF, NUMBERS, Prediction


class PredictStep(Prediction):
    name = "predict_step"


def step_slips(n: int, tensors: int, parameters: int, k: int, rate: float) -> tuple[dict, dict]:
    """What a step costs with `tensors` in float32 and k micro-batches; slips with a forgotten and an uneven average."""
    size, steps = 4 * parameters, 2 * (n - 1)
    ring = steps * size / n
    values = {
        "messages": steps * tensors,
        "nbytes": ring,
        "coalesced": steps,
        "rate": n * rate,
        "share": 1 / 8,
    }
    micro = f"The average is taken once, after the last of {k} micro-batches."
    slips = {
        "messages": {
            steps * tensors * k: micro,
            steps: "That is one all-reduce: there is one for each tensor.",
            tensors: "An all-reduce is 2(n−1) messages a rank.",
            steps * tensors / 2: HALF,
            2 * n * tensors: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            steps * tensors * n: ALL,
        },
        "nbytes": {
            ring * k: micro,
            ring / 4: NUMBERS,
            ring / 2: HALF,
            2 * size: "Nearly: the factor is 2(n−1)/n.",
            size: "Each rank sends nearly twice as much: the factor is 2(n−1)/n.",
            ring * n: ALL,
            ring * tensors: "The tensors have these bytes together, not each.",
        },
        "coalesced": {
            steps * tensors: "Coalesced, all tensors travel in one buffer: one all-reduce.",
            n - 1: HALF,
            2 * n: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            1: "One all-reduce, but that is 2(n−1) messages a rank.",
            steps * k: micro,
            steps * n: ALL,
        },
        "rate": {
            rate: "The gradient is a sum of n means, not their mean.",
            rate / n: "It is the other way around: the gradient is too large.",
            n: "Times which rate?",
        },
        "share": {
            1 / 10: "That is what it should have. The plain mean gives each rank 1/4.",
            1 / 4: "That is what the rank has: it has two samples.",
            1 / 2: "That is its share in the rank's mean.",
            1 / 12: "That is a sample of rank 0, which has three.",
        },
    }
    return values, slips


def predict_step(messages, nbytes, coalesced, rate, share) -> None:
    """What a step costs, and what slips do. 8 ranks, 24 tensors, 10,000,000 parameters in float32, 4 micro-batches.

    messages, nbytes: what each rank sends, one all-reduce a tensor.  coalesced: messages with all tensors in one.
    rate: the learning rate that 0.1 becomes when gradients are summed.
    share: of a sample of rank 3 in the plain mean, when 4 ranks have 3, 3, 2 and 2 samples.
    """
    values, slips = step_slips(n=8, tensors=24, parameters=10_000_000, k=4, rate=0.1)
    right = "Messages, bytes, the rate and the share, within 1 %."
    ask(PredictStep(list(values), values, slips, right), messages, nbytes, coalesced, rate, share)
