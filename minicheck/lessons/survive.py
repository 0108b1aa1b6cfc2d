"""The exercises of lesson 26, Survive: how often to save to two places, a save that neither a power cut nor a full disk
can spoil, what is found again, a part of a tensor out of other parts, and the numbers of a large run."""

from __future__ import annotations

import errno
import json
import math
import pickle
from collections.abc import Callable, Iterator
from zlib import crc32

import torch
from torch import Tensor

from minidist.comm.base import CommError
from minidist.comm.world import World

from ..exam import (
    Case,
    Costly,
    Exam,
    Prediction,
    Report,
    Solo,
    Wrong,
    alike,
    attempt,
    bare,
    close,
    finished,
    formed,
    holds,
    integer,
    integers,
    near,
    normal,
    same,
    shuffled,
    typed,
    unpacked,
)
from ..oracles import survive as oracle

# ------------------------------------------------------------
# What can be wrong with a checkpoint: each function does it to one, in a dict of files.


def changed(name: str, change: Callable[[bytes], bytes]):
    """Other bytes in a file."""

    def damage(files, step):
        files[f"{step}/{name}"] = change(files[f"{step}/{name}"])

    return damage


def edited(**changes):
    """Other entries in a manifest that stays readable; None: the entry is gone."""

    def change(data):
        body = json.loads(data) | changes
        return json.dumps(
            {word: value for word, value in body.items() if value is not None}
        ).encode()

    return changed("manifest", change)


