"""A vocabulary split over ranks: the embedding, the projection tied to it, and the loss on split logits.

VocabEmbedding, ColumnEmbedding                       an embedding by its rows, by its columns
vocab_cross_entropy, gathered_cross_entropy           the loss of logits that lie split; the naive way, to compare
TensorEmbedding, TensorHead                           the ends of a GPT with them
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..collectives import all_gather
from ..comm.base import Comm, describe
from ..models import Embedding, Head, SequenceEmbedding
from ..split import Cut, bounds, uneven
from .tensor import (
    TensorDropout,
    copy_to,
    gather_from,
    materialize_part_,
    reduce_from,
    scatter_to,
)

# ------------------------------------------------------------
# Token numbers that come from a caller: whole, and of the vocabulary.


def check_tokens(tokens: Tensor, vocab: int, what: str, ignored: int | None = None) -> None:
    """ValueError unless `tokens` are whole numbers 0 … vocab−1, or `ignored`. Without values (meta) nothing is read."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(
            f"a {what} is the number of a token, a whole one, and these are {describe(tokens)}"
        )
    if tokens.is_meta:
        return
    outside = (tokens < 0) | (tokens >= vocab)
    if ignored is not None:
        outside &= tokens != ignored
    if outside.any():
        raise ValueError(
            f"{what} {tokens[outside][0].item()} is no token of a vocabulary of {vocab}: 0 to {vocab - 1}"
        )


# ------------------------------------------------------------
# An embedding whose V rows lie on n ranks, and the projection to the vocabulary that is tied to it.
#
# A rank looks up the tokens whose rows it holds and gives zeros for the others: the sum over the ranks is the
# embedding, exactly, since all but one term of it are zero.
#
#     forward    look up, mask, all-reduce (…, H)            2(n−1)/n·tokens·H numbers by a ring; backward: nothing
#     project    x · own rowsᵀ → (…, V/n), no message        backward: all-reduce of dx, as many numbers
#
# So a rank holds V/n·H numbers, and as many gradients. The logits stay split: `vocab_cross_entropy` takes them so.
# Source: Shoeybi et al. 2019, "Megatron-LM", section 3. Invariant: put together in rank order, the rows
# are those of one rank, at the start and after every step.


class VocabEmbedding(Embedding):
    """`nn.Embedding(vocab, hidden)` split by rows: token numbers (…) to (…, H), the same on every rank.

    weight: this rank's rows, (V_r, H), V_r = `uneven(vocab, n)[rank]`, which n need not divide and which may be 0.
    seed, name: of the initial value; as they stand, the rows are those of `models.gpt`'s token embedding. To begin
    with, every rank draws all V rows, a block at a time, and keeps its own.
    dtype, device: as for nn.Embedding; the Comm's device.

    The gradient of an output that is the same on all ranks, and used alike by them, is the serial one.
    Raises ValueError for fewer than 1 row or column, and in `forward` for what is no token.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import VocabEmbedding
    >>> def program(comm):
    ...     table = VocabEmbedding(10, 4, comm)
    ...     return tuple(table.weight.shape), table(torch.tensor([0, 9])).detach()
    >>> ranks = World(3).run(program)
    >>> [shape for shape, _ in ranks]
    [(4, 4), (3, 4), (3, 4)]
    >>> torch.equal(ranks[0][1], ranks[2][1])  # all have the vectors of both tokens
    True
    """

    def __init__(
        self,
        vocab: int,
        hidden: int,
        comm: Comm,
        seed: int = 0,
        name: str = "tokens",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ):
        _check_table(vocab, hidden)
        cut = Cut(0, uneven(vocab, comm.size))
        super().__init__(cut.sizes[comm.rank], hidden, dtype=dtype, device="meta")
        self.vocab = vocab
        self.comm = comm
        self.cuts = {"weight": cut}
        self.first, self.end = bounds(cut.sizes)[comm.rank]
        materialize_part_(self, comm, seed, name, device)

    def forward(self, tokens: Tensor) -> Tensor:  # (…) → (…, H)
        """Token numbers (…), the same on every rank, to their vectors (…, H), whole on every rank. One all-reduce."""
        check_tokens(tokens, self.vocab, "token")
        return reduce_from(self._own(tokens), self.comm)

    def _own(self, tokens: Tensor) -> Tensor:
        """The rows that this rank holds, and zeros for the rest."""
        if self.first == self.end:  # the sum of no rows: zeros with a gradient, of no rows
            return self.weight.sum(0).expand(*tokens.shape, -1)
        elsewhere = (tokens < self.first) | (tokens >= self.end)
        rows = F.embedding((tokens - self.first).masked_fill(elsewhere, 0), self.weight)
        return rows.masked_fill(elsewhere[..., None], 0)  # not ·0, which keeps nan and inf of row 0

    def project(self, x: Tensor) -> Tensor:
        """This rank's part of the logits, x · weightᵀ: (…, H) → (…, V_r). `x` is the same on all ranks."""
        return F.linear(copy_to(x, self.comm), self.weight)

    def extra_repr(self) -> str:
        rows, hidden = self.weight.shape
        return f"{self.vocab}, {hidden}, {rows} rows from {self.first} on rank {self.comm.rank}"


