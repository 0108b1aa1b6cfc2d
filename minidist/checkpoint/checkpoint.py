"""Checkpoints of a program: saved from all ranks at once, the last k kept, the newest good one found again.

    save    describe what is there │ snapshot │ write own file │ tell size and sum │ rank 0: manifest, drop the old
            all ranks                own part   in parallel      all ranks
            └── in the program ───────────────┘ └── in the program, or beside it (wait=False) ────────────────────┘

A save that dies anywhere leaves the last checkpoint as it was, and a folder without a manifest, which the next save
removes. All that is saved is pieces of whole tensors (reshard.py), so any grid reads what any grid wrote:

    pieces(model, optimizer)        "model/layers.0.weight", "optimizer/layers.0.weight/state/exp_avg", …
    load(saved, model, optimizer)   into a model and an optimizer that are built, on this grid or another

Replicas of data parallelism share the work: with n of them each writes 1/n of the parameters, all at once.

Where a failure comes every T seconds and a save takes C, saving every √(2CT) seconds loses least (Young 1974); beside
the program C is the snapshot alone, one copy of what this rank writes.
Sources: Eisenman et al. 2022, "Check-N-Run", section 3 (snapshot, then write); Wan et al. 2024, "ByteCheckpoint".
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..arguments import instance, whole
from ..collectives import all_gather_json
from ..comm.base import Comm, Work
from ..parallel.experts import ExpertShardedOptimizer
from ..parallel.zero import ShardedOptimizer, options
from . import files
from .files import Refused
from .reshard import Box, Part, Piece, Place, Saved, missing, places

# ------------------------------------------------------------
# Nested states as pieces: the tensors under their places in it, and the rest as one tensor of text. What is read back
# is exactly what was saved, and nothing that was read is run: pickle would call whatever the file says.
#
#     "optimizer/w"                  uint8      ["dict", [["step", 5], ["exp_avg", ["tensor", "optimizer/w/exp_avg", …]]]]
#     "optimizer/w/exp_avg"          float32    the tensor; where it has the shape of the parameter, cut as that is
#
# Numbers and words stand as they are (Python prints a float so that it reads back the same, and whole numbers of any
# length); all else is a list that begins with its kind.

CONTAINERS = {"list": list, "tuple": tuple}


def state_pieces(name: str, value: Any, place: Place | None = None) -> list[Piece]:
    """A nested state called `name`, of dicts, lists, tuples, tensors, numbers, words and None, as pieces.

    place: that of the parameter which the state belongs to. Raises ValueError, which names the place in the state, for
    what a checkpoint does not hold, and for a state of a split parameter that is neither split as it is nor a single
    number: nobody could put it together.

    >>> import torch
    >>> from minidist.checkpoint.checkpoint import state_pieces
    >>> [piece.name for piece in state_pieces("own", {"step": 5, "m": torch.zeros(3)})]
    ['own', 'own/m']
    """
    pieces: list[Piece] = []

    def encode(value: Any, at: str) -> Any:
        if isinstance(value, Tensor):
            split = place is not None and tuple(value.shape) == place.shape
            if place is not None and not split and value.dim() and place.shape != place.whole:
                raise ValueError(
                    f"{at} is {tuple(value.shape)} and belongs to a part {place.shape} of {place.name}, "
                    f"which is {place.whole}: how it is split is not known"
                )
            pieces.extend(place.pieces(at, value) if place and split else [Piece(at, value)])
            return ["tensor", at, split]
        if isinstance(value, dict):
            items = [[encode(k, f"{at}/key"), encode(v, f"{at}/{k}")] for k, v in value.items()]
            return ["dict", items]
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [encode(v, f"{at}/{i}") for i, v in enumerate(value)]]
        if value is None or isinstance(value, str | int | float):
            return value
        raise ValueError(
            f"{at} is a {type(value).__name__}: a checkpoint holds dicts, lists, tuples, tensors, numbers, "
            "words and None"
        )

    text = bytearray(json.dumps(encode(value, name)).encode())
    return [Piece(name, torch.frombuffer(text, dtype=torch.uint8)), *pieces]


def read_state(
    saved: Saved, name: str, place: Place | None = None, like: Tensor | None = None
) -> Any:
    """The state that was saved as `name`.  place, like: those of the parameter that it belongs to, here.

    Raises ValueError for one that is not there, Refused for what `state_pieces` does not write.

    >>> import tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints
    >>> from minidist.checkpoint.checkpoint import read_state
    >>> def program(comm, folder):
    ...     checkpoints = Checkpoints(folder, comm)
    ...     checkpoints.save(1, common={"seen": (3, None)})
    ...     return read_state(checkpoints.latest(), "common")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     World(2).run(program, folder)[0]
    {'seen': (3, None)}
    """

    def decode(note: Any) -> Any:
        if not isinstance(note, list):
            return note
        kind, content, *split = note
        if kind == "tensor" and split[0] and place and like is not None:
            x = torch.empty_like(like, dtype=saved.empty(content, "meta").dtype)
            saved.read(place.pieces(content, x))
            return x
        if kind == "tensor":
            return saved.whole(content)
        if kind == "dict":
            return {decode(k): decode(v) for k, v in content}
        return CONTAINERS[kind](map(decode, content))

    text = saved.whole(name)
    try:
        return decode(json.loads(bytes(text.tolist())))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused(f"{name} in {saved.path} is no state that was saved: {error!r}") from error


# ------------------------------------------------------------
# A model and its optimizer as pieces, and back: whatever splits them, on whatever grid.
#
# An optimizer is asked for its state dict, and given one: so masters, and whatever else ours keep by parameter, come
# along, and what torch's and ours load from each other they do here. Of a ShardedOptimizer each rank has the states of
# the parameters that it owns; the owners may be others when it is loaded. Ranks that differ where replicas should be
# equal (LocalSGD between averages) are no whole: each saves its own, as `own`.

Rename = Callable[[str], str]
OPTIONS = "optimizer.options"
SHARDED = ShardedOptimizer | ExpertShardedOptimizer


def pieces(
    model: nn.Module, optimizer: Optimizer | None = None, rename: Rename | None = None
) -> list[Piece]:
    """What this rank has of the model and the optimizer: views, nothing is copied.  rename: as for `places`.

    Parameters are found where they are at rest: not within a forward of a FullySharded. Raises ValueError for a
    parameter of the optimizer that is not the model's, and for a state that cannot be put together.

    >>> from minidist.checkpoint import pieces
    >>> from minidist.models import mlp
    >>> from minidist.train import SGD
    >>> model = mlp([2, 4])
    >>> for piece in pieces(model, SGD(model.parameters(), momentum=0.9)):
    ...     print(piece.name, piece.first, tuple(piece.values.shape))
    model/0.weight (0, 0) (4, 2)
    model/0.bias (0,) (4,)
    optimizer.options (0,) (...,)
    """
    where = places(model, rename)
    found = _model_pieces(where)
    if optimizer is None:
        return found
    params = _placed(optimizer, where)
    by_parameter: list[dict[str, Any]] = [{} for _ in params]
    state_dict = _state_dict(optimizer)
    groups = [options(group) for group in state_dict.pop("param_groups")]
    rest: dict[str, Any] = {"param_groups": groups}  # the same on all ranks
    for what, entry in state_dict.items():
        if isinstance(entry, list) and len(entry) == len(params):
            entry = dict(enumerate(entry))
        if isinstance(entry, dict) and all(isinstance(i, int) for i in entry):
            for i, state in entry.items():
                by_parameter[i][what] = state
        else:
            rest[what] = entry
    found += state_pieces(OPTIONS, rest)
    for state, (_, place) in zip(by_parameter, params, strict=True):
        if state:
            found += state_pieces(f"optimizer/{place.name}", state, place)
    return found


def load(
    saved: Saved, model: nn.Module, optimizer: Optimizer | None = None, rename: Rename | None = None
) -> None:
    """Fill the model, then the optimizer, with what was saved. On all ranks; a rank reads its own parts alone.

    Raises ValueError for a tensor that is missing or of another shape or dtype, for other groups, and where the saved
    model had more tensors; but not with `rename`: a stage has not all of them.
    Refused where a file is missing or cut off; what was changed within it is found by `Saved.verify`, as in `latest`.

    >>> import tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints, load, pieces
    >>> from minidist.models import mlp
    >>> def program(comm, folder):
    ...     Checkpoints(folder, comm).save(1, pieces(mlp([2, 4], seed=0)))
    ...     model = mlp([2, 4], seed=1)
    ...     load(Checkpoints(folder, comm).latest(), model)
    ...     return model[0].weight.equal(mlp([2, 4], seed=0)[0].weight)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     list(World(2).run(program, folder))
    [True, True]
    """
    instance(saved, Saved, "load reads what Saved(path) has found")
    where = places(model, rename)
    saved.read(_model_pieces(where))
    here = {f"model/{place.name}" for place in where.values()}
    more = {name for name in saved.tensors if name.startswith("model/")} - here
    if more and rename is None:
        raise ValueError(
            f"{saved.path} has {len(more)} tensors more than the model: {', '.join(sorted(more)[:4])}"
        )
    if optimizer is not None:
        optimizer.load_state_dict(_whole_state(saved, optimizer, _placed(optimizer, where)))


def _model_pieces(where: dict[Tensor, Place]) -> list[Piece]:
    every = [place.pieces(f"model/{place.name}", x) for x, place in where.items()]
    return [piece for several in every for piece in several]


def _placed(optimizer: Optimizer, where: dict[Tensor, Place]) -> list[tuple[Tensor, Place]]:
    """The optimizer's parameters, in the order of its state dict, with their places."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in enumerate(params):
        if p not in where:
            raise ValueError(
                f"parameter {i} of {len(params)} of the optimizer is none of the model's"
            )
    return [(p, where[p]) for p in params]


