"""Where a run under torchrun hangs: which ranks wait in which call, and where the others are instead.

A World knows all of its ranks, and `launch` asks the processes that it has started. Under torchrun nobody does, and a
rank that waits in vain knows only itself. So here each rank has a thread that answers, whatever its program waits for:

    rank 0   all_reduce …………………………… waits longer than the timeout: asks ──┐
    rank 1   all_reduce …………………………… "in all_reduce, at train.py:31"  ◀─┤  through the store at which all ranks met
    rank 2   reads a file ………………………… "at train.py:12: batch = load()"  ◀─┘

PyTorch's flight recorder knows what calls there were: each process group notes its last 2,000 operations in a ring in
memory, with the line of the program, unless TORCH_FR_BUFFER_SIZE (its older name: TORCH_NCCL_TRACE_BUFFER_SIZE) is 0.
NCCL's watchdog writes it to a file for each rank before it ends a rank that has waited too long, and gloo's record can
be asked for. A dump is a pickle of plain values; anything else in it is refused here, not run.

    python -m minidist.comm --hang runs/one/trace_rank_       # reads runs/one/trace_rank_0, _1, …

Invariant: call number i of a group is the same call on all of its ranks. The first number that some rank is still in
is where the run hangs; whoever has not reached it, or has made another call there, is the cause.
Cost: one small request to the store for each rank and interval, which is a twentieth of the timeout, 5 s at most.
Source: "Flight Recorder for Debugging Stuck Jobs", PyTorch tutorials; the format is version 2.10, of PyTorch 2.13.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .program import line_of, located, outside

# ------------------------------------------------------------
# What a recorder says.


class Call(NamedTuple):
    """An operation of a process group.

    number: among the group's collectives, or among its sends and receives.  name: such as "all_reduce" or "send 0->1",
    by ranks of the group.  what: dtype and shape of its tensors.  place: the line of the program.  created: seconds.
    """

    group: str
    description: str
    between_two: bool
    number: int
    name: str
    what: str
    place: str
    over: bool
    created: float

    def __str__(self) -> str:
        return f"{self.name} of {self.what}" + (f" at {self.place}" if self.place else "")


class Report(NamedTuple):
    """What is known of a rank.  at: where its program stands, if it could say.  groups: the ranks of each group that it
    is in, as far as its recorder knows them."""

    at: str
    calls: list[Call]
    groups: dict[str, list[int]]


class _Plain(pickle.Unpickler):
    """Reads numbers, strings, lists and dictionaries: a pickle can name any function, and loading calls it."""

    def find_class(self, module: str, name: str):
        raise ValueError(f"a flight recorder's dump is plain values, and this one asks for {name}")


def unpacked(dump: bytes) -> dict[str, Any]:
    """Read a dump. Raises ValueError for anything else."""
    try:
        values = _Plain(io.BytesIO(dump)).load()
    except (pickle.UnpicklingError, EOFError, IndexError) as error:
        raise ValueError(f"this is not a flight recorder's dump: {error}") from None
    if not isinstance(values, dict) or "pg_config" not in values:
        raise ValueError("this is not a flight recorder's dump: it has no pg_config")
    return values


def report(dump: dict[str, Any], at: str = "") -> Report:
    """What a dump says of its rank."""
    entries = dump.get("entries", [])
    # of a batch of sends and receives, or of a coalesced collective, only the last entry, "coalesced", has an end
    ends = {_key(entry): _over(entry) for entry in entries if _is_end(entry)}
    members = {_key(entry) for entry in entries if not _is_end(entry)}
    calls = [
        _call(entry, ends.get(_key(entry), _over(entry)))
        for entry in entries
        if not (_is_end(entry) and _key(entry) in members)
    ]
    config = dump["pg_config"].items()
    return Report(at, calls, {name: json.loads(group["ranks"]) for name, group in config})


_ENDS = ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced")


def _is_end(entry: dict) -> bool:
    return entry["profiling_name"].partition(":")[2] in _ENDS


def _over(entry: dict) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"


def _key(entry: dict) -> tuple[str, str, bool, int]:
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    group, description = entry["process_group"]
    return group, description, entry["is_p2p"], number


def _call(entry: dict, over: bool) -> Call:
    name = entry["profiling_name"].partition(":")[2]
    side = "output" if name.startswith("recv") or not entry["input_sizes"] else "input"
    tensors = [
        f"{dtype} ({', '.join(map(str, sizes))})"
        for dtype, sizes in zip(entry[f"{side}_dtypes"], entry[f"{side}_sizes"], strict=True)
    ]
    what = tensors[0] if len(tensors) == 1 else f"{len(tensors)} tensors"
    frames = [
        (frame["filename"], frame["line"])
        for frame in entry.get("frames", [])
        if "/torch/distributed/" not in frame["filename"]
    ]
    place = outside(frames)
    created = entry["time_created_ns"] / 1e9
    line = located(*place) if place else ""
    group, description, between_two, number = _key(entry)
    return Call(group, description, between_two, number, name, what, line, over, created)


def recorded(lines: bool = False, at: str = "") -> Report:
    """What this process's own recorders say; lines: also where each call stands, for which PyTorch imports its compiler."""
    found = Report(at, [], {})
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # of NCCL's groups, and of all others
        dump = getattr(c10d, name, None)
        if dump is not None:
            part = report(unpacked(dump(True, lines, False)))
            found.calls.extend(part.calls)
            found.groups.update(part.groups)
    return found