def _check_table(vocab: int, hidden: int) -> None:
    if vocab < 1 or hidden < 1:
        raise ValueError(f"an embedding has at least 1 row and 1 column, not {vocab} and {hidden}")


# ------------------------------------------------------------
# An embedding whose H columns lie on n ranks: each has H/n numbers of every token, and there is nothing to mask.
#
#     forward    look up, all-gather (…, H/n)       (n−1)/n·tokens·H numbers by a ring, half of what rows send;
#                                                   backward: nothing
#
# Where H/n is what the next layer reads, not even that. But the logits of a projection tied to it are partial sums, V
# numbers a token to be added: a GPT splits rows. PyTorch's DTensor has both (ColwiseParallel, RowwiseParallel).


class ColumnEmbedding(Embedding):
    """`nn.Embedding(vocab, hidden)` split by columns: token numbers (…) to (…, H), the same on every rank.

    weight: this rank's columns, (V, H_r), H_r = `uneven(hidden, n)[rank]`; n need not divide H.
    seed, name, dtype, device, and errors: as for VocabEmbedding.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ColumnEmbedding
    >>> def program(comm):
    ...     table = ColumnEmbedding(10, 4, comm)
    ...     return tuple(table.weight.shape), tuple(table(torch.tensor([0, 9])).shape)
    >>> World(2).run(program)[0]  # half of each vector is here; both halves come out
    ((10, 2), (2, 4))
    """

    def __init__(
        self,
        vocab: int,
        hidden: int,
        comm: Comm,
        seed: int = 0,
        name: str = "tokens",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ):
        _check_table(vocab, hidden)
        cut = Cut(1, uneven(hidden, comm.size))
        super().__init__(vocab, cut.sizes[comm.rank], dtype=dtype, device="meta")
        self.comm = comm
        self.cuts = {"weight": cut}
        materialize_part_(self, comm, seed, name, device)

    def forward(self, tokens: Tensor) -> Tensor:  # (…) → (…, H)
        """Token numbers (…), the same on every rank, to their vectors (…, H), whole on every rank. One all-gather."""
        check_tokens(tokens, len(self.weight), "token")
        own = F.embedding(tokens, self.weight)  # (…, H/n)
        return gather_from(own, self.comm, -1, self.cuts["weight"].sizes)


# ------------------------------------------------------------
# Cross-entropy of logits that lie split over the vocabulary, without ever putting them together.
#
# loss = log Σ exp(x_c) − x_t. Of a token, a rank's part of the logits x matters only through three numbers:
# its largest logit m_i, s_i = Σ exp(x_c − m_i), and x_t, which is 0 where the target t is another rank's.
#
#     m = max m_i    s = Σ s_i·exp(m_i − m)    loss = log s − (x_t − m)
#     dx_c = (exp(x_c − m)/s − [c = t])·dloss                 backward has all of it: no message
#
# Megatron-LM takes three all-reduces. Here the numbers travel together, in one all-gather, and every rank merges
# them: (n−1)α + (n−1)·12·tokens·β by a ring in fp32; with label smoothing, which wants Σ x_c, 16 for 12. V does not
# occur. Two all-reduces, of m, then of s and x_t: 4(n−1) messages, 24(n−1)/n bytes a token. All logits: 4V(n−1)/n.
# Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; merging: Milakov and Gimelshein 2018, "Online normalizer
# calculation for softmax", section 3.1. Invariant: the loss is the same on all ranks, bit for bit.


REDUCTIONS = ("mean", "sum", "none")

CACHED, LARGE = 1 << 17, 1 << 23
"""Logits that are worked on together, in float32 at least: on a CPU what fits in its cache, elsewhere few launches."""


