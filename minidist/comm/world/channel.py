"""What keeps messages apart: a `Channel` for each group and each lane, on it a `Stream` for each rank, and a
`Pair` for each two ranks that talk.

Thousands of ranks take turns, so what one of them needs is out of the processor's cache when its turn comes. Hence
few and small objects, found through the rank's own stream: a message costs with 1,024 ranks what it costs with 8.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence

from ..trace import lane_of
from .posted import Op
from .routes import Routes, Way


class Fifo:
    """First in, first out. `first` is None if it is empty. Mostly one waits, which needs no list."""

    __slots__ = ("_later", "first")

    def __init__(self):
        self.first, self._later = None, None

    def put(self, one) -> None:
        if self.first is None:
            self.first = one
        elif self._later is None:
            self._later = deque((one,))
        else:
            self._later.append(one)

    def take(self):
        """The first, which leaves."""
        one, later = self.first, self._later
        self.first = later.popleft() if later else None
        return one

    def keep(self, those: Iterable) -> None:
        """Hold these and no others."""
        self.first, self._later = None, None
        for one in those:
            self.put(one)

    def __iter__(self) -> Iterator:
        return iter(() if self.first is None else (self.first, *(self._later or ())))


class Pair(Fifo):
    """The operations from one rank to another that wait for their other side: sends or receives, never both.

    It is a `Way`, too: what the messages occupy.
    """

    __slots__ = ("alpha", "beta", "dst", "into", "out", "shared", "src")

    def __init__(self, src: int, dst: int, way: Way):
        super().__init__()
        self.src, self.dst = src, dst
        self.alpha, self.beta, self.out, self.into, self.shared = way

    def offer(self) -> Op | None:
        """The oldest send that waits."""
        return self.first if self.first is not None and self.first.sending else None


class Channel:
    """The messages of one group, or of one lane; its operations wait here. Ranks here are ranks of the World."""

    def __init__(self, name: str, routes: Routes):
        self.lane, self._routes = lane_of(name), routes
        self.streams: dict[int, Stream] = {}
        self.pairs: dict[tuple[int, int], Pair] = {}  # by (src, dst)
        # by dst: wildcard receives, and named ones behind a wildcard
        self.anys: dict[int, Fifo] = defaultdict(Fifo)

    def stream(self, rank: int, ranks: Sequence[int]) -> Stream:
        """That of `rank`, in the group `ranks`."""
        return self.streams.setdefault(rank, Stream(self, rank, ranks))

    def pair(self, src: int, dst: int) -> Pair:
        found = self.pairs.get((src, dst))
        if found is None:
            found = self.pairs[src, dst] = Pair(src, dst, self._routes(src, dst))
        return found

    def offers(self, dst: int) -> list[Op]:
        """The oldest send of each rank to `dst`, in the order of their times."""
        heads = [
            offer
            for pair in self.pairs.values()
            if pair.dst == dst and (offer := pair.offer()) is not None
        ]
        return sorted(heads, key=lambda op: (op.time, op.pair.src))

    def queues(self) -> list[Fifo]:
        """Wherever operations wait."""
        return [*self.pairs.values(), *self.anys.values()]


class Stream(Fifo):
    """Where one rank posts on one channel. In an ordered World it holds the batches (each a WorldWork) that have not
    finished, of which the first has been started.

    `ranks`: the group's.  `pairs`: by d those to rank d of the group, by ~s those from rank s.
    """

    __slots__ = ("channel", "pairs", "rank", "ranks", "turn")

    def __init__(self, channel: Channel, rank: int, ranks: Sequence[int]):
        super().__init__()
        self.channel = channel
        self.rank = rank
        self.ranks = ranks
        self.pairs = _Pairs(channel, rank, ranks)
        self.turn = 0  # how many batches the rank has posted


class _Pairs(dict):
    """Those of a stream, looked up in the channel when they are first asked for."""

    __slots__ = ("_channel", "_rank", "_ranks")

    def __init__(self, channel: Channel, rank: int, ranks: Sequence[int]):
        self._channel = channel
        self._rank = rank
        self._ranks = ranks

    def __missing__(self, peer: int) -> Pair:
        ends = (self._rank, self._ranks[peer]) if peer >= 0 else (self._ranks[~peer], self._rank)
        return self.setdefault(peer, self._channel.pair(*ends))
