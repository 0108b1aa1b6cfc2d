"""An optimizer's step over one flat buffer, as one operator, in place.

Problem: AdamW written out is eight launches for every parameter, each over tensors that are too small to pay it, and
each reads and writes them. Idea: parameters, states and gradients lie in flat buffers in one order (`flat`), and
one pass does all. Of N elements:

    gather_       gradients from where autograd left them                   1 launch, 2N
    sgd_          p −= lr·(g + λp)                                            1 launch, 3N
    momentum_     d = g + λp   b = keep·b + gain·d   p −= lr·(own·d + push·b)   1 launch, 5N
    adamw_        Loshchilov and Hutter 2019, algorithm 2                     1 launch, 7N

fp16 and bf16 are worked on in fp32. Invariant: in float64 the results are those of torch.optim within rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compiled import Kernel, filled
from .operator import exact, operator

SIZE = 1 << 20


def sgd_plain_(p: Tensor, g: Tensor, how: tuple) -> None:
    lr, decay = how
    wide = exact(p)
    p.copy_(wide - lr * (exact(g) + decay * wide))


def momentum_plain_(p: Tensor, b: Tensor, g: Tensor, how: tuple) -> None:
    lr, decay, keep, gain, own, push = how
    wide = exact(p)
    d = exact(g) + decay * wide
    velocity = keep * exact(b) + gain * d
    p.copy_(wide - lr * (own * d + push * velocity))
    b.copy_(velocity)


def adamw_plain_(p: Tensor, m: Tensor, v: Tensor, g: Tensor, how: tuple) -> None:
    # short: how far the averages are from full, 1 − βᵗ
    lr, beta1, beta2, eps, decay, short1, short2 = how
    grad, mean = exact(g), exact(m)
    mean = mean + (grad - mean) * (1 - beta1)
    square = exact(v) * beta2 + grad * grad * (1 - beta2)
    p.copy_(
        exact(p) * (1 - lr * decay) - (lr / short1) * mean / (square.sqrt() / short2**0.5 + eps)
    )
    m.copy_(mean)
    v.copy_(square)


def _examples(buffers: int, numbers: int):
    return lambda dtype: [(*filled(*[(SIZE,)] * buffers, dtype=dtype), (0.1,) * numbers)]


SGD = Kernel(sgd_plain_, _examples(2, 2))
MOMENTUM = Kernel(momentum_plain_, _examples(3, 6))
ADAMW = Kernel(adamw_plain_, _examples(4, 7))


@operator(
    "gather_",
    fake=lambda *args: None,
    mutates=("flat",),
    triton=False,
    moved=lambda flat, parts, starts, out_val: 2 * sum(part.nbytes for part in parts),
)
def gather_(flat: Tensor, parts: list[Tensor], starts: list[int]) -> None:
    """Copy tensors into a flat one, each from its start on: PyTorch's own, which on a GPU is one launch, too."""
    views = [
        flat[start : start + part.numel()].view(part.shape)
        for part, start in zip(parts, starts, strict=True)
    ]
    torch._foreach_copy_(views, parts)


@operator("sgd_", fake=lambda *args: None, mutates=("p",))
def sgd_(p: Tensor, g: Tensor, lr: float, decay: float) -> None:
    """p and g: flat, of N elements."""
    SGD(p, g, (lr, decay))


@operator("momentum_", fake=lambda *args: None, mutates=("p", "b"))
def momentum_(
    p: Tensor,
    b: Tensor,
    g: Tensor,
    lr: float,
    decay: float,
    keep: float,
    gain: float,
    own: float,
    push: float,
) -> None:
    """p, its velocity b, and g: flat, of N elements. At first keep = 0, gain = 1; Nesterov: own = 1, push = keep."""
    MOMENTUM(p, b, g, (lr, decay, keep, gain, own, push))


@operator("adamw_", fake=lambda *args: None, mutates=("p", "m", "v"))
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
    """p, the averages m of g and v of g², and g: flat, of N elements. step: 1, 2, …"""
    ADAMW(p, m, v, g, (lr, beta1, beta2, eps, decay, 1 - beta1**step, 1 - beta2**step))
