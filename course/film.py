"""The film at the head of the README: a ring all-reduce on four ranks, as it ran.

    python course/film.py             # writes docs/ring.svg; `make build` does
    python course/film.py --check     # fails if docs/ring.svg is not what the run gives

`record` runs the library's all-reduce in a `World` and keeps what each rank held before each of its messages; `svg` draws
that run: what is in a chunk, when a message starts and arrives, how many there are and how many bytes. Nothing about a
ring is known here but where its ranks are drawn.

    ┌ title, and a sentence for each step ──────────────────┐
    │        rank 0            │ step  messages  each sent  │   A chunk has one stripe for each rank whose numbers are
    │ rank 3        rank 1     │  1        4        1 MB    │   in it, at the same place everywhere: a sum is what one
    │        rank 2            │  …   2(n−1)/n·N = 6 MB     │   sees when two chunks lie on each other.
    │ rank 0 ▇▇▇─▇▇▇─▇▇▇─      virtual clock →              │
    └───────────────────────────────────────────────────────┘

Attributes draw the end: all that a viewer shows who plays no animation, or whose user wants none. CSS keyframes, which
need no script and so play in an `<img>`, hide the end and show the way to it.

Invariant: the bytes that the trace counts for each rank are 2(n−1)/n·N; a run of which that is not true is not drawn.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python course/film.py` looks beside this file only

import torch  # noqa: E402

from minidist import World  # noqa: E402
from minidist.collectives import all_reduce_  # noqa: E402
from minidist.study.picture import (  # noqa: E402
    BLUE,
    CARD,
    EDGE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    hue,
    measure,
    mix,
)

PICTURE = "docs/ring.svg"
RANKS = 4
NUMBERS = 1_000_000  # of float32: 4 MB

# ------------------------------------------------------------
# The run.


class Watched:
    """A Comm that writes down what `flat` holds, chunk by chunk, before each message of its rank."""

    def __init__(self, comm, flat: torch.Tensor):
        self._comm = comm
        self._flat = flat
        self.held: list[list[frozenset[int]]] = []  # before each message: who is in each chunk
        self.sent: list[int] = []  # the chunk that each message carries

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def sendrecv(self, x, *args, **kwargs):
        self.look()
        starts = [chunk.data_ptr() for chunk in self._chunks()]
        self.sent.append(starts.index(x.data_ptr()))
        return self._comm.sendrecv(x, *args, **kwargs)

    def look(self) -> None:
        self.held.append([contributors(chunk) for chunk in self._chunks()])

    def _chunks(self) -> tuple[torch.Tensor, ...]:
        return self._flat.tensor_split(self._comm.size)


def contributors(chunk: torch.Tensor) -> frozenset[int]:
    """The ranks whose numbers are in `chunk`: rank r's are all 10^r, so a sum has a 1 at the r-th place for each."""
    value = int(chunk[0])
    if not bool((chunk == value).all()):
        raise ValueError(
            f"a chunk has {chunk.unique().numel()} different numbers, and should have one"
        )
    digits = str(value)[::-1]
    if set(digits) - {"0", "1"}:
        raise ValueError(f"{value} is no sum of different powers of ten: a rank was added twice")
    return frozenset(rank for rank, digit in enumerate(digits) if digit == "1")


def program(comm, numbers: int):
    flat = torch.full((numbers,), 10.0**comm.rank)
    watched = Watched(comm, flat)
    all_reduce_(watched, flat)
    watched.look()
    return watched.held, watched.sent


class Flight(NamedTuple):
    """A message of the run: which chunk it carries, and whose numbers are in that. Times in virtual seconds."""

    step: int
    src: int
    dst: int
    nbytes: int
    start: float
    sent: float
    arrived: float
    label: str
    chunk: int
    inside: frozenset[int]


class Recorded(NamedTuple):
    """A run: N in bytes, its seconds, its messages, and who is in each chunk of each rank before each step and at the end."""

    nbytes: int
    time: float
    flights: list[Flight]
    held: list[list[list[frozenset[int]]]]  # of rank, step, chunk

    @property
    def steps(self) -> int:
        return len(self.held[0]) - 1

    def until(self, step: int) -> list[Flight]:
        """The messages of steps 1 to `step`."""
        return [flight for flight in self.flights if flight.step < step]

    def end(self, step: int) -> float:
        """The second at which step number `step` (from 1) is over everywhere; 0 for step 0."""
        return max((flight.arrived for flight in self.until(step)), default=0.0)


