"""The right numbers of lesson 01's exercises. Emptied in the process of an answer: no way to ask.

Model states as Rajbhandari et al. 2020 (ZeRO), section 3.1; a transformer layer's parameters and activations as
Korthikanti et al. 2022, section 4.1; FLOPs of a run, MFU and HFU as Chowdhery et al. 2022, appendix B.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import nn
from torch.nn.functional import mse_loss

# fp32 bytes that the optimizer keeps for each parameter
KEPT = {"sgd": 0, "momentum": 4, "adam": 8}
WEIGHT = {"fp32": 4, "fp16": 2}  # bytes
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
DTYPES = {2: torch.float16, 4: torch.float32, 8: torch.float64}


def states(trained: int, frozen: int, optimizer: str, precision: str) -> dict[str, int]:
    """Bytes of model states, by part."""
    copy = 4 if precision == "fp16" else 0
    return {
        "parameters": WEIGHT[precision] * (trained + frozen),
        "gradients": WEIGHT[precision] * trained,
        "optimizer states": (KEPT[optimizer] + copy) * trained,
    }


def kept(batch: int, sizes: list[int], itemsize: int, activation: str, frozen: int) -> int:
    """Bytes that autograd saves in an MLP's forward, each storage once, without parameters, inputs and targets.

    frozen: linear layers, from the first on, that do not learn.
    Not calculated: autograd is asked, on tensors without data.
    """
    like = dict(dtype=DTYPES[itemsize], device="meta")
    layers = [
        layer
        for a, b in pairwise(sizes)
        for layer in (nn.Linear(a, b, **like), ACTIVATIONS[activation]())
    ]
    module = nn.Sequential(*layers[:-1])
    module[: 2 * frozen].requires_grad_(False)
    x, y = (torch.empty(batch, size, **like) for size in (sizes[0], sizes[-1]))
    given = {t.untyped_storage()._cdata for t in (*module.parameters(), x, y)}
    saved: dict[int, torch.UntypedStorage] = {}

    def save(t):
        storage = t.untyped_storage()
        if storage._cdata not in given:
            saved[storage._cdata] = storage
        return t

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        mse_loss(module(x), y)
    return sum(storage.nbytes() for storage in saved.values())


def live(events: list[tuple[str, int]]) -> list[int]:
    """Live bytes after each event."""
    return list(accumulate(nbytes for _, nbytes in events))


def left(events: list[tuple[str, int]]) -> dict[str, int]:
    """Names and bytes of what is not freed at the end."""
    held: dict[str, int] = {}
    for name, nbytes in events:
        held[name] = held.get(name, 0) + nbytes
    return {name: nbytes for name, nbytes in held.items() if nbytes}


def once(vocab: int, seq: int, hidden: int) -> int:
    """Bytes of a GPT's vocabulary and positions, in training."""
    return 16 * (vocab + seq) * hidden


def layer(seq: int, batch: int, hidden: int, heads: int) -> tuple[int, int]:
    """Bytes of a layer's model states, and of its activations."""
    return 16 * (
        12 * hidden * hidden + 13 * hidden
    ), 34 * seq * batch * hidden + 5 * heads * seq * seq * batch


