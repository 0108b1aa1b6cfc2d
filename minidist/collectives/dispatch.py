"""What every collective does first: check its arguments, choose its algorithm, lay out its tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..comm.base import Comm, describe
from ..split import given
from . import naive, ring
from .flat import Flat, Rows

# combine(a, b): a becomes the combination, and is returned
OPS = {
    "sum": Tensor.add_,
    "mean": Tensor.add_,
    "min": lambda a, b: torch.minimum(a, b, out=a),
    "max": lambda a, b: torch.maximum(a, b, out=a),
    "prod": Tensor.mul_,
}
_ALGORITHMS = {"naive": naive, "ring": ring}


def native(comm: Comm, algorithm: str | None):
    """The library's own collectives if they are asked for, else None."""
    if (algorithm or comm.algorithm) != "native":
        return None
    if comm.native is None:
        only = f"a {type(comm).__name__} has only ours"
        raise ValueError(f'algorithm="native" is for Comms over torch.distributed; {only}')
    return comm.native


def chosen(comm: Comm, verb: str, algorithm: str | None) -> Callable:
    """Our function for `verb`; a Comm's default that does not know the verb means the naive one."""
    have = {name: getattr(module, verb) for name, module in _ALGORITHMS.items() if hasattr(module, verb)}
    name = algorithm or (comm.algorithm if comm.algorithm in have else "naive")
    if name not in have:
        raise ValueError(f"{verb} has the algorithms {', '.join(map(repr, [*have, 'native']))}, not {name!r}")
    return have[name]


def check_root(comm: Comm, root: int) -> None:
    if not 0 <= root < comm.size:
        raise ValueError(f"root rank {root} does not exist: there are {comm.size} ranks, 0 to {comm.size - 1}")


def check_op(xs: list[Tensor], op: str) -> None:
    if op not in OPS:
        raise ValueError(f"op is one of {', '.join(map(repr, OPS))}, not {op!r}")
    for x in xs:
        if op == "mean" and not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"the mean of {x.dtype} tensors is not {x.dtype}: reduce a floating-point copy")


def check_out(comm: Comm, xs: list[Tensor] | None, split: list[list[int]] | None, outs: list[Tensor]) -> None:
    """The root's `outs` must have room for exactly its own rows; the header of the message checks the others."""
    if xs is None:
        return
    if len(xs) != len(outs):
        raise ValueError(f"rank {comm.rank} scatters {len(xs)} tensors, but `out` has {len(outs)}")
    for x, s, out in zip(xs, split, outs, strict=True):
        rows = x.new_empty((s[comm.rank], *x.shape[1:]), device="meta")
        if (rows.numel(), rows.dtype) != (out.numel(), out.dtype):
            raise ValueError(f"rank {comm.rank} keeps rows {describe(rows)}, but `out` is {describe(out)}")


def mean(x: Tensor, op: str, n: int) -> None:
    """Finish a "mean", which the algorithms sum."""
    if op == "mean":
        x.div_(n)


def flats(x: Tensor | list[Tensor], op: str = "sum") -> list[Flat]:
    """One flat buffer for each dtype among the tensors."""
    xs = list(x) if isinstance(x, list | tuple) else [x]
    check_op(xs, op)
    return [Flat([t for t in xs if t.dtype == dtype]) for dtype in dict.fromkeys(t.dtype for t in xs)]


def by_dtype(xs: list[Tensor], run: Callable[[list[Tensor]], list]) -> list:
    """`run` on the tensors of each dtype together; the results in the order of `xs`."""
    results: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(x.dtype for x in xs):
        some = [i for i, x in enumerate(xs) if x.dtype == dtype]
        results.update(zip(some, run([xs[i] for i in some]), strict=True))
    return [results[i] for i in range(len(xs))]


def height(x: Tensor) -> int:
    """Rows of `x`; a number has one."""
    return x.shape[0] if x.ndim else 1


def room(comm: Comm, xs: list[Tensor], sizes: list[int] | None) -> Rows:
    """Room for all ranks' rows of `xs`, this rank's filled in."""
    split = [given([height(x)] * comm.size if sizes is None else sizes, None, comm.size) for x in xs]
    for x, s in zip(xs, split, strict=True):
        if s[comm.rank] != height(x):
            raise ValueError(f"rank {comm.rank} has {height(x)} rows, but sizes gives it {s[comm.rank]}: {s}")
    out = Rows(xs[0], [x.shape[1:] for x in xs], split)
    torch.cat([x.detach().reshape(-1) for x in xs], out=out.chunks[comm.rank])
    return out
