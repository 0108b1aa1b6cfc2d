"""Published runs, and what the planner says of them: time and memory, row by row.

    bloom       384 A100, Megatron-DeepSpeed, ZeRO 1, every layer recomputed: the search for BLOOM's grid
    megatron    32 to 2520 A100, Megatron-LM, every layer recomputed, interleaved (Narayanan et al. 2021, Table 1)
    recompute   8 to 2240 A100, with sequence parallel and selective recomputation, and with full recomputation and
                neither (Korthikanti et al. 2022, Table 5)

Nothing is fitted to a row: the only constant is η of the A100 (`machine`). What a table leaves open is said once for
all of its rows: BLOOM's heads are 64 and its words 250,880 (chronicles); Table 1's micro-batch and chunks a stage are
those that the planner finds fastest, as its authors chose theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import torch

from minidist.comm.cluster import Cluster
from minidist.study.memory.grid import Grid
from minidist.study.memory.items import GB
from minidist.study.memory.transformer import Transformer
from minidist.study.plan.clusters import jean_zay
from minidist.study.plan.kernels import DEEPSPEED, MEGATRON, Kernels
from minidist.study.plan.machine import Accelerator, Machine
from minidist.study.plan.search import MICRO_BATCHES, Estimate, Planner, chunks
from minidist.study.published import published


@dataclass(frozen=True)
class Run:
    """A published run. grids: what it may have been. seconds of a step; nbytes of a GPU, if they were said."""

    name: str
    model: Transformer
    cluster: Cluster
    kernels: Kernels
    grids: tuple[Grid, ...]
    seconds: float
    nbytes: float | None = None

    def predicted(self, accelerator: Accelerator | None = None) -> Estimate:
        """What the planner says; of several grids, of the fastest that fits."""
        machine = Machine.of(self.cluster.device, accelerator, torch.float16, self.kernels.launch)
        planner = Planner(self.model, self.cluster, self.kernels, machine)
        found = [planner.estimate(grid) for grid in self.grids]
        return (
            min(found, key=lambda e: (bool(e.over), e.step.total)) if len(found) > 1 else found[0]
        )


def bloom() -> Iterator[Run]:
    """The rows that ran; those that did not fit have no time."""
    for row in published("bloom_topology_search"):
        if not isinstance(row["sec_per_it"], int | float):
            continue
        yield bloom_run(row, row["sec_per_it"], row["gpu_mem_gb"])


def bloom_run(row: dict, seconds: float, memory: float | None) -> Run:
    """One row: its columns hidden, layers, heads, dp, tp, pp, mbs, gbs, optimizer."""
    wide = row["optimizer"] != "fp16"
    grid = Grid(
        row["dp"],
        row["tp"],
        row["pp"],
        row["zero"],
        row["mbs"],
        row["gbs"] // (row["dp"] * row["mbs"]),
        recompute="full",
        fused=wide,
    )
    heads = row["heads"] or 64
    model = Transformer(row["layers"], row["hidden"], heads, 250880, row["seq"])
    name = (
        f"H {row['hidden']} L {row['layers']} a {heads}, {row['dp']}·{row['tp']}·{row['pp']}, b {row['mbs']}, "
        f"B {row['gbs']}, {'fp32 gradients' if wide else 'fp16'}"
    )
    return Run(
        name, model, jean_zay(grid.ranks // 8), DEEPSPEED, (grid,), seconds, memory and memory * GB
    )


def megatron() -> Iterator[Run]:
    """Table 1 of Narayanan et al. 2021."""
    for row in published("megatron_sc21_table1"):
        if row["quantity"] != "iteration_time":
            continue
        yield megatron_run(row, row["value"])


def megatron_run(row: dict, seconds: float) -> Run:
    """One row: its columns model, heads, hidden, layers, seq, vocab, tp, pp, gpus, batch."""
    model = Transformer(row["layers"], row["hidden"], row["heads"], row["vocab"], row["seq"])
    data = row["gpus"] // (row["tp"] * row["pp"])
    sequences = row["batch"] // data
    same = dict(recompute="full", precision="fp16, fp32 gradients in the optimizer")
    grids = [
        Grid(data, row["tp"], row["pp"], 0, b, sequences // b, interleave=v, **same)
        for b in MICRO_BATCHES
        if sequences % b == 0
        for v in chunks(model, row["pp"], sequences // b)
    ]
    cluster = Cluster.dgx_a100(row["gpus"] // 8)
    return Run(
        f"{row['model']}, {row['gpus']} GPUs", model, cluster, MEGATRON, tuple(grids), seconds
    )


def recompute() -> Iterator[Run]:
    """Table 5 of Korthikanti et al. 2022, and the 530 B model on 8 times as many GPUs."""
    kinds = {"iteration_time_full_recompute": "full", "iteration_time_present_work": "selective"}
    for row in published("activation_recomputation"):
        if row["quantity"] in kinds:
            yield recompute_run(row, kinds[row["quantity"]], row["value"])
        elif row["quantity"] == "iteration_time_530B_dp8":
            one = next(
                r for r in published("activation_recomputation") if r["model"] == "530B" and r["tp"]
            )
            yield recompute_run(
                one | {"gpus": 2240, "global_batch": 2240}, "selective", row["value"]
            )


def recompute_run(row: dict, how: str, seconds: float) -> Run:
    """One row: its columns model, heads, hidden, layers, seq, vocab, tp, pp, interleave, gpus, global_batch,
    micro_batch; `how` is "full" or "selective", which has its sequence split."""
    model = Transformer(row["layers"], row["hidden"], row["heads"], row["vocab"], row["seq"])
    data = row["gpus"] // (row["tp"] * row["pp"])
    grid = Grid(
        data,
        row["tp"],
        row["pp"],
        0,
        row["micro_batch"],
        row["global_batch"] // data // row["micro_batch"],
        how == "selective",
        how,
        interleave=row["interleave"],
    )
    name = f"{row['model']}, {row['gpus']} GPUs, {how}"
    return Run(name, model, Cluster.dgx_a100(row["gpus"] // 8), MEGATRON, (grid,), seconds)


@dataclass(frozen=True)
class Row:
    """A run, published and predicted: seconds of a step, and bytes of a GPU where they were said."""

    name: str
    seconds: float
    predicted: float
    nbytes: float | None
    held: int

    @property
    def time(self) -> float:
        """Predicted over published, − 1."""
        return self.predicted / self.seconds - 1

    @property
    def memory(self) -> float | None:
        return None if self.nbytes is None else self.held / self.nbytes - 1


@dataclass(frozen=True)
class Errors:
    """The rows of a table."""

    name: str
    rows: tuple[Row, ...]

    @property
    def time(self) -> list[float]:
        return [row.time for row in self.rows]

    @property
    def memory(self) -> list[float]:
        return [row.memory for row in self.rows if row.memory is not None]

    @property
    def words(self) -> str:
        """`time: mean error 5.0 %, with its sign −3.4 %, largest −26.4 % (row)`, and the same of memory."""
        kinds = {"time": self.time} | ({"memory": self.memory} if self.memory else {})
        return "; ".join(
            f"{what}: mean error {mean(map(abs, some)):.1%}, with its sign {mean(some):+.1%}, "
            f"largest {max(some, key=abs):+.1%}"
            for what, some in kinds.items()
        )


TABLES = {"bloom": bloom, "megatron": megatron, "recompute": recompute}


def errors(name: str, accelerator: Accelerator | None = None) -> Errors:
    """What the planner says of each row of a table. ValueError for a name that is none of `TABLES`."""
    if name not in TABLES:
        raise ValueError(f"the tables are {', '.join(TABLES)}, not {name!r}")
    said = [(run, run.predicted(accelerator)) for run in TABLES[name]()]
    return Errors(
        name, tuple(Row(r.name, r.seconds, e.step.total, r.nbytes, e.total) for r, e in said)
    )
