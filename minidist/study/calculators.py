"""Two calculators for the reader's own choices: sliders over `predict` and `plan`, filled in by them when the cell runs.

memory_calculator   what a rank holds: model, grid, ZeRO's stage, recomputation
planner_table       the fastest grid: model, machine, nodes, sequences of a step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minidist.study.catalog import MODELS
from minidist.study.explore import Explorer, explore
from minidist.study.predict import Grid, per_rank
from minidist.study.step import Step

GB = 10**9


def memory_calculator(
    models: Sequence[str],
    *,
    data: Sequence[int] = (1, 8, 64),
    tensor: Sequence[int] = (1, 2, 4, 8),
    pipeline: Sequence[int] = (1, 2, 4, 8, 16),
    capacity: int = 80 * GB,
    title: str = "Memory of the fullest rank",
    start: dict[str, Any] | None = None,
    **grid: Any,
) -> Explorer:
    """Sliders over `predict.per_rank`: its bytes by category, beside the `capacity` of a device.

    models: names from the catalog.  data, tensor, pipeline: numbers of ranks to choose from; ZeRO's stage and the
    recomputation are sliders, too.  start: initial positions of sliders.  grid: other fields of `Grid`, such as
    micro_batches=32. If a grid does not divide the model, the reason is shown.
    Errors: those of `explore`, KeyError for a model that is not in the catalog.

    >>> from minidist.study import memory_calculator
    >>> made = memory_calculator(["gpt3-175b"], data=[8], tensor=[8], pipeline=[8, 16], micro_batches=32)
    >>> for stages in (8, 16):
    ...     held = made.at(pipeline=stages, zero=1, recompute="full")
    ...     print(stages, held["parameters"], sum(held.values()) < 80 * 10**9)
    8 5645463552 True
    16 2926540800 True
    """

    def held(model: str, data: int, tensor: int, pipeline: int, zero: int, recompute: str) -> dict:
        ranks = Grid(data, tensor, pipeline, zero=zero, recompute=recompute, **grid)
        rank = per_rank(MODELS[model], ranks)
        largest = (rank.parameters, rank.gradients, rank.optimizer_states, rank.buffers)
        return {
            "parameters": rank.parameters,
            "gradients": rank.gradients,
            "optimizer states": rank.optimizer_states,
            "activations": rank.total - sum(largest),
            "buffers": rank.buffers,
        }

    return explore(
        held,
        title=title,
        stack=True,
        unit="B",
        target=capacity,
        note="a device",
        labels={
            "data": "data-parallel ranks",
            "tensor": "tensor-parallel ranks",
            "pipeline": "stages",
            "zero": "ZeRO's stage",
            "recompute": "recomputation",
        },
        start=start,
        model=models,
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero=range(4),
        recompute=("none", "selective", "full"),
    )


def planner_table(
    models: Sequence[str],
    *,
    machines: Sequence[str] = ("h100",),
    nodes: Sequence[int] = (1, 4, 16, 64),
    batches: Sequence[int] = (1024,),
    title: str = "The fastest grid, as planned",
    start: dict[str, Any] | None = None,
    **options: Any,
) -> Explorer:
    """Sliders over `plan`: the seconds of the best grid's step by part, the grid, its memory and use of the hardware.

    models, machines: names from the catalog.  nodes: numbers of nodes, of 8 devices each.  batches: numbers of
    sequences in a step.  options: those of `plan`. If nothing fits, the page says by how much. Each plan takes about a
    second, so choose few values.
    Errors: those of `explore`.

    >>> from minidist.study import planner_table
    >>> made = planner_table(["gpt2-1.5b"], nodes=[1], batches=[64])
    >>> {name: made.at()[name] for name in ("data · tensor · stages", "ZeRO", "recomputed")}
    {'data · tensor · stages': '8 · 1 · 1', 'ZeRO': 3, 'recomputed': 'none'}
    """
    # here: `python -m minidist.study.plan` warns of a module that its package has imported already
    from minidist.study.plan import plan

    def best(model: str, machine: str, nodes: int, batch: int) -> dict:
        found = plan(model, f"{machine}:{nodes}x8", batch, **options)
        grid = found.best.grid
        return found.best.step.parts | {
            "data · tensor · stages": f"{grid.data} · {grid.tensor} · {grid.pipeline}",
            "chunks a stage": grid.interleave,
            "ZeRO": grid.zero,
            "recomputed": grid.recompute,
            "sequences of a micro-batch": grid.micro_batch,
            "memory of a rank": found.best.total,
            "MFU": 100 * found.mfu,
            "tokens a second": round(found.tokens_per_second),
        }

    units = {"memory of a rank": "B", "MFU": "%", "tokens a second": "tokens/s"}
    return explore(
        best,
        title=title,
        stack=True,
        ylabel="a step",
        unit=dict.fromkeys(Step._fields, "s") | units,
        labels={"nodes": "nodes of 8 devices", "batch": "sequences of a step"},
        start=start,
        model=models,
        machine=machines,
        nodes=nodes,
        batch=batches,
    )
