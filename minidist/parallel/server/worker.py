"""A worker's side: push gradients, pull parameters.

    push    header, gradients ──►  each server its part                  header: whether it is the last, weight, and for
    pull    header, parameters ◄── from each, when it lets us go on      each piece, whether it has a gradient

A push is answered by parameters; the room for them is there at once, and `pull` waits for them. The first server of
worker w is number w mod s, the next one follows: so workers in step do not queue for one server while others idle.
Gradients go to a server as soon as it has taken their header; a push returns when they have left.

Two flat buffers of N bytes beside parameters and gradients. Source: Li et al. 2014, section 3.2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...comm.base import Comm, PeerLost, Recv, Send, Work
from .partition import Partition

SERVER = 0  # its rank on its own channel; worker w is rank w + 1 there


def header(comm: Comm, numbers) -> Tensor:
    """float64 numbers that a program reads: on the CPU where the device has no values."""
    return torch.tensor(
        numbers, dtype=torch.float64, device="cpu" if comm.device.type == "meta" else comm.device
    )


def dead_server(server: int, servers: int, lost: PeerLost) -> PeerLost:
    """What ends the run: a server is gone, whose rank in the whole Comm is its number."""
    what = f"it was parameter server {server} of {servers}, and its part of the parameters went with it"
    return PeerLost(server, f"{what} ({lost.why})")


class Channel(NamedTuple):
    """One server and all workers, twice: one Comm for each direction."""

    pushes: Comm
    answers: Comm

    @staticmethod
    def of(comm: Comm, server: int, servers: int) -> Channel | None:
        """That of a server, made on all ranks at the same time; None on other servers. No message."""
        ranks = (server, *range(servers, comm.size))
        both = [comm.split([0 if r in ranks else None for r in range(comm.size)]) for _ in range(2)]
        return None if None in both else Channel(*both)


class _Answer(NamedTuple):
    """What a server will say: its header (the number of a lost rank or −1, its updates so far), then parameters."""

    header: Tensor
    heard: Work
    parameters: Work


class Worker:
    """Worker number `index`. channels[s]: those of server s.

    versions[s]: number of updates in the parameters last pulled from server s.
    """

    def __init__(self, partition: Partition, channels: list[Channel], index: int):
        self.partition = partition
        self.channels = channels
        self.index = index
        self.versions = [0] * len(channels)
        self._answers: dict[int, _Answer] = {}
        self._room = partition.flatten(partition.params)

    @property
    def _order(self) -> list[int]:
        """The servers, each worker beginning with another one."""
        servers = len(self.channels)
        return [(self.index + k) % servers for k in range(servers)]

    @torch.no_grad()
    def push(self, weight: float | None = None, last: bool = False) -> None:
        """Send the gradients of the parameters; one that has none counts as zeros.

        weight: number of samples behind them, where workers differ.  last: nothing comes after it, and its answer are
        the final parameters.
        Raises PeerLost naming a server that is dead, ValueError if the last push's answer has not been pulled.
        """
        if self._answers:
            raise ValueError(
                f"worker {self.index} pushes before it has pulled {len(self._answers)} servers' answers"
            )
        params = self.partition.params
        flats = self.partition.flatten([p.grad for p in params])
        for flat in flats if weight is not None else ():
            if weight:
                flat.mul_(weight)
            else:
                flat.zero_()  # the mean loss of no samples is nan
        for server in self._order:
            channel = self.channels[server]
            there = [
                params[piece.param].grad is not None for piece in self.partition.pieces[server]
            ]
            said = header(channel.pushes, [last, 1 if weight is None else weight, *there])
            parts = self.partition.chunks(flats, server)
            self._answers[server] = self._ask(channel.answers, server)
            leaving = channel.pushes.batch(
                [Send(said, SERVER, "push"), *(Send(g, SERVER, "gradients") for g in parts)]
            )
            try:
                leaving.wait()
            except PeerLost as lost:
                raise dead_server(server, len(self.channels), lost) from lost

    def _ask(self, answers: Comm, server: int) -> _Answer:
        """Make room for a server's answer."""
        said, room = header(answers, [0, 0]), self.partition.chunks(self._room, server)
        return _Answer(
            said,
            answers.irecv(said, SERVER, "answer"),
            answers.batch([Recv(part, SERVER, "parameters") for part in room]),
        )

    def pull(self) -> None:
        """Wait for the answers to the last push, and put the parameters into the model. Without a push: nothing.

        Raises PeerLost naming a server that is dead, or the worker whose death ends a synchronous run.
        """
        refused = None
        for server in [server for server in self._order if server in self._answers]:
            answer = self._answers[server]
            try:
                answer.heard.wait()
                lost, version = map(int, answer.header.tolist())
                if lost < 0:
                    answer.parameters.wait()
                    self.versions[server] = version
                else:
                    refused = PeerLost(
                        lost, f"it is dead, and server {server} cannot go on without it"
                    )
            except PeerLost as lost:
                raise dead_server(server, len(self.channels), lost) from lost
        if refused is not None:
            raise refused
        if self._answers:
            self.partition.spread(self._room, self.partition.params)
        self._answers = {}
