"""The wires of a World's cluster by number, when each is free again, and what each pair of ranks occupies."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from ..cluster import Cluster


class Way(NamedTuple):
    """A `Route` whose wires are numbers: N bytes hold both ports for N·beta, and each shared wire for its own."""

    alpha: float
    beta: float
    out: int  # the sender's port
    into: int  # the receiver's
    shared: tuple[tuple[int, float], ...]  # number, seconds a byte


class Routes:
    """`free[w]`: when wire w is free. A way is asked for once for each pair of ranks that talk on a channel."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.free = cluster, array("d")
        self._numbers: dict[tuple, int] = {}
        self._equal: dict[float, float] = {}  # equal times are one object: fewer to fetch for each message

    def __call__(self, src: int, dst: int) -> Way:
        alpha, beta, wires = self.cluster.route(src, dst)
        alpha, beta = self._equal.setdefault(alpha, alpha), self._equal.setdefault(beta, beta)
        (out, _), (into, _), *shared = [(self._number(name), each) for name, each in wires]
        return Way(alpha, beta, out, into, tuple(shared))

    def _number(self, wire: tuple) -> int:
        number = self._numbers.setdefault(wire, len(self.free))
        if number == len(self.free):
            self.free.append(0.0)
        return number

    def start(self, way: Way, ready: float) -> float:
        """When what is `ready` finds all its wires free. `way`: a Way, or a Pair."""
        free = self.free
        if (out := free[way.out]) > ready:
            ready = out
        if (into := free[way.into]) > ready:
            ready = into
        for wire, _ in way.shared:
            if (held := free[wire]) > ready:
                ready = held
        return ready

    def occupy(self, way: Way, nbytes: int, start: float, factor: float = 1.0) -> float:
        """Hold the wires from `start` on, `factor` times as long as free wires would be; when the ports are free."""
        free = self.free
        free[way.out] = free[way.into] = sent = start + nbytes * way.beta * factor
        for wire, beta in way.shared:
            free[wire] = start + nbytes * beta * factor
        return sent
