"""torch.compile takes a whole layer of the GPT: one graph, the same numbers, and fewer kernels."""

import os

import pytest
import torch

from benchmarks import compiled
from benchmarks.compiled import OTHERS, OWN, counted, fused, steps
from tests.size import FULL

COMPILER = pytest.mark.skipif(
    compiled.compiler() is None and not os.environ.get("CI"),
    reason="there is no compiler for C++ (g++, or what CXX says)",
)


def test_what_eager_runs():
    """Of four products forward and eight backward, what stands between them, and nothing that moves no data."""
    kernels = counted(steps(16, 2, 2, 8)["eager"])
    assert kernels["addmm"] == 4 and kernels["mm"] == 8
    assert kernels["native_layer_norm"] == kernels["native_layer_norm_backward"] == 2
    assert kernels["gelu"] == kernels["gelu_backward"] == 1
    assert not {"view", "transpose", "empty", "detach", "t"} & set(kernels)


def test_a_layer_is_one_graph():
    """What the compiler takes as a whole; a break would be seen."""
    layer = compiled.layer(16, 2)
    x = torch.randn(2, 8, 16)
    found = torch._dynamo.explain(layer)(x)
    assert found.graph_count == 1 and found.graph_break_count == 0

    def cut(x):
        x = layer(x)
        torch._dynamo.graph_break()
        return x + 1

    assert torch._dynamo.explain(cut)(x).graph_break_count == 1


def test_calls_in_the_code_that_is_written():
    line = "cpp_fused_add_native_layer_norm_view_1(buf11, buf13, primals_3)"
    assert OWN.match(line)[1] == "add_native_layer_norm_view"
    assert OWN.match("triton_per_fused_gelu_0.run(x, stream=stream0)")[1] == "gelu"
    assert OTHERS.match("extern_kernels.mm(buf25, primals_4, out=buf26)")[1] == "mm"
    assert OTHERS.match("buf6 = torch.ops.aten._attention.default(x)")[1] == "_attention"
    assert not OTHERS.match("assert_alignment(buf7, 16, 'torch.ops.aten._attention.default')")
    assert not OTHERS.match("# buffer buf18 (op: torch.ops.aten._attention.default) is")


@COMPILER
@pytest.mark.full
def test_what_is_fused(figure):
    """Products and attention stay the libraries'; between them there are fewer kernels, and their names say why."""
    ways = steps(32, 4, 2, 16)
    before, after = counted(ways["eager"]), fused(ways["compiled"])
    torch.testing.assert_close(ways["compiled"](), ways["eager"](), rtol=1e-4, atol=1e-5)
    assert after.libraries.count("addmm") == 4 and after.libraries.count("mm") == 8
    assert len(after.libraries) == 14
    assert len(after.kernels) < before.total() - len(after.libraries)
    assert any("add" in name and "native_layer_norm" in name for name in after.kernels)
    figure(
        f"kernels of a layer, forward and backward: {before.total()} eager, {after.count} compiled"
    )
    figure(f"of its own {len(after.kernels)}: {', '.join(after.kernels)}")


@COMPILER
@pytest.mark.full
@pytest.mark.alone
def test_how_fast_it_is(figure):
    ratios = compiled.measure(20 if FULL else 5)
    figure(f"a layer, eager's time over the compiled one's: {ratios['compiled_layer']:.2f}")
    assert ratios["compiled_layer"] > 0.8, (
        "products take most of the time on a CPU, and stay the same"
    )
