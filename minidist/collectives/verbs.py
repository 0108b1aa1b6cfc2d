"""The collectives, as programs call them.

    rank   before            all_gather        reduce_scatter    all_reduce_     all_to_all
    0      a0 a1             a0 a1 b0 b1       a0+b0             a0+b0 a1+b1     a0 b0
    1      b0 b1             a0 a1 b0 b1       a1+b1             a0+b0 a1+b1     a1 b1

Rows (the first dimension) are what is split and put together: `all_gather(reduce_scatter(x))` is
`all_reduce_(x)`. Rows split evenly, or as `sizes` says (the same list on every rank). In-place verbs end
in `_` and take any shape. Everywhere `x` may be a list of tensors: one message carries them all, and a
list comes back. `op`: "sum", "mean", "min", "max", "prod". `algorithm`: a name (algorithms.py has the table),
"auto" (what `fastest` predicts), "native" (the transport library's own), a `Hierarchical(inner, outer, size)`, or
any object with functions like theirs; None for the Comm's default.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from ..comm.base import Comm
from ..split import given
from . import naive
from .dispatch import (
    OPS,
    by_dtype,
    check_op,
    check_out,
    check_root,
    chosen,
    collective,
    flats,
    height,
    mean,
    native,
    nbytes,
    others,
    room,
)
from .flat import Flat, Rows, rows


def broadcast_(comm: Comm, x: Tensor | list[Tensor], root: int = 0, algorithm=None):
    """`x` of rank `root` on every rank, in place. Returns `x`."""
    check_root(comm, root)
    buffers = flats(x)
    if not buffers:  # an empty list, such as the buffers of a model that has none: nobody need come
        return x
    with collective(comm, "broadcast_", x, algorithm, rooted=True, root=root):
        for flat in buffers:
            if run := native(comm, algorithm):
                run.broadcast(flat.buffer, root)
            else:
                chosen(comm, "broadcast", algorithm, flat.buffer.nbytes)(comm, flat.buffer, root)
            flat.restore()
    return x


def reduce_(comm: Comm, x: Tensor | list[Tensor], root: int = 0, op: str = "sum", algorithm=None):
    """`x` combined over all ranks, in place on rank `root`; the others keep theirs. Returns `x`."""
    check_root(comm, root)
    check_op([], op)
    buffers = flats(x, op)
    if not buffers:
        return x
    with collective(comm, "reduce_", x, algorithm, rooted=True, root=root, op=op):
        for flat in buffers:
            if run := native(comm, algorithm):
                run.reduce(flat.buffer, root, op)
            else:
                chosen(comm, "reduce", algorithm, flat.buffer.nbytes)(
                    comm, flat.buffer, root, OPS[op]
                )
            if comm.rank == root:
                mean(flat.buffer, op, comm.size)
                flat.restore()
    return x


def all_reduce_(comm: Comm, x: Tensor | list[Tensor], op: str = "sum", algorithm=None):
    """`x` combined over all ranks, in place on every rank, bit for bit the same. Returns `x`.

    Ring: 2(n−1) messages and 2(n−1)/n·N bytes a rank.
    """
    check_op([], op)
    buffers = flats(x, op)
    if not buffers:
        return x
    with collective(comm, "all_reduce_", x, algorithm, op=op):
        for flat in buffers:
            if run := native(comm, algorithm):
                run.all_reduce(flat.buffer, op)
            else:
                chosen(comm, "all_reduce", algorithm, flat.buffer.nbytes)(
                    comm, flat.buffer, OPS[op]
                )
            mean(flat.buffer, op, comm.size)
            flat.restore()
    return x


def reduce_scatter(comm: Comm, x, op: str = "sum", sizes: list[int] | None = None, algorithm=None):
    """This rank's rows of `x` combined over all ranks: (R, …) → (R/n, …), or `sizes[rank]` rows."""
    if isinstance(x, list | tuple):
        return by_dtype(x, lambda some: _reduce_scatter(comm, some, op, sizes, algorithm))
    return _reduce_scatter(comm, [x], op, sizes, algorithm)[0]