def _flipped(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 1
    return bytes(data)


def _older(files, step):
    """A step whose checkpoint is left as it is, before the damaged ones."""
    return sorted({int(name.split("/")[0]) for name in files} - {step})[1]


def _gone(files, step):
    del files[f"{step}/rank-1"]


def _unfinished(files, step):
    """What a good save leaves when the power fails before its last call."""
    files[f"{step}/manifest.partial"] = files.pop(f"{step}/manifest")


def _foreign(files, step):
    files[f"{step}/manifest"] = files[f"{_older(files, step)}/manifest"]


def _rank_unlisted(files, step):
    sums = json.loads(files[f"{step}/manifest"])["files"]
    edited(files=dict([*sums.items()][:-1]))(files, step)


def _elsewhere(files, step):
    """A manifest that names the parts of another checkpoint, which are whole."""
    older = _older(files, step)
    ranks = json.loads(files[f"{older}/manifest"])["ranks"]
    parts = [f"{older}/rank-{r}" for r in range(ranks)]
    edited(files={part: [len(files[part]), crc32(files[part])] for part in parts})(files, step)


def _two(files, step):
    for what in ("a part is cut off", "a bit of a part is flipped"):
        DAMAGE[what](files, step)


def _each(files, step):
    """Every part is damaged: the first ones flipped, one gone, the last one too long."""
    last = json.loads(files[f"{step}/manifest"])["ranks"] - 1
    for rank in range(last):
        changed(f"rank-{rank}", _flipped)(files, step)
    del files[f"{step}/rank-0"]
    changed(f"rank-{last}", lambda data: data + b"0")(files, step)


def _newer(files, step):
    """A manifest of a step that comes after its folder's."""
    edited(step=step + 1)(files, step)


def _emptied(files, step):
    """A part of no bytes, as the manifest says: it is whole."""
    sums = json.loads(files[f"{step}/manifest"])["files"]
    files[f"{step}/rank-1"] = b""
    edited(files=sums | {f"{step}/rank-1": [0, 0]})(files, step)


DAMAGE = {
    "nothing is wrong": edited(),
    "a part is cut off": changed("rank-0", lambda data: data[:-1]),
    "a bit of a part is flipped": changed("rank-1", _flipped),
    "a part is gone": _gone,
    "a save was not finished": _unfinished,
    "a manifest is cut off": changed("manifest", lambda data: data[:-7]),
    "a manifest of another step": _foreign,
    "a manifest that lists all ranks but one": _rank_unlisted,
    "a manifest that lists another step's parts": _elsewhere,
    "a manifest that was pickled": changed("manifest", lambda data: pickle.dumps(json.loads(data))),
    # Python that gives the right dictionary, and does something else on the way
    "a manifest that is a program": changed("manifest", lambda data: b"print('hello') or " + data),
    "a manifest that is a list": changed("manifest", lambda data: b'["step", "ranks", "files"]'),
    "two parts are damaged": _two,
    "every part is damaged": _each,
    "a manifest of a newer step": _newer,
    "a part of no bytes": _emptied,
}
DAMAGE |= {
    f"a manifest without {word}": edited(**{word: None}) for word in ("step", "ranks", "files")
}


# ------------------------------------------------------------
# A disk in memory that can lose its power after any call: what the exercises of lesson 26 save on.
#
#     write    the bytes are in a cache: a power cut leaves all of them, a part, or none
#     sync     now they are on the disk
#     rename   atomic, and safe at once: the new name has the file, a former one of that name is gone
#     remove   safe at once
#
# That is the least that file systems promise, and what makes rename before sync a mistake: the name survives, its bytes
# do not (Pillai et al. 2014, "All File Systems Are Not Created Equal"). A real disk asks for an fsync of the folder too.


CHANGES = ("write", "sync", "rename", "remove")
FULL = "no room"
KEPT = (0.0, 0.5, 1.0)  # of what was not synced


class Disk:
    """Files by name, as rank `rank` sees them; all handles of one disk share `files` and `log`.

    log: [rank, call, name, what] of each call; what: the bytes as latin-1, or the new name.  full: (rank, first, end):
    of that rank's writes those from the first to before the end find no room.
    """

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        rank: int = 0,
        log: list | None = None,
        full: tuple[int, int, int] | None = None,
    ):
        self.files, self.rank = {} if files is None else files, rank
        self.log = [] if log is None else log
        self.full = full
        self.begun = dict(self.files)

    def of(self, rank: int) -> Disk:
        """The same disk, as another rank sees it."""
        other = type(self)(self.files, rank, self.log, self.full)
        other.begun = self.begun
        return other

    def write(self, name: str, data: bytes) -> None:
        """A file of these bytes; a former one of that name is gone. OSError where there is no room, and nothing changes."""
        tried = sum(rank == self.rank and call in ("write", FULL) for rank, call, *_ in self.log)
        if self.full and self.full[0] == self.rank and tried in range(*self.full[1:]):
            self._note(FULL, name)
            raise OSError(errno.ENOSPC, f"no room for {name}")
        self._note("write", name, bytes(data).decode("latin-1"))
        self.files[name] = bytes(data)

    def sync(self, name: str) -> None:
        """Return when the file's bytes are on the disk. KeyError if there is none."""
        self._there(name)
        self._note("sync", name)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once. KeyError if there is none."""
        self._there(old)
        self._note("rename", old, str(new))
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        """KeyError if there is none."""
        self._there(name)
        self._note("remove", name)
        del self.files[name]

    def names(self) -> list[str]:
        """Of all files, in order."""
        return sorted(self.files)

    def size(self, name: str) -> int:
        """Bytes of a file, without reading it. KeyError if there is none."""
        self._there(name)
        return len(self.files[name])

    def read(self, name: str) -> bytes:
        """All bytes of a file. KeyError if there is none."""
        self._there(name)
        self._note("read", name)
        return self.files[name]

    def crashes(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """What a power cut after each call may leave: (the call, {name: bytes})."""
        changes = [one for one in self.log if one[1] in CHANGES]
        for calls in range(len(changes) + 1):
            for kept in KEPT:
                yield said(changes, calls), crashed(self.begun, changes[:calls], kept)

    def _there(self, name: str) -> None:
        if name not in self.files:
            raise KeyError(f"no file {name!r} is on the disk")

    def _note(self, call: str, name: str, what: str = "") -> None:
        if not isinstance(name, str):
            raise TypeError(f"a file's name is a str, not {type(name).__name__}")
        self.log.append([self.rank, call, name, what])


def watched(files: dict[str, bytes], full: tuple[int, int, int] | None = None) -> tuple[Disk, list]:
    """A disk for an answer, and a log that the disk does not hold, as an answer could rewrite its own."""
    noted: list = []

    class Watched(Disk):
        def _note(self, call: str, name: str, what: str = "") -> None:
            super()._note(call, name, what)
            noted.append([self.rank, call, str(name), what])

    return Watched(files, full=full), noted


def honest(log) -> list:
    """A log as `watched` writes it; Wrong for what is none."""
    if not isinstance(log, list) or not formed(log, [(int, str, str, str)]):
        raise Wrong("the list of calls is not what the disk wrote.")
    return log


def crashed(begun: dict[str, bytes], log: list, kept: float) -> dict[str, bytes]:
    """The files after these calls and a power cut that leaves a share `kept` of each file that was not synced."""
    held = {name: [data, True] for name, data in begun.items()}
    for _, call, name, what in log:
        if call == "write":
            held[name] = [what.encode("latin-1"), False]
        elif call == "sync":
            held[name][1] = True
        elif call == "rename":
            held[what] = held.pop(name)
        elif call == "remove":
            del held[name]
    return {
        name: data if safe else data[: int(kept * len(data))] for name, (data, safe) in held.items()
    }


def said(log: list, calls: int) -> str:
    """The last of so many calls, in words."""
    if not calls:
        return "before the first call"
    rank, call, name, what = log[calls - 1]
    return f"after rank {rank}'s {call} of {name}" + f" to {what}" * (call == "rename")


# ------------------------------------------------------------
# Time: how often to save, and what failures then cost.


ORACLE = "minicheck.oracles.survive"
FORBIDDEN = (
    "minidist.train",
    "minidist.checkpoint",
    "minidist.collectives",
    "minidist.parallel",
    ORACLE,
)


FORMULAS = (
    "Of each place: √(2·cost·M), and cost/seconds + (seconds/2 + restart)/M, with M the mean seconds between the failures "
    "that restart from there. `lost` is the sum of both."
)


class SaveEvery(Solo):
    """`save_every(memory, disk, node_hours, nodes, all_hours)`: seconds between saves to each, and the share lost."""

    name = "save_every"
    right = "23 clusters, of one node to 40,000: the intervals of both places, and the share of the time that is lost."
    forbidden = FORBIDDEN
    cases = (
        *(Case(1, f"cluster {i + 1} of 20") for i in range(20)),
        Case(1, "three nodes", ((2.0, 100.0), (50.0, 500.0), 4e3, 3, 900.0)),
        Case(
            1,
            "a cluster that does nothing but restart",
            ((300.0, 1200.0), (400.0, 1800.0), 5e3, 40_000, 200.0),
        ),
        Case(
            1,
            "one node, and a power failure every day",
            ((5.0, 20.0), (20.0, 400.0), 1e5, 1, 24.0),
        ),
    )

    def draw(self, case, rng):
        draw = lambda low, high: (
            float(torch.rand((), generator=rng, dtype=torch.float64)) * (high - low) + low
        )
        places = (draw(0.5, 5), draw(10, 300)), (draw(20, 300), draw(400, 1800))
        drawn = *places, draw(5e3, 1e5), int(draw(1, 4000)), draw(100, 2000)
        return [case.given or drawn]

    returns = ("memory_seconds", "disk_seconds", "lost")

    def wants(self, case, args):
        return [dict(zip(self.returns, oracle.intervals(*args[0])))]

    def value(self, case, args, rank, name, got, want):
        close(got, want, name, _slips(name, *args[0]), FORMULAS)


def _slips(name, memory, disk, node_hours, nodes, all_hours):
    nodes_fail, all_fail = node_hours * 3600 / nodes, all_hours * 3600
    both = 1 / (1 / nodes_fail + 1 / all_fail)
    *every, lost = oracle.intervals(memory, disk, node_hours, nodes, all_hours)
    places = list(zip((memory, disk), every, (nodes_fail, all_fail)))
    if name != "lost":
        disks = name == "disk_seconds"
        (cost, _), seconds, between = places[disks]
        (other_cost, _), other, other_between = places[not disks]
        young = lambda cost, M: math.sqrt(2 * cost * M)
        return {
            "That is for one node: with n of them something fails n times as often.": seconds
            * nodes**0.5,
            "With more nodes something fails more often, not less.": seconds * nodes,
            "What takes everything comes as seldom with many nodes as with few.": seconds
            / nodes**0.5,
            "Hours are 3600 seconds.": seconds / 60,
            "The 2 under the root is missing.": seconds / 2**0.5,
            "The root is missing.": seconds**2,
            "That is M itself. The interval may be longer: then little gets done.": between,
            "That is Young's interval for all failures together, as with one place to save to. A save to memory is of no "
            "use when all is lost, and one to the disk of none when memory is there.": young(
                cost, both
            ),
            "That is the other place's.": other,
            "That is this place's save, and the failures that restart from the other.": young(
                cost, other_between
            ),
            "That is the other place's save, and the failures that restart from this one.": young(
                other_cost, between
            ),
        }
    saves = sum(cost / seconds for (cost, _), seconds, _ in places)
    again = sum(seconds / 2 / between for _, seconds, between in places)
    restarts = sum(restart / between for (_, restart), _, between in places)
    alone = [c / t + (t / 2 + restart) / between for (c, restart), t, between in places]
    return {
        "A failure loses half an interval on average, not all of it.": lost + again,
        "The restarts are missing.": lost - restarts,
        "Memory's restarts are missing.": lost - memory[1] / nodes_fail,
        "The disk's restarts are missing.": lost - disk[1] / all_fail,
        "The saves themselves take time, too: cost in every interval.": lost - saves,
        "That is what memory's saves and failures take: those of the disk come on top.": alone[0],
        "That is what the disk's saves and failures take: those of memory come on top.": alone[1],
        "Each failure restarts from its own place: a node's from memory.": lost
        + (disk[1] - memory[1]) / nodes_fail,
        "A share of the time is asked for, not percent.": 100 * lost,
        "It may be more than 1: then more is lost than there is, and the run never ends.": 1.0,
    }


# ------------------------------------------------------------
# Saving: every rank its part, the manifest last, and a power cut after every call.
#
# What the ranks did to the disk is written down, call by call; here it is done again, up to each call, then the power is
# cut: of what was not synced all, a half, or nothing is left. Whatever is found then must be the checkpoint that was
# there, or the new one, whole.


EMPTY, EAGER = (
    "empty",
    "eager",
)  # a part that is, sends that are; else: whose writes find no room, from which on, up to which
RETURNED = "returned"
SMALL = 64  # bytes of a message that tells a size and a checksum, and more


def random_bytes(size: int, rng: torch.Generator) -> bytes:
    return bytes(integers(rng, 0, 256, size))


class SaveParts(Exam):
    """`save_parts(comm, disk, step, data)`: a checkpoint of all ranks' data, whole or not at all."""

    name = "save_parts"
    right = (
        "n = 1…4, a power cut after every call with all, half and none of what was not synced; a full disk on each rank, "
        "for its part and for the manifest; 3 real processes."
    )
    forbidden = FORBIDDEN
    shared: tuple[Disk, list] | None = None  # of a World, whose ranks have one disk
    cases = (
        Case(3, "n = 3"),
        Case(1, "n = 1"),
        Case(2, "n = 2"),
        Case(3, "n = 3, an empty part", EMPTY),
        Case(4, "n = 4, and no send waits until it is received", EAGER),
        Case(3, "n = 3, no room for rank 1's part", (1, 0, 9)),
        Case(3, "n = 3, no room for rank 2's part", (2, 0, 9)),
        Case(3, "n = 3, no room for rank 0's part", (0, 0, 1)),
        Case(3, "n = 3, no room for the manifest", (0, 1, 9)),
        Case(1, "n = 1, no room for the manifest", (0, 1, 9)),
    )
    processes = (Case(3, "3 real processes"),)

    def draw(self, case, rng):
        sizes = integers(rng, 200, 1500, case.n)
        sizes = [0 if case.given == EMPTY and r == 1 else size for r, size in enumerate(sizes)]
        old, new = (1 + torch.randperm(900, generator=rng)[:2]).sort().values.tolist()
        before = oracle.checkpoint(old, [random_bytes(30, rng) for _ in range(case.n)])
        before[f"{new + 1}/rank-0"] = before[f"{new + 1}/manifest.partial"] = b"not finished"
        there = {name: data.decode("latin-1") for name, data in before.items()}
        eager, full = case.given == EAGER, case.given if isinstance(case.given, tuple) else None
        return [
            (random_bytes(size, rng).decode("latin-1"), there, new, eager, full) for size in sizes
        ]

    def world(self, n, args):
        _, there, _, eager, full = args[0]
        self.shared = watched(_bytes(there), full)
        return World(n, rendezvous=not eager)

    def run(self, comm, yours, part, there, step, eager, full):
        disk, log = self.shared or watched(_bytes(there))
        end = RETURNED
        try:
            yours(comm, disk.of(comm.rank), step, part.encode("latin-1"))
        except OSError as error:
            if not full or isinstance(error, CommError):
                raise
            end = "raised"
        if not eager:
            finished(comm)
        log.append([comm.rank, end, "", ""])
        return log

    def judge(self, case, args, outcome):
        parts, (_, there, step, _, full) = [part.encode("latin-1") for part, *_ in args], args[0]
        before, shared = _bytes(there), case not in self.processes
        # which of several was first is not known
        logs = outcome.results[:1] if shared else outcome.results[::-1]
        log = [entry for own in logs for entry in honest(own)]
        changes = [entry for entry in log if entry[1] in CHANGES]
        _replayed(before, changes)
        one, name = oracle.checkpoint(step, parts), f"{step}/manifest"
        for calls in range(len(changes) + 1):
            for kept in KEPT:
                left, when = (
                    crashed(before, changes[:calls], kept),
                    f"if the power is cut {said(changes, calls)}",
                )
                _old(left, before, name, when)
                if full and name in left:
                    raise Wrong(
                        f"{when}, {name} is there. Where a write failed, nothing was saved: no rank may find it."
                    )
                _new(left, one, name, when)
        if full:
            _raised(log)
            _check_messages(case, outcome, full)
            return
        if name not in crashed(before, changes, 0.0):
            raise Wrong(
                f"when all have returned, there is no {name}: nobody will look at the parts."
            )
        _who(case.n, parts, changes)
        _when(log, name, shared)
        _check_messages(case, outcome)


