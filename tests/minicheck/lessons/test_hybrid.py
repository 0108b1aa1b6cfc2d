"""Lesson 19: other right ways pass, what is foretold is what a GPT on a grid sends, and what only looks right fails.

The usual mistakes are in course/19_hybrid/bugs.py, which tests/bank examines.
"""

import itertools
import sys
from functools import partial

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.lessons.hybrid import ClipGrid, Synchronize, predict_hybrid
from minicheck.oracles import hybrid as oracle
from minidist.collectives import all_gather, all_reduce_, barrier, broadcast_, reduce_
from minidist.comm import World
from minidist.comm.mesh import AXES, Grid, Mesh
from minidist.models import gpt
from minidist.parallelize import parallelize
from tests.bank.bank import solved
from tests.minicheck.examined import said
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_hybrid(3, 4, 8, 32, 8192, 4096, 12, 400e9, 50e9)
NAMES = list(FACTS[0])


def by_division(sizes):
    """Ranks with the same other coordinates."""
    found, inside = {}, 1
    for axis, size in reversed(sizes.items()):
        lines = {}
        for rank in range(torch.Size(sizes.values()).numel()):
            place = rank // inside % size
            lines.setdefault(rank - place * inside, []).append(rank)
        found[axis] = [tuple(line) for line in reversed(lines.values())]
        inside *= size
    return found


def rank_by_rank(dp, pp, tp, micro_batches, tokens, hidden, layers):
    found = {"tp": 0.0, "pp": 0, "dp": 0.0}
    for _, stage, _ in itertools.product(range(dp), range(pp), range(tp)):
        whole = 2 * tokens * hidden
        found["tp"] += 8 * (tp - 1) / tp * whole * micro_batches * layers / pp
        found["pp"] += ((stage > 0) + (stage < pp - 1)) * whole * micro_batches
        found["dp"] += 48 * (dp - 1) / dp * hidden**2 * layers / pp / tp
    return {axis: round(nbytes) for axis, nbytes in found.items()}


def one_rank_times_all(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """Floats, not rounded: some of them are no whole numbers."""
    n, activation = dp * pp * tp, 2 * tokens * hidden
    ring = lambda size, nbytes: 2 * (size - 1) / size * nbytes
    return {
        "tp": n * micro_batches * (layers / pp) * 4 * ring(tp, activation),
        "pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,
        "dp": n * ring(dp, 2 * 12 * hidden**2 * layers / (pp * tp)),
    }


def with_a_group_of_ends(mesh, backward, micro_batches, grads, kinds):
    """Data first, in a flat buffer of its own; then the ends, as a group, and the tensor ranks."""
    for m in range(micro_batches):
        backward(m)
    flat = torch.cat([g.flatten() for g in grads.values()])
    all_reduce_(mesh.dp, flat, "mean")
    for g, part in zip(
        grads.values(), flat.split([g.numel() for g in grads.values()]), strict=True
    ):
        g.copy_(part.view_as(g))
    last = mesh.pp.size - 1
    ends = mesh.pp.split([int(0 < stage < last) for stage in range(last + 1)])
    for name, g in grads.items():
        if kinds[name] == "tied":
            all_reduce_(ends, g)
        if kinds[name] == "partial":
            reduce_(mesh.tp, g, 0)
            broadcast_(mesh.tp, g, 0)


def gathered(mesh, grads, kinds, limit):
    """The last tensor rank counts the copies, the first stage the ends; every rank adds up by itself."""
    mine = [
        g
        for name, g in grads.items()
        if (kinds[name] in ("split", "tied") or mesh.tp.rank == mesh.tp.size - 1)
        and (kinds[name] != "tied" or mesh.pp.rank == 0)
    ]
    square = torch.tensor([float(sum((g * g).sum() for g in mine))], dtype=torch.float64)
    norm = all_gather(mesh.group("tp", "pp"), square).sum().sqrt()
    if norm > limit:
        for g in grads.values():
            g *= limit / (norm + 1e-6)
    return norm


def by_sorting(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    divisors = lambda n: [k for k in range(1, n + 1) if n % k == 0]
    grids = [
        (gpus // p // t, p, t)
        for t in divisors(node)
        for p in divisors(layers)
        if heads % t == gpus % (p * t) == 0
    ]
    fit = [grid for grid in grids if batch % grid[0] == 0 and nbytes(*grid) <= capacity]
    return next(iter(sorted(fit, key=lambda grid: seconds(*grid))), None)


@pytest.mark.parametrize(
    ("grader", "answer"),
    [
        (check.groups, by_division),
        (check.step_bytes, rank_by_rank),
        (check.step_bytes, one_rank_times_all),
        (check.synchronize, with_a_group_of_ends),
        (check.clip_grid, gathered),
        (check.best_grid, by_sorting),
    ],
)
def test_other_right_ways(grader, answer, capsys):
    grader(answer)
    assert f"{grader.__name__}: right." in capsys.readouterr().out


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)))
def test_lines_are_the_library_s(order):
    grid = Grid(dp=2, pp=3, tp=4, order=order)
    for axis, groups in oracle.lines(grid.sizes).items():
        colors = grid.colors(axis)
        assert groups == sorted(
            [r for r in range(24) if colors[r] == color] for color in set(colors)
        )


