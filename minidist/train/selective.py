"""Selective recomputation: of what an operator list names, nothing is kept; all else is as ever.

    core = selective(ATTENTION)              what these operators make is computed again
    y = core(layer, x)                       instead of layer(x)

In a transformer the scores of attention, their softmax and its dropout are most of what is kept, and cheap to compute
again from queries and keys: 5as/h of sbh(34 + 5as/h) bytes, for 4bs²h of about 72bsh² FLOPs of a layer's step (twice as
many with the product that gives the scores' own gradient). `checkpoint` would give up all of it and repeat all of it.

No function runs twice. While forward runs, a dispatch mode sees its operators below autograd, and writes a recipe for
each tensor that is not to be kept: the operator, and its operands, each of which has a recipe, too, or is kept. Backward
calls the operators again, in the order of forward, and only those that lead to a tensor that it needs:

    q, k (kept) ──bmm──▶ scores ──softmax──▶ p ──dropout──▶ d        p and d are saved: their recipes go back to q and k

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from .remat import RandomState, Slot, Slots

aten = torch.ops.aten
ATTENTION = (
    aten.ones,
    aten.triu,
    aten.bmm,
    aten.mul,
    aten.masked_fill,
    aten._softmax,
    aten.native_dropout,
)
"""What written-out attention does between queries, keys and values, and its result."""

BATCH_NORMS = {aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm}
"""They change their running averages, which their schemas do not tell."""


def selective(ops: Iterable, save: bool = False) -> Callable:
    """A form of checkpointing: `form(fn, *inputs, **kwargs)` is `fn(*inputs, **kwargs)`, with less kept for backward.

    ops: operators, as `torch.ops.aten.bmm` or `.bmm.default`, whose results backward computes again; their operands
    are kept instead, unless they are computed again themselves. So name all between two tensors that are small.
    save: True for the other way round: their results are kept, and those of all other operators computed again.
    Gradients are the same bit for bit. A result of a listed operator must not be filled by a receive: no operator
    tells. Raises TypeError for what is no operator, and in backward RuntimeError if an operand was changed in place
    since.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train import selective
    >>> def program(comm, ops):
    ...     form, y = selective(ops), torch.ones(250, requires_grad=True)  # 1,000 bytes
    ...     for _ in range(8):
    ...         y = form(lambda x: x.sin().sin().sin().sin(), y)
    ...     y.sum().backward()
    >>> for ops in ([], [torch.ops.aten.sin]):
    ...     kept = World(1, meter=True).run(program, ops).trace.memory[0].at_peak["activations"]
    ...     print(round(kept, -3))  # of each layer 4 inputs of sin, or the layer's own
    32000
    8000
    """
    named = {getattr(op, "overloadpacket", op) for op in ops}
    for op in named:
        if not isinstance(op, torch._ops.OpOverloadPacket):
            raise TypeError(f"an operator is named as torch.ops.aten.bmm, not by {op!r}")

    def form(fn: Callable, *inputs, **kwargs) -> Any:
        if not torch.is_grad_enabled():
            return fn(*inputs, **kwargs)
        recorder = Recorder(named, save)
        slots = Slots(fill_by_recipes)

        def pack(x: Tensor) -> Kept | Slot:
            made = recorder.find(x)
            return Kept(x) if made is None else slots.add(made)

        def unpack(kept: Kept | Slot) -> Tensor:
            return kept.get() if isinstance(kept, Kept) else slots.read(kept)

        with saved_tensors_hooks(pack, unpack), recorder:
            return fn(*inputs, **kwargs)

    return form


class Kept:
    """A tensor without its graph, which holds this, and what tells whether it was changed meanwhile.
    `get()` returns it; RuntimeError if the tensor was changed in place since.

    >>> import torch
    >>> from minidist.train.selective import Kept
    >>> x = torch.ones(2)
    >>> kept = Kept(x)
    >>> torch.equal(kept.get(), x)
    True
    >>> _ = x.add_(1)
    >>> kept.get()
    Traceback (most recent call last):
    RuntimeError: a tensor (2,) that backward computes others from was modified by an inplace operation...
    """

    def __init__(self, x: Tensor):
        self.x = x.detach()
        self.original = weakref.ref(x)
        self.version = x._version

    def get(self, results: dict | None = None) -> Tensor:
        original = self.original()
        if original is not None and original._version != self.version:
            raise RuntimeError(
                f"a tensor {tuple(self.x.shape)} that backward computes others from was modified by an "
                f"inplace operation: its version is {original._version}, not {self.version}"
            )
        return self.x


class Made(NamedTuple):
    """Result `number` of a call."""

    call: Call
    number: int

    def get(self, results: dict[Call, list]) -> Tensor:
        return results[self.call][self.number]


class Call:
    """Call number `order` of an operator. The tensors among its operands are Kept or Made, by `parents`."""

    def __init__(self, order: int, func, args: tuple, kwargs: dict, parents: dict, random):
        self.order = order
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.parents = parents
        self.random = random

    def run(self, results: dict[Call, list]) -> list:
        """Its results, from those of its parents."""

        def value(leaf):
            return leaf.get(results) if type(leaf) in (Kept, Made) else leaf

        args, kwargs = mapped(value, self.args), mapped(value, self.kwargs)
        with self.random.again() if self.random else nullcontext():
            return as_list(self.func(*args, **kwargs))


class Recorder(TorchDispatchMode):
    """Writes the recipes of one forward: for the results of the operators `named`, or with `save` of all but these.

    A view of what a recipe makes gets a recipe, too, as it costs nothing. None is written for what changes an operand,
    for what leaves memory as it finds it (`empty`), and, unless it is named, for what has no operands, as a receive may
    fill it, unseen. A tensor is recognized by the memory that it covers, because autograd and the operators hold
    different objects for one tensor.
    """

    def __init__(self, named: set, save: bool):
        super().__init__()
        self.named = named
        self.save = save
        self.count = 0
        self.recipes: weakref.WeakKeyDictionary[torch.UntypedStorage, dict[tuple, Made]]
        self.recipes = weakref.WeakKeyDictionary()  # of a storage, by what is covered of it

    def find(self, x: Tensor) -> Made | None:
        """The recipe of `x`, if there is one."""
        return self.recipes.get(x.untyped_storage(), {}).get(covered(x))

    def forget(self, leaf: Any) -> None:
        if isinstance(leaf, Tensor):
            self.recipes.pop(leaf.untyped_storage(), None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            mapped(self.forget, (args, kwargs))  # the recipes of what it was before
            return func(*args, **kwargs)
        call = self.note(func, args, kwargs)
        results = func(*args, **kwargs)
        if call is not None:
            for number, y in enumerate(as_list(results)):
                if isinstance(y, Tensor):
                    made = self.recipes.setdefault(y.untyped_storage(), {})
                    made[covered(y)] = Made(call, number)
        return results

    def note(self, func, args: tuple, kwargs: dict) -> Call | None:
        """The call, if its results are to have recipes."""
        op = func.overloadpacket
        view = func.is_view or op is aten._unsafe_view
        if op in BATCH_NORMS or op.__name__.removeprefix("new_").startswith("empty"):
            return None
        if not view and (op in self.named) is self.save:
            return None
        operands: list[Kept | Made] = []

        def operand(leaf):
            if isinstance(leaf, Tensor):
                leaf = self.find(leaf) or Kept(leaf)
                operands.append(leaf)
            return leaf

        args, kwargs = mapped(operand, args), mapped(operand, kwargs)
        parents = dict.fromkeys(leaf.call for leaf in operands if isinstance(leaf, Made))
        if view and not parents or op not in self.named and not operands:
            return None
        random = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            random = RandomState([kwargs.get("generator")])
        self.count += 1
        return Call(self.count, func, args, kwargs, parents, random)


def mapped(change: Callable, value: Any) -> Any:
    """`value` with `change` made to each value in it, also in lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return type(value)([mapped(change, v) for v in value])
    if type(value) is dict:
        return {name: mapped(change, v) for name, v in value.items()}
    return change(value)


def as_list(results: Any) -> list:
    return list(results) if isinstance(results, list | tuple) else [results]


def covered(x: Tensor) -> tuple:
    return x.storage_offset(), x.shape, x.stride(), x.dtype


def fill_by_recipes(slots: list[Slot | None]) -> None:
    """Run the calls that lead to a slot that is still there; what no other call needs is let go."""
    wanted: dict[Call, list[Slot]] = {}
    for slot in slots:
        if slot is not None:
            wanted.setdefault(slot.label.call, []).append(slot)
    calls = with_parents(wanted)
    last_use = {used: call for call in calls for used in (call, *call.parents)}
    results: dict[Call, list] = {}
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C.DisableTorchFunction():
        for call in calls:
            results[call] = call.run(results)
            for slot in wanted.get(call, ()):
                slot.value = slot.label.get(results)
            for used in (call, *call.parents):
                if last_use[used] is call:
                    del results[used]


def with_parents(wanted: Iterable[Call]) -> list[Call]:
    """These calls and all that they need, in the order of forward."""
    needed = set()
    waiting = list(wanted)
    while waiting:
        call = waiting.pop()
        if call not in needed:
            needed.add(call)
            waiting += call.parents
    return sorted(needed, key=lambda call: call.order)
