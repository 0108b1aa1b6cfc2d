"""Ranks, and what is between them and on them: schematics that are drawn from the thing itself.

    holdings   what each rank holds, step by step: the classic drawing of a collective
    messages   arrows between ranks in time               traffic    bytes from each rank to each
    tree       one or two trees of ranks                  boxes      who holds which part of a matrix
    cluster    racks, nodes, devices and their wires      mesh       a mesh of ranks on its cluster
    exponents  what half precision holds of numbers

A rank has its hue in all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from minidist.arguments import instance
from minidist.comm.cluster import LEVELS, Cluster
from minidist.comm.mesh import Grid
from minidist.comm.trace import Message, Trace
from minidist.study.picture import (
    BLUE,
    CARD,
    DASHED,
    EDGE,
    FAINT,
    GREY,
    INK,
    MARGIN,
    MEANING,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    TEXT,
    TIME_UNITS,
    TITLE,
    VERMILION,
    WIDTH,
    Card,
    Picture,
    card,
    hue,
    inches,
    ink_on,
    measure,
    mix,
    raised,
    room,
    short,
    unit_of,
)
from minidist.train.amp import Exponents

# --------------------------------------------------------------------------------------------------------- holdings
CELL = 0.38  # inches: height of a cell
GAP = 0.06  # between two cells
LABELS = 0.72  # for the names of the ranks
ARROW = 0.6  # between two steps of one line

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
    A cell has the hue of the rank that held its value in the first step. A sum written "a0+b0" shows the hue of each of
    its terms, and therefore what is still missing; a value that no rank held at first is grey.
    owner: a function that replaces this rule: from a chunk's printed text, it gives the rank or ranks whose hue the
    chunk gets.
    arrows: draw them from each step to the next; False if these are not steps but things to compare.
    Errors: ValueError for no step, steps of different numbers of ranks, more than 32 ranks or chunks.
    Source: after MPI 4.1, figure 6.1.

    >>> from minidist.study import holdings
    >>> holdings([["a0", "a1"], ["b0", "b1"]], [["a0+b0", None], [None, "a1+b1"]], title="reduce-scatter")
    reduce-scatter
    before:
      rank 0: a0     a1
      rank 1: b0     b1
    after:
      rank 0: a0+b0  –
      rank 1: –      a1+b1
    """
    named = before if isinstance(before, Mapping) else {"before": before, "after": after}
    steps = {str(name): chunks_of(name, step) for name, step in named.items() if step is not None}
    counts = {name: len(rows) for name, rows in steps.items()}
    ranks = max(counts.values(), default=0)
    room("ranks", ranks, 32)
    if min(counts.values()) < ranks:
        raise ValueError(f"steps are of as many ranks each, not {counts}")
    room("chunks", max(1, *(len(row) for rows in steps.values() for row in rows)), 32)
    # name of a step → its line, where it begins there, and how wide its cells are
    places: dict[str, tuple[int, float, float]] = {}
    line = 0
    x = 0.0
    longest = 0.0
    for name, rows in steps.items():
        cell = max([0.46, *(cell_width(word or "") for row in rows for word in row)])
        wide = max(inches(name, TEXT), max(map(len, rows)) * (cell + GAP) - GAP)
        if x and x + wide > WIDTH - LABELS - 2 * MARGIN:
            line += 1
            x = 0.0
        places[name] = line, x, cell
        longest = max(longest, x + wide)
        x += wide + ARROW
    width = max(LABELS + longest, inches(title, TITLE, "bold")) + 2 * MARGIN
    block = 0.34 + ranks * (CELL + GAP)
    head = MARGIN - 0.06 + 0.34 * bool(title)
    hues = hues_of(steps, owner)
    with card(width, head + (line + 1) * (block + 0.14) + 0.02, title) as sheet:
        for name, (line, x, cell) in places.items():
            top = head + line * (block + 0.14)
            left = MARGIN + LABELS + x
            sheet.word(left, top + 0.15, name, TEXT)
            if x and arrows:
                sheet.note(left - ARROW / 2, top + (block + 0.34) / 2, "→", "center", 15)
            for r, row in enumerate(steps[name]):
                y = top + 0.34 + r * (CELL + GAP)
                if not x:
                    sheet.box(MARGIN, y, 0.05, CELL, hue(r), radius=0)
                    sheet.note(MARGIN + 0.13, y + CELL / 2, f"rank {r}")
                draw_cells(sheet, left, y, cell, row, hues[name][r])
        return sheet.picture(title, *held_text(steps))


def chunks_of(name: str, step: Any) -> Rows:
    """The chunks of each rank as words; none where it holds nothing."""
    if isinstance(step, str) or not hasattr(step, "__len__"):
        raise ValueError(f"step {name!r} must be a list with one entry per rank, not {step!r}")
    rows = []
    for held in map(_plain, step):
        chunks = held if isinstance(held, list | tuple) else [held]
        rows.append([] if chunks == [None] else [_word(chunk) for chunk in chunks])
    return rows


def _plain(value: Any) -> Any:
    if getattr(value, "is_meta", False):
        raise ValueError(
            f"a meta tensor {tuple(value.shape)} has no values to draw: give the names of its chunks"
        )
    return value.tolist() if hasattr(value, "tolist") else value