def read(prefix: str) -> dict[int, Report]:
    """The dumps in files whose names are `prefix` and a rank. ValueError if there is none, or one is something else."""
    folder = Path(prefix).parent if not prefix.endswith("/") else Path(prefix)
    start = "" if prefix.endswith("/") else Path(prefix).name
    found = {}
    for path in sorted(folder.glob("*")):
        rank = re.fullmatch(r"(\d+)", path.name.removeprefix(start))
        if path.name.startswith(start) and rank:
            try:
                found[int(rank[1])] = report(unpacked(path.read_bytes()))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError(f"there is no dump {prefix}0, {prefix}1, …")
    return found


# ------------------------------------------------------------
# Who waits for whom.


def explain(reports: dict[int, Report], n: int) -> list[str]:
    """The calls that are not over, by the time of the first rank in each: who is in it, and where the others are.

    reports: of the ranks of which something is known.  n: number of all ranks.  Returns lines; none if nothing hangs.
    """
    groups = _members(reports, n)
    collectives: dict[tuple[str, str], list[Call]] = defaultdict(list)
    found: list[tuple[float, list[str]]] = []
    for rank, known in reports.items():
        for call in known.calls:
            if call.over:
                continue
            if call.between_two:
                found.append((call.created, _between_two(rank, call, reports, groups)))
            else:
                collectives[call.group, call.description].append(call)
    for name, calls in collectives.items():
        first = min(calls, key=lambda call: (call.number, call.created))
        found.append((first.created, _collective(first.number, name, reports, groups[name])))
    return [line for _, lines in sorted(found) for line in lines]


def _members(reports: dict[int, Report], n: int) -> dict[tuple[str, str], list[int]]:
    """The ranks of each group. Gloo's recorder may not say: then all ranks, or those that have called something."""
    groups: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, known in reports.items():
        for call in known.calls:
            name = call.group, call.description
            whole = range(n) if call.description == "default_pg" else [rank]
            groups[name].update(known.groups.get(call.group, whole))
    return {name: sorted(ranks) for name, ranks in groups.items()}


def _collective(
    number: int, name: tuple[str, str], reports: dict[int, Report], members: list[int]
) -> list[str]:
    """Lines about collective `number` of a group."""
    inside: dict[str, list[int]] = defaultdict(list)
    kinds, elsewhere = set(), []
    for rank in members:
        if rank not in reports:
            elsewhere.append(
                f"rank {rank} is not heard of: it has ended, or its process is stopped"
            )
            continue
        known = reports[rank]
        own = [call for call in known.calls if _name(call) == name and not call.between_two]
        here = [call for call in own if call.number == number]
        if here:
            call = here[0]
            kinds.add((call.name, "" if _uneven(call) else call.what))
            inside[f"{'through' if call.over else 'in'} {call}"].append(rank)
        elif any(call.number > number for call in own):
            inside["through it"].append(rank)
        else:
            elsewhere.append(_not_there(rank, known, own))
    differ = "; the ranks have made different calls" if len(kinds) > 1 else ""
    title = name[1] if name[1] not in ("", "undefined") else name[0]
    return [
        f"call {number} of group {title} is not over{differ}:",
        *(f"  {_ranks(ranks)} {what}" for what, ranks in inside.items()),
        *(f"  {line}" for line in elsewhere),
    ]


def _between_two(
    rank: int, call: Call, reports: dict[int, Report], groups: dict[tuple[str, str], list[int]]
) -> list[str]:
    """Lines about a send or a receive that is not over."""
    verb, ends = call.name.split(" ")
    first, second = (int(end) for end in re.findall(r"\d+", ends))
    arrow = f"recv {second}<-{first}" if verb == "send" else f"send {second}->{first}"
    peer = groups[_name(call)][second]
    title = f"rank {rank} is in {verb} {'to' if verb == 'send' else 'from'} rank {peer}"
    lines = [f"{title} of {call.what}" + (f" at {call.place}" if call.place else "") + ":"]
    if peer not in reports:
        return [*lines, f"  rank {peer} is not heard of: it has ended, or its process is stopped"]
    own = [c for c in reports[peer].calls if _name(c) == _name(call) and c.between_two]
    met = [other for other in own if other.name == arrow and not other.over]
    if met:
        return [*lines, f"  rank {peer} is in {met[0]}"]
    return [*lines, f"  {_not_there(peer, reports[peer], own)}"]


