"""What a run will take before it is run: memory, time and cost of every grid, and which is best.

plan       the fastest grid that fits a model on a cluster, and why the others lose
step       seconds of a step on one grid, part by part          Planner   memory and time of one grid
errors     the planner against published runs
text, picture, memory_table, time_table, cost_table, rivals_table, errors_table   for people
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import ceil, gcd
from statistics import mean
from typing import NamedTuple

import torch

from minidist.collectives.links import Net
from minidist.collectives.verbs import predict
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster, Device, nic
from minidist.split import uneven
from minidist.study.charts import Table, stacked, table
from minidist.study.picture import Picture
from minidist.study.predict import (
    GB,
    PRECISIONS,
    Grid,
    PerRank,
    Transformer,
    flops,
    in_flight,
    known,
    per_rank,
    rank_parameters,
    stage_layers,
    utilization,
)
from minidist.study.published import published

# ------------------------------------------------------------
# What a layer does beside its products: bytes that are read and written, counted in passes over its data.
#
#     whole    passes over (B, T, H): norms, dropout, residual sums; every tensor-parallel rank makes them all, unless the
#              sequence is split
#     inner    passes over (B, T, H/t): GELU (4 for each pass over its 4H columns), biases, copies of heads
#     scores   passes over (B, a/t, T, T), beside the two products that write and read them; 0 where attention is fused
#
# Counted from the code of the two: a norm reads x and writes y (2), its backward reads two and writes one (3); a mask
# of dropout is one byte an element, half a pass in 16 bits; an all-reduce that must not change its input copies it (2).


@dataclass(frozen=True)
class Passes:
    """Of one direction. launches: operators that are not products."""

    whole: float
    inner: float
    scores: float
    launches: int


@dataclass(frozen=True)
class Kernels:
    """A training program, as far as it decides how long a step takes.

    explicit: scores are written to memory.  logits: passes over (B, T, V/t) of the loss, forward and backward, in the
    model's own bytes, and its operators.  combine: bytes moved to sum one byte of a collective.  scattered: stages
    send an activation once, a part from each tensor-parallel rank.  overlap: gradients are reduced beside the last
    backward.  blocking: a stage waits for its messages.  reduced_whole: ZeRO's gradients are all-reduced.  messages:
    copies of its own that a stage keeps for each micro-batch under way.  launch: seconds of an operator's start; None:
    the device's.  adam: passes over the numbers that the optimizer steps.  scaling: passes over the gradients before.
    """

    name: str
    forward: Passes
    backward: Passes
    explicit: bool
    logits: tuple[float, float, int]
    combine: float = 0.0
    scattered: bool = True
    overlap: bool = False
    blocking: bool = True
    reduced_whole: bool = False
    messages: int = 0
    launch: float | None = None
    adam: float = 7
    scaling: float = 2
    early_stop: bool = False


MEGATRON = Kernels(
    "Megatron-LM, 2021",
    Passes(whole=2 * (2 + 3.5), inner=2 * 4 + 2, scores=2 + 2.5, launches=7),
    Passes(whole=2 * (3 + 3.5 + 3), inner=3 * 4 + 4 + 6 + 3 + 2, scores=2.5 + 3, launches=14),
    explicit=True,
    logits=(12, 4, 20),
)
"""Bias and GELU in one operator, bias, dropout and residual sum in one, scale, mask and softmax in one; dropout of the
scores by itself. Narayanan et al. 2021, section 4.2."""

DEEPSPEED = replace(
    MEGATRON,
    name="Megatron-DeepSpeed, 2022",
    scattered=False,
    reduced_whole=True,
    messages=2,
    launch=100e-6,
)
"""The same layers; every tensor-parallel rank sends its copy of an activation to the next stage, and keeps it. BLOOM
ran with CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm: "do not remove"), so no operator was launched ahead. Assumption:
then each takes the host 0.1 ms, from Python to the end of its launch."""

FUSED = Kernels(
    "fused attention",
    Passes(whole=2 * (2 + 3), inner=2 * 4, scores=0, launches=5),
    Passes(whole=2 * (3 + 1 + 3), inner=3 * 4 + 4 + 6 + 3, scores=0, launches=11),
    explicit=False,
    logits=(6, 3, 10),
    overlap=True,
    blocking=False,
)
"""As one would train today: no dropout, FlashAttention, gradients reduced beside the last backward."""

EAGER = Kernels(
    "minidist's layers, operator by operator",
    Passes(whole=2 * (2 + 2 + 2 + 3), inner=2 * 4, scores=0, launches=9),
    Passes(whole=2 * (3 + 1 + 2 + 3), inner=3 * 4 + 4 + 6 + 6 + 3, scores=0, launches=13),
    explicit=False,
    logits=(10, 18, 60),
    combine=3.0,
    scattered=False,
    blocking=False,
    adam=21,
    early_stop=True,
)
"""`parallelize` without dropout, as a World charges it. Without ZeRO gradients are reduced beside the last backward.
With one stage that hides them: then overlap=True. With several it hid nothing in a World (dp 2, pp 2, tp 2: 12.0 ms a
step, 11.8 where they were reduced at the end)."""


# ------------------------------------------------------------
# How long a device takes for a product of matrices, and for what is bound by its memory.
#
#     product   launch + max(FLOPs / (η·peak) · waves, bytes / (η·bandwidth))
#     passes    launch + bytes / (η·bandwidth)
#
# One constant a device, η, its `efficiency`: the part of its data sheet, of FLOP/s and of bytes/s alike, that an
# operation reaches.
# What else a product loses follows from its sizes:
#
#     waves   its result is cut into tiles, which the processors take in rounds; the last round is not full. ⌈w⌉/w
#     rows    a row that is not a multiple of 16 bytes cannot be loaded for the tensor cores: it runs at fp32's peak
#
# Sources: Williams et al. 2009, the roofline; NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
# quantization, tensor core requirements. η of the A100 was
# chosen on the published runs (`TABLES`), one figure for all.


TILES = (128, 256), (256, 128)


@dataclass(frozen=True, eq=False)
class Machine:
    """A device that computes in `dtype`, and reaches `efficiency` of its data sheet.

    launch: seconds, in place of the device's own. Raises ValueError for a device whose efficiency nobody has measured.
    """

    device: Device
    dtype: torch.dtype = torch.bfloat16
    launch: float | None = None

    def __post_init__(self):
        if self.device.efficiency is None:
            raise ValueError(
                f"what {self.device.name} reaches of its data sheet is not known: "
                "give the device an efficiency"
            )
        if self.launch is None:
            object.__setattr__(self, "launch", self.device.launch)

    @property
    def peak(self) -> float:
        """FLOP/s of the data sheet."""
        return self.device.peak(self.dtype)

    def passes(self, nbytes: float, launches: int = 1) -> float:
        """Seconds of `launches` operators that read and write `nbytes` in all."""
        return launches * self.launch + nbytes / (self.device.efficiency * self.device.bandwidth)

    def product(self, m: int, n: int, k: int, count: int = 1) -> float:
        """Seconds of one operator that makes `count` products, (m, k) by (k, n) each."""
        size = self.dtype.itemsize
        loads = size * count * (m * k + k * n + m * n)
        return self.work(2 * m * n * k * count * self._waves(m, n, count) / self._rows(n, k), loads)

    def work(self, flops: float, nbytes: float) -> float:
        """Seconds of one operator of so many FLOPs and bytes."""
        return max(self.passes(nbytes), self.launch + flops / (self.device.efficiency * self.peak))

    def _waves(self, m: int, n: int, count: int) -> float:
        """How much longer for the tiles and rounds that are not full."""
        if not self.device.tiles:
            return 1.0
        rounds = (
            ceil(count * ceil(m / a) * ceil(n / b) / self.device.tiles) * a * b for a, b in TILES
        )
        return min(rounds) * self.device.tiles / (count * m * n)

    def _rows(self, n: int, k: int) -> float:
        """The part of the peak that rows of this length leave."""
        whole = all(x * self.dtype.itemsize % 16 == 0 for x in (n, k))
        return (
            1.0 if whole or not self.device.tiles else self.device.peak(torch.float32) / self.peak
        )


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

LLAMA = dict(vocab=32000, context=2048, tied=False, gated=True, bias=False, positions=False)
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


def model_of(name: str) -> Transformer:
    """A model by name. ValueError for one that is not here."""
    if name not in MODELS:
        raise ValueError(f"the models are {', '.join(MODELS)}, not {name!r}")
    return MODELS[name]


def cluster_of(word: str) -> Cluster:
    """`h100:128x8`: 128 nodes of 8 H100; `a100:4` is `a100:4x8`. ValueError for another word, device or number."""
    found = WORD.fullmatch(word)
    if not found or found[1] not in MACHINES:
        raise ValueError(
            f"a cluster is {', '.join(MACHINES)} with its nodes and devices, as h100:128x8, not {word!r}"
        )
    nodes, devices = int(found[2]), int(found[3] or 8)
    if not 1 <= devices <= 8:
        raise ValueError(f"these machines have 1 to 8 devices a node, not {devices}")
    whole = MACHINES[found[1]](nodes)
    links = {
        name: replace(level, share=gcd(level.share, devices)) for name, level in whole.links.items()
    }
    # an odd number of devices: each has a card of its own
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


_NETS = 4096


class Network:
    """The groups of a cluster: `n` ranks, `stride` apart. algorithm: of collectives, as the verbs take it.

    gamma: seconds to combine a byte.
    """

    def __init__(self, cluster: Cluster, algorithm: str = "hierarchical", gamma: float = 0.0):
        self.cluster = cluster
        self.algorithm = algorithm
        self.gamma = gamma
        self.verb = lru_cache(maxsize=None)(self._verb)
        self.net = lru_cache(maxsize=_NETS)(self._net)

    def link(self, dst: int, src: int) -> Link:
        """α and β between two ranks while all others send as they do."""
        levels = [self.cluster.links[name] for name in self.cluster.levels(src, dst)]
        return Link(
            sum(level.alpha for level in levels), max(level.beta * level.share for level in levels)
        )

    def _net(self, n: int, stride: int) -> Net:
        return Net(n, lambda dst, src: self.link(dst * stride, src * stride))

    def _verb(self, verb: str, n: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of `nbytes` in all among n ranks, `stride` apart; 0 for one rank."""
        if n == 1 or not nbytes:
            return 0.0
        return predict(self.net(n, stride), verb, nbytes, self.algorithm, self.gamma)

    def send(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the rank `stride` further."""
        link = self.link(stride, 0)
        return link.alpha + nbytes * link.beta


# ------------------------------------------------------------
# Seconds of a layer, an embedding and a projection to the vocabulary, on one of t tensor-parallel ranks.
#
# A product of (tokens, k) by (k, n) has two in its backward, for the input (tokens, n)·(n, k) and for the weight
# (n, tokens)·(tokens, k). Fused attention forms the scores once more in its backward: 5 products for 2.
# Source of the sizes: Shoeybi et al. 2019, section 3; Dao et al. 2022, "FlashAttention", section 3.


class Seconds(NamedTuple):
    """Of a forward and of a backward; within the forward, of the attention, which selective recomputation repeats, and
    of the last product, which full recomputation need not."""

    forward: float
    backward: float
    attention: float = 0.0
    last: float = 0.0


@lru_cache(maxsize=4096)
def layer(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int, along: int
) -> Seconds:
    """One layer on `batch` sequences. along: over how many ranks what is whole is split (sequence parallel)."""
    tokens = batch * model.context
    h = model.hidden
    size = machine.dtype.itemsize
    up = model.width * (1 + model.gated)
    shapes = [
        ((h + 2 * model.kv) // tensor, h),
        (h, h // tensor),
        (up // tensor, h),
        (h, model.width // tensor),
    ]
    forward = sum(machine.product(tokens, n, k) for n, k in shapes)
    backward = sum(machine.product(tokens, k, n) + machine.product(n, k, tokens) for n, k in shapes)
    there, back = _attention(model, machine, kernels, batch, tensor)

    def beside(passes: Passes) -> float:
        x = size * tokens * h
        scores = size * batch * model.heads // tensor * model.context**2
        nbytes = passes.whole * x / along + passes.inner * x / tensor + passes.scores * scores
        return machine.passes(nbytes, passes.launches)

    core = there + machine.passes(
        kernels.forward.scores * size * batch * model.heads // tensor * model.context**2, 2
    )
    last = machine.product(tokens, *shapes[-1])
    return Seconds(
        forward + there + beside(kernels.forward),
        backward + back + beside(kernels.backward),
        core,
        last,
    )


def _attention(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int
) -> tuple[float, float]:
    """The products of queries with keys, and of weights with values: forward, backward."""
    t = model.context
    d = model.hidden // model.heads
    heads = batch * model.heads // tensor
    if kernels.explicit:
        there = machine.product(t, t, d, heads), machine.product(t, d, t, heads)
        back = (
            machine.product(t, t, d, heads)
            + 2 * machine.product(t, d, t, heads)
            + machine.product(t, d, t, heads)
        )
        return sum(there), back
    flops, nbytes = 4 * heads * t * t * d, 4 * machine.dtype.itemsize * heads * t * d
    return machine.work(flops, nbytes), machine.work(2.5 * flops, 2 * nbytes)


@lru_cache(maxsize=4096)
def embedding(model: Transformer, machine: Machine, batch: int, tensor: int, along: int) -> Seconds:
    """Two look-ups, their masks and their sum; backward writes a gradient of all words."""
    size, words = machine.dtype.itemsize, uneven(model.vocab, tensor)[0]
    x = size * batch * model.context * model.hidden / along
    return Seconds(
        machine.passes(10 * x, 8), machine.passes(5 * x + size * words * model.hidden, 6)
    )


@lru_cache(maxsize=4096)
def head(
    model: Transformer, machine: Machine, kernels: Kernels, batch: int, tensor: int, along: int
) -> Seconds:
    """The last norm, the projection to V/t words, and the loss."""
    tokens = batch * model.context
    words = uneven(model.vocab, tensor)[0]
    size = machine.dtype.itemsize
    x, logits = size * tokens * model.hidden / along, size * tokens * words
    there, back, launches = kernels.logits
    forward = machine.product(tokens, words, model.hidden) + machine.passes(
        2 * x + there * logits, launches
    )
    products = machine.product(tokens, model.hidden, words) + machine.product(
        words, model.hidden, tokens
    )
    return Seconds(forward, products + machine.passes(3 * x + back * logits, launches))


# ------------------------------------------------------------
# Seconds of a step on a grid, part by part, before any run: nothing here is taken from one.
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
# Sources: Narayanan et al. 2021, section 2.2; Korthikanti et al. 2022, section 4 (recomputation, sequence parallel);
# Rajbhandari et al. 2020, sections 5 and 7 (ZeRO). The parts add up to the step.


@dataclass(frozen=True)
class Step:
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
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """By name, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Stage:
    """Seconds of one stage and micro-batch."""

    compute: float
    again: float
    tensor: float

    @property
    def total(self) -> float:
        return self.compute + self.again + self.tensor


def step(
    model: Transformer, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> Step:
    """Seconds of a step of `grid.micro_batches` micro-batches a pipeline. ValueError where the grid does not divide."""
    S = grid.pipeline
    M = grid.micro_batches
    v = grid.interleave
    kinds = _stages(model, grid, machine, kernels, network)
    slowest = max(kinds, key=lambda s: s.total)
    bubble = (sum(s.total * count for s, count in kinds.items()) - slowest.total) / v
    messages = _messages(
        grid, kernels, slowest, bubble * v, _message(model, grid, machine, kernels, network)
    )
    params = max(rank_parameters(model, grid.tensor, S, s) for s in {0, S - 1})
    backward = (slowest.total - slowest.again) * 2 / 3
    return Step(
        M * slowest.compute,
        M * slowest.again,
        bubble,
        M * slowest.tensor,
        messages,
        _data(model, grid, kernels, network, params, backward),
        _optimizer(grid, machine, kernels, params),
    )


def _stages(
    model, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> dict[Stage, int]:
    """The different stages, and how many there are of each."""
    b = grid.micro_batch
    t = grid.tensor
    along = grid.along
    one = layer(model, machine, kernels, b, t, along)
    whole = one.forward - kernels.early_stop * one.last
    again = {"none": 0.0, "selective": one.attention, "full": whole}[grid.recompute]
    there, back = _tensor(model, grid, machine, kernels, network)
    ends = {
        0: embedding(model, machine, b, t, along),
        grid.pipeline - 1: head(model, machine, kernels, b, t, along),
    }
    if grid.pipeline == 1:
        ends = {
            0: Seconds(*map(sum, zip(embedding(model, machine, b, t, along), ends[0], strict=True)))
        }
    found: dict[Stage, int] = {}
    for s, layers in enumerate(stage_layers(model.layers, grid.pipeline)):
        end = ends.get(s, Seconds(0.0, 0.0))
        work = layers * (one.forward + one.backward) + end.forward + end.backward
        work += _accumulate(model, grid, machine, s)
        # of the embedding forward, of the projection's input backward
        ones = (s == 0) + (s == grid.pipeline - 1)
        stage = Stage(work, layers * again, layers * (there + back) + ones * there / 2)
        found[stage] = found.get(stage, 0) + 1
    return found


def gradient_bytes(grid: Grid) -> int:
    """Of a parameter's gradient, as it is summed up and sent: in fp32 where there is a flat buffer for it."""
    return 4 if grid.fused else PRECISIONS[grid.precision].gradient


def _accumulate(model, grid: Grid, machine: Machine, stage: int) -> float:
    """Adding a micro-batch's gradients to those of the others: read, read and write. The first has none to add to."""
    params = rank_parameters(model, grid.tensor, grid.pipeline, stage)
    nbytes = params * (PRECISIONS[grid.precision].parameter + 2 * gradient_bytes(grid))
    return (1 - 1 / grid.micro_batches) * machine.passes(nbytes, 12 * model.layers // grid.pipeline)


def _tensor(
    model, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> tuple[float, float]:
    """A layer's messages, in forward with what is recomputed, and in backward.

    Two all-reduces forward, two backward; with the sequence split as many all-gathers and reduce-scatters, and one
    all-gather a block more in backward, of what forward did not keep. Full recomputation repeats forward's, but for the
    last where it stops early.
    """
    whole = machine.dtype.itemsize * grid.micro_batch * model.context * model.hidden
    verb = lambda name: network.verb(name, grid.tensor, 1, whole)
    if grid.sequence:
        pair = verb("all_gather") + verb("reduce_scatter")
    else:
        pair = verb("all_reduce")
    return 2 * pair, 2 * pair + (grid.recompute == "full") * (2 - kernels.early_stop) * pair


def _messages(grid: Grid, kernels: Kernels, slowest: Stage, others: float, one: float) -> float:
    """What a step waits for messages between stages. others: seconds of all stages but the slowest.

    Blocking, all of them on a micro-batch's way. Else the first one's, through all chunks, and where S micro-batches
    under way are too few to keep the slowest stage busy; chunks send more, but have more under way.
    """
    S = grid.pipeline
    M = grid.micro_batches
    v = grid.interleave
    if kernels.blocking:
        return 2 * (S - 1) * one * (M * v / S + 1)
    way = 2 * (S * v - 1) * one
    return way + (M - 1) * max(0.0, (others + way - (S - 1) * slowest.total) / S) * (v == 1)


def _message(model, grid: Grid, machine: Machine, kernels: Kernels, network: Network) -> float:
    """Seconds of an activation, or its gradient, between two stages."""
    if grid.pipeline == 1:
        return 0.0
    whole = machine.dtype.itemsize * grid.micro_batch * model.context * model.hidden
    parts = grid.tensor if grid.sequence or kernels.scattered else 1
    gathered = (
        0.0 if grid.sequence or parts == 1 else network.verb("all_gather", grid.tensor, 1, whole)
    )
    return network.send(grid.tensor * grid.data, whole / parts) + gathered


def _data(
    model, grid: Grid, kernels: Kernels, network: Network, params: int, backward: float
) -> float:
    """Gradients to be averaged, and parameters to be handed out, less what the last backward hides."""
    sent, held = gradient_bytes(grid), PRECISIONS[grid.precision].parameter
    verb = lambda name, nbytes: network.verb(name, grid.data, grid.tensor, nbytes)
    times = grid.micro_batches if grid.zero >= 2 else 1
    if grid.zero == 0:
        gradients, handed = verb("all_reduce", params * sent), 0.0
    else:
        reduced = "all_reduce" if kernels.reduced_whole else "reduce_scatter"
        gradients = times * verb(reduced, params * sent)
        handed = verb("all_gather", params * held) * (1 if grid.zero < 3 else 2 * times)
    # with embedding and projection
    blocks = stage_layers(model.layers, grid.pipeline)[0] + 1 + (grid.pipeline == 1)
    hidden = times * backward * (1 - 1 / blocks) * kernels.overlap
    # parameters are gathered a block ahead, in forward, which takes half of backward's time, too
    if grid.zero == 3:
        gradients = gradients + handed
        handed = 0.0
        hidden = 1.5 * hidden
    return max(gradients - hidden, 0.0) + handed + _tied(model, grid, network)


def _tied(model, grid: Grid, network: Network) -> float:
    """The first stage's token embedding and the last one's are one parameter: their gradients are summed."""
    if not model.tied or grid.pipeline == 1:
        return 0.0
    nbytes = uneven(model.vocab, grid.tensor)[0] * model.hidden * gradient_bytes(grid)
    return network.verb("all_reduce", 2, grid.tensor * grid.data * (grid.pipeline - 1), nbytes)


def _optimizer(grid: Grid, machine: Machine, kernels: Kernels, params: int) -> float:
    """Gradients are scaled; every state of the rank's part is read and written, its parameters written."""
    per, part = PRECISIONS[grid.precision], params / (grid.data if grid.zero else 1)
    number = per.master or per.moment
    copies = 2 * (per.gradient + per.parameter + 2 * per.master) if per.master else 0
    return machine.passes(
        kernels.scaling * gradient_bytes(grid) * params + (kernels.adam * number + copies) * part,
        12,
    )


# ------------------------------------------------------------
# Every grid that fits a cluster and a batch, with its memory and its time.
#
#     tensor      within a node: its all-reduces are four a layer
#     pipeline    at most a stage a layer; interleaved where the chunks come out even and the stages divide M
#     data        what is left of the ranks; it divides the batch
#     ZeRO        0 and 1; without a pipeline also 2 and 3, which reduce, and gather, for every micro-batch
#     recompute   none, selective (where scores are kept), full.  The sequence is split wherever tensor is above 1.
#
# A rank may have what its device has, less what the driver, the libraries and holes between blocks take: `RESERVED`.


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


# ------------------------------------------------------------
# `plan`: the fastest grid that fits, what it costs, and why the others lose.
#
# Every grid (`grids`) gets its memory and its seconds; the fastest that fits wins. For each value that one decision
# could have had (tensor 1, 2, 4…) the best grid with that value is its rival, and loses for a reason: too large by so
# many bytes, or slower by so many seconds, most of them in one part of the step.


DECISIONS = "tensor", "pipeline", "interleave", "zero", "recompute", "micro_batch"


@dataclass(frozen=True)
class Cost:
    """Of a run over `tokens` tokens: steps, days, GPU-hours, and money at `rate` a GPU-hour."""

    tokens: float
    steps: float
    days: float
    gpu_hours: float
    rate: float

    @property
    def money(self) -> float:
        return self.gpu_hours * self.rate


@dataclass(frozen=True)
class Rival:
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
    def gpus(self) -> int:
        return self.cluster.size

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.best.step.total

    @property
    def mfu(self) -> float:
        done = flops(self.model, self.batch)
        return utilization(done, self.seconds, self.gpus, self.machine.peak)

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
        hours = seconds / 3600 * self.gpus
        return Cost(
            tokens, tokens / (self.batch * self.model.context), seconds / 86400, hours, rate
        )

    @cached_property
    def rivals(self) -> list[Rival]:
        """For each decision and each other value of it the best that there was, and why it loses."""
        found = []
        for decision in DECISIONS:
            chosen = getattr(self.best.grid, decision)
            by_value: dict = {}
            for one in self.estimates:
                value = getattr(one.grid, decision)
                if value != chosen and (value not in by_value or rank(one) < rank(by_value[value])):
                    by_value[value] = one
            ordered = sorted(
                by_value.items(), key=lambda item: 0 if isinstance(item[0], str) else item[0]
            )
            found += [Rival(decision, value, one, why(one, self.best)) for value, one in ordered]
        return found


def plan(
    model: Transformer | str,
    cluster: Cluster | str,
    batch: int,
    *,
    kernels: Kernels = FUSED,
    precision: str = "bf16, fp32 gradients",
    dtype: torch.dtype = torch.bfloat16,
    algorithm: str = "hierarchical",
) -> Plan:
    """The fastest grid for a step of `batch` sequences: `plan("gpt3-175b", "h100:128x8", 1536)`.

    model, cluster: as they are, or by name (`MODELS`, `cluster_of`).  kernels: the program that trains.  precision: as for `predict.states`.  algorithm: of collectives.
    Raises ValueError for a name that is unknown, for a batch that no grid divides, and where nothing fits: it says by
    how much the leanest grid is too large.
    """
    model = model_of(model) if isinstance(model, str) else model
    cluster = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if cluster.device is None:
        raise ValueError(
            f"the cluster {cluster.name!r} has no device: what a step takes cannot be said"
        )
    if batch < 1:
        raise ValueError(f"a step has at least 1 sequence, not {batch}")
    known(precision, PRECISIONS, "precision")
    machine = Machine(cluster.device, dtype, kernels.launch)
    planner = Planner(model, cluster, kernels, machine, algorithm)
    base = Grid(dropout=kernels.explicit, precision=precision)
    found = [planner.estimate(grid) for grid in grids(model, cluster, batch, base)]
    if not found:
        raise ValueError(
            f"no grid of {cluster.size} ranks divides {batch} sequences and {model.layers} layers"
        )
    best = min(found, key=rank)
    if best.over:
        raise ValueError(
            f"nothing fits: the leanest grid, with {best.total / GB:.1f} GB on a rank, "
            f"is {best.over / GB:.1f} GB too large for {best.capacity / GB:.0f}"
        )
    return Plan(model, cluster, batch, machine, best, found)


def rank(one: Estimate) -> tuple[int, float]:
    """The smaller the better: what does not fit by how much it is too large, then seconds."""
    return one.over, one.step.total


def why(one: Estimate, best: Estimate) -> str:
    """Why an estimate loses against the best."""
    if one.over:
        name, nbytes = max(one.memory.bytes.items(), key=lambda item: item[1])
        return f"too large by {one.over / GB:.1f} GB: {name} {nbytes / GB:.1f} GB"
    more = one.step.total - best.step.total
    losses = {name: s - best.step.parts[name] for name, s in one.step.parts.items()}
    name, most = max(losses.items(), key=lambda item: item[1])
    return (
        f"slower by {short(more)}: {name} +{short(most)}"
        if more > 0
        else "as fast, and found later"
    )


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
    grids: tuple[Grid, ...]
    seconds: float
    nbytes: float | None = None

    def predicted(self) -> Estimate:
        """What the planner says; of several grids, of the fastest that fits."""
        machine = Machine(self.cluster.device, torch.float16, self.kernels.launch)
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


def errors(name: str) -> Errors:
    """What the planner says of each row of a table. ValueError for a name that is none of `TABLES`."""
    if name not in TABLES:
        raise ValueError(f"the tables are {', '.join(TABLES)}, not {name!r}")
    said = [(run, run.predicted()) for run in TABLES[name]()]
    return Errors(
        name, tuple(Row(r.name, r.seconds, e.step.total, r.nbytes, e.total) for r, e in said)
    )


# ------------------------------------------------------------
# A plan for people: tables of the grid, its memory, its time, its cost and its rivals, and a picture.


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
        f"{len(found.estimates):,} grids; η = {found.machine.device.efficiency:g} of the data sheet\n"
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


# ------------------------------------------------------------
# `python -m minidist.study.plan --model gpt3-175b --cluster h100:128x8 --batch 1536`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan, or with --published the errors against published runs. 2 for what cannot be planned."""
    given = _parser().parse_args(arguments)
    try:
        if given.published:
            print("\n\n".join(errors_table(errors(name)).text for name in TABLES))
        else:
            print(text(plan(given.model, given.cluster, given.batch), given.tokens, given.rate))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minidist.study.plan", description=main.__doc__)
    parser.add_argument("--model", default="gpt3-175b", help=f"one of {', '.join(MODELS)}")
    parser.add_argument(
        "--cluster", default="h100:128x8", help="device:nodes×devices, as h100:128x8"
    )
    parser.add_argument("--batch", type=int, default=1536, help="sequences of a step")
    parser.add_argument("--tokens", type=float, default=300e9, help="of the whole run")
    parser.add_argument(
        "--rate", type=float, default=2.0, help="money a GPU-hour, an assumption to be replaced"
    )
    parser.add_argument(
        "--published", action="store_true", help="the planner against published runs, row by row"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
