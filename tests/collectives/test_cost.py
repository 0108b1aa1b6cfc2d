"""Formulas against the World's clock, on links all alike and on clusters; the choice that follows; bandwidths."""

import csv
import math

import pytest
import torch

from minidist.collectives import (
    Hierarchical,
    all_reduce_,
    bandwidth,
    fastest,
    predict,
    ring,
    seconds,
)
from minidist.collectives.algorithms import FLAT, having
from minidist.collectives.cost import ALGORITHMS
from minidist.collectives.links import Net
from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from tests.collectives.costs import ALPHA, BETA, EVERY, SOME, run
from tests.repository.files import ROOT

WHOLE = [
    ("naive", "all_reduce"),
    ("ring", "all_reduce"),
    ("tree", "all_reduce"),
    ("halving_doubling", "all_reduce"),
]
PARTS = [
    ("naive", "broadcast"),
    ("naive", "reduce"),
    ("naive", "scatter"),
    ("naive", "gather"),
    ("naive", "barrier"),
    ("naive", "reduce_scatter"),
    ("naive", "all_gather"),
    ("naive", "all_to_all"),
    ("ring", "broadcast"),
    ("ring", "reduce"),
    ("ring", "reduce_scatter"),
    ("ring", "all_gather"),
    ("ring", "all_to_all"),
    ("ring", "barrier"),
    ("tree", "broadcast"),
    ("tree", "reduce"),
    ("tree", "scatter"),
    ("tree", "gather"),
    ("tree", "barrier"),
    ("halving_doubling", "reduce_scatter"),
    ("halving_doubling", "all_gather"),
    ("pipelined", "all_reduce"),
    ("pipelined", "reduce_scatter"),
    ("pipelined", "all_gather"),
]
PIECES = [(name, verb) for name in ("pipelined", "double_tree") for verb in ("broadcast", "reduce")]
PIECES += [("double_tree", "all_reduce")]  # in as many pieces as are best, which need not be alike


def divisible(n):
    """Bytes that every algorithm cuts evenly: by n, by the powers of two in it, in two pieces, of 8 bytes."""
    return n * (1 << n.bit_length()) * 16


def off(world, predicted):
    """How far the prediction is from the world's time, relative."""
    return abs(predicted - world.time) / world.time if world.time else abs(predicted)


def far_off(algorithm, verb, ns, bound):
    """[(n, how far)] where formula and World differ by more than `bound`."""
    found = []
    for n in ns:
        nbytes = 1 if verb == "barrier" else divisible(n)
        wrong = off(
            run(n, verb, algorithm, nbytes), seconds(verb, algorithm, n, nbytes, ALPHA, BETA)
        )
        if wrong > bound:
            found.append((n, wrong))
    return found


@pytest.mark.parametrize(("algorithm", "verb"), WHOLE)
def test_exact_for_every_n(algorithm, verb):
    """What consists of other verbs, so that those are exact, too, or their errors undo each other at each n."""
    assert far_off(algorithm, verb, EVERY, 1e-9) == []


@pytest.mark.parametrize(("algorithm", "verb"), PARTS)
def test_exact(algorithm, verb):
    assert far_off(algorithm, verb, SOME, 1e-9) == []


@pytest.mark.parametrize(("algorithm", "verb"), PIECES)
def test_in_pieces(algorithm, verb):
    assert far_off(algorithm, verb, [*SOME, 33, 64], 0.05) == []


@pytest.mark.parametrize("nbytes", [1 << 14, 1 << 20])
@pytest.mark.parametrize(("algorithm", "verb"), PIECES)
def test_in_many_pieces(algorithm, verb, nbytes):
    for n in (2, 3, 7, 12):
        predicted = seconds(verb, algorithm, n, nbytes, 2e-5, BETA)
        assert off(run(n, verb, algorithm, nbytes, alpha=2e-5), predicted) <= 0.05, n


def test_every_formula_is_tested():
    have = [
        (name, verb)
        for name, module in FLAT.items()
        for verb in dir(module.Cost)
        if hasattr(module, verb)
    ]
    assert {*WHOLE, *PARTS, *PIECES} == {(name, verb) for name, verb in have if verb[0] != "_"}


