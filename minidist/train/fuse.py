"""Fused operators: one launch for what PyTorch does in several, forward and backward.

Problem: eager PyTorch starts a kernel for every step of a formula, and each of them writes its result to memory, where
the next one reads it. Most such steps are bound by memory or by their launch, not by arithmetic.
Idea: one operator reads its inputs once, does all of the formula on the chip, and writes its results once.

    z = x + b      ──memory──▶   y = gelu(z)            2 launches, 4N numbers moved
    y = bias_gelu(x, b)                                 1 launch,   2N

Of N elements; "kept" is what autograd keeps for backward beside the inputs, H and V are the length of a row:

                    forward written out     here     backward    here     kept here
    add3            2 launches, 6N          1, 4N    none        none     nothing
    bias_gelu       2, 4N                   1, 2N    2, 4N       1, 3N    nothing
    layer_norm      9, more than 10N        1, 2N    many        1, 3N    two numbers a row
    softmax         5, 8N                   1, 3N    many        1, 5N    the result
    cross_entropy   7, more than 5N         1, N     many        1, 2N    a number a row
    attention       see below

Each operator has its naive version beside it, X_plain. The fused one is written twice: here in PyTorch, which is what
a CPU runs and what says what the operator means, and in `fuse_gpu` in Triton, which a GPU runs. On a CPU nothing is
fused unless a compiler does it (benchmarks/fuse.py asks PyTorch's): meters and clocks count what a fused kernel moves.

Invariant: fp16 and bf16 are worked on in fp32, and results are rounded once. Sources: Ansel et al. 2024, "PyTorch 2";
each operator's own stand with it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..comm.base import describe

# ------------------------------------------------------------
# An operator of our own: autograd, meters, meta tensors and `torch.compile` see one, as they see those of PyTorch.
#
# `torch.library` makes a name, minidist::add3, known to the dispatcher, which chooses by device:
#
#     CPU      the function itself
#     CUDA     the function of that name in `fuse_gpu`
#     meta     the function itself, on tensors without values; or a `fake`, which is told the shapes
#
# A meter counts one launch, every operand read once and every result written once, and no FLOPs. Where more moves,
# `moved` says how many bytes, and `flops` how many FLOPs; both take the operator's arguments, and `out_val`, its result.


def operator(
    name: str,
    mutates: tuple[str, ...] = (),
    fake: Callable | None = None,
    flops: Callable[..., int] | None = None,
    moved: Callable[..., int] | None = None,
) -> Callable:
    """A decorator that makes the operator minidist::`name` of a function with annotated arguments.

    The function finds its tensors contiguous.  mutates: the arguments that it changes in place.
    fake(…): what the operator returns on the device "meta", instead of fn.  flops, moved: functions of the arguments
    and of `out_val`, the result, that say how many FLOPs, and how many bytes moved, a meter counts: none, and each
    operand and each result once, unless given.

    >>> import torch
    >>> from torch import Tensor
    >>> from minidist.train.fuse import differentiable, operator
    >>> @operator("doc_cube")
    ... def cube(x: Tensor) -> Tensor:
    ...     return x * x * x
    >>> cube(torch.tensor([2.0])), cube(torch.ones(5, device="meta")).shape
    (tensor([8.]), torch.Size([5]))
    """

    def define(fn: Callable):
        @functools.wraps(fn)
        def on_cpu(*args):
            # the caller's modes, such as autocast, may cast what goes in, no more
            with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
                return fn(*map(_contiguous, args))

        def on_gpu(*args):
            from . import fuse_gpu  # ImportError where Triton is not installed

            return getattr(fuse_gpu, name)(*map(_contiguous, args))

        made = torch.library.custom_op(f"minidist::{name}", on_cpu, mutates_args=mutates)
        made.register_fake(fake or on_cpu)
        made.register_kernel("cuda")(on_gpu)
        if flops is not None:
            register_flop_formula(getattr(torch.ops.minidist, name), get_raw=True)(flops)
        if moved is not None:
            getattr(torch.ops.minidist, name).default.bytes_moved = moved
        return made

    return define


def _contiguous(x):
    return x.contiguous() if isinstance(x, Tensor) else x


def differentiable(made, gradients: Callable, save: Callable) -> None:
    """Give the operator `made` a backward: gradients(ctx, dy), one for each input, dy being that of its first result.

    save(ctx, inputs, output) keeps what backward needs. Further results serve backward alone and have no gradient.

    >>> import torch
    >>> from torch import Tensor
    >>> from minidist.train.fuse import differentiable, operator
    >>> @operator("doc_square")
    ... def square(x: Tensor) -> Tensor:
    ...     return x * x
    >>> keep = lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    >>> differentiable(square, lambda ctx, dy: (2 * ctx.saved_tensors[0] * dy,), keep)
    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> square(x).backward()
    >>> x.grad.item()
    6.0
    """

    def setup(ctx, inputs, output) -> None:
        save(ctx, inputs, output)
        ctx.set_materialize_grads(False)  # no zeros for the further results
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(*output[1:])

    def backward(ctx, dy, *_):
        return gradients(ctx, dy) if dy is not None else (None,) * len(ctx.needs_input_grad)

    made.register_autograd(backward, setup_context=setup)


def exact(x: Tensor) -> Tensor:
    """x in the dtype that sums are taken in: float32 for anything shorter.

    >>> import torch
    >>> from minidist.train.fuse import exact
    >>> [exact(torch.ones(2, dtype=dtype)).dtype for dtype in (torch.float16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rows(x: Tensor) -> Tensor:
    """(…, H) as (rows, H).

    >>> import torch
    >>> from minidist.train.fuse import rows
    >>> rows(torch.zeros(2, 3, 4)).shape
    torch.Size([6, 4])
    """
    return x.view(-1, x.shape[-1])


def check_alike(first: str, x: Tensor, **others: Tensor) -> None:
    """ValueError where one of the others differs from x, which is called `first`, in shape, dtype or device.

    >>> import torch
    >>> from minidist.train.fuse import check_alike
    >>> check_alike("a", torch.zeros(3), b=torch.zeros(4))
    Traceback (most recent call last):
    ValueError: b must be as a, (3,) float32 on cpu: it is (4,) float32 on cpu
    """
    for name, y in others.items():
        if (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
            raise ValueError(
                f"{name} must be as {first}, {describe(x)} on {x.device}: "
                f"it is {describe(y)} on {y.device}"
            )


def check_rows(x: Tensor, **vectors: Tensor) -> None:
    """ValueError unless x is (…, H) of a floating type, and each of the vectors (H,), on the same device.

    >>> import torch
    >>> from minidist.train.fuse import check_rows
    >>> check_rows(torch.zeros(2, 8), bias=torch.zeros(4))
    Traceback (most recent call last):
    ValueError: bias must be (8,) on cpu, as x, (2, 8) float32: it is (4,) float32 on cpu
    """
    if x.dim() < 1 or not x.shape[-1] or not x.is_floating_point():
        raise ValueError(f"x must be (…, H) of a floating type: it is {describe(x)}")
    for name, y in vectors.items():
        if (y.shape, y.device) != (x.shape[-1:], x.device) or not y.is_floating_point():
            raise ValueError(
                f"{name} must be {tuple(x.shape[-1:])} on {x.device}, as x, {describe(x)}: "
                f"it is {describe(y)} on {y.device}"
            )


# ------------------------------------------------------------
# Three tensors added in one pass: the smallest fusion there is. A residual block x + attention(x) + mlp(x) needs it.


def add3_plain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Two launches, with a temporary tensor between them.

    >>> import torch
    >>> from minidist.train.fuse import add3_plain
    >>> add3_plain(torch.ones(2), torch.ones(2), torch.ones(2)).tolist()
    [3.0, 3.0]
    """
    return a + b + c


@operator("add3")
def _add3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (exact(a) + exact(b) + exact(c)).to(a.dtype)


differentiable(_add3, lambda ctx, dy: (dy, dy, dy), lambda ctx, inputs, output: None)


def add3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a + b + c, of one shape, dtype and device: (…) → (…). Backward hands the gradient on and launches nothing.

    The sum is rounded once, where a + b + c in fp16 is rounded twice. ValueError for tensors that are not alike.

    >>> import torch
    >>> from minidist.train.fuse import add3
    >>> a, b, c = (torch.tensor([x], dtype=torch.float16) for x in (2048.0, 1.0, 1.0))
    >>> (a + b + c).item(), add3(a, b, c).item()
    (2048.0, 2050.0)
    """
    check_alike("a", a, b=b, c=c)
    return _add3(a, b, c)


# ------------------------------------------------------------
# Bias and GELU, between the two linear layers of a transformer's MLP. Of z = x + b:
#
#     y = z·Φ(z), Φ(z) = (1 + erf(z/√2))/2        dx = dy·(Φ(z) + z·φ(z)), φ(z) = exp(−z²/2)/√(2π)        db = Σ dx
#
# PyTorch keeps z for backward. Here backward has x, which is there anyway, and forms z again, in registers.
# Sources: Hendrycks and Gimpel 2016, "GELU", section 2; Shoeybi et al. 2019, "Megatron-LM", which fuses the two.


def bias_gelu_plain(x: Tensor, bias: Tensor) -> Tensor:
    """The formula, each step a launch.

    >>> import torch
    >>> from minidist.train.fuse import bias_gelu_plain
    >>> bias_gelu_plain(torch.tensor([[1.0, 100.0]]), torch.tensor([-1.0, 0.0])).tolist()
    [[0.0, 100.0]]
    """
    z = x + bias
    return 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5)))


