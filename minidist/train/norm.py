"""The norm of all gradients where each rank holds some of them: one number a rank is what has to travel.

‖g‖ = (Σ_r Σ_{i of rank r} |g_i|^p)^(1/p), for p = ∞ the largest. Cost: an all-reduce of 8 bytes.
Invariant: every rank finds the same number, bit for bit, and scales by it. Pascanu et al. 2013, section 3.2.

global_norm, clip_                  of gradients that each lie on one rank
squares, all_reduce_cut_norms_      of each layer, also of one that is cut: what a trust ratio needs
counted, clip_grad_norm_            of a model on a grid of ranks, each gradient counted once
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..collectives import all_reduce_
from ..comm.base import Comm
from ..split import cuts


def own_norm(x: Tensor, norm_type: float = 2.0) -> Tensor:
    """The norm of one tensor, a number of float32 at least, in which it is also summed.

    >>> import torch
    >>> from minidist.train.norm import own_norm
    >>> own_norm(torch.tensor([300.0, 400.0], dtype=torch.float16))
    tensor(500.)
    """
    return torch.linalg.vector_norm(x, norm_type, dtype=torch.promote_types(x.dtype, torch.float32))


@torch.no_grad()
def global_norm(comm: Comm, grads: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of the gradients of all ranks together: a number of float64, in which it is also summed.

    grads: this rank's, each gradient on one rank.  norm_type: p > 0, or infinity; ValueError for another.
    Every rank finds the same number, bit for bit.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train.norm import global_norm
    >>> def program(comm):
    ...     grads = [torch.tensor([3.0 + comm.rank])]
    ...     return global_norm(comm, grads).item(), global_norm(comm, grads, float("inf")).item()
    >>> World(2).run(program)[0]
    (5.0, 4.0)
    """
    if not norm_type > 0:
        raise ValueError(f"the type of a norm is above 0, not {norm_type}")
    norms = [own_norm(g, norm_type) for g in grads if g.numel()]
    nothing = torch.zeros((), dtype=torch.float64, device=comm.device)
    each = torch.stack([nothing, *(x.to(comm.device, torch.float64) for x in norms)])
    if norm_type == float("inf"):
        return all_reduce_(comm, each.max(), "max")
    return all_reduce_(comm, (each**norm_type).sum()) ** (1 / norm_type)


def clip_(
    comm: Comm,
    grads: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    counted: Sequence[Tensor] | None = None,
) -> Tensor:
    """Scale the gradients, in place, so that their norm over all ranks is at most `max_norm`; returns what it was.

    As `torch.nn.utils.clip_grad_norm_`: times max_norm/(norm + 1e-6), where that is below 1.  counted: those of this
    rank's gradients that no other rank counts, None for all. Raises ValueError for a limit below 0, and for a
    norm_type that is not above 0.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train.norm import clip_
    >>> def program(comm):
    ...     grads = [torch.tensor([3.0 + comm.rank])]
    ...     norm = clip_(comm, grads, max_norm=0.5)
    ...     return norm.item(), round(grads[0].item(), 3)
    >>> list(World(2).run(program))
    [(5.0, 0.3), (5.0, 0.4)]
    """
    if not isinstance(max_norm, int | float) or not max_norm >= 0:  # math.inf only measures
        raise ValueError(f"gradients are clipped to a norm of at least 0, not {max_norm!r}")
    norm = global_norm(comm, grads if counted is None else counted, norm_type)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        # 16 bits of it would change them all
        factor = scale.to(g.device, torch.promote_types(g.dtype, torch.float32))
        if g.dtype == factor.dtype:
            g.mul_(factor)
        else:
            g.copy_(g.to(factor.dtype).mul_(factor))
    return norm


# ------------------------------------------------------------
# The norms that a trust ratio needs, of layers as they are, also where each rank has only a part of them.
#
# A norm does not add up; its square does. So ranks that hold parts of a parameter sum squares, two of each parameter, of
# its weights and of its update, all in one message:
#
#     one rank, or whole parameters by owner (ZeRO 1, 2)     nothing to sum
#     flat shards that cut through parameters (ZeRO 3)       an all-reduce over the data ranks, 16 bytes a parameter
#     rows or columns of matrices (tensor parallel)          over the tensor ranks, 16 bytes a parameter that is cut
#     both                                                   both, one after the other
#
# Invariant: a parameter that is whole on every rank is summed nowhere; all ranks find the same norms, bit for bit.


def squares(tensors: Sequence[Tensor | None]) -> Tensor:
    """Sums of squares of what this rank has of k tensors, (k,) float64. None counts as zeros.

    >>> import torch
    >>> from minidist.train.norm import squares
    >>> squares([torch.tensor([3.0, 4.0]), None]).tolist()
    [25.0, 0.0]
    """
    like = next(x for x in tensors if x is not None)
    nothing = torch.zeros((), dtype=torch.float64, device=like.device)
    return torch.stack(
        [nothing if x is None else own_norm(x).to(torch.float64).square() for x in tensors]
    )


