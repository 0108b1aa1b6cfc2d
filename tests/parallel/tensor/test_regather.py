"""The layer that gathers once more: the same numbers, on a lane beside the computation, keeping a part alone."""

import pytest
import torch
import torch.nn.functional as F

from minidist.comm import World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.parallel.tensor import gather_sequence
from minidist.parallel.tensor.regather import linear_on_gathered
from tests.parallel.tensor.cases import data


def counted(layer, *args):
    """Its result, and the bytes that it keeps for backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.nbytes) or t, lambda t: t
    ):
        return layer(*args), sum(kept)


def both(comm, bias=True):
    """Results and gradients with it, and with the operator; and the bytes kept by each."""
    results = []
    for layer in (
        linear_on_gathered,
        lambda x, w, b, comm: F.linear(gather_sequence(x, comm), w, b),
    ):
        x, w = (
            data(2, 4, 3, seed=comm.rank).requires_grad_(),
            data(5, 3, seed=9 + comm.rank).requires_grad_(),
        )
        b = data(5, seed=20).requires_grad_() if bias else None
        y, kept = counted(layer, x, w, b, comm)
        (y * data(*y.shape, seed=30 + comm.rank)).sum().backward()
        results.append(([y, x.grad, w.grad, *([b.grad] if bias else [])], kept))
    return results


def test_as_the_operator_and_a_linear_layer():
    for n in (1, 2, 3):
        for bias in (True, False):
            for (mine, kept), (theirs, more) in World(n).run(both, bias):
                assert all((a - b).abs().max() < 1e-12 for a, b in zip(mine, theirs, strict=True))
                assert more - kept == (n - 1) * 2 * 4 * 3 * 8


def test_beside_the_computation():
    trace = World(3).run(both).trace
    lanes = [(m.label, m.lane) for m in trace if m.src == 0]
    assert lanes.count(("all-gather", "lane 0")) == 2  # in backward
    assert lanes.count(("all-gather", "main")) == 4 and lanes.count(("reduce-scatter", "main")) == 4


def test_the_second_gather_takes_no_time_beside_a_product():
    """Each message takes a second, and each product: backward is a product, a reduce-scatter and a product."""
    product = 2 * 8 * 32 * 16  # FLOPs: of 8 tokens, 32 inputs, 16 outputs
    device = Device("products take time", {torch.float32: float(product)}, 1 << 30, 1e30)

    def program(comm):
        shapes = (4, 32), (16, 32), (16,)
        args = [torch.zeros(*shape, device="meta", requires_grad=True) for shape in shapes]
        y = linear_on_gathered(*args, comm)
        start = comm.now()
        y.backward(torch.empty_like(y))
        return comm.now() - start

    world = World(2, cluster=Cluster.uniform(2, 1.0, 1e-30, device), device="meta")
    assert world.run(program) == pytest.approx([3, 3], rel=1e-6)


def test_what_needs_no_gradient_is_not_computed():
    def program(comm, *learn):
        shapes = (2, 3), (4, 3), (4,)
        args = [
            data(*shape).requires_grad_(wanted) for shape, wanted in zip(shapes, learn, strict=True)
        ]
        linear_on_gathered(*args, comm).sum().backward()
        return [arg.grad is not None for arg in args]

    messages = []
    for learn in [(True, True, True), (True, False, True), (False, True, False)]:
        ranks = World(2).run(program, *learn)
        assert ranks == [list(learn)] * 2
        messages.append(ranks.trace.messages(0))
    assert messages == [3, 2, 2]  # the gather of forward; of x's gradient, of the weight's


def test_autocast():
    def program(comm):
        with torch.autocast("cpu", torch.bfloat16):
            (mine, _), (theirs, _) = both(comm)
        return [
            (a.dtype == b.dtype, (a - b).abs().max().item())
            for a, b in zip(mine, theirs, strict=True)
        ]

    for results in World(2).run(program):
        assert all(same and error < 0.1 for same, error in results)


def test_processes():
    for (mine, _), (theirs, _) in launch(both, 2):
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(mine, theirs, strict=True))
