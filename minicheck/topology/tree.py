"""The exercises of lesson 03, Topology and cost, about the shape of a broadcast: a tree, and a pipeline with a bug.

Their World has α = 0 and β = 1 s a byte, so its clock counts: a message of N bytes takes N seconds, a rank sends
one at a time and receives one at a time. A broadcast in k rounds of whole tensors takes k·N seconds, however it is
written: Thakur, Rabenseifner and Gropp 2005, on broadcast.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm
from minidist.comm.world.world import World

from ..compare import same, who
from ..exam import Case, Exam, Outcome, ask
from ..messages.point import DTYPES, numbers, words
from ..wrong import Wrong

# first what can be wrong and be drawn, then where trees go wrong
RANKS = (4, 2, 3, 1, 5, 8, 7, 13, 16)
SHAPES = ((4,), (), (0,), (13,), (2, 3))
SET = "An answer leaves the clock alone."


def rounds(outcome: Outcome, nbytes: int) -> float | None:
    """How many messages of `nbytes`, one after the other, a case took; None where no clock says so."""
    return outcome.time / nbytes if outcome.time is not None and nbytes else None


class ByteClock(Exam):
    """An examination in a World whose clock counts bytes."""

    def world(self, n, args):
        return World(n, alpha=0.0, beta=1.0)


class TreeBroadcast(ByteClock):
    name = "tree_broadcast"
    right = "n = 1…16, every root, n−1 messages, ⌈log2 n⌉ rounds; then 2, 3 and 5 real processes."
    # Each n with three roots, then each shape: all n with all shapes would take five times as long, and tell no more.
    cases = (
        *(
            Case(n, f"n = {n}, root {root}, {words(s)}", (s, root))
            for n, s, root in [
                *(
                    (n, SHAPES[0], root)
                    for n in RANKS
                    for root in dict.fromkeys((0, n - 1, n // 2))
                ),
                *((n, s, root) for s in SHAPES[1:] for n, root in ((4, 0), (5, 4), (16, 8))),
            ]
        ),
        *(
            Case(n, f"n = {n}, root, length drawn at random", ((100, 400), None))
            for n in (6, 11, 12)
        ),
    )
    processes = tuple(
        Case(n, f"{n} real processes, root {root}, {words(s)}", (s, root))
        for n, root, s in ((3, 1, (7,)), (2, 1, (5,)), (5, 2, (3, 5)))
    )

    def draw(self, case, rng):
        shape, root = case.given
        if root is None:
            low, most = shape
            shape, root = [
                int(torch.randint(*of, (), generator=rng)) for of in ((low, most), (1, case.n))
            ]
        dtype = DTYPES[int(torch.randint(3, (), generator=rng))]
        return [
            (numbers(shape if isinstance(shape, tuple) else (shape,), dtype, rng), root)
            for _ in range(case.n)
        ]

    def run(self, comm: Comm, yours, x, root):
        held = x.detach()
        yours(comm, x, root)
        return held

    def judge(self, case, args, outcome):
        n, xs, (_, root) = case.n, [x for x, _ in args], args[0]
        for r, x in enumerate(outcome.results):
            same(r, x, xs[root], "x", lambda x, r=r: self._guess(x, xs, r, root))
        nbytes, least = xs[0].nbytes, (n - 1).bit_length()
        if (outcome.messages(), outcome.nbytes()) != (n - 1, (n - 1) * nbytes) and (
            nbytes or outcome.messages()
        ):
            raise Wrong(
                f"the numbers are right, but {outcome.messages()} messages with {outcome.nbytes()} bytes were "
                f"sent: n−1 = {n - 1} with {(n - 1) * nbytes} bytes are enough, one to each rank that has "
                "nothing yet."
            )
        took = rounds(outcome, nbytes)
        if took is not None and took < least:
            raise Wrong(
                f"the World's clock says {took:g} rounds, and {least} is the least there can be. {SET}"
            )
        if took is not None and took > least:
            raise Wrong(
                f"the numbers are right, but it takes {took:g} rounds: {least} are enough for {n} ranks. "
                f"{shape_of(outcome, n, root)}"
            )

    def _guess(self, x, xs: list, r: int, root: int) -> str | None:
        if x.equal(xs[r]):
            return f"It is rank {r}'s own, as before: nothing arrived from root {root}."
        return who(x, xs, r) if len(xs) < 9 else f"It is not root {root}'s."


def shape_of(outcome: Outcome, n: int, root: int) -> str:
    """What kind of broadcast it was, and what is slow about it."""
    sends = [outcome.messages(r) for r in range(n)]
    if sends[root] == n - 1:
        return f"Root {root} does all the work, while those who have it already are idle: let them send, too."
    if max(sends) == 1:
        return "It is a chain: each passes it on once, and is idle then. Who has it should go on sending."
    if sends[root] < (n - 1).bit_length() and n & (n - 1) == 0:
        return f"Root {root} sends {sends[root]} and is idle then. In every round, all who have it send."
    return "It is a tree, but not all who have it send in every round. Serve the largest part of the tree first."


class Pipeline(ByteClock):
    name = "pipeline"
    right = "n = 1…8, 1 to 32 pieces, n−2+pieces steps; then 2 and 3 real processes."
    cases = (
        *(
            Case(n, f"n = {n}, {pieces} pieces of {size} numbers", (size * pieces, pieces))
            for n, pieces, size in (
                (4, 8, 2),
                (2, 4, 3),
                (1, 2, 2),
                (3, 1, 5),
                (3, 2, 4),
                (8, 32, 1),
                (5, 5, 7),
            )
        ),
        *(
            Case(n, f"n = {n}, {pieces} pieces, {size} numbers", (size, pieces))
            for n, pieces, size in ((3, 4, 7), (4, 3, 2), (2, 2, 0), (4, 6, 41))
        ),
        *(Case(n, f"n = {n}, numbers and pieces drawn at random", None) for n in (3, 6)),
    )
    processes = tuple(
        Case(n, f"{n} real processes, 4 pieces, {size} numbers", (size, 4))
        for n, size in ((3, 11), (2, 8))
    )

    def draw(self, case, rng):
        size, pieces = case.given or [
            int(torch.randint(1, most, (), generator=rng)) for most in (100, 12)
        ]
        dtype = DTYPES[int(torch.randint(3, (), generator=rng))]
        return [(numbers((size,), dtype, rng), pieces) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x, pieces):
        held = x.detach()
        yours(comm, x, pieces)
        return held

    def judge(self, case, args, outcome):
        n, xs, (_, pieces) = case.n, [x for x, _ in args], args[0]
        for r, x in enumerate(outcome.results):
            same(r, x, xs[0], "x", lambda x, r=r: self._guess(x, xs, r, pieces))
        for r in range(n - 1):
            if outcome.receivers(r) not in ([r + 1], []):
                raise Wrong(
                    f"the numbers are right, but rank {r} sends to {outcome.receivers(r)}: in a chain it "
                    f"sends to rank {r + 1} only."
                )
            if outcome.messages(r) != pieces or outcome.nbytes(r) != xs[0].nbytes:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages with "
                    f"{outcome.nbytes(r)} bytes, and should send {pieces} pieces, {xs[0].nbytes} bytes "
                    "together."
                )
        self._in_time(
            n, pieces, xs[0].nbytes, -(-xs[0].numel() // pieces) * xs[0].element_size(), outcome
        )

    def _in_time(self, n: int, pieces: int, whole: int, piece: int, outcome: Outcome) -> None:
        took, least = rounds(outcome, piece), n - 2 + pieces
        if took is None or n == 1:
            return
        if outcome.time < whole:
            raise Wrong(
                f"the World's clock says {outcome.time:g} s, and {whole} bytes take longer. {SET}"
            )
        if took <= least:
            return
        text = f"the numbers are right, but it takes {took:g} steps of a piece each: n−2+pieces = {least} are enough."
        if took > (n - 1) * pieces - 1:
            raise Wrong(f"{text} Each rank waits for the last piece before it passes on the first.")
        raise Wrong(
            f"{text} A rank has a wire out and a wire in: while one piece leaves, the next can arrive."
        )

    def _guess(self, x, xs: list, r: int, pieces: int) -> str | None:
        mine, right, before = (t.reshape(-1).tensor_split(pieces) for t in (x, xs[0], xs[r]))
        for i, piece in enumerate(mine):
            if not piece.equal(right[i]):
                if any(piece.equal(x.reshape(-1).tensor_split(pieces)[i]) for x in xs[1:r]):
                    return f"Piece {i} of {pieces} was passed on before the root's had arrived."
                if piece.equal(before[i]):
                    return f"Piece {i} of {pieces} is as before: it never arrived, or not into x."
                there = [
                    f"Piece {i} is the root's piece {j}, in the wrong place."
                    for j in range(pieces)
                    if piece.equal(right[j])
                ]
                return there[0] if there else None
        return None


def tree_broadcast(yours) -> None:
    """`tree_broadcast(comm, x, root)`: fills every rank's x with the root's. n−1 messages, ⌈log2 n⌉ rounds."""
    ask(TreeBroadcast(), yours)


def pipeline(yours) -> None:
    """`pipeline(comm, x, pieces)`: rank 0's x on every rank, along a chain, in n−2+pieces steps of a piece each."""
    ask(Pipeline(), yours)
