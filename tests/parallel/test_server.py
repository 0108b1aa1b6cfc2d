"""The parameter server against the serial program; then its clocks, costs, partition, updates, shards and workers."""

import copy
import itertools
import random
import time

import pytest
import torch
from torch import nn

from minidist.collectives import seconds
from minidist.comm import Cluster, Device, World, launch
from minidist.comm.base import PeerLost
from minidist.models import mlp
from minidist.parallel import server as server_file
from minidist.parallel.server import (
    Channel,
    Clocks,
    ParameterServer,
    Partition,
    Shard,
    Worker,
    with_last,
)
from minidist.study.predict import (
    async_server_seconds,
    most_stale_bounded,
    sync_server_seconds,
)
from minidist.train.flat_optim import FlatAdamW
from tests.largest import largest
from tests.parallel.cases import data, difference, made, mse
from tests.parallel.server_cases import STEPS, equal, serial, shards, train
from tests.parallel.zero_cases import OPTIMIZERS
from tests.size import FULL

CASES = [
    ("mlp", "momentum", 1, 1),
    ("mlp", "adamw", 2, 1),
    ("hard", "adamw", 3, 2),
    ("mixed", "momentum", 4, 3),
    ("hard", "momentum", 5, 1),
    ("mlp", "adamw", 2, 3),
]
ROLES = ((1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (2, 3), (5, 4))  # workers, servers
if FULL:
    CASES += [
        (name, optimizer, *roles)
        for name, optimizer in itertools.product(("mlp", "hard"), ("momentum", "adamw"))
        for roles in ROLES
    ]


@pytest.mark.parametrize(("name", "optimizer", "n", "servers"), CASES)
def test_synchronous_is_the_serial_program_bit_for_bit(
    run_fast, name, optimizer, n, servers, figure
):
    """Uneven shards, tied and frozen and unused parameters, two dtypes; and the full batch within rounding."""
    steps = 20 if FULL else STEPS
    results = run_fast(train, n + servers, name, optimizer, servers, steps=steps)
    expected = serial(name, optimizer, n, steps=steps)
    assert all(equal(params, expected) for params, _ in results)
    off = difference(results[0][0], serial(name, optimizer, 1, steps=steps))
    figure(f"{name}, {optimizer}, {n} workers, {servers} servers: off the full batch by {off:.1e}")
    assert off < (1e-6 if name == "mixed" else 1e-12)


def test_an_empty_shard():
    """Three workers for two samples."""
    assert equal(
        World(4).run(train, "hard", "momentum", batch=2)[0][0],
        serial("hard", "momentum", 3, batch=2),
    )


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
        sync_server_seconds(n, servers, total, alpha, beta), rel=1e-4
    )
    trained = [m for m in world.trace if m.label in ("gradients", "parameters")]
    for server in range(servers):
        into = sum(m.nbytes for m in trained if m.dst == server)
        out = sum(m.nbytes for m in trained if m.src == server)
        assert into == out == steps * n * held[server]


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
def test_parameter_server_refused(kwargs, words):
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


# ------------------------------------------------------------
# Who may go on, and the bound on staleness that follows.


def test_bounds():
    clocks = Clocks(range(3), bound=1)
    assert [clocks.may_go(w) for w in range(3)] == [True] * 3
    assert [clocks.tick(0), clocks.tick(0)] == [1, 2]
    assert clocks.ahead(0) == 2 and not clocks.may_go(0) and clocks.may_go(1)
    clocks.tick(1)
    assert not clocks.may_go(0)  # worker 2 is still at 0
    clocks.stop(2)
    clocks.stop(2)  # told twice is told once
    assert clocks.may_go(0) and clocks.steps == {0: 2, 1: 1}


def test_without_a_bound_all_may_go():
    clocks = Clocks(range(2))
    for _ in range(100):
        clocks.tick(0)
    assert clocks.may_go(0) and clocks.ahead(0) == 100


def test_clocks_refused():
    with pytest.raises(ValueError, match="at least 0 steps apart: the bound is not -1"):
        Clocks(range(2), -1)


