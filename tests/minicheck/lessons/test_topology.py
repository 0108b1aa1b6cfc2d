"""Lesson 03: other right ways pass, and what is right only for some ranks, lengths or worlds does not.

The usual mistakes are in course/03_topology/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.lessons import topology
from minicheck.lessons.topology import FindSlow, shape_of
from minidist.collectives import all_gather, all_reduce_, all_to_all, reduce_scatter
from minidist.comm import Recv, Send, World
from tests.bank.bank import shows_bug, solved
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused
from tests.minicheck.predicted import judge, slips_are_wrong
from tests.repository.files import ROOT

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def far_half_first(comm, x, root):
    """Who has it gives the far half of its ranks away, and keeps the near one."""
    place = (comm.rank - root) % comm.size
    first = 0
    end = comm.size
    while end - first > 1:
        middle = (first + end + 1) // 2
        if place == first:
            comm.send(x, (root + middle) % comm.size)
        elif place == middle:
            comm.recv(x, (root + first) % comm.size)
        first, end = (first, middle) if place < middle else (middle, end)


def lowest_bit(comm, x, root):
    """The parent is the place without its lowest bit; the largest part of the tree is served first."""
    n = comm.size
    place = (comm.rank - root) % comm.size
    distance = 1 << (comm.size - 1).bit_length()
    if place:
        distance = place & -place
        comm.recv(x, (root + place - distance) % n)
    while distance > 1:
        distance //= 2
        if place + distance < n:
            comm.isend(x, (root + place + distance) % n).wait()


def test_other_trees(capsys):
    assert accepted(check.tree_broadcast, [far_half_first, lowest_bit]) == [0, 1]
    assert capsys.readouterr().out.count("right.") == 2


def nearest_first(comm, x):
    """Partners one rank apart first, then two, then four."""
    part, steps = x.view(-1), []
    for k in range(comm.size.bit_length() - 1):
        partner, halves = comm.rank ^ 2**k, part.tensor_split(2)
        mine = comm.rank >> k & 1
        got = torch.empty_like(halves[mine])
        comm.batch([Send(halves[1 - mine], partner), Recv(got, partner)]).wait()
        part = halves[mine].add_(got)
        steps.insert(0, (partner, part, halves[1 - mine]))
    for partner, kept, gone in steps:
        comm.sendrecv(kept, partner, gone, partner)


def test_other_halvings(capsys):
    check.halving_doubling(nearest_first)
    assert "halving_doubling: right." in capsys.readouterr().out


def groups(comm, per_node):
    return (
        comm.split([r // per_node for r in range(comm.size)]),
        comm.split([r % per_node for r in range(comm.size)]),
    )


def ring_by_hand(comm, x, per_node):
    inner, outer = groups(comm, per_node)
    flat = x.view(-1)
    pieces = flat.tensor_split(per_node)
    mine = pieces[inner.rank]
    for k in range(1, per_node):
        got = inner.sendrecv(
            pieces[inner.rank - k],
            (inner.rank - k) % per_node,
            torch.empty_like(mine),
            (inner.rank + k) % per_node,
        )
        mine += got
    all_reduce_(outer, mine)
    for k in range(1, per_node):
        inner.sendrecv(
            mine,
            (inner.rank - k) % per_node,
            pieces[(inner.rank + k) % per_node],
            (inner.rank + k) % per_node,
        )


def padded(comm, x, per_node):
    """A multiple of n with zeros behind, and no sizes."""
    inner, outer = groups(comm, per_node)
    n = x.numel()
    flat = torch.cat([x.view(-1), x.new_zeros(-n % comm.size)])
    whole = all_gather(inner, all_reduce_(outer, reduce_scatter(inner, flat)))
    x.view(-1).copy_(whole[:n])


def test_other_hierarchies(capsys):
    assert accepted(check.hierarchical, [ring_by_hand, padded]) == [0, 1]
    assert capsys.readouterr().out.count("right.") == 2


def test_a_pipeline_in_batches(capsys):
    def pipeline(comm, x, pieces):
        parts = x.view(-1).tensor_split(pieces)
        for i in range(pieces + 1):
            ops = [Recv(parts[i], comm.rank - 1)] if comm.rank > 0 and i < pieces else []
            ops += (
                [Send(parts[i - 1], comm.rank + 1)] if comm.rank < comm.size - 1 and i > 0 else []
            )
            comm.batch(ops).wait()

    check.pipeline(pipeline)
    assert "pipeline: right." in capsys.readouterr().out


def test_a_pipeline_that_posts_all_its_receives_first(capsys):
    def pipeline(comm, x, pieces):
        chunks = x.view(-1).tensor_split(pieces)
        coming = [comm.irecv(piece, comm.rank - 1) for piece in chunks if comm.rank > 0]
        leaving = []
        for i, piece in enumerate(chunks):
            if comm.rank > 0:
                coming[i].wait()
            if comm.rank < comm.size - 1:
                leaving.append(comm.isend(piece, comm.rank + 1))
        for work in reversed(leaving):
            work.wait()

    check.pipeline(pipeline)
    assert "pipeline: right." in capsys.readouterr().out


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


FITS = {
    "not the last rank": lambda comm, x: comm.rank < comm.size - 1 or comm.size < 4,
    "few ranks": lambda comm, x: comm.size < 5,
    "not the processes": lambda comm, x: type(comm).__name__ == "WorldComm",
    "no remainder": lambda comm, x: x.numel() % comm.size == 0,
    "one dimension": lambda comm, x: x.dim() == 1,
    "no whole numbers": lambda comm, x: x.dtype != torch.int64,
    "what stands in the grader": lambda comm, x: x.numel() < 65 or x.numel() == 1000,
}


@pytest.mark.parametrize("name", ["tree_broadcast", "halving_doubling", "hierarchical"])
def test_right_for_some_only(name):
    right = solved("03_topology")[name]

    def only(fits):
        return lambda comm, x, *rest: right(comm, x if fits(comm, x) else x.clone(), *rest)

    assert accepted(getattr(check, name), {what: only(fits) for what, fits in FITS.items()}) == []


def test_a_pipeline_for_some_only():
    right = solved("03_topology")["pipeline"]

    def only(fits):
        return lambda comm, x, pieces: right(comm, x if fits(comm, pieces) else x.clone(), pieces)

    assert (
        accepted(
            check.pipeline,
            map(
                only,
                [
                    lambda comm, pieces: comm.size < 6,
                    lambda comm, pieces: pieces != 1,
                    lambda comm, pieces: pieces < 16,
                    lambda comm, pieces: type(comm).__name__ == "WorldComm",
                ],
            ),
        )
        == []
    )


def test_formulas_for_some_only():
    right = solved("03_topology")["all_reduce_seconds"]

    def only(fits):
        return lambda algorithm, n, *rest: (
            right(algorithm, n, *rest) + (0.0 if fits(algorithm, n) else 1e-7)
        )

    assert (
        accepted(
            check.all_reduce_seconds,
            map(
                only,
                [
                    lambda algorithm, n: n < 16,
                    lambda algorithm, n: n != 1,
                    lambda algorithm, n: n & (n - 1) == 0,
                    lambda algorithm, n: algorithm != "tree",
                    lambda algorithm, n: algorithm != "halving_doubling",
                ],
            ),
        )
        == []
    )


def test_the_bug_to_find_is_a_planted_one():
    assert shows_bug(
        ROOT / "course" / "03_topology",
        "pipeline",
        "each piece has left before the next may arrive",
    )


# ------------------------------------------------------------
# Lesson 03: what the graders reckon with agrees with runs, and the slips that they name are wrong.


RIGHT = {"ring": 0.00511, "tree": 9e-5, "crossover": 15.684e6, "across": 246.1e6, "late": 0.401}


FACTS = topology.predict_cost(nodes=64, per_node=8, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, p=0.001)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"ring": 0.002555}, "one half"),
        ({"ring": 9e-5}, "the tree"),
        ({"tree": 4.5e-5}, "two trees"),
        ({"tree": 0.0000624}, "base 2"),
        ({"crossover": 14.19e6}, "Nearly"),
        ({"crossover": 3.92e6}, "not numbers"),
        ({"across": 1.96875e9}, "one piece of 8"),
        ({"across": 250e6}, "64 nodes"),
        ({"across": 123e6}, "one half"),
        ({"late": 0.512}, "Two may be late"),
        ({"late": 0.599}, "nobody"),
        ({"late": 0.7}, "too large"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(FACTS, RIGHT, None)
    judge(FACTS, RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(FACTS)


def test_the_crossover_is_where_a_world_says():
    values, _ = topology.predict_cost(
        nodes=4, per_node=4, nbytes=1e6, alpha=5e-6, beta=1 / 50e9, p=0.1
    )
    for factor, faster in ((0.9, "tree"), (1.1, "ring")):
        times = {
            name: topology.clock(
                name, 16, 16 * int(values["crossover"] * factor / 16), 5e-6, 1 / 50e9
            )
            for name in ("ring", "tree")
        }
        assert min(times, key=times.get) == faster
    assert values["ring"] == pytest.approx(topology.clock("ring", 16, 16, 5e-6, 0.0))
    assert values["tree"] == pytest.approx(topology.clock("tree", 16, 16, 5e-6, 0.0))


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
        ((2e9, 2e9 / 1.75), "the other way up"),
    ],
)
def test_wrong_bandwidths(got, says):
    exam, args = topology.Bandwidth(), [("all_reduce", 8, 10**9, 0.5)]
    exam.judge(Case(1, ""), args, Outcome([{"found": (2e9, 3.5e9), "given": args[0]}], []))
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), args, Outcome([{"found": got, "given": args[0]}], []))


def test_shapes():
    star = Outcome([], [(0, r, 8) for r in (1, 2, 3)], 24.0)
    assert "all the work" in shape_of(star, 4, 0)
    assert "a chain" in shape_of(Outcome([], [(0, 1, 8), (1, 2, 8), (2, 3, 8)]), 4, 0)


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
        "tree_broadcast",
        "comm.send(x, (root + place + reach) % n)",
        "comm.isend(x, (root + place + reach) % n).wait()",
    ),
    (
        "halving_doubling",
        "keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        """
