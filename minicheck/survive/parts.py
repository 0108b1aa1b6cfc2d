"""The exercise of lesson 18 about saving: every rank its part, the manifest last, and a power cut behind every call.

What the ranks did to the disk is written down, call by call; here it is done again, up to each call, then the power is
cut: of what was not synced all, a half, or nothing is left. Whatever is found then must be the checkpoint that was
there, or the new one, whole.
"""

from __future__ import annotations

import json

import torch

from minidist.comm.base import Comm
from minidist.comm.world.world import World

from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from . import oracle
from .disk import CHANGES, KEPT, Disk, crashed, honest, said, watched
from .every import FORBIDDEN

EMPTY, EAGER = "empty", "eager"  # a part that is, sends that are
SMALL = 64  # bytes of a message that tells a size and a checksum, and more


def random_bytes(size: int, rng: torch.Generator) -> bytes:
    return bytes(torch.randint(256, (size,), generator=rng).tolist())


class SaveParts(Exam):
    name = "save_parts"
    right = "n = 1…4, a power cut behind every call with all, half and none of what was not synced; 3 real processes."
    forbidden = FORBIDDEN
    shared: tuple[Disk, list] | None = None  # of a World, whose ranks have one disk
    cases = (
        Case(3, "n = 3"),
        Case(1, "n = 1"),
        Case(2, "n = 2"),
        Case(3, "n = 3, an empty part", EMPTY),
        Case(4, "n = 4, and no send waits until it is received", EAGER),
    )
    processes = (Case(3, "3 real processes"),)

    def draw(self, case, rng):
        sizes = torch.randint(200, 1500, (case.n,), generator=rng).tolist()
        sizes = [0 if case.given == EMPTY and r == 1 else size for r, size in enumerate(sizes)]
        old, new = (1 + torch.randperm(900, generator=rng)[:2]).sort().values.tolist()
        before = oracle.checkpoint(old, [random_bytes(30, rng) for _ in range(case.n)])
        there = {name: data.decode("latin-1") for name, data in before.items()}
        return [
            (random_bytes(size, rng).decode("latin-1"), there, new, case.given == EAGER)
            for size in sizes
        ]

    def world(self, n, args):
        _, there, _, eager = args[0]
        self.shared = watched(_bytes(there))
        return World(n, rendezvous=not eager)

    def run(self, comm: Comm, yours, part, there, step, eager):
        disk, log = self.shared or watched(_bytes(there))
        yours(comm, disk.of(comm.rank), step, part.encode("latin-1"))
        log.append([comm.rank, "returned", "", ""])
        return log

    def judge(self, case, args, outcome):
        parts, (_, there, step, _) = [part.encode("latin-1") for part, *_ in args], args[0]
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
                    f"after a power cut {said(changes, calls)}",
                )
                _old(left, before, name, when)
                _new(left, one, name, when)
        if name not in crashed(before, changes, 0.0):
            raise Wrong(
                f"when all have returned, there is no {name}: nobody will look at the parts."
            )
        _who(case.n, parts, changes)
        _when(log, name, shared)
        _cost(case, outcome)


def _bytes(there: dict[str, str]) -> dict[str, bytes]:
    return {name: data.encode("latin-1") for name, data in there.items()}


def _replayed(before: dict[str, bytes], changes: list) -> None:
    """Raise Wrong where what was written down cannot have happened."""
    try:
        crashed(before, changes, 1.0)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Wrong(
            "a file was used that no call has written: the disk is changed by its methods alone."
        ) from None


def _old(left: dict[str, bytes], before: dict[str, bytes], name: str, when: str) -> None:
    """Raise Wrong unless the old checkpoint is left, and no manifest of a third one."""
    for kept, data in before.items():
        if left.get(kept) != data:
            raise Wrong(
                f"{when}, {kept} is {'gone' if kept not in left else 'changed'}: it belongs to the checkpoint "
                "before, which must stay as it is until the new one is finished, and after."
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


def _new(left: dict[str, bytes], one: dict[str, bytes], name: str, when: str) -> None:
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


def _json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _compare(body: dict, want: dict, when: str) -> None:
    """Raise Wrong unless a manifest says what it should."""
    for word in ("step", "ranks"):
        if body[word] != want[word]:
            raise Wrong(f"the manifest's {word!r} is {body[word]}, and should be {want[word]}.")
    if body["files"].keys() != want["files"].keys():
        raise Wrong(
            f"the manifest's files are {sorted(body['files'])}, and should be {sorted(want['files'])}."
        )
    for part, (size, total) in want["files"].items():
        if body["files"][part][0] != size:
            raise Wrong(
                f"{when}, the manifest says that {part} has {body['files'][part][0]} bytes; it has {size}."
            )
        if body["files"][part][1] != total:
            raise Wrong(
                f"{when}, the manifest has the checksum {body['files'][part][1]} of {part}; zlib.crc32 of its "
                f"{size} bytes is {total}."
            )


def _who(n: int, parts: list[bytes], changes: list) -> None:
    """Raise Wrong unless each rank has written its own part, once, and no other's."""
    for rank in range(n):
        own = [
            what.encode("latin-1") for r, call, _, what in changes if r == rank and call == "write"
        ]
        if parts[rank] not in own:
            raise Wrong(
                f"rank {rank} has not written its own part: the ranks write at the same time, each its own."
            )
        if rank and len(own) > 1:
            raise Wrong(
                f"rank {rank} has written {len(own)} files: its own part, once, is enough. The manifest is "
                "rank 0's."
            )


def _when(log: list, name: str, shared: bool) -> None:
    """Raise Wrong where a rank returned before the manifest had its name."""
    place = [i for i, (_, call, _, what) in enumerate(log) if call == "rename" and what == name]
    early = [
        rank
        for i, (rank, call, *_) in enumerate(log)
        if call == "returned" and place and i < place[0]
    ]
    if shared and early:
        raise Wrong(
            f"rank {early[0]} returned before the manifest had its name: to it the step was saved, and a power "
            "cut then shows that it was not. Let rank 0 tell the others when it is done."
        )


def _cost(case: Case, outcome: Outcome) -> None:
    n = case.n
    for src, dst, nbytes in outcome.sent:
        if nbytes > SMALL:
            raise Wrong(
                f"rank {src} sends {nbytes} bytes to rank {dst}: parts go to the disk, and only their sizes "
                "and checksums over the network."
            )
    if outcome.messages() != 2 * (n - 1):
        raise Wrong(
            f"{outcome.messages()} messages were sent; 2(n−1) = {2 * (n - 1)} are enough: each rank tells rank "
            "0, and rank 0 tells each."
        )


def save_parts(yours) -> None:
    """`save_parts(comm, disk, step, data)`: a checkpoint of all ranks' data, whole or not at all."""
    ask(SaveParts(), yours)
