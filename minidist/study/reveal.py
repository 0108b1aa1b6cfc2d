"""An answer that stays folded until it is clicked, below the guess that the learner made.

    ▸ Your guess: 100 MB. Show the answer        ▾ Your guess: 100 MB. Show the answer
                                                     The answer: 75 MB
                                                     words, pictures, tables

A lesson asks a question, the learner assigns a guess in the next cell, and the cell after it reveals. The fold is
HTML's own `<details>`: it needs no script, and each run closes it again. On a page without a kernel, page/guess.js
sets a field for the guess before each fold, and the reader's browser keeps what is written there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from minidist.study.charts import table
from minidist.study.picture import measure


def reveal(
    guess: Any,
    answer: Any,
    picture: Any = None,
    *,
    unit: str | Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    words: str = "",
) -> Reveal:
    """Show the learner's guess, with the answer and its explanation folded under it.

    guess, answer: a number, a word, several numbers by name, `{"weights": 14e9, "gradients": 14e9}`, or a list, which
    is read as words. A guess of None or `...` has not been made yet; a guess in words, such as "100 MB", is shown
    unchanged.
    picture: a picture or table of `study`, or a list of them.
    unit: one unit for all numbers, or one for each name; "s", "B" and "FLOP" take a prefix, any other follows the
    number.
    options: the words among which the learner chooses.
    words: paragraphs under the answer.
    Errors: ValueError for names in the guess that are not those of the answer, units by name for an answer without
    names, a guess or an answer that is not among the options, an answer that is not finite, or a picture that a
    notebook cannot show.

    >>> from minidist.study import reveal
    >>> reveal(8e9, 14e9, unit="B", words="7 billion parameters, 2 bytes each.")
    Your guess: 8 GB
    The answer: 14 GB
    7 billion parameters, 2 bytes each.
    """
    guess, answer = _plain(guess), _plain(answer)
    for value in answer.values() if isinstance(answer, dict) else [answer]:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the answer is {value}: say it in words, such as 'never'")
    if isinstance(answer, dict):
        names = list(guess) if isinstance(guess, dict) else [guess]
        if guess is not None and set(names) != set(answer):
            raise ValueError(
                f"the answer has the names {_listed(answer)}, and the guess has {_listed(names)}"
            )
    elif isinstance(unit, Mapping):
        raise ValueError(f"the units have the names {_listed(unit)}, and the answer has none")
    for value in [guess, answer] if options else []:
        if value is not None and value not in options:
            raise ValueError(f"{value!r} is not among the options {_listed(options)}")
    shown = list(picture) if isinstance(picture, list | tuple) else [picture]
    shown = [each for each in shown if each is not None]
    for each in shown:
        if not hasattr(each, "_repr_html_"):
            raise ValueError(f"reveal shows pictures and tables of study, not {type(each)}")
    return Reveal(guess, answer, shown, unit, list(options), words)


class Reveal:
    """A folded answer: `kind` ("number", "numbers", "word" or "choice"), `text` (everything, unfolded).

    >>> from minidist.study import reveal
    >>> made = reveal("ring", "tree", options=["ring", "tree"])
    >>> made.kind, made.summary
    ('choice', 'Your guess: ring. Show the answer')
    >>> made
    Your guess: ring
    The answer: tree
    """

    def __init__(self, guess, answer, shown: list, unit, options: list[str], words: str):
        self.guess = guess
        self.answer = answer
        self.shown = shown
        self.unit = unit
        self.options = options
        self.words = words
        self.kind = "word"
        if options:
            self.kind = "choice"
        elif isinstance(answer, dict):
            self.kind = "numbers"
        elif isinstance(answer, int | float) and not isinstance(answer, bool):
            self.kind = "number"

    @property
    def summary(self) -> str:
        """The line that is visible while the answer is folded."""
        return f"{self._guessed()}. Show the answer"

    @property
    def text(self) -> str:
        answer = f"The answer: {_said(self.answer, self.unit)}"
        return "\n".join([self._guessed(), answer, *self._paragraphs(), *map(repr, self.shown)])

    def _guessed(self) -> str:
        if self.guess is None:
            return "You have not guessed yet"
        return f"Your guess: {_said(self.guess, self.unit)}"

    def _paragraphs(self) -> list[str]:
        parts = self.words.split("\n\n")
        return [" ".join(part.split()) for part in parts if part.strip()]

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        data: dict[str, Any] = {"answer": self.answer}
        if self.guess is not None:
            data["guess"] = self.guess
        if self.unit:
            data["unit"] = self.unit
        if self.options:
            data["options"] = self.options
        attributes = "".join(
            f' data-{name}="{escape(json.dumps(value, ensure_ascii=False))}"'
            for name, value in data.items()
        )
        answer = f"<p><b>The answer: {escape(_said(self.answer, self.unit))}</b></p>"
        if self.kind == "numbers":
            guess = self.guess or dict.fromkeys(self.answer)
            rows = []
            for name, value in self.answer.items():
                unit = _unit_of(self.unit, name)
                rows.append([name, _said(guess[name], unit), _said(value, unit)])
            answer = table(rows, ["", "your guess", "the answer"])._repr_html_()
        paragraphs = [f"<p>{escape(part)}</p>" for part in self._paragraphs()]
        inside = "\n".join([answer, *paragraphs, *(each._repr_html_() for each in self.shown)])
        return (
            f'<details class="minidist-answer" data-kind="{self.kind}"{attributes}>'
            f'<summary style="cursor: pointer">{escape(self.summary)}</summary>\n{inside}\n</details>'
        )


def _plain(value: Any) -> Any:
    """`value` in Python's own numbers and words, with None for a guess that was not made."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if value is None or value is ...:
        return None
    if isinstance(value, list | tuple):
        return ", ".join(str(_plain(each)) for each in value) or "none"
    value = getattr(value, "item", lambda: value)()  # of NumPy and PyTorch
    return value if isinstance(value, int | float | str) else str(value)


def _said(value: Any, unit: str | Mapping[str, str] | None) -> str:
    """A value, or several by name, as they are read."""
    if isinstance(value, dict):
        each = [f"{name} {_said(v, _unit_of(unit, name))}" for name, v in value.items()]
        return ", ".join(each)
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    return measure(value, _unit_of(unit, ""))


def _unit_of(unit: str | Mapping[str, str] | None, name: str) -> str | None:
    return unit.get(name) if isinstance(unit, Mapping) else unit


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
