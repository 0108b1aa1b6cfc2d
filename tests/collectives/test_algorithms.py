"""Every algorithm, at every n that hurts, gives what the serial sum gives, bit for bit the same on all ranks."""

import pytest
import torch

from minidist.collectives import VERBS, Hierarchical, ring, tree
from minidist.collectives.hierarchical import FLAT, having
from minidist.comm import World, launch
from tests.collectives.oracle import check
from tests.largest import largest

NEW = [name for name in FLAT if name not in ("naive", "ring")]
MANY = [*range(1, 9), 13, 17]


def wrong(results):
    """What was wrong on any rank; and whether the all-reduces differ."""
    found = [line for lines, _ in results for line in lines]
    for rank, (_, mine) in enumerate(results):
        if not all(torch.equal(x, y) for x, y in zip(mine, results[0][1], strict=True)):
            found.append(f"the all-reduces of ranks 0 and {rank} differ")
    return found


@pytest.mark.parametrize("n", MANY)
@pytest.mark.parametrize("algorithm", NEW)
def test_in_a_world(algorithm, n):
    assert wrong(World(n).run(check, algorithm)) == []


@pytest.mark.parametrize("n", [8, 13])
@pytest.mark.parametrize("algorithm", ["naive", "ring", "auto"])
def test_the_older_ones_and_the_choice(algorithm, n):
    assert wrong(World(n).run(check, algorithm)) == []


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("algorithm", ["double_tree", "pipelined"])
def test_in_many_pieces(algorithm, n):
    """A short latency, so that a long tensor goes in dozens of pieces; their number does not divide its length."""
    world = World(n, alpha=1e-7)
    verbs = ["all_reduce_", "reduce_", "broadcast_"]
    assert wrong(world.run(check, algorithm, verbs, [20_011])) == []
    assert n == 2 or largest(m.nbytes for m in world.trace if m.label == "broadcast") < 20_011


@pytest.mark.parametrize("algorithm", NEW)
def test_with_buffered_sends(algorithm):
    assert wrong(World(5, rendezvous=False).run(check, algorithm)) == []


@pytest.mark.parametrize(("n", "transport"), [(3, "shm"), (4, "shm"), (3, "gloo")])
def test_over_processes(n, transport):
    """The bits of all worlds are the same, too; "auto" may choose another algorithm in each."""
    results = launch(all_of_them, n, transport=transport)
    assert wrong(results) == []
    for (_, mine), (_, theirs) in zip(World(n).run(all_of_them), results, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def all_of_them(comm):
    """(what was wrong, the bits of the all-reduces of NEW)."""
    found, bits = [], []
    for algorithm in [*NEW, "auto", Hierarchical(outer="pipelined", size=2)]:
        lines, reduced = check(comm, algorithm, lengths=[0, 7, 1001])
        found += lines
        bits += reduced if algorithm in NEW else []
    return found + check(comm, "pipelined", ["all_reduce_", "reduce_"], [200_003])[0], bits


def own_part_twice(comm, chunks, out, combine):
    ring.reduce_scatter(comm, chunks, out, combine)
    combine(out, chunks[comm.rank])


@pytest.mark.parametrize(
    ("module", "verb", "planted"),
    [
        ("tree", "broadcast", lambda comm, flat, root, label="": None),
        ("tree", "all_reduce", lambda comm, flat, combine: tree.reduce(comm, flat, 0, combine)),
        ("halving_doubling", "reduce_scatter", own_part_twice),
        ("pipelined", "all_gather", lambda comm, chunks: None),
    ],
)
def test_a_wrong_one_is_found(monkeypatch, module, verb, planted):
    monkeypatch.setattr(FLAT[module], verb, planted)
    assert wrong(World(4).run(check, module))


def test_who_has_what():
    assert having("reduce_scatter", "all_gather") == [
        "naive",
        "ring",
        "halving_doubling",
        "pipelined",
    ]
    assert having("all_reduce") == list(FLAT)
    verbs = {v.removesuffix("_") for v in VERBS}
    for module in FLAT.values():  # a formula for each verb, and for no other
        assert verbs.intersection(dir(module.Cost)) == verbs.intersection(dir(module))
