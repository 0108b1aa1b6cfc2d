"""Activation checkpointing by an autograd Function: the first form, and the one to read first.

    forward     run the function without a graph; save its inputs; the graph has one node for all of it
    backward    run it again on detached inputs, with a graph, and start a backward of that within the backward
                ("reentrant"): it gives the gradients of the inputs, and adds to those of the parameters on its way

It is short, and shows what checkpointing is. What it cannot do, `checkpoint` does:
- The node is there only if an input of it needs a gradient. Data does not, so the parameters of a first block would
  silently get none. Here an empty tensor that needs one goes in with the others; so every output needs one, too.
- Gradients of parameters are added by the inner backward, so `autograd.grad` cannot ask for them: it is refused.
- Hooks on parameters run in the inner backward, once for each block that shares the parameter, not once in all.
- The inner backward must be over before the outer one goes on: no early stop, and no backward through backward.
Source: Chen et al. 2016, section 4, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from .call import Call


def checkpoint_reentrant(fn: Callable, *inputs, **kwargs) -> Any:
    """`fn(*inputs, **kwargs)`, run again in backward. Arguments as for `checkpoint`.

    Every output of floating point needs a gradient afterwards, also where nothing in `fn` does.
    Errors: RuntimeError in backward under `autograd.grad` and `backward(inputs=…)`.
    """
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    call, structure = Call(fn, inputs, kwargs), []
    tensors = _Reentrant.apply(call, structure, torch.empty(0, requires_grad=True), *call.tensors)
    leaves, spec = structure.pop()
    rest = iter(tensors)
    return tree_unflatten(
        [next(rest) if isinstance(leaf, _Tensor) else leaf for leaf in leaves], spec
    )


class _Tensor:
    """Stands for a tensor of the outputs."""


class _Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, call: Call, structure: list, alive: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        leaves, spec = tree_flatten(call.first(tensors))
        structure.append(
            ([_Tensor() if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        )
        outputs = _tensors(leaves)
        ctx.mark_non_differentiable(
            *(y for y in outputs if not (y.is_floating_point() or y.is_complex()))
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor | None):
        if not torch.autograd.Variable._execution_engine.is_checkpoint_valid():
            raise RuntimeError(
                "checkpoint_reentrant adds to .grad in a backward of its own, so autograd.grad and "
                "backward(inputs=…) cannot tell it what to compute: use checkpoint"
            )
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        outputs = _tensors(tree_flatten(ctx.call.again(inputs))[0])
        wanted = [
            (y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad and g is not None
        ]
        if wanted:
            torch.autograd.backward(*zip(*wanted, strict=True))
        return None, None, None, *(x.grad for x in inputs)


def _tensors(leaves: list) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