@operator("bias_gelu")
def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(exact(x) + exact(bias)).to(x.dtype)


@operator("bias_gelu_backward")
def _bias_gelu_backward(dy: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    z = exact(x) + exact(bias)
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    slope = 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * density
    dx = exact(dy) * slope
    return dx.to(x.dtype), rows(dx).sum(0).to(bias.dtype)


differentiable(
    _bias_gelu,
    lambda ctx, dy: _bias_gelu_backward(dy, *ctx.saved_tensors),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """`F.gelu(x + bias)`: (…, H) and (H,) → (…, H), in the dtype of x. ValueError for other shapes or devices.
    Sources: Hendrycks and Gimpel 2016, "GELU", section 2; Shoeybi et al. 2019, "Megatron-LM".

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist.train.fuse import bias_gelu
    >>> x, bias = torch.randn(2, 5, 8), torch.randn(8)
    >>> bias_gelu(x, bias).allclose(F.gelu(x + bias), atol=1e-6)
    True
    """
    check_rows(x, bias=bias)
    return _bias_gelu(x, bias)


# ------------------------------------------------------------
# Layer norm. A row fits on the chip: its mean, its variance and its result take one reading of x. Backward keeps x and
# two numbers a row, from which it forms the rest again:
#
#     x̂ = (x − mean)·rstd     y = x̂·w + b     rstd = 1/√(var + ε)
#     g = dy·w     dx = rstd·(g − mean(g) − x̂·mean(g·x̂))     dw = Σ dy·x̂     db = Σ dy
#
# Invariant: the variance is that of x − mean, never mean(x²) − mean², which loses all digits where the mean is large.
# Source: Ba et al. 2016, "Layer Normalization", section 3.


def layer_norm_plain(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The formula, each step a launch: (…, H), (H,), (H,) → (…, H).

    >>> import torch
    >>> from minidist.train.fuse import layer_norm_plain
    >>> x = torch.tensor([[1.0, 3.0], [10.0, 30.0]])
    >>> layer_norm_plain(x, torch.ones(2), torch.zeros(2), eps=0.0).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight + bias


@operator("layer_norm")
def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """y (…, H), mean (…) and rstd (…)."""
    wide = exact(x)
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    rstd = ((centred * centred).mean(-1, keepdim=True) + eps).rsqrt()
    y = centred * rstd * exact(weight) + exact(bias)
    return y.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


@operator("layer_norm_backward")
def _layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    up, rstd = exact(dy), rstd[..., None]
    hat = (exact(x) - mean[..., None]) * rstd
    g = up * exact(weight)
    dx = rstd * (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True))
    dweight, dbias = rows(up * hat).sum(0), rows(up).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


differentiable(
    _layer_norm,
    lambda ctx, dy: (*_layer_norm_backward(dy, *ctx.saved_tensors), None),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2], *output[1:]),
)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`F.layer_norm` over the last dimension: (…, H), (H,), (H,) → (…, H), in the dtype of x.

    Weight and bias are of one dtype, which need not be that of x. ValueError for other shapes or devices.
    Source: Ba et al. 2016, "Layer Normalization", section 3.

    >>> import torch
    >>> from minidist.train.fuse import layer_norm
    >>> x = torch.tensor([[1.0, 3.0], [10.0, 30.0]])
    >>> layer_norm(x, torch.ones(2), torch.zeros(2), eps=0.0).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    check_rows(x, weight=weight, bias=bias)
    check_alike("weight", weight, bias=bias)
    return _layer_norm(x, weight, bias, eps)[0]


