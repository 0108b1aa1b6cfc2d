"""What every collective must give, for any inputs, computed without one: each rank knows all ranks' inputs.

`check(comm, algorithm)` is a program. It returns what was wrong, a line for each wrong result.
"""

import functools
import operator

import torch

from minidist import collectives
from minidist.collectives.verbs import ALGORITHMS

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
]
OURS_ONLY = [torch.complex64, torch.bool]
OPS = ["sum", "mean", "min", "max", "prod"]
SHAPES = [(), (0,), (1,), (3,), (7,), (64,), (2, 0, 3), (4, 5), "strided", "gap"]
OF_ALL_OPS = [(), (7,), "strided"]
RESTS = [(), (2,), (2, 3), (0,), "strided"]


def values(rank, shape, dtype=torch.float32, salt=0):
    """Whole numbers, so that every order of adding gives the same bits in every dtype."""
    mine = stored(rank, shape, dtype, salt).clone()  # of the same strides
    return mine[..., 0] if shape == "gap" else mine


@functools.cache
def stored(rank, shape, dtype, salt):
    """What `values` copies: each rank asks for all ranks' numbers, again and again."""
    shape, strides = {"strided": ((5, 3), "t"), "gap": ((4, 3), "gap")}.get(shape, (shape, None))
    numbers = (torch.arange(torch.Size(shape).numel()) * 7 + rank * 3 + salt) % 11
    x = (
        (numbers % 2 if dtype == torch.bool else numbers if dtype == torch.uint8 else numbers - 5)
        .to(dtype)
        .view(shape)
    )
    if strides == "t":
        return x.t().contiguous().t()
    return torch.stack([x, x], dim=-1) if strides == "gap" else x


def rows(rank, count, rest, dtype=torch.float32, salt=0):
    """`count` rows of shape `rest`, strided if it says so."""
    x = values(rank, (count, *((2, 3) if rest == "strided" else rest)), dtype, salt)
    return x.transpose(1, 2).contiguous().transpose(1, 2) if rest == "strided" else x


def combined(xs, op):
    """The oracle of a reduction."""
    pair = {"min": torch.minimum, "max": torch.maximum, "prod": operator.mul}.get(op, operator.add)
    total = functools.reduce(pair, xs)
    return total / len(xs) if op == "mean" else total


