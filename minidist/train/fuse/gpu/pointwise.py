"""Element by element over flat buffers: add3, and the optimizers' steps. A program of the grid has one block.

Numbers such as the learning rate arrive in a small tensor, float64 for float64 parameters, so that no digit is lost: a
Python float among a kernel's arguments is float32 there. That is one small copy to the GPU a step; for a single number
it is one small launch (`number`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def wide(x):
    """In the type that sums are taken in."""
    return x if x.dtype == tl.float64 else x.to(tl.float32)


def number(value: float, like: Tensor) -> Tensor:
    """`value` (1,) for a kernel to load, in the type that sums over `like` are taken in.

    The device fills it: nothing is copied from the host's memory, so that the host waits for nothing."""
    return like.new_full((1,), value, dtype=torch.promote_types(like.dtype, torch.float32))


@triton.jit
def place(n, BLOCK: tl.constexpr):
    """This program's elements, and which of them there are."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < n


@triton.jit
def _add3(a, b, c, out, n, BLOCK: tl.constexpr):
    at, there = place(n, BLOCK)
    tl.store(
        out + at,
        wide(tl.load(a + at, there)) + wide(tl.load(b + at, there)) + wide(tl.load(c + at, there)),
        there,
    )


@triton.jit
def _sgd(p, g, how, n, BLOCK: tl.constexpr):
    at, there = place(n, BLOCK)
    lr, decay = tl.load(how), tl.load(how + 1)
    x = wide(tl.load(p + at, there))
    tl.store(p + at, x - lr * (wide(tl.load(g + at, there)) + decay * x), there)


@triton.jit
def _momentum(p, b, g, how, n, BLOCK: tl.constexpr):
    at, there = place(n, BLOCK)
    lr = tl.load(how)
    decay = tl.load(how + 1)
    keep = tl.load(how + 2)
    gain = tl.load(how + 3)
    x = wide(tl.load(p + at, there))
    d = wide(tl.load(g + at, there)) + decay * x
    velocity = keep * wide(tl.load(b + at, there)) + gain * d
    tl.store(p + at, x - lr * (tl.load(how + 4) * d + tl.load(how + 5) * velocity), there)
    tl.store(b + at, velocity, there)


@triton.jit
def _adamw(p, m, v, g, how, n, BLOCK: tl.constexpr):
    at, there = place(n, BLOCK)
    beta1, beta2 = tl.load(how + 1), tl.load(how + 2)
    grad, mean = wide(tl.load(g + at, there)), wide(tl.load(m + at, there))
    mean = mean + (grad - mean) * (1 - beta1)
    square = wide(tl.load(v + at, there)) * beta2 + grad * grad * (1 - beta2)
    root = tl.sqrt(square) / tl.sqrt(tl.load(how + 6)) + tl.load(how + 3)
    x = wide(tl.load(p + at, there)) * (1 - tl.load(how) * tl.load(how + 4))
    tl.store(p + at, x - tl.load(how) / tl.load(how + 5) * mean / root, there)
    tl.store(m + at, mean, there)
    tl.store(v + at, square, there)


def _run(kernel, tensors: tuple[Tensor, ...], numbers: tuple[float, ...] = ()) -> None:
    """`kernel` over flat tensors of one length."""
    n = tensors[0].numel()
    if n:
        dtype = torch.promote_types(tensors[0].dtype, torch.float32)
        how = (
            (torch.tensor(numbers, dtype=dtype).to(tensors[0].device, non_blocking=True),)
            if numbers
            else ()
        )
        kernel[(triton.cdiv(n, BLOCK),)](*tensors, *how, n, BLOCK=BLOCK)


def add3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    a = a.contiguous()
    out = torch.empty_like(a)
    _run(_add3, (a, b.contiguous(), c.contiguous(), out))
    return out


def sgd_(p: Tensor, g: Tensor, lr: float, decay: float) -> None:
    _run(_sgd, (p, g), (lr, decay))


def momentum_(p: Tensor, b: Tensor, g: Tensor, *how: float) -> None:
    _run(_momentum, (p, b, g), how)


def adamw_(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    _run(_adamw, (p, m, v, g), (lr, beta1, beta2, eps, decay, 1 - beta1**step, 1 - beta2**step))
