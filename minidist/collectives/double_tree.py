"""Two trees, each of which carries half: who forwards in the one is a leaf of the other.

In one binary tree half of the ranks, the leaves, send nothing. So a second one is laid over it whose leaves are
the first one's inner ranks: every rank then sends and receives as much as its wire can carry.

    8 ranks       7             0
                  3             4          The first tree's inner ranks are odd, the second one's even.
                1   5         2   6
               0 2 4 6       1 3 5 7

Each half goes in k pieces, a rank's two trees taking turns: edges have one of two colors, so that nobody sends,
or receives, two pieces in the same step. Reduce runs the same steps backwards; all-reduce is both.
With h the steps of the longest path: 2k + h steps for about Nβ + O(√(log n·α·Nβ)), all-reduce twice that, where
a ring takes 2(n−1)α. Messages: 2k(n−1) in all. Sanders, Speck and Träff 2009; NCCL 2.4 (Jeaugey 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain, groupby
from math import ceil
from operator import itemgetter

from torch import Tensor

from ..comm.base import Comm, Link, Recv, Send
from . import links
from .buffers import scratch
from .links import Formulas, Step

NOBODY = -1


def trees(n: int) -> tuple[list[int], list[int]]:
    """Each rank's parent in the first and in the second tree; −1 for the root. ValueError for n < 1.

    At most two children each, depth at most ⌊log₂n⌋, and no rank has children in both.

    >>> from minidist.collectives.double_tree import trees
    >>> first, second = trees(8)
    >>> first, second
    ([1, 3, 1, 7, 5, 3, 5, -1], [-1, 2, 4, 2, 0, 6, 4, 6])
    >>> set(first) & set(second) - {-1}  # nobody has children in both
    set()
    """
    if n < 1:
        raise ValueError(f"a tree has at least 1 rank, not {n}")
    # Positions 1 … n stand in the order of a search tree: odd ones are leaves. Rank r is at r+1 in the first tree;
    # in the second, even ranks are at even positions: mirrored if n is even, else turned by one.
    first = [_parent(r + 1, n) - 1 for r in range(n)]
    if n % 2:
        above = [_parent(r or n, n) for r in range(n)]
        return first, [p % n if p else NOBODY for p in above]
    above = [_parent(n - r, n) for r in range(n)]
    return first, [n - p if p else NOBODY for p in above]


def _parent(position: int, n: int) -> int:
    """The parent of a position among 1 … n; 0 for the root. Height is the number of zeros at the end, in binary."""
    bit = position & -position
    above = position ^ bit | bit << 1
    return above if above <= n else position ^ bit


@lru_cache(maxsize=64)
def first_steps(n: int, rooted: bool) -> dict[tuple[int, int, int], int]:
    """When the first piece passes each edge: {(tree, parent, child): step}; piece i passes 2i steps later.

    `rooted`: rank 0 stands above both trees of the n−1 others, and feeds them; else each tree has its own root.
    """
    below_it = trees(n - 1) if n > 1 else ([], [])
    parents = [[NOBODY, *(p + 1 for p in tree)] for tree in below_it] if rooted else trees(n)
    edges = [(t, p, v) for t in (0, 1) for v, p in enumerate(parents[t]) if p != NOBODY]
    color = _colors(edges)
    below: dict[tuple[int, int], list] = {}
    for edge in edges:
        below.setdefault(edge[:2], []).append(edge)
    first, todo = (
        {},
        [(edge, 0) for t in (0, 1) for edge in below.get((t, parents[t].index(NOBODY)), [])],
    )
    while todo:
        edge, earliest = todo.pop()
        first[edge] = earliest + (earliest + color[edge]) % 2
        todo += [(e, first[edge] + links.WINDOW) for e in below.get((edge[0], edge[2]), [])]
    return first


def _colors(edges: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
    """0 or 1 for each edge; two that leave a rank differ, and two that enter it.

    It exists because a rank has at most two of each: edges that must differ form paths and even circles.
    """
    sides: dict = {}
    for edge in edges:
        _, p, v = edge
        sides.setdefault(("from", p), []).append(edge)
        sides.setdefault(("into", v), []).append(edge)
    color: dict = {}
    for start in edges:
        todo = [(start, 0)]
        while todo:
            edge, c = todo.pop()
            if edge not in color:
                color[edge] = c
                beside = sides["from", edge[1]] + sides["into", edge[2]]
                todo += [(other, 1 - c) for other in beside if other != edge]
    return color


@lru_cache(maxsize=64)
def _of_ranks(n: int, rooted: bool) -> tuple[list[list[tuple[int, tuple]]], int]:
    """For each rank (first step, edge) of its edges; and the last of all first steps."""
    first = first_steps(n, rooted)
    mine: list[list] = [[] for _ in range(n)]
    for edge, step in first.items():
        for v in edge[1:]:
            mine[v].append((step, edge))
    return mine, max(first.values(), default=0)


class _Plan:
    """This rank's part: when each piece passes each of its edges. Ranks are counted from the root, if there is one."""

    def __init__(self, comm: Comm, flat: Tensor, root: int | None):
        n, self.origin = comm.size, root or 0
        self.n, self.v = n, (comm.rank - self.origin) % n
        edges, fill = _of_ranks(n, root is not None)
        self.k = _pieces(n, flat.nbytes, fill, comm.link(n - 1, 0)) if n > 1 else 1
        self.parts = [half.tensor_split(self.k) for half in flat.tensor_split(2)]
        self.last = fill + 2 * (self.k - 1)
        self.passes = sorted(
            (step + 2 * i, edge, i) for step, edge in edges[self.v] for i in range(self.k)
        )

    def real(self, v: int) -> int:
        return (v + self.origin) % self.n

    def down(self, start: int = 0) -> Iterator[Step]:
        """Each piece from the parent, then to the children."""
        for step, passes in groupby(self.passes, itemgetter(0)):
            ops: list[Send | Recv] = []
            for _, (t, p, v), i in passes:
                x = self.parts[t][i]
                ops.append(
                    Recv(x, self.real(p), "broadcast")
                    if v == self.v
                    else Send(x, self.real(v), "broadcast")
                )
            yield start + step, ops, None

    def up(self, combine, mine: bool) -> Iterator[Step]:
        """The same backwards, combining. `mine`: the tensor may be written; if not, what comes first is kept."""
        longest = self.parts[0][0]
        rooms = [scratch(longest) for _ in range(links.WINDOW)]
        combined: dict[tuple[int, int], Tensor] = {}
        for step, passes in groupby(reversed(self.passes), itemgetter(0)):
            ops: list[Send | Recv] = []
            then = None
            for _, (t, p, v), i in passes:
                part = self.parts[t][i]
                so_far = combined.get((t, i), part)
                if v == self.v:
                    ops.append(Send(so_far, self.real(p), "reduce"))
                    continue
                keep = not mine and so_far is part
                room = scratch(part) if keep else rooms[step % 2][: part.numel()]
                if keep:
                    combined[t, i] = room
                pair = (room, part) if keep else (so_far, room)
                ops.append(Recv(room, self.real(v), "reduce"))
                then = partial(combine, *pair)
            yield self.last - step, ops, then


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """`root` feeds both trees of the others in turn: N bytes out of its wire.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import double_tree
    >>> def program(comm):
    ...     flat = torch.full((10,), float(comm.rank))
    ...     double_tree.broadcast(comm, flat, root=1)
    ...     return flat.unique().tolist()
    >>> World(4).run(program)
    [[1.0], [1.0], [1.0], [1.0]]
    """
    links.run(comm, _Plan(comm, flat, root).down())


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """`flat` of the other ranks stays as it was; a rank that forwards has half of it more in memory.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import double_tree
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10]) * comm.rank
    ...     double_tree.reduce(comm, flat, 0, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(4).run(program)
    [[6, 60], [1, 10], [2, 20], [3, 30]]
    """
    links.run(comm, _Plan(comm, flat, root).up(combine, comm.rank == root))


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """Up and down in one go, each half in its own tree: bit for bit the same everywhere.

    In place. combine: `combine(a, b)` makes `a` the combination and returns it, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import double_tree, tree
    >>> def program(comm, all_reduce):
    ...     flat = torch.ones(10**6)  # 4 MB
    ...     all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat[-1].item()
    >>> world = World(8)
    >>> for algorithm in (tree, double_tree):
    ...     print(world.run(program, algorithm.all_reduce)[3], f"{1e6 * world.time:.0f} µs")
    8.0 510 µs
    8.0 230 µs
    """
    plan = _Plan(comm, flat, None)
    links.run(comm, chain(plan.up(combine, True), plan.down(plan.last + links.WINDOW)))