class Check:
    """Calls verbs and compares; `wrong` lists what was not as it should be."""

    def __init__(self, comm, algorithm, verbs):
        self.comm = comm
        self.algorithm = algorithm
        self.verbs = verbs
        self.wrong = []
        self.native = algorithm == "native"
        ours = ALGORITHMS.get(algorithm)  # "auto" and "native" have all verbs
        self.missing = [v for v in verbs if ours and not hasattr(ours, v.rstrip("_"))]

    def same(self, what, got, want, inputs=()):
        got, want = ([x] if not isinstance(x, list) else x for x in (got, want))
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            if (g.shape, g.dtype) != (w.shape, w.dtype) or not torch.equal(g, w):
                self.wrong.append(f"{what}[{i}] on rank {self.comm.rank}: {g} instead of {w}")
            for x in inputs:
                if g.numel() and g.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                    self.wrong.append(
                        f"{what}[{i}] on rank {self.comm.rank}: the result is the input's own memory"
                    )

    def call(self, verb, x, **kwargs):
        """An out-of-place verb, which must leave its inputs alone. Returns result and inputs."""
        xs = x if isinstance(x, list) else [] if x is None else [x]
        before = [t.clone() for t in xs]
        got = self.verbs[verb](self.comm, x, algorithm=self.algorithm, **kwargs)
        self.same(f"the input of {verb}", xs, before)
        return got, xs

    def place(self, verb, xs, want, **kwargs):
        """An in-place verb, which must return its own argument."""
        if verb in self.missing:
            return
        x = xs[self.comm.rank]
        returned = self.verbs[verb](self.comm, x, algorithm=self.algorithm, **kwargs)
        what = f"{verb} {self.algorithm} {kwargs}"
        if returned is not x:
            self.wrong.append(f"{what} did not return its argument")
        self.same(what, x, want)

    def ranks(self, make):
        return [make(r) for r in range(self.comm.size)]

    def roots(self):
        return sorted({0, self.comm.size // 2, self.comm.size - 1})

    def in_place(self):
        for shape in SHAPES:
            every = (
                DTYPES + ([] if self.native else OURS_ONLY)
                if shape in OF_ALL_OPS
                else [torch.float32]
            )
            for dtype in every:
                for op in (
                    OPS
                    if dtype in (torch.float32, torch.int64) and shape in OF_ALL_OPS
                    else ["sum"]
                ):
                    if op != "mean" or dtype.is_floating_point:
                        self.reductions(shape, dtype, op)
            for root in self.roots():
                self.place("broadcast_", self.all_values(shape), values(root, shape), root=root)

    def all_values(self, shape, dtype=torch.float32):
        return [values(r, shape, dtype) for r in range(self.comm.size)]

    def reductions(self, shape, dtype, op):
        total = combined(self.all_values(shape, dtype), op)
        self.place("all_reduce_", self.all_values(shape, dtype), total, op=op)
        for root in self.roots() if (dtype, op) == (torch.float32, "sum") else [self.comm.size - 1]:
            want = total if self.comm.rank == root else values(self.comm.rank, shape, dtype)
            self.place("reduce_", self.all_values(shape, dtype), want, op=op, root=root)

    def several(self):
        """Many tensors in one call, of mixed dtypes and shapes."""
        kinds = [
            ((3,), torch.float32),
            ("strided", torch.float64),
            ((), torch.float32),
            ((0,), torch.int64),
            ("gap", torch.float32),
            ((2, 2), torch.int64),
        ]
        make = lambda r: [values(r, shape, dtype, i) for i, (shape, dtype) in enumerate(kinds)]
        everyone = self.ranks(make)
        total = [combined(xs, "sum") for xs in zip(*everyone, strict=True)]
        self.place("all_reduce_", self.ranks(make), total)
        self.place(
            "broadcast_", self.ranks(make), make(self.comm.size - 1), root=self.comm.size - 1
        )
        self.place(
            "reduce_",
            self.ranks(make),
            total if self.comm.rank == 0 else make(self.comm.rank),
            root=0,
        )

    def want(self, verb, x, expected, **kwargs):
        """(result, expected, inputs), as `same` takes them; nothing to compare if the algorithm lacks the verb."""
        if verb in self.missing:
            return expected, expected
        got, xs = self.call(verb, x, **kwargs)
        return got, expected, xs

    def optional(self, what, got, want):
        if (got is None) != (want is None):
            self.wrong.append(f"{what} on rank {self.comm.rank} gave {got} instead of {want}")
        elif got is not None:
            self.same(what, got, want)

    def by_rows(self):
        n, rank = self.comm.size, self.comm.rank
        uneven = [(2 * r + 1) % 4 for r in range(n)]  # 1, 3, 1, 3 …
        for sizes in [None, uneven, [3 if r == n - 1 else 0 for r in range(n)], [0] * n]:
            counts = sizes or [2] * n
            for rest in RESTS if sizes in (None, uneven) else [(2,), "strided"]:
                for dtype in DTYPES if rest == (2,) and sizes == uneven else [torch.float32]:
                    self.rows_of(counts, sizes, rest, dtype)
        if n > 1 or not self.native:
            numbers = torch.cat([values(r, ()).view(1) for r in range(n)])
            self.same("all_gather of numbers", *self.want("all_gather", values(rank, ()), numbers))
            if "gather" not in self.missing:
                got, _ = self.call("gather", values(rank, ()))
                self.optional("gather of numbers", got, numbers if rank == 0 else None)
        table = [[(r + 2 * s) % 3 for s in range(n)] for r in range(n)]  # rows from r to s
        everyone = [rows(r, sum(table[r]), (2,)).split(table[r]) for r in range(n)]
        from_all = [table[r][rank] for r in range(n)]
        mine = torch.cat([everyone[r][rank] for r in range(n)])
        x = rows(rank, sum(table[rank]), (2,))
        self.same(
            "uneven all_to_all",
            *self.want("all_to_all", x, mine, sizes=table[rank], out_sizes=from_all),
        )

    def rows_of(self, counts, sizes, rest, dtype):
        rank, total = self.comm.rank, sum(counts)
        what = f"{self.algorithm} with {counts} rows of {rest} {dtype}"
        everyone = self.ranks(lambda r: rows(r, counts[r], rest, dtype))
        self.same(
            f"all_gather {what}",
            *self.want("all_gather", everyone[rank], torch.cat(everyone), sizes=sizes),
        )
        whole = self.ranks(lambda r: rows(r, total, rest, dtype))
        for op in OPS if (rest, dtype) == ((2,), torch.float32) else ["sum"]:
            mine = combined(whole, op).split(counts)[rank]
            got = self.want("reduce_scatter", whole[rank], mine, sizes=sizes, op=op)
            self.same(f"reduce_scatter {op} {what}", *got)
        if sizes is None:
            swapped = torch.cat([x.split(counts)[rank] for x in whole])
            self.same(f"all_to_all {what}", *self.want("all_to_all", whole[rank], swapped))
        roots = self.roots() if dtype == torch.float32 else [self.comm.size // 2]
        for root in [] if "gather" in self.missing else roots:
            got, _ = self.call("gather", everyone[rank], root=root, sizes=sizes)
            self.optional(f"gather {what}", got, torch.cat(everyone) if rank == root else None)
            mine = whole[root].split(counts)[rank]
            got, xs = self.call(
                "scatter", whole[root] if rank == root else None, root=root, sizes=sizes
            )
            self.same(f"scatter {what}", got, mine, xs)
            out = torch.full_like(mine, 1)
            got, xs = self.call(
                "scatter", whole[root] if rank == root else None, root=root, sizes=sizes, out=out
            )
            self.same(f"scatter with out {what}", [got, out], [mine, mine], xs)
            if got is not out:
                self.wrong.append("scatter did not return its out")


def check(comm, algorithm, verbs=None):
    """What is wrong with the verbs (ours, or those given instead)."""
    ours = {name: getattr(collectives, name) for name in collectives.VERBS}
    run = Check(comm, algorithm, ours | (verbs or {}))
    run.in_place()
    run.several()
    run.by_rows()
    if "barrier" not in run.missing:
        run.verbs["barrier"](comm, algorithm=algorithm)
    return run.wrong
