"""The twenty lines against the serial program, and what they send."""

import pytest
import torch

from minidist.comm import World
from minidist.parallel.server import naive
from tests.parallel.cases import data, made, mse
from tests.parallel.server.cases import STEPS, equal, serial, shards


def program(comm):
    model, (x, y) = made("mlp", comm.rank), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for parts in shards(comm.size - 1):
        first, end = parts[comm.rank - 1]

        def backward(first=first, end=end):
            loss = mse(model(x[first:end]), y[first:end])
            loss.backward()
            return loss.item()

        losses.append(naive.step(comm, model, optimizer, backward))
    return [p.detach() for p in model.parameters()], losses


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_serial_program(run_fast, n):
    torch.manual_seed(0)
    start = sum(p.nbytes for p in made("mlp", 0).parameters())
    results = run_fast(program, n + 1)
    assert equal(results[0][0], serial("mlp", "momentum", n))
    assert results[0][1] == [None] * STEPS and all(
        loss > 0 for _, losses in results[1:] for loss in losses
    )
    trace = results.trace
    assert trace.bytes_sent(0) == STEPS * n * start and trace.messages(0) == STEPS * n * 4
    assert [trace.bytes_sent(r) for r in range(1, n + 1)] == [STEPS * start] * n


def test_seconds():
    """Every message is waited for: with n workers nP of them, and N bytes n times each way."""
    n = 3
    alpha = 2.0**-10
    beta = 2.0**-20

    def one_step(comm):
        model = torch.nn.ParameterList(torch.zeros(1000) for _ in range(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def backward():
            for p in model:
                p.grad = torch.ones_like(p)

        naive.step(comm, model, optimizer, backward)

    world = World(n + 1, alpha=alpha, beta=beta)
    world.run(one_step)
    assert world.time == n * 8000 * beta + n * 2 * alpha + n * 8000 * beta
