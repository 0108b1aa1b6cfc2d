"""The exercise of lesson 01, The walls, about allocations and frees: the peak, when it is, and what stays."""

from __future__ import annotations

from itertools import accumulate

import torch

from minidist.comm.base import Comm

from ..exam import Case, ask
from ..wrong import Wrong
from . import oracle
from .figures import RETURN, Sheet, kind, whole

Event = tuple[str, int]
KINDS = {
    "step": "a training step of some layers",
    "random": "allocations and frees at random",
    "tie": "a peak that is reached twice",
    "empty": "all is freed in the end",
    "again": "names that come back with another size",
    "one": "one allocation",
    "long": "many events",
}


class Peak(Sheet):
    name = "peak"
    right = "10 lists of events: a training step, ties, names that come back, nothing left, secret lengths."
    cases = tuple(
        Case(1, words, kind) for kind, words in (*KINDS.items(), *tuple(KINDS.items())[:3])
    )

    def draw(self, case, rng):
        return [(DRAWN[case.given](rng),)]

    def run(self, comm: Comm, yours, events):
        return {"out": yours(events), "events": events}

    def judge(self, case, args, outcome):
        events, got = args[0][0], outcome.results[0]
        if got["events"] != events:
            raise Wrong("the list of events was changed, and belongs to the caller.")
        out = got["out"]
        if out is None:
            raise Wrong(f"the result is None. {RETURN}")
        if not isinstance(out, tuple | list) or len(out) != 3:
            raise Wrong(
                f"the result is {kind(out)}, and should be a tuple of three: most, when, left."
            )
        live = oracle.live(events)
        most = max(live)
        whole(out[0], most, "the peak", _peaks(events, live))
        whole(out[1], live.index(most), "when", _whens(live))
        _left(out[2], oracle.left(events), events)


def _peaks(events: list[Event], live: list[int]) -> dict[str, int]:
    sizes = [nbytes for _, nbytes in events]
    # when each came for the first time
    first = dict(zip(reversed(events), reversed(range(len(events))), strict=True))
    return {
        "That is all that was ever allocated: what is freed makes room.": sum(
            s for s in sizes if s > 0
        ),
        "That is the largest single tensor: the peak is the most that lives at one time.": max(
            sizes
        ),
        "That is what is left at the end, not the most there ever was.": live[-1],
        "That is the most before an event, and the last event counts, too.": max([0, *live[:-1]]),
        "Are frees added, not taken away?": max(accumulate(map(abs, sizes))),
        "It is as if nothing came back: a name that is freed and comes back counts again.": max(
            accumulate(s for i, (n, s) in enumerate(events) if first[n, s] == i)
        ),
        "It is the number of tensors that live, not their bytes.": max(
            accumulate(1 if s > 0 else -1 for s in sizes)
        ),
        "It is as if each name counted once, with its largest size.": sum(
            max(s for _, s in mine) for mine in _by_name(events).values()
        ),
    }


def _whens(live: list[int]) -> dict[str, int]:
    most = max(live)
    last = len(live) - 1 - live[::-1].index(most)
    return {
        "It is reached again there: the first time is asked for.": last,
        "Events are counted from 0.": live.index(most) + 1,
        "That is the event before: its own bytes are not there yet.": live.index(most) - 1,
        "That is the last event.": len(live) - 1,
        "That is how many events there are.": len(live),
        "That is the peak itself: the index of the event is asked for.": most,
    }


def _by_name(events: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event[0], []).append(event)
    return found


