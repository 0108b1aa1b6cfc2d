"""Lesson 03: other right ways pass, and what is right only for some ranks, sizes or networks does not.

The usual mistakes are in course/03_topology/bugs.py, which tests/bank examines.
"""

import math
import sys
from statistics import median

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.lessons import topology
from minicheck.lessons.topology import FindNodes, FindSlow, Renumber, crossings, loads, size_of
from minidist.collectives import all_gather, all_reduce_, all_to_all, bandwidth, reduce_scatter
from minidist.comm import World
from minidist.comm.cluster import Cluster, Level
from tests.bank.bank import solved
from tests.minicheck.examined import (
    accepted,
    assert_odd_answers_are_told,
    assert_whoever_raises_is_no_rank,
    refused,
    rng,
)
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel

ALPHA = 5e-6
BETA = 1 / 50e9


def by_median(times):
    """The median of each size, and the line through the smallest and the largest."""
    sizes = sorted({nbytes for nbytes, _ in times})
    typical = [median(t for nbytes, t in times if nbytes == size) for size in sizes]
    beta = (typical[-1] - typical[0]) / (sizes[-1] - sizes[0])
    return torch.tensor(typical[0] - beta * sizes[0]), beta


def by_relative_squares(times):
    """Least squares of relative errors through the shortest time of each size."""
    sizes = sorted({nbytes for nbytes, _ in times})
    least = [min(t for nbytes, t in times if nbytes == size) for size in sizes]
    rows = torch.tensor([[1 / t, size / t] for size, t in zip(sizes, least)], dtype=torch.float64)
    scale = rows.abs().amax(0)
    found = torch.linalg.lstsq(rows / scale, torch.ones(len(sizes), 1, dtype=torch.float64))
    alpha, beta = (found.solution[:, 0] / scale).tolist()
    return alpha, beta


def test_other_fits(capsys):
    assert accepted(check.fit_link, [by_median, by_relative_squares]) == [0, 1]
    assert capsys.readouterr().out.count("right.") == 2


def by_the_largest_gap(betas):
    measured = sorted(b for row in betas for b in filter(None, row))
    gap = max(range(1, len(measured)), key=lambda i: measured[i] / measured[i - 1])
    nodes = {}
    for r, row in enumerate(betas):
        nodes.setdefault(tuple(b < measured[gap] for b in row), []).append(r)
    return tuple(map(tuple, nodes.values()))


def test_other_ways_to_find_nodes(capsys):
    assert accepted(check.find_nodes, [by_the_largest_gap]) == [0]


def from_its_own_node_on(places):
    """The rack and the node of rank 0 first."""
    racks, nodes = [], {}
    for rank, (rack, node) in enumerate(places):
        if rack not in racks:
            racks.append(rack)
        nodes.setdefault((rack, node), []).append(rank)
    ring = [r for key in sorted(nodes, key=lambda key: racks.index(key[0])) for r in nodes[key]]
    return torch.tensor(ring).argsort().tolist()


def test_other_numberings(capsys):
    assert accepted(check.renumber, [from_its_own_node_on]) == [0]


def test_a_numbering_is_the_one_that_split_takes():
    """The ring of a World, renumbered by the solution, crosses between nodes and racks as seldom as its grader counts."""
    numbers = solved("03_topology")["renumber"]
    exam = Renumber()
    [(places,)] = exam.draw(Case(1, "", (2, 3, 4, "any order")), rng())

    def program(comm):
        comm = comm.split([0] * comm.size, numbers(places))
        x = torch.zeros(1)
        comm.sendrecv(x, (comm.rank + 1) % comm.size, x.clone(), (comm.rank - 1) % comm.size)

    world = World(len(places))
    world.run(program)
    pairs = [(places[m.src], places[m.dst]) for m in world.trace]
    assert sum(a[0] != b[0] for a, b in pairs) == 2
    assert sum(a != b for a, b in pairs) == 6
    assert crossings([0, 1, 2, 3], ["a", "b", "a", "b"]) == 4


@pytest.mark.parametrize("distance", range(1, 12))
def test_the_busiest_wire_is_what_a_world_takes(distance):
    links = {"nic": Level(ALPHA, BETA), "spine": Level(0.0, BETA, share=3)}
    cluster = Cluster("racks", links=links, nodes=12, rack=3)

    def program(comm):
        x = torch.empty(10**6, dtype=torch.uint8, device="meta")
        to, of = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.sendrecv(x, to, torch.empty_like(x), of)

    world = World(12, cluster=cluster, device="meta")
    world.run(program)
    busiest = max(loads([(r, (r + distance) % 12, 10**6) for r in range(12)], 3).values())
    assert world.time == pytest.approx(ALPHA + busiest * BETA)


