"""From shards to the state dict of the unsharded module, and back: what a checkpoint needs to be free of n.

Blocks are gathered one at a time, in the dtype of the shards, so the peak is the result and one block. Tied parameters
stand under each of their names, as in the module's own `state_dict`. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ....collectives import broadcast_, scatter
from .flat import Flat


def flats(model: nn.Module) -> Iterator[tuple[str, Flat]]:
    """(prefix of its names, flat) of all blocks; those of a FullySharded inside have names of their own."""
    yield from _flats(model, type(model), "")


def _flats(model: nn.Module, kind: type, prefix: str):
    for unit in model._units:
        yield from ((prefix, flat) for flat in unit.flats)
    for path, nested in inside(model.module, kind, prefix):
        yield from _flats(nested, kind, path)


def inside(module: nn.Module, kind: type, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """(prefix, module) of the FullySharded in `module`, without those within them."""
    for key, child in module.named_children():
        if isinstance(child, kind):
            yield f"{prefix}{key}.", child
        else:
            yield from inside(child, kind, f"{prefix}{key}.")


def _buffers(
    model: nn.Module, kind: type, prefix: str = ""
) -> Iterator[tuple[str, nn.Module, str]]:
    """(full name, module, attribute) of the buffers that a state dict holds."""
    module = model.module if isinstance(model, kind) else model
    for name in module._buffers:
        if module._buffers[name] is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, module, name
    for key, child in module.named_children():
        yield from _buffers(child, kind, f"{prefix}{key}.")


@torch.no_grad()
def full(model: nn.Module, root: int | None) -> dict[str, Tensor]:
    """See FullySharded.full_state_dict."""
    comm, found = model.comm, {}
    for prefix, flat in flats(model):
        whole = flat.gathered(root)
        if whole is not None:
            for h, view in zip(flat.held, flat.views(whole), strict=True):
                value = view.clone() if view.is_meta else view.to("cpu", copy=True)
                found.update({prefix + name: value for *_, name in h.sites})
    if root is None or comm.rank == root:
        found.update(
            {
                name: m._buffers[key].detach().clone()
                for name, m, key in _buffers(model, type(model))
            }
        )
    return found


@torch.no_grad()
def load(model: nn.Module, found: dict[str, Tensor] | None, root: int | None) -> None:
    """See FullySharded.load_full_state_dict."""
    comm, replicas = model.comm, model.replicas
    first = replicas is None or replicas.rank == 0
    has = root is None or (comm.rank == root and first)
    if has:
        _check(model, found)
    for prefix, flat in flats(model):
        whole = None
        if has:
            whole = torch.empty(flat.total, dtype=flat.shard.dtype, device=comm.device)
            flat.fill_(whole, [found[prefix + h.name] for h in flat.held])
        mine = torch.empty(flat.end - flat.first, dtype=flat.shard.dtype, device=comm.device)
        if root is None:
            mine.copy_(whole[flat.first : flat.end])
        else:
            if first:
                scatter(comm, whole, root, sizes=flat.sizes, out=mine)
            if replicas is not None:
                broadcast_(replicas, mine)
        flat.shard.copy_(mine)
    for name, module, key in _buffers(model, type(model)):
        value = found[name].to(comm.device) if has else module._buffers[key]
        module._buffers[key].copy_(value)
    buffers = [module._buffers[key] for _, module, key in _buffers(model, type(model))]
    if root is not None:
        broadcast_(comm, buffers, root)
        if replicas is not None:
            broadcast_(replicas, buffers)


def renamed(model: nn.Module, found: dict, prefix: str, *others) -> None:
    """Before `model` loads from `found`: its names there do not say that it is wrapped."""
    for name in [name for name in found if name.startswith(prefix)]:
        found[f"{prefix}module.{name.removeprefix(prefix)}"] = found.pop(name)


def _check(model: nn.Module, found: dict[str, Tensor]) -> None:
    shapes = {
        prefix + name: h.shape
        for prefix, flat in flats(model)
        for h in flat.held
        for *_, name in h.sites
    }
    shapes |= {
        name: module._buffers[key].shape for name, module, key in _buffers(model, type(model))
    }
    missing, extra = shapes.keys() - found.keys(), found.keys() - shapes.keys()
    if missing or extra:
        raise ValueError(
            f"{len(missing)} names are missing, {sorted(missing)[:4]}, "
            f"and {len(extra)} are not of this model, {sorted(extra)[:4]}"
        )
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(f"{name} is {tuple(found[name].shape)}, the model has {tuple(shape)}")