def _left(got, want: dict[str, int], events: list[Event]) -> None:
    if not isinstance(got, dict):
        if got == sum(want.values()) or got in (list(want), list(want.values())):
            raise Wrong("what is left is asked for by name: a dict, name → bytes.")
        raise Wrong(f"what is left is {kind(got)}, and should be a dict: name → bytes.")
    if got and not all(isinstance(name, str) for name in got):
        raise Wrong(
            f"what is left has the key {next(iter(got))!r}: names are the keys, bytes the values."
        )
    gone = sorted(name for name in got if name not in want)
    if gone:
        zero = " Its entry is 0: leave it out." if got[gone[0]] == 0 else " It was freed."
        raise Wrong(f"what is left has {gone[0]!r}, which is not there at the end.{zero}")
    came, missing = _by_name(events), sorted(name for name in want if name not in got)
    if missing:
        again = sum(s > 0 for _, s in came[missing[0]])
        hint = " It was freed, and came back." if again > 1 else " It was never freed."
        raise Wrong(f"what is left lacks {missing[0]!r}.{hint}")
    for name, nbytes in want.items():
        sizes = [s for _, s in came[name] if s > 0]
        looks = {
            "That is its size when it came for the first time.": sizes[0],
            "It is the sum of all its sizes: it was freed in between.": sum(sizes),
            "It is as if it came, and the free were the last that happened to it.": -sizes[-1],
            "It is 0: was it freed?": 0,
            f"Frees are not in it: it came {len(sizes)} times.": len(sizes),
        }
        whole(got[name], nbytes, f"what is left of {name!r}", looks)


# ------------------------------------------------------------------------------------------------ what is drawn
def _bytes(rng: torch.Generator) -> int:
    return 4 * int(torch.randint(1, 10**6, (), generator=rng))


def _count(rng: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=rng))


def _step(rng: torch.Generator) -> list[Event]:
    """Weights, then outputs in forward; in backward each output is freed as its gradient comes; then momentum."""
    layers = _count(rng, 3, 7)
    w, y = ([_bytes(rng) for _ in range(layers)] for _ in range(2))
    events = [(f"w{i}", w[i]) for i in range(layers)] + [(f"y{i}", y[i]) for i in range(layers)]
    for i in reversed(range(layers)):
        events += [(f"g{i}", w[i]), (f"y{i}", -y[i])]
    return [
        *events,
        ("buffer", max(w)),
        *[(f"m{i}", w[i]) for i in range(layers)],
        ("buffer", -max(w)),
    ]


def _random(rng: torch.Generator, count: int = 0) -> list[Event]:
    live: dict[str, int] = {}
    events = []
    for i in range(count or _count(rng, 12, 30)):
        names = sorted(live)
        if len(names) > 3 and _count(rng, 0, 2):
            name = names[_count(rng, 0, len(names))]
            events.append((name, -live.pop(name)))
        else:
            live[f"t{i}"] = _bytes(rng)
            events.append((f"t{i}", live[f"t{i}"]))
    return events


def _tie(rng: torch.Generator) -> list[Event]:
    a, b, c = (_bytes(rng) for _ in range(3))
    return [
        ("a", a),
        ("b", b + 4),
        ("c", c),
        ("b", -b - 4),
        ("d", b),
        ("d", -b),
        ("e", b + 4),
        ("c", -c),
    ]


def _empty(rng: torch.Generator) -> list[Event]:
    a, b, c = (_bytes(rng) for _ in range(3))
    return [("a", a), ("b", b), ("a", -a), ("c", c), ("c", -c), ("b", -b)]


def _again(rng: torch.Generator) -> list[Event]:
    """A loop that names its tensors alike in each turn; the last turn's stay."""
    x, h, keep = ([_bytes(rng) + 1000 * i for i in range(3)] for _ in range(3))
    turns = [
        [
            ("x", x[i]),
            ("h", h[i]),
            ("keep", keep[i]),
            ("h", -h[i]),
            ("x", -x[i]),
            ("keep", -keep[i]),
        ]
        for i in range(3)
    ]
    turns[2] = turns[2][:4]
    return [("w", _bytes(rng)), *(event for turn in turns for event in turn)]


DRAWN = {
    "step": _step,
    "random": _random,
    "tie": _tie,
    "empty": _empty,
    "again": _again,
    "one": lambda rng: [("w", _bytes(rng))],
    "long": lambda rng: _random(rng, 400),
}


def peak(yours) -> None:
    """`peak(events)`: the most bytes that live at once, the event that first reaches it, what is left at the end."""
    ask(Peak(), yours)
