"""Activation checkpointing: keep the inputs of a function only, and run it again when its backward comes.

    y = checkpoint(block, x)          instead of          y = block(x)

Memory: the inputs instead of all that the function saves, and all of that for one function at a time. Compute: its
forward once more, so at most 4/3 of a step whose backward costs two forwards. Gradients are the same bit for bit: the
same operators on the same operands, the random numbers replayed.

This form works by saved-tensor hooks (see `frame`): autograd's graph is the ordinary one and only the tensors in it are
missing, so all that autograd can do works: several outputs, tensors inside structures, inputs that need no gradient,
`autograd.grad`, hooks, two backwards. The other form, `checkpoint_reentrant`, replaces the graph by one node. Backward
needs no tensor that is made after the last saved one, so the recomputation stops there ("early stop").
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .call import Call
from .frame import Frame


def checkpoint(fn: Callable, *inputs, **kwargs) -> Any:
    """`fn(*inputs, **kwargs)`, whose saved tensors are computed again in backward.

    fn: must do the same whenever it is called with the same operands; batch norm's running averages (see `aside`) and
    random numbers, autocast and function modes (see `replay`) are taken care of. What it changes otherwise, it changes
    twice.  inputs, kwargs: anything; tensors are found also in lists, tuples and dicts.
    Memory: the tensors among them until backward has passed, and 5 kB. Nested calls hold the inputs of the inner one
    only while the outer one is recomputed. Without a gradient to come (`torch.no_grad`) it is the plain call.
    Errors, in backward: RuntimeError by autograd if an input was changed in place since; ValueError if fn saves other
    tensors, or fewer, than it did.
    """
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    call = Call(fn, inputs, kwargs)
    with Checkpoint(call).saving():
        return call.first()


class Checkpoint(Frame):
    """The slots of one call, filled by repeating it."""

    def __init__(self, call: Call):
        super().__init__()
        self.call, self._kept = (
            call,
            _Keep.apply(torch.empty(0, requires_grad=True), *call.tensors).grad_fn,
        )

    def refill(self) -> None:
        again = _Again(self)
        try:
            with torch.autograd.graph.saved_tensors_hooks(again.pack, _as_it_is):
                self.call.again(self._kept.saved_tensors)
        except _Filled as done:
            if done.args[0] is not again:
                raise
        if again.count < len(self.slots):
            raise ValueError(
                f"forward saved {len(self.slots)} tensors for backward, its recomputation {again.count}: "
                "the function must do the same whenever it is called"
            )


class _Again:
    """The recomputation of a frame: what it saves fills the slots in order."""

    def __init__(self, frame: Checkpoint):
        self.frame, self.count = frame, 0

    def pack(self, x: Tensor) -> Tensor:
        self.frame.fill(self.count, x)
        self.count += 1
        if self.count == len(self.frame.slots):
            raise _Filled(self)
        return x.detach()  # for a backward within the function


class _Filled(BaseException):
    """Every slot has its value: what is left of the function is not needed. Not for the function to catch."""


class _Keep(torch.autograd.Function):
    """Saves tensors as any operator does: against changes in place, and in slots of a checkpoint around this one."""

    @staticmethod
    def forward(ctx, alive: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return alive.new_empty(0)

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError("nothing is computed from what it returns")


def _as_it_is(x: Tensor) -> Tensor:
    return x