def _not_there(rank: int, known: Report, own: list[Call]) -> str:
    """A rank that has not come to a call. own: its calls of that group."""
    words = [f"rank {rank} has not come to it"]
    if own:
        words.append(f"its last call there is number {own[-1].number}, {own[-1]}")
    waiting = [call for call in known.calls if not call.over]
    if known.at:
        words.append(f"it is at {known.at}")
    elif waiting:
        words.append(f"it is in {waiting[0]}, of group {waiting[0].description}")
    return "; ".join(words)


def _name(call: Call) -> tuple[str, str]:
    return call.group, call.description


def _uneven(call: Call) -> bool:
    """Whether its ranks may have tensors of different shapes."""
    return call.name.startswith(("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter"))


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} are"


# ------------------------------------------------------------
# The thread of each rank that answers, and asks.


ASKED = (
    "minidist/hang"  # in the store: how often somebody has asked; with a rank: what it has answered
)
_RECENT = 20  # finished calls in an answer, at most


class Watch:
    """Answers for this rank, and asks for others.

    store: where all ranks have met.  timeout: seconds that a call may take.  tells: whether a call of the recorder that
    takes longer is reported on standard error; over NCCL nobody else would: the host waits for nothing.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: float, tells: bool):
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.interval = min(5.0, max(0.05, timeout / 20))
        # connections of their own: whoever waits for a key holds up all who share the connection
        self._store, self._asking = store.clone(), store.clone()  # type: ignore[attr-defined]
        self._tells = tells
        self._waited_at = ""  # where this rank has last waited in vain
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        heard = 0
        with contextlib.suppress(dist.DistError):  # the store is gone, and the run with it
            while not self._over.wait(self.interval):
                asked = self._store.add(ASKED, 0)
                if asked > heard:
                    heard = asked
                    self._answer(self._store, heard)
                if self._tells and self._late():
                    self._tells = False
                    self._tell()

    def stop(self) -> None:
        """This rank's program has returned: say so, and answer no more."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(dist.DistError):
            self._say(self._store, 2**62, Report("its end: its program has returned", [], {}))

    def _answer(self, store: dist.Store, number: int) -> None:
        lines = "torch._inductor" in sys.modules  # otherwise this takes too long
        known = recorded(lines, at=line_of(threading.main_thread()) or self._waited_at)
        calls = [call for call in known.calls if not call.over]
        kept = [call for call in known.calls[-_RECENT:] if call.over]
        self._say(
            store, number, known._replace(calls=sorted(kept + calls, key=lambda c: c.created))
        )

    def _say(self, store: dist.Store, number: int, known: Report) -> None:
        store.set(f"{ASKED}/{self.rank}", json.dumps([number, *known]))

    def ask(self, ranks: Iterable[int]) -> dict[int, Report]:
        """The answers of those of `ranks` that give one within two intervals and a second; of others what they said last:
        a rank that has waited in vain says where it is before it ends."""
        store = self._asking
        self._waited_at = line_of(threading.main_thread())
        number = store.add(ASKED, 1)
        self._answer(store, number)
        waited, answers = set(ranks) - {self.rank}, {}
        until = time.monotonic() + 2 * self.interval + 1
        while waited and time.monotonic() < until:
            for rank in sorted(waited):
                said, answer = self._said(rank)
                if said >= number:
                    answers[rank] = answer
                    waited.remove(rank)
            time.sleep(0.02)
        for rank in waited:
            said, answer = self._said(rank)
            if said:
                last = f"{answer.at} (so it said last: it does not answer any more)"
                answers[rank] = answer._replace(at=last)
        self._answer(store, store.add(ASKED, 0))  # this rank may end now, and others may have asked
        return answers

    def _said(self, rank: int) -> tuple[int, Report]:
        """The last answer of a rank, and its number; 0 if there is none."""
        if not self._asking.check([f"{ASKED}/{rank}"]):
            return 0, Report("", [], {})
        number, at, calls, groups = json.loads(self._asking.get(f"{ASKED}/{rank}"))
        return number, Report(at, [Call(*call) for call in calls], groups)

    def where(self, ranks: Iterable[int]) -> list[str]:
        """A line for each rank: where it is."""
        wanted = sorted(set(ranks) - {self.rank})
        answers = self.ask(wanted)
        places = {rank: answers[rank].at for rank in wanted if rank in answers}
        silent = "(it does not answer: it has ended, or its process is stopped)"
        return [f"  rank {rank} is at {places.get(rank) or silent}" for rank in wanted]

    def _late(self) -> bool:
        now = time.time()
        calls = recorded().calls
        return any(not call.over and now - call.created > self.timeout for call in calls)

    def explained(self) -> list[str]:
        """What all ranks are in."""
        answers = self.ask(range(self.size))
        own = recorded(lines=True)
        return explain(answers | {self.rank: own}, self.size)

    def _tell(self) -> None:
        lines = self.explained()
        head = f"rank {self.rank} has waited more than {self.timeout:g} s"
        print("\n".join([head, *lines]), file=sys.stderr, flush=True)
