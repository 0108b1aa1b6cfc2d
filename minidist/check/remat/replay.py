"""The exercise of lesson 08 with a bug: a function that is run again with the random numbers of its first run.

Looked at: what comes out, how often fn runs, and the state of the random generator before and after.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...comm.base import Comm
from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import FORBIDDEN

FIRST, AGAIN = 2.0, 4.0  # what the runs are given beside x: what comes out of one is not what comes out of the other


def drop(x: Tensor, scale: float) -> Tensor:
    """Dropout, with the numbers of PyTorch's own generator."""
    return x * (torch.rand(x.shape) < 0.5) * scale


class Twice(Exam):
    name = "twice"
    right = "1 to 4 runs, repeated last first: the same numbers, and the generator goes on as if nothing had been."
    forbidden = FORBIDDEN
    step = 2.0
    cases = tuple(Case(1, f"{n} run{'s' * (n > 1)}", n) for n in (1, 2, 4))

    def draw(self, case, rng):
        seed = int(torch.randint(10**6, (), generator=rng))
        return [(seed, [torch.randn(50, generator=rng) for _ in range(case.given)])]

    def run(self, comm: Comm, yours, seed, xs):
        torch.manual_seed(seed)
        calls, states, mine = [], [torch.get_rng_state()], xs

        def fn(x, scale):
            calls.append(next(i for i, y in enumerate(mine) if y is x))
            return drop(x, scale)

        first, again = yours(fn)
        ys = [(first(x, FIRST), states.append(torch.get_rng_state()))[0] for x in mine]
        torch.rand(3)  # others draw between forward and backward
        before = torch.get_rng_state()
        back, after = [], []
        for x in reversed(mine):
            back.append(again(x, AGAIN))
            after.append(torch.get_rng_state())
        return {"ys": ys, "back": back, "calls": calls, "states": states, "before": before, "after": after}

    def judge(self, case, args, outcome):
        (seed, xs), got, n = args[0], outcome.results[0], case.given
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            states, ys = [torch.get_rng_state()], []
            for x in xs:
                ys.append(drop(x, FIRST))
                states.append(torch.get_rng_state())
            torch.rand(3)
            before = torch.get_rng_state()
        self._forward(got, ys, states)
        for i, (mine, right) in enumerate(zip(got["back"], reversed(ys), strict=True)):
            k = n - 1 - i
            if not isinstance(mine, Tensor) or mine.shape != right.shape:
                raise Wrong(f"`again` returns {'None' if mine is None else 'something else'}: it returns fn(*args).")
            if mine.equal(right):
                raise Wrong(f"`again` of run {k} returns what `first` gave, and should run fn on its own arguments: "
                            f"here fn(x, {AGAIN:g}), where `first` had fn(x, {FIRST:g}). To keep what fn gave would "
                            "keep the memory, too.")  # fmt: skip
            if not mine.equal(right * (AGAIN / FIRST)):
                other = next((f" Those are the random numbers of run {j}: the last run is repeated first."
                              for j in range(n) if mine.ne(0).equal(self._kept(seed, j, n, xs[k]).ne(0))), "")
                raise Wrong(f"run {k} is repeated with other random numbers than it had.{other} Which state was there "
                            "when it began?")  # fmt: skip
        if got["calls"] != [*range(n), *reversed(range(n))]:
            raise Wrong(f"`first` runs fn once, and `again` once more; fn ran for {got['calls']}. To keep what it gave "
                        "would keep the memory, too.")  # fmt: skip
        for i, state in enumerate(got["after"]):
            if not self._same(state, before):
                raise Wrong(f"after `again` of run {n - 1 - i} the generator is not where it was before it: what "
                            "comes next draws the same numbers again. Put back the state of the moment.")  # fmt: skip

    def _forward(self, got: dict, ys: list[Tensor], states: list[Tensor]) -> None:
        for i, (mine, right) in enumerate(zip(got["ys"], ys, strict=True)):
            if not isinstance(mine, Tensor | Other) or isinstance(mine, Other):
                raise Wrong("`first` returns fn(*args), a tensor here.")
            if mine.shape != right.shape or not mine.equal(right):
                raise Wrong(f"`first`, run {i}: other random numbers than fn draws by itself. Leave the generator as "
                            "it is, and only look at its state.")  # fmt: skip
            if not self._same(got["states"][i + 1], states[i + 1]):
                raise Wrong(f"after `first`, run {i}, the generator is not where fn leaves it: the next run draws the "
                            "same numbers.")  # fmt: skip

    def _same(self, state, other: Tensor) -> bool:
        return isinstance(state, Tensor) and state.equal(other)

    def _kept(self, seed: int, run: int, runs: int, x: Tensor) -> Tensor:
        """What dropout gives of x with the numbers of another run."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(run):
                torch.rand(x.shape)
            return drop(x, AGAIN)


def twice(yours) -> None:
    """`twice(fn)`: (first, again), of which `again` runs fn with the random numbers of the last first."""
    ask(Twice(), yours)
