"""A plan for people: tables of the grid, its memory, its time, its cost and its rivals, and a picture."""

from __future__ import annotations

from minidist.study.memory.grid import Grid
from minidist.study.memory.items import GB
from minidist.study.picture import Picture
from minidist.study.plan.plan import Plan
from minidist.study.plan.runs import Errors
from minidist.study.plan.search import RESERVED
from minidist.study.stacked import stacked
from minidist.study.tables import Table, table


def named(grid: Grid) -> str:
    """`data 64, tensor 8, pipeline 2 × 4 chunks, ZeRO 1, selective recomputation, 96 micro-batches of 2`"""
    v = f" × {grid.interleave} chunks" * (grid.interleave > 1)
    return (
        f"data {grid.data}, tensor {grid.tensor}, pipeline {grid.pipeline}{v}, ZeRO {grid.zero}, "
        f"recompute {grid.recompute}, {grid.micro_batches} micro-batches of {grid.micro_batch}"
    )


def memory_table(found: Plan) -> Table:
    """Bytes of the fullest rank, by category, and what is left."""
    best = found.best
    items = best.memory.bytes | {
        "messages": best.messages,
        "reserved": RESERVED,
        "left": best.capacity - best.total,
    }
    rows = [(name, n / GB, f"{n / best.capacity:.0%}") for name, n in items.items() if n]
    return table(rows, ["memory of the fullest rank", "GB", "of the device"])


def time_table(found: Plan) -> Table:
    """Seconds of a step, by part."""
    step = found.best.step
    rows = [(name, s, f"{s / step.total:.1%}") for name, s in step.parts.items()]
    return table([*rows, ("step", step.total, "100%")], ["time", "seconds", "of the step"])


def cost_table(found: Plan, tokens: float, rate: float) -> Table:
    """What the run costs. `rate`: money a GPU-hour."""
    cost = found.cost(tokens, rate)
    rows = [
        ("tokens", f"{cost.tokens:,.0f}"),
        ("tokens a second", f"{found.tokens_per_second:,.0f}"),
        ("steps", f"{cost.steps:,.0f}"),
        ("days", f"{cost.days:.1f}"),
        ("GPU-hours", f"{cost.gpu_hours:,.0f}"),
        (f"money, at {rate:g} a GPU-hour", f"{cost.money:,.0f}"),
        ("MFU", f"{found.mfu:.1%}"),
    ]
    return table(rows, ["the run", ""])


def rivals_table(found: Plan) -> Table:
    """The best grid for each other value of a decision, and why it loses."""
    rows = [
        (
            f"{r.decision.replace('_', '-')} {r.value}",
            named(r.estimate.grid),
            r.estimate.step.total,
            r.why,
        )
        for r in found.rivals
    ]
    return table(rows, ["with", "the best grid", "seconds", "loses"])


def text(found: Plan, tokens: float, rate: float) -> str:
    """All of it."""
    head = (
        f"{found.cluster.summary()}\nbatch {found.batch:,} × {found.model.context:,} tokens, "
        f"{len(found.estimates):,} grids; η = {found.machine.accelerator.efficiency:g} of the data sheet\n"
        f"\n{named(found.best.grid)}: {found.seconds:.2f} s a step, MFU {found.mfu:.1%}"
    )
    parts = (
        memory_table(found),
        time_table(found),
        cost_table(found, tokens, rate),
        rivals_table(found),
    )
    return "\n\n".join([head, *(part.text for part in parts)])


def picture(found: Plan, rivals: int = 8) -> Picture:
    """Seconds of a step by part: the best grid's, and those of its rivals that fit, the fastest first."""
    fit = {r.estimate.grid: r.estimate for r in found.rivals if not r.estimate.over}
    first = sorted(fit.values(), key=lambda one: one.step.total)[:rivals]
    bars = {brief(one.grid): one.step.parts for one in [found.best, *first]}
    return stacked(bars, title="A step, by part", unit="s")


def brief(grid: Grid) -> str:
    """`64·8·2×4 z1 selective b2`: data · tensor · pipeline × chunks, ZeRO, recomputation, micro-batch."""
    v = f"×{grid.interleave}" * (grid.interleave > 1)
    return f"{grid.data}·{grid.tensor}·{grid.pipeline}{v} z{grid.zero} {grid.recompute} b{grid.micro_batch}"


def errors_table(found: Errors) -> Table:
    """Each row's published and predicted seconds and GB."""
    rows = [
        (
            r.name,
            r.seconds,
            r.predicted,
            f"{r.time:+.1%}",
            r.nbytes and r.nbytes / GB,
            r.held / GB,
            "" if r.memory is None else f"{r.memory:+.0%}",
        )
        for r in found.rows
    ]
    columns = ["run", "seconds", "predicted", "error", "GB", "predicted GB", "error of memory"]
    return table(rows, columns, title=f"{found.name}: {found.words}")
