"""Roles, the serial program, and the ends."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.server import ParameterServer, sync_seconds, wire_bytes
from minidist.parallel.server.parameter_server import with_last
from tests.parallel.cases import difference, made
from tests.parallel.server.cases import equal, serial, train

CASES = [
    ("mlp", "momentum", 1, 1),
    ("mlp", "adamw", 2, 1),
    ("hard", "adamw", 3, 2),
    ("mixed", "momentum", 4, 3),
    ("hard", "momentum", 5, 1),
    ("mlp", "adamw", 2, 3),
]


@pytest.mark.parametrize(("name", "optimizer", "n", "servers"), CASES)
def test_synchronous_is_the_serial_program_bit_for_bit(run_fast, name, optimizer, n, servers):
    """Uneven shards, tied and frozen and unused parameters, two dtypes; and the full batch within rounding."""
    results = run_fast(train, n + servers, name, optimizer, servers)
    expected = serial(name, optimizer, n)
    assert all(equal(params, expected) for params, _ in results)
    assert difference(results[0][0], serial(name, optimizer, 1)) < (
        1e-6 if name == "mixed" else 1e-12
    )


def test_an_empty_shard():
    """Three workers for two samples."""
    assert equal(
        World(4).run(train, "hard", "momentum", batch=2)[0][0],
        serial("hard", "momentum", 3, batch=2),
    )


def test_an_optimizer_that_looks_at_whole_parameters(run_fast):
    results = run_fast(train, 5, "hard", "users", 2, whole=True)
    assert difference(results[0][0], serial("hard", "users", 3)) < 1e-12
    cut = World(5).run(train, "hard", "users", 2)
    assert difference(cut[0][0], serial("hard", "users", 3)) > 1e-6


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_over_gloo(mode):
    results = launch(train, 4, "mlp", "adamw", 2, mode, transport="gloo")
    assert all(equal(params, results[0][0]) for params, _ in results)
    assert mode == "async" or equal(results[0][0], serial("mlp", "adamw", 2))


def test_ranks_may_go_on_afterwards(run_fast):
    def program(comm):
        _, report = train(comm, "mlp", "momentum", 1, "async")
        comm.sendrecv(
            torch.ones(1), (comm.rank + 1) % 3, got := torch.zeros(1), (comm.rank - 1) % 3
        )
        return got.item(), len(report.values), len(report.updates)

    assert run_fast(program, 3) == [(1, 0, 12), (1, 6, 0), (1, 6, 0)]


def test_workers_with_unequally_many_batches(run_fast):
    """Asynchronous ones end when they have done, and wait for the last."""

    def program(comm, mode, bound):
        model = made("mlp", 0)
        server = ParameterServer(
            model, comm, lambda p: torch.optim.SGD(p, lr=0.1), mode=mode, bound=bound
        )
        report = server.train(
            range(2 * comm.rank), lambda i: model(torch.ones(2, 6).double()).sum().backward()
        )
        return [p.detach() for p in model.parameters()], len(report.updates), len(report.values)

    for mode, bound in (("async", None), ("ssp", 0)):
        results = run_fast(program, 4, mode, bound)
        assert [row[1:] for row in results] == [(12, 0), (0, 2), (0, 4), (0, 6)]
        assert all(equal(row[0], results[0][0]) for row in results)
    with pytest.raises(ValueError, match="worker 0 ends after 2 steps, worker 1 goes on"):
        run_fast(program, 4, "sync", None)
    with pytest.raises(ValueError, match=r"worker \d of 3 has 0 batches: it needs at least 1"):
        run_fast(lambda comm: train(comm, "mlp", "momentum", steps=0), 4)


def test_frozen_and_buffers_start_equal():
    def program(comm):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[0].weight.requires_grad_(False)
        model[1].running_mean += comm.rank + 1
        server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, lr=0.1), servers=2)
        return model[0].weight.tolist(), model[1].running_mean.tolist(), server.partition.nbytes

    results = World(3).run(program)
    # two numbers three times
    assert results == [results[0]] * 3 and results[0][1:] == ([1, 1], [12, 12])


class Layers(nn.Module):
    """A thousand million numbers."""

    def __init__(self, device):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(11_000, 11_000, device=device) for _ in range(8))
        self.last = nn.Linear(11_000, 3_000, device=device)


def test_a_model_of_a_thousand_million_parameters():
    """On the device "meta": its time and its traffic."""
    n = 8
    servers = 4
    steps = 5
    alpha = 5e-6
    beta = 1 / 50e9

    def program(comm):
        model = Layers(comm.device)
        server = ParameterServer(model, comm, lambda p: torch.optim.AdamW(p), servers)

        def step(batch):
            for p in model.parameters():
                p.grad = torch.empty_like(p)
            return comm.now()

        return server.partition.nbytes, server.train(range(steps), step).values

    world = World(n + servers, alpha=alpha, beta=beta, device="meta")
    results = world.run(program)
    held, total = results[0][0], sum(results[0][0])
    assert total > 4e9 and max(held) - min(held) <= 4
    begun = [max(times) for times in zip(*(row[1] for row in results[servers:]), strict=True)]
    assert (begun[4] - begun[2]) / 2 == pytest.approx(
        sync_seconds(n, servers, total, alpha, beta), rel=1e-4
    )
    trained = [m for m in world.trace if m.label in ("gradients", "parameters")]
    for server in range(servers):
        into = sum(m.nbytes for m in trained if m.dst == server)
        out = sum(m.nbytes for m in trained if m.src == server)
        assert into == out == steps * n * held[server]
        assert into == pytest.approx(wire_bytes(n, servers, total, steps)[0], rel=1e-6)


def test_the_last_one_is_known():
    assert list(with_last("abc")) == [("a", False), ("b", False), ("c", True)]
    assert list(with_last(iter("a"))) == [("a", True)] and list(with_last([])) == []


def made_with(comm, device="cpu", **kwargs):
    ParameterServer(nn.Linear(1, 1, device=device), comm, torch.optim.SGD, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"servers": 0}, "0 servers among 2 ranks: at least 1"),
        ({"servers": 2}, "2 servers among 2 ranks"),
        ({"mode": "hogwild"}, "not 'hogwild'"),
        ({"mode": "ssp"}, "mode is 'ssp' and bound None"),
        ({"mode": "async", "bound": 1}, "mode is 'async' and bound 1"),
        ({"bound": 1}, "mode is 'sync' and bound 1"),
        ({"mode": "ssp", "bound": -1}, "the bound is not -1"),
        ({"device": "meta"}, "weight is on meta"),
    ],
)
def test_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        World(2).run(made_with, **kwargs)


@pytest.mark.parametrize(
    ("mode", "weight", "words"),
    [
        ("async", 2.0, "a weight of 2.0 has no meaning in mode 'async'"),
        ("sync", 0, "2 workers add up to 0"),
    ],
)
def test_weights_are_for_means(mode, weight, words):
    def program(comm):
        model = nn.Linear(1, 1)
        server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p), mode=mode)
        server.weight = weight
        server.train(range(2), lambda i: model(torch.ones(1, 1)).sum().backward())

    with pytest.raises(ValueError, match=words):
        World(3).run(program)
