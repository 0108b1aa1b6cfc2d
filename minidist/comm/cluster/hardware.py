"""What a cluster is made of: a `Device` computes, a `Level` says how messages travel at one distance.

Both are numbers only; `Cluster` puts them together, `presets` holds those of real machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...arguments import number, whole
from ..base import Link

# From near to far; each with the name that tables show.
LEVELS = {
    "device": "same device",
    "nvlink": "NVLink/NVSwitch",
    "pcie": "PCIe",
    "nic": "NIC",
    "tor": "top-of-rack",
    "spine": "spine",
}


@dataclass(frozen=True)
class Device:
    """What a rank computes with.

    flops: peak FLOP/s of matrix products, by dtype.  memory: bytes.  bandwidth: of that memory, bytes/s.
    launch: seconds that an operation takes to start, however small it is.
    """

    name: str
    flops: dict[torch.dtype, float]
    memory: int
    bandwidth: float
    launch: float = 0.0

    def peak(self, dtype: torch.dtype) -> float:
        """FLOP/s at `dtype`; ValueError if the device has no figure for it."""
        if dtype not in self.flops:
            known = ", ".join(str(d).removeprefix("torch.") for d in self.flops)
            raise ValueError(
                f"{self.name} has a peak for {known}, not for {str(dtype).removeprefix('torch.')}"
            )
        return self.flops[dtype]

    def part(self, of: int) -> Device:
        """One of `of` equal parts of its speed and its memory. An operation starts as fast as on the whole."""
        flops = {dtype: peak / of for dtype, peak in self.flops.items()}
        return replace(self, flops=flops, memory=self.memory // of, bandwidth=self.bandwidth / of)


@dataclass(frozen=True)
class Level:
    """The links of one level, all alike.

    alpha: seconds that the level adds to a message.  beta: seconds a byte on one wire.
    duplex: a wire for each direction; False: one wire, which serves one direction at a time.
    share: how many ranks, neighbours in rank order, have one wire together. With share=1 a rank has its own.
    """

    alpha: float
    beta: float
    duplex: bool = True
    share: int = 1

    def __post_init__(self):
        number(self.alpha, "alpha is a number of seconds, at least 0", 0)
        number(self.beta, "beta is a number of seconds a byte, at least 0", 0)
        whole(self.share, "a wire belongs to at least 1 rank", 1)


class HostPart(NamedTuple):
    """A rank's part of the machine around its device: cores and memory, and the link to them."""

    device: Device
    link: Link


class Place(NamedTuple):
    """Where a rank sits: `rack` and `node` are counted over the cluster, `device` within the node."""

    rack: int
    node: int
    device: int


class Route(NamedTuple):
    """How messages go from one rank to another.

    alpha, beta: of the free route.  wires: what a message occupies, (name, seconds a byte) each: the sender's
    port out and the receiver's port in, then what they share with others.
    """

    alpha: float
    beta: float
    wires: tuple[tuple[tuple, float], ...]


def ends(comm, dst: int, src: int | None) -> tuple[int, int]:
    """(src, dst) of `comm.link(dst, src)`; ValueError for a rank that does not exist, or one and the same."""
    src = comm.rank if src is None else src
    for rank in (src, dst):
        if not 0 <= whole(rank, "a link goes from a rank to a rank, a whole number") < comm.size:
            raise ValueError(
                f"no link goes to rank {rank}: there are {comm.size} ranks, 0 to {comm.size - 1}"
            )
    if src == dst:
        raise ValueError(f"no link goes from rank {src} to rank {dst}, itself")
    return src, dst
