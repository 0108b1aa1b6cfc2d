"""The steps of `parallelize` that are more than one call: what is asked for, what is kept, and who averages.

    refuse        what does not go together, said before anything is built
    forms         how a layer's activations are kept: all, without attention's scores, the layer's input alone
    precision     what forward computes within, and the scale of its loss; stored: the dtype of the parameters
    shard         ZeRO 3; averaged: who averages the gradients, and the optimizer

Parameters are in two groups, the same two on every mesh, so that an optimizer's state fits wherever it is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..arguments import choice, flags, whole
from ..comm.base import Comm
from ..models import GPT, TransformerLayer
from ..train.amp import LEVELS, LossScaler, Masters, autocast
from ..train.amp.autocast import HALVES
from ..train.compress.base import Compression
from ..train.optim import bias_or_norm
from ..train.remat import ATTENTION, checkpoint, selective
from .data import DataParallel
from .schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_h2, zb_v
from .schedules.action import Schedule
from .schedules.flow import Shape
from .tensor import seed_group_
from .vocab import VocabEmbedding
from .zero import FullySharded, ShardedOptimizer

RECOMPUTE = ("none", "selective", "full", "stage")
SCHEDULES = {"1f1b": one_f_one_b} | {
    schedule.__name__: schedule
    for schedule in (naive, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, zb_v)
}
Rename = Callable[[str], str]
Make = Callable[[list[dict]], Optimizer]


def known(model, optimizer, cost, sequence_parallel: bool, seed: int) -> None:
    """ValueError for arguments of another kind than `parallelize` takes."""
    if not isinstance(model, GPT):
        raise ValueError(f"parallelize splits a GPT, made by gpt(…), not {type(model).__name__}")
    if not callable(optimizer):
        raise ValueError(
            "optimizer is a function that makes one of groups of parameters, such as "
            f"lambda groups: AdamW(groups, lr=1e-3), not {optimizer!r}"
        )
    if not callable(cost):
        raise ValueError(
            f"cost is a function that gives a number for each part of a model, not {cost!r}"
        )
    flags(sequence_parallel=sequence_parallel)
    whole(seed, "a seed is a whole number")


def schedule_of(schedule: str | Schedule, shape: Shape) -> Schedule:
    """The function, where a word was given. ValueError for one that does not go with the shape's chunks and place."""
    if not callable(schedule):
        schedule = SCHEDULES[choice(schedule, "schedule", SCHEDULES)]
    S, M, v, place = shape
    if schedule is interleaved:
        if v < 2:
            raise ValueError(
                "schedule='interleaved' wants at least 2 chunks on each stage, and chunks=1: "
                "take chunks=2, or schedule='1f1b'"
            )
        schedule = functools.partial(interleaved, v=v)
    name = getattr(getattr(schedule, "func", schedule), "__name__", "of yours")
    has = 1 + max((action.chunk for action in schedule(0, S, M)), default=0)
    if has != v:
        words = f"{has} chunk{'s' if has > 1 else ''} on each stage"
        raise ValueError(
            f"the schedule {name} has {words}, and chunks={v}: take chunks={has}, or another schedule"
        )
    needed = {"interleaved": "loop", "zb_v": "V"}.get(name, place)
    if place != needed:
        raise ValueError(f"the schedule {name} is for place={needed!r}, not for place={place!r}")
    return schedule


def makes_one(optimizer: Make) -> Make:
    """`optimizer`, with a ValueError where it makes none."""

    def make(groups: list[dict]) -> Optimizer:
        made = optimizer(groups)
        if not isinstance(made, Optimizer):
            raise ValueError(
                f"optimizer made {type(made).__name__} of the groups of parameters, not an optimizer"
            )
        return made

    return make