def _reduce_scatter(comm: Comm, xs: list[Tensor], op: str, sizes, algorithm) -> list[Tensor]:
    check_op(xs, op)
    split = [given(sizes, height(x), comm.size) for x in xs]
    chunks = rows(xs, split)
    out = Rows(xs[0], [x.shape[1:] for x in xs], [[s[comm.rank]] for s in split])
    with collective(comm, "reduce_scatter", xs, algorithm, op=op, sizes=sizes):
        if run := native(comm, algorithm):
            chunks = [chunk.clone() for chunk in chunks]
            run.reduce_scatter(chunks, op)
            out.chunks[0].copy_(chunks[comm.rank])
        else:
            chosen(comm, "reduce_scatter", algorithm, nbytes(chunks))(
                comm, chunks, out.chunks[0], OPS[op]
            )
    mean(out.chunks[0], op, comm.size)
    return out.tensors()


def all_gather(comm: Comm, x, sizes: list[int] | None = None, algorithm=None):
    """Every rank's rows, in rank order, on every rank: (R, …) → (nR, …).

    `sizes[r]`: rows of rank r, where they differ. A number (no dimension) counts as one row.
    """
    if isinstance(x, list | tuple):
        return by_dtype(x, lambda some: _all_gather(comm, some, sizes, algorithm))
    return _all_gather(comm, [x], sizes, algorithm)[0]


def _all_gather(comm: Comm, xs: list[Tensor], sizes, algorithm) -> list[Tensor]:
    out = room(comm, xs, sizes)
    with collective(comm, "all_gather", _parts(xs, sizes), algorithm, sizes=sizes):
        if run := native(comm, algorithm):
            run.all_gather(out.chunks)
        else:
            chosen(comm, "all_gather", algorithm, nbytes(out.chunks))(comm, out.chunks)
    return out.tensors()


def _parts(xs: list[Tensor], sizes) -> list[tuple]:
    """What ranks must say of the tensors that they give: their shapes; without the rows, where those may differ."""
    return [tuple(x.shape) if sizes is None else ("rows", *x.shape[1:]) for x in xs]


def gather(comm: Comm, x, root: int = 0, sizes: list[int] | None = None, algorithm=None):
    """Every rank's rows, in rank order, on rank `root`; None on the others. `sizes` as in `all_gather`."""
    if isinstance(x, list | tuple):
        gathered = by_dtype(x, lambda some: _gather(comm, some, root, sizes, algorithm))
        return gathered if comm.rank == root else None
    return _gather(comm, [x], root, sizes, algorithm)[0]


def _gather(comm: Comm, xs: list[Tensor], root: int, sizes, algorithm) -> list[Tensor | None]:
    check_root(comm, root)
    out = room(comm, xs, sizes)
    with collective(
        comm, "gather", _parts(xs, sizes), algorithm, rooted=True, root=root, sizes=sizes
    ):
        if run := native(comm, algorithm):
            run.gather(out.chunks, root)
        else:
            chosen(comm, "gather", algorithm, nbytes(out.chunks))(comm, out.chunks, root)
    return out.tensors() if comm.rank == root else [None] * len(xs)


