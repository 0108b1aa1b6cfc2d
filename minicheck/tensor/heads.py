"""The exercise of lesson 11 about taking a fused qkv weight apart by heads."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..compare import alike, equal_to, unchanged
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .through import FORBIDDEN


class MyHeads(Exam):
    name = "my_heads"
    right = "n = 1…6, 1 to 4 heads a rank, weights and biases; uneven ones refused; then 3 real processes."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {heads} heads of size {size}{', a bias' * bias}", (heads, size, bias))
        for n, heads, size, bias in (
            (2, 4, 2, 0),
            (3, 3, 1, 0),
            (2, 4, 3, 1),
            (3, 6, 4, 0),
            (1, 2, 2, 0),
            (6, 6, 2, 1),
            (4, 16, 1, 0),
            (4, 6, 2, 0),
            (3, 4, 3, 0),
        )
    )
    processes = (Case(3, "3 real processes, 6 heads of size 2", (6, 2, 0)),)

    def draw(self, case, rng):
        heads, size, bias = case.given
        rows = torch.randperm(3 * heads * size, generator=rng).double()
        x = rows if bias else rows[:, None] * 1000 + torch.arange(heads * size)
        return [(x, heads)] * case.n

    def run(self, comm, yours, x, heads):
        try:
            mine = yours(x, heads, comm)
        except ValueError as error:
            if heads % comm.size == 0:
                raise
            return {"refused": str(error)}
        storages = [t.untyped_storage() for t in (mine, x) if isinstance(t, Tensor)]
        shared = len({s.data_ptr() for s in storages}) < 2
        return {"mine": mine, "x": x, "held": storages[0].nbytes(), "shared": shared}

    def judge(self, case, args, outcome):
        (x, heads), n = args[0], case.n
        for r, got in enumerate(outcome.results):
            if heads % n:
                self._refused(r, got, heads, n)
                continue
            unchanged(r, got["x"], x, "the weight")
            parts = [self._part(x, heads, n, s) for s in range(n)]
            alike(r, got["mine"], parts[r], "your part")
            if not got["mine"].equal(parts[r]):
                look = equal_to(got["mine"], self._looks(x, heads, n, r, parts)) or self._rule(
                    heads, n, r
                )
                raise Wrong(
                    f"rank {r}: these are other rows than those of this rank's heads. {look}"
                )
            if got["shared"] and n == 1:
                raise Wrong(
                    "rank 0: the rows are right, but they are those of the weight itself: who changes them, "
                    "changes it. Give back a copy, on one rank, too."
                )
            if got["held"] > parts[r].nbytes:
                raise Wrong(
                    f"rank {r}: the rows are right, but they are a view: {got['held']} bytes stay in memory "
                    f"for {parts[r].nbytes}. Give back a copy, so that the whole can be freed."
                )
        if outcome.messages():
            raise Wrong(
                "the rows are right, but messages are sent: every rank has the whole weight."
            )

    def _part(self, x: Tensor, heads: int, n: int, r: int) -> Tensor:
        each, size = heads // n, len(x) // 3 // heads
        return torch.cat([third[r * each * size : (r + 1) * each * size] for third in x.chunk(3)])

    def _rule(self, heads: int, n: int, r: int) -> str:
        each = heads // n
        last = f" to {(r + 1) * each - 1}" * (each > 1)
        which = f"heads {r * each}{last}" if each > 1 else f"head {r}"
        return f"Rank {r} has of Q, then of K, then of V the rows of {which}, in this order."

    def _looks(
        self, x: Tensor, heads: int, n: int, r: int, parts: list[Tensor]
    ) -> dict[str, Tensor]:
        rest, each = x.shape[1:], heads // n
        fused, thirds = x.view(3, heads, -1, *rest), x.chunk(3)
        by_head = fused[:, r * each : (r + 1) * each]
        return {
            f"It is the {r}-th of n equal pieces of all 3H rows: of Q, K and V together, not of each. With three ranks "
            "rank 0 would have all queries, and no key.": x.chunk(n)[r],
            "The rows are right, in another order: first all of Q, then of K, then of V.": by_head.transpose(
                0, 1
            ).reshape(-1, *rest),
            "The order is not Q, K, V.": torch.cat([*reversed(parts[r].chunk(3))]),
            f"It has heads {r}, {r + n}, …: a rank's heads lie together.": fused[:, r::n].reshape(
                -1, *rest
            ),
            "The rows of a head lie together; these are dealt out one by one.": torch.cat(
                [third[r::n] for third in thirds]
            ),
            "The weight is read as if one head's q, k and v lay together: they do not, first comes all of Q.": x.view(
                heads, -1, *rest
            )[r * each : (r + 1) * each].reshape(-1, *rest),
        } | {f"It is rank {s}'s part.": parts[s] for s in range(n) if s != r}

    def _refused(self, rank: int, got: dict, heads: int, n: int) -> None:
        if "refused" not in got:
            raise Wrong(
                f"rank {rank}: {heads} heads cannot be dealt out evenly to {n} ranks: raise a ValueError."
            )
        if missing := [k for k in (heads, n) if str(k) not in re.findall(r"\d+", got["refused"])]:
            raise Wrong(
                f"rank {rank}: the ValueError says {got['refused']!r}. Whoever reads it needs both numbers, "
                f"and {missing[0]} is not in it."
            )


def my_heads(yours) -> None:
    """`my_heads(weight, heads, comm)`: this rank's rows of a weight [Q; K; V]."""
    ask(MyHeads(), yours)