def staleness(n, bound, choose, pushes=200):
    """Of each push, where choose(who has parameters) says whose comes next: all that a server sees."""
    clocks = Clocks(range(n), bound)
    has = {}  # who computes, with which version
    for version in range(pushes):
        has |= {w: version for w in range(n) if w not in has and clocks.may_go(w)}
        worker = choose(sorted(has))
        yield version - has.pop(worker)
        clocks.tick(worker)


def by_speed(n, seed):
    """Choose at random, some workers more often than others."""
    chance = random.Random(seed)
    speeds = [chance.choice([1, 1, 30]) for _ in range(n)]
    return lambda has: chance.choices(has, [speeds[w] for w in has])[0]


@pytest.mark.parametrize(("n", "bound"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (4, 1)])
def test_most_stale_is_reached_and_never_passed(n, bound):
    for seed in range(20):
        assert largest(staleness(n, bound, by_speed(n, seed))) <= most_stale_bounded(n, bound)
    first = iter([0] * bound)  # worker 0 runs ahead, then it is as slow as can be
    assert max(staleness(n, bound, lambda has: next(first, has[-1]))) == most_stale_bounded(
        n, bound
    )


# ------------------------------------------------------------
# The formulas against the virtual clock, the counted bytes, and the ring.


ALPHA = 2.0**-10
BETA = 2.0**-20
PIECES = 2
HEADERS = 8 * (2 + PIECES), 16  # bytes: two numbers and one a piece; two numbers
FAST = Device("all but products is free", {torch.float32: 2.0**29}, 1 << 50, float("inf"))


def program_cost(comm, servers, nbytes, steps, mode, size):
    """Two pieces on each server. Workers' values: (seconds at the start of a step, of its product)."""
    count = servers * PIECES
    model = nn.ParameterList(
        torch.empty(nbytes // 4 // count, device=comm.device) for _ in range(count)
    )
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, lr=0.1), servers, mode)
    x = torch.empty(size, size, device=comm.device)

    def step(batch):
        start = comm.now()
        x @ x
        product = comm.now() - start
        for p in model:
            p.grad = torch.empty_like(p)
        return start, product

    return server.train(range(steps), step)


def run(n, s, nbytes, steps=5, mode="sync", size=0):
    """(starts of worker's steps, updates of server 0, seconds of computing, trace)."""
    world = World(n + s, cluster=Cluster.uniform(n + s, ALPHA, BETA, FAST), device="meta")
    results = world.run(program_cost, s, nbytes, steps, mode, size)
    starts = [[start for start, _ in report.values] for report in results[s:]]
    return starts, results[0].updates, results[s].values[0][1], results.trace


GRID = [(1, 1), (2, 1), (5, 1), (4, 2), (6, 2), (3, 3)]


@pytest.mark.parametrize(("n", "s"), GRID)
@pytest.mark.parametrize("size", [0, 128])
def test_synchronous(n, s, size):
    starts, _, compute, _ = run(n, s, 96_000, size=size)
    assert compute == pytest.approx(2 * size**3 / 2.0**29)
    said = compute, HEADERS
    alone = max(begun[1] for begun in starts) - starts[0][0]
    assert alone == pytest.approx(
        sync_server_seconds(n, s, 96_000, ALPHA, BETA, *said, alone=True), rel=1e-12
    )
    long = (max(begun[4] for begun in starts) - max(begun[2] for begun in starts)) / 2
    assert long == pytest.approx(sync_server_seconds(n, s, 96_000, ALPHA, BETA, *said), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("nbytes", "size"), [(800, 0), (96_000, 0), (8000, 128), (96_000, 256)])
def test_asynchronous(n, nbytes, size):
    _, updates, compute, _ = run(n, 1, nbytes, steps=8, mode="async", size=size)
    took = updates[6 * n].time - updates[3 * n].time
    assert took / (3 * n) == pytest.approx(
        async_server_seconds(n, nbytes, ALPHA, BETA, compute, HEADERS), rel=1e-12
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("n", "s"), GRID)
def test_bytes(n, s, mode):
    *_, trace = run(n, s, 96_000, steps=3, mode=mode)
    labels = {"in": ("push", "gradients"), "out": ("answer", "parameters")}
    for server in range(s):
        into = sum(m.nbytes for m in trace if m.dst == server and m.label in labels["in"])
        out = sum(m.nbytes for m in trace if m.src == server and m.label in labels["out"])
        assert (into, out) == tuple(3 * n * (96_000 / s + header) for header in HEADERS)


