"""A block: its flats, and the hooks that make them whole while the block's forward and backward run.

    forward    gather │ F │ free                 backward   gather │ B │ free, reduce the gradients
                      ▲                                     ▲        ▲
               pre-hook of the module      the gradient of an output  those of the inputs are all there
               (inputs go through `Leave`)   (a hook on the tensor)    (`Leave` runs backward)

A block may be called several times in a forward, and then again by activation checkpointing in the backward: each call
that autograd records is a `Call`. Where no input requires a gradient there is no `Leave`; then the block is done once
all its parameters have their gradients, or when the backward ends.

Invariant: a block is whole only between its hooks, or while it is being prefetched. Source: Zhao et al. 2023,
"PyTorch FSDP", section 4.3.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .flat import Flat


class Call:
    """One forward of a block, as long as its graph lives. inside: its backward has begun and not ended."""

    def __init__(self):
        self.inside = self.leaves = False


class Leave(torch.autograd.Function):
    """Nothing forward; backward runs when the gradients of all the block's inputs are there."""

    @staticmethod
    def forward(ctx, done, call: Call, *inputs: Tensor):
        ctx.done, ctx.call = done, call
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx, *grads):
        ctx.done(ctx.call)
        return None, None, *grads


class Unit:
    """The block `module`, whose parameters are in `flats`. `schedule` says when what is sent."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        flats: list[Flat],
        schedule,
        compute_dtype: torch.dtype | None,
    ):
        self.name = name
        self.module = module
        self.flats = flats
        self.compute_dtype = compute_dtype
        self.schedule = schedule
        self.calls: weakref.WeakSet[Call] = weakref.WeakSet()  # those whose backward may come
        self.missing: set[nn.Parameter] = set()  # have no gradient yet in this backward
        self.dirty = False  # whether whole gradients may be there that no rank has reduced
        self._open: list[Call] = []  # forwards that run now
        self._room, self._works = False, []
        self._watched: set[nn.Parameter] = set()
        self._hooks = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def __reduce__(self):
        raise TypeError(
            "a module whose parameters FullySharded has sharded cannot be copied: copy it before, or load "
            "a full_state_dict() into another"
        )

    @property
    def held(self):
        return [h for flat in self.flats for h in flat.held]

    @property
    def inside(self) -> bool:
        """Whether a backward is at work in it."""
        return any(call.inside for call in self.calls)

    @property
    def whole(self) -> bool:
        """Whether its memory is taken: gathered, or about to be."""
        return self._room

    def start(self) -> None:
        """Begin to gather."""
        if not self._room:
            self._room = True
            for flat in self.flats:
                flat.allocate()
            self._works = [self.schedule.gather(flat.chunks) for flat in self.flats]

    def need(self) -> None:
        """Be whole, and the module with it."""
        self.start()
        self._wait()
        for flat in self.flats:
            flat.show()
        for h in self.held:
            if h.whole.requires_grad and h.whole not in self._watched:
                self._watched.add(h.whole)
                self._hooks.append(h.whole.register_post_accumulate_grad_hook(self._has_gradient))

    def free(self) -> None:
        """Keep the shards alone."""
        if self._room:
            self._wait()
            for flat in self.flats:
                flat.release()
            self._room = False

    def _wait(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def _before(self, module: nn.Module, args, kwargs):
        self._open.append(Call())
        self.schedule.enter(self)
        leaves, spec = tree_flatten((args, kwargs))
        where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        if where and torch.is_grad_enabled() and not self.inside:
            call = self._open[-1]
            call.leaves = True
            done = Leave.apply(self._left, call, *(leaves[i] for i in where))
            for i, x in zip(where, done, strict=True):
                leaves[i] = x
        if self.compute_dtype is not None:
            leaves = [
                x.to(self.compute_dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
                for x in leaves
            ]
        return tree_unflatten(leaves, spec)

    def _after(self, module: nn.Module, args, kwargs, output) -> None:
        """Also after an exception, without an output."""
        call = self._open.pop()
        if torch.is_grad_enabled() and not self.inside:
            outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            if outputs:
                self.calls.add(call)
            for x in outputs:
                x.register_hook(lambda grad: self.schedule.enter_backward(self, call))
        if not self._open and not self.inside:
            self.free()
            self.schedule.leave(self)

    def _left(self, call: Call) -> None:
        call.inside = False
        self.calls.discard(call)
        self.settle()

    def _has_gradient(self, p: nn.Parameter) -> None:
        self.schedule.begin()
        self.dirty = True
        self.missing.discard(p)
        if not self.missing:
            for call in list(self.calls):
                if not call.leaves:
                    call.inside = False
                    self.calls.discard(call)
            self.settle()

    def settle(self) -> None:
        """Free, unless a backward is still at work in here; reduce, unless other calls have gradients to give."""
        if self.inside:
            return
        self.free()
        if not (self.calls and self.missing):  # a parameter gets the sum over all calls at once
            self.schedule.reduce(self)

    def end(self) -> None:
        """The backward is over."""
        for call in list(self.calls):
            if call.inside:
                call.inside = False
                self.calls.discard(call)
        self.missing.clear()
        self.free()
        self.schedule.reduce(self)

    def abandon(self) -> None:
        """Something was raised: drop what a forward or backward left behind."""
        self.calls.clear()
        self._open.clear()
        self.missing.clear()
        self.dirty = False
        self.free()
        self.forget()

    def let_go(self) -> None:
        """The module is as it was before, without hooks, and with the values of now. Collective."""
        self.abandon()
        for hook in self._hooks:
            hook.remove()
        for flat in self.flats:
            flat.restore()

    def forget(self) -> None:
        """Drop whole gradients."""
        for h in self.held:
            h.whole.grad = None
