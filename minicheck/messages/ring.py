"""The exercises of lesson 02 about the ring: its two halves, all-reduce, and a ring sum with a bug.

Costs are those of Patarasuk and Yuan 2009: n−1 messages a rank for each half, each of one chunk.
"""

from __future__ import annotations

from itertools import product

import torch

from minidist.comm.base import Comm

from ..compare import alike, equal_to, same, unchanged, who
from ..exam import ask
from ..wrong import Wrong
from .point import NewExam, TensorExam, rounded, to_the_right

FIRST = "Which chunk does it send first?"


class ChunksExam(TensorExam):
    """Every rank has n chunks, as equal as can be."""

    cases = tuple(
        c for c in TensorExam.cases if not isinstance(c.given, tuple) or len(c.given) == 1
    )
    processes = tuple(c for c in TensorExam.processes if len(c.given) == 1)

    def draw(self, case, rng):
        return [(list(x.tensor_split(case.n)),) for (x,) in super().draw(case, rng)]


class ReduceScatter(ChunksExam):
    name = "reduce_scatter"
    right = "n = 1…5, 11 lengths and secret ones, n−1 messages a rank, to the right; then 2 and 3 real processes."

    def run(self, comm: Comm, yours, chunks):
        out = yours(comm, chunks)
        return {"out": out, "chunks": list(chunks)}

    def judge(self, case, args, outcome):
        n, chunks = case.n, [c for (c,) in args]
        done = [sum(chunks[r][i] for r in range(1, n)) + chunks[0][i] for i in range(n)]
        for r, got in enumerate(outcome.results):
            finished = {
                f"It is chunk {i}, finished, and rank {r} should have chunk {r}. {FIRST}": done[i]
                for i in range(n)
                if i != r
            }

            def guess(out, r=r, finished=finished):
                text = (
                    equal_to(out, finished)
                    or who(out, [c[r] for c in chunks], r)
                    or rounded(out, done[r])
                )
                return text or _astray(out, chunks, r)

            _right_size(r, got["out"], done, n)
            same(r, got["out"], done[r], f"chunk {r}", guess)
            if len(got["chunks"]) != n:
                raise Wrong(
                    f"rank {r}: the list `chunks` has {len(got['chunks'])} tensors now, and belongs to the "
                    "caller."
                )
            for i, after in enumerate(got["chunks"]):
                unchanged(r, after, chunks[r][i], f"chunks[{i}]")
        sizes = [c.nbytes for c in chunks[0]]
        to_the_right(case, outcome, n - 1, [sum(sizes) - sizes[r] for r in range(n)], "n−1")


def _right_size(r: int, out, done: list, n: int) -> None:
    """Say it when the shape gives away that the wrong chunk came."""
    if isinstance(out, torch.Tensor) and out.shape != done[r].shape and n > 1:
        other = [
            i for i in range(n) if out.shape == done[i].shape and out.numel() and out.equal(done[i])
        ]
        if other:
            raise Wrong(
                f"rank {r} returns chunk {other[0]}, finished, and should return chunk {r}. {FIRST}"
            )


def _astray(out, chunks: list, r: int) -> str | None:
    """Chunks of different numbers were added up, or another chunk is returned unfinished."""
    for i in range(len(chunks)):
        if (
            chunks[0][i].shape == out.shape
            and i != r
            and (text := who(out, [c[i] for c in chunks], r))
        ):
            return f"It is made of the chunks {i}, not {r}. {text}"
    if any(p.shape != out.shape for c in chunks for p in c):
        return None
    for order in product(range(len(chunks)), repeat=len(chunks)):
        if out.equal(sum(c[i] for c, i in zip(chunks, order))):
            return "It adds chunks of different numbers: what arrives must be added to the chunk of the same number."
    return None