def record(numbers: int = NUMBERS) -> Recorded:
    """Run the all-reduce of `numbers` float32 on the four ranks of a World."""
    run = World(RANKS).run(program, numbers)
    held = [of_rank for of_rank, _ in run]
    flights = []
    seen = [0] * RANKS
    for message in run.trace:
        step = seen[message.src]
        seen[message.src] += 1
        chunk = run[message.src][1][step]
        inside = held[message.src][step][chunk]
        flights.append(Flight(step, *message[:7], chunk, inside))
    return Recorded(4 * numbers, run.time, flights, held)


def check(run: Recorded) -> None:
    """ValueError unless each rank sent 2(n−1)/n·N bytes in 2(n−1) messages, and all have every sum."""
    steps = 2 * (RANKS - 1)
    formula = steps * run.nbytes // RANKS
    for rank in range(RANKS):
        own = [flight for flight in run.flights if flight.src == rank]
        counted = sum(flight.nbytes for flight in own)
        if len(own) != steps or counted != formula:
            raise ValueError(
                f"rank {rank} sent {len(own)} messages and {counted:,} bytes; a ring sends {steps} and {formula:,}"
            )
        if set(run.held[rank][-1]) != {frozenset(range(RANKS))}:
            raise ValueError(f"rank {rank} does not have every sum at the end")


# ------------------------------------------------------------
# Times of the film, in seconds: virtual time is stretched, evenly.

LEAD = 1.0  # nothing has been sent
PLAY = 9.0
REST = 3.0  # the end stands still
LOOP = LEAD + PLAY + REST
FADE = 0.15
BACK = 0.4  # from the end to the beginning
POINTS = 12  # of a message's way, between which it goes straight


class Stage:
    """The animations: a class of CSS for each, which elements that do the same share."""

    def __init__(self, run: Recorded):
        self._run = run
        self._names: dict[str, str] = {}

    def at(self, virtual: float) -> float:
        """The second of the film that shows this second of the run."""
        return LEAD + PLAY * virtual / self._run.time

    def name(self, frames: list[tuple[float, str]]) -> str:
        """The class of what looks like this at these seconds of the film, and in between half-way."""
        text = "".join(f"{_number(100 * time / LOOP)}%{{{style}}}" for time, style in frames)
        return self._names.setdefault(text, f"f{len(self._names)}")

    def opacity(self, *levels: tuple[float, float]) -> str:
        """The class of what has a level of opacity from a second on, until the next; the first is from 0 seconds on."""
        frames = [(0.0, f"opacity:{_number(levels[0][1])}")]
        for (_, before), (time, level) in pairwise(levels):
            begin = max(time, frames[-1][0])  # what comes and goes at once comes first
            frames.append((begin, f"opacity:{_number(before)}"))
            frames.append((begin + FADE, f"opacity:{_number(level)}"))
        first = levels[0][1]
        last = levels[-1][1]
        half = LOOP - BACK / 2  # until here the end goes; from here the beginning comes
        frames.append((LOOP - BACK, f"opacity:{_number(last)}"))
        frames.append((half, f"opacity:{_number(min(first, last))}"))
        frames.append((LOOP, f"opacity:{_number(first)}"))
        return self.name(frames)

    def style(self) -> str:
        lines = [f"@keyframes {name}{{{text}}}" for text, name in self._names.items()]
        names = [f".{name}{{animation-name:{name}}}" for name in self._names.values()]
        return "\n".join(
            [
                "<style>",
                "@media (prefers-reduced-motion: no-preference) {",
                f'[class^="f"]{{animation-duration:{_number(LOOP)}s;animation-timing-function:linear;'
                "animation-iteration-count:infinite}",
                *names,
                "}",
                *lines,
                "</style>",
            ]
        )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ------------------------------------------------------------
# Places, in pixels.

WIDTH = 900
HEIGHT = 616
LETTERS = 20  # shrunk to 400 pixels, 9 of them are left
CELL = 40
GAP = 6
CARD_WIDTH = 4 * CELL + 3 * GAP + 24
CARD_HEIGHT = 92
CENTERS = ((294, 142), (471, 262), (294, 382), (117, 262))  # of the ranks' cards, clockwise
CHUNKS = "abcd"
TABLE_LEFT = 606
TABLE_MIDDLE = 758
TABLE_RIGHT = 874
LINE = 31  # of the table
LANES = 472  # where the first begins
LANE = 28
BAR = 22
CLOCK = (104, 872)  # 0 seconds, and the end


