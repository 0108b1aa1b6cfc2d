"""What the rings cost: messages, bytes and time, by formulas written here a second time."""

import resource
import time
from dataclasses import replace
from math import ceil, log2

import pytest
import torch

from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    bandwidth,
    barrier,
    broadcast_,
    reduce_,
    reduce_scatter,
    seconds,
)
from minidist.collectives import naive as naive_module
from minidist.collectives import ring as ring_module
from minidist.comm import Cluster, World, launch
from minidist.comm.cluster import H100
from minidist.split import uneven
from minidist.study import published
from tests.size import FULL

SIZES = range(1, 9) if FULL else [1, 2, 3, 4, 5, 8]
LENGTHS = [0, 1, 3, 7, 64, 1_000_003]
ALPHA, BETA = 3e-6, 2e-9


def all_reduce_traffic(n, length):
    """Messages and bytes of each rank: it sends each chunk twice, but for its own and the next one's."""
    sizes = uneven(length, n)
    return [(2 * (n - 1), 8 * (2 * length - sizes[r] - sizes[(r + 1) % n])) for r in range(n)]


def on_meta(n, verb, length, **kwargs):
    """A World in which `verb` ran once on `length` numbers of 8 bytes."""
    world, x = (
        World(n, alpha=ALPHA, beta=BETA, device="meta"),
        torch.empty(length, dtype=torch.float64, device="meta"),
    )
    world.run(lambda comm: verb(comm, x, algorithm="ring", **kwargs))
    return world


def traffic(trace, n):
    return [(trace.messages(r), trace.bytes_sent(r)) for r in range(n)]