# ------------------------------------------------------------
# Online softmax. A safe softmax reads a row three times: for its peak m = max x, for s = Σ exp(x − m), and for the
# result. But m and s can be taken together: two parts of a row, each with its own, merge without being seen again:
#
#     m = max(m₁, m₂)     s = s₁·exp(m₁ − m) + s₂·exp(m₂ − m)            (associative, so parts may be of any size)
#
# So a row of any length passes by in parts that fit on the chip. Backward: dx = y·(dy − Σ y·dy).
# Invariant: no exp is of a positive number, so nothing overflows. A row of −inf alone gives nan, as in PyTorch.
# Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3 and section 3.1.


def softmax_plain(x: Tensor) -> Tensor:
    """Over the last dimension, each step a launch.

    >>> import torch
    >>> from minidist.train.fuse import softmax_plain
    >>> softmax_plain(torch.tensor([[1000.0, 1000.0, float("-inf")]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def merge(part: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Peaks `m` (rows,) and sums `s` (rows,) of what came before, with those of `part` (rows, columns) merged in.

    >>> import torch
    >>> from minidist.train.fuse import merge
    >>> m, s = torch.tensor([2.0]), torch.tensor([3.0])  # of three numbers 2
    >>> merge(torch.tensor([[2.0, 2.0]]), m, s)
    (tensor([2.]), tensor([5.]))
    """
    part = exact(part)
    peak = torch.maximum(m, part.amax(-1))
    return peak, s * (m - peak).exp() + (part - peak[:, None]).exp().sum(-1)