def test_the_masters_wire_and_the_ring():
    """One server falls behind as workers are added, the ring does not; as many servers as workers make up for it."""
    nbytes = 4e9
    alpha = 5e-6
    beta = 1 / 50e9
    ring = {n: seconds("all_reduce", "ring", n, nbytes, alpha, beta) for n in (2, 8, 64)}
    one = {n: sync_server_seconds(n, 1, nbytes, alpha, beta) for n in ring}
    assert one[64] / one[8] == pytest.approx(65 / 9, rel=1e-3) and ring[64] / ring[8] < 1.2
    assert all(
        sync_server_seconds(n, n, nbytes, alpha, beta) == pytest.approx(2 * nbytes * beta, rel=1e-3)
        for n in ring
    )


def test_cost_refused():
    for n, s in ((1, 2), (2, 0), (0, 0)):
        with pytest.raises(ValueError, match=f"not {n} for {s}"):
            sync_server_seconds(n, s, 1, 1, 1)


# ------------------------------------------------------------
# The twenty lines against the serial program, and what they send.


def program_naive(comm):
    model, (x, y) = made("mlp", comm.rank), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for parts in shards(comm.size - 1):
        first, end = parts[comm.rank - 1]

        def backward(first=first, end=end):
            loss = mse(model(x[first:end]), y[first:end])
            loss.backward()
            return loss.item()

        losses.append(server_file.step(comm, model, optimizer, backward))
    return [p.detach() for p in model.parameters()], losses


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_serial_program(run_fast, n):
    torch.manual_seed(0)
    start = sum(p.nbytes for p in made("mlp", 0).parameters())
    results = run_fast(program_naive, n + 1)
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

        server_file.step(comm, model, optimizer, backward)

    world = World(n + 1, alpha=alpha, beta=beta)
    world.run(one_step)
    assert world.time == n * 8000 * beta + n * 2 * alpha + n * 8000 * beta


# ------------------------------------------------------------
# Every element has one server; the servers are full alike; the way there and back.


MODELS = {
    "one large": lambda: [torch.zeros(1000, 100), torch.zeros(3), torch.zeros(()), torch.zeros(0)],
    "strided": lambda: [torch.arange(12.0).view(3, 4).t(), torch.arange(5.0)],
    "mixed": lambda: list(made("mixed", 0).parameters()),
    "digits": lambda: list(mlp([64, 128, 10]).parameters()),
    "few": lambda: [torch.zeros(2)],
    "none": lambda: [],
}


@pytest.mark.parametrize(("name", "servers"), [*itertools.product(MODELS, (1, 2, 3, 4, 7))])
def test_every_element_once(name, servers):
    params = MODELS[name]()
    partition = Partition(params, servers)
    seen = [torch.zeros(p.numel()) for p in params]
    for piece in itertools.chain(*partition.pieces):
        seen[piece.param][piece.first : piece.end] += 1
    assert all((s == 1).all() for s in seen)
    assert sum(partition.nbytes) == sum(p.nbytes for p in params)
    kinds = len({p.dtype for p in params})
    assert max(partition.nbytes) - min(partition.nbytes) <= 8 * kinds


@pytest.mark.parametrize("name", ["one large", "digits"])
def test_within_ten_percent_of_equal(name, figure):
    for servers in (1, 2, 3, 4):
        nbytes = Partition(MODELS[name](), servers).nbytes
        figure(f"{name}: bytes at {servers} servers: {nbytes}")
        assert all(abs(one * servers / sum(nbytes) - 1) < 0.1 for one in nbytes)


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name):
    params = [torch.randn_like(p) for p in MODELS[name]()]
    partition = Partition(params, 3)
    flats = partition.flatten(params)
    again = [torch.empty_like(p) for p in params]
    partition.spread(flats, again)
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))
    for server in range(3):
        chunks = partition.chunks(flats, server)
        assert sum(chunk.nbytes for chunk in chunks) == partition.nbytes[server] and all(
            c.numel() for c in chunks
        )
        for piece, view in zip(
            partition.pieces[server], Shard(partition, server, torch.optim.SGD).pieces, strict=True
        ):
            values = params[piece.param].reshape(-1)[piece.first : piece.end]
            assert torch.equal(view, values)
    empty = partition.flatten([None] * len(params))
    assert [flat.shape for flat in empty] == [flat.shape for flat in flats] and not any(
        flat.any() for flat in empty
    )


