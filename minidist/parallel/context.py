"""Context parallelism: the tokens of one sample are split over the ranks, and each still attends to all before it.

zigzag, contiguous                                    which tokens each rank has: `segments`, `positions`
own_tokens, all_tokens                                a sample taken apart, and put together
gathered_attention                                    the naive way: every rank gathers all keys and values
ring_attention                                        they travel round a ring, a block at a time
heads_attention                                       two all-to-alls: tokens for heads, and back
context_parallel_                                     the layers of a GPT with one of them

In a GPT's layers only attention looks from token to token; everything else works on the tokens that a rank has. With T
tokens on n ranks a rank keeps 1/n of all activations, except of keys and values in the naive way. It has Q numbers of
queries and K of keys and values together: Q = B·T/n·H, and K = 2·B·T/n·H where both have as many heads. It sends and
holds:

    way                    forward               backward                           holds of keys and values
    gathered               (n−1)·K               (n−1)·K                            n·K
    ring                   (n−1)·K               (n−1)·K and, in float32, (n−1)·K   3K: own, this block, the next
    heads                  (n−1)/n·(2Q + K)      the same                           K, of all tokens and 1/n of the heads

As formulas: `study.predict.context_bytes`, `context_pairs` and `context_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..arguments import choice, whole
from ..collectives import all_gather, all_to_all
from ..comm.base import Comm, Work, describe
from ..models import GPT, Attention, SequenceEmbedding
from ..split import bounds, uneven
from .tensor import conjugate, gather_sequence

# ------------------------------------------------------------
# Which tokens a rank has. A segment is a run of positions, (first, end); a rank has one of them, or two.
#
#     T = 16, n = 4     rank 0          rank 1          rank 2           rank 3
#     contiguous        0 1 2 3         4 5 6 7         8 9 10 11        12 13 14 15
#     zigzag            0 1 14 15       2 3 12 13       4 5 10 11        6 7 8 9
#
# A token looks at those before it, so late tokens are more work. Contiguous, rank r computes r + 1 blocks of (T/n)² pairs
# of a query and a key, and all wait for the last rank's n. Cut into 2n chunks, of which a rank has an early one and a late
# one, every rank has the same work: 2n + 1 blocks of (T/2n)². So the slowest does (2n + 1)/(4n) of what it did, little
# more than half.
# Source: the zigzag order is from Zhu 2024, "ring-flash-attention" (github.com/zhuzilin); Brandon et al. 2023,
# "Striped Attention", deal out single tokens instead.


ORDERS = ("contiguous", "zigzag")
Segment = tuple[int, int]


def segments(T: int, n: int, order: str) -> list[list[Segment]]:
    """For each of `n` ranks the segments of T tokens that it has, in rising order; where n does not divide T, uneven.

    Raises ValueError for an order that is not in `ORDERS`, and for less than 0 tokens or 1 rank.

    >>> from minidist.parallel.context import segments
    >>> segments(16, 4, "zigzag")[0]  # an early chunk and a late one: as much work as any rank's
    [(0, 2), (14, 16)]
    """
    choice(order, "order", ORDERS)
    if order == "contiguous":
        return [[segment] for segment in bounds(uneven(T, n))]
    chunks = bounds(uneven(T, 2 * n))
    return [[chunks[rank], chunks[2 * n - 1 - rank]] for rank in range(n)]


def positions(T: int, n: int, order: str, device: torch.device | str = "cpu") -> list[Tensor]:
    """For each of `n` ranks the positions of its tokens, int64.

    >>> from minidist.parallel.context import positions
    >>> [own.tolist() for own in positions(8, 2, "zigzag")]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    return [
        torch.cat([torch.arange(*segment, device=device) for segment in own])
        for own in segments(T, n, order)
    ]


def lengths(T: int, n: int, order: str) -> list[int]:
    """How many tokens each of `n` ranks has.

    >>> from minidist.parallel.context import lengths
    >>> lengths(10, 4, "contiguous")
    [3, 3, 2, 2]
    """
    return [sum(end - first for first, end in own) for own in segments(T, n, order)]