def _raised(log):
    """Raise Wrong unless each rank has raised OSError."""
    for rank, call, *_ in log:
        if call == RETURNED:
            raise Wrong(
                f"rank {rank} returned, so to it the step was saved. If a write fails anywhere, OSError is "
                "raised on every rank: let rank 0 hear of it, and tell all whether all went well."
            )


def _bytes(there):
    return {name: data.encode("latin-1") for name, data in there.items()}


def _replayed(before, changes):
    """Raise Wrong where what was written down cannot have happened."""
    try:
        crashed(before, changes, 1.0)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Wrong(
            "a file was used that no call has written: the disk is changed by its methods alone."
        ) from None


def _old(left, before, name, when):
    """Raise Wrong unless what was there is left, and no manifest of a third checkpoint."""
    for kept, data in before.items():
        if left.get(kept) != data:
            raise Wrong(
                f"{when}, {kept} is {'gone' if kept not in left else 'changed'}: files that were there are not touched. A "
                "checkpoint must stay as it is until the next one is finished, and after."
            )
    third = next(
        (other for other in left if other.endswith("/manifest") and other not in [name, *before]),
        None,
    )
    if third:
        raise Wrong(
            f"{when}, there is {third}, and the step is {name.split('/')[0]}: who looks for checkpoints takes "
            "it for another one's manifest. Until the last call, call it otherwise."
        )