@pytest.mark.parametrize(
    "verb", ["broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather"]
)
@pytest.mark.parametrize(("n", "size"), [(4, 2), (8, 2), (8, 4), (12, 4), (16, 4)])
def test_hierarchical(verb, n, size):
    algorithm = Hierarchical("ring", "ring", size)
    predicted = seconds(verb, algorithm, n, divisible(n), ALPHA, BETA)
    assert off(run(n, verb, algorithm, divisible(n)), predicted) <= 1e-9


@pytest.mark.parametrize("length", [1, 7, 1000, 1001])
def test_uneven_chunks_take_as_long_as_the_longest(length):
    for n in (3, 8, 13):
        whole = 8 * n * math.ceil(length / n)
        for algorithm, nbytes in (("ring", whole), ("tree", 8 * length)):
            world = run(n, "all_reduce", algorithm, 8 * length)
            assert off(world, seconds("all_reduce", algorithm, n, nbytes, ALPHA, BETA)) <= 1e-9


# of the device: combining reads two bytes and writes one for each, so γ = 3 / BANDWIDTH
BANDWIDTH = 1e12
DEVICE = Device(
    "without launch cost", {torch.float64: 1e18}, memory=10**12, bandwidth=BANDWIDTH, launch=0.0
)


@pytest.mark.parametrize(
    ("algorithm", "verb"), [(a, v) for a, v in WHOLE + PARTS + PIECES if "reduce" in v]
)
def test_combining_takes_time(algorithm, verb):
    alpha, beta = 1e-7, 2e-11
    for n in (2, 3, 4, 8, 13):
        nbytes = 256 * divisible(n)
        world = run(
            n,
            verb,
            algorithm,
            nbytes,
            cluster=Cluster.uniform(n, alpha, beta, device=DEVICE),
            meter=True,
        )
        without, with_it = (
            seconds(verb, algorithm, n, nbytes, alpha, beta, gamma)
            for gamma in (0.0, 3 / BANDWIDTH)
        )
        # who acts for a pair
        copied = (algorithm, verb) == ("halving_doubling", "reduce_scatter") and n & (n - 1)
        assert off(world, with_it) <= (0.05 if copied or (algorithm, verb) in PIECES else 1e-9), n
        assert with_it > 1.002 * without or algorithm == "pipelined"  # which hides it


CLUSTERS = {
    "two nodes": (Cluster.dgx_h100(nodes=2), 16),
    "three, one of them smaller": (Cluster.dgx_a100(nodes=3), 20),
    "a slow rank": (Cluster.dgx_h100(nodes=2).slow_rank(5, 3.0), 16),
}
TOO_LONG = {"two nodes": 1.001, "three, one of them smaller": 1.1, "a slow rank": 1.4}


def net_of(cluster, n):
    return Net(n, lambda dst, src: cluster.link(src, dst))


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 18, 1 << 22])
@pytest.mark.parametrize("where", CLUSTERS)
def test_clusters(where, nbytes):
    """Predicted from the links alone: exact where nodes are alike; never too short by more than 5 %, and too long
    where a slow rank is not on the longest path, or some wait less than others."""
    cluster, n = CLUSTERS[where]
    for algorithm in ALGORITHMS:
        for verb in ("all_reduce", "broadcast", "reduce_scatter"):
            if hasattr(ALGORITHMS[algorithm], verb):
                size = nbytes // (8 * n) * 8 * n
                world = run(n, verb, algorithm, size, cluster=cluster, meter=False)
                ratio = predict(net_of(cluster, n), verb, size, algorithm) / world.time
                assert 0.95 <= ratio <= TOO_LONG[where], (algorithm, verb)


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 18, 1 << 23])
@pytest.mark.parametrize(
    ("cluster", "n"),
    [
        (Cluster.uniform(16, 5e-6, 2e-11), 3),
        (Cluster.uniform(16, 5e-6, 2e-11), 16),
        (Cluster.dgx_h100(nodes=4), 24),
    ],
)
def test_auto_is_the_fastest(cluster, n, nbytes):
    between = [Hierarchical(outer=name) for name in having("all_reduce")[1:]] if n == 24 else []
    for verb in ("all_reduce", "broadcast"):
        names = [a for a in ALGORITHMS if hasattr(ALGORITHMS[a], verb)]
        names += [a for a in between if a.outer in having(verb)]
        times = [run(n, verb, a, nbytes, cluster=cluster, meter=False).time for a in names]
        assert run(n, verb, "auto", nbytes, cluster=cluster, meter=False).time <= 1.05 * min(times)


