"""Which links lie between which ranks, as cost formulas see a network; and the steps of a pipeline over them.

A formula asks for the links that its messages take at one time (all edges of the ring, one level of the
tree) and reckons with the slowest. On a uniform network they are all alike. Links are looked at one by one:
what several messages share (a network card, an uplink) is not seen here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import ceil, sqrt
from typing import Any

from ..comm.base import Comm, Link, Recv, Send


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


def slowest(links: Iterable[Link], nbytes: float) -> float:
    """Seconds until a message of `nbytes` has passed the slowest of `links`."""
    return max((link.alpha + nbytes * link.beta for link in links), default=0.0)


def worst(links: Iterable[Link], nbytes: float) -> Link:
    """The link itself."""
    return max(links, key=lambda link: link.alpha + nbytes * link.beta)


class Formulas:
    """What the verbs of an algorithm take, in seconds: `Cost(net, nbytes).all_reduce()`. Each algorithm has its own.

    net: how the n ranks are linked; rank 0 is the root.  nbytes: N, the whole: what each rank has before an all-reduce
    or a reduce-scatter, and after an all-gather.  chunk: the n-th part of it.  gamma: γ, seconds to combine a byte.
    """

    def __init__(self, net: Net, nbytes: float, gamma: float = 0.0):
        self.net = net
        self.n = net.n
        self.nbytes = nbytes
        self.chunk = nbytes / net.n
        self.gamma = gamma


# ------------------------------------------------------------
# Steps of a pipeline: what starts when, with several under way at a time.
#
# A step is a number, operations that start together, and what to do with what they brought. Before step s
# starts, all up to step s−2 must have finished; so while one message is combined or sent on, the next is on
# its way, and its latency is hidden behind the one before. What step s receives may be sent from step s+2 on.
#
# Time of S steps, each of which keeps a wire busy for w seconds, arrives α later and is combined in g, with
# m = max(w, g) and a turn t = α+w+g:  the larger of (S−1)m + t, where nothing is idle, and of ⌈S/2⌉ turns (and m
# more if S is even: the last step begins m after the one before). So latency is hidden where t ≤ 2m.


WINDOW = 2  # steps under way
LEAST = 4096  # bytes: smaller pieces gain nothing on any transport
Step = tuple[int, list[Send | Recv], Callable[[], object] | None]
Edge = tuple[int, int, int, Link]  # the first piece's step, src, dst, and what is between them


def run(comm: Comm, steps: Iterable[Step]) -> None:
    """Do `steps`, in the order of their numbers. A number may be missing: then nothing is done at that step."""
    flying: deque = deque()
    for number, ops, then in steps:
        while flying and flying[0][0] <= number - WINDOW:
            _finish(*flying.popleft())
        flying.append((number, comm.batch(ops, after=flying[-1][1] if flying else None), then))
    while flying:
        _finish(*flying.popleft())


def _finish(_, work, then) -> None:
    work.wait()
    if then is not None:
        then()


def seconds(steps: int, link: Link, nbytes: float, gamma: float = 0.0) -> float:
    """The time that the comment above gives, for messages of `nbytes` that are combined at γ seconds a byte."""
    if not steps:
        return 0.0
    wire, combine = nbytes * link.beta, nbytes * gamma
    most, turn = max(wire, combine), link.alpha + wire + combine
    return max((steps - 1) * most + turn, (steps + 1) // 2 * turn + (steps - 1) % 2 * most)


def pieces(hops: float, nbytes: float, link: Link) -> int:
    """The number of pieces that takes least time where `nbytes` pass `hops` links one after the other.

    With k pieces: T(k) = (hops−1)(α + Nβ/k) for the first to come to the last link, then k steps. T falls until a piece
    is no longer than α on the wire, k = Nβ/α, or to where its derivative vanishes, k = √((2·hops−1)·Nβ/α): the later
    of the two, as in Sanders, Speck and Träff 2009, but with two pieces under way instead of one. An even number,
    since two make a turn, or 1.
    """
    most = ceil(nbytes / LEAST)
    if hops <= 1 or most <= 1:
        return 1
    if link.alpha == 0:
        return most
    ratio = nbytes * link.beta / link.alpha
    even = int(max(ratio, sqrt((2 * hops - 1) * ratio))) // 2 * 2
    near = [k for k in (1, even, even + 2) if 0 < k <= most] if even < most else [most]
    return min(
        near,
        key=lambda k: (
            (hops - 1) * (link.alpha + nbytes / k * link.beta) + seconds(k, link, nbytes / k)
        ),
    )


@lru_cache(maxsize=1024)
def path(n: int, edges: tuple[Edge, ...], apart: int, k: int, nbytes: float, gamma: float) -> float:
    """Seconds until k pieces of `nbytes` have passed all `edges` between n ranks, `apart` steps from piece to piece.

    Where links differ there is no closed form: this is the longest chain of messages that wait for each other, among
    the first pieces; after those, each takes as long as the last ones did. It takes the longer to settle, the more
    slow links lie between fast ones.
    """
    slow = worst([edge[3] for edge in edges], nbytes)
    among = sum(edge[3] == slow for edge in edges)
    settled = 16 + (2 * among if among < len(edges) else 0)
    few, fewer = (
        _longest(n, edges, apart, min(k, i), nbytes, gamma) for i in (settled, settled - 2)
    )
    return few + max(0, k - settled) * (few - fewer) / 2


def _longest(n: int, edges: tuple, apart: int, k: int, nbytes: float, gamma: float) -> float:
    # of each rank: its steps so far, as (number, when it started, when all up to it were over)
    done = [[(-WINDOW, 0.0, 0.0)] for _ in range(n)]
    # when wires are free: a rank has one for each kind of link
    out: dict[tuple[int, float], float] = defaultdict(float)
    into: dict[tuple[int, float], float] = defaultdict(float)
    for step, src, dst, link in sorted(
        (step + apart * i, *edge) for step, *edge in edges for i in range(k)
    ):
        ready = max(_ready(done[src], step), _ready(done[dst], step))
        start = max(ready, out[src, link.beta], into[dst, link.beta])
        sent = out[src, link.beta] = into[dst, link.beta] = start + nbytes * link.beta
        combined = max(sent + link.alpha, done[dst][-1][2]) + nbytes * gamma
        done[src].append((step, start, max(sent, done[src][-1][2])))
        done[dst].append((step, start, combined))
    return max(steps[-1][2] for steps in done)


def _ready(done: list[tuple[int, float, float]], step: int) -> float:
    """When all steps of a rank up to the last but one are over, and the last has started."""
    ready = 0.0
    for number, start, over in reversed(done):
        if number <= step - WINDOW:
            return max(ready, over)
        if number < step:
            ready = max(ready, start)
    return ready