def _new(left, one, name, when):
    """Raise Wrong unless the new checkpoint is whole, or has no manifest."""
    if name not in left:
        return
    body = oracle.manifest(left[name])
    if body is None and _json(left[name]):
        text = left[name][:99].decode(errors="replace")
        raise Wrong(
            f'{name} is JSON, and not of the form that was asked for: "step" and "ranks" whole numbers, '
            f'"files" {{name: [bytes, crc32]}} of whole numbers: {text}'
        )
    if body is None:
        raise Wrong(
            f"{when}, {name} is no manifest ({len(left[name])} bytes: {left[name][:40]!r}…). Its name must not "
            "appear before all of its bytes are there: write under another name, sync, rename."
        )
    _compare(body, oracle.manifest(one[name]), when)
    for part, data in one.items():
        if part != name and left.get(part) != data:
            have = f"has {len(left[part])} of {len(data)} bytes" if part in left else "is not there"
            raise Wrong(
                f"{when}, the manifest is there, and {part} {have}. The manifest comes last: when every rank's "
                "part has been written and synced, under its final name."
            )


def _json(data):
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _compare(body, want, when):
    """Raise Wrong unless a manifest says what it should."""
    for word in ("step", "ranks"):
        if body[word] != want[word]:
            raise Wrong(f"the manifest's {word!r} is {body[word]}, and should be {want[word]}.")
    if body["files"].keys() != want["files"].keys():
        raise Wrong(
            f"the manifest's files are {sorted(body['files'])}, and should be {sorted(want['files'])}."
        )
    for part, sums in want["files"].items():
        found = list(body["files"][part])
        if found != sums:
            in_float32 = torch.tensor(sums, dtype=torch.float32).tolist()
            why = " That is what float32 keeps of them: send int64." if found == in_float32 else ""
            raise Wrong(
                f"{when}, the manifest says {body['files'][part]} of {part}: its bytes and zlib.crc32 of them are "
                f"{sums}.{why}"
            )