def _state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """What this rank has of it, without messages."""
    if isinstance(optimizer, SHARDED):
        state = optimizer.own_state_dict()
        del state["owner"]  # a checkpoint loads on any number of ranks
        return state
    return optimizer.state_dict()


def _whole_state(
    saved: Saved, optimizer: Optimizer, params: list[tuple[Tensor, Place]]
) -> dict[str, Any]:
    """The state dict, with the states of those parameters that this rank steps."""
    state, own = {"state": {}, **read_state(saved, OPTIONS)}, _state_dict(optimizer)
    groups, own_groups = state["param_groups"], own.pop("param_groups")
    if len(groups) != len(own_groups):
        raise ValueError(
            f"{saved.path} has {len(groups)} groups of parameters, the optimizer {len(own_groups)}"
        )
    state["param_groups"] = [
        own_group | group for own_group, group in zip(own_groups, groups, strict=True)
    ]
    for i, (p, place) in enumerate(params):
        name = f"optimizer/{place.name}"
        here = not isinstance(optimizer, SHARDED) or optimizer.steps(p)
        if here and name in saved.tensors:
            for what, value in read_state(saved, name, place, p).items():
                state.setdefault(what, {})[i] = value
    for what, like in own.items():
        if isinstance(like, list) and what in state:
            state[what] = list(state[what].values())
    return state


