"""A fused operator beside what it must equal."""

import torch

from minidist.study.meter import measure


def randoms(*shapes, dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


def results(fn, inputs, dtype=None):
    """The result of `fn` and the gradients of its inputs, for a fixed gradient of the result, rounded to `dtype`."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = fn(*leaves)
    up = torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    up = up.to(dtype or y.dtype).to(y.device, y.dtype)
    return y.detach(), *torch.autograd.grad(y, leaves, up)


def assert_same(ours, theirs, inputs, bound=1e-12):
    for found, expected in zip(results(ours, inputs), results(theirs, inputs), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def assert_wide(ours, theirs, inputs, kept=1):
    """Of fp16 and bf16: what `theirs` gives of the same numbers in float64, within one rounding of the result.

    Without float32 inside, sums of some hundred numbers are off by far more. kept: what rounded results that are kept
    for backward cost gradients, in roundings of the largest number, times 64.
    """
    dtype = inputs[0].dtype
    exact = results(theirs, [x.double() for x in inputs], dtype)
    for i, (found, expected) in enumerate(zip(results(ours, inputs, dtype), exact, strict=True)):
        assert found.dtype in (dtype, torch.float32)
        ulp, largest = torch.finfo(found.dtype).eps, expected.abs().max().item()
        torch.testing.assert_close(
            found.double(), expected, rtol=ulp, atol=(kept if i else 1) * ulp * largest / 64
        )


def work(fn, *args):
    """(launches, bytes) of forward, and of backward."""
    phases = measure(fn, *args).by_phase
    return [(phases[p].calls, phases[p].nbytes) for p in ("forward", "backward")]


def both(fn):
    """Forward and backward from a gradient that is there already, without the leaves' accumulation."""

    def run(dy, *inputs):
        torch.autograd.grad(fn(*inputs), inputs, dy)

    return run
