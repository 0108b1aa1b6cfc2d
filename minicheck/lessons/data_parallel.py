"""Graders of lesson 05: n copies that train like one.

What a wrong gradient looks like, and the models on which it goes wrong, come before the exercises.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
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
    number,
    one_of,
    ranked,
    ranks,
    recognized,
    refusal,
    ring_bytes,
    same,
    shown,
    typed,
    unchanged,
    written,
    wrong_means,
)

# ------------------------------------------------------------
# Are the gradients those of the serial program, on every rank? If not: what does the mistake look like?
#
# Also what an average may cost: by rings, 2(n−1) chunks of each tensor, rank by rank (Patarasuk and Yuan 2009).


Grads = dict[str, Tensor | None]
NAN = (
    "There is nan in it. Was something sent that nobody had written? nan · 0 is nan, and so is nan + 1: a gradient that "
    "must not count has to be set to zeros before it is sent."
)


def same_gradients(found: list, whole: Grads, mistakes, otherwise: str = UNKNOWN) -> None:
    """Raise Wrong unless every rank found the serial program's gradients, all ranks the same bit for bit.

    mistakes: (rank, name, got) → what a wrong gradient may be.
    """
    for r, got in enumerate(found):
        if not isinstance(got, dict) or got.keys() != whole.keys():
            raise Wrong(f"rank {r}: the module no longer has the parameters that it had.")
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
            raise Wrong(
                f"{what} has numbers in it, but no sample reaches this parameter, or it is frozen."
            )
        return
    if got is None:
        raise Wrong(
            f"{what} is None. Was it cleared? Or does no sample of this rank reach the "
            "parameter? Then it counts as zeros, and is replaced by the average like all others."
        )
    close(got, want, what, lambda got: NAN if got.isnan().any() else mistakes(got), otherwise)


def usual(rank: int, own: list[Tensor], sent: int) -> dict[str, Tensor]:
    """What a wrong average of the ranks' own gradients may be. sent: bytes that this rank sent."""
    hint = "something was sent, but is it p.grad that you average, in place?"
    return wrong_means(rank, own, hint * (sent > 0))


def untouched(outcome: Outcome, before: dict[str, Tensor], what: str) -> None:
    """Raise Wrong if weights or buffers are not what they were, on any rank."""
    for (r, got), (name, x) in product(enumerate(outcome.results), before.items()):
        if not equal(got["state"].get(name), x):
            raise Wrong(f"rank {r}: {name} itself was changed. {what}")


def cheap(
    outcome: Outcome,
    n: int,
    tensors: list[Tensor],
    others: list[Tensor],
    extra: int = 0,
    twice: str = "Is something averaged twice, such as a shared parameter, or does everybody gather everything?",
) -> None:
    """Raise Costly if a rank sends more than one average of `tensors` needs, and `extra` bytes.

    others: parameters that need no average.  twice: what to say of one that sends too much.
    """
    most, idle = ring_bytes(tensors, n) + extra, ring_bytes(others, n)
    for r in range(n):
        sent = outcome.nbytes(r)
        if sent <= most:
            continue
        text = f"the numbers are right, but rank {r} sends {sent} bytes, and 2(n−1)/n·N = {most} are enough."
        if idle and sent >= most + idle // 2:
            raise Costly(f"{text} Are frozen parameters averaged, too?")
        star = [s for s in range(n) if outcome.nbytes(s) < sent]
        if n > 2 and star:
            raise Costly(f"{text} Rank {star[0]} sends less: is rank {r} the centre of a star?")
        raise Costly(f"{text} {twice}")


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


