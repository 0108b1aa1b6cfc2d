"""An operator of our own: to autograd, to meters and to `torch.compile` it is one, as those of PyTorch are.

Problem: a fused kernel is called from Python, but all that looks at a program (autograd, a dispatch mode that counts
its cost, meta tensors, a tracing compiler) sees operators. Under a dispatch mode `torch.compile` runs eagerly, so
what it fuses would be counted unfused. Idea: `torch.library` makes a name, minidist::add3, known to the dispatcher.

    CPU, and what has no kernel of its own    the function itself, built from kernels of `compiled`
    CUDA                                      the function of that name in `gpu`, written in Triton
    meta, and while a compiler traces         the fake: results without values

Cost: every operand read once, every result written once, one launch; no FLOPs, as for all that is bound by memory.
Where more moves, `moved` says how many bytes, and `flops` how many FLOPs; both take the operator's arguments and
`out_val`, its result. PyTorch's own FlopCounterMode hears of `flops`, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...comm.base import describe


def operator(
    name: str,
    fake: Callable,
    mutates: tuple[str, ...] = (),
    flops: Callable[..., int] | None = None,
    moved: Callable[..., int] | None = None,
    triton: bool = True,
) -> Callable:
    """A decorator: makes of a function with annotated arguments the operator minidist::`name`.

    triton=False: the function itself serves a GPU, too.
    """

    def define(fn: Callable):
        @functools.wraps(fn)
        def inside(*args):
            # they may cast what goes in, no more
            with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
                return fn(*args)

        made = torch.library.custom_op(f"minidist::{name}", inside, mutates_args=mutates)
        made.register_fake(fake)
        if triton:
            made.register_kernel("cuda")(lambda *args: getattr(_gpu(), name)(*args))
        if flops is not None:
            register_flop_formula(getattr(torch.ops.minidist, name), get_raw=True)(flops)
        if moved is not None:
            getattr(torch.ops.minidist, name).default.bytes_moved = moved
        return made

    return define


def differentiable(made, gradients: Callable, keep: Callable) -> None:
    """Give the operator `made` a backward: gradients(ctx, dy), one for each input, dy being that of its first result.

    keep(ctx, inputs, output) says what backward needs. Further results serve backward alone and have no gradient.
    """

    def setup(ctx, inputs, output) -> None:
        keep(ctx, inputs, output)
        ctx.set_materialize_grads(False)  # no zeros for the further results
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(*output[1:])

    def backward(ctx, dy, *_):
        return gradients(ctx, dy) if dy is not None else (None,) * len(ctx.needs_input_grad)

    made.register_autograd(backward, setup_context=setup)


def _gpu():
    """The kernels for a GPU; ImportError where Triton is not installed."""
    from . import gpu

    return gpu


def exact(x: Tensor) -> Tensor:
    """In the dtype that sums are taken in: float32 for anything shorter."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rows(x: Tensor) -> Tensor:
    """(…, H) as (rows, H), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def alike(first: str, x: Tensor, **others: Tensor) -> None:
    """ValueError where one of the others has not the shape, dtype and device of `x`, which is called `first`."""
    for name, y in others.items():
        if (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
            raise ValueError(f"{name} must be as {first}, {_words(x)}: it is {_words(y)}")


def columns(x: Tensor, **others: Tensor) -> None:
    """ValueError unless x is (…, H) of a floating type and each of the others (H,), of any such, on the same device."""
    if x.dim() < 1 or not x.shape[-1] or not x.is_floating_point():
        raise ValueError(f"x must be (…, H) of a floating type: it is {_words(x)}")
    for name, y in others.items():
        if (y.shape, y.device) != (x.shape[-1:], x.device) or not y.is_floating_point():
            raise ValueError(
                f"{name} must be {tuple(x.shape[-1:])} as x, {_words(x)}: it is {_words(y)}"
            )


def _words(x: Tensor) -> str:
    return f"{describe(x)} on {x.device}"
