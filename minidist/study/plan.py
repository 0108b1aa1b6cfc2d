"""What a run will take before it is run: memory, time and cost of every grid, and which is best.

plan       the fastest grid that fits a model on a cluster, and why the others lose
Planner    memory and time of one grid, part by part
errors     the planner against published runs
text, picture, memory_table, time_table, cost_table, rivals_table, errors_table   for people
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import ceil, gcd
from statistics import mean
from typing import Any, NamedTuple

import torch

from minidist.collectives.links import Net
from minidist.collectives.verbs import predict
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster, Device, nic
from minidist.split import uneven
from minidist.study.charts import Table, stacked, table
from minidist.study.compare import published
from minidist.study.picture import Picture
from minidist.study.predict import (
    GB,
    PRECISIONS,
    RECOMPUTE,
    Grid,
    PerRank,
    Transformer,
    flops,
    in_flight,
    known,
    offload_update_seconds,
    on_host,
    per_rank,
    rank_parameters,
    stage_layers,
    utilization,
)

# ------------------------------------------------------------
# What a layer does beside its products: bytes that are read and written, counted in passes over its data.
#
#     whole    passes over (B, T, H): norms, dropout, residual sums; every tensor-parallel rank makes them all, unless the
#              sequence is split
#     inner    passes over (B, T, H/t): GELU (4 for each pass over its 4H columns), biases, copies of heads
#     scores   passes over (B, a/t, T, T), beside the two products that write and read them, where attention is explicit
#
# Counted from the code of the two: a norm reads x and writes y (2), its backward reads two and writes one (3); a mask
# of dropout is one byte an element, half a pass in 16 bits; an all-reduce that must not change its input copies it (2).


class Passes(NamedTuple):
    """Of one direction. launches: operators that are not products."""

    whole: float
    inner: float
    scores: float
    launches: int


@dataclass(frozen=True)
class Kernels:
    """A training program, as far as it decides how long a step takes.

    logits: passes over (B, T, V/t) of the loss, forward and backward, in the
    model's own bytes, and its operators.  combine: bytes moved to sum one byte of a collective.  scattered: stages
    send an activation once, a part from each tensor-parallel rank.  overlap: gradients are reduced beside the last
    backward.  blocking: a stage waits for its messages.  reduced_whole: ZeRO's gradients are all-reduced.  messages:
    copies of its own that a stage keeps for each micro-batch under way.  buckets: bytes of flat buffers in which
    gradients and parameters travel.  launch: seconds of an operator's start; None: the device's.  adam: passes over
    the numbers that the optimizer steps.  early_stop: recomputation ends before a layer's last product, whose result
    nobody needs.
    """

    forward: Passes
    backward: Passes
    logits: tuple[float, float, int]
    combine: float = 0.0
    scattered: bool = True
    overlap: bool = False
    blocking: bool = True
    reduced_whole: bool = False
    messages: int = 0
    buckets: int = 0
    launch: float | None = None
    adam: float = 7
    early_stop: bool = False


MEGATRON = Kernels(
    Passes(whole=2 * (2 + 3.5), inner=2 * 4 + 2, scores=2 + 2.5, launches=7),
    Passes(whole=2 * (3 + 3.5 + 3), inner=3 * 4 + 4 + 6 + 3 + 2, scores=2.5 + 3, launches=14),
    logits=(12, 4, 20),
)
"""Megatron-LM, 2021. Bias and GELU in one operator, bias, dropout and residual sum in one, scale, mask and softmax in
one; dropout of the scores by itself. Narayanan et al. 2021, section 4.2."""

DEEPSPEED = replace(
    MEGATRON, scattered=False, reduced_whole=True, messages=2, buckets=2 * GB, launch=100e-6
)
"""Megatron-DeepSpeed, 2022. The same layers; every tensor-parallel rank sends its copy of an activation to the next
stage, and keeps it. Two buckets of 5·10⁸ numbers in 16 bits, for what is reduced and for what is gathered (DeepSpeed's
defaults of reduce_bucket_size and allgather_bucket_size; tr11-176B-ml.slurm sets neither). BLOOM ran with
CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm: "do not remove"), so no operator was launched ahead. Assumption: then each
takes the host 0.1 ms, from Python to the end of its launch."""

FUSED = Kernels(
    Passes(whole=2 * (2 + 3), inner=2 * 4, scores=2, launches=5),
    Passes(whole=2 * (3 + 1 + 3), inner=3 * 4 + 4 + 6 + 3, scores=3, launches=11),
    logits=(6, 3, 10),
    overlap=True,
    blocking=False,
)
"""As one would train today: no dropout, gradients reduced beside the last backward. Where attention is explicit, scale,
mask and softmax are one operator."""

EAGER = Kernels(
    Passes(whole=2 * (2 + 2 + 2 + 3), inner=2 * 4, scores=6, launches=9),
    Passes(whole=2 * (3 + 1 + 2 + 3), inner=3 * 4 + 4 + 6 + 6 + 3, scores=7, launches=13),
    logits=(10, 18, 60),
    combine=3.0,
    scattered=False,
    blocking=False,
    adam=21,
    early_stop=True,
)
"""minidist's layers, operator by operator: `parallelize` without dropout, as a World charges it (explicit scores: scale, mask
and softmax, one after the other). Without ZeRO gradients are reduced beside the last backward. With one stage that hides them: then overlap=True. With several it hid nothing in
a World (dp 2, pp 2, tp 2: 12.0 ms a step, 11.8 where they were reduced at the end)."""


# ------------------------------------------------------------
# How long a device takes for a product of matrices, and for what is bound by its memory.
#
#     product   launch + max(FLOPs / (η·peak) · waves, bytes / (η·bandwidth))
#     passes    launch + bytes / (η·bandwidth)
#
# One constant a device, η, its `efficiency`: the part of its data sheet, of FLOP/s and of bytes/s alike, that an
# operation reaches. What else a product loses follows from its sizes:
#
#     waves   its result is cut into tiles, which the processors take in rounds; the last round is not full. ⌈w⌉/w
#     rows    a row that is not a multiple of 16 bytes cannot be loaded for the tensor cores: it runs at fp32's peak
#
# Sources: Williams et al. 2009, the roofline; NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
# quantization, tensor core requirements. η of the A100 was chosen on the published runs (`TABLES`), one figure for all.


TILES = (128, 256), (256, 128)


class Machine:
    """A device that computes in `dtype`, and reaches `efficiency` of its data sheet, whose FLOP/s are `peak`.

    launch: seconds, in place of the device's own. Raises ValueError for a device whose efficiency nobody has measured.
    """

    def __init__(
        self, device: Device, dtype: torch.dtype = torch.bfloat16, launch: float | None = None
    ):
        if device.efficiency is None:
            raise ValueError(
                f"what {device.name} reaches of its data sheet is not known: "
                "give the device an efficiency"
            )
        self.device = device
        self.dtype = dtype
        self.efficiency = device.efficiency
        self.launch = device.launch if launch is None else launch
        self.peak = device.peak(dtype)

    def passes(self, nbytes: float, launches: int = 1) -> float:
        """Seconds of `launches` operators that read and write `nbytes` in all."""
        return launches * self.launch + nbytes / (self.efficiency * self.device.bandwidth)

    def work(self, flops: float, nbytes: float) -> float:
        """Seconds of one operator of so many FLOPs and bytes."""
        return max(self.passes(nbytes), self.launch + flops / (self.efficiency * self.peak))

    def product(self, m: int, n: int, k: int, count: int = 1) -> float:
        """Seconds of one operator that makes `count` products, (m, k) by (k, n) each."""
        size = self.dtype.itemsize
        at_once = self.device.tiles
        flops = 2 * m * n * k * count
        if at_once:
            rounds = [ceil(count * ceil(m / a) * ceil(n / b) / at_once) * a * b for a, b in TILES]
            flops *= min(rounds) * at_once / (count * m * n)
        if at_once and (n * size % 16 or k * size % 16):
            flops *= self.peak / self.device.peak(torch.float32)
        return self.work(flops, size * count * (m * k + k * n + m * n))


# ------------------------------------------------------------
# Clusters by a word, `h100:128x8` (128 nodes of 8), and models by name.
#
# The sizes of GPT-3: Brown et al. 2020, Table 2.1; of Megatron-LM: Narayanan et al. 2021, Table 1; of BLOOM: its
# README; of LLaMA: Touvron et al. 2023, Table 2.


WORD = re.compile(r"(\w+):(\d+)(?:x(\d+))?")
MACHINES = {
    "v100": Cluster.dgx1_v100,
    "a100": Cluster.dgx_a100,
    "h100": Cluster.dgx_h100,
    "h200": Cluster.dgx_h200,
    "b200": Cluster.dgx_b200,
}

LLAMA: dict[str, Any] = dict(
    vocab=32000, context=2048, tied=False, gated=True, bias=False, positions=False
)
MODELS = {
    "gpt2-124m": Transformer(12, 768, 12, 50257, 1024),
    "gpt2-1.5b": Transformer(48, 1600, 25, 50257, 1024),
    "gpt3-6.7b": Transformer(32, 4096, 32, 51200, 2048),
    "gpt3-13b": Transformer(40, 5120, 40, 51200, 2048),
    "gpt3-175b": Transformer(96, 12288, 96, 51200, 2048),
    "megatron-530b": Transformer(105, 20480, 128, 51200, 2048),
    "megatron-1t": Transformer(128, 25600, 160, 51200, 2048),
    "bloom-176b": Transformer(70, 14336, 112, 250880, 2048, positions=False),
    "llama-7b": Transformer(32, 4096, 32, ffn=11008, **LLAMA),
    "llama-65b": Transformer(80, 8192, 64, ffn=22016, **LLAMA),
}


def cluster_of(word: str) -> Cluster:
    """`h100:128x8`: 128 nodes of 8 H100; `a100:4` is `a100:4x8`. ValueError for another word, device or number."""
    match = WORD.fullmatch(word)
    if not match or match[1] not in MACHINES:
        raise ValueError(
            f"a cluster is {', '.join(MACHINES)} with its nodes and devices, as h100:128x8, not {word!r}"
        )
    nodes, devices = int(match[2]), int(match[3] or 8)
    if not 1 <= devices <= 8:
        raise ValueError(f"these machines have 1 to 8 devices a node, not {devices}")
    whole = MACHINES[match[1]](nodes)
    # an odd number of devices: each has a card of its own
    links = {
        name: replace(level, share=gcd(level.share, devices)) for name, level in whole.links.items()
    }
    return replace(whole, devices=devices, links=links)


def jean_zay(nodes: int) -> Cluster:
    """Nodes of 8 A100 behind NVLink, with four Omni-Path cards of 100 Gbit/s: BLOOM's (its README, "Hardware")."""
    whole, card = Cluster.dgx_a100(nodes), nic(100, share=2)
    links = whole.links | {
        "nic": card,
        "tor": replace(whole.links["tor"], beta=card.beta),
        "spine": replace(whole.links["spine"], beta=card.beta, share=card.share),
    }
    return replace(whole, name="Jean Zay", links=links)


