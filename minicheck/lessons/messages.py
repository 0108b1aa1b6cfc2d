"""Graders of lesson 02: from one message to a ring all-reduce."""

from __future__ import annotations

import math
from functools import partial
from operator import is_

import torch

from minidist.comm.world import World

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
    typed,
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


def listed(shapes) -> str:
    """`7 numbers and a 2 × 3 tensor`."""
    return " and ".join(map(words, shapes))


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
        Case(3, "n = 3, 6 numbers again, with other values", (6,)),
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


COPIED = "It is as before. This tensor is not contiguous: what arrives in its reshape(-1) arrives in a copy."


def one_way(case: Case, outcome: Outcome, step: int, words: str) -> None:
    """Raise Wrong unless every rank r has sent to rank r + `step` only; `words` say which way that is."""
    n = case.n
    for r in range(n):
        others = [d for d in outcome.receivers(r) if d != (r + step) % n]
        if others:
            raise Wrong(
                f"the numbers are right, but rank {r} sends to rank {others[0]}: it should send only {words}, to rank "
                f"{(r + step) % n}."
            )


RIGHT, LEFT = "to the right", "to the left"
WHOLE = "Are whole tensors sent where chunks are enough?"


def counted(case: Case, outcome: Outcome, times: int, nbytes: list[int], why: str) -> None:
    """Raise Wrong unless every rank sent `times` messages, `nbytes[rank]` bytes together."""
    n = case.n
    for r in range(n if n > 1 else 0):
        # nothing need not be sent
        if outcome.messages(r) != times and (nbytes[r] or outcome.messages(r) > times):
            raise (Costly if outcome.messages(r) > times else Wrong)(
                f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages, and should send {times}: {why}."
            )
        if outcome.nbytes(r) > nbytes[r]:
            raise Costly(
                f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and {nbytes[r]} are enough. {WHOLE}"
            )
        if outcome.nbytes(r) < nbytes[r]:
            raise Wrong(
                f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and {nbytes[r]} are needed."
            )


def to_the_right(case: Case, outcome: Outcome, times: int, nbytes: list[int], why: str) -> None:
    """Raise Wrong unless every rank sent `times` messages, `nbytes[rank]` bytes together, to the right only."""
    one_way(case, outcome, 1, RIGHT)
    counted(case, outcome, times, nbytes, why)


class NewExam(TensorExam):
    """The result is a new tensor: where the length is secret, the answer is called a second time before it is read."""

    given = ("x",)

    def draw(self, case, rng):
        again = [0] * isinstance(case.given, int)
        return [
            (x, [numbers(x.shape, x.dtype, rng) for _ in again]) for (x,) in super().draw(case, rng)
        ]

    def run(self, comm, yours, x, others, *more):
        return super().run(comm, yours, strided(x), others, *more)

    def call(self, comm, yours, x, others, *more):
        y = yours(comm, x, *more)
        first = encode(y)
        for other in others:
            yours(comm, other, *more)
        return {"y": y, "alias": aliased(x, y), "kept": encode(y) == first}

    def value(self, case, args, rank, name, got, want):
        if not got["kept"]:
            raise Wrong(
                f"rank {rank}: the result changes when the function is called again: return a new tensor in every call."
            )
        if got["alias"]:
            raise Wrong(
                f"rank {rank}: the result shares its memory with x, so that a change of one changes the other: return a new "
                "tensor."
            )
        super().value(case, args, rank, name, got["y"], want)


class Shift(NewExam):
    """`shift(comm, x, places)`: the x of the rank so many places to the left, in a new tensor. One message a rank, or none."""

    name = "shift"
    right = (
        "n = 1…8, 14 shapes and secret lengths, places from −2n to 3n, one message per rank, x not changed; "
        "then 2, 3 and 4 real processes."
    )
    cases = tuple(
        c._replace(what=f"{c.what}, places = {k}", given=(c.given, k))
        for i, c in enumerate(TensorExam.cases)
        for k in [(1, 2, -1, 0, c.n, c.n + 2, -c.n - 1, 3 * c.n - 1, -2 * c.n, 3)[i % 10]]
    )
    processes = tuple(
        c._replace(what=f"{c.what}, places = {k}", given=(c.given, k))
        for c, k in zip(TensorExam.processes, (2, 3, -5), strict=True)
    )

    def draw(self, case, rng):
        given, places = case.given
        return [(*both, places) for both in super().draw(case._replace(given=given), rng)]

    def wants(self, case, args):
        return [{"the result": args[(r - args[r][2]) % case.n][0]} for r in range(case.n)]

    def mistakes(self, case, args, rank, name, got):
        xs, places = [x for x, *_ in args], args[rank][2]
        source = (rank - places) % case.n
        candidates = {
            f"That is rank {rank}'s own x: it came back to where it started.": xs[rank],
            "It went around in the wrong direction.": xs[(rank + places) % case.n],
            "That is the left neighbour's x: it has moved by only one place.": xs[rank - 1],
        }
        for x in args[source][1]:
            candidates[
                f"That is rank {source}'s x in its next call, so it did not come in a message."
            ] = x
        return recognized(got, candidates, "", equal) or who(got, xs, rank)

    def cost(self, case, args, outcome):
        x, others, places = args[0]
        times = (1 + len(others)) * (places % case.n > 0)
        one_way(case, outcome, places, "straight to the destination")
        why = "one in each call, or none if nothing moves"
        counted(case, outcome, times, [times * x.nbytes] * case.n, why)