def vocab_cross_entropy(
    logits_part: Tensor,
    targets: Tensor,
    comm: Comm,
    vocab: int,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """`F.cross_entropy` of the whole logits, where each rank holds its part: the same loss on every rank.

    logits_part: (…, V_r), V_r = `uneven(vocab, n)[rank]`; the vocabulary is the last dimension.
    targets: (…), whole numbers 0 … vocab−1 or `ignore_index`, the same on every rank.
    reduction: "mean" over the tokens that are not ignored (nan if all are), "sum", or "none": (…).
    label_smoothing: as in `F.cross_entropy`, between 0 and 1.

    Logits of any floating type; sums and the loss are in float32 at least. Backward sends nothing and gives
    d loss/d logits_part in the logits' type. It keeps the logits, and two numbers a token.
    Raises ValueError for parts of another size, other shapes, targets that are no token, other options.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.parallel import vocab_cross_entropy
    >>> def program(comm, logits, targets):
    ...     part = logits.chunk(comm.size, dim=-1)[comm.rank]
    ...     return vocab_cross_entropy(part, targets, comm, vocab=10)
    >>> logits, targets = torch.arange(20.0).view(2, 10), torch.tensor([1, 9])
    >>> ranks = World(2).run(program, logits, targets)
    >>> torch.allclose(ranks[1], F.cross_entropy(logits, targets))
    True
    >>> ranks.trace.bytes_sent(0)  # 12 bytes a token, whatever the size of the vocabulary
    24
    """
    _check(logits_part, targets, comm, vocab, reduction, label_smoothing, ignore_index)
    part = logits_part.reshape(targets.numel(), logits_part.shape[-1])
    flat = targets.reshape(-1).long()
    counted = flat != ignore_index
    losses = _Split.apply(part, flat, counted, comm, uneven(vocab, comm.size), label_smoothing)
    if reduction == "none":
        return losses.view(targets.shape)
    return losses.sum() / counted.sum() if reduction == "mean" else losses.sum()


def gathered_cross_entropy(
    logits_part: Tensor, targets: Tensor, comm: Comm, vocab: int, **options
) -> Tensor:
    """The naive way, same options: every rank gathers all logits, (tokens, V) of them, and computes the same loss.

    A ring sends (V − V_next)·bytes of a logit for a token from every rank, about (n−1)/n·V. Backward sends nothing.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.vocab import gathered_cross_entropy
    >>> def program(comm, logits, targets):
    ...     part = logits.chunk(comm.size, dim=-1)[comm.rank]
    ...     return gathered_cross_entropy(part, targets, comm, vocab=10)
    >>> ranks = World(2).run(program, torch.zeros(2, 10), torch.tensor([1, 9]))
    >>> ranks.trace.bytes_sent(0)  # 5 logits a token, where `vocab_cross_entropy` sends 3 numbers
    40
    """
    _check(logits_part, targets, comm, vocab, **options)
    whole = gather_from(logits_part, comm, -1, uneven(vocab, comm.size)).reshape(-1, vocab)
    exact = whole.to(torch.promote_types(whole.dtype, torch.float32))
    loss = F.cross_entropy(exact, targets.reshape(-1).long(), **options)
    return loss.view(targets.shape) if loss.dim() else loss


def _check(
    part: Tensor,
    targets: Tensor,
    comm: Comm,
    vocab: int,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> None:
    own = uneven(vocab, comm.size)[comm.rank]
    if part.dim() < 1 or part.shape[-1] != own:
        raise ValueError(
            f"rank {comm.rank} of {comm.size} holds {own} of {vocab} logits a token, "
            f"and its part is {describe(part)}"
        )
    if part.shape[:-1] != targets.shape or not part.is_floating_point():
        raise ValueError(
            f"logits (…, V/n) belong to targets (…): these are {describe(part)} and {describe(targets)}"
        )
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction is one of {', '.join(map(repr, REDUCTIONS))}, not {reduction!r}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is between 0 and 1, not {label_smoothing}")
    check_tokens(targets, vocab, "target", ignore_index)


class _Split(torch.autograd.Function):
    """Losses (tokens,) of parts (tokens, V_r); all that crosses ranks is one all-gather in forward."""

    @staticmethod
    def forward(
        ctx,
        part: Tensor,
        targets: Tensor,
        counted: Tensor,
        comm: Comm,
        sizes: list[int],
        smoothing: float,
    ):
        first, end = bounds(sizes)[comm.rank]
        here = (targets >= first) & (targets < end)
        place = (targets - first).where(here, 0)[:, None]
        # (n, 3 or 4, tokens)
        every = all_gather(comm, _numbers(part, place, here, smoothing > 0)[None])
        hits, peaks, totals, *sums = every.unbind(1)  # each (n, tokens)
        peak = peaks.amax(0)
        total = (totals * (peaks - peak).exp()).sum(0)
        losses = total.log() - (hits.sum(0) - peak)
        if smoothing:
            rows = peak.new_tensor(sizes)[:, None]
            mean = (sums[0] + rows * (peaks - peak)).sum(0) / sum(sizes)  # of x_c − m
            losses = (1 - smoothing) * losses + smoothing * (total.log() - mean)
        ctx.save_for_backward(part, place, here, counted, peak, total)
        ctx.smoothing, ctx.vocab = smoothing, sum(sizes)
        return losses.masked_fill_(~counted, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss: Tensor):
        part, place, here, counted, peak, total = ctx.saved_tensors
        dloss = dloss.masked_fill(~counted, 0)
        less = dloss * (ctx.smoothing / ctx.vocab)  # of every logit's gradient
        hit = dloss.masked_fill(~here, 0) * (ctx.smoothing - 1)  # what the target's has more
        grad = torch.empty_like(part)
        for out, x, at, *columns in _blocks(grad, part, place, peak, dloss / total, less, hit):
            m, scale, even, more = (column[:, None] for column in columns)
            own = torch.sub(x, m, out=out if out.dtype == m.dtype else None).exp_().mul_(scale)
            if ctx.smoothing:
                own -= even
            if part.shape[1]:
                own.scatter_add_(1, at, more)
            out.copy_(own)  # into itself where the logits are as exact as the sums
        return grad, None, None, None, None, None


def _blocks(*tensors: Tensor):
    """The tensors, cut alike into blocks of tokens: no copy of all logits in float32 is ever made."""
    part = tensors[0]
    tokens = max(1, (CACHED if part.device.type == "cpu" else LARGE) // max(1, part.shape[1]))
    return zip(*(x.split(tokens) for x in tensors), strict=True)


def _numbers(part: Tensor, place: Tensor, here: Tensor, spread: bool) -> Tensor:
    """What the others need of this part: its x_t, m_i, s_i, and Σ (x_c − m_i) if `spread`. (3 or 4, tokens).

    No logits, or none but −inf, have a peak that is finite, so that exp(−inf − peak) is 0 and not nan.
    """
    exact = torch.promote_types(part.dtype, torch.float32)
    tokens, width = part.shape
    lowest = torch.finfo(exact).min
    if not width:
        return part.new_tensor([0, lowest, *[0] * (1 + spread)], dtype=exact)[:, None].expand(
            -1, tokens
        )
    blocks = []
    for (x,) in _blocks(part):
        peak = x.amax(1).to(exact).clamp_min(lowest)
        shifted = x - peak[:, None]
        sums = [shifted.sum(1)] if spread else []
        blocks.append(torch.stack([peak, shifted.exp_().sum(1), *sums]))
    hit = part.gather(1, place)[:, 0].to(exact).masked_fill(~here, 0)
    return torch.cat([hit[None], torch.cat(blocks, 1)])


# ------------------------------------------------------------
# The ends of a GPT on tensor ranks, made of the serial ones on the device "meta"; they get their values later.


class VocabProjection(VocabEmbedding):
    """The projection to the vocabulary, (…, H) → (…, V_r): this rank's part of the logits."""

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x)


class TensorEmbedding(SequenceEmbedding):
    """The first part: tokens (B, T) to (B, T, H), whole on every rank; with sequence=True its part, (B, T/n, H)."""

    def __init__(self, part: SequenceEmbedding, comm: Comm, sequence: bool = False):
        super().__init__(part)  # type: ignore[arg-type]  # a part of a GPT has what it takes of one
        weight = part.tokens.weight
        vocab, hidden = weight.shape
        self.tokens = VocabEmbedding(vocab, hidden, comm, dtype=weight.dtype, device="meta")
        self.dropout = TensorDropout(part.dropout.p, comm)
        self.comm, self.sequence = comm, sequence

    def forward(self, tokens: Tensor) -> Tensor:
        x = super().forward(tokens)  # type: ignore[misc]  # GPT.embed
        return scatter_to(x, self.comm, 1) if self.sequence else x


class TensorHead(Head):
    """The last part: (B, T, H), or (B, T/n, H), to this rank's part of the logits, (B, T, V_r)."""

    def __init__(self, part: Head, comm: Comm, sequence: bool = False):
        super().__init__(part)  # type: ignore[arg-type]  # a part of a GPT has what it takes of one
        kind = "tokens" if part.head is None else "head"  # its name in the serial model
        weight = getattr(part, kind).weight
        vocab, hidden = weight.shape
        setattr(self, kind, VocabProjection(vocab, hidden, comm, dtype=weight.dtype, device="meta"))
        self.comm, self.sequence = comm, sequence

    def forward(self, x: Tensor) -> Tensor:
        x = gather_from(x, self.comm, 1) if self.sequence else x
        projection: Any = self.head or self.tokens  # one of them is None
        return projection(self.norm(x))
