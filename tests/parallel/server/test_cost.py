"""The formulas against the virtual clock, the counted bytes, and the ring."""

import pytest
import torch
from torch import nn

from minidist.collectives import seconds
from minidist.comm import Cluster, Device, World
from minidist.parallel.server import ParameterServer, async_seconds, sync_seconds, wire_bytes

ALPHA = 2.0**-10
BETA = 2.0**-20
PIECES = 2
FAST = Device("all but products is free", {torch.float32: 2.0**29}, 1 << 50, float("inf"))


def program(comm, servers, nbytes, steps, mode, size):
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
    results = world.run(program, s, nbytes, steps, mode, size)
    starts = [[start for start, _ in report.values] for report in results[s:]]
    return starts, results[0].updates, results[s].values[0][1], results.trace


GRID = [(1, 1), (2, 1), (5, 1), (4, 2), (6, 2), (3, 3)]


@pytest.mark.parametrize(("n", "s"), GRID)
@pytest.mark.parametrize("size", [0, 128])
def test_synchronous(n, s, size):
    starts, _, compute, _ = run(n, s, 96_000, size=size)
    assert compute == pytest.approx(2 * size**3 / 2.0**29)
    said = compute, PIECES
    alone = max(begun[1] for begun in starts) - starts[0][0]
    assert alone == pytest.approx(
        sync_seconds(n, s, 96_000, ALPHA, BETA, *said, alone=True), rel=1e-12
    )
    long = (max(begun[4] for begun in starts) - max(begun[2] for begun in starts)) / 2
    assert long == pytest.approx(sync_seconds(n, s, 96_000, ALPHA, BETA, *said), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("nbytes", "size"), [(800, 0), (96_000, 0), (8000, 128), (96_000, 256)])
def test_asynchronous(n, nbytes, size):
    _, updates, compute, _ = run(n, 1, nbytes, steps=8, mode="async", size=size)
    took = updates[6 * n].time - updates[3 * n].time
    assert took / (3 * n) == pytest.approx(
        async_seconds(n, nbytes, ALPHA, BETA, compute, PIECES), rel=1e-12
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("n", "s"), GRID)
def test_bytes(n, s, mode):
    *_, trace = run(n, s, 96_000, steps=3, mode=mode)
    labels = {"in": ("push", "gradients"), "out": ("answer", "parameters")}
    for server in range(s):
        into = sum(m.nbytes for m in trace if m.dst == server and m.label in labels["in"])
        out = sum(m.nbytes for m in trace if m.src == server and m.label in labels["out"])
        assert (into, out) == wire_bytes(n, s, 96_000, 3, PIECES)


def test_the_masters_wire_and_the_ring():
    """One server falls behind as workers are added, the ring does not; as many servers as workers make up for it."""
    nbytes = 4e9
    alpha = 5e-6
    beta = 1 / 50e9
    ring = {n: seconds("all_reduce", "ring", n, nbytes, alpha, beta) for n in (2, 8, 64)}
    one = {n: sync_seconds(n, 1, nbytes, alpha, beta) for n in ring}
    assert one[64] / one[8] == pytest.approx(65 / 9, rel=1e-3) and ring[64] / ring[8] < 1.2
    assert all(
        sync_seconds(n, n, nbytes, alpha, beta) == pytest.approx(2 * nbytes * beta, rel=1e-3)
        for n in ring
    )


def test_refused():
    for n, s in ((1, 2), (2, 0), (0, 0)):
        with pytest.raises(ValueError, match=f"not {n} for {s}"):
            sync_seconds(n, s, 1, 1, 1)
    with pytest.raises(ValueError, match="not 0 for 1"):
        async_seconds(0, 1, 1, 1)
