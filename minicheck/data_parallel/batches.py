"""The exercises of lesson 04, Data parallel, about batches: every rank's part of them, and micro-batches."""

from __future__ import annotations

import re
from itertools import pairwise, product

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .averages import cheap, same_gradients, untouched, usual
from .gradients import RANKS, ReplicaExam, frozen
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


class MyBatches(Exam):
    name = "my_batches"
    right = "n = 1…5, 8 sizes, the parts of all ranks are the batch, uneven ones refused; then 2 and 3 real processes."
    forbidden = ReplicaExam.forbidden
    sizes = (
        (24, 2, 0),
        (25, 3, 0),
        (4, 5, 0),
        (30, 1, 0),
        (0, 1, 0),
        (61, 4, 0),
        (20, 2, 1),
        (24, 1, -1),
    )
    cases = tuple(
        Case(
            n, f"n = {n}, {length} samples in batches of {each * n + odd}", (length, each * n + odd)
        )
        for n, (length, each, odd) in product(RANKS, sizes)
        if n > 1 or not odd
    )
    processes = (
        Case(3, "3 real processes, 14 samples in batches of 6", (14, 6)),
        Case(2, "2 real processes", (9, 2)),
    )

    def draw(self, case, rng):
        length, batch = case.given
        return [(torch.randperm(length + 9, generator=rng)[:length], batch)] * case.n

    def run(self, comm: Comm, yours, order, batch):
        try:
            return {"parts": yours(comm, order, batch), "order": order}
        except ValueError as error:
            if batch % comm.size == 0:
                raise
            return {"refused": str(error)}

    def judge(self, case, args, outcome):
        (order, batch), n = args[0], case.n
        for r, got in enumerate(outcome.results):
            if batch % n:
                self._refused(r, got, batch, n)
                continue
            if not isinstance(got["order"], Tensor) or not got["order"].equal(order):
                raise Wrong(f"rank {r}: the order was changed, and belongs to the caller.")
            parts, size = got["parts"], batch // n
            whole = [order[i : i + batch] for i in range(0, len(order), batch)]
            self._counted(r, parts, len(order) // batch, len(whole))
            for b, part in enumerate(parts):
                self._part(
                    r, part, b, [whole[b][s * size : s * size + size] for s in range(n)], order
                )
        if outcome.messages():
            raise Wrong(
                "the parts are right, but messages are sent: every rank has the whole order already."
            )

    def _refused(self, rank: int, got: dict, batch: int, n: int) -> None:
        if "refused" not in got:
            raise Wrong(
                f"rank {rank}: {n} ranks cannot have equal parts of a batch of {batch}. The mean of their "
                "gradients would not be the batch's: raise a ValueError."
            )
        missing = [x for x in (batch, n) if str(x) not in re.findall(r"\d+", got["refused"])]
        if missing:
            raise Wrong(
                f"rank {rank}: the ValueError says {got['refused']!r}. Whoever reads it needs both numbers: a "
                f"batch of {batch}, and {n} ranks."
            )

    def _counted(self, rank: int, parts, count: int, all_: int) -> None:
        if not isinstance(parts, list | tuple):
            kind = "None. Is there a `return`?" if parts is None else _kind(parts)
            raise Wrong(
                f"rank {rank}: the result is {kind}, and should be a list with a tensor for each batch."
            )
        if len(parts) != count:
            hint = " The last batch is not full, and left out." if len(parts) == all_ else ""
            raise Wrong(
                f"rank {rank}: the list has length {len(parts)}, and should have {count}: one part of each "
                f"batch.{hint} `batch` counts the samples of all ranks together."
            )

    def _part(self, rank: int, part, b: int, right: list[Tensor], order: Tensor) -> None:
        n = len(right)
        want = right[rank]
        name = f"the part of batch {b}"
        batch = torch.cat(right)
        if isinstance(part, Tensor) and part.equal(batch) and n > 1:
            raise Wrong(
                f"rank {rank}: {name} is the whole batch: each rank takes one of {n} equal parts."
            )
        alike(rank, part, want, name)
        if part.equal(want):
            return
        shown = f"rank {rank}: {name} is {part.tolist()}, and should be {want.tolist()}."
        mine = sorted(part.tolist())
        other = [s for s in range(n) if part.equal(right[s])]
        astray = [i for i in mine if i not in batch.tolist()]
        if other:
            raise Wrong(f"{shown} That is rank {other[0]}'s part.")
        if part.equal(batch[rank::n]):
            raise Wrong(
                f"{shown} The samples are dealt in turn, {n} apart: one piece of the batch is asked for."
            )
        if mine == sorted(want.tolist()):
            raise Wrong(f"{shown} The samples are right, in another order than in the batch.")
        if astray and all(i in order.tolist() for i in mine):
            raise Wrong(
                f"{shown} {len(astray)} of {len(mine)} are not in batch {b} at all, as one rank would see it: "
                "cut the order into batches first, then each batch into parts."
            )
        raise Wrong(f"{shown} These are not the samples that the order names in that place.")


def _kind(x) -> str:
    return f"a {kind_of(x)}"


def loss_fn(got: Tensor, want: Tensor) -> Tensor:
    """A mean loss that nobody expects."""
    return ((got - want).square() + 1).sqrt().mean()


class Accumulate(ReplicaExam):
    name = "accumulate"
    right = (
        "n = 1…5, 1 to 4 micro-batches, 5 models, equal to the serial gradient, one average's bytes; "
        "then 2 and 3 real processes."
    )
    kinds = (("plain", 2), ("plain", 1), ("frozen", 4), ("tied", 5), ("routed", 2), ("unused", 4))
    cases = tuple(
        Case(n, f"n = {n}, {k} micro-batch{'es' * (k > 1)}, {WORDS[kind]}", (kind, k))
        for n, kinds in zip(RANKS, (kinds, kinds[3:], kinds[::4], kinds[:2], kinds[4:1:-2]))
        for kind, k in kinds
    )
    processes = tuple(
        Case(n, f"{n} real processes, {k} micro-batches", ("plain", k)) for n, k in ((3, 2), (2, 4))
    )

    def draw(self, case, rng):
        kind, k = case.given
        dtype = torch.float32 if case.n == 2 else torch.float64
        model = drawn(kind, rng, dtype)
        size = int(torch.randint(1, 4, (), generator=rng))
        user = one_of(case.n, rng)
        stale = case == self.cases[0] or int(torch.randint(2, (), generator=rng))
        return [
            (
                *model,
                [samples(size, r, rng, dtype, user) for _ in range(k)],
                self._stale(model, rng) if stale else {},
            )
            for r in range(case.n)
        ]

    def _stale(self, model: Model, rng: torch.Generator) -> dict[str, Tensor]:
        """Gradients of the step before."""
        return {
            name: torch.randn(p.shape, generator=rng, dtype=p.dtype)
            for name, p in model.build().named_parameters()
            if p.requires_grad
        }

    def run(self, comm: Comm, yours, kind, width, values, micro_batches, stale):
        module, log = Model(kind, width, values).build(), []
        for name, p in module.named_parameters():
            p.grad = stale.get(name)

        def watch(module, inputs, output):
            log.append(len(inputs[0]))
            if output.requires_grad:
                output.register_hook(lambda grad: log.append("backward"))

        watching = module.register_forward_hook(watch)
        yours(comm, module, loss_fn, micro_batches)
        watching.remove()
        return {"grads": grads(module), "state": state(module), "log": log}

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        n = case.n
        k = case.given[1]
        parts, stale = [a[3] for a in args], [a[4] for a in args]
        all_ = together([part for mine in parts for part in mine])
        whole, other = gradient(model, *all_, loss_fn), gradient(model, *all_)
        untouched(
            [got["state"] for got in outcome.results], model.values, "The step is the optimizer's."
        )
        same_gradients(
            [got["grads"] for got in outcome.results],
            whole,
            lambda r, name: (
                self._looks(
                    r,
                    [filled(model, mine, name, loss_fn) for mine in parts],
                    [s.get(name) for s in stale],
                    outcome.nbytes(r),
                )
                | {"It is the gradient of another loss: `loss_fn` is given.": other[name]}
            ),
        )
        for r, got in enumerate(outcome.results):
            self._one_by_one(r, got["log"], k, len(parts[r][0][0]))
        self._once(outcome, n, k, model)

    def _looks(
        self, rank: int, micro: list[list[Tensor]], stale: list, sent: int
    ) -> dict[str, Tensor]:
        n, k = len(micro), len(micro[0])
        own = [sum(mine) / k for mine in micro]
        want, last = sum(own) / n, [mine[-1] for mine in micro]
        before = [a - b / k for a, b in zip(own, last)]
        looks = usual(rank, own, sent) | (
            {}
            if k == 1
            else {
                f"It is {k} times too large: each loss is the mean of one of {k} micro-batches. Divide it by {k}.": want
                * k,
                f"It is {n * k} times too large: summed over {n} ranks and {k} micro-batches.": want
                * n
                * k,
                f"It is {k} times too small: divided by the micro-batches twice?": want / k,
                f"It is divided by {n} ranks where it should be by {k} micro-batches.": want
                * k
                / n,
                "It is that of the last micro-batch alone: what was there before it was cleared.": sum(
                    last
                )
                / n,
                f"It is that of the last micro-batch alone, divided by {k}: what was there before it was cleared.": sum(
                    last
                )
                / n
                / k,
                f"It is rank {rank}'s own, {k} times too large.": own[rank] * k,
                f"It is that of the first micro-batch alone, divided by {k}.": sum(
                    mine[0] for mine in micro
                )
                / n
                / k,
                f"It is that of the first micro-batch alone: there are {k}.": sum(
                    mine[0] for mine in micro
                )
                / n,
                "The last micro-batch is not averaged: the average was taken before its backward.": sum(
                    before
                )
                / n
                + last[rank] / k,
                "Only the last micro-batch is averaged, and what was accumulated before stays each rank's own.": before[
                    rank
                ]
                + sum(last) / n / k,
            }
        )
        if stale[rank] is None:
            return looks
        old, mean = (
            "The gradient of the step before is still in it: clear it at the beginning.",
            sum(stale) / n,
        )
        return looks | {
            old: want + mean,
            f"{old[:-1]} (p.grad = None).": want + stale[rank],
            f"{old[:-1]}. And nothing was averaged.": own[rank] + stale[rank],
            f"{old[:-1]}. And it is summed, not averaged.": (want + mean) * n,
            f"{old[:-1]}. And divide each loss by {k}.": want * k + mean,
            "It is the gradient of the step before, as it was: no backward?": stale[rank],
        }

    def _one_by_one(self, rank: int, log: list, k: int, size: int) -> None:
        forwards = [entry for entry in log if entry != "backward"] if isinstance(log, list) else []
        if any(isinstance(f, int) and f > size for f in forwards):
            raise Wrong(
                f"the gradient is right, but rank {rank} runs a forward with {max(forwards)} samples: a "
                f"micro-batch has {size}, because more do not fit into memory."
            )
        if len(forwards) != k:
            raise Wrong(
                f"the gradient is right, but rank {rank} calls the module {len(forwards)} times, and there are "
                f"{k} micro-batches: one module(x) for each."
            )
        if any(a != "backward" and b != "backward" for a, b in pairwise(log)):
            raise Wrong(
                f"the gradient is right, but rank {rank} begins a forward before the backward of the last: the "
                "activations of several micro-batches are in memory at once. Backward after each."
            )

    def _once(self, outcome, n: int, k: int, model: Model) -> None:
        try:
            cheap(outcome, n, trainable(model), frozen(model))
        except Wrong as wrong:
            hint = (
                f" {k} micro-batches, and an average after each? One is enough, after the last."
                if k > 1
                else ""
            )
            raise Wrong(f"{wrong}{hint}") from None


def my_batches(yours) -> None:
    """`my_batches(comm, order, batch)`: this rank's part of every whole batch, a list. No messages."""
    ask(MyBatches(), yours)


def accumulate(yours) -> None:
    """`accumulate(comm, module, loss_fn, micro_batches)`: gradients of all, averaged once, after the last."""
    ask(Accumulate(), yours)
