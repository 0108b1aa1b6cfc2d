"""The exercise of lesson 19 in which numbers are foretold: what a step of DDP and of FSDP2 sends over a ring."""

from __future__ import annotations

from ..exam import ask
from ..prediction import ALL, HALF, NUMBERS, Prediction


class PredictCapstone(Prediction):
    name = "predict_capstone"


def capstone_slips(
    n: int, layers: int, psi: int, buckets: int, micro: int, alpha: float, beta: float
) -> tuple[dict, dict]:
    """`layers` of psi/layers fp32 parameters each, on n ranks. DDP in `buckets`; FSDP2 with a group a layer, which
    frees a layer after forward; α and β of a link; `micro` micro-batches a step without no_sync."""
    part, whole = (n - 1) / n, 4 * psi
    ring = 2 * part * whole
    values = {
        "ddp_messages": buckets * 2 * (n - 1),
        "ddp_bytes": ring,
        "gathers": 2 * layers,
        "fsdp_messages": 3 * layers * (n - 1),
        "fsdp_bytes": 3 * part * whole,
        "seconds": buckets * 2 * (n - 1) * alpha + ring * beta,
        "micro_bytes": micro * ring,
    }
    slips = {
        "ddp_messages": {
            2 * (n - 1): "That is one bucket.",
            buckets * (n - 1): HALF,
            n * buckets * 2 * (n - 1): ALL,
            buckets * 2 * n: "A chunk takes n−1 steps, not n.",
            layers * 2 * (n - 1): "DDP does not look at layers: it fills buckets.",
        },
        "ddp_bytes": {
            ring / 4: NUMBERS,
            ring / 2: HALF,
            n * ring: ALL,
            2 * whole: "Nearly: the factor is 2(n−1)/n.",
            buckets * ring: "The buckets share the gradients: together they are N.",
            whole: "A ring has two halves, each (n−1)/n of N.",
        },
        "gathers": {
            layers: "After forward a layer is freed: backward needs it again.",
            3 * layers: "That counts the reduce-scatters, too.",
            2 * layers - 1: "The last layer is freed, too, unless reshard_after_forward=False.",
        },
        "fsdp_messages": {
            2 * layers * (n - 1): "The reduce-scatters are missing, or the gathers of backward.",
            3 * (n - 1): "That is one layer.",
            3 * layers * 2 * (n - 1): "A gather is one half of a ring: n−1 messages.",
            3 * layers * n: "n−1, not n.",
            n * 3 * layers * (n - 1): ALL,
        },
        "fsdp_bytes": {
            ring: "That is DDP's: parameters are gathered twice, gradients scattered once.",
            3 * whole: "Nearly: the factor is 3(n−1)/n.",
            3 * part * psi: NUMBERS,
            4 * part * whole: "Gradients are scattered, and not gathered again.",
            n * 3 * part * whole: ALL,
            part * whole: "That is one of three.",
        },
        "seconds": {
            ring * beta: "The α of each message is missing.",
            buckets * 2 * (n - 1) * alpha: "The bytes take time, too: β.",
            2 * (n - 1) * alpha + ring * beta: "Every bucket pays its α.",
            buckets * alpha + ring * beta: "A bucket is 2(n−1) messages.",
        },
        "micro_bytes": {
            ring: "That is with no_sync: without it every backward reduces.",
            ring / micro: "More micro-batches do not send less.",
        },
    }
    return values, slips


def predict_capstone(
    ddp_messages, ddp_bytes, gathers, fsdp_messages, fsdp_bytes, seconds, micro_bytes
) -> None:
    """8 ranks, 4 layers of 6 million fp32 parameters, 5 buckets, 3 micro-batches, 20 µs, 1/(10 GB/s)."""
    values, slips = capstone_slips(8, 4, 24_000_000, 5, 3, 20e-6, 1e-10)
    exam = PredictCapstone(
        list(values), values, slips, "Messages, bytes, gathers and seconds, within 1 %."
    )
    ask(exam, ddp_messages, ddp_bytes, gathers, fsdp_messages, fsdp_bytes, seconds, micro_bytes)