def _word(chunk: Any) -> str | None:
    chunk = _plain(chunk)
    if isinstance(chunk, list | tuple):
        return " ".join(_word(value) or "–" for value in chunk) or None
    if isinstance(chunk, float):
        return short(chunk)
    return None if chunk is None else str(chunk)


def hues_of(steps: dict[str, Rows], owner: Callable | None) -> dict[str, list[list[list[int]]]]:
    """For each step, rank and chunk: the ranks whose hues it shows."""
    first = next(iter(steps.values()))
    home: dict[str | None, int] = {}
    for r, row in enumerate(first):
        for word in row:
            home.setdefault(word, r)
    numbers = all(_is_number(word) for word in home if word)

    def ranks(word: str | None, r: int, i: int, computed: bool) -> list[int]:
        if not word:
            return []
        if owner is not None:
            owners = owner(word)
            return [owners] if isinstance(owners, int) else list(owners)
        if word in first[r] and (not numbers or first[r][i : i + 1] == [word]):
            return [r]
        if numbers and computed:
            return []  # an equal number elsewhere is a coincidence
        return [home[term.strip()] for term in word.split("+") if term.strip() in home]

    hues = {}
    for name, rows in steps.items():
        computed = any(set(row) - {None, *home} for row in rows)
        hues[name] = [
            [ranks(word, r, i, computed) for i, word in enumerate(row)]
            for r, row in enumerate(rows)
        ]
    return hues


def _is_number(word: str) -> bool:
    try:
        return bool([float(part.replace(",", "")) for part in word.split()])
    except ValueError:
        return False


def cell_width(word: str) -> float:
    terms = word.split("+")
    return len(terms) * (max(inches(term, TEXT) for term in terms) + 0.22)


def draw_cells(sheet: Card, x: float, y: float, wide: float, row: list, hues: list) -> None:
    """The chunks of a rank: a cell each, with a stripe for each term of a sum."""
    middle = y + CELL / 2
    if not any(row):
        sheet.note(x + wide / 2, middle, "–", "center", TEXT)
        return
    for word, ranks in zip(row, hues, strict=True):
        if word is None:
            sheet.box(x, y, wide, CELL, "none", EDGE, linestyle=(0, (2, 2)))
        else:
            stripe = wide / max(1, len(ranks))
            for k, face in enumerate([mix(hue(r), 0.45) for r in ranks] or [FAINT]):
                sheet.box(x + k * stripe, y, stripe, CELL, face, linewidth=0)
            terms = word.split("+")
            if len(terms) != len(ranks):
                terms = [word]
            part = wide / len(terms)
            for k, term in enumerate(terms):
                sheet.word(x + (k + 0.5) * part, middle, term.strip(), TEXT, "center")
                if k:
                    sheet.word(x + k * part, middle, "+", TEXT, "center")
        x += wide + GAP


def held_text(steps: dict[str, Rows]) -> Iterator[str]:
    words = chain.from_iterable(chain.from_iterable(steps.values()))
    width = max((len(word or "–") for word in words), default=1)
    for name, rows in steps.items():
        yield f"{name}:"
        for r, row in enumerate(rows):
            chunks = "  ".join((word or "–").ljust(width) for word in row).rstrip()
            yield f"  rank {r:>{len(str(len(rows) - 1))}}: {chunks if any(row) else 'nothing'}"


# --------------------------------------------------------------------------------------------------------- messages
LANE = 0.62  # inches between two ranks
MOST_LABELS = 48
MOST_LINES = 24  # of text

Arrow = tuple[Message, float, float]  # and where it starts and ends


