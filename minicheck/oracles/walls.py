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


def kept(batch: int, sizes: list[int], itemsize: int, activation: str) -> int:
    """Bytes that autograd saves in an MLP's forward, each storage once, without parameters, inputs and targets.

    Not calculated: autograd is asked, on tensors without data.
    """
    like = dict(dtype=DTYPES[itemsize], device="meta")
    layers = [
        layer
        for a, b in pairwise(sizes)
        for layer in (nn.Linear(a, b, **like), ACTIVATIONS[activation]())
    ]
    module = nn.Sequential(*layers[:-1])
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


def layers(memory: int, batch: int, seq: int, hidden: int, heads: int, vocab: int) -> int:
    """The most layers that fit."""
    return max(0, (memory - once(vocab, seq, hidden)) // sum(layer(seq, batch, hidden, heads)))


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
    activations = 40 * layer(1024, 1, 5120, 40)[1]
    return {
        "A": 16 * 1.5e9 / 1e9,
        "B": 32e9 / 16 / 1e9,
        "C": 4 * 64_000 * 5_120 / 1e6,
        "D": (16 * 13e9 + activations) / 1e9,
        "E": 4 * 1.5e9 / 1e9,
        "F": 16 * 174.6e9 / 1e9,
        "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
        "H": 12 * 0.1e9 / 1e9,
    }


def claim_slips() -> dict[str, dict[float, str]]:
    """For each claim that is wrong, other wrong figures and what they come from."""
    return {
        "C": {
            1250: "It is so in MiB, of 2^20 bytes. How many MB, of 10^6 bytes?",
            1.31072: "In MB, not GB.",
            655.36: "Numbers in fp32 have 4 bytes.",
            327.68: "Those are numbers: 4 bytes each in fp32.",
        },
        "D": {
            222.453: "208 are of 10^9 bytes, 14.45 of 2^30. Which unit does the sum have?",
            208.17: "That is the model states alone, or the sum in GiB: the sum in GB is asked for.",
        },
        "F": {
            2601.8: "That is right in GiB. How many GB?",
            2095.2: "With weights and gradients it is 16 bytes a parameter.",
            2.7936: "In GB, not TB.",
        },
        "G": {
            33.5544: "Those are numbers, not bytes: how many bytes has one in fp16?",
            134.2: "fp16: 2 bytes.",
            4.1943: "Divided by 16? What lies between layers is not split among the GPUs.",
            62.5: "In GB, not GiB.",
        },
    }


def step(sizes: list[int], batch: int) -> tuple[dict[str, float], dict[str, dict[float, str]]]:
    """A step of an MLP with ReLU, fp32, Adam: what stays, what is kept, FLOPs, the batch of equal parts; slips."""
    weights = sum(a * b + b for a, b in pairwise(sizes))
    outputs = sum(sizes[1:])
    stays = 16 * weights
    keeps = 4 * batch * outputs
    numbers = "Those are numbers: 4 bytes each in fp32."
    values = {
        "stays": stays,
        "kept": keeps,
        "forward": 2 * weights * batch,
        "equal": stays / (4 * outputs),
    }
    slips = {
        "stays": {
            4 * weights: "Those are the weights. And gradients, and Adam's two numbers?",
            weights: numbers,
            12 * weights: "Weights, gradients and two numbers of Adam's: four times 4 bytes.",
            8 * weights: "Weights and gradients. And Adam's two numbers?",
            stays + keeps: "That is the peak: the activations are freed in backward.",
            20 * weights: "In fp32 there is no second copy of the weights.",
        },
        "kept": {
            keeps / 4: numbers,
            keeps / batch: "That is for one sample.",
            2 * keeps: "ReLU's output is the next layer's input: kept once.",
            keeps - 4 * batch * sizes[-1]: "The last output is kept by the loss.",
            keeps + 4 * batch * sizes[0]: "The input is the batch itself, and not counted.",
        },
        "forward": {
            6 * weights * batch: "That is forward and backward: one third of it is forward.",
            weights * batch: "A multiplication and an addition for each weight: two.",
            2 * weights: "That is for one sample.",
        },
        "equal": {
            weights / outputs: "Numbers: how many has Adam in all for each weight?",
            12 * weights / (4 * outputs): "16 bytes of model states for each parameter.",
            batch: "That is the batch above: there the activations are another size than the model states.",
            4 * outputs / stays: "It is upside down.",
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
