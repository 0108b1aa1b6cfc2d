"""Fused operators and flat optimizers: ours beside eager PyTorch, PyTorch's own fused ones, and `torch.compile`.

    python -m benchmarks.fuse [--quick] [--only NAME …] [--threads N] [--device cuda]

All in one process, one after the other in every repeat, so that a noisy machine is noisy for all. A step of an
operator is its forward and backward, of an optimizer `zero_grad()`, a backward that makes gradients of nothing, and
`step()`; "in place": `zero_grad(set_to_none=False)`. The tables say the median [quartiles].
Every way is held against the first one before it is timed. `ratio fuse_NAME VALUE`: the eager way's time over ours,
`ratio fuse_NAME_compiled VALUE`: torch.compile's over ours (an optimizer's: PyTorch's fused one's over ours); median
of the ratios within a repeat, above 1 ours is faster. Before it what the meter counts: launches and bytes.

On a CPU nothing of ours is fused unless a compiler does it: here PyTorch's does, what each operator does inside being
one function of tensors. A case is a function of CASES: `case(device) -> {way: step}`, the first way being eager.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.data_parallel import spread
from benchmarks.options import options, report
from minidist.models import gpt
from minidist.study.meter import measure as metered
from minidist.train import flat_optim, fuse

Step = Callable[[], list[torch.Tensor]]
ROWS = 4096
H = 1024
V = 50_257
T = 1024
HEADS = 8
D = 64


def rows_on(device: str) -> int:
    """More on a GPU, which with few rows would mostly wait for Python."""
    return ROWS if device == "cpu" else 16 * ROWS


def heads_on(device: str) -> int:
    return HEADS if device == "cpu" else 16 * HEADS


def random(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


def step_of(fn: Callable, inputs: list[torch.Tensor]) -> Step:
    """Forward and backward: the result and the gradients."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    up = torch.ones_like(fn(*leaves))

    def step() -> list[torch.Tensor]:
        y = fn(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, up)]

    return step


def ways_of(
    eager: Callable, ours: Callable, inputs: list[torch.Tensor], **more: Callable
) -> dict[str, Step]:
    ways = {
        "eager": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
        **more,
        "ours": ours,
    }
    return {name: step_of(fn, inputs) for name, fn in ways.items()}


def add3(device: str) -> dict[str, Step]:
    inputs = [random(device, rows_on(device), H) for _ in range(3)]
    return ways_of(lambda a, b, c: a + b + c, fuse.add3, inputs)


def bias_gelu(device: str) -> dict[str, Step]:
    inputs = [random(device, rows_on(device), H), random(device, H)]
    return ways_of(lambda x, b: F.gelu(x + b), fuse.bias_gelu, inputs)


def layer_norm(device: str) -> dict[str, Step]:
    inputs = [random(device, rows_on(device), H), random(device, H), random(device, H)]
    return ways_of(
        fuse.layer_norm_plain,
        fuse.layer_norm,
        inputs,
        **{"PyTorch's": lambda x, w, b: F.layer_norm(x, (H,), w, b)},
    )


def softmax(device: str) -> dict[str, Step]:
    inputs = [random(device, rows_on(device), H)]
    return ways_of(
        fuse.softmax_plain, fuse.softmax, inputs, **{"PyTorch's": lambda x: x.softmax(-1)}
    )


def cross_entropy(device: str) -> dict[str, Step]:
    tokens = rows_on(device) // 16
    targets = torch.arange(tokens, device=device)
    return ways_of(
        lambda x: fuse.cross_entropy_plain(x, targets).mean(),
        lambda x: fuse.cross_entropy(x, targets),
        [random(device, tokens, V)],
        **{"PyTorch's": lambda x: F.cross_entropy(x, targets)},
    )


def attention(device: str) -> dict[str, Step]:
    inputs = [random(device, heads_on(device), T, D) for _ in range(3)]
    return ways_of(
        lambda q, k, v: fuse.attention_plain(q, k, v, True),
        lambda q, k, v: fuse.attention(q, k, v, True),
        inputs,
        **{"PyTorch's": lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True)},
    )


class Nothing(torch.autograd.Function):
    """0, of which every gradient is 0.01."""

    @staticmethod
    def forward(ctx, p: torch.Tensor) -> torch.Tensor:
        ctx.p = p
        return p.new_zeros(())

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return torch.full_like(ctx.p, 1e-2)