def _who(n, parts, changes):
    """Raise Wrong unless each rank has written its own part, once, and no other's."""
    for rank in range(n):
        own = [
            what.encode("latin-1") for r, call, _, what in changes if r == rank and call == "write"
        ]
        if parts[rank] not in own:
            raise Wrong(
                f"rank {rank} has not written its own part: the ranks write at the same time, each its own."
            )
        if len(own) > 1 + (rank == 0):
            raise Wrong(
                f"rank {rank} has written {len(own)} files: its own part, once, is enough, and the manifest, which is "
                "rank 0's."
            )


def _when(log, name, shared):
    """Raise Wrong where a rank returned before the manifest had its name."""
    place = [i for i, (_, call, _, what) in enumerate(log) if call == "rename" and what == name]
    early = [
        rank
        for i, (rank, call, *_) in enumerate(log)
        if call == RETURNED and place and i < place[0]
    ]
    if shared and early:
        raise Wrong(
            f"rank {early[0]} returned before the manifest had its name: to it the step was saved, and a power "
            "cut then shows that it was not. Let rank 0 tell the others when it is done."
        )


def _check_messages(case, outcome, full=None):
    n = case.n
    for src, dst, nbytes in outcome.sent:
        if nbytes > SMALL:
            raise Wrong(
                f"rank {src} sends {nbytes} bytes to rank {dst}: parts go to the disk, and only their sizes "
                "and checksums over the network."
            )
    few = full and outcome.messages() < 2 * (n - 1)  # who gives up early may send less
    if outcome.messages() != 2 * (n - 1) and not few:
        raise Wrong(
            f"{outcome.messages()} messages were sent; 2(n−1) = {2 * (n - 1)} are enough: each rank tells rank "
            "0, and rank 0 tells each."
        )


# ------------------------------------------------------------
# Finding: the newest checkpoint that is whole, and why the others are not used.


