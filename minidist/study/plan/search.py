"""Every grid that fits a cluster and a batch, with its memory and its time.

    tensor      within a node: its all-reduces are four a layer
    pipeline    at most a stage a layer; interleaved where the chunks come out even and the stages divide M
    data        what is left of the ranks; it divides the batch
    ZeRO        0 and 1; without a pipeline also 2 and 3, which reduce, and gather, for every micro-batch
    recompute   none, selective (where scores are kept), full.  The sequence is split wherever tensor is above 1.

A rank may have what its device has, less what the driver, the libraries and holes between blocks take: `RESERVED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minidist.comm.cluster import Cluster
from minidist.study.memory.activations import in_flight
from minidist.study.memory.grid import Grid, PerRank, per_rank
from minidist.study.memory.items import GB
from minidist.study.memory.transformer import Transformer
from minidist.study.plan.kernels import Kernels
from minidist.study.plan.machine import Machine
from minidist.study.plan.network import Network
from minidist.study.plan.step import Step, step

RESERVED = 5 * GB
"""Assumption: CUDA's context and the libraries' 1.5 GB, NCCL's buffers 1 GB, and what the allocator cannot use."""

MICRO_BATCHES = 1, 2, 4, 8, 16
CHUNKS = 1, 2, 3, 4, 6, 8


@dataclass(frozen=True)
class Estimate:
    """What is predicted of a grid. memory: bytes of the fullest rank, beside those that messages between stages take.
    step: seconds.  capacity: bytes of a device."""

    grid: Grid
    memory: PerRank
    step: Step
    capacity: int
    messages: int = 0

    @property
    def total(self) -> int:
        """Bytes of the fullest rank, with what is reserved."""
        return self.memory.total + self.messages + RESERVED

    @property
    def over(self) -> int:
        """Bytes too many; 0 where it fits."""
        return max(0, self.total - self.capacity)


class Planner:
    """A model on a cluster, with the seconds of its layers and messages kept from grid to grid."""

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        kernels: Kernels,
        machine: Machine,
        algorithm: str = "hierarchical",
    ):
        gamma = kernels.combine / cluster.device.bandwidth
        self.model = model
        self.cluster = cluster
        self.kernels = kernels
        self.machine = machine
        self.network = Network(cluster, algorithm, gamma)

    def estimate(self, grid: Grid) -> Estimate:
        """Memory and time of one grid. ValueError where it does not divide the model."""
        seconds = step(self.model, grid, self.machine, self.kernels, self.network)
        ahead = (
            in_flight(grid.pipeline, grid.micro_batches, 0, "1f1b", grid.interleave)
            if grid.pipeline > 1
            else 0
        )
        one = (
            self.machine.dtype.itemsize * grid.micro_batch * self.model.context * self.model.hidden
        )
        return Estimate(
            grid,
            fullest(self.model, grid),
            seconds,
            self.cluster.device.memory,
            self.kernels.messages * ahead * one,
        )


def fullest(model: Transformer, grid: Grid) -> PerRank:
    """Memory of the fullest rank: on the first stage, the second (all layers, most in flight), or the last."""
    stages = {0, min(1, grid.pipeline - 1), grid.pipeline - 1}
    return max((per_rank(model, grid, s) for s in stages), key=lambda rank: rank.total)


def grids(model: Transformer, cluster: Cluster, batch: int, base: Grid) -> Iterator[Grid]:
    """All grids for `batch` sequences a step. base: what is the same in all of them."""
    per_node = cluster.ranks * cluster.devices
    for tensor in _divisors(per_node):
        if model.heads % tensor or (model.kv_heads or model.heads) % tensor or model.width % tensor:
            continue
        sequence = tensor > 1 and model.context % tensor == 0
        for pipeline in _divisors(cluster.size // tensor):
            data = cluster.size // tensor // pipeline
            if pipeline > model.layers or batch % data:
                continue
            one = replace(base, data=data, tensor=tensor, pipeline=pipeline, sequence=sequence)
            yield from pipelines(model, one, batch // data)


def pipelines(model: Transformer, base: Grid, sequences: int) -> Iterator[Grid]:
    """Micro-batches, chunks, stages of ZeRO and recomputation for `sequences` a pipeline and step."""
    for b in (b for b in MICRO_BATCHES if sequences % b == 0):
        M = sequences // b
        for v in chunks(model, base.pipeline, M):
            for zero in (0,) if base.data == 1 else (0, 1) if base.pipeline > 1 else (0, 1, 2, 3):
                for recompute in ("none", "selective", "full"):
                    yield replace(
                        base,
                        micro_batch=b,
                        micro_batches=M,
                        interleave=v,
                        zero=zero,
                        recompute=recompute,
                    )


def chunks(model: Transformer, stages: int, micro_batches: int) -> list[int]:
    """How many chunks a stage may have."""
    even = stages > 1 and micro_batches % stages == 0
    return [v for v in CHUNKS if v == 1 or (even and model.layers % (stages * v) == 0)]


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]
