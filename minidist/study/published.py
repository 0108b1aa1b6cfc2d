"""Published figures, as data with their sources: every row says where its value stands and how it was seen."""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from typing import Any

NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a table of published figures, as dictionaries: `published("zero")`.

    Columns of all tables: source, quantity, value, unit, evidence ("seen", "computed" or from memory), note.
    Whole numbers are int, other numbers float, what is empty None. Raises ValueError for a name that is no table.
    """
    folder = files("minidist.study") / "figures"
    known = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if name not in known:
        raise ValueError(f"no table of figures is called {name!r}; there are {', '.join(known)}")
    text = (folder / f"{name}.csv").read_text(encoding="utf-8")
    return [
        {key: _value(word) for key, word in row.items()}
        for row in csv.DictReader(text.splitlines())
    ]


def _value(word: str) -> Any:
    if not NUMBER.fullmatch(word):
        return word or None
    return (
        int(word.removesuffix(".0"))
        if word.removesuffix(".0").lstrip("+-").isdigit()
        else float(word)
    )
