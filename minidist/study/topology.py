"""A cluster, drawn: racks, nodes and devices, and the wires of each level with their speed.

From the top: spine, top-of-rack switches, nodes, what joins the devices of a node, devices. A line is a
wire, so what several ranks share is seen as fewer lines. Of many alike the first and the last are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import FancyBboxPatch

from minidist.comm.cluster import LEVELS, Cluster
from minidist.study import line
from minidist.study.picture import Picture, axes, inches, measure, sheet

# inches of the words at the left; a gap for what is left out, as a part of one that is drawn
WORDS, GAP = 1.75, 0.3
HIGH, SWITCH = 0.98, 0.26  # inches between two levels, of a switch
NODE, BARE = 1.22, 0.72  # inches of a node, and of one with a single device
NARROW, SLIM = 0.72, 0.055  # inches: the least of a node, of a device or a rank
MOST_WIRES = 8  # drawn between two switches; more are one band and a number

# what stands there (None: some are left out), left, width
Boxes = list[tuple[int | None, float, float]]


def cluster(cluster: Cluster, *, title: str | None = None) -> Picture:
    """Draw the racks, nodes and devices of `cluster`, and the α, GB/s and sharing of the wires at each level.

    title: the cluster's name if not given.
    """
    racks, switches = -(-cluster.nodes // _per_rack(cluster)), cluster.nodes > 1
    top = {"spine": 0.8, "tor": 0.8 + HIGH * (racks > 1)}
    top["node"] = top["tor"] + HIGH * switches
    title = cluster.name if title is None else title
    with sheet(line.WIDTH, top["node"] + _tall(cluster) + line.MARGIN, title) as fig:
        ax = axes(fig, 0, 0, *fig.get_size_inches())
        ax.set_xlim(0, fig.get_figwidth())
        ax.set_ylim(fig.get_figheight(), 0)
        ax.axis("off")
        _words(ax, cluster, top, racks)
        _racks(ax, cluster, racks, top)
        about = cluster.summary().partition(": ")[2]
        ax.text(line.MARGIN, 0.54, about, fontsize=line.SMALL, va="center", color=line.MUTED)
        return Picture(fig, f"{title}\n{cluster}")


def _per_rack(cluster: Cluster) -> int:
    return cluster.rack or cluster.nodes


def _tall(cluster: Cluster) -> float:
    return NODE if cluster.devices > 1 else BARE


def some(count: int, most: int) -> list[int | None]:
    """The numbers below `count` that are drawn: all up to `most`, else the first ones, None for a gap, the last."""
    return list(range(count)) if count <= most else [*range(max(1, most - 1)), None, count - 1]


def spread(items: Sequence[int | None], left: float, width: float, space: float) -> Boxes:
    """Places for `items` side by side, `space` inches between them; a gap takes 0.3 of the room of the others."""
    parts = [GAP if item is None else 1.0 for item in items]
    unit = (width - space * (len(items) - 1)) / sum(parts)
    lefts = [left + sum(parts[:k]) * unit + k * space for k in range(len(items))]
    return [(item, x, part * unit) for item, x, part in zip(items, lefts, parts, strict=True)]


# ------------------------------------------------------------------------------------------------------------- words
def _words(ax, cluster: Cluster, top: dict[str, float], racks: int) -> None:
    """What the wires of each level are, at their height."""
    inside = [n for n in ("nvlink", "pcie") if n in cluster.links][:1] * (cluster.devices > 1)
    inside += ["device"] * (cluster.ranks > 1)
    for k, name in enumerate(inside):
        _level(ax, cluster, name, top["node"] + 0.22 + 0.55 * k)
    if cluster.nodes > 1:
        _level(ax, cluster, "nic", top["tor"] + 0.57)
        if "tor" in cluster.links:
            _level(ax, cluster, "tor", top["tor"] + 0.05)
    if racks > 1 and "spine" in cluster.links:
        _level(ax, cluster, "spine", top["spine"] + 0.37)


def _level(ax, cluster: Cluster, name: str, y: float) -> None:
    level = cluster.links[name]
    rate = f"{measure(1 / level.beta, 'B')}/s" if level.beta else "no limit"
    shared = [f"{level.share} ranks share one"] * (level.share > 1) + ["one way at a time"] * (
        not level.duplex
    )
    ax.text(line.MARGIN, y, LEVELS[name], fontsize=line.TEXT, fontweight="bold", va="center")
    for k, words in enumerate((f"{rate}, α {measure(level.alpha, 's')}", ", ".join(shared))):
        ax.text(
            line.MARGIN,
            y + 0.17 * (k + 1),
            words,
            fontsize=line.SMALL,
            va="center",
            color=line.MUTED,
        )


# ---------------------------------------------------------------------------------------------------------- pictures
def _racks(ax, cluster: Cluster, racks: int, top: dict[str, float]) -> None:
    left, width = line.MARGIN + WORDS, line.WIDTH - 2 * line.MARGIN - WORDS
    places = spread(some(racks, 3), left, width, 0.22)
    if racks > 1:
        _box(ax, left + width * 0.2, top["spine"], width * 0.6, SWITCH, line.PURPLE, "spine")
    per_node = cluster.ranks * cluster.devices
    for rack, x, wide in places:
        if rack is None:
            _dots(ax, x + wide / 2, top["tor"] + SWITCH / 2)
            continue
        nodes = range(
            rack * _per_rack(cluster), min((rack + 1) * _per_rack(cluster), cluster.nodes)
        )
        if racks > 1:
            share = cluster.links["spine"].share if "spine" in cluster.links else 1
            ends = (
                (x + wide / 2, top["tor"]),
                (left + width * (0.2 + 0.6 * (x + wide / 2 - left) / width), top["spine"] + SWITCH),
            )
            _wires(ax, *ends, max(1, len(nodes) * per_node // share), wide * 0.3)
        if cluster.nodes > 1:
            name = f"top of rack {rack}" if racks > 1 or "tor" in cluster.links else "switch"
            _box(ax, x, top["tor"], wide, SWITCH, line.GREEN, name)
        for k, at, room in spread(some(len(nodes), max(2, int(wide / NARROW))), x, wide, 0.1):
            if k is None:
                _dots(ax, at + room / 2, top["node"] + _tall(cluster) / 2)
            else:
                _node(ax, cluster, nodes[k], at, room, top)


def _node(ax, cluster: Cluster, node: int, x: float, wide: float, top: dict[str, float]) -> None:
    """A node with what joins its devices, its devices, and its network cards up to the switch."""
    y = top["node"]
    tall = _tall(cluster)
    per_node = cluster.ranks * cluster.devices
    _box(ax, x, y, wide, tall, line.GREY, "", thin=0.12)
    first, last = node * per_node, (node + 1) * per_node - 1
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    words = [f"node {node}: {ranks}", ranks, f"{first}–{last}", ""]
    fits = next(w for w in words if inches(w, line.SMALL) + 0.06 < wide)
    ax.text(x + wide / 2, y + tall - 0.13, fits, ha="center", va="center", fontsize=line.SMALL)
    if cluster.nodes > 1:
        wires = per_node // cluster.links["nic"].share
        _wires(ax, (x + wide / 2, y), (x + wide / 2, top["tor"] + SWITCH), wires, wide * 0.7)
    low = y + tall - 0.6
    if cluster.devices > 1:
        _box(
            ax,
            x + 0.06,
            y + 0.16,
            wide - 0.12,
            0.2,
            line.SKY,
            "NVSwitch" if "nvlink" in cluster.links else "PCIe",
        )
    room = min(wide - 0.12, cluster.devices * max(0.62, 0.32 * cluster.ranks))
    space = min(0.06, 0.2 * room / cluster.devices)
    places = some(cluster.devices, max(2, int(room / (SLIM + space))))
    for k, at, width in spread(places, x + (wide - room) / 2, room, space):
        if k is None:
            _dots(ax, at + width / 2, low + 0.17)
            continue
        if cluster.devices > 1:
            ax.plot([at + width / 2] * 2, [y + 0.36, low], color=line.MUTED, linewidth=1, zorder=3)
        _device(ax, cluster, first + k * cluster.ranks, at, low, width)


def _device(ax, cluster: Cluster, first: int, x: float, y: float, wide: float) -> None:
    """A device with its rank in it, or with its ranks side by side; a slow one in another colour."""
    for k, at, width in spread(some(cluster.ranks, max(2, int(wide / SLIM / 1.4))), x, wide, 0.02):
        if k is None:
            _dots(ax, at + width / 2, y + 0.17)
            continue
        slow = cluster.slow_ranks.get(first + k, 1.0) > 1
        color, thin = (line.VERMILION, 0.8) if slow else (line.BLUE, 0.25)
        _box(ax, at, y, width, 0.34, color, str(first + k), thin)


def _wires(
    ax, low: tuple[float, float], high: tuple[float, float], count: int, wide: float
) -> None:
    """`count` lines side by side between two points; above 8 of them a band, and how many."""
    (x0, y0), (x1, y1) = low, high
    for k in range(count if count <= MOST_WIRES else 0):
        shift = wide * ((k + 0.5) / count - 0.5)
        ax.plot([x0 + shift, x1 + shift], [y0, y1], color=line.MUTED, linewidth=1, zorder=1)
    if count > MOST_WIRES:
        ax.fill(
            [x0 - wide / 2, x0 + wide / 2, x1 + wide / 2, x1 - wide / 2],
            [y0, y0, y1, y1],
            color=line.mix(line.GREY, 0.4),
            linewidth=0,
            zorder=1,
        )
        ax.text(
            (x0 + x1) / 2,
            (y0 + y1) / 2,
            f"{count} wires",
            ha="center",
            va="center",
            fontsize=line.SMALL,
        )


def _box(
    ax, x: float, y: float, wide: float, tall: float, color: str, word: str, thin: float = 0.3
) -> None:
    face = line.mix(color, thin)
    style = dict(
        boxstyle="round,pad=0,rounding_size=0.04", facecolor=face, edgecolor=color, linewidth=0.9
    )
    ax.add_patch(FancyBboxPatch((x, y), wide, tall, zorder=2, **style))
    if word and inches(word, line.SMALL) + 0.04 <= wide:
        ink = line.ink_on(face)
        style = dict(ha="center", va="center_baseline", fontsize=line.SMALL, color=ink, zorder=3)
        ax.text(x + wide / 2, y + tall / 2, word, **style)


def _dots(ax, x: float, y: float) -> None:
    ax.text(x, y, "…", ha="center", va="center", fontsize=line.TEXT, color=line.MUTED)
