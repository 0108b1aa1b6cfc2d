"""State dicts of a sharded optimizer: each rank has the states of what it owns; together they are the serial one's.

    sharded   rank 0: {0: …, 3: …}   rank 1: {1: …, 2: …}        no messages, 1/n of the bytes each
    whole     {0: …, 1: …, 2: …, 3: …} on every rank             (n−1)/n of all states in, by broadcasts

A whole one belongs to no number of ranks: to change n, save it whole and load it. Tensors travel as they are; numbers,
words and the shape of it all as JSON, exactly (Python's floats are printed so that they read back the same).
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ...collectives import all_gather, broadcast_
from ...comm.base import Comm
from .shards import Shards

PLAIN = (int, float, bool, str, type(None))
CONTAINERS = {"list": list, "tuple": tuple}


def options(group: dict[str, Any]) -> dict[str, Any]:
    """A group without its parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def groups(param_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups as a state_dict has them: numbers in place of parameters."""
    first, found = 0, []
    for group in param_groups:
        numbers = list(range(first, first + len(group["params"])))
        found.append({**group, "params": numbers})
        first += len(numbers)
    return found


def _numbers(index: dict[Tensor, int], shards: Shards, inner: torch.optim.Optimizer) -> list[int]:
    """Of each parameter that the inner optimizer steps, in its order, the number among all."""
    stepped = {shards.masters.stepped(p): i for p, i in index.items()}
    return [stepped[p] for group in inner.param_groups for p in group["params"]]


def more(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer's state_dict has beside torch's: masters, the steps of an OffloadedOptimizer."""
    return {key: value for key, value in state_dict.items() if key not in ("state", "param_groups")}


def pack(index: dict[Tensor, int], shards: Shards, inner: torch.optim.Optimizer) -> dict[str, Any]:
    """The inner optimizer's state_dict by the numbers of the parameters, and this rank's masters if any are kept."""
    numbers = _numbers(index, shards, inner)
    found = inner.state_dict()
    mine = {}
    for key, parts in ({"state": found["state"]} | more(found)).items():
        parts = dict(enumerate(parts)) if isinstance(parts, list) else parts
        if not isinstance(parts, dict):
            raise ValueError(
                f"{key!r} in the state_dict of {type(inner).__name__} is a {type(parts).__name__}: what "
                "is not by parameter or by name cannot be put together from several ranks"
            )
        mine[key] = {numbers[i] if isinstance(i, int) else i: x for i, x in parts.items()}
    if shards.masters.dtype is not None:
        mine["masters"] = {
            i: shards.masters.of[p] for p, i in index.items() if p in shards.masters.of
        }
    return mine


def gathered(comm: Comm, mine: dict[str, Any]) -> dict[str, Any]:
    """All ranks' dicts, whose keys {name: {number: …}} are the same everywhere, as one."""
    tensors: list[Tensor] = []
    notes = _words(comm, json.dumps(_describe(mine, tensors)))
    whole: dict[str, Any] = {name: {} for name in mine}
    for rank, note in enumerate(notes):
        owned = _rebuild(json.loads(note), tensors if rank == comm.rank else None, comm, rank)
        for name, parts in owned.items():
            whole[name].update(parts)
    # by number, or by name
    return {name: dict(sorted(parts.items())) for name, parts in whole.items()}


def _words(comm: Comm, text: str) -> list[bytes]:
    """Every rank's text."""
    comm = comm.on_host()
    device = "cpu" if comm.device.type == "meta" else comm.device
    note = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    sizes = all_gather(comm, torch.tensor([len(note)], device=device)).tolist()
    return [bytes(part.tolist()) for part in all_gather(comm, note, sizes).split(sizes)]


def _describe(value: Any, tensors: list[Tensor]) -> Any:
    """`value` as JSON. Its tensors are appended to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return [
            "tensor",
            str(value.dtype).removeprefix("torch."),
            list(value.shape),
            list(value.stride()),
            value.device.type,
        ]
    if isinstance(value, dict):
        return ["dict", [[_describe(k, tensors), _describe(v, tensors)] for k, v in value.items()]]
    if type(value).__name__ in CONTAINERS:
        return [type(value).__name__, [_describe(v, tensors) for v in value]]
    if isinstance(value, PLAIN):
        return value
    raise ValueError(
        f"a state holds tensors, numbers, words, lists and dicts, not {type(value).__name__}: {value!r}"
    )


def _rebuild(note: Any, own: list[Tensor] | None, comm: Comm, root: int) -> Any:
    """The value that rank `root` described. own: its tensors, on that rank."""
    tensors: list[Tensor] = []
    value = _read(note, tensors, comm)
    if own is not None:
        for fill, source in zip(tensors, own, strict=True):
            fill.copy_(source)
    passed = [
        t if t.device.type == comm.device.type or comm.device.type == "meta" else t.to(comm.device)
        for t in tensors
    ]
    # beside meta tensors, step counts on the CPU
    for device in dict.fromkeys(t.device.type for t in passed):
        broadcast_(comm, [t for t in passed if t.device.type == device], root)
    for fill, got in zip(tensors, passed, strict=True):
        fill.copy_(got)
    return value


def _read(note: Any, tensors: list[Tensor], comm: Comm) -> Any:
    if not isinstance(note, list):
        return note
    kind, *rest = note
    if kind == "tensor":
        dtype, shape, strides, device = rest
        place = comm.device if device == comm.device.type else device
        tensors.append(
            torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=place)
        )
        return tensors[-1]
    if kind == "dict":
        return {_read(k, tensors, comm): _read(v, tensors, comm) for k, v in rest[0]}
    return CONTAINERS[kind](_read(v, tensors, comm) for v in rest[0])


def check(state_dict: dict[str, Any], param_groups: list[dict[str, Any]], comm: Comm) -> None:
    """ValueError unless the state_dict has these groups, and is whole or this rank's shard."""
    theirs, ours = (
        [len(g["params"]) for g in some] for some in (state_dict["param_groups"], param_groups)
    )
    if theirs != ours:
        raise ValueError(
            f"the state_dict has groups of {theirs} parameters, the optimizer of {ours}"
        )
    shard, here = state_dict.get("shard"), {"rank": comm.rank, "size": comm.size}
    if shard is not None and shard != here:
        raise ValueError(
            f"this is the shard of rank {shard['rank']} of {shard['size']}, loaded on rank "
            f"{comm.rank} of {comm.size}: save the whole state_dict to change ranks"
        )


def load(
    state_dict: dict[str, Any],
    index: dict[int, Tensor],
    shards: Shards,
    inner: torch.optim.Optimizer,
) -> None:
    """This rank's part of a checked state_dict into the optimizer of what it owns, and its masters."""
    numbers = _numbers({p: i for i, p in index.items()}, shards, inner)
    lost = set(state_dict["state"]) - set(numbers)
    if "shard" in state_dict and lost:
        raise ValueError(
            f"this shard has the states of parameters {sorted(lost)}, of which rank {shards.comm.rank} "
            f"owns none: it owns {sorted(numbers)}"
        )
    inner.load_state_dict(_unpack(state_dict, numbers, inner))
    shards.masters.refresh()
    for i, master in state_dict.get("masters", {}).items():
        if index[i] in shards.masters.of:
            shards.masters.of[index[i]].copy_(master)


def _unpack(
    state_dict: dict[str, Any], numbers: list[int], inner: torch.optim.Optimizer
) -> dict[str, Any]:
    """Of a state_dict of all parameters, what the inner optimizer has of its own: those of `numbers`, in that order."""
    places = {i: k for k, i in enumerate(numbers)}
    own = inner.state_dict()
    found = {}
    for key, like in more(own).items():
        if key in state_dict:
            mine = {
                places.get(i, i): x
                for i, x in state_dict[key].items()
                if not isinstance(i, int) or i in places
            }
            found[key] = [mine[k] for k in range(len(numbers))] if isinstance(like, list) else mine
    groups = [
        options(saved) | {"params": group["params"]}
        for saved, group in zip(state_dict["param_groups"], own["param_groups"], strict=True)
    ]
    return {
        "state": {places[i]: s for i, s in state_dict["state"].items() if i in places},
        "param_groups": groups,
    } | found
