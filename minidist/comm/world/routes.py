"""The wires of a World's cluster: when each is free again, and which of them each pair of ranks occupies."""

from __future__ import annotations

from typing import NamedTuple

from ..cluster import Cluster


class Wire:
    """`free`: when it is free again."""

    __slots__ = ("free",)

    def __init__(self):
        self.free = 0.0


class Way(NamedTuple):
    """A `Route` with its wires: N bytes hold both ports for N·beta, and each shared wire for its own."""

    alpha: float
    beta: float
    out: Wire  # the sender's port
    into: Wire  # the receiver's
    shared: tuple[tuple[Wire, float], ...]  # and its seconds a byte


class Routes:
    """A way is asked for once for each pair of ranks that talk on a channel; ways share wires."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.wires: dict[tuple, Wire] = {}
        # equal times are one object: fewer to fetch for each message
        self._equal: dict[float, float] = {}

    def __call__(self, src: int, dst: int) -> Way:
        alpha, beta, wires = self.cluster.route(src, dst)
        alpha, beta = self._equal.setdefault(alpha, alpha), self._equal.setdefault(beta, beta)
        (out, _), (into, _), *shared = [(self._wire(name), each) for name, each in wires]
        return Way(alpha, beta, out, into, tuple(shared))

    def _wire(self, name: tuple) -> Wire:
        found = self.wires.get(name)
        if found is None:
            found = self.wires[name] = Wire()
        return found


def starts(way: Way, ready: float) -> float:
    """When what is `ready` finds all its wires free. `way`: a Way, or a Pair."""
    if (out := way.out.free) > ready:
        ready = out
    if (into := way.into.free) > ready:
        ready = into
    if way.shared:
        ready = max(ready, *(wire.free for wire, _ in way.shared))
    return ready


def occupy(way: Way, nbytes: int, start: float, factor: float = 1.0) -> float:
    """Hold the wires from `start` on, `factor` times as long as free wires would be; when the ports are free."""
    way.out.free = way.into.free = sent = start + nbytes * way.beta * factor
    for wire, beta in way.shared:
        wire.free = start + nbytes * beta * factor
    return sent