def svg(run: Recorded) -> str:
    """The film of `run`. ValueError if it is not the ring all-reduce that the words beside it describe."""
    check(run)
    stage = Stage(run)
    body = [
        *_track(),
        *_cells(run, stage),
        *_table(run, stage),
        *_timeline(run, stage),
        *_captions(run, stage),
        *_messages(run, stage),
    ]
    title = f"Ring all-reduce: four ranks add up {measure(run.nbytes, 'B')} each"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            f' role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="{LETTERS}" fill="{INK}">',
            f"<title>{title}</title>",
            f"<desc>{words(run)}</desc>",
            stage.style(),
            *_shapes(run),
            f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" rx="9" fill="{CARD}"/>',
            _text(16, 40, title, size=24, bold=True),
            *body,
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="9" fill="none" stroke="{EDGE}"/>',
            "</svg>\n",
        ]
    )


def words(run: Recorded) -> str:
    """What is to be seen, for who does not see it."""
    chunk = measure(run.flights[0].nbytes, "B")
    each = measure(sum(flight.nbytes for flight in run.flights if flight.src == 0), "B")
    labels = list(dict.fromkeys(flight.label for flight in run.flights))
    return (
        f"Four ranks in a ring, each with four chunks of {chunk}. In each of {run.steps} steps every rank sends one chunk "
        f"to its right neighbour. In the first three, {labels[0]}, the receiver adds its own numbers, and then each rank "
        f"has one finished sum. In the last three, {labels[1]}, the finished sums are copied on. On the virtual clock it "
        f"takes {measure(run.time, 's')}. The trace counts {len(run.flights)} messages, and {each} sent by each rank: "
        "2(n−1)/n times N."
    )