def needs(count: int, batch: int, seq: int, hidden: int, heads: int, vocab: int) -> int:
    """Bytes at the peak of a step of that many layers: at the end of the forward, or when gradients are in one buffer."""
    states, activations = layer(seq, batch, hidden, heads)
    lasting = once(vocab, seq, hidden) + count * states
    return lasting + max(count * activations, lasting // 4)


def layers(memory: int, batch: int, seq: int, hidden: int, heads: int, vocab: int) -> int:
    """The most layers that fit, found by halving an interval."""
    shape = (batch, seq, hidden, heads, vocab)
    low, high = 0, 1
    while needs(high, *shape) <= memory:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if needs(middle, *shape) <= memory:
            low = middle
        else:
            high = middle
    return low


def cost(
    parameters: int, tokens: int, gpus: int, peak: float, achieved: float, recompute: bool
) -> dict[str, float]:
    """GPU-hours, days, MFU and HFU of a run."""
    seconds = (8 if recompute else 6) * parameters * tokens / achieved
    return {
        "gpu_hours": seconds / 3600,
        "days": seconds / gpus / 86400,
        "mfu": 6 * parameters * tokens / seconds / peak,
        "hfu": achieved / peak,
    }


def claims() -> dict[str, float]:
    """What each claim should say, in its own unit."""
    activations = 32 * layer(2048, 1, 4096, 32)[1]
    return {
        "A": layer(4096, 1, 12288, 96)[1] / layer(2048, 1, 12288, 96)[1],
        "B": 6 * 1e9 * 20e9 / (0.4 * 312e12) / 86400,
        "C": 4 * 64_000 * 5_120 / 1e6,
        "D": (16 * 7e9 + activations) / 1e9,
        "E": (2 * 2e9 + 14 * 20e6) / 1e9,
        "F": 48 * 6 / 8,
        "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
        "H": 80e9 / 12 / 1e9,
    }


def claim_slips() -> dict[str, dict[float, str]]:
    """For each claim that is wrong, other wrong figures and what they come from."""
    return {
        "C": {
            1250: "That is right in MiB, of 2^20 bytes. How many MB, of 10^6 bytes, is it?",
            1.31072: "That is in GB: MB are asked for.",
            655.36: "Numbers in fp32 have 4 bytes.",
            327.68: "That is how many numbers there are: each has 4 bytes in fp32.",
        },
        "D": {
            140.5: "The 112 are in GB, of 10^9 bytes, and the 28.5 in GiB, of 2^30. Which unit does the sum have?",
            132.808: "That is the sum in GiB: the sum in GB is asked for.",
            223.52: "That is the lesson's sum for 13 billion parameters: here there are 7 billion.",
            112: "Those are the model states alone.",
            112.956: "The activations are those of one layer, and 32 layers keep theirs.",
        },
        "F": {
            32: "Only the forward pass is recomputed: that is 2 of the 8 FLOPs, and not a third of all.",
            64: "The fraction is upside down: what is recomputed counts only in the HFU.",
            48: "That is the HFU: the MFU does not count what is recomputed.",
            24: "Recomputation runs only the forward pass once more: 8 FLOPs instead of 6.",
            0.36: "The claim is in percent.",
        },
        "G": {
            33.5544: "That is how many numbers there are: how many bytes does each of them have in fp16?",
            134.2: "A number in fp16 has 2 bytes.",
            4.1943: "Is it divided by 16? The claim is about all that the 125 layers keep.",
            62.5: "That is in GiB: GB are asked for.",
        },
    }


def step(sizes: list[int], batch: int) -> tuple[dict[str, float], dict[str, dict[float, str]]]:
    """A step of an MLP with GELU, fp32, Adam, the first of its three layers frozen; and slips.

    What stays, what is kept, FLOPs of the backward, the batch at which the first two are equal.
    """
    inputs, first, second, out = sizes
    products = [a * b for a, b in pairwise(sizes)]  # multiplications of each layer, of a sample
    weights = sum(products) + sum(sizes[1:])
    trained = weights - products[0] - first
    sample = 4 * (first + 2 * second + out)
    stays = 4 * weights + 12 * trained
    keeps = batch * sample
    numbers = "That is how many numbers there are: each has 4 bytes in fp32."
    back = 2 * batch * (products[1] + 2 * products[2])
    values = {"stays": stays, "kept": keeps, "backward": back, "equal": stays / sample}
    slips = {
        "stays": {
            16 * weights: "What is frozen has no gradient, and Adam keeps nothing for it.",
            16 * trained: "What is frozen is in memory, too.",
            4 * weights: "Those are the weights. Where are the gradients, and Adam's two numbers?",
            stays / 4: numbers,
            4 * weights
            + 8
            * trained: "What learns has a weight, a gradient and two numbers of Adam's: four times 4 bytes.",
            4 * weights
            + 4 * trained: "Those are weights and gradients. Where are Adam's two numbers?",
            stays
            + keeps: "Those are states and activations together: the activations are freed in the backward pass.",
            4 * weights + 16 * trained: "In fp32 there is no second copy of the weights.",
        },
        "kept": {
            keeps / 4: numbers,
            sample: "That is for one sample.",
            keeps
            + 4
            * batch
            * first: "Nobody needs the derivative of the GELU behind the frozen layer, so its input is not kept.",
            keeps
            - 4
            * batch
            * first: "The first layer that learns keeps its input, even if a frozen layer has computed it.",
            keeps
            - 4 * batch * second: "GELU keeps its input, and the next layer keeps GELU's output.",
            keeps - 4 * batch * out: "The last output is kept by the loss.",
            keeps + 4 * batch * inputs: "The input is the batch itself and is not counted.",
        },
        "backward": {
            4
            * batch
            * sum(
                products
            ): "That is twice the forward pass. A frozen layer needs no gradient of its weights, and who "
            "needs the gradient of its inputs?",
            4
            * batch
            * sum(
                products[1:]
            ): "Nobody needs the gradient of the second layer's input: nothing in front of that layer learns.",
            2 * batch * sum(products): "That is the forward pass.",
            2
            * batch
            * sum(
                products[1:]
            ): "Those are the gradients of the weights. The second layer learns from what comes "
            "back through the third.",
            back / 2: "Each weight takes a multiplication and an addition: two FLOPs.",
            back / batch: "That is for one sample.",
            back
            + 2 * batch * sum(products): "Those are the forward and the backward pass together.",
        },
        "equal": {
            stays / sample / 4: "Is one of the two in numbers? Count both in bytes.",
            16 * weights / sample: "What is frozen has no gradient, and Adam keeps nothing for it.",
            batch: "That is the batch above, with which activations and model states are not equal.",
            sample / stays: "The fraction is upside down.",
        },
    }
    return values, slips


def train(model, optimizer, loss_fn, batches, test):
    """A loop that holds nothing that it does not need: the loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests
