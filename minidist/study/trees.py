"""Trees of ranks, drawn: who sends to whom in a reduction, and who has work in which tree.

A rank keeps its column in every tree. Two trees grow from the same line of ranks, one up, one down: the
double binary tree of Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan" (2009), section 3, in which no rank is an inner node of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.study import line
from minidist.study.picture import Picture, axes, sheet

MOST_RANKS, MOST_NUMBERS = 128, 40
DEEP, STRIP = 0.56, 0.5  # inches: between two depths, and of the line of ranks

Parents = Sequence[int]  # the parent of each rank; ROOT for the one that has none
ROOT = -1


def tree(
    parents: Parents | Sequence[Parents] | Mapping[str, Parents],
    *,
    title: str = "Tree of ranks",
) -> Picture:
    """Draw one tree, or two that share their ranks: `parents[r]` is the parent of rank r, −1 that of the root.

    Two trees: `trees(n)` of the double binary tree, a pair, or `{"name": parents, "name": parents}`. Inner nodes
    are filled, leaves are not; the line of ranks shows in which tree each is an inner node.
    Errors: ValueError for more than two trees or 128 ranks, trees of different size, no root or several, a circle.
    """
    trees = _named(parents)
    if not 1 <= len(trees) <= 2:
        raise ValueError(f"tree draws one tree or two, not {len(trees)}")
    sizes = [len(t) for t in trees.values()]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"two trees of the same ranks are of the same size, not of {sizes[0]} and {sizes[1]}"
        )
    if not 1 <= sizes[0] <= MOST_RANKS:
        raise ValueError(f"tree draws 1 to {MOST_RANKS} ranks, and there are {sizes[0]}")
    depths = [depths_of(name, t) for name, t in trees.items()]
    tall = sum(max(d) * DEEP + 0.2 for d in depths) + STRIP
    with sheet(line.WIDTH, 0.6 + tall + line.MARGIN, title) as fig:
        _draw(fig, trees, depths, tall)
        return Picture(fig, _text(title, trees, depths))


def _named(parents) -> dict[str, list[int]]:
    if isinstance(parents, Mapping):
        return {str(name): list(t) for name, t in parents.items()}
    if all(isinstance(p, int) for p in parents):
        return {"": list(parents)}
    names = ["first tree", "second tree", *(f"tree {k + 1}" for k in range(2, len(parents)))]
    return {name: list(t) for name, t in zip(names, parents, strict=False)}


def depths_of(name: str, parents: Parents) -> list[int]:
    """How far below the root each rank is. ValueError where `parents` is no tree."""
    n, word = len(parents), f"tree {name!r}" if name else "the tree"
    roots = [r for r, p in enumerate(parents) if p == ROOT]
    if len(roots) != 1:
        raise ValueError(
            f"{word} needs one root, a rank whose parent is {ROOT}, and has {len(roots)}"
        )
    wrong = [(r, p) for r, p in enumerate(parents) if p != ROOT and not 0 <= p < n]
    if wrong:
        raise ValueError(f"{word} of {n} ranks: rank {wrong[0][0]} has the parent {wrong[0][1]}")
    depths = []
    for rank in range(n):
        above, depth = parents[rank], 0
        while above != ROOT and depth <= n:
            above, depth = parents[above], depth + 1
        if depth > n:
            raise ValueError(f"{word} has a circle: from rank {rank} upwards there is no root")
        depths.append(depth)
    return depths


def inner_of(parents: Parents) -> set[int]:
    """The ranks that have a child."""
    return set(parents) - {ROOT}


def _draw(fig: Figure, trees: dict[str, Parents], depths: list[list[int]], tall: float) -> None:
    n = len(depths[0])
    ax = axes(fig, line.MARGIN, 0.6, line.WIDTH - 2 * line.MARGIN, tall)
    ax.set_xlim(-0.7, n - 0.3)
    ax.set_ylim(tall, 0)  # inches from the top
    ax.axis("off")
    strip = max(depths[0]) * DEEP + 0.2 + STRIP / 2
    for k, ((name, parents), depth) in enumerate(zip(trees.items(), depths, strict=True)):
        side = 1 if k else -1  # the second tree hangs from the line of ranks
        y = [strip + side * (STRIP / 2 + 0.1 + (max(depth) - d) * DEEP) for d in depth]
        _tree(ax, parents, y, line.hue(k))
        if name:
            left, y_name = parents.index(ROOT) > n / 2, tall - 0.1 if k else 0.1
            style = dict(
                ha="left" if left else "right", va="center", fontweight="bold", fontsize=line.SMALL
            )
            ax.text(
                -0.6 if left else n - 0.4, y_name, f"{name}, root {parents.index(ROOT)}", **style
            )
    _ranks(ax, trees, strip)


def _tree(ax, parents: Parents, y: list[float], color: str) -> None:
    n, inner = len(parents), inner_of(parents)
    small = n > MOST_NUMBERS
    for r, p in enumerate(parents):
        if p != ROOT:
            ax.plot([r, p], [y[r], y[p]], color=line.MUTED, linewidth=1.1, zorder=1)
    for r in range(n):
        face, ink = (color, line.ink_on(color)) if r in inner else (line.CARD, line.INK)
        ax.plot(
            [r],
            [y[r]],
            "o",
            markersize=6 if small else 17,
            markerfacecolor=face,
            markeredgecolor=color,
            zorder=2,
            clip_on=False,
        )
        if not small:
            ax.text(
                r,
                y[r],
                str(r),
                ha="center",
                va="center_baseline",
                fontsize=line.SMALL,
                color=ink,
                zorder=3,
            )


def _ranks(ax, trees: dict[str, Parents], y: float) -> None:
    """The line of ranks: the colour of the tree in which a rank is an inner node."""
    n = len(next(iter(trees.values())))
    inner = [inner_of(t) for t in trees.values()]
    every = next(2**k for k in range(8) if n / 2**k <= MOST_NUMBERS)
    for r in range(n):
        at = [k for k, some in enumerate(inner) if r in some]
        color = line.hue(at[0]) if len(at) == 1 else line.VERMILION if at else line.GREY
        ax.add_patch(
            Rectangle(
                (r - 0.42, y - 0.1), 0.84, 0.2, facecolor=line.mix(color, 0.35), edgecolor="none"
            )
        )
        if r % every == 0:
            ax.text(r, y, str(r), ha="center", va="center_baseline", fontsize=line.SMALL)


def _text(title: str, trees: dict[str, Parents], depths: list[list[int]]) -> str:
    n, out = len(depths[0]), [title]
    for (name, parents), depth in zip(trees.items(), depths, strict=True):
        inner = sorted(inner_of(parents))
        most = max(Counter(p for p in parents if p != ROOT).values(), default=0)
        out.append(
            f"  {name or 'tree'}: {n} ranks, root {parents.index(ROOT)}, depth {max(depth)}, "
            f"at most {most} children, inner nodes {', '.join(map(str, inner)) or 'none'}"
        )
    if len(trees) == 2:
        both = sorted(set.intersection(*map(inner_of, trees.values())))
        out.append(f"  inner in both: {', '.join(map(str, both)) or 'no rank'}")
    return "\n".join(out)
