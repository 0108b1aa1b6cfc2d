"""A whole layer of the GPT under `torch.compile`: what the compiler fuses, and what that gains over eager PyTorch.

    python -m benchmarks.compiled [--quick] [--threads N] [--device cuda]

A step is the layer's forward and backward. Eager runs one kernel for each operator that the dispatcher sees and that
moves data (a view does not). The compiler leaves matrix products and attention to the libraries that eager calls, too,
and makes one kernel of its own of what stands between two of them; a kernel's name says what is in it. Both are held
against each other before they are timed, one after the other in every repeat, in one process.

`ratio compiled_layer VALUE`: eager's time over the compiled one's, the median of the ratios within a repeat.
A compiler for C++ has to be there on a CPU (`g++`, or what CXX says), Triton on a GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
from collections import Counter
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.data_parallel import spread
from benchmarks.fuse import Step, times_of
from benchmarks.options import options, report
from minidist.models import TransformerLayer

HIDDEN = 256
HEADS = 4
BATCH = 4
TOKENS = 256


# of a line of the code that PyTorch's compiler writes: the name of the kernel that it calls
OWN = re.compile(r"(?:cpp|triton)_(?:\w+?_)?fused_(\w+?)_\d+(?:\(|\.run\()")
OTHERS = re.compile(r"(?:\w+ = )?(?:extern_kernels|torch\.ops\.aten)\.(\w+)")


class Kernels(TorchDispatchMode):
    """Counts the operators that run a kernel, by name: all but views, and those that only allocate."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not (operator.is_view or "empty" in operator.name() or "detach" in operator.name()):
            self.counts[operator.name().removeprefix("aten::").partition(".")[0]] += 1
        return operator(*args, **(kwargs or {}))


class Fused(NamedTuple):
    """What the compiler made of a step. kernels: its own, by name.  libraries: calls of others' kernels."""

    kernels: list[str]
    libraries: list[str]

    @property
    def count(self) -> int:
        return len(self.kernels) + len(self.libraries)


def compiler() -> str | None:
    """The compiler for C++ that PyTorch's would call; None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def layer(hidden: int, heads: int, device: str = "cpu") -> torch.nn.Module:
    torch.manual_seed(0)
    return TransformerLayer(hidden, heads, device=device)


def step_of(module: torch.nn.Module, run, x: torch.Tensor) -> Step:
    """Forward and backward of `run`, whose parameters are the module's: the result and all gradients."""

    def step() -> list[torch.Tensor]:
        y = run(x)
        found = torch.autograd.grad(y, [x, *module.parameters()], torch.ones_like(y))
        return [y.detach(), *found]

    return step


def steps(hidden: int, heads: int, batch: int, tokens: int, device: str = "cpu") -> dict[str, Step]:
    """Of one layer: eager, and compiled as one graph (a part that the compiler refuses is an error)."""
    module = layer(hidden, heads, device)
    x = torch.randn(batch, tokens, hidden, device=device, requires_grad=True)
    whole = torch.compile(module, fullgraph=True, dynamic=False)
    return {"eager": step_of(module, module, x), "compiled": step_of(module, whole, x)}


def fused(step: Step) -> Fused:
    """Compile a step, by running it: what was made of forward and backward, from the code that was written."""
    from torch._inductor.utils import run_and_get_code

    _, codes = run_and_get_code(step)
    calls = [
        line.strip() for code in codes for line in code[code.rindex("def call(") :].splitlines()
    ]
    own = [OWN.match(line) for line in calls]
    others = [OTHERS.match(line) for line in calls]
    return Fused([m[1] for m in own if m], [m[1] for m in others if m])


def counted(step: Step) -> Counter[str]:
    """The kernels of an eager step."""
    with Kernels() as kernels:
        step()
    return kernels.counts


def measure(repeats: int, device: str = "cpu") -> dict[str, float]:
    """Print what was fused and the times; returns the ratios by name."""
    ways = steps(HIDDEN, HEADS, BATCH, TOKENS, device)
    before = counted(ways["eager"])
    after = fused(ways["compiled"])
    torch.testing.assert_close(ways["compiled"](), ways["eager"](), rtol=1e-4, atol=1e-4)
    print(
        f"a layer of {HIDDEN} features, {BATCH} × {TOKENS} tokens, on {device}, forward and backward"
    )
    print(
        f"eager: {before.total()} kernels: "
        + ", ".join(f"{n} {k}" for k, n in before.most_common())
    )
    print(f"compiled: {after.count} kernels, {len(after.libraries)} of libraries, of its own:")
    for name in after.kernels:
        print(f"  {name}")
    times = times_of(ways, repeats, device)
    for way, own in times.items():
        print(f"  {way:<14} {spread(own):<28} ms")
    pairs = zip(times["eager"], times["compiled"], strict=True)
    return report({"compiled_layer": statistics.median(a / b for a, b in pairs)})


if __name__ == "__main__":
    args = options(
        __doc__,
        repeats=(5, 20),
        threads={"type": int, "default": 1, "help": "on a CPU"},
        device={"choices": ["cpu", "cuda"], "default": "cpu"},
    )
    torch.set_num_threads(args.threads)
    measure(args.repeats, args.device)
