"""Eight bits: the products of a transformer's linear layers in E4M3 and E5M2, up to twice as fast as in 16 bits, with
half the bytes of the inputs that are kept for backward.

    E4M3    sign, 4 bits of exponent, 3 of fraction: 2⁻⁹ … 448, relative steps of 2⁻³        activations, weights
    E5M2    sign, 5 bits of exponent, 2 of fraction: 2⁻¹⁶ … 57,344, relative steps of 2⁻²    gradients

E4M3 spans 18 powers of two, E5M2 32; bf16 spans 261. So every tensor is divided by a scale before it is rounded, which
moves its largest magnitude, its amax, to the top of the range, and products are multiplied by the scales after:

    y = x·Wᵀ        x: E4M3    W: E4M3        (T, in) · (out, in)ᵀ
    dx = dy·W       dy: E5M2   W: E4M3        (T, out) · (in, out)ᵀ       sums in fp32, results in 16 bits or fp32
    dW = dyᵀ·x      dy: E5M2   x: E4M3        (out, T) · (in, T)ᵀ

Gradients need range more than precision: their magnitudes are spread over more powers of two than those of
activations. What stays as it was: the head and the embedding (their errors go straight into the loss, and the head's
gradients span the most), attention's scores (an exponential makes relative errors of absolute ones), norms, residual
sums, biases and losses (they cancel, or add up many terms, and have few FLOPs), masters and the optimizer.

quantize, Scaled      a matrix in eight bits, with the scales of its blocks
product               of two of them, on tensor cores, or emulated
Present, Delayed      where scales come from: the tensor at hand, or those of earlier steps
eight_bits_           the linear layers of a module, in place

Sources: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", sections 3 and 4.1; DeepSeek-AI 2024, "DeepSeek-V3
Technical Report", section 3.3 (blocks, and what stays in higher precision).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..arguments import choice, whole
from ..collectives import all_reduce_
from ..comm.base import Comm
from .amp import autocast, autocasts

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2

# ------------------------------------------------------------
# A matrix in eight bits: values, and a scale for each block of it, so that x ≈ values·scale.
#
#     tensor  (all, all)      one scale: one outlier pushes all small numbers towards 0
#     row     (1, all)        one a row
#     block   (1, 128)        one for 128 numbers along the row; of weights (128, 128)
#
# Contraction runs along the rows (product, below), so scales that differ from row to row can be taken out of the sums;
# those that differ along it, as those of blocks do, cannot, and the sum of each block is multiplied by its own. dW
# contracts over tokens, where y contracts over features: so x is rounded twice, in rows and in columns, unless its
# blocks are square.
#
# The scale is the smallest power of two that keeps amax within the range. Dividing by it is exact, so what is lost is
# lost by rounding alone, and the emulation computes what the hardware does. (Any number would serve: Micikevicius et
# al. 2022 divide by amax/448. In a format with an exponent that is no more precise, and gains less than one power of
# two.)


class Grain(NamedTuple):
    """How many rows and columns of a matrix share a scale; None: all of them.

    >>> from minidist.train.fp8 import ROW, SQUARE
    >>> ROW, SQUARE.turned
    (Grain(rows=1, columns=None), Grain(rows=128, columns=128))
    """

    rows: int | None
    columns: int | None

    @property
    def turned(self) -> Grain:
        """Of the transposed matrix, where its blocks are the transposed ones."""
        return Grain(self.columns, self.rows)


TENSOR = Grain(None, None)
ROW = Grain(1, None)
TILE = Grain(1, 128)
SQUARE = Grain(128, 128)


class Scaled(NamedTuple):
    """The matrix values·scale: values (M, K) in eight bits, scale (M/rows, K/columns), rounded up, of its blocks.

    >>> import torch
    >>> from minidist.train.fp8 import E4M3, ROW, quantize
    >>> scaled = quantize(torch.tensor([[1.0, 2.0], [100.0, 2000.0]]), E4M3, ROW)
    >>> scaled.values.dtype, scaled.scale.shape  # a scale for each row
    (torch.float8_e4m3fn, torch.Size([2, 1]))
    """

    values: Tensor
    scale: Tensor
    grain: Grain

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix that it stands for, (M, K), exact in fp32."""
        return self.values.to(dtype) * spread(self.scale, self.grain, self.values.shape).to(dtype)


