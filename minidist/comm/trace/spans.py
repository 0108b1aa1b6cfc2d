"""What ranks did, and when: spans in packed rows, 24 bytes each, however many operators a run has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from .words import Words

_ROW = Struct("=iidd")  # rank and word, start and end


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
        self._rows, self._words = bytearray(), Words()  # a word: (lane, kind, name)
        self.extend(spans)

    def add(self, rank: int, lane: str, kind: str, start: float, end: float, name: str) -> None:
        """One more; times in seconds."""
        self._rows += _ROW.pack(rank, self._words[lane, kind, name], start, end)

    def append(self, span: Span) -> None:
        self.add(*span)

    def extend(self, spans: Iterable[Span]) -> None:
        for span in list(spans):
            self.add(*span)

    def __iadd__(self, spans: Iterable[Span]) -> Spans:
        self.extend(spans)
        return self

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def __getitem__(self, i):
        if isinstance(i, slice):
            return self._at(range(*i.indices(len(self))))
        return self._at([range(len(self))[i]])[0]

    def __iter__(self) -> Iterator[Span]:
        return iter(self._at(range(len(self))))

    def _at(self, places: Iterable[int]) -> list[Span]:
        words, found = list(self._words), []
        for place in places:
            rank, word, start, end = _ROW.unpack_from(self._rows, place * _ROW.size)
            lane, kind, name = words[word]
            found.append(Span(rank, lane, kind, start, end, name))
        return found

    def __eq__(self, other) -> bool:
        return isinstance(other, Spans | list) and list(self) == list(other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"Spans({len(self):,})"