def all_reduce_cut_norms_(
    rows: Tensor, split: Sequence[Sequence[str]], across: Mapping[str, Comm]
) -> Tensor:
    """Sum the squares of each parameter, `rows` (P, 2), over the ranks that hold its parts, in place. Returns `rows`.

    split: for each parameter the names of the ways in which it is cut, the same on all ranks.  across: the ranks of
    each way.  Takes one all-reduce for each way that cuts any. Raises ValueError for a way whose ranks are not given.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train.norm import all_reduce_cut_norms_
    >>> def program(comm):
    ...     rows = torch.tensor([[9.0, 1.0], [4.0, 4.0]], dtype=torch.float64)
    ...     return all_reduce_cut_norms_(rows, [["tensor"], []], {"tensor": comm}).tolist()
    >>> World(2).run(program)[0]  # the first parameter is cut over the ranks, the second is whole
    [[18.0, 2.0], [4.0, 4.0]]
    """
    ways = list(dict.fromkeys(way for names in split for way in names))
    for way in ways:
        if way not in across:
            raise ValueError(
                f"a parameter is split over {way!r}, but across={{…}} names the ranks of {sorted(across)}"
            )
    for way, comm in across.items():
        cut = [i for i, names in enumerate(split) if way in names]
        if cut:
            rows[cut] = all_reduce_(comm, rows[cut].to(comm.device)).to(rows.device)
    return rows


# ------------------------------------------------------------
# Clipping by the norm of all gradients of a model that lies on a grid of ranks: each gradient counts once.
#
#     on several ranks because                            counted by
#     data parallelism: replicas                          nobody twice: `comm` has one replica's ranks
#     ZeRO 2 and 3: each rank has its own part            all; `comm` has the data ranks, too
#     tensor parallelism: norms, biases of rows, …        tensor rank 0; what is cut, by all
#     a pipeline: tied to another stage                   the first stage that holds it
#
# All ranks scale by one factor, so copies stay equal. Cost: an all-reduce of 8 bytes over `comm`, which must hold every
# part of the model once. `ShardedOptimizer` and `FullySharded` have a `clip_grad_norm_` of their own, over their Comm;
# here is what they share with the other two dimensions. Source: Pascanu et al. 2013, section 3.2; Megatron-LM counts so.


def counted(
    module: nn.Module, tensor: Comm | None = None, repeated: Collection[Tensor] = ()
) -> list[Tensor]:
    """The parameters of `module` whose gradients this rank counts.

    tensor: the tensor-parallel ranks of `module`; what its `cuts` do not name is the same on all of them.
    repeated: those that another rank counts, such as `Pipeline.ties.repeated`.

    >>> from minidist import World
    >>> from minidist.parallel.tensor import RowLinear
    >>> from minidist.train.norm import counted
    >>> def program(comm):
    ...     layer = RowLinear(4, 2, comm)  # each rank has columns; the bias is on both
    ...     return [tuple(p.shape) for p in counted(layer, tensor=comm)]
    >>> list(World(2).run(program))
    [[(2, 2), (2,)], [(2, 2)]]
    """
    cut = cuts(module)
    counted_elsewhere = set(repeated)
    first = tensor is None or tensor.rank == 0
    return [
        p
        for name, p in module.named_parameters()
        if p not in counted_elsewhere and (first or name in cut)
    ]


def clip_grad_norm_(
    module: nn.Module,
    max_norm: float,
    comm: Comm,
    tensor: Comm | None = None,
    repeated: Collection[Tensor] = (),
    norm_type: float = 2.0,
) -> Tensor:
    """Scale the gradients of the whole model so that their norm is at most `max_norm`; returns what it was. Collective.

    module: this rank's part of the model.  comm: the ranks that together hold the model once: of one replica in data
    parallelism, all of them where gradients are sharded over the data ranks.  tensor: the tensor-parallel ranks of
    `module`.  repeated: parameters that another rank counts, such as `Pipeline.ties.repeated`.
    norm_type: 2.0, another power, or inf. On one rank this is `torch.nn.utils.clip_grad_norm_`.
    Raises ValueError for a limit below 0, and for a norm_type that is not above 0.

    >>> import torch
    >>> from torch import nn
    >>> from minidist import World
    >>> from minidist.train import clip_grad_norm_
    >>> def program(comm):
    ...     stage = nn.Linear(1, 1, bias=False)  # each rank has a part of the model
    ...     stage.weight.grad = torch.tensor([[3.0 + comm.rank]])
    ...     norm = clip_grad_norm_(stage, 1.0, comm)
    ...     return norm.item(), round(stage.weight.grad.item(), 3)
    >>> list(World(2).run(program))
    [(5.0, 0.6), (5.0, 0.8)]
    """
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    counted_here = [p.grad for p in counted(module, tensor, repeated) if p.grad is not None]
    return clip_(comm, grads, max_norm, norm_type, counted_here)
