"""Process groups whose members alone make them, under names that each member computes by itself.

`new_group` wants all ranks of the run, or numbers a group by how many its maker has made before. With three stages,
where rank 1 is on two edges and ranks 0 and 2 on one, these numbers differ, and the members wait for each other under
different names. Here the name is what all members know: the channel of the Comm that asks, and the ranks. Members keep
the order in which they are listed, which `new_group` would sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def named_group(
    parent: dist.ProcessGroup,
    ranks: Sequence[int],
    channel: str,
    timeout: float,
    backend: str | None = None,
) -> dist.ProcessGroup:
    """A group of these ranks of `parent`, this one among them, in this order. All of them call it; each waits for all.

    channel: what its members know it by; used once for each parent.  timeout: seconds that its operations may take.
    backend: such as "gloo"; None: what the parent has.
    """
    everyone = [dist.get_global_rank(parent, rank) for rank in ranks]
    name = (
        f"minidist/{c10d._get_process_group_name(parent)}/{channel}/{','.join(map(str, everyone))}"
    )
    whole, place = c10d._get_default_group(), everyone.index(dist.get_rank())
    # Over a connection of its own: who waits for a key holds up whoever shares the connection, such as another lane.
    store = c10d._get_default_store().clone()
    # With a device bound, PyTorch would split the new communicator off the whole run's, and wait for all ranks there.
    bound, whole.bound_device_id = whole.bound_device_id, None
    try:
        group, _ = c10d._new_process_group_helper(
            len(everyone),
            place,
            everyone,
            dist.Backend(backend or dist.get_backend_config(parent)),
            store,
            c10d.GroupName(name),
            timeout=timedelta(seconds=timeout),
            device_id=bound,
            group_desc=channel,
        )
    finally:
        whole.bound_device_id = bound
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(everyone)}
    return group


def warm(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let all members of a new group on GPUs meet. Its first operation makes its communicator, which takes all of them:
    were that a message between two, the others would be waited for."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)