def messages(
    trace: Trace,
    *,
    title: str = "Messages between ranks",
    clock: str = "time",
    label: str | None = "label",
) -> Picture:
    """Draw the messages of `trace`, an arrow each, in seconds (`clock="time"`) or in steps (`"steps"`).

    One line per rank; an arrow leaves its sender when the message starts and reaches its receiver when it has arrived.
    Steps are counted as Lamport's clocks count: a message is one step later than every message that its sender had
    before, and a rank sends at most one and receives at most one message in a step.
    label: what to write at an arrow: its "label", its "bytes", or None; left out if there are more than 48 arrows.
    Errors: ValueError for more than 16 ranks or 300 messages, no message at all, `clock="time"` if all times are equal,
    and an unknown clock or label.
    Source: Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978), figure 1.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> from minidist.study import messages
    >>> def program(comm):
    ...     all_reduce_(comm, torch.ones(6), algorithm="ring")
    >>> messages(World(2).run(program).trace, clock="steps", label="bytes")
    Messages between ranks: 2 ranks, 4 messages, 48 B
      step 1: 0 → 1, 12 B, reduce-scatter
      step 1: 1 → 0, 12 B, reduce-scatter
      step 2: 0 → 1, 12 B, all-gather
      step 2: 1 → 0, 12 B, all-gather
    """
    instance(trace, Trace, "messages draws the trace of a run, as results.trace is")
    if clock not in ("time", "steps"):
        raise ValueError(f'clock must be "time" or "steps", not {clock!r}')
    if label not in ("label", "bytes", None):
        raise ValueError(f'label must be "label", "bytes" or None, not {label!r}')
    room("ranks", trace.n, 16)
    room("messages", len(trace), 300)
    stepped = clock == "steps"
    arrows = in_steps(trace) if stepped else [(m, m.start, m.arrived) for m in trace]
    last = max(end for *_, end in arrows)
    if last == min(start for _, start, _ in arrows):
        raise ValueError(
            f'every message starts and arrives at {measure(last, "s")}: draw them with clock="steps"'
        )
    steps = math.ceil(last)
    end = steps if stepped else last
    left = MARGIN + 0.62
    wide = WIDTH - MARGIN - left - 0.1
    tall = (trace.n - 1) * LANE + 0.4
    inch = wide / end
    lanes = [0.8 + r * LANE for r in range(trace.n)]
    with card(WIDTH, 1.0 + tall + 0.25 * (not stepped), title) as sheet:
        for r, y in enumerate(lanes):
            sheet.note(left - 0.1, y, f"rank {r}", "right")
            sheet.line([left, left + wide], [y, y], EDGE, 1.2)
        ax = sheet.axes(left, 0.6, wide, tall)
        ax.grid(axis="x")
        ax.spines[:].set_visible(False)
        if stepped:
            ax.set(xlim=(0, end), yticks=[])
            ax.set_xticks(range(steps + 1), [""] * (steps + 1))
            for k in range(0, steps, math.ceil(steps / 12)):
                sheet.note(left + (k + 0.5) * inch, 0.74 + tall, f"step {k + 1}", "center")
        else:
            scale, unit = unit_of(end, TIME_UNITS)
            ax.set(xlim=(0, end / scale), yticks=[], xlabel=f"time, {unit}")
        written: list[tuple[float, float, float]] = []
        for m, start, stop in sorted(arrows, key=lambda arrow: -abs(arrow[0].dst - arrow[0].src)):
            tail = (left + start * inch, lanes[m.src])
            head = (left + stop * inch, lanes[m.dst])
            sheet.arrow(tail, head, hue(m.src))
            word = {"label": m.label, "bytes": measure(m.nbytes, "B"), None: None}[label]
            if word and len(arrows) <= MOST_LABELS:
                write_label(sheet, word, tail, head, written)
        return sheet.picture(*_listed(title, trace, arrows, stepped))


def in_steps(trace: Trace) -> list[Arrow]:
    """Each message with where its arrow starts and ends: step k lies between k − 1 and k."""
    sent = [0] * trace.n  # the last step in which a rank sent, and in which it received
    received = [0] * trace.n
    arrived: list[tuple[float, int, int]] = []  # when, at whom, step
    arrows = []
    for m in sorted(trace, key=lambda m: m.start):
        heard = max((step for t, r, step in arrived if r == m.src and t <= m.start), default=0)
        step = 1 + max(heard, sent[m.src], received[m.dst])
        sent[m.src] = received[m.dst] = step
        arrived.append((m.arrived, m.dst, step))
        arrows.append((m, step - 0.88, step - 0.12))
    return sorted(arrows, key=lambda arrow: (arrow[1], arrow[0].src))


def write_label(sheet: Card, word: str, tail: tuple, head: tuple, written: list) -> None:
    """Write `word` on its arrow, at the first place near its tail where nothing is `written`: (x, y, half its width)."""
    half = inches(word) / 2 + 0.05
    lanes = round(abs(head[1] - tail[1]) / LANE) or 1
    # parts of a lane's height, away from lanes that the arrow crosses
    parts = (0.3, 0.4, 0.2, 0.5, 1.5, 1.4, 1.6) if lanes > 1 else (0.5, 0.64, 0.36, 0.74, 0.26)
    places = []
    for part in parts:
        x, y = (a + part / lanes * (b - a) for a, b in zip(tail, head, strict=True))
        beside = [abs(other - x) < half + wide for other, at, wide in written if abs(at - y) < 0.18]
        places.append((any(beside), x, y))
    _, x, y = min(places, key=lambda place: place[0])
    written.append((x, y, half))
    sheet.word(x, y, word, ha="center", halo=CARD, zorder=5)


def _listed(title: str, trace: Trace, arrows: list[Arrow], stepped: bool) -> Iterator[str]:
    count = len(arrows)
    total = sum(m.nbytes for m in trace)
    yield f"{title}: {trace.n} ranks, {count} message{'s' * (count != 1)}, {total:,} B"
    for m, start, _ in arrows[:MOST_LINES]:
        when = f"{measure(m.start, 's')} to {measure(m.arrived, 's')}"
        if stepped:
            when = f"step {math.ceil(start)}"
        label = f", {m.label}" if m.label else ""
        yield f"  {when}: {m.src} → {m.dst}, {m.nbytes:,} B{label}"
    if count > MOST_LINES:
        yield f"  … and {count - MOST_LINES} more"