class Mixed(Plain):
    """The parameters of one layer are float32 and those of the others float64, in which all of them compute."""

    def __init__(self, width: int):
        super().__init__(width)
        self.insert(1, nn.Linear(width, width))

    def to(self, dtype: torch.dtype):
        super().to(dtype)
        self[1].float()
        return self

    def forward(self, x):
        first, low, tanh, last = self
        hidden = first(x)
        return last(tanh(hidden @ low.weight.to(x.dtype).t() + low.bias.to(x.dtype)))


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
    "mixed": Mixed,
    "buffers": Buffers,
    "nan": Plain,
}
WORDS = {
    "plain": "two layers",
    "routed": "a layer that only one rank uses",
    "frozen": "a frozen layer",
    "tied": "two layers with one matrix",
    "unused": "a layer that no rank uses",
    "mixed": "layers of two dtypes",
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
    like = state(MODELS[kind](width).to(dtype))
    return Model(kind, width, {name: _random(t, rng) for name, t in like.items()})


def _random(like, rng):
    if not like.is_floating_point():
        return torch.randint(2**53, 2**60, like.shape, generator=rng)
    return normal(rng, like.shape).to(like.dtype)


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
STAY = "Only the gradients, p.grad, are to be averaged."


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
    cases, processes = cases(tuple(WORDS)), processes("routed", "mixed")
    right = (
        "Tried on 1 to 5 ranks with 8 models, then in 2 and 3 real processes: the gradients are those of the serial program, "
        "the same bit for bit on all ranks, in 2(n−1)/n·N bytes per rank and 2(n−1) messages for each dtype."
    )

    def run(self, comm, yours, kind, width, values, x, y):
        module = Model(kind, width, values).build()
        mse_loss(module(x), y).backward()
        yours(comm, module)
        return {"grads": grads(module), "state": state(module), "open": left_open(comm)}

    def judge(self, case, args, outcome):
        super().judge(case, args, outcome)
        tensors = trainable(Model(*args[0][:3]))
        dtypes = len({x.dtype for x in tensors})
        most = 2 * (case.n - 1) * dtypes
        for r in range(case.n):
            sent = outcome.messages(r)
            if sent > most:
                each = " Is there an all-reduce for each parameter?" * (len(tensors) > dtypes)
                raise Costly(
                    f"the numbers are right, but rank {r} sends {sent} messages, and {most} are enough: 2(n−1) for each "
                    f"dtype, however many gradients there are.{each} Gradients of one dtype can travel in one buffer."
                )


class AverageHooks(ReplicaExam):
    """`average_hooks(comm, module)`: registers hooks, so that every backward averages the gradients."""

    name = "average_hooks"
    right = (
        "Tried on 1 to 5 ranks with 7 models, then in 2 and 3 real processes: three backwards are those of the serial "
        "program, the third on top of the second, with 2(n−1)/n·N bytes per rank and backward."
    )
    cases = cases(("plain", "routed", "frozen", "unused", "tied", "buffers", "nan"))
    processes = processes("routed", "buffers")
    steps = tuple(slice(first, first + 3) for first in (0, 3, 6))  # the samples of three backwards

    def mine(self, case, rank, rng, dtype):
        return self.spoilt(case.given, rank, samples(9, rank, rng, dtype, self.user))

    def run(self, comm, yours, kind, width, values, x, y):
        module, found = Model(kind, width, values).build(), []
        yours(comm, module)
        for step in self.steps:
            mse_loss(module(x[step]), y[step]).backward()
            found.append({name: g if g is None else g.clone() for name, g in grads(module).items()})
            if len(found) == 1:
                after = {k: v.detach().clone() for k, v in state(module).items()}
                step_(module)  # the third backward adds to what the second has left
        return {"grads": found, "state": after, "open": left_open(comm)}

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        untouched(outcome, model.values, STAY)
        left: dict[str, Tensor] = {}  # what a backward adds to, on all ranks
        for i, step in enumerate(self.steps):
            parts = [(x[step], y[step]) for *_, x, y in args]
            whole = gradient(model, *together(parts))
            for name, g in left.items():
                whole[name] = g if whole[name] is None else g + whole[name]
            found = [got["grads"][i] for got in outcome.results]
            same_gradients(found, whole, partial(self._looks, model, parts, outcome, i, left))
            if i:
                left = {name: g for name, g in found[0].items() if g is not None}
            else:
                module = model.build()
                for name, p in module.named_parameters():
                    p.grad = found[0][name]
                step_(module)
                model = model._replace(values={k: x.detach() for k, x in state(module).items()})
        count = len(self.steps)
        twice = "Is something averaged twice: a tied parameter, or everything, once for each hook?"
        cheap(outcome, case.n, count * trainable(model), count * frozen(model), twice=twice)

    def _looks(self, model, parts, outcome, step, left, rank, name, got):
        mine = filled(model, parts, name)
        hint = f"Backward {step + 1}: no hook was called, or it changed nothing."
        if outcome.nbytes(rank) and not step:
            hint = "Is it p.grad that is averaged, in place, at the end of every backward?"
        looks = {}
        if name in left:
            adds = "Nobody has cleared the gradients before backward 3: it adds to those of backward 2."
            new, kept = sum(mine) / len(mine), sum(bool(g.any()) for g in mine) / len(mine)
            looks = {
                f"{adds} That is its own mean alone.": new,
                f"{adds} A rank that it does not reach keeps what it had, and does not set it to zero.": kept
                * left[name]
                + new,
            }
            mine = [left[name] + g for g in mine]
        return (
            looks
            | {f"It is rank {rank}'s own, not the average. {hint}": mine[rank]}
            | usual(rank, mine, 0)
        )


@torch.no_grad()
def step_(module: torch.nn.Module) -> None:
    """A step of SGD with rate 0.1, and no gradients afterwards."""
    for p in module.parameters():
        if p.grad is not None:
            p -= 0.1 * p.grad
        p.grad = None


# ------------------------------------------------------------
# Batches: every rank's part of them.


class MyBatches(Exam):
    """`my_batches(comm, order, batch, done)`: this rank's part of every batch that is still to come, a list. No messages."""

    name = "my_batches"
    right = (
        "Tried on 1 to 5 ranks with epochs of 11 sizes, then in 2 and 3 real processes: the parts of all ranks are the "
        "batches from sample `done` on, the last one is filled up, and uneven batches are refused."
    )
    forbidden = ReplicaExam.forbidden
    # samples of an epoch, samples of a rank, what makes the batch uneven, samples that are done
    sizes = (
        (24, 2, 0, 0),
        (25, 3, 0, 0),
        (4, 5, 0, 0),
        (31, 2, 0, 7),
        (0, 1, 0, 0),
        (61, 4, 0, 23),
        (17, 2, 0, 17),
        (19, 3, 0, 18),
        (20, 2, 1, 0),
        (24, 1, -1, 5),
        (3, 4, 1, 3),
    )
    cases = tuple(
        Case(
            n,
            f"n = {n}, {length} samples, {done} of them done, in batches of {each * n + odd}",
            (length, each * n + odd, done),
        )
        for n, (length, each, odd, done) in product(RANKS, sizes)
        if n > 1 or not odd
    )
    processes = (
        Case(3, "3 real processes, 16 samples, 3 of them done, in batches of 6", (16, 6, 3)),
        Case(2, "2 real processes, 9 samples in batches of 4", (9, 4, 0)),
    )

    def draw(self, case, rng):
        length, batch, done = case.given
        order = torch.randperm(length + 9, generator=rng)[:length]
        return [(order, batch, done)] * case.n

    def run(self, comm, yours, order, batch, done):
        return attempt(batch % comm.size, yours, comm, order, batch, done) | {"order": order}

    def judge(self, case, args, outcome):
        order, batch, done = args[0]
        n = case.n
        for r, got in enumerate(outcome.results):
            if batch % n:
                why = (
                    f"{n} ranks cannot have equal parts of a batch of {batch}, and the mean of their gradients would "
                    "not be the batch's"
                )
                refusal(got, [batch, n], f"rank {r}: ", why)
                continue
            unchanged(got["order"], order, f"rank {r}: the order")
            parts = got["value"]
            self._counted(r, parts, len(order), batch, done)
            for b, part in enumerate(parts):
                self._part(r, part, b, order, batch // n, done, n)
        if outcome.messages():
            raise Costly(
                "the parts are right, but messages are sent: every rank has the whole order already."
            )

    def _counted(self, rank, parts, length, batch, done):
        typed(
            parts, list | tuple, f"rank {rank}: the result", "a list with a tensor for each batch"
        )
        count = -(-(length - done) // batch)
        hints = {
            (length - done) // batch: "The last batch should be filled up, not left out.",
            -(-length // batch): f"The first {done} samples are done: go on after them.",
            -(-max(0, length - done * batch) // batch): "`done` counts samples, not batches.",
        }
        if len(parts) != count:
            hint = hints.get(len(parts), "`batch` and `done` count the samples of all ranks.")
            raise Wrong(
                f"rank {rank}: the list has length {len(parts)}, and should have {count}: one part for each batch still "
                f"to come. {hint}"
            )

    def _part(self, rank, part, b, order, size, done, n):
        batch = size * n
        length = len(order)
        places = done + b * batch + torch.arange(batch)
        whole = order[places % length]
        name = f"rank {rank}: the part of batch {b}"
        if equal(part, whole) and n > 1:
            raise Wrong(f"{name} is the whole batch: each rank takes one of {n} equal parts.")
        if isinstance(part, Tensor) and len(part.shape) == 1 and len(part) < size:
            raise Wrong(
                f"{name} has length {len(part)}, and should have {size}, as on every rank. Where the order ends, the "
                "batch goes on at its beginning, and starts over as often as needed."
            )
        mine = slice(rank * size, (rank + 1) * size)
        alike(part, whole[mine], name)
        others = {
            f"The first {done} samples are done, and the batches should go on after them.": places
            - done,
            "`done` counts samples, not batches.": places - done + done * batch,
            "`done` counts the samples of all ranks together.": places - done + done * n,
            "The last batch is filled up with the last sample, again and again. It should go on at the beginning of the "
            "order.": places.clamp(max=length - 1),
            "The last batch is filled up with the samples that were left. It should go on at the beginning of the whole "
            "order.": done + (places - done) % max(1, length - done),
            "The last batch consists of the last samples of the order, so some of them were in the batch before.": places
            + min(0, length - done - (b + 1) * batch),
        }
        looks = {words: order[other[mine] % length] for words, other in others.items()}
        beyond = places[mine] >= length
        if beyond.any():
            own = torch.where(beyond, beyond.cumsum(0) - 1, places[mine]) % length
            looks[
                "Each rank fills up its own part from the first sample on: fill up the whole batch, then cut it."
            ] = order[own]
        looks |= {f"That is rank {s}'s part.": whole[s * size : (s + 1) * size] for s in range(n)}
        dealt = f"The samples are dealt out in turn, {n} apart: each rank has one piece of the batch, without gaps."
        looks[dealt] = whole[rank::n]
        strange = ~torch.isin(part, order)
        rule = "It is a different piece of the order, or its samples do not follow the order."
        if strange.any():
            rule = f"{int(strange.sum())} of its samples are not in the order at all."
        same(part, whole[mine], name, looks, rule)


# ------------------------------------------------------------
# The start: all replicas become those of the rank that is furthest. And later: which of their tensors has drifted?


HELD = {
    "kept": "the module holds different tensors than before. An optimizer or a tied layer that has the old ones is left "
    "behind: fill the tensors that are there.",
    "flags": "requires_grad was changed: what was frozen stays frozen.",
}


class StartEqual(ReplicaExam):
    """`start_equal(comm, module, steps)`: every parameter and buffer becomes that of the rank with most steps, in place."""

    name = "start_equal"
    right = (
        "Tried on 1 to 5 ranks with 8 models that start apart, then in 2 and 3 real processes: every rank has the parameters, "
        "buffers and steps of the rank with the most steps, and (n−1)(1+1/n)·N bytes are sent in all."
    )
    cases, processes = cases(tuple(WORDS)), processes("buffers", "tied")

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 else torch.float64
        first = drawn(case.given, rng, dtype)
        models = [first, *(drawn(case.given, rng, dtype, first.width) for _ in range(case.n - 1))]
        most = integer(rng, 2**40, 2**41)
        steps = [most - 1 - integer(rng, 0, 2 ** integer(rng, 1, 40)) for _ in models]
        root = one_of(case.n, rng)
        steps[root] = most
        steps[-1] = most if case.n > 3 else steps[-1]  # two that are equally far
        if case.given == "nan":
            next(iter(models[root].values.values())).view(-1)[0] = torch.nan
        return [(*model, step) for model, step in zip(models, steps, strict=True)]

    def run(self, comm, yours, kind, width, values, steps):
        module = Model(kind, width, values).build()
        before = {name: (x, x.detach()) for name, x in state(module).items()}
        flags = [p.requires_grad for p in module.parameters()]
        found = yours(comm, module, steps)
        after = state(module)
        kept = after.keys() == before.keys() and all(  # no `x.data = …`
            after[name] is x and x.data_ptr() == held.data_ptr()
            for name, (x, held) in before.items()
        )
        return {
            "steps": found,
            "state": after,
            "kept": kept,
            "flags": flags == [p.requires_grad for p in module.parameters()],
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        all_values = [values for *_, values, _ in args]
        steps = [arg[-1] for arg in args]
        root = steps.index(max(steps))
        buffers = {name for name, _ in Model(*args[0][:3]).build().named_buffers()}
        for r, got in reversed(list(enumerate(outcome.results))):  # rank 0 may have its own
            for name, want in all_values[root].items():
                values = [v[name] for v in all_values]
                looks = partial(
                    self._looks, values=values, steps=steps, rank=r, buffer=name in buffers
                )
                same(got["state"].get(name), want, f"rank {r}: {name}", looks)
            holds(got, HELD, f"rank {r}: ")
            said = number(got["steps"], f"rank {r}: the result")
            if said != max(steps):
                raise Wrong(
                    f"rank {r}: the result is {written(said)}, and should be {max(steps)}, the steps of rank {root}, "
                    "whose weights all ranks have now."
                )
        most = sum(
            (case.n**2 - 1) * -(-x.numel() // case.n) * x.element_size()
            for x in all_values[0].values()
        )
        few_in_all(
            outcome,
            most + 16 * case.n**2,
            "one broadcast of each tensor, and a number or two from each rank. Is a shared tensor sent twice? Does more "
            "than one rank send its weights?",
        )

    def _looks(self, got, values, steps, rank, buffer):
        root = steps.index(max(steps))
        kind = "a buffer: buffers must start equal, too" if buffer else "a parameter"
        looks = {}
        if steps[rank] < max(steps):  # else it has given, or thinks that it should
            own = f"It is rank {rank}'s own, as before. It is {kind}. Is it among the tensors that you send?"
            looks[own] = values[rank]
        for r, x in enumerate(values):
            if steps[r] == max(steps):
                looks[
                    f"It is rank {r}'s. Rank {root} has just as many steps, and of several ranks the lowest is copied."
                ] = x
            looks[
                f"It is rank {r}'s, which has {steps[r]} steps. Rank {root} has the most, {max(steps)}, and is copied."
            ] = x
        looks |= {
            "It is the mean over all ranks: the random weights of a new rank are of no use to one that has been "
            "trained.": sum(values) / len(values),
            "It is the sum over all ranks.": sum(values),
        }
        return recognized(
            got, looks, "It is none of the ranks' own: was it drawn anew, or overwritten?"
        )


DRIFTS = {
    "last bit": "One number differs in its last bit, which `allclose` forgives. Compare bits.",
    "swapped": "Two numbers of it have changed places, which no sum notices.",
    "cancelled": "One number of it is larger and another smaller by as much, which no sum notices.",
    "frozen": "It is frozen: what does not learn may have been different from the start.",
    "minus zero": "0.0 stands on one rank and −0.0 on another: `==` says that they are equal, and their bits are not.",
    "one integer": "One of its integers differs by 1, and no float has enough digits to show that.",
    "nan": "It is nan on one rank only.",
    "two": "It differs on one rank.",
    "unsaved": "It is a buffer that is not saved: `state_dict()` leaves it out, and `buffers()` has it.",
}


PLACES = {"frozen": "0.bias", "one integer": "steps", "unsaved": "shift"}  # else any


class FirstDifference(ReplicaExam):
    """`first_difference(comm, module)`: the name of the first tensor whose bits are not the same on all ranks, or None."""

    name = "first_difference"
    right = (
        "Tried on 1 to 5 ranks, then in 2 and 3 real processes, with equal replicas and 9 ways to drift, a single bit among "
        "them, for at most 64 bytes per rank and tensor."
    )
    kinds = (
        ("plain", "last bit"),
        ("buffers", None),
        ("nan", None),
        ("tied", "swapped"),
        ("mixed", "cancelled"),
        ("frozen", "frozen"),
        ("buffers", "one integer"),
        ("plain", "nan"),
        ("plain", "minus zero"),
        ("buffers", "two"),
        ("buffers", "unsaved"),
    )
    cases = tuple(
        Case(n, f"n = {n}, {WORDS[kind]}, {drift or 'equal replicas'}", (kind, drift))
        for n, kinds in zip(RANKS, (kinds, kinds[::3], kinds[1::3], kinds[1:3], kinds[2::3]))
        for kind, drift in kinds
    )
    processes = (
        Case(3, "3 real processes, swapped", ("plain", "swapped")),
        Case(2, "2 real processes, equal replicas", ("buffers", None)),
    )

    def draw(self, case, rng):
        kind, drift = case.given
        width = integer(rng, 40, 61)
        dtype = torch.float64
        model = drawn(kind, rng, dtype, width)
        if kind == "nan" and drift is None:
            next(iter(model.values.values())).view(-1)[0] = torch.nan
        copies = [{k: x.clone() for k, x in model.values.items()} for _ in range(case.n)]
        large = [name for name, p in model.build().named_parameters() if p.numel() > 1]
        drawn_name = large[integer(rng, 1, len(large))]
        name = PLACES.get(drift, drawn_name)
        if drift == "minus zero":
            for values in copies:
                values[name].view(-1)[0] = 0.0
        if drift:
            odd = one_of(case.n, rng)
            drift_(copies[odd][name], drift)
            if drift == "two":
                drift_(copies[odd - 1]["shift"], "last bit")
        return [(kind, width, values) for values in copies]

    def run(self, comm, yours, kind, width, values):
        module = Model(kind, width, values).build()
        found = yours(comm, module)
        return {"found": found, "state": state(module), "open": left_open(comm)}

    def judge(self, case, args, outcome):
        _, drift = case.given
        all_values = [values for *_, values in args]
        apart = [name for name in all_values[0] if not bits_alike([v[name] for v in all_values])]
        want = next(iter(apart), None)
        for r, got in enumerate(outcome.results):
            found = got["found"]
            if found is not None:
                typed(found, str, f"rank {r}: the result", "the name of a tensor, or None")
            if found != want:
                said = [other["found"] for other in outcome.results]
                told = [s for s, name in enumerate(said) if isinstance(name, str) and name == want]
                why = self._why(found, apart, drift, told)
                raise Wrong(
                    f"rank {r}: the result is {shown(found)}, and should be {want!r}. {why}"
                )
            for name, x in all_values[r].items():
                unchanged(got["state"].get(name), x, f"rank {r}: {name}")
        most = 64 * len(all_values[0])
        for r in range(case.n):
            if outcome.nbytes(r) > most:
                raise Costly(
                    f"the name is right, but rank {r} sends {outcome.nbytes(r)} bytes, and {most} are allowed, 64 for "
                    "each tensor. A digest of eight bytes stands for a tensor of any size."
                )

    def _why(self, found, apart, drift, told):
        if not apart:
            return (
                "The replicas are equal, bit for bit. Is there nan in it, which `==` says is not equal to itself? Or a "
                "digest that differs from rank to rank for another reason?"
            )
        if found is None and told:
            return (
                f"On {ranks(told)} it is right. The result must be the same everywhere: all ranks must learn of the "
                "difference, those that are equal among themselves, too."
            )
        if found is None:
            return DRIFTS[drift]
        if found in apart:
            return (
                "That tensor differs, too, but it is not the first: parameters come first, then buffers, in the module's "
                "order."
            )
        return "That tensor is the same on all ranks."


def drift_(x: Tensor, drift: str) -> None:
    """Change a tensor as a replica that has drifted."""
    flat = x.view(-1)
    if drift == "swapped":
        flat[:2] = flat[:2].flip(0)
    elif drift == "cancelled":
        flat[:2] += torch.tensor([0.5, -0.5], dtype=x.dtype)
    elif drift == "minus zero":
        flat[0] = -0.0
    elif drift == "one integer":
        flat[-1] += 1
    elif drift == "nan":
        flat[0] = torch.nan
    else:
        flat[-1] = flat[-1].nextafter(flat[-1] + 1)


def bits_alike(values: list[Tensor]) -> bool:
    return len({x.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for x in values}) == 1


# ------------------------------------------------------------
# Numbers: what a step costs, and what slips do to it.


def predict_step(n=8, tensors=24, parameters=10_000_000, each=12):
    """What a step costs, and what slips do. 8 ranks, 24 tensors, 10,000,000 parameters in float32, 12 samples a rank and batch.

    messages, nbytes: what each rank sends, one all-reduce a tensor; a quarter of the tensors, with a fifth of the
    parameters, is frozen.  saved: seconds that one buffer saves, at 5 µs a message.  rate: the learning rate that 0.1
    becomes when gradients are divided by n twice.  twice: samples that an epoch of 1,000 sees twice.
    """
    trained = tensors - tensors // 4
    size = 4 * parameters * 4 / 5
    steps = 2 * (n - 1)
    ring = steps * size / n
    rate = 0.1
    alpha = 5e-6
    batch = each * n
    over = 1000 % batch
    values = {
        "messages": steps * trained,
        "nbytes": ring,
        "saved": steps * (trained - 1) * alpha,
        "rate": rate / n,
        "twice": batch - over,
    }
    frozen = "Frozen parameters have no gradient, and none is sent."
    slips = {
        "messages": {
            steps * tensors: frozen,
            steps: "That is one all-reduce: there is one for each tensor.",
            steps * trained / 2: HALF,
            2 * n * trained: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            steps * trained * n: ALL,
        },
        "nbytes": {
            ring * 5 / 4: frozen,
            ring * 15 / 16: "A quarter of the tensors is frozen, and a fifth of the parameters.",
            ring / 4: NUMBERS,
            ring / 2: HALF,
            2 * size: "Nearly: the factor is 2(n−1)/n.",
            size: "Each rank sends nearly twice as much: the factor is 2(n−1)/n.",
            ring * n: ALL,
        },
        "saved": {
            steps * trained * alpha: "The one buffer has latencies, too.",
            steps * alpha: "That is what the one buffer takes: how much is saved?",
            steps * (tensors - 1) * alpha: frozen,
            (trained - 1) * alpha: "Each all-reduce has 2(n−1) messages, one after another.",
            steps / 2 * (trained - 1) * alpha: HALF,
        },
        "rate": {
            rate: "The gradient is divided by n once too often: it is too small.",
            rate * n: "It is the other way around: the gradient is too small.",
            rate / n**2: "Divided by n twice where it should be once: once too often.",
            1 / n: "That is a factor: which rate does it make of 0.1?",
        },
        "twice": {
            over: "That is how many new samples the last batch has: how many does it lack?",
            batch: "Some samples of the last batch are new.",
            0: "1,000 samples do not fill a whole number of batches.",
            (batch - over) / n: "Count the samples of all ranks together.",
            over / n: "Count the samples of all ranks together: how many does the last batch lack?",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_step,
    "Your messages, bytes, seconds, rate and samples are right within 1 %.",
    {
        "n": ("{} ranks", (4, 5, 10, 16)),
        "tensors": ("{} tensors", (12, 36, 48)),
        "parameters": ("{:,} parameters", (6_000_000, 15_000_000, 20_000_000)),
    },
)
