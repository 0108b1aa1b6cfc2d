"""Graders of lesson 02: from one message to a ring all-reduce."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from operator import is_

import torch

from ..exam import (
    ALL,
    HALF,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Wrong,
    differ,
    encode,
    equal,
    few,
    integer,
    integers,
    ranked,
    recognized,
    same,
    who,
    whole,
)

# ------------------------------------------------------------
# Shift and broadcast.
#
# Each is examined in Worlds of 1 to 8 ranks, with lengths that n does not divide, shorter than n and 0, with nan, and
# with lengths that nobody knows beforehand; then in real processes.


RANKS = (3, 2, 4, 1, 5)  # first the smallest ring that can be wrong, and be understood
SHAPES = ((6,), (7,), (1,), (0,), (2,), (3,), (4,), (5,), (12,), (13,), (), (2, 3), (3, 5), (1000,))
DTYPES = (torch.float64, torch.float32, torch.int64, torch.int32)


def words(shape: tuple[int, ...]) -> str:
    """`7 numbers`, `a 2 × 3 tensor`."""
    if len(shape) == 1:
        return f"{shape[0]} number{'s' * (shape[0] != 1)}"
    if not shape:
        return "one number without a dimension"
    return f"a {' × '.join(map(str, shape))} tensor"


def numbers(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    """Whole numbers of both signs: sums are exact in any order. All but those of float32 are more than float32 can hold,
    and integers of 64 bits more than float64."""
    x = whole(shape, torch.int64, rng)
    for _ in range({torch.float32: 0, torch.int64: 6}.get(dtype, 1)):
        x = 64 * x + torch.randint(64, shape, generator=rng)
    return (x * (2 * torch.randint(2, shape, generator=rng) - 1)).to(dtype)


def tensors(shape: tuple[int, ...], n: int, rng: torch.Generator, nan: bool) -> list[torch.Tensor]:
    """Each rank's x, of one dtype, which is the same where n and the shape are. nan: there is one in place r on rank r."""
    dtypes = DTYPES[:2] if nan else DTYPES
    dtype = dtypes[(n + math.prod(shape)) % len(dtypes)]
    xs = [numbers(shape, dtype, rng) for _ in range(n)]
    for r, x in enumerate(xs if nan else []):
        x[r % len(x)] = torch.nan
    return xs


class TensorExam(Exam):
    """Every rank has a tensor of one shape; a case's `given` is the shape, or a bound for a secret length."""

    exact = True
    cases = (
        *(Case(n, f"n = {n}, {words(s)}", s) for n in RANKS for s in SHAPES),
        Case(3, "n = 3, 6 numbers, others than before", (6,)),
        *(
            Case(n, f"n = {n}, a length drawn at random, nan in place r on rank r", most)
            for n, most in ((3, 30), (3, 3000), (5, 30), (5, 3000), (6, 30), (7, 30), (8, 30))
        ),
    )
    processes = ranked(
        lambda n, s: f"{n} real processes, {words(s)}", ((3, (7,)), (2, (5,)), (4, (3, 5)))
    )

    def draw(self, case, rng):
        secret = isinstance(case.given, int)
        shape = (integer(rng, 14, case.given),) if secret else case.given
        return [(x,) for x in tensors(shape, case.n, rng, secret)]


