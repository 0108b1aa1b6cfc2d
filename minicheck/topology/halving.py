"""The exercise of lesson 03 about recursive halving and doubling: few messages and few bytes at once.

2·log2 n messages and 2(n−1)/n·N bytes a rank: Thakur, Rabenseifner and Gropp 2005, on all-reduce.
"""

from __future__ import annotations

from itertools import product

import torch

from minidist.comm.base import Comm

from ..compare import alike, same, who
from ..exam import Case, Exam, Outcome, ask
from ..messages.point import DTYPES, numbers, rounded, words
from ..wrong import Wrong

RANKS = (4, 2, 8, 1, 16)
SHAPES = ((8,), (16,), (), (1,), (0,), (3,), (13,), (4, 6), (1000,))


class HalvingDoubling(Exam):
    name = "halving_doubling"
    right = (
        "n = 1…16, 9 shapes and secret lengths, 2·log2 n messages and 2(n−1)/n·N bytes a rank; "
        "then 2 and 4 real processes."
    )
    cases = (
        *(
            Case(n, f"n = {n}, {words(s)}", s)
            for n in RANKS
            for s in SHAPES[:: 1 if n in (4, 2, 8) else 4]
        ),
        *(Case(n, f"n = {n}, a length drawn at random", None) for n in (4, 8)),
    )
    processes = tuple(
        Case(n, f"{n} real processes, {words(s)}", s)
        for n, s in ((4, (12,)), (2, (5,)), (4, (3, 3)))
    )

    def draw(self, case, rng):
        shape = (
            (int(torch.randint(100, 3000, (), generator=rng)),)
            if case.given is None
            else case.given
        )
        dtype = DTYPES[int(torch.randint(3, (), generator=rng))]
        return [(numbers(shape, dtype, rng),) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x):
        held = x.detach()
        yours(comm, x)
        return held

    def judge(self, case, args, outcome):
        xs = [x for (x,) in args]
        total = sum(xs[1:], xs[0])
        for r, x in enumerate(outcome.results):
            alike(r, x, total, "x")
            same(r, x, total, "x", lambda x, r=r: self._guess(x, xs, total, r))
        self._cost(case.n, xs[0], outcome)

    def _cost(self, n: int, x, outcome: Outcome) -> None:
        steps = n.bit_length() - 1
        halves = [-(-x.numel() // 2**k) * x.element_size() for k in range(1, steps + 1)]
        most = 2 * sum(halves)
        for r in range(n):
            sent, nbytes = outcome.messages(r), outcome.nbytes(r)
            if nbytes > most:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {nbytes} bytes, and {most} are enough. "
                    "In the first half what a rank sends should be halved in every step."
                )
            if sent != 2 * steps and (x.numel() or sent > 2 * steps):
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {sent} messages: 2·log2 n = {2 * steps} is "
                    f"what is asked for.{_ring(outcome, r, n)}"
                )

    def _guess(self, x, xs: list, total, r: int) -> str | None:
        """The parts that are wrong, at the finest cut at which one of them has a simple cause."""
        n = len(xs)
        if text := rounded(x, total):
            return text
        for cut in sorted({1, 2, n}):
            parts = [
                [t.reshape(-1).tensor_split(cut)[i] for t in (x, total, *xs)] for i in range(cut)
            ]
            wrong = [i for i in range(cut) if not parts[i][0].equal(parts[i][1])]
            mine, _, *own = parts[wrong[0]]
            if text := (who(mine, own, r) or _times(mine, own)) if n < 9 else _few(mine, own, r):
                return f"Of {cut} parts, part {wrong[0]}: {text}" if cut > 1 else text
        return "Some parts have the wrong sum: do both partners cut the same part of x, and keep different halves?"


def _few(mine, own: list, r: int) -> str | None:
    """What `who` says, without trying all combinations of many ranks."""
    return f"It is rank {r}'s own, as before." if mine.numel() and mine.equal(own[r]) else None


def _times(mine, own: list) -> str | None:
    """How often each rank counts, where it is up to 4 times; of 4 ranks at most."""
    if not mine.numel() or len(own) > 4:
        return None
    for times in product(range(5), repeat=len(own)):
        if mine.double().equal(sum(t * x.double() for t, x in zip(times, own))):
            return f"It counts the ranks {', '.join(map(str, times[:-1]))} and {times[-1]} times."
    return None


def _ring(outcome: Outcome, r: int, n: int) -> str:
    return (
        " Is it a ring?" if n > 2 and outcome.receivers(r) in ([(r + 1) % n], [(r - 1) % n]) else ""
    )


def halving_doubling(yours) -> None:
    """`halving_doubling(comm, x)`: fills every rank's x with the sum; n is a power of 2. 2·log2 n messages a rank."""
    ask(HalvingDoubling(), yours)