class AllGather(ChunksExam):
    name = "all_gather"
    right = "n = 1…5, 11 lengths and secret ones, n−1 messages a rank, to the right; then 2 and 3 real processes."

    def run(self, comm: Comm, yours, chunks):
        held, filled = list(chunks), [c.detach() for c in chunks]
        yours(comm, held)
        return {
            "chunks": filled,
            "kept": all(a is b for a, b in zip(held, chunks)) and len(held) == len(chunks),
        }

    def judge(self, case, args, outcome):
        n, chunks = case.n, [c for (c,) in args]
        want = [chunks[i][i] for i in range(n)]
        for r, got in enumerate(outcome.results):
            if not got["kept"]:
                raise Wrong(
                    f"rank {r}: the list holds other tensors than before. Receive into those that are in it."
                )
            for i, chunk in enumerate(got["chunks"]):
                same(
                    r,
                    chunk,
                    want[i],
                    f"chunks[{i}]",
                    lambda x, i=i, r=r: self._guess(x, i, r, chunks, want),
                )
        sizes = [c.nbytes for c in want]
        to_the_right(
            case, outcome, n - 1, [sum(sizes) - sizes[(r + 1) % n] for r in range(n)], "n−1"
        )

    def _guess(self, x, i, r, chunks, want) -> str | None:
        finished = {
            f"That is chunk {j}, in the wrong place.": want[j] for j in range(len(want)) if j != i
        }
        if x.equal(chunks[r][i]):
            return f"It is as before: chunk {i} never arrived at rank {r}. One step short, or received elsewhere?"
        return equal_to(x, finished) or self._unfinished(x, i, chunks)

    def _unfinished(self, x, i, chunks) -> str | None:
        for s in range(len(chunks)):
            for j in range(len(chunks)):
                if x.equal(chunks[s][j]):
                    return (
                        f"It is what rank {s} had in chunks[{j}] at the start. Send first the chunk that you own, "
                        "then what has just arrived."
                    )
        return None


class AllReduce(TensorExam):
    name = "all_reduce"
    right = (
        "n = 1…5, 14 shapes and secret lengths, 2(n−1) messages and 2(n−1)/n·N bytes a rank; "
        "then 2, 3 and 4 real processes."
    )

    def run(self, comm: Comm, yours, x):
        held = x.detach()
        yours(comm, x)
        return held

    def judge(self, case, args, outcome):
        n, xs = case.n, [x for (x,) in args]
        total = sum(xs[1:], xs[0])
        for r, x in enumerate(outcome.results):
            alike(r, x, total, "x")
            same(r, x, total, "x", lambda x, r=r: self._guess(x, xs, total, r))
        cost = -(-xs[0].numel() // n) * xs[0].element_size()
        to_the_right(case, outcome, 2 * (n - 1), [outcome.nbytes(r) for r in range(n)], "2(n−1)")
        for r in range(n):
            if outcome.nbytes(r) > 2 * (n - 1) * cost:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes: 2(n−1) chunks have "
                    f"{2 * (n - 1) * cost} at most. Whole tensors where chunks are enough?"
                )

    def _guess(self, x, xs, total, r) -> str | None:
        n, flat = len(xs), x.reshape(-1)
        tail = flat.numel() % n
        if tail and flat[:-tail].equal(total.reshape(-1)[:-tail]) and flat.numel() > tail:
            return (
                f"All but the last {tail} of {flat.numel()} are right: n = {n} does not divide the length. "
                "Is the remainder dropped?"
            )
        parts = [[p.reshape(-1).tensor_split(n)[i] for p in xs] for i in range(n)]
        mine, want = flat.tensor_split(n), total.reshape(-1).tensor_split(n)
        i = next(i for i in range(n) if not mine[i].equal(want[i]))
        text = who(mine[i], parts[i], r) or who(x, xs, r) or rounded(x, total)
        return text and f"Of {n} chunks, chunk {i}: {text}"


class RingSum(NewExam):
    name = "ring_sum"
    right = "n = 1…5, 14 shapes and secret lengths, n−1 messages a rank, x untouched; then 2, 3 and 4 real processes."

    def judge(self, case, args, outcome):
        xs, steps = [x for x, _ in args], (1 + len(args[0][1])) * (case.n - 1)
        total = sum(xs[1:], xs[0])
        for r, got in enumerate(outcome.results):
            self.apart(r, got)
            same(
                r, got["y"], total, "the result", lambda x, r=r: who(x, xs, r) or rounded(x, total)
            )
            unchanged(r, got["x"], xs[r], "x")
        to_the_right(case, outcome, steps, [steps * x.nbytes for x in xs], "n−1 a call")


def reduce_scatter(yours) -> None:
    """`reduce_scatter(comm, chunks)`: chunk `comm.rank`, summed over all ranks. n−1 messages a rank, to the right."""
    ask(ReduceScatter(), yours)


def all_gather(yours) -> None:
    """`all_gather(comm, chunks)`: fills every chunks[i] with that of rank i. n−1 messages a rank, to the right."""
    ask(AllGather(), yours)


def all_reduce(yours) -> None:
    """`all_reduce(comm, x)`: fills every rank's x with the sum, in place. 2(n−1) messages, 2(n−1)/n·N bytes a rank."""
    ask(AllReduce(), yours)


def ring_sum(yours) -> None:
    """`ring_sum(comm, x)`: the sum of every rank's x, in a new tensor. n−1 messages of the whole x a rank."""
    ask(RingSum(), yours)
