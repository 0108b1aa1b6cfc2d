"""Processes of one machine that talk through ring buffers in shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..base import Comm, Link, Recv, Send, Work, agree
from ..cluster.hardware import ends
from ..lanes import ThreadLane
from .endpoint import Endpoint


class ShmComm(Comm):
    """A rank's view of the processes of one `launch`, or of some of them.

    `link` gives what a message between two processes of a laptop takes, by order of magnitude, or the given rate.
    """

    def __init__(self, endpoint: Endpoint, ranks: list[int], rank: int, channel: str = "main"):
        self.endpoint = endpoint
        self.ranks = ranks
        self.channel = channel
        self.members = tuple(ranks)
        self.rank = rank
        self.size = len(ranks)
        self.device = torch.device("cpu")
        self._lanes: dict[int, ThreadLane] = {}

    def local(self, rank: int) -> int:
        """The rank here of a rank of the whole run."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        return self.endpoint.post(self, ops)

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return ShmComm(
            self.endpoint,
            [self.ranks[r] for r in ranks],
            ranks.index(self.rank),
            f"{self.channel}/{name}",
        )

    def _agree(self) -> None:
        if self.endpoint.checked:
            agree(self)

    def _abandon(self, call: tuple[int, str]) -> None:
        self.endpoint.abandon(self, call)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        if lane not in self._lanes:
            self.endpoint.shared = True
            comm = ShmComm(self.endpoint, self.ranks, self.rank, f"{self.channel}/lane {lane}")
            self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.endpoint.open)
        return self._lanes[lane].put(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        return Link(alpha=20e-6, beta=1 / min(4e9, self.endpoint.rings.rate or 4e9))

    def now(self) -> float:
        return time.monotonic()
