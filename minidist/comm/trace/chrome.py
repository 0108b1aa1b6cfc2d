"""A trace as a file in the Trace Event format, for ui.perfetto.dev or chrome://tracing.

Each lane of a rank is a thread there, so what runs at once lies in rows of its own; messages are arrows between
rows; live memory is a counter for each rank, by category. Source: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

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