def test_all_ranks_choose_the_same_without_a_message():
    def program(comm):
        return [str(fastest(comm, "all_reduce", nbytes)) for nbytes in (100, 10**5, 10**8)]

    world = World(12, cluster=Cluster.dgx_h100(nodes=2))
    chosen = world.run(program)
    assert chosen == [chosen[0]] * 12 and len(world.trace) == 0
    assert len(set(chosen[0])) > 1


def test_auto_can_be_the_default_of_a_comm():
    def program(comm):
        comm.algorithm = "auto"
        return all_reduce_(comm, torch.ones(1_000_000))[0].item()

    auto = World(4)
    assert auto.run(program) == [4.0] * 4
    # as a ring does: naive would send three times the whole from rank 0
    assert max(auto.trace.bytes_sent(rank) for rank in range(4)) == 6_000_000


def one_message_more(comm, flat, combine):
    ring.reduce_scatter(
        comm,
        list(flat.split(flat.numel() // comm.size)),
        flat[: flat.numel() // comm.size],
        combine,
    )
    ring.all_gather(comm, list(flat.split(flat.numel() // comm.size)))
    comm.sendrecv(
        flat[:1], (comm.rank + 1) % comm.size, flat[:1].clone(), (comm.rank - 1) % comm.size
    )


def test_an_error_on_either_side_shows(monkeypatch):
    assert far_off("ring", "all_reduce", [4], 1e-9) == []
    with monkeypatch.context() as patch:
        patch.setattr(ring, "all_reduce", one_message_more)
        assert far_off("ring", "all_reduce", [4], 1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(ring.Cost, "all_gather", staticmethod(lambda net, nbytes, gamma=0.0: 0.0))
        assert far_off("ring", "all_reduce", [4], 1e-9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: seconds("gather", "ring", 4, 8, 1, 1), ("gather", "'naive', 'tree'", "'ring'")),
        (lambda: seconds("gather", Hierarchical(), 4, 8, 1, 1), ("gather", "'naive', 'tree'")),
        (lambda: seconds("all_reduce", "ring", 0, 8, 1, 1), ("at least 1 rank", "0")),
        (lambda: bandwidth("gather", 4, 8, 1.0), ("gather", "all_reduce")),
        (lambda: bandwidth("all_reduce", 0, 8, 1.0), ("0",)),
    ],
)
def test_refused(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


VERBS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
}
FACTORS = {
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
    "(n-1)/n": lambda n: (n - 1) / n,
    "1": lambda n: 1,
}


def test_bandwidths_are_those_of_nccl_tests():
    with open(ROOT / "minidist/study/figures/nccl.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "busbw_over_algbw"]
    assert {row["collective"] for row in rows} == set(VERBS)
    for row in rows:
        for n in (2, 3, 8):
            algorithm, bus = bandwidth(VERBS[row["collective"]], n, 1000, 0.5)
            assert algorithm == 2000 and bus == pytest.approx(
                2000 * FACTORS[row["value"]](n), rel=1e-12
            )


def test_a_ring_uses_the_wire():
    """Bus bandwidth of a long message is the wire's, whatever n: what the factor is for."""
    for n in (2, 5, 8):
        for verb in ("all_reduce", "all_gather", "reduce_scatter"):
            nbytes = divisible(n) << 12
            _, bus = bandwidth(verb, n, nbytes, seconds(verb, "ring", n, nbytes, 1e-7, BETA))
            assert bus == pytest.approx(1 / BETA, rel=1e-2)
