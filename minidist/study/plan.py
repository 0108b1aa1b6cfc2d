"""What a run will take before it is run: memory, time and cost of every grid, and which is best.

plan       the fastest grid that fits a model on a cluster, and why the others lose
Planner    memory and time of one grid, part by part
text, picture, memory_table, time_table, cost_table, rivals_table   for people
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
from math import gcd
from typing import Any, NamedTuple

import torch

from minidist.collectives.links import Net
from minidist.collectives.verbs import predict
from minidist.comm.base import Link
from minidist.comm.cluster import A100, Cluster, Device, nic
from minidist.split import uneven
from minidist.study.charts import Table, stacked, table
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
#     scores   passes over (B, a/t, T, T), beside the two products that write and read them; 0 where attention is fused
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

    explicit: scores are written to memory.  logits: passes over (B, T, V/t) of the loss, forward and backward, in the
    model's own bytes, and its operators.  combine: bytes moved to sum one byte of a collective.  scattered: stages
    send an activation once, a part from each tensor-parallel rank.  overlap: gradients are reduced beside the last
    backward.  blocking: a stage waits for its messages.  reduced_whole: ZeRO's gradients are all-reduced.  messages:
    copies of its own that a stage keeps for each micro-batch under way.  launch: seconds of an operator's start; None:
    the device's.  adam: passes over the numbers that the optimizer steps.  early_stop: recomputation ends before a
    layer's last product, whose result nobody needs.  ahead: parameters of ZeRO's first two stages are gathered beside
    the first forward.  tensor_overlap: tensor parallelism's messages go beside the products that need or make them.
    maturity: of what today's products reach, the part that these do.  native: fused attention was written for the
    device.  interference: seconds by which messages that are hidden slow what computes beside them, for each second
    that their bytes would take on the links within a node.
    """

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
    early_stop: bool = False
    maturity: float = 1.0
    native: bool = True
    interference: float = 0.0
    ahead: bool = False
    tensor_overlap: bool = False


MEGATRON = Kernels(
    Passes(whole=2 * (2 + 3.5), inner=2 * 4 + 2, scores=2 + 2.5, launches=7),
    Passes(whole=2 * (3 + 3.5 + 3), inner=3 * 4 + 4 + 6 + 3 + 2, scores=2.5 + 3, launches=14),
    explicit=True,
    logits=(12, 4, 20),
    maturity=0.91,
)
"""Megatron-LM, 2021. Bias and GELU in one operator, bias, dropout and residual sum in one, scale, mask and softmax in
one; dropout of the scores by itself. Narayanan et al. 2021, section 4.2. Its maturity is fitted (`study.fit`)."""

MEGATRON_2022 = replace(MEGATRON, maturity=1.0)
"""Megatron-LM of Korthikanti et al. 2022: the same operators, with today's products."""

DEEPSPEED = replace(MEGATRON, scattered=False, reduced_whole=True, messages=2, launch=100e-6)
"""Megatron-DeepSpeed, 2022. The same layers; every tensor-parallel rank sends its copy of an activation to the next
stage, and keeps it. BLOOM ran with CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm: "do not remove"), so no operator was
launched ahead. Assumption: then each takes the host 0.1 ms, from Python to the end of its launch."""

INTERFERENCE = 0.2
"""Fitted (`study.fit`). NCCL's kernels take processors and memory from those of the model, the more the faster the links
are: by bytes, not by seconds, of which a slow network has many."""

FUSED = Kernels(
    Passes(whole=2 * (2 + 3), inner=2 * 4, scores=0, launches=5),
    Passes(whole=2 * (3 + 1 + 3), inner=3 * 4 + 4 + 6 + 3, scores=0, launches=11),
    explicit=False,
    logits=(6, 3, 10),
    overlap=True,
    blocking=False,
    interference=INTERFERENCE,
)
"""As one would train today: no dropout, FlashAttention, gradients reduced beside the last backward."""

