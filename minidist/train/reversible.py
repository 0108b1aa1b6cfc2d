"""Reversible residual blocks: activations are not kept, but reconstructed from the block's outputs.

    y1 = x1 + F(x2)          x2 = y2 − G(y1)
    y2 = x2 + G(y1)          x1 = y1 − F(x2)

So a sequence of L blocks keeps its last outputs only; backward walks back from them, one block at a time: memory does
not grow with L, but for the state of the random generators, 5 kB for each F and G. Compute: F and G run once more each,
4/3 of a step. Every block has a node in autograd's graph, with its parameters among the inputs, so their gradients come
as early as ever. Between the nodes of a sequence its stream, the pair of tensors, is handed backwards.

Exact or not: (x + f) − f is x only if the sum was not rounded. So x comes back with an error of about one rounding of
the sum a block, which adds up (and is amplified, where F and G are steep). With `bits` the streams are multiples of
2^−bits: F and G are rounded to such, sums are exact, so every bit comes back. Gradients pass the rounding unchanged.
Source: Gomez et al. 2017, "The Reversible Residual Network", sections 3.1 to 3.3, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..arguments import instance
from ..decide import decide
from .remat import repeatable

Pair = tuple[Tensor, Tensor]


class ReversibleBlock(nn.Module):
    """(x1, x2) to (y1, y2), all of one shape; f and g are modules that keep it.

    bits: None for plain sums. A number: what f and g give is rounded to multiples of 2^−bits, and so must be x1 and x2
    (`fixed`); ValueError where a sum would not be exact: beyond 2^(p − bits) for a mantissa of p bits (24 in fp32, 53
    in fp64), for which one number a sum is read. Called by itself it is an ordinary module with ordinary memory, which
    `ReversibleSequence` saves.

    >>> import torch
    >>> from torch import nn
    >>> from minidist.train.reversible import ReversibleBlock
    >>> block = ReversibleBlock(nn.Tanh(), nn.Tanh(), bits=10)
    >>> x1, x2 = torch.tensor([0.5, -1.25]), torch.tensor([2.0, 0.125])
    >>> y1, y2 = block(x1, x2)
    >>> [x.tolist() for x in block.inverse(y1, y2)]  # bit for bit
    [[0.5, -1.25], [2.0, 0.125]]
    """

    def __init__(self, f: nn.Module, g: nn.Module, bits: int | None = None):
        super().__init__()
        self.f = f
        self.g = g
        self.bits = bits

    def forward(self, x1: Tensor, x2: Tensor) -> Pair:
        y1 = self.sum(x1, self.part(self.f, x2))
        return y1, self.sum(x2, self.part(self.g, y1))

    @torch.no_grad()
    def inverse(self, y1: Tensor, y2: Tensor) -> Pair:
        """The inputs of which (y1, y2) are the outputs. Where f or g draw random numbers, give them the same state."""
        x2 = y2 - self.part(self.g, y1)
        return y1 - self.part(self.f, x2), x2

    def part(self, fn: nn.Module, x: Tensor) -> Tensor:
        """What f or g adds to a stream."""
        return fn(x) if self.bits is None else fixed(fn(x), self.bits)

    def sum(self, x: Tensor, part: Tensor) -> Tensor:
        """x + part, checked to be exact where it is said to be."""
        y = x + part
        if self.bits is not None:
            limit = 2.0 ** (1 - self.bits) / torch.finfo(y.dtype).eps
            largest = decide(y.detach().abs().amax(), on_meta=0.0)
            if not largest <= limit:
                raise ValueError(
                    f"with {self.bits} bits behind the point {y.dtype} holds numbers up to {limit:g} "
                    f"exactly, but a sum reaches {largest:g}: take fewer bits"
                )
        return y


def fixed(x: Tensor, bits: int) -> Tensor:
    """`x` rounded to multiples of 2^−bits; its gradient is that of `x`.

    >>> import torch
    >>> from minidist.train.reversible import fixed
    >>> x = torch.tensor([0.3, 1.0], requires_grad=True)
    >>> fixed(x, bits=2).tolist()
    [0.25, 1.0]
    >>> fixed(x, bits=2).sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    with torch.no_grad():
        off = (x * 2.0**bits).round() / 2.0**bits - x
    return x + off


