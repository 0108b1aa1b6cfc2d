"""Sliders over a function of the lesson: the reader drags, and sees what it returns.

n = 8        ──────●───────────    Python evaluates the function at all positions of the sliders, when the cell
N = 1 MB     ────────────●─────    runs. The page holds that table and looks a position up: there is no second
■ ring 1.2 ms  ■ tree 0.9 ms       formula in JavaScript, and no kernel is asked. A table of some thousand
│      ╱──                         positions is small; a function that takes a millisecond has filled it in
│ ────╱                            seconds.
└───────────── N

explore   lines over one of the axes, or bars, or the parts of a sum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

from minidist.study.charts import bars, curves, stacked
from minidist.study.frames import Framed, document
from minidist.study.picture import (
    BLUE,
    BYTE_UNITS,
    FLOP_UNITS,
    MEANING,
    TIME_UNITS,
    Picture,
    colors,
    measure,
)

MOST_POSITIONS = 5_000
SCALES = {"s": TIME_UNITS, "B": BYTE_UNITS, "FLOP": FLOP_UNITS}


def explore(
    function: Callable[..., Any],
    /,
    *,
    title: str = "",
    over: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
    unit: str | Mapping[str, str] | None = None,
    logx: bool = False,
    logy: bool = False,
    stack: bool = False,
    target: float | None = None,
    note: str = "target",
    units: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    start: Mapping[str, Any] | None = None,
    **axes: Sequence[Any],
) -> Explorer:
    """Let the reader drag the arguments of `function`, a slider for each, and see what it returns.

        explore(cost, over="N", n=[2, 4, 8], N=[10**k for k in range(3, 10)], units={"N": "B"}, unit="s")

    function: called once for each combination of the axes' values, by name: `cost(n=2, N=1000)`. It returns a number,
    or `{"name": number}` with the same names at every position. A word instead of a number is printed, not drawn; None
    stands for no value. If it raises ValueError, there is no value at this position, and the message is shown there.
    over: the axis that lines are drawn over. Without it, the numbers are drawn as bars, or with `stack` as the parts of
    one sum, with a dashed line at `target`, called `note`.
    unit: the unit of the results; "s", "B" and "FLOP" take prefixes, any other follows the number. A mapping gives each
    name its own unit; only names with the first name's unit are drawn.
    axes: the values of each argument: numbers, or words.  units, labels: of the axes.  start: initial positions of
    sliders; the others begin in the middle.  logx, logy: of lines.
    Errors: ValueError for no axis, an empty one, more than 5,000 positions, a start that is no value of its axis, names
    that differ, no number to draw at the start, an infinite number, a negative one in a bar, and one that is not above
    0 on a logarithmic axis.

    >>> from minidist.study import explore
    >>> def steps(n, algorithm):
    ...     return 2 * (n - 1) if algorithm == "ring" else 2 * (n - 1).bit_length()
    >>> made = explore(steps, n=[2, 8, 64], algorithm=["ring", "tree"], start={"algorithm": "tree"})
    >>> made.at(n=64)
    {'value': 12}
    >>> made.at(n=64, algorithm="ring")
    {'value': 126}
    """
    units = units or {}
    labels = labels or {}
    start = start or {}
    for name in [*units, *labels, *start, *([over] if over else [])]:
        if name not in axes:
            raise ValueError(f"there is no axis {name!r}, only {', '.join(axes) or 'none'}")
    sliders = []
    for name, values in axes.items():
        label = labels.get(name, name)
        sliders.append(slider(name, label, list(values), units.get(name), start.get(name)))
    look = Look(title, over, xlabel, ylabel, logx, logy, stack, target, note)
    return Explorer(function, sliders, unit, look)


class Slider(NamedTuple):
    """An argument of the function: its values, in words too, and the position it begins at."""

    name: str
    label: str
    values: list
    unit: str | None
    start: int

    @property
    def words(self) -> list[str]:
        return [words_of(value, self.unit) for value in self.values]

    def __str__(self) -> str:
        """Its values in words; of many the ends."""
        words = self.words
        count = f" ({len(words)} positions)"
        values = f"{words[0]} to {words[-1]}{count}" if len(words) > 6 else ", ".join(words)
        return f"{self.label}: {values}; here {words[self.start]}"


def slider(name: str, label: str, values: list, unit: str | None, start: Any) -> Slider:
    """A Slider that begins at `start`, or in the middle. ValueError for no value, and a start that is none of them."""
    if not values:
        raise ValueError(f"the axis {name!r} has no value")
    if start is not None and start not in values:
        raise ValueError(f"{name} starts at {start!r}, which is none of its values {values}")
    values = [plain(value) for value in values]
    position = len(values) // 2 if start is None else values.index(start)
    return Slider(name, label, values, unit, position)


class Look(NamedTuple):
    """How an Explorer draws: see `explore`."""

    title: str
    over: str | None
    xlabel: str
    ylabel: str
    logx: bool
    logy: bool
    stack: bool
    target: float | None
    note: str


class Explorer(Framed):
    """A page of sliders: `page` (HTML), `picture` (a still one of the start), `text`, `save(path)`.

    rows: what the function returned at each position, or None; the last axis changes fastest.  why: the message of a
    ValueError, by the number of its row.

    >>> from minidist.study import explore
    >>> def seconds(n, N):
    ...     return {"ring": 2 * (n - 1) / n * N * 1e-10, "all to one": (n - 1) * N * 1e-10}
    >>> explore(seconds, over="n", n=[2, 4, 8], N=[10**6, 10**9], units={"N": "B"}, unit="s")
    Explore
      slider n: 2, 4, 8; here 4
      slider N: 1 MB, 1 GB; here 1 GB
      here: ring 150 ms, all to one 300 ms
    y against n
      line ring: 2: 100 ms; 4: 150 ms; 8: 175 ms
      line all to one: 2: 100 ms; 4: 300 ms; 8: 700 ms
    """

    def __init__(self, function: Callable, sliders: list[Slider], unit: Any, look: Look):
        self.title = look.title or "Explore"
        self.sliders = sliders
        self.look = look
        self.rows, self.why = evaluate(function, sliders, look.ylabel or "value")
        self.names = list(next(row for row in self.rows if row is not None))
        units = unit if isinstance(unit, Mapping) else dict.fromkeys(self.names, unit)
        self.units = {name: units.get(name) for name in self.names}
        self.unit = self.units[self.names[0]]
        drawn = [name for name in self.names if self.units[name] == self.unit]
        self.drawn = [name for name in drawn if any(map(is_number, self.column(name)))]
        check(self)
        lines = look.over or look.stack
        faces = {name: MEANING.get(name, BLUE) for name in self.drawn}
        self.colors = colors(self.drawn) if lines else faces
        # sliders above the picture on a telephone, else beside it
        names = len(self.names)
        own = 38 * names + 30
        if lines:
            own = 15 * names + (270 if look.over else 95)
        tall = 70 + 48 * len(sliders) + own
        beside = 360 if look.over else 5 * names + 140 if look.stack else own
        self.heights = (tall, min(tall, 70 + max(48 * len(sliders), beside)))

    def column(self, name: str) -> list:
        """What the function returned under this name, at each position; None where it returned nothing."""
        return [row and row[name] for row in self.rows]

    def index(self, positions: Sequence[int]) -> int:
        """The number of the row at these positions of the sliders."""
        number = 0
        for each, position in zip(self.sliders, positions, strict=True):
            number = number * len(each.values) + position
        return number

    @property
    def start(self) -> list[int]:
        """The sliders' initial positions."""
        return [each.start for each in self.sliders]

    def at(self, **values: Any) -> dict[str, Any] | None:
        """What the function returned for these values, as the page shows it; the other arguments have their initial
        values."""
        positions = [
            each.values.index(values[each.name]) if each.name in values else each.start
            for each in self.sliders
        ]
        return self.rows[self.index(positions)]

    @cached_property
    def picture(self) -> Picture:
        """The same, drawn once and still, with the sliders where they start; its words say what they are, too."""
        made = self.drawing()
        head, *lines = made.text.split("\n")
        here = [f"{name} {words_of(v, self.units[name])}" for name, v in (self.at() or {}).items()]
        sliders = [f"  slider {each}" for each in self.sliders]
        made.text = "\n".join([head, *sliders, f"  here: {', '.join(here)}", *lines])
        return made

    def drawing(self) -> Picture:
        """Lines, bars or the parts of a sum, with the sliders where they start."""
        look = self.look
        if look.over:
            axis = next(each for each in self.sliders if each.name == look.over)
            rows = [self.at(**{axis.name: value}) or {} for value in axis.values]
            lines = {}
            for name in self.drawn:
                shown = [
                    (x, row[name]) for x, row in zip(axis.values, rows) if is_number(row.get(name))
                ]
                lines[name] = ([x for x, _ in shown], [y for _, y in shown])
            return curves(
                {name: line for name, line in lines.items() if line[0]},
                title=self.title,
                xlabel=look.xlabel or axis.label,
                ylabel=look.ylabel,
                xunit=axis.unit,
                yunit=self.unit,
                logx=look.logx,
                logy=look.logy,
            )
        here = self.at() or {}
        parts = {name: here[name] for name in self.drawn if is_number(here[name])}
        goal: dict[str, Any] = dict(target=look.target, note=look.note)
        goal |= dict(unit=self.unit, title=self.title)
        return stacked({look.ylabel or "sum": parts}, **goal) if look.stack else bars(parts, **goal)

    @cached_property
    def page(self) -> str:
        """The whole page: an HTML document that needs nothing else."""
        look = self.look
        names = [each.name for each in self.sliders]
        over = names.index(look.over) if look.over else None
        axes: list[dict] = []
        for each in self.sliders:
            values = each.values if each.name == look.over else None
            axes.append(dict(label=each.label, words=each.words, values=values, start=each.start))
        series: list[dict] = []
        for name in self.names:
            column = self.column(name)
            values = [compact(v) if is_number(v) else None for v in column]
            words = ["" if v is None else words_of(v, self.units[name]) for v in column]
            drawn = name in self.drawn
            series.append(
                dict(name=name, color=self.colors.get(name), words=words, values=drawn and values)
            )
        data: dict[str, Any] = dict(axes=axes, over=over, series=series, why=self.why)
        data["stack"] = look.stack
        data |= dict(logx=look.logx, logy=look.logy, xlabel=look.xlabel, ylabel=look.ylabel)
        data["scales"] = SCALES.get(self.unit or "", [(1, self.unit or "")])
        if look.stack:
            sums = [
                sum(row[name] or 0 for name in self.drawn) if row else None for row in self.rows
            ]
            data["sums"] = ["" if v is None else measure(v, self.unit) for v in sums]
        if look.target is not None:
            data["target"] = [look.target, f"{look.note} {measure(look.target, self.unit)}"]
        return document("explore", ("explore.js",), data, title=self.title, summary=self.text)