def own_tokens(x: Tensor, comm: Comm, order: str, dim: int = 1) -> Tensor:
    """This rank's tokens of a sample that is whole, along `dim`: (B, T, …) → (B, T/n, …). No message.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.context import own_tokens
    >>> World(2).run(lambda comm: own_tokens(torch.arange(8)[None], comm, "zigzag"))
    [tensor([[0, 1, 6, 7]]), tensor([[2, 3, 4, 5]])]
    """
    own = segments(x.shape[dim], comm.size, order)[comm.rank]
    return torch.cat([x.narrow(dim, first, end - first) for first, end in own], dim)


def all_tokens(x: Tensor, comm: Comm, T: int, order: str, dim: int = 1) -> Tensor:
    """The whole sample, each token at its position, on every rank: (B, T/n, …) → (B, T, …). Without a gradient.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.context import all_tokens, own_tokens
    >>> def program(comm):
    ...     own = own_tokens(torch.arange(8)[None], comm, "zigzag")
    ...     return all_tokens(own, comm, 8, "zigzag")
    >>> World(2).run(program)[0]
    tensor([[0, 1, 2, 3, 4, 5, 6, 7]])
    """
    rows = all_gather(comm, x.movedim(dim, 0).contiguous(), lengths(T, comm.size, order))
    return rows[torch.cat(positions(T, comm.size, order, x.device)).argsort()].movedim(0, dim)


def check_chunks(T: int, n: int, order: str) -> None:
    """ValueError unless all ranks have as many tokens: a mean over a rank's own then counts as much as another's."""
    chunks = n * (2 if order == "zigzag" else 1)
    if T % chunks:
        raise ValueError(
            f"{T} tokens do not make {chunks} equal chunks, which {n} ranks of one context take "
            f"in the order {order!r}"
        )


def _checked(
    q: Tensor, k: Tensor, v: Tensor, comm: Comm, T: int | None, order: str, attention: str
) -> int:
    """T, where the caller leaves it out: n times what this rank has. ValueError for what does not fit together."""
    choice(order, "order", ORDERS)
    choice(attention, "attention", ("sdpa", "explicit"))
    B, heads, tokens, size = q.shape
    groups = k.shape[1]
    if k.shape != v.shape or k.shape != (B, groups, tokens, size):
        raise ValueError(
            f"queries (B, a, T/n, D) go with keys and values (B, g, T/n, D), not {describe(q)} "
            f"with {describe(k)} and {describe(v)}"
        )
    if heads % max(1, groups):
        raise ValueError(f"{groups} heads of keys and values do not serve {heads} heads alike")
    T = comm.size * tokens if T is None else whole(T, "a sample has at least 0 tokens", 0)
    expected = lengths(T, comm.size, order)[comm.rank]
    if tokens != expected:
        raise ValueError(
            f"rank {comm.rank} of {comm.size} has {expected} of {T} tokens in the order {order!r}, "
            f"not {tokens}; where ranks have different numbers of them, pass T"
        )
    return T


