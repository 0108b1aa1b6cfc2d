"""Kernels before and after compilation; the compiler itself is asked in the one test that is marked alone."""

import threading
import time

import pytest
import torch

from minidist.comm import World
from minidist.study.meter import measure
from minidist.train import fuse
from minidist.train.fuse import kernels
from minidist.train.fuse.compiled import Kernel, compile_all, compiler
from tests.train.fuse.against import both


def scaled(x, how, twice):
    (by,) = how
    return x * by * (2 if twice else 1)


def examples(dtype):
    return [(torch.ones(3, dtype=dtype), (2.0,), twice) for twice in (False, True)]


@pytest.fixture
def compiles(monkeypatch):
    """Stands for torch.compile: what was compiled, and what the compiled functions were given."""
    calls = []

    def stand_in(fn, **options):
        def run(*args):
            calls.append(args)
            assert not torch.is_grad_enabled()
            return fn(*args)

        calls.append((fn, options))
        return run

    monkeypatch.setattr(torch, "compile", stand_in)
    return calls


def test_eager_until_compiled(compiles):
    kernel = Kernel(scaled, examples)
    x = torch.ones(3, requires_grad=True)
    assert kernel(x, (5.0,), True).tolist() == [10, 10, 10]
    assert not compiles and not kernel.ready(torch.float32)
    kernel.compile_(torch.float32)
    assert kernel.ready(torch.float32) and not kernel.ready(torch.float64)
    (fn, options), *given = compiles
    assert (
        fn is not scaled
        and fn.__code__ is not scaled.__code__
        and options == dict(dynamic=True, fullgraph=True)
    )
    assert [args[2] for args in given] == [False, True]  # all examples
    compiles.clear()
    kernel.compile_(torch.float32)  # once is enough
    assert not compiles


def test_numbers_become_a_tensor_and_histories_end(compiles):
    kernel = Kernel(scaled, examples)
    kernel.compile_(torch.float64)
    compiles.clear()
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    out = kernel(x, (0.1,), False)
    assert out.tolist() == [0.1] * 3 and not out.requires_grad
    given, how, twice = compiles[0]
    assert (
        not given.requires_grad
        and how.dtype == torch.float64
        and how.tolist() == [0.1]
        and twice is False
    )


def test_only_its_dtype_on_a_cpu(compiles):
    kernel = Kernel(scaled, examples)
    kernel.compile_(torch.float32)
    compiles.clear()
    kernel(torch.ones(3, dtype=torch.float64), (1.0,), False)
    kernel(torch.ones(3, device="meta"), (1.0,), False)
    assert not compiles


def test_a_wide_kernel_is_compiled_for_float32_of_halves(compiles):
    kernel = Kernel(scaled, examples, wide=True)
    kernel.compile_(torch.bfloat16)
    assert kernel.ready(torch.float16) and list(kernel.compiled) == [torch.float32]


def test_threads_compile_one_after_the_other(monkeypatch):
    """Two at a time would meet: the compiler stands in for one that takes a while."""
    inside, met = [], []

    def slow(fn, **options):
        inside.append(1)
        time.sleep(0.02)
        met.append(len(inside))
        inside.pop()
        return fn

    monkeypatch.setattr(torch, "compile", slow)
    made = [Kernel(scaled, examples) for _ in range(3)]
    threads = [
        threading.Thread(target=kernel.compile_, args=[torch.float32])
        for kernel in [*made, made[0]]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [1, 1, 1]


def test_without_a_compiler_all_is_eager_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler() is None
    assert fuse.warm() == "eager: there is no C++ compiler 'no-such-compiler' on the path"
    x = torch.ones(2, 3)
    assert fuse.backend("softmax", x) == "eager"
    assert fuse.softmax(x).sum().item() == pytest.approx(2)


def test_a_compiler_that_fails_leaves_the_eager_form(monkeypatch):
    import torch._dynamo.exc

    def fails(fn, **options):
        def run(*args):
            raise torch._dynamo.exc.BackendCompilerFailed(fn, ValueError("no header"), None)

        return run

    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr("minidist.train.fuse.compiled.compiler", lambda: "c++")
    kernel = Kernel(scaled, examples)
    said = compile_all([kernel], [torch.float32])
    assert said.startswith("eager: scaled of torch.float32 did not compile") and "no header" in said
    assert kernel(torch.ones(1), (3.0,), False).item() == 3 and not kernel.compiled


def counts():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def gelu_and_norm(comm):
    x, w = torch.ones(9, 13).cumsum(0).requires_grad_(), torch.ones(13)
    fuse.bias_gelu(x, w).sum().backward()
    return x.grad


@pytest.mark.alone
def test_compiled_by_pytorch():
    """Bias + GELU and AdamW: the same as eager, one launch, from any thread, of any shape; then nothing compiles."""
    x, b = torch.randn(30, 17, requires_grad=True), torch.randn(17, requires_grad=True)
    p, m, v, g = torch.randn(4, 1000).abs().unbind()
    step = lambda lr: [t.clone() for t in (p, m, v, g)] + [lr, 0.9, 0.99, 1e-8, 0.1, 3]
    adamw_ = torch.ops.minidist.adamw_
    eager = [*torch.autograd.grad(fuse.bias_gelu(x, b, "tanh").sum(), (x, b)), gelu_and_norm(None)]
    first = step(0.1)
    adamw_(*first)
    try:
        assert fuse.warm("bias_gelu", "adamw") == "compiled"
        assert fuse.backend("adamw", p) == "compiled" and fuse.backend("softmax", p) == "eager"
        known = counts()
        profile = measure(both(lambda x, b: fuse.bias_gelu(x, b, "tanh")), torch.ones(30, 17), x, b)
        assert (
            profile.by_operator["bias_gelu"].calls
            == profile.by_operator["bias_gelu_backward"].calls
            == 1
        )
        assert profile.calls == 2
        found = [
            *torch.autograd.grad(fuse.bias_gelu(x, b, "tanh").sum(), (x, b)),
            *World(2).run(gelu_and_norm),
        ]
        torch.testing.assert_close(found, [*eager, eager[-1]], rtol=1e-5, atol=1e-5)
        for lr in (0.2, 0.1):
            second = step(lr)
            adamw_(*second)
        torch.testing.assert_close(second[:3], first[:3], rtol=1e-5, atol=1e-6)
        assert not torch.equal(second[0], p)
        assert counts() == known
    finally:
        fuse.cool()
    assert not kernels.KERNELS["adamw"][0].compiled