def evaluate(
    function: Callable, sliders: list[Slider], name: str
) -> tuple[list[dict | None], dict[int, str]]:
    """What the function returns at each position, a number under `name`; and the words of its ValueErrors."""
    if not sliders:
        raise ValueError("there is no axis: name the values of each argument, as in n=[2, 4, 8]")
    count = math.prod(len(each.values) for each in sliders)
    if count > MOST_POSITIONS:
        sizes = " · ".join(str(len(each.values)) for each in sliders)
        raise ValueError(
            f"{sizes} = {count:,} positions, and at most {MOST_POSITIONS:,} are evaluated"
        )
    rows: list[dict | None] = []
    why = {}
    for values in product(*(each.values for each in sliders)):
        arguments = dict(zip([each.name for each in sliders], values, strict=True))
        try:
            found = function(**arguments)
        except ValueError as error:
            why[len(rows)] = str(error)
            rows.append(None)
            continue
        row = found if isinstance(found, Mapping) else {name: found}
        rows.append({key: plain(value) for key, value in row.items()})
    names = [list(row) for row in rows if row is not None]
    if not names:
        raise ValueError(f"the function returns nothing at any position: {why[0]}")
    for each in names:
        if each != names[0]:
            raise ValueError(f"the function returns {each} here and {names[0]} there")
    return rows, why