class Newest(Report):
    """`newest(disk)`: the newest whole checkpoint's step, and what is wrong with the files of those after it."""

    name = "newest"
    right = "18 kinds of damage to the newest, to the two newest, and to all: each named; nothing read twice."
    forbidden = FORBIDDEN
    cases = (
        *(Case(1, what, (what,)) for what in DAMAGE),
        Case(1, "an empty disk"),
        Case(1, "the two newest are damaged", ("a bit of a part is flipped",) * 2),
        Case(1, "all are damaged", ("a part is cut off",) * 4),
    )

    def draw(self, case, rng):
        steps, files = _steps(rng) if case.given else [], {}
        for step in steps:
            ranks = integer(rng, 2, 6) if case.what != "every part is damaged" else 12
            files |= oracle.checkpoint(
                step,
                [random_bytes(integer(rng, 40, 80), rng) for _ in range(ranks)],
            )
        for what, step in zip(case.given or (), steps):
            DAMAGE[what](files, step)
        return [({name: data.decode("latin-1") for name, data in files.items()},)]

    def run(self, comm, yours, files):
        disk, log = watched(_bytes(files))
        return {"found": yours(disk), "log": log}

    def check(self, case, report, files):
        files = _bytes(files)
        got, log = report["found"], honest(report["log"])
        want, refused = oracle.newest(files)
        step, said = unpacked(bare(got), ("step or None", "{file: what is wrong}")).values()
        typed(said, dict, "the second", "a dict, {file: what is wrong}")
        if type(step) not in (int, type(None)) or step != want:
            raise Wrong(
                f"the newest whole checkpoint is {want}, not {step!r:.60}. {_look(step, files, refused)}"
            )
        for name in [*refused, *said]:
            if not isinstance(name, str):
                raise Wrong(
                    f"{name!r:.60} is a key of the dict: its keys are names of files, such as '50/rank-0'."
                )
            word = said.get(name)
            if type(word) not in (str, type(None)) or word != refused.get(name):
                raise Wrong(
                    f"of {name:.60} it says {word!r:.60}, and should {refused.get(name)!r}. "
                    f"{_means(name, refused.get(name), files)}"
                )
        _check_reads(log, files, want, refused)


def _steps(rng):
    """Four steps, the newest first; as words, the oldest comes after all others."""
    within = lambda low, high, n: (low + torch.randperm(high - low, generator=rng)[:n]).tolist()
    return [*within(100, 200, 1), *sorted(within(10, 100, 2), reverse=True), *within(2, 10, 1)]


def _check_reads(log, files, want, refused):
    """Raise Wrong if a file was changed, or not read as it should be."""
    read = [name for _, call, name, _ in log if call == "read"]
    changed = [name for _, call, name, _ in log if call in CHANGES]
    twice = next((name for name in read if read.count(name) > 1), None)
    if changed:
        raise Wrong(
            f"the answers are right, but {changed[0]} was changed: looking changes nothing."
        )
    if twice:
        raise Costly(
            f"the answers are right, but {twice} was read {read.count(twice)} times: a checkpoint has TB."
        )
    for name in files:
        step, what = name.split("/")
        manifest = refused.get(f"{step}/manifest")
        if int(step) == want and name not in read:
            raise Wrong(
                f"the answers are right, but {name} was never read with disk.read: {want} is whole if each "
                "file of it is."
            )
        why = ""
        if want is not None and int(step) < want:
            why = f"the search ends at {want}, the newest that is whole"
        if what != "manifest" and manifest:
            why = f"the manifest is {manifest}, so that its parts are not looked at"
        if refused.get(name) == "size":
            why = "disk.size tells without reading that it is cut"
        if why and name in read:
            raise Wrong(f"the answers are right, but {name} was read: {why}.")


def _look(got, files, refused):
    if got is None:
        return "Is an older one looked at when the newest is damaged?"
    if not isinstance(got, int):
        return "A step is an int."
    if f"{got}/manifest" not in files:
        return "That one has no manifest: it was never finished."
    wrong = {name: why for name, why in refused.items() if name.startswith(f"{got}/")}
    if wrong:
        name, why = next(iter(wrong.items()))
        return f"In {got} something is wrong: {name} ({why}). {_means(name, why, files)}"
    if b"" in files.values():
        return "In the newest a part has no bytes, as its manifest says: it is whole."
    return "Compare steps as numbers: as words, '9' comes after '100'."


def _means(name, why, files):
    if why is None:
        return (
            "An unfinished save is no damaged one: it is not mentioned."
            if name.split("/")[0] + "/manifest" not in files
            else "That file is whole, or nobody had to look at it."
        )
    return {
        "missing": 'Each rank below "ranks" has a part, step/rank-r: named in the manifest, and on the disk.',
        "size": "Its size is not the manifest's.",
        "checksum": "Its size is right; zlib.crc32 of it is not.",
        "foreign": 'It is readable, and its "step" is not that of its folder.',
        "damaged": "It is no JSON with step, ranks and files. (Whoever runs or unpickles it might not see that, "
        "and does what it says.)",
    }[why]


# ------------------------------------------------------------
# Resharding: a part of a matrix, put together from the parts that were saved.


Box = tuple[tuple[int, int], tuple[int, int]]  # rows, columns