into = torch.empty_like(keep)
if comm.rank < partner:
    comm.send(give, partner)
    comm.recv(into, partner)
else:
    comm.recv(into, partner)
    comm.send(give, partner)
keep += into
""",
    ),
    (
        "all_reduce_seconds",
        """
if algorithm == "ring":
    return 2 * (n - 1) * (alpha + nbytes / n * beta)
if algorithm == "tree":
    return 2 * math.log2(n) * (alpha + nbytes * beta)
return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
""",
        """
if algorithm == "ring":
    return torch.tensor(1.0, dtype=torch.float64) * 2 * (n - 1) * (alpha + nbytes / n * beta)
if algorithm == "tree":
    return torch.tensor(1.0, dtype=torch.float64) * 2 * math.log2(n) * (alpha + nbytes * beta)
return torch.tensor(1.0, dtype=torch.float64) * 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
""",
    ),
    (
        "bandwidth",
        "return nbytes / seconds, factor * nbytes / seconds",
        "return torch.tensor(nbytes / seconds, dtype=torch.float64), torch.tensor(factor * nbytes / seconds, dtype=torch.float64)",
    ),
    (
        "bandwidth",
        "return nbytes / seconds, factor * nbytes / seconds",
        """
from fractions import Fraction as F
return F(nbytes) / F(seconds), F(factor) * nbytes / F(seconds)
""",
    ),
    (
        "hierarchical",
        "mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))",
        """
mine = reduce_scatter(inner, flat, sizes=sizes)
outer.stream(all_reduce_, mine).wait()
""",
    ),
    (
        "find_slow",
        "return max(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))",
        "return torch.tensor([sum(paces[r]) / len(paces[r]) for r in sorted(paces)]).argmax()",
    ),
    (
        "predict_cost",
        """
n = 512
alpha = 5e-6
beta = 1 / 50e9
""",
        """
from fractions import Fraction as F
n = 512
alpha = F(5, 10**6)
beta = F(1, 50 * 10**9)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("03_topology", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(topology)
