"""A mesh of ranks drawn on its cluster: who is where, and what each axis of parallelism puts on which links.

A message belongs to the axis along which its two ranks differ. What crosses several (a sum over the whole mesh) stands
by itself, as "pp × dp". A message counts on every level of links that it passes: in a cluster of nodes, on the network
card and on the switch.
"""

from __future__ import annotations

from collections import Counter

from matplotlib.patches import FancyBboxPatch

from minidist.comm.cluster import LEVELS, Cluster
from minidist.comm.mesh import Grid
from minidist.comm.trace import Trace
from minidist.study import line
from minidist.study.picture import Picture, axes, inches, measure, sheet
from minidist.study.topology import some

# inches: words at the left, height of a rank; ranks side by side; between
WORDS = 1.0
CELL = 0.46
ROW = 8
GAP = 0.12
MOST_NODES = 4


def axis_bytes(trace: Trace, grid: Grid, cluster: Cluster) -> dict[str, dict[str, int]]:
    """{axis: {level: bytes}} of a run: what each axis sent over each level of links, near levels first.

    Raises ValueError for a trace of another number of ranks.
    """
    if trace.n != grid.size:
        raise ValueError(f"the trace is of {trace.n} ranks, the mesh of {grid.size}")
    grid.fits(cluster.size)
    found: dict[str, dict[str, int]] = {axis: {} for axis, size in grid.sizes.items() if size > 1}
    pairs: Counter[tuple[int, int]] = Counter()
    for message in trace:
        pairs[message.src, message.dst] += message.nbytes
    for (src, dst), sent in sorted(pairs.items()):
        levels = found.setdefault(grid.between(src, dst), {})
        for level in cluster.levels(src, dst):
            levels[level] = levels.get(level, 0) + sent
    return {
        axis: {level: row[level] for level in LEVELS if level in row} for axis, row in found.items()
    }


def mesh(
    grid: Grid, cluster: Cluster, trace: Trace | None = None, *, title: str | None = None
) -> Picture:
    """Draw where the ranks of `grid` are on the nodes of `cluster`; with a trace, also the bytes of `axis_bytes`.

    A colour is a stage of the pipeline. Of many nodes the first and the last are drawn.
    """
    title = f"{grid} on {cluster.name}" if title is None else title
    grid.fits(cluster.size)
    per = cluster.ranks * cluster.devices
    nodes = some(-(-grid.size // per), MOST_NODES)
    heights = [
        0.3 if node is None else -(-min(per, grid.size - node * per) // ROW) * CELL + GAP
        for node in nodes
    ]
    sent = {} if trace is None else axis_bytes(trace, grid, cluster)
    top = 0.55 + sum(heights)
    with sheet(line.WIDTH, top + bool(sent) * (0.3 + 0.26 * len(sent)) + line.MARGIN, title) as fig:
        ax = axes(fig, 0, 0, *fig.get_size_inches())
        ax.set_xlim(0, fig.get_figwidth())
        ax.set_ylim(fig.get_figheight(), 0)
        ax.axis("off")
        y = 0.55
        for node, tall in zip(nodes, heights, strict=True):
            _node(ax, grid, node, per, y, tall - GAP)
            y += tall
        if sent:
            _table(ax, sent, top + 0.12)
        return Picture(fig, "\n".join([title, grid.draw(cluster), *_lines(sent)]))


def _node(ax, grid: Grid, node: int | None, per: int, y: float, tall: float) -> None:
    """One node: a cell for each rank; None: some are left out."""
    ax.text(
        line.MARGIN,
        y + tall / 2,
        "…" if node is None else f"node {node}",
        va="center",
        fontsize=line.TEXT,
    )
    wide = (line.WIDTH - WORDS - line.MARGIN) / min(ROW, per)
    for k, rank in enumerate(
        () if node is None else range(node * per, min((node + 1) * per, grid.size))
    ):
        x, at = WORDS + k % ROW * wide, y + k // ROW * CELL
        color = line.hue(grid.place(rank)["pp"])
        face = line.mix(color, 0.22)
        ax.add_patch(
            FancyBboxPatch(
                (x + 0.03, at + 0.02),
                wide - 0.06,
                CELL - 0.04,
                facecolor=face,
                edgecolor=color,
                boxstyle="round,pad=0,rounding_size=0.04",
                linewidth=0.9,
            )
        )
        words = dict(ha="center", va="center", color=line.ink_on(face))
        ax.text(
            x + wide / 2, at + 0.14, f"rank {rank}", fontsize=line.SMALL, fontweight="bold", **words
        )
        ax.text(x + wide / 2, at + 0.31, grid.name(rank), fontsize=line.SMALL, **words)


def _table(ax, sent: dict[str, dict[str, int]], y: float) -> None:
    """A row for each axis, a column for each level."""
    levels = _columns(sent)
    left = line.MARGIN + max(inches(axis) for axis in sent) + 0.4
    wide = min(2.0, (line.WIDTH - left - line.MARGIN) / max(1, len(levels)))
    most = max((max(row.values()) for row in sent.values() if row), default=1)
    for k, level in enumerate(levels):
        style = dict(ha="center", va="center", fontsize=line.SMALL, color=line.MUTED)
        ax.text(left + (k + 0.5) * wide, y, f"over {LEVELS[level]}", **style)
    for i, (axis, row) in enumerate(sent.items()):
        at = y + 0.26 * (i + 1)
        ax.text(line.MARGIN, at, axis, va="center", fontsize=line.TEXT, fontweight="bold")
        for k, level in enumerate(levels):
            face = (
                line.mix(line.BLUE, 0.08 + 0.5 * row[level] / most) if level in row else line.CARD
            )
            ax.add_patch(
                FancyBboxPatch(
                    (left + k * wide + 0.02, at - 0.115),
                    wide - 0.04,
                    0.23,
                    facecolor=face,
                    boxstyle="square,pad=0",
                    linewidth=0,
                )
            )
            word = measure(row[level], "B") if level in row else "–"
            style = dict(ha="center", va="center", fontsize=line.SMALL, color=line.ink_on(face))
            ax.text(left + (k + 0.5) * wide, at, word, **style)


def _columns(sent: dict[str, dict[str, int]]) -> list[str]:
    return [level for level in LEVELS if any(level in row for row in sent.values())]


def _lines(sent: dict[str, dict[str, int]]) -> list[str]:
    """The table in words."""
    return [
        f"  {axis}: "
        + (", ".join(f"{row[level]:,} B over {LEVELS[level]}" for level in row) or "nothing")
        for axis, row in sent.items()
    ]
