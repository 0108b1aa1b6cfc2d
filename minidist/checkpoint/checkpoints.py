"""Checkpoints of a program: saved from all ranks at once, the last k kept, and the newest good one found again.

    save    tell what is there │ snapshot │ write own file │ tell size and sum │ rank 0: manifest, then drop the old
            all ranks            own part   in parallel      all ranks
            └── in the program ───────────┘ └── in the program, or beside it (wait=False) ──────────────┘

A step that dies anywhere leaves the last checkpoint as it was, and a folder without a manifest, which the next save
removes. Where a failure comes every T seconds and a save takes C, saving every √(2CT) seconds loses least (Young 1974);
beside the program C is the snapshot alone, one copy of what this rank writes.
Sources: Eisenman et al. 2022, "Check-N-Run", section 3 (snapshot, then write); Wan et al. 2024, "ByteCheckpoint".
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..comm.base import Comm, Work
from ..parallel.pipeline.ties import told
from . import disk, manifest, nested, shares
from .format import chunks
from .piece import Piece
from .saved import Saved

COMMON = "common"


class Checkpoints:
    """Those in `folder`, which all ranks see.

        checkpoints = Checkpoints(folder, comm, keep=2)
        found = checkpoints.latest()
        if found:
            load(found, model, optimizer)
            step, where, own = found.step, checkpoints.common(found), checkpoints.own(found)
            if own is not None:
                set_random_state(own["random"])
        …
        checkpoints.save(step, pieces(model, optimizer), common=where, own={"random": random_state()}, wait=False)
        checkpoints.wait()

    keep: how many finished ones stay.  grid: {axis: ranks}, what the ranks' own states belong to; their number unless
    given.  lane: of the saves beside the program.  comm: its ranks save together; descriptions and sums go between
    their hosts, never what is saved. All ranks call every method.
    Raises ValueError for keep < 1, and for a grid of another number of ranks.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        comm: Comm,
        keep: int = 2,
        grid: Mapping[str, int] | None = None,
        lane: int = 7,
    ):
        self.folder = Path(folder)
        self.comm = comm.on_host()
        self.keep = keep
        self.lane = lane
        self.grid = dict(grid or {"ranks": comm.size})
        if keep < 1:
            raise ValueError(f"at least 1 checkpoint is kept, not {keep}")
        if math.prod(self.grid.values()) != comm.size:
            raise ValueError(
                f"the grid {self.grid} has {math.prod(self.grid.values())} ranks, the Comm {comm.size}"
            )
        self.refused: dict[Path, str] = {}  # what `latest` found damaged, and why
        self._work: Work | None = None

    def save(
        self,
        step: int,
        pieces: Iterable[Piece] = (),
        common: Any = None,
        own: Any = None,
        wait: bool = True,
    ) -> None:
        """Save all ranks' pieces; `common`, rank 0's, a nested state alike on all; and each rank's `own`.

        What several ranks have, one of them writes. wait: return when it is on the disk; else when this rank's part is
        copied, and what goes wrong later is raised by the next `save` or `wait`, on every rank.
        Raises ValueError for a state that cannot be saved, that ranks describe differently, and for two tensors of one
        name; SaveError where a disk fails: then the checkpoints that were there are there.
        """
        self.wait()
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"a step is a whole number from 0 on, not {step!r}")
        mine = [*pieces, *nested.pieces(f"own/{self.comm.rank}", own)]
        if self.comm.rank == 0:
            mine += nested.pieces(COMMON, common)
        serial = max((manifest.serial(path) for path in manifest.every(self.folder)), default=0) + 1
        values = shares.distinct(mine)
        every = told(self.comm, [step, serial, list(values)])
        steps, serials, tables = zip(*every, strict=True)
        if len(set(steps)) > 1:
            raise ValueError(f"the ranks save the steps {list(steps)}: all must save the same")
        owners = shares.owners([shares.rows(table) for table in tables])
        own_file = {row.key: values[row] for row, rank in owners.items() if rank == self.comm.rank}
        body = manifest.Manifest(
            step, self.grid, {}, shares.tensors(owners) if self.comm.rank == 0 else {}
        )
        path = self.folder / f"{serials[0]:06}-step-{step}"
        if wait:
            _save(self.comm, path, own_file, body, self._tidy)
        else:
            copies = {key: x.to("cpu", copy=True) for key, x in own_file.items()}
            self._work = self.comm.stream(
                partial(_save, path=path, values=copies, body=body, done=self._tidy), lane=self.lane
            )

    def wait(self) -> None:
        """Until a save beside the program is on the disk. Raises SaveError if it failed."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def _tidy(self, newest: Path) -> None:
        """Remove what is older than the last k, and what was never finished.

        What `latest` refused stays, and counts for nothing: it may be whole to another version, or on another day.
        """
        good = [path for path in manifest.finished(self.folder) if path not in self.refused]
        for path in manifest.every(self.folder):
            if (
                path in self.refused
                or path in good[-self.keep :]
                or manifest.serial(path) >= manifest.serial(newest)
            ):
                continue
            try:
                _remove(path)
            except OSError as error:  # the new one is saved all the same
                warnings.warn(f"this checkpoint could not be removed: {error}", stacklevel=2)

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole, to the last byte; None if none was ever finished.

        The ranks share the reading. One that is damaged, has no manifest, or is missing on a rank is passed over,
        with a warning of rank 0. Raises Refused, which says what is wrong with each, if some were finished and none is
        good.
        """
        self.wait()
        here = [path.name for path in manifest.every(self.folder)] if self.comm.rank == 0 else []
        finished = (
            [path.name for path in manifest.finished(self.folder)] if self.comm.rank == 0 else []
        )
        here, finished = told(self.comm, [here, finished])[0]
        for name in reversed(here):
            path = self.folder / name
            found, complaint = self._checked(path)
            complaints = [why for why in told(self.comm, complaint) if why]
            if not complaints:
                return found
            if name in finished:  # else a save that was cut off: the next one removes it
                self.refused[path] = complaints[0]
            if self.comm.rank == 0:
                warnings.warn(f"this checkpoint is passed over: {complaints[0]}", stacklevel=2)
        if self.refused:
            raise manifest.Refused(
                f"no checkpoint in {self.folder} is good:\n  " + "\n  ".join(self.refused.values())
            )
        return None

    def _checked(self, path: Path) -> tuple[Saved | None, str | None]:
        """A checkpoint, and what is wrong with this rank's part of its files."""
        try:
            found = Saved(path)
            found.verify(self.comm.rank, self.comm.size)
        except manifest.Refused as error:
            return None, str(error)
        return found, None

    def common(self, found: Saved) -> Any:
        """What was saved as `common`."""
        return nested.read(found, COMMON)

    def own(self, found: Saved) -> Any:
        """What this rank saved as its `own`; None if that was on another grid, where it was not this rank's.

        The same axes in another order are another grid: ranks stand elsewhere."""
        same = list(found.grid.items()) == list(self.grid.items())
        return nested.read(found, f"own/{self.comm.rank}") if same else None


