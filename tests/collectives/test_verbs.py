"""Every verb gives what the definition says, in every world."""

from itertools import chain

import pytest
import torch

from minidist.collectives import all_gather, all_reduce_, barrier, broadcast_, reduce_scatter
from minidist.comm import World, launch
from tests.collectives.cases import check
from tests.largest import smallest


def wrong(results):
    return list(chain(*results))


@pytest.mark.parametrize(
    ("n", "algorithm"),
    [
        (1, "naive"),
        (2, "naive"),
        (3, "naive"),
        (5, "naive"),
        (1, "ring"),
        (2, "ring"),
        (3, "ring"),
        (4, "ring"),
        (5, "ring"),
        (3, "tree"),
        (3, "double_tree"),
        (3, "halving_doubling"),
        (3, "pipelined"),
        (3, "hierarchical"),
        (2, "auto"),
    ],
)
def test_world(n, algorithm):
    assert wrong(World(n).run(check, algorithm)) == []


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_world_with_buffered_sends(algorithm):
    assert wrong(World(3, rendezvous=False).run(check, algorithm)) == []


@pytest.mark.parametrize(("n", "algorithm"), [(3, "naive"), *((n, "ring") for n in range(1, 5))])
def test_processes(n, algorithm):
    assert wrong(launch(check, n, algorithm)) == []


@pytest.mark.parametrize(
    ("n", "algorithm"), [(2, "ring"), (1, "native"), (2, "native"), (3, "native")]
)
def test_gloo(n, algorithm):
    assert wrong(launch(check, n, algorithm, transport="gloo")) == []


def forgotten_mean(comm, x, op="sum", algorithm=None):
    return all_reduce_(comm, x, "sum" if op == "mean" else op, algorithm)


def remainder_dropped(comm, x, op="sum", algorithm=None):
    if isinstance(x, torch.Tensor) and x.is_contiguous():
        all_reduce_(comm, x.view(-1)[: x.numel() // comm.size * comm.size], op, algorithm)
        return x
    return all_reduce_(comm, x, op, algorithm)


def wrong_root(comm, x, root=0, algorithm=None):
    return broadcast_(comm, x, 0, algorithm)


def own_rows_last(comm, x, sizes=None, algorithm=None):
    got = all_gather(comm, x, sizes, algorithm)
    return got.flip(0) if isinstance(got, torch.Tensor) else got


def input_overwritten(comm, x, op="sum", sizes=None, algorithm=None):
    got = reduce_scatter(comm, x, op, sizes, algorithm)
    if isinstance(x, torch.Tensor):
        x.zero_()
    return got


def strided_left_alone(comm, x, op="sum", algorithm=None):
    if isinstance(x, torch.Tensor) and not x.is_contiguous():
        all_reduce_(comm, x.contiguous(), op, algorithm)
        return x
    return all_reduce_(comm, x, op, algorithm)


def aliased(comm, x, sizes=None, algorithm=None):
    got = all_gather(comm, x, sizes, algorithm)
    return x if isinstance(x, torch.Tensor) and x.shape == got.shape else got


@pytest.mark.parametrize(
    ("verb", "planted", "n"),
    [
        ("all_reduce_", forgotten_mean, 3),
        ("all_reduce_", remainder_dropped, 3),
        ("all_reduce_", strided_left_alone, 2),
        ("all_reduce_", lambda comm, x, op="sum", algorithm=None: x, 2),
        ("broadcast_", wrong_root, 2),
        ("all_gather", own_rows_last, 2),
        ("all_gather", aliased, 1),
        ("reduce_scatter", input_overwritten, 2),
    ],
)
def test_a_wrong_verb_is_found(verb, planted, n):
    assert wrong(World(n).run(check, "ring", {verb: planted}))


def random_sums(comm, algorithm, lengths, seed):
    """The all-reduce of random numbers: this rank's results."""
    return [
        all_reduce_(comm, numbers(comm.rank, length, seed), algorithm=algorithm)
        for length in lengths
    ]


def numbers(rank, length, seed):
    return torch.randn(
        length, generator=torch.Generator().manual_seed(seed + rank), dtype=torch.float64
    )


LENGTHS = [0, 1, 3, 7, 64, 1_000_003]


@pytest.mark.parametrize("n", range(1, 9))
def test_all_reduce_is_the_serial_sum_bit_for_bit_the_same_everywhere(n):
    results = World(n).run(random_sums, "ring", LENGTHS, 5)
    for i, length in enumerate(LENGTHS):
        serial = sum(numbers(r, length, 5) for r in range(n))
        # n−1 additions, in another order: each rounds numbers of at most about 20 by 2⁻⁵³
        assert torch.allclose(results[0][i], serial, rtol=0, atol=n * 20 * 2**-53)
        assert all(torch.equal(mine[i], results[0][i]) for mine in results)


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_all_worlds_give_the_same_bits(algorithm):
    world, processes = (
        run(random_sums, algorithm, [1, 7, 1000], 6) for run in (World(3).run, on_three_processes)
    )
    for mine, theirs in zip(world, processes, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def on_three_processes(program, *args):
    return launch(program, 3, *args)


@pytest.mark.parametrize("algorithm", ["naive", "ring", "tree", "auto"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_nobody_leaves_a_barrier_before_all_have_come(n, algorithm):
    beside = min(1, n - 2)  # where there are three or more, rank 0 comes early

    def program(comm):
        if comm.rank == n - 1:  # this one is late: it has two messages to pass first
            for _ in range(2):
                comm.recv(torch.empty(1000), beside)
        elif comm.rank == beside:
            for _ in range(2):
                comm.send(torch.empty(1000), n - 1)
        came = comm.now()
        barrier(comm, algorithm=algorithm)
        return came, comm.now()

    times = World(n).run(program)
    assert smallest(left for _, left in times) >= max(came for came, _ in times)


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_parameters_are_reduced_in_place_without_a_graph(algorithm):
    def program(comm):
        p = torch.nn.Parameter(torch.ones(5))
        all_reduce_(comm, p, algorithm=algorithm)
        broadcast_(comm, [p, torch.nn.Parameter(torch.zeros(2))], algorithm=algorithm)
        return p.is_leaf and p.requires_grad and p.detach().eq(3).all()

    assert all(World(3).run(program))
