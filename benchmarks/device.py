"""What a GPU reaches of its data sheet: matrix products, fused attention, copies, small operators, whole layers.

    python -m benchmarks.device [--out FILE.csv] [--only products attention …]

Each row is one operation in bfloat16 on random data: what, its sizes, seconds (the median of several runs between two
CUDA events, each long enough to be timed), and what that is a second: FLOPs, or bytes read and written. Attention
counts what a causal mask leaves, 2·b·s²·h FLOPs forward, and 2.5 times as many backward, where the scores are computed
anew. A layer is a transformer's, forward and backward: 72·b·s·h² + 6·b·s²·h useful FLOPs with 4h wide MLPs.
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Row(NamedTuple):
    """sizes: names and numbers.  work: FLOPs or bytes of one run."""

    what: str
    sizes: dict[str, int]
    seconds: float
    work: float
    unit: str


def seconds_of(run: Callable[[], object], enough: float = 0.02, repeats: int = 5) -> float:
    """The median time of one run; so many runs at once that they take about `enough` seconds."""
    for _ in range(3):
        run()
    number = max(1, round(enough / max(timed(run, 3), 1e-6)))
    return statistics.median(timed(run, number) for _ in range(repeats))


def timed(run: Callable[[], object], number: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(number):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / number


def random(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)


def products() -> Iterator[Row]:
    """(m, k)·(k, n): squares, and what transformer layers multiply, whole and cut over 4 and 8 ranks."""
    sizes = [(size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192, 16384)]
    for tokens in (1024, 2048, 4096, 8192, 16384):
        for h in (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288):
            sizes += [(tokens, h, 4 * h // ranks) for ranks in (1, 4, 8)]
    for tokens in (2048, 8192):
        for h in (2048, 8192):
            sizes += [(tokens, 4 * h // ranks, h) for ranks in (1, 4, 8)]
    for m, k, n in sizes:
        a, b = random(m, k), random(k, n)
        seconds = seconds_of(lambda a=a, b=b: a @ b)
        yield Row("product", dict(m=m, k=k, n=n), seconds, 2.0 * m * k * n, "FLOP/s")


def attention() -> Iterator[Row]:
    """Causal, by PyTorch's fused kernel, with about 16,384 tokens."""
    for heads, d in ((16, 64), (16, 128), (32, 128)):
        for s in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
            yield from both_ways(max(1, 16384 // s), s, heads, d)


def both_ways(b: int, s: int, heads: int, d: int) -> Iterator[Row]:
    q, k, v = (random(b, heads, s, d, grad=True) for _ in range(3))
    up = random(b, heads, s, d)
    work = 2.0 * b * s * s * heads * d
    sizes = dict(b=b, s=s, heads=heads, d=d)

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    y = forward()

    def backward() -> object:
        return torch.autograd.grad(y, (q, k, v), up, retain_graph=True)

    yield Row("attention forward", sizes, seconds_of(forward), work, "FLOP/s")
    yield Row("attention backward", sizes, seconds_of(backward), 2.5 * work, "FLOP/s")


def memory() -> Iterator[Row]:
    """A copy, and operators that only move bytes."""
    for number in (2**16, 2**20, 2**24, 2**28, 2**30):
        x, y = random(number), random(number)
        copy = seconds_of(lambda x=x, y=y: y.copy_(x))
        yield Row("copy", dict(numbers=number), copy, 4.0 * number, "B/s")
        add = seconds_of(lambda x=x, y=y: torch.add(x, y, out=y))
        yield Row("add", dict(numbers=number), add, 6.0 * number, "B/s")
    for h in (1024, 4096, 12288):
        x = random(8192, h)
        w, b = random(h), random(h)
        norm = seconds_of(lambda x=x, w=w, b=b: F.layer_norm(x, x.shape[-1:], w, b))
        yield Row("layer norm", dict(rows=8192, h=h), norm, 4.0 * x.numel(), "B/s")
        gelu = seconds_of(lambda x=x: F.gelu(x))
        yield Row("gelu", dict(rows=8192, h=h), gelu, 4.0 * x.numel(), "B/s")
    tiny = random(1)
    yield Row("launch", dict(numbers=1), seconds_of(lambda: tiny.add_(1)), 1.0, "launches/s")
    params = [torch.randn(2**24, device="cuda", requires_grad=True) for _ in range(8)]
    for p in params:
        p.grad = torch.randn_like(p)
    for name in ("foreach", "fused"):
        optimizer = torch.optim.AdamW(params, **{name: True})
        work = 28.0 * 8 * 2**24  # reads p, g, m, v, writes p, m, v, in four bytes
        yield Row(f"AdamW, {name}", dict(numbers=2**27), seconds_of(optimizer.step), work, "B/s")


class Layer(nn.Module):
    """A transformer layer with fused attention, as plain as it can be."""

    def __init__(self, h: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.mlp = nn.Sequential(
            nn.Linear(h, 4 * h), nn.GELU(approximate="tanh"), nn.Linear(4 * h, h)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        parts = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, h // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        return x + self.mlp(self.norms[1](x))


def layers() -> Iterator[Row]:
    """Forward and backward of one layer: the difference between four and two of them."""
    for h, d in ((1024, 64), (2048, 128), (4096, 128), (5120, 128), (8192, 128)):
        stack = [Layer(h, h // d).to("cuda", torch.bfloat16) for _ in range(4)]
        for b, s in (
            (1, 1024),
            (2, 1024),
            (8, 1024),
            (16, 1024),
            (4, 2048),
            (4, 4096),
            (1, 16384),
            (1, 65536),
        ):
            if b * s * h > 2**28:
                continue
            x, up = random(b, s, h, grad=True), random(b, s, h)

            def step(depth: int, x: Tensor = x, up: Tensor = up, stack: list = stack) -> None:
                y = x
                for layer in stack[:depth]:
                    y = layer(y)
                torch.autograd.backward(y, up)

            held = []
            for depth in (2, 4):
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                y = x
                for layer in stack[:depth]:
                    y = layer(y)
                held.append(torch.cuda.memory_allocated() - before)
                del y
            two, four = (seconds_of(lambda depth=depth: step(depth), 0.04, 3) for depth in (2, 4))
            work = 72.0 * b * s * h * h + 6.0 * b * s * s * h
            sizes = dict(b=b, s=s, h=h, heads=h // d, saved=(held[1] - held[0]) // 2)
            yield Row("layer", sizes, (four - two) / 2, work, "FLOP/s")


PARTS = {part.__name__: part for part in (memory, products, attention, layers)}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--out", metavar="FILE", help="the table as CSV; else it is printed")
    flags.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = flags.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU is seen, and this measures one")
    torch.manual_seed(0)
    with open(args.out, "w", newline="") if args.out else sys.stdout as file:
        table = csv.writer(file)
        table.writerow(("device", "what", "sizes", "seconds", "rate", "unit"))
        device = torch.cuda.get_device_name()
        for name in args.only:
            for row in PARTS[name]():
                sizes = " ".join(f"{key}={value}" for key, value in row.sizes.items())
                rate = row.work / row.seconds
                table.writerow(
                    (device, row.what, sizes, f"{row.seconds:.4g}", f"{rate:.4g}", row.unit)
                )
                file.flush()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
