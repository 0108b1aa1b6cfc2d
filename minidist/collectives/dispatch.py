"""What every collective does first: check its arguments, choose its algorithm, lay out its tensors."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import torch
from torch import Tensor

from ..arguments import choice, whole
from ..comm.base import Comm, describe, expanded
from ..split import given
from .cost import ALGORITHMS, fastest
from .flat import Flat, Rows, scratch


def _in_place(operator: Callable) -> Callable:
    """`operator(a, b)` of flat tensors, but where meta tensors fit there is nothing to do: no values, only PyTorch's
    checks in Python, which cost more than the message. A dispatch mode (the meter) sees the operation all the same."""
    modes = torch._C._len_torch_dispatch_stack

    def combine(a: Tensor, b: Tensor) -> Tensor:
        if a.is_meta and not modes() and a.numel() == b.numel() and a.dtype is b.dtype:
            return a
        return operator(a, b)

    return combine


# What torch moves, but does not compute with.
UNCOMPUTED = {
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
}

# combine(a, b): a becomes the combination, and is returned
OPS = {
    "sum": _in_place(Tensor.add_),
    "mean": _in_place(Tensor.add_),
    "min": lambda a, b: torch.minimum(a, b, out=a),
    "max": lambda a, b: torch.maximum(a, b, out=a),
    "prod": _in_place(Tensor.mul_),
}


def collective(comm: Comm, verb: str, xs, algorithm, rooted: bool = False, **options):
    """The context of a collective: what all ranks must say of it travels in the headers of its messages.

    xs: tensors, or shapes, that are the same on all ranks.  options: what else is.
    """
    xs = list(xs) if isinstance(xs, list) else [xs]
    shapes = " and ".join([str(tuple(x.shape if isinstance(x, Tensor) else x)) for x in xs])
    words = [f"{verb} of {shapes}" if xs else verb]
    words += [f"{name} {value}" for name, value in options.items() if value is not None]
    name = algorithm or comm.algorithm
    words.append(f"algorithm {name if isinstance(name, str) else type(name).__name__}")
    text = ", ".join(words)
    if len(text) > 120:
        text = f"{text[:100]}… (check sum {crc32(text.encode()):08x})"
    return comm.collective(text, rooted)


def native(comm: Comm, algorithm: str | None):
    """The library's own collectives if they are asked for, else None."""
    if (algorithm or comm.algorithm) != "native":
        return None
    if comm.native is None:
        only = f"a {type(comm).__name__} has only ours"
        raise ValueError(f'algorithm="native" is for Comms over torch.distributed; {only}')
    return comm.native


def chosen(comm: Comm, verb: str, algorithm, nbytes: int) -> Callable:
    """Our function for `verb`; a Comm's default that does not know the verb means the naive one.

    "auto": what `cost.fastest` predicts to be fastest for `nbytes` over the Comm's links, the same on every rank.
    """
    have = {name: getattr(one, verb) for name, one in ALGORITHMS.items() if hasattr(one, verb)}
    name = algorithm or (comm.algorithm if comm.algorithm in [*have, "auto"] else "naive")
    if name == "auto":
        name = fastest(comm, verb, nbytes)
    if isinstance(name, str):
        if name not in have:
            names = ", ".join(map(repr, [*have, "auto", "native"]))
            raise ValueError(f"{verb} has the algorithms {names}, not {name!r}")
        return _steady(comm, have[name])
    if not hasattr(name, verb):
        raise ValueError(
            f"an algorithm is a name or an object with a function {verb}, not {name!r}"
        )
    return (
        _steady(comm, getattr(name, verb))
        if getattr(name, "steady", False)
        else getattr(name, verb)
    )


def _steady(comm: Comm, run: Callable) -> Callable:
    """`run`, which draws no random numbers, as ours do not."""

    def steady(*args):
        with comm.steady:
            return run(*args)

    return steady


def check_root(comm: Comm, root: int) -> None:
    if not 0 <= whole(root, "the root of a collective is a rank, a whole number") < comm.size:
        raise ValueError(
            f"root rank {root} does not exist: there are {comm.size} ranks, 0 to {comm.size - 1}"
        )


def check_tensor(x: Tensor) -> Tensor:
    """`x`, which a collective can lay out: a dense tensor."""
    if not isinstance(x, Tensor):
        how = ": torch.from_numpy(x) makes one of an array" if hasattr(x, "__array__") else ""
        raise TypeError(
            f"a collective takes a tensor, or a list of tensors, not {type(x).__name__}{how}"
        )
    if x.layout is not torch.strided or x.is_quantized:
        what = "quantized" if x.is_quantized else str(x.layout).removeprefix("torch.")
        way = "x.dequantize()" if x.is_quantized else "x.to_dense()"
        raise ValueError(
            f"a collective takes dense tensors, not a {what} one of {tuple(x.shape)}: {way} makes one"
        )
    return x