# ------------------------------------------------------------
# The random generators of this process: what a run needs to draw the same numbers.


def random_state() -> dict[str, Any]:
    """The state of PyTorch's generators on the CPU and, once CUDA is in use, on the current GPU; Python's; NumPy's.

    About 13 kB. The current GPU is this rank's own, so a run goes on where each node has another number of GPUs. In a
    World each rank has its own generator on the CPU. A generator of one's own is saved by `generator.get_state()`.

    >>> import torch
    >>> from minidist.checkpoint import random_state, set_random_state
    >>> state = random_state()
    >>> first = torch.rand(3)
    >>> set_random_state(state)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    legacy: Any = np.random.get_state()
    kind, keys, *rest = legacy
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` was called; a GPU's state goes to the GPU that is the current one now.

    Where it is the state of a GPU and this process sees none, a warning says so, and all others are set.
    Raises ValueError for a state that lacks one of its four parts.

    >>> import random
    >>> from minidist.checkpoint import random_state, set_random_state
    >>> state = random_state()
    >>> first = random.random()
    >>> set_random_state(state)
    >>> random.random() == first
    True
    """
    lacking = {"torch", "cuda", "python", "numpy"} - state.keys()
    if lacking:
        raise ValueError(f"this is no random_state(): it lacks {', '.join(sorted(lacking))}")
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    if state["cuda"] is None:
        return
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    else:
        words = (
            "the state has the generator of a GPU, and this process sees none: it goes on without"
        )
        warnings.warn(words, stacklevel=2)