def aliased(x: torch.Tensor, y) -> bool:
    """Whether a result shares its memory with an argument."""
    return (
        isinstance(y, torch.Tensor)
        and x.numel() > 0
        and x.untyped_storage()._cdata == y.untyped_storage()._cdata
    )


def one_to_each(outcome: Outcome, n: int, nbytes: int) -> None:
    """Raise Wrong unless n−1 messages of so many bytes were sent in all."""
    sent = outcome.messages(), outcome.nbytes()
    if sent != (n - 1, (n - 1) * nbytes) and (nbytes or outcome.messages()):
        raise (Costly if sent >= (n - 1, (n - 1) * nbytes) else Wrong)(
            f"the numbers are right, but {sent[0]} messages with {sent[1]} bytes were sent in all, and it should be "
            f"n−1 = {n - 1} with {(n - 1) * nbytes} bytes: one to each rank that does not have the numbers yet."
        )


ALPHA, BETA = 5e-6, 1e-7  # of the World of a broadcast, where bytes cost more than latency


class Broadcast(InPlace):
    """`broadcast(comm, x, root, m)`: fills every rank's x with the root's, in m pieces that go along the line."""

    name = "broadcast"
    right = (
        "n = 1…8, on streams, 14 shapes and secret lengths, every root, 1 to 7 pieces, each passed on while the next one "
        "arrives; then 2, 3 and 4 real processes."
    )
    cases = tuple(
        c._replace(what=f"{c.what}, root {i % c.n}, m = {m}", given=(c.given, i % c.n, m))
        for i, c in enumerate(TensorExam.cases)
        for m in [(2, 3, 1, 5, 4, 7)[i % 6]]
    )
    processes = tuple(
        c._replace(what=f"{c.what}, root {c.n - 1}, m = 3", given=(c.given, c.n - 1, 3))
        for c in TensorExam.processes
    )

    def draw(self, case, rng):
        shape, *more = case.given
        return [(x, *more) for (x,) in super().draw(case._replace(given=shape), rng)]

    def run(self, comm, yours, x, *more):
        return super().run(comm, yours, strided(x), *more)

    def world(self, n, args):
        return World(n, alpha=ALPHA, beta=BETA, ordered=True)

    def wants(self, case, args):
        return [{"x": args[args[0][1]][0]}] * case.n

    def mistakes(self, case, args, rank, name, got):
        x, root, m = args[rank]
        if equal(got, x) and not strided(x).is_contiguous():
            return COPIED
        sent, xs = args[root][0], [x for x, *_ in args]
        k, mine, parts = wrong_part(got, sent, xs, m)
        text = who(mine, parts, rank) or who(got, xs, rank)
        if text:
            return f"Of m = {m} pieces, piece {k}: {text}"
        wrong = differ(got, sent)
        if not differ(got[wrong], x[wrong]).any():
            return f"It is as before, although what stands around it has arrived: m = {m} need not divide the length."
        return None

    def cost(self, case, args, outcome):
        x, root, m = args[0]
        one_way(case, outcome, 1, RIGHT)
        full = min(m, x.numel())  # nothing need not be sent
        for r in range(case.n if case.n > 1 else 0):
            last = (r + 1) % case.n == root
            sent = outcome.messages(r)
            least, most = (0, 0) if last else (full, m)
            if not least <= sent <= most:
                why = "none: it is the last in the line" if last else f"m = {m}"
                raise (Costly if sent > most else Wrong)(
                    f"the numbers are right, but rank {r} sends {sent} messages, and should send {why}."
                )
            nbytes = 0 if last else x.nbytes
            if outcome.nbytes(r) != nbytes:
                raise (Costly if outcome.nbytes(r) > nbytes else Wrong)(
                    f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and should send {nbytes}."
                )
        largest = -(-x.numel() // m) * x.element_size()
        enough = (case.n - 2 + m) * (ALPHA + largest * BETA)
        if outcome.time is not None and case.n > 1 and outcome.time > 1.001 * enough:
            raise Costly(
                f"the numbers are right, but on the World's clock it takes {1e6 * outcome.time:.4g} µs, and n−2+m messages "
                f"one after another, {1e6 * enough:.4g} µs, are enough. Pass a piece on while the next one arrives."
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
    """`reduce_scatter(comm, chunks)`: chunk `comm.rank`, summed over all ranks. n−1 messages a rank, to the left."""

    name = "reduce_scatter"
    right = "n = 1…8, 11 lengths and secret ones, n−1 messages per rank, to the left; then 2 and 3 real processes."

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
        one_way(case, outcome, -1, LEFT)
        counted(case, outcome, case.n - 1, least, "n−1")


def _astray(out, chunks, r):
    """Chunks of different numbers were added up, or another chunk is returned unfinished."""
    for i in range(len(chunks)):
        if chunks[0][i].shape == out.shape and i != r:
            text = who(out, [c[i] for c in chunks], r)
            if text:
                return f"It is made of everybody's chunk {i}, not chunk {r}. {text}"
    return "Is what arrives added to the chunk of the same number?"


class AllGather(ChunksExam):
    """`all_gather(comm, x)`: every rank's x, whose length no other rank knows, in a list. 2(n−1) messages a rank."""

    name = "all_gather"
    right = (
        "n = 1…8, 11 lengths and secret ones, cut at random, at most 2(n−1) messages per rank, to the right; "
        "then 2 and 3 real processes."
    )
    returns, given = ("the list",), ("x",)

    def draw(self, case, rng):
        found = TensorExam.draw(self, case, rng)
        cuts = sorted(integers(rng, 0, len(found[0][0]) + 1, case.n - 1))
        return [(x.tensor_split(cuts)[r].clone(),) for r, (x,) in enumerate(found)]

    def run(self, comm, yours, x):
        apart = torch.stack((x, x), 1)[:, 0] if len(x) % 2 and len(x) > 1 else x
        return super().run(comm, yours, apart) | {"given": (apart.contiguous(),)}

    def call(self, comm, yours, x):
        found = yours(comm, x)
        parts = found if isinstance(found, list | tuple) else []
        alias = any(aliased(x, part) for part in parts)
        return {"list": None if alias else found, "alias": alias}

    def wants(self, case, args):
        return [{"the list": [x for (x,) in args]}] * case.n

    def value(self, case, args, rank, name, got, want):
        where, found = f"rank {rank}: ", got["list"]
        if got["alias"]:
            raise Wrong(
                f"{where}x itself is in the list, so that a change of one changes the other: put a copy in."
            )
        typed(found, list | tuple, f"{where}the result", "a list of tensors")
        if len(found) != case.n:
            raise Wrong(f"{where}the list has {len(found)} tensors, and should have {case.n}.")
        for i, chunk in enumerate(found):
            same(chunk, want[i], f"{where}the list[{i}]", partial(self._guess, i, want))

    def _guess(self, i, want, x):
        others = {
            f"That is the x of rank {j}, in the wrong place.": want[j]
            for j in range(len(want))
            if j != i
        }
        zeros = {
            "It is zero: it never arrived, or it arrived somewhere else.": torch.zeros_like(want[i])
        }
        wrong = differ(x, want[i])
        part = f"Its first {int(wrong.int().argmax())} numbers are right: is it cut short?"
        return recognized(x, others | zeros, "", equal) or part

    def cost(self, case, args, outcome):
        n, sizes = case.n, [x.nbytes for (x,) in args]
        one_way(case, outcome, 1, RIGHT)
        for r in range(n if n > 1 else 0):
            least = sum(sizes) - sizes[(r + 1) % n]
            most = least + 8 * (n - 1)
            messages, nbytes = outcome.messages(r), outcome.nbytes(r)
            if messages > 2 * (n - 1):
                raise Costly(
                    f"the numbers are right, but rank {r} sends {messages} messages, and 2(n−1) = {2 * (n - 1)} are "
                    "enough: n−1 with a length and n−1 with numbers."
                )
            if not least <= nbytes <= most:
                raise (Costly if nbytes > most else Wrong)(
                    f"the numbers are right, but rank {r} sends {nbytes} bytes, and should send {least} for the numbers and "
                    f"at most {8 * (n - 1)} for the lengths. Is anything padded to the longest?"
                )


LISTS = (
    ((6,),),
    ((7,),),
    ((), (4,)),
    ((0,), (2,)),
    ((1,),),
    ((2, 3), (5,)),
    ((3, 5), (), (4,)),
    ((0,),),
    ((13,), (1,), (3, 4)),
    ((1000,), (2,)),
)


class RingInPlace(InPlace):
    """Every rank's x is filled with the sum by a ring: 2(n−1) messages, 2(n−1)/n·N bytes a rank."""

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
        few(outcome, most, f"Those are 2(n−1) chunks. {WHOLE}")


class AllReduce(RingInPlace):
    """`all_reduce(comm, tensors)`: fills every tensor of a list with the sum, in place. 2(n−1) messages a rank in all."""

    name = "all_reduce"
    returns = ("the result",)
    right = (
        "n = 1…8, 10 lists and secret lengths, 2(n−1) messages and 2(n−1)/n·N bytes per rank; "
        "then 2, 3 and 4 real processes."
    )
    cases = (
        *(Case(n, f"n = {n}, {listed(s)}", s) for n in RANKS for s in LISTS),
        *(c for c in TensorExam.cases if isinstance(c.given, int)),
    )
    processes = ranked(
        lambda n, s: f"{n} real processes, {listed(s)}",
        ((3, LISTS[1]), (2, LISTS[8]), (4, LISTS[6])),
    )

    def draw(self, case, rng):
        shapes = case.given
        secret = isinstance(shapes, int)
        if secret:
            length = integer(rng, 14, case.given)
            shapes = ((length,), (3, length % 7 + 4), (1,))
        size = sum(math.prod(shape) for shape in shapes)
        flat = tensors((size,), case.n, rng, secret)
        return [(cut(x, shapes),) for x in flat]

    def call(self, comm, yours, listed):
        own = [strided(x) for x in listed]
        held, given = [x.detach() for x in own], list(own)
        yours(comm, given)
        return {"tensors": held, "kept": len(given) == len(own) and all(map(is_, given, own))}

    def wants(self, case, args):
        flat = sum_of([(joined(xs),) for (xs,) in args])
        return [{"the result": cut(flat, [x.shape for x in args[0][0]])}] * case.n

    def value(self, case, args, rank, name, got, want):
        if not got["kept"]:
            raise Wrong(
                f"rank {rank}: the list holds other tensors than before. Write into those that are in it."
            )
        found = got["tensors"]
        for i, x in enumerate(found):
            guess = partial(self._guess, case, i, found, [xs for (xs,) in args], rank)
            same(x, want[i], f"rank {rank}: tensors[{i}]", guess)

    def _guess(self, case, i, found, drawn, rank, got):
        mine = drawn[rank][i]
        if equal(got, mine) and not strided(mine).is_contiguous():
            return COPIED
        flat = [(joined(own),) for own in drawn]
        text = super().mistakes(case, flat, rank, "", joined(found))
        return text or who(got, [own[i] for own in drawn], rank)

    def cost(self, case, args, outcome):
        super().cost(case, [(joined(xs),) for (xs,) in args], outcome)


def joined(xs: list[torch.Tensor]) -> torch.Tensor:
    """All numbers of a list in a row."""
    return torch.cat([x.reshape(-1) for x in xs])


def cut(flat: torch.Tensor, shapes) -> list[torch.Tensor]:
    """Tensors of these shapes, with the numbers of a row one after another."""
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)]


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
    right = "n = 1…8, 14 shapes and secret lengths, n−1 messages per rank, x not changed; then 2, 3 and 4 real processes."

    def wants(self, case, args):
        return [{"the result": sum_of(args)}] * case.n

    def mistakes(self, case, args, rank, name, got):
        return who(got, [x for x, _ in args], rank)

    def cost(self, case, args, outcome):
        times = (1 + len(args[0][1])) * (case.n - 1)
        to_the_right(case, outcome, times, [times * x.nbytes for x, _ in args], "n−1 in each call")