def _remove(path: Path) -> None:
    if path.is_symlink():  # what it leads to is not ours to remove
        path.unlink()
    else:
        (path / manifest.NAME).unlink(missing_ok=True)  # first: from now on it is none
        shutil.rmtree(path)


class SaveError(OSError):
    """A checkpoint could not be written. The message names the rank and the reason."""


def _save(comm: Comm, path: Path, values: dict[str, Tensor], body: manifest.Manifest, done) -> None:
    """Write this rank's file, and on rank 0, when all ranks have, the manifest; then call done(path) there."""
    error, summed = None, None
    try:
        path.mkdir(parents=True, exist_ok=True)
        summed = disk.write(path / manifest.file_of(comm.rank), chunks(values, {"format": "pt"}))
    except Exception as caught:
        error = caught
    every = told(comm, [summed, _words(error)])
    failed = {rank: why for rank, (_, why) in enumerate(every) if why}
    if comm.rank == 0 and not failed:
        try:
            body.files.update(
                {manifest.file_of(rank): disk.Sum(*one) for rank, (one, _) in enumerate(every)}
            )
            disk.write(path / manifest.NAME, [body.text()])
            disk.settle(path.parent)
            done(path)
        except Exception as caught:
            error = caught
    failed = failed or {rank: why for rank, why in enumerate(told(comm, _words(error))) if why}
    if failed:
        words = "; ".join(f"rank {rank}: {why}" for rank, why in failed.items())
        raise SaveError(f"{path} could not be saved: {words}") from error


def _words(error: Exception | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"
