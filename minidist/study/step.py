"""Memory and seconds of a step of training on one grid, part by part, before any run.

Kernels    what a training program's operators read, write and hide, with those of known programs
Machine    a device at what it reaches
Network    messages of a grid's groups on a cluster
Planner    memory and seconds of one grid after the other
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil
from typing import NamedTuple

import torch

from minidist.collectives.links import Net
from minidist.collectives.verbs import predict
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster, Device
from minidist.split import uneven
from minidist.study.predict import (
    GB,
    PRECISIONS,
    Grid,
    Parts,
    PerRank,
    Transformer,
    divided_states,
    expert_layers,
    in_flight,
    offload_update_seconds,
    on_host,
    owned_parameters,
    per_rank,
    stage_layers,
    total_parameters,
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
    gradients and parameters travel.  launch: seconds of an operator's start; None:
    the device's.  adam: passes over the numbers that the optimizer steps.  early_stop: recomputation ends before a
    layer's last product, whose result nobody needs.  ahead: parameters of ZeRO's first two stages are gathered beside
    the first forward.  tensor_overlap: tensor parallelism's messages go beside the products that need or make them.
    maturity: of what today's products reach, the part that these do.  native: fused attention was written for the
    device.  interference: seconds by which messages that are hidden slow what computes beside them, for each second
    that their bytes would take on the links within a node.
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
    maturity: float = 1.0
    native: bool = True
    interference: float = 0.0
    ahead: bool = False
    tensor_overlap: bool = False


MEGATRON = Kernels(
    Passes(whole=2 * (2 + 3.5), inner=2 * 4 + 2, scores=2 + 2.5, launches=7),
    Passes(whole=2 * (3 + 3.5 + 3), inner=3 * 4 + 4 + 6 + 3 + 2, scores=2.5 + 3, launches=14),
    logits=(12, 4, 20),
    maturity=0.89,
)
"""Megatron-LM, 2021. Bias and GELU in one operator, bias, dropout and residual sum in one, scale, mask and softmax in
one; dropout of the scores by itself. Narayanan et al. 2021, section 4.2. Its maturity is fitted (`study.fit`)."""

MEGATRON_2022 = replace(MEGATRON, maturity=1.0)
"""Megatron-LM of Korthikanti et al. 2022: the same operators, with today's products."""

DEEPSPEED = replace(
    MEGATRON, scattered=False, reduced_whole=True, messages=2, buckets=2 * GB, launch=100e-6
)
"""Megatron-DeepSpeed, 2022. The same layers; every tensor-parallel rank sends its copy of an activation to the next
stage, and keeps it. Two buckets of 5·10⁸ numbers in 16 bits, for what is reduced and for what is gathered (DeepSpeed's
defaults of reduce_bucket_size and allgather_bucket_size; tr11-176B-ml.slurm sets neither). BLOOM ran with
CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm: "do not remove"), so no operator was launched ahead. Assumption: then each
takes the host 0.1 ms, from Python to the end of its launch."""

INTERFERENCE = 0.45
"""Fitted (`study.fit`). NCCL's kernels take processors and memory from those of the model, the more the faster the links
are: by bytes, not by seconds, of which a slow network has many."""

FUSED = Kernels(
    Passes(whole=2 * (2 + 3), inner=2 * 4, scores=2, launches=5),
    Passes(whole=2 * (3 + 1 + 3), inner=3 * 4 + 4 + 6 + 3, scores=3, launches=11),
    logits=(6, 3, 10),
    overlap=True,
    blocking=False,
    interference=INTERFERENCE,
)
"""As one would train today: no dropout, gradients reduced beside the last backward. Where attention is explicit, scale,
mask and softmax are one operator."""

CORE = replace(FUSED, logits=(12, 4, 20), ahead=True, tensor_overlap=True)
"""Megatron-Core, 2024: as FUSED, with Megatron's loss; parameters are gathered beside the first forward
(--overlap-param-gather), and tensor parallelism's messages go beside products (--tp-comm-overlap)."""