# ------------------------------------------------------------
# Numbers: what a ring costs, and what the usual slips give.


APART = "That is a ring for each tensor: here all of them go around together."


def predict(n=8, size=1_000_000, itemsize=4, alpha=5e-6, beta=1 / 50e9, count=100):
    """For 8 ranks and 1,000,000 float32 numbers in 100 tensors, α = 5 µs, β = 1/(50 GB/s): the cost of an all-reduce.

    messages, nbytes: what each rank sends in a ring of all tensors.  seconds: how long the ring takes.
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
            steps * count: APART,
        },
        "nbytes": {
            ring / itemsize: NUMBERS,
            ring / 2: HALF,
            whole * 2: "Nearly: the factor is 2(n−1)/n.",
            steps
            * whole: "Each message is one chunk, N/n. Or is that what all ranks send together?",
        },
        "naive_nbytes": {
            (n - 1) * size: NUMBERS,
            n * whole: "Rank 0 sends nothing to itself.",
            steps * whole: "That counts what it receives, too: only what it sends is asked for.",
            whole: "That is one message: rank 0 sends one to each of the others.",
        },
        "seconds": {
            ring * beta: "The α of each step is missing.",
            steps * alpha: "The bytes take time, too: β.",
            seconds / 2: HALF,
            count * steps * alpha + ring * beta: APART,
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