CORE = replace(FUSED, logits=(12, 4, 20), ahead=True, tensor_overlap=True)
"""Megatron-Core, 2024: as FUSED, with Megatron's loss; parameters are gathered beside the first forward
(--overlap-param-gather), and tensor parallelism's messages go beside products (--tp-comm-overlap)."""

FSDP = replace(FUSED, adam=20, native=False, ahead=True)
"""LLM Foundry, 2023: PyTorch's FSDP, attention in Triton (`attn_impl` of its benchmarks), and an AdamW of single
operators, with the twenty passes that PyTorch's own without fusion takes (docs/h100.csv)."""

EAGER = Kernels(
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
"""minidist's layers, operator by operator: `parallelize` without dropout, as a World charges it. Without ZeRO gradients
are reduced beside the last backward. With one stage that hides them: then overlap=True. With several it hid nothing in
a World (dp 2, pp 2, tp 2: 12.0 ms a step, 11.8 where they were reduced at the end)."""


# ------------------------------------------------------------
# How long a device takes: `Device` says it, of products, fused attention, and what is bound by its memory, by the
# constants that a World charges, too. Here each operator has its launch, and kernels of their own time.


class Machine:
    """A device that computes in `dtype` with `kernels`, and reaches a part of its data sheet, whose FLOP/s are `peak`.

    Raises ValueError for a device whose efficiency nobody has measured.
    """

    def __init__(
        self, device: Device, dtype: torch.dtype = torch.bfloat16, kernels: Kernels | None = None
    ):
        if device.efficiency is None:
            raise ValueError(
                f"what {device.name} reaches of its data sheet is not known: "
                "give the device an efficiency"
            )
        kernels = FUSED if kernels is None else kernels
        self.device = replace(device, efficiency=device.efficiency * kernels.maturity)
        self.dtype = dtype
        self.native = kernels.native
        self.launch = device.launch if kernels.launch is None else kernels.launch
        self.peak = device.peak(dtype)

    def passes(self, nbytes: float, launches: int = 1) -> float:
        """Seconds of `launches` operators that read and write `nbytes` in all."""
        return launches * self.launch + self.device.moving(nbytes)

    def product(self, m: int, n: int, k: int, count: int = 1) -> float:
        """Seconds of one operator that makes `count` products, (m, k) by (k, n) each."""
        return self.launch + self.device.product(m, n, k, count, self.dtype)

    def attention(self, heads: int, tokens: int, d: int, backward: bool = False) -> float:
        """Seconds of one operator: causal fused attention of `heads` heads, of all sequences, of d numbers each."""
        return self.launch + self.device.fused_attention(
            heads, tokens, tokens, d, self.dtype, backward=backward, native=self.native
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


def dgx_a100_40gb(nodes: int) -> Cluster:
    """Nodes of 8 A100 with 40 GB at 1.555 TB/s (NVIDIA's data sheet of the A100)."""
    whole = Cluster.dgx_a100(nodes)
    device = replace(A100, name="A100 SXM 40 GB", memory=40 * GB, bandwidth=1.555e12)
    return replace(whole, name="DGX A100 40 GB", device=device)


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

    def inside(self, verb: str, n: int, nbytes: float) -> float:
        """Seconds that the bytes a rank sends of a collective would take on the links within a node."""
        levels = self.cluster.links
        near = levels.get("nvlink") or levels.get("pcie") or levels.get("device")
        if n == 1 or near is None:
            return 0.0
        times = 2 if verb == "all_reduce" else 1
        return times * (n - 1) / n * nbytes * near.beta

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


class Messages(NamedTuple):
    """Seconds of messages, and those that their bytes would take on the links within a node."""

    seconds: float
    inside: float


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


RESERVED = 5 * GB
"""Assumption: CUDA's context and the libraries' 1.5 GB, NCCL's buffers 1 GB, and what the allocator cannot use."""


@dataclass(frozen=True)
class Estimate:
    """What is predicted of a grid. memory: bytes of the fullest rank, beside those that messages between stages take.
    step: seconds.  capacity: bytes of a device."""

    grid: Grid
    memory: PerRank
    step: Step
    capacity: int
    messages: int

    @property
    def total(self) -> int:
        """Bytes of the fullest rank, with what is reserved."""
        return self.memory.total + self.messages + RESERVED

    @property
    def over(self) -> int:
        """Bytes too many; 0 where it fits."""
        return max(0, self.total - self.capacity)


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
        self.network = Network(cluster, algorithm, kernels.combine * machine.device.moving(1))

    def estimate(self, grid: Grid) -> Estimate:
        """Memory and time of one grid. ValueError where it does not divide the model."""
        ahead = 0
        if grid.pipeline > 1:
            ahead = in_flight(grid.pipeline, grid.micro_batches, interleave=grid.interleave)
        messages = self.kernels.messages * ahead * self._activation_bytes(grid.micro_batch)
        memory = per_rank(self.model, grid)
        return Estimate(grid, memory, self.step(grid), self.machine.device.memory, messages)

    def step(self, grid: Grid) -> Step:
        """Seconds of a step of `grid.micro_batches` micro-batches a pipeline."""
        S = grid.pipeline
        M = grid.micro_batches
        stages = self._stages(grid)
        slowest = max(stages, key=lambda stage: stage.total)
        others = sum(stage.total for stage in stages) - slowest.total
        params = max(rank_parameters(self.model, grid.tensor, S, s) for s in {0, S - 1})
        forward = (slowest.total - slowest.again) / 3
        return Step(
            compute=M * slowest.compute,
            recomputation=M * slowest.again,
            bubble=others / grid.interleave,
            tensor=M * slowest.tensor,
            pipeline=self._pipeline(grid, slowest, others),
            data=self._data(grid, params, forward, slowest.total - forward),
            optimizer=self._optimizer(grid, params),
        )

    def _activation_bytes(self, batch: int) -> int:
        """Of what one layer hands to the next."""
        return self.machine.dtype.itemsize * batch * self.model.context * self.model.hidden

    def _layer(self, batch: int, tensor: int, along: int) -> Layer:
        """One layer on `batch` sequences. along: over how many ranks what is whole is split (sequence parallel)."""
        model = self.model
        machine = self.machine
        kernels = self.kernels
        tokens = batch * model.context
        shapes = self._shapes(tensor)
        forward = sum(machine.product(tokens, n, k) for n, k in shapes)
        backward = sum(
            machine.product(tokens, k, n) + machine.product(n, k, tokens) for n, k in shapes
        )
        attention, its_backward = self._attention(batch, tensor)
        x = self._activation_bytes(batch)
        scores = machine.dtype.itemsize * batch * model.heads // tensor * model.context**2

        def beside(passes: Passes) -> float:
            nbytes = passes.whole * x / along + passes.inner * x / tensor + passes.scores * scores
            return machine.passes(nbytes, passes.launches)

        forward += attention + beside(kernels.forward)
        last = machine.product(tokens, *shapes[-1])
        again = {
            "none": 0.0,
            "selective": attention + machine.passes(kernels.forward.scores * scores, 2),
            "full": forward - kernels.early_stop * last,
        }
        return Layer(forward, backward + its_backward + beside(kernels.backward), again)

    def _shapes(self, tensor: int) -> list[tuple[int, int]]:
        """(columns, rows) of a layer's matrices, in order."""
        model = self.model
        up = model.width * (1 + model.gated)
        return [
            ((model.hidden + 2 * model.kv) // tensor, model.hidden),
            (model.hidden, model.hidden // tensor),
            (up // tensor, model.hidden),
            (model.hidden, model.width // tensor),
        ]

    def _attention(self, batch: int, tensor: int) -> tuple[float, float]:
        """The products of queries with keys, and of weights with values: forward, backward."""
        machine = self.machine
        t = self.model.context
        d = self.model.hidden // self.model.heads
        heads = batch * self.model.heads // tensor
        if self.kernels.explicit:
            scores = machine.product(t, t, d, heads)
            output = machine.product(t, d, t, heads)
            return scores + output, scores + 3 * output
        return machine.attention(heads, t, d), machine.attention(heads, t, d, backward=True)

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
        layer = self._layer(*sizes)
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
            nbytes /= grid.data if grid.zero >= 2 else 1
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
        the last where it stops early. Where they overlap, each is cut into a part a rank, and all but one of them go
        beside the parts of the product that needs or makes them.
        """
        if grid.tensor == 1:
            return 0.0, 0.0
        verbs = ("all_gather", "reduce_scatter") if grid.sequence else ("all_reduce",)
        whole = self._activation_bytes(grid.micro_batch)
        messages = [self._messages(verb, grid.tensor, 1, whole) for verb in verbs]
        again = (grid.recompute == "full") * (2 - self.kernels.early_stop)
        extra = 0.0
        if grid.sequence:
            extra = 2 * messages[0].seconds
        if not (self.kernels.tensor_overlap and grid.sequence):
            pair = sum(message.seconds for message in messages)
            return 2 * pair, (2 + again) * pair + extra
        tokens = grid.micro_batch * self.model.context
        products = [self.machine.product(tokens, n, k) for n, k in self._shapes(grid.tensor)]
        part = 1 - 1 / grid.tensor
        there = sum(
            self._shown(message, min(part * message.seconds, product))
            for message, product in zip(messages * 2, products)
        )
        gather = messages[0]
        more = sum(self._shown(gather, min(part * gather.seconds, products[i])) for i in (0, 2))
        return there, (1 + again / 2) * there + more

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

    def _data(self, grid: Grid, params: int, forward: float, backward: float) -> float:
        """Gradients to be averaged, and parameters to be handed out, less what `forward` and `backward` hide.

        forward, backward: seconds of a micro-batch, on the slowest stage.
        """
        kernels = self.kernels
        reduction = "reduce_scatter" if grid.zero and not kernels.reduced_whole else "all_reduce"
        gradients = self._messages(reduction, grid.data, grid.tensor, params * gradient_bytes(grid))
        parameters = Messages(0.0, 0.0)
        if grid.zero:
            nbytes = params * PRECISIONS[grid.precision].parameter
            parameters = self._messages("all_gather", grid.data, grid.tensor, nbytes)
        # of the blocks, with embedding and projection, nothing computes beside the first one's parameters and the
        # last one's gradients
        blocks = stage_layers(self.model.layers, grid.pipeline)[0] + 1 + (grid.pipeline == 1)
        part = 1 - 1 / blocks
        beside_forward = part * forward * (kernels.overlap if grid.zero == 3 else kernels.ahead)
        beside_backward = part * backward * kernels.overlap
        if grid.zero == 3:
            both = Messages(*map(sum, zip(parameters, gradients)))
            there = self._shown(parameters, beside_forward)
            back = self._shown(both, beside_backward)
            seconds = grid.micro_batches * (there + back)
        else:
            times = grid.micro_batches if grid.zero == 2 else 1
            seconds = times * self._shown(gradients, beside_backward)
            seconds += self._shown(parameters, beside_forward)
        if self.model.tied and grid.pipeline > 1:
            # the first stage's token embedding and the last one's are one parameter: their gradients are summed
            nbytes = uneven(self.model.vocab, grid.tensor)[0] * self.model.hidden
            stride = grid.tensor * grid.data * (grid.pipeline - 1)
            seconds += self.network.verb("all_reduce", 2, stride, nbytes * gradient_bytes(grid))
        return seconds

    def _messages(self, verb: str, n: int, stride: int, nbytes: float) -> Messages:
        return Messages(
            self.network.verb(verb, n, stride, nbytes), self.network.inside(verb, n, nbytes)
        )

    def _shown(self, messages: Messages, beside: float) -> float:
        """Seconds that messages add to a step of which `beside` seconds compute at the time.

        What is hidden slows what computes, as it takes processors and memory: for a byte `interference` of the time
        that it needs on the links within a node, over whatever links it goes.
        """
        hidden = min(1.0, beside / messages.seconds) if messages.seconds else 1.0
        slowed = self.kernels.interference * messages.inside
        return (1 - hidden) * messages.seconds + hidden * slowed

    def _optimizer(self, grid: Grid, params: int) -> float:
        """Gradients are scaled; every state of the rank's part is read and written, its parameters written."""
        per = PRECISIONS[grid.precision]
        passes = self.kernels.adam * (per.master or per.moment)
        if per.master:
            passes += 2 * (per.gradient + per.parameter + 2 * per.master)
        owned = params / (grid.data if grid.zero else 1)
        return self.machine.passes(2 * gradient_bytes(grid) * params + passes * owned, 12)


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
#     recompute   none, selective (where scores are kept), full.  The sequence is split wherever tensor is above 1.


MICRO_BATCHES = 1, 2, 4, 8, 16
CHUNKS = 1, 2, 3, 4, 6, 8
PRECISION = "bf16, fp32 gradients"


def grids(model: Transformer, cluster: Cluster, batch: int) -> Iterator[Grid]:
    """All grids for `batch` sequences a step."""
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
                choices = product(chunks(model, pipeline, M), stages_of_zero, RECOMPUTE)
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
                        dropout=FUSED.explicit,
                        precision=PRECISION,
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
# A rank may have what its device has, less what the driver, the libraries and holes between blocks take: `RESERVED`.


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


def plan(model: Transformer | str, cluster: Cluster | str, batch: int) -> Plan:
    """The fastest grid for a step of `batch` sequences, trained as today: `plan("gpt3-175b", "h100:128x8", 1536)`.

    model, cluster: as they are, or by name (`MODELS`, `cluster_of`). Raises ValueError for a name that is unknown, for a
    batch that no grid divides, and where nothing fits: it says by how much the leanest grid is too large.
    """
    model = known(model, MODELS, "model") if isinstance(model, str) else model
    cluster = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if cluster.device is None:
        raise ValueError(
            f"the cluster {cluster.name!r} has no device: what a step takes cannot be said"
        )
    if batch < 1:
        raise ValueError(f"a step has at least 1 sequence, not {batch}")
    machine = Machine(cluster.device)
    planner = Planner(model, cluster, FUSED, machine)
    estimates = [planner.estimate(grid) for grid in grids(model, cluster, batch)]
    if not estimates:
        raise ValueError(
            f"no grid of {cluster.size} ranks divides {batch} sequences and {model.layers} layers"
        )
    best = min(estimates, key=rank)
    if best.over:
        raise ValueError(
            f"nothing fits: the leanest grid, with {best.total / GB:.1f} GB on a rank, "
            f"is {best.over / GB:.1f} GB too large for {best.capacity / GB:.0f}"
        )
    return Plan(model, cluster, batch, machine, best, estimates)


def rank(estimate: Estimate) -> tuple[int, float]:
    """The smaller the better: what does not fit by how much it is too large, then seconds."""
    return estimate.over, estimate.step.total


def why(estimate: Estimate, best: Estimate) -> str:
    """Why an estimate loses against the best."""
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
        "reserved": RESERVED,
        "left": best.capacity - best.total,
    }
    rows = [(name, n / GB, f"{n / best.capacity:.0%}") for name, n in items.items() if n]
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


# ------------------------------------------------------------
# `python -m minidist.study.plan --model gpt3-175b --cluster h100:128x8 --batch 1536`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan. 2 for what cannot be planned."""
    parser = argparse.ArgumentParser(prog="python -m minidist.study.plan", description=main.__doc__)
    option = parser.add_argument
    option("--model", default="gpt3-175b", help=f"one of {', '.join(MODELS)}")
    option("--cluster", default="h100:128x8", help="device:nodes×devices, as h100:128x8")
    option("--batch", type=int, default=1536, help="sequences of a step")
    option("--tokens", type=float, default=300e9, help="of the whole run")
    option("--rate", type=float, default=2.0, help="money a GPU-hour, an assumption to be replaced")
    asked = parser.parse_args(arguments)
    try:
        print(text(plan(asked.model, asked.cluster, asked.batch), asked.tokens, asked.rate))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