def _pieces(n: int, nbytes: float, fill: int, link: Link) -> int:
    """Pieces of each half: two steps of a path take a turn."""
    return ceil(links.pieces(1 + fill / 2, nbytes, link) / 2)


class Cost(Formulas):
    """The longest chain of messages that wait for each other: `links.path`.

    >>> from minidist.collectives import double_tree, tree
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(64, lambda dst, src: Link(alpha=1e-5, beta=1e-9))
    >>> tree.Cost(net, 10**9).all_reduce() > 5 * double_tree.Cost(net, 10**9).all_reduce()
    True
    """

    def _seconds(self, rooted: bool, up: bool) -> float:
        if self.n == 1:
            return 0.0
        first, (_, last) = first_steps(self.n, rooted), _of_ranks(self.n, rooted)
        k = _pieces(self.n, self.nbytes, last, self.net.far)
        edges = [(last - s, v, p) if up else (s, p, v) for (_, p, v), s in first.items()]
        edges = tuple((s, src, dst, self.net.link(dst, src)) for s, src, dst in edges)
        gamma = self.gamma if up else 0.0
        return links.path(self.n, edges, 2, k, self.nbytes / 2 / k, gamma)

    def broadcast(self) -> float:
        """Seconds: rank 0 feeds both trees, and each carries its half down."""
        return self._seconds(True, False)

    def reduce(self) -> float:
        """Seconds: both trees carry what they have combined up to rank 0."""
        return self._seconds(True, True)

    def all_reduce(self) -> float:
        """Seconds: each half goes up its own tree and down again."""
        return self._seconds(False, True) + self._seconds(False, False)
