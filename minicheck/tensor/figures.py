"""The exercise of lesson 11 about numbers: what a tensor-parallel layer sends and holds."""

from __future__ import annotations

from ..exam import ask
from ..prediction import ALL, NUMBERS, Prediction


class PredictTensor(Prediction):
    name = "predict_tensor"


def tensor_slips(
    n: int, batch: int, tokens: int, hidden: int, itemsize: int, alpha: float, beta: float
) -> tuple:
    """A layer's messages, bytes and seconds of one rank, and the usual slips; 12H² weights."""
    size, steps = batch * tokens * hidden * itemsize, 2 * (n - 1)
    ring, weights = 2 * (n - 1) / n * size, 12 * hidden**2 * itemsize
    values = {
        "messages": 4 * steps,
        "nbytes": 4 * ring,
        "seconds": 4 * (steps * alpha + ring * beta),
        "row_first": 5 * ring,
        "heads": 4 * ring,
        "sequence": 4 * ring,
        "weights": weights / n,
    }
    blocks = "A layer has two blocks (attention, MLP), each with one all-reduce forward and one backward: four."
    travel = "Weights never travel here: activations do, B·T·H numbers."
    less = {2 * ring: blocks, ring: blocks}
    slips = {
        "messages": {
            4: "That many all-reduces; each is 2(n−1) messages of a rank.",
            2 * steps: blocks,
            steps: blocks,
            4 * steps * n: ALL,
            8 * n: "In a ring a chunk takes n−1 steps, not n.",
        },
        "nbytes": less
        | {
            4 * ring / itemsize: f"{blocks} Or are those numbers? One has {itemsize} bytes.",
            4 * ring * n: ALL,
            8 * size: "Nearly: the factor is 2(n−1)/n.",
            4 * size: "An all-reduce sends 2(n−1)/n·N a rank.",
            8 * (n - 1) / n * weights: travel,
            2 * (n - 1) / n * weights: travel,
        },
        "seconds": {
            4 * ring * beta: "The α of each step is missing.",
            4 * steps * alpha: "The bytes take time, too: β.",
            steps * alpha + ring * beta: blocks,
            2 * (steps * alpha + ring * beta): blocks,
        },
        "row_first": {
            ring: "That is columns first. Rows first, the sum before GELU has 4H features.",
            4 * ring: "That is the first sum, 4H wide; the second layer has one, too.",
            8 * ring: "The second sum is H wide, as always.",
            10 * ring: "Forward alone is asked for.",
            2 * ring: "There are two sums, but the first is 4H wide.",
        },
        "heads": less
        | {8 * ring: "What travels is B·T·H numbers, however many heads they came from."},
        "sequence": {
            2
            * ring: "A gather and a reduce-scatter are half an all-reduce each, but they are two for one.",
            8 * ring: "Twice as many, but each is half an all-reduce.",
            4 * ring / n: "Activations are divided by n, traffic is not.",
        },
        "weights": {
            weights: "Each rank has an n-th of the matrices.",
            weights / n / itemsize: NUMBERS,
            weights / n / 12: "A layer has 12H² weights: 4H² in attention, 8H² in the MLP.",
            weights * 2 / 3 / n: "That is the MLP alone.",
            weights / 3 / n: "That is attention alone.",
        },
    }
    return values, slips


def predict_tensor(messages, nbytes, seconds, row_first, heads, sequence, weights) -> None:
    """A layer with H = 8,192 on 4 ranks, B = 1, T = 4,096, bf16, α = 5 µs, β = 1/(300 GB/s), forward and backward.

    messages, nbytes, seconds: of one rank, by rings.  row_first: bytes forward of an MLP with both layers by rows.
    heads: nbytes with twice as many heads.  sequence: nbytes with sequence parallel.  weights: bytes of its matrices.
    """
    values, slips = tensor_slips(4, 1, 4096, 8192, 2, 5e-6, 1 / 300e9)
    exam = PredictTensor(
        list(values), values, slips, "Messages, bytes, seconds and weights, within 1 %."
    )
    ask(exam, messages, nbytes, seconds, row_first, heads, sequence, weights)
