"""Clipping by the norm of all gradients of a model that lies on a grid of ranks: each gradient counts once.

    on several ranks because                            counted by
    data parallelism: replicas                          nobody twice: `comm` has one replica's ranks
    ZeRO 2 and 3: each rank has its own part            all; `comm` has the data ranks, too
    tensor parallelism: norms, biases of rows, …        tensor rank 0; what is cut, by all
    a pipeline: tied to another stage                   the first stage that holds it

All ranks scale by one factor, so copies stay equal. Cost: an all-reduce of 8 bytes over `comm`, which must hold every
part of the model once. `ShardedOptimizer` and `FullySharded` have a `clip_grad_norm_` of their own, over their Comm;
here is what they share with the other two dimensions. Source: Pascanu et al. 2013, section 3.2; Megatron-LM counts so.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from ...comm.base import Comm
from ...parallel.tensor import cuts
from ...parallel.zero.norm import clip_


def counted(
    module: nn.Module, tensor: Comm | None = None, repeated: Collection[Tensor] = ()
) -> list[Tensor]:
    """The parameters of `module` whose gradients this rank counts.

    tensor: the tensor-parallel ranks of `module`; what its `cuts` do not name is the same on all of them.
    repeated: those that another rank counts, such as `Pipeline.ties.repeated`.
    """
    how, others = cuts(module), set(repeated)
    first = tensor is None or tensor.rank == 0
    return [
        p for name, p in module.named_parameters() if p not in others and (first or name in how)
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
    parallelism, all of them where gradients are sharded over the data ranks.  tensor, repeated: see `counted`.
    norm_type: 2.0, another power, or inf. On one rank this is `torch.nn.utils.clip_grad_norm_`.
    Raises ValueError for a limit below 0.
    """
    mine = [p.grad for p in counted(module, tensor, repeated) if p.grad is not None]
    return clip_(
        comm, [p.grad for p in module.parameters() if p.grad is not None], max_norm, norm_type, mine
    )
