"""The exercises of lesson 04, Data parallel, about gradients and weights; the others are in batches.py.

The collectives may be called here: lesson 02 built them. The library's data parallelism, and PyTorch's, may not.
Each answer is held against the serial program (replicas.py), on 1 to 5 ranks, in Worlds and in real processes.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ..comm.base import Comm
from .averages import cheap, filled, near, same_gradients, untouched, usual
from .compare import alike
from .exam import Case, Exam, ask
from .replicas import WORDS, Model, drawn, gradient, grads, samples, state, together, trainable
from .wrong import Wrong

RANKS = (3, 2, 4, 1, 5)
SIZES = ((3, 2, 1), (4, 0, 2), (3, 1), (0, 2), (3, 3, 2, 2), (0, 0, 6, 1), (4,), (3, 2, 2, 2, 2), (1, 0, 5, 0, 3))
STAY = "It is the gradients that are averaged: p.grad."


def cases(kinds: tuple[str, ...]) -> tuple[Case, ...]:
    """Every model on 1 to 5 ranks; the first is the simplest on three."""
    return tuple(Case(n, f"n = {n}, {WORDS[kind]}", kind) for n, kind in product(RANKS, kinds))


def processes(*kinds: str) -> tuple[Case, ...]:
    return tuple(Case(n, f"{n} real processes, {WORDS[kind]}", kind) for n, kind in zip((3, 2, 4), kinds))


class ReplicaExam(Exam):
    """Every rank has a model of one kind, which a case's `given` names, and samples of its own."""

    forbidden = ("minidist.parallel.data", "minidist.parallel", "torch.nn.parallel",
                 "torch.distributed.distributed_c10d")  # fmt: skip

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 and case.given == "plain" else torch.float64
        model = drawn(case.given, rng, dtype)
        return [(*model, *self.mine(case, r, rng, dtype)) for r in range(case.n)]

    def mine(self, case: Case, rank: int, rng: torch.Generator, dtype: torch.dtype) -> tuple:
        """The rest of a rank's arguments, after its model."""
        return samples(3, rank, rng, dtype)


def frozen(model: Model) -> list[Tensor]:
    return [p.detach() for p in model.build().parameters() if not p.requires_grad]