# ------------------------------------------------------------
# Who writes what: each rank tells what it has; what several have is written once, by the one with the least to do.
#
#     rank 0 has   w  b  m[0:3]             writes   w  m[0:3]
#     rank 1 has   w  b  m[3:6]             writes   b  m[3:6]
#
# One all-gather of the descriptions, about 100 bytes a piece.
# Invariant: together they write every element of every tensor that anybody named, else nothing.


def by_part(pieces: Iterable[Piece]) -> dict[Part, Tensor]:
    """Each part's values; empty ones are left out, unless their whole is empty.

    Raises ValueError where two pieces have a name and a place in common, but not their memory.

    >>> import torch
    >>> from minidist.checkpoint import Piece
    >>> from minidist.checkpoint.checkpoint import by_part
    >>> w = torch.zeros(2, 2)
    >>> [part.key for part in by_part([Piece("w", w), Piece("w", w), Piece("b", w[0], (4,), (2,))])]
    ['w', 'b[2:4]']
    """
    values_of: dict[Part, Tensor] = {}
    for piece in pieces:
        part, values = piece.part, piece.values
        if values.numel() or 0 in part.whole:
            if values_of.setdefault(part, values).data_ptr() != values.data_ptr():
                raise ValueError(f"two tensors are named {part.key!r}: one of them would be lost")
    return values_of


def writers(tables: list[list[Part]]) -> dict[Part, int]:
    """Which rank writes each part, the same on all ranks; tables: what each rank has.

    The largest first, each to the holder with the least bytes so far. Raises ValueError where ranks differ in what a
    tensor is, and for elements that no rank has.

    >>> import torch
    >>> from minidist.checkpoint import Piece
    >>> from minidist.checkpoint.checkpoint import writers
    >>> w, b = (Piece(name, torch.zeros(4)).part for name in "wb")
    >>> halves = [Piece("m", torch.zeros(3), (6,), (first,)).part for first in (0, 3)]
    >>> owner = writers([[w, b, halves[0]], [w, b, halves[1]]])  # two ranks, each with half of m
    >>> {part.key: rank for part, rank in owner.items()}
    {'b': 0, 'w': 1, 'm[0:3]': 0, 'm[3:6]': 1}
    """
    holders: dict[Part, list[int]] = {}
    by_name: dict[str, list[Part]] = {}
    for rank, table in enumerate(tables):
        for part in table:
            holders.setdefault(part, []).append(rank)
            by_name.setdefault(part.name, []).append(part)
    for name, parts in by_name.items():
        _, dtype, whole, _ = parts[0]
        for part in parts:
            if part[:3] != parts[0][:3]:
                raise ValueError(
                    f"{name} is {whole} {dtype} on rank {holders[parts[0]][0]}, "
                    f"and {part.whole} {part.dtype} on rank {holders[part][0]}"
                )
        holes = missing(Box.of(whole), [part.box for part in parts])
        if holes:
            raise ValueError(f"{name} is {whole}, and no rank has {holes[0]} of it")
    if len({part.key for part in holders}) < len(holders):
        raise ValueError("a tensor is named as another's part is: let no name end in [0:1]")
    writer_of, loads = {}, [0] * len(tables)
    nbytes = lambda part: part.box.numel * files.DTYPES[part.dtype].itemsize
    for part in sorted(holders, key=lambda part: (-nbytes(part), part)):
        writer_of[part] = min(holders[part], key=loads.__getitem__)
        loads[writer_of[part]] += nbytes(part)
    return writer_of


# ------------------------------------------------------------
# Checkpoints while a program runs.

LANE = 7  # of `Comm.stream`, for the saves beside the program


class SaveError(OSError):
    """A checkpoint could not be written. The message names the rank and the reason.

    >>> import tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints
    >>> def program(comm, folder):
    ...     Checkpoints(folder, comm).save(1)
    >>> with tempfile.NamedTemporaryFile() as file:  # a file where the folder should be
    ...     World(2).run(program, file.name)
    Traceback (most recent call last):
    minidist.checkpoint.checkpoint.SaveError: ... could not be saved: rank 0: ...
    """


