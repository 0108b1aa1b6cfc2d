"""The first exercises of lesson 02, Messages: shift and broadcast; the others are in ring.py.

Each is examined in Worlds of 1 to 5 ranks, with lengths that n does not divide, shorter than n and 0, and
two lengths that nobody knows beforehand; then in real processes.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..compare import equal_to, same, unchanged, who, whole
from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong

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
