"""The exercise of lesson 14 about a store of versions: what it hands out, and how many versions it keeps alive.

Versions are counted by the memory of tensors of the weights' shape, whoever holds them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidist.comm.base import Comm

from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..pipelines.words import said
from ..wrong import Wrong
from .oracle import before, updated
from .orders import FORBIDDEN

SHAPE = (23, 3)  # nothing else has this shape
LATE = ("F0", "F1", "B1", "U1", "F2", "B2", "U2", "F3", "B0", "U0", "B3", "U3")


class Made(TorchDispatchMode):
    """Notes what is made as large as the weights; `alive()` counts what is still held, but for the caller's own."""

    def __init__(self, given: list[Tensor]):
        super().__init__()
        self.size, self.made = given[0].numel(), {}
        self.given = {x.untyped_storage()._cdata for x in given}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if (
                isinstance(x, Tensor)
                and x.numel() >= self.size
                and x.untyped_storage()._cdata not in self.given
            ):
                storage = x.untyped_storage()
                copies = storage.nbytes() // (self.size * x.itemsize)
                self.made[storage._cdata] = StorageWeakRef(storage), copies
        return out

    def alive(self) -> int:
        """How many weights have room in the memories that are held, however many tensors stand in each."""
        return sum(copies for memory, copies in self.made.values() if not memory.expired())


class Store(Exam):
    name = "store"
    right = "lists of 1 to 6 stages: a backward has its forward's weights, no version is changed or kept too long."
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        *(
            Case(1, f"stage {s} of {said(S, M)}, an update every {every}", (s, S, M, every))
            for s, S, M, every in (
                (0, 2, 4, 1),
                (0, 1, 3, 1),
                (2, 3, 4, 1),
                (0, 4, 9, 1),
                (1, 4, 8, 2),
                (2, 6, 14, 1),
            )
        ),
        Case(1, "a list in which micro-batch 0 goes back late", None),
    )

    def draw(self, case, rng):
        row = updated("1f1b", *case.given) if case.given else [*LATE]
        rate = (1 + int(torch.randint(7, (), generator=rng))) / 8
        drawn = lambda: torch.randn(SHAPE, generator=rng, dtype=torch.float64)
        return [(row, drawn(), [drawn() for word in row if word[0] == "U"], rate)]

    def run(self, comm: Comm, yours, row, weight, grads, rate):
        mine = weight.clone()
        steps = [g.clone() for g in grads]
        seen = []
        counts = []
        with Made([mine, *steps]) as made:
            for found in walk(yours(mine), row, steps, rate):
                seen.append(copied(found))
                del found
                counts.append(made.alive())
        return {
            "seen": seen,
            "counts": counts,
            "weight": mine,
            "grads": steps,
            "changed": changed(yours, row, weight, grads, rate),
            "mixed": mixed(yours, row, weight, grads, rate),
        }

    def judge(self, case, args, outcome):
        (row, weight, grads, rate), got = args[0], outcome.results[0]
        made = [weight]
        for g in grads:
            made.append(made[-1] - rate * g)
        used, now = before(row, "F"), 0
        for i, (word, found) in enumerate(zip(row, got["seen"], strict=True)):
            m = int(word[1:])
            now += word[0] == "U"
            if word[0] in "FB":
                where = f"action {i}, {word}"
                self._handed(where, found, made, used[m], now, word[0], rate)
        if not got["weight"].equal(weight):
            raise Wrong(
                "the tensor that was given was changed, and belongs to the caller: an update makes a new one."
            )
        if not all(map(torch.equal, got["grads"], grads)):
            raise Wrong("a gradient was changed by `update`, and belongs to the caller.")
        if got["changed"]:
            raise Wrong(
                f"when {got['changed']} comes, the tensor that F{got['changed'][1:]} got has other numbers. "
                "Autograd holds this very tensor until then: make the next version elsewhere."
            )
        if got["mixed"]:
            raise Wrong(
                f"two stores, used in turn: {got['mixed']} of one returns other weights than its forward had. "
                "Each store has versions of its own."
            )
        self._counted(row, used, got["counts"])

    def _handed(
        self, where: str, found, made: list[Tensor], want: int, now: int, kind: str, rate: float
    ) -> None:
        if isinstance(found, str):
            raise Wrong(
                f"{where}: it returns {found}, and should return the weights, a tensor of shape {SHAPE}."
            )
        found = torch.tensor(found, dtype=torch.float64)
        if near(found, made[want]):
            return
        step = made[0] - made[min(1, len(made) - 1)]
        looks = {f"version {k}.": w for k, w in reversed([*enumerate(made)])}
        looks["those of an update without the rate."] = made[0] - step / rate
        looks["those of an update that climbs: subtract the gradient."] = made[0] + step
        which = next((k for k, w in enumerate(made) if near(found, w)), None)
        text = next(
            (text for text, w in looks.items() if near(found, w)),
            "no version that there ever was. Is a "
            "tensor changed in place that others need, or a gradient not added to the newest?",
        )
        late = kind == "B" and which == now
        hint = " That is the newest: backward needs the weights of its forward." if late else ""
        raise Wrong(f"{where}: the weights should be version {want}, and are {text}{hint}")

    def _counted(self, row: list[str], used: list[int], counts: list[int]) -> None:
        """Raise Wrong if more versions are alive than are needed, or fewer: then some are kept where none looks."""
        last = {used[int(word[1:])]: i for i, word in enumerate(row) if word[0] == "B"}
        now = 0
        for i, (word, count) in enumerate(zip(row, counts, strict=True)):
            now += word[0] == "U"
            need = {now} | {v for v, at in last.items() if v < now and at > i}
            text = f"after action {i}, {word}, of {' '.join(row)}, versions needed: {len(need)}, alive: {count}: "
            if count > len(need):
                raise Wrong(
                    f"{text}the newest, and those of backwards still to come. A version is made by an "
                    "update, not for each micro-batch, and goes with its last backward."
                )
            if count < len(need - {0}):  # version 0 is the caller's tensor
                raise Wrong(
                    f"{text}keep versions as the tensors they are, not as a copy in another form."
                )


