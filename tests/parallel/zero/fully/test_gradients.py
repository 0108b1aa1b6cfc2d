"""Whole gradients to shards: averages, weights, and those that are missing here, elsewhere, or everywhere."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.comm.base import Host
from minidist.parallel.zero.fully import FullySharded
from minidist.parallel.zero.fully.flat import Flat, Held
from minidist.parallel.zero.fully.gradients import collect


class Branches(nn.Module):
    """Each rank takes a branch of its own; no rank takes the last one."""

    def __init__(self, n):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(n + 1))

    def forward(self, x, which):
        return self.branches[which](x)


def batch_of(rank, size):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(10 + rank)).double()


def branches(comm, weighted, dead):
    torch.manual_seed(comm.rank)
    module = Branches(comm.size).double()
    model = FullySharded(module, comm)  # one block: its ranks take other branches within it
    size = comm.rank if weighted else 2
    model.weight = size if weighted else None
    loss = model(batch_of(comm.rank, size), comm.rank).square().sum().div(3 * max(1, size))
    (loss * (0 if dead else 1)).backward()
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def expected(n, weighted, dead):
    torch.manual_seed(0)
    module = Branches(n).double()
    for r in range(n):
        size = r if weighted else 2
        share = r / sum(range(n)) if weighted else 1 / n
        module(batch_of(r, size), r).square().sum().mul(
            (not dead) * share / 3 / max(1, size)
        ).backward()
    return [None if p.grad is None else p.grad.reshape(-1) for p in module.parameters()]


def put_together(found):
    """Pieces of all ranks, or None where all that has elements is None."""
    for pieces in zip(*found, strict=True):
        there = [p for p in pieces if p is not None]
        yield torch.cat(there) if there and sum(p.numel() for p in there) else None


@pytest.mark.parametrize("dead", [False, True])  # a gradient of zeros is a gradient
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_missing_here_elsewhere_and_everywhere(n, weighted, dead):
    if n == 1 and weighted:
        weighted = False
    for mine, oracle in zip(
        put_together(World(n).run(branches, weighted, dead)),
        expected(n, weighted, dead),
        strict=True,
    ):
        assert (mine is None) == (oracle is None)
        assert mine is None or (mine - oracle).abs().max() < 1e-15


def test_over_processes():
    for mine, oracle in zip(
        put_together(launch(branches, 3, True, False)), expected(3, True, False), strict=True
    ):
        assert (mine is None) == (oracle is None)
        assert mine is None or (mine - oracle).abs().max() < 1e-15


def one_flat(comm, grads):
    held = [Held(str(i), nn.Parameter(torch.zeros(3))) for i in range(len(grads))]
    flat = Flat(held, comm, None, Host(comm.device))
    for h, grad in zip(held, grads, strict=True):
        h.whole.grad = grad
    return flat


@pytest.mark.parametrize("part", [0.5, torch.tensor(0.5, dtype=torch.float64), 0.0])
def test_minus_zero_is_sent_for_what_is_missing_alone(part):
    def program(comm):
        flat = one_flat(comm, [torch.tensor([-0.0, 2.0, -1.0]), None])
        chunks, missing = collect(flat, part)
        assert all(h.whole.grad is None for h in flat.held)
        return torch.cat(chunks), missing

    flat, missing = World(1).run(program)[0]
    assert missing == [1]
    assert torch.signbit(flat).tolist() == [False, False, float(part) > 0] + [True] * 3
    assert flat.tolist() == [0.0, 2.0 * float(part), -1.0 * float(part), 0.0, 0.0, 0.0]


def test_the_mean_loss_of_no_samples_is_nan_and_counts_nothing():
    def program(comm):
        return collect(one_flat(comm, [torch.full((3,), float("nan"))]), 0.0)[0][0]

    assert World(1).run(program)[0].tolist() == [0.0, 0.0, 0.0]


def test_a_sparse_gradient_is_refused():
    def program(comm):
        model = FullySharded(nn.Embedding(4, 2, sparse=True), comm)
        model(torch.tensor([1, 2])).sum().backward()

    with pytest.raises(ValueError, match=r"weight is torch.sparse_coo.*sparse=False"):
        World(2).run(program)


@pytest.mark.parametrize("weight", [-1, float("nan")])
def test_a_weight_below_zero_is_refused(weight):
    def program(comm):
        model = FullySharded(nn.Linear(2, 2), comm)
        model.weight = weight
        model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(ValueError, match="at least 0"):
        World(1).run(program)