def one_step(comm, layers):
    """A GPT that `parallelize` has split, in bf16: what is sent in a step, by axis."""
    mesh = Mesh(comm, 2, 2, 2)
    model = gpt(layers, 240, 8, 16, 30, tied=False, device="meta", dtype=torch.bfloat16)
    engine = parallelize(model, mesh, partial(torch.optim.SGD, lr=0.1), micro_batches=3)
    tokens = torch.empty(6, 30, dtype=torch.long, device="meta")
    barrier(comm)
    start = comm.now()
    engine.step(tokens, tokens)
    return start


def test_a_gpt_sends_as_much():
    """Two layers more, on the same grid: everything else is the same, and goes."""
    found = []
    for layers in (2, 4):
        world = World(8, device="meta")
        start = world.run(one_step, layers)[0]
        found.append(
            oracle.by_axis(
                Grid(2, 2, 2), [(m.src, m.dst, m.nbytes) for m in world.trace if m.start >= start]
            )
        )
    said = [solved("19_hybrid")["step_bytes"](2, 2, 2, 3, 60, 240, layers) for layers in (2, 4)]
    assert found[1]["tp"] - found[0]["tp"] == said[1]["tp"] - said[0]["tp"] > 0
    assert found[1]["pp"] == found[0]["pp"] == pytest.approx(said[1]["pp"], rel=0.01)
    assert found[1]["dp"] - found[0]["dp"] == pytest.approx(said[1]["dp"] - said[0]["dp"], rel=0.02)


def test_a_norm_by_hand():
    grid, one = Grid(2, 2, 2), torch.ones(1, dtype=torch.float64)
    kinds = [{kind: kind for kind in oracle.KINDS}] * 8
    own = [{kind: one * 2 if kind == "tied" else one for kind in oracle.KINDS}] * 8
    # of two stages: two parts, a bias, a norm; the tied one's parts once
    want = 2 * 2 * 1 + 2 * 1 + 2 * 1 + 2 * 4
    assert oracle.norm(grid, own, kinds) == want**0.5
    assert oracle.norm(grid, own, kinds, ("whole", "partial")) == (want + 4) ** 0.5
    assert oracle.norm(grid, own, kinds, ("tied",)) == (want + 8) ** 0.5


def test_traffic_tells_what_numbers_cannot():
    right = solved("19_hybrid")["synchronize"]

    def and_again(mesh, backward, micro_batches, grads, kinds):
        right(mesh, backward, micro_batches, grads, kinds)
        all_reduce_(mesh.dp, list(grads.values()), "mean")  # of equal numbers: they stay

    def over_everyone(mesh, grads, kinds, limit):
        norm = gathered(mesh, grads, kinds, limit)
        return broadcast_(mesh.comm, norm.reshape(1), 0).item()

    assert all(said(Synchronize(), right, case) == "" for case in Synchronize.cases)
    assert "along dp" in said(Synchronize(), and_again, Synchronize.cases[0])
    assert "between data ranks" in said(ClipGrid(), over_everyone, ClipGrid.cases[0])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (dict(zip(NAMES, FACTS[0].values(), strict=True)), None),
        (FACTS[0] | {"replica": 96}, "all ranks"),
        (FACTS[0] | {"dp_bytes": FACTS[0]["dp_bytes"] * 32}, r"1/\(pp·tp\)"),
        (FACTS[0] | {"ratio": 1 / FACTS[0]["ratio"]}, "Upside down"),
        (FACTS[0] | {"good": None}, "not set yet"),
    ],
)
def test_predictions(values, says):
    judge(FACTS, values, says)


def test_slips_are_wrong():
    assert slips_are_wrong(FACTS)
