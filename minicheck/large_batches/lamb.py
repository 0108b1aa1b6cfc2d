"""The exercise of lesson 17 about LAMB where each rank has a piece of every parameter: norms are those of the whole.

Looked at: weights and moments after every step, and what is sent: two numbers a parameter, in one all-reduce.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.split import uneven

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .lars import same

LISTS = {"weights": "w", "means": "m", "squares": "v"}


class LambStep(Exam):
    name = "lamb_step"
    right = "n = 1…5, 1 to 3 steps, uneven and empty pieces, plain ones, lengths of 0, one all-reduce; 3 processes."
    forbidden = oracle.FORBIDDEN
    # steps, numbers, plain, zeros, decay
    cases = tuple(
        Case(n, f"n = {n}, {what}", given)
        for n, what, given in (
            (1, "one step", (1, (12, 7), (False, True), None, 0.1)),
            (3, "one step", (1, (12, 7, 10), (False, True, False), None, 0.1)),
            (2, "3 steps", (3, (9, 4, 5), (False, False, True), None, 0.1)),
            (4, "pieces that are empty", (2, (3, 11, 2), (False, False, True), None, 0.1)),
            (3, "weights that are 0", (1, (6, 8), (False, False), "weights", 0.1)),
            (
                2,
                "no decay, a gradient that is 0",
                (2, (6, 30, 25, 40), (False, True, False, False), "gradients", 0.0),
            ),
            (5, "12 parameters", (3, tuple(range(5, 17)), (False, True, False) * 4, None, 0.1)),
        )
    )
    processes = (Case(3, "3 real processes", (2, (7, 10), (False, True), None, 0.1)),)

    def draw(self, case, rng):
        steps, numbers, plain, zero, decay = case.given
        drawn = lambda what: [
            torch.randn(k, generator=rng, dtype=torch.float64)
            * (2 + 5 * i)
            * (i > 0 or what != zero)
            for i, k in enumerate(numbers)
        ]
        cut = lambda some: [
            [x.split(uneven(len(x), case.n))[r].clone() for x in some] for r in range(case.n)
        ]
        own = [[], *(cut(drawn("gradients")) for _ in range(steps))]
        lr, one, two = torch.rand(3, generator=rng, dtype=torch.float64).tolist()
        weights, how = (
            cut(drawn("weights")),
            (0.02 + lr / 20, (0.7 + one / 5, 0.9 + two / 20), 1e-3 * (1 + lr), decay),
        )
        return [
            (weights[r], [step[r] for step in own[1:]], list(plain), *how) for r in range(case.n)
        ]

    def run(self, comm: Comm, yours, weights, grads, plain, lr, betas, eps, decay):
        means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        kept, found = (weights, means, squares), []
        for k, step in enumerate(grads):
            given = [g.clone() for g in step]
            # of the same memory
            mine, mine_m, mine_v = ([x.detach() for x in some] for some in kept)
            yours(
                comm, mine, given, mine_m, mine_v, list(plain), k + 1, lr, tuple(betas), eps, decay
            )
            after = {
                name: [x.clone() for x in some] for name, some in zip(LISTS, kept, strict=True)
            }
            found.append(after | {"g": given})
        return found

    def judge(self, case, args, outcome):
        n, (_, grads, plain, *how) = case.n, args[0]
        whole = lambda pick: [torch.cat([pick(a)[i] for a in args]) for i in range(len(plain))]
        weights = whole(lambda a: a[0])
        steps = [whole(lambda a, k=k: a[1][k]) for k in range(len(grads))]

        def stepped(slip: str, k: int) -> oracle.Lamb:
            one = oracle.Lamb(weights, plain, n, slip)
            for t, step in enumerate(steps[: k + 1]):
                one.step(step, t + 1, *how)
            return one

        for k in range(len(grads)):
            for r, results in enumerate(outcome.results):
                self._rank(case, r, k, results[k], args[r], stepped)
        self._sent(case, outcome, len(grads), len(plain))

    def _rank(self, case, r, k, got, given, stepped) -> None:
        right = stepped("", k)
        where = f"rank {r}, step {k + 1}: "
        for i, g in enumerate(given[1][k]):
            if not isinstance(got["g"][i], Tensor) or not got["g"][i].equal(g):
                raise Wrong(f"{where}grads[{i}] was changed, and belongs to the caller.")
        for name in ("means", "squares", "weights"):
            for i, want in enumerate(getattr(right, LISTS[name])):
                piece = lambda x: x.split(uneven(len(x), case.n))[r]
                x = got[name][i]
                if (
                    not isinstance(x, Tensor)
                    or x.shape != piece(want).shape
                    or x.dtype != want.dtype
                ):
                    raise Wrong(f"{where}{name}[{i}] is no longer a tensor of its shape and dtype.")
                if same(x, piece(want)):
                    continue
                hint = next(
                    (
                        text
                        for slip, text in oracle.LAMB_SLIPS.items()
                        if same(x, piece(getattr(stepped(slip, k), LISTS[name])[i]))
                    ),
                    None,
                )
                raise Wrong(
                    f"{where}{name}[{i}] ({'plain' if given[2][i] else 'not plain'}) is wrong. "
                    f"{hint or self._rule(name, x, given[0][i])}"
                )

    def _rule(self, name: str, x: Tensor, before: Tensor) -> str:
        if not x.any() or (name == "weights" and x.equal(before)):
            return "It is as it was at the start: write in place, into the tensors that are given."
        return {
            "means": "m ← β₁m + (1 − β₁)g.",
            "squares": "v ← β₂v + (1 − β₂)g².",
            "weights": "w ← w − lr·‖w‖/‖u‖·u, with u = m̂/(√v̂ + eps) + decay·w and norms of the whole.",
        }[name]

    def _sent(self, case, outcome, steps: int, parameters: int) -> None:
        n = case.n
        most, count = (
            max(2, n) * (n - 1) * 16 * parameters * steps,
            max(outcome.messages(r) for r in range(n)),
        )
        if outcome.nbytes() > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {outcome.nbytes()} bytes in {steps} "
                f"steps: two squares of 8 bytes a parameter are enough, {most} bytes."
            )
        if count > 2 * (n - 1) * steps:
            raise Wrong(
                f"the numbers are right, but a rank sends {count} messages in {steps} steps: put the squares "
                f"of all parameters into one tensor and one all-reduce, {2 * (n - 1) * steps}."
            )


def lamb_step(yours) -> None:
    """`lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay)`: a step of LAMB, in place."""
    ask(LambStep(), yours)