def cells(shape: tuple[int, int], down: int, across: int) -> list[Box]:
    """A matrix cut into down × across parts, as equal as they can be."""
    cut = lambda size, n: [(size * i // n, size * (i + 1) // n) for i in range(n)]
    return [(rows, columns) for rows in cut(shape[0], down) for columns in cut(shape[1], across)]


class LoadBox(Report):
    """`load_box(wanted, files, read)`: a part of a matrix, from the files that have parts of it."""

    name = "load_box"
    right = "10 pairs of grids, uneven, with replicas and holes, and nan: right numbers, and no byte is read in vain."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            1,
            f"saved on {a} × {b}, wanted on {c} × {d}{', each part twice' * (k > 1)}"
            f"{', a part missing' * hole}",
            ((a, b), (c, d), k, hole),
        )
        for a, b, c, d, k, hole in (
            (2, 1, 1, 1, 1, 0),
            (1, 1, 2, 2, 1, 0),
            (2, 2, 3, 3, 1, 0),
            (3, 1, 1, 3, 1, 0),
            (7, 1, 2, 1, 1, 0),
            (2, 2, 2, 2, 1, 0),
            (2, 2, 3, 1, 3, 0),
            (2, 2, 1, 1, 1, 1),
            (3, 2, 2, 1, 2, 1),
            (3, 3, 1, 1, 1, 1),
        )
    )

    def draw(self, case, rng):
        saved, wanted, copies, hole = case.given
        one_of = lambda n: integer(rng, 0, n)
        shape = 7 + one_of(6), 10 + one_of(7)
        parts, boxes = cells(shape, *saved), cells(shape, *wanted)
        lost = len(parts) // 2 if hole else None  # at a corner, at a side, in the middle
        kept = [(i, box) for i, box in enumerate(parts) if i != lost]
        files = [(f"rank-{k * len(parts) + i}", box) for k in range(copies) for i, box in kept]
        order = shuffled(rng, len(files))
        matrix = numbers(shape, rng)
        matrix[one_of(shape[0]), one_of(shape[1])] = math.nan
        return [(matrix, dict(files[i] for i in order), boxes)]

    def run(self, comm, yours, matrix, files, boxes):
        found = []
        for held, box in self._asked(matrix, boxes):
            read, log = reader(held, files)
            mine = dict(files)
            report = attempt(True, yours, box, mine, read)
            found.append((report | {"same": mine == files}, log))
        return found

    def check(self, case, found, matrix, files, boxes):
        asked = self._asked(matrix, boxes)
        if len(found) != len(asked):
            raise Wrong("not every box was asked for.")
        for i, ((held, box), (got, log)) in enumerate(zip(asked, found, strict=True)):
            where = f"box {_said(box)}: "
            covered = any_covered(box, files)
            if "refused" in got:
                if covered:
                    why = ""
                    if held[slice(*box[0]), slice(*box[1])].isnan().any():
                        why = " A number that was saved may be nan: count what you have filled."
                    if i == len(boxes):  # the same box went well the first time
                        why = " The box is asked for a second time: keep nothing from one call to the next."
                    words = f": {got['refused']}" if got["refused"] else ""
                    raise Wrong(f"{where}raised ValueError{words}. It is all there.{why}")
                continue
            if not covered:
                raise Wrong(
                    f"{where}no file has all of it, and there is no ValueError: numbers that nobody saved "
                    "would be trained on."
                )
            holds(got, {"same": "`files` was changed, and belongs to the caller."}, where)
            _values(where, got["value"], held[slice(*box[0]), slice(*box[1])])
            _reads(where, box, files, log)

    def _asked(self, matrix, boxes):
        """At the end the first box again, of other numbers: nothing is known from before."""
        return [*((matrix, box) for box in boxes), (-matrix, boxes[0])]


