"""Recipes: how to compute a tensor again from others, operator by operator.

A `Tape` is a dispatch mode. It sees the operators of a forward below autograd and notes each one that is to be
repeated: which it is, and its operands. An operand is again a recipe, or a tensor that is kept from now on. A view of
what a recipe makes is a recipe, too, as it costs nothing. Everything else is as without a tape.

Tensors are told by the memory that they cover, as autograd and the operators hold different objects for one tensor.
Never noted: what changes an operand (so what batch norm does to its running averages is done once), what leaves memory
as it finds it (`empty`), and, unless it is named, what has no operands (a receive may fill it, unseen).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .replay import Replay

# operands, without saying so
CHANGING = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
VIEWS = {"_unsafe_view"}  # likewise
NOTED = "noted"
VIEW = "view"
CHANGES = "changes"  # what an operator is to a tape


def mapped(change: Callable, value: Any) -> Any:
    """`value` with its leaves changed. An operator's values are leaves, lists and tuples of them, keywords."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([mapped(change, v) for v in value])
    return {name: mapped(change, v) for name, v in value.items()} if kind is dict else change(value)


def leaves(value: Any) -> Iterator:
    """All that is in a value."""
    kind = type(value)
    if kind is tuple or kind is list or kind is dict:
        for v in value.values() if kind is dict else value:
            yield from leaves(v)
    else:
        yield value


class Kept(NamedTuple):
    """A tensor without its graph (which holds this), and what is needed to see that it was changed meanwhile."""

    x: Tensor
    original: ref
    version: int

    @classmethod
    def of(cls, x: Tensor) -> Kept:
        return cls(x.detach(), ref(x), x._version)

    def get(self) -> Tensor:
        """RuntimeError if it was changed in place since."""
        original = self.original()
        if original is not None and original._version != self.version:
            raise RuntimeError(
                f"a tensor {tuple(self.x.shape)} that backward computes others from was modified by an "
                f"inplace operation: its version is {original._version}, not {self.version}"
            )
        return self.x


class Made(NamedTuple):
    """Result number `index` of a node."""

    node: Node
    index: int


class Node:
    """Call number `order` of an operator. Its tensor operands are Kept or Made: they live as long as it does."""

    __slots__ = ("_args", "_kwargs", "_replay", "func", "order", "parents")

    def __init__(self, order: int, func, args: tuple, kwargs: dict, operands: list):
        self.order = order
        self.func = func
        self._args = args
        self._kwargs = kwargs
        # whose results it needs
        self.parents = tuple(dict.fromkeys(o.node for o in operands if type(o) is Made))
        self._replay = (
            Replay.bare(leaves((args, kwargs)))
            if torch.Tag.nondeterministic_seeded in func.tags
            else None
        )

    def run(self, results: dict[Node, list]) -> list:
        """Its results, from those of its parents."""

        def value(leaf):
            kind = type(leaf)
            return (
                results[leaf.node][leaf.index]
                if kind is Made
                else leaf.get()
                if kind is Kept
                else leaf
            )

        args, kwargs = mapped(value, self._args), mapped(value, self._kwargs)
        if self._replay is None:
            return list(leaves(self.func(*args, **kwargs)))
        with self._replay.again():
            return list(leaves(self.func(*args, **kwargs)))


def uses(repeated: Callable) -> Callable[[Any], str | None]:
    """A function that says of an operator what a tape does with it; `repeated(func)`: whether it is to be noted."""

    @functools.cache
    def use(func) -> str | None:
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            return CHANGES
        if name in CHANGING or name.removeprefix("new_").startswith("empty"):
            return None
        return VIEW if func.is_view or name in VIEWS else NOTED if repeated(func) else None

    return use


class Tape(TorchDispatchMode):
    """Notes the operators that `use` says; with `factories` also those without operands."""

    def __init__(self, use: Callable[[Any], str | None], factories: bool):
        super().__init__()
        self._use = use
        self._factories = factories
        self._count = 0
        self._known: dict[int, tuple[ref, dict[tuple, Made]]] = {}  # storage -> what it holds

    def find(self, x: Tensor) -> Made | None:
        """The recipe of `x`, if there is one."""
        storage = x.untyped_storage()
        alive, made = self._known.get(storage._cdata, (None, {}))
        return made.get(_covers(x)) if alive is not None and alive() is not None else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        use = self._use(func)
        node = self._noted(func, use, args, kwargs) if use in (NOTED, VIEW) else None
        out = func(*args, **kwargs)
        if node is not None:
            for index, y in enumerate(leaves(out)):
                if isinstance(y, Tensor):
                    self._remember(y, Made(node, index))
        elif use is CHANGES:
            for x in leaves((args, kwargs)):
                if isinstance(x, Tensor):
                    # its recipe gives what it was before
                    self._known.pop(x.untyped_storage()._cdata, None)
        return out

    def _noted(self, func, use: str, args: tuple, kwargs: dict) -> Node | None:
        """The node of a call, if it is one to note: a view is, of what has a recipe."""
        operands: list[Made | Kept] = []
        if use is VIEW and not any(isinstance(x, Tensor) and self.find(x) for x in leaves(args)):
            return None

        def operand(x):
            if not isinstance(x, Tensor):
                return x
            operands.append(self.find(x) or Kept.of(x))
            return operands[-1]

        args, kwargs = mapped(operand, args), mapped(operand, kwargs)
        if not operands and not self._factories:
            return None
        self._count += 1
        return Node(self._count, func, args, kwargs, operands)

    def _remember(self, y: Tensor, made: Made) -> None:
        storage = y.untyped_storage()
        alive, known = self._known.get(storage._cdata, (None, None))
        if alive is None or alive() is None:
            known = {}
            self._known[storage._cdata] = ref(storage), known
        known[_covers(y)] = made


def _covers(x: Tensor) -> tuple:
    return x.storage_offset(), x.shape, x.stride(), x.dtype