# ---------------------------------------------------------------------------------------------------------- traffic
def traffic(trace: Trace, *, title: str = "Bytes from each rank to each") -> Picture:
    """Draw the bytes that each rank of `trace` sent to each other rank, as a matrix of sender × receiver.

    Errors: ValueError for more than 32 ranks.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> from minidist.study import traffic
    >>> def program(comm):
    ...     all_reduce_(comm, torch.ones(6), algorithm="ring")
    >>> traffic(World(3).run(program).trace)
    Bytes from each rank to each: 3 ranks, 96 B
      rank 0: 32 B to 1
      rank 1: 32 B to 2
      rank 2: 32 B to 0
    """
    n = trace.n
    room("ranks", n, 32)
    sent = [[0] * n for _ in range(n)]
    for m in trace:
        sent[m.src][m.dst] += m.nbytes
    most = max(map(max, sent))
    words = {nbytes: measure(nbytes, "B") if nbytes else "" for row in sent for nbytes in row}
    cell = max(0.44, 0.16 + max(inches(word or "0 B") for word in words.values()))
    left = MARGIN + 0.8
    wide = max(left + n * cell + MARGIN, inches(title, TITLE, "bold") + 2 * MARGIN, 2.6)
    rows = {}
    text = [f"{title}: {n} ranks, {sum(map(sum, sent)):,} B"]
    for r, row in enumerate(sent):
        cells = {}
        for to, nbytes in enumerate(row):
            face = mix(BLUE, 0.08 + 0.82 * nbytes / most) if nbytes else mix(GREY, 0.12)
            cells[str(to)] = words[nbytes], face
        rows[f"rank {r}"] = cells
        receivers = ", ".join(f"{nbytes:,} B to {to}" for to, nbytes in enumerate(row) if nbytes)
        text.append(f"  rank {r}: {receivers or 'nothing'}")
    with card(wide, 1.05 + n * 0.44 + MARGIN, title) as sheet:
        sheet.note(MARGIN, 0.58, "from rank ↓, to rank →")
        matrix(sheet, left, 1.05, cell, 0.44, rows)
        return sheet.picture(*text)


def matrix(sheet: Card, left: float, top: float, wide: float, tall: float, rows: Mapping) -> None:
    """Cells of `wide` × `tall` inches, {row: {column: (word, color)}}, with the names of rows and columns."""
    for i, (name, cells) in enumerate(rows.items()):
        y = top + i * tall
        sheet.note(left - 0.1, y + tall / 2, name, "right")
        for k, (column, (word, face)) in enumerate(cells.items()):
            x = left + k * wide
            if i == 0:
                sheet.note(x + wide / 2, top - 0.11, column, "center")
            sheet.box(x, y, wide - 0.02, tall - 0.02, face, radius=0, word=word)


# ------------------------------------------------------------------------------------------------------------ trees
DEEP = 0.56  # inches between two depths
STRIP = 0.5  # of the line of ranks
ROOT = -1  # the parent of the rank that has none

Parents = Sequence[int]


def tree(trees: Mapping[str, Parents], *, title: str = "Trees of ranks") -> Picture:
    """Draw one tree, or two that share their ranks: `{"name": parents}`, −1 being the parent of the root.

    A rank keeps its column in every tree. Inner nodes are filled, leaves are not; the line of ranks between the two
    shows in which tree each is an inner node.
    Errors: ValueError unless there are one or two trees, and for more than 40 ranks, trees of different sizes, no root
    or several roots, and a cycle.
    Source: the double binary tree of Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan" (2009), section 3, in which no rank is an inner node of both.

    >>> from minidist.collectives.double_tree import trees
    >>> from minidist.study import tree
    >>> first, second = trees(6)
    >>> tree({"first": first, "second": second})
    Trees of ranks
      first: 6 ranks, root 3, depth 2, at most 2 children, inner nodes 1, 3, 5
      second: 6 ranks, root 2, depth 2, at most 2 children, inner nodes 0, 2, 4
      inner in both: no rank
    """
    room("trees", len(trees), 2)
    depths = {name: depths_of(name, parents) for name, parents in trees.items()}
    n = max(map(len, trees.values()))
    room("ranks", n, 40)
    if min(map(len, trees.values())) != n:
        raise ValueError("two trees of the same ranks are of the same size")
    inner = {name: set(parents) - {ROOT} for name, parents in trees.items()}
    heights = [max(depth) * DEEP + 0.2 for depth in depths.values()]
    strip = 0.6 + heights[0] + STRIP / 2
    column = (WIDTH - 2 * MARGIN) / n
    xs = [MARGIN + (r + 0.5) * column for r in range(n)]
    text = []
    with card(WIDTH, 0.6 + sum(heights) + STRIP + MARGIN, title) as sheet:
        for k, (name, parents) in enumerate(trees.items()):
            side = 1 if k else -1  # the second tree hangs from the line of ranks
            deepest = max(depths[name])
            ys = [strip + side * (0.35 + (deepest - depth) * DEEP) for depth in depths[name]]
            for r, parent in enumerate(parents):
                if parent != ROOT:
                    sheet.line([xs[r], xs[parent]], [ys[r], ys[parent]], MUTED, 1.1, zorder=1)
                face = hue(k) if r in inner[name] else CARD
                size = min(17, 65 * column)
                dot: dict[str, Any] = dict(
                    marker="o", markersize=size, markerfacecolor=face, zorder=2
                )
                sheet.line([xs[r]], [ys[r]], hue(k), **dot)
                sheet.word(xs[r], ys[r], str(r), ha="center", color=ink_on(face))
            root = parents.index(ROOT)
            far = (MARGIN, "left") if root > n / 2 else (WIDTH - MARGIN, "right")
            sheet.word(far[0], ys[root], f"{name}, root {root}", ha=far[1], weight="bold")
            children = Counter(parent for parent in parents if parent != ROOT)
            text.append(
                f"  {name}: {n} ranks, root {root}, depth {deepest}, at most {max(children.values(), default=0)} "
                f"children, inner nodes {', '.join(map(str, sorted(inner[name]))) or 'none'}"
            )
        for r in range(n):
            within = [k for k, name in enumerate(trees) if r in inner[name]]
            color = hue(within[0]) if len(within) == 1 else VERMILION if within else GREY
            face = mix(color, 0.35)
            sheet.box(xs[r] - 0.42 * column, strip - 0.1, 0.84 * column, 0.2, face, word=str(r))
        if len(trees) == 2:
            both = sorted(set.intersection(*inner.values()))
            text.append(f"  inner in both: {', '.join(map(str, both)) or 'no rank'}")
        return sheet.picture(title, *text)