class InPlace(TensorExam):
    """The answer writes into x."""

    returns = ("x",)

    def call(self, comm, yours, x, *given):
        held = x.detach()  # of the same memory: `x.data = …` does not write into it
        yours(comm, x, *given)
        return held


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers; those of a matrix of 3 rows are not contiguous."""
    return x.t().contiguous().t() if x.dim() == 2 and len(x) == 3 else x


COPIED = (
    "It is as before. This x is not contiguous: what arrives in x.reshape(-1) arrives in a copy."
)


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
            raise (Costly if outcome.messages(r) > times else Wrong)(
                f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages: {why} = {times} "
                "is what is asked for."
            )
        if outcome.nbytes(r) != nbytes[r]:
            raise (Costly if outcome.nbytes(r) > nbytes[r] else Wrong)(
                f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes: {nbytes[r]} would do. "
                "Whole tensors where chunks are enough?"
            )


class NewExam(TensorExam):
    """The result is a new tensor: where the length is secret, the answer is called a second time before it is read.

    rounds: whether n−1 messages are sent in a call, or one.
    """

    given = ("x",)
    rounds = False

    def draw(self, case, rng):
        again = [0] * isinstance(case.given, int)
        return [
            (x, [numbers(x.shape, x.dtype, rng) for _ in again]) for (x,) in super().draw(case, rng)
        ]

    def run(self, comm, yours, x, others):
        return super().run(comm, yours, strided(x), others)

    def call(self, comm, yours, x, others):
        y = yours(comm, x)
        first = encode(y)
        for other in others:
            yours(comm, other)
        return {"y": y, "alias": aliased(x, y), "kept": encode(y) == first}

    def value(self, case, args, rank, name, got, want):
        if not got["kept"]:
            raise Wrong(
                f"rank {rank}: the result changes when the function is called again: a new tensor for every call."
            )
        if got["alias"]:
            raise Wrong(
                f"rank {rank}: the result is x itself, not a tensor of its own: who changes one changes both."
            )
        super().value(case, args, rank, name, got["y"], want)

    def cost(self, case, args, outcome):
        calls = 1 + len(args[0][1])
        times = calls * (case.n - 1 if self.rounds else 1)
        why = "n−1 a call" if self.rounds else "one a call"
        to_the_right(case, outcome, times, [times * x.nbytes for x, _ in args], why)


class Shift(NewExam):
    """`shift(comm, x)`: the x of the left neighbour, in a new tensor. One message a rank."""

    name = "shift"
    right = "n = 1…8, 14 shapes and secret lengths, one message a rank, x untouched; then 2, 3 and 4 real processes."

    def wants(self, case, args):
        return [{"the result": args[r - 1][0]} for r in range(case.n)]

    def mistakes(self, case, args, rank, name, got):
        xs = [x for x, _ in args]
        candidates = {
            f"That is rank {rank}'s own x: it came back to where it started.": xs[rank],
            "That is the right neighbour's: it went around the wrong way.": xs[(rank + 1) % case.n],
        }
        for x in args[rank - 1][1]:
            candidates[
                "That is the left neighbour's x in its next call: it did not come in a message."
            ] = x
        return recognized(got, candidates, "", equal) or who(got, xs, rank)


def aliased(x: torch.Tensor, y) -> bool:
    """Whether a result shares its memory with an argument."""
    return (
        isinstance(y, torch.Tensor)
        and x.numel() > 0
        and x.untyped_storage()._cdata == y.untyped_storage()._cdata
    )


class Broadcast(InPlace):
    """`broadcast(comm, x, root)`: fills every rank's x with the root's. n−1 messages in all."""

    name = "broadcast"
    right = "n = 1…8, 14 shapes and secret lengths, every root, n−1 messages in all; then 2, 3 and 4 real processes."
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

    def run(self, comm, yours, x, root):
        return super().run(comm, yours, strided(x), root)

    def wants(self, case, args):
        return [{"x": args[args[0][1]][0]}] * case.n

    def mistakes(self, case, args, rank, name, got):
        x = args[rank][0]
        if equal(got, x) and not strided(x).is_contiguous():
            return COPIED
        return who(got, [x for x, _ in args], rank)

    def cost(self, case, args, outcome):
        one_to_each(outcome, case.n, args[0][0].nbytes)


def one_to_each(outcome: Outcome, n: int, nbytes: int) -> None:
    """Raise Wrong unless n−1 messages of so many bytes were sent in all."""
    sent = outcome.messages(), outcome.nbytes()
    if sent != (n - 1, (n - 1) * nbytes) and (nbytes or outcome.messages()):
        raise (Costly if sent >= (n - 1, (n - 1) * nbytes) else Wrong)(
            f"the numbers are right, but {sent[0]} messages with {sent[1]} bytes were sent: n−1 = {n - 1} with "
            f"{(n - 1) * nbytes} bytes are enough, one to each rank that has nothing yet."
        )


# ------------------------------------------------------------
# The ring: its two halves, all-reduce, and a ring sum with a bug.
#
# Costs are those of Patarasuk and Yuan 2009: n−1 messages a rank for each half, each of one chunk.


class ChunksExam(TensorExam):
    """Every rank has n chunks, as equal as can be, or cut at random where the length is."""

    cases = tuple(
        c for c in TensorExam.cases if not isinstance(c.given, tuple) or len(c.given) == 1
    )
    processes = tuple(c for c in TensorExam.processes if len(c.given) == 1)

    def draw(self, case, rng):
        args = super().draw(case, rng)
        cuts = case.n
        if isinstance(case.given, int):
            cuts = sorted(integers(rng, 0, len(args[0][0]), case.n - 1))
        return [(list(x.tensor_split(cuts)),) for (x,) in args]


class ReduceScatter(ChunksExam):
    """`reduce_scatter(comm, chunks)`: chunk `comm.rank`, summed over all ranks. n−1 messages a rank, to the right."""

    name = "reduce_scatter"
    right = "n = 1…8, 11 lengths and secret ones, n−1 messages a rank, to the right; then 2 and 3 real processes."

    returns, given = ("the chunk",), ("`chunks`",)

    def wants(self, case, args):
        done = [sum(c[i] for (c,) in args[1:]) + args[0][0][i] for i in range(case.n)]
        return [{"the chunk": x} for x in done]

    def value(self, case, args, rank, name, got, want):
        super().value(case, args, rank, f"chunk {rank}", got, want)

    def mistakes(self, case, args, rank, name, got):
        chunks = [c for (c,) in args]
        finished = {
            f"It is chunk {i}, finished, and rank {rank} should have chunk {rank}. Which chunk does it send first?": x[
                "the chunk"
            ]
            for i, x in enumerate(self.wants(case, args))
            if i != rank
        }
        found = recognized(got, finished, "", equal) or who(got, [c[rank] for c in chunks], rank)
        return found or _astray(got, chunks, rank)

    def cost(self, case, args, outcome):
        sizes = [c.nbytes for c in args[0][0]]
        least = [sum(sizes) - size for size in sizes]
        to_the_right(case, outcome, case.n - 1, least, "n−1")


def _astray(out, chunks, r):
    """Chunks of different numbers were added up, or another chunk is returned unfinished."""
    for i in range(len(chunks)):
        if chunks[0][i].shape == out.shape and i != r:
            text = who(out, [c[i] for c in chunks], r)
            if text:
                return f"It is made of the chunks {i}, not {r}. {text}"
    return "Is what arrives added to the chunk of the same number?"


class AllGather(ChunksExam):
    """`all_gather(comm, chunks)`: fills every chunks[i] with that of rank i. n−1 messages a rank, to the right."""

    name = "all_gather"
    right = "n = 1…8, 11 lengths and secret ones, n−1 messages a rank, to the right; then 2 and 3 real processes."

    def call(self, comm, yours, chunks):
        held, filled = list(chunks), [c.detach() for c in chunks]
        yours(comm, held)
        return {"chunks": filled, "kept": len(held) == len(chunks) and all(map(is_, held, chunks))}

    def wants(self, case, args):
        return [{"the result": [c[i] for i, (c,) in enumerate(args)]}] * case.n

    def value(self, case, args, rank, name, got, want):
        if not got["kept"]:
            raise Wrong(
                f"rank {rank}: the list holds other tensors than before. Receive into those that are in it."
            )
        for i, chunk in enumerate(got["chunks"]):
            guess = partial(self._guess, i=i, r=rank, chunks=[c for (c,) in args], want=want)
            same(chunk, want[i], f"rank {rank}: chunks[{i}]", guess)

    def cost(self, case, args, outcome):
        n, sizes = case.n, [c.nbytes for c in args[0][0]]
        least = [sum(sizes) - sizes[(r + 1) % n] for r in range(n)]
        to_the_right(case, outcome, n - 1, least, "n−1")

    def _guess(self, x, i, r, chunks, want):
        if equal(x, chunks[r][i]):
            return f"It is as before: chunk {i} never arrived at rank {r}. One step short, or received elsewhere?"
        finished = {
            f"That is chunk {j}, in the wrong place.": want[j] for j in range(len(want)) if j != i
        }
        wrong = differ(x, want[i])
        part = "Part of it is as before. The lengths of chunks are any: is it cut short?"
        part = "" if differ(x[wrong], chunks[r][i][wrong]).any() else part
        return recognized(x, finished, "", equal) or self._unfinished(x, i, chunks) or part

    def _unfinished(self, x, i, chunks):
        for s, j in product(range(len(chunks)), repeat=2):
            if equal(x, chunks[s][j]):
                return (
                    f"It is what rank {s} had in chunks[{j}] at the start. Send first the chunk that you own, "
                    "then what has just arrived."
                )
        return None


class AllReduce(InPlace):
    """`all_reduce(comm, x)`: fills every rank's x with the sum, in place. 2(n−1) messages, 2(n−1)/n·N bytes a rank."""

    name = "all_reduce"
    right = (
        "n = 1…8, 14 shapes and secret lengths, 2(n−1) messages and 2(n−1)/n·N bytes a rank; "
        "then 2, 3 and 4 real processes."
    )

    def wants(self, case, args):
        return [{"x": sum_of(args)}] * case.n

    def mistakes(self, case, args, rank, name, got):
        n, xs = case.n, [x for (x,) in args]
        flat, total = got.reshape(-1), sum_of(args).reshape(-1)
        tail = flat.numel() % n
        if tail and flat[:-tail].equal(total[:-tail]) and flat.numel() > tail:
            return (
                f"All but the last {tail} of {flat.numel()} are right: n = {n} does not divide the length. "
                "Is the remainder dropped?"
            )
        i, mine, parts = wrong_part(flat, total, xs, n)
        text = who(mine, parts, rank) or who(got, xs, rank)
        return text and f"Of {n} chunks, chunk {i}: {text}"

    def cost(self, case, args, outcome):
        n, (x,) = case.n, args[0]
        steps = 2 * (n - 1)
        to_the_right(case, outcome, steps, [outcome.nbytes(r) for r in range(n)], "2(n−1)")
        most = steps * -(-x.numel() // n) * x.element_size()
        few(outcome, most, "That is 2(n−1) chunks. Whole tensors where chunks are enough?")


def wrong_part(got, want, xs: list, count: int) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
    """The first of so many parts that is wrong: its number, what it is, and what it is in each of `xs`."""
    mine, right, *own = (t.reshape(-1).tensor_split(count) for t in (got, want, *xs))
    i = next(i for i in range(count) if differ(mine[i], right[i]).any())
    return i, mine[i], [parts[i] for parts in own]


def sum_of(args: list[tuple]) -> torch.Tensor:
    """Of every rank's first argument."""
    return sum((x for x, *_ in args[1:]), args[0][0])


class RingSum(NewExam):
    """`ring_sum(comm, x)`: the sum of every rank's x, in a new tensor. n−1 messages of the whole x a rank."""

    name = "ring_sum"
    right = "n = 1…8, 14 shapes and secret lengths, n−1 messages a rank, x untouched; then 2, 3 and 4 real processes."

    rounds = True

    def wants(self, case, args):
        return [{"the result": sum_of(args)}] * case.n

    def mistakes(self, case, args, rank, name, got):
        return who(got, [x for x, _ in args], rank)


# ------------------------------------------------------------
# Numbers: what a ring costs, and what the usual slips give.


def predict(n=8, size=1_000_000, itemsize=4, alpha=5e-6, beta=1 / 50e9):
    """For 8 ranks and 1,000,000 float32 numbers, α = 5 µs, β = 1/(50 GB/s): the cost of an all-reduce.

    messages, nbytes: what each rank sends in a ring.  seconds: how long the ring takes.
    naive_nbytes: what rank 0 sends if everyone sends to it and it sends the sum to everyone.
    """
    whole = size * itemsize
    steps, ring = 2 * (n - 1), 2 * (n - 1) * whole / n
    seconds = steps * alpha + ring * beta
    values = {
        "messages": steps,
        "nbytes": ring,
        "naive_nbytes": (n - 1) * whole,
        "seconds": seconds,
    }
    slips = {
        "messages": {
            n - 1: HALF,
            2 * n: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            steps * n: ALL,
        },
        "nbytes": {
            ring / itemsize: NUMBERS,
            ring / 2: HALF,
            whole * 2: "Nearly: the factor is 2(n−1)/n.",
            steps * whole: "A message is one chunk, N/n. Or is that all ranks' together?",
        },
        "naive_nbytes": {
            (n - 1) * size: NUMBERS,
            n * whole: "It sends nothing to itself.",
            steps * whole: "That counts what it receives, too: only what it sends is asked for.",
            whole: "That is one message: it sends one to each other rank.",
        },
        "seconds": {
            ring * beta: "The α of each step is missing.",
            steps * alpha: "The bytes take time, too: β.",
            seconds / 2: HALF,
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict,
    "Messages, bytes and seconds, within 1 %.",
    {
        "n": ("{} ranks", (4, 5, 10, 16)),
        "size": ("{:,} numbers", (2_000_000, 3_000_000, 5_000_000)),
    },
)
