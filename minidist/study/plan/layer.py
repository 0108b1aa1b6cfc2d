"""Seconds of a layer, an embedding and a projection to the vocabulary, on one of t tensor-parallel ranks.

A product of (tokens, k) by (k, n) has two in its backward, for the input (tokens, n)·(n, k) and for the weight
(n, tokens)·(tokens, k). Fused attention forms the scores once more in its backward: 5 products for 2.
Source of the sizes: Shoeybi et al. 2019, section 3; Dao et al. 2022, "FlashAttention", section 3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from minidist.split import uneven
from minidist.study.memory.transformer import Transformer
from minidist.study.plan.kernels import Kernels, Passes
from minidist.study.plan.machine import Machine


class Seconds(NamedTuple):
    """Of a forward and of a backward; within the forward, of the attention, which selective recomputation repeats, and
    of the last product, which full recomputation need not."""

    forward: float
    backward: float
    attention: float = 0.0
    last: float = 0.0


@lru_cache(maxsize=4096)
def layer(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int, along: int
) -> Seconds:
    """One layer on `batch` sequences. along: over how many ranks what is whole is split (sequence parallel)."""
    tokens = batch * model.context
    h = model.hidden
    size = machine.dtype.itemsize
    up = model.width * (1 + model.gated)
    shapes = [
        ((h + 2 * model.kv) // tensor, h),
        (h, h // tensor),
        (up // tensor, h),
        (h, model.width // tensor),
    ]
    forward = sum(machine.product(tokens, n, k) for n, k in shapes)
    backward = sum(machine.product(tokens, k, n) + machine.product(n, k, tokens) for n, k in shapes)
    there, back = _attention(model, machine, kernels, batch, tensor)

    def beside(passes: Passes) -> float:
        x = size * tokens * h
        scores = size * batch * model.heads // tensor * model.context**2
        nbytes = passes.whole * x / along + passes.inner * x / tensor + passes.scores * scores
        return machine.passes(nbytes, passes.launches)

    core = there + machine.passes(
        kernels.forward.scores * size * batch * model.heads // tensor * model.context**2, 2
    )
    last = machine.product(tokens, *shapes[-1])
    return Seconds(
        forward + there + beside(kernels.forward),
        backward + back + beside(kernels.backward),
        core,
        last,
    )


def _attention(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int
) -> tuple[float, float]:
    """The products of queries with keys, and of weights with values: forward, backward."""
    t = model.context
    d = model.hidden // model.heads
    heads = batch * model.heads // tensor
    if kernels.explicit:
        there = machine.product(t, t, d, heads), machine.product(t, d, t, heads)
        back = (
            machine.product(t, t, d, heads)
            + 2 * machine.product(t, d, t, heads)
            + machine.product(t, d, t, heads)
        )
        return sum(there), back
    flops, nbytes = 4 * heads * t * t * d, 4 * machine.dtype.itemsize * heads * t * d
    return machine.work(flops, nbytes), machine.work(2.5 * flops, 2 * nbytes)


@lru_cache(maxsize=4096)
def embedding(model: Transformer, machine: Machine, batch: int, tensor: int, along: int) -> Seconds:
    """Two look-ups, their masks and their sum; backward writes a gradient of all words."""
    size, words = machine.dtype.itemsize, uneven(model.vocab, tensor)[0]
    x = size * batch * model.context * model.hidden / along
    return Seconds(
        machine.passes(10 * x, 8), machine.passes(5 * x + size * words * model.hidden, 6)
    )


@lru_cache(maxsize=4096)
def head(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int, along: int
) -> Seconds:
    """The last norm, the projection to V/t words, and the loss."""
    tokens = batch * model.context
    words = uneven(model.vocab, tensor)[0]
    size = machine.dtype.itemsize
    x, logits = size * tokens * model.hidden / along, size * tokens * words
    there, back, launches = kernels.logits
    forward = machine.product(tokens, words, model.hidden) + machine.passes(
        2 * x + there * logits, launches
    )
    products = machine.product(tokens, model.hidden, words) + machine.product(
        words, model.hidden, tokens
    )
    return Seconds(forward, products + machine.passes(3 * x + back * logits, launches))