def depths_of(name: str, parents: Parents) -> list[int]:
    """How far below the root each rank is. ValueError where `parents` is no tree."""
    n = len(parents)
    depths = []
    for above in parents:
        depth = 0
        while 0 <= above < n and depth < n:
            above = parents[above]
            depth += 1
        depths.append(depth if above == ROOT else n)
    if depths.count(0) != 1 or max(depths) == n:
        raise ValueError(f"{name!r} is no tree: from each rank the way up ends at one root, {ROOT}")
    return depths


# ------------------------------------------------------------------------------------------------ boxes of a matrix
# label, first (row, column), size (rows, columns), hue
Part = tuple[str, Sequence[int], Sequence[int], int]


def boxes(
    shape: Sequence[int], panels: Mapping[str, Sequence[Part]], *, title: str = ""
) -> Picture:
    """Draw panels side by side, each the matrix of `shape` with its parts (label, first, size, hue) as rectangles.

    hue: the number of the rank whose colour to use, which shows across panels what belongs together.
    Errors: ValueError for 0 or more than 4 panels, or a part that is not within the matrix.

    >>> from minidist.study import boxes
    >>> columns = [("w0", (0, 0), (4, 3), 0), ("w1", (0, 3), (4, 3), 1)]
    >>> rows = [("w0", (0, 0), (2, 6), 0), ("w1", (2, 0), (2, 6), 1)]
    >>> boxes((4, 6), {"by columns": columns, "by rows": rows}, title="A weight on two ranks")
    A weight on two ranks
      by columns:
        w0: [0:4, 0:3]
        w1: [0:4, 3:6]
      by rows:
        w0: [0:2, 0:6]
        w1: [2:4, 0:6]
    """
    room("panels", len(panels), 4)
    height, width = shape
    wide = (WIDTH - 2 * MARGIN + 0.3) / len(panels) - 0.3
    tall = min(1.9, wide * height / width)
    top = 0.86 if title else 0.49
    down, across = tall / height, wide / width
    text = []
    with card(WIDTH, top + tall + 0.2, title) as sheet:
        for i, (name, parts) in enumerate(panels.items()):
            left = MARGIN + i * (wide + 0.3)
            sheet.note(left, top - 0.18, name, size=TEXT)
            sheet.box(left, top, wide, tall, "none", EDGE, radius=0)
            text.append(f"  {name}:")
            for label, (row, column), (rows, columns), rank in parts:
                span = f"[{row}:{row + rows}, {column}:{column + columns}]"
                if min(row, column) < 0 or row + rows > height or column + columns > width:
                    raise ValueError(f"{label!r} of {name!r}, {span}, is not in {tuple(shape)}")
                text.append(f"    {label}: {span}")
                corner = left + column * across, top + row * down
                face = mix(hue(rank), 0.3)
                style: dict[str, Any] = dict(radius=0, linewidth=2, word=label)
                sheet.box(*corner, columns * across, rows * down, face, CARD, **style)
        return sheet.picture(title, *text)


# ---------------------------------------------------------------------------------------------------------- cluster
HIGH = 1.05  # inches between two levels
SWITCH = 0.26  # of a box
# inches between two boxes below, and the least of each
BELOW = {"spine": (0.22, 2.0), "rack": (0.1, 0.72), "node": (0.02, 0.06)}