# ------------------------------------------------------------
# The naive way: gather the keys and values of all ranks, and let each query see those before it.
#
# It is exact and short, but each rank holds all keys and values, so their memory is not divided. LLaMA 3 was trained
# this way, since with few heads of keys and values they are small compared with the rest: Dubey et al. 2024, section
# 3.3.2.


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    comm: Comm,
    T: int | None = None,
    order: str = "contiguous",
    causal: bool = True,
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks. Shapes, arguments and errors: as for `ring_attention`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ring_attention
    >>> from minidist.parallel.context import gathered_attention
    >>> def program(comm, attention):
    ...     own = torch.full((1, 1, 4, 2), float(comm.rank))
    ...     return attention(own, own, own, comm, order="zigzag")
    >>> naive, ring = (World(2).run(program, way) for way in (gathered_attention, ring_attention))
    >>> torch.allclose(naive[0], ring[0], atol=1e-6)
    True
    """
    T = _checked(q, k, v, comm, T, order, "explicit")
    sizes = lengths(T, comm.size, order)
    k, v = gather_sequence(k, comm, -2, sizes), gather_sequence(v, comm, -2, sizes)  # (B, g, T, D)
    places = positions(T, comm.size, order, q.device)
    scores = _scores(q, k)  # (B, g, a/g, T/n, T)
    if causal:
        future = torch.cat(places) > places[comm.rank][:, None]
        scores = scores.masked_fill(future, -torch.inf)
    return (scores.softmax(-1) @ v[:, :, None].to(scores.dtype)).flatten(1, 2).to(q.dtype)


# ------------------------------------------------------------
# Attention of a block of queries to a block of keys, forward and backward: what a rank does between two messages.
#
#     S = q·kᵀ/√D        lse = log Σ exp S, over the block's keys        out = exp(S − lse)·v
#
# and backward, with `out` and `lse` of *all* keys, which make each P = exp(S − lse) a block of the whole softmax:
#
#     dv = Pᵀ·g     dS = P ∘ (g·vᵀ − rowsum(g ∘ out))     dq = dS·k/√D     dk = dSᵀ·q/√D
#
# Nothing of the size of S is kept. The explicit functions show every step, in float32 at least; in the fused ones
# PyTorch's operators do the same in tiles, and never hold S. Source: Dao et al. 2022, "FlashAttention", algorithm 4 in
# appendix B.


def _scores(q: Tensor, k: Tensor, diagonal: bool = False) -> Tensor:
    """S (B, g, a/g, t, s), of queries (B, a, t, D) and keys (B, g, s, D). diagonal: no query sees a key after its own."""
    exact = torch.promote_types(q.dtype, torch.float32)
    queries = _by_groups(q, k).to(exact)
    scores = queries @ k[:, :, None].to(exact).transpose(-2, -1) * q.shape[-1] ** -0.5
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def _by_groups(x: Tensor, k: Tensor) -> Tensor:
    """(B, a, t, …) → (B, g, a/g, t, …): the heads that one head of keys serves lie together."""
    groups = k.shape[1]
    return x.unflatten(1, (groups, x.shape[1] // max(1, groups)))


def explicit_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """(out, lse) of a block: (B, a, t, D) and (B, a, t)."""
    scores = _scores(q, k, diagonal)
    lse = scores.logsumexp(-1, keepdim=True)
    out = (scores - lse).exp() @ v[:, :, None].to(scores.dtype)
    return out.flatten(1, 2), lse.squeeze(-1).flatten(1, 2)


def explicit_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block adds to the gradients of its queries, keys and values; out, lse: of all keys."""
    scores = _scores(q, k, diagonal)
    exact = scores.dtype
    g, o, log_sum = (_by_groups(x, k).to(exact) for x in (grad, out, lse))
    probabilities = (scores - log_sum[..., None]).exp()
    dv = (probabilities.transpose(-2, -1) @ g).sum(2)
    dp = g @ v[:, :, None].to(exact).transpose(-2, -1)
    ds = probabilities * (dp - (g * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    dq = (ds @ k[:, :, None].to(exact)).flatten(1, 2)
    return dq, (ds.transpose(-2, -1) @ _by_groups(q, k).to(exact)).sum(2), dv


def _every_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, g, s, D) of every head of queries, (B, a, s, D): a view where each has its own."""
    times = heads // x.shape[1]
    return x[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


def fused_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """`explicit_block` by PyTorch's operator; `out` in the dtype of `q`."""
    k, v = _every_head(k, q.shape[1]), _every_head(v, q.shape[1])
    aten: Any = torch.ops.aten
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, diagonal)
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, diagonal)[:2]


