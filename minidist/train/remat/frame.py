"""A slot for every tensor that a forward saves for backward: empty until backward asks for it.

PyTorch calls a pair of hooks for each tensor that an operator saves: `pack` as it is saved, whose result is kept in
place of the tensor, and `unpack` as backward needs it. Here `pack` keeps an empty slot and lets the tensor go; the
first `unpack` of a backward makes the frame fill all its slots at once, in the order in which they were packed, and
each is emptied as it is read. So between forward and backward a frame holds nothing but what it recomputes from.

Who refers to whom: autograd's nodes to slots and to the frame (through `unpack`), the frame to slots only weakly. So a
slot dies with its node, is not filled again, and no cycle keeps anything alive.
Source: PyTorch, `torch/utils/checkpoint.py`, note "Nestable Checkpoint".
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Slot:
    """The place of one saved tensor."""

    __slots__ = ("__weakref__", "dtype", "shape", "value")

    def __init__(self, x: Tensor):
        self.shape = x.shape
        self.dtype = x.dtype
        self.value = None


class Frame(ABC):
    """The slots of one forward. A subclass says how they are filled again, in `refill`."""

    def __init__(self):
        self.slots: list[weakref.ref[Slot]] = []

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context: what operators in it save goes into slots."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, x: Tensor) -> Slot:
        return self.keep(Slot(x))

    def keep(self, slot: Slot) -> Slot:
        """The next slot, which lives as long as its node of the graph does."""
        self.slots.append(weakref.ref(slot))
        return slot

    def living(self) -> list[Slot]:
        """The slots that backward may still ask for."""
        return [slot for kept in self.slots if (slot := kept()) is not None]

    def unpack(self, slot: Slot) -> Tensor:
        if slot.value is None:
            self.refill()
        value, slot.value = slot.value, None
        return value

    def fill(self, index: int, x: Tensor) -> None:
        """Put `x` where forward has saved a tensor as its number `index`, if that is still wanted."""
        slot = self.slots[index]()
        if slot is None:
            return
        if (slot.shape, slot.dtype) != (x.shape, x.dtype):
            raise ValueError(
                f"tensor {index} of those saved for backward was {tuple(slot.shape)} {slot.dtype} in "
                f"forward, and is {tuple(x.shape)} {x.dtype} in its recomputation: the function must do "
                "the same whenever it is called"
            )
        slot.value = x.detach()

    @abstractmethod
    def refill(self) -> None:
        """Give every living slot its value."""