def cluster(cluster: Cluster, *, title: str | None = None) -> Picture:
    """Draw the racks, nodes and devices of `cluster`, and the α, GB/s and sharing of the wires at each level.

    A level with only one box is left out. A line is a wire, so wires that several ranks share appear as fewer lines. Of
    many boxes that are alike, the first and the last are drawn.
    title: unless given, the cluster's name.

    >>> from minidist.comm import Cluster
    >>> from minidist.study import cluster
    >>> cluster(Cluster.dgx_h100(nodes=2))
    DGX H100
    DGX H100, H100 SXM: 16 ranks = 1 a device × 8 a node × 2 nodes, 4 a rack
      level              α µs      GB/s  wires
      NVLink/NVSwitch     3.4     370.8  one a rank, both ways at once
      PCIe                5.7      63.0  one a rank, both ways at once
      NIC                14.0      48.0  one a rank, both ways at once
      top-of-rack         0.0      48.0  one a rank, both ways at once
      spine               1.0      48.0  one a rank, both ways at once
    """
    title = cluster.name if title is None else title
    tiers = tiers_of(cluster)
    left = MARGIN + 1.75
    with card(WIDTH, 1.4 + HIGH * (len(tiers) - 1), title) as sheet:
        sheet.note(MARGIN, 0.54, cluster.summary().partition(": ")[2])
        for k, tier in enumerate(tiers):
            for i, name in enumerate(tier.links):
                link = cluster.links[name]
                y = 0.86 + HIGH * k + 0.5 * i
                rate = f"{measure(1 / link.beta, 'B')}/s" if link.beta else "no limit"
                sharing = [f"{link.share} ranks share one"] * (link.share > 1)
                sharing += ["one way at a time"] * (not link.duplex)
                sheet.word(MARGIN, y, LEVELS[name], TEXT, weight="bold")
                sheet.note(MARGIN, y + 0.16, f"{rate}, α {measure(link.alpha, 's')}")
                sheet.note(MARGIN, y + 0.31, ", ".join(sharing))
        draw_tier(sheet, cluster, tiers, range(cluster.size), 0.8, left, WIDTH - MARGIN - left)
        return sheet.picture(title, str(cluster))


class Tier(NamedTuple):
    """A level of a cluster: how many ranks each of its boxes has, and the links between what stands below it."""

    name: str
    ranks: int
    links: list[str]


def tiers_of(cluster: Cluster) -> list[Tier]:
    """The levels that are drawn, from the top."""
    node = cluster.ranks * cluster.devices
    rack = node * min(cluster.rack or cluster.nodes, cluster.nodes)
    sizes = {"device": cluster.ranks, "node": node, "rack": rack, "spine": cluster.size}
    below = 1
    passed: list[str] = []
    tiers = []
    for name, ranks in sizes.items():
        if ranks > below or name == "device":
            links = cluster.levels(0, ranks - 1) if ranks > 1 else []
            tiers.append(Tier(name, ranks, [link for link in links[::-1] if link not in passed]))
            passed += links
            below = ranks
    return tiers[::-1]