def fused_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`explicit_gradients` by PyTorch's operator."""
    heads, t = q.shape[1:3]
    groups, s = k.shape[1:3]
    keys, values = _every_head(k, heads), _every_head(v, heads)
    aten: Any = torch.ops.aten
    if q.device.type == "cpu":
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, keys, values, out, lse, 0.0, diagonal
        )
    else:
        no_random = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            grad, q, keys, values, out, lse, None, None, t, s, 0.0, diagonal, no_random, no_random
        )
    exact = torch.promote_types(q.dtype, torch.float32)
    dk, dv = (x.unflatten(1, (groups, heads // groups)).sum(2, dtype=exact) for x in (dk, dv))
    return dq, dk, dv


def _operators(q: Tensor, attention: str) -> tuple[Callable, Callable]:
    """The block's forward and backward. A GPU's fused ones take 16 bits, and heads whose size is a multiple of 8."""
    fits = q.device.type != "cuda" or (q.dtype.itemsize == 2 and q.shape[-1] % 8 == 0)
    if attention == "explicit" or not fits or not q.shape[1]:
        return explicit_block, explicit_gradients
    return fused_block, fused_gradients


# ------------------------------------------------------------
# The ring: a rank keeps its queries; the blocks of keys and values travel, and each comes by once.
#
#     step          0         1         2         3           each rank has, of n = 4, one block at a time;
#     rank 0     k₀ v₀ ←── k₃ v₃ ←── k₂ v₂ ←── k₁ v₁          rank r has at step s the block of rank r − s
#     rank 1     k₁ v₁ ←── k₀ v₀ ←── k₃ v₃ ←── k₂ v₂
#     rank 2     k₂ v₂ ←── k₁ v₁ ←── k₀ v₀ ←── k₃ v₃          while it computes with one, the next is on its way
#     rank 3     k₃ v₃ ←── k₂ v₂ ←── k₁ v₁ ←── k₀ v₀
#
# A softmax needs the sum over all keys, and they are never in one place. But two partial results are enough to make the
# result for both sets of keys together, exactly (online softmax):
#
#     lse = log(exp lse₁ + exp lse₂)      out = out₁·exp(lse₁ − lse) + out₂·exp(lse₂ − lse)
#
# Backward, the blocks come by again, and behind each travels the sum of what the ranks add to its gradients. It starts at
# the first rank that is not the block's own, and after n − 1 hops is home, where its own rank adds its part.
#
# A block is split into the segments that a rank has: in a pair of segments either all keys come before the queries, or
# the diagonal goes through, or all keys lie in the future, which costs nothing.
#
# Exchange and block together take max(Kβ, F), where F is the block's time, so messages are hidden once a rank has
# enough tokens: a causal layer in 16 bits sends 2·T/n·H·2 bytes for 2·(T/n)²·H FLOPs, forward. Invariant: ⟨the sum of n
# blocks⟩ is the serial attention, whatever the order. Sources: Liu et al. 2023, "Ring Attention with Blockwise
# Transformers for Near-Infinite Context"; Milakov and Gimelshein 2018, "Online normalizer calculation for softmax",
# section 3.1.


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    comm: Comm,
    T: int | None = None,
    order: str = "zigzag",
    causal: bool = True,
    attention: str = "sdpa",
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks, without ever having them together.

    q: (B, a, T_r, D), of this rank's tokens in the order `order`, see `segments`.  k, v: (B, g, T_r, D), where g divides a.
    T: tokens of the whole sample; n·T_r unless given.  causal: a token sees none after it.
    attention: "sdpa", blocks by PyTorch's fused operators, or "explicit".  Returns (B, a, T_r, D), in the dtype of q.

    Sums are in float32 at least. Keeps q, k, v, the result and a number for each query and head.
    Raises ValueError for other shapes, for a number of tokens that is not this rank's, and for an unknown order.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.parallel import ring_attention
    >>> from minidist.parallel.context import all_tokens, own_tokens
    >>> def program(comm, x):
    ...     own = own_tokens(x, comm, "zigzag", dim=2)  # (1, 2, 4, 4)
    ...     return all_tokens(ring_attention(own, own, own, comm), comm, 8, "zigzag", dim=2)
    >>> x = torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> serial = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> torch.allclose(World(2).run(program, x)[0], serial, atol=1e-5)
    True
    """
    T = _checked(q, k, v, comm, T, order, attention)
    return Ring.apply(q, k, v, comm, segments(T, comm.size, order), causal, attention)


Pair = tuple[slice, slice, bool]


def visible(queries: list[Segment], keys: list[Segment], causal: bool) -> list[Pair]:
    """The pairs of segments to compute: rows and columns in the block, and whether the diagonal goes through."""
    rows = bounds([end - first for first, end in queries])
    columns = bounds([end - first for first, end in keys])
    pairs = []
    for query, row in zip(queries, rows, strict=True):
        for key, column in zip(keys, columns, strict=True):
            empty = row[0] == row[1] or column[0] == column[1]
            if not empty and (key <= query or not causal):
                pairs.append((slice(*row), slice(*column), causal and key == query))
    return pairs


def merge_(out: Tensor, lse: Tensor, more: Tensor, lse_of_more: Tensor) -> None:
    """Turn the result for some keys, in place, into the result for these and others. Before any, `lse` is −inf."""
    both = torch.logaddexp(lse, lse_of_more)
    out.mul_((lse - both).exp()[..., None]).add_(more * (lse_of_more - both).exp()[..., None])
    lse.copy_(both)


def pass_on(lane: Comm, x: Tensor, tokens: int) -> Tensor:
    """Send `x` to the next rank, and return what the one before has: (…, tokens, D)."""
    into = x.new_empty(*x.shape[:-2], tokens, x.shape[-1])
    right, left = (lane.rank + 1) % lane.size, (lane.rank - 1) % lane.size
    return lane.sendrecv(x, right, into, left, "a block of the ring")


class Ring(Function):
    """See `ring_attention`."""

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        comm: Comm,
        parts: list[list[Segment]],
        causal: bool,
        attention: str,
    ) -> Tensor:
        n, rank = comm.size, comm.rank
        attend, _ = _operators(q, attention)
        exact = torch.promote_types(q.dtype, torch.float32)
        # in memory (B, T_r, a, D), so that the projection after it needs no copy
        out = q.new_zeros(q.transpose(1, 2).shape, dtype=exact).transpose(1, 2)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=exact, device=q.device)
        block = torch.stack([k, v])  # (2, B, g, T_r, D)
        for step in range(n):
            source = (rank - step) % n
            coming = _start_exchange(comm, block, parts, source) if step < n - 1 else None
            for rows, columns, diagonal in visible(parts[rank], parts[source], causal):
                keys, values = block[..., columns, :]
                more, lse_of_more = attend(q[..., rows, :], keys, values, diagonal)
                merge_(out[..., rows, :], lse[..., rows], more, lse_of_more)
            if coming is not None:
                block = coming.wait()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = comm, parts, causal, attention
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        comm, parts, causal, attention = ctx.ring
        n, rank = comm.size, comm.rank
        _, gradients = _operators(q, attention)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        block = torch.stack([k, v])
        home = torch.zeros(block.shape, dtype=lse.dtype, device=q.device)
        passing: Work | None = None  # the sum for the next block, on its way here
        for step in range(n):
            source = (rank - step) % n
            coming = _start_exchange(comm, block, parts, source) if step < n - 1 else None
            added = home if step == 0 else torch.zeros_like(block, dtype=lse.dtype)
            for rows, columns, diagonal in visible(parts[rank], parts[source], causal):
                keys, values = block[..., columns, :]
                of_out, queries, result = (x[..., rows, :] for x in (grad, q, out))
                of_queries, *of_block = gradients(
                    of_out, queries, keys, values, result, lse[..., rows], diagonal
                )
                dq[..., rows, :] += of_queries
                added[..., columns, :] += torch.stack(of_block)
            if step > 0:
                if passing is not None:
                    added += passing.wait()
                passing = _start_exchange(comm, added, parts, source)
            if coming is not None:
                block = coming.wait()
        if passing is not None:
            home += passing.wait()
        dk, dv = home.to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None, None, None


def _start_exchange(comm: Comm, x: Tensor, parts: list[list[Segment]], source: int) -> Work:
    """`x` belongs to the block of rank `source`; what comes, to the block of the rank before it. It runs on a lane."""
    before = parts[(source - 1) % comm.size]
    return comm.stream(pass_on, x, sum(end - first for first, end in before))


# ------------------------------------------------------------
# All-to-all on heads: for attention each rank takes all tokens of some heads instead of some tokens of all heads.
#
#     tokens 0 1 2 3          heads a b c d                  heads a b c d
#     rank 0                  ████████  ← tokens 0 1         ██      ← all tokens of head a, b
#     rank 1                  ████████  ← tokens 2 3             ██  ← all tokens of head c, d
#
# Between the two all-to-alls it is the serial attention, of any kind. A rank sends (n−1)/n of what it has, once there and
# once back: that falls with n, whereas the ring's share stays. But no more ranks have work than there are heads of keys
# and values. Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.


def heads_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    comm: Comm,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    T: int | None = None,
) -> Tensor:
    """Apply `attend(q, k, v)` to all tokens of this rank's heads, instead of to all heads of this rank's tokens.

    q, k, v, T, errors: as for `ring_attention`, in the order "contiguous". Heads of keys and values are dealt out as evenly
    as possible, each with its queries; with more ranks than heads the last ranks have none.
    attend: (B, a_r, T, D), twice (B, g_r, T, D) → (B, a_r, T, D).  Returns (B, a, T_r, D).

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.parallel import heads_attention
    >>> def program(comm, x):
    ...     shapes = []
    ...     def attend(q, k, v):
    ...         shapes.append(tuple(q.shape))
    ...         return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ...     own = x.chunk(comm.size, dim=2)[comm.rank]
    ...     out = heads_attention(own, own, own, comm, attend)
    ...     return tuple(own.shape), shapes, tuple(out.shape)
    >>> World(2).run(program, torch.ones(1, 4, 8, 3))[0]  # half of the tokens; half of the heads
    ((1, 4, 4, 3), [(1, 2, 8, 3)], (1, 4, 4, 3))
    """
    T = _checked(q, k, v, comm, T, "contiguous", "sdpa")
    tokens, heads = uneven(T, comm.size), uneven(k.shape[1], comm.size)
    grouped = _by_groups(q, k)  # (B, g, a/g, T_r, D)
    rows = torch.cat([grouped, k[:, :, None], v[:, :, None]], 2)  # (B, g, a/g + 2, T_r, D)
    rows = conjugate(rows, _to_heads, _to_tokens, comm, heads, tokens)  # (B, g_r, a/g + 2, T, D)
    queries, keys, values = rows.split((grouped.shape[2], 1, 1), 2)
    out = attend(queries.flatten(1, 2), keys.flatten(1, 2), values.flatten(1, 2))
    out = out.unflatten(1, queries.shape[1:3])  # (B, g_r, a/g, T, D)
    return conjugate(out, _to_tokens, _to_heads, comm, heads, tokens).flatten(1, 2)


def _to_heads(xs: list[Tensor], comm: Comm, heads: list[int], tokens: list[int]) -> list[Tensor]:
    """(B, g, …, T_r, D) → (B, g_r, …, T, D)."""
    return [_exchange(x, comm, (1, heads), (-2, tokens)) for x in xs]


def _to_tokens(xs: list[Tensor], comm: Comm, heads: list[int], tokens: list[int]) -> list[Tensor]:
    """(B, g_r, …, T, D) → (B, g, …, T_r, D)."""
    return [_exchange(x, comm, (-2, tokens), (1, heads)) for x in xs]


def _exchange(
    x: Tensor, comm: Comm, cut: tuple[int, list[int]], joined: tuple[int, list[int]]
) -> Tensor:
    """Parts along one dimension go to their ranks, and what comes is put together along another: (dimension, sizes)."""
    sent = x.split(cut[1], cut[0])
    shapes = []
    for size in joined[1]:
        shape = list(sent[comm.rank].shape)
        shape[joined[0]] = size
        shapes.append(torch.Size(shape))
    flat = torch.cat([part.reshape(-1) for part in sent])
    came = [shape.numel() for shape in shapes]
    parts = all_to_all(comm, flat, [part.numel() for part in sent], came).split(came)
    return torch.cat(
        [part.view(shape) for part, shape in zip(parts, shapes, strict=True)], joined[0]
    )


# ------------------------------------------------------------
# The layers of a GPT on a part of the tokens: the model's own code, with another attention, and told where its tokens are.


WAYS = ("zigzag", "contiguous", "heads")
"""Of `context_parallel_`: a ring in one order or the other, or an all-to-all on heads."""


def order_of(way: str) -> str:
    """Which tokens each rank has, where attention is done this way.

    Raises ValueError for a way that is not one of `WAYS`.

    >>> from minidist.parallel.context import order_of
    >>> order_of("heads")  # whole heads see all tokens: there is nothing to balance
    'contiguous'
    """
    return "zigzag" if choice(way, "context_parallel", WAYS) == "zigzag" else "contiguous"


def own_positions(tokens: int, device, comm: Comm, order: str) -> Tensor:
    """Positions of this rank's tokens; every rank has equally many."""
    return positions(comm.size * tokens, comm.size, order, device)[comm.rank]


def context_parallel_(module: nn.Module, comm: Comm, way: str = "zigzag") -> nn.Module:
    """Let the attention of a GPT, or of parts of one, work on the tokens of `comm`'s ranks, in place. Returns `module`.

    It takes (B, T/n, H) on each rank, of tokens in the order `order_of(way)`; n, or 2n for "zigzag", divides T. Parameters
    stay whole: their gradients are this rank's share, to be averaged where each rank's loss is a mean over its tokens.
    way: "zigzag" or "contiguous", a ring in this order; or "heads", by `heads_attention`. Other ways are a ValueError.
    Raises ValueError for dropout of attention's weights, which no block of a ring could draw again in backward.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import gpt
    >>> from minidist.parallel import context_parallel_
    >>> from minidist.parallel.context import all_tokens, own_tokens
    >>> def program(comm, tokens):
    ...     model = context_parallel_(gpt(2, 8, 2, vocab=16, context=8), comm)
    ...     logits = model(own_tokens(tokens, comm, "zigzag"))  # of four tokens on each rank
    ...     return all_tokens(logits.detach(), comm, 8, "zigzag")
    >>> tokens = torch.arange(8)[None]
    >>> logits = gpt(2, 8, 2, vocab=16, context=8)(tokens)
    >>> torch.allclose(World(2).run(program, tokens)[0], logits, atol=1e-5)
    True
    """
    order = order_of(way)
    for part in list(module.modules()):
        if isinstance(part, Attention):
            dropped = part.weights_dropout.p
            if dropped:
                raise ValueError(
                    f"context parallelism over {comm.size} ranks drops no weights of attention, "
                    f"and dropout={dropped}"
                )
            attend: Callable = partial(ring_attention, order=order, attention=part.kind)
            if way == "heads":
                attend = partial(heads_attention, attend=part.attend)
            part.attend = partial(attend, comm=comm)  # type: ignore[method-assign]  # its own
        if isinstance(part, Attention | SequenceEmbedding | GPT):
            part.places = partial(own_positions, comm=comm, order=order)
        if isinstance(part, SequenceEmbedding | GPT):
            part.context //= comm.size
    return module
