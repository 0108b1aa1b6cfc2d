"""A model and its optimizer as pieces, and back: whatever splits them, on whatever grid.

    pieces(model, optimizer)        "model/layers.0.weight", "optimizer/layers.0.weight/exp_avg", …
    load(found, model, optimizer)   into a model and an optimizer that are built, on this grid or another

An optimizer is asked for its state dict, and given one: so masters, and whatever else ours keep by parameter, come
along, and what torch's and ours load from each other they do here. Of a ShardedOptimizer each rank has the states of
the parameters that it owns; the owners may be others when it is loaded. Ranks that differ where replicas should be
equal (LocalSGD between averages) are no whole: each saves its own, as `own`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..parallel.zero import ShardedOptimizer
from . import nested
from .piece import Piece
from .places import Place, places
from .saved import Saved

MODEL, OPTIMIZER = "model", "optimizer"
OPTIONS = f"{OPTIMIZER}.options"


def pieces(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    rename: Callable[[str], str] | None = None,
    wholes: Mapping[str, tuple[int, ...]] | None = None,
) -> list[Piece]:
    """What this rank has of the model and the optimizer: views, nothing is copied. rename, wholes: as for `places`.

    Parameters are found where they are at rest: not within a forward of a FullySharded. Raises ValueError for a
    parameter of the optimizer that is not the model's, and for a state that cannot be put together (`nested`).
    """
    where = places(model, rename, wholes)
    found = [one for x, place in where.items() for one in place.pieces(x, f"{MODEL}/{place.name}")]
    if optimizer is None:
        return found
    params = _placed(optimizer, where)
    by_parameter, options = _taken_apart(optimizer, len(params))
    found += nested.pieces(OPTIONS, options)
    for state, (_, place) in zip(by_parameter, params, strict=True):
        if state:
            found += nested.pieces(f"{OPTIMIZER}/{place.name}", state, place)
    return found


def load(
    saved: Saved,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    rename: Callable[[str], str] | None = None,
    wholes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Fill the model, then the optimizer, with what was saved. On all ranks; a rank reads its own parts alone.

    Raises ValueError for a tensor that is missing or of another shape or dtype, for other groups, and where the saved
    model had more tensors; but not with `rename`: a stage has not all of them.
    """
    where = places(model, rename, wholes)
    here = {f"{MODEL}/{place.name}" for place in where.values()}
    more = {name for name in saved.names if name.startswith(f"{MODEL}/")} - here
    if more and rename is None and here <= set(saved.names):
        raise ValueError(
            f"{saved.path} has {len(more)} tensors more than the model: {', '.join(sorted(more)[:4])}"
        )
    saved.read(
        [one for x, place in where.items() for one in place.pieces(x, f"{MODEL}/{place.name}")]
    )
    if optimizer is not None:
        optimizer.load_state_dict(_put_together(saved, optimizer, _placed(optimizer, where)))


def _placed(optimizer: Optimizer, where: dict[Tensor, Place]) -> list[tuple[Tensor, Place]]:
    """The optimizer's parameters, in the order of its state dict, with their places."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in enumerate(params):
        if p not in where:
            raise ValueError(
                f"parameter {i} of {len(params)} of the optimizer is none of the model's"
            )
    return [(p, where[p]) for p in params]


def _taken_apart(optimizer: Optimizer, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Of a state dict, {what: state} of each parameter, and the rest, the same on all ranks."""
    sharded = {"sharded": True} if isinstance(optimizer, ShardedOptimizer) else {}
    found = optimizer.state_dict(**sharded)
    found.pop("shard", None)
    groups = [
        {key: x for key, x in group.items() if key not in ("params", "param_names")}
        for group in found.pop("param_groups")
    ]
    by_parameter: list[dict[str, Any]] = [{} for _ in range(count)]
    rest, lists = {}, []
    for key, entry in found.items():
        if isinstance(entry, list) and len(entry) == count:
            lists.append(key)
            entry = dict(enumerate(entry))
        if isinstance(entry, dict) and all(isinstance(i, int) for i in entry):
            for i, state in entry.items():
                by_parameter[i][key] = state
        else:
            rest[key] = entry
    return by_parameter, {"groups": groups, "lists": lists, "rest": rest}


def _put_together(
    saved: Saved, optimizer: Optimizer, params: list[tuple[Tensor, Place]]
) -> dict[str, Any]:
    """The state dict, with the states of those parameters that this rank steps."""
    options = nested.read(saved, OPTIONS)
    if len(options["groups"]) != len(optimizer.param_groups):
        raise ValueError(
            f"{saved.path} has {len(options['groups'])} groups of parameters, the optimizer "
            f"{len(optimizer.param_groups)}"
        )
    found: dict[str, Any] = {"state": {}, **options["rest"]}
    for i, (p, place) in enumerate(params):
        name = f"{OPTIMIZER}/{place.name}"
        if name not in saved:
            continue
        state = nested.read(saved, name, place, p) if _steps(optimizer, p) else {"state": {}}
        for key, value in state.items():
            found.setdefault(key, {})[i] = value
    # as this optimizer has them, whichever saved them
    for key in _taken_apart(optimizer, len(params))[1]["lists"]:
        if key in found:
            found[key] = list(found[key].values())
    indices = iter(range(len(params)))
    groups = zip(options["groups"], optimizer.param_groups, strict=True)
    found["param_groups"] = [
        {**given, "params": [next(indices) for _ in group["params"]]} for given, group in groups
    ]
    return found


def _steps(optimizer: Optimizer, p: Tensor) -> bool:
    """Whether this rank steps it, or may when it is thawed."""
    if not isinstance(optimizer, ShardedOptimizer):
        return True
    owner = optimizer.owners.get(optimizer.names()[p])
    return owner in (None, optimizer.comm.rank)