def scatter(comm: Comm, x, root: int = 0, sizes: list[int] | None = None, out=None, algorithm=None):
    """Rows of rank `root`'s `x`, to each rank its own: (R, …) → (R/n, …). The others pass x=None.

    `sizes[r]`: rows for rank r. `out`: what to fill, given on every rank or on none; without it the shapes
    travel first, one message of 512 bytes to each rank.
    """
    check_root(comm, root)
    if comm.rank == root and x is None:
        raise ValueError(f"rank {root} is the root of this scatter: it must give x")
    several = isinstance(x if comm.rank == root else out, list | tuple)
    xs = (list(x) if several else [x]) if comm.rank == root else None
    split = None if xs is None else [given(sizes, height(t), comm.size) for t in xs]
    announced = "out is given" if out is not None else "shapes travel first"
    with collective(
        comm, "scatter", [], algorithm, rooted=True, root=root, sizes=sizes, where=announced
    ):
        if out is None:
            outs, several = _announced(comm, xs, split, root, several)
        else:
            outs = list(out) if isinstance(out, list | tuple) else [out]
            check_out(comm, xs, split, outs)
        for dtype in dict.fromkeys(o.dtype for o in outs):
            some = [i for i, o in enumerate(outs) if o.dtype == dtype]
            mine = Flat([outs[i] for i in some])
            chunks = others(comm, [outs[i] for i in some], sizes, mine.buffer)
            if comm.rank == root:
                chunks = rows([xs[i] for i in some], [split[i] for i in some])
            if run := native(comm, algorithm):
                run.scatter(chunks, root)
            else:
                chosen(comm, "scatter", algorithm, nbytes(chunks))(comm, chunks, root)
            mine.buffer.copy_(chunks[comm.rank])
            mine.restore()
    return outs if several else outs[0]


def _announced(comm: Comm, xs, split, root: int, several: bool) -> tuple[list[Tensor], bool]:
    """Room for this rank's rows; `root` tells the others dtypes, rows and shapes."""
    notes = [torch.zeros(512, dtype=torch.uint8) for _ in range(comm.size)]
    if comm.rank == root:
        for r, note in enumerate(notes):
            parts = [
                [str(x.dtype).removeprefix("torch."), s[r], *x.shape[1:]]
                for x, s in zip(xs, split, strict=True)
            ]
            text = json.dumps([several, parts]).encode()
            if len(text) > len(note):
                raise ValueError(
                    f"the shapes of {len(xs)} tensors do not fit into {len(note)} bytes: give `out` on every rank"
                )
            note[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    words = comm.on_host()
    if words.device.type == "cuda":
        notes = [note.to(words.device) for note in notes]
    naive.scatter(words, notes, root)
    several, parts = json.loads(bytes(notes[comm.rank].tolist()).rstrip(b"\0").decode())
    return [
        torch.empty(shape, dtype=getattr(torch, dtype), device=comm.device)
        for dtype, *shape in parts
    ], several


def all_to_all(
    comm: Comm,
    x,
    sizes: list[int] | None = None,
    out_sizes: list[int] | None = None,
    algorithm=None,
):
    """Rows for each rank in, rows from each rank out, in rank order: (R, …) → (R, …).

    Where they differ: `sizes[r]` rows go to rank r, `out_sizes[r]` come from it (default: as `sizes`).
    """
    if isinstance(x, list | tuple):
        return by_dtype(x, lambda some: _all_to_all(comm, some, sizes, out_sizes, algorithm))
    return _all_to_all(comm, [x], sizes, out_sizes, algorithm)[0]


def _all_to_all(comm: Comm, xs: list[Tensor], sizes, out_sizes, algorithm) -> list[Tensor]:
    split = [given(sizes, height(x), comm.size) for x in xs]
    back = [given(out_sizes, None, comm.size) if out_sizes is not None else s for s in split]
    for to, source in zip(split, back, strict=True):
        if to[comm.rank] != source[comm.rank]:
            raise ValueError(
                f"rank {comm.rank} keeps {to[comm.rank]} rows of its own, but out_sizes says {source}"
            )
    out = Rows(xs[0], [x.shape[1:] for x in xs], back)
    with collective(comm, "all_to_all", [("rows", *x.shape[1:]) for x in xs], algorithm):
        if run := native(comm, algorithm):
            run.all_to_all(out.chunks, rows(xs, split))
        else:
            chosen(comm, "all_to_all", algorithm, nbytes(out.chunks))(
                comm, out.chunks, rows(xs, split)
            )
    return out.tensors()


def barrier(comm: Comm, algorithm=None) -> None:
    """Return once every rank has come here."""
    with collective(comm, "barrier", [], algorithm):
        if run := native(comm, algorithm):
            run.barrier()
        else:
            chosen(comm, "barrier", algorithm, 1)(
                comm, torch.zeros(1, dtype=torch.uint8, device=comm.device)
            )
