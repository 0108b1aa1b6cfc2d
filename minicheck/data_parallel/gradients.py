"""The exercises of lesson 04, Data parallel, about averages; the others are in start.py, batches.py and step.py.

The collectives may be called here: lesson 02 built them. The library's data parallelism, and PyTorch's, may not.
Each answer is held against the serial program (replicas.py), on 1 to 5 ranks, in Worlds and in real processes.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from .averages import cheap, same_gradients, untouched, usual
from .replicas import (
    WORDS,
    Model,
    drawn,
    filled,
    gradient,
    grads,
    one_of,
    samples,
    state,
    together,
    trainable,
)

RANKS = (3, 2, 4, 1, 5)
SIZES = (
    (1, 2, 5),
    (4, 0, 2),
    (3, 1),
    (0, 2),
    (3, 3, 2, 2),
    (0, 0, 6, 1),
    (4,),
    (3, 2, 2, 2, 2),
    (1, 0, 5, 0, 3),
)
STAY = "It is the gradients that are averaged: p.grad."


def cases(kinds: tuple[str, ...]) -> tuple[Case, ...]:
    """Every model on 3 ranks, and two of them on 2, 4, 1 and 5; the first is the simplest on three."""
    others = [
        (n, kinds[(i + j) % len(kinds)])
        for i, n in enumerate(RANKS[1:])
        for j in (0, len(kinds) - 2)
    ]
    asked = [*((RANKS[0], kind) for kind in kinds), *others]
    return tuple(Case(n, f"n = {n}, {WORDS[kind]}", kind) for n, kind in asked)


def processes(*kinds: str) -> tuple[Case, ...]:
    return tuple(
        Case(n, f"{n} real processes, {WORDS[kind]}", kind)
        for n, kind in zip((3, 2), kinds, strict=True)
    )


class ReplicaExam(Exam):
    """Every rank has a model of one kind, which a case's `given` names, and samples of its own."""

    forbidden = ("minidist.parallel.data", "minidist.parallel", "torch.nn.parallel")

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 and case.given == "plain" else torch.float64
        model, self.user = drawn(case.given, rng, dtype), one_of(case.n, rng)
        return [(*model, *self.mine(case, r, rng, dtype)) for r in range(case.n)]

    def mine(self, case: Case, rank: int, rng: torch.Generator, dtype: torch.dtype) -> tuple:
        """The rest of a rank's arguments, after its model."""
        return samples(3, rank, rng, dtype, self.user)


def frozen(model: Model) -> list[Tensor]:
    return [p.detach() for p in model.build().parameters() if not p.requires_grad]


class AverageGradients(ReplicaExam):
    name = "average_gradients"
    cases, processes = cases(tuple(WORDS)), processes("routed", "tied")
    right = (
        "n = 1…5, 6 models, equal to the serial gradients and bit for bit on all ranks, 2(n−1)/n·N bytes a rank; "
        "then 2 and 3 real processes."
    )

    def run(self, comm: Comm, yours, kind, width, values, x, y):
        module = Model(kind, width, values).build()
        mse_loss(module(x), y).backward()
        yours(comm, module)
        return {"grads": grads(module), "state": state(module)}

    def judge(self, case, args, outcome):
        model, parts = Model(*args[0][:3]), [a[3:] for a in args]
        untouched([got["state"] for got in outcome.results], model.values, STAY)
        same_gradients(
            [got["grads"] for got in outcome.results],
            gradient(model, *together(parts)),
            lambda r, name: usual(r, filled(model, parts, name), outcome.nbytes(r)),
        )
        cheap(outcome, case.n, trainable(model), frozen(model))


