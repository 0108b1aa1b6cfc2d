"""A picture of the allocator's memory: blocks as they lie, in lines, and the holes between them."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.study import line
from minidist.study.memory.allocator import Allocator, Block
from minidist.study.memory.items import sized
from minidist.study.picture import Picture, inches, sheet

# lines of a picture, if not said; inches of one, and between two
LINES = 16
TALL = 0.2
BETWEEN = 0.07
HOLE, REST = "free, in a segment", "free, with the driver"
HUES = (line.BLUE, line.GREEN, line.PURPLE, line.YELLOW, line.SKY, line.ORANGE)


def blocks(memory: Allocator, *, title: str = "", lines: int = LINES) -> Picture:
    """Draw all `memory.capacity` bytes, in so many lines as one reads: what is in use by label, and what is free.

    A dark mark is where a segment begins. Segments are drawn in the order in which they were taken, addresses
    without memory not at all; what the driver still has comes last. Raises ValueError for lines < 1.
    """
    if lines < 1:
        raise ValueError(f"{memory.capacity} bytes are drawn in 1 line or more, not in {lines}")
    parts = [*_parts(memory)]
    sums = _sums(parts)
    room = line.WIDTH - 2 * line.MARGIN
    head, tall = (0.62 if title else 0.25), lines * (TALL + BETWEEN)
    with sheet(line.WIDTH, head + tall + 0.5, title) as fig:
        colors = _colors(sums)
        at = 0
        for label, size, first in parts:
            for row, x, width in _pieces(at, size, memory.capacity, lines):
                _box(fig, head + row * (TALL + BETWEEN), x * room, width * room, colors[label])
            if first:
                row, x, _ = next(_pieces(at, size, memory.capacity, lines))
                _mark(fig, head + row * (TALL + BETWEEN), x * room)
            at += size
        _legend(fig, sums, colors, memory.capacity)
        return Picture(fig, _text(title, memory, sums))


def _parts(memory: Allocator):
    """(label, bytes, whether a segment begins here) of each part, as they are drawn."""
    for segment in memory.segments:
        mapped = [b for b in segment.blocks if b.state != "unmapped"]
        for i, block in enumerate(mapped):
            yield _label(block), block.size, i == 0
    if memory.reserved < memory.capacity:
        yield REST, memory.capacity - memory.reserved, False


def _label(block: Block) -> str:
    return HOLE if block.state == "free" else block.label or "in use"


def _sums(parts: list[tuple[str, int, bool]]) -> dict[str, int]:
    """Bytes by label; what is free comes last."""
    found = dict.fromkeys(label for label, _, _ in parts)
    order = [*(w for w in found if w not in (HOLE, REST)), *(w for w in (HOLE, REST) if w in found)]
    return {word: sum(size for label, size, _ in parts if label == word) for word in order}


def _colors(sums: dict[str, int]) -> dict[str, dict]:
    used = [word for word in sums if word not in (HOLE, REST)]
    faces = {
        word: dict(facecolor=line.mix(HUES[i % len(HUES)], 0.75), edgecolor="none")
        for i, word in enumerate(used)
    }
    hole = dict(
        facecolor=line.mix(line.VERMILION, 0.14),
        edgecolor=line.mix(line.VERMILION, 0.75),
        hatch="//////",
    )
    return faces | {
        HOLE: hole | dict(linewidth=0.5),
        REST: dict(facecolor=line.FAINT, edgecolor="none"),
    }


def _pieces(at: int, size: int, capacity: int, lines: int):
    """(line, start, width) of the parts of a block that lie on different lines, in parts of a line's length."""
    while size > 0:
        row = at * lines // capacity
        end = min(at + size, -(-(row + 1) * capacity // lines))
        yield row, at * lines / capacity - row, (end - at) * lines / capacity
        at, size = end, size - (end - at)


def _box(fig: Figure, top: float, x: float, width: float, style: dict) -> None:
    y = fig.get_figheight() - top - TALL
    fig.add_artist(
        Rectangle((line.MARGIN + x, y), width, TALL, transform=fig.dpi_scale_trans, **style)
    )


def _mark(fig: Figure, top: float, x: float) -> None:
    y = fig.get_figheight() - top - TALL - 0.02
    shape = dict(transform=fig.dpi_scale_trans, facecolor=line.INK, edgecolor="none")
    fig.add_artist(Rectangle((line.MARGIN + x, y), 0.012, TALL + 0.04, **shape))


def _legend(fig: Figure, sums: dict[str, int], colors: dict[str, dict], capacity: int) -> None:
    x = 0.0
    for word, size in sums.items():
        _box(fig, fig.get_figheight() - 0.38, x, 0.24, colors[word])
        text = f"{word} {sized(size, capacity)}"
        where = dict(
            transform=fig.dpi_scale_trans, va="center", fontsize=line.SMALL, color=line.MUTED
        )
        fig.text(line.MARGIN + x + 0.31, 0.28, text, **where)
        x += inches(text, line.SMALL) + 0.6


def _text(title: str, memory: Allocator, sums: dict[str, int]) -> str:
    holes = sorted((b.size for b in memory.blocks if b.state == "free"), reverse=True)
    out = [title] * bool(title)
    out.append(
        f"{memory.capacity:,} B, {memory.reserved:,} B of it in {len(memory.segments)} segments"
    )
    out += [f"  {word}: {size:,} B" for word, size in sums.items()]
    if holes:
        out.append(
            f"  {len(holes)} holes, the largest {holes[0]:,} B; largest piece {memory.largest:,} B"
        )
    return "\n".join(out)
