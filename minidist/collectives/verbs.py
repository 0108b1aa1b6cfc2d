"""The collectives, as programs call them.

    rank   before            all_gather        reduce_scatter    all_reduce_     all_to_all
    0      a0 a1             a0 a1 b0 b1       a0+b0             a0+b0 a1+b1     a0 b0
    1      b0 b1             a0 a1 b0 b1       a1+b1             a0+b0 a1+b1     a1 b1

Rows (the first dimension) are what is split and put together: `all_gather(reduce_scatter(x))` is
`all_reduce_(x)`. Rows split evenly, or as `sizes` says (the same list on every rank). In-place verbs end
in `_` and take any shape. Everywhere `x` may be a list of tensors: one message carries them all, and a
list comes back. `op`: "sum", "mean", "min", "max", "prod". `algorithm`: a name (hierarchical.py has the table),
"auto" (what `fastest` predicts), "native" (the transport library's own), a `Hierarchical(inner, outer, size)`, or
any object with functions like theirs; None for the Comm's default.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from zlib import crc32

import torch
from torch import Tensor

from ..arguments import choice, whole
from ..comm.base import Comm, describe, expanded
from ..split import given
from . import naive
from .buffers import Flat, Rows, beside, rows, scratch
from .hierarchical import FLAT, Hierarchical, having
from .links import Net, Uniform

# ------------------------------------------------------------
# What a collective takes: α–β–γ formulas, and the choice of algorithm that follows from them.
#
# α: seconds until a message's last byte arrives after it left; β: seconds a byte on the wire; γ: seconds to combine
# a byte. Each formula stands beside its algorithm, in its `Cost`, with its source. A link's two directions are two
# wires; a rank's next message may start when the wire is free, before the latency of the last one has passed.
# N is the whole: what each rank has before an all-reduce or a reduce-scatter, and after an all-gather.


ALGORITHMS = FLAT | {"hierarchical": Hierarchical()}
# for "auto"
_BETWEEN_NODES = [Hierarchical(outer=name) for name in having("all_reduce") if name != "naive"]


def formula(verb: str, algorithm):
    """The formula of a verb: seconds(net, nbytes, gamma). ValueError if the algorithm has no such verb."""
    verb = verb.removesuffix("_")
    named = {
        name: getattr(one.Cost, verb) for name, one in ALGORITHMS.items() if hasattr(one.Cost, verb)
    }
    if not isinstance(algorithm, str) and hasattr(algorithm.Cost, verb):
        return getattr(algorithm.Cost, verb)
    if algorithm not in named:
        raise ValueError(
            f"there is a formula of {verb} for {', '.join(map(repr, named))}, not for {algorithm!r}"
        )
    return named[algorithm]


def seconds(
    verb: str, algorithm, n: int, nbytes: float, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """What `verb` takes on n ranks with links all alike. nbytes: N, or 1 for a barrier. algorithm: as verbs take it.

    ValueError if the algorithm has no such verb, or n < 1.
    """
    return formula(verb, algorithm)(Uniform(n, alpha, beta), nbytes, gamma)


def predict(comm: Comm | Net, verb: str, nbytes: float, algorithm, gamma: float = 0.0) -> float:
    """The same for the links that there are: of a Comm, or of a `Net(n, link)`. "auto": the fastest.

    Ring and halving-doubling wait for the slowest link of each step; a tree's levels and a chain's links add up. So it
    is too long where a slow rank is not on the longest path, and too short where links share a wire, or cannot carry
    both ways at once: each is taken for a free one.
    """
    net = comm if isinstance(comm, Net) else Net.of(comm)
    return formula(verb, fastest(net, verb, nbytes) if algorithm == "auto" else algorithm)(
        net, nbytes, gamma
    )


def fastest(comm: Comm | Net, verb: str, nbytes: float):
    """The algorithm for "auto": the first, in the order of `ALGORITHMS`, of those that are predicted to be fastest.

    Within 3 % all count as equal: the earlier ones send fewer messages, each of which costs more than the model says.
    The links, in the order of the ranks, are all that it knows, so all ranks choose the same.
    """
    net, verb = comm if isinstance(comm, Net) else Net.of(comm), verb.removesuffix("_")
    if verb in ("scatter", "all_to_all"):
        # all at once is never slower; and where parts are uneven, ranks know different N
        return "naive"

    def choose():
        have: list = [name for name, module in FLAT.items() if hasattr(module.Cost, verb)]
        if len(Hierarchical().nodes(net).members) > 1:
            have += [a for a in _BETWEEN_NODES if a.outer in having(verb) and hasattr(a.Cost, verb)]
        times = [formula(verb, a)(net, nbytes) for a in have]
        return next(a for a, time in zip(have, times, strict=True) if time <= 1.03 * min(times))

    return net.keep(("fastest", verb, nbytes), choose)


def bandwidth(verb: str, n: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """(algorithm bandwidth, bus bandwidth) in bytes a second, as nccl-tests define them (doc/PERFORMANCE.md).

    Algorithm bandwidth: N over time. Bus bandwidth: what each wire must have carried for that, N being the whole, as
    everywhere here; it can be compared with the hardware's whatever n. ValueError for a verb or an n without one.
    """
    share = (n - 1) / n if n > 0 else 0
    carried = {
        "all_reduce": 2 * share,
        "reduce_scatter": share,
        "all_gather": share,
        "all_to_all": share,
        "broadcast": 1,
        "reduce": 1,
    }
    if verb not in carried or n < 1:
        raise ValueError(
            f"{', '.join(carried)} among 1 rank or more have a bandwidth, not {verb} among {n}"
        )
    return nbytes / seconds, nbytes / seconds * carried[verb]


# ------------------------------------------------------------
# What every collective does first: check its arguments, choose its algorithm, lay out its tensors.


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

    "auto": what `fastest` predicts to be fastest for `nbytes` over the Comm's links, the same on every rank.
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


# ------------------------------------------------------------
# The verbs: each checks and lays out its tensors, and hands flat chunks to an algorithm.


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


def all_gather_json(comm: Comm, value) -> list:
    """Gather one JSON value from every rank, from host to host; returns them in rank order."""
    comm = comm.on_host()
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device="cpu")
    sizes = all_gather(comm, torch.tensor([len(text)], device="cpu")).tolist()
    texts = all_gather(comm, text, sizes).split(sizes)
    return [json.loads(bytes(text.tolist())) for text in texts]


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


# ------------------------------------------------------------
# Collectives without a buffer for the result: each rank's part is a tensor that is there already.
#
#     rank   before            all_gather_       before            reduce_scatter_
#     0      [a] [·] [·]       [a] [b] [c]       [a0] [b0] [c0]    [a0+a1+a2] [?] [?]
#     1      [·] [b] [·]       [a] [b] [c]       [a1] [b1] [c1]    [?] [b0+b1+b2] [?]
#
# `chunks[r]` is flat and belongs to rank r; lengths may differ and be zero, the same list of lengths on every rank.
# They send what the verbs send (ring: n−1 messages, (n−1)/n·N bytes a rank) and take no memory for N bytes: the ring one
# chunk for the sum, nothing to gather. For that the other chunks of a sum become scratch, `?`: who reduces gradients to
# their owners has no use for them. Used where the parts are views of what stays: parameters in a flat buffer, gradients
# where autograd has put them.


# algorithms that take each chunk by itself, wherever it lies
ANYWHERE = ("naive", "ring", "pipelined")


def all_gather_(comm: Comm, chunks: list[Tensor], algorithm=None) -> None:
    """Fill the other ranks' chunks; this rank's is there."""
    _check(comm, chunks)
    if run := native(comm, algorithm):
        run.all_gather(chunks)
        return
    near = _near(comm, chunks, algorithm)
    with collective(comm, "all_gather_", _whole(chunks), algorithm):
        chosen(comm, "all_gather", algorithm, nbytes(near))(comm, near)
    if near is not chunks:
        for chunk, got in zip(chunks, near, strict=True):
            chunk.copy_(got)


def reduce_scatter_(comm: Comm, chunks: list[Tensor], op: str = "sum", algorithm=None) -> None:
    """This rank's chunk becomes all ranks' combined; what the others hold afterwards is of no use."""
    _check(comm, chunks)
    check_op(chunks, op)
    mine = chunks[comm.rank]
    if run := native(comm, algorithm):
        run.reduce_scatter(chunks, op)
    else:
        near = _near(comm, chunks, algorithm)
        with collective(comm, "reduce_scatter_", _whole(chunks), algorithm, op=op):
            chosen(comm, "reduce_scatter", algorithm, nbytes(near))(comm, near, mine, OPS[op])
    mean(mine, op, comm.size)


def _check(comm: Comm, chunks: list[Tensor]) -> None:
    if len(chunks) != comm.size:
        raise ValueError(f"{len(chunks)} chunks were given for {comm.size} ranks")
    for r, chunk in enumerate(chunks):
        if chunk.ndim != 1 or not chunk.is_contiguous() or chunk.dtype != chunks[0].dtype:
            raise ValueError(
                f"chunk {r} is {tuple(chunk.shape)} {chunk.dtype} with strides {chunk.stride()}: "
                f"all are flat, contiguous and {chunks[0].dtype}, as chunk 0"
            )


def _whole(chunks: list[Tensor]) -> list[tuple[int]]:
    """The shape of all chunks together; where one of them differs, its own message tells."""
    return [(sum(chunk.numel() for chunk in chunks),)]


def _near(comm: Comm, chunks: list[Tensor], algorithm) -> list[Tensor]:
    """`chunks`, or a copy of them in one buffer for an algorithm that sends several as one message."""
    if (algorithm or comm.algorithm) in ANYWHERE or beside(chunks):
        return chunks
    return list(torch.cat(chunks).split([chunk.numel() for chunk in chunks]))
