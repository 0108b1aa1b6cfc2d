"""What happened in a run: who sent how many bytes to whom, and when.

Columns, not objects: a ring over 1,024 ranks makes two million messages. Bytes are counted once, at
the sender, for both World and processes, on our own send and receive (never on a library's
collectives, which move more than they say). Times are seconds: virtual in a World, since the start
of the run elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from . import chrome
from .spans import Span, Spans
from .timeline import OnHost, Timeline

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


class Trace:
    """The messages, spans and memory of one run; iterate over it for the messages, in the order they started.

    spans: what ranks did when, a list of Span.  memory: {rank: Timeline}, live bytes where they were followed.
    host: {rank: OnHost}, what it had in the memory of its host, if anything, and the bytes copied.
    """

    def __init__(self, n: int):
        self.n = n
        self._ints, self._times = array("q"), array("d")  # 4 and 3 numbers a message
        self._words: list[tuple] = []  # distinct (label, lane)
        self._word_ids: dict[tuple, int] = {}
        self.spans, self.memory, self.host = Spans(), {}, {}

    def add(self, src, dst, nbytes, start, sent, arrived, label=None, lane="main") -> None:
        word = self._word_ids.get((label, lane))
        if word is None:
            word = self._word_ids[label, lane] = len(self._words)
            self._words.append((label, lane))
        self._ints.extend((src, dst, nbytes, word))
        self._times.extend((start, sent, arrived))

    def merge(self, other: Trace) -> None:
        """Take over the records of another rank's trace."""
        for m in other:
            self.add(*m)
        self.spans += other.spans
        self.memory |= other.memory
        self.host |= other.host

    def sort(self, origin: float) -> None:
        """Put the messages of merged ranks into the order in which they started, seconds after `origin`."""
        rows = [m._replace(start=m.start - origin, sent=m.sent - origin, arrived=m.arrived - origin) for m in self]
        rows.sort(key=lambda m: (m.start, m.src, m.dst))
        spans = [s._replace(start=s.start - origin, end=s.end - origin) for s in self.spans]
        spans.sort(key=lambda s: (s.start, s.rank))
        memory = {rank: timeline.since(origin) for rank, timeline in self.memory.items()}
        host = {rank: there._replace(memory=there.memory.since(origin)) for rank, there in self.host.items()}
        self.__init__(self.n)
        for m in rows:
            self.add(*m)
        self.spans, self.memory, self.host = Spans(spans), memory, host

    def __len__(self) -> int:
        return len(self._ints) // 4

    def __iter__(self) -> Iterator[Message]:
        for i in range(len(self)):
            src, dst, nbytes, word = self._ints[4 * i : 4 * i + 4]
            yield Message(src, dst, nbytes, *self._times[3 * i : 3 * i + 3], *self._words[word])

    def __eq__(self, other) -> bool:
        same = isinstance(other, Trace) and list(self) == list(other) and self.spans == other.spans
        return same and self.memory == other.memory and self.host == other.host

    def bytes_sent(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Bytes sent by `rank`, or over `link=(src, dst)`, or by all."""
        return sum(b for s, d, b in self._rows() if self._chosen(s, d, rank, link))

    def messages(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Messages sent by `rank`, or over `link=(src, dst)`, or by all."""
        return sum(1 for s, d, _ in self._rows() if self._chosen(s, d, rank, link))

    def _rows(self):
        return zip(self._ints[0::4], self._ints[1::4], self._ints[2::4], strict=True)

    def _chosen(self, src, dst, rank, link) -> bool:
        for r in ([] if rank is None else [rank]) + list(link or []):
            if not 0 <= r < self.n:
                raise ValueError(f"rank {r} is not in this trace of {self.n} ranks, 0 to {self.n - 1}")
        return (rank is None or src == rank) and (link is None or (src, dst) == tuple(link))

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
        head = "".join(f"<th>{name}</th>" for name in ("start µs", "arrived µs", "from → to", "bytes", "label"))
        more = f"<p>… and {len(self) - 20:,} more</p>" if len(self) > 20 else ""
        return f"<table><tr>{head}</tr>{cells}</table>{more}"


class Results(list):
    """Each rank's result, in rank order; `.trace` and `.time` (seconds) of the run that made them."""

    def __init__(self, values, trace: Trace, time: float):
        super().__init__(values)
        self.trace, self.time = trace, time
