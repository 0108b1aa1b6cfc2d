"""What each rank holds, step by step: the classic drawing of a collective.

Rows are ranks, cells are chunks. A cell has the hue of the rank that held its value in the first
step; a sum written "a0+b0" shows the hue of each of its terms, so that one sees what is still
missing; a value that nobody held at first is grey. After MPI 4.1, figure 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from minidist.study import line
from minidist.study.picture import Picture, inches, sheet, short

CELL, GAP = 0.38, 0.06  # inches: height of a cell, room between two
LABELS, HEAD = 0.72, 0.34  # room for the names of the ranks, and for the name of a step
ARROW, GUTTER = 0.6, 0.14  # room between two steps of one line, and between two lines
MOST_RANKS, MOST_CHUNKS = 32, 32

Rows = list[list[str | None]]


def holdings(
    before: Sequence | Mapping[str, Sequence],
    after: Sequence | None = None,
    *,
    title: str = "What each rank holds",
    owner: Callable[[str], int | Sequence[int]] | None = None,
    arrows: bool = True,
) -> Picture:
    """Draw what each rank holds before and after, or in any named steps: `holdings({"start": …, "end": …})`.

    A step is a list with one entry per rank: a list of chunks (strings, numbers, small tensors; None
    for an empty place), a tensor (its elements, or its rows), or None where the rank holds nothing.
    owner: the rank, or ranks, whose hue a chunk gets, from its printed text; replaces the rule above.
    arrows: from each step to the next; False where they are not steps but things to compare.
    Errors: ValueError for no step, steps of different numbers of ranks, more than 32 ranks or chunks.
    """
    if isinstance(before, Mapping) and after is not None:
        raise ValueError("holdings takes named steps or before and after, not both")
    given = before if isinstance(before, Mapping) else {"before": before, "after": after}
    steps = {str(name): _rows(str(name), step) for name, step in given.items() if step is not None}
    _check(steps)
    lines, width = _lines(steps, inches(title, line.TITLE, "bold"))
    ranks = len(next(iter(steps.values())))
    head, block = 0.34 * bool(title), HEAD + ranks * (CELL + GAP)
    height = head + len(lines) * (block + GUTTER) - GUTTER - GAP + 2 * line.MARGIN - 0.06
    with sheet(width, height, title) as fig:
        hues, top = _hues(steps, owner), height - head - line.MARGIN + 0.06
        for panels in lines:
            x = line.MARGIN + LABELS
            _rank_names(fig, top - HEAD, ranks)
            for name, cell, columns in panels:
                if arrows and x > line.MARGIN + LABELS:
                    _word(
                        fig,
                        x - ARROW / 2,
                        top - HEAD - (block - HEAD) / 2,
                        "→",
                        color=line.MUTED,
                        fontsize=15,
                    )
                _panel(fig, x, top, name, steps[name], cell, hues[name])
                x += columns * (cell + GAP) - GAP + ARROW
            top -= block + GUTTER
        return Picture(fig, _text(title, steps))


def _check(steps: dict[str, Rows]) -> None:
    if not steps or not next(iter(steps.values())):
        raise ValueError("holdings needs at least one step with at least one rank")
    name, rows = next(iter(steps.items()))
    for other, more in steps.items():
        if len(more) != len(rows):
            raise ValueError(
                f"step {name!r} has {len(rows)} ranks, but step {other!r} has {len(more)}"
            )
        chunks = max(map(len, more))
        if len(more) > MOST_RANKS or chunks > MOST_CHUNKS:
            raise ValueError(
                f"holdings draws at most {MOST_RANKS} ranks of {MOST_CHUNKS} chunks; "
                f"step {other!r} has {len(more)} ranks of {chunks}: draw a part, or name the chunks"
            )


def _rows(name: str, step: Any) -> Rows:
    if isinstance(step, str) or not hasattr(step, "__len__"):
        raise ValueError(f"step {name!r} must be a list with one entry per rank, not {step!r}")
    return [_row(entry) for entry in step]


def _row(entry: Any) -> list[str | None]:
    entry = _plain(entry)
    if entry is None:
        return []
    return [_chunk(item) for item in entry] if isinstance(entry, list | tuple) else [_chunk(entry)]


def _plain(value: Any) -> Any:
    if getattr(value, "is_meta", False):
        raise ValueError(
            f"a meta tensor {tuple(value.shape)} has no values to draw: give the names of its chunks"
        )
    return value.tolist() if hasattr(value, "tolist") else value


def _chunk(value: Any) -> str | None:
    value = _plain(value)
    if isinstance(value, list | tuple):
        return " ".join(_chunk(v) or "–" for v in value) or None
    if isinstance(value, float):
        return short(value)
    return None if value is None else str(value)


def _hues(steps: dict[str, Rows], owner: Callable | None) -> dict[str, list[list[list[int]]]]:
    """For each step, rank and chunk: the ranks whose hues it shows."""
    first = next(iter(steps.values()))
    home: dict[str, int] = {}
    for r, row in enumerate(first):
        for word in row:
            home.setdefault(word, r)
    numbers = all(_is_number(word) for word in home if word)

    def ranks(word: str, r: int, i: int, rows: Rows) -> list[int]:
        if owner is not None:
            got = owner(word)
            return [got] if isinstance(got, int) else list(got)
        if word in first[r] and (not numbers or i < len(first[r]) and first[r][i] == word):
            return [r]
        if numbers and any(w not in home for row in rows for w in row if w):
            return []  # a step that computes: an equal number elsewhere is a coincidence
        return [home[term.strip()] for term in word.split("+") if term.strip() in home]

    return {
        name: [
            [ranks(w, r, i, rows) if w else [] for i, w in enumerate(row)]
            for r, row in enumerate(rows)
        ]
        for name, rows in steps.items()
    }


def _is_number(word: str) -> bool:
    try:
        return bool([float(part.replace(",", "")) for part in word.split()])
    except ValueError:
        return False


def _lines(
    steps: dict[str, Rows], least: float
) -> tuple[list[list[tuple[str, float, int]]], float]:
    """Each step's name, width of a cell and columns, broken into lines; and the width of the card."""
    lines, widths = [[]], [0.0]
    for name, rows in steps.items():
        cell = max(0.46, *(_needs(w) for row in rows for w in row if w), 0.0)
        columns = max(1, *map(len, rows), -int(-(inches(name) + GAP) // (cell + GAP)))
        width = columns * (cell + GAP) - GAP
        if lines[-1] and widths[-1] + ARROW + width > line.WIDTH - LABELS - 2 * line.MARGIN:
            lines, widths = lines + [[]], widths + [0.0]
        widths[-1] += width + ARROW * bool(lines[-1])
        lines[-1].append((name, cell, columns))
    return lines, max(LABELS + max(widths), least) + 2 * line.MARGIN


def _needs(word: str) -> float:
    terms = word.split("+")
    return len(terms) * (max(map(inches, terms)) + 0.2) if len(terms) > 1 else inches(word) + 0.24


def _rank_names(fig: Figure, top: float, ranks: int) -> None:
    for r in range(ranks):
        y = top - r * (CELL + GAP) - CELL / 2
        face = line.hue(r)
        shape = dict(transform=fig.dpi_scale_trans, facecolor=face, edgecolor="none")
        fig.add_artist(Rectangle((line.MARGIN, y - CELL / 2), 0.05, CELL, **shape))
        _word(
            fig,
            line.MARGIN + 0.13,
            y,
            f"rank {r}",
            ha="left",
            color=line.MUTED,
            fontsize=line.SMALL,
        )


def _panel(
    fig: Figure, left: float, top: float, name: str, rows: Rows, cell: float, hues: list
) -> None:
    _word(fig, left, top - HEAD / 2 + 0.02, name, ha="left", color=line.INK)
    for r, row in enumerate(rows):
        y = top - HEAD - r * (CELL + GAP) - CELL
        if not any(row):
            _word(fig, left + cell / 2, y + CELL / 2, "–", color=line.MUTED)
        for i, word in enumerate(row):
            if word:
                _cell(fig, left + i * (cell + GAP), y, cell, word, hues[r][i])
            elif any(row):
                _box(
                    fig,
                    left + i * (cell + GAP),
                    y,
                    cell,
                    facecolor="none",
                    edgecolor=line.EDGE,
                    linestyle=(0, (2, 2)),
                )


def _cell(fig: Figure, x: float, y: float, width: float, word: str, ranks: list[int]) -> None:
    terms = word.split("+") if len(ranks) == word.count("+") + 1 else [word]
    colors = [line.mix(line.hue(r), 0.45) for r in ranks] or [line.FAINT]
    outline = _box(fig, x, y, width, facecolor="none", edgecolor="none")
    for k, color in enumerate(colors):
        part = (x + k * width / len(colors), y)
        shape = dict(transform=fig.dpi_scale_trans, facecolor=color, edgecolor="none", linewidth=0)
        stripe = fig.add_artist(Rectangle(part, width / len(colors), CELL, **shape))
        stripe.set_clip_path(outline)
    for k, term in enumerate(terms):
        _word(fig, x + (k + 0.5) * width / len(terms), y + CELL / 2, term.strip())
        if k:
            _word(fig, x + k * width / len(terms), y + CELL / 2, "+")


def _box(fig: Figure, x: float, y: float, width: float, **style) -> FancyBboxPatch:
    shape = dict(
        boxstyle="round,pad=0,rounding_size=0.05", transform=fig.dpi_scale_trans, linewidth=0.9
    )
    return fig.add_artist(FancyBboxPatch((x, y), width, CELL, **shape, **style))


def _word(fig: Figure, x: float, y: float, word: str, **style) -> None:
    style = {"ha": "center", "va": "center", "color": line.INK, "fontsize": line.TEXT} | style
    fig.text(x, y, word, transform=fig.dpi_scale_trans, **style)


def _text(title: str, steps: dict[str, Rows]) -> str:
    width = max((len(w or "–") for rows in steps.values() for row in rows for w in row), default=1)
    out = [title] * bool(title)
    for name, rows in steps.items():
        out.append(f"{name}:")
        for r, row in enumerate(rows):
            held = (
                "  ".join(f"{w or '–':<{width}}" for w in row).rstrip() if any(row) else "nothing"
            )
            out.append(f"  rank {r}: {held}" if len(rows) <= 10 else f"  rank {r:>2}: {held}")
    return "\n".join(out)
