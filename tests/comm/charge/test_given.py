"""What is said of operators on meta tensors is what PyTorch says, or is left to it."""

import pytest
import torch

from minidist.comm.charge.given import ALIKE, given

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def norms(dtype, *lead, shape=(6,), affine=(True, True)):
    """Calls of a layer norm, forward and backward: with all masks."""
    x, like = (
        meta(*lead, *shape, dtype=dtype),
        [meta(*shape, dtype=dtype) if there else None for there in affine],
    )
    _, mean, rstd = aten.native_layer_norm(x, shape, *like, 1e-5)
    yield aten.native_layer_norm.default, (x, shape, *like, 1e-5)
    for mask in ([True, *affine], [False, *affine], [True, False, False]):
        yield (
            aten.native_layer_norm_backward.default,
            (meta(*x.shape, dtype=dtype), x, shape, mean, rstd, *like, mask),
        )


def elementwise(dtype):
    x, y, z = (meta(3, 4, dtype=dtype) for _ in range(3))
    extra = {
        "add": (y,),
        "sub": (y,),
        "mul": (y,),
        "div": (y,),
        "addcmul": (y, z),
        "addcdiv": (y, z),
        "lerp": (y, 0.3),
        "sigmoid_backward": (y,),
        "tanh_backward": (y,),
        "threshold_backward": (y, 0),
        "gelu_backward": (y,),
        "silu_backward": (y,),
    }
    for name in sorted(ALIKE | {"gelu", "gelu_backward"}):
        packet = getattr(aten, name)
        overload = (
            "Scalar"
            if name == "lerp"
            else "Tensor"
            if "Tensor" in packet.overloads()
            else "default"
        )
        func = getattr(packet, overload)
        yield func, (x, *extra.get(name, ()))
    yield aten.add.Tensor, (x, 2)
    yield aten.mul.Tensor, (meta(0, 4, dtype=dtype), 0.5)


def products(dtype):
    for b in (meta(4, 5, dtype=dtype), meta(5, 4, dtype=dtype).t()):
        yield aten.addmm.default, (meta(5, dtype=dtype), meta(3, 4, dtype=dtype), b)
    yield (
        aten.addmm.default,
        (meta(5, dtype=dtype), meta(4, 3, dtype=dtype).t(), meta(4, 5, dtype=dtype)),
    )


def sums(dtype):
    x = meta(2, 3, 4, dtype=dtype)
    for dims in ([0], [-1], [0, 1], [1, -1], [2, 0, 1]):
        yield aten.sum.dim_IntList, (x, dims)
        yield aten.sum.dim_IntList, (x, dims, True)


def form(out):
    return [
        None if x is None else (x.shape, x.stride(), x.dtype, x.device.type)
        for x in (out if isinstance(out, tuple) else (out,))
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_pytorch_says(dtype):
    calls = [
        *elementwise(dtype),
        *products(dtype),
        *sums(dtype),
        *norms(dtype, 2, 3),
        *norms(dtype, 0),
        *norms(dtype, 5, affine=(True, False)),
        *norms(dtype, 5, affine=(False, False)),
        *norms(dtype, 2, 3, shape=(4, 6)),
    ]
    for func, args in calls:
        name = func._schema.name.partition("::")[2]
        found = given(name, args, {})
        assert found is not None, func
        assert form(found) == form(func(*args)), func
    x = meta(3, 4, dtype=dtype)
    assert form(given("gelu", (x,), {"approximate": "tanh"})) == form(x)
    assert given("gelu", (x,), {"approximate": "cosh"}) is None
    assert given("add_", (x, meta(3, 4, dtype=dtype)), {"alpha": 2}) is x


def test_what_is_not_plain_is_pytorchs():
    x, w = meta(3, 4), meta(4)
    calls = [
        ("add", (x, w)),
        ("add", (x, meta(3, 4, dtype=torch.float64))),
        ("add", (x, torch.ones(3, 4))),
        ("add", (torch.ones(3, 4), torch.ones(3, 4))),
        ("mul", (x, 1j)),
        ("mul", (x, True)),
        ("div", (x.int(), 2)),
        ("tanh", (meta(4, 3).t(),)),
        ("add", (x, meta(4, 3).t())),
        ("neg", (w.expand(3, 4),)),
        ("sin", (x,)),
        ("add_", (w.expand(3, 4), x)),
        ("add_", (x, w)),
        ("add_", (x, meta(3))),
        ("rsub", (x, 2)),
        ("native_layer_norm", (x, [4], w.double(), w.double(), 1e-5)),
        ("native_layer_norm", (x, [3], meta(3), meta(3), 1e-5)),
        ("native_layer_norm", (x, [4], meta(3), None, 1e-5)),
        ("native_layer_norm", (meta(4, 3).t(), [4], w, w, 1e-5)),
        ("addmm", (w, x, meta(3, 4))),
        ("addmm", (x, x, meta(4, 4))),
        ("addmm", (w.double(), x, meta(4, 4))),
        ("addmm", (w, torch.ones(3, 4), torch.ones(4, 4))),
        ("sum", (x,)),
        ("sum", (x, [2])),
        ("sum", (x, [1, -1])),
        ("sum", (x, [])),
        ("sum", (meta(4, 3).t(), [0])),
    ]
    for name, args in calls:
        assert given(name, args, {}) is None, (name, [getattr(a, "shape", a) for a in args])