def walk(store, row: list[str], grads: list[Tensor], rate: float):
    """What a store returns, action by action; None for an update."""
    steps = iter(grads)
    for word in row:
        if word[0] == "U":
            store.update(next(steps), rate)
            yield None
        else:
            yield (store.forward if word[0] == "F" else store.backward)(int(word[1:]))


def changed(yours, row: list[str], weight: Tensor, grads: list[Tensor], rate: float) -> str:
    """The first backward at which the tensor that its forward got is not what it was; "" if there is none."""
    held = {}
    for word, found in zip(row, walk(yours(weight.clone()), row, [g.clone() for g in grads], rate)):
        if word[0] == "F":
            held[word[1:]] = found, copied(found)
        elif word[0] == "B" and copied(held[word[1:]][0]) != held.pop(word[1:])[1]:
            return word
    return ""


def mixed(yours, row: list[str], weight: Tensor, grads: list[Tensor], rate: float) -> str:
    """The first backward that gets other weights than its forward, where another store does the same; or ""."""
    had, others = {}, walk(yours(-weight), row, grads, rate)
    for word, found in zip(row, walk(yours(weight.clone()), row, grads, rate)):
        if word[0] == "F":
            had[word[1:]] = copied(found)
        elif word[0] == "B" and copied(found) != had[word[1:]]:
            return word
        next(others)
    return ""


def copied(found) -> list | str:
    """The numbers that were returned; what has none, in words."""
    if isinstance(found, Tensor) and found.shape == SHAPE:
        return found.tolist()
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return "None" if found is None else f"something of type {type(found).__name__}"


def store(yours) -> None:
    """`Store(weight)`: `.forward(m)`, `.backward(m)` and `.update(grad, rate)` of a stage's weights in versions."""
    ask(Store(), yours)