def normalizer(x: Tensor, part: int = 4096) -> tuple[Tensor, Tensor]:
    """m = max x and s = Σ exp(x − m) of every row of x (rows, V), each (rows,) in float32 at least, `part` by `part`.

    log Σ exp(x) is m + log s.
    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.

    >>> import torch
    >>> from minidist.train.fuse import normalizer
    >>> x = torch.randn(4, 1000)
    >>> m, s = normalizer(x, part=128)
    >>> (m + s.log()).allclose(x.logsumexp(-1))
    True
    """
    s = exact(x.new_zeros(len(x)))
    m = torch.full_like(s, torch.finfo(s.dtype).min)  # finite: exp(−inf − m) is 0, not nan
    for columns in x.split(part, -1):
        m, s = merge(columns, m, s)
    return m, s


@operator("softmax", moved=lambda x, out_val: 3 * x.nbytes)
def _softmax(x: Tensor) -> Tensor:
    flat = rows(x)
    m, s = normalizer(flat)
    y = (exact(flat) - m[:, None]).exp() / s[:, None]
    return y.to(x.dtype).view(x.shape)


@operator("softmax_backward", moved=lambda y, dy, out_val: 5 * y.nbytes)
def _softmax_backward(y: Tensor, dy: Tensor) -> Tensor:
    wide, up = exact(y), exact(dy)
    return (wide * (up - (wide * up).sum(-1, keepdim=True))).to(y.dtype)


