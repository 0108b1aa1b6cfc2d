"""What benchmarks share: the flags, and the lines in which they say their ratios."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any


def options(
    doc: str,
    repeats: tuple[int, int] | None = None,
    only: Iterable[str] = (),
    quick: str = "few repeats",
    **more: dict[str, Any],
) -> argparse.Namespace:
    """What the command line says; the description is `doc`.

    --quick: what `quick` says.  repeats=(few, many): --repeats, `many` if not given, `few` where it is quick.
    only: the names that --only takes, one or more; all if not given.  more: flags by name, as for `add_argument`.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats[1])
    names = list(only)
    if names:
        parser.add_argument("--only", nargs="+", choices=names, default=names)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    args = parser.parse_args()
    if repeats is not None and args.quick:
        args.repeats = repeats[0]
    return args


def report(ratios: dict[str, float], word: str = "ratio") -> dict[str, float]:
    """Print each as a line, `ratio NAME VALUE`, or with another `word`; returns them."""
    for name, value in ratios.items():
        print(f"{word} {name.replace(' ', '_')} {value:.3f}")
    return ratios