class WeightedAverageGradients(ReplicaExam):
    name = "weighted_average_gradients"
    right = (
        "n = 1…5, ranks with 0 to 6 samples, 4 models, equal to the serial gradients; "
        "then 2 and 3 real processes."
    )
    kinds = ("plain", "frozen", "routed", "tied", "plain")
    cases = tuple(
        Case(
            len(sizes),
            f"{WORDS[kind]}, ranks with {', '.join(map(str, sizes))} samples",
            (kind, sizes),
        )
        for kind, sizes in [
            *product(kinds[:1], SIZES),
            *zip(kinds[1:], SIZES),
            *zip(kinds, SIZES[4:]),
        ]
    )
    processes = (
        cases[1]._replace(what="3 real processes with 4, 0, 2 samples"),
        cases[3]._replace(what="2 real processes with 0, 2 samples"),
    )

    def draw(self, case, rng):
        (kind, sizes), total = case.given, sum(case.given[1])
        # a weight in float32 is right, if inexact
        dtype = torch.float32 if total & (total - 1) else torch.float64
        model, there = drawn(kind, rng, dtype), [r for r, size in enumerate(sizes) if size]
        nan = int(sizes[0] > 0)  # else ranks without samples have None
        user = there[one_of(len(there), rng)]
        return [(*model, *samples(size, r, rng, dtype, user), nan) for r, size in enumerate(sizes)]

    def run(self, comm: Comm, yours, kind, width, values, x, y, nan):
        module = Model(kind, width, values).build()
        if len(x):
            mse_loss(module(x), y).backward()
        elif nan:
            for p in module.parameters():
                p.grad = torch.full_like(p, torch.nan) if p.requires_grad else None
        yours(comm, module, len(x))
        return {"grads": grads(module), "state": state(module)}

    def judge(self, case, args, outcome):
        model, parts = Model(*args[0][:3]), [a[3:5] for a in args]
        sizes = [len(x) for x, _ in parts]
        untouched([got["state"] for got in outcome.results], model.values, STAY)
        same_gradients(
            [got["grads"] for got in outcome.results],
            gradient(model, *together(parts)),
            lambda r, name: self._looks(r, filled(model, parts, name), sizes, outcome.nbytes(r)),
        )
        cheap(outcome, case.n, trainable(model), frozen(model), extra=64 * case.n)

    def _looks(
        self, rank: int, own: list[Tensor], sizes: list[int], sent: int
    ) -> dict[str, Tensor]:
        n, counted = len(own), sum(g * size for g, size in zip(own, sizes))
        there = [g for g, size in zip(own, sizes) if size]
        return {
            f"It is the plain mean: a sample counts more where there are few. The ranks have {sizes} samples.": sum(
                own
            )
            / n,
            "It is the plain mean of the ranks that have samples: weigh each with the number of its samples.": sum(
                there
            )
            / len(there),
            "It is the weighted sum: divide it by the number of all samples.": counted,
            f"It is the weighted sum, divided by {n} ranks: divide it by the number of all samples.": counted
            / n,
            f"It is the weighted sum, divided by the samples of rank {rank}: divide it by all ranks' samples.": counted
            / max(1, sizes[rank]),
            f"It is rank {rank}'s own, weighted: that is its share of the average, and no other's.": own[
                rank
            ]
            * sizes[rank]
            / sum(sizes),
            "It is divided by n once too often: the weights add up to 1 already.": counted
            / sum(sizes)
            / n,
        } | usual(rank, own, sent)


class AverageHooks(ReplicaExam):
    name = "average_hooks"
    right = (
        "n = 1…5, 5 models, two steps equal to the serial ones, 2(n−1)/n·N bytes a rank and step; "
        "then 2 and 3 real processes."
    )
    cases = cases(("plain", "frozen", "unused", "tied", "buffers"))
    processes = processes("plain", "buffers")

    def mine(self, case, rank, rng, dtype):
        return samples(6, rank, rng, dtype)

    def run(self, comm: Comm, yours, kind, width, values, x, y):
        module, found = Model(kind, width, values).build(), []
        yours(comm, module)
        for half in (slice(0, 3), slice(3, 6)):
            mse_loss(module(x[half]), y[half]).backward()
            found.append(
                {
                    "grads": grads(module),
                    "state": {k: v.detach().clone() for k, v in state(module).items()},
                }
            )
            step_(module)
        return found

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        for i, half in enumerate((slice(0, 3), slice(3, 6))):
            parts = [(x[half], y[half]) for *_, x, y in args]
            whole = gradient(model, *together(parts))
            found = [got[i]["grads"] for got in outcome.results]
            if not i:
                untouched([got[0]["state"] for got in outcome.results], model.values, STAY)
            same_gradients(found, whole, partial(self._looks, model, parts, outcome, i))
            module = model.build()
            for name, p in module.named_parameters():
                p.grad = found[0][name]
            step_(module)
            model = model._replace(values={name: x.detach() for name, x in state(module).items()})
        cheap(outcome, case.n, 2 * trainable(model), 2 * frozen(model))

    def _looks(self, model, parts, outcome, step: int, rank: int, name: str) -> dict[str, Tensor]:
        mine = filled(model, parts, name)
        hint = f"Step {step + 1}: no hook was called, or it changed nothing."
        if outcome.nbytes(rank) and not step:
            hint = "Does each hook average p.grad, in place, whenever it is called? It is called with p."
        return {f"It is rank {rank}'s own, not the average. {hint}": mine[rank]} | usual(
            rank, mine, 0
        )


@torch.no_grad()
def step_(module: torch.nn.Module) -> None:
    """A step of SGD with rate 0.1, and no gradients afterwards."""
    for p in module.parameters():
        if p.grad is not None:
            p -= 0.1 * p.grad
        p.grad = None


def average_gradients(yours) -> None:
    """`average_gradients(comm, module)`: every p.grad becomes its mean over all ranks, in place."""
    ask(AverageGradients(), yours)


def weighted_average_gradients(yours) -> None:
    """`weighted_average_gradients(comm, module, samples)`: the same, each rank weighted by its number of samples."""
    ask(WeightedAverageGradients(), yours)


def average_hooks(yours) -> None:
    """`average_hooks(comm, module)`: registers hooks, so that every backward averages the gradients."""
    ask(AverageHooks(), yours)