def stepping(optimizer_class: type, device: str, stay: bool = False, **how) -> Step:
    """A step of the optimizer of a GPT of 12 layers, 148 parameters of 9.5 million numbers.

    stay: `zero_grad(set_to_none=False)`, so gradients lie in the buffer already.
    """
    model = gpt(layers=12, hidden=256, heads=4, vocab=256, context=64).to(device)
    optimizer = optimizer_class(model.parameters(), lr=1e-3, **how)

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad(set_to_none=not stay)
        torch.stack([Nothing.apply(p) for p in model.parameters()]).sum().backward()
        optimizer.step()
        return [p.detach() for p in model.parameters()]

    return step


def adamw(device: str) -> dict[str, Step]:
    return {
        "eager": stepping(torch.optim.AdamW, device, foreach=False),
        "foreach": stepping(torch.optim.AdamW, device, foreach=True),
        "fused": stepping(torch.optim.AdamW, device, fused=True),
        "ours, in place": stepping(flat_optim.FlatAdamW, device, stay=True),
        "ours": stepping(flat_optim.FlatAdamW, device),
    }


CASES: dict[str, Callable[[str], dict[str, Step]]] = {
    case.__name__: case
    for case in (add3, bias_gelu, layer_norm, softmax, cross_entropy, attention, adamw)
}


OPERATORS = {
    "add3": [fuse._add3],
    "bias_gelu": [fuse._bias_gelu, fuse._bias_gelu_backward],
    "layer_norm": [fuse._layer_norm, fuse._layer_norm_backward],
    "softmax": [fuse._softmax, fuse._softmax_backward],
    "cross_entropy": [fuse._cross_entropy, fuse._cross_entropy_backward],
    "attention": [],
    "adamw": [flat_optim.adamw_],
}


def compile_ours(names: list[str]) -> None:
    """What these cases' operators do on a CPU, in this process: the function within each, or of attention, a tile."""
    for name in names:
        for operator in OPERATORS[name]:
            operator.register_kernel("cpu")(torch.compile(operator._init_fn.__wrapped__))
    if "attention" in names:
        fuse.forward_tile = torch.compile(fuse.forward_tile)
        fuse.backward_tile = torch.compile(fuse.backward_tile)


def seconds(step: Step, device: str) -> float:
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def times_of(ways: dict[str, Step], repeats: int, device: str) -> dict[str, list[float]]:
    """By way, of each repeat; the first two repeats warm up."""
    runs = [
        {name: seconds(step, device) for name, step in ways.items()} for _ in range(repeats + 2)
    ][2:]
    return {name: [run[name] for run in runs] for name in ways}


def measure(names: list[str], repeats: int, device: str = "cpu") -> dict[str, float]:
    """Print the tables and the ratios; returns the ratios by name."""
    ratios = {}
    if device == "cpu":
        compile_ours(names)
    print(f"ours on {device}, {torch.get_num_threads()} threads")
    for name in names:
        ways = CASES[name](device)
        firsts = {way: step() for way, step in ways.items()}
        for found in firsts.values():
            torch.testing.assert_close(found, firsts["eager"], rtol=1e-3, atol=1e-3)
        counts = {way: metered(ways[way]) for way in ways if way.startswith(("eager", "ours"))}
        print(
            f"{name}: "
            + "; ".join(
                f"{way} {c.calls} launches, {c.bytes_moved / 1e6:.0f} MB"
                for way, c in counts.items()
            )
        )
        times = times_of(ways, repeats, device)
        over = lambda way, t=times: statistics.median(
            a / b for a, b in zip(t[way], t["ours"], strict=True)
        )
        for way, own in times.items():
            print(f"  {way:<14} {spread(own):<28} ms, over ours {over(way):.2f}", flush=True)
        ratios[f"fuse_{name}"] = over("eager")
        if "ours, in place" in ways:
            own = zip(times["eager"], times["ours, in place"], strict=True)
            ratios[f"fuse_{name}_in_place"] = statistics.median(a / b for a, b in own)
        ratios[f"fuse_{name}_compiled"] = over(
            "torch.compile" if "torch.compile" in ways else "fused"
        )
    return report(ratios)


if __name__ == "__main__":
    args = options(
        __doc__,
        repeats=(5, 20),
        only=CASES,
        threads={"type": int, "default": 1, "help": "on a CPU"},
        device={"choices": ["cpu", "cuda"], "default": "cpu"},
    )
    torch.set_num_threads(args.threads)
    measure(args.only, args.repeats, args.device)