def check(made: Explorer) -> None:
    """ValueError for numbers that cannot be drawn."""
    look = made.look
    if not any(is_number((made.at() or {}).get(name)) for name in made.drawn):
        why = made.why.get(made.index(made.start), "no number")
        raise ValueError(f"there is nothing to draw where the sliders start: {why}")
    for name in made.drawn:
        for value in filter(is_number, made.column(name)):
            if not math.isfinite(value):
                raise ValueError(
                    f"{name!r} is {value} at one position: return None where there is none"
                )
            if value <= 0 and look.over and look.logy:
                raise ValueError(f"{name!r} is {value}, which has no place on a logarithmic axis")
            if value < 0 and not look.over:
                raise ValueError(f"{name!r} is {value}: bars are not negative")
    for each in made.sliders:
        for value in each.values:
            if each.name == look.over and not (is_number(value) and (value > 0 or not look.logx)):
                raise ValueError(f"{each.name} is {value!r}, which has no place on its axis")


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """A number as Python's int or float, also one of NumPy or of `fractions`; anything else as it is."""
    value = getattr(value, "item", lambda: value)()
    return value if not is_number(value) or isinstance(value, int) else float(value)


def compact(value: float) -> float:
    """`value` to four figures, which a drawing does not tell from all."""
    near = float(f"{value:.4g}")
    return int(near) if near.is_integer() else near


def words_of(value: Any, unit: str | None) -> str:
    if value is None:
        return "–"
    return measure(value, unit) if is_number(value) else str(value)
