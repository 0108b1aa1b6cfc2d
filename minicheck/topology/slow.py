"""The exercise of lesson 03 about the one rank that all others wait for: find it in the trace of a run.

The runs are made here, in Worlds of a cluster with one slow rank and some noise; the answer sees their messages only.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm
from minidist.comm.cluster import Cluster
from minidist.comm.trace import Message, Trace
from minidist.comm.world.world import World

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong

NOISE = 0.05  # spread of the times of messages
SLOWER = (1.5, 4.0)  # times as long, the slow rank


def ring(comm: Comm, x) -> None:
    """The messages of a ring all-reduce."""
    n, r = comm.size, comm.rank
    chunks = x.tensor_split(n)
    for step in range(2 * (n - 1)):
        out, into = chunks[(r - 1 - step) % n], chunks[(r - 2 - step) % n]
        comm.sendrecv(out, (r + 1) % n, torch.empty_like(into), (r - 1) % n)


def pairs(comm: Comm, x) -> None:
    """The messages of an all-to-all: with everyone, one after the other."""
    for k in range(1, comm.size):
        comm.sendrecv(
            x, (comm.rank + k) % comm.size, torch.empty_like(x), (comm.rank - k) % comm.size
        )


def busy(comm: Comm, x, two: list[int]) -> None:
    """Two ranks exchange far more than all others: who has the most to do need not be slow."""
    if comm.rank in two:
        other = two[comm.rank == two[0]]
        for _ in range(10):
            comm.sendrecv(x, other, torch.empty_like(x), other)


def program(comm: Comm, name: str, two: list[int], sizes: list[int]) -> None:
    """All-reduces or all-to-alls of the sizes, among which two ranks are busy with something else."""
    for size in sizes:
        busy(comm, torch.empty(10**7, dtype=torch.uint8, device=comm.device), two)
        {"all-reduce": ring, "all-to-all": pairs}[name](
            comm, torch.empty(size, dtype=torch.uint8, device=comm.device)
        )


class FindSlow(Exam):
    name = "find_slow"
    right = (
        "4 to 9 ranks, all-reduces and all-to-alls, any rank slow, by 1.5 to 4 times, with noise."
    )
    # In a ring two ranks send slow messages only: to guess right in all of so many cases is one chance in 8,000.
    cases = tuple(
        Case(1, f"{n} ranks, {name}", (n, name))
        for name, ns in {
            "all-reduce": (4, *range(5, 11), *range(5, 11)),
            "all-to-all": (5, 4, 8),
        }.items()
        for n in ns
    )

    def draw(self, case, rng):
        (n, name), (low, high) = case.given, SLOWER
        self.slow, seed = [int(torch.randint(most, (), generator=rng)) for most in (n, 2**31)]
        self.factor = low + (high - low) * float(torch.rand((), generator=rng))
        # no neighbours of the slow one
        first = self.slow + 2 + int(torch.randint(max(1, n - 4), (), generator=rng))
        two = [first % n, (first + 1) % n] if n > 4 else []
        sizes = [int(torch.randint(10**5, 10**7, (), generator=rng)) for _ in range(3)]
        cluster = (
            Cluster.uniform(n, 5e-6, 1 / 50e9).slow_rank(self.slow, self.factor).jitter(NOISE, seed)
        )
        world = World(n, cluster=cluster, device="meta")
        world.run(program, name, two, sizes)
        return [(n, [tuple(m)[:6] for m in world.trace])]

    def run(self, comm: Comm, yours, n, rows):
        trace = Trace(n)
        for row in rows:
            trace.add(*row)
        return yours(trace)

    def judge(self, case, args, outcome):
        got, (n, rows) = outcome.results[0], args[0]
        if got is None:
            raise Wrong("it returns None. Is there a `return`?")
        if isinstance(got, bool) or not isinstance(got, int):
            kind = kind_of(got)
            raise Wrong(f"the number of a rank is asked for, an int, and this is of type {kind}.")
        if not 0 <= got < n:
            raise Wrong(f"there is no rank {got}: there are {n} ranks, 0 to {n - 1}.")
        if got != self.slow:
            raise Wrong(
                f"rank {got} is not slow, rank {self.slow} is: its messages take {self.factor:.2g} times as "
                f"long. {self._why(got, [Message(*row, None, 'main') for row in rows])}"
            )

    def _why(self, got: int, messages: list[Message]) -> str:
        mine = [m for m in messages if got in (m.src, m.dst)]
        ranks = {m.src for m in messages}
        most = max(ranks, key=lambda r: sum(m.nbytes for m in messages if r in (m.src, m.dst)))
        if got == most:
            return f"Rank {got} has the most bytes to send: compare seconds per byte."
        apart = [m for m in mine if self.slow not in (m.src, m.dst)]
        if len(apart) < len(mine):
            return (
                f"What rank {got} exchanges with others than rank {self.slow} is as fast as can be."
            )
        return "In a slow rank's messages each byte takes longer, in those that it sends and those that it receives."


def find_slow(yours) -> None:
    """`find_slow(trace)`: the rank whose messages take longer than the others'."""
    ask(FindSlow(), yours)