class ReversibleSequence(nn.Module):
    """Blocks one after the other, (x1, x2) to (y1, y2), with the memory of one.

    Cut a tensor with `x.chunk(2, dim)` first. What f and g draw at random, autocast and function modes are replayed,
    and running averages count once. Gradients are those of the ordinary blocks, up to the error of the reconstruction:
    none with bits, to multiples of which x1 and x2 are rounded first. Raises ValueError for blocks with different bits.
    Forward also raises ValueError where a sum would not be exact, as of a `ReversibleBlock`.

    >>> import torch
    >>> from torch import nn
    >>> from minidist.train import ReversibleSequence
    >>> from minidist.train.reversible import ReversibleBlock
    >>> blocks = [ReversibleBlock(nn.Tanh(), nn.Linear(2, 2), bits=16) for _ in range(8)]
    >>> x1, x2 = torch.ones(3, 4).chunk(2, -1)
    >>> y1, y2 = ReversibleSequence(blocks)(x1, x2)  # keeps y1 and y2 alone
    >>> z1, z2 = x1, x2
    >>> for block in blocks:  # keeps what each of them saves
    ...     z1, z2 = block(z1, z2)
    >>> y1.equal(z1), y2.equal(z2)
    (True, True)
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        blocks = list(blocks)
        self.blocks: Any = nn.ModuleList(blocks)  # to torch's types each is a Module
        for block in blocks:
            instance(block, ReversibleBlock, "a reversible sequence is made of ReversibleBlocks")
        self.bits = next((block.bits for block in blocks), None)
        for i, block in enumerate(blocks):
            if block.bits != self.bits:
                raise ValueError(
                    f"block 0 has bits={self.bits}, block {i} has bits={block.bits}: they share a stream"
                )

    def forward(self, x1: Tensor, x2: Tensor) -> Pair:
        if self.bits is not None:
            x1, x2 = fixed(x1, self.bits), fixed(x2, self.bits)
        stream: list[Tensor] = []
        for block in self.blocks:
            x1 = Coupling.apply(block, block.f, stream, x1, x2, *trainable(block.f))
            x2 = Coupling.apply(block, block.g, stream, x2, x1, *trainable(block.g))
        return Outputs.apply(stream, x1, x2)


def trainable(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.requires_grad]


class Coupling(torch.autograd.Function):
    """y = x + part(other), half a block, which keeps no tensor.

    Backward finds [other, y] in the stream, and leaves [x, other] there for the coupling before it, whose output
    `other` was.
    """

    @staticmethod
    def forward(ctx, block: ReversibleBlock, module: nn.Module, stream: list, x, other, *params):
        ctx.stream = stream
        ctx.params = params
        part = partial(block.part, module)
        _, ctx.repeat = repeatable(part, (other,), {})
        return block.sum(x, part(other))

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        other, y = ctx.stream
        other = other.detach().requires_grad_()
        part = ctx.repeat([other])
        ctx.stream[:] = y - part.detach(), other.detach()
        grads = [None] * (1 + len(ctx.params))
        if part.requires_grad:
            grads = torch.autograd.grad(part, [other, *ctx.params], dy, allow_unused=True)
        return None, None, None, dy, *grads


class Outputs(torch.autograd.Function):
    """The one pair of tensors that is kept: backward begins with it in the stream."""

    @staticmethod
    def forward(ctx, stream: list, y1: Tensor, y2: Tensor) -> Pair:
        ctx.stream = stream
        ctx.save_for_backward(y1, y2)
        return y1.view_as(y1), y2.view_as(y2)

    @staticmethod
    def backward(ctx, dy1: Tensor, dy2: Tensor):
        ctx.stream[:] = ctx.saved_tensors
        return None, dy1, dy2