def draw_tier(
    sheet: Card,
    cluster: Cluster,
    tiers: list[Tier],
    ranks: range,
    y: float,
    left: float,
    wide: float,
) -> None:
    """The box of `ranks`, and what stands below it with the wires to it; a slow device has another colour."""
    tier, *below = tiers
    face = mix(SKY, 0.3) if below else mix(BLUE, 0.25)
    if not below and any(cluster.slow_ranks.get(rank, 1.0) > 1 for rank in ranks):
        face = mix(VERMILION, 0.8)
    span = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"
    words = [f"{tier.name} {ranks[0] // tier.ranks}: ranks {span}", span, ""]
    fitting = next(word for word in words if inches(word) + 0.04 <= wide)
    sheet.box(left, y, wide, SWITCH, face, GREY, word=fitting)
    if not below:
        return
    each = below[0].ranks
    share = cluster.links[(tier.links or ["nic"])[-1]].share
    apart, least = BELOW[tier.name]
    shown = first_and_last(math.ceil(len(ranks) / each), max(2, int(wide / least)))
    for i, x, width in spread(sheet, shown, left, wide, y + HIGH + SWITCH / 2, apart):
        part = ranks[i * each : (i + 1) * each]
        count = max(1, len(part) // share)
        draw_wires(sheet, (x + width / 2, y + SWITCH), HIGH - SWITCH, count, width * 0.7)
        draw_tier(sheet, cluster, below, part, y + HIGH, x, width)


def first_and_last(count: int, most: int) -> list[int | None]:
    """The numbers below `count` that are drawn: all up to `most`, else the first ones, None for a gap, the last."""
    return list(range(count)) if count <= most else [*range(max(1, most - 1)), None, count - 1]


def spread(
    sheet: Card, items: Sequence[int | None], left: float, wide: float, y: float, apart: float
) -> Iterator[tuple[int, float, float]]:
    """(item, left, width) of `items` side by side, `apart` inches between them; a gap is narrower, with dots at y."""
    parts = [0.3 if item is None else 1.0 for item in items]
    unit = (wide - apart * (len(items) - 1)) / sum(parts)
    for item, part in zip(items, parts, strict=True):
        if item is None:
            sheet.note(left + part * unit / 2, y, "…", "center", TEXT)
        else:
            yield item, left, part * unit
        left += part * unit + apart


def draw_wires(sheet: Card, top: tuple[float, float], tall: float, count: int, wide: float) -> None:
    """`count` lines side by side down from `top`; above 8 of them the outer two, and how many."""
    x, y = top
    for k in range(count) if count <= 8 else (0, count - 1):
        at = x + wide * ((k + 0.5) / count - 0.5)
        sheet.line([at, at], [y, y + tall])
    if count > 8:
        sheet.word(x, y + tall / 2, f"{count} wires", ha="center")


# ------------------------------------------------------------------------------------------------------------- mesh
AXES = {"pp": "pipeline", "dp": "data", "tp": "tensor"}
SIDE_BY_SIDE = 8


def axis_bytes(trace: Trace, grid: Grid, cluster: Cluster) -> dict[str, dict[str, int]]:
    """{axis: {level: bytes}} of a run: how much each axis sent over each level of links, near levels first.

    A message belongs to the axis along which its two ranks differ. Messages that cross several axes (in a sum over the
    whole mesh) are listed separately, as "pp × dp". A message counts on every level of links that it passes: between
    nodes, both on the network card and on the switch.
    Errors: ValueError for a trace with a different number of ranks.

    >>> import torch
    >>> from minidist.collectives import all_reduce_
    >>> from minidist.comm import Cluster, Mesh, World
    >>> from minidist.comm.mesh import Grid
    >>> from minidist.study import axis_bytes
    >>> def program(comm):
    ...     mesh = Mesh(comm, dp=2, tp=8)
    ...     all_reduce_(mesh.tp, torch.ones(1000))
    ...     all_reduce_(mesh.dp, torch.ones(10))
    >>> nodes = Cluster.dgx_h100(nodes=2)
    >>> axis_bytes(World(16, cluster=nodes).run(program).trace, Grid(dp=2, tp=8), nodes)
    {'dp': {'nic': 640, 'tor': 640}, 'tp': {'nvlink': 112000}}
    """
    if trace.n != grid.size:
        raise ValueError(f"the trace is of {trace.n} ranks, the mesh of {grid.size}")
    grid.fits(cluster.size)
    between: Counter[tuple[int, int]] = Counter()
    for message in trace:
        between[message.src, message.dst] += message.nbytes
    sent: dict[str, Counter[str]] = {
        axis: Counter() for axis, size in grid.sizes.items() if size > 1
    }
    for (src, dst), nbytes in sorted(between.items()):
        levels = sent.setdefault(grid.between(src, dst), Counter())
        for level in cluster.levels(src, dst):
            levels[level] += nbytes
    near_first = lambda row: {level: row[level] for level in LEVELS if level in row}
    return {axis: near_first(row) for axis, row in sent.items()}


def mesh(
    grid: Grid, cluster: Cluster, trace: Trace | None = None, *, title: str | None = None
) -> Picture:
    """Draw where the ranks of `grid` are on the nodes of `cluster`; with a trace, also the bytes of `axis_bytes`.

    Each stage of the pipeline has its own colour. Of many nodes, only the first and the last are drawn.

    >>> from minidist.comm import Cluster
    >>> from minidist.comm.mesh import Grid
    >>> from minidist.study import mesh
    >>> mesh(Grid(dp=2, pp=2, tp=4), Cluster.dgx_h100(nodes=2))
    pp 2 × dp 2 × tp 4 = 16 ranks on DGX H100
    pp 2 × dp 2 × tp 4 = 16 ranks, the last axis innermost
      node 0   0 p0 d0 t0   1 p0 d0 t1   2 p0 d0 t2   3 p0 d0 t3   4 p0 d1 t0   5 p0 d1 t1   6 p0 d1 t2   7 p0 d1 t3
      node 1   8 p1 d0 t0   9 p1 d0 t1  10 p1 d0 t2  11 p1 d0 t3  12 p1 d1 t0  13 p1 d1 t1  14 p1 d1 t2  15 p1 d1 t3
      pp over nic, tor
      dp over nvlink
      tp over nvlink
    """
    grid.fits(cluster.size)
    title = f"{grid} on {cluster.name}" if title is None else title
    per = cluster.ranks * cluster.devices
    wide = (WIDTH - 1.0 - MARGIN) / min(SIDE_BY_SIDE, per)
    nodes = first_and_last(math.ceil(grid.size / per), 4)
    ranks = {n: [] if n is None else range(grid.size)[n * per :][:per] for n in nodes}
    rows = {n: max(1, math.ceil(len(ranks[n]) / SIDE_BY_SIDE)) for n in nodes}
    sent = {} if trace is None else axis_bytes(trace, grid, cluster)
    end = 0.55 + sum(0.46 * count + 0.12 for count in rows.values())
    with card(WIDTH, end + (0.3 + 0.26 * len(sent) if sent else 0) + MARGIN, title) as sheet:
        y = 0.55
        for n in nodes:
            sheet.word(MARGIN, y + 0.23 * rows[n], "…" if n is None else f"node {n}", TEXT)
            for k, rank in enumerate(ranks[n]):
                x = 1.0 + k % SIDE_BY_SIDE * wide
                top = y + k // SIDE_BY_SIDE * 0.46
                color = hue(grid.place(rank)["pp"])
                sheet.box(x + 0.03, top + 0.02, wide - 0.06, 0.42, mix(color, 0.22), color)
                sheet.word(x + wide / 2, top + 0.14, f"rank {rank}", ha="center", weight="bold")
                sheet.word(x + wide / 2, top + 0.31, grid.name(rank), ha="center")
            y += 0.46 * rows[n] + 0.12
        levels = [level for level in LEVELS if any(level in row for row in sent.values())]
        most = max((nbytes for row in sent.values() for nbytes in row.values()), default=1)
        cells = {}
        text = []
        for axis, row in sent.items():
            color = MEANING[AXES.get(axis, "other")]
            cells[axis] = {f"over {LEVELS[level]}": ("–", CARD) for level in levels}
            for level, nbytes in row.items():
                face = mix(color, 0.15 + 0.5 * nbytes / most)
                cells[axis][f"over {LEVELS[level]}"] = measure(nbytes, "B"), face
            over = ", ".join(f"{nbytes:,} B over {LEVELS[level]}" for level, nbytes in row.items())
            text.append(f"  {axis}: {over or 'nothing'}")
        matrix(sheet, 1.0, end + 0.27, 1.7, 0.26, cells)
        return sheet.picture(title, grid.draw(cluster), *text)


# -------------------------------------------------------------------------------------------------------- exponents
FATES = {
    "become 0": VERMILION,
    "are subnormal": ORANGE,
    "are normal": BLUE,
    "become inf": PURPLE,
}


def exponents(counts: Mapping[str, Exponents], *, title: str = "Numbers by exponent") -> Picture:
    """Draw what `minidist.train.amp.exponents` has counted: several counts, by name, on one scale.

           become 0  │ subnormal │        normal        │ become inf
             ▂▅      │ ▇█▆▃      │▂                     │
        2⁻³⁰      2⁻²⁵        2⁻¹⁴                    2¹⁶

    A bar is the share of all numbers from 2^e to below 2^(e+1), coloured by what the dtype makes of them. Numbers
    without an exponent (those that are already 0, inf or nan) are given beside the row's name.
    Errors: ValueError for more than 6 counts, for counts of more than one dtype, or if no number has an exponent.

    >>> import torch
    >>> from minidist.study import exponents
    >>> from minidist.train.amp import exponents as count
    >>> gradients = torch.tensor([2.0**-30, 2.0**-20, 2.0**-3, 0.0])
    >>> exponents({"as they are": count(gradients), "times 1024": count(gradients, scale=1024)})
    Numbers by exponent
      as they are: 4 numbers, 2⁻³⁰ to 2⁻²; in float16: 25 % become 0, 25 % are subnormal, 25 % are normal, 25 % are 0
      times 1024: 4 numbers, 2⁻²⁰ to 2⁸; in float16: 25 % are subnormal, 50 % are normal, 25 % are 0
    """
    room("counts", len(counts), 6)
    dtypes = {row.dtype for row in counts.values()}
    if len(dtypes) > 1:
        raise ValueError(f"the counts are of one dtype, not of {len(dtypes)}")
    powers = [e for row in counts.values() for e in row.counts]
    if not powers:
        raise ValueError("none of the numbers has an exponent: they are 0, inf or nan")
    edges = limits(*dtypes)
    dtype = str(*dtypes).removeprefix("torch.")
    low, high = min(powers) - 1, max(powers) + 2
    top = max(count / row.total for row in counts.values() for count in row.counts.values())
    # none at the corner, where the 0 of the shares stands
    ticks = range(low + 1, high + 1, math.ceil((high - low) / 16))
    text = []
    with card(WIDTH, 1.15 + 1.6 * len(counts), title) as sheet:
        sheet.key(MARGIN, 0.58, FATES)
        for i, (name, row) in enumerate(counts.items()):
            y = 1.1 + 1.6 * i
            ax = sheet.axes(MARGIN + 0.5, y, WIDTH - 2 * MARGIN - 0.5, 1.15)
            ax.set(xlim=(low, high), ylim=(0, 1.1 * top), xticks=ticks)
            ax.set_xticklabels([f"2{raised(e)}" if e else "1" for e in ticks])
            ax.set_yticks([0, top], ["0", f"{100 * top:.0f} %"])
            ax.tick_params(labelbottom=i + 1 == len(counts))
            shares = [count / row.total for count in row.counts.values()]
            faces = [list(FATES.values())[sum(e >= edge for edge in edges)] for e in row.counts]
            ax.bar(list(row.counts), shares, width=0.9, align="edge", color=faces, zorder=2)
            for edge in edges:
                if low < edge < high:
                    ax.axvline(edge, color=INK, linewidth=0.8, linestyle=DASHED)
            fates = (row.underflow, row.subnormal, row.normal, row.overflow, row.zeros, row.bad)
            shares_text = ", ".join(
                f"{short(100 * count / row.total)} % {fate}"
                for fate, count in zip([*FATES, "are 0", "are inf or nan"], fates, strict=True)
                if count
            )
            sheet.word(MARGIN, y - 0.16, name, weight="bold")
            sheet.note(WIDTH - MARGIN, y - 0.16, shares_text, "right")
            span = "no exponent"
            if row.counts:
                span = f"2{raised(min(row.counts))} to 2{raised(max(row.counts) + 1)}"
            text.append(f"  {name}: {row.total:,} numbers, {span}; in {dtype}: {shares_text}")
        ax.set_xlabel("size of a number; a bar is the share of all numbers in one power of two")
        return sheet.picture(title, *text)


def limits(dtype: torch.dtype) -> list[int]:
    """The powers of two at which numbers stop to become 0, are normal, and become inf: fp16 has [-25, -14, 16]."""
    info = torch.finfo(dtype)
    normal = round(math.log2(info.tiny))
    return [normal + round(math.log2(info.eps)) - 1, normal, math.ceil(math.log2(info.max))]
