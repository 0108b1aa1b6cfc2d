"""Published runs beside what the planner says of them: time and memory, row by row.

errors         the runs of a table (`TABLES`), each with its error
errors_table   for people; `python -m minidist.study.runs` prints one for each table
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import mean

import torch

from minidist.comm.cluster import Cluster
from minidist.study.catalog import dgx_a100_40gb, jean_zay
from minidist.study.charts import Table, table
from minidist.study.literature import published
from minidist.study.predict import (
    GB,
    Grid,
    Transformer,
    chunks,
    divisors,
    flops,
    known,
    micro_batches,
)
from minidist.study.step import (
    CORE,
    DEEPSPEED,
    FSDP,
    MEGATRON,
    MEGATRON_2022,
    Estimate,
    Kernels,
    Machine,
    Planner,
)

# ------------------------------------------------------------
# The tables, and what is said once for all rows of one.
#
#     bloom       384 A100, Megatron-DeepSpeed, ZeRO 1, every layer recomputed: the search for BLOOM's grid
#     megatron    32 to 2520 A100, Megatron-LM, every layer recomputed, interleaved (Narayanan et al. 2021, Table 1)
#     recompute   8 to 2240 A100, with sequence parallel and selective recomputation, and with full recomputation and
#                 neither (Korthikanti et al. 2022, Table 5)
#     megatron_h100      96 to 3072 H100, Megatron-Core, sequence parallel, ZeRO 1 (Megatron-LM's README, 2024)
#     llmfoundry_a100    8 to 128 A100 of 80 or 40 GB, PyTorch's FSDP (LLM Foundry's benchmarks, 2023)
#     llmfoundry_h100    8 to 512 H100, the same
#
# Nothing is fitted to a row: `study.fit` has the constants, and the tables on which each was fitted. What a table leaves
# open is said once for all of its rows. BLOOM's heads are 64 and its words 250,880 (chronicles). Micro-batch and chunks a
# stage of Narayanan's table and of the README's are those that the planner finds fastest, as its authors chose theirs; the
# README's layers are not recomputed. LLM Foundry's models have learned positions and biases: so their parameters come out
# as the table says. FULL_SHARD is ZeRO 3, SHARD_GRAD_OP is ZeRO 2, and gradients are reduced in 16 bits (the benchmarks'
# mixed precision is PURE) at every micro-batch.


@dataclass(frozen=True)
class Run:
    """A published run. grids: what it may have been. seconds of a step; nbytes of a GPU, if they were said."""

    name: str
    model: Transformer
    cluster: Cluster
    kernels: Kernels
    grids: Sequence[Grid]
    seconds: float
    nbytes: float | None = None

    @cached_property
    def predicted(self) -> Estimate:
        """What the planner says; of several grids, of the fastest that fits."""
        assert self.cluster.device is not None, "what was published was timed on a device"
        machine = Machine(self.cluster.device, torch.float16, self.kernels)
        planner = Planner(self.model, self.cluster, self.kernels, machine)
        estimates = [planner.estimate(grid) for grid in self.grids]
        return min(estimates, key=lambda e: (e.over > 0, e.step.total))

    @property
    def time_error(self) -> float:
        """Predicted over published, − 1."""
        return self.predicted.step.total / self.seconds - 1

    @property
    def memory_error(self) -> float | None:
        return None if self.nbytes is None else self.predicted.total / self.nbytes - 1


def model_in(row: dict, heads: int, vocab: int) -> Transformer:
    return Transformer(row["layers"], row["hidden"], heads, vocab, row["seq"])


def bloom() -> Iterator[Run]:
    """The rows that ran; those that did not fit have no time."""
    for row in published("bloom_topology_search"):
        if isinstance(row["sec_per_it"], int | float):
            yield bloom_run(row, row["sec_per_it"], row["gpu_mem_gb"])


def bloom_run(row: dict, seconds: float, memory: float | None) -> Run:
    """One row: its columns hidden, layers, heads, dp, tp, pp, mbs, gbs, optimizer."""
    wide = row["optimizer"] != "fp16"
    dp, tp, pp, b = (row[name] for name in ("dp", "tp", "pp", "mbs"))
    M = row["gbs"] // (dp * b)
    grid = Grid(dp, tp, pp, row["zero"], b, M, recompute="full", fused=wide)
    heads = row["heads"] or 64
    name = (
        f"H {row['hidden']} L {row['layers']} a {heads}, {dp}·{tp}·{pp}, b {b}, "
        f"B {row['gbs']}, {'fp32 gradients' if wide else 'fp16'}"
    )
    cluster = jean_zay(grid.ranks // 8)
    nbytes = memory and memory * GB
    return Run(name, model_in(row, heads, 250880), cluster, DEEPSPEED, [grid], seconds, nbytes)


def megatron() -> Iterator[Run]:
    """Table 1 of Narayanan et al. 2021."""
    for row in published("megatron_sc21_table1"):
        if row["quantity"] == "iteration_time":
            yield megatron_run(row, row["value"])


def megatron_run(row: dict, seconds: float) -> Run:
    """One row: its columns model, heads, hidden, layers, seq, vocab, tp, pp, gpus, batch."""
    model = model_in(row, row["heads"], row["vocab"])
    data = row["gpus"] // (row["tp"] * row["pp"])
    precision = "fp16, fp32 gradients in the optimizer"
    grids = [
        Grid(
            data, row["tp"], row["pp"], 0, b, M, recompute="full", interleave=v, precision=precision
        )
        for b, M in micro_batches(row["batch"] // data)
        for v in chunks(model, row["pp"], M)
    ]
    cluster = Cluster.dgx_a100(row["gpus"] // 8)
    return Run(f"{row['model']}, {row['gpus']} GPUs", model, cluster, MEGATRON, grids, seconds)


def recompute() -> Iterator[Run]:
    """Table 5 of Korthikanti et al. 2022, and the 530 B model on 8 times as many GPUs."""
    kinds = {"iteration_time_full_recompute": "full", "iteration_time_present_work": "selective"}
    rows = published("activation_recomputation")
    for row in rows:
        if row["quantity"] in kinds:
            yield recompute_run(row, kinds[row["quantity"]], row["value"])
        elif row["quantity"] == "iteration_time_530B_dp8":
            smaller = next(other for other in rows if other["model"] == "530B" and other["tp"])
            larger = smaller | {"gpus": 2240, "global_batch": 2240}
            yield recompute_run(larger, "selective", row["value"])


def recompute_run(row: dict, how: str, seconds: float) -> Run:
    """One row: its columns model, heads, hidden, layers, seq, vocab, tp, pp, interleave, gpus, global_batch,
    micro_batch; `how` is "full" or "selective", which has its sequence split."""
    b = row["micro_batch"]
    data = row["gpus"] // (row["tp"] * row["pp"])
    M = row["global_batch"] // data // b
    split = how == "selective"
    grid = Grid(data, row["tp"], row["pp"], 0, b, M, split, how, interleave=row["interleave"])
    name = f"{row['model']}, {row['gpus']} GPUs, {how}"
    model = model_in(row, row["heads"], row["vocab"])
    cluster = Cluster.dgx_a100(row["gpus"] // 8)
    return Run(name, model, cluster, MEGATRON_2022, [grid], seconds)


def megatron_h100() -> Iterator[Run]:
    """The table of Megatron-LM's README, 2024."""
    for row in published("megatron_h100_table"):
        if row["quantity"] == "model_tflops_per_gpu":
            yield megatron_h100_run(row, row["value"])


