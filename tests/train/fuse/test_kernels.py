import pytest
import torch

from minidist.train.fuse import backend, cool, warm
from minidist.train.fuse.kernels import KERNELS


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    monkeypatch.setattr("minidist.train.fuse.compiled.compiler", lambda: "c++")
    yield
    cool()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_examples_fit_their_kernels(name, dtype):
    """They are what would be compiled, so they must run, and be of the dtype that they are for."""
    for kernel in KERNELS[name]:
        for args in kernel.examples(kernel._dtype(dtype)):
            kernel.eager(*args)
            assert args[0].dtype == kernel._dtype(dtype)


def test_warm_and_cool(stand_in):
    x = torch.ones(3)
    assert warm("add3", "cross_entropy", dtypes=[torch.float32, torch.float16]) == "compiled"
    assert [backend("add3", x.to(d)) for d in (torch.float32, torch.float16, torch.float64)] == [
        "compiled",
        "compiled",
        "eager",
    ]
    assert backend("cross_entropy", x) == "compiled" and backend("softmax", x) == "eager"
    cool()
    assert backend("add3", x) == "eager"


def test_no_other_state_than_what_is_compiled(stand_in):
    assert warm() == "compiled"
    assert all(backend(name, torch.ones(1)) == "compiled" for name in KERNELS)


def test_backend():
    assert backend("attention", torch.ones(1, device="meta")) == "fake"
    for ask in (lambda: backend("relu", torch.ones(1)), lambda: warm("relu")):
        with pytest.raises(ValueError, match="'relu'"):
            ask()