@pytest.mark.parametrize(("verb", "n"), [("all_reduce", 4), ("all_gather", 4), ("all_reduce", 7)])
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_a_ring_of_that_size_has_that_bandwidth(verb, n, fraction):
    size = n * round(size_of(verb, fraction, n, ALPHA, BETA) / n)

    def program(comm):
        x = torch.empty(size, dtype=torch.uint8, device="meta")
        if verb == "all_reduce":
            all_reduce_(comm, x, algorithm="ring")
        else:
            all_gather(comm, x[: size // n], algorithm="ring")

    world = World(n, alpha=ALPHA, beta=BETA, device="meta")
    world.run(program)
    assert bandwidth(verb, n, size, world.time)[1] * BETA == pytest.approx(fraction, rel=1e-3)


def test_a_broadcast_by_its_root_reaches_no_more():
    for n in (2, 3, 8):
        most = 1 / (n - 1)
        for part in (0.1, 0.9):
            size = size_of("broadcast", part * most, n, ALPHA, BETA)
            took = (n - 1) * (ALPHA + size * BETA)
            assert size / took * BETA == pytest.approx(part * most)
        assert size_of("broadcast", min(1, 1.01 * most), n, ALPHA, BETA) == math.inf


FOR_SOME = {
    "fit_link": (
        lambda times: len({nbytes for nbytes, _ in times}) < 6,
        lambda times: max(nbytes for nbytes, _ in times) < 10**6,
    ),
    "find_nodes": (
        lambda betas: len(betas) != 3,
        lambda betas: len(betas) < 16,
        lambda betas: betas[0][1] < 1e-10,
    ),
    "wire_seconds": (
        lambda messages, per_rack, *_: len(messages) > 0,
        lambda messages, per_rack, *_: len({dst for _, dst, _ in messages}) != 1,
        lambda messages, per_rack, *_: len({src for src, _, _ in messages}) != 1,
    ),
    "size_for": (
        lambda verb, fraction, n, *_: n != 2,
        lambda verb, fraction, n, *_: verb != "all_gather",
        lambda verb, fraction, n, *_: verb != "broadcast" or fraction * (n - 1) < 1,
        lambda verb, fraction, n, *_: verb != "broadcast" or fraction * (n - 1) > 1,
    ),
    "bandwidth": (
        lambda verb, n, *_: verb != "all_gather",
        lambda verb, n, nbytes, seconds: max(seconds) == seconds[-1],
    ),
    "renumber": (
        lambda places: len(places) > 1,
        lambda places: len({rack for rack, _ in places}) > 1,
        lambda places: len(places) % 2 == 0,
    ),
}
WRONG = {
    "fit_link": (1.0, 1.0),
    "find_nodes": [],
    "wire_seconds": 1.0,
    "size_for": 7.0,
    "bandwidth": (1.0, 1.0),
    "renumber": [],
}


@pytest.mark.parametrize("name", FOR_SOME)
def test_right_for_some_only(name):
    right, wrong = solved("03_topology")[name], WRONG[name]

    def only(fits):
        return lambda *given: right(*given) if fits(*given) else wrong

    assert accepted(getattr(check, name), [*map(only, FOR_SOME[name])]) == []


def test_other_ways_to_find_the_slow_one(capsys):
    def least_of_each(trace):
        paces = {
            r: [(m.sent - m.start) / m.nbytes for m in trace if r in (m.src, m.dst)]
            for r in range(trace.n)
        }
        return max(paces, key=lambda r: min(paces[r]))

    def by_median(trace):
        def pace(r):
            mine = sorted((m.sent - m.start) / m.nbytes for m in trace if r in (m.src, m.dst))
            return mine[len(mine) // 4]

        return max(range(trace.n), key=pace)

    assert accepted(check.find_slow, [least_of_each, by_median]) == [0, 1]
    assert capsys.readouterr().out.count("right.") == 2


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "a list of lists"),
        ([0, 1, 2, 3], "a list of lists"),
        ([[0, 1], [2]], "rank 3 is in no node"),
        ([[0, 1], [2, 3], [1]], "in two nodes"),
        ([[0, 1], [2, 3, 4]], "there is no rank 4"),
        ([[0, 1.0], [2, 3]], "an int"),
        ([[0, 1, 2], [3]], "ranks 0 and 1 share no node"),
        ([[0], [1, 3], [2]], "ranks 0 and 2 share a node"),
        ([[1, 3], [0, 2]], "their order is not"),
    ],
)
def test_what_are_no_nodes(got, says):
    exam = FindNodes()
    exam.nodes = [[0, 2], [1, 3]]
    betas = [
        [0.0 if i == j else 1e-11 if i % 2 == j % 2 else 1e-10 for j in range(4)] for i in range(4)
    ]
    exam.check(Case(1, ""), [[0, 2], [1, 3]], betas)
    with pytest.raises(Wrong, match=says):
        exam.check(Case(1, ""), got, betas)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "a list of 4 numbers"),
        ([0, 1, 2], "a list of 4 numbers"),
        ([0, 1, 2, 2], "given to one rank"),
        ([0, 1, 2, 3.0], "an int"),
        ([0, 1, 2, 3], "4 of the 4 messages of a step cross between racks, and 2"),
        ([1, 2, 0, 3], "should keep 0"),
    ],
)
def test_what_are_no_numbers(got, says):
    places = [(5, 0), (2, 0), (5, 0), (2, 0)]
    Renumber().check(Case(1, ""), [0, 2, 1, 3], places)
    with pytest.raises(Wrong, match=says):
        Renumber().check(Case(1, ""), got, places)


