"""Updates as a server makes them: order, staleness, bound; and what the dead leave behind."""

import copy
import itertools
import random
import time

import pytest
import torch

from minidist.comm import Cluster, Device, World, launch
from minidist.comm.base import PeerLost
from minidist.parallel.server import most_stale
from tests.largest import largest
from tests.parallel.cases import data, made, mse
from tests.parallel.server.cases import STEPS, equal, shards, train
from tests.parallel.zero.cases import OPTIMIZERS

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
    ],
)
def test_ssp_keeps_its_bound(bound, n, servers, seed):
    world = World(n + servers, cluster=uneven(n, servers, seed))
    results = world.run(train, "mlp", "momentum", servers, "ssp", bound, steps=12)
    assert passed(results, servers, bound) == []
    for _, report in results[:servers]:
        assert len(report.updates) == 12 * n
        assert largest(update.ahead for update in report.updates) <= bound
        assert largest(update.staleness for update in report.updates) <= most_stale(n, bound)


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
        assert largest(update.staleness for update in report.updates) <= most_stale(3, 1)


@pytest.mark.parametrize(("mode", "bound"), [("async", None), ("ssp", 1)])
def test_a_world_repeats_itself(mode, bound):
    """Bit for bit, though who comes when is a matter of speeds."""

    def run(seed):
        results = World(5, cluster=uneven(3, 2, seed)).run(train, "hard", "adamw", 2, mode, bound)
        return [params for params, _ in results], [report for _, report in results]

    (params, reports), (again, same), (others, other) = run(0), run(0), run(3)
    assert all(equal(a, b) for a, b in zip(params, again, strict=True)) and reports == same
    assert not equal(params[0], others[0]) and reports[0].updates != other[0].updates
    assert all(equal(p, params[0]) for p in params)


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
