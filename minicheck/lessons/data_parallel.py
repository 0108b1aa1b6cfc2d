"""Graders of lesson 05: n copies that train like one.

What a wrong gradient looks like, and the models on which it goes wrong, come before the exercises.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import mse_loss

from ..exam import (
    ALL,
    HALF,
    NUMBERS,
    UNKNOWN,
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Wrong,
    alike,
    attempt,
    close,
    equal,
    few_in_all,
    holds,
    identical,
    integer,
    left_open,
    near,
    normal,
    one_of,
    ranked,
    ranks,
    recognized,
    refusal,
    ring_bytes,
    same,
    typed,
    unchanged,
    wrong_means,
)

# ------------------------------------------------------------
# Are the gradients those of the serial program, on every rank? If not: what does the mistake look like?
#
# Also what an average may cost: by rings, 2(n−1) chunks of each tensor, rank by rank (Patarasuk and Yuan 2009).


Grads = dict[str, Tensor | None]
NAN = (
    "There is nan in it. Was something sent that nobody wrote? nan · 0 is nan, and nan + 1, too: set a gradient that "
    "must not count to zeros, before it is sent."
)


def same_gradients(found: list, whole: Grads, mistakes, otherwise: str = UNKNOWN) -> None:
    """Raise Wrong unless every rank found the serial program's gradients, all ranks the same bit for bit.

    mistakes: (rank, name, got) → what a wrong gradient may be.
    """
    for r, got in enumerate(found):
        if not isinstance(got, dict) or got.keys() != whole.keys():
            raise Wrong(f"rank {r}: the module has other parameters than before.")
    # rank 0 last: it may be right by being the root
    for r, name in product(reversed(range(len(found))), whole):
        try:
            usual = partial(mistakes, r, name)
            _same(found[r][name], whole[name], f"rank {r}: {name}.grad", usual, otherwise)
        except Wrong as wrong:
            want = whole[name]
            right = [s for s, got in enumerate(found) if want is not None and near(got[name], want)]
            raise Wrong(f"{wrong}{f' On {ranks(right)} it is right.' if right else ''}") from None
    for name in whole:
        there = [got[name] for got in found if got[name] is not None]
        if len(there) not in (0, len(found)):
            raise Wrong(
                f"{name}.grad is a tensor on one rank and None on another: optimizers will differ."
            )
        identical(there, f"{name}.grad")


def _same(got, want, what, mistakes, otherwise):
    if want is None:
        if got is not None and not (isinstance(got, Tensor) and not got.any()):
            raise Wrong(f"{what} has numbers, but nothing reaches it, or it is frozen.")
        return
    if got is None:
        raise Wrong(
            f"{what} is None. Was it cleared? Or does no sample of this rank reach the "
            "parameter? Then it counts as zeros, and gets the average like all others."
        )
    close(got, want, what, lambda got: NAN if got.isnan().any() else mistakes(got), otherwise)


def usual(rank: int, own: list[Tensor], sent: int) -> dict[str, Tensor]:
    """What a wrong average of the ranks' own gradients may be. sent: bytes that this rank sent."""
    hint = "something was sent, too. Is it p.grad that you average, in place?"
    return wrong_means(rank, own, hint * (sent > 0))


def untouched(outcome: Outcome, before: dict[str, Tensor], what: str) -> None:
    """Raise Wrong if weights or buffers are not what they were, on any rank."""
    for (r, got), (name, x) in product(enumerate(outcome.results), before.items()):
        if not equal(got["state"].get(name), x):
            raise Wrong(f"rank {r}: {name} itself was changed. {what}")


def cheap(
    outcome: Outcome, n: int, tensors: list[Tensor], others: list[Tensor], extra: int = 0
) -> None:
    """Raise Wrong if a rank sends more than one average of `tensors` needs, and `extra` bytes.

    others: parameters that need no average.
    """
    most, idle = ring_bytes(tensors, n) + extra, ring_bytes(others, n)
    for r in range(n):
        sent = outcome.nbytes(r)
        if sent <= most:
            continue
        text = f"the numbers are right, but rank {r} sends {sent} bytes, and 2(n−1)/n·N = {most} are enough."
        if idle and sent >= most + idle // 2:
            raise Wrong(f"{text} Is what is frozen averaged, too?")
        star = [s for s in range(n) if outcome.nbytes(s) < sent]
        if n > 2 and star:
            raise Wrong(f"{text} Rank {star[0]} sends less: is rank {r} the centre of a star?")
        raise Wrong(f"{text} Is something averaged twice (a tied parameter?), or gathered whole?")