# ------------------------------------------------------------
# Updates as a server makes them: order, staleness, bound; and what the dead leave behind.


DEVICE = Device("slow to start", {torch.float64: 1e12}, 1 << 40, 1e12, launch=1e-3)


def uneven(n, servers, seed, slowest=8.0):
    """A cluster whose workers are up to `slowest` times slower than the fastest, and jitter."""
    chance, cluster = random.Random(seed), Cluster.uniform(n + servers, 1e-4, 1e-9, DEVICE)
    for rank in range(servers, n + servers):
        cluster = cluster.slow_rank(rank, chance.choice([1.0, 1.0 + chance.random(), slowest]))
    return cluster.jitter(0.3, seed)


def passed(reports, servers, bound):
    """(worker, step, other) where a worker began a step before another had done all but `bound` of those before it."""
    logs = [report.values for _, report in reports[servers:]]
    return [
        (w, step, other)
        for w, log in enumerate(logs)
        for step, (begun, _) in enumerate(log)
        for other in logs
        if bound < step <= len(other) + bound and other[step - bound - 1][1] > begun
    ]


@pytest.mark.parametrize(
    ("bound", "n", "servers", "seed"),
    [
        (0, 3, 1, 0),
        (0, 2, 2, 1),
        (1, 3, 1, 2),
        (1, 4, 2, 3),
        (2, 3, 2, 4),
        (3, 2, 1, 5),
    ]
    + [(seed % 5, 2 + seed % 4, 1 + seed % 3, seed) for seed in range(6, 30)] * FULL,
)
def test_ssp_keeps_its_bound(bound, n, servers, seed, figure):
    world = World(n + servers, cluster=uneven(n, servers, seed))
    results = world.run(train, "mlp", "momentum", servers, "ssp", bound, steps=12)
    assert passed(results, servers, bound) == []
    for _, report in results[:servers]:
        assert len(report.updates) == 12 * n
        ahead = largest(update.ahead for update in report.updates)
        assert ahead <= bound
        assert largest(update.staleness for update in report.updates) <= most_stale_bounded(
            n, bound
        )
    figure(f"SSP, {n} workers, {servers} servers, bound {bound}: up to {ahead} steps ahead")


def test_the_bound_is_used_and_asynchronous_passes_it():
    """One worker of three is eight times slower: the others run into the bound, or far ahead."""
    cluster = Cluster.uniform(4, 1e-4, 1e-9, DEVICE).slow_rank(3, 8.0)
    ahead = {}
    for mode, bound in (("ssp", 2), ("async", None)):
        results = World(4, cluster=cluster).run(train, "mlp", "momentum", 1, mode, bound, steps=12)
        ahead[mode] = (
            max(update.ahead for update in results[0][1].updates),
            bool(passed(results, 1, 2)),
            results.time,
        )
    assert ahead["ssp"][:2] == (2, False) and ahead["async"][0] > 5 and ahead["async"][1]


def test_ssp_over_processes():
    def pause():
        time.sleep(random.random() * 5e-3)  # each rank has random numbers of its own

    results = launch(train, 5, "mlp", "momentum", 2, "ssp", 1, steps=10, pause=pause)
    assert passed(results, 2, 1) == [] and all(
        equal(params, results[0][0]) for params, _ in results
    )
    for _, report in results[:2]:
        assert largest(update.ahead for update in report.updates) <= 1
        assert largest(update.staleness for update in report.updates) <= most_stale_bounded(3, 1)


