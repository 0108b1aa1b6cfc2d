"""The exercise of lesson 08 with a bug: a function that is run again with the random numbers of its first run.

Looked at: what comes out, how often fn runs, and the state of the random generator before and after.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import FORBIDDEN

# what the runs are given beside x: what comes out of one is not what comes out of the other
FIRST, AGAIN = 2.0, 4.0


def drop(x: Tensor, scale: float, more: float = 1.0) -> Tensor:
    """Dropout, with the numbers of PyTorch's own generator."""
    return x * (torch.rand(x.shape) < 0.5) * scale * more


def planned(calls: str) -> list[tuple[bool, bool, int]]:
    """Of each call: is it a `first` (F, f) or an `again` (A, a), of which function, and the number of its run."""
    open_runs = {True: [], False: []}
    plan = []
    count = 0
    for call in calls:
        mine = open_runs[call.isupper()]
        if call in "Ff":
            mine.append(count)
            count += 1
        plan.append((call in "Ff", call.isupper(), mine[-1] if call in "Ff" else mine.pop()))
    return plan


class Twice(Exam):
    name = "twice"
    right = "1 to 4 runs, the last repeated first, of two functions: the same numbers, as if nothing had been."
    forbidden = FORBIDDEN
    step = 2.0
    cases = tuple(
        Case(1, what, calls)
        for what, calls in (
            ("1 run", "FA"),
            ("2 runs", "FFAA"),
            ("4 runs, two of them after an `again`", "FFAFFAAA"),
            ("two functions in turn", "FfAafFFaAA"),
        )
    )

    def draw(self, case, rng):
        seed = int(torch.randint(10**6, (), generator=rng))
        xs = [
            torch.randn(50, generator=rng) for _ in range(sum(call in "Ff" for call in case.given))
        ]
        return [(seed, case.given, xs)]

    def run(self, comm: Comm, yours, seed, plan, xs):
        torch.manual_seed(seed)
        ran = []
        outs = []
        states = []

        def fn(x, *more):
            ran.append(next((i for i, y in enumerate(xs) if y is x), -1))
            return drop(x, *more)

        pairs = {name: yours(fn) for name in (True, False)}
        for is_first, name, i in planned(plan):
            first, again = pairs[name]
            more = () if name else (3.0,)
            torch.rand(3)  # others draw, too
            outs.append(first(xs[i], FIRST, *more) if is_first else again(xs[i], AGAIN, *more))
            states.append(torch.get_rng_state())
        return {"outs": outs, "ran": ran, "states": states}

    def judge(self, case, args, outcome):
        (seed, _, xs), got, plan = args[0], outcome.results[0], planned(case.given)
        ys: dict[int, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for (is_first, name, i), mine, state in zip(
                plan, got["outs"], got["states"], strict=True
            ):
                torch.rand(3)
                if is_first:
                    ys[i] = drop(xs[i], FIRST, 1.0 if name else 3.0)
                (self._first if is_first else self._again)(i, mine, ys)
                if not isinstance(state, Tensor) or not state.equal(torch.get_rng_state()):
                    raise Wrong(
                        f"after `first`, run {i}, the generator is not where fn leaves it: the next run draws "
                        "the same numbers."
                        if is_first
                        else f"after `again` of run {i} the generator is not "
                        "where it was before it: what comes next draws the same numbers again. Put back the "
                        "state of the moment."
                    )
        if got["ran"] != [i for *_, i in plan]:
            raise Wrong(
                f"`first` runs fn once, and `again` once more, on the arguments that it gets; fn ran for "
                f"{got['ran']}. To keep what it gave would keep the memory, too."
            )

    def _first(self, i: int, mine, ys: dict[int, Tensor]) -> None:
        if not isinstance(mine, Tensor):
            raise Wrong("`first` returns fn(*args), a tensor here.")
        if not mine.equal(ys[i]):
            raise Wrong(
                f"`first`, run {i}: other random numbers than fn draws by itself. Leave the generator as "
                "it is, and only look at its state."
            )

    def _again(self, i: int, mine, ys: dict[int, Tensor]) -> None:
        if not isinstance(mine, Tensor) or mine.shape != ys[i].shape:
            raise Wrong(
                f"`again` returns {'None' if mine is None else 'something else'}: it returns fn(*args)."
            )
        if mine.equal(ys[i]):
            raise Wrong(
                f"`again` of run {i} returns what `first` gave, and should run fn on its own arguments: "
                f"here fn(x, {AGAIN:g}), where `first` had fn(x, {FIRST:g}). To keep what fn gave would "
                "keep the memory, too."
            )
        if not mine.equal(ys[i] * (AGAIN / FIRST)):
            other = next(
                (
                    f" Those are the random numbers of run {j}: the last run of this fn that was not repeated "
                    "yet is repeated."
                    for j, y in ys.items()
                    if mine.ne(0).equal(y.ne(0))
                ),
                "",
            )
            raise Wrong(
                f"run {i} is repeated with other random numbers than it had.{other} Which state was there "
                "when it began?"
            )


def twice(yours) -> None:
    """`twice(fn)`: (first, again), of which `again` runs fn with the random numbers of the last first."""
    ask(Twice(), yours)