def refuse(
    model: GPT, shape: Shape, recompute: str, amp: str, half: torch.dtype, zero: int, compression
) -> None:
    """ValueError for an option that there is not, and for two that contradict each other."""
    if whole(zero, "ZeRO has the stages 0 to 3") not in range(4):
        raise ValueError(f"ZeRO has the stages 0 to 3, not {zero}")
    choice(recompute, "recompute", RECOMPUTE)
    choice(amp, "amp", LEVELS)
    if half not in HALVES:
        raise ValueError(f"half is one of {', '.join(map(str, HALVES))}, not {half!r}")
    if compression is not None and not isinstance(compression, Compression):
        raise ValueError(
            f"compression is a Compression, such as train.compress.PowerSGD(2), not {compression!r}"
        )
    wide = {p.dtype for p in model.parameters()}
    if amp != "O0" and wide != {torch.float32}:
        raise ValueError(
            f"amp={amp!r} starts from parameters in float32; this model has {sorted(map(str, wide))}"
        )
    if recompute == "selective" and any(part.attention.kind != "explicit" for part in model.layers):
        raise ValueError(
            "recompute='selective' computes the scores of attention='explicit' again; this model's is "
            "'sdpa', which keeps none"
        )
    tied, S = model.head is None, shape.S
    if compression is not None and zero:
        raise ValueError(
            f"a compression averages whole gradients, as ZeRO 0 has them, not ZeRO {zero}"
        )
    if compression is not None and tied and S > 1:
        raise ValueError(
            f"the token embedding is on 2 of {S} stages: each would compress its gradient by itself, and "
            "the copies would part; take pp=1, or tied=False"
        )
    if zero == 3 and tied and shape.v > 1 and shape.stage(0) == shape.stage(S * shape.v - 1):
        raise ValueError(
            f"stage 0 holds the tied embedding in 2 of its {shape.v} chunks, and ZeRO 3 shards each chunk "
            "by itself: take chunks=1, or tied=False"
        )


def forms(module: nn.Module, recompute: str) -> None:
    """Each layer of `module` keeps for backward what `recompute` leaves it; see `RECOMPUTE`."""
    form = {"full": checkpoint, "selective": selective(ATTENTION)}.get(recompute)
    for layer in module.modules() if form else ():
        if isinstance(layer, TransformerLayer):
            layer.forward = functools.partial(form, layer.forward)


def groups(module: nn.Module, rename: Rename, whole: Mapping[str, Tensor]) -> list[dict]:
    """Two groups of parameters, with weight decay and without; either may be empty on a stage."""
    found = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, p in module.named_parameters():
        serial = rename(name)
        found[bias_or_norm(serial, whole[serial].shape)]["params"].append(p)
    return found


def stored(amp: str, half: torch.dtype, zero: int) -> torch.dtype | None:
    """The dtype that parameters are kept in, None: their own. ZeRO 3 keeps the masters of 16-bit ones in its shards."""
    level = LEVELS[amp]
    return half if level.half and not (zero == 3 and level.masters) else None


def precision(amp: str, half: torch.dtype, comm: Comm) -> tuple[AbstractContextManager, LossScaler]:
    """What a forward computes within, and what scales its loss: all ranks of the model skip a step together."""
    level = LEVELS[amp]
    around = autocast(half) if level.lists else nullcontext()
    return around, LossScaler(enabled=level.scaled and half == torch.float16, comm=comm)


def shard(
    module: nn.ModuleList, comm: Comm, zero: int, amp: str, half: torch.dtype
) -> nn.ModuleList:
    """ZeRO 3: each chunk's parameters over the ranks of `comm`, gathered layer by layer; else `module` as it is."""
    if zero < 3:
        return module
    compute = half if LEVELS[amp].masters else None
    # a tied embedding is a block, so it is cut alike on both its stages
    blocks = (TransformerLayer, VocabEmbedding)
    return nn.ModuleList(FullySharded(chunk, comm, compute, blocks=blocks) for chunk in module)


def averaged(
    module: nn.ModuleList,
    some: list[dict],
    tied: Mapping[str, Tensor],
    comm: Comm,
    zero: int,
    amp: str,
    make: Make,
    compression,
) -> tuple[Optimizer, nn.Module | Optimizer]:
    """The optimizer, and who averages gradients over `comm`: a DataParallel, the optimizer, or `module` itself."""
    masters = LEVELS[amp].masters
    if zero in (1, 2):
        wide = torch.float32 if masters else None
        optimizer = ShardedOptimizer(some, make, comm, zero, wide, tied=list(tied.values()))
        return optimizer, optimizer
    data = DataParallel(module, comm, compression=compression) if zero == 0 else module
    return Masters(some, make) if masters and zero == 0 else make(some), data


def seed_(mesh, seed: int) -> None:
    """Random numbers: the same on all tensor ranks, others for each stage and each data rank."""
    seed_group_(mesh.tp, ((seed * 1_000_003 + mesh.pp.rank) * 1_000_003 + mesh.dp.rank) % 2**63)
