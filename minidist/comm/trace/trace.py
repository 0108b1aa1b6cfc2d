"""What happened in a run: who sent how many bytes to whom, and when.

Packed rows, not objects: a ring over 1,024 ranks makes two million messages. Bytes are counted once, at
the sender, for both World and processes, on our own send and receive (never on a library's
collectives, which move more than they say). Times are seconds: virtual in a World, since the start
of the run elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from struct import Struct
from typing import NamedTuple

import numpy as np

from . import chrome
from .spans import Span, Spans
from .timeline import OnHost, Timeline
from .words import Words

__all__ = ["Message", "OnHost", "Results", "Span", "Spans", "Timeline", "Trace", "lane_of"]


def lane_of(channel: str) -> str:
    """The name under which a channel's messages are recorded: a lane's own, else "main"."""
    last = channel.rpartition("/")[2]
    return last if last.startswith("lane") else "main"


class Message(NamedTuple):
    """One message: its sender's wire was busy from `start` to `sent`; it was there at `arrived`."""

    src: int
    dst: int
    nbytes: int
    start: float
    sent: float
    arrived: float
    label: str | None
    lane: str


_TYPES = "iiqiddd"  # of a packed row's numbers: struct and numpy use the same letters
_ROW = Struct(f"={_TYPES}")
_COLUMNS = np.dtype(
    list(zip(("src", "dst", "nbytes", "word", "start", "sent", "arrived"), _TYPES, strict=True))
)


class Trace:
    """The messages, spans and memory of one run; iterate over it for the messages, in the order they started.

    spans: what ranks did when, a list of Span.  memory: {rank: Timeline}, live bytes where they were followed.
    host: {rank: OnHost}, what it had in the memory of its host, if anything, and the bytes copied.
    """

    def __init__(self, n: int):
        self.n = n
        self._rows, self._words = bytearray(), Words()  # a word: (label, lane)
        self._sorted = True  # else they are to be put in order when they are looked at
        self.spans = Spans()
        self.memory = {}
        self.host = {}

    def add(self, src, dst, nbytes, start, sent, arrived, label=None, lane="main") -> None:
        self._rows += _ROW.pack(src, dst, nbytes, self._words[label, lane], start, sent, arrived)

    def merge(self, other: Trace) -> None:
        """Take over the records of another rank's trace."""
        for m in other:
            self.add(*m)
        self.spans += other.spans
        self.memory |= other.memory
        self.host |= other.host

    def sort(self) -> None:
        """Put the messages into the order in which they started; of those that started together, by their ranks."""
        self._sorted = False  # a second for two million, which nobody may look at

    def _ordered(self) -> bytearray:
        """The rows, in order if that was asked for."""
        if not self._sorted:
            self._sorted = True
            rows = self._columns()
            order = np.lexsort((rows["dst"], rows["src"], rows["start"]))
            # as bytes, a tenth of the time
            self._rows = bytearray(rows.view(f"V{_ROW.size}")[order])
        return self._rows

    def since(self, origin: float) -> None:
        """Count all times from `origin`, seconds, and put messages and spans into the order in which they started."""
        rows = self._columns()
        for column in ("start", "sent", "arrived"):
            rows[column] -= origin
        self._rows = bytearray(rows)
        self.sort()
        spans = [s._replace(start=s.start - origin, end=s.end - origin) for s in self.spans]
        self.spans = Spans(sorted(spans, key=lambda s: (s.start, s.rank)))
        self.memory = {rank: timeline.since(origin) for rank, timeline in self.memory.items()}
        self.host = {
            rank: there._replace(memory=there.memory.since(origin))
            for rank, there in self.host.items()
        }

    def _columns(self) -> np.ndarray:
        """The messages so far, a column for each number."""
        # a copy: a bytearray that is looked at cannot grow
        return np.frombuffer(bytearray(self._rows), _COLUMNS)

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def __iter__(self) -> Iterator[Message]:
        rows, words = self._ordered(), list(self._words)
        for at in range(0, len(rows), _ROW.size):
            src, dst, nbytes, word, start, sent, arrived = _ROW.unpack_from(rows, at)
            yield Message(src, dst, nbytes, start, sent, arrived, *words[word])

    def __eq__(self, other) -> bool:
        same = isinstance(other, Trace) and list(self) == list(other) and self.spans == other.spans
        return same and self.memory == other.memory and self.host == other.host

    def bytes_sent(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Bytes sent by `rank`, or over `link=(src, dst)`, or by all."""
        return int(self._chosen(rank, link)["nbytes"].sum())

    def messages(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Messages sent by `rank`, or over `link=(src, dst)`, or by all."""
        return len(self._chosen(rank, link))

    def _chosen(self, rank, link) -> np.ndarray:
        """The messages that count."""
        for r in ([] if rank is None else [rank]) + list(link or []):
            if not 0 <= r < self.n:
                raise ValueError(
                    f"rank {r} is not in this trace of {self.n} ranks, 0 to {self.n - 1}"
                )
        rows = self._columns()
        if rank is not None:
            rows = rows[rows["src"] == rank]
        if link is not None:
            rows = rows[(rows["src"] == link[0]) & (rows["dst"] == link[1])]
        return rows

    def to_chrome(self, path: str) -> None:
        """Write the Trace Event format: open it at ui.perfetto.dev or chrome://tracing. µs there."""
        chrome.write(self, path)

    def table(self, most: int = 20) -> str:
        """The first `most` messages, a line each."""
        rows = [f"{'start µs':>10} {'arrived µs':>10}  {'from → to':<9} {'bytes':>10}  label"]
        for m, _ in zip(self, range(most), strict=False):
            link = f"{m.src} → {m.dst}"
            row = f"{m.start * 1e6:>10.2f} {m.arrived * 1e6:>10.2f}  {link:<9} {m.nbytes:>10,}  {m.label or ''}"
            rows.append(row.rstrip())
        if len(self) > most:
            rows.append(f"… and {len(self) - most:,} more")
        return "\n".join(rows)

    __str__ = table

    def __repr__(self) -> str:
        return f"Trace({self.n} ranks, {self.messages():,} messages, {self.bytes_sent():,} bytes)"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{m.start * 1e6:.2f}</td><td>{m.arrived * 1e6:.2f}</td><td>{m.src} → {m.dst}</td>"
            f"<td>{m.nbytes:,}</td><td>{escape(m.label or '')}</td></tr>"
            for m, _ in zip(self, range(20), strict=False)
        )
        head = "".join(
            f"<th>{name}</th>" for name in ("start µs", "arrived µs", "from → to", "bytes", "label")
        )
        more = f"<p>… and {len(self) - 20:,} more</p>" if len(self) > 20 else ""
        return f"<table><tr>{head}</tr>{cells}</table>{more}"


class Results(list):
    """Each rank's result, in rank order; `.trace` and `.time` (seconds) of the run that made them."""

    def __init__(self, values, trace: Trace, time: float):
        super().__init__(values)
        self.trace, self.time = trace, time
