"""What cost formulas know of a network: which links lie between which ranks.

A formula asks for the links that its messages take at one time (all edges of the ring, one level of the
tree) and reckons with the slowest. On a uniform network they are all alike. Links are looked at one by one:
what several messages share (a network card, an uplink) is not seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..comm.base import Comm, Link


class Net:
    """`n` ranks and `link(dst, src) -> Link` between them; what was asked for is kept."""

    def __init__(self, n: int, link: Callable[[int, int], Link]):
        if n < 1:
            raise ValueError(f"a network has at least 1 rank, not {n}")
        self.n, self._ask = n, link
        self._kept: dict = {}

    def link(self, dst: int, src: int) -> Link:
        """α and β of the free way from `src` to `dst`."""
        return self.keep((dst, src), lambda: self._ask(dst, src))

    @staticmethod
    def of(comm: Comm) -> Net:
        """The network of a Comm, asked for its links once."""
        return comm.keep("net", lambda: Net(comm.size, comm.link), alike=True)

    def keep(self, key, make: Callable[[], Any]) -> Any:
        """`make()`, the first time that it is asked for."""
        return self._kept[key] if key in self._kept else self._kept.setdefault(key, make())

    def among(self, key, pairs: Callable[[], Iterable[tuple[int, int]]]) -> list[Link]:
        """The different links among `pairs()` of (dst, src), which is what `key` stands for."""
        return self.keep(key, lambda: list({self.link(dst, src) for dst, src in pairs()}))

    def part(self, key, ranks: list[int]) -> Net:
        """The network of some of the ranks."""
        return self.keep(
            key, lambda: Net(len(ranks), lambda dst, src: self.link(ranks[dst], ranks[src]))
        )

    @property
    def ring(self) -> list[Link]:
        """From each rank to the next, and from the last to the first."""
        return self.apart(1)

    @property
    def star(self) -> list[Link]:
        """From rank 0 to each other rank, n−1 of them."""
        return [self.link(r, 0) for r in range(1, self.n)]

    @property
    def crossing(self) -> list[Link]:
        """A sample of all links: the ring, the star, and from each rank to the one opposite."""
        return [*self.ring, *self.star, *self.apart(self.n // 2)]

    def apart(self, distance: int) -> list[Link]:
        """From each rank to the one `distance` further around."""
        n = self.n
        return self.among(
            ("apart", distance), lambda: [((r + distance) % n, r) for r in range(n) if distance % n]
        )

    @property
    def far(self) -> Link:
        """Between the first and the last rank: what a pipeline's pieces are cut for, without asking for all links."""
        return self.link(self.n - 1, 0)


class Uniform(Net):
    """All links alike: α seconds, and β seconds a byte."""

    def __init__(self, n: int, alpha: float, beta: float):
        super().__init__(n, lambda dst, src: Link(alpha, beta))

    def link(self, dst: int, src: int) -> Link:
        return self._ask(dst, src)

    def among(self, key, pairs) -> list[Link]:
        return [self._ask(0, 0)]

    def part(self, key, ranks: list[int]) -> Net:
        return Uniform(len(ranks), *self._ask(0, 0))


def slowest(links: Iterable[Link], nbytes: float) -> float:
    """Seconds until a message of `nbytes` has passed the slowest of `links`."""
    return max((link.alpha + nbytes * link.beta for link in links), default=0.0)


def worst(links: Iterable[Link], nbytes: float) -> Link:
    """The link itself."""
    return max(links, key=lambda link: link.alpha + nbytes * link.beta)