@pytest.mark.parametrize(("mode", "bound"), [("async", None), ("ssp", 1)])
def test_a_world_repeats_itself(mode, bound, figure):
    """Bit for bit, though who comes when is a matter of speeds."""

    def run(seed):
        results = World(5, cluster=uneven(3, 2, seed)).run(train, "hard", "adamw", 2, mode, bound)
        return [params for params, _ in results], [report for _, report in results]

    runs = [run(seed) for seed in (range(5) if FULL else (0, 3))]
    (params, reports), (again, same) = runs[0], run(0)
    assert all(equal(a, b) for a, b in zip(params, again, strict=True)) and reports == same
    assert all(equal(p, params[0]) for p in params)
    for others, other in runs[1:]:
        assert not equal(params[0], others[0]) and reports[0].updates != other[0].updates
    orders = {tuple(update.rank for update in found[0].updates) for _, found in runs}
    figure(
        f"{mode}, {len(runs)} clusters with {len(orders)} orders of updates, equal when repeated"
    )
    assert len(orders) > 1


def test_staleness_by_hand():
    """Two workers in turns miss each other's push, the first excepted; a third of the updates more with three."""
    for n in (1, 2, 3):
        updates = World(n + 1).run(train, "mlp", "momentum", 1, "async", steps=4)[0][1].updates
        assert [update.staleness for update in updates] == [min(i, n - 1) for i in range(4 * n)]
        assert [update.rank for update in updates] == [*range(1, n + 1)] * 4
        assert [update.step for update in updates] == [
            step for step in range(1, 5) for _ in range(n)
        ]
        assert all(a.time < b.time for a, b in itertools.pairwise(updates))


def replayed(updates, n):
    """The parameters after a server's updates, one by one, each with the gradients of those that its worker had."""
    model, (x, y) = made("mlp", 0), data()
    optimizer, versions = (
        OPTIMIZERS["momentum"](model.parameters()),
        [copy.deepcopy(model.state_dict())],
    )
    for update in updates:
        first, end = shards(n)[update.step - 1][update.rank - 1]
        model.load_state_dict(versions[-1 - update.staleness])
        model.zero_grad()
        mse(model(x[first:end]), y[first:end]).backward()
        model.load_state_dict(versions[-1])
        optimizer.step()
        versions.append(copy.deepcopy(model.state_dict()))
    return list(model.parameters())


@pytest.mark.parametrize(("mode", "bound"), [("async", None), ("ssp", 0)])
def test_an_asynchronous_run_is_its_updates_one_by_one(mode, bound):
    """Also where an answer still waits for the server's wire when the next push is added."""
    results = World(5, alpha=1e-6, beta=1e-6).run(train, "mlp", "momentum", 1, mode, bound)
    expected = replayed(results[0][1].updates, 4)
    assert all(equal(params, expected) for params, _ in results)


def test_synchronous_updates_are_not_stale():
    updates = World(4).run(train, "mlp", "momentum")[0][1].updates
    assert [(u.rank, u.step, u.staleness, u.ahead) for u in updates] == [
        (rank, step, 0, 0) for step in range(1, STEPS + 1) for rank in (1, 2, 3)
    ]


# --- the dead ---


@pytest.mark.parametrize(("mode", "bound"), [("async", None), ("ssp", 0), ("ssp", 1)])
@pytest.mark.parametrize("die", [{3: 2}, {3: 0, 4: 4}, {2: 1, 3: 2, 4: 3}])
def test_the_others_go_on_without_a_dead_worker(run_fast, mode, bound, die):
    """All but the dead make all their steps, in SSP too; its own pushes stay, and it is named."""
    results = run_fast(train, 5, "mlp", "momentum", 2, mode, bound, die=die, on_failure="continue")
    for rank in die:
        assert isinstance(results[rank], ValueError)
    alive = [rank for rank in range(5) if rank not in die]
    assert all(equal(results[rank][0], results[0][0]) for rank in alive)
    for _, report in results[:2]:
        steps = {rank: sum(update.rank == rank for update in report.updates) for rank in (2, 3, 4)}
        assert steps == {2: STEPS, 3: STEPS, 4: STEPS} | die and set(report.lost) == set(die)
    assert all(len(results[rank][1].values) == STEPS for rank in alive if rank > 1)


