"""A small table for a notebook: HTML that follows the notebook's theme, and the same in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from minidist.study.picture import short

RULE = "1px solid rgba(128, 128, 128, 0.55)"
THIN = "1px solid rgba(128, 128, 128, 0.25)"


class Table:
    """Rows of words, shown as HTML in a notebook and as aligned columns elsewhere. `text` is the latter."""

    def __init__(self, rows: list[list[str]], columns: list[str], right: list[bool], title: str):
        self.rows = rows
        self.columns = columns
        self.right = right
        self.title = title

    @property
    def text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in lines) for i in range(len(self.columns))]
        aligned = [
            "  ".join(
                f"{w:>{k}}" if r else f"{w:<{k}}"
                for w, k, r in zip(row, widths, self.right, strict=True)
            ).rstrip()
            for row in lines
        ]
        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([self.title] * bool(self.title) + [aligned[0], rule, *aligned[1:]])

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        caption = (
            f'<caption style="text-align: left; font-weight: bold">{escape(self.title)}</caption>'
            if self.title
            else ""
        )
        head = "".join(self._cell("th", w, i, RULE) for i, w in enumerate(self.columns))
        body = "".join(
            f"<tr>{''.join(self._cell('td', w, i, THIN) for i, w in enumerate(row))}</tr>"
            for row in self.rows
        )
        style = "border-collapse: collapse; margin: 4px 0; color: inherit"
        return f'<table style="{style}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def _cell(self, tag: str, word: str, column: int, border: str) -> str:
        side = "right" if self.right[column] else "left"
        style = f"text-align: {side}; padding: 4px 12px; border-bottom: {border}"
        return f'<{tag} style="{style}">{escape(word)}</{tag}>'


def table(rows: Sequence[Sequence[Any]], columns: Sequence[str], *, title: str = "") -> Table:
    """A table of `rows` under the names `columns`; columns of numbers are set to the right.

    Integers get thousands commas, floats four significant figures, None an en dash; anything else is
    shown as str() gives it. Errors: ValueError for a row whose length is not that of `columns`.
    """
    columns = [str(c) for c in columns]
    rows = [list(row) for row in rows]
    for i, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"row {i} has {len(row)} cells, but there are {len(columns)} columns: {', '.join(columns)}"
            )
    right = [
        any(_is_number(row[c]) for row in rows)
        and all(row[c] is None or _is_number(row[c]) for row in rows)
        for c in range(len(columns))
    ]
    return Table([[_word(v) for v in row] for row in rows], columns, right, title)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return short(value, 4) if _is_number(value) else str(value)
