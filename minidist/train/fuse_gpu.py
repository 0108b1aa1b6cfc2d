"""The operators of `fuse` and `flat_optim` for a GPU, in Triton.

A function without an underscore is the operator of its name, with the same arguments, whose tensors are contiguous.
A program of the grid has a block of a flat buffer (add3, AdamW), a row, which stays in registers where it is
short (bias_gelu, layer_norm) and passes by in blocks where it may have any length (softmax, cross_entropy), or a tile
of queries or keys (attention). Sums are taken in float32, in float64 of float64. Numbers such as ε and the learning
rate arrive in a small tensor: a Python float among a kernel's arguments is float32 there.

`triton` comes with PyTorch's CUDA builds, and is imported with this file. The kernels are held against `fuse` in
Triton's interpreter (TRITON_INTERPRET=1), which needs no GPU, and on one; `docs/gpus.md` has the times.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
HALF = tl.constexpr(math.sqrt(0.5))
DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))


@triton.jit
def wide(x):
    """x in the type that sums are taken in."""
    return x if x.dtype == tl.float64 else x.to(tl.float32)


@triton.jit
def load(x, at, there):
    """The elements of x at these places, wide; 0 where there are none."""
    return wide(tl.load(x + at, there, 0.0))


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype of `wide`."""
    return torch.promote_types(x.dtype, torch.float32)


def number(value: float, like: Tensor) -> Tensor:
    """`value` (1,) for a kernel to load. The device fills it, so that the host waits for no copy."""
    return like.new_full((1,), value, dtype=wide_dtype(like))


# ------------------------------------------------------------
# Blocks of flat buffers.


