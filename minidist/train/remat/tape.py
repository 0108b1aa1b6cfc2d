"""Recipes: how to compute a tensor again from others, operator by operator.

A `Tape` is a dispatch mode. It sees the operators of a forward below autograd and notes each one that is to be
repeated: which it is, and its operands. An operand is again a recipe, or a tensor that is kept from now on. A view of
what a recipe makes is a recipe, too, as it costs nothing. Everything else is as without a tape.

Tensors are told by the memory that they cover, as autograd and the operators hold different objects for one tensor.
Never noted: what changes an operand (so what batch norm does to its running averages is done once), what leaves memory
as it finds it (`empty`), and, unless it is named, what has no operands (a receive may fill it, unseen).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .replay import Replay

CHANGING = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}  # operands, without saying so
VIEWS = {"_unsafe_view"}  # likewise


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
            raise RuntimeError(f"a tensor {tuple(self.x.shape)} that backward computes others from was modified by an "
                               f"inplace operation: its version is {original._version}, not {self.version}")
        return self.x


class Made(NamedTuple):
    """Result number `index` of a node."""

    node: Node
    index: int


class Node:
    """Call number `order` of an operator. Its tensor operands are Kept or Made: they live as long as it does."""

    __slots__ = ("_leaves", "_replay", "_spec", "func", "order")

    def __init__(self, order: int, func, leaves: list, spec):
        self.order, self.func, self._leaves, self._spec = order, func, leaves, spec
        self._replay = Replay.bare(leaves) if torch.Tag.nondeterministic_seeded in func.tags else None

    def parents(self) -> list[Node]:
        """The nodes that it needs the results of."""
        return list(dict.fromkeys(leaf.node for leaf in self._leaves if isinstance(leaf, Made)))

    def run(self, results: dict[Node, list]) -> list[Tensor]:
        """Its results, from those of its parents."""
        leaves = [results[leaf.node][leaf.index] if isinstance(leaf, Made)
                  else leaf.get() if isinstance(leaf, Kept) else leaf for leaf in self._leaves]  # fmt: skip
        args, kwargs = tree_unflatten(leaves, self._spec)
        if self._replay is None:
            return tree_flatten(self.func(*args, **kwargs))[0]
        with self._replay.again():
            return tree_flatten(self.func(*args, **kwargs))[0]


class Tape(TorchDispatchMode):
    """Notes the operators for which `repeated(func)` holds; with `factories` also those without operands."""

    def __init__(self, repeated: Callable, factories: bool):
        super().__init__()
        self._repeated, self._factories, self._count = repeated, factories, 0
        self._known: dict[int, tuple[ref, dict[tuple, Made]]] = {}  # storage -> what it holds

    def find(self, x: Tensor) -> Made | None:
        """The recipe of `x`, if there is one."""
        storage = x.untyped_storage()
        alive, made = self._known.get(storage._cdata, (None, {}))
        return made.get(_covers(x)) if alive is not None and alive() is not None else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves, spec = tree_flatten((args, kwargs or {}))
        operands = [self.find(x) or Kept.of(x) if isinstance(x, Tensor) else x for x in leaves]
        node = Node(self._count, func, operands, spec) if self._notes(func, operands) else None
        out = func(*args, **(kwargs or {}))
        if node is not None:
            self._count += 1
            for index, y in enumerate(tree_flatten(out)[0]):
                if isinstance(y, Tensor):
                    self._remember(y, Made(node, index))
        elif func._schema.is_mutable:
            for x in leaves:
                if isinstance(x, Tensor):
                    self._known.pop(x.untyped_storage()._cdata, None)  # its recipe gives what it was before
        return out

    def _notes(self, func, operands: list) -> bool:
        name = func.overloadpacket.__name__
        if func._schema.is_mutable or name in CHANGING or name.removeprefix("new_").startswith("empty"):
            return False
        if func.is_view or name in VIEWS:
            return any(isinstance(operand, Made) for operand in operands)
        return self._repeated(func) and (self._factories or any(isinstance(o, (Kept, Made)) for o in operands))

    def _remember(self, y: Tensor, made: Made) -> None:
        storage = y.untyped_storage()
        alive, known = self._known.get(storage._cdata, (None, None))
        if alive is None or alive() is None:
            known = {}
            self._known[storage._cdata] = ref(storage), known
        known[_covers(y)] = made


def _covers(x: Tensor) -> tuple:
    return x.storage_offset(), x.shape, x.stride(), x.dtype
