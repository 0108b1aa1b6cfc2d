"""Seconds of a step, against a World that runs the same grid on meta tensors; and their parts by hand."""

from dataclasses import replace

import pytest

from minidist.comm import World
from minidist.comm.cluster import Cluster
from minidist.parallel.schedules import interleaved, one_f_one_b, simulate
from minidist.study.memory import Grid, Transformer
from minidist.study.plan import EAGER, FUSED, IDEAL, Machine, Planner
from tests.study.plan.case import program

GPT = Transformer(4, 4096, 32, 8192, 1024, tied=False)
NODES = replace(Cluster.dgx_h100(2), devices=4)
LOW, MASTERS = (
    dict(precision="all 16 bits", micro_batch=2),
    dict(precision="bf16", micro_batch=2, zero=1),
)


def planner(kernels=EAGER, algorithm="ring", model=GPT, cluster=NODES):
    return Planner(model, cluster, kernels, Machine.of(cluster.device, IDEAL), algorithm)


@pytest.mark.parametrize(
    "grid",
    [
        Grid(1, 1, 1, micro_batches=2, recompute="full", **LOW),
        Grid(1, 2, 1, micro_batches=2, recompute="full", **LOW),
        Grid(1, 2, 1, micro_batches=2, **LOW),
        Grid(1, 1, 3, micro_batches=3, **LOW),
        Grid(1, 1, 2, micro_batches=4, interleave=2, **LOW),
        Grid(1, 1, 2, micro_batches=2, interleave=2, **LOW),
        Grid(2, 1, 1, micro_batches=2, **LOW),
        Grid(2, 1, 1, micro_batches=2, **MASTERS),
        Grid(2, 2, 2, micro_batches=2, **LOW),
    ],
    ids=str,
)
def test_a_world_takes_as_long(grid):
    cluster = replace(NODES, devices=-(-grid.ranks // 2))
    model = replace(GPT, layers=max(2, grid.pipeline * grid.interleave))
    took = max(World(grid.ranks, cluster=cluster, device="meta").run(program, model, grid))
    kernels = replace(EAGER, overlap=grid.zero == 0 and grid.pipeline == 1)
    assert planner(kernels, model=model, cluster=cluster).estimate(
        grid
    ).step.total == pytest.approx(took, rel=0.05)


def test_slower_links_show():
    """The agreement is no accident of what is large: the links decide, too."""
    clusters = [Cluster.uniform(2, 1e-5, beta, NODES.device) for beta in (1 / 50e9, 1.5 / 50e9)]
    said = [planner(cluster=one).estimate(Grid(2, micro_batches=2, **LOW)).step for one in clusters]
    assert (
        said[1].data == pytest.approx(1.5 * said[0].data, rel=0.05)
        and said[1].total > 1.15 * said[0].total
    )


@pytest.mark.parametrize(("S", "v", "M"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (4, 4, 8)])
def test_the_bubble_is_the_schedules(S, v, M):
    """Stages all alike, no messages: what a simulation of the schedule's lists waits."""
    model = replace(GPT, layers=16, vocab=1, positions=False)
    grid = Grid(1, 1, S, micro_batches=M, interleave=v, micro_batch=2)
    step = planner(model=model).estimate(grid).step
    order = [interleaved(s, S, M, v) if v > 1 else one_f_one_b(s, S, M) for s in range(S)]
    one = step.compute / M / v
    assert step.compute + step.bubble == pytest.approx(
        simulate(order, one / 3, backward=2 * one / 3).time, rel=0.02
    )


def test_what_each_choice_costs():
    """Recomputation repeats forward, ZeRO 1 gathers what data parallelism reduces, tensor parallelism halves."""
    bare = planner(replace(FUSED, overlap=False), model=replace(GPT, layers=8))
    at = lambda **words: bare.estimate(Grid(micro_batch=1, **words)).step
    whole, again = at(micro_batches=4), at(micro_batches=4, recompute="full")
    assert again.compute == whole.compute and 0.25 < again.recomputation / whole.compute < 0.4
    assert whole.bubble == whole.tensor == whole.pipeline == whole.data == whole.recomputation == 0
    split = at(micro_batches=4, tensor=2, sequence=True)
    assert 0.5 < split.compute / whole.compute < 0.6 and split.tensor > 0
    assert sum(split.parts.values()) == split.total
    assert at(data=2, zero=2, micro_batches=8).data > at(data=2, zero=1, micro_batches=8).data
    assert at(data=2, zero=1).optimizer < at(data=2).optimizer
    assert (
        at(pipeline=2, micro_batches=8).bubble
        > at(pipeline=2, micro_batches=8, interleave=2).bubble
        > 0
    )


def test_gradients_hide_behind_the_last_backward():
    grid = Grid(data=2, micro_batch=4, micro_batches=1)
    shown, hidden = (
        planner(replace(FUSED, overlap=o)).estimate(grid).step.data for o in (False, True)
    )
    assert 0 <= hidden < shown


def test_bad_input():
    with pytest.raises(ValueError, match="32 heads do not split over 3"):
        planner().estimate(Grid(tensor=3))