def numbers(shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Random numbers, among them zeros and -1s: no value tells that something is missing."""
    drawn, kind = (
        normal(rng, shape),
        torch.randint(6, shape, generator=rng),
    )
    return drawn.where(kind > 1, 0.0 - kind.double())


def reader(matrix: Tensor, files: dict[str, Box]):
    """`read` for an answer, and the list of what was read."""
    log: list = []

    def read(name, rows, columns):
        log.append([name, tuple(rows), tuple(columns)])
        (top, bottom), (left, right) = files[name]
        part = matrix[top:bottom, left:right]
        if min(*rows, *columns) < 0 or rows[1] > bottom - top or columns[1] > right - left:
            raise IndexError(
                f"rows {tuple(rows)} and columns {tuple(columns)} of {name}, which has {bottom - top} × {right - left}: "
                "they count from where its box begins"
            )
        return part[rows[0] : rows[1], columns[0] : columns[1]].clone()

    return read, log


def _said(box):
    return f"[{box[0][0]}:{box[0][1]}, {box[1][0]}:{box[1][1]}]"


def common(one: Box, other: Box) -> Box:
    """What two boxes share; of a size of 0 or below where they do not meet."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def area(box: Box) -> int:
    return max(0, box[0][1] - box[0][0]) * max(0, box[1][1] - box[1][0])


def any_covered(box: Box, files: dict[str, Box]) -> bool:
    """Whether files, equal or apart, have all of a box."""
    return sum(area(common(box, one)) for one in set(files.values())) == area(box)


BEGINS = (
    "Rows and columns for `read` count from where the file's box begins, the place in your tensor from where the "
    "wanted box begins. Or was nothing put there?"
)


def _values(where, got, want):
    looks = {
        "It is what float32 keeps of it.": want.float().double(),
        "It is what a whole number keeps of it.": want.trunc(),
        "It is zero: was nothing put there?": 0 * want,
        "It is what this box had before, when it was asked for the first time: keep nothing.": -want,
    }
    alike(got, want, f"{where}the tensor")
    if not near(got, want, 0.0):  # a nan stands where it stood
        same(got, want, f"{where}the tensor", looks, BEGINS)


def _reads(where, box, files, log):
    """Raise Wrong for reads of nothing, outside of a file, or of more than is needed."""
    size = 0
    try:
        reads = [
            (name, files[name], tuple(map(int, rows)), tuple(map(int, columns)))
            for name, rows, columns in log
        ]
    except (KeyError, TypeError, ValueError):
        raise Wrong(f"{where}the list of what was read is not what `read` wrote.") from None
    for name, ((top, bottom), (left, right)), rows, columns in reads:
        if not (
            0 <= rows[0] <= rows[1] <= bottom - top
            and 0 <= columns[0] <= columns[1] <= right - left
        ):
            raise Wrong(
                f"{where}rows {rows} and columns {columns} of {name} were read, which has {bottom - top} × "
                f"{right - left}."
            )
        if not area((rows, columns)):
            raise Wrong(f"{where}{name} was opened, and nothing of it is wanted.")
        size += area((rows, columns))
    if size != area(box):
        more = (
            "What was read before is not to be kept: files change."
            if size < area(box)
            else "What several files have is read once."
            if len(set(files.values())) < len(files)
            else "Read the part that is wanted, not the whole file."
        )
        raise Costly(
            f"{where}the numbers are right, but {size} numbers were read for {area(box)}. {more}"
        )


# ------------------------------------------------------------
# Numbers foretold: the checkpoint, the failures and what they cost, of a large run.


def predict_survive(
    psi=20e9, nodes=32, hours=20_000, days=40, rate=2e9, link=20e9, restart=600, stay=0.75
):
    """20 B parameters, 32 nodes, 20,000 h, 40 days, 2 GB/s a node, 20 GB/s a GPU, 10 minutes, three quarters stay."""
    n = 8 * nodes
    whole = 14 * psi
    save = whole / (nodes * rate)
    between = hours * 3600 / n
    every = math.sqrt(2 * save * between)
    lost = save / every + (every / 2 + restart) / between
    failures = days * 24 * 3600 / between
    values = {
        "whole_bytes": whole,
        "rank_bytes": whole / n,
        "save_seconds": save,
        "snapshot_seconds": whole / n / link,
        "mtbf_seconds": between,
        "every_seconds": every,
        "lost": lost,
        "failures": failures,
        "read_bytes": whole / (stay * n),
    }
    slips = {
        "whole_bytes": {
            16 * psi: "Gradients are not saved: they are made anew in each step.",
            12 * psi: "The half-precision parameters are missing.",
            2 * psi: "The optimizer's states are missing: 12 bytes a parameter.",
            14 * psi * n: "Replicas save once, not each.",
        },
        "rank_bytes": {
            whole: "That is the whole: all ranks share it.",
            whole / nodes: "A node has 8 ranks.",
        },
        "save_seconds": {
            whole / rate: "That is one node: all nodes write at once.",
            whole / n / rate: "8 ranks of a node share its `rate`.",
        },
        "snapshot_seconds": {
            whole / link: "That is one link for all: each GPU copies its own part.",
            whole / nodes / link: "Each GPU of a node has a link of its own.",
            save: "A snapshot does not wait for the disk.",
        },
        "mtbf_seconds": {
            hours / n: "Those are hours.",
            hours * 3600: "That is one device.",
            hours * 3600 / nodes: "Devices fail, not nodes: there are 8 in each.",
        },
        "every_seconds": {
            math.sqrt(save * between): "The 2 under the root is missing.",
            2 * save * between: "The root is missing.",
            every / 60: "Those are minutes.",
        },
        "lost": {
            lost
            + every / 2 / between: "A failure loses half an interval on average, not all of it.",
            lost - restart / between: "The restarts are missing.",
            lost - save / every: "The saves themselves take time, too.",
            100 * lost: "That is percent: a share is asked for.",
        },
        "failures": {
            failures / n: "That is one device's.",
            failures / 24: "A day has 24 hours.",
        },
        "read_bytes": {
            whole / n: "Fewer ranks share the same bytes now.",
            whole: "A rank reads its own part alone.",
            stay * whole / n: "Fewer ranks: each has more, not less.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_survive,
    "Bytes, seconds, the share that is lost, and failures, within 1 %.",
    {
        "psi": ("{:,.0f} parameters", (7e9, 13e9, 40e9)),
        "nodes": ("{} nodes", (16, 24, 64)),
        "hours": ("a failure of a GPU every {:,} hours", (10_000, 30_000, 50_000)),
        "days": ("{} days", (20, 60, 90)),
    },
)
