"""`process_group`: a CommGroup that torch.distributed knows by name, so that it can make groups of its ranks.

DDP is content with a CommGroup. FSDP2 lays its ranks out in a DeviceMesh, and functional collectives (DTensor) find a
group by its name: so it is made by torch.distributed itself, by a registered backend. There is no rendezvous, because
the Comm's ranks have met already: each process has a store of its own, which stays empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from ..base import Comm
from ..world.world import WorldComm
from .group import CommGroup

NAME = "minidist"


class _Options(NamedTuple):
    """How to make a group; of the same kind are the groups that are made of its ranks."""

    comm: Comm
    verbs: Any
    overlap: bool
    own: dict[str, Callable]


def process_group(
    comm: Comm, verbs: Any = None, overlap: bool = True, **own: Callable
) -> dist.ProcessGroup:
    """`comm`'s ranks as a process group; verbs, overlap, own: see CommGroup. To be called by every rank.

        group = process_group(comm, minidist.collectives, all_reduce_=mine)
        model = DistributedDataParallel(model, process_group=group)
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))

    The first of a process becomes torch.distributed's default group, unless there is one (torchrun); then `comm` must
    have the ranks of that one. `dist.destroy_process_group()` at the end. Raises ValueError for other ranks, and in a
    World, whose ranks share a process.
    """
    if isinstance(comm, WorldComm):
        raise ValueError(
            "torch.distributed has one rank a process, and a World has them all in one: for DDP a "
            "CommGroup is enough; for FSDP2, launch(program, n)"
        )
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    options = _Options(comm, verbs, overlap, own)
    if not dist.is_initialized():
        dist.init_process_group(
            NAME, store=dist.HashStore(), rank=comm.rank, world_size=comm.size, pg_options=options
        )
        return dist.group.WORLD
    if (comm.rank, comm.size) != (dist.get_rank(), dist.get_world_size()):
        raise ValueError(
            f"the Comm is rank {comm.rank} of {comm.size}, and torch.distributed is rank "
            f"{dist.get_rank()} of {dist.get_world_size()}"
        )
    return dist.new_group(backend=NAME, pg_options=options)


def _create(given, options: _Options | None) -> CommGroup:
    """A group of the ranks that torch.distributed names (none: all, for the default group)."""
    comm, verbs, overlap, own = options or dist.group.WORLD.options
    if given.global_ranks_in_group:
        comm = comm._subgroup(list(given.global_ranks_in_group), f"group {given.group_id}")
    group = CommGroup(comm, verbs, overlap, **own)
    group.options = options or dist.group.WORLD.options
    return group