def test_a_synchronous_run_ends_with_its_worker(run_fast):
    results = run_fast(train, 5, "mlp", "momentum", 2, die={3: 2}, on_failure="continue")
    assert isinstance(results[3], ValueError)
    assert [(type(e), e.rank) for r, e in enumerate(results) if r != 3] == [(PeerLost, 3)] * 4
    assert all(
        "it was worker 1 of 3, and a synchronous step waits for every worker" in str(e)
        for e in results[:2]
    )


@pytest.mark.parametrize(("mode", "bound"), [("sync", None), ("async", None), ("ssp", 1)])
def test_a_dead_server_ends_the_run(run_fast, mode, bound):
    results = run_fast(
        train, 5, "mlp", "momentum", 2, mode, bound, burn={0: 3}, on_failure="continue"
    )
    assert isinstance(results[0], RuntimeError)
    for error in results[2:] if mode == "sync" else results[1:]:
        assert isinstance(error, PeerLost) and error.rank == 0
        assert "it was parameter server 0 of 2, and its part of the parameters went with it" in str(
            error
        )
    # in a synchronous run the first loss it sees may be a worker's
    assert isinstance(results[1], PeerLost)
    with pytest.raises(RuntimeError, match="server 0 fails"):
        run_fast(train, 5, "mlp", "momentum", 2, mode, bound, burn={0: 3})


# ------------------------------------------------------------
# What a server holds: pieces that are views, stepped by any optimizer.


def shards_shard(params, servers, optimizer):
    partition = Partition(params, servers)
    return partition, [Shard(partition, server, optimizer) for server in range(servers)]


def gathered(partition, shards, like):
    """The parameters as all servers together hold them."""
    flats = partition.flatten(like)
    for server, shard in enumerate(shards):
        for chunk, buffer in zip(partition.chunks(flats, server), shard.buffers, strict=True):
            chunk.copy_(buffer)
    found = [torch.empty_like(p) for p in like]
    partition.spread(flats, found)
    return found


SHARD_OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
}


@pytest.mark.parametrize("name", SHARD_OPTIMIZERS)
@pytest.mark.parametrize("model", ["hard", "mixed"])
def test_pieces_are_stepped_as_the_whole(name, model):
    params = [p for p in made(model, 0).parameters() if p.requires_grad]
    whole = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = SHARD_OPTIMIZERS[name](whole)
    partition, servers = shards_shard(params, 3, SHARD_OPTIMIZERS[name])
    random = torch.Generator().manual_seed(0)
    for _ in range(4):
        gradients = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in params]
        for p, gradient in zip(whole, gradients, strict=True):
            p.grad = gradient
        optimizer.step()
        flats = partition.flatten(gradients)
        for server, shard in enumerate(servers):
            shard.step(partition.chunks(flats, server), [1.0] * len(shard.pieces))
    assert difference(gathered(partition, servers, params), whole) == 0
    assert [shard.version for shard in servers] == [4] * 3


def test_pieces_of_an_optimizer_that_moves_them():
    params = [torch.randn(5, 3), torch.randn(4)]
    _, (shard,) = shards_shard(params, 1, lambda p: FlatAdamW(p, lr=0.1))
    before = [buffer.clone() for buffer in shard.buffers]
    shard.step([torch.ones(19)], [1.0, 1.0])
    assert torch.allclose(shard.buffers[0], before[0] - 0.1 - 0.1 * 1e-2 * before[0], atol=1e-6)


def test_a_piece_without_a_gradient_is_left_alone():
    params = [torch.ones(3), torch.ones(2)]
    _, (shard,) = shards_shard(params, 1, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5))
    shard.step([torch.zeros(5)], [0.0, 1.0])
    assert shard.buffers[0].tolist() == pytest.approx([1, 1, 1, 0.95, 0.95])
    assert len(shard.optimizer.state) == 1 and all(p.grad is None for p in shard.pieces)