# ------------------------------------------------------------
# Small models on which data parallelism goes wrong, and the serial program that says what is right.
#
# Every model maps (B, 3) to (B, 2). Its width is drawn anew for each case, so that no size is known
# beforehand. The oracle is one rank with the samples of all: its gradient, parameter by parameter.


INPUTS, OUTPUTS = 3, 2


class Plain(nn.Sequential):
    def __init__(self, width: int):
        super().__init__(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, OUTPUTS))


class Frozen(Plain):
    def __init__(self, width: int):
        super().__init__(4 * width)
        self[0].requires_grad_(False)


class Unused(Plain):
    def __init__(self, width: int):
        super().__init__(width)
        self.spare = nn.Linear(width, width)

    def forward(self, x):
        return self[2](self[1](self[0](x)))


class Tied(nn.Module):
    """One matrix in two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, 2 * width), nn.Linear(2 * width, 2 * width)
        self.third, self.last = (
            nn.Linear(2 * width, 2 * width, bias=False),
            nn.Linear(2 * width, OUTPUTS),
        )
        self.third.weight = self.second.weight

    def forward(self, x):
        return self.last(self.third(self.second(self.first(x)).tanh()).tanh())


class Routed(nn.Module):
    """`rare` sees only samples whose first number is above zero."""

    def __init__(self, width: int):
        super().__init__()
        self.rare, self.often = nn.Linear(INPUTS, OUTPUTS), Plain(width)

    def forward(self, x):
        chosen = (x[:, 0] > 0).nonzero()[:, 0]
        y = self.often(x)
        return y.index_add(0, chosen, self.rare(x[chosen])) if len(chosen) else y


class Buffers(nn.Module):
    """Buffers of two kinds, parameters of its own, without a dimension and not contiguous, and a layer two levels down."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.turned = nn.Parameter(torch.zeros(INPUTS, OUTPUTS).t())
        self.inner = nn.ModuleDict({"body": Plain(width)})
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.zeros(OUTPUTS, 1), persistent=False)

    def forward(self, x):
        return (
            self.inner["body"](x - self.mean) * self.scale + x @ self.turned.t() + self.shift[:, 0]
        )


MODELS = {
    "plain": Plain,
    "frozen": Frozen,
    "unused": Unused,
    "tied": Tied,
    "routed": Routed,
    "buffers": Buffers,
    "nan": Plain,
}
WORDS = {
    "plain": "two layers",
    "routed": "a layer that only one rank uses",
    "frozen": "a frozen layer",
    "tied": "two layers with one matrix",
    "unused": "a layer that no rank uses",
    "buffers": "a module with buffers and a matrix that is not contiguous",
    "nan": "nan on one rank",
}


