"""The exercise of lesson 10 about stage 3: a layer whose weight is in shards, gathered, used and freed, twice.

Looked at: outputs and gradients, live bytes between forward and backward and at the peak, bytes sent.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..buckets.work import timed
from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import cut, serial
from .work import FORBIDDEN, changes, most, now, sent_at_least, sent_at_most

ROWS = 2


class ShardedLinear(Exam):
    name = "sharded_linear"
    right = (
        "n = 1…5, 1 to 6 layers, uneven and empty shards: outputs, gradients of inputs and shards, no weight "
        "kept, 3(n−1)Ψ numbers sent; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            n,
            f"n = {n}, {layers} layer{'s' * (layers > 1)}{' of 3 weights' * small}",
            (layers, small),
        )
        for n, layers, small in (
            (3, 1, False),
            (2, 4, False),
            (1, 2, False),
            (4, 6, False),
            (5, 1, True),
        )
    )
    processes = (Case(3, "3 real processes, 2 layers", (2, False)),)

    def draw(self, case, rng):
        layers, small = case.given
        widths = [3, 1] if small else torch.randint(30, 40, (layers + 1,), generator=rng).tolist()
        weights = [
            torch.randn(b, a, generator=rng, dtype=torch.float64) / 5 for a, b in pairwise(widths)
        ]
        drawn = lambda width: torch.randn(ROWS, width, generator=rng, dtype=torch.float64)
        return [
            (
                [cut(w, case.n)[r] for w in weights],
                [tuple(w.shape) for w in weights],
                drawn(widths[0]),
                drawn(widths[-1]),
            )
            for r in range(case.n)
        ]

    def world(self, n, args):
        return timed(n)

    def run(self, comm: Comm, yours, shards, shapes, x, dy):
        shards, x = [s.clone().requires_grad_() for s in shards], x.clone().requires_grad_()
        for shard in shards:
            shard.grad = torch.ones_like(shard)  # what another backward left: gradients add up
        dy = dy.clone()
        held = now()
        start = changes()
        y = x
        for shard, shape in zip(shards, shapes, strict=True):
            y = yours(comm, y, shard, torch.Size(shape))
            if not isinstance(y, Tensor):
                return {"y": y}
        kept, peak = now(), most(None, start)
        if not y.requires_grad:
            return {"y": y, "cut": True}
        y.backward(dy)
        base = sum(held.values())
        return {
            "y": y.detach(),
            "dx": x.grad,
            "dy": dy,
            "grads": [s.grad for s in shards],
            "kept": sum(kept.values()) - base,
            "peak": max(peak, most(None, start)) - base,
            "metered": bool(held),
        }

    def judge(self, case, args, outcome):
        n, shapes = case.n, args[0][1]
        weights = [
            torch.cat([a[0][i] for a in args]).reshape(shape) for i, shape in enumerate(shapes)
        ]
        runs = [serial(weights, a[2], a[3]) for a in args]
        for r, got in enumerate(outcome.results):
            y, dx, _ = runs[r]
            alike(r, got["y"], y, "the output")
            if not near(got["y"], y):
                raise Wrong(
                    f"rank {r}: the output is wrong. {self._output(got['y'], weights, args[r])}"
                )
            if "cut" in got:
                raise Wrong(
                    f"rank {r}: the output is right, but has no graph: no gradient can come back through it."
                )
            alike(r, got["dx"], dx, "the gradient of x")
            if not near(got["dx"], dx):
                raise Wrong(
                    f"rank {r}: the gradient of x is wrong. It is dy · W, of this rank's own dy, with the "
                    "whole weight, and is not averaged."
                )
            if not got["dy"].equal(args[r][3]):
                raise Wrong(
                    f"rank {r}: the gradient that came into backward was changed. Others read it, too (the "
                    "other branch of x + f(x), for one): divide what is yours."
                )
            for i in range(len(shapes)):
                self._shard(r, i, got["grads"][i], [run[2][i] for run in runs])
        for r, got in enumerate(outcome.results):
            if got["metered"] and n > 1 and not case.given[1]:
                self._memory(r, got, args[r], weights)
        psi = sum(w.nbytes for w in weights)
        sent_at_most(
            outcome,
            3 * (n - 1) * psi,
            "3(n−1)Ψ numbers",
            "A gather in forward, a gather in backward, a "
            "reduce-scatter of the gradient: an all-reduce sends twice as much.",
        )
        sent_at_least(outcome, 3 * (n - 1) * psi, "3(n−1)Ψ numbers")

    def _output(self, got: Tensor, weights: list[Tensor], given: tuple) -> str:
        x, first = given[2], weights[0]
        if len(weights) == 1 and first.shape[0] == first.shape[1] and near(got, x @ first):
            return "It is x·W: as in nn.Linear it should be x·Wᵀ."
        return "It should be x·Wᵀ, of the shards of all ranks put together in rank order."

    def _shard(self, r: int, i: int, got, own: list[Tensor]) -> None:
        n = len(own)
        want = cut(sum(own) / n, n)[r]
        alike(r, got, want, f"the gradient of shard {i}")
        got = got - 1
        if near(got, want):
            return
        looks = {
            "It is as before, nothing was added. Is it returned by backward?": 0 * want,
            "What shard.grad held before is gone: return the gradient, and autograd adds it.": want
            - 1,
            "It is the sum over the ranks: divide by n.": cut(sum(own), n)[r],
            "It is that of this rank's own rows: average it over the ranks.": cut(own[r], n)[r],
            "It is that of this rank's own rows, divided by n.": cut(own[r] / n, n)[r],
        }
        looks |= {
            f"It belongs to shard {s}: rank r owns the r-th part.": cut(sum(own) / n, n)[s]
            for s in range(n)
        }
        text = next(
            (text for text, x in looks.items() if near(got, x)),
            "It should be this rank's part of the mean of "
            "dyᵀ·x over the ranks, in the order of the weight's own numbers.",
        )
        raise Wrong(f"rank {r}: the gradient of shard {i} is wrong. {text}")

    def _memory(self, r: int, got: dict, given: tuple, weights: list[Tensor]) -> None:
        rows = sum(ROWS * 8 * w.shape[0] for w in weights)
        largest = max(w.nbytes for w in weights)
        said = f"the numbers are right, but rank {r} holds"
        if got["kept"] > 3 * rows + largest // 4:
            raise Wrong(
                f"{said} {got['kept']:,} bytes more when forward has ended, and its outputs have {rows:,}: "
                "whole weights are kept for backward. Save the shard, and gather again."
            )
        most_ = 3 * rows + sum(s.nbytes for s in given[0]) + 5 * largest
        if got["peak"] > most_:
            raise Wrong(
                f"{said} {got['peak']:,} bytes more at the peak, and {most_:,} are plenty: is every layer's "
                "whole weight, or whole gradient, kept after its use?"
            )


def sharded_linear(yours) -> None:
    """`sharded_linear(comm, x, shard, shape)`: x·Wᵀ, of a weight that is gathered in forward and in backward."""
    ask(ShardedLinear(), yours)
