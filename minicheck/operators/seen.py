"""What an answer makes, keeps and multiplies, in a process of its own, where numbers exist for the meter alone.

Problem: a dispatch mode sees PyTorch's operators, but an answer may switch it off, start a thread, or go to numpy.
Idea: the answer gets meta tensors, which have no numbers. The mode has those, a memory for each meta storage, and does
every operator on them. What is computed out of its sight is computed on nothing.

Storages are counted once, however many tensors view them, and only those that the answer's operators made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from minidist.comm.charge.flops import operator, tensors

LEAVES = "_local_scalar_dense"  # `x.item()`, `float(x)`, `if x:`
NO_NUMBERS = ("meta", "unallocated")  # what PyTorch says where numpy, or a list, wants numbers


class Unseen(ValueError):
    """Something was not done by PyTorch's operators, before the meter's eyes."""


class Memory(NamedTuple):
    """The numbers of a meta storage, which is alive until `of` has expired. made: bytes, 0 if it was given."""

    of: StorageWeakRef
    numbers: UntypedStorage
    made: int


class Seen(TorchDispatchMode):
    """flops: of products.  edge: the largest extent of a product's matrix.  largest: bytes of the largest storage made.
    peak: of all alive at once.  names: of operators.  left: numbers that were taken out of tensors, of which so many
    may_leave.  shapes: of what was made.  readings: the places in `given` of the tensors that were read, in turn."""

    def __init__(self, given: list[Tensor]):
        super().__init__()
        self.flops = self.edge = self.largest = self.peak = self.left = 0
        self.names: set[str] = set()
        self.shapes: set[tuple[int, ...]] = set()
        self.readings: list[int] = []
        self._memory: dict[int, Memory] = {}
        self.given = [self.give(x) for x in given]
        self.may_leave = max(16, sum(x.numel() for x in given) // 4)
        self._places = {x.untyped_storage()._cdata: i for i, x in enumerate(self.given)}

    def ask(self, yours: Callable, *args: Any) -> Any:
        """The answer's result for tensors of `given`. Unseen where it wants their numbers elsewhere."""
        try:
            with self, _Lists(self):
                return yours(*args)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            if not any(word in str(error) for word in NO_NUMBERS):
                raise
            told = (
                "numbers leave PyTorch here: compute with its operators alone, which the meter sees"
            )
            raise Unseen(told).with_traceback(error.__traceback__) from error

    def give(self, x: Tensor) -> Tensor:
        """A meta tensor with the numbers of `x`, for the answer; nobody else holds it."""
        return self._meta(x, {}, made=False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, known = kwargs or {}, operator(func)
        if known.composite:  # in inference mode operators arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:  # numbers stay where they are
            return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = kwargs | {"device": "cpu"}
        read = [x for x in tensors((args, *kwargs.values())) if x.is_meta]
        real = {id(x): self._real(x) for x in read}
        numbers = lambda x: real.get(id(x), x)
        given, options = (
            _mapped(args, numbers),
            {key: _mapped(value, numbers) for key, value in kwargs.items()},
        )
        found = func(*given, **options)
        self._count(known, read, given, options, found)
        same = {id(real[id(x)]): x for x in read}  # what is changed in place is returned
        homes = {real[id(x)].untyped_storage()._cdata: x for x in read}
        out = _mapped(
            found, lambda y: same[id(y)] if id(y) in same else self._meta(y, homes, made=True)
        )
        self.peak = max(self.peak, self.alive())
        return out

    def _count(self, known, read: list[Tensor], args: tuple, kwargs: dict, out: Any) -> None:
        self.names.add(known.name)
        self.left += known.name == LEAVES
        if known.formula is not None:
            self.flops += known.formula(args, kwargs, out)
            self.edge = max(self.edge, *(size for x in tensors((args, out)) for size in x.shape))
        if not known.free:
            self.shapes.update(tuple(x.shape) for x in tensors((out,)))
            places = (self._places.get(x.untyped_storage()._cdata) for x in read)
            self.readings += [i for i in places if i is not None and self.readings[-1:] != [i]]

    def _meta(self, y: Tensor, homes: dict[int, Tensor], made: bool) -> Tensor:
        """A tensor without numbers that lies as `y` does; in one of `homes`, which lie in the same memory, or anew."""
        numbers = y.untyped_storage()
        home = homes.get(numbers._cdata)
        if home is None:
            home = homes[numbers._cdata] = torch.empty(
                numbers.nbytes(), dtype=torch.uint8, device="meta"
            )
            memory = Memory(
                StorageWeakRef(home.untyped_storage()), numbers, numbers.nbytes() * made
            )
            self._memory[home.untyped_storage()._cdata] = memory
            self.largest = max(self.largest, memory.made)
        with torch.inference_mode(False):  # where the answer is in it, a view could not be one
            empty = torch.empty(0, dtype=y.dtype, device="meta")
            return empty.set_(home.untyped_storage(), y.storage_offset(), y.shape, y.stride())

    def _real(self, x: Tensor) -> Tensor:
        if not self.knows(x):
            raise Unseen(
                "a tensor came out of no operator that the meter saw: compute it with PyTorch, in the open"
            )
        numbers = self._memory[x.untyped_storage()._cdata].numbers
        return torch.empty(0, dtype=x.dtype).set_(numbers, x.storage_offset(), x.shape, x.stride())

    def knows(self, x: Any) -> bool:
        """Whether `x` is a tensor that came out of an operator it saw, or was given."""
        memory = (
            self._memory.get(x.untyped_storage()._cdata)
            if isinstance(x, Tensor) and x.is_meta
            else None
        )
        return memory is not None and not memory.of.expired()

    def alive(self, without: Any = None) -> int:
        """Bytes of what was made and is still held, but for the numbers of `without`."""
        for key in [key for key, memory in self._memory.items() if memory.of.expired()]:
            del self._memory[key]
        apart = self.knows(without) and self._memory[without.untyped_storage()._cdata].made
        return sum(memory.made for memory in self._memory.values()) - (
            without.nbytes if apart else 0
        )

    def plain(self, value: Any) -> Any:
        """A copy of `value`, tensors with the numbers that they have now; what the meter does not know is left."""
        with _disable_current_modes():
            return _mapped(value, lambda x: self._real(x).clone() if self.knows(x) else x)


class _Lists(TorchFunctionMode):
    """`x.tolist()`, which is no operator: numbers leave, and are counted."""

    def __init__(self, seen: Seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not Tensor.tolist:
            return func(*args, **(kwargs or {}))
        self.seen.left += args[0].numel()
        return self.seen.plain(args[0]).tolist()


def _mapped(value: Any, fn: Callable[[Tensor], Any]) -> Any:
    """`value` with `fn` done to its tensors, also to those in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return fn(value)
    if type(value) is dict:
        return {key: _mapped(one, fn) for key, one in value.items()}
    return (
        type(value)([_mapped(one, fn) for one in value]) if type(value) in (list, tuple) else value
    )
