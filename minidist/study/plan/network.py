"""Seconds of the messages of a grid on a cluster, while all other groups of the grid send theirs.

Ranks lie in the order tensor, data, pipeline, the first fastest: a tensor-parallel group is t neighbours, a
data-parallel group every t-th rank, a stage's successor t·d ranks further (Narayanan et al. 2021, section 3).
All groups of a kind send at once, so a wire that k ranks share gives each of them a k-th.

Verbs cost what their formulas in `collectives` say: rings within the nodes and between them, unless told otherwise.
"""

from __future__ import annotations

from functools import lru_cache

from minidist.collectives.cost import predict
from minidist.collectives.links import Net
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster

_NETS = 4096


class Network:
    """The groups of a cluster: `n` ranks, `stride` apart. algorithm: of collectives, as the verbs take it.

    gamma: seconds to combine a byte.
    """

    def __init__(self, cluster: Cluster, algorithm: str = "hierarchical", gamma: float = 0.0):
        self.cluster = cluster
        self.algorithm = algorithm
        self.gamma = gamma
        self.verb = lru_cache(maxsize=None)(self._verb)
        self.net = lru_cache(maxsize=_NETS)(self._net)

    def link(self, dst: int, src: int) -> Link:
        """α and β between two ranks while all others send as they do."""
        levels = [self.cluster.links[name] for name in self.cluster.levels(src, dst)]
        return Link(
            sum(level.alpha for level in levels), max(level.beta * level.share for level in levels)
        )

    def _net(self, n: int, stride: int) -> Net:
        return Net(n, lambda dst, src: self.link(dst * stride, src * stride))

    def _verb(self, verb: str, n: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of `nbytes` in all among n ranks, `stride` apart; 0 for one rank."""
        if n == 1 or not nbytes:
            return 0.0
        return predict(self.net(n, stride), verb, nbytes, self.algorithm, self.gamma)

    def send(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the rank `stride` further."""
        link = self.link(stride, 0)
        return link.alpha + nbytes * link.beta
