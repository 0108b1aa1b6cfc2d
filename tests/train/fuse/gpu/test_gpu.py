"""The Triton kernels against the eager forms: on a GPU if there is one, else in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from minidist.train import fuse
from tests.train.fuse.against import randoms

DTYPES = (torch.float64, torch.float32, torch.float16)


def compare(gpu, device, name, *args):
    """The kernel of operator `name` beside the operator on a CPU: results, and what it changes in place."""
    copies = [x.clone().to(device) if isinstance(x, torch.Tensor) else x for x in args]
    args = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    found, expected = getattr(gpu, name)(*copies), getattr(torch.ops.minidist, name)(*args)
    if expected is None:
        found, expected = copies, args
    ulp = torch.finfo(args[0].dtype).eps
    for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a.cpu(), b, rtol=4 * ulp, atol=64 * ulp, msg=lambda m: f"{name}: {m}")


def compare_all(gpu, device, dtype):
    r = lambda *shapes: randoms(*shapes, dtype=dtype)
    check = lambda *args: compare(gpu, device, *args)
    row, wide = (37,), torch.promote_types(dtype, torch.float32)
    x, dy, w, b = r((30, 37), (30, 37), row, row)
    check("add3", x, dy, x.flip(0))
    for tanh in (False, True):
        check("bias_gelu", x, b, tanh)
        check("bias_gelu_backward", dy, x, b, tanh)
    check("layer_norm", x + 3, w, b, 1e-5)
    check("layer_norm_backward", dy, x, w, *torch.ops.minidist.layer_norm(x, w, b, 1e-5)[1:])
    x, dy = r((3, 2500), (3, 2500))
    check("softmax", x)
    check("softmax_backward", fuse.softmax(x), dy)
    targets = torch.tensor([3, -100, 2499])
    check("cross_entropy", x, targets, -100)
    lse = torch.ops.minidist.cross_entropy(x, targets, -100)[1]
    check("cross_entropy_backward", torch.tensor([1.0, 2.0, 3.0], dtype=wide), x, targets, lse, -100)
    p, m, v, g = (t.abs() for t in r((3000,), (3000,), (3000,), (3000,)))
    check("sgd_", p, g, 0.1, 0.01)
    check("momentum_", p, m, g, 0.1, 0.01, 0.9, 0.8, 1.0, 0.9)
    check("adamw_", p, m, v, g, 0.1, 0.9, 0.99, 1e-8, 0.01, 3)
    for causal, K in ((False, 37), (True, 37), (False, 20)):
        q, do, k, v = r((2, 37, 20), (2, 37, 20), (2, K, 20), (2, K, 20))
        check("attention", q, k, v, causal, 0.3, 16)
        out, lse = torch.ops.minidist.attention(q, k, v, causal, 0.3, 16)
        check("attention_backward", do, q, k, v, out, lse, causal, 0.3, 16)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels():
    """In a process of its own: Triton asks for the interpreter when it is imported."""
    env = dict(os.environ, **({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}))
    subprocess.run([sys.executable, "-m", "tests.train.fuse.gpu.test_gpu"], env=env, check=True)


def test_without_triton_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "minidist.train.fuse.gpu", raising=False)
    from minidist.train.fuse.operator import _gpu

    with pytest.raises(ImportError, match="triton"):
        _gpu()


if __name__ == "__main__":
    from minidist.train.fuse import gpu

    for each in DTYPES:
        compare_all(gpu, "cuda" if torch.cuda.is_available() else "cpu", each)
