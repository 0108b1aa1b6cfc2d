"""The operators between split and whole: each is an autograd function, and its backward is another one of them.

A tensor is *whole* on all ranks (replicated), *split* along a dimension, or *partial*: the whole is the sum over
the ranks. A loss that every rank computes from whole tensors counts once.

    operator                   forward                    backward, its conjugate      bytes a rank, by a ring
    copy_to            (f)     whole: nothing             all-reduce                   0 and 2(n−1)/n·N
    reduce_from        (g)     partial: all-reduce        nothing                      2(n−1)/n·N and 0
    scatter_to                 whole: my part             all-gather                   0 and (n−1)/n·N
    gather_from                split: all-gather          my part                      (n−1)/n·N and 0
    gather_sequence            split: all-gather          reduce-scatter               (n−1)/n·N and (n−1)/n·N
    reduce_scatter_sequence    partial: reduce-scatter    all-gather                   (n−1)/n·N and (n−1)/n·N

Invariant: a backward is the transpose of its forward, ⟨A·x, y⟩ = ⟨x, Aᵀ·y⟩; what is whole counts once. Sources:
Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2, for the last pair, there g and ḡ.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from ...collectives import all_gather, all_reduce_, reduce_scatter
from ...comm.base import Comm
from ...split import bounds, given


class _Copy(Function):
    @staticmethod
    def forward(ctx, comm: Comm, *xs: Tensor):
        ctx.comm = comm
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *_Reduce.apply(ctx.comm, *grads)


class _Reduce(Function):
    @staticmethod
    def forward(ctx, comm: Comm, *xs: Tensor):
        ctx.comm = comm
        # Copies: what others hold must not change under them, and an incoming gradient may have several readers.
        return tuple(
            all_reduce_(comm, [x.clone(memory_format=torch.contiguous_format) for x in xs])
        )

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *_Copy.apply(ctx.comm, *grads)


class _Scatter(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        sizes = _sizes(x, comm, dim, sizes)
        ctx.call = comm, dim, sizes
        first, end = bounds(sizes)[comm.rank]
        # the whole can be freed
        return x.narrow(dim, first, end - first).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Gather.apply(grad, *ctx.call), None, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        ctx.call = comm, dim, sizes
        return gather_rows(comm, x, dim, sizes)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Scatter.apply(grad, *ctx.call), None, None, None


class _GatherPartial(_Gather):
    @staticmethod
    def backward(ctx, grad: Tensor):
        return _ReduceScatter.apply(grad, *ctx.call), None, None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        sizes = _sizes(x, comm, dim, sizes)
        ctx.call = comm, dim, sizes
        return reduce_scatter_rows(comm, x, dim, sizes)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _GatherPartial.apply(grad, *ctx.call), None, None, None


def _sizes(x: Tensor, comm: Comm, dim: int, sizes: list[int] | None) -> list[int]:
    """The parts of `x` along `dim`; ValueError if they do not fit."""
    return given(sizes, x.shape[dim], comm.size)


def gather_rows(comm: Comm, x: Tensor, dim: int, sizes: list[int] | None = None) -> Tensor:
    """All ranks' parts along `dim`, in rank order; no autograd."""
    return all_gather(comm, x.movedim(dim, 0).contiguous(), sizes).movedim(0, dim).contiguous()


def reduce_scatter_rows(comm: Comm, x: Tensor, dim: int, sizes: list[int] | None = None) -> Tensor:
    """This rank's part along `dim` of the sum over the ranks; no autograd."""
    return (
        reduce_scatter(comm, x.movedim(dim, 0).contiguous(), sizes=sizes)
        .movedim(0, dim)
        .contiguous()
    )


def copy_to(x: Tensor | list[Tensor], comm: Comm):
    """f, before the parts of a split layer read `x`, which is whole: (…) → (…), without a message.

    Backward all-reduces: a rank's gradient is what its part of the layer says, the whole gradient is their sum.
    A list's gradients travel in one message. Of parameters that all ranks hold, but use on parts of the data,
    it makes the gradients whole.
    """
    return list(_Copy.apply(comm, *x)) if isinstance(x, list | tuple) else _Copy.apply(comm, x)[0]


def reduce_from(x: Tensor | list[Tensor], comm: Comm):
    """g, after a split layer whose results are partial: their sum over the ranks, (…) → (…).

    Backward hands the gradient on, without a message: every rank's summand has the gradient of the sum.
    """
    return (
        list(_Reduce.apply(comm, *x)) if isinstance(x, list | tuple) else _Reduce.apply(comm, x)[0]
    )


def scatter_to(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """This rank's part of `x`, which is whole: (…, F) → (…, F/n), or sizes[rank] of it; no message.

    Backward all-gathers. Raises ValueError where n does not divide F and `sizes` does not say who gets what.
    """
    return _Scatter.apply(x, comm, dim, sizes)


def gather_from(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """All ranks' parts, in rank order, whole: (…, F/n) → (…, F) by an all-gather. `sizes`: where parts differ.

    Backward takes this rank's part of the gradient, without a message: what follows is done alike on every rank,
    so its gradient is whole already. Where what follows is split, too, take `gather_sequence`.
    """
    return _Gather.apply(x, comm, dim, sizes)


def gather_sequence(x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None) -> Tensor:
    """Before the parts of a split layer read a sequence of which a rank has a part: (B, T/n, H) → (B, T, H).

    Forward all-gathers. Backward reduce-scatters: each rank's gradient is partial, as in `copy_to`.
    """
    return _GatherPartial.apply(x, comm, dim, sizes)


def reduce_scatter_sequence(
    x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None
) -> Tensor:
    """After a split layer whose results are partial: of their sum this rank's part, (B, T, H) → (B, T/n, H).

    Backward all-gathers. Raises ValueError where n does not divide T and `sizes` does not say who gets what.
    """
    return _ReduceScatter.apply(x, comm, dim, sizes)