def state(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name, what is shared once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class Model(NamedTuple):
    """How to build a model: the values travel, the class is looked up by its name."""

    kind: str
    width: int
    values: dict[str, Tensor]

    def build(self) -> nn.Module:
        module = MODELS[self.kind](self.width).to(self.values_dtype)
        with torch.no_grad():
            for name, tensor in state(module).items():
                tensor.copy_(self.values[name])
        return module

    @property
    def values_dtype(self) -> torch.dtype:
        return next(v.dtype for v in self.values.values() if v.is_floating_point())


def drawn(
    kind: str, rng: torch.Generator, dtype: torch.dtype = torch.float64, width: int | None = None
) -> Model:
    """A model with random values, and of random width unless told."""
    width = width or integer(rng, 4, 9)
    values = {name: _random(t, rng, dtype) for name, t in state(MODELS[kind](width)).items()}
    return Model(kind, width, values)


def _random(like, rng, dtype):
    if not like.is_floating_point():
        return torch.randint(2**53, 2**60, like.shape, generator=rng)
    return normal(rng, like.shape).to(dtype)


def samples(
    count: int, rank: int, rng: torch.Generator, dtype: torch.dtype = torch.float64, user: int = 0
) -> tuple[Tensor, Tensor]:
    """Inputs (count, 3) and targets (count, 2) of `rank`; the first number is above zero on rank `user` only."""
    x = normal(rng, count, INPUTS)
    x[:, 0] = (x[:, 0].abs() + 0.1) * (1 if rank == user else -1)
    return x.to(dtype), normal(rng, count, OUTPUTS).to(dtype)


def grads(module: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient by name."""
    return {name: p.grad for name, p in module.named_parameters()}


def gradient(model: Model, x: Tensor, y: Tensor, loss_fn=mse_loss) -> dict[str, Tensor | None]:
    """What the serial program finds: the gradient of the mean loss of these samples. None where nothing is reached."""
    module = model.build()
    if len(x):
        loss_fn(module(x), y).backward()
    return grads(module)


def filled(
    model: Model, parts: list[tuple[Tensor, Tensor]], name: str, loss_fn=mse_loss
) -> list[Tensor]:
    """Each rank's own gradient of a parameter, zeros where nothing reaches it."""
    own = [gradient(model, *part, loss_fn)[name] for part in parts]
    return [torch.zeros_like(model.values[name]) if g is None else g for g in own]


def together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The samples of all ranks, in rank order."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def trainable(model: Model) -> list[Tensor]:
    """The parameters that are trained, what is shared once."""
    return [p.detach() for p in model.build().parameters() if p.requires_grad]


# ------------------------------------------------------------
# Averages.
#
# The collectives may be called here: lesson 02 built them. The library's data parallelism, and PyTorch's, may not.
# Each answer is held against the serial program (`gradient`), on 1 to 5 ranks, in Worlds and in real processes.


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
    return ranked(lambda n, kind: f"n = {n}, {WORDS[kind]}", asked)


def processes(*kinds: str) -> tuple[Case, ...]:
    return ranked(
        lambda n, kind: f"{n} real processes, {WORDS[kind]}", zip((3, 2), kinds, strict=True)
    )


class ReplicaExam(Exam):
    """Every rank has a model of one kind, which a case's `given` names, and samples of its own."""

    forbidden = ("minidist.parallel.data", "minidist.parallel", "torch.nn.parallel")

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 and case.given == "plain" else torch.float64
        model, self.user = drawn(case.given, rng, dtype), one_of(case.n, rng)
        return [(*model, *self.mine(case, r, rng, dtype)) for r in range(case.n)]

    def mine(self, case, rank, rng, dtype):
        """The rest of a rank's arguments, after its model."""
        return self.spoilt(case.given, rank, samples(3, rank, rng, dtype, self.user))

    def spoilt(self, kind, rank, part):
        """A rank's samples, with nan in what one rank wants where the kind is so."""
        if kind == "nan" and rank == self.user:
            part[1][0] = torch.nan
        return part

    def judge(self, case, args, outcome):
        model, parts = Model(*args[0][:3]), [a[3:5] for a in args]
        untouched(outcome, model.values, STAY)
        found = [got["grads"] for got in outcome.results]
        looks = lambda r, name, got: self.looks(r, filled(model, parts, name), parts, outcome)
        same_gradients(found, gradient(model, *together(parts)), looks)
        cheap(outcome, case.n, trainable(model), frozen(model), self.extra * case.n)

    extra = 0  # bytes of a rank that something else than gradients may take, times n

    def looks(self, rank, own, parts, outcome):
        """What a wrong average of the ranks' own gradients may be."""
        return usual(rank, own, outcome.nbytes(rank))


def frozen(model: Model) -> list[Tensor]:
    return [p.detach() for p in model.build().parameters() if not p.requires_grad]


class AverageGradients(ReplicaExam):
    """`average_gradients(comm, module)`: every p.grad becomes its mean over all ranks, in place."""

    name = "average_gradients"
    cases, processes = cases(tuple(WORDS)), processes("routed", "tied")
    right = (
        "n = 1…5, 7 models, equal to the serial gradients and bit for bit on all ranks, 2(n−1)/n·N bytes a rank; "
        "then 2 and 3 real processes."
    )

    def run(self, comm, yours, kind, width, values, x, y):
        module = Model(kind, width, values).build()
        mse_loss(module(x), y).backward()
        yours(comm, module)
        return {"grads": grads(module), "state": state(module), "open": left_open(comm)}


class WeightedAverageGradients(ReplicaExam):
    """`weighted_average_gradients(comm, module, samples)`: the same, each rank weighted by its number of samples."""

    name = "weighted_average_gradients"
    right = (
        "n = 1…5, ranks with 0 to 1500 samples, 5 models, equal to the serial gradients; "
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
            ("nan", (4, 0, 2)),
            ("plain", (1500, 601)),
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
        self.user = there[one_of(len(there), rng)]
        parts = [samples(size, r, rng, dtype, self.user) for r, size in enumerate(sizes)]
        return [(*model, *self.spoilt(kind, r, part), nan) for r, part in enumerate(parts)]

    def run(self, comm, yours, kind, width, values, x, y, nan):
        module = Model(kind, width, values).build()
        if len(x):
            mse_loss(module(x), y).backward()
        elif nan:
            for p in module.parameters():
                p.grad = torch.full_like(p, torch.nan) if p.requires_grad else None
        yours(comm, module, len(x))
        return {"grads": grads(module), "state": state(module), "open": left_open(comm)}

    extra = 64

    def looks(self, rank, own, parts, outcome):
        sizes = [len(x) for x, _ in parts]
        n, counted = len(own), sum(g * size for g, size in zip(own, sizes))
        return {
            f"It is the plain mean: a sample counts more where there are few. The ranks have {sizes} samples.": sum(
                own
            )
            / n,
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
        } | super().looks(rank, own, parts, outcome)


class AverageHooks(ReplicaExam):
    """`average_hooks(comm, module)`: registers hooks, so that every backward averages the gradients."""

    name = "average_hooks"
    right = (
        "n = 1…5, 6 models, three steps equal to the serial ones, 2(n−1)/n·N bytes a rank and step; "
        "then 2 and 3 real processes."
    )
    cases = cases(("plain", "frozen", "unused", "tied", "buffers", "nan"))
    processes = processes("plain", "buffers")
    steps = tuple(slice(first, first + 3) for first in (0, 3, 6))  # their samples

    def mine(self, case, rank, rng, dtype):
        return self.spoilt(case.given, rank, samples(9, rank, rng, dtype))

    def run(self, comm, yours, kind, width, values, x, y):
        module, found = Model(kind, width, values).build(), []
        yours(comm, module)
        for step in self.steps:
            mse_loss(module(x[step]), y[step]).backward()
            found.append(grads(module))
            if len(found) == 1:
                after = {k: v.detach().clone() for k, v in state(module).items()}
            step_(module)
        return {"grads": found, "state": after, "open": left_open(comm)}

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        untouched(outcome, model.values, STAY)
        for i, step in enumerate(self.steps):
            parts = [(x[step], y[step]) for *_, x, y in args]
            whole = gradient(model, *together(parts))
            found = [got["grads"][i] for got in outcome.results]
            same_gradients(found, whole, partial(self._looks, model, parts, outcome, i))
            module = model.build()
            for name, p in module.named_parameters():
                p.grad = found[0][name]
            step_(module)
            model = model._replace(values={name: x.detach() for name, x in state(module).items()})
        count = len(self.steps)
        cheap(outcome, case.n, count * trainable(model), count * frozen(model))

    def _looks(self, model, parts, outcome, step, rank, name, got):
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


# ------------------------------------------------------------
# Batches: every rank's part of them, and micro-batches.


class MyBatches(Exam):
    """`my_batches(comm, order, batch)`: this rank's part of every whole batch, a list. No messages."""

    name = "my_batches"
    right = "n = 1…5, 9 sizes, the parts of all ranks are the batch, uneven ones refused; then 2 and 3 real processes."
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
        (3, 4, 1),
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

    def run(self, comm, yours, order, batch):
        return attempt(batch % comm.size, yours, comm, order, batch) | {"order": order}

    def judge(self, case, args, outcome):
        (order, batch), n = args[0], case.n
        for r, got in enumerate(outcome.results):
            if batch % n:
                why = (
                    f"{n} ranks cannot have equal parts of a batch of {batch}, and the mean of their gradients would "
                    "not be the batch's"
                )
                refusal(got, [batch, n], f"rank {r}: ", why)
                continue
            unchanged(got["order"], order, f"rank {r}: the order")
            parts, size = got["value"], batch // n
            whole = [order[i : i + batch] for i in range(0, len(order), batch)]
            self._counted(r, parts, len(order) // batch, len(whole))
            for b, part in enumerate(parts):
                self._part(r, part, b, [whole[b][s * size : s * size + size] for s in range(n)])
        if outcome.messages():
            raise Costly(
                "the parts are right, but messages are sent: every rank has the whole order already."
            )

    def _counted(self, rank, parts, count, all_):
        typed(
            parts, list | tuple, f"rank {rank}: the result", "a list with a tensor for each batch"
        )
        if len(parts) != count:
            hint = " The last batch is not full, and left out." if len(parts) == all_ else ""
            raise Wrong(
                f"rank {rank}: the list has length {len(parts)}, and should have {count}: one part of each "
                f"batch.{hint} `batch` counts the samples of all ranks together."
            )

    def _part(self, rank, part, b, right):
        n, batch = len(right), torch.cat(right)
        name = f"rank {rank}: the part of batch {b}"
        if equal(part, batch) and n > 1:
            raise Wrong(f"{name} is the whole batch: each rank takes one of {n} equal parts.")
        alike(part, right[rank], name)
        looks = {f"That is rank {s}'s part.": x for s, x in enumerate(right)}
        dealt = f"The samples are dealt in turn, {n} apart: one piece of the batch is asked for."
        astray = set(part.tolist()) - set(batch.tolist())
        rule = "Its samples are in another order than in the batch."
        if astray:
            rule = (
                f"{len(astray)} of {len(part)} are not in batch {b} at all, as one rank would see it: cut the order "
                "into batches first, then each batch into parts."
            )
        same(part, right[rank], name, looks | {dealt: batch[rank::n]}, rule)


def loss_fn(got: Tensor, want: Tensor) -> Tensor:
    """A mean loss that nobody expects."""
    return ((got - want).square() + 1).sqrt().mean()


class Accumulate(ReplicaExam):
    """`accumulate(comm, module, loss_fn, micro_batches)`: gradients of all, averaged once, after the last."""

    name = "accumulate"
    right = (
        "n = 1…5, 1 to 5 micro-batches, 6 models, equal to the serial gradient, one average's bytes; "
        "then 2 and 3 real processes."
    )
    kinds = (
        ("plain", 2),
        ("plain", 1),
        ("frozen", 4),
        ("tied", 5),
        ("routed", 2),
        ("unused", 4),
        ("nan", 2),
    )
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
        size = integer(rng, 1, 4)
        self.user = one_of(case.n, rng)
        args = []
        for r in range(case.n):
            micro = [samples(size, r, rng, dtype, self.user) for _ in range(k)]
            self.spoilt(kind, r, micro[0])
            stale = {} if kind == "routed" else self._stale(model, rng, case.n == 2)
            args.append((*model, micro, stale))
        return args

    def _stale(self, model, rng, nan):
        """Gradients of the step before, with nan or without."""
        stale = {
            name: normal(rng, p.shape, dtype=p.dtype)
            for name, p in model.build().named_parameters()
            if p.requires_grad
        }
        for g in stale.values():
            g.view(-1)[0] = torch.nan if nan else g.view(-1)[0]
        return stale

    def run(self, comm, yours, kind, width, values, micro_batches, stale):
        module, log = Model(kind, width, values).build(), []
        outputs: list[StorageWeakRef] = []  # of all layers: a graph holds them, as a list may
        left = []
        for name, p in module.named_parameters():
            p.grad = stale.get(name)

        def watch(module, inputs, output):
            log.append(len(inputs[0]))
            if output.requires_grad:
                output.register_hook(lambda grad: log.append("backward"))

        def made(layer, inputs, output):
            outputs.append(StorageWeakRef(output.untyped_storage()))

        def begins(module, inputs):
            last = outputs[-1:]  # a variable may hold it
            left.append(len({ref for ref in outputs if ref not in last and not ref.expired()}))

        watching = [
            module.register_forward_pre_hook(begins),
            module.register_forward_hook(watch),
            *(layer.register_forward_hook(made) for layer in module.modules()),
        ]
        yours(comm, module, loss_fn, micro_batches)
        for handle in watching:
            handle.remove()
        return {
            "grads": grads(module),
            "state": state(module),
            "log": log,
            "left": max(left, default=0),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        n = case.n
        k = case.given[1]
        parts, stale = [a[3] for a in args], [a[4] for a in args]
        all_ = together([part for mine in parts for part in mine])
        whole, other = gradient(model, *all_, loss_fn), gradient(model, *all_)
        untouched(outcome, model.values, "The step is the optimizer's.")
        same_gradients(
            [got["grads"] for got in outcome.results],
            whole,
            lambda r, name, got: (
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
            if got["left"]:
                raise Costly(
                    f"the gradient is right, but when a forward begins on rank {r}, {got['left']} outputs of layers are "
                    "still there from forwards before it. Backward frees them: is its graph retained, or are they kept?"
                )
        self._once(outcome, n, k, model)

    def _looks(self, rank, micro, stale, sent):
        n, k = len(micro), len(micro[0])
        own = [sum(mine) / k for mine in micro]
        want, last = sum(own) / n, [mine[-1] for mine in micro]
        looks = usual(rank, own, sent)
        if k > 1:
            before = own[rank] - last[rank] / k
            alone = f"It is that of the last micro-batch alone, divided by {k}: what was there before it was cleared."
            looks |= {
                f"It is {k} times too large: each loss is the mean of one of {k} micro-batches. Divide it by {k}.": want
                * k,
                f"It is {k} times too small: divided by the micro-batches twice?": want / k,
                f"It is divided by {n} ranks where it should be by {k} micro-batches.": want
                * k
                / n,
                f"It is {k} times too large, and rank {rank}'s own.": own[rank] * k,
                alone: sum(last) / n / k,
                f"It is that of the first micro-batch alone, divided by {k}.": sum(
                    mine[0] for mine in micro
                )
                / n
                / k,
                "The last micro-batch is not averaged: the average was taken before its backward.": want
                - sum(last) / n / k
                + last[rank] / k,
                "Only the last micro-batch is averaged, and what was accumulated before stays each rank's own.": before
                + sum(last) / n / k,
            }
        if stale[rank] is not None:
            old = "The gradient of the step before is still in it: clear it at the beginning"
            looks |= {
                f"{old}.": want + sum(stale) / n,
                f"{old} (p.grad = None).": want + stale[rank],
            }
        return looks

    def _one_by_one(self, rank, log, k, size):
        forwards = [entry for entry in log if entry != "backward"] if isinstance(log, list) else []
        if any(isinstance(f, int) and f > size for f in forwards):
            raise Costly(
                f"the gradient is right, but rank {rank} runs a forward with {max(forwards)} samples: a "
                f"micro-batch has {size}, because more do not fit into memory."
            )
        if len(forwards) != k:
            raise Wrong(
                f"the gradient is right, but rank {rank} calls the module {len(forwards)} times, and there are "
                f"{k} micro-batches: one module(x) for each."
            )
        if any(a != "backward" and b != "backward" for a, b in pairwise(log)):
            raise Costly(
                f"the gradient is right, but rank {rank} begins a forward before the backward of the last: the "
                "activations of several micro-batches are in memory at once. Backward after each."
            )

    def _once(self, outcome, n, k, model):
        try:
            cheap(outcome, n, trainable(model), frozen(model))
        except Wrong as wrong:
            hint = (
                f" {k} micro-batches, and an average after each? One is enough, after the last."
                if k > 1
                else ""
            )
            raise Wrong(f"{wrong}{hint}") from None


# ------------------------------------------------------------
# The start: all replicas become rank 0's.


HELD = {
    "kept": "the module holds other tensors than before. Whoever has the old ones, an optimizer or a tied layer, is left "
    "behind. Fill those that are there.",
    "flags": "requires_grad is another than before: what was frozen stays frozen.",
}


class StartEqual(ReplicaExam):
    """`start_equal(comm, module)`: every parameter and buffer becomes rank 0's, in place."""

    name = "start_equal"
    right = (
        "n = 1…5, 7 models that start apart, parameters and buffers of rank 0 everywhere, (n−1)(1+1/n)·N bytes in "
        "all; then 2 and 3 real processes."
    )
    cases, processes = cases(tuple(WORDS)), processes("buffers", "tied")

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 else torch.float64
        first = drawn(case.given, rng, dtype)
        if case.given == "nan":
            next(iter(first.values.values())).view(-1)[0] = torch.nan
        return [
            tuple(first),
            *(tuple(drawn(case.given, rng, dtype, first.width)) for _ in range(case.n - 1)),
        ]

    def run(self, comm, yours, kind, width, values):
        module = Model(kind, width, values).build()
        before = {name: (x, x.detach()) for name, x in state(module).items()}
        flags = [p.requires_grad for p in module.parameters()]
        yours(comm, module)
        after = state(module)
        kept = after.keys() == before.keys() and all(  # no `x.data = …`
            after[name] is x and x.data_ptr() == held.data_ptr()
            for name, (x, held) in before.items()
        )
        return {
            "state": after,
            "kept": kept,
            "flags": flags == [p.requires_grad for p in module.parameters()],
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        all_values = [values for *_, values in args]
        buffers = {name for name, _ in Model(*args[0]).build().named_buffers()}
        for r, got in enumerate(outcome.results):
            for name, want in all_values[0].items():
                values = [v[name] for v in all_values]
                looks = partial(self._looks, values=values, rank=r, buffer=name in buffers)
                same(got["state"].get(name), want, f"rank {r}: {name}", looks)
            holds(got, HELD, f"rank {r}: ")
        most = sum(
            (case.n**2 - 1) * -(-x.numel() // case.n) * x.element_size()
            for x in all_values[0].values()
        )
        few_in_all(
            outcome,
            most,
            "those of a broadcast of each tensor. Is a tied one sent twice? Does only rank 0 give?",
        )

    def _looks(self, got, values, rank, buffer):
        kind = "a buffer: buffers must start equal, too" if buffer else "a parameter"
        own = f"It is rank {rank}'s own, as before. It is {kind}. Does it stand in what you send?"
        looks = {own: values[rank]}
        looks |= {f"It is rank {r}'s: rank 0 is the root.": x for r, x in enumerate(values)}
        looks |= {
            "It is the mean of all ranks': a mean of initial values is no initial value, it is too small.": sum(
                values
            )
            / len(values),
            "It is the sum of all ranks'.": sum(values),
        }
        return recognized(got, looks, "It is none of the ranks': drawn anew, or written over?")


# ------------------------------------------------------------
# Numbers: what a step costs, and what slips do to it.


def predict_step(n=8, tensors=24, parameters=10_000_000, k=4, rate=0.1):
    """What a step costs, and what slips do. 8 ranks, 24 tensors, 10,000,000 parameters in float32, 4 micro-batches.

    messages, nbytes: what each rank sends, one all-reduce a tensor.  coalesced: messages with all tensors in one.
    rate: the learning rate that 0.1 becomes when gradients are summed.
    share: of a sample of rank 3 in the plain mean, when 4 ranks have 3, 3, 2 and 2 samples.
    """
    size, steps = 4 * parameters, 2 * (n - 1)
    ring = steps * size / n
    values = {
        "messages": steps * tensors,
        "nbytes": ring,
        "coalesced": steps,
        "rate": n * rate,
        "share": 1 / 8,
    }
    micro = f"The average is taken once, after the last of {k} micro-batches."
    slips = {
        "messages": {
            steps * tensors * k: micro,
            steps: "That is one all-reduce: there is one for each tensor.",
            steps * tensors / 2: HALF,
            2 * n * tensors: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            steps * tensors * n: ALL,
        },
        "nbytes": {
            ring * k: micro,
            ring / 4: NUMBERS,
            ring / 2: HALF,
            2 * size: "Nearly: the factor is 2(n−1)/n.",
            size: "Each rank sends nearly twice as much: the factor is 2(n−1)/n.",
            ring * n: ALL,
        },
        "coalesced": {
            steps * tensors: "Coalesced, all tensors travel in one buffer: one all-reduce.",
            n - 1: HALF,
            steps * k: micro,
            steps * n: ALL,
        },
        "rate": {
            rate: "The gradient is a sum of n means, not their mean.",
            rate / n: "It is the other way around: the gradient is too large.",
            n: "Times which rate?",
        },
        "share": {
            1 / 10: "That is what it should have. The plain mean gives each rank 1/4.",
            1 / 4: "That is what the rank has: it has two samples.",
            1 / 12: "That is a sample of rank 0, which has three.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_step,
    "Messages, bytes, the rate and the share, within 1 %.",
    {
        "n": ("{} ranks", (4, 5, 10, 16)),
        "tensors": ("{} tensors", (12, 36, 50)),
        "parameters": ("{:,} parameters", (6_000_000, 15_000_000, 20_000_000)),
    },
)
