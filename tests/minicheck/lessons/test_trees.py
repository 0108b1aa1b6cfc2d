"""Lesson 04: other right ways pass, and what is right only for some ranks, lengths or worlds does not.

The usual mistakes are in course/04_trees/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.exam import Outcome
from minicheck.lessons import trees
from minicheck.lessons.trees import shape_of
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import Recv, Send
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
    """Partners one actor apart first, then two, then four; of the first ranks, every other is folded into its neighbour."""
    part, steps = x.view(-1), []
    bits = comm.size.bit_length() - 1
    pairs = comm.size - 2**bits
    if comm.rank < 2 * pairs and comm.rank % 2:
        comm.send(part, comm.rank - 1)
        comm.recv(part, comm.rank - 1)
        return
    if comm.rank < 2 * pairs:
        part += comm.recv(torch.empty_like(part), comm.rank + 1)
    actor = comm.rank // 2 if comm.rank < 2 * pairs else comm.rank - pairs
    for k in range(bits):
        other, halves = actor ^ 2**k, part.tensor_split(2)
        partner = 2 * other if other < pairs else other + pairs
        mine = actor >> k & 1
        got = torch.empty_like(halves[mine])
        comm.batch([Send(halves[1 - mine], partner), Recv(got, partner)]).wait()
        part = halves[mine].add_(got)
        steps.insert(0, (partner, part, halves[1 - mine]))
    for partner, kept, gone in steps:
        comm.sendrecv(kept, partner, gone, partner)
    if comm.rank < 2 * pairs:
        comm.send(x.view(-1), comm.rank + 1)


def test_other_halvings(capsys):
    check.halving_doubling(nearest_first)
    assert "halving_doubling: right." in capsys.readouterr().out


def groups(comm, nodes):
    places = [nodes[:r].count(nodes[r]) for r in range(comm.size)]
    return comm.split(nodes), comm.split(places), min(map(nodes.count, nodes))


def by_hand(comm, x, nodes):
    """Everyone of a node sends piece i to rank i of it, and a ring brings it back."""
    inner, outer, count = groups(comm, nodes)
    pieces = x.view(-1).tensor_split(count)
    g, r = inner.size, inner.rank
    for k in range(1, g):
        to, of = (r + k) % g, (r - k) % g
        works = []
        if to < count:
            works.append(inner.isend(pieces[to], to))
        if r < count:
            got = torch.empty_like(pieces[r])
            works.append(inner.irecv(got, of))
        for work in works:
            work.wait()
        if r < count:
            pieces[r].add_(got)
    if r < count:
        all_reduce_(outer, pieces[r])
    for k in range(1, g):
        leaving, coming = (r - k + 1) % g, (r - k) % g
        works = []
        if leaving < count:
            works.append(inner.isend(pieces[leaving], (r + 1) % g))
        if coming < count:
            works.append(inner.irecv(pieces[coming], (r - 1) % g))
        for work in works:
            work.wait()


def padded(comm, x, nodes):
    """A multiple of g·m with zeros behind, so that all pieces are alike."""
    inner, outer, count = groups(comm, nodes)
    n = x.numel()
    flat = torch.cat([x.view(-1), x.new_zeros(-n % (count * len(set(nodes))))])
    sizes = [flat.numel() // count] * count + [0] * (inner.size - count)
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    x.view(-1).copy_(all_gather(inner, mine, sizes=sizes)[:n])


def test_other_hierarchies(capsys):
    assert accepted(check.hierarchical, [by_hand, padded]) == [0, 1]
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


FITS = {
    "not the last rank": lambda comm, x: comm.rank < comm.size - 1 or comm.size < 4,
    "few ranks": lambda comm, x: comm.size < 5,
    "not the processes": lambda comm, x: type(comm).__name__ == "WorldComm",
    "no remainder": lambda comm, x: x.numel() % comm.size == 0,
    "one dimension": lambda comm, x: x.dim() == 1,
    "powers of two": lambda comm, x: comm.size & (comm.size - 1) == 0,
    "no whole numbers": lambda comm, x: x.dtype != torch.int64,
    "what stands in the grader": lambda comm, x: x.numel() < 65 or x.numel() == 1000,
}


@pytest.mark.parametrize("name", ["tree_broadcast", "halving_doubling", "hierarchical"])
def test_right_for_some_only(name):
    right = solved("04_trees")[name]

    def only(fits):
        return lambda comm, x, *rest: right(comm, x if fits(comm, x) else x.clone(), *rest)

    assert accepted(getattr(check, name), {what: only(fits) for what, fits in FITS.items()}) == []


def test_a_pipeline_for_some_only():
    right = solved("04_trees")["pipeline"]

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
    right = solved("04_trees")["all_reduce_seconds"]

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
                    lambda algorithm, n: algorithm != "recursive_doubling",
                ],
            ),
        )
        == []
    )


def test_the_bug_to_find_is_a_planted_one():
    assert shows_bug(
        ROOT / "course" / "04_trees",
        "pipeline",
        "each piece has left before the next may arrive",
    )


# ------------------------------------------------------------
# Lesson 04: what the graders reckon with agrees with runs, and the slips that they name are wrong.


RIGHT = {"ring": 0.00511, "tree": 9e-5, "crossover": 15.684e6, "across": 246.1e6, "folded": 1.8e-4}


FACTS = trees.predict_trees()


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
        ({"folded": 1.3e-4}, "give their x away"),
        ({"folded": 1.55e-4}, "twice N"),
        ({"folded": 1.36e-4}, "not a power of 2"),
        ({"folded": 0.5}, "too large"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(FACTS, RIGHT, None)
    judge(FACTS, RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(FACTS)


def test_the_crossover_is_where_a_world_says():
    values, _ = trees.predict_trees(nodes=4, per_node=4, nbytes=1e6, few_bytes=96_000)
    for factor, faster in ((0.9, "tree"), (1.1, "ring")):
        times = {
            name: trees.clock(name, 16, 16 * int(values["crossover"] * factor / 16), 5e-6, 1 / 50e9)
            for name in ("ring", "tree")
        }
        assert min(times, key=times.get) == faster
    assert values["ring"] == pytest.approx(trees.clock("ring", 16, 16, 5e-6, 0.0))
    assert values["tree"] == pytest.approx(trees.clock("tree", 16, 16, 5e-6, 0.0))
    folded = trees.clock("halving_doubling", 24, 96_000, 5e-6, 1 / 50e9)
    assert values["folded"] == pytest.approx(folded)


def test_shapes():
    star = Outcome([], [(0, r, 8) for r in (1, 2, 3)], 24.0)
    assert "all the work" in shape_of(star, 4, 0)
    assert "a chain" in shape_of(Outcome([], [(0, 1, 8), (1, 2, 8), (2, 3, 8)]), 4, 0)


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
        "return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
        """
one = torch.tensor(1.0, dtype=torch.float64)
return one * (steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold)
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
        "predict_trees",
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
    assert refused("04_trees", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(trees)