def _text(
    x: float,
    y: float,
    text: str,
    size: int = LETTERS,
    bold: bool = False,
    anchor: str = "start",
    fill: str = INK,
    more: str = "",
) -> str:
    return (
        f'<text x="{_number(x)}" y="{_number(y)}"'
        + (f' font-size="{size}"' if size != LETTERS else "")
        + (' font-weight="bold"' if bold else "")
        + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        + (f' fill="{fill}"' if fill != INK else "")
        + f"{more}>{text}</text>"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    numbers = (
        f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    )
    return f'<rect {numbers} fill="{fill}"{more}/>'


def _moving(name: str, hidden: bool = False) -> str:
    """Attributes of what is animated; hidden: it is not to be seen at the end."""
    return f' class="{name}"' + (' opacity="0"' if hidden else "")


# ------------------------------------------------------------
# The ring.


def corner(rank: int, chunk: int) -> tuple[float, float]:
    """The upper left corner of a rank's chunk."""
    x, y = CENTERS[rank]
    return x - CARD_WIDTH / 2 + 12 + chunk * (CELL + GAP), y - CARD_HEIGHT / 2 + 38


def stripes(inside: frozenset[int], x: float, y: float, width: float, height: float) -> list[str]:
    """A chunk with the numbers of some ranks in it. With those of all it is darker, and has an edge of ink."""
    full = len(inside) == RANKS
    part = width / RANKS
    out = []
    for rank in sorted(inside):
        out.append(_rect(x + rank * part, y, part, height, mix(hue(rank), 0.75 if full else 0.5)))
    if full:
        out.append(_rect(x, y, width, height, "none", f' stroke="{INK}" stroke-width="2"'))
    return out


def _shape(inside: frozenset[int]) -> str:
    return "s" + "".join(map(str, sorted(inside)))


def _shapes(run: Recorded) -> list[str]:
    """Each content that a chunk ever has, once."""
    contents = set()
    for steps in run.held:
        for chunks in steps:
            contents |= set(chunks)
    out = ["<defs>"]
    for inside in sorted(contents, key=_shape):
        out.append(f'<g id="{_shape(inside)}">{"".join(stripes(inside, 0, 0, CELL, CELL))}</g>')
    out.append(
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="16" markerHeight="16"'
        f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="{MUTED}"/></marker>'
    )
    out.append("</defs>")
    return out


def _track() -> list[str]:
    """The wires from each rank to its right neighbour."""
    out = []
    for rank, (x, y) in enumerate(CENTERS):
        to_x, to_y = CENTERS[(rank + 1) % RANKS]
        right = math.copysign(1, to_x - x)
        down = math.copysign(1, to_y - y)
        if leaves_sideways(rank):
            start = f"{_number(x + right * CARD_WIDTH / 2)} {y}"
            bend = f"{to_x} {y}"
            end = f"{to_x} {_number(to_y - down * (CARD_HEIGHT / 2 + 4))}"
        else:
            start = f"{x} {_number(y + down * CARD_HEIGHT / 2)}"
            bend = f"{x} {to_y}"
            end = f"{_number(to_x - right * (CARD_WIDTH / 2 + 4))} {to_y}"
        way = f"M{start}Q{bend} {end}"
        stroke = f'stroke="{MUTED}" stroke-width="2" marker-end="url(#tip)"'
        out.append(f'<path d="{way}" fill="none" {stroke}/>')
    return out


def leaves_sideways(rank: int) -> bool:
    """Whether what a rank sends leaves its card at a side, and arrives from above or below; else the other way round."""
    return rank % 2 == 0


def _cells(run: Recorded, stage: Stage) -> list[str]:
    out = []
    for rank, (x, y) in enumerate(CENTERS):
        left = x - CARD_WIDTH / 2
        top = y - CARD_HEIGHT / 2
        edge = f' rx="8" stroke="{hue(rank)}" stroke-width="3"'
        out.append(_rect(left, top, CARD_WIDTH, CARD_HEIGHT, CARD, edge))
        out.append(_text(left + 12, top + 27, f"rank {rank}", bold=True))
        for chunk in range(RANKS):
            out += _cell(run, stage, rank, chunk)
    x = CENTERS[0][0]
    y = CENTERS[1][1]
    for line, text in enumerate(("one stripe", "for each rank", "in the sum")):
        out.append(_text(x, y - 18 + 25 * line, text, anchor="middle", fill=MUTED))
    return out


def _cell(run: Recorded, stage: Stage, rank: int, chunk: int) -> list[str]:
    """All that a rank's chunk is in the course of the run, on each other; the last is what stays."""
    x, y = corner(rank, chunk)
    out = [_rect(x, y, CELL, CELL, FAINT)]
    states = [step[chunk] for step in run.held[rank]]
    changes = [k for k in range(len(states)) if k == 0 or states[k] != states[k - 1]]
    for number, first in enumerate(changes):
        inside = states[first]
        begin = stage.at(run.end(first)) if first else 0.0
        levels = [(begin, 1.0)] if first == 0 else [(0.0, 0.0), (begin, 1.0)]
        is_last = number == len(changes) - 1
        if not is_last:
            # A partial sum that has been passed on stays where it is, and nobody needs it any more.
            levels += [(stage.at(start), 0.3) for start in _departures(run, rank, chunk, inside)]
            levels.append((stage.at(run.end(changes[number + 1])), 0.0))
        name = stage.opacity(*levels)
        place = f'x="{_number(x)}" y="{_number(y)}"'
        out.append(f'<use href="#{_shape(inside)}" {place}{_moving(name, hidden=not is_last)}/>')
    out.append(_letter(x, y, chunk))
    return out


def _letter(x: float, y: float, chunk: int) -> str:
    return _text(x + CELL / 2, y + CELL / 2 + 7, CHUNKS[chunk], bold=True, anchor="middle")


def _departures(run: Recorded, rank: int, chunk: int, inside: frozenset[int]) -> list[float]:
    """When this content of a rank's chunk is sent."""
    return [f.start for f in run.flights if (f.src, f.chunk, f.inside) == (rank, chunk, inside)]


def _messages(run: Recorded, stage: Stage) -> list[str]:
    """The chunks under way, each from its cell at the sender to that at the receiver."""
    out = []
    for flight in run.flights:
        x, y = corner(flight.src, flight.chunk)
        frames = [(0.0, "opacity:0"), (stage.at(flight.start), "opacity:0;transform:none")]
        for k in range(POINTS + 1):
            share = k / POINTS
            time = stage.at(flight.start + share * (flight.arrived - flight.start))
            right, down = _way(flight, share)
            place = f"transform:translate({_number(right)}px,{_number(down)}px)"
            frames.append((time + (0.01 if k == 0 else 0), f"opacity:1;{place}"))
        frames.append((frames[-1][0] + FADE, f"opacity:0;{place}"))
        frames.append((LOOP, f"opacity:0;{place}"))
        edge = f' rx="3" stroke="{INK}" stroke-width="2"'
        out += [
            f"<g{_moving(stage.name(frames), hidden=True)}>",
            _rect(x, y, CELL, CELL, FAINT, edge),
            f'<use href="#{_shape(flight.inside)}" x="{_number(x)}" y="{_number(y)}"/>',
            _letter(x, y, flight.chunk),
            "</g>",
        ]
    return out


def _way(flight: Flight, share: float) -> tuple[float, float]:
    """How far right and down of its sender's cell a chunk is after a share of its time: it starts and stops gently."""
    x, y = corner(flight.src, flight.chunk)
    to_x, to_y = corner(flight.dst, flight.chunk)
    gone = share * share * (3 - 2 * share)
    late = gone * gone
    early = 1 - (1 - gone) ** 2
    across, along = (early, late) if leaves_sideways(flight.src) else (late, early)
    return (to_x - x) * across, (to_y - y) * along


# ------------------------------------------------------------
# Sentences, and what is counted.


def _captions(run: Recorded, stage: Stage) -> list[str]:
    """A sentence for the time before, for each step, and for the end."""
    chunk = measure(run.flights[0].nbytes, "B")
    total = f"{len(run.flights)} messages in {measure(run.time, 's')} of the virtual clock"
    sentences = [
        f"Each rank has four chunks of {chunk}, and wants the sums over all ranks.",
        *(_sentence(run, step) for step in range(1, run.steps + 1)),
        f"Every rank has every sum, after {total}.",
    ]
    out = []
    for number, sentence in enumerate(sentences):
        begin = stage.at(run.end(number - 1)) if number else 0.0
        levels = [(0.0, 0.0), (begin, 1.0)] if number else [(0.0, 1.0)]
        is_last = number == len(sentences) - 1
        if not is_last:
            levels.append((stage.at(run.end(number)) - FADE if number else LEAD - FADE, 0.0))
        more = _moving(stage.opacity(*levels), hidden=not is_last)
        out.append(_text(16, 74, sentence, fill=MUTED, more=more))
    return out


def _sentence(run: Recorded, step: int) -> str:
    flights = [flight for flight in run.flights if flight.step == step - 1]
    label = flights[0].label
    finished = any(frozenset(range(RANKS)) in of_rank[step] for of_rank in run.held)
    inside = len(flights[0].inside)
    if inside == RANKS:
        is_last = step == run.steps
        said = "the last copies arrive" if is_last else "finished sums are copied to the right"
    elif finished:
        said = "now each rank has one finished sum"
    elif inside == 1:
        said = "each sends a chunk, its neighbour adds its own"
    else:
        said = "each sends the sum on, its neighbour adds its own"
    return f"Step {step} of {run.steps}, {label}: {said}."


def _table(run: Recorded, stage: Stage) -> list[str]:
    """After each step: how many messages there were, and how much each rank has sent; then the formula."""
    top = 118
    out = [
        _text(TABLE_MIDDLE, top, "messages", anchor="end", fill=MUTED),
        _text(TABLE_RIGHT, top, "each sent", anchor="end", fill=MUTED),
    ]
    for step in range(1, run.steps + 1):
        y = top + LINE * step
        begin = stage.at(run.end(step - 1))
        end = stage.at(run.end(step))
        current = stage.opacity((0.0, 0.0), (begin, 1.0), (end - FADE, 0.0))
        box = (TABLE_LEFT - 10, y - 22, TABLE_RIGHT - TABLE_LEFT + 20, LINE - 2)
        out.append(_rect(*box, mix(BLUE, 0.2), ' rx="6"' + _moving(current, hidden=True)))
        out.append(_text(TABLE_LEFT, y, f"step {step}"))
        more = _moving(stage.opacity((0.0, 0.0), (end - FADE, 1.0)))
        sent = sum(flight.nbytes for flight in run.until(step) if flight.src == 0)
        out.append(_text(TABLE_MIDDLE, y, str(len(run.until(step))), anchor="end", more=more))
        out.append(_text(TABLE_RIGHT, y, measure(sent, "B"), anchor="end", more=more))
    more = _moving(stage.opacity((0.0, 0.0), (stage.at(run.time) + 2 * FADE, 1.0)))
    y = top + LINE * (run.steps + 1) + 14
    box = (TABLE_LEFT - 10, y - 28, TABLE_RIGHT - TABLE_LEFT + 20, 72)
    formula = f"2(n−1)/n · N = {measure(sent, 'B')}"
    out.append(f"<g{more}>")
    out.append(_rect(*box, mix(GREEN, 0.2), ' rx="6"'))
    out.append(_text(TABLE_LEFT, y, formula, bold=True))
    out.append(_text(TABLE_LEFT, y + 30, f"for n = {RANKS}, N = {measure(run.nbytes, 'B')}"))
    out.append("</g>")
    return out


# ------------------------------------------------------------
# The timeline.


def _timeline(run: Recorded, stage: Stage) -> list[str]:
    """A bar for each message, while its sender's wire is busy, and a line until it is there; a curtain that opens."""
    left, right = CLOCK
    scale = (right - left) / run.time
    bottom = LANES + RANKS * LANE
    goes = [(0.0, "opacity:1"), (LOOP - BACK, "opacity:1"), (LOOP, "opacity:0")]
    out = [f"<g{_moving(stage.name(goes))}>"]
    for flight in run.flights:
        x = left + scale * flight.start
        y = LANES + LANE * flight.src
        width = scale * (flight.sent - flight.start)
        end = left + scale * flight.arrived
        out.append(
            f'<path d="M{_number(x + width)} {_number(y + BAR / 2)}H{_number(end)}" stroke="{MUTED}" stroke-width="2"/>'
        )
        out.append(_rect(x, y, width, BAR, FAINT, f' stroke="{EDGE}"'))
        out += stripes(flight.inside, x, y, width, BAR)
        out.append(_text(x + width / 2, y + 17, CHUNKS[flight.chunk], bold=True, anchor="middle"))
    out.append("</g>")
    out += _curtain(run, stage)
    for rank in range(RANKS):
        out.append(_text(16, LANES + LANE * rank + 18, f"rank {rank}"))
    for label in dict.fromkeys(flight.label for flight in run.flights):
        own = [flight for flight in run.flights if flight.label == label]
        begin = left + scale * min(flight.start for flight in own)
        end = left + scale * max(flight.arrived for flight in own)
        out.append(_text((begin + end) / 2, LANES - 12, label, anchor="middle", fill=MUTED))
    out.append(f'<path d="M{left} {bottom}H{right}" stroke="{MUTED}" stroke-width="2"/>')
    for step in range(0, run.steps + 1, 2):
        x = left + scale * run.end(step)
        anchor = "end" if step == run.steps else "middle"
        out.append(f'<path d="M{_number(x)} {bottom}v6" stroke="{MUTED}" stroke-width="2"/>')
        out.append(_text(x, bottom + 25, measure(run.end(step), "s"), anchor=anchor, fill=MUTED))
    return out


def _curtain(run: Recorded, stage: Stage) -> list[str]:
    left, right = CLOCK
    moved = f"transform:translateX({right - left}px)"
    name = stage.name(
        [
            (0.0, "opacity:1;transform:none"),
            (LEAD, "opacity:1;transform:none"),
            (stage.at(run.time), f"opacity:1;{moved}"),
            (stage.at(run.time) + FADE, f"opacity:0;{moved}"),
            (LOOP, f"opacity:0;{moved}"),
        ]
    )
    height = RANKS * LANE
    return [
        f"<g{_moving(name, hidden=True)}>",
        _rect(left, LANES - 2, right - left + 12, height, CARD),
        f'<path d="M{left} {LANES - 4}v{height + 4}" stroke="{INK}" stroke-width="2"/>',
        "</g>",
    ]


# ------------------------------------------------------------
# The file.


def main(arguments: list[str]) -> int:
    text = svg(record())
    path = ROOT / PICTURE
    if arguments == ["--check"]:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PICTURE} is not what the run gives: make build", file=sys.stderr)
        return 1
    if arguments:
        print(f"python course/film.py [--check], and not {' '.join(arguments)}", file=sys.stderr)
        return 2
    path.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
