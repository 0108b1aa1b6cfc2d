"""The collectives, as programs call them.

    rank   before            all_gather        reduce_scatter    all_reduce_     all_to_all
    0      a0 a1             a0 a1 b0 b1       a0+b0             a0+b0 a1+b1     a0 b0
    1      b0 b1             a0 a1 b0 b1       a1+b1             a0+b0 a1+b1     a1 b1

Rows (the first dimension) are what is split and joined: `all_gather(reduce_scatter(x))` is `all_reduce_(x)`. Rows split
evenly, or as `sizes` says (the same list on every rank). The names of in-place verbs end in `_`; these take a tensor of
any shape, or a list of tensors, in which all tensors of one dtype travel together. `op`: "sum", "mean", "min", "max",
"prod". `algorithm`: a name (hierarchical.py has the table), "auto" (what `fastest` predicts), "native" (the transport
library's own), a `Hierarchical(inner, outer, size)`, or any object with the same functions; None for the Comm's
default.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from ..arguments import choice, number, whole
from ..comm.base import Comm, Link, describe, expanded
from ..split import checked_sizes
from . import naive
from .buffers import scratch
from .hierarchical import FLAT, Hierarchical, having
from .links import Net

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


def _seconds(net: Net, verb: str, nbytes: float, algorithm, gamma: float = 0.0) -> float:
    """The formula of a verb. ValueError if the algorithm has no such verb."""
    verb = verb.removesuffix("_")
    module: Any = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else algorithm
    if not hasattr(module, verb):
        named = [repr(name) for name, known in ALGORITHMS.items() if hasattr(known, verb)]
        raise ValueError(
            f"there is a formula of {verb} for {', '.join(named)}, not for {algorithm!r}"
        )
    return getattr(module.Cost(net, nbytes, gamma), verb)()


def seconds(
    verb: str, algorithm, n: int, nbytes: float, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """How long `verb` takes on n ranks whose links are all alike. nbytes: N, or 1 for a barrier. algorithm: as the
    verbs take it.

    ValueError if the algorithm has no such verb, or n < 1.

    alpha: seconds.  beta: seconds per byte.  gamma: seconds to combine a byte.  Returns seconds.

    >>> from minidist.collectives import seconds
    >>> for nbytes in (0, 8):  # a ring has more steps, a tree sends more bytes
    ...     ring = seconds("all_reduce", "ring", 4, nbytes, alpha=1.0, beta=0.5)
    ...     tree = seconds("all_reduce", "tree", 4, nbytes, alpha=1.0, beta=0.5)
    ...     print(ring, tree)
    6.0 4.0
    12.0 20.0
    """
    number(nbytes, "a collective moves at least 0 bytes", 0)
    link = Link(alpha, beta)
    return _seconds(Net(n, lambda dst, src: link), verb, nbytes, algorithm, gamma)


def predict(comm: Comm | Net, verb: str, nbytes: float, algorithm, gamma: float = 0.0) -> float:
    """The same as `seconds`, for given links: those of a Comm, or of a `Net(n, link)`. "auto": the fastest algorithm.

    A ring and halving-doubling wait for the slowest link of each step; a tree's levels and a chain's links add up. So
    the prediction is too long if a slow rank is not on the longest path, and too short if links share a wire or cannot
    carry both directions at once, because each link is assumed to be idle.

    Returns seconds; `nbytes` and errors are as in `seconds`.

    >>> from minidist import World
    >>> from minidist.collectives import predict
    >>> from minidist.comm import Cluster
    >>> def program(comm):
    ...     times = [predict(comm, "all_reduce", 10**8, name) for name in ("ring", "hierarchical")]
    ...     return times[0] > 5 * times[1]  # the ring is at the pace of the network cards
    >>> World(16, cluster=Cluster.dgx_h100(nodes=2)).run(program)[0]
    True
    """
    net = comm if isinstance(comm, Net) else Net.of(comm)
    algorithm = fastest(net, verb, nbytes) if algorithm == "auto" else algorithm
    return _seconds(net, verb, nbytes, algorithm, gamma)


def fastest(comm: Comm | Net, verb: str, nbytes: float) -> str | Hierarchical:
    """The algorithm for "auto": the first, in the order of `ALGORITHMS`, of those that are predicted to be fastest.

    Within 3 % all count as equal: the earlier ones send fewer messages, each of which costs more than the model says.
    The links, in the order of the ranks, are all that it knows, so all ranks choose the same.

    ValueError for an unknown verb.

    >>> from minidist.collectives import fastest
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(64, lambda dst, src: Link(alpha=1e-5, beta=1e-9))
    >>> [fastest(net, "all_reduce", nbytes) for nbytes in (1_000, 10**6, 10**9)]
    ['halving_doubling', 'halving_doubling', 'ring']
    """
    net, verb = comm if isinstance(comm, Net) else Net.of(comm), verb.removesuffix("_")
    if verb in ("scatter", "all_to_all"):
        # all at once is never slower; and where parts are uneven, ranks know different N
        return "naive"

    def choose() -> str | Hierarchical:
        have: list[str | Hierarchical] = [*having(verb)]
        if not have:
            raise ValueError(f"there is no collective {verb!r}, and so no algorithm of it")
        if len(Hierarchical().nodes(net).members) > 1:
            have += [a for a in _BETWEEN_NODES if a.outer in have and hasattr(a, verb)]
        times = [_seconds(net, verb, nbytes, a) for a in have]
        return next(a for a, time in zip(have, times, strict=True) if time <= 1.03 * min(times))

    return net.keep(("fastest", verb, nbytes), choose)


def bandwidth(verb: str, n: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """(algorithm bandwidth, bus bandwidth) in bytes a second, as nccl-tests define them (doc/PERFORMANCE.md).

    Algorithm bandwidth is N over the time, N being the whole buffer, as everywhere here. Bus bandwidth is the rate at
    which each wire must have carried data for that; it can be compared with the hardware's bandwidth whatever n is.
    ValueError for a verb or an n for which they are not defined.

    >>> from minidist.collectives import bandwidth
    >>> bandwidth("all_reduce", n=8, nbytes=8 * 10**9, seconds=0.5)
    (16000000000.0, 28000000000.0)
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
    if not seconds > 0:
        raise ValueError(f"a collective takes more than 0 seconds, not {seconds}")
    return nbytes / seconds, nbytes / seconds * carried[verb]


