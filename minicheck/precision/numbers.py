"""The exercise of lesson 07 about numbers: what fp16 holds, what a model's states take, how long a scale takes."""

from __future__ import annotations

from ..exam import ask
from ..prediction import Prediction


class PredictPrecision(Prediction):
    name = "predict_precision"


def precision_slips(
    updates: int, billions: float, tensor: float, single: float, back: int, interval: int
):
    """Values and slips: a weight of 1 after `updates` of 2⁻¹⁰ and of 2⁻¹², GB of states at O2 and O3, speed-up, steps
    to recover.
    """
    states = 16 * billions
    values = {
        "kept": 1 + updates * 2.0**-10,
        "lost": 1.0,
        "stuck": 4096.0,
        "states": states,
        "all_half": 8 * billions,
        "faster": tensor / single,
        "recovered": float(back * interval),
    }
    slips = {
        "kept": {1.0: "2⁻¹⁰ is a whole step of fp16 at 1: nothing is lost."},
        "lost": {
            1
            + updates
            * 2.0**-12: "That is fp32: in fp16 the step at 1 is 2⁻¹⁰, and a quarter of it is lost.",
            1 + updates * 2.0**-10: "It is rounded down to 1, not up to the next number.",
        },
        "stuck": {
            2048.0: "At 2048 the step is 2, and an addition of 2 is a whole one.",
            65504.0: "Long before.",
            8192.0: "At 4096 the step is 4: 2 is half of it, and the tie goes to 4096, which is even.",
        },
        "states": {
            12 * billions: "The fp16 weights and gradients are missing, 2 + 2.",
            4
            * billions: "Those are the fp16 weights and gradients: masters and Adam's two are missing.",
            20 * billions: "Gradients in fp32, too? They are fp16: 2 + 2 + 4 + 4 + 4.",
            2 * billions: "Those are the weights alone.",
            14 * billions: "2 + 2 + 4 + 4 + 4.",
            16 * billions * 1e9 / 2**30: "Those are GiB.",
        },
        "all_half": {
            16 * billions: "Those are O2's: O3 has no masters.",
            12 * billions: "Adam's two are in the dtype of what is stepped: at O3 that is fp16.",
            4 * billions: "Those are the weights and gradients: Adam's two are missing.",
            8 * billions * 1e9 / 2**30: "Those are GiB.",
        },
        "faster": {
            2.0: "That is for what is bound by memory: a large product is bound by FLOPs.",
            single / tensor: "Upside down.",
        },
        "recovered": {
            float(interval): "It was halved twice: it has to double twice.",
            float(back): "It doubles after that many good steps: each time 2,000.",
            float((back + 1) * interval): "Two halvings, two doublings.",
        },
    }
    return values, slips


def predict_precision(kept, lost, stuck, states, all_half, faster, recovered) -> None:
    """fp16: a weight of 1 after 100 updates of 2⁻¹⁰; of 2⁻¹²; where a sum of 2s stops. GB of 1.5 B parameters with
    masters and Adam; of the same at O3; how many times as fast a large product is on an H100; good steps after two
    overflows.
    """
    values, slips = precision_slips(100, 1.5, 989.0, 67.0, 2, 2000)
    exam = PredictPrecision(
        list(values), values, slips, "Rounding, memory, time and steps, within 1 %."
    )
    ask(exam, kept, lost, stuck, states, all_half, faster, recovered)