differentiable(
    _softmax,
    lambda ctx, dy: (_softmax_backward(*ctx.saved_tensors, dy),),
    lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def softmax(x: Tensor) -> Tensor:
    """`x.softmax(-1)`: (…, V) → (…, V). ValueError unless x is of a floating type and has a dimension.
    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.

    >>> import torch
    >>> from minidist.train.fuse import softmax
    >>> softmax(torch.tensor([[1000.0, 1000.0, float("-inf")]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    check_rows(x)
    return _softmax(x)


# ------------------------------------------------------------
# Cross-entropy. V is large, so logits (tokens, V) are the largest tensor of a language model. Written out, the loss
# writes their log-softmax, as large again, keeps it for backward, and in fp16 a copy of both in fp32. But
#
#     loss = lse − x[target], lse = log Σ exp(x)              dx = (exp(x − lse) − [column = target])·dloss
#
# needs one number a row, found in one reading, and backward reads the logits again.
# Invariant: a token that is ignored has loss 0 and gradient 0. Losses and lse are in float32 at least.
# Source: Milakov and Gimelshein 2018, section 3. `parallel.vocab` does the same with the vocabulary split over ranks.


def cross_entropy_plain(logits: Tensor, targets: Tensor) -> Tensor:
    """Losses (tokens,) of logits (tokens, V), each step a launch; nothing is ignored.

    >>> import torch
    >>> from minidist.train.fuse import cross_entropy_plain
    >>> losses = cross_entropy_plain(torch.zeros(2, 8), torch.tensor([5, 0]))
    >>> losses.exp().allclose(torch.tensor([8.0, 8.0]))
    True
    """
    centred = logits - logits.amax(-1, keepdim=True)
    return centred.exp().sum(-1).log() - centred.gather(-1, targets[:, None]).squeeze(-1)


@operator("cross_entropy")
def _cross_entropy(logits: Tensor, targets: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """Losses and lse, each of the shape of targets."""
    m, s = normalizer(rows(logits))
    lse = (m + s.log()).view(targets.shape)
    hit = logits.gather(-1, targets.where(targets != ignore, 0)[..., None]).squeeze(-1)
    return (lse - exact(hit)).where(targets != ignore, 0), lse


@operator("cross_entropy_backward")
def _cross_entropy_backward(
    dloss: Tensor, logits: Tensor, targets: Tensor, lse: Tensor, ignore: int
) -> Tensor:
    hit = torch.arange(logits.shape[-1], device=logits.device) == targets[..., None]
    scale = dloss.where(targets != ignore, 0)
    p = (exact(logits) - lse[..., None]).exp()
    return ((p - hit.to(p.dtype)) * scale[..., None]).to(logits.dtype)


def _save_logits(ctx, inputs, output) -> None:
    logits, targets, ctx.ignore = inputs
    ctx.save_for_backward(logits, targets, output[1])


differentiable(
    _cross_entropy,
    lambda ctx, dloss: (_cross_entropy_backward(dloss, *ctx.saved_tensors, ctx.ignore), None, None),
    _save_logits,
)


def cross_entropy(
    logits: Tensor, targets: Tensor, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    """`F.cross_entropy` with the classes in the last dimension: (…, V) and whole numbers (…) → a number, or (…).

    reduction: "mean" over the tokens that are not ignored (nan if all are), "sum", or "none". The loss is in
    float32 at least. A target is 0 … V−1 or `ignore_index`; another one is an error of `gather`, on a CPU.
    ValueError for other shapes and other reductions.
    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3.

    >>> import torch
    >>> from minidist.train.fuse import cross_entropy
    >>> logits = torch.zeros(3, 8, requires_grad=True)  # 3 tokens, V = 8, a mere guess
    >>> loss = cross_entropy(logits, torch.tensor([5, 0, -100]))
    >>> loss.exp().allclose(torch.tensor(8.0))
    True
    >>> loss.backward()
    >>> logits.grad[0, 5].item(), logits.grad[2].any().item()  # (1/8 − 1)/2, and nothing
    (-0.4375, False)
    """
    check_rows(logits)
    if targets.shape != logits.shape[:-1] or targets.dtype != torch.long:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])} of type int64: "
            f"they are {tuple(targets.shape)}, {targets.dtype}"
        )
    losses = _cross_entropy(logits, targets, ignore_index)[0]
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction != "mean":
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    return losses.sum() / (targets != ignore_index).sum()


# ------------------------------------------------------------
# Attention in tiles: exact, and the (T, T) matrix of scores is never formed.
#
#     for each tile i of queries: m = −∞, l = 0, a = 0             forward: s is one tile of scores, (tile, tile)
#         for each tile j of keys:   s = qᵢkⱼᵀ   m' = max(m, max s)   p = exp(s − m')
#             l = l·exp(m − m') + Σ p             a = a·exp(m − m') + p·vⱼ
#         oᵢ = a/l               lseᵢ = m + log l                   all that backward needs of the scores
#
#     for each tile j of keys, for each tile i of queries:          backward: D = Σ do∘o a row, p = exp(s − lse)
#         dvⱼ += pᵀdoᵢ    ds = p∘(doᵢvⱼᵀ − D)    dqᵢ += ds·kⱼ    dkⱼ += dsᵀqᵢ
#
# Causal: tiles whose keys are all later than the queries are skipped, about half. q is scaled before.
#
#     of N heads, T × T, dimension d      written out         here
#     kept for backward                   (T + 3d)·T·N        (4d + 1)·T·N: q, k, v, o and a number a row
#     FLOPs, forward and backward         4 and 8 TTdN        4 and 10 TTdN: backward forms the scores again
#     bytes, forward                      ~ 6 TTN elements    q, o once; k and v again for every tile of queries
#     bytes, backward                     ~ 9 TTN             k, v, dk, dv once; q, do, lse, D, and dq read and
#                                                             written again for every tile of keys; dq, D in fp32
#
# The bytes are the Θ(T²d²/M) of Dao et al. 2022, "FlashAttention", theorem 2, where a tile fills the chip's memory M.
# Sources: the same, algorithms 1 and 4 (forward here has the loops in the order of Dao 2023, algorithm 1: a tile of
# queries is finished before the next); Milakov and Gimelshein 2018 for m and l.


def attention_plain(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """softmax(q·kᵀ/√d)·v with the scores (…, T, K) in memory, each step a launch.

    >>> import torch
    >>> from minidist.train.fuse import attention, attention_plain
    >>> q, k, v = torch.randn(3, 2, 50, 8)
    >>> attention_plain(q, k, v).allclose(attention(q, k, v, tile=16), atol=1e-5)
    True
    """
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = _without_future(scores)
    return scores.softmax(-1) @ v


def _without_future(scores: Tensor) -> Tensor:
    """−inf for the keys that are later than their query, of (…, T, T)."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -math.inf)


def forward_tile(q: Tensor, k: Tensor, v: Tensor, m: Tensor, l: Tensor, a: Tensor, diagonal: bool):
    """m, l, a with one tile of keys taken in: q and a (N, queries, d), k and v (N, keys, d), m and l (N, queries).

    >>> import torch
    >>> from minidist.train.fuse import forward_tile
    >>> q, k, v = torch.zeros(1, 1, 2), torch.zeros(1, 4, 2), torch.arange(8.0).view(1, 4, 2)
    >>> before = torch.tensor([[-float("inf")]]), torch.zeros(1, 1), torch.zeros(1, 1, 2)
    >>> m, l, a = forward_tile(q, k, v, *before, diagonal=False)
    >>> (a / l[..., None]).tolist()  # all scores are alike: the mean of the values
    [[[3.0, 4.0]]]
    """
    s = q @ k.mT  # (N, queries, keys)
    if diagonal:
        s = _without_future(s)
    peak = torch.maximum(m, s.amax(-1))
    p, less = (s - peak[..., None]).exp(), (m - peak).exp()
    return peak, l * less + p.sum(-1), a * less[..., None] + p @ v


def backward_tile(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, D: Tensor, diagonal: bool
):
    """What one tile of scores adds to dq (of the scaled q), dk and dv.
    q, do: (N, queries, d).  k, v: (N, keys, d).  lse, D: (N, queries).  diagonal: no query sees a later key.

    >>> import torch
    >>> from minidist.train.fuse import backward_tile
    >>> q, k, v, do = torch.zeros(4, 1, 1, 2).fill_(1.0)  # 1 query, 1 key
    >>> lse, D = torch.full((1, 1), 2.0), torch.full((1, 1), 2.0)  # of the score 2, and of do · v
    >>> dq, dk, dv = backward_tile(q, k, v, do, lse, D, diagonal=False)
    >>> dq.tolist(), dv.tolist()  # one key has all the weight, so its score does not matter
    ([[[0.0, 0.0]]], [[[1.0, 1.0]]])
    """
    s = q @ k.mT
    if diagonal:
        s = _without_future(s)
    p = (s - lse[..., None]).exp()
    ds = p * (do @ v.mT - D[..., None])
    return ds @ k, ds.mT @ q, p.mT @ do


def _tiles(q: Tensor, k: Tensor, causal: bool, tile: int) -> list[tuple[int, int]]:
    """(queries, keys) of every tile of scores that is worked on."""
    T, K = q.shape[1], k.shape[1]
    return [
        (min(tile, T - i), min(tile, K - j))
        for i in range(0, T, tile)
        for j in range(0, i + 1 if causal else K, tile)
    ]


def _product(q, k, causal, tile) -> int:
    """FLOPs of one product over all tiles, such as the scores'."""
    scores = sum(queries * keys for queries, keys in _tiles(q, k, causal, tile))
    return 2 * len(q) * q.shape[2] * scores


def _moved(q, k, v, causal, scale, tile, out_val) -> int:
    keys = sum(keys for _, keys in _tiles(q, k, causal, tile))
    return q.nbytes + 2 * keys * k[:, :1].nbytes + sum(x.nbytes for x in out_val)


def _backward_moved(do, q, k, v, out, lse, causal, scale, tile, out_val) -> int:
    # of a query, in each tile: q, do; dq twice, in fp32; lse, D
    a_query = 2 * q[:, :1].nbytes + (2 * q.shape[2] + 2) * lse[:, :1].nbytes
    queries = sum(queries for queries, _ in _tiles(q, k, causal, tile))
    once = do, out, lse, k, v, *out_val[1:]
    return queries * a_query + sum(x.nbytes for x in once)


@operator(
    "attention",
    # the loops over tiles would take their time
    fake=lambda q, *more: (q.new_empty(q.shape), exact(q.new_empty(q.shape[:2]))),
    flops=lambda q, k, v, causal, scale, tile, out_val: 2 * _product(q, k, causal, tile),
    moved=_moved,
)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: int
) -> tuple[Tensor, Tensor]:
    """o (N, T, d) and lse (N, T)."""
    out, lse = [], []
    keys, values = exact(k).split(tile, 1), exact(v).split(tile, 1)
    for i, qi in enumerate((exact(q) * scale).split(tile, 1)):
        a = torch.zeros_like(qi)
        l = a[..., 0].clone()
        m = l - math.inf
        for j in range(i + 1 if causal else len(keys)):
            m, l, a = forward_tile(qi, keys[j], values[j], m, l, a, causal and j == i)
        out.append((a / l[..., None]).to(q.dtype))
        lse.append(m + l.log())
    return torch.cat(out, 1), torch.cat(lse, 1)