class StartEqual(ReplicaExam):
    name = "start_equal"
    right = ("n = 1…5, 6 models that start apart, parameters and buffers of rank 0 everywhere, (n−1)(1+1/n)·N bytes in "
             "all; then 2, 3 and 4 real processes.")  # fmt: skip
    cases, processes = cases(tuple(WORDS)), processes("buffers", "plain", "tied")

    def draw(self, case, rng):
        first = drawn(case.given, rng)
        return [tuple(first), *(tuple(drawn(case.given, rng, width=first.width)) for _ in range(case.n - 1))]

    def run(self, comm: Comm, yours, kind, width, values):
        module = Model(kind, width, values).build()
        before = dict(state(module))
        flags = [p.requires_grad for p in module.parameters()]
        yours(comm, module)
        after = state(module)
        kept = after.keys() == before.keys() and all(after[name] is x for name, x in before.items())
        return {"state": after, "kept": kept, "flags": flags == [p.requires_grad for p in module.parameters()]}

    def judge(self, case, args, outcome):
        all_values = [values for *_, values in args]
        buffers = {name for name, _ in Model(*args[0]).build().named_buffers()}
        for r, got in enumerate(outcome.results):
            for name, want in all_values[0].items():
                x = got["state"].get(name)
                alike(r, x, want, name)
                if not x.equal(want):
                    raise Wrong(f"rank {r}: {name} is not rank 0's. "
                                f"{self._looks(x, [v[name] for v in all_values], r, name in buffers)}")  # fmt: skip
            if not got["kept"]:
                raise Wrong(f"rank {r}: the module holds other tensors than before. Whoever has the old ones, an "
                            "optimizer or a tied layer, is left behind. Fill those that are there.")  # fmt: skip
            if not got["flags"]:
                raise Wrong(f"rank {r}: requires_grad is another than before: what was frozen stays frozen.")
        most = sum((case.n**2 - 1) * -(-x.numel() // case.n) * x.element_size() for x in all_values[0].values())
        if outcome.nbytes() > most:
            raise Wrong(f"the numbers are right, but {outcome.nbytes()} bytes are sent in all, and a broadcast of each "
                        f"tensor needs {most} at most. Is a tied one sent twice, or more than a broadcast done?")  # fmt: skip

    def _looks(self, got: Tensor, values: list[Tensor], rank: int, buffer: bool) -> str:
        n = len(values)
        if got.equal(values[rank]):
            what = "a buffer: buffers must start equal, too" if buffer else "a parameter"
            return f"It is rank {rank}'s own, as before. It is {what}. Does it stand in what you send?"
        for r, x in enumerate(values):
            if got.equal(x):
                return f"It is rank {r}'s: rank 0 is the root."
        floats = [x.double() for x in values]
        if near(got.double(), sum(floats) / n):
            return "It is the mean of all ranks': a mean of initial values is no initial value, it is too small."
        if near(got.double(), sum(floats)):
            return "It is the sum of all ranks'."
        return "It is none of the ranks': drawn anew, or written over?"


class AverageGradients(ReplicaExam):
    name = "average_gradients"
    cases, processes = cases(tuple(WORDS)), processes("routed", "plain", "tied")
    right = ("n = 1…5, 6 models, equal to the serial gradients and bit for bit on all ranks, 2(n−1)/n·N bytes a rank; "
             "then 2, 3 and 4 real processes.")  # fmt: skip

    def run(self, comm: Comm, yours, kind, width, values, x, y):
        module = Model(kind, width, values).build()
        mse_loss(module(x), y).backward()
        yours(comm, module)
        return {"grads": grads(module), "state": state(module)}

    def judge(self, case, args, outcome):
        model, parts = Model(*args[0][:3]), [a[3:] for a in args]
        own = [gradient(model, *part) for part in parts]
        untouched([got["state"] for got in outcome.results], model.values, STAY)
        same_gradients([got["grads"] for got in outcome.results], gradient(model, *together(parts)),
                       lambda r, name: usual(r, filled(own, name), outcome.nbytes(r)))  # fmt: skip
        cheap(outcome, case.n, trainable(model), frozen(model))


class WeightedAverageGradients(ReplicaExam):
    name = "weighted_average_gradients"
    right = ("n = 1…5, ranks with 0 to 6 samples, 4 models, equal to the serial gradients; "
             "then 2, 3 and 4 real processes.")  # fmt: skip
    cases = tuple(Case(len(sizes), f"{WORDS[kind]}, ranks with {', '.join(map(str, sizes))} samples", (kind, sizes))
                  for kind, sizes in product(("plain", "frozen", "routed", "tied"), SIZES))  # fmt: skip
    processes = (cases[1]._replace(what="3 real processes with 4, 0, 2 samples"), cases[-1])

    def draw(self, case, rng):
        kind, sizes, dtype = *case.given, torch.float64
        model = drawn(kind, rng, dtype)
        nan = float(torch.randint(2, (), generator=rng))
        return [(*model, *samples(size, r, rng, dtype), nan) for r, size in enumerate(sizes)]

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
        own = [gradient(model, *part) for part in parts]
        sizes = [len(x) for x, _ in parts]
        untouched([got["state"] for got in outcome.results], model.values, STAY)
        same_gradients([got["grads"] for got in outcome.results], gradient(model, *together(parts)),
                       lambda r, name: self._looks(r, filled(own, name), sizes, outcome.nbytes(r)))  # fmt: skip
        cheap(outcome, case.n, trainable(model), frozen(model), extra=64 * case.n)

    def _looks(self, rank: int, own: list[Tensor], sizes: list[int], sent: int) -> dict[str, Tensor]:
        n, counted = len(own), sum(g * size for g, size in zip(own, sizes))
        there = [g for g, size in zip(own, sizes) if size]
        return {
            f"It is the plain mean: a sample counts more where there are few. The ranks have {sizes} samples.":
                sum(own) / n,
            "It is the plain mean of the ranks that have samples: weigh each with the number of its samples.":
                sum(there) / len(there),
            "It is the weighted sum: divide it by the number of all samples.": counted,
            f"It is the weighted sum, divided by {n} ranks: divide it by the number of all samples.": counted / n,
            f"It is the weighted sum, divided by the samples of rank {rank}: divide it by all ranks' samples.":
                counted / max(1, sizes[rank]),
            f"It is rank {rank}'s own, weighted: {rank}'s share of the average, and no other's.":
                own[rank] * sizes[rank] / sum(sizes),
            "It is divided by n once too often: the weights add up to 1 already.": counted / sum(sizes) / n,
        } | usual(rank, own, sent)  # fmt: skip


class AverageHooks(ReplicaExam):
    name = "average_hooks"
    right = ("n = 1…5, 5 models, two steps equal to the serial ones, 2(n−1)/n·N bytes a rank and step; "
             "then 2, 3 and 4 real processes.")  # fmt: skip
    cases = cases(("plain", "frozen", "unused", "tied", "buffers"))
    processes = processes("plain", "buffers", "frozen")

    def mine(self, case, rank, rng, dtype):
        return samples(6, rank, rng, dtype)

    def run(self, comm: Comm, yours, kind, width, values, x, y):
        module, found = Model(kind, width, values).build(), []
        yours(comm, module)
        for half in (slice(0, 3), slice(3, 6)):
            mse_loss(module(x[half]), y[half]).backward()
            found.append({"grads": grads(module), "state": {k: v.detach().clone() for k, v in state(module).items()}})
            step_(module)
        return found

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        for i, half in enumerate((slice(0, 3), slice(3, 6))):
            parts = [(x[half], y[half]) for *_, x, y in args]
            own, whole = [gradient(model, *part) for part in parts], gradient(model, *together(parts))
            found = [got[i]["grads"] for got in outcome.results]
            if not i:
                untouched([got[0]["state"] for got in outcome.results], model.values, STAY)
            same_gradients(found, whole, partial(self._looks, own, outcome, i))
            module = model.build()
            for name, p in module.named_parameters():
                p.grad = found[0][name]
            step_(module)
            model = model._replace(values={name: x.detach() for name, x in state(module).items()})
        cheap(outcome, case.n, 2 * trainable(model), 2 * frozen(model))

    def _looks(self, own, outcome, step: int, rank: int, name: str) -> dict[str, Tensor]:
        mine = filled(own, name)
        hint = ("A hook is called with the parameter: its gradient is p.grad." if outcome.nbytes(rank) and not step else
                f"Step {step + 1}: no hook was called, or it changed nothing.")  # fmt: skip
        return {f"It is rank {rank}'s own, not the average. {hint}": mine[rank]} | usual(rank, mine, 0)


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