def test_a_server_without_a_piece():
    _, servers = shards_shard([torch.zeros(1)], 3, SHARD_OPTIMIZERS["sgd"])
    assert [shard.optimizer is None for shard in servers] == [False, True, True]
    servers[2].step([], [])
    assert servers[2].version == 1 and servers[2].gradient_buffers() == []


# ------------------------------------------------------------
# A worker's pushes and pulls, against a server written by hand in each test.


SIZES = [(2, 2), (3,)]


def worker_or_channels(comm, servers):
    params = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    partition, channels = (
        Partition(params, servers),
        [Channel.of(comm, one, servers) for one in range(servers)],
    )
    if comm.rank < servers:
        return partition, channels[comm.rank]
    return params, Worker(partition, channels, comm.rank - servers)


def heard(channel, pieces, size, worker=1):
    """A push, as its header and its gradients."""
    said, gradients = torch.zeros(2 + pieces, dtype=torch.float64), torch.zeros(size)
    channel.pushes.recv(said, worker, "push")
    channel.pushes.recv(gradients, worker, "gradients")
    return said.tolist(), gradients.tolist()


def answer(channel, values, said=(-1, 7), worker=1):
    channel.answers.send(torch.tensor(said, dtype=torch.float64), worker, "answer")
    if values is not None:
        channel.answers.send(torch.tensor(values), worker, "parameters")


def test_one_push_and_its_answer(run_fast):
    def program(comm):
        mine, other = worker_or_channels(comm, 2)
        if comm.rank == 0:
            got = heard(other, 1, 4)
            answer(other, [1.0, 2.0, 3.0, 4.0], (-1, 5))
            return got
        if comm.rank == 1:
            got = heard(other, 1, 3)
            answer(other, [5.0, 6.0, 7.0], (-1, 9))
            return got
        other.pull()  # nothing was pushed: nothing comes
        mine[0].grad = torch.full((2, 2), 2.0)
        other.push(weight=3.0, last=True)
        with pytest.raises(
            ValueError, match="worker 0 pushes before it has pulled 2 servers' answers"
        ):
            other.push()
        before = [p.detach().clone() for p in mine]
        other.pull()
        return [p.tolist() for p in before], [p.tolist() for p in mine], other.versions

    first, second, worker = run_fast(program, 3)
    assert first == ([1, 3, 1], [6.0] * 4) and second == ([1, 3, 0], [0.0] * 3)
    assert worker == ([[[0, 0], [0, 0]], [0, 0, 0]], [[[1, 2], [3, 4]], [5, 6, 7]], [5, 9])


def test_no_samples_are_zeros():
    def program(comm):
        mine, other = worker_or_channels(comm, 1)
        if comm.rank == 0:
            got = heard(other, 2, 7)
            answer(other, [0.0] * 7)
            return got
        for p in mine:
            p.grad = torch.full_like(p, torch.nan)
        other.push(weight=0)
        other.pull()

    assert World(2).run(program)[0] == ([0, 0, 1, 1], [0.0] * 7)


def test_workers_begin_with_different_servers():
    def program(comm):
        mine, other = worker_or_channels(comm, 2)
        if comm.rank < 2:
            for worker in (1, 2) if comm.rank == 0 else (2, 1):
                heard(other, 1, [4, 3][comm.rank], worker)
            for worker in (1, 2):
                answer(other, [0.0] * [4, 3][comm.rank], worker=worker)
            return
        for p in mine:
            p.grad = torch.zeros_like(p)
        other.push()
        other.pull()

    results = World(4, alpha=1.0, beta=1.0).run(program)
    assert [(m.src, m.dst) for m in results.trace if m.label == "push"] == [
        (2, 0),
        (3, 1),
        (2, 1),
        (3, 0),
    ]


def test_a_refusal_names_the_lost_rank():
    def program(comm):
        _, other = worker_or_channels(comm, 1)
        if comm.rank == 0:
            heard(other, 2, 7)
            return answer(other, None, (5, 0))
        other.push()
        with pytest.raises(
            PeerLost, match="rank 5 is lost: it is dead, and server 0 cannot go on without it"
        ):
            other.pull()
        raise KeyError("as it should")  # or it would wait for parameters that never come

    with pytest.raises(KeyError, match="as it should"):
        World(2).run(program)