def check_op(xs: list[Tensor], op: str) -> None:
    choice(op, "op", OPS)
    for x in xs:
        if check_tensor(x).dtype in UNCOMPUTED or (x.is_complex() and op in ("min", "max")):
            raise ValueError(
                f"torch computes no {op} of {x.dtype} tensors: reduce a copy of another dtype"
            )
        if op == "mean" and not (x.is_floating_point() or x.is_complex()):
            raise ValueError(
                f"the mean of {x.dtype} tensors is not {x.dtype}: reduce a floating-point copy"
            )


def check_out(
    comm: Comm, xs: list[Tensor] | None, split: list[list[int]] | None, outs: list[Tensor]
) -> None:
    """The root's `outs` must have room for exactly its own rows; the header of the message checks the others."""
    if xs is None:
        return
    if len(xs) != len(outs):
        raise ValueError(f"rank {comm.rank} scatters {len(xs)} tensors, but `out` has {len(outs)}")
    for x, s, out in zip(xs, split, outs, strict=True):
        rows = x.new_empty((s[comm.rank], *x.shape[1:]), device="meta")
        if (rows.numel(), rows.dtype) != (out.numel(), out.dtype):
            raise ValueError(
                f"rank {comm.rank} keeps rows {describe(rows)}, but `out` is {describe(out)}"
            )


def mean(x: Tensor, op: str, n: int) -> None:
    """Finish a "mean", which the algorithms sum."""
    if op == "mean":
        x.div_(n)


def flats(x: Tensor | list[Tensor], op: str | None = None) -> list[Flat]:
    """One flat buffer for each dtype among the tensors, which are written to; `op`: what combines them, if anything."""
    xs = list(x) if isinstance(x, list | tuple) else [x]
    for t in xs:
        if 0 in check_tensor(t).stride() and expanded(t):
            raise ValueError(
                f"a collective in place cannot write into {describe(t)}, which was expanded: several of "
                "its elements are one place in memory; x.clone() has room for each"
            )
    if op is not None:
        check_op(xs, op)
    return [
        Flat([t for t in xs if t.dtype == dtype]) for dtype in dict.fromkeys(t.dtype for t in xs)
    ]


def by_dtype(xs: list[Tensor], run: Callable[[list[Tensor]], list]) -> list:
    """`run` on the tensors of each dtype together; the results in the order of `xs`."""
    results: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(check_tensor(x).dtype for x in xs):
        some = [i for i, x in enumerate(xs) if x.dtype == dtype]
        results.update(zip(some, run([xs[i] for i in some]), strict=True))
    return [results[i] for i in range(len(xs))]


def height(x: Tensor) -> int:
    """Rows of `x`; a number has one."""
    check_tensor(x)
    return x.shape[0] if x.ndim else 1


def room(comm: Comm, xs: list[Tensor], sizes: list[int] | None) -> Rows:
    """Room for all ranks' rows of `xs`, this rank's filled in."""
    split = [
        given([height(x)] * comm.size if sizes is None else sizes, None, comm.size) for x in xs
    ]
    for x, s in zip(xs, split, strict=True):
        if s[comm.rank] != height(x):
            raise ValueError(
                f"rank {comm.rank} has {height(x)} rows, but sizes gives it {s[comm.rank]}: {s}"
            )
    out = Rows(xs[0], [x.shape[1:] for x in xs], split)
    torch.cat([x.detach().reshape(-1) for x in xs], out=out.chunks[comm.rank])
    return out


def nbytes(chunks: list[Tensor]) -> int:
    """Bytes of all chunks together."""
    return sum(chunk.nbytes for chunk in chunks)


def others(comm: Comm, outs: list[Tensor], sizes: list[int] | None, mine: Tensor) -> list[Tensor]:
    """All ranks' chunks of a scatter, on a rank that is not its root: `mine`, and as long ones without memory."""
    counts = given([1] * comm.size if sizes is None else sizes, None, comm.size)
    own = counts[comm.rank]
    row = mine.numel() // own if own else sum(out.shape[1:].numel() for out in outs)
    chunks = [scratch(mine, 1).expand(count * row) for count in counts]
    return [*chunks[: comm.rank], mine, *chunks[comm.rank + 1 :]]
