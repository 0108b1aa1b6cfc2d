"""A grid of ranks: who is where, each axis a Comm of its own, in every world."""

import itertools

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import Cluster, World, launch
from minidist.comm.mesh import AXES, Grid, Mesh

ORDERS = list(itertools.permutations(AXES))


@pytest.mark.parametrize("order", ORDERS)
def test_a_grid_is_a_reshape(order):
    grid = Grid(dp=2, pp=3, tp=4, order=order)
    numbers = torch.arange(24).view([grid.sizes[axis] for axis in order])
    assert grid.size == 24 and list(grid.sizes) == list(order)
    for rank in range(24):
        place = grid.place(rank)
        assert numbers[tuple(place[axis] for axis in order)] == rank
        assert grid.rank(**place) == rank
    for axis in AXES:
        colors, dim = torch.tensor(grid.colors(axis)).view(numbers.shape), order.index(axis)
        assert (colors == numbers.select(dim, 0).unsqueeze(dim)).all()
    assert grid.colors(*AXES) == [0] * 24 and grid.colors() == list(range(24))


def test_the_order_may_be_words():
    assert list(Grid(2, 2, 1, "dp tp pp").sizes) == ["dp", "tp", "pp"]


def test_equal_grids():
    grid = Grid(2, 2, 1)
    assert grid == Grid(dp=2, pp=2) != Grid(2, 2, 1, "dp tp pp") and grid != (2, 2, 1)
    assert hash(grid) == hash(Grid(dp=2, pp=2)) and (grid.dp, grid.pp, grid.tp) == (2, 2, 1)


def axes_of_any_name(comm):
    mesh = Mesh(comm, dp=2, cp=2, ep=2, order="pp dp ep cp tp")
    mine = torch.tensor([1 << comm.rank])
    groups = (mesh.dp, mesh.ep, mesh.cp, mesh.tp, mesh.group("cp", "dp"))
    return [all_reduce_(group, mine.clone()).item() for group in groups]


def test_axes_of_any_name(run_fast):
    """Context and experts between the replicas and the parts of a tensor: rank 5 is at (1, 0, 1)."""
    bits = lambda *ranks: sum(1 << r for r in ranks)
    expected = [bits(1, 5), bits(5, 7), bits(4, 5), bits(5), bits(0, 1, 4, 5)]
    assert run_fast(axes_of_any_name, 8)[5] == expected
    assert Grid(dp=2, cp=3, order="pp dp cp tp").rank(dp=1, cp=2) == 5
    assert Grid(dp=2, cp=3, tp=2) == Grid(dp=2, cp=3, tp=2, order="pp dp cp tp")


def program(comm, order):
    mesh = Mesh(comm, dp=2, pp=2, tp=2, order=order)
    found = mesh.group
    groups = {
        "dp": mesh.dp,
        "pp": mesh.pp,
        "tp": mesh.tp,
        "pp tp": found("tp", "pp"),
        "dp pp tp": found(*AXES),
    }
    where = mesh.grid.place(comm.rank)
    assert all(getattr(mesh, axis).rank == at for axis, at in where.items())
    assert mesh.group("pp", "tp") is groups["pp tp"] and mesh.group("tp") is mesh.tp
    mine = torch.tensor([1 << comm.rank])
    return {name: all_reduce_(group, mine.clone()).item() for name, group in groups.items()}, repr(
        mesh
    )


@pytest.mark.parametrize("order", ["pp dp tp", "tp pp dp"])
def test_who_hears_whom(run_fast, order):
    """Each rank's number is a bit of its own, so a sum says who was in it."""
    grid = Grid(2, 2, 2, order)
    for rank, (sums, words) in enumerate(run_fast(program, 8, order)):
        for name, total in sums.items():
            here = grid.place(rank)
            same = [
                r
                for r in range(8)
                if all(grid.place(r)[axis] == here[axis] for axis in AXES if axis not in name)
            ]
            assert total == sum(1 << r for r in same), (rank, name)
        assert f"this is rank {rank}" in words


def test_over_gloo():
    assert launch(lambda comm: Mesh(comm, tp=2, pp=2).pp.size, 4, transport="gloo") == [2] * 4


def test_one_rank_and_no_message():
    world = World(8)
    world.run(lambda comm: Mesh(comm, dp=8).tp.size)
    assert world.trace.messages() == 0
    alone = lambda comm: [Mesh(comm).group(*axes).size for axes in (["dp"], ["pp", "tp"], AXES)]
    assert World(1).run(alone) == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda comm: Mesh(comm, dp=2, pp=2, tp=3), r"8 ranks are not 2×2×3 = 12"),
        (lambda comm: Mesh(comm, dp=8, tp=0), "the axis tp of a mesh has at least 1 rank, not 0"),
        (
            lambda comm: Mesh(comm, dp=4.0, pp=2),
            r"the axis dp of a mesh has at least 1 rank, not 4\.0",
        ),
        (lambda comm: Mesh(comm, dp=8, order="dp tp"), r"its 3 axes once, .* not these 2: dp, tp"),
        (
            lambda comm: Mesh(comm, dp=4, cp=2, order="pp dp tp"),
            r"its 4 axes once, dp, pp, tp, cp, not these 3",
        ),
        (lambda comm: Mesh(comm, dp=8).group("dp", "cp"), r"the 3 axes are pp, dp, tp, not cp"),
        (lambda comm: Grid(2, 2, 2).place(8), r"rank 8 is not in a mesh of 8 ranks"),
        (lambda comm: Grid(2, 2, 2).rank(dp=2), r"dp has 2 ranks, 0 to 1, not 2"),
        (lambda comm: Grid(2, 2, 2).rank(cp=1), r"the 3 axes are .* not cp"),
        (
            lambda comm: Grid(2, 2, 4).draw(Cluster.dgx_h100()),
            r"16 ranks does not fit on a cluster of 8 ranks",
        ),
    ],
)
def test_what_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        World(8).run(make)


def test_drawn_on_a_cluster():
    cluster = Cluster.dgx_h100(nodes=2)
    assert Grid(dp=2, pp=2, tp=4).draw(cluster).splitlines() == [
        "pp 2 × dp 2 × tp 4 = 16 ranks, the last axis innermost",
        "  node 0   " + "  ".join(f" {r} p0 d{r // 4} t{r % 4}" for r in range(8)).lstrip(" "),
        "  node 1   "
        + "  ".join(f"{r:>2} p1 d{r // 4 % 2} t{r % 4}" for r in range(8, 16)).lstrip(" "),
        "  pp over nic, tor",
        "  dp over nvlink",
        "  tp over nvlink",
    ]
    assert Grid(dp=2, pp=4, tp=2, order="tp dp pp").levels(cluster)["tp"] == ["nic", "tor"]
    assert Grid(tp=12).levels(cluster)["tp"] == ["nvlink", "nic", "tor"]
    assert Grid(dp=3).draw().splitlines()[1:] == ["  pp 0  0 d0  1 d1  2 d2"]
    assert Grid(1, 1, 2).levels(Cluster.dgx_h100())["dp"] == []


def test_between():
    grid = Grid(2, 2, 2)
    assert [grid.between(0, r) for r in (1, 2, 4, 3, 7)] == [
        "tp",
        "dp",
        "pp",
        "dp × tp",
        "pp × dp × tp",
    ]
