"""In the node, between nodes, in the node: the slow network between nodes carries a shard from each rank, once.

    node 0: ranks 0 1    reduce-scatter ─▶ shard a at 0, b at 1 ┐  all-reduce of a by 0, 2     all-gather
    node 1: ranks 2 3    reduce-scatter ─▶ shard a at 2, b at 3 ┘  all-reduce of b by 1, 3     in each node

A ring over all ranks takes n−1 steps at the pace of the slowest link; here few ranks are on each ring, and all
network cards of a node work at once. With m ranks in each node: the time of an inner reduce-scatter and all-gather
of N bytes over m ranks, and of an outer all-reduce of N/m bytes over the nodes. Any algorithm serves as the inner
one that has both halves, any as the outer one. Where nodes differ in size, the ranks that the smallest one does
not have own empty shards. Mikami et al. 2018, as a torus of two dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

import torch
from torch import Tensor

from ..comm.base import Comm, Link, Recv, Send
from . import double_tree, halving_doubling, naive, pipelined, ring, tree
from .buffers import adjacent_view, scratch
from .links import Formulas, Net, slowest

# ------------------------------------------------------------
# The algorithms by name: what each is good at, and which verbs it has. Costs and sources are in their files.
#
#                                              broad-        all_    reduce_ all_                  all_to_
#                                              cast_ reduce_ reduce_ scatter gather gather scatter all    barrier
#     "naive"             all through one desk   ×      ×       ×       ×       ×      ×      ×      ×       ×
#     "ring"              fewest bytes           ×      ×       ×       ×       ×                    ×       ×
#     "tree"              fewest rounds          ×      ×       ×                                             ×
#     "double_tree"       few, and full wires    ×      ×       ×
#     "halving_doubling"  few, and few bytes                    ×       ×       ×
#     "pipelined"         latency is hidden      ×      ×       ×       ×       ×
#     "hierarchical"      nodes of fast links    ×      ×       ×       ×       ×
#
# The last one, `Hierarchical` below, puts two of the others together, and is not in `FLAT`.


FLAT = {
    "naive": naive,
    "ring": ring,
    "tree": tree,
    "double_tree": double_tree,
    "halving_doubling": halving_doubling,
    "pipelined": pipelined,
}


def having(*verbs: str) -> list[str]:
    """The names of those that have all of these verbs."""
    return [name for name, module in FLAT.items() if all(hasattr(module, verb) for verb in verbs)]


# ------------------------------------------------------------
# Which ranks form a node, and who works for whom between the nodes.
#
# Each of `shards` places, as many as the smallest node has ranks, is taken by one rank of every node; these peers
# talk to each other. In a larger node the ranks that are left over work with those of the first places.


class Nodes:
    """`node[r]` and, within it, `place[r]` of each rank r; neighbours in rank order are in one node.

    members[k]: the ranks of node k.  shards: how many the smallest node has.
    bundles[p][k]: the ranks of node k that its peer at place p works for, itself first.
    """

    def __init__(self, node: list[int]):
        self.node = node
        self.place: list[int] = []
        self.members: list[list[int]] = [[] for _ in range(node[-1] + 1)]
        for r, k in enumerate(node):
            self.place.append(len(self.members[k]))
            self.members[k].append(r)
        self.shards = min(map(len, self.members))
        self.bundles = [
            [ranks[p :: self.shards] for ranks in self.members] for p in range(self.shards)
        ]

    def peers(self, p: int) -> list[int]:
        """The ranks at place p, one in each node."""
        return [ranks[0] for ranks in self.bundles[p]]


class Bundled:
    """All ranks' chunks, laid out bundle by bundle, and in each node by node.

    chunk[r]: rank r's.  part[p][k]: those of peer p and node k together.  bundle[p]: those of all nodes together.
    Where that is their order already they are not copied. `filled`: they hold values.
    """

    def __init__(self, nodes: Nodes, chunks: list[Tensor], filled: bool):
        order: list[int] = []
        for bundle in nodes.bundles:
            for ranks in bundle:
                order += ranks
        self._to = (
            None if order == list(range(len(chunks))) else adjacent_view(chunks, 0, len(chunks))
        )
        self.chunk = chunks
        if self._to is not None:
            buffer = torch.cat([chunks[r] for r in order]) if filled else torch.empty_like(self._to)
            views = dict(zip(order, buffer.split([chunks[r].numel() for r in order]), strict=True))
            self.chunk = [views[r] for r in range(len(chunks))]
        join = lambda tensors: adjacent_view(tensors, 0, len(tensors))
        self.part = [
            [join([self.chunk[r] for r in ranks]) for ranks in bundle] for bundle in nodes.bundles
        ]
        self.bundle = [join(parts) for parts in self.part]

    def restore(self) -> None:
        """All chunks back into their places."""
        if self._to is not None:
            torch.cat(self.chunk, out=self._to)


def of_size(n: int, size: int) -> Nodes:
    """Nodes of `size` ranks each; the last may have fewer."""
    if size < 1:
        raise ValueError(f"a node has at least 1 rank, not {size}")
    return Nodes([r // size for r in range(n)])


def by_links(net: Net) -> Nodes:
    """Neighbours are in one node if the link between them is the fastest kind there is between neighbours.

    A slow rank's or wire's link takes longer by one factor, α and β alike, so it is of the same kind: such a rank
    stays in its node. Order the ranks by node for this (as runners do, and `comm.split(color, key)` can).
    """
    links = [net.link(r, r - 1) for r in range(1, net.n)]
    fastest = min(links, key=lambda link: (link.beta, link.alpha), default=Link(0.0, 0.0))
    node = [0]
    for link in links:
        node.append(node[-1] + (not _alike(link, fastest)))
    return Nodes(node)


def _alike(link: Link, other: Link) -> bool:
    """Whether one is the other, or some factor slower."""
    factor = link.beta / other.beta if other.beta else 1.0
    return (
        isclose(link.alpha, factor * other.alpha)
        and isclose(link.beta, factor * other.beta)
        and (factor == 1.0 or other.alpha > 0)
    )


# ------------------------------------------------------------
# The hierarchy itself: one algorithm within the nodes, one between them.


class _Groups(NamedTuple):
    """A rank's view: its node, and the ranks at its place in all nodes (None: it is left over)."""

    nodes: Nodes
    inner: Comm
    outer: Comm | None

    def padded(self, shards: list[Tensor]) -> list[Tensor]:
        """For each rank of the node its shard, an empty one for those left over."""
        return shards + [shards[-1][shards[-1].numel() :]] * (self.inner.size - len(shards))


