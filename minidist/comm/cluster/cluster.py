"""A modelled cluster: which devices the ranks of a World compute with, and which wires lie between two of them.

    rack 0 ── spine ── rack 1       Rank r sits on device r // ranks; so many devices make a node, so many nodes
      │ top-of-rack                 a rack. A message passes the levels between two ranks: one device, or NVLink
    node ── node ── node            (else PCIe) in a node, or NIC, top-of-rack and, between racks, the spine.
      │ NVLink, or PCIe
    device … device                 α of a route is the sum of its levels' α, β the largest of theirs.

Cut-through: N bytes start when every wire of the route is free, hold the two ports for N times the route's β and
each shared wire for N times its own, and arrive α after the last byte left (Hockney 1994 on free wires). A port
belongs to one rank and one level, so NVLink and NIC of a rank are busy apart. Switches never block: what is short
is ports, and the wires that several ranks share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape

from ...arguments import whole
from ..base import Link
from . import noise
from .hardware import LEVELS, Device, HostPart, Level, Place, Route
from .presets import Presets

__all__ = ["Cluster", "Device", "Level", "Place", "Route"]


@dataclass(frozen=True)
class Cluster(Presets):
    """`ranks` a device, `devices` a node, `nodes` in all, `rack` nodes a rack (all in one unless given).

    device: None counts time for messages only.  links: Level by name (`LEVELS`); what no pair needs may be missing.
    host: the cores and the memory of a node, behind the link "pcie"; see `part_of_host`. None: what a host does takes
    no time.
    The rest is set by `slow_rank`, `slow_link` and `jitter`, which return another Cluster.
    Raises ValueError for counts below 1, for links that a pair needs and that are missing, and for wires that
    would be shared across nodes (of the spine: across racks).
    """

    name: str = "cluster"
    device: Device | None = None
    links: dict[str, Level] = field(default_factory=dict)
    ranks: int = 1
    devices: int = 1
    nodes: int = 1
    rack: int | None = None
    slow_ranks: dict[int, float] = field(default_factory=dict)
    slow_links: dict[tuple[int, int], float] = field(default_factory=dict)
    sigma: float = 0.0
    seed: int = 0
    host: Device | None = field(default=None, repr=False)

    def __post_init__(self):
        for what in ("ranks", "devices", "nodes", "rack"):
            if what != "rack" or self.rack is not None:
                whole(getattr(self, what), f"a cluster has at least 1 of its {what}", 1)
        needed = {("device",): self.ranks, ("nvlink", "pcie"): self.devices, ("nic",): self.nodes}
        for names, count in needed.items():
            if count > 1 and not any(name in self.links for name in names):
                raise ValueError(
                    f"the cluster has {self.size} ranks but no link {' or '.join(map(repr, names))}, "
                    f"only {list(self.links)}"
                )
        if self.host is not None and "pcie" not in self.links:
            raise ValueError(
                f"the cluster has a host, {self.host.name}, but no link 'pcie' to it, "
                f"only {list(self.links)}"
            )
        per_node = self.ranks * self.devices
        units = {"device": self.ranks, "spine": per_node * (self.rack or self.nodes)}
        for name, level in self.links.items():
            if name not in LEVELS:
                raise ValueError(f"the levels are {', '.join(LEVELS)}, not {name!r}")
            if units.get(name, per_node) % level.share:
                raise ValueError(
                    f"{level.share} ranks cannot share a wire of level {name!r}, which has "
                    f"{units.get(name, per_node)} ranks in one place"
                )

    @property
    def size(self) -> int:
        """How many ranks there is room for."""
        return self.ranks * self.devices * self.nodes

    def _check(self, *ranks: int) -> None:
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise ValueError(
                    f"rank {rank} is not in this cluster of {self.size} ranks, 0 to {self.size - 1}"
                )

    def place(self, rank: int) -> Place:
        """(rack, node, device) of a rank; ValueError for a rank that does not exist."""
        self._check(rank)
        return self._places[rank]

    @cached_property
    def _places(self) -> list[Place]:
        nodes = [divmod(rank // self.ranks, self.devices) for rank in range(self.size)]
        return [Place(node // (self.rack or self.nodes), node, device) for node, device in nodes]

    @cached_property
    def _paths(self) -> list[_Path | None]:
        """The way within a device, a node, a rack, and between racks; None where no two ranks are so far apart."""
        inside = "nvlink" if "nvlink" in self.links else "pcie"
        ways = [
            [name for name in names if name in self.links]
            for names in (("device",), (inside,), ("nic", "tor"), ("nic", "tor", "spine"))
        ]
        return [
            _Path(names, [self.links[name] for name in names]) if names else None for names in ways
        ]

    def _path(self, src: int, dst: int) -> _Path:
        self._check(src, dst)
        if src == dst:
            raise ValueError(f"there is no route from rank {src} to rank {dst}, itself")
        a, b = self._places[src], self._places[dst]
        return self._paths[0 if a == b else 1 if a.node == b.node else 2 if a.rack == b.rack else 3]

    def levels(self, src: int, dst: int) -> list[str]:
        """The levels that a message from `src` to `dst` passes, the ports' first. ValueError if they are one rank."""
        return self._path(src, dst).names

    def link(self, src: int, dst: int) -> Link:
        """α and β of the free route from `src` to `dst`."""
        path, slow = self._path(src, dst), 1.0
        if self.slow_ranks:  # a rank's own port is slow with it, no shared wire is
            slow = max(self.slow_ranks.get(src, 1.0), self.slow_ranks.get(dst, 1.0))
        whole = self.slow_links.get((src, dst), 1.0)
        port = path.levels[0]
        return Link(
            whole * (port.alpha * slow + path.alpha), whole * max(port.beta * slow, path.beta)
        )

    def route(self, src: int, dst: int) -> Route:
        """What a message from `src` to `dst` takes and occupies."""
        path, (alpha, beta) = self._path(src, dst), self.link(src, dst)
        port, both = path.names[0], not path.levels[0].duplex
        wires = [
            ((port, src, "both" if both else "out"), beta),
            ((port, dst, "both" if both else "in"), beta),
        ]
        if path.shares:  # behind the ports
            wires += self._shared(path, src, dst)
        return Route(alpha, beta, tuple(wires))

    def _shared(self, path: _Path, src: int, dst: int) -> list[tuple[tuple, float]]:
        found = {}  # a bus that serves both directions and both ranks is held once
        for name, level in zip(path.names, path.levels):
            for rank, way in ((src, "out"), (dst, "in")) if level.share > 1 else ():
                first = rank // level.share * level.share
                found[name, f"ranks from {first}", way if level.duplex else "both"] = level.beta
        return list(found.items())

    def speed(self, rank: int) -> float:
        """The part of its device's speed that a rank has: 1 alone on it, less if slow or if the device is shared."""
        self._check(rank)
        return 1 / (self.ranks * self.slow_ranks.get(rank, 1.0))

    def part_of_host(self, rank: int, n: int) -> HostPart:
        """What `rank` has of its host in a run of `n` ranks, and α and β of its copies. ValueError without a host.

        Those on a node divide its host equally, whether the others use their part or not; and a shared wire likewise.
        """
        if self.host is None:
            raise ValueError(f"the cluster {self.name!r} has no host: give it one, host=Device(…)")
        node, pcie = self.place(rank).node, self.links["pcie"]
        per_node = self.ranks * self.devices
        beside = min(n - node * per_node, per_node)
        return HostPart(
            self.host.part(beside), Link(pcie.alpha, pcie.beta * min(pcie.share, beside))
        )

    def noise(self, kind: str, rank: int, k: int) -> float:
        """The factor on the time of the k-th "message" or "operation" of a rank; 1 without `jitter`."""
        return noise.factor(self.sigma, self.seed, kind, rank, k) if self.sigma else 1.0

    def slow_rank(self, rank: int, factor: float) -> Cluster:
        """The same, but `rank` takes `factor` times as long for all it does: operations, α and β of its ports."""
        self._check(rank)
        slower = _longer(factor, f"slow rank {rank}") * self.slow_ranks.get(rank, 1.0)
        return replace(self, slow_ranks=self.slow_ranks | {rank: slower})

    def slow_link(self, src: int, dst: int, factor: float) -> Cluster:
        """The same, but messages from `src` to `dst` (this way only) take `factor` times as long, α and β."""
        self.link(src, dst)
        slower = _longer(factor, f"slow link from {src} to {dst}") * self.slow_links.get(
            (src, dst), 1.0
        )
        return replace(self, slow_links=self.slow_links | {(src, dst): slower})

    def jitter(self, sigma: float, seed: int = 0) -> Cluster:
        """The same, but the time of each message and operation is multiplied by exp(σz), z normal: see `noise`."""
        if not sigma >= 0:
            raise ValueError(f"the spread of a jitter is 0 or more, not {sigma}")
        return replace(self, sigma=sigma, seed=seed)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table of links: level, α in µs, GB/s of a wire, who shares it."""
        found = []
        for name, level in sorted(self.links.items(), key=lambda item: list(LEVELS).index(item[0])):
            rate = f"{1e-9 / level.beta:,.1f}" if level.beta else "no limit"
            owners = "one a rank" if level.share == 1 else f"{level.share} ranks share one"
            ways = "both ways at once" if level.duplex else "one way at a time"
            found.append((LEVELS[name], f"{level.alpha * 1e6:,.1f}", rate, f"{owners}, {ways}"))
        return found

    def summary(self) -> str:
        """One sentence: how many of what, and what is slow."""
        device = f", {self.device.name}" if self.device else ""
        what = f"{self.name}{device}: {self.size:,} ranks = {self.ranks} a device × {self.devices} a node"
        what += f" × {self.nodes:,} nodes, {self.rack or self.nodes} a rack"
        slow = [f"rank {r} × {f:g}" for r, f in self.slow_ranks.items()]
        slow += [f"{src} → {dst} × {f:g}" for (src, dst), f in self.slow_links.items()]
        noise = [f"jitter σ = {self.sigma:g}"] if self.sigma else []
        return "; ".join([what, *(f"slow: {', '.join(slow)}" for _ in slow[:1]), *noise])

    def __str__(self) -> str:
        table = [("level", "α µs", "GB/s", "wires"), *self.rows()]
        return "\n".join(
            [self.summary(), *(f"  {a:<16} {b:>6} {c:>9}  {d}" for a, b, c, d in table)]
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("level", "α µs", "GB/s", "wires"))
        rows = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self.rows()
        )
        return f"<p>{escape(self.summary())}</p><table><tr>{head}</tr>{rows}</table>"


class _Path:
    """The levels between ranks of one distance; α and β of those behind the port's, and whether ranks share wires."""

    def __init__(self, names: list[str], levels: list[Level]):
        self.names, self.levels = names, levels
        self.alpha = sum(level.alpha for level in levels[1:])
        self.beta = max((level.beta for level in levels[1:]), default=0.0)
        self.shares = any(level.share > 1 for level in levels)


def _longer(factor: float, what: str) -> float:
    """A factor of at least 1, or ValueError."""
    if not factor >= 1:
        raise ValueError(f"a {what} takes at least 1 times as long as the others, not {factor}")
    return factor