# ------------------------------------------------------------
# Lesson 03: what the graders reckon with agrees with runs, and the slips that they name are wrong.


RIGHT = {"shared": 0.010245, "filled": 36e6, "bus": 37.5e9, "late": 0.401, "even": 693}


FACTS = topology.predict_cost()


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"shared": 0.001285}, "share a cable"),
        ({"shared": 0.00132}, "the bytes queue"),
        ({"filled": 4e6}, "one half"),
        ({"filled": 3.6e6}, "as well"),
        ({"bus": 20e9}, "algorithm bandwidth"),
        ({"bus": 40e9}, "Nearly"),
        ({"late": 0.512}, "Two may be late"),
        ({"late": 0.599}, "nobody"),
        ({"late": 0.7}, "too large"),
        ({"even": 500}, "Two may be late"),
        ({"even": 1000}, "on average"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(FACTS, RIGHT, None)
    judge(FACTS, RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_factors_are_what_a_ring_sends(n):
    def busiest(verb, x):
        world = World(n, device="meta")
        world.run(verb, x)
        return max(world.trace.bytes_sent(r) for r in range(n))

    whole, part = torch.empty(n * n, device="meta"), torch.empty(n, device="meta")
    sent = {
        "all_reduce": busiest(all_reduce_, whole),
        "reduce_scatter": busiest(reduce_scatter, whole),
        "all_gather": busiest(all_gather, part),
        "all_to_all": busiest(all_to_all, whole),
    }
    for verb, nbytes in sent.items():
        assert topology.FACTORS[verb](n) == pytest.approx(nbytes / whole.nbytes)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "return"),
        ((2e9,), "tuple of 2"),
        (2e9, "tuple of 2"),
        ((2.0, 3.5), "should be N over seconds"),
        ((3.5e9, 3.5e9), "the other of the two"),
        ((2e9, 2e9), "Nearly"),
        ((2e9, 1.75e9), "one half"),
        ((2e9, 9e9), "must"),
        ((2e9, float("nan")), "nan times"),
        ((2e9, True), "of type bool"),
        ((2e9, 2e9 / 1.75), "upside down"),
    ],
)
def test_wrong_bandwidths(got, says):
    exam, args = topology.Bandwidth(), [("all_reduce", 8, 10**9, [0.25, *[0.5] * 7])]
    exam.judge(Case(1, ""), args, Outcome([{"found": (2e9, 3.5e9), "given": args[0]}], []))
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), args, Outcome([{"found": got, "given": args[0]}], []))


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "None"),
        (True, "an int"),
        (9, "there is no rank 9"),
        (-1, "there is no"),
        (2.0, "of type float"),
    ],
)
def test_what_is_no_rank(got, says):
    exam = FindSlow()
    args = exam.draw(Case(1, "", (5, "all-reduce", 10**7)), torch.Generator().manual_seed(0))
    exam.judge(Case(1, ""), args, Outcome([exam.slow], []))
    for wrong in set(range(5)) - {exam.slow}:
        with pytest.raises(Wrong, match=f"rank {wrong} is not slow, rank {exam.slow} is"):
            exam.judge(Case(1, ""), args, Outcome([wrong], []))
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), args, Outcome([got], []))


STYLES = [
    (
        "wire_seconds",
        "return alpha + max(carried.values()) * beta if carried else 0.0",
        """
from fractions import Fraction as F
return F(alpha) + max(carried.values()) * F(beta) if carried else F(0)
""",
    ),
    (
        "find_nodes",
        "return nodes",
        "return [torch.tensor(node).tolist() for node in nodes]",
    ),
    (
        "bandwidth",
        "return whole / slowest, factor * whole / slowest",
        "return torch.tensor(whole / slowest, dtype=torch.float64), torch.tensor(factor * whole / slowest, dtype=torch.float64)",
    ),
    (
        "bandwidth",
        "return whole / slowest, factor * whole / slowest",
        """
from fractions import Fraction as F
return F(whole) / F(slowest), F(factor) * whole / F(slowest)
""",
    ),
    (
        "find_slow",
        "return max(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))",
        "return torch.tensor([sum(paces[r]) / len(paces[r]) for r in sorted(paces)]).argmax()",
    ),
    (
        "predict_cost",
        "beta = 1 / 50e9",
        """
from fractions import Fraction as F
beta = F(1, 50 * 10**9)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("03_topology", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(topology)


def test_whoever_raises_is_no_rank():
    assert_whoever_raises_is_no_rank(topology)
