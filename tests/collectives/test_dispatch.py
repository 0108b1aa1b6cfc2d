"""Wrong calls are refused in words, before a message is sent, in every world."""

import pytest
import torch

from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    ring,
    scatter,
)
from minidist.collectives.dispatch import others
from minidist.comm import World, launch

X = torch.arange(6.0)
WHOLE = torch.arange(6)


def from_root(comm, x=X, **kwargs):
    return scatter(comm, x if comm.rank == 0 else None, **kwargs)


WRONG = {
    "op": (
        lambda comm: all_reduce_(comm, X.clone(), op="avg"),
        ("'sum', 'mean', 'min', 'max', 'prod'", "'avg'"),
    ),
    "op of a reduce": (lambda comm: reduce_(comm, X.clone(), op="or"), ("'or'",)),
    "op of a reduce_scatter": (lambda comm: reduce_scatter(comm, X, op="or"), ("'or'",)),
    "mean of ints": (lambda comm: all_reduce_(comm, WHOLE.clone(), op="mean"), ("mean", "int64")),
    "mean of ints, scattered": (
        lambda comm: reduce_scatter(comm, WHOLE, op="mean"),
        ("mean", "int64"),
    ),
    "mean of ints in a list": (
        lambda comm: all_reduce_(comm, [X.clone(), WHOLE.clone()], op="mean"),
        ("int64",),
    ),
    "root too large": (lambda comm: broadcast_(comm, X.clone(), root=3), ("rank 3", "3 ranks")),
    "root below 0": (lambda comm: reduce_(comm, X.clone(), root=-1), ("rank -1", "3 ranks")),
    "root of a gather": (lambda comm: gather(comm, X, root=7), ("rank 7", "3 ranks")),
    "root of a scatter": (lambda comm: from_root(comm, root=7), ("rank 7", "3 ranks")),
    "algorithm": (
        lambda comm: all_reduce_(comm, X.clone(), algorithm="star"),
        ("'naive', 'ring'", "'star'"),
    ),
    "algorithm of a barrier": (
        lambda comm: barrier(comm, algorithm="star"),
        ("'naive', 'ring'", "'star'"),
    ),
    "one without the verb": (
        lambda comm: all_to_all(comm, X, algorithm="tree"),
        ("'ring', 'auto', 'native'",),
    ),
    "a ring without one": (lambda comm: gather(comm, X, algorithm="ring"), ("'naive'", "'ring'")),
    "no native one": (
        lambda comm: all_reduce_(comm, X.clone(), algorithm="native"),
        ("torch.distributed",),
    ),
    "odd split": (lambda comm: reduce_scatter(comm, torch.ones(7)), ("7 rows", "3 ranks")),
    "odd split of rows": (lambda comm: all_to_all(comm, torch.ones(4, 3)), ("4 rows", "3 ranks")),
    "sizes that do not add up": (
        lambda comm: reduce_scatter(comm, X, sizes=[1, 2, 4]),
        ("7", "6 rows"),
    ),
    "sizes that do not add up, sent": (
        lambda comm: all_to_all(comm, X, sizes=[1, 2, 2]),
        ("5", "6 rows"),
    ),
    "too few sizes": (lambda comm: all_gather(comm, X, sizes=[6, 6]), ("2 sizes", "3 ranks")),
    "no sizes": (lambda comm: all_gather(comm, X, sizes=[]), ("0 sizes", "3 ranks")),
    "not my size": (
        lambda comm: all_gather(comm, X, sizes=[6, 6, 5] if comm.rank else [5, 6, 6]),
        ("6 rows", "5"),
    ),
    "negative size": (
        lambda comm: reduce_scatter(comm, X, sizes=[8, -1, -1]),
        ("[8, -1, -1]", "at least 0", "not -1"),
    ),
    "own rows": (
        lambda comm: all_to_all(comm, X, sizes=[2, 2, 2], out_sizes=[1, 1, 1]),
        ("2 rows", "[1, 1, 1]"),
    ),
}
AT_ROOT = {
    "odd split at the root": (lambda comm: from_root(comm, torch.ones(7)), ("7 rows", "3 ranks")),
    "sizes at the root": (lambda comm: from_root(comm, sizes=[1, 1, 1]), ("3", "6 rows")),
    "no x at the root": (lambda comm: scatter(comm, None), ("rank 0", "x")),
    "out of another length": (lambda comm: from_root(comm, out=torch.ones(3)), ("(2,)", "(3,)")),
    "out of another dtype": (
        lambda comm: from_root(comm, out=torch.ones(2).double()),
        ("float32", "float64"),
    ),
    "one out too many": (
        lambda comm: from_root(comm, [X], out=[X[:2].clone(), X[:2].clone()]),
        ("1", "2"),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_before_anything_is_sent(what):
    program, words = WRONG[what]
    world = World(3)
    with pytest.raises(ValueError) as caught:
        world.run(program)
    assert all(word in str(caught.value) for word in words), caught.value
    assert len(world.trace) == 0


@pytest.mark.parametrize("what", AT_ROOT)
def test_the_root_refuses(what):
    program, words = AT_ROOT[what]
    with pytest.raises(ValueError) as caught:
        World(3).run(program)
    assert caught.value.rank == 0 and all(word in str(caught.value) for word in words), caught.value


def all_wrong(comm, names):
    """What each wrong call says, on this rank."""
    said = {}
    for name in names:
        try:
            WRONG[name][0](comm)
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_processes_say_the_same(transport):
    names = [name for name in WRONG if name not in ("no native one", "not my size")]
    assert launch(all_wrong, 3, names, transport=transport) == World(3).run(all_wrong, names)


DIFFERENT = {
    "length": (lambda comm: all_reduce_(comm, torch.ones(6 + 3 * comm.rank)), ("(2,)", "(3,)")),
    "dtype": (
        lambda comm: all_reduce_(comm, X.clone() if comm.rank else X.double()),
        ("float32", "float64"),
    ),
    "verb": (
        lambda comm: all_gather(comm, X) if comm.rank else all_to_all(comm, X),
        ("all-gather", "all-to-all"),
    ),
    "rows": (lambda comm: all_gather(comm, torch.ones(1 + comm.rank)), ("(1,)", "(2,)")),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize(
    "run",
    [lambda program: World(2).run(program), lambda program: launch(program, 2)],
    ids=["world", "processes"],
)
def test_ranks_that_disagree_are_both_named(run, what):
    program, words = DIFFERENT[what]
    with pytest.raises(ValueError) as caught:
        run(program)
    assert all(word in str(caught.value) for word in ("rank 0", "rank 1", *words)), caught.value


def test_shapes_that_do_not_fit_the_announcement():
    with pytest.raises(ValueError, match=r"200 tensors.*512 bytes.*out"):
        World(2).run(lambda comm: scatter(comm, [X] * 200 if comm.rank == 0 else None))


def test_the_default_is_the_comms():
    def program(comm, algorithm):
        comm.algorithm = algorithm
        all_reduce_(comm, torch.ones(8))
        gather(comm, torch.ones(8))  # knows only the naive one

    assert [World(4).run(program, "ring").trace.messages(r) for r in range(4)] == [6, 7, 7, 7]
    assert [World(4).run(program, "naive").trace.messages(r) for r in range(4)] == [3, 2, 2, 2]


class Loud:
    """An algorithm of one's own: anything with the functions of a verb."""

    def __init__(self):
        self.calls = []

    def all_reduce(self, comm, flat, combine):
        self.calls.append((comm.rank, flat.numel()))
        ring.all_reduce(comm, flat, combine)


def test_an_algorithm_of_ones_own():
    def program(comm):
        loud = Loud()
        x = all_reduce_(comm, torch.ones(5), algorithm=loud)
        return loud.calls, x.tolist()

    assert World(3).run(program) == [([(r, 5)], [3.0] * 5) for r in range(3)]


def test_others_of_a_scatter_take_no_memory():
    def program(comm):
        mine = torch.empty(10 * comm.rank)
        chunks = others(comm, [mine], [0, 10, 20], mine)
        assert chunks[comm.rank] is mine
        return [c.numel() for c in chunks], [c.untyped_storage().nbytes() for c in chunks]

    for rank, (lengths, nbytes) in enumerate(World(3).run(program)):
        assert lengths == [0, 10, 20]
        assert all(size <= 4 for r, size in enumerate(nbytes) if r != rank)