def megatron_h100_run(row: dict, teraflops: float) -> Run:
    """One row: its columns model, heads, hidden, layers, seq, vocab, tp, pp, gpus, batch; TFLOP/s of a GPU, of those
    that the model needs."""
    model = replace(model_in(row, row["heads"], row["vocab"]), tied=False)
    data = row["gpus"] // (row["tp"] * row["pp"])
    grids = [
        Grid(
            data,
            row["tp"],
            row["pp"],
            1,
            b,
            M,
            row["tp"] > 1,
            interleave=v,
            dropout=False,
            precision="bf16, fp32 gradients",
            attention="fused",
        )
        for b, M in micro_batches(row["batch"] // data)
        for v in (divisors(row["layers"] // row["pp"]) if M % row["pp"] == 0 else [1])
    ]
    cluster = Cluster.dgx_h100(row["gpus"] // 8)
    seconds = flops(model, row["batch"]) / (row["gpus"] * teraflops * 1e12)
    return Run(f"{row['model']}, {row['gpus']} GPUs", model, cluster, CORE, grids, seconds)


SHARDED = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
FSDP_CLUSTERS = {
    "a100_80gb": Cluster.dgx_a100,
    "a100_40gb": dgx_a100_40gb,
    "h100_80gb": Cluster.dgx_h100,
}


def llmfoundry(gpu: str, bits: int = 16) -> Iterator[Run]:
    """The rows of a GPU ("a100", "h100") whose products are in 16 bits, or in 8 (by Transformer Engine)."""
    for row in published("llmfoundry_mpt"):
        if row["quantity"] == "throughput" and product_bits(row) == bits:
            if row["gpu"].startswith(gpu):
                yield llmfoundry_run(row, row["value"])


def product_bits(row: dict) -> int:
    return 8 if row["precision"] == "amp_fp8" else 16


def llmfoundry_run(row: dict, tokens: float) -> Run:
    """One row: its columns model, layers, hidden, heads, seq, gpus, gpu, micro_batch, grad_accum, sharding, act_ckpt;
    tokens a second and GPU."""
    model = model_in(row, row["heads"], 50368)
    b, M = row["micro_batch"], row["grad_accum"]
    recompute = "full" if row["act_ckpt"] == "True" else "none"
    grid = Grid(
        row["gpus"],
        zero=SHARDED[row["sharding"]],
        micro_batch=b,
        micro_batches=M,
        recompute=recompute,
        dropout=False,
        precision="bf16",
        attention="fused",
        bits=product_bits(row),
    )
    cluster = FSDP_CLUSTERS[row["gpu"]](row["gpus"] // 8)
    seconds = b * M * row["seq"] / tokens
    name = f"{row['model']}, {row['gpus']} {row['gpu']}, T {row['seq']}, b {b}, M {M}"
    return Run(name, model, cluster, FSDP, [grid], seconds)


@dataclass(frozen=True)
class Errors:
    """The runs of a table."""

    name: str
    rows: Sequence[Run]

    @property
    def time(self) -> list[float]:
        return [row.time_error for row in self.rows]

    @property
    def memory(self) -> list[float]:
        return [row.memory_error for row in self.rows if row.memory_error is not None]

    @property
    def words(self) -> str:
        """`time: mean error 5.0 %, with its sign −3.4 %, largest −26.4 % (row)`, and the same of memory."""
        return "; ".join(
            f"{what}: mean error {mean(map(abs, errors)):.1%}, with its sign {mean(errors):+.1%}, "
            f"largest {max(errors, key=abs):+.1%}"
            for what, errors in (("time", self.time), ("memory", self.memory))
            if errors
        )


TABLES: dict[str, Callable[[], Iterator[Run]]] = {
    "bloom": bloom,
    "megatron": megatron,
    "recompute": recompute,
    "megatron_h100": megatron_h100,
    "llmfoundry_a100": partial(llmfoundry, "a100"),
    "llmfoundry_h100": partial(llmfoundry, "h100"),
    "llmfoundry_fp8": partial(llmfoundry, "h100", 8),
}


def errors(name: str) -> Errors:
    """What the planner says of each row of a table. ValueError for a name that is none of `TABLES`."""
    return Errors(name, list(known(name, TABLES, "the table")()))


def errors_table(errors: Errors) -> Table:
    """Each row's published and predicted seconds and GB."""
    rows = []
    for run in errors.rows:
        seconds = [run.seconds, run.predicted.step.total, f"{run.time_error:+.1%}"]
        memory = [None, run.predicted.total / GB, ""]
        if run.nbytes is not None:
            memory = [run.nbytes / GB, run.predicted.total / GB, f"{run.memory_error:+.0%}"]
        rows.append([run.name, *seconds, *memory])
    columns = ["run", "seconds", "predicted", "error", "GB", "predicted GB", "error of memory"]
    return table(rows, columns, title=f"{errors.name}: {errors.words}")


# ------------------------------------------------------------
# `python -m minidist.study.runs`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors against published runs, row by row. 2 for a table that is none."""
    parser = argparse.ArgumentParser(prog="python -m minidist.study.runs", description=main.__doc__)
    parser.add_argument(
        "tables", nargs="*", help=f"of {', '.join(TABLES)}; all of them if not given"
    )
    asked = parser.parse_args(arguments)
    try:
        print("\n\n".join(errors_table(errors(name)).text for name in asked.tables or TABLES))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
