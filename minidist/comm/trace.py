"""What happened in a run: who sent how many bytes to whom, and when.

Packed rows, not objects: a ring over 1,024 ranks makes two million messages. Bytes are counted once, at
the sender, for both World and processes, on our own send and receive (never on a library's
collectives, which move more than they say). Times are seconds: virtual in a World, since the start
of the run elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from itertools import islice
from struct import Struct
from typing import NamedTuple

import numpy as np

# ------------------------------------------------------------
# Names that come again and again in what is recorded: written down once, then a number.


class Words(dict):
    """The number of each distinct tuple of names, in the order in which they came; `list(words)` are the tuples."""

    def __missing__(self, names: tuple) -> int:
        return self.setdefault(names, len(self))


# ------------------------------------------------------------
# What ranks did, and when: spans in packed rows, 24 bytes each, however many operators a run has.


_SPAN_ROW = Struct("=iidd")  # rank and word, start and end


class Span(NamedTuple):
    """What a rank did from `start` to `end`: `kind` is "compute", "backward", "update" (what the
    meter charges: else, in autograd, in an optimizer's step), "wait" or what a program names.

    Times are seconds.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Cluster
    >>> def program(comm):
    ...     torch.ones(8, 8) @ torch.ones(8, 8)
    >>> spans = World(1, cluster=Cluster.laptop()).run(program).trace.spans
    >>> [(span.rank, span.kind, span.name) for span in spans]
    [(0, 'compute', 'ones'), (0, 'compute', 'ones'), (0, 'compute', 'mm')]
    """

    rank: int
    lane: str
    kind: str
    start: float
    end: float
    name: str


class Spans:
    """The spans of a run, in the order in which they were added; iterate over them.

    >>> from minidist.comm.trace import Spans
    >>> spans = Spans()
    >>> spans.add(rank=0, lane="main", kind="compute", start=0.0, end=1.5, name="mm")
    >>> list(spans)
    [Span(rank=0, lane='main', kind='compute', start=0.0, end=1.5, name='mm')]
    """

    def __init__(self):
        self._rows, self._words = bytearray(), Words()  # a word: (lane, kind, name)

    def add(self, rank: int, lane: str, kind: str, start: float, end: float, name: str) -> None:
        """Note one span; times in seconds."""
        self._rows += _SPAN_ROW.pack(rank, self._words[lane, kind, name], start, end)

    def __len__(self) -> int:
        return len(self._rows) // _SPAN_ROW.size

    def __iter__(self) -> Iterator[Span]:
        words = list(self._words)
        for rank, word, start, end in _SPAN_ROW.iter_unpack(bytes(self._rows)):
            lane, kind, name = words[word]
            yield Span(rank, lane, kind, start, end, name)

    def __eq__(self, other) -> bool:
        return isinstance(other, Spans | list) and list(self) == list(other)


# ------------------------------------------------------------
# Live bytes by category over time: what a ledger gives once the run is over.


CATEGORIES = ("parameters", "gradients", "optimizer states", "activations", "buffers", "other")


class Timeline:
    """How many bytes of each category were live, and when.

    times: seconds, ascending; several changes may share one.  live[category]: bytes from each of these times on,
    as many as there are times.  total: their sum.  peak: the most bytes at once.  at_peak: what they were.
    device: the type of the device that holds them.

    >>> from minidist.comm.trace import Timeline
    >>> timeline = Timeline([0.0, 1.0, 2.0], [100, 50, -100], [0, 3, 0])
    >>> timeline.peak, timeline.total.tolist()
    (150, [100, 150, 50])
    >>> timeline.at(2.5)["parameters"], timeline
    (0, Timeline(3 changes, peak 150 bytes: parameters 100, activations 50))
    """

    def __init__(self, times, changes, categories, device: str = "cpu"):
        """changes: bytes more, or less, at each of the times; categories: the number in CATEGORIES of each."""
        self.device = device
        self.times = np.asarray(times, dtype=np.float64)
        self._changes = np.asarray(changes, dtype=np.int64)
        self._categories = np.asarray(categories, dtype=np.int8)

    @cached_property
    def live(self) -> dict[str, np.ndarray]:
        """Bytes of each category, int64, one for each of `times`."""
        return {
            name: np.cumsum(np.where(self._categories == c, self._changes, 0))
            for c, name in enumerate(CATEGORIES)
        }

    @cached_property
    def total(self) -> np.ndarray:
        """Bytes of all categories together, int64, one for each of `times`."""
        return np.cumsum(self._changes)

    @property
    def peak(self) -> int:
        """The most bytes that were live at once."""
        return int(self.total.max(initial=0))

    @property
    def at_peak(self) -> dict[str, int]:
        """What the peak is made of, at the first moment that reaches it."""
        return self._row(int(self.total.argmax()) if len(self.times) and self.peak else -1)

    def at(self, time: float) -> dict[str, int]:
        """Live bytes of each category at `time`, after all that changed then.

        >>> from minidist.comm.trace import Timeline
        >>> timeline = Timeline([0.0, 1.0, 2.0], [100, 50, -100], [0, 3, 0])
        >>> [timeline.at(time)["parameters"] for time in (0.5, 1.5, 2.5)]
        [100, 100, 0]
        """
        return self._row(int(np.searchsorted(self.times, time, side="right")) - 1)

    def since(self, origin: float) -> Timeline:
        """The same, in seconds after `origin`."""
        return Timeline(self.times - origin, self._changes, self._categories, self.device)

    def _row(self, i: int) -> dict[str, int]:
        return {name: int(live[i]) if i >= 0 else 0 for name, live in self.live.items()}

    def __eq__(self, other) -> bool:
        mine = lambda t: (t.times, t._changes, t._categories)
        return isinstance(other, Timeline) and all(map(np.array_equal, mine(self), mine(other)))

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {nbytes:,}" for name, nbytes in self.at_peak.items() if nbytes)
        return f"Timeline({len(self):,} changes, peak {self.peak:,} bytes" + (
            f": {parts})" if parts else ")"
        )


class OnHost(NamedTuple):
    """A rank's part of its host: live bytes there over time, and the bytes copied down to it and back up.

    >>> from minidist.comm.trace import OnHost, Timeline
    >>> OnHost(Timeline([0.0], [4000], [2]), down=4000, up=0)
    OnHost(memory=Timeline(1 changes, peak 4,000 bytes: optimizer states 4,000), down=4000, up=0)
    """

    memory: Timeline
    down: int
    up: int


# ------------------------------------------------------------
# A trace as a file in the Trace Event format, for ui.perfetto.dev or chrome://tracing.
#
# Each lane of a rank is a thread there, so what runs at once lies in rows of its own; messages are arrows between
# rows; live memory is a counter for each rank, by category. Source: "Trace Event Format", Google, 2016.


MICRO = 1e6  # times are microseconds there


def write(trace, path: str) -> None:
    """Write `trace` to `path`."""
    rows = _rows(trace)
    events = [*_names(rows), *_messages(trace, rows), *_spans(trace, rows), *_memory(trace)]
    with open(path, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _rows(trace) -> dict[tuple[int, str], int]:
    """The number of each (rank, lane): a rank's main row has the rank's, its lanes come after all ranks."""
    lanes = {(r, m.lane) for m in trace for r in (m.src, m.dst)} | {
        (s.rank, s.lane) for s in trace.spans
    }
    mains = [(r, "main") for r in range(trace.n)]
    return {row: i for i, row in enumerate([*mains, *sorted(lanes - set(mains))])}


def _names(rows: dict[tuple[int, str], int]) -> Iterator[dict]:
    for place, (rank, lane) in enumerate(
        sorted(rows, key=lambda row: (row[0], row[1] != "main", row[1]))
    ):
        row = {"ph": "M", "pid": 0, "tid": rows[rank, lane]}
        yield row | {
            "name": "thread_name",
            "args": {"name": f"rank {rank}" + f", {lane}" * (lane != "main")},
        }
        yield row | {"name": "thread_sort_index", "args": {"sort_index": place}}


def _messages(trace, rows: dict[tuple[int, str], int]) -> Iterator[dict]:
    for i, m in enumerate(trace):
        what = m.label or "message"
        src = rows[m.src, m.lane]
        dst = rows[m.dst, m.lane]
        yield {
            "ph": "X",
            "pid": 0,
            "tid": src,
            "cat": "message",
            "name": f"{what} → {m.dst}",
            "ts": m.start * MICRO,
            "dur": (m.sent - m.start) * MICRO,
            "args": {"bytes": m.nbytes, "to": m.dst, "from": m.src},
        }
        flow = {"cat": "flow", "pid": 0, "name": what, "id": i}
        yield flow | {"ph": "s", "tid": src, "ts": m.start * MICRO}
        yield flow | {"ph": "f", "bp": "e", "tid": dst, "ts": m.arrived * MICRO}


def _spans(trace, rows: dict[tuple[int, str], int]) -> Iterator[dict]:
    for s in trace.spans:
        yield {
            "ph": "X",
            "pid": 0,
            "tid": rows[s.rank, s.lane],
            "cat": s.kind,
            "name": s.name,
            "ts": s.start * MICRO,
            "dur": (s.end - s.start) * MICRO,
        }


def _memory(trace) -> Iterator[dict]:
    found = {f"memory of rank {rank}, bytes": timeline for rank, timeline in trace.memory.items()}
    found |= {
        f"memory of rank {rank} on its host, bytes": there.memory
        for rank, there in trace.host.items()
    }
    for name, timeline in found.items():
        counter = {"ph": "C", "pid": 0, "name": name}
        columns = [live.tolist() for live in timeline.live.values()]
        for time, *held in zip(timeline.times.tolist(), *columns, strict=True):
            yield counter | {
                "ts": time * MICRO,
                "args": dict(zip(timeline.live, held, strict=True)),
            }


# ------------------------------------------------------------
# The trace itself: messages in packed rows, with the spans and the memory of the run.


def lane_of(channel: str) -> str:
    """The name under which a channel's messages are recorded: a lane's own, else "main"."""
    last = channel.rpartition("/")[2]
    return last if last.startswith("lane") else "main"


class Message(NamedTuple):
    """One message: its sender's wire was busy from `start` to `sent`; it was there at `arrived`.

    Times are seconds; `lane` is "main", or the lane of a `stream` job.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.zeros(2), dst=1, label="weights")
    ...     else:
    ...         comm.recv(torch.zeros(2), src=0, label="weights")
    >>> trace = World(2, alpha=3.0, beta=0.5).run(program).trace
    >>> [message] = trace
    >>> message  # 8 bytes, half a second each; 3 seconds on the way
    Message(src=0, dst=1, nbytes=8, start=0.0, sent=4.0, arrived=7.0, label='weights', lane='main')
    """

    src: int
    dst: int
    nbytes: int
    start: float
    sent: float
    arrived: float
    label: str | None
    lane: str


class Traffic(NamedTuple):
    """Of a link: how many messages, and their bytes.

    >>> from minidist.comm.trace import Traffic
    >>> Traffic(messages=2, nbytes=32)
    Traffic(messages=2, nbytes=32)
    """

    messages: int
    nbytes: int


_TYPES = "iiqiddd"  # of a packed row's numbers: struct and numpy use the same letters
_MESSAGE_ROW = Struct(f"={_TYPES}")
_COLUMNS = np.dtype(
    list(zip(("src", "dst", "nbytes", "word", "start", "sent", "arrived"), _TYPES, strict=True))
)
_AT_ONCE = 1 << 20  # messages that are looked at together


HEAD = ("start µs", "arrived µs", "from → to", "bytes", "label")


class Trace:
    """The messages, spans and memory of one run; iterate over it for the messages, in the order they started.

    spans: what ranks did when, Spans.  memory: {rank: Timeline}, live bytes where they were followed.
    host: {rank: OnHost}, what it had in the memory of its host, if anything, and the bytes copied.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> def program(comm):
    ...     all_reduce_(comm, torch.ones(6, dtype=torch.float32))
    >>> trace = World(3, alpha=1e-6, beta=0.0).run(program).trace
    >>> trace  # 4 messages of 8 bytes a rank
    Trace(3 ranks, 12 messages, 96 bytes)
    >>> [(message.src, message.dst, message.label) for message in trace][:3]
    [(0, 1, 'reduce-scatter'), (1, 2, 'reduce-scatter'), (2, 0, 'reduce-scatter')]
    """

    def __init__(self, n: int):
        self.n = n
        self._rows, self._words = bytearray(), Words()  # a word: (label, lane)
        self._sorted = True  # else they are to be put in order when they are looked at
        self.spans = Spans()
        self.memory: dict[int, Timeline] = {}
        self.host: dict[int, OnHost] = {}

    def add(self, src, dst, nbytes, start, sent, arrived, label=None, lane="main") -> None:
        """Note one message: bytes, seconds, the label and the lane, as in `Message`."""
        self._rows += _MESSAGE_ROW.pack(
            src, dst, nbytes, self._words[label, lane], start, sent, arrived
        )

    def merge(self, other: Trace) -> None:
        """Take over the records of another rank's trace."""
        for m in other:
            self.add(*m)
        for span in other.spans:
            self.spans.add(*span)
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
            self._rows = bytearray(rows.view(f"V{_MESSAGE_ROW.size}")[order])
        return self._rows

    def since(self, origin: float) -> None:
        """Count all times from `origin`, seconds, and put messages and spans into the order in which they started."""
        rows = self._columns()
        for column in ("start", "sent", "arrived"):
            rows[column] -= origin
        self._rows = bytearray(rows)
        self.sort()
        spans, self.spans = sorted(self.spans, key=lambda s: (s.start - origin, s.rank)), Spans()
        for rank, lane, kind, start, end, name in spans:
            self.spans.add(rank, lane, kind, start - origin, end - origin, name)
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
        return len(self._rows) // _MESSAGE_ROW.size

    def __iter__(self) -> Iterator[Message]:
        words = list(self._words)
        for row in _MESSAGE_ROW.iter_unpack(bytes(self._ordered())):
            src, dst, nbytes, word, start, sent, arrived = row
            yield Message(src, dst, nbytes, start, sent, arrived, *words[word])

    def __eq__(self, other) -> bool:
        same = isinstance(other, Trace) and list(self) == list(other) and self.spans == other.spans
        return same and self.memory == other.memory and self.host == other.host

    def bytes_sent(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Bytes sent by `rank`, or over `link=(src, dst)`, or by all.

        ValueError for a rank that is not in the trace.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import broadcast_
        >>> def program(comm):
        ...     broadcast_(comm, torch.zeros(10), algorithm="naive")  # 40 bytes to each
        >>> trace = World(4).run(program).trace
        >>> trace.bytes_sent(), trace.bytes_sent(rank=0), trace.bytes_sent(link=(0, 3))
        (120, 120, 40)
        """
        return int(self._chosen(rank, link)["nbytes"].sum())

    def messages(self, rank: int | None = None, link: tuple[int, int] | None = None) -> int:
        """Messages sent by `rank`, or over `link=(src, dst)`, or by all.

        ValueError for a rank that is not in the trace.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import all_reduce_
        >>> trace = World(4).run(lambda comm: all_reduce_(comm, torch.zeros(8)).sum()).trace
        >>> trace.messages(), trace.messages(rank=0), trace.messages(link=(0, 1))
        (24, 6, 6)
        """
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

    def traffic(self, windows: Sequence[tuple[float, float]]) -> dict[tuple[int, int], Traffic]:
        """What passed each link, by (src, dst), of the messages that started within their sender's window.

        windows: (first, end) seconds of each rank, the end left out. ValueError for another number of them than ranks.
        Takes a fixed amount of memory beside the trace, however many messages there are.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import all_reduce_
        >>> world = World(2)
        >>> results = world.run(lambda comm: all_reduce_(comm, torch.zeros(8)).sum())
        >>> world.trace.traffic([(0.0, world.time)] * 2)
        {(0, 1): Traffic(messages=2, nbytes=32), (1, 0): Traffic(messages=2, nbytes=32)}
        """
        if len(windows) != self.n:
            raise ValueError(f"{len(windows)} windows were given for {self.n} ranks")
        first, end = np.array(windows, dtype=np.float64).reshape(-1, 2).T
        messages = np.zeros(self.n**2, dtype=np.int64)
        nbytes = np.zeros(self.n**2, dtype=np.int64)
        for at in range(0, len(self), _AT_ONCE):
            count = min(_AT_ONCE, len(self) - at)
            rows = np.frombuffer(self._rows, _COLUMNS, count, at * _MESSAGE_ROW.size)
            src = rows["src"]
            rows = rows[(first[src] <= rows["start"]) & (rows["start"] < end[src])]
            links = rows["src"].astype(np.int64) * self.n + rows["dst"]
            messages += np.bincount(links, minlength=self.n**2)
            np.add.at(nbytes, links, rows["nbytes"])
        return {
            divmod(link, self.n): Traffic(int(messages[link]), int(nbytes[link]))
            for link in np.flatnonzero(messages).tolist()
        }

    def to_chrome(self, path: str) -> None:
        """Write the Trace Event format: open it at ui.perfetto.dev or chrome://tracing. µs there.

        >>> import json
        >>> import tempfile
        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import all_reduce_
        >>> results = World(2).run(lambda comm: all_reduce_(comm, torch.zeros(8)).sum())
        >>> with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        ...     results.trace.to_chrome(file.name)
        ...     events = json.load(file)["traceEvents"]
        >>> [event["name"] for event in events if event.get("cat") == "message"]
        ['reduce-scatter → 1', 'reduce-scatter → 0', 'all-gather → 1', 'all-gather → 0']
        """
        write(self, path)

    def table(self, most: int = 20) -> str:
        """The first `most` messages, a line each.

        Times are microseconds there.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm):
        ...     if comm.rank == 0:
        ...         comm.send(torch.zeros(1000), dst=1, label="activation")
        ...     else:
        ...         comm.recv(torch.zeros(1000), src=0, label="activation")
        >>> print(World(2, alpha=2e-6, beta=1e-9).run(program).trace.table())
        start µs arrived µs  from → to      bytes  label
            0.00       6.00  0 → 1          4,000  activation
        """
        rows = [
            f"{start:>10} {arrived:>10}  {link:<9} {nbytes:>10}  {label}".rstrip()
            for start, arrived, link, nbytes, label in (HEAD, *self._first(most))
        ]
        if len(self) > most:
            rows.append(f"… and {len(self) - most:,} more")
        return "\n".join(rows)

    __str__ = table

    def _first(self, most: int) -> Iterator[tuple[str, str, str, str, str]]:
        """The cells of the first messages, as `HEAD` names them."""
        for m in islice(self, most):
            start, arrived = f"{m.start * MICRO:.2f}", f"{m.arrived * MICRO:.2f}"
            yield start, arrived, f"{m.src} → {m.dst}", f"{m.nbytes:,}", m.label or ""

    def __repr__(self) -> str:
        return f"Trace({self.n} ranks, {self.messages():,} messages, {self.bytes_sent():,} bytes)"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in HEAD)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._first(20)
        )
        more = f"<p>… and {len(self) - 20:,} more</p>" if len(self) > 20 else ""
        return f"<table><tr>{head}</tr>{rows}</table>{more}"


class Results(list):
    """Each rank's result, in rank order; `.trace` and `.time` (seconds) of the run that made them.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.zeros(25), dst=1)
    ...     else:
    ...         comm.recv(torch.zeros(25), src=0)
    ...     return f"rank {comm.rank}"
    >>> results = World(2, alpha=1.0, beta=0.01).run(program)
    >>> results, results.time, results.trace.bytes_sent()
    (['rank 0', 'rank 1'], 2.0, 100)
    """

    def __init__(self, values, trace: Trace, time: float):
        super().__init__(values)
        self.trace, self.time = trace, time
