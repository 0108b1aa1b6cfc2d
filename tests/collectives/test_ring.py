"""What the rings cost: messages, bytes and time, by formulas written here a second time."""

from math import ceil, log2

import pytest
import torch

from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    reduce_,
    reduce_scatter,
)
from minidist.collectives import naive as naive_module
from minidist.collectives import ring as ring_module
from minidist.comm import World, launch
from minidist.split import uneven

SIZES = [1, 2, 3, 4, 5, 8]
ALPHA, BETA = 3e-6, 2e-9


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
    assert all(m.dst == (m.src + 1) % n for m in world.trace)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 3, 7, 64, 1_000_003])
def test_all_reduce_of_any_length(n, length):
    sizes = uneven(length, n)  # a rank sends each chunk twice, but for its own and the next one's
    expected = [(2 * (n - 1), 8 * (2 * length - sizes[r] - sizes[(r + 1) % n])) for r in range(n)]
    assert traffic(on_meta(n, all_reduce_, length).trace, n) == expected


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
    return all_reduce_(comm, torch.ones(length, dtype=torch.float64), algorithm="ring")


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_processes_send_the_same(transport):
    trace = launch(one_all_reduce, 3, 1001, transport=transport).trace
    assert traffic(trace, 3) == traffic(on_meta(3, all_reduce_, 1001).trace, 3)


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


@pytest.mark.parametrize("n", [4, 5])
def test_two_runs_are_the_same(n):
    def run():
        world = World(n, seed=7)
        results = world.run(noisy)
        return world.time, world.trace, results

    (time, trace, results), (again, trace_again, results_again) = run(), run()
    assert time == again and trace == trace_again and len(trace)
    for mine, mine_again in zip(results, results_again, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, mine_again, strict=True))
    assert not torch.equal(results[0][3], results[1][3])  # each rank has its own random numbers
