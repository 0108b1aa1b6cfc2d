"""Which ranks form a node, and who works for whom between the nodes.

Each of `shards` places, as many as the smallest node has ranks, is taken by one rank of every node; these peers
talk to each other. In a larger node the ranks that are left over work with those of the first places.
"""

from __future__ import annotations

from math import isclose

import torch
from torch import Tensor

from ..comm.base import Link
from .flat import together
from .links import Net


class Nodes:
    """`node[r]` and, within it, `place[r]` of each rank r; neighbours in rank order are in one node.

    members[k]: the ranks of node k.  shards: how many the smallest node has.
    bundles[p][k]: the ranks of node k that its peer at place p works for, itself first.
    """

    def __init__(self, node: list[int]):
        self.node = node
        self.place = []
        self.members = [[] for _ in range(node[-1] + 1)]
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
        order = [r for bundle in nodes.bundles for ranks in bundle for r in ranks]
        self._to = None if order == list(range(len(chunks))) else together(chunks, 0, len(chunks))
        self.chunk = chunks
        if self._to is not None:
            buffer = torch.cat([chunks[r] for r in order]) if filled else torch.empty_like(self._to)
            views = dict(zip(order, buffer.split([chunks[r].numel() for r in order]), strict=True))
            self.chunk = [views[r] for r in range(len(chunks))]
        join = lambda tensors: together(tensors, 0, len(tensors))
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
    fastest = min(links, key=lambda link: (link.beta, link.alpha), default=None)
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
