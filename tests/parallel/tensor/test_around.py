"""Norms and dropouts on whole data and on a part of the sequence."""

import pytest
import torch

from minidist.comm import World
from minidist.parallel.tensor import (
    SequenceNorm,
    TensorDropout,
    gather_from,
    scatter_to,
    seed_group_,
)
from tests.parallel.tensor.cases import EVERYWHERE, RUNS, WIDE, batch, difference, found

HIDDEN = 24


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_a_norm_of_parts_of_the_sequence(run, n):
    oracle = found([torch.nn.LayerNorm(HIDDEN, **WIDE)], batch())
    for mine in RUNS[run](
        n, lambda comm: found([SequenceNorm(HIDDEN, comm, **WIDE)], batch(), comm, True)
    ):
        assert difference(mine, oracle) < 1e-12


def test_its_gradients_travel_in_one_message():
    def program(comm):
        SequenceNorm(HIDDEN, comm)(torch.ones(2, 3, HIDDEN)).sum().backward()

    trace = World(3).run(program).trace
    assert trace.messages(0) == 2 * 2 and trace.bytes_sent() == 2 * 2 * 2 * HIDDEN * 4


def dropped(comm, split, train=True):
    seed_group_(comm, 3)
    drop, x = TensorDropout(0.25, comm, split).train(train), torch.ones(40, 300).requires_grad_()
    y = drop(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)  # what is dropped has no gradient, what is kept 4/3
    return y.detach()


def test_dropout():
    for split in (False, True):
        a, b = World(2).run(dropped, split)
        assert torch.equal(a, b) is not split
        assert a.unique().tolist() == pytest.approx([0, 4 / 3])
        assert (a == 0).float().mean() == pytest.approx(0.25, abs=0.01)
        if split:  # independent: together they drop a 16th
            assert ((a == 0) & (b == 0)).float().mean().item() == pytest.approx(1 / 16, abs=0.01)
    assert all(bool((y == 1).all()) for y in World(2).run(dropped, True, False))


def test_dropout_of_whole_and_split_data_in_turn():
    """What ranks draw for split data in between does not part them."""

    def program(comm):
        seed_group_(comm, 3)
        whole, split = (TensorDropout(0.5, comm, which) for which in (False, True))
        x = torch.ones(4, 60)
        x = gather_from(split(scatter_to(whole(x), comm, 1)), comm, 1)
        return whole(x)

    first, *others = World(3).run(program)
    assert all(torch.equal(first, other) for other in others)
