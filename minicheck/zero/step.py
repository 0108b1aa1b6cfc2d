"""The exercise of lesson 10 about stage 1: a step in which each rank keeps the optimizer's states of its part.

Looked at: all weights on all ranks, bytes of optimizer states and of all else (by the meter of the World), bytes sent.
Each rank's optimizer has a rate of its own. So the owner's step alone is right: whoever steps all parameters on every
rank gives other weights, wherever the states are hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..buckets.work import timed
from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .work import FORBIDDEN, STEPS, Adam, now, sent_at_least, sent_at_most


class Sharded(Exam):
    name = "sharded"
    right = (
        "n = 1…4, uneven parts, a rank that owns nothing: Adam's serial weights on all ranks, states of the own "
        "part alone, 2(n−1)Ψ numbers sent a step; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, owners {owner}", owner)
        for n, owner in (
            (3, [0, 1, 2, 2, 1, 0]),
            (2, [1, 0, 0, 1]),
            (4, [0, 1, 2, 3, 3, 2, 1]),
            (3, [0, 2, 0, 2, 2]),
            (1, [0, 0, 0]),
        )
    )
    processes = (Case(3, "3 real processes", [2, 0, 1, 1]),)

    def draw(self, case, rng):
        draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        shapes = [
            (draw(20, 30), draw(20, 30)) if i % 3 else (draw(400, 600),)
            for i in range(len(case.given))
        ]
        drawn = lambda: [torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes]
        values = drawn()
        rates = (
            0.03
            + 0.02 * torch.randperm(case.n, generator=rng)
            + 0.01 * torch.rand(case.n, generator=rng)
        )
        return [
            (values, list(case.given), [drawn() for _ in range(STEPS)], rate)
            for rate in rates.tolist()
        ]

    def world(self, n, args):
        return timed(n)

    def run(self, comm: Comm, yours, values, owner, grads, rate):
        params = [v.clone().requires_grad_() for v in values]
        before, made = now(), []

        def optimizer(some):
            made.append(Adam(some, rate))
            return made[-1]

        step = yours(comm, params, list(owner), optimizer)
        if not callable(step):
            return {"step": "None" if step is None else type(step).__name__}
        for mine in grads:
            for p, g in zip(params, mine, strict=True):
                p.grad = g.clone()
            step()
        for p in params:
            p.grad = None
        after = now()
        return {
            "params": [p.detach() for p in params],
            "states": sum(one.nbytes for one in made),
            "more": sum(after.values()) - sum(before.values()),
            "metered": bool(after),
        }

    def judge(self, case, args, outcome):
        values, owner, *_ = args[0]
        mine = [[v for v, o in zip(values, owner, strict=True) if o == r] for r in range(case.n)]
        for r, got in enumerate(outcome.results):
            if "step" in got:
                raise Wrong(f"it returns {got['step']}, and should return a function: step().")
            self._too_many(r, got["states"], mine[r])
        means = [
            [sum(a[2][k][i] for a in args) / case.n for i in range(len(values))]
            for k in range(STEPS)
        ]
        want = oracle.stepped(values, means, STEPS, [args[o][3] for o in owner])
        looks = self._looks(args, values, means)
        for r, got in enumerate(outcome.results):
            for i, right in enumerate(want):
                self._weight(r, i, got["params"][i], right, owner[i], looks(r, i))
                if not got["params"][i].equal(outcome.results[0]["params"][i]):
                    raise Wrong(
                        f"params[{i}] is right but for rounding, which differs on rank 0 and rank {r}."
                    )
        psi = sum(v.nbytes for v in values)
        for r, got in enumerate(outcome.results):
            self._memory(r, got, mine[r], psi)
        said = f"{STEPS} steps, 2(n−1)Ψ numbers each,"
        sent_at_most(
            outcome,
            2 * (case.n - 1) * psi * STEPS,
            said,
            "A gradient is needed at its owner alone: a flat "
            "buffer in the order of the owners, a reduce-scatter and an all-gather.",
        )
        sent_at_least(outcome, 2 * (case.n - 1) * psi * STEPS, said)

    def _looks(self, args, values, means):
        rates = [args[o][3] for o in args[0][1]]
        summed = oracle.stepped(
            values, [[g * len(args) for g in some] for some in means], STEPS, rates
        )
        once = oracle.stepped(values, means, 1, rates)
        own = [oracle.stepped(values, a[2], STEPS, rates) for a in args]
        here = [oracle.stepped(values, means, STEPS, [a[3]] * len(values)) for a in args]
        return lambda r, i: {
            "It is as it was at the start: does its owner step it, and pass it on?": values[i],
            "It is that of this rank's own gradients: average them at the owner.": own[r][i],
            "It is that of one step.": once[i],
            "It is that of summed gradients: divide by n.": summed[i],
            **{
                f"It was stepped with rank {s}'s rate: the owner steps it, with the optimizer that is given there, and "
                "passes it on.": w[i]
                for s, w in enumerate(here)
            },
            **{
                f"It is that of rank {s}'s own gradients: average them at the owner.": w[i]
                for s, w in enumerate(own)
            },
        }

    def _weight(
        self, r: int, i: int, got, want: Tensor, owner: int, looks: dict[str, Tensor]
    ) -> None:
        alike(r, got, want, f"params[{i}]")
        if near(got, want):
            return
        hint = next(
            (text for text, x in looks.items() if near(got, x)),
            "Is it this parameter's own place in the flat "
            "buffer? Are gradients laid out like the parameters, in the order of their owners?",
        )
        raise Wrong(
            f"rank {r}: params[{i}], which rank {owner} owns, has not the serial weights after {STEPS} steps. "
            f"{hint}"
        )

    def _too_many(self, r: int, states: int, mine: list[Tensor]) -> None:
        own = 2 * sum(v.nbytes for v in mine)
        if states > own:
            raise Wrong(
                f"rank {r} holds {states:,} bytes of optimizer states, and its own part needs {own:,}: give "
                "the optimizer what this rank owns, and no more."
            )

    def _memory(self, r: int, got: dict, mine: list[Tensor], psi: int) -> None:
        own = 2 * sum(v.nbytes for v in mine)
        if got["states"] < own:
            raise Wrong(
                f"the weights are right, but rank {r} holds {got['states']:,} bytes of optimizer states, and "
                f"{own:,} are needed: use the optimizer that is given, one for all steps."
            )
        if got["metered"] and got["more"] > own + psi // 4 + 1000:
            raise Wrong(
                f"the weights are right, but after the last step rank {r} holds {got['more']:,} bytes more "
                f"than at the start, and {own:,} are its states. What else is kept? Parameters should be views "
                "of the flat buffer, and gradients of a step are not needed after it."
            )


def sharded(yours) -> None:
    """`sharded(comm, params, owner, optimizer)`: returns step(), Adam with its states at the owners."""
    ask(Sharded(), yours)
