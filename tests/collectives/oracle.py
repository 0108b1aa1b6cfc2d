"""A short check of one algorithm: every verb it has, lengths that hurt, against sums computed without a collective.

`check` in cases.py asks more of the verbs (dtypes, shapes, lists); here it is the algorithms, at many n.
"""

import functools

import torch

from minidist import collectives
from minidist.collectives import Hierarchical
from minidist.collectives.hierarchical import FLAT
from minidist.collectives.verbs import ALGORITHMS

LENGTHS = [0, 1, 7, 1001]


@functools.cache
def numbers(rank, length, salt=0):
    """Random numbers of rank `rank`, the same for whoever asks, who must not change them."""
    return torch.randn(
        length, generator=torch.Generator().manual_seed(100 * salt + rank), dtype=torch.float64
    )


def verbs_of(algorithm):
    """The verbs that an algorithm has, by name or as an object."""
    one = ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, str) else algorithm
    verbs = [v for v in collectives.VERBS if isinstance(one, str) or hasattr(one, v.rstrip("_"))]
    return [
        v
        for v in verbs
        if not isinstance(one, Hierarchical) or v.rstrip("_") in dir(FLAT[one.outer])
    ]


def close(x, y, n):
    """n−1 additions in another order: each rounds numbers of at most about 20 by 2⁻⁵³."""
    return x.shape == y.shape and torch.allclose(x, y, rtol=0, atol=n * 20 * 2**-53)


def check(comm, algorithm, verbs=None, lengths=LENGTHS):
    """(what was wrong, the bits of this rank's all-reduces)."""
    run = Run(comm, algorithm)
    wrong = []
    reduced = []
    for verb in verbs or verbs_of(algorithm):
        for length in lengths:
            for what, got, want in getattr(run, verb)(length):
                if not close(got, want, comm.size):
                    wrong.append(
                        f"{verb} of {length} on rank {comm.rank} of {comm.size}, {what}: {got}, not {want}"
                    )
                if verb == "all_reduce_":
                    reduced.append(got)
    return wrong, reduced


class Run:
    """Each verb gives (what, result, expected) for one length."""

    def __init__(self, comm, algorithm):
        self.comm = comm
        self.n = comm.size
        self.rank = comm.rank
        self.algorithm = algorithm
        self.roots = sorted({0, comm.size // 2, comm.size - 1})

    def do(self, verb, x, **kwargs):
        return getattr(collectives, verb)(self.comm, x, algorithm=self.algorithm, **kwargs)

    def everyone(self, length, salt=0):
        return [numbers(r, length, salt) for r in range(self.n)]

    def all_reduce_(self, length):
        xs = self.everyone(length)
        yield "the sum", self.do("all_reduce_", xs[self.rank].clone()), sum(xs)
        most = self.do("all_reduce_", xs[self.rank].clone(), op="max")
        yield "the largest", most, torch.stack(xs).amax(0) if length else xs[0]

    def reduce_(self, length):
        xs = self.everyone(length)
        for root in self.roots:
            want = sum(xs) if self.rank == root else xs[self.rank]
            yield f"root {root}", self.do("reduce_", xs[self.rank].clone(), root=root), want

    def broadcast_(self, length):
        xs = self.everyone(length)
        for root in self.roots:
            yield f"root {root}", self.do("broadcast_", xs[self.rank].clone(), root=root), xs[root]

    def sizes(self, length):
        """Rows of each rank: as equal as can be, and all with one rank."""
        yield [length // self.n + (r < length % self.n) for r in range(self.n)]
        yield [length if r == self.n // 2 else 0 for r in range(self.n)]

    def reduce_scatter(self, length):
        xs = self.everyone(length)
        for sizes in self.sizes(length):
            x = xs[self.rank].clone()
            yield (
                f"{sizes}",
                self.do("reduce_scatter", x, sizes=sizes),
                sum(xs).split(sizes)[self.rank],
            )
            yield "the input", x, xs[self.rank]

    def all_gather(self, length):
        for sizes in self.sizes(length):
            whole = numbers(0, length)
            yield (
                f"{sizes}",
                self.do("all_gather", whole.split(sizes)[self.rank].clone(), sizes=sizes),
                whole,
            )

    def gather(self, length):
        for sizes in self.sizes(length):
            whole = numbers(0, length)
            for root in self.roots:
                got = self.do(
                    "gather", whole.split(sizes)[self.rank].clone(), root=root, sizes=sizes
                )
                if self.rank == root:
                    yield f"{sizes} to {root}", got, whole
                elif got is not None:
                    yield f"{sizes} on {self.rank}", got, whole[:0]

    def scatter(self, length):
        for sizes in self.sizes(length):
            whole = numbers(0, length)
            for root in self.roots:
                x = whole.clone() if self.rank == root else None
                got = self.do("scatter", x, root=root, sizes=sizes)
                yield f"{sizes} from {root}", got, whole.split(sizes)[self.rank]

    def all_to_all(self, length):
        parts = [
            [numbers(r, (length + r + s) % 5, s) for s in range(self.n)] for r in range(self.n)
        ]
        sizes, back = [p.numel() for p in parts[self.rank]], [p[self.rank].numel() for p in parts]
        got = self.do("all_to_all", torch.cat(parts[self.rank]), sizes=sizes, out_sizes=back)
        yield f"{sizes}", got, torch.cat([p[self.rank] for p in parts])

    def barrier(self, length):
        collectives.barrier(self.comm, algorithm=self.algorithm)
        return []
