"""The serial attention, and that of ranks which each have some of the tokens: results, gradients, differences."""

import functools

import torch
import torch.nn.functional as F

from minidist.parallel.context import (
    all_tokens,
    gathered_attention,
    heads_attention,
    own_tokens,
    ring_attention,
)
from tests.largest import largest

BATCH, SIZE = 2, 8


def attend(q, k, v, causal=True):
    """(B, a, T, D), (B, g, T, D) twice; a rank may have no heads."""
    if not q.shape[1]:
        return q
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def inputs(T, heads, groups, dtype=torch.float64):
    """Queries, keys, values, and weights of the result in the loss."""
    random = torch.Generator().manual_seed(T)
    shapes = [(BATCH, h, T, SIZE) for h in (heads, groups, groups, heads)]
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


WAYS = {
    "gathered": gathered_attention,
    "gathered-zigzag": functools.partial(gathered_attention, order="zigzag"),
    "ring": functools.partial(ring_attention, order="contiguous"),
    "ring-zigzag": ring_attention,
    "ring-explicit": functools.partial(ring_attention, attention="explicit"),
}


def with_gradients(attention, q, k, v, weights):
    """The result, and the gradients of the three."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves)
    (out * weights).sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


def on_rank(comm, way, T, heads=4, groups=2, causal=True, dtype=torch.float64):
    """What `with_gradients` gives for the whole sample, put together from all ranks' tokens."""
    order = "zigzag" if way in ("gathered-zigzag", "ring-zigzag", "ring-explicit") else "contiguous"
    own = [own_tokens(x, comm, order, 2) for x in inputs(T, heads, groups, dtype)]
    if way == "heads":
        kind = functools.partial(attend, causal=causal)
        attention = functools.partial(heads_attention, comm=comm, attend=kind, T=T)
    else:
        attention = functools.partial(WAYS[way], comm=comm, T=T, causal=causal)
    return [all_tokens(x, comm, T, order, 2) for x in with_gradients(attention, *own)]


def serial(T, heads=4, groups=2, causal=True, dtype=torch.float64):
    return with_gradients(
        functools.partial(attend, causal=causal), *inputs(T, heads, groups, dtype)
    )


def difference(ours, oracle):
    """The largest, of the result and the gradients."""
    return largest(
        [
            (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
            for a, b in zip(ours, oracle, strict=True)
        ]
    )
