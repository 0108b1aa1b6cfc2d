"""The exercise of lesson 10 in which numbers are foretold: bytes by stage, bytes sent, GPUs, offload."""

from __future__ import annotations

from ..exam import ask
from ..prediction import Prediction


class PredictZero(Prediction):
    name = "predict_zero"


def zero_slips(psi: int, n: int, large: int, card: int) -> tuple[dict, dict]:
    """Bytes on a rank by stage, bytes that a rank sends in a step at stages 2 and 3, GPUs for `large` parameters, bytes
    on a GPU and over its link with offload at stage 2."""
    ring = (n - 1) / n
    values = {
        "stage_1": 4 * psi + 12 * psi / n,
        "stage_2": 2 * psi + 14 * psi / n,
        "stage_3": 16 * psi / n,
        "sent_2": 2 * 2 * psi * ring,
        "sent_3": 3 * 2 * psi * ring,
        "gpus": 16 * large / card,
        "offloaded": 2 * psi + 2 * psi / n,
        "over_link": 4 * psi / n,
    }
    giga = "In bytes: 1 GB is 1,000,000,000 of them."
    states = "That counts 8 bytes of states. The fp32 copy of the weights is one, too: 12."
    slips = {
        "stage_1": {
            16 * psi / n: "That is stage 3.",
            16 * psi: "That is data parallelism.",
            values["stage_2"]: "That is stage 2: stage 1 keeps whole gradients.",
            4 * psi + 8 * psi / n: states,
            12 * psi / n: "And weights and gradients, 4Ψ.",
            2 * psi + 12 * psi / n: "And gradients, 2Ψ.",
            8 * psi + 8 * psi / n: "Those are fp32 weights.",
        },
        "stage_2": {
            values["stage_1"]: "That is stage 1.",
            values["stage_3"]: "That is stage 3.",
            2 * psi + 12 * psi / n: "And the shard of gradients, 2Ψ/n.",
            2 * psi + 10 * psi / n: states,
        },
        "stage_3": {
            16 * psi: "That is data parallelism.",
            12 * psi / n: states,
            values["stage_2"]: "That is stage 2.",
            14 * psi / n: "And the weights' shard.",
        },
        "sent_2": {
            2 * psi * ring: "Those are numbers: fp16 has two bytes. Or is it half of the step?",
            4 * psi: "Nearly: times (n−1)/n.",
            values["sent_3"]: "That is stage 3.",
            4 * psi * (n - 1): "That is what all ranks send together.",
            8 * psi * ring: "Those are fp32 numbers.",
        },
        "sent_3": {
            values["sent_2"]: "That is stages 1 and 2: parameters are gathered twice.",
            3 * psi * ring: "Those are numbers: how many bytes has one?",
            6 * psi: "Nearly: times (n−1)/n.",
            8
            * psi
            * ring: "Gathered in forward and in backward, and gradients are reduced once: 3Ψ.",
            6 * psi * (n - 1): "That is what all ranks send together.",
        },
        "gpus": {
            2 * large / card: "Gradients and states need room, too.",
            12 * large / card: states,
            4 * large / card: "Optimizer states need room, too.",
        },
    }
    slips |= _offload_slips(psi, n)
    for name in values:
        slips[name][values[name] / 1e9] = giga if name != "gpus" else "How many GPUs?"
    return values, slips


def _offload_slips(psi: int, n: int) -> dict[str, dict[float, str]]:
    return {
        "offloaded": {
            2 * psi
            + 14 * psi / n: "That is stage 2 without offload: the states, 12Ψ/n, lie on the hosts.",
            4 * psi: "At stage 2 a GPU keeps the gradients that it owns, 2Ψ/n.",
            2 * psi: "And the gradients that it owns, 2Ψ/n.",
            16 * psi / n: "That is stage 3.",
            2 * psi + 6 * psi / n: "The fp32 copies are the host's, too.",
            4 * psi / n: "The weights are whole on every GPU at stage 2: 2Ψ.",
            12 * psi / n: "That is what a host keeps for each GPU.",
        },
        "over_link": {
            4 * psi: "That is without shards: each host steps its own part alone.",
            2 * psi / n: "That is one way: gradients go down, new weights come up.",
            2 * psi
            + 2 * psi / n: "Only what it owns comes up: the rest comes from the other GPUs.",
            8 * psi / n: "fp16 travels: the host widens, and narrows.",
            6 * psi / n: "fp16 travels, both ways: the host widens, and narrows.",
            12 * psi / n: "The states stay on the host: gradients go down, new weights come up.",
            24 * psi / n: "The states stay on the host: gradients go down, new weights come up.",
        },
    }


def predict_zero(stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link) -> None:
    """13 B parameters on 16 GPUs, fp16 and Adam: bytes on each by stage, bytes that each sends in a step at stages 2
    and 3; how many GPUs of 32 GB hold the states of 100 B parameters at stage 3; and with optimizer states on the
    hosts, at stage 2, bytes on each GPU and bytes over its link in a step."""
    values, slips = zero_slips(psi=13 * 10**9, n=16, large=100 * 10**9, card=32 * 10**9)
    exam = PredictZero(
        list(values), values, slips, "Bytes by stage, bytes sent, GPUs, offload, within 1 %."
    )
    ask(exam, stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link)