# ------------------------------------------------------------
# Tensors of any shape as the flat chunks that algorithms work on, and back: one contiguous tensor becomes views of itself,
# and nothing is copied. Several tensors, or a strided one, are copied into one buffer (coalesced: one message where there
# were many), and back when they are results.


class Flat:
    """`tensors` (one dtype) as one flat buffer, in which results are written back by `restore`."""

    def __init__(self, tensors: list[Tensor]):
        self.tensors = [t.detach() for t in tensors]
        self._shared = len(tensors) == 1 and tensors[0].is_contiguous()
        self.buffer = (
            self.tensors[0].view(-1)
            if self._shared
            else torch.cat([t.reshape(-1) for t in self.tensors])
        )

    def restore(self) -> None:
        """Copy the buffer back into the tensors, where it is not their own memory."""
        if not self._shared:
            parts = self.buffer.split([t.numel() for t in self.tensors])
            for tensor, part in zip(self.tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


def flat_rows(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """For each rank r one flat chunk: its `sizes[r]` rows of `x`."""
    return [part.view(-1) for part in torch.atleast_1d(x.detach()).contiguous().split(sizes)]


def are_adjacent(chunks: list[Tensor]) -> bool:
    """Whether the chunks lie one after the other in one buffer."""
    ends = [chunk.storage_offset() + chunk.numel() for chunk in chunks]
    same = len({chunk.untyped_storage()._cdata for chunk in chunks}) == 1
    return same and all(
        end == chunk.storage_offset() for end, chunk in zip(ends, chunks[1:], strict=False)
    )


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


def collective(comm: Comm, verb: str, x, algorithm, rooted: bool = False, **options):
    """The context of a collective: what all ranks must say of it travels in the headers of its messages.

    x: a tensor, a shape, or a list of tensors, the same on all ranks; None: of no shape.  options: what else is.
    """
    xs = x if isinstance(x, list) else [] if x is None else [x]
    shapes = " and ".join([str(tuple(x.shape if isinstance(x, Tensor) else x)) for x in xs])
    words = [f"{verb} of {shapes}" if xs else verb]
    words += [f"{name} {value}" for name, value in options.items() if value is not None]
    name = algorithm or comm.algorithm
    words.append(f"algorithm {name if isinstance(name, str) else type(name).__name__}")
    text = ", ".join(words)
    if len(text) > 120:
        text = f"{text[:100]}… (check sum {crc32(text.encode()):08x})"
    return comm.collective(text, rooted)


def run(
    comm: Comm, verb: str, algorithm, chunks: list[Tensor], *args, op: str | None = None
) -> None:
    """Hand flat tensors to our function for `verb`, or to the transport library's own collective.

    chunks: all that is sent, of whose bytes "auto" takes the fastest.  args: of the function, but for what combines.
    """
    if (algorithm or comm.algorithm) != "native":
        module = chosen(comm, verb, algorithm, chunks)
        ours = module in ALGORITHMS.values() or isinstance(module, Hierarchical)
        with comm.without_rng_swap if ours else nullcontext():  # ours draw no random numbers
            getattr(module, verb)(comm, *args, *([OPS[op]] if op else []))
    elif comm.native is None:
        only = f"a {type(comm).__name__} has only ours"
        raise ValueError(f'algorithm="native" is for Comms over torch.distributed; {only}')
    else:
        getattr(comm.native, verb)(*args, *([op] if op else []))


def chosen(comm: Comm, verb: str, algorithm, chunks: list[Tensor]):
    """The algorithm that runs `verb`; a Comm's default that does not know the verb means the naive one.

    "auto": what `fastest` predicts to be fastest for the chunks over the Comm's links, the same on every rank.
    """
    name = algorithm or comm.algorithm
    if name == "auto":
        name = fastest(comm, verb, sum(chunk.nbytes for chunk in chunks))
    module = ALGORITHMS.get(name) if isinstance(name, str) else name
    if hasattr(module, verb):
        return module
    if algorithm is None:
        return naive
    if not isinstance(algorithm, str):
        raise ValueError(
            f"an algorithm is a name or an object with a function {verb}, not {algorithm!r}"
        )
    have = [name for name, known in ALGORITHMS.items() if hasattr(known, verb)]
    names = ", ".join(map(repr, [*have, "auto", "native"]))
    raise ValueError(f"{verb} has the algorithms {names}, not {algorithm!r}")


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
            f"a collective takes a tensor, or in place a list of tensors, not {type(x).__name__}{how}"
        )
    if x.layout is not torch.strided or x.is_quantized:
        what = "quantized" if x.is_quantized else str(x.layout).removeprefix("torch.")
        way = "x.dequantize()" if x.is_quantized else "x.to_dense()"
        raise ValueError(
            f"a collective takes dense tensors, not a {what} one of {tuple(x.shape)}: {way} makes one"
        )
    return x


def check_op(xs: list[Tensor], op: str) -> None:
    if op not in list(OPS):
        choice(op, "op", OPS)  # says which there are
    for x in xs:
        if check_tensor(x).dtype in UNCOMPUTED or (x.is_complex() and op in ("min", "max")):
            raise ValueError(
                f"torch computes no {op} of {x.dtype} tensors: reduce a copy of another dtype"
            )
        if op == "mean" and not (x.is_floating_point() or x.is_complex()):
            raise ValueError(
                f"the mean of {x.dtype} tensors is not {x.dtype}: reduce a floating-point copy"
            )


def mean(x: Tensor, op: str, n: int) -> None:
    """Finish a "mean", which the algorithms sum."""
    if op == "mean":
        x.div_(n)


def listed(x: Tensor | list[Tensor]) -> list[Tensor]:
    return list(x) if isinstance(x, list | tuple) else [x]


def flats(x: Tensor | list[Tensor], op: str | None = None) -> list[Flat]:
    """One flat buffer for each dtype among the tensors, which are written to; `op`: what combines them, if anything."""
    xs = listed(x)
    for t in xs:
        if 0 in check_tensor(t).stride() and expanded(t):
            raise ValueError(
                f"a collective in place cannot write into {describe(t)}, which was expanded: several of "
                "its elements are one place in memory; x.clone() has room for each"
            )
    if op is not None:
        check_op(xs, op)
    same: dict[torch.dtype, list[Tensor]] = {}
    for t in xs:
        same.setdefault(t.dtype, []).append(t)
    return [Flat(tensors) for tensors in same.values()]


def height(x: Tensor) -> int:
    """Rows of `x`; a number has one."""
    check_tensor(x)
    return x.shape[0] if x.ndim else 1


def row_buffer(x: Tensor, sizes: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Room for `sizes[r]` rows like those of `x` for each rank r; and each rank's part of it, flat."""
    width = x.shape[1:].numel()
    room = scratch(x, sum(sizes) * width)
    return room.view(sum(sizes), *x.shape[1:]), list(room.split([size * width for size in sizes]))


def gather_buffer(comm: Comm, x: Tensor, sizes: list[int] | None) -> tuple[Tensor, list[Tensor]]:
    """The result of a gather, as `row_buffer` gives it; this rank's rows are in it."""
    rows = height(x)
    sizes = checked_sizes([rows] * comm.size if sizes is None else sizes, None, comm.size)
    if sizes[comm.rank] != rows:
        raise ValueError(
            f"rank {comm.rank} has {rows} rows, but sizes gives it {sizes[comm.rank]}: {sizes}"
        )
    out, chunks = row_buffer(x, sizes)
    chunks[comm.rank].copy_(x.detach().reshape(-1))
    return out, chunks


def gathered_shape(x: Tensor, sizes: list[int] | None) -> tuple:
    """What ranks must say of a tensor that they give: its shape; without the rows, where those may differ."""
    return tuple(x.shape) if sizes is None else ("rows", *x.shape[1:])


# ------------------------------------------------------------
# The verbs: each checks and lays out its tensors, and hands flat chunks to an algorithm.


def broadcast_(comm: Comm, x: Tensor | list[Tensor], root: int = 0, algorithm=None):
    """Copy rank `root`'s `x` to every rank, in place. Returns `x`.

    x: a tensor of any shape, or a list of them, with the same shapes and dtypes on all ranks.

    ValueError for a root that does not exist, for a tensor that is not dense or was expanded, and for an algorithm
    without this verb; TypeError for anything but a tensor; Mismatch if the ranks disagree.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import broadcast_
    >>> def program(comm):
    ...     return broadcast_(comm, torch.full((2,), float(comm.rank)), root=2).tolist()
    >>> World(3).run(program)
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    """
    check_root(comm, root)
    buffers = flats(x)
    if not buffers:  # an empty list, such as the buffers of a model that has none: nobody need come
        return x
    with collective(comm, "broadcast_", listed(x), algorithm, rooted=True, root=root):
        for flat in buffers:
            run(comm, "broadcast", algorithm, [flat.buffer], flat.buffer, root)
            flat.restore()
    return x


def reduce_(comm: Comm, x: Tensor | list[Tensor], root: int = 0, op: str = "sum", algorithm=None):
    """Combine `x` over all ranks, in place on rank `root`; the other ranks keep their `x`. Returns `x`.

    op: "sum", "mean", "min", "max" or "prod".  Errors are as in `all_reduce_`; also ValueError for a root that does not
    exist.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import reduce_
    >>> def program(comm):
    ...     return reduce_(comm, torch.tensor([comm.rank, -comm.rank]), root=1, op="max").tolist()
    >>> World(4).run(program)  # rank 1 has the result
    [[0, 0], [3, 0], [2, -2], [3, -3]]
    """
    check_root(comm, root)
    check_op([], op)
    buffers = flats(x, op)
    if not buffers:
        return x
    with collective(comm, "reduce_", listed(x), algorithm, rooted=True, root=root, op=op):
        for flat in buffers:
            run(comm, "reduce", algorithm, [flat.buffer], flat.buffer, root, op=op)
            if comm.rank == root:
                mean(flat.buffer, op, comm.size)
                flat.restore()
    return x


def all_reduce_(comm: Comm, x: Tensor | list[Tensor], op: str = "sum", algorithm=None):
    """Combine `x` over all ranks, in place; all ranks get the same result, bit for bit. Returns `x`.

    As a ring, it takes 2(n−1) messages and 2(n−1)/n·N bytes a rank.

    x: a tensor of any shape, or a list of them, with the same shapes and dtypes on all ranks; the tensors of a list
    that have the same dtype travel together.  op: "sum", "mean" (of floating-point tensors), "min", "max" or "prod".

    ValueError for an unknown op, for one that the dtype does not allow, for a tensor that is not dense or was expanded,
    and for an algorithm without this verb; TypeError for anything but a tensor; Mismatch if the ranks disagree.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> def program(comm, algorithm):
    ...     gradients = [torch.full((3,), comm.rank + 1.0), torch.full((1,), 2.0 * comm.rank)]
    ...     all_reduce_(comm, gradients, "mean", algorithm)
    ...     return [gradient.tolist() for gradient in gradients]
    >>> for algorithm in ("ring", "tree"):  # 16 bytes a rank; a ring passes them in quarters
    ...     results = World(4).run(program, algorithm)
    ...     print(results[0], [results.trace.bytes_sent(rank) for rank in range(4)])
    [[2.5, 2.5, 2.5], [3.0]] [24, 24, 24, 24]
    [[2.5, 2.5, 2.5], [3.0]] [32, 16, 32, 16]
    """
    check_op([], op)
    buffers = flats(x, op)
    if not buffers:
        return x
    with collective(comm, "all_reduce_", listed(x), algorithm, op=op):
        for flat in buffers:
            run(comm, "all_reduce", algorithm, [flat.buffer], flat.buffer, op=op)
            mean(flat.buffer, op, comm.size)
            flat.restore()
    return x


def reduce_scatter(
    comm: Comm, x: Tensor, op: str = "sum", sizes: list | None = None, algorithm=None
) -> Tensor:
    """Combine `x` over all ranks and return this rank's rows of the result: (R, …) → (R/n, …), or `sizes[rank]` rows.

    sizes: a list of n numbers of rows, the same on all ranks, for uneven parts. `x` stays as it was.

    Errors are as in `all_reduce_`; also ValueError if the rows do not split evenly over the ranks, or not as `sizes`
    says.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import reduce_scatter
    >>> def program(comm):
    ...     x = torch.arange(3).view(3, 1) + 10 * comm.rank  # (3, 1)
    ...     return reduce_scatter(comm, x, sizes=[2, 1]).tolist()  # (2, 1) on rank 0, else (1, 1)
    >>> World(2).run(program)
    [[[10], [12]], [[14]]]
    """
    check_op([x], op)
    split = checked_sizes(sizes, height(x), comm.size)
    chunks = flat_rows(x, split)
    out, [mine] = row_buffer(x, [split[comm.rank]])
    with collective(comm, "reduce_scatter", x, algorithm, op=op, sizes=sizes):
        run(comm, "reduce_scatter", algorithm, chunks, chunks, mine, op=op)
    mean(mine, op, comm.size)
    return out


def all_gather(comm: Comm, x: Tensor, sizes: list | None = None, algorithm=None) -> Tensor:
    """Return every rank's rows, in rank order, on every rank: (R, …) → (nR, …).

    sizes: a list of each rank's number of rows, needed if they differ. A tensor without dimensions counts as one row.

    ValueError if `sizes` is not a list of n numbers, if it does not give this rank's number of rows, for a tensor that
    is not dense, and for an algorithm without this verb; TypeError for anything but a tensor; Mismatch if the ranks
    disagree: without `sizes`, the shape must be the same on all of them.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_gather
    >>> def program(comm):
    ...     mine = torch.full((comm.rank, 2), comm.rank)  # as many rows as the rank's number
    ...     return all_gather(comm, mine, sizes=[0, 1, 2])
    >>> World(3).run(program)[0]
    tensor([[1, 1],
            [2, 2],
            [2, 2]])
    """
    out, chunks = gather_buffer(comm, x, sizes)
    with collective(comm, "all_gather", gathered_shape(x, sizes), algorithm, sizes=sizes):
        run(comm, "all_gather", algorithm, chunks, chunks)
    return out


def all_gather_json(comm: Comm, value) -> list:
    """Gather a JSON value from every rank, by way of the hosts' memory; returns a list in rank order.

    value: anything that `json.dumps` takes; TypeError for anything else. The lengths of the texts travel first.

    >>> from minidist import World
    >>> from minidist.collectives import all_gather_json
    >>> def program(comm):
    ...     return all_gather_json(comm, {"rank": comm.rank, "names": ["a", "b"][: comm.rank]})
    >>> World(3).run(program)[0]
    [{'rank': 0, 'names': []}, {'rank': 1, 'names': ['a']}, {'rank': 2, 'names': ['a', 'b']}]
    """
    comm = comm.on_host()
    text = encoded(comm, value)
    sizes = all_gather(comm, text.new_tensor([len(text)], dtype=torch.int64)).tolist()
    texts = all_gather(comm, text, sizes).split(sizes)
    return [json.loads(bytes(text.tolist())) for text in texts]


def broadcast_json(comm: Comm, value, root: int):
    """The JSON value of rank `root`, on every rank; its length goes first, 2 messages to each.

    >>> from minidist import World
    >>> from minidist.collectives.verbs import broadcast_json
    >>> World(2).run(lambda comm: broadcast_json(comm, {"from": comm.rank}, root=1))
    [{'from': 1}, {'from': 1}]
    """
    comm = comm.on_host()
    text = encoded(comm, value)
    length = text.new_tensor([len(text)], dtype=torch.int64)
    naive.broadcast(comm, length, root)
    text = text if comm.rank == root else text.new_empty(int(length))
    naive.broadcast(comm, text, root)
    return json.loads(bytes(text.tolist()))


def encoded(comm: Comm, value) -> Tensor:
    """A JSON value as bytes, where they can be read: no meta tensor can."""
    device = "cpu" if comm.device.type == "meta" else comm.device
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)


def gather(
    comm: Comm, x: Tensor, root: int = 0, sizes: list | None = None, algorithm=None
) -> Tensor | None:
    """Return every rank's rows, in rank order, on rank `root`, and None on the others. `sizes` is as in `all_gather`.

    Errors are as in `all_gather`; also ValueError for a root that does not exist.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import gather
    >>> def program(comm):
    ...     row = torch.tensor([[comm.rank, 10 * comm.rank]])  # (1, 2)
    ...     return gather(comm, row, root=1)  # (3, 2)
    >>> World(3).run(program)
    [None, tensor([[ 0,  0], [ 1, 10], [ 2, 20]]), None]
    """
    check_root(comm, root)
    out, chunks = gather_buffer(comm, x, sizes)
    shape = gathered_shape(x, sizes)
    with collective(comm, "gather", shape, algorithm, rooted=True, root=root, sizes=sizes):
        run(comm, "gather", algorithm, chunks, chunks, root)
    return out if comm.rank == root else None


def scatter(
    comm: Comm,
    x: Tensor | None,
    root: int = 0,
    sizes: list | None = None,
    out: Tensor | None = None,
    algorithm=None,
) -> Tensor:
    """Give each rank its rows of rank `root`'s `x`: (R, …) → (R/n, …). The other ranks pass x=None.

    sizes: a list of each rank's number of rows, for uneven parts.  out: the tensor to fill, given on all ranks or on
    none; without it, the shapes travel first, in 2 messages to each rank.

    ValueError for a root that does not exist or gives no `x`, and, on the root, if the rows of `x` do not split evenly
    over the ranks, or not as `sizes` says, or if its own rows do not fit into `out`; Mismatch if the ranks disagree, or
    if another rank's rows do not fit into its `out`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import scatter
    >>> def program(comm):
    ...     x = torch.arange(6).view(3, 2) if comm.rank == 0 else None
    ...     return scatter(comm, x).tolist()
    >>> World(3).run(program)
    [[[0, 1]], [[2, 3]], [[4, 5]]]
    """
    check_root(comm, root)
    if comm.rank != root:
        x = None
    elif x is None:
        raise ValueError(f"rank {root} is the root of this scatter: it must give x")
    split = [] if x is None else checked_sizes(sizes, height(x), comm.size)
    announced = "out is given" if out is not None else "shapes travel first"
    options = {"root": root, "sizes": sizes, "where": announced}
    with collective(comm, "scatter", None, algorithm, rooted=True, **options):
        if out is None:
            said = None if x is None else [str(x.dtype), split, list(x.shape[1:])]
            kind, sizes, rest = broadcast_json(comm, said, root)
            dtype = getattr(torch, kind.removeprefix("torch."))
            out = torch.empty(sizes[comm.rank], *rest, dtype=dtype, device=comm.device)
        mine = Flat([check_tensor(out)])
        chunks = [mine.buffer] * comm.size
        if x is not None:
            chunks = flat_rows(x, split)
            own = chunks[root]
            if (own.numel(), own.dtype) != (out.numel(), out.dtype):
                raise ValueError(
                    f"rank {root} keeps {describe(own)} of the rows, but `out` is {describe(out)}"
                )
        run(comm, "scatter", algorithm, chunks, chunks, root)
        mine.buffer.copy_(chunks[comm.rank])
        mine.restore()
    return out


def all_to_all(
    comm: Comm,
    x: Tensor,
    sizes: list | None = None,
    out_sizes: list | None = None,
    algorithm=None,
) -> Tensor:
    """Send each rank its rows of `x`, and return the rows that came from each rank, in rank order: (R, …) → (R, …).

    sizes, out_sizes: lists of numbers of rows, for uneven parts: `sizes[r]` rows go to rank r, and `out_sizes[r]` come
    from it (default: the same as `sizes`).

    ValueError if the rows do not split evenly over the ranks, or not as `sizes` says, and if `sizes` and `out_sizes`
    disagree on how many rows this rank keeps; Mismatch if a rank sends a different number of rows than its receiver
    expects.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_to_all
    >>> def program(comm):
    ...     x = torch.arange(3) + 10 * comm.rank  # row r goes to rank r
    ...     return all_to_all(comm, x).tolist()
    >>> World(3).run(program)  # a matrix, transposed
    [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    """
    to = checked_sizes(sizes, height(x), comm.size)
    back = to if out_sizes is None else checked_sizes(out_sizes, None, comm.size)
    if to[comm.rank] != back[comm.rank]:
        raise ValueError(
            f"rank {comm.rank} keeps {to[comm.rank]} rows of its own, but out_sizes says {back}"
        )
    out, chunks = row_buffer(x, back)
    with collective(comm, "all_to_all", ("rows", *x.shape[1:]), algorithm):
        run(comm, "all_to_all", algorithm, chunks, chunks, flat_rows(x, to))
    return out


def barrier(comm: Comm, algorithm=None) -> None:
    """Return once every rank has called it.

    ValueError for an algorithm without this verb.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import barrier
    >>> def program(comm):
    ...     if comm.rank == 0:  # rank 0 is late: it talks to rank 1 first
    ...         comm.send(torch.zeros(1000), dst=1)
    ...     elif comm.rank == 1:
    ...         comm.recv(torch.zeros(1000), src=0)
    ...     barrier(comm)
    ...     return comm.now() >= 4.0
    >>> World(3, alpha=0.0, beta=0.001).run(program)
    [True, True, True]
    """
    with collective(comm, "barrier", None, algorithm):
        token = torch.zeros(1, dtype=torch.uint8, device=comm.device)
        run(comm, "barrier", algorithm, [token], token)


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
ANYWHERE = ("naive", "ring", "pipelined", "native")


def all_gather_(comm: Comm, chunks: list[Tensor], algorithm=None) -> None:
    """Fill the other ranks' chunks with their values; this rank's own chunk already holds its values.

    chunks: n flat, contiguous tensors of one dtype, with the same lengths on all ranks; they may be views of one
    buffer. ValueError for any others.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_gather_
    >>> def program(comm):
    ...     parameters = torch.zeros(5)
    ...     chunks = list(parameters.split([2, 1, 2]))  # views
    ...     chunks[comm.rank].fill_(comm.rank + 1)  # this rank has updated its part
    ...     all_gather_(comm, chunks)
    ...     return parameters.tolist()
    >>> World(3).run(program)[2]
    [1.0, 1.0, 2.0, 3.0, 3.0]
    """
    near = _adjacent(comm, chunks, algorithm)
    with collective(comm, "all_gather_", _whole(chunks), algorithm):
        run(comm, "all_gather", algorithm, near, near)
    if near is not chunks:
        for chunk, got in zip(chunks, near, strict=True):
            chunk.copy_(got)


def reduce_scatter_(comm: Comm, chunks: list[Tensor], op: str = "sum", algorithm=None) -> None:
    """Combine this rank's chunk over all ranks, in place; afterwards the other chunks hold nothing useful.

    chunks: n flat, contiguous tensors of one dtype, with the same lengths on all ranks. ValueError for any others, for
    an unknown op, and for one that the dtype does not allow.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import reduce_scatter_
    >>> def program(comm):
    ...     gradients = torch.tensor([1.0, 2.0, 3.0]) * (comm.rank + 1)
    ...     chunks = list(gradients.split([1, 2]))
    ...     reduce_scatter_(comm, chunks)
    ...     return chunks[comm.rank].tolist()
    >>> World(2).run(program)
    [[3.0], [6.0, 9.0]]
    """
    near = _adjacent(comm, chunks, algorithm)
    check_op(chunks, op)
    mine = chunks[comm.rank]
    with collective(comm, "reduce_scatter_", _whole(chunks), algorithm, op=op):
        run(comm, "reduce_scatter", algorithm, near, near, mine, op=op)
    mean(mine, op, comm.size)


def _whole(chunks: list[Tensor]) -> tuple[int]:
    """The shape of all chunks together; where one of them differs, its own message tells."""
    return (sum(chunk.numel() for chunk in chunks),)


def _adjacent(comm: Comm, chunks: list[Tensor], algorithm) -> list[Tensor]:
    """`chunks`, or a copy of them in one buffer for an algorithm that sends several as one message.

    Raises ValueError for another number of them than of ranks, and unless all are flat, contiguous and of one dtype.
    """
    if len(chunks) != comm.size:
        raise ValueError(f"{len(chunks)} chunks were given for {comm.size} ranks")
    for r, chunk in enumerate(chunks):
        if chunk.ndim != 1 or not chunk.is_contiguous() or chunk.dtype != chunks[0].dtype:
            raise ValueError(
                f"chunk {r} is {tuple(chunk.shape)} {chunk.dtype} with strides {chunk.stride()}: "
                f"all are flat, contiguous and {chunks[0].dtype}, as chunk 0"
            )
    if (algorithm or comm.algorithm) in ANYWHERE or are_adjacent(chunks):
        return chunks
    return list(torch.cat(chunks).split([chunk.numel() for chunk in chunks]))