# ------------------------------------------------------------
# Seconds of the messages of a grid on a cluster, while all other groups of the grid send theirs.
#
# Ranks lie in the order tensor, data, pipeline, the first fastest: a tensor-parallel group is t neighbours, a
# data-parallel group every t-th rank, a stage's successor t·d ranks further (Narayanan et al. 2021, section 3).
# All groups of a kind send at once, so a wire that k ranks share gives each of them a k-th.
#
# Verbs cost what their formulas in `collectives` say: rings within the nodes and between them, unless told otherwise.


class Network:
    """The groups of a cluster: `n` ranks, `stride` apart. algorithm: of collectives, as the verbs take it.

    gamma: seconds to combine a byte.
    """

    def __init__(self, cluster: Cluster, algorithm: str, gamma: float):
        self.cluster = cluster
        self.algorithm = algorithm
        self.gamma = gamma
        self.net = cache(self._net)

    def link(self, dst: int, src: int) -> Link:
        """α and β between two ranks while all others send as they do."""
        levels = [self.cluster.links[name] for name in self.cluster.levels(src, dst)]
        return Link(
            sum(level.alpha for level in levels), max(level.beta * level.share for level in levels)
        )

    def _net(self, n: int, stride: int) -> Net:
        return Net(n, lambda dst, src: self.link(dst * stride, src * stride))

    def verb(self, verb: str, n: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of `nbytes` in all among n ranks, `stride` apart; 0 for one rank."""
        if n == 1 or not nbytes:
            return 0.0
        return predict(self.net(n, stride), verb, nbytes, self.algorithm, self.gamma)

    def send(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the rank `stride` further."""
        link = self.link(stride, 0)
        return link.alpha + nbytes * link.beta


# ------------------------------------------------------------
# Memory and seconds of a grid, part by part, before any run: nothing here is taken from one.
#
# A product of (tokens, k) by (k, n) has two in its backward, for the input (tokens, n)·(n, k) and for the weight
# (n, tokens)·(tokens, k). Fused attention forms the scores once more in its backward: 5 products for 2.
#
# Stage s works f_s + b_s on a micro-batch, messages of tensor parallelism among them; c is a message between stages. Of
# 1F1B with v chunks a stage, s* the slowest stage:
#
#     M·t_s*                     compute, and tensor parallelism's messages
#     Σ t_s / v, s ≠ s*          bubble: the pipeline fills and drains
#     2c·(S−1)·(M·v/S + 1)       pipeline: a micro-batch goes down and comes back, S of them are under way. Where
#                                messages do not block, 2c·(S−1) and what the slowest stage cannot make up for
#     data, optimizer            gradients and parameters of ZeRO's stage; the update
#
# Sources: Shoeybi et al. 2019, section 3 (sizes); Dao et al. 2022, "FlashAttention", section 3; Narayanan et al. 2021,
# section 2.2; Korthikanti et al. 2022, section 4 (recomputation, sequence parallel); Rajbhandari et al. 2020, sections 5
# and 7 (ZeRO). The parts add up to the step.


class Step(NamedTuple):
    """Seconds of a step. recomputation: forwards done again. tensor, pipeline, data: messages that nothing hides."""

    compute: float
    recomputation: float
    bubble: float
    tensor: float
    pipeline: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def parts(self) -> dict[str, float]:
        """By name, in order."""
        return self._asdict()


class Layer(NamedTuple):
    """Seconds of a layer: forward and backward; and of what recomputation repeats, by its name."""

    forward: float
    backward: float
    again: dict[str, float]


class Stage(NamedTuple):
    """Seconds of one stage and micro-batch."""

    compute: float
    again: float
    tensor: float

    @property
    def total(self) -> float:
        return sum(self)


# ------------------------------------------------------------
# What a device holds beside tensors. `HOLES` was chosen on the memory of BLOOM's runs; the others are assumptions.


LIBRARIES = 1.5 * GB
"""CUDA's context, and workspaces of the libraries."""

COMMUNICATOR = 0.5 * GB
"""NCCL's buffers of one group of ranks; a stage has one with the stage before it and one with the next."""

HOLES = 0.06
"""Of the tensors' bytes: what the caching allocator rounds up, and cannot join."""


def reserved(grid: Grid, tensors: int) -> int:
    """Bytes of a rank beside its `tensors` bytes."""
    groups = (grid.data > 1) + (grid.tensor > 1) + 2 * (grid.pipeline > 1)
    return round(LIBRARIES + groups * COMMUNICATOR + HOLES * tensors)


@dataclass(frozen=True)
class Estimate:
    """What is predicted of a grid. memory: bytes of the fullest rank, beside those that messages take.
    step: seconds.  capacity: bytes of a device.  host: bytes that the ranks of a node have in the memory of their host,
    which holds `host_capacity`; None where nobody says."""

    grid: Grid
    memory: PerRank
    step: Step
    capacity: int
    messages: int
    host: int = 0
    host_capacity: int | None = None

    @property
    def reserved(self) -> int:
        """Bytes beside the tensors."""
        return reserved(self.grid, self.memory.total + self.messages)

    @property
    def total(self) -> int:
        """Bytes of the fullest rank, with what is reserved."""
        return self.memory.total + self.messages + self.reserved

    @property
    def over_host(self) -> int:
        """Bytes too many for the host of a node; 0 where they fit, or nobody says what it holds."""
        return 0 if self.host_capacity is None else max(0, self.host - self.host_capacity)

    @property
    def over(self) -> int:
        """Bytes too many, on a device and on a host; 0 where it fits."""
        return max(0, self.total - self.capacity) + self.over_host


class Planner:
    """A model on a cluster, trained by `kernels` on `machine`: memory and seconds of one grid after the other."""

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        kernels: Kernels,
        machine: Machine,
        algorithm: str = "hierarchical",
    ):
        self.model = model
        self.cluster = cluster
        self.kernels = kernels
        self.machine = machine
        self.network = Network(cluster, algorithm, kernels.combine / machine.device.bandwidth)

    def estimate(self, grid: Grid) -> Estimate:
        """Memory and time of one grid. ValueError where it does not divide the model."""
        ahead = 0
        if grid.pipeline > 1:
            ahead = in_flight(grid.pipeline, grid.micro_batches, interleave=grid.interleave)
        messages = self.kernels.messages * ahead * self._activation_bytes(grid.micro_batch)
        messages += self.kernels.buckets
        memory = per_rank(self.model, grid)
        capacity = self.machine.device.memory
        cluster = self.cluster
        host = on_host(self.model, grid) * min(grid.ranks, cluster.ranks * cluster.devices)
        holds = None if cluster.host is None else cluster.host.memory
        return Estimate(grid, memory, self.step(grid), capacity, messages, host, holds)

    def step(self, grid: Grid) -> Step:
        """Seconds of a step of `grid.micro_batches` micro-batches a pipeline."""
        S = grid.pipeline
        M = grid.micro_batches
        stages = self._stages(grid)
        slowest = max(stages, key=lambda stage: stage.total)
        others = sum(stage.total for stage in stages) - slowest.total
        params = max(rank_parameters(self.model, grid.tensor, S, s) for s in {0, S - 1})
        backward = (slowest.total - slowest.again) * 2 / 3
        return Step(
            compute=M * slowest.compute,
            recomputation=M * slowest.again,
            bubble=others / grid.interleave,
            tensor=M * slowest.tensor,
            pipeline=self._pipeline(grid, slowest, others),
            data=self._data(grid, params, backward),
            optimizer=self._optimizer(grid, params),
        )

    def _activation_bytes(self, batch: int) -> int:
        """Of what one layer hands to the next."""
        return self.machine.dtype.itemsize * batch * self.model.context * self.model.hidden

    def _layer(self, batch: int, tensor: int, along: int, attention: str) -> Layer:
        """One layer on `batch` sequences. along: over how many ranks what is whole is split (sequence parallel)."""
        model = self.model
        machine = self.machine
        kernels = self.kernels
        tokens = batch * model.context
        up = model.width * (1 + model.gated)
        shapes = [
            ((model.hidden + 2 * model.kv) // tensor, model.hidden),
            (model.hidden, model.hidden // tensor),
            (up // tensor, model.hidden),
            (model.hidden, model.width // tensor),
        ]
        forward = sum(machine.product(tokens, n, k) for n, k in shapes)
        backward = sum(
            machine.product(tokens, k, n) + machine.product(n, k, tokens) for n, k in shapes
        )
        products, their_backward = self._attention(batch, tensor, attention)
        x = self._activation_bytes(batch)
        scores = machine.dtype.itemsize * batch * model.heads // tensor * model.context**2
        scores *= attention == "explicit"

        def beside(passes: Passes) -> float:
            nbytes = passes.whole * x / along + passes.inner * x / tensor + passes.scores * scores
            return machine.passes(nbytes, passes.launches)

        forward += products + beside(kernels.forward)
        last = machine.product(tokens, *shapes[-1])
        again = {
            "none": 0.0,
            "selective": products + machine.passes(kernels.forward.scores * scores, 2),
            "full": forward - kernels.early_stop * last,
        }
        return Layer(forward, backward + their_backward + beside(kernels.backward), again)

    def _attention(self, batch: int, tensor: int, attention: str) -> tuple[float, float]:
        """The products of queries with keys, and of weights with values: forward, backward."""
        machine = self.machine
        t = self.model.context
        d = self.model.hidden // self.model.heads
        heads = batch * self.model.heads // tensor
        if attention == "explicit":
            scores = machine.product(t, t, d, heads)
            output = machine.product(t, d, t, heads)
            return scores + output, scores + 3 * output
        flops = 4 * heads * t * t * d
        nbytes = 4 * machine.dtype.itemsize * heads * t * d
        return machine.work(flops, nbytes), machine.work(2.5 * flops, 2 * nbytes)

    def _ends(self, batch: int, tensor: int, along: int) -> tuple[float, float]:
        """The embedding, and the head: the last norm, the projection to V/t words, and the loss.

        The embedding is two look-ups, their masks and their sum; its backward writes a gradient of all words.
        """
        machine, hidden = self.machine, self.model.hidden
        tokens = batch * self.model.context
        words = uneven(self.model.vocab, tensor)[0]
        size = machine.dtype.itemsize
        x = self._activation_bytes(batch) / along
        embedding = machine.passes(10 * x, 8) + machine.passes(5 * x + size * words * hidden, 6)
        logits = size * tokens * words
        there, back, launches = self.kernels.logits
        products = [(tokens, words, hidden), (tokens, hidden, words), (words, hidden, tokens)]
        head = sum(machine.product(*sizes) for sizes in products)
        head += machine.passes(2 * x + there * logits, launches)
        return embedding, head + machine.passes(3 * x + back * logits, launches)

    def _stages(self, grid: Grid) -> list[Stage]:
        model = self.model
        sizes = grid.micro_batch, grid.tensor, grid.along
        layer = self._layer(*sizes, grid.attention)
        embedding, head = self._ends(*sizes)
        there, back = self._tensor(grid)
        stages = []
        for s, layers in enumerate(stage_layers(model.layers, grid.pipeline)):
            first = s == 0
            last = s == grid.pipeline - 1
            compute = layers * (layer.forward + layer.backward) + first * embedding + last * head
            # a micro-batch's gradients are added to those of the others: read, read and write; the first has none
            params = rank_parameters(model, grid.tensor, grid.pipeline, s)
            nbytes = params * (PRECISIONS[grid.precision].parameter + 2 * gradient_bytes(grid))
            adding = self.machine.passes(nbytes, 12 * model.layers // grid.pipeline)
            compute += (1 - 1 / grid.micro_batches) * adding
            # messages of the embedding's forward, and of the projection's input in backward
            tensor = layers * (there + back) + (first + last) * there / 2
            stages.append(Stage(compute, layers * layer.again[grid.recompute], tensor))
        return stages

    def _tensor(self, grid: Grid) -> tuple[float, float]:
        """A layer's messages, in forward, and in backward with what is recomputed.

        Two all-reduces forward, two backward; with the sequence split as many all-gathers and reduce-scatters, and one
        all-gather a block more in backward, of what forward did not keep. Full recomputation repeats forward's, but for
        the last where it stops early.
        """
        verbs = ("all_gather", "reduce_scatter") if grid.sequence else ("all_reduce",)
        whole = self._activation_bytes(grid.micro_batch)
        pair = sum(self.network.verb(verb, grid.tensor, 1, whole) for verb in verbs)
        again = (grid.recompute == "full") * (2 - self.kernels.early_stop)
        return 2 * pair, (2 + again) * pair

    def _pipeline(self, grid: Grid, slowest: Stage, others: float) -> float:
        """What a step waits for messages between stages. others: seconds of all stages but the slowest.

        Blocking, all of them on a micro-batch's way. Else the first one's, through all chunks, and where S micro-batches
        under way are too few to keep the slowest stage busy; chunks send more, but have more under way.
        """
        S = grid.pipeline
        M = grid.micro_batches
        v = grid.interleave
        if S == 1:
            return 0.0
        whole = self._activation_bytes(grid.micro_batch)
        parts = grid.tensor if grid.sequence or self.kernels.scattered else 1
        message = self.network.send(grid.tensor * grid.data, whole / parts)
        if parts > 1 and not grid.sequence:
            message += self.network.verb("all_gather", grid.tensor, 1, whole)
        if self.kernels.blocking:
            return 2 * (S - 1) * message * (M * v / S + 1)
        way = 2 * (S * v - 1) * message
        late = max(0.0, (others + way - (S - 1) * slowest.total) / S)
        return way + (M - 1) * late * (v == 1)

    def _data(self, grid: Grid, params: int, backward: float) -> float:
        """Gradients to be averaged, and parameters to be handed out, less what the last backward hides."""
        model, kernels = self.model, self.kernels
        verb = lambda name, nbytes: self.network.verb(name, grid.data, grid.tensor, nbytes)
        times = grid.micro_batches if grid.zero >= 2 else 1
        reduction = "reduce_scatter" if grid.zero and not kernels.reduced_whole else "all_reduce"
        gradients = times * verb(reduction, params * gradient_bytes(grid))
        gathers = (0, 1, 1, 2 * times)[grid.zero]
        handed = gathers * verb("all_gather", params * PRECISIONS[grid.precision].parameter)
        # of the blocks, with embedding and projection, the last one's gradients come too late
        blocks = stage_layers(model.layers, grid.pipeline)[0] + 1 + (grid.pipeline == 1)
        hidden = times * backward * (1 - 1 / blocks) * kernels.overlap
        if grid.zero == 3:
            # parameters are gathered a block ahead, in forward, which takes half of backward's time, too
            gradients += handed
            handed = 0.0
            hidden *= 1.5
        seconds = max(gradients - hidden, 0.0) + handed
        if model.tied and grid.pipeline > 1:
            # the first stage's token embedding and the last one's are one parameter: their gradients are summed
            nbytes = uneven(model.vocab, grid.tensor)[0] * model.hidden * gradient_bytes(grid)
            stride = grid.tensor * grid.data * (grid.pipeline - 1)
            seconds += self.network.verb("all_reduce", 2, stride, nbytes)
        return seconds

    def _optimizer(self, grid: Grid, params: int) -> float:
        """Gradients are scaled; every state of the rank's part is read and written, its parameters written."""
        per = PRECISIONS[grid.precision]
        passes = self.kernels.adam * (per.master or per.moment)
        if per.master:
            passes += 2 * (per.gradient + per.parameter + 2 * per.master)
        owned = params / (grid.data if grid.zero else 1)
        if grid.offload:
            return self._offloaded(grid, ceil(owned))
        return self.machine.passes(2 * gradient_bytes(grid) * params + passes * owned, 12)

    def _offloaded(self, grid: Grid, owned: int) -> float:
        """Gradients go down to the host, it steps, and new parameters come up; all wait for it.

        Adam reads four numbers of a parameter and writes three. A cluster without a host says nothing of its time.
        """
        if self.cluster.host is None:
            return 0.0
        part = self.cluster.part_of_host(0, grid.ranks)
        low = PRECISIONS[grid.precision].parameter
        moved = (gradient_bytes(grid) + low) * owned
        update = offload_update_seconds(owned, 28, part.device.bandwidth, low)
        return 2 * part.link.alpha + moved * part.link.beta + update


def gradient_bytes(grid: Grid) -> int:
    """Of a parameter's gradient, as it is summed up and sent: in fp32 where there is a flat buffer for it."""
    return 4 if grid.fused else PRECISIONS[grid.precision].gradient


# ------------------------------------------------------------
# Every grid that fits a cluster and a batch.
#
#     tensor      within a node: its all-reduces are four a layer
#     pipeline    at most a stage a layer; interleaved where the chunks come out even and the stages divide M
#     data        what is left of the ranks; it divides the batch
#     ZeRO        0 and 1; without a pipeline also 2 and 3, which reduce, and gather, for every micro-batch
#     recompute   none, full; selective, too, where attention is explicit
#
# The sequence is split wherever tensor is above 1.


MICRO_BATCHES = 1, 2, 4, 8, 16
CHUNKS = 1, 2, 3, 4, 6, 8
PRECISION = "bf16, fp32 gradients"


def grids(
    model: Transformer, cluster: Cluster, batch: int, attention: str = "fused"
) -> Iterator[Grid]:
    """All grids for `batch` sequences a step."""
    again = [word for word in RECOMPUTE if attention == "explicit" or word != "selective"]
    for tensor in divisors(cluster.ranks * cluster.devices):
        if model.heads % tensor or (model.kv_heads or model.heads) % tensor or model.width % tensor:
            continue
        sequence = tensor > 1 and model.context % tensor == 0
        for pipeline in divisors(cluster.size // tensor):
            data = cluster.size // tensor // pipeline
            if pipeline > model.layers or batch % data:
                continue
            stages_of_zero = range(1 if data == 1 else 2 if pipeline > 1 else 4)
            for b, M in micro_batches(batch // data):
                choices = product(chunks(model, pipeline, M), stages_of_zero, again)
                for v, zero, recompute in choices:
                    yield Grid(
                        data,
                        tensor,
                        pipeline,
                        zero,
                        b,
                        M,
                        sequence,
                        recompute,
                        interleave=v,
                        dropout=False,
                        precision=PRECISION,
                        attention=attention,
                    )


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def micro_batches(sequences: int) -> list[tuple[int, int]]:
    """How `sequences` of a pipeline and step may be cut: the size of a micro-batch, and how many there are."""
    return [(b, sequences // b) for b in MICRO_BATCHES if sequences % b == 0]


def chunks(model: Transformer, stages: int, micro_batches: int) -> list[int]:
    """How many chunks a stage may have."""
    even = stages > 1 and micro_batches % stages == 0
    return [v for v in CHUNKS if v == 1 or (even and model.layers % (stages * v) == 0)]


# ------------------------------------------------------------
# `plan`: the fastest grid that fits, what it costs, and why the others lose.
#
# Every grid (`grids`) gets its memory and its seconds; the fastest that fits wins. For each value that one decision
# could have had (tensor 1, 2, 4…) the best grid with that value is its rival, and loses for a reason: too large by so
# many bytes, or slower by so many seconds, most of them in one part of the step.
#
# A rank may have what its device has, less what the libraries and holes between blocks take: `reserved`.


DECISIONS = "tensor", "pipeline", "interleave", "zero", "recompute", "micro_batch"


class Cost(NamedTuple):
    """Of a run: steps, days, GPU-hours, and money."""

    steps: float
    days: float
    gpu_hours: float
    money: float


class Rival(NamedTuple):
    """The best estimate where a decision has another value, and why it loses."""

    decision: str
    value: int | str
    estimate: Estimate
    why: str


@dataclass(frozen=True, eq=False)
class Plan:
    """The best estimate for a model on a cluster; `estimates`: all of them, in the order of the search."""

    model: Transformer
    cluster: Cluster
    batch: int
    machine: Machine
    best: Estimate
    estimates: Sequence[Estimate]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.best.step.total

    @property
    def mfu(self) -> float:
        needed = flops(self.model, self.batch)
        return utilization(needed, self.seconds, self.cluster.size, self.machine.peak)

    @property
    def tokens_per_second(self) -> float:
        return self.batch * self.model.context / self.seconds

    def cost(self, tokens: float, rate: float) -> Cost:
        """Of a run over `tokens` tokens, at `rate` a GPU-hour, whatever the currency. No stops are counted.

        Raises ValueError for less than one token, or a rate that is no amount of money.
        """
        if not (1 <= tokens < math.inf and 0 <= rate < math.inf):
            raise ValueError(
                f"a run has at least 1 token at a rate of at least 0, not {tokens:g} at {rate:g}"
            )
        seconds = tokens / self.tokens_per_second
        hours = seconds / 3600 * self.cluster.size
        return Cost(seconds / self.seconds, seconds / 86400, hours, hours * rate)

    @cached_property
    def rivals(self) -> list[Rival]:
        """For each decision and each other value of it the best that there was, and why it loses."""
        rivals = []
        for decision in DECISIONS:
            best_with: dict[int | str, Estimate] = {}
            for estimate in sorted(self.estimates, key=rank):
                best_with.setdefault(getattr(estimate.grid, decision), estimate)
            del best_with[getattr(self.best.grid, decision)]
            values = RECOMPUTE if decision == "recompute" else sorted(best_with)
            for value in [value for value in values if value in best_with]:
                estimate = best_with[value]
                rivals.append(Rival(decision, value, estimate, why(estimate, self.best)))
        return rivals


def plan(
    model: Transformer | str,
    cluster: Cluster | str,
    batch: int,
    context: int | None = None,
    offload: bool = False,
    attention: str = "fused",
) -> Plan:
    """The fastest grid for a step of `batch` sequences, trained as today: `plan("gpt3-175b", "h100:128x8", 1536)`.

    model, cluster: as they are, or by name (`MODELS`, `cluster_of`). context: tokens of a sequence, the model's own if
    not given. offload: the optimizer's states lie in the memory of the hosts, which step. attention: "fused", or
    "explicit", with scores in memory.
    Raises ValueError for a name that is unknown, for a batch that no grid divides, for less than 1 token, and where
    nothing fits: it says by how much the leanest grid is too large.
    """
    model = known(model, MODELS, "model") if isinstance(model, str) else model
    if context is not None:
        model = replace(model, context=context)
    cluster = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if cluster.device is None:
        raise ValueError(
            f"the cluster {cluster.name!r} has no device: what a step takes cannot be said"
        )
    if batch < 1:
        raise ValueError(f"a step has at least 1 sequence, not {batch}")
    machine = Machine(cluster.device)
    planner = Planner(model, cluster, FUSED, machine)
    choices = (replace(grid, offload=offload) for grid in grids(model, cluster, batch, attention))
    estimates = [planner.estimate(grid) for grid in choices]
    if not estimates:
        raise ValueError(
            f"no grid of {cluster.size} ranks divides {batch} sequences and {model.layers} layers"
        )
    best = min(estimates, key=rank)
    if best.over:
        raise ValueError(f"nothing fits: the leanest grid, {too_large(best)}")
    return Plan(model, cluster, batch, machine, best, estimates)


def too_large(estimate: Estimate) -> str:
    """By how much, on a device or on a host."""
    if estimate.over_host and estimate.host_capacity is not None:
        return (
            f"with {estimate.host / GB:.1f} GB on the host of a node, is {estimate.over_host / GB:.1f} GB "
            f"too large for its {estimate.host_capacity / GB:.0f}"
        )
    return (
        f"with {estimate.total / GB:.1f} GB on a rank, is {estimate.over / GB:.1f} GB "
        f"too large for {estimate.capacity / GB:.0f}"
    )


def rank(estimate: Estimate) -> tuple[int, float]:
    """The smaller the better: what does not fit by how much it is too large, then seconds."""
    return estimate.over, estimate.step.total


def why(estimate: Estimate, best: Estimate) -> str:
    """Why an estimate loses against the best."""
    if estimate.over_host:
        return f"too large by {estimate.over_host / GB:.1f} GB for the host of a node"
    if estimate.over:
        name, nbytes = max(estimate.memory.bytes.items(), key=lambda item: item[1])
        return f"too large by {estimate.over / GB:.1f} GB: {name} {nbytes / GB:.1f} GB"
    more = estimate.step.total - best.step.total
    if more <= 0:
        return "as fast, and found later"
    losses = {name: s - best.step.parts[name] for name, s in estimate.step.parts.items()}
    name = max(losses, key=losses.__getitem__)
    return f"slower by {short(more)}: {name} +{short(losses[name])}"


def short(seconds: float) -> str:
    """Seconds, or milliseconds where they are few."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


# ------------------------------------------------------------
# Published runs, and what the planner says of them: time and memory, row by row.
#
#     bloom       384 A100, Megatron-DeepSpeed, ZeRO 1, every layer recomputed: the search for BLOOM's grid
#     megatron    32 to 2520 A100, Megatron-LM, every layer recomputed, interleaved (Narayanan et al. 2021, Table 1)
#     recompute   8 to 2240 A100, with sequence parallel and selective recomputation, and with full recomputation and
#                 neither (Korthikanti et al. 2022, Table 5)
#
# Nothing is fitted to a row: the only constant is the efficiency of the A100. What a table leaves open is said once
# for all of its rows: BLOOM's heads are 64 and its words 250,880 (chronicles); Table 1's micro-batch and chunks a stage
# are those that the planner finds fastest, as its authors chose theirs.


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
        machine = Machine(self.cluster.device, torch.float16, self.kernels.launch)
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
    return Run(name, model, Cluster.dgx_a100(row["gpus"] // 8), MEGATRON, [grid], seconds)


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


TABLES = {"bloom": bloom, "megatron": megatron, "recompute": recompute}


def errors(name: str) -> Errors:
    """What the planner says of each row of a table. ValueError for a name that is none of `TABLES`."""
    return Errors(name, list(known(name, TABLES, "the table")()))


# ------------------------------------------------------------
# A plan for people: tables of the grid, its memory, its time, its cost and its rivals, and a picture.


def named(grid: Grid) -> str:
    """`data 64, tensor 8, pipeline 2 × 4 chunks, ZeRO 1, recompute selective, 96 micro-batches of 2`"""
    v = f" × {grid.interleave} chunks" * (grid.interleave > 1)
    return (
        f"data {grid.data}, tensor {grid.tensor}, pipeline {grid.pipeline}{v}, ZeRO {grid.zero}, "
        f"recompute {grid.recompute}, {grid.micro_batches} micro-batches of {grid.micro_batch}"
    )


def memory_table(plan: Plan) -> Table:
    """Bytes of the fullest rank, by category, and what is left."""
    best = plan.best
    items = best.memory.bytes | {
        "messages": best.messages,
        "reserved": best.reserved,
        "left": best.capacity - best.total,
    }
    rows = [(name, n / GB, f"{n / best.capacity:.0%}") for name, n in items.items() if n]
    if best.host:
        part = best.host / best.host_capacity if best.host_capacity else None
        rows.append(
            ("on the host of a node", best.host / GB, "" if part is None else f"{part:.0%} of it")
        )
    return table(rows, ["memory of the fullest rank", "GB", "of the device"])


def time_table(plan: Plan) -> Table:
    """Seconds of a step, by part."""
    step = plan.best.step
    parts = step.parts | {"step": step.total}
    rows = [
        (name, s, "100%" if name == "step" else f"{s / step.total:.1%}")
        for name, s in parts.items()
    ]
    return table(rows, ["time", "seconds", "of the step"])


def cost_table(plan: Plan, tokens: float, rate: float) -> Table:
    """What the run costs. `rate`: money a GPU-hour."""
    cost = plan.cost(tokens, rate)
    rows = [
        ("tokens", f"{tokens:,.0f}"),
        ("tokens a second", f"{plan.tokens_per_second:,.0f}"),
        ("steps", f"{cost.steps:,.0f}"),
        ("days", f"{cost.days:.1f}"),
        ("GPU-hours", f"{cost.gpu_hours:,.0f}"),
        (f"money, at {rate:g} a GPU-hour", f"{cost.money:,.0f}"),
        ("MFU", f"{plan.mfu:.1%}"),
    ]
    return table(rows, ["the run", ""])


def rivals_table(plan: Plan) -> Table:
    """The best grid for each other value of a decision, and why it loses."""
    rows = []
    for decision, value, estimate, reason in plan.rivals:
        choice = f"{decision.replace('_', '-')} {value}"
        rows.append((choice, named(estimate.grid), estimate.step.total, reason))
    return table(rows, ["with", "the best grid", "seconds", "loses"])


def text(plan: Plan, tokens: float, rate: float) -> str:
    """All of it."""
    head = (
        f"{plan.cluster.summary()}\nbatch {plan.batch:,} × {plan.model.context:,} tokens, "
        f"{len(plan.estimates):,} grids; η = {plan.machine.device.efficiency:g} of the data sheet\n"
        f"\n{named(plan.best.grid)}: {plan.seconds:.2f} s a step, MFU {plan.mfu:.1%}"
    )
    tables = (
        memory_table(plan),
        time_table(plan),
        cost_table(plan, tokens, rate),
        rivals_table(plan),
    )
    return "\n\n".join([head, *(part.text for part in tables)])


def picture(plan: Plan) -> Picture:
    """Seconds of a step by part: the best grid's, and those of its eight fastest rivals that fit."""
    fit = {r.estimate.grid: r.estimate for r in plan.rivals if not r.estimate.over}
    fastest = sorted(fit.values(), key=rank)[:8]
    bars = {brief(estimate.grid): estimate.step.parts for estimate in [plan.best, *fastest]}
    return stacked(bars, title="A step, by part", unit="s")


def brief(grid: Grid) -> str:
    """`64·8·2×4 z1 selective b2`: data · tensor · pipeline × chunks, ZeRO, recomputation, micro-batch."""
    v = f"×{grid.interleave}" * (grid.interleave > 1)
    return f"{grid.data}·{grid.tensor}·{grid.pipeline}{v} z{grid.zero} {grid.recompute} b{grid.micro_batch}"


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
# `python -m minidist.study.plan --model gpt3-175b --cluster h100:128x8 --batch 1536`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan, or with --published the errors against published runs. 2 for what cannot be planned."""
    parser = argparse.ArgumentParser(prog="python -m minidist.study.plan", description=main.__doc__)
    option = parser.add_argument
    option("--model", default="gpt3-175b", help=f"one of {', '.join(MODELS)}")
    option("--cluster", default="h100:128x8", help="device:nodes×devices, as h100:128x8")
    option("--batch", type=int, default=1536, help="sequences of a step")
    option("--tokens", type=float, default=300e9, help="of the whole run")
    option("--rate", type=float, default=2.0, help="money a GPU-hour, an assumption to be replaced")
    option("--published", action="store_true", help="against published runs, row by row")
    asked = parser.parse_args(arguments)
    try:
        if asked.published:
            print("\n\n".join(errors_table(errors(name)).text for name in TABLES))
        else:
            print(text(plan(asked.model, asked.cluster, asked.batch), asked.tokens, asked.rate))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