@dataclass(frozen=True)
class Hierarchical:
    """An algorithm that uses `inner` within the nodes and `outer` between them, both given by name.

    size: ranks of a node; None: neighbours joined by the fastest link form a node. ValueError for an inner algorithm
    without a reduce-scatter and an all-gather, for an outer one without an all-reduce, and later, for a verb that the
    outer one lacks.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import Hierarchical, all_reduce_
    >>> from minidist.comm import Cluster
    >>> def program(comm, algorithm):
    ...     return all_reduce_(comm, torch.ones(1600), algorithm=algorithm)[0].item()
    >>> for algorithm in ("ring", Hierarchical(inner="ring", outer="tree")):  # 6,400 bytes
    ...     results = World(16, cluster=Cluster.dgx_h100(nodes=2)).run(program, algorithm)
    ...     between = [m.nbytes for m in results.trace if m.src // 8 != m.dst // 8]
    ...     print(results[0], f"{len(between)} messages, {sum(between):,} bytes between the nodes")
    16.0 60 messages, 24,000 bytes between the nodes
    16.0 16 messages, 12,800 bytes between the nodes
    """

    inner: str = "ring"
    outer: str = "ring"
    size: int | None = None

    def __post_init__(self):
        inner, outer = having("reduce_scatter", "all_gather"), having("all_reduce")
        if self.inner not in inner or self.outer not in outer:
            raise ValueError(
                f"the inner algorithm is one of {', '.join(inner)}, not {self.inner!r}; "
                f"the outer one is one of {', '.join(outer)}, not {self.outer!r}"
            )

    def nodes(self, net: Net) -> Nodes:
        """Which ranks form a node: as `size` says, or the links. ValueError for a size below 1."""
        return net.keep(
            ("nodes", self.size),
            lambda: by_links(net) if self.size is None else of_size(net.n, self.size),
        )

    def groups(self, comm: Comm) -> _Groups:
        """Made the first time, without a message."""
        nodes = self.nodes(Net.of(comm))

        def split() -> _Groups:
            inner = comm.split(nodes.node)
            return _Groups(
                nodes, inner, comm.split([p if p < nodes.shards else None for p in nodes.place])
            )

        return comm.keep(("groups", self.size), split)

    @property
    def within(self):
        """The inner algorithm."""
        return FLAT[self.inner]

    def between(self, verb: str):
        """The outer algorithm, which must have that verb."""
        if self.outer not in having(verb):
            raise ValueError(
                f"the outer algorithm {self.outer!r} has no {verb}; these have: {', '.join(having(verb))}"
            )
        return FLAT[self.outer]

    def all_reduce(self, comm: Comm, flat: Tensor, combine) -> None:
        """Reduce-scatter, all-reduce of the shards, all-gather: bit for bit the same everywhere.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import Hierarchical
        >>> def program(comm):
        ...     flat = torch.ones(8) * comm.rank
        ...     Hierarchical(size=2).all_reduce(comm, flat, torch.Tensor.add_)
        ...     return flat[0].item()
        >>> World(4).run(program)
        [6.0, 6.0, 6.0, 6.0]
        """
        outer, (group, shards) = self.between("all_reduce"), self._shards(comm, flat)
        mine = shards[group.inner.rank]
        self.within.reduce_scatter(group.inner, shards, mine, combine)
        if group.outer is not None:
            outer.all_reduce(group.outer, mine, combine)
        self.within.all_gather(group.inner, shards)

    def _shards(self, comm: Comm, flat: Tensor) -> tuple[_Groups, list[Tensor]]:
        group = self.groups(comm)
        return group, group.padded(list(flat.tensor_split(group.nodes.shards)))

    def broadcast(self, comm: Comm, flat: Tensor, root: int) -> None:
        """Scatter in the root's node, broadcasts of the shards, all-gather: all network cards work.

        ValueError for an outer algorithm without a broadcast.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import Hierarchical
        >>> def program(comm):
        ...     flat = torch.full((8,), float(comm.rank))
        ...     Hierarchical(size=2).broadcast(comm, flat, root=3)
        ...     return flat[0].item()
        >>> World(4).run(program)
        [3.0, 3.0, 3.0, 3.0]
        """
        outer, (group, shards) = self.between("broadcast"), self._shards(comm, flat)
        home = group.nodes.node[root]
        if group.nodes.node[comm.rank] == home:
            naive.scatter(group.inner, shards, group.nodes.place[root])
        if group.outer is not None:
            outer.broadcast(group.outer, shards[group.inner.rank], home)
        self.within.all_gather(group.inner, shards)

    def reduce(self, comm: Comm, flat: Tensor, root: int, combine) -> None:
        """Reduce-scatter, reduces of the shards, gather in the root's node.

        `flat` of the other ranks stays as it was. ValueError for an outer algorithm without a reduce.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import Hierarchical
        >>> def program(comm):
        ...     flat = torch.tensor([1, 10]) * comm.rank
        ...     Hierarchical(size=2).reduce(comm, flat, 0, torch.Tensor.add_)
        ...     return flat.tolist()
        >>> World(4).run(program)
        [[6, 60], [1, 10], [2, 20], [3, 30]]
        """
        outer, (group, shards) = self.between("reduce"), self._shards(comm, flat)
        home, done = group.nodes.node[root], shards[group.inner.rank]
        if comm.rank != root:
            done = scratch(done)
        self.within.reduce_scatter(group.inner, shards, done, combine)
        if group.outer is not None:
            outer.reduce(group.outer, done, home, combine)
        if group.nodes.node[comm.rank] == home:
            shards[group.inner.rank] = done
            naive.gather(group.inner, shards, group.nodes.place[root])

    def reduce_scatter(self, comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
        """Reduce-scatter of the bundles in each node, then of each bundle between its peers. A copy of the whole.

        ValueError for an outer algorithm without a reduce-scatter.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import Hierarchical
        >>> def program(comm):
        ...     chunks = list((torch.tensor([1, 10, 100, 1000]) * (comm.rank + 1)).split(1))
        ...     out = torch.zeros_like(chunks[comm.rank])
        ...     Hierarchical(size=2).reduce_scatter(comm, chunks, out, torch.Tensor.add_)
        ...     return out.item()
        >>> World(4).run(program)
        [10, 100, 1000, 10000]
        """
        outer, group = self.between("reduce_scatter"), self.groups(comm)
        nodes, bundled = group.nodes, Bundled(group.nodes, chunks, True)
        bundles = group.padded(bundled.bundle)
        mine = scratch(out, bundles[group.inner.rank].numel())
        self.within.reduce_scatter(group.inner, bundles, mine, combine)
        p, k = nodes.place[comm.rank], nodes.node[comm.rank]
        if group.outer is None:
            comm.recv(out, nodes.bundles[p % nodes.shards][k][0], "reduce-scatter")
            return
        parts, ranks = bundled.part[p], nodes.bundles[p][k]
        part = scratch(out, parts[k].numel())
        shards = list(mine.split([part.numel() for part in parts]))
        outer.reduce_scatter(group.outer, shards, part, combine)
        done = part.split([chunks[r].numel() for r in ranks])
        comm.batch(
            [Send(x, r, "reduce-scatter") for x, r in zip(done[1:], ranks[1:], strict=True)]
        ).wait()
        out.copy_(done[0])

    def all_gather(self, comm: Comm, chunks: list[Tensor]) -> None:
        """All-gather of each bundle between its peers, then of the bundles in each node. A copy of the whole.

        ValueError for an outer algorithm without an all-gather.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import Hierarchical
        >>> def program(comm):
        ...     flat = torch.zeros(4)
        ...     flat[comm.rank] = comm.rank + 1
        ...     Hierarchical(size=2).all_gather(comm, list(flat.split(1)))
        ...     return flat.tolist()
        >>> World(4).run(program)[3]
        [1.0, 2.0, 3.0, 4.0]
        """
        outer, group = self.between("all_gather"), self.groups(comm)
        nodes, bundled = group.nodes, Bundled(group.nodes, chunks, False)
        p, k = nodes.place[comm.rank], nodes.node[comm.rank]
        first, *others = nodes.bundles[p % nodes.shards][k]
        if group.outer is None:
            comm.send(chunks[comm.rank], first, "all-gather")
        else:
            if bundled.chunk is not chunks:
                bundled.chunk[first].copy_(chunks[first])
            comm.batch([Recv(bundled.chunk[r], r, "all-gather") for r in others]).wait()
            outer.all_gather(group.outer, bundled.part[p])
        self.within.all_gather(group.inner, group.padded(bundled.bundle))
        bundled.restore()

    def Cost(self, net: Net, nbytes: float, gamma: float = 0.0) -> Cost:
        """The formulas of this hierarchy."""
        return Cost(self, net, nbytes, gamma)


class Cost(Formulas):
    """The times of the parts, in the slowest node and of the slowest peers.

    Somewhat too long where nodes differ in size, for ranks with empty shards wait less. Copies are not counted.

    >>> from minidist.collectives import Hierarchical
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> between_nodes, within = Link(alpha=1.0, beta=0.5), Link(alpha=0.0, beta=0.25)
    >>> net = Net(4, lambda dst, src: within if dst // 2 == src // 2 else between_nodes)
    >>> Hierarchical().Cost(net, nbytes=16).all_reduce()  # 2·(0 + 8·0.25) and 2·(1 + 4·0.5)
    10.0
    """

    def __init__(self, algorithm: Hierarchical, net: Net, nbytes: float, gamma: float):
        super().__init__(net, nbytes, gamma)
        self.algorithm = algorithm
        self.nodes = algorithm.nodes(net)
        self.shard = nbytes / self.nodes.shards

    def _part(self, what: str, k: int, ranks: list[int]) -> Net:
        return self.net.part((what, self.algorithm.size, k), ranks)

    def _inner(self, verb: str, gamma: float = 0.0) -> float:
        """A verb within the nodes; a larger node passes shards as long as the smallest does, some of them empty."""
        parts = [self._part("node", k, ranks) for k, ranks in enumerate(self.nodes.members)]
        cost = self.algorithm.within.Cost
        return max(getattr(cost(part, self.shard * part.n, gamma), verb)() for part in parts)

    def _outer(self, verb: str, gamma: float = 0.0) -> float:
        """A verb between the nodes, of each place's shard."""
        parts = [self._part("peers", p, self.nodes.peers(p)) for p in range(self.nodes.shards)]
        cost = self.algorithm.between(verb).Cost
        return max(getattr(cost(part, self.shard, gamma), verb)() for part in parts)

    def _home(self) -> float:
        """Scatter or gather of the shards in the root's node."""
        home = self._part("home", 0, self.nodes.members[0][: self.nodes.shards])
        return naive.Cost(home, self.nbytes).scatter()

    def _left_over(self) -> float:
        """A chunk between a rank that is left over and the peer that works for it."""
        shared = [ranks for bundle in self.nodes.bundles for ranks in bundle]
        pairs = [(first, r) for first, *others in shared for r in others]
        if not pairs:
            return 0.0
        return slowest(
            self.net.among(("left over", self.algorithm.size), lambda: pairs), self.chunk
        )

    def all_reduce(self) -> float:
        """Seconds of a reduce-scatter in the nodes, an all-reduce between them, and an all-gather in them."""
        halves = self._inner("reduce_scatter", self.gamma) + self._inner("all_gather")
        return halves + self._outer("all_reduce", self.gamma)

    def broadcast(self) -> float:
        """Seconds of a scatter in the root's node, a broadcast between the nodes, and an all-gather in them."""
        return self._home() + self._outer("broadcast") + self._inner("all_gather")

    def reduce(self) -> float:
        """Seconds of a reduce-scatter in the nodes, a reduce between them, and a gather in the root's node."""
        inner = self._inner("reduce_scatter", self.gamma)
        return inner + self._outer("reduce", self.gamma) + self._home()

    def reduce_scatter(self) -> float:
        """Seconds of two reduce-scatters, in the nodes and between them, and of chunks for ranks left over."""
        inner = self._inner("reduce_scatter", self.gamma)
        return inner + self._outer("reduce_scatter", self.gamma) + self._left_over()

    def all_gather(self) -> float:
        """Seconds of chunks from ranks left over, and of two all-gathers, between the nodes and in them."""
        return self._outer("all_gather") + self._inner("all_gather") + self._left_over()
