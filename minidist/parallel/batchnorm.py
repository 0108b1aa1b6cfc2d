"""Batch norm over the batch of all ranks: on parts of a batch, each rank alone normalizes by numbers of its own.

Then n ranks do not compute what one rank with the whole batch does, and small parts give poor statistics.
So ranks exchange the statistics. With m = Σ k samples a channel, x̂ = (x − mean)/√(var + ε), y = x̂·w + b:

    forward    every rank's (mean, Σ(x − mean)², k): merged, they are the mean and the variance of all
    backward   g = w·dy; (Σ g, Σ g·x̂), summed over the ranks, as `mean` and `var` depend on every x:
               dx = 1/√(var + ε) · (g − Σg/m − x̂·Σ(g·x̂)/m)        w within the sums: in Local SGD ranks differ in it

Merging what each rank has centered (Chan et al. 1979, equation 2.1b) cannot cancel as Σx² − (Σx)²/m does.
C channels cost one all-gather of 2C + 1 numbers and one all-reduce of 2C. The gradients of w and b are this
rank's own: `DataParallel` averages them. Sources: Ioffe and Szegedy 2015, section 3; Peng et al. 2018,
"MegDet", section 3.3. Invariant: every rank of the Comm takes part, also one without samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..arguments import whole
from ..collectives import all_gather, all_reduce_
from ..comm.base import Comm
from .reducer import claims_of, same_group


class SyncBatchNorm(_BatchNorm):
    """BatchNorm1d, 2d and 3d for a batch whose parts lie on the ranks of `comm`: (B, C, …) → (B, C, …).

    All arguments but `comm`, and the state dict, are those of `nn.BatchNorm2d`. Parts may differ in size and be
    empty. Running statistics are the same on every rank; evaluation uses them, without a message. Without them
    evaluation, too, normalizes by the batch of all ranks.

    The backward is that of the *sum* of the ranks' losses, so n times what the mean of equal parts needs: the
    average of `DataParallel` puts that right. For parts that differ, a weight after the backward comes too late
    (what crosses ranks is mixed by then): divide each rank's summed loss by B/n, and leave the weight None.
    Raises ValueError for another number of channels, and in training for 1 value per channel on all ranks together.

    >>> import torch
    >>> from torch import nn
    >>> from minidist import World
    >>> from minidist.parallel import SyncBatchNorm
    >>> def program(comm, x):
    ...     norm = SyncBatchNorm(2, comm)
    ...     y = norm(x.chunk(comm.size)[comm.rank])
    ...     return y.detach(), norm.running_mean
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 3.0], [6.0, 7.0]])
    >>> (y0, mean), (y1, _) = World(2).run(program, x)
    >>> torch.allclose(torch.cat([y0, y1]), nn.BatchNorm1d(2)(x), atol=1e-6)  # the whole batch's
    True
    """

    # tensors; None, all three, without `track_running_stats`
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        comm: Comm,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device=None,
        dtype=None,
    ):
        whole(num_features, "a batch norm has at least 1 channel", 1)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        """Of this rank's part of the batch, (B, C, …), the same shape. In training all ranks call it."""
        self._check_input_dim(x)
        if not self.training and self.running_mean is not None:
            return normalized(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.eps
            )
        y, mean, var, count = _Synchronized.apply(x, self.weight, self.bias, self.comm, self.eps)
        if self.training and self.track_running_stats:
            self._track(mean, var * (count / (count - 1)))
        return y

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"this batch norm has {self.num_features} channels and takes (B, {self.num_features}, …), "
                f"not {tuple(x.shape)}"
            )

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        """Move the running statistics towards this batch's: by `momentum`, or to the mean of all batches so far."""
        self.num_batches_tracked.add_(1)
        part = (
            self.num_batches_tracked.double().reciprocal()
            if self.momentum is None
            else self.momentum
        )
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.add_((new.to(running.dtype) - running) * part)

    @classmethod
    def convert(cls, module: nn.Module, comm: Comm) -> nn.Module:
        """`module` with a SyncBatchNorm in place of every BatchNorm1d, 2d and 3d: of itself too, so use the result.

        Parameters and buffers are the same objects, so optimizers, ties and the state dict's names stay. Convert before
        or after a DataParallel or an optimizer is made, but before FullySharded, which replaces parameters. To convert
        a second time, over the same ranks, changes nothing but the Comm.
        Raises ValueError for a lazy batch norm that has not seen its first batch, for one that is synchronized over
        other ranks already, and for one whose parameters are sharded.

        >>> from torch import nn
        >>> from minidist import World
        >>> from minidist.parallel import SyncBatchNorm
        >>> def program(comm):
        ...     net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        ...     return [type(layer).__name__ for layer in SyncBatchNorm.convert(net, comm)]
        >>> World(2).run(program)[0]
        ['Conv2d', 'SyncBatchNorm', 'ReLU']
        """
        new: dict[nn.Module, nn.Module] = {
            m: cls._instead_of(m, comm) for m in module.modules() if isinstance(m, _BatchNorm)
        }
        for parent in [*module.modules()]:
            for name, child in parent._modules.items():  # all names, also two of one module
                if child in new:
                    parent._modules[name] = new[child]
        return new.get(module, module)

    @classmethod
    def _instead_of(cls, old: _BatchNorm, comm: Comm) -> SyncBatchNorm:
        if isinstance(old, cls):
            if not same_group(old.comm, comm):
                raise ValueError(
                    f"a SyncBatchNorm is synchronized over {old.comm.size} ranks already, not over these "
                    f"{comm.size}: convert a module once, over the ranks that share a batch"
                )
            old.comm = comm
            return old
        if any(claim.kind == "FullySharded" for claim in claims_of(old.parameters())):
            raise ValueError(
                "FullySharded holds the parameters of this batch norm in pieces, so that no SyncBatchNorm "
                "can take them over: convert the module before it is sharded"
            )
        if any(is_lazy(t) for t in [*old.parameters(), *old.buffers()]):
            raise ValueError(
                "a lazy batch norm has no channels yet: pass a batch through the model, then convert it"
            )
        new = cls(old.num_features, comm, old.eps, old.momentum, False, False)
        new.affine, new.track_running_stats = old.affine, old.track_running_stats
        for name, p in old.named_parameters():
            setattr(new, name, p)
        for name, buffer in old.named_buffers():
            new.register_buffer(name, buffer)
        return new.train(old.training)


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    """(C,) beside (B, C, …): (C, 1, …)."""
    return channels.view(-1, *[1] * (x.dim() - 2))