@triton.jit
def _block(n, BLOCK: tl.constexpr):
    """This program's elements, and which of them there are."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < n


@triton.jit
def _add3(a, b, c, out, n, BLOCK: tl.constexpr):
    at, there = _block(n, BLOCK)
    tl.store(out + at, load(a, at, there) + load(b, at, there) + load(c, at, there), there)


@triton.jit
def _adamw(p, m, v, g, how, n, BLOCK: tl.constexpr):
    at, there = _block(n, BLOCK)
    beta1 = tl.load(how + 1)
    beta2 = tl.load(how + 2)
    grad = load(g, at, there)
    mean = beta1 * load(m, at, there) + (1 - beta1) * grad
    square = beta2 * load(v, at, there) + (1 - beta2) * grad * grad
    root = tl.sqrt(square / tl.load(how + 4)) + tl.load(how + 5)
    x = load(p, at, there)
    update = mean / tl.load(how + 3) / root + tl.load(how + 6) * x
    tl.store(p + at, x - tl.load(how) * update, there)
    tl.store(m + at, mean, there)
    tl.store(v + at, square, there)


def add3(a, b, c):
    out, n = torch.empty_like(a), a.numel()
    _add3[(triton.cdiv(n, BLOCK),)](a, b, c, out, n, BLOCK=BLOCK)
    return out


def adamw_(p, m, v, g, *numbers):
    how = torch.tensor(numbers, dtype=wide_dtype(p)).to(p.device, non_blocking=True)  # one copy
    n = p.numel()
    _adamw[(triton.cdiv(n, BLOCK),)](p, m, v, g, how, n, BLOCK=BLOCK)


# ------------------------------------------------------------
# Rows that stay in registers: H is rounded up to a power of two.
#
# Backward also sums over rows, for the bias and the weight. A program takes every 256th row, or as many as there are
# programs, and keeps its own sums; those of all programs, (programs, H), are added afterwards, which is one small
# launch that no meter sees.


@triton.jit
def _bias_gelu(x, bias, y, H, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there = column < H
    at = tl.program_id(0).to(tl.int64) * H + column
    z = load(x, at, there) + load(bias, column, there)
    tl.store(y + at, 0.5 * z * (1 + tl.erf(z * HALF)), there)


@triton.jit
def _bias_gelu_backward(dy, x, bias, dx, sums, rows, H, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there = column < H
    b = load(bias, column, there)
    total = tl.zeros_like(b)
    for r in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        at = r * H + column
        z = load(x, at, there) + b
        slope = 0.5 * (1 + tl.erf(z * HALF)) + z * tl.exp(-0.5 * z * z) * DENSITY
        dz = load(dy, at, there) * slope
        tl.store(dx + at, dz, there)
        total += dz
    tl.store(sums + tl.program_id(0) * H + column, total, there)


@triton.jit
def _layer_norm(x, weight, bias, y, means, rstds, eps, H, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < H
    row = load(x, r * H + column, there)
    mean = tl.sum(row) / H
    centred = tl.where(there, row - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred) / H + tl.load(eps))
    scaled = centred * rstd * load(weight, column, there) + load(bias, column, there)
    tl.store(y + r * H + column, scaled, there)
    tl.store(means + r, mean)
    tl.store(rstds + r, rstd)


@triton.jit
def _layer_norm_backward(dy, x, weight, means, rstds, dx, sums, rows, H, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there = column < H
    w = load(weight, column, there)
    dweight = tl.zeros_like(w)
    dbias = tl.zeros_like(w)
    for r in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        at = r * H + column
        rstd = tl.load(rstds + r)
        hat = tl.where(there, (load(x, at, there) - tl.load(means + r)) * rstd, 0.0)
        up = load(dy, at, there)
        g = up * w
        tl.store(dx + at, rstd * (g - tl.sum(g) / H - hat * (tl.sum(g * hat) / H)), there)
        dweight += up * hat
        dbias += up
    at = tl.program_id(0) * 2 * H + column
    tl.store(sums + at, dweight, there)
    tl.store(sums + at + H, dbias, there)


def _rows(x: Tensor) -> tuple[int, int]:
    """How many rows, and how long they are."""
    return x.shape[:-1].numel(), x.shape[-1]


def _sums(x: Tensor, vectors: int) -> Tensor:
    """Room for the sums of every program: (programs, vectors, H)."""
    rows, H = _rows(x)
    return x.new_zeros(min(rows, 256), vectors, H, dtype=wide_dtype(x))


def bias_gelu(x, bias):
    rows, H = _rows(x)
    y = torch.empty_like(x)
    _bias_gelu[(rows,)](x, bias, y, H, BLOCK=triton.next_power_of_2(H))
    return y


def bias_gelu_backward(dy, x, bias):
    rows, H = _rows(x)
    dx, sums = torch.empty_like(x), _sums(x, 1)
    block = triton.next_power_of_2(H)
    _bias_gelu_backward[(len(sums),)](dy, x, bias, dx, sums, rows, H, BLOCK=block)
    return dx, sums.sum((0, 1)).to(bias.dtype)


def layer_norm(x, weight, bias, eps):
    rows, H = _rows(x)
    y, mean = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=wide_dtype(x))
    rstd = torch.empty_like(mean)
    operands = x, weight, bias, y, mean, rstd, number(eps, x)
    _layer_norm[(rows,)](*operands, H, BLOCK=triton.next_power_of_2(H))
    return y, mean, rstd


def layer_norm_backward(dy, x, weight, mean, rstd):
    rows, H = _rows(x)
    dx, sums = torch.empty_like(x), _sums(x, 2)
    operands = dy, x, weight, mean, rstd, dx, sums
    _layer_norm_backward[(len(sums),)](*operands, rows, H, BLOCK=triton.next_power_of_2(H))
    dw, db = (sums[:, i].sum(0).to(weight.dtype) for i in range(2))
    return dx, dw, db  # in memory of their own, as PyTorch wants it of an operator's results


# ------------------------------------------------------------
# Rows of any length, which pass by in blocks.


@triton.jit
def _normalizer(row, V, BLOCK: tl.constexpr):
    """m = max x and s = Σ exp(x − m) of the row, in one reading: each column of the block has its own until the end."""
    s = wide(tl.zeros((BLOCK,), row.dtype.element_ty))
    m = s - 3e38  # finite: exp(−inf − m) is 0, not nan
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = wide(tl.load(row + column, column < V, -float("inf")))
        peak = tl.maximum(m, x)
        s = s * tl.exp(m - peak) + tl.exp(x - peak)
        m = peak
    peak = tl.max(m)
    return peak, tl.sum(s * tl.exp(m - peak))


@triton.jit
def _softmax(x, y, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * V
    m, s = _normalizer(x + row, V, BLOCK)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = load(x, row + column, column < V)
        tl.store(y + row + column, tl.exp(part - m) / s, column < V)


@triton.jit
def _softmax_backward(y, dy, dx, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * V
    sums = wide(tl.zeros((BLOCK,), y.dtype.element_ty))
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        sums += load(y, row + column, column < V) * load(dy, row + column, column < V)
    total = tl.sum(sums)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        up = load(dy, row + column, column < V)
        tl.store(dx + row + column, load(y, row + column, column < V) * (up - total), column < V)


@triton.jit
def _cross_entropy(x, targets, losses, lses, V, IGNORE, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + r)
    m, s = _normalizer(x + r * V, V, BLOCK)
    lse = m + tl.log(s)
    hit = wide(tl.load(x + r * V + tl.where(target == IGNORE, 0, target)))
    tl.store(losses + r, tl.where(target == IGNORE, 0.0, lse - hit))
    tl.store(lses + r, lse)


@triton.jit
def _cross_entropy_backward(dlosses, x, targets, lses, dx, V, IGNORE, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + r)
    lse = tl.load(lses + r)
    scale = tl.where(target == IGNORE, 0.0, tl.load(dlosses + r))
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        p = tl.exp(load(x, r * V + column, column < V) - lse)
        hit = tl.where(column == target, 1.0, 0.0)
        tl.store(dx + r * V + column, (p - hit) * scale, column < V)


def softmax(x):
    rows, V = _rows(x)
    y = torch.empty_like(x)
    _softmax[(rows,)](x, y, V, BLOCK=BLOCK)
    return y


def softmax_backward(y, dy):
    rows, V = _rows(y)
    dx = torch.empty_like(y)
    _softmax_backward[(rows,)](y, dy, dx, V, BLOCK=BLOCK)
    return dx


def cross_entropy(logits, targets, ignore):
    """A target that is no class reads past its row: check them before, a GPU does not."""
    rows, V = _rows(logits)
    losses = logits.new_empty(targets.shape, dtype=wide_dtype(logits))
    lse = torch.empty_like(losses)
    _cross_entropy[(rows,)](logits, targets, losses, lse, V, ignore, BLOCK=BLOCK)
    return losses, lse


def cross_entropy_backward(dloss, logits, targets, lse, ignore):
    rows, V = _rows(logits)
    dx = torch.empty_like(logits)
    operands = dloss, logits, targets, lse, dx
    _cross_entropy_backward[(rows,)](*operands, V, ignore, BLOCK=BLOCK)
    return dx


# ------------------------------------------------------------
# Attention: in forward a program has one tile of queries of one head, in backward one tile of keys.
#
# Backward adds to dq from all programs of a head at once, by atomic additions in float32, in no fixed order: dq may
# differ in its last digits from run to run, as in FlashAttention. Products of fp16 and bf16 tiles are summed in float32.


@triton.jit
def _tile(x, first, T, d, TILE: tl.constexpr, D: tl.constexpr):
    """Pointers to rows first … first + TILE of x (T, d), and which of the elements there are."""
    row = first + tl.arange(0, TILE)[:, None]
    column = tl.arange(0, D)[None, :]
    return x + row * d + column, (row < T) & (column < d)


@triton.jit
def _load(x, first, T, d, TILE: tl.constexpr, D: tl.constexpr):
    at, there = _tile(x, first, T, d, TILE, D)
    return tl.load(at, there, 0.0)


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _scores(q, k, i, j, K, factor, CAUSAL: tl.constexpr, TILE: tl.constexpr):
    """A tile of scores times `factor`, wide; −inf for keys that are not there, or later than their query."""
    row = i + tl.arange(0, TILE)[:, None]
    column = j + tl.arange(0, TILE)[None, :]
    seen = (column < K) & (column <= row) if CAUSAL else (column < K) & (row >= 0)
    return tl.where(seen, wide(_dot(q, tl.trans(k))) * factor, -float("inf"))


@triton.jit
def _attention(
    q, k, v, out, lse, scale, T, K, d, CAUSAL: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr
):
    i = tl.program_id(0) * TILE
    head = tl.program_id(1).to(tl.int64)
    k += head * K * d
    v += head * K * d
    factor = tl.load(scale)
    qi = _load(q + head * T * d, i, T, d, TILE, D)
    a = wide(tl.zeros((TILE, D), qi.dtype))
    l = tl.sum(a, 1)
    m = l - 3e38
    for j in range(0, tl.minimum(K, i + TILE) if CAUSAL else K, TILE):
        s = _scores(qi, _load(k, j, K, d, TILE, D), i, j, K, factor, CAUSAL, TILE)
        peak = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - peak[:, None])
        less = tl.exp(m - peak)
        l = l * less + tl.sum(p, 1)
        vj = _load(v, j, K, d, TILE, D)
        a = a * less[:, None] + _dot(p.to(vj.dtype), vj)
        m = peak
    at, there = _tile(out + head * T * d, i, T, d, TILE, D)
    tl.store(at, a / l[:, None], there)
    row = i + tl.arange(0, TILE)
    tl.store(lse + head * T + row, m + tl.log(l), row < T)


@triton.jit
def _attention_backward(
    do,
    q,
    k,
    v,
    lse,
    rowsum,
    dq,
    dk,
    dv,
    scale,
    T,
    K,
    d,
    CAUSAL: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
):
    j = tl.program_id(0) * TILE
    head = tl.program_id(1).to(tl.int64)
    of_queries = head * T * d
    of_keys = head * K * d
    factor = tl.load(scale)
    kj = _load(k + of_keys, j, K, d, TILE, D)
    vj = _load(v + of_keys, j, K, d, TILE, D)
    dkj = wide(tl.zeros((TILE, D), kj.dtype))
    dvj = dkj
    for i in range(j if CAUSAL else 0, T, TILE):
        row = i + tl.arange(0, TILE)
        qi = _load(q + of_queries, i, T, d, TILE, D)
        doi = _load(do + of_queries, i, T, d, TILE, D)
        lsei = load(lse, head * T + row, row < T)[:, None]
        p = tl.exp(_scores(qi, kj, i, j, K, factor, CAUSAL, TILE) - lsei)
        dp = wide(_dot(doi, tl.trans(vj)))
        ds = p * (dp - load(rowsum, head * T + row, row < T)[:, None]) * factor
        dvj += _dot(tl.trans(p.to(doi.dtype)), doi)
        dkj += _dot(tl.trans(ds.to(qi.dtype)), qi)
        at, there = _tile(dq + of_queries, i, T, d, TILE, D)
        tl.atomic_add(at, _dot(ds.to(kj.dtype), kj), there)
    at, there = _tile(dk + of_keys, j, K, d, TILE, D)
    tl.store(at, dkj, there)
    at, there = _tile(dv + of_keys, j, K, d, TILE, D)
    tl.store(at, dvj, there)


def _sizes(q: Tensor, tile: int) -> dict[str, int]:
    """What the kernels are compiled for; Triton's products have sides of at least 16, and powers of two.

    A tile is halved until it has at most 16 KiB: backward has some six of them on the chip at once. With two stages of
    loads under way they fit in 99 KiB, the least that GPUs of compute capability 8 and 9 have for a program.
    """
    if tile < 16 or tile & (tile - 1):
        raise ValueError(f"on a GPU a tile is a power of two of at least 16, not {tile}")
    D = max(16, triton.next_power_of_2(q.shape[2]))
    while tile > 16 and tile * D * q.element_size() > 2**14:
        tile //= 2
    return dict(TILE=tile, D=D, num_stages=2)


def attention(q, k, v, causal, scale, tile):
    N, T, d = q.shape
    sizes = _sizes(q, tile)
    out, lse = torch.empty_like(q), q.new_empty(N, T, dtype=wide_dtype(q))
    operands = q, k, v, out, lse, number(scale, q), T, k.shape[1], d
    _attention[triton.cdiv(T, sizes["TILE"]), N](*operands, CAUSAL=causal, **sizes)
    return out, lse


def attention_backward(do, q, k, v, out, lse, causal, scale, tile):
    N, T, d = q.shape
    K = k.shape[1]
    sizes = _sizes(q, tile)
    rowsum = (do.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    dq = torch.zeros_like(q, dtype=lse.dtype)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    operands = do, q, k, v, lse, rowsum, dq, dk, dv, number(scale, q), T, K, d
    _attention_backward[triton.cdiv(K, sizes["TILE"]), N](*operands, CAUSAL=causal, **sizes)
    return dq.to(q.dtype), dk, dv
