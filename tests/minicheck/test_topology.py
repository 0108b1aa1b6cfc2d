"""Lesson 03: other right ways pass, and what is right only for some ranks, lengths or worlds does not.

The usual mistakes are in course/03_topology/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import Recv, Send
from tests.bank.bank import shows_bug, solved
from tests.minicheck.examined import accepted
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
