"""What the parameter server must show: the first item of communicating less."""

from __future__ import annotations

import random

from minidist.comm import Cluster, World
from minidist.models import mlp
from minidist.parallel.server import Partition, most_stale
from tests.largest import largest
from tests.parallel.cases import difference
from tests.parallel.server_cases import equal, serial, train
from tests.parallel.test_server import DEVICE, passed

from .world import run_tests, together

ROLES = ((1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (2, 3), (5, 4))  # workers, servers


def server() -> tuple[str, bool]:
    """Item 1: synchronous bit for bit, asynchronous repeated, the bound kept, servers equally full; and the tests."""
    return together(
        synchronous(),
        asynchronous(),
        bounded(),
        balanced(),
        run_tests("tests/parallel/test_server.py"),
    )


def synchronous() -> tuple[str, bool]:
    """Against a serial run that adds the same shards in rank order, and against full batches."""
    worst = 0.0
    same = True
    runs = 0
    for optimizer in ("momentum", "adamw"):
        for name in ("mlp", "hard"):
            full = serial(name, optimizer, 1, steps=20)
            for n, servers in ROLES:
                expected = serial(name, optimizer, n, steps=20)
                for params, _ in World(n + servers).run(train, name, optimizer, servers, steps=20):
                    same &= equal(params, expected)
                    worst = largest(worst, difference(params, full))
                runs += 1
    return (
        f"synchronous, {runs} runs of 20 steps: {'all' if same else 'NOT all'} ranks equal bit for bit to the "
        f"serial run; off the full batch by {worst:.1e} at most"
    ), same and worst < 1e-12


def _cluster(n: int, servers: int, seed: int) -> Cluster:
    """Workers of any speed between 1 and 1/10, and jitter."""
    chance, cluster = random.Random(seed), Cluster.uniform(n + servers, 1e-4, 1e-9, DEVICE)
    for rank in range(servers, n + servers):
        cluster = cluster.slow_rank(rank, 10 ** chance.random())
    return cluster.jitter(0.3, seed)


def asynchronous() -> tuple[str, bool]:
    """Run twice, bit for bit."""
    held = True
    orders = set()
    stale = 0
    for seed in range(5):
        runs = [
            World(6, cluster=_cluster(4, 2, seed)).run(train, "hard", "adamw", 2, "async")
            for _ in range(2)
        ]
        (once, report), (twice, again) = runs[0][0], runs[1][0]
        held &= equal(once, twice) and report == again
        orders.add(tuple(update.rank for update in report.updates))
        stale = max(stale, *(update.staleness for update in report.updates))
    return (
        f"asynchronous, 5 clusters with {len(orders)} orders of updates, stale by up to {stale}: "
        f"{'all' if held else 'NOT all'} equal when repeated"
    ), held and len(orders) > 1


def bounded() -> tuple[str, bool]:
    """Over random speeds, from the workers' own clocks."""
    held = True
    reached = {}
    runs = 0
    for seed in range(24):
        chance = random.Random(seed)
        n = chance.randint(2, 5)
        servers = chance.randint(1, 3)
        bound = chance.randint(0, 4)
        world = World(n + servers, cluster=_cluster(n, servers, seed))
        results = world.run(train, "mlp", "momentum", servers, "ssp", bound, steps=12)
        updates = [update for _, report in results[:servers] for update in report.updates]
        held &= passed(results, servers, bound) == [] and len(updates) == 12 * n * servers
        held &= max(update.staleness for update in updates) <= most_stale(n, bound)
        reached[bound] = max(reached.get(bound, 0), *(update.ahead for update in updates))
        runs += 1
    said = ", ".join(f"bound {bound}: {ahead}" for bound, ahead in sorted(reached.items()))
    return f"SSP, {runs} runs; most steps ahead under {said}", held and all(
        a <= b for b, a in reached.items()
    )


def balanced() -> tuple[str, bool]:
    """Bytes at each of four servers, of a network whose first matrix is nearly all of it."""
    model = mlp([784, 1024, 10], device="meta")
    nbytes = Partition(list(model.parameters()), 4).nbytes
    off = largest(abs(4 * one / sum(nbytes) - 1) for one in nbytes)
    return (
        f"bytes at 4 servers: {', '.join(f'{one:,}' for one in nbytes)}: {off:.2%} off equal at most",
        off < 0.1,
    )