def largest(x: Tensor, grain: Grain = TENSOR) -> Tensor:
    """The amax of each block of a matrix (M, K): (M/rows, K/columns), rounded up; 0 for what is empty.

    >>> import torch
    >>> from minidist.train.fp8 import ROW, largest
    >>> largest(torch.tensor([[1.0, -5.0], [2.0, 3.0]]), ROW).tolist()
    [[5.0], [3.0]]
    """
    sides, missing = [], []
    for size, side in zip(x.shape, grain, strict=True):
        side = max(1, size) if side is None else side
        sides.append(side)
        missing.append(-size % side if size else side)
    if any(missing):
        x = F.pad(x, (0, missing[1], 0, missing[0]))
    blocks = x.unflatten(1, (-1, sides[1])).unflatten(
        0, (-1, sides[0])
    )  # (M/rows, rows, K/columns, columns)
    return blocks.abs().amax((1, 3))


def scale_of(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest powers of two that bring `amax` into the range of `dtype`, in fp32; nan for inf and for nan.

    An amax below 2⁻¹⁰⁰ counts as 2⁻¹⁰⁰: nobody can tell it from 0, and its scale would leave fp32.

    >>> import torch
    >>> from minidist.train.fp8 import E4M3, E5M2, scale_of
    >>> scale_of(torch.tensor([448.0, 449.0, 1.0]), E4M3).tolist()  # up to 448
    [1.0, 2.0, 0.00390625]
    """
    amax = amax.to(torch.float32)
    room = torch.finfo(dtype).max / amax.clamp(min=2.0**-100)
    # without sign and fraction: 2^⌊log₂ room⌋
    power = (room.view(torch.int32) & 0x7F800000).view(torch.float32)
    return 1 / power + 0 * amax  # an inf or a nan anywhere must be seen in the result


def spread(scale: Tensor, grain: Grain, shape: torch.Size) -> Tensor:
    """The scales of blocks, each for all numbers of its block, (M, K), or what broadcasts to it.

    >>> import torch
    >>> from minidist.train.fp8 import ROW, spread
    >>> spread(torch.tensor([[1.0], [2.0]]), ROW, torch.Size([2, 3])).shape
    torch.Size([2, 1])
    """
    for dim, side in enumerate(grain):
        if side is not None:
            scale = scale.repeat_interleave(side, dim) if side > 1 else scale
            scale = scale.narrow(dim, 0, shape[dim])
    return scale


def quantize(
    x: Tensor, dtype: torch.dtype, grain: Grain = TENSOR, scale: Tensor | None = None
) -> Scaled:
    """A matrix (M, K) rounded to `dtype`, E4M3 or E5M2, to the nearest, ties to even.

    scale: of its blocks, instead of that of their amax. What lies beyond the range then becomes the largest number.

    >>> import torch
    >>> from minidist.train.fp8 import E4M3, quantize
    >>> scaled = quantize(torch.tensor([[1.0, 1.1], [0.0, 1000.0]]), E4M3)
    >>> scaled.scale.item()  # 1000/4 is below 448
    4.0
    >>> scaled.dequantized().tolist()  # 8 numbers from each power of two to the next
    [[1.0, 1.125], [0.0, 1024.0]]
    """
    if scale is None:
        scale = scale_of(largest(x, grain), dtype)
    wide = torch.promote_types(x.dtype, torch.float32)
    limit = torch.finfo(dtype).max
    scaled = x.to(wide) / spread(scale, grain, x.shape)
    return Scaled(scaled.clamp(-limit, limit).to(dtype), scale, grain)


# ------------------------------------------------------------
# The product of two matrices in eight bits.
#
#     on tensor cores   Hopper and Ada (compute capability 9.0, 8.9) multiply E4M3 by E4M3 or E5M2, not E5M2 by E5M2, rows
#                       by rows: the first row-major, the second column-major, K and N multiples of 16 (blocks: K of 128;
#                       Hopper alone, CUDA 12.9). Sums in fp32 registers; cuBLAS may keep fewer bits in between
#                       (DeepSeek-V3, section 3.3.2: about 14), unless fast accumulation is off, as it is here.
#     emulated          everywhere else: both are dequantized, which is exact, and multiplied in fp32. It has the rounding
#                       of eight bits, and none of their speed.
#
# Sources: torch.nn.functional.scaled_mm, and what its kernels check, aten/src/ATen/native/cuda/ScaledBlas.cpp; NVIDIA,
# cuBLAS, "1D and 2D block scaling for FP8 data types".


def product(a: Scaled, b: Scaled, dtype: torch.dtype) -> Tensor:
    """a·bᵀ in `dtype`, (M, K) and (N, K) to (M, N), on tensor cores where there are some for eight bits.

    >>> import torch
    >>> from minidist.train.fp8 import E4M3, product, quantize
    >>> a, b = quantize(torch.ones(2, 16), E4M3), quantize(torch.full((3, 16), 0.5), E4M3)
    >>> product(a, b, torch.float32).tolist()
    [[8.0, 8.0, 8.0], [8.0, 8.0, 8.0]]
    """
    if has_eight_bits(a.values.device):
        return on_tensor_cores(a, b, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    with autocast(enabled=False):
        return (a.dequantized(wide) @ b.dequantized(wide).t()).to(dtype)


def has_eight_bits(device: torch.device) -> bool:
    """Whether products in eight bits are not emulated there. On "meta" they are charged for what they are on a GPU.

    >>> import torch
    >>> from minidist.train.fp8 import has_eight_bits
    >>> has_eight_bits(torch.device("cpu")), has_eight_bits(torch.device("meta"))
    (False, True)
    """
    if device.type == "meta":
        return True
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


RECIPES = {
    TENSOR: F.ScalingType.TensorWise,
    ROW: F.ScalingType.RowWise,
    TILE: F.ScalingType.BlockWise1x128,
    SQUARE: F.ScalingType.BlockWise128x128,
}


def on_tensor_cores(a: Scaled, b: Scaled, dtype: torch.dtype) -> Tensor:
    """`product` by one kernel. Sizes that it cannot take are padded with zeros.

    Its results are in `dtype`, fp32 or bf16, where there is one scale; else in bf16, which all its kernels have.
    """
    M, N = len(a.values), len(b.values)
    a, b = aligned(a), aligned(b)
    out = dtype if (a.grain, dtype) in DIRECT else torch.bfloat16
    y = F.scaled_mm(
        a.values,
        b.values.t(),
        laid_out(a),
        RECIPES[a.grain],
        laid_out(b) if b.grain != ROW else laid_out(b).t(),  # (1, N)
        RECIPES[b.grain],
        output_dtype=out,
    )
    return y[:M, :N].to(dtype)


DIRECT = {(TENSOR, torch.float32), (TENSOR, torch.bfloat16)}


def aligned(x: Scaled) -> Scaled:
    """The same with rows and columns of zeros at the end, and scales of 1, up to what the kernels take."""
    blocks = x.grain in (TILE, SQUARE)
    M, K = (
        -(-size // step) * step
        for size, step in zip(x.values.shape, (128, 128) if blocks else (16, 16), strict=True)
    )
    # no kernel pads numbers in eight bits; one pads the same bytes as integers
    bytes_of = x.values.view(torch.uint8)
    values = F.pad(bytes_of, (0, K - x.values.shape[1], 0, M - x.values.shape[0]))
    rows, columns = (
        1 if side is None else size // side for size, side in zip((M, K), x.grain, strict=True)
    )
    scale = F.pad(x.scale, (0, columns - x.scale.shape[1], 0, rows - x.scale.shape[0]), value=1.0)
    return Scaled(values.contiguous().view(x.values.dtype), scale, x.grain)


def laid_out(x: Scaled) -> Tensor:
    """The scales as the kernels read them: of blocks those of a column lie side by side, of squares by 4 at a time."""
    if x.grain == TILE:
        return x.scale.t().contiguous().t()  # (M, K/128), strides (1, M)
    if x.grain == SQUARE:
        along = F.pad(x.scale, (0, -x.scale.shape[1] % 4), value=1.0)
        # padded by nothing, the scales of a transposed weight keep their strides
        return along.contiguous().t()  # (K/128 rounded up to 4, N/128), strides (1, …)
    return x.scale.contiguous()


# ------------------------------------------------------------
# Where scales come from: the amax of the tensor at hand, or of those before it.
#
#     Present   amax, then scale: the tensor is read once more. The three grains above.
#     Delayed   the largest amax of the last 16 steps makes the scale of this one, and this one's is recorded while
#               rounding. One scale a tensor. E4M3 was first trained this way, to read each tensor only once; where
#               amax jumps, what is beyond it is cut off. torchtitan has removed it.
#
# Ranks that hold parts of one block agree on its amax, or its scale would depend on how many ranks there are, and
# shards of a weight that are gathered in eight bits would not fit together. A block that covers all of a dimension is
# shared by all who split that dimension:
#
#                         tensor (all, all)          row (1, all)                block (1, 128)
#     x, y = x·Wᵀ         who splits T or in         who splits in               nobody, where cuts are multiples of 128
#     dy, dx = dy·W       who splits T or out        who splits out              nobody
#     x, dy, dW = dyᵀ·x   the scale of x, dy above   who splits T                nobody
#
# Data-parallel ranks split T, the ranks of a ColumnLinear out, and those of a RowLinear in. They pay one all-reduce of
# a maximum, of 4 bytes a scale, whenever a tensor is rounded; with Delayed only one a step, of all amaxes recorded.
# Ranks that do not agree still train, and their replicas stay equal (gradients are averaged later), but the numbers are
# those of a different run.
#
# Sources: NVIDIA, Transformer Engine, `DelayedScaling` (amax_history_len, reduce_amax); torchtitan, docs/float8.md.


class Split(NamedTuple):
    """The Comms of those who split a linear layer's tokens, inputs and outputs; None: nobody does.

    >>> from minidist import World
    >>> from minidist.train.fp8 import Split
    >>> def program(comm):
    ...     return Split(tokens=comm).tokens.size  # data parallel
    >>> World(2).run(program)[0]
    2
    """

    tokens: Comm | None = None
    inputs: Comm | None = None
    outputs: Comm | None = None


DIMENSIONS = {
    "x": ("tokens", "inputs"),
    "weight": ("outputs", "inputs"),
    "grad": ("tokens", "outputs"),
}
"""Of a linear layer's three matrices."""

FORMATS = {"x": E4M3, "weight": E4M3, "grad": E5M2}

GRAINS = {
    "tensor": {"x": TENSOR, "weight": TENSOR, "grad": TENSOR},
    "row": {"x": ROW, "weight": ROW, "grad": ROW},
    "block": {"x": TILE, "weight": SQUARE, "grad": TILE},
}


class Present:
    """Scales from the amax of the tensor at hand, agreed between the ranks that hold parts of a block.

    grain: "tensor", "row" or "block".  formats: of "x", "weight" and "grad".
    split: a `Split`; nobody shares a block unless given.  ValueError for another grain.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train.fp8 import Present, Split
    >>> def program(comm):
    ...     x = torch.full((2, 4), 100.0 * (1 + 9 * comm.rank))  # tokens of 100, and of 1000
    ...     return Present()(x, "x").scale.item(), Present(split=Split(comm))(x, "x").scale.item()
    >>> list(World(2).run(program))  # each by itself, and agreed
    [(0.25, 4.0), (4.0, 4.0)]
    """

    def __init__(self, grain: str = "tensor", split: Split | None = None, formats=FORMATS):
        self.grains = GRAINS[choice(grain, "grain", GRAINS)]
        self.split = Split() if split is None else split
        self.formats = formats

    def __call__(self, x: Tensor, name: str, turned: bool = False, recorded: bool = True) -> Scaled:
        """One of a layer's matrices in eight bits. turned: it is the transposed one.  recorded: for `Delayed`."""
        grain, dtype = self.grains[name], self.formats[name]
        amax = self.agreed(largest(x, grain).float(), name, turned)
        return quantize(x, dtype, grain, scale_of(amax, dtype))

    def agreed(self, amax: Tensor, name: str, turned: bool) -> Tensor:
        """The largest of all ranks that hold a part of the same blocks."""
        dimensions = DIMENSIONS[name][::-1] if turned else DIMENSIONS[name]
        for dimension, side in zip(dimensions, self.grains[name], strict=True):
            comm = getattr(self.split, dimension)
            if side is None and comm is not None:
                amax = all_reduce_(comm, amax.contiguous(), "max")
        return amax

    def transposed(self, x: Tensor, name: str, scaled: Scaled) -> Scaled:
        """The transpose of `x`, which is `scaled`: with the same scales, where the blocks are the same."""
        if scaled.grain == scaled.grain.turned:
            return quantize(x.t(), self.formats[name], scaled.grain, scaled.scale.t())
        return self(x.t(), name, turned=True)


class History:
    """amax of a tensor in the last steps, and in this one so far.

    >>> import torch
    >>> from minidist.train.fp8 import History
    >>> history = History(length=16)
    >>> for amax in (3.0, 2.0):
    ...     history.record(torch.tensor(amax))
    >>> history.now
    tensor(3.)
    """

    def __init__(self, length: int):
        self.steps: deque[Tensor] = deque(maxlen=length)
        self.now: Tensor | None = None

    def record(self, amax: Tensor) -> None:
        """Take in an amax of this step."""
        self.now = amax if self.now is None else torch.maximum(self.now, amax)


class Delayed(Present):
    """Scales from the largest amax of the last `length` steps; 1 before there is one. Call `update` after each step.

    Nothing is recorded of what is computed without a graph, such as an evaluation; what is computed twice, for
    checkpointing, counts as if it were computed once. Layers share one `update`, and one message: see `eight_bits_`.
    ValueError for a history of fewer than 1 step.

    >>> import torch
    >>> from minidist.train.fp8 import Delayed, update
    >>> scaling, x = Delayed(length=2), torch.full((2, 4), 1000.0)
    >>> first = scaling(x, "x").scale.item()  # nothing is known yet: beyond 448 it is cut off
    >>> update([scaling])
    >>> first, scaling(x, "x").scale.item()
    (1.0, 4.0)
    """

    def __init__(self, length: int = 16, split: Split | None = None, formats=FORMATS):
        super().__init__("tensor", split, formats)
        whole(length, "a history has at least 1 step", 1)
        self.histories = {name: History(length) for name in DIMENSIONS}

    def __call__(self, x: Tensor, name: str, turned: bool = False, recorded: bool = True) -> Scaled:
        history = self.histories[name]
        amax = largest(x)
        scale = torch.ones_like(amax, dtype=torch.float32)
        if history.steps:
            scale = scale_of(torch.stack([*history.steps]).amax(0), self.formats[name])
        if recorded:
            history.record(amax)
        return quantize(x, self.formats[name], TENSOR, scale)


@torch.no_grad()
def update(scalings: list[Delayed], comm: Comm | None = None) -> None:
    """End a step: what all histories have seen is agreed on in one all-reduce, and counts from the next step on.

    comm: of all ranks that hold parts of these layers' matrices; all have the same layers. An amax that is inf or nan
    is not remembered.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.train.fp8 import Delayed, update
    >>> def program(comm):
    ...     scaling, x = Delayed(), torch.full((2, 4), 100.0 * (1 + 9 * comm.rank))
    ...     scaling(x, "x")
    ...     update([scaling], comm)
    ...     return scaling(x, "x").scale.item()
    >>> list(World(2).run(program))
    [4.0, 4.0]
    """
    histories = [history for scaling in scalings for history in scaling.histories.values()]
    found = [history for history in histories if history.now is not None]
    if not found:
        return
    amax = torch.stack([history.now.float() for history in found])  # type: ignore[union-attr]
    if comm is not None:
        amax = all_reduce_(comm, amax, "max")
    for history, value in zip(found, amax, strict=True):
        history.now = None
        last = history.steps[-1] if history.steps else torch.zeros_like(value)
        history.steps.append(torch.where(value.isfinite(), value, last))


# ------------------------------------------------------------
# A linear layer in eight bits, forward and backward.
#
# Kept for backward: xᵀ in eight bits, a byte a number where 16 bits take two, and the weight as it is. dW comes in the
# dtype of the weight, dx in that of x. Under `amp.autocast` y is in its half format, as a linear layer's would be; x
# and W are rounded once, from the dtype they have, even if that is fp32.


class EightBitLinear(Function):
    """See `linear`."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, scaling: Present, dtype: torch.dtype, learns: bool
    ) -> Tensor:
        scaled_x = scaling(x, "x", recorded=learns)
        scaled_weight = scaling(weight, "weight", recorded=learns)
        if learns:
            kept = scaling.transposed(x, "x", scaled_x)
            ctx.save_for_backward(kept.values, kept.scale, weight, scaled_weight.scale)
            ctx.grains = kept.grain, scaled_weight.grain
            ctx.scaling = scaling
            ctx.dtype = x.dtype
        return product(scaled_x, scaled_weight, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        values, scale, weight, weight_scale = ctx.saved_tensors
        grain, weight_grain = ctx.grains
        of_x, of_weight, *_ = ctx.needs_input_grad
        scaling = ctx.scaling
        dx = dweight = None
        scaled = scaling(grad, "grad")
        if of_x:
            known = Scaled(weight, weight_scale, weight_grain)
            dx = product(scaled, scaling.transposed(weight, "weight", known), ctx.dtype)
        if of_weight:
            turned = scaling.transposed(grad, "grad", scaled)
            dweight = product(turned, Scaled(values, scale, grain), weight.dtype)
        return dx, dweight, None, None, None


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scaling: Present | None = None
) -> Tensor:
    """`F.linear` in eight bits: (…, in), (out, in), (out) to (…, out). The bias is added in the result's dtype.
    scaling: where scales come from, `Present()` unless given.

    >>> import torch
    >>> from minidist.train.fp8 import linear
    >>> x, weight = torch.tensor([[1.0, 2.1]]), torch.eye(2)
    >>> linear(x, weight).tolist()  # E4M3 has 2 and 2.25, and nothing between them
    [[1.0, 2.0]]
    """
    modes = autocasts()
    dtype = modes[-1].dtype if modes and modes[-1].enabled else x.dtype
    scaling = Present() if scaling is None else scaling
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    y = EightBitLinear.apply(x.flatten(0, -2), weight, scaling, dtype, learns)
    y = y.unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(y.dtype)


def eight_bits_(
    module: nn.Module,
    grain: str | Callable[[Split], Present] = "tensor",
    tokens: Comm | None = None,
) -> list[Any]:
    """The linear layers of `module` multiply in eight bits from here on, in place. Returns the scaling of each, in
    order.

    grain: "tensor", "row" or "block", or a function that makes a layer's scaling of its Split, such as
    `lambda split: Delayed(16, split)`.  tokens: the Comm of the ranks that have other samples of the batch. A layer
    that is split (`parallel.tensor`) says itself who has the rest of it.
    A linear layer is what has a `product` (`models.Linear`). Give it the layers of a transformer, and not its head,
    whose errors go straight into the loss. Raises ValueError where there is no linear layer, and for one that gathers
    in backward (regather), which does its own products.

    >>> import torch
    >>> from minidist.models import TransformerLayer
    >>> from minidist.train import eight_bits_
    >>> layer, x = TransformerLayer(hidden=32, heads=4), torch.randn(2, 8, 32)
    >>> before = layer(x)
    >>> len(eight_bits_(layer, "row"))  # qkv and proj, fc and proj
    4
    >>> error = (layer(x) - before).norm() / before.norm()
    >>> bool(0 < error < 0.1)
    True
    """
    make = grain if callable(grain) else partial(Present, choice(grain, "grain", GRAINS))
    layers: list[Any] = [part for part in module.modules() if hasattr(part, "product")]
    if not layers:
        raise ValueError(
            f"a {type(module).__name__} has 0 linear layers of minidist to put in 8 bits"
        )
    scalings = []
    for layer in layers:
        if getattr(layer, "regather", False):
            raise ValueError(
                "a layer with regather=True has 1 kind of product, in 16 bits or more, not in 8"
            )
        cut = getattr(layer, "cuts", {}).get("weight")
        split = Split(
            tokens,
            inputs=layer.comm if cut is not None and cut.dim == 1 else None,
            outputs=layer.comm if cut is not None and cut.dim == 0 else None,
        )
        scalings.append(make(split))
        layer.product = partial(linear, scaling=scalings[-1])
    return scalings