@pytest.mark.parametrize("n", SIZES)
def test_all_reduce(n):
    world, N = on_meta(n, all_reduce_, 840), 840 * 8
    assert traffic(world.trace, n) == [(2 * (n - 1), 2 * (n - 1) * N // n)] * n
    assert world.time == pytest.approx(2 * (n - 1) * ALPHA + 2 * (n - 1) / n * N * BETA)
    assert {(m.dst - m.src) % n for m in world.trace} <= {1}  # to the right


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_all_reduce_of_any_length(n, length):
    assert traffic(on_meta(n, all_reduce_, length).trace, n) == all_reduce_traffic(n, length)


@pytest.mark.parametrize("n", SIZES)
def test_the_halves(n):
    for verb, length, whole in ((reduce_scatter, 840, 840 * 8), (all_gather, 100, 100 * n * 8)):
        world = on_meta(n, verb, length)
        assert traffic(world.trace, n) == [(n - 1, (n - 1) * whole // n)] * n
        assert world.time == pytest.approx((n - 1) * ALPHA + (n - 1) / n * whole * BETA)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("root", [0, -1])
def test_broadcast(n, root):
    world, N = on_meta(n, broadcast_, 840, root=root % n), 840 * 8
    expected = [(n - 1, (n - 1) * N // n)] * n
    expected[root] = (2 * (n - 1), 2 * (n - 1) * N // n)
    assert traffic(world.trace, n) == expected
    assert world.time <= n * ALPHA + 2 * (n - 1) / n * N * BETA + 1e-12


@pytest.mark.parametrize("n", SIZES)
def test_reduce(n):
    world, N = on_meta(n, reduce_, 840), 840 * 8
    assert traffic(world.trace, n) == [
        (n - 1 + (r != 0), (n - 1 + (r != 0)) * N // n) for r in range(n)
    ]
    assert world.time <= n * ALPHA + 2 * (n - 1) / n * N * BETA + 1e-12


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all(n):
    world, N = on_meta(n, all_to_all, 840), 840 * 8
    assert traffic(world.trace, n) == [(n - 1, (n - 1) * N // n)] * n
    assert world.time == pytest.approx((n - 1) * (ALPHA + N / n * BETA))


@pytest.mark.parametrize("n", SIZES)
def test_barrier(n):
    world = World(n, alpha=ALPHA, beta=0)
    world.run(lambda comm: barrier(comm, algorithm="ring"))
    rounds = ceil(log2(n))
    assert [world.trace.messages(r) for r in range(n)] == [rounds] * n
    assert world.time == pytest.approx(rounds * ALPHA)


def one_all_reduce(comm, length):
    x = torch.arange(length, dtype=torch.float64) * (comm.rank + 1)
    return all_reduce_(comm, x, algorithm="ring")


@pytest.mark.parametrize("n", SIZES if FULL else [3])
@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_processes_send_the_same(n, transport, figure):
    for length in LENGTHS if FULL else [1001]:
        world = World(n).run(one_all_reduce, length)
        processes = launch(one_all_reduce, n, length, transport=transport)
        expected = torch.arange(length, dtype=torch.float64) * (n * (n + 1) // 2)
        assert all(torch.equal(x, expected) for x in [*world, *processes])
        for trace in (world.trace, processes.trace):
            assert traffic(trace, n) == all_reduce_traffic(n, length)
    figure(
        f"n={n}, World and {transport}: results equal the serial sum; {2 * (n - 1)} messages and "
        f"{traffic(trace, n)[0][1]:,} bytes of rank 0 for {length:,} numbers, as by formula"
    )


def test_several_tensors_are_one_message():
    def program(comm):
        all_reduce_(
            comm,
            [torch.ones(10), torch.ones(3, 6), torch.ones(4, dtype=torch.float64)],
            algorithm="ring",
        )

    trace = World(4).run(program).trace
    # a message for each dtype
    assert traffic(trace, 4) == [(2 * 2 * 3, 2 * 3 * (28 * 4 + 4 * 8) // 4)] * 4


def ring_on_meta(comm, nbytes):
    all_reduce_(comm, torch.empty(nbytes // 4, device="meta"), algorithm="ring")


def in_a_large_world(_, n, nbytes, meter):
    """A ring of meta tensors among `n` simulated GPUs, in a process whose memory is its own."""
    alpha = 5e-6
    beta = 1 / 50e9
    device = replace(H100, launch=0.0)
    start = time.monotonic()
    world = World(n, cluster=Cluster.uniform(n, alpha, beta, device), device="meta", meter=meter)
    world.run(ring_on_meta, nbytes)
    gamma = (
        3 * device.moving(1) if meter else 0.0
    )  # to add two numbers and keep the sum moves three
    return {
        "messages": len(world.trace),
        "time": world.time,
        "formula": seconds("all_reduce", "ring", n, nbytes, alpha, beta, gamma),
        "seconds": time.monotonic() - start,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


@pytest.mark.parametrize(("meter", "limit"), [(False, 60), (True, 120)])
def test_many_ranks(meter, limit, figure):
    """1 GiB over 1,024 simulated GPUs takes less than one minute, two with the meter, and less than 2 GiB."""
    n = 1024 if FULL else 32
    found = launch(in_a_large_world, 1, n, 1 << 30, meter, timeout=900)[0]
    figure(
        f"{'with' if meter else 'without'} the meter: {found['messages']:,} messages of {n:,} ranks in "
        f"{found['seconds']:.1f} s, {found['memory'] / 2**30:.2f} GiB of memory; virtual time "
        f"{found['time'] * 1e3:.3f} ms, off the formula by {abs(found['time'] / found['formula'] - 1):.0e}"
    )
    assert found["messages"] == 2 * (n - 1) * n
    assert found["time"] == pytest.approx(found["formula"], rel=1e-9)
    assert found["seconds"] < limit and found["memory"] < 2 << 30


def test_the_bandwidth_inside_a_node_is_what_was_measured(figure):
    """8 GiB in one node of H200s, beside NCCL's ring."""
    for row in published("nccl"):
        measured = (row["hw"], row["payload"], row["quantity"]) == ("H200", "8GiB", "busbw")
        if not measured or "Ring" not in row["algo"]:
            continue
        n = int(row["ranks"])
        world = World(n, cluster=Cluster.dgx_h200(), device="meta", meter=False)
        world.run(ring_on_meta, 8 << 30)
        ours = bandwidth("all_reduce", n, 8 << 30, world.time)[1] / 1e9
        figure(f"{n} H200s: bus bandwidth {ours:.1f} GB/s simulated, {row['value']:.1f} measured")
        assert ours == pytest.approx(row["value"], rel=0.05)


def one_step_short(comm, flat, combine):
    """The planted bug: the last all-gather step is missing."""
    chunks = list(flat.split(uneven(flat.numel(), comm.size)))
    ring_module.reduce_scatter(comm, chunks, chunks[comm.rank], combine)
    n, r = comm.size, comm.rank
    for step in range(n - 2):
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)


@pytest.mark.parametrize("wrong", [one_step_short, naive_module.all_reduce])
def test_other_algorithms_do_not_meet_these_counts(wrong, monkeypatch):
    monkeypatch.setattr(ring_module, "all_reduce", wrong)
    with pytest.raises(AssertionError):
        test_all_reduce(4)


def noisy(comm):
    drawn = torch.randn(20 * comm.size)
    return [
        all_reduce_(comm, drawn.clone()),
        reduce_scatter(comm, drawn),
        all_to_all(comm, drawn),
        drawn,
    ]


@pytest.mark.parametrize("n", SIZES if FULL else [4, 5])
def test_two_runs_are_the_same(n):
    def run():
        world = World(n, seed=7)
        results = world.run(noisy)
        return world.time, world.trace, results

    (time, trace, results), (again, trace_again, results_again) = run(), run()
    assert time == again and trace == trace_again and (len(trace) or n == 1)
    for mine, mine_again in zip(results, results_again, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, mine_again, strict=True))
    assert n == 1 or not torch.equal(
        results[0][3], results[1][3]
    )  # each rank has its own random numbers