FSDP = replace(FUSED, adam=20, native=False, ahead=True)
"""LLM Foundry, 2023: PyTorch's FSDP, attention in Triton (`attn_impl` of its benchmarks), and an AdamW of single
operators, with the twenty passes that PyTorch's own without fusion takes (docs/h100.csv)."""

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

    def narrow_product(self, m: int, n: int, k: int) -> float:
        """The same of one product in 8 bits. ValueError for a device that has none."""
        return self.launch + self.device.product(m, n, k, 1, torch.float8_e4m3fn)

    def attention(self, heads: int, tokens: int, d: int, backward: bool = False) -> float:
        """Seconds of one operator: causal fused attention of `heads` heads, of all sequences, of d numbers each."""
        return self.launch + self.device.fused_attention(
            heads, tokens, tokens, d, self.dtype, backward=backward, native=self.native
        )


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
        self.verb = cache(self._verb)
        self.edge = cache(self._edge)

    def link(self, dst: int, src: int, senders: int | None = None) -> Link:
        """α and β between two ranks while all others send as they do; or, with `senders`, so many neighbours."""
        levels = [self.cluster.links[name] for name in self.cluster.levels(src, dst)]
        most = max(level.share for level in levels) if senders is None else senders
        return Link(
            sum(level.alpha for level in levels),
            max(level.beta * min(level.share, most) for level in levels),
        )

    def _net(self, n: int, stride: int) -> Net:
        return Net(n, lambda dst, src: self.link(dst * stride, src * stride))

    def _verb(self, verb: str, n: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of `nbytes` in all among n ranks, `stride` apart; 0 for one rank."""
        if n == 1 or not nbytes:
            return 0.0
        # each sends to each at once: no other way is faster
        algorithm = "naive" if verb == "all_to_all" else self.algorithm
        return predict(self.net(n, stride), verb, nbytes, algorithm, self.gamma)

    def inside(self, verb: str, n: int, nbytes: float) -> float:
        """Seconds that the bytes a rank sends of a collective would take on the links within a node."""
        levels = self.cluster.links
        near = levels.get("nvlink") or levels.get("pcie") or levels.get("device")
        if n == 1 or near is None:
            return 0.0
        times = 2 if verb == "all_reduce" else 1
        return times * (n - 1) / n * nbytes * near.beta

    def _edge(self, first: int, second: int, width: int) -> set[Link]:
        """The links from `width` ranks, from `first` on, to those from `second` on, each kind once.

        Only these send over this edge, so no more of them than there are share a wire.
        """
        node = self.cluster.ranks * self.cluster.devices
        step = 1 if width % node else node  # whole nodes: all ranks of one send alike
        return {self.link(second + i, first + i, width) for i in range(0, width, step)}

    def send(self, first: int, second: int, width: int, nbytes: float) -> float:
        """Seconds of messages over an `edge`: of the slowest of them."""
        return max(link.alpha + nbytes * link.beta for link in self.edge(first, second, width))


# ------------------------------------------------------------
# Memory and seconds of a grid, part by part, before any run: nothing here is taken from one.
#
# A product of (tokens, k) by (k, n) has two in its backward, for the input (tokens, n)·(n, k) and for the weight
# (n, tokens)·(tokens, k). Fused attention forms the scores once more in its backward: 5 products for 2.
#
# Stage s works f_s + b_s on a micro-batch, messages of tensor parallelism among them; c_e is a message over edge e, from
# a stage to the next, C that of the slowest edge. Of 1F1B with v chunks a stage, s* the slowest stage:
#
#     M·t_s*                     compute, and tensor parallelism's messages
#     Σ t_s / v, s ≠ s*          bubble: the pipeline fills and drains
#     2·Σ c_e + 2C·(S−1)·M·v/S   pipeline: a micro-batch goes down and comes back, S of them are under way. Where
#                                messages do not block, 2·Σ c_e and what the slowest stage cannot make up for
#     data, optimizer            gradients and parameters of ZeRO's stage; the update
#
# Sources: Shoeybi et al. 2019, section 3 (sizes); Dao et al. 2022, "FlashAttention", section 3; Narayanan et al. 2021,
# section 2.2; Korthikanti et al. 2022, section 4 (recomputation, sequence parallel); Rajbhandari et al. 2020, sections 5
# and 7 (ZeRO). The parts add up to the step.


class Step(NamedTuple):
    """Seconds of a step. recomputation: forwards done again. tensor, pipeline, data: messages that nothing hides.

    Those of experts and of context parallelism, which are within a layer too, count with tensor's.
    """

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


def together(first: Messages, second: Messages) -> Messages:
    """One after the other."""
    return Messages(first.seconds + second.seconds, first.inside + second.inside)


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
    groups = (grid.holders > 1) + (grid.tensor > 1) + 2 * (grid.pipeline > 1)
    groups += grid.context_ranks > 1
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
    """A model on a cluster, trained by `kernels` on `machine`: memory and seconds of one grid after the other.

    context_ranks: of the grids that it weighs itself; for others it has a Planner of their own.
    """

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        kernels: Kernels,
        machine: Machine,
        algorithm: str = "hierarchical",
        context_ranks: int = 1,
    ):
        self.model = model
        self.context_ranks = context_ranks
        self.tokens = model.context // context_ranks  # of a sequence, on one rank
        self.cluster = cluster
        self.kernels = kernels
        self.machine = machine
        self.network = Network(cluster, algorithm, kernels.combine * machine.device.moving(1))
        self._layer = cache(self._one_layer)
        self._ends = cache(self._both_ends)
        self._others = cache(partial(Planner, model, cluster, kernels, machine, algorithm))

    def estimate(self, grid: Grid) -> Estimate:
        """Memory and time of one grid. ValueError where it does not divide the model."""
        if grid.context_ranks != self.context_ranks:
            return self._others(grid.context_ranks).estimate(grid)
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
        if grid.context_ranks != self.context_ranks:
            return self._others(grid.context_ranks).step(grid)
        S = grid.pipeline
        M = grid.micro_batches
        stages = self._stages(grid)
        slowest = max(stages, key=lambda stage: stage.total)
        others = sum(stage.total for stage in stages) - slowest.total
        parts = max((divided_states(self.model, grid, s) for s in (0, S - 1)), key=total_parameters)
        forward = (slowest.total - slowest.again) / 3
        return Step(
            compute=M * slowest.compute,
            recomputation=M * slowest.again,
            bubble=others / grid.interleave,
            tensor=M * slowest.tensor,
            pipeline=self._pipeline(grid, [stage.total for stage in stages]),
            data=self._data(grid, parts, forward, slowest.total - forward),
            optimizer=self._optimizer(grid, parts),
        )

    def _activation_bytes(self, batch: int) -> int:
        """Of what one layer hands to the next."""
        return self.machine.dtype.itemsize * batch * self.tokens * self.model.hidden

    def _one_layer(
        self, batch: int, tensor: int, along: int, attention: str, bits: int = 16
    ) -> Layer:
        """One layer on `batch` sequences. along: over how many ranks what is whole is split (sequence parallel)."""
        model = self.model
        machine = self.machine
        kernels = self.kernels
        tokens = batch * self.tokens
        shapes = self._shapes(tensor)
        forward = sum(machine.product(tokens, n, k) for n, k in shapes)
        backward = sum(
            machine.product(tokens, k, n) + machine.product(n, k, tokens) for n, k in shapes
        )
        if bits == 8:
            forward, backward = self._narrow(tokens, shapes)
        products, their_backward = self._attention(batch, tensor, attention)
        x = self._activation_bytes(batch)
        scores = machine.dtype.itemsize * batch * model.heads // tensor * model.context**2
        scores *= attention == "explicit"

        def beside(passes: Passes) -> float:
            nbytes = passes.whole * x / along + passes.inner * x / tensor + passes.scores * scores
            return machine.passes(nbytes, passes.launches)

        forward += products + beside(kernels.forward)
        product = machine.narrow_product if bits == 8 else machine.product
        last = product(tokens, *shapes[-1])
        again = {
            "none": 0.0,
            "selective": products + machine.passes(kernels.forward.scores * scores, 2),
            "full": forward - kernels.early_stop * last,
        }
        return Layer(forward, backward + their_backward + beside(kernels.backward), again)

    def _narrow(self, tokens: int, shapes: list[tuple[int, int]]) -> tuple[float, float]:
        """Products in 8 bits, forward and backward, with the rounding of what they multiply.

        x and dy are read twice, for their amax and to be rounded, and written twice, as they are and transposed: 6 bytes a
        number; the weight is read twice and written, and in backward once more: 5 and 3. Two operators for each.
        """
        machine = self.machine
        forward = backward = 0.0
        for n, k in shapes:
            forward += machine.narrow_product(tokens, n, k)
            forward += machine.passes(6 * tokens * k + 5 * n * k, 4)
            backward += machine.narrow_product(tokens, k, n) + machine.narrow_product(n, k, tokens)
            backward += machine.passes(6 * tokens * n + 3 * n * k, 3)
        return forward, backward

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

    def _attention(self, batch: int, tensor: int, attention: str) -> tuple[float, float]:
        """The products of queries with keys, and of weights with values: forward, backward."""
        machine = self.machine
        t = self.tokens
        d = self.model.hidden // self.model.heads
        heads = batch * self.model.heads // tensor
        if attention == "explicit":
            scores = machine.product(t, t, d, heads)
            output = machine.product(t, d, t, heads)
            return scores + output, scores + 3 * output
        # of a ring's T²/2c pairs each rank has as many as c causal blocks of its own tokens
        c = self.context_ranks
        return c * machine.attention(heads, t, d), c * machine.attention(heads, t, d, backward=True)

    def _ring(self, grid: Grid) -> tuple[float, float]:
        """What a layer waits for blocks of keys and values, in forward, and in backward with what is recomputed.

        A block is on its way while one is computed. Backward, its gradients travel behind it, in 32 bits.
        """
        c = self.context_ranks
        if c == 1:
            return 0.0, 0.0
        nbytes = 2 * self._activation_bytes(grid.micro_batch) // self.model.hidden
        nbytes *= self.model.kv // grid.tensor
        gradients = nbytes // self.machine.dtype.itemsize * 4
        ring = Network(self.cluster, "ring", 0.0)
        computed = self._attention(grid.micro_batch, grid.tensor, grid.attention)
        there, back = (
            max(0.0, ring.verb("all_gather", c, grid.tensor, c * moved) - (c - 1) / c * block)
            for moved, block in zip((nbytes, nbytes + gradients), computed)
        )
        return there, back + (grid.recompute == "full") * there

    def _both_ends(self, batch: int, tensor: int, along: int) -> tuple[float, float]:
        """The embedding, and the head: the last norm, the projection to V/t words, and the loss.

        The embedding is two look-ups, their masks and their sum; its backward writes a gradient of all words.
        """
        machine, hidden = self.machine, self.model.hidden
        tokens = batch * self.tokens
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
        layer = self._layer(*sizes, grid.attention, grid.bits)
        embedding, head = self._ends(*sizes)
        there, back = self._tensor(grid)
        waits = sum(self._ring(grid))
        stages = []
        for s, layers in enumerate(stage_layers(model.layers, grid.pipeline)):
            first = s == 0
            last = s == grid.pipeline - 1
            compute = layers * (layer.forward + layer.backward) + first * embedding + last * head
            # a micro-batch's gradients are added to those of the others: read, read and write; the first has none
            parts = divided_states(model, grid, s)
            added = owned_parameters(parts) if grid.zero >= 2 else total_parameters(parts)
            nbytes = added * (PRECISIONS[grid.precision].parameter + 2 * gradient_bytes(grid))
            adding = self.machine.passes(nbytes, 12 * model.layers // grid.pipeline)
            compute += (1 - 1 / grid.micro_batches) * adding
            # messages of the embedding's forward, and of the projection's input in backward
            tensor = layers * (there + back + waits) + (first + last) * there / 2
            again = layers * layer.again[grid.recompute]
            with_experts = expert_layers(model, grid.pipeline, s)
            if with_experts:
                forward, backward, exchange = self._experts(grid)
                full = grid.recompute == "full"
                compute += with_experts * (forward + backward)
                again += with_experts * full * forward
                tensor += with_experts * (4 + 2 * full) * exchange
                tensor += with_experts * (model.top_k - 1) * (there + back) / 2
            stages.append(Stage(compute, again, tensor))
        return stages

    def _experts(self, grid: Grid) -> tuple[float, float, float]:
        """Seconds of a layer of experts beside a plain one, forward and backward, and of one all-to-all of its rows.

        All experts are asked for alike: top_k rows a token, from all ranks that share them out.
        """
        model = self.model
        machine = self.machine
        assert model.experts is not None
        tokens = grid.micro_batch * model.context
        own = ceil(model.experts / grid.expert)
        rows = ceil(tokens * model.top_k / own)
        forward = backward = 0.0
        for n, k in self._shapes(grid.tensor)[2:]:
            for count, m in ((own, rows), (-1, tokens)):
                forward += count * machine.product(m, n, k)
                backward += count * (machine.product(m, k, n) + machine.product(n, k, m))
        whole = self._activation_bytes(grid.micro_batch)
        moved = model.top_k * whole
        inside = (model.top_k - 1) * whole / grid.tensor  # GELU and biases, of top_k MLPs for one
        # rows are sorted, put together for each expert, put back and summed: each time read and written
        forward += machine.passes(10 * moved + self.kernels.forward.inner * inside, 40)
        backward += machine.passes(12 * moved + self.kernels.backward.inner * inside, 40)
        exchange = self.network.verb("all_to_all", grid.expert, grid.tensor, moved)
        return forward, backward, exchange

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
        tokens = grid.micro_batch * self.tokens
        products = [self.machine.product(tokens, n, k) for n, k in self._shapes(grid.tensor)]
        part = 1 - 1 / grid.tensor
        there = sum(
            self._shown(message, min(part * message.seconds, product))
            for message, product in zip(messages * 2, products)
        )
        gather = messages[0]
        more = sum(self._shown(gather, min(part * gather.seconds, products[i])) for i in (0, 2))
        return there, (1 + again / 2) * there + more

    def _pipeline(self, grid: Grid, stages: list[float]) -> float:
        """What a step waits for messages between stages. stages: seconds of each and micro-batch.

        Blocking, all of them on a micro-batch's way, and the slowest edge's with each micro-batch. Else the first one's,
        through all chunks, and with each micro-batch by how much longer than the slowest stage it takes until the next
        can follow: from stage s to the end and back S − s of them are under way (chunks send more, but have more under
        way), and an edge takes one message at a time.
        """
        S = grid.pipeline
        M = grid.micro_batches
        v = grid.interleave
        if S == 1:
            return 0.0
        edges, wrap = self._edges(grid)
        if self.kernels.blocking:
            return 2 * sum(edges) + 2 * (S - 1) / S * M * v * max(edges)
        if v > 1:
            way = v * sum(edges) + (v - 1) * wrap
            return 2 * way + (M - 1) * max(0.0, v * max(*edges, wrap) - max(stages))
        turns = [(sum(stages[s:]) + 2 * sum(edges[s:])) / (S - s) for s in range(S)]
        return 2 * sum(edges) + (M - 1) * (max(*turns, *edges, *stages) - max(stages))

    def _edges(self, grid: Grid) -> tuple[list[float], float]:
        """Seconds of a message from each stage to the next, and from the last to the first, whose next chunk it is for.

        A stage's ranks are neighbours, so some edges lie within a node where others lead out of it.
        """
        width = grid.tensor * grid.holders
        whole = self._activation_bytes(grid.micro_batch)
        parts = grid.tensor if grid.sequence or self.kernels.scattered else 1
        gather = 0.0
        if parts > 1 and not grid.sequence:
            gather = self.network.verb("all_gather", grid.tensor, 1, whole)
        ends = [(s * width, (s + 1) % grid.pipeline * width) for s in range(grid.pipeline)]
        *edges, wrap = [gather + self.network.send(*end, width, whole / parts) for end in ends]
        return edges, wrap

    def _data(self, grid: Grid, parts: Parts, forward: float, backward: float) -> float:
        """Gradients to be averaged, and parameters to be handed out, less what `forward` and `backward` hide.

        forward, backward: seconds of a micro-batch, on the slowest stage.
        """
        kernels = self.kernels
        gradients = self._averaging(grid, parts)
        parameters = Messages(0.0, 0.0)
        if grid.zero:
            nbytes = PRECISIONS[grid.precision].parameter
            parameters = self._among_holders("all_gather", grid, parts, nbytes)
        # of the blocks, with embedding and projection, nothing computes beside the first one's parameters and the
        # last one's gradients
        blocks = stage_layers(self.model.layers, grid.pipeline)[0] + 1 + (grid.pipeline == 1)
        part = 1 - 1 / blocks
        beside_forward = part * forward * (kernels.overlap if grid.zero == 3 else kernels.ahead)
        beside_backward = part * backward * kernels.overlap
        if grid.zero == 3:
            both = together(parameters, gradients)
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
            stride = grid.tensor * grid.holders * (grid.pipeline - 1)
            seconds += self.network.verb("all_reduce", 2, stride, nbytes * gradient_bytes(grid))
        return seconds

    def _averaging(self, grid: Grid, parts: Parts) -> Messages:
        """Of all gradients, once: with ZeRO among the shards, then each shard over its replicas.

        Shards are neighbours: of t·shards ranks, as many as a node has or fewer, none sends its whole out of the node.
        So are ranks that share out experts, whose gradients are averaged over those who hold the same.
        """
        nbytes = gradient_bytes(grid)
        if not grid.zero or self.kernels.reduced_whole:
            parts = [(params, ranks * grid.replicas) for params, ranks in parts]
            return self._among_holders("all_reduce", grid, parts, nbytes)
        within = self._among_holders("reduce_scatter", grid, parts, nbytes)
        stride = grid.tensor * grid.shards
        nbytes *= total_parameters(parts)
        across = self._messages("all_reduce", grid.replicas, stride, nbytes / grid.shards)
        return together(within, across)

    def _among_holders(self, verb: str, grid: Grid, parts: Parts, nbytes: int) -> Messages:
        """Of parameters of so many bytes each, among those who hold the same: first all but experts, then these."""
        (rest, ranks), *experts = parts
        messages = self._messages(verb, ranks, grid.tensor, rest * nbytes)
        for params, ranks in experts:
            stride = grid.tensor * grid.expert
            messages = together(messages, self._messages(verb, ranks, stride, params * nbytes))
        return messages

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

    def _optimizer(self, grid: Grid, parts: Parts) -> float:
        """Gradients are scaled; every state of the rank's part is read and written, its parameters written."""
        per = PRECISIONS[grid.precision]
        passes = self.kernels.adam * (per.master or per.moment)
        if per.master:
            passes += 2 * (per.gradient + per.parameter + 2 * per.master)
        params = total_parameters(parts)
        owned = owned_parameters(parts) if grid.zero else params
        if grid.offload:
            return self._offloaded(grid, owned)
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