def _centered(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """x̂, in the dtype of the statistics."""
    return (x - _wide(mean, x)) * _wide((var + eps).rsqrt(), x)


def statistics(comm: Comm, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance (C,) of the batch on all ranks, and its number of values per channel.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.batchnorm import statistics
    >>> def program(comm):
    ...     x = [[0.0], [2.0]] if comm.rank == 0 else [[4.0]]
    ...     mean, var, count = statistics(comm, torch.tensor(x))
    ...     return mean.item(), count.item()
    >>> World(2).run(program)  # of 0, 2 and 4, on both ranks
    [(2.0, 3.0), (2.0, 3.0)]
    """
    dims = [d for d in range(x.dim()) if d != 1]
    count = x.numel() // max(1, x.shape[1])
    # sums of half-precision numbers need more digits
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.sum(dims) / max(1, count)
    squares = (wide - _wide(mean, wide)).square().sum(dims)
    mine = torch.cat([mean, squares, mean.new_tensor([count])])
    every = all_gather(comm, mine[None])  # (n, 2C + 1)
    means, squares, counts = every.split([len(mean), len(mean), 1], dim=1)
    total = counts.sum()
    # Who has two values knows that there are enough, without a look at the others'.
    if count < 2 and not total.is_meta and total < 2:
        raise ValueError(
            f"training needs more than 1 value per channel, and all {comm.size} ranks together have "
            f"{int(total)}: here {tuple(x.shape)}"
        )
    mean = (counts * means).sum(0) / total
    var = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, var, total


def normalized(x: Tensor, mean: Tensor, var: Tensor, weight, bias, eps: float) -> Tensor:
    """`x` with this mean and variance taken out of each channel, scaled and shifted; in x's dtype."""
    y = _centered(x, mean, var, eps)
    if weight is not None:
        y = y * _wide(weight, x) + _wide(bias, x)
    return y.to(x.dtype)


class _Synchronized(torch.autograd.Function):
    """The batch norm of training, with its messages: `forward` also gives mean, var and count, without gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, comm: Comm, eps: float):
        mean, var, count = statistics(comm, x)
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.comm, ctx.eps = comm, eps
        ctx.mark_non_differentiable(mean, var, count)
        return normalized(x, mean, var, weight, bias, eps), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor, *_):
        x, weight, mean, var, count = ctx.saved_tensors
        dims = [d for d in range(x.dim()) if d != 1]
        centered = _centered(x, mean, var, ctx.eps)
        dy = dy.to(centered.dtype)
        dbias, dweight = dy.sum(dims), (dy * centered).sum(dims)
        dx = None
        if ctx.needs_input_grad[0]:
            w = torch.ones_like(dbias) if weight is None else weight.to(dbias.dtype)
            total = all_reduce_(ctx.comm, torch.cat([w * dbias, w * dweight])) / count
            of_mean, of_var = (_wide(part, x) for part in total.split(len(mean)))
            scale = (var + ctx.eps).rsqrt()
            dx = ((dy * _wide(w, x) - of_mean - centered * of_var) * _wide(scale, x)).to(x.dtype)
        if weight is None:
            return dx, None, None, None, None
        return dx, dweight.to(weight.dtype), dbias.to(weight.dtype), None, None
