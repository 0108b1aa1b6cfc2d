"""Is a number what it should be? If not: which usual slip gives exactly this number?

Bytes are integers and compared exactly; times and fractions are floats, compared within 1e-9.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..compare import UNKNOWN
from ..exam import Exam
from ..plain import kind_of
from ..wrong import Wrong

SLACK = 1e-9
RETURN = "Is there a `return`?"
PREFIXES = {1e3: "kB", 1e6: "MB", 1e9: "GB", 2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB"}


class Sheet(Exam):
    """An exercise on one machine; the library's calculators and its meter are refused."""

    forbidden = ("minidist.study", "minicheck.walls.oracle")


Looks = Mapping[str, float]  # what a wrong number may come from: the number that this slip gives


def whole(got, want: int, name: str, looks: Looks) -> None:
    """Raise Wrong unless `got` is the integer `want`."""
    _number(got, name)
    if got != want:
        unit = next(
            (word for size, word in PREFIXES.items() if want and _alike(got * size, want)), None
        )
        said = f"Is it in {unit}? Bytes are asked for." if unit else _said(got, looks)
        raise Wrong(f"{name} is {shown(got)}, and should be {shown(want)}. {said}")
    if isinstance(got, float):
        raise Wrong(
            f"{name} is the float {got!r}: it should be an integer. Floats are exact up to 2^53 only: "
            "calculate with integers, and divide with //."
        )


def close(got, want: float, name: str, looks: Looks) -> None:
    """Raise Wrong unless `got` is the number `want`, but for rounding."""
    _number(got, name)
    if not _alike(got, want):
        raise Wrong(f"{name} is {shown(got)}, and should be {shown(want)}. {_said(got, looks)}")


def _number(got, name: str) -> None:
    if got is None:
        raise Wrong(f"{name} is None. {RETURN}")
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise Wrong(f"{name} is {kind(got)}, and should be a number.")


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= SLACK * abs(other)


def _said(got: float, looks: Looks) -> str:
    exact = [text for text, value in looks.items() if got == value]
    return (
        next((text for text, value in looks.items() if _alike(got, value)), UNKNOWN)
        if not exact
        else exact[0]
    )


def entries(got, names: tuple[str, ...], what: str) -> None:
    """Raise Wrong unless `got` is a dict with exactly the keys `names`."""
    if got is None:
        raise Wrong(f"{what} is None. {RETURN}")
    if not isinstance(got, dict):
        raise Wrong(f"{what} is {kind(got)}, and should be a dict with {_listed(names)}.")
    if set(got) != set(names):
        raise Wrong(
            f"{what} has the keys {_listed(sorted(map(str, got)))}, and should have {_listed(names)}."
        )


def _listed(names) -> str:
    return ", ".join(map(repr, names)) or "none"


def kind(x) -> str:
    """`a list`, `an int`: the type in words."""
    word = kind_of(x)
    return f"{'an' if word[0] in 'aeiouAEIOU' else 'a'} {word}"


def shown(x: float) -> str:
    """A number as one reads it: 16,000,000 or 0.4125."""
    return f"{x:,}" if isinstance(x, int) else f"{x:.9g}"
