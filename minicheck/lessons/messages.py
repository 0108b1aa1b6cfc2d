"""Graders of lesson 02: from one message to a ring all-reduce."""

from __future__ import annotations

from itertools import product

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, Outcome, Wrong, alike, equal_to, same, unchanged, who, whole
from ..guard import ask

# ------------------------------------------------------------
# Shift and broadcast.
#
# Each is examined in Worlds of 1 to 5 ranks, with lengths that n does not divide, shorter than n and 0, and
# two lengths that nobody knows beforehand; then in real processes.


RANKS = (3, 2, 4, 1, 5)  # first the smallest ring that can be wrong, and be understood
SHAPES = ((6,), (7,), (1,), (0,), (2,), (3,), (4,), (5,), (12,), (13,), (), (2, 3), (3, 5), (1000,))
DTYPES = (torch.float64, torch.float32, torch.int64)


def words(shape: tuple[int, ...]) -> str:
    """`7 numbers`, `a 2 × 3 tensor`."""
    if len(shape) == 1:
        return f"{shape[0]} number{'s' * (shape[0] != 1)}"
    if not shape:
        return "one number without a dimension"
    return f"a {' × '.join(map(str, shape))} tensor"


def numbers(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    """Whole numbers of both signs: sums are exact in any order. Those of 64 bits are more than float32 can hold."""
    x = whole(shape, torch.int64, rng)
    if dtype != torch.float32:
        x = 64 * x + torch.randint(64, shape, generator=rng)
    return (x * (2 * torch.randint(2, shape, generator=rng) - 1)).to(dtype)


def rounded(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """What it is called if only the first digits are right."""
    off = (got.double() - want.double()).abs()
    if got.element_size() < 8 or not got.numel() or off.max() > 1e-5 * want.double().abs().max():
        return None
    return "Its first digits are right: is something computed in float32, though x is not?"


class TensorExam(Exam):
    """Every rank has a tensor of one shape; a case's `given` is the shape, or a bound for a secret length."""

    cases = tuple(Case(n, f"n = {n}, {words(s)}", s) for n in RANKS for s in SHAPES) + tuple(
        Case(n, f"n = {n}, a length drawn at random", most) for n in (3, 5) for most in (30, 3000)
    )
    processes = tuple(
        Case(n, f"{n} real processes, {words(s)}", s)
        for n, s in ((3, (7,)), (2, (5,)), (4, (3, 5)))
    )

    def draw(self, case, rng):
        shape = case.given
        if isinstance(shape, int):
            shape = (int(torch.randint(14, shape, (), generator=rng)),)
        dtype = DTYPES[int(torch.randint(3, (), generator=rng))]
        return [(numbers(shape, dtype, rng),) for _ in range(case.n)]


def to_the_right(case: Case, outcome: Outcome, times: int, nbytes: list[int], why: str) -> None:
    """Raise Wrong unless every rank sent `times` messages, `nbytes[rank]` bytes together, to the right only."""
    n = case.n
    for r in range(n if n > 1 else 0):
        others = [d for d in outcome.receivers(r) if d != (r + 1) % n]
        if others:
            raise Wrong(
                f"the numbers are right, but rank {r} sends to rank {others[0]}: to the right, "
                f"to rank {(r + 1) % n} only, is what is asked for."
            )
        # nothing need not be sent
        if outcome.messages(r) != times and (nbytes[r] or outcome.messages(r) > times):
            raise Wrong(
                f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages: {why} = {times} "
                "is what is asked for."
            )
        if outcome.nbytes(r) != nbytes[r]:
            raise Wrong(
                f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes: {nbytes[r]} would do. "
                "Whole tensors where chunks are enough?"
            )


class NewExam(TensorExam):
    """The result is a new tensor: where the length is secret, the answer is called a second time before it is read."""

    def draw(self, case, rng):
        again = [0] * isinstance(case.given, int)
        return [
            (x, [numbers(x.shape, x.dtype, rng) for _ in again]) for (x,) in super().draw(case, rng)
        ]

    def run(self, comm: Comm, yours, x, others):
        y = yours(comm, x)
        first = y.clone() if isinstance(y, torch.Tensor) else y
        for other in others:
            yours(comm, other)
        return {"y": y, "x": x, "alias": aliased(x, y), "kept": y is first or y.equal(first)}

    def apart(self, r: int, got: dict) -> None:
        """Raise Wrong if a result shares its memory with x or with the next one."""
        if not got["kept"]:
            raise Wrong(
                f"rank {r}: the result changes when the function is called again: a new tensor for every call."
            )
        if got["alias"]:
            raise Wrong(
                f"rank {r}: the result is x itself, not a tensor of its own: who changes one changes both."
            )


class Shift(NewExam):
    name = "shift"
    right = "n = 1…5, 14 shapes and secret lengths, one message a rank, x untouched; then 2, 3 and 4 real processes."

    def judge(self, case, args, outcome):
        xs, calls = [x for x, _ in args], 1 + len(args[0][1])
        for r, got in enumerate(outcome.results):
            candidates = {
                f"That is rank {r}'s own x: it came back to where it started.": xs[r],
                "That is the right neighbour's: it went around the wrong way.": xs[
                    (r + 1) % case.n
                ],
            }
            for x in args[r - 1][1]:
                candidates[
                    "That is the left neighbour's x in its next call: it did not come in a message."
                ] = x
            self.apart(r, got)
            same(
                r,
                got["y"],
                xs[r - 1],
                "the result",
                lambda y, c=candidates, r=r: equal_to(y, c) or who(y, xs, r),
            )
            unchanged(r, got["x"], xs[r], "x")
        to_the_right(case, outcome, calls, [calls * x.nbytes for x in xs], "one a call")


def aliased(x: torch.Tensor, y) -> bool:
    """Whether a result shares its memory with an argument."""
    return (
        isinstance(y, torch.Tensor)
        and x.numel() > 0
        and x.untyped_storage()._cdata == y.untyped_storage()._cdata
    )


class Broadcast(TensorExam):
    name = "broadcast"
    right = "n = 1…5, 14 shapes and secret lengths, every root, n−1 messages in all; then 2, 3 and 4 real processes."
    cases = tuple(
        c._replace(what=f"{c.what}, root {i % c.n}", given=(c.given, i % c.n))
        for i, c in enumerate(TensorExam.cases)
    )
    processes = tuple(
        c._replace(what=f"{c.what}, root {c.n - 1}", given=(c.given, c.n - 1))
        for c in TensorExam.processes
    )

    def draw(self, case, rng):
        shape, root = case.given
        return [(x, root) for (x,) in super().draw(case._replace(given=shape), rng)]

    def run(self, comm: Comm, yours, x, root):
        held = x.detach()
        yours(comm, x, root)
        return held

    def judge(self, case, args, outcome):
        xs, (_, root) = [x for x, _ in args], args[0]
        for r, x in enumerate(outcome.results):
            same(r, x, xs[root], "x", lambda x, r=r: who(x, xs, r))
        messages, nbytes = case.n - 1, (case.n - 1) * xs[0].nbytes
        if (outcome.messages(), outcome.nbytes()) != (messages, nbytes) and (
            nbytes or outcome.messages()
        ):
            raise Wrong(
                f"the numbers are right, but {outcome.messages()} messages with {outcome.nbytes()} bytes were "
                f"sent. n−1 = {messages} with {nbytes} bytes are enough: one to each rank that has nothing "
                "yet."
            )


def shift(yours) -> None:
    """`shift(comm, x)`: the x of the left neighbour, in a new tensor. One message a rank."""
    ask(Shift(), yours)


def broadcast(yours) -> None:
    """`broadcast(comm, x, root)`: fills every rank's x with the root's. n−1 messages in all."""
    ask(Broadcast(), yours)


# ------------------------------------------------------------
# The ring: its two halves, all-reduce, and a ring sum with a bug.
#
# Costs are those of Patarasuk and Yuan 2009: n−1 messages a rank for each half, each of one chunk.


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
