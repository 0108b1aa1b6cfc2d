"""The host, as a technique sees it: the memory and the cores of the machine that a rank's device sits in."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


class Host(AbstractContextManager):
    """`comm.host`: what is made in `with comm.host:`, on `comm.host.device`, lies in the host's memory.

        with comm.host:
            there = torch.empty_like(x, device=comm.host.device).copy_(x)     # over the host's link
            there.mul_(2)                                                    # by the host's cores

    Operators on what lies there run there, also outside; only a copy may have operands on both sides. A World tells
    the two apart even where both are one to torch (cpu and cpu, meta and meta), counts the bytes copied, follows the
    host's memory apart from the device's, and charges time if its cluster has a `host`. Elsewhere nothing is done:
    tensors are where their torch.device says.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)

    def __exit__(self, *exception) -> None:
        pass
