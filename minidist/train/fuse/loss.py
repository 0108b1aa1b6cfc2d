"""Softmax cross-entropy in one pass over the logits, forward and backward.

Problem: V is large, so logits (tokens, V) are the largest tensor of a language model. Written out, the loss writes
their log-softmax, as large again, keeps it for backward, and in fp16 a copy of both in fp32.
Idea: loss = log Σ exp(x) − x[target] needs two numbers a row, found in one reading (`online.normalizer`); backward
reads the logits again: dx = (exp(x − lse) − [c = target])·dloss.

                launches     bytes, of N = tokens·V logits      kept for backward
    PyTorch's   2            3N, backward 3N                    N, of the logits' log-softmax
    here        1            N, backward 2N                     the logits, which are there; a number a token

Sums, lse and losses are in float32 at least. Invariant: a token that is ignored has loss 0 and gradient 0.
Source: Milakov and Gimelshein 2018, section 3; `parallel.vocab` does the same with the vocabulary split over ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compiled import Kernel
from .online import PART, normalizer, written
from .operator import columns, differentiable, exact, operator, rows

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy_plain(logits: Tensor, targets: Tensor) -> Tensor:
    """Losses (tokens,) of logits (tokens, V) by PyTorch's operators, each step a launch; nothing is ignored."""
    wide = exact(logits)
    centred = wide - wide.amax(-1, keepdim=True)
    return centred.exp().sum(-1).log() - centred.gather(-1, targets[:, None]).squeeze(-1)


def softmax_times_(out: Tensor, part: Tensor, lse: Tensor, scale: Tensor) -> None:
    """`out` becomes the softmax of `part` times a number a row."""
    out.copy_((exact(part) - lse[:, None]).exp() * scale[:, None])


BACKWARD = Kernel(softmax_times_, written)


def _fake(logits, targets, ignore):
    losses = logits.new_empty(targets.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
    return losses, torch.empty_like(losses)


@operator("cross_entropy", fake=_fake)
def _cross_entropy(logits: Tensor, targets: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """Losses and lse (…)."""
    flat, tokens = rows(logits), targets.reshape(-1)
    m, s = normalizer(flat)
    lse, counted = m + s.log(), tokens != ignore
    hit = flat.gather(-1, tokens.where(counted, 0)[:, None]).squeeze(-1)
    return (lse - exact(hit)).where(counted, 0).view(targets.shape), lse.view(targets.shape)


@operator(
    "cross_entropy_backward",
    fake=lambda dloss, logits, targets, lse, ignore: logits.new_empty(logits.shape),
)
def _cross_entropy_backward(
    dloss: Tensor, logits: Tensor, targets: Tensor, lse: Tensor, ignore: int
) -> Tensor:
    flat = rows(logits)
    tokens = targets.reshape(-1)
    lse = lse.reshape(-1)
    counted = tokens != ignore
    scale = dloss.reshape(-1).where(counted, 0)
    out = torch.empty_like(flat)
    for to, source in zip(out.split(PART, -1), flat.split(PART, -1), strict=True):
        BACKWARD(to, source, lse, scale)
    at = tokens.where(counted, 0)[:, None]
    # The target's own once more, so that exp(0) − 1 is formed in float32 and rounded once.
    own = (exact(flat.gather(-1, at)) - lse[:, None]).exp() - 1
    return out.scatter_(-1, at, (own * scale[:, None]).to(out.dtype)).view(logits.shape)


def _keep(ctx, inputs, output) -> None:
    logits, targets, ctx.ignore = inputs
    ctx.save_for_backward(logits, targets, output[1])


differentiable(
    _cross_entropy,
    lambda ctx, dloss: (_cross_entropy_backward(dloss, *ctx.saved_tensors, ctx.ignore), None, None),
    _keep,
)


def cross_entropy(
    logits: Tensor, targets: Tensor, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    """`F.cross_entropy` with the classes in the last dimension: (…, V) and whole numbers (…) → a number, or (…).

    reduction: "mean" over the tokens that are not ignored (nan if all are), "sum", or "none". The loss is in
    float32 at least. A target is 0 … V−1 or `ignore_index`; another one is an error of `gather`.
    Raises ValueError for other shapes, other reductions.
    """
    columns(logits)
    if targets.shape != logits.shape[:-1] or targets.dtype != torch.long:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])} of type int64: "
            f"they are {tuple(targets.shape)}, {targets.dtype}"
        )
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction is one of {', '.join(map(repr, REDUCTIONS))}, not {reduction!r}"
        )
    losses = _cross_entropy(logits, targets, ignore_index)[0]
    if reduction == "none":
        return losses
    return losses.sum() / (targets != ignore_index).sum() if reduction == "mean" else losses.sum()
