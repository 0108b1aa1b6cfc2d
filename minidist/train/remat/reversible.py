"""Reversible residual blocks: activations are not kept, but reconstructed from the block's outputs.

    y1 = x1 + F(x2)          x2 = y2 − G(y1)
    y2 = x2 + G(y1)          x1 = y1 − F(x2)

So a sequence of L blocks keeps its last outputs only; backward walks back from them, one block at a time: memory does
not grow with L. Compute: F and G run once more each, 4/3 of a step. Every block has a node in autograd's graph, with
its parameters among the inputs, so their gradients come as early as ever. Between the nodes of a sequence its stream,
the pair of tensors, is handed backwards.

Exact or not: (x + f) − f is x only if the sum was not rounded. So x comes back with an error of about one rounding of
the sum a block, which adds up (and is amplified, where F and G are steep). With `bits` the streams are multiples of
2^−bits: F and G are rounded to such, sums are exact, so every bit comes back. Gradients pass the rounding unchanged.
Source: Gomez et al. 2017, "The Reversible Residual Network", sections 3.1 to 3.3, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...decide import decide
from .aside import Buffers, aside
from .replay import Replay

Pair = tuple[Tensor, Tensor]


class ReversibleBlock(nn.Module):
    """(x1, x2) to (y1, y2), all of one shape; f and g are modules that keep it.

    bits: None for plain sums. A number: what f and g give is rounded to multiples of 2^−bits, and so must be x1 and x2
    (`fixed`); ValueError where a sum would not be exact: beyond 2^(p − bits) for a mantissa of p bits (24 in fp32, 53
    in fp64), for which one number a sum is read. Called by itself it is an ordinary module with ordinary memory, which
    `ReversibleSequence` saves.
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
            most = 2.0 ** (1 - self.bits) / torch.finfo(y.dtype).eps
            found = decide(y.detach().abs().amax(), on_meta=0.0)
            if not found <= most:
                raise ValueError(
                    f"with {self.bits} bits behind the point {y.dtype} holds numbers up to {most:g} "
                    f"exactly, but a sum reaches {found:g}: take fewer bits"
                )
        return y


def fixed(x: Tensor, bits: int) -> Tensor:
    """`x` rounded to multiples of 2^−bits; its gradient is that of `x`."""
    with torch.no_grad():
        off = (x * 2.0**bits).round() / 2.0**bits - x
    return x + off


class ReversibleSequence(nn.Module):
    """Blocks one after the other, (x1, x2) to (y1, y2), with the memory of one.

    Cut a tensor with `x.chunk(2, dim)` first. What f and g draw at random, autocast and function modes are replayed (5
    kB for each f or g that draws, nothing else), and running averages count once. Gradients are those of the ordinary
    blocks, up to the error of the reconstruction: none with bits, to multiples of which x1 and x2 are rounded first.
    Raises ValueError for blocks with different bits.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.bits = next((block.bits for block in self.blocks), None)
        for i, block in enumerate(self.blocks):
            if block.bits != self.bits:
                raise ValueError(
                    f"block 0 has bits={self.bits}, block {i} has bits={block.bits}: they share a stream"
                )

    def forward(self, x1: Tensor, x2: Tensor) -> Pair:
        if self.bits is not None:
            x1, x2 = fixed(x1, self.bits), fixed(x2, self.bits)
        stream: list[Tensor] = []  # what a block's backward leaves for the one before it
        for i, block in enumerate(self.blocks):
            params = [p for p in block.parameters() if p.requires_grad]
            x1, x2 = _Reversible.apply(block, stream, i + 1 == len(self.blocks), x1, x2, *params)
        return x1, x2


class _Run:
    """A call of f or g, to be repeated as it was: its random numbers, and the buffers that it has changed."""

    def __init__(self, block: ReversibleBlock, fn: nn.Module):
        self._block, self._fn = block, fn

    def first(self, x: Tensor) -> Tensor:
        self._replay, buffers = Replay([x]), Buffers(self._fn)
        part = self._block.part(self._fn, x)
        self._replay.forget_random()
        self._changed = buffers.changed()
        return part

    def again(self, x: Tensor) -> Tensor:
        with self._replay.again(), aside(self._changed), torch.enable_grad():
            return self._block.part(self._fn, x)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        block: ReversibleBlock,
        stream: list,
        last: bool,
        x1: Tensor,
        x2: Tensor,
        *params: Tensor,
    ) -> Pair:
        ctx.stream = stream
        ctx.params = params
        ctx.f = _Run(block, block.f)
        ctx.g = _Run(block, block.g)
        y1 = block.sum(x1, ctx.f.first(x2))
        y2 = block.sum(x2, ctx.g.first(y1))
        if last:
            ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, dy1: Tensor, dy2: Tensor):
        y1, y2 = ctx.saved_tensors or ctx.stream
        ctx.stream.clear()
        x2, dy1, of_g = _back(ctx.g, y2, y1, dy1, dy2, ctx.params)
        del y2
        x1, dy2, of_f = _back(ctx.f, y1, x2, dy2, dy1, ctx.params)
        ctx.stream[:] = x1, x2
        grads = [
            b if a is None else a if b is None else a + b for a, b in zip(of_g, of_f, strict=True)
        ]
        return None, None, None, dy1, dy2, *grads


def _back(run: _Run, y: Tensor, other: Tensor, d_other: Tensor, dy: Tensor, params: tuple) -> tuple:
    """y = x + run(other): gives x, the gradient of `other`, to which its own use adds, and those of the parameters."""
    other = other.detach().requires_grad_()
    part = run.again(other)
    with torch.no_grad():
        x = y - part
    if not part.requires_grad:
        return x, d_other, [None] * len(params)
    found, *grads = torch.autograd.grad(part, [other, *params], dy, allow_unused=True)
    return x, d_other if found is None else d_other + found, grads