class Checkpoints:
    """The checkpoints in `folder`, which all ranks can see.

        checkpoints = Checkpoints(folder, comm, keep=2)
        saved = checkpoints.latest()
        if saved:
            load(saved, model, optimizer)
            step, where, own = saved.step, checkpoints.common(saved), checkpoints.own(saved)
            if own is not None:
                set_random_state(own["random"])
        …
        checkpoints.save(step, pieces(model, optimizer), common=where, own={"random": random_state()}, wait=False)
        checkpoints.wait()

    keep: how many finished checkpoints to keep.  grid: {axis: ranks}, the grid that the ranks' own states belong to;
    unless given, the number of ranks.  comm: its ranks save together; only descriptions and checksums travel between
    their hosts, never the saved data. All ranks call every method.
    Raises ValueError for keep < 1, and for a grid with a different number of ranks.

    >>> import tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints, load, pieces
    >>> from minidist.models import mlp
    >>> from minidist.parallel import FullySharded
    >>> def save(comm, folder):
    ...     model = FullySharded(mlp([2, 4], seed=0), comm)
    ...     Checkpoints(folder, comm).save(7, pieces(model), common={"seen": 350})
    >>> def resume(comm, folder):
    ...     checkpoints, model = Checkpoints(folder, comm), FullySharded(mlp([2, 4], seed=1), comm)
    ...     saved = checkpoints.latest()
    ...     load(saved, model)
    ...     return saved.step, checkpoints.common(saved), sum(p.numel() for p in model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = World(2).run(save, folder)
    ...     list(World(3).run(resume, folder))  # 12 numbers, on another number of ranks
    [(7, {'seen': 350}, 4), (7, {'seen': 350}, 4), (7, {'seen': 350}, 4)]
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        comm: Comm,
        keep: int = 2,
        grid: Mapping[str, int] | None = None,
    ):
        self.folder = Path(folder)
        self.comm = comm.on_host()
        self.keep = keep
        self.grid = dict(grid or {"ranks": comm.size})
        whole(keep, "at least 1 checkpoint is kept", 1)
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
        """Save all ranks' pieces; rank 0's `common`, a nested state that is the same on all ranks; and each rank's
        `own` state.

        If several ranks hold the same data, one of them writes it. wait: return when everything is on the disk. False:
        return when this rank's part is copied; if something fails later, the next `save` or `wait` raises the error, on
        every rank.
        Raises ValueError for a state that cannot be saved, for one that ranks describe differently, and for two tensors
        with the same name; SaveError if a disk fails, in which case the earlier checkpoints are still there.
        """
        self.wait()
        whole(step, "a step is a whole number from 0 on", 0)
        rank = self.comm.rank
        states = state_pieces(f"own/{rank}", own)
        if rank == 0:
            states += state_pieces("common", common)
        values = by_part([*pieces, *states])
        serials = [files.serial_and_step(path)[0] for path in files.begun(self.folder)]
        description = [step, 1 + max(serials, default=0), list(values)]
        steps, serials, tables = zip(*all_gather_json(self.comm, description), strict=True)
        if len(set(steps)) > 1:
            raise ValueError(f"the ranks save the steps {list(steps)}: all must save the same")
        owner = writers([list(map(_part, table)) for table in tables])
        own_values = {part.key: values[part] for part, writer in owner.items() if writer == rank}
        path = self.folder / f"{serials[0]:06}-step-{step}"
        if wait:
            self._write(self.comm, path, own_values, owner)
        else:
            copies = {key: x.to("cpu", copy=True) for key, x in own_values.items()}
            job = partial(self._write, path=path, values=copies, owner=owner)
            self._work = self.comm.stream(job, lane=LANE)

    def wait(self) -> None:
        """Return when a save beside the program is on the disk. Raises SaveError if it failed."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def _write(
        self, comm: Comm, path: Path, values: dict[str, Tensor], owner: dict[Part, int]
    ) -> None:
        """Write this rank's file; when all ranks have, rank 0 writes the manifest, and removes what is old."""

        def own_file():
            path.mkdir(parents=True, exist_ok=True)
            return files.write(path / files.file_of(comm.rank), files.safetensors(values))

        def manifest():
            if comm.rank == 0:
                files.write_manifest(path, self._body(path, sums, owner))
                self._remove_old()

        sums, failed = attempt(comm, own_file)
        if not failed:
            _, failed = attempt(comm, manifest)
        if failed:
            raise SaveError(f"{path} could not be saved: {'; '.join(failed)}")

    def _body(self, path: Path, sums: list, owner: dict[Part, int]) -> dict[str, Any]:
        """What the manifest says: which files there are, and where in them each tensor lies."""
        tensors: dict[str, dict[str, Any]] = {}
        for part, rank in sorted(owner.items()):
            entry = {"dtype": part.dtype, "shape": part.whole, "pieces": []}
            where = [files.file_of(rank), *part.box]
            tensors.setdefault(part.name, entry)["pieces"].append(where)
        by_file = {files.file_of(rank): total for rank, total in enumerate(sums)}
        _, step = files.serial_and_step(path)
        return {"step": step, "grid": self.grid, "files": by_file, "tensors": tensors}

    def _remove_old(self) -> None:
        """Remove what is older than the last k, and what was never finished.

        What `latest` refused stays, and counts for nothing: it may be whole to another version, or on another day.
        """
        good = [path for path in files.finished(self.folder) if path not in self.refused]
        stay = {*self.refused, *good[-self.keep :]}
        for path in files.begun(self.folder):
            if path in stay:
                continue
            try:
                if path.is_symlink():  # what it leads to is not ours to remove
                    path.unlink()
                else:
                    (path / files.MANIFEST).unlink(missing_ok=True)  # first: now it is none
                    shutil.rmtree(path)
            except OSError as error:  # the new one is saved all the same
                warnings.warn(f"this checkpoint could not be removed: {error}", stacklevel=2)

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole, to the last byte; None if none was ever finished.

        The ranks share the reading. One that is damaged, has no manifest, or is missing on a rank is passed over,
        with a warning of rank 0. Raises Refused, which says what is wrong with each, if some were finished and none is
        good.
        """
        self.wait()
        names = [
            [path.name for path in listed(self.folder)] for listed in (files.begun, files.finished)
        ]
        begun, finished = all_gather_json(self.comm, names)[0]
        for name in reversed(begun):
            path = self.folder / name
            _, complaints = attempt(self.comm, partial(self._verify, path))
            if not complaints:
                return Saved(path)
            if name in finished:  # else a save that was cut off: the next one removes it
                self.refused[path] = complaints[0]
            if self.comm.rank == 0:
                warnings.warn(f"this checkpoint is passed over: {complaints[0]}", stacklevel=2)
        if self.refused:
            raise Refused(
                f"no checkpoint in {self.folder} is good:\n  " + "\n  ".join(self.refused.values())
            )
        return None

    def _verify(self, path: Path) -> None:
        Saved(path).verify(self.comm.rank, self.comm.size)

    def common(self, saved: Saved) -> Any:
        """The state that was saved as `common`."""
        return read_state(saved, "common")

    def own(self, saved: Saved) -> Any:
        """The state that this rank saved as its `own`; None if it was saved on a different grid, where ranks have
        different roles.

        The same axes in another order count as a different grid, because the ranks have different places.
        """
        same = list(saved.grid.items()) == list(self.grid.items())
        return read_state(saved, f"own/{self.comm.rank}") if same else None


def attempt(comm: Comm, act: Callable[[], Any]) -> tuple[list, list[str]]:
    """Call `act()` on every rank; returns what each gave, JSON, and which of them failed and why, the same on all.

    >>> from minidist import World
    >>> from minidist.checkpoint.checkpoint import attempt
    >>> def program(comm):
    ...     return attempt(comm, lambda: 1 / comm.rank)
    >>> World(3).run(program)[2]
    ([None, 1.0, 0.5], ['rank 0: ZeroDivisionError: division by zero'])
    """
    result, words = None, None
    try:
        result = act()
    except Exception as error:
        words = f"rank {comm.rank}: {type(error).__name__}: {error}"
    results, failed = zip(*all_gather_json(comm, [result, words]), strict=True)
    return list(results), list(filter(None, failed))


def _part(row: list) -> Part:
    """A part that was told as JSON, which has lists alone."""
    name, dtype, whole, (first, size) = row
    return Part(name, dtype, tuple(whole), Box(tuple(first), tuple(size)))
