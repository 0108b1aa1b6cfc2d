"""What ranks did, and when: spans in columns, 24 bytes each, however many operators a run has."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """What a rank did from `start` to `end`: `kind` is "compute", "backward", "update" (what the
    meter charges: else, in autograd, in an optimizer's step), "wait" or what a program names."""

    rank: int
    lane: str
    kind: str
    start: float
    end: float
    name: str


class Spans:
    """The spans of a run, in the order in which they were added; to whoever reads them, a list of Span."""

    def __init__(self, spans: Iterable[Span] = ()):
        self._ints, self._times = array("i"), array("d")  # rank and word, start and end of each
        self._words: list[tuple[str, str, str]] = []  # distinct (lane, kind, name)
        self._word_ids: dict[tuple, int] = {}
        self.extend(spans)

    def add(self, rank: int, lane: str, kind: str, start: float, end: float, name: str) -> None:
        """One more; times in seconds."""
        word = self._word_ids.setdefault((lane, kind, name), len(self._words))
        if word == len(self._words):
            self._words.append((lane, kind, name))
        self._ints.extend((rank, word))
        self._times.extend((start, end))

    def append(self, span: Span) -> None:
        self.add(*span)

    def extend(self, spans: Iterable[Span]) -> None:
        for span in list(spans):
            self.add(*span)

    def __iadd__(self, spans: Iterable[Span]) -> Spans:
        self.extend(spans)
        return self

    def __len__(self) -> int:
        return len(self._ints) // 2

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        lane, kind, name = self._words[self._ints[2 * i + 1]]
        return Span(self._ints[2 * i], lane, kind, self._times[2 * i], self._times[2 * i + 1], name)

    def __iter__(self) -> Iterator[Span]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other) -> bool:
        return isinstance(other, Spans | list) and list(self) == list(other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"Spans({len(self):,})"
