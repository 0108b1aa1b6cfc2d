"""Boxes of a matrix, drawn: who saved which part, who wants which, and from whose file each part of that comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from minidist.study import line
from minidist.study.picture import Picture, axes, inches, sheet

MOST_PANELS, MOST_PARTS = 4, 64
# inches: for the name of a panel, between panels, and of a matrix at most
HEAD = 0.34
GAP = 0.3
TALL = 1.9

# label, first (row, column), size (rows, columns), hue
Part = tuple[str, Sequence[int], Sequence[int], int]


def boxes(
    shape: Sequence[int], panels: Mapping[str, Sequence[Part]], *, title: str = ""
) -> Picture:
    """Draw panels side by side, each the matrix of `shape` with its parts (label, first, size, hue) as rectangles.

    hue: the colour, as of a rank of that number, so that one sees across panels what belongs together.
    Errors: ValueError for a shape of other than two dimensions, 0 or more than 4 panels, more than 64 parts in one, or
    a part that is not within the matrix.
    """
    if len(shape) != 2 or not 1 <= len(panels) <= MOST_PANELS:
        raise ValueError(
            f"boxes draws 1 to {MOST_PANELS} panels of a matrix, not {len(panels)} of {tuple(shape)}"
        )
    for name, parts in panels.items():
        if len(parts) > MOST_PARTS:
            raise ValueError(f"{name!r} has {len(parts)} parts; boxes draws at most {MOST_PARTS}")
        for label, first, size, _ in parts:
            if any(
                at < 0 or n < 0 or at + n > most
                for at, n, most in zip(first, size, shape, strict=True)
            ):
                where = f"{label!r} of {name!r}, {tuple(size)} from {tuple(first)} on,"
                raise ValueError(f"{where} is not in {tuple(shape)}")
    wide = (line.WIDTH - 2 * line.MARGIN - GAP * (len(panels) - 1)) / len(panels)
    tall = min(TALL, wide * shape[0] / shape[1])
    top = (0.52 if title else 0.15) + HEAD
    with sheet(line.WIDTH, top + tall + 0.2, title) as fig:
        for i, (name, parts) in enumerate(panels.items()):
            ax = axes(fig, line.MARGIN + i * (wide + GAP), top, wide, tall)
            fig.text(
                line.MARGIN + i * (wide + GAP),
                tall + 0.2 + 0.12,
                name,
                transform=fig.dpi_scale_trans,
                fontsize=line.TEXT,
                color=line.MUTED,
            )
            _draw(ax, shape, parts, (wide / shape[1], tall / shape[0]))
        return Picture(fig, "\n".join([title] * bool(title) + list(_lines(panels))))


def _draw(ax, shape: Sequence[int], parts: Sequence[Part], inch: tuple[float, float]) -> None:
    ax.set_xlim(0, shape[1])
    ax.set_ylim(shape[0], 0)
    ax.axis("off")
    ax.add_patch(Rectangle((0, 0), shape[1], shape[0], facecolor="none", edgecolor=line.EDGE))
    for label, (row, column), (rows, columns), hue in parts:
        face = line.mix(line.hue(hue), 0.3)
        ax.add_patch(
            Rectangle(
                (column, row), columns, rows, facecolor=face, edgecolor=line.CARD, linewidth=2
            )
        )
        if rows * inch[1] > 0.16 and columns * inch[0] > inches(label, line.SMALL):
            ax.text(
                column + columns / 2,
                row + rows / 2,
                label,
                ha="center",
                va="center",
                fontsize=line.SMALL,
                color=line.ink_on(face),
            )


def _lines(panels: Mapping[str, Sequence[Part]]):
    for name, parts in panels.items():
        yield f"  {name}:"
        for label, (row, column), (rows, columns), _ in parts:
            yield f"    {label}: [{row}:{row + rows}, {column}:{column + columns}]"
