"""The Triton kernels against the eager forms: on a GPU if there is one, else in Triton's interpreter.

python -m tests.gpu.test_kernels     # where compute-sanitizer looks on, too
"""

import contextlib
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from minidist.train import flat_optim, fuse
from tests.train.fuse_against import randoms, results

# The last one on a GPU alone: to Triton's interpreter a product of its tiles is one of whole numbers.
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Numbers that float32 does not have: 0.1 is 1.5e-9 off there, 0.3 1.2e-8. In float64 that is far above the bounds.
EPS, SCALE = 0.1, 0.3


def compare(gpu, device, name, *args):
    """The kernel of operator `name` beside the operator on a CPU: results, and what it changes in place."""
    copies = [x.clone().to(device) if isinstance(x, torch.Tensor) else x for x in args]
    args = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    found, expected = getattr(gpu, name)(*copies), getattr(torch.ops.minidist, name)(*args)
    if expected is None:
        found, expected = copies, args
    else:
        own_memory(name, found, copies)
    for a, b in zip(
        *((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True
    ):
        if isinstance(a, torch.Tensor):
            ulp = max(torch.finfo(x.dtype).eps for x in (args[0], b))
            torch.testing.assert_close(
                a.cpu(), b, rtol=4 * ulp, atol=64 * ulp, msg=lambda m: f"{name}: {m}"
            )


def own_memory(name, found, operands):
    """Each result of an operator must have memory of its own, which PyTorch demands before it runs one on a GPU."""
    results = (found,) if isinstance(found, torch.Tensor) else found
    tensors = [x for x in (*results, *operands) if isinstance(x, torch.Tensor) and x.numel()]
    places = [x.untyped_storage().data_ptr() for x in tensors]
    assert len(set(places)) == len(places), f"{name}: results share memory"


def compare_all(gpu, device, dtype):
    r = lambda *shapes: randoms(*shapes, dtype=dtype)
    check = lambda *args: compare(gpu, device, *args)
    row, wide = (37,), torch.promote_types(dtype, torch.float32)
    x, dy, w, b = r((30, 37), (30, 37), row, row)
    check("add3", x, dy, x.flip(0))
    check("bias_gelu", x, b)
    check("bias_gelu_backward", dy, x, b)
    for eps in (1e-5, EPS):
        check("layer_norm", x + 3, w, b, eps)
    check("layer_norm_backward", dy, x, w, *torch.ops.minidist.layer_norm(x, w, b, 1e-5)[1:])
    x, dy = r((3, 2500), (3, 2500))
    check("softmax", x)
    check("softmax_backward", fuse.softmax(x), dy)
    targets = torch.tensor([3, -100, 2499])
    check("cross_entropy", x, targets, -100)
    lse = torch.ops.minidist.cross_entropy(x, targets, -100)[1]
    check(
        "cross_entropy_backward", torch.tensor([1.0, 2.0, 3.0], dtype=wide), x, targets, lse, -100
    )
    p, m, v, g = (t.abs() for t in r((3000,), (3000,), (3000,), (3000,)))
    check("adamw_", p, m, v, g, 0.1, 0.9, 0.99, 0.271, 0.0297, 1e-8, 0.01)
    for causal, K in ((False, 37), (True, 37), (False, 20)):
        q, do, k, v = r((2, 37, 20), (2, 37, 20), (2, K, 20), (2, K, 20))
        check("attention", q, k, v, causal, SCALE, 16)
        out, lse = torch.ops.minidist.attention(q, k, v, causal, SCALE, 16)
        check("attention_backward", do, q, k, v, out, lse, causal, SCALE, 16)
    q, do, k, v = r(*4 * [(1, 70, 100)])  # a tile of these is too large for the chip, and is halved
    check("attention", q, k, v, True, 0.1, 64)
    out, lse = torch.ops.minidist.attention(q, k, v, True, 0.1, 64)
    check("attention_backward", do, q, k, v, out, lse, True, 0.1, 64)


def through_autograd(device):
    """Forward and backward of each operator, as a program calls it, on `device` and on a CPU."""
    row = (37,)
    add = randoms((30, 37), (30, 37), (30, 37))
    affine = randoms((30, 37), row, row)
    wide = randoms((3, 2500))
    tokens = torch.tensor([3, -100, 2499])
    heads = randoms((2, 37, 20), (2, 37, 20), (2, 37, 20))
    for fn, inputs in (
        (fuse.add3, add),
        (fuse.bias_gelu, affine[:2]),
        (fuse.layer_norm, affine),
        (fuse.softmax, wide),
        (lambda x: fuse.cross_entropy(x, tokens.to(x.device)), wide),
        (lambda q, k, v: fuse.attention(q, k, v, True), heads),
    ):
        there = results(fn, [x.to(device) for x in inputs])
        for found, expected in zip(there, results(fn, inputs), strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-13, atol=1e-13)


def single(x):
    """Python's floats as float32 has them; all else as it is."""
    return torch.tensor(x, dtype=torch.float32).item() if isinstance(x, float) else x


@contextlib.contextmanager
def floats_as_compiled(device):
    """What Triton compiles takes Python's floats as float32; its interpreter would take them as they are."""
    if device != "cpu":
        yield
        return
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt
    interpreter._implicit_cvt = lambda x: convert(single(x))
    try:
        yield
    finally:
        interpreter._implicit_cvt = convert


class Rounded:
    """The kernels of `gpu`, given Python's floats as float32 has them."""

    def __init__(self, gpu):
        self.gpu = gpu

    def __getattr__(self, name):
        return lambda *args: getattr(self.gpu, name)(*map(single, args))


def rounded_numbers_show(gpu, device):
    """In float64 they are not within the bounds: the check above can fail."""
    x, w, b = randoms((30, 37), (37,), (37,))
    do, q, k, v = randoms(*4 * [(2, 37, 20)])
    found = torch.ops.minidist.attention(q, k, v, True, SCALE, 16)
    for name, *args in (
        ("layer_norm", x, w, b, EPS),
        ("attention", q, k, v, True, SCALE, 16),
        ("attention_backward", do, q, k, v, *found, True, SCALE, 16),
    ):
        compare(gpu, device, name, *args)
        with pytest.raises(AssertionError, match=name):
            compare(Rounded(gpu), device, name, *args)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels():
    """In a process of its own: Triton asks for the interpreter when it is imported."""
    env = dict(os.environ, **({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}))
    subprocess.run([sys.executable, "-m", "tests.gpu.test_kernels"], env=env, check=True)


def test_without_triton_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "minidist.train.fuse_gpu", raising=False)
    with pytest.raises(ImportError, match="triton"):
        importlib.import_module("minidist.train.fuse_gpu")


def main():
    from minidist.train import fuse_gpu as gpu

    assert flat_optim.adamw_  # has made its operator
    seen = torch.cuda.is_available()
    device, dtypes = ("cuda", DTYPES) if seen else ("cpu", DTYPES[:-1])
    with floats_as_compiled(device):
        for dtype in dtypes:
            compare_all(gpu, device, dtype)
        rounded_numbers_show(gpu, device)
    if seen:
        through_autograd(device)
    where = torch.cuda.get_device_name() if seen else "Triton's interpreter"
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    print(f"seen: all kernels give what the eager forms give, in {names}, on {where}")


if __name__ == "__main__":
    main()