@operator(
    "attention_backward",
    fake=lambda do, q, k, v, *more: tuple(x.new_empty(x.shape) for x in (q, k, v)),
    flops=lambda do, q, k, v, out, lse, causal, scale, tile, out_val: (
        5 * _product(q, k, causal, tile)
    ),
    moved=_backward_moved,
)
def _attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv, summed over the tiles in float32 at least."""
    D = (exact(do) * exact(out)).sum(-1)
    dq, dk, dv = (exact(x.new_zeros(x.shape)) for x in (q, k, v))
    of_queries = [x.split(tile, 1) for x in (exact(q) * scale, exact(do), lse, D, dq)]
    of_keys = [x.split(tile, 1) for x in (exact(k), exact(v), dk, dv)]
    for j, (kj, vj, dkj, dvj) in enumerate(zip(*of_keys, strict=True)):
        for i, (qi, doi, lsei, Di, dqi) in enumerate(zip(*of_queries, strict=True)):
            if causal and j > i:
                continue
            parts = backward_tile(qi, kj, vj, doi, lsei, Di, causal and j == i)
            for total, part in zip((dqi, dkj, dvj), parts, strict=True):
                total += part
    return (dq * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _save_attention(ctx, inputs, output) -> None:
    q, k, v, *ctx.how = inputs
    ctx.save_for_backward(q, k, v, *output)


differentiable(
    _attention,
    lambda ctx, do: (*_attention_backward(do, *ctx.saved_tensors, *ctx.how), None, None, None),
    _save_attention,
)


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, tile: int | None = None
) -> Tensor:
    """softmax(q·kᵀ/√d)·v: (…, T, d), (…, K, d), (…, K, d) → (…, T, d).

    causal: a query sees the keys up to its own place; then T = K.
    tile: queries, and keys, that are worked on together. 128 on a CPU, where two of them fit in a core's cache, else
    64, which fits in what a multiprocessor shares; on a GPU a power of two, 16 or more.
    Sums are in float32 at least. ValueError for other shapes, dtypes or devices.
    Source: Dao et al. 2022, "FlashAttention", algorithms 1 and 4; Dao 2023, "FlashAttention-2", algorithm 1.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist.train.fuse import attention
    >>> q, k, v = torch.randn(3, 2, 300, 16)  # 2 heads, T = 300: 6 of 9 tiles
    >>> y = attention(q, k, v, causal=True)
    >>> y.shape, y.allclose(F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5)
    (torch.Size([2, 300, 16]), True)
    """
    check_alike("k", k, v=v)
    if q.dim() < 2 or (q.shape[:-2], q.shape[-1], q.dtype) != (k.shape[:-2], k.shape[-1], k.dtype):
        raise ValueError(
            f"q is (…, T, d), k and v are (…, K, d), alike in … and d: they are {describe(q)} and "
            f"{describe(k)}"
        )
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"causal attention has as many queries as keys, not {q.shape[-2]} and {k.shape[-2]}"
        )
    if tile is None:
        tile = 128 if q.device.type == "cpu" else 64
    if tile < 1:
        raise ValueError(f"a tile has at least 1 query, not {tile}")
    heads = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    return _attention(*heads, causal, q.shape[-1] ** -0.5, tile)[0].view(q.shape)
