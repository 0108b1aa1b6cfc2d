"""A modelled cluster: which devices the ranks of a World compute with, and which wires lie between two of them.

    rack 0 ── spine ── rack 1       Rank r sits on device r // ranks; so many devices make a node, so many nodes
      │ top-of-rack                 a rack. A message passes the levels between two ranks: one device, or NVLink
    node ── node ── node            (else PCIe) in a node, or NIC, top-of-rack and, between racks, the spine.
      │ NVLink, or PCIe
    device … device                 α of a route is the sum of its levels' α, β the largest of theirs.

Cut-through: N bytes start when every wire of the route is free, hold the two ports for N times the route's β and
each shared wire for N times its own, and arrive α after the last byte left (Hockney 1994 on free wires). A port
belongs to one rank and one level, so NVLink and NIC of a rank are busy apart. Switches never block: what is short
is ports, and the wires that several ranks share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from math import ceil, exp
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64

from ..arguments import number, whole
from .base import Link

# ------------------------------------------------------------
# What a cluster is made of: a `Device` computes, a `Level` says how messages travel at one distance.
#
# Both are numbers only; `Cluster` puts them together.


# From near to far; each with the name that tables show.
LEVELS = {
    "device": "same device",
    "nvlink": "NVLink/NVSwitch",
    "pcie": "PCIe",
    "nic": "NIC",
    "tor": "top-of-rack",
    "spine": "spine",
}


@dataclass(frozen=True)
class Device:
    """What a rank computes with.

    flops: peak FLOP/s of matrix products, by dtype, as its data sheet says.  memory: bytes.  bandwidth: of that
    memory, bytes/s.  launch: seconds that an operation takes to start, however small it is.
    What it reaches of that, parts from 0 to 1: efficiency, of FLOP/s, by a large product; None where nobody has measured
    it, and then a World charges all of the data sheet.  streaming, of bytes/s; None: as `efficiency`.  attention, of
    FLOP/s, by fused attention; None: as `efficiency`, whatever the sizes.  portable: what kernels that were written for
    no device in particular reach of `attention`.
    softmax: so many numbers of a head cost as much as the exponential of a score.  tiles: of a product's result, how many
    are worked on at once; 0: products have no tiles.

    ValueError for a part that is not from 0 to 1.

    >>> import torch
    >>> from minidist.comm import Device
    >>> peaks = {torch.float32: 2e12, torch.bfloat16: 8e12}
    >>> chip = Device("chip", peaks, memory=16 * 10**9, bandwidth=1e11, efficiency=0.5)
    >>> chip.peak(torch.float32), chip.computing(2e12, torch.float32), chip.moving(1e11)
    (2000000000000.0, 2.0, 2.0)
    >>> chip.ideal.computing(2e12, torch.float32)  # if it reached all of its data sheet
    1.0
    """

    name: str
    flops: dict[torch.dtype, float]
    memory: int
    bandwidth: float
    launch: float = 0.0
    efficiency: float | None = None
    tiles: int = 0
    streaming: float | None = None
    attention: float | None = None
    portable: float = 1.0
    softmax: float = 48

    def __post_init__(self):
        for name in ("efficiency", "streaming", "attention", "portable"):
            if getattr(self, name) is not None:
                number(getattr(self, name), f"the {name} of a device is from 0 to 1", 0, 1)

    def peak(self, dtype: torch.dtype | None) -> float:
        """FLOP/s at `dtype`; ValueError if the device has no figure for it.

        >>> import torch
        >>> from minidist.comm import Cluster
        >>> Cluster.dgx_h100().device.peak(torch.bfloat16)
        989000000000000.0
        """
        if dtype not in self.flops:
            known = ", ".join(str(d).removeprefix("torch.") for d in self.flops)
            raise ValueError(
                f"{self.name} has a peak for {known}, not for {str(dtype).removeprefix('torch.')}"
            )
        return self.flops[dtype]

    @property
    def ideal(self) -> Device:
        """The device that reaches all of its data sheet: the roofline as it is drawn."""
        return replace(self, efficiency=1.0, tiles=0, streaming=None, attention=None, portable=1.0)

    def part(self, of: int) -> Device:
        """One of `of` equal parts of its speed and its memory. An operation starts as fast as on the whole.

        >>> import torch
        >>> from minidist.comm import Device
        >>> chip = Device("chip", {torch.float32: 8.0}, memory=16, bandwidth=4.0)
        >>> half = chip.part(2)
        >>> half.peak(torch.float32), half.memory, half.bandwidth
        (4.0, 8, 2.0)
        """
        flops = {dtype: peak / of for dtype, peak in self.flops.items()}
        return replace(self, flops=flops, memory=self.memory // of, bandwidth=self.bandwidth / of)

    # How long a device takes: for what its memory bounds, for products of matrices, and for fused attention.
    #
    #     moving      bytes / (streaming·bandwidth)
    #     product     max(FLOPs of whole tiles in whole rounds / (efficiency·peak), moving)
    #     attention   max(4·(d + softmax)·heads·T·(columns + START) / (attention·peak), moving), columns = T/2 if causal
    #
    # What a product loses beside follows from its sizes. Its result is cut into tiles, which the processors take in
    # rounds, and the last round is not full. A tile of k steps has to be begun and ended, which takes as long as RAMP
    # steps of the fastest dtype. Where there are few tiles, k is cut into parts, each a tile of its own. A row that is not
    # a multiple of 16 bytes cannot be loaded for the tensor cores, and runs at fp32's peak.
    #
    # Attention makes its scores tile by tile: each row of tiles is begun anew, which costs as much as START columns; and
    # a score has an exponential, which costs as much as `softmax` more numbers of a head. A backward makes five products
    # for two.
    #
    # RAMP and START were fitted on one H100, by a grid search (docs/h100.csv: 123 products of 20 µs and more, 3.4 % from
    # what was measured on average, and 48 rows of attention, 2.9 %; tests/comm/test_cluster.py). They belong to the way
    # such kernels are built, and serve all devices. Sources: Williams et al. 2009, the roofline; NVIDIA, "Matrix
    # Multiplication Background User's Guide", tile and wave quantization, tensor core requirements; Osama et al. 2023,
    # "Stream-K", section 2, split products; Dao 2023, "FlashAttention-2", section 3.

    def moving(self, nbytes: float) -> float:
        """Seconds in which `nbytes` are read or written.

        >>> from minidist.comm import Device
        >>> Device("chip", {}, memory=10**9, bandwidth=4.0, streaming=0.5).moving(8)
        4.0
        """
        part = self.efficiency if self.streaming is None else self.streaming
        return nbytes / ((1.0 if part is None else part) * self.bandwidth)

    def computing(self, flops: float, dtype: torch.dtype | None) -> float:
        """Seconds of so many FLOPs in large products.

        ValueError if the device has no figure for this dtype.

        >>> import torch
        >>> from minidist.comm import Device
        >>> chip = Device("chip", {torch.float32: 4.0}, memory=10**9, bandwidth=1.0, efficiency=0.5)
        >>> chip.computing(8, torch.float32)
        4.0
        """
        if not flops:
            return 0.0
        return flops / ((1.0 if self.efficiency is None else self.efficiency) * self.peak(dtype))

    def product(self, m: int, n: int, k: int, count: int, dtype: torch.dtype | None) -> float:
        """Seconds of `count` products in one operation, (m, k) by (k, n) each, without its launch.

        ValueError if the device has no figure for this dtype.

        >>> import torch
        >>> from minidist.comm import Cluster
        >>> device = Cluster.dgx_h100().device
        >>> whole = device.product(4096, 4096, 4096, count=1, dtype=torch.bfloat16)
        >>> odd = device.product(4096, 4096, 4095, count=1, dtype=torch.bfloat16)
        >>> odd > 5 * whole  # rows of 8,190 bytes cannot be loaded for the tensor cores
        True
        """
        assert dtype is not None, "a product has operands"
        size = dtype.itemsize
        # results have 16 bits at least
        moving = self.moving(count * (size * (m * k + k * n) + max(2, size) * m * n))
        if not self.tiles:
            return max(self.computing(2 * m * n * k * count, dtype), moving)
        peak = self.peak(dtype)
        if n * size % 16 or k * size % 16:
            peak = min(peak, self.peak(torch.float32))
        # of 16 bits: what 8 gain is not in it
        start = RAMP / max(peak for kind, peak in self.flops.items() if kind.itemsize > 1)
        rounds = [
            ceil(count * ceil(m / a) * ceil(n / b) * parts / self.tiles)
            * (k / parts / peak + start)
            for a, b in TILES
            for parts in SPLITS
        ]
        part = 1.0 if self.efficiency is None else self.efficiency
        return max(2 * self.tiles * TILE * min(rounds) / part, moving)

    def fused_attention(
        self,
        heads: int,
        queries: int,
        keys: int,
        d: int,
        dtype: torch.dtype | None,
        causal: bool = True,
        backward: bool = False,
        native: bool = True,
    ) -> float:
        """Seconds of one operator, without its launch. heads: of all sequences, of d numbers each.

        native: its kernels were written for this device, not for the one before.

        ValueError if the device has no figure for this dtype.

        >>> import torch
        >>> from minidist.comm import Cluster
        >>> device = Cluster.dgx_h100().device
        >>> short = device.fused_attention(32, 4096, 4096, 128, torch.bfloat16)
        >>> long = device.fused_attention(32, 8192, 8192, 128, torch.bfloat16)
        >>> 3.5 < long / short < 4  # seconds grow with T²
        True
        """
        assert dtype is not None, "attention has operands"
        nbytes = (2 if backward else 1) * dtype.itemsize * heads * d * 2 * (queries + keys)
        flops = (10 if backward else 4) * heads * queries * keys * d
        if self.attention is None:
            return max(self.computing(flops, dtype), self.moving(nbytes))
        columns = (keys / 2 if causal else keys) + START[backward]
        flops = (10 if backward else 4) * heads * queries * columns * (d + self.softmax)
        part = self.attention * (1.0 if native else self.portable)
        return max(flops / (part * self.peak(dtype)), self.moving(nbytes))


TILES = (128, 256), (256, 128)
TILE = 128 * 256
SPLITS = 1, 2, 4, 8
RAMP = 160
START = 200, 560
"""Of attention's forward, and of its backward, in columns."""


@dataclass(frozen=True)
class Level:
    """The links of one level, all alike.

    alpha: seconds that the level adds to a message.  beta: seconds a byte on one wire.
    duplex: a wire for each direction; False: one wire, which serves one direction at a time.
    share: how many ranks, neighbours in rank order, have one wire together. With share=1 a rank has its own.

    ValueError for a negative time, and for a wire that fewer than 1 rank shares.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Cluster, Level
    >>> def program(comm):  # ranks 0 and 1 send to 2 and 3, 100 bytes each
    ...     x = torch.zeros(25)
    ...     if comm.rank < 2:
    ...         comm.send(x, comm.rank + 2)
    ...     else:
    ...         comm.recv(x, comm.rank - 2)
    >>> for share in (1, 2):  # a network card each, then one for two ranks
    ...     links = {"nvlink": Level(0.0, 0.0), "nic": Level(alpha=1.0, beta=0.01, share=share)}
    ...     print(World(4, cluster=Cluster(links=links, devices=2, nodes=2)).run(program).time)
    2.0
    3.0
    """

    alpha: float
    beta: float
    duplex: bool = True
    share: int = 1

    def __post_init__(self):
        number(self.alpha, "alpha is a number of seconds, at least 0", 0)
        number(self.beta, "beta is a number of seconds a byte, at least 0", 0)
        whole(self.share, "a wire belongs to at least 1 rank", 1)


class HostPart(NamedTuple):
    """A rank's part of the machine around its device: cores and memory, and the link to them."""

    device: Device
    link: Link


class Place(NamedTuple):
    """Where a rank sits: `rack` and `node` are counted over the cluster, `device` within the node."""

    rack: int
    node: int
    device: int


class Route(NamedTuple):
    """How messages go from one rank to another.

    alpha, beta: of the free route.  wires: what a message occupies, (name, seconds a byte) each: the sender's
    port out and the receiver's port in, then what they share with others.
    """

    alpha: float
    beta: float
    wires: tuple[tuple[tuple, float], ...]


def ends(comm, dst: int, src: int | None) -> tuple[int, int]:
    """(src, dst) of `comm.link(dst, src)`; ValueError for a rank that does not exist, or one and the same."""
    src = comm.rank if src is None else src
    for rank in (src, dst):
        if not 0 <= whole(rank, "a link goes from a rank to a rank, a whole number") < comm.size:
            raise ValueError(
                f"no link goes to rank {rank}: there are {comm.size} ranks, 0 to {comm.size - 1}"
            )
    if src == dst:
        raise ValueError(f"no link goes from rank {src} to rank {dst}, itself")
    return src, dst


# ------------------------------------------------------------
# Seeded random slow-downs: the k-th event of a rank takes the same time in every run.
#
# A run of a World must be the same bit for bit, whatever order its ranks come to their events in. So a factor
# is not drawn from a generator that all share: it is a function of (seed, kind of event, rank, k), a hash of
# the four (SplitMix64, Steele, Lea and Flood 2014) turned into a normal number z. The factor is exp(σz): its
# median is 1, and half of all events take longer.


_NORMAL = NormalDist()
_WORD = 2**64 - 1
KINDS = ("message", "operation")


def factor(sigma: float, seed: int, kind: str, rank: int, k: int) -> float:
    """By how much the time of the k-th event of `kind` (one of `KINDS`) on `rank` is multiplied."""
    word = 0
    for part in (seed, KINDS.index(kind), rank, k):
        word = _mixed(word + part)
    return exp(sigma * _NORMAL.inv_cdf((word >> 11 | 1) * 2.0**-53))  # strictly between 0 and 1


def _mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


# ------------------------------------------------------------
# The numbers of real machines, each with its source: a row of study/figures/hardware.csv or nccl.csv.
#
# β of NVLink: the practical bandwidth that NCCL assumes, GB/s a link times the number of links; the bus bandwidth
# measured in a ring over 8 H200 is 1.4 % below it (365.6 of 370.8 GB/s), over 8 B200 5 % (682.2 of 721.8).
# α: NCCL's latency a hop for ring and the Simple protocol, the one that reaches this bandwidth (LL has a fifth of
# the α, or less, and about half the bandwidth). What no row backs is called an assumption. NCCL's 14 µs of a
# network hop contain one switch; the way over the spine adds two more.


TERA, GIGA = 1e12, 1e9
# What a data sheet calls 80 GB of HBM are 80 GiB, of which CUDA offers some 99 %: PyTorch's messages of memory that is out
# name 79.15 GiB of an A100's or H100's 80, 39.59 of 40, 31.75 of a V100's 32.
HBM = 0.99 * 2**30
LAUNCH = 5e-6  # assumption: an operation of eager PyTorch on a GPU, mostly the host's work

# nccl.csv, hwLatencies, Ring, Simple: NVLINK, PCI, NET.
NVLINK_ALPHA = 3.4e-6
PCIE_ALPHA = 5.7e-6
NET_ALPHA = 14.0e-6
SPINE_ALPHA = 1e-6  # assumption: two more switches, 0.5 µs each
NET_100 = 12.0 * GIGA  # nccl.csv, NET_BW_100Gbit: bytes/s that NCCL assumes for 100 Gbit/s


def nvlink(links: int, each: float) -> Level:
    """`links` NVLinks of `each` GB/s into a switch: any pair of a node at full speed."""
    return Level(NVLINK_ALPHA, 1 / (links * each * GIGA))


def nic(gigabits: float, share: int = 1) -> Level:
    """A network card of that many Gbit/s for each `share` ranks."""
    return Level(NET_ALPHA, 1 / (gigabits / 100 * NET_100), share=share)


def gpu(
    name: str,
    tensor: float,
    single: float,
    double: float,
    memory: float,
    bandwidth: float,
    tiles: int,
    efficiency: float,
    streaming: float,
    attention: float,
    portable: float = 1.0,
    softmax: float = 48,
    eight_bits: bool = False,
) -> Device:
    """TFLOP/s of fp16 and bf16, of fp32 and of fp64; GB of HBM; TB/s; processors; and what is reached, as a `Device` has it.

    eight_bits: it has E4M3 and E5M2, at twice the rate of fp16.
    """
    flops = {
        bfloat16: tensor * TERA,
        float16: tensor * TERA,
        float32: single * TERA,
        float64: double * TERA,
    }
    if eight_bits:
        flops |= dict.fromkeys((float8_e4m3fn, float8_e5m2), 2 * tensor * TERA)
    return Device(
        name,
        flops,
        int(memory * HBM),
        bandwidth * TERA,
        LAUNCH,
        efficiency,
        tiles,
        streaming,
        attention,
        portable,
        softmax,
    )


# hardware.csv, V100 SXM: fp16, fp32, fp64. Assumptions: bf16 at the speed of fp32 (a V100 has no tensor cores
# for it: the row's note); 32 GB at 0.9 TB/s, the larger of the two that were sold.
V100 = Device(
    "V100 SXM",
    {float16: 125.0 * TERA, bfloat16: 15.7 * TERA, float32: 15.7 * TERA, float64: 7.8 * TERA},
    int(32 * HBM),
    0.9 * TERA,
    LAUNCH,
    efficiency=0.82,
    tiles=80,
    streaming=0.81,
)
# hardware.csv, by device: fp16_dense = bf16_dense, fp32, HBM_capacity, HBM_bandwidth. fp64 is an assumption
# (the makers' data sheets, without tensor cores). Then: its processors, and what is reached.
#
#     efficiency   A100, H100: fitted on published runs (study.fit). In bursts of 20 ms the products of one H100 reach 0.73,
#                  and its layers 0.68 (docs/h100.csv); a training run is long and hot. Assumptions: an H200 as an H100; a
#                  B200 as an H100, times 77.6/80.3 (hardware.csv, max_achievable_matmul_bf16); a V100 as an A100
#     streaming    0.81: the median of that H100's copies, sums, norms, GELU and AdamW. Assumption: all of them alike
#     attention    0.81: fitted on that H100's. It serves the A100, too, where it gives 0.67 of the peak for long sequences
#                  and heads of 128: FlashAttention-2 reaches 50 to 73 % (Dao 2023, abstract). Assumption: the others alike
#     portable     A100, H100: fitted (study.fit). Assumption: the others as the H100
#     eight bits   twice the 16-bit rate: 1,979 TFLOP/s of an H100 (data sheet, dense; the MFU of 27.7 % that LLM Foundry has at
#                  548 TFLOP/s, llmfoundry_mpt.csv, is of that). Assumption: the same part of it is reached
#     softmax      48: fitted on that H100's. An A100 has half of it: 128 FLOPs of products in the time of an exponential,
#                  where an H100 has about 256 (16 exponentials a clock and processor in both)
A100 = gpu("A100 SXM", 312.0, 19.5, 9.7, 80.0, 2.0, 108, 0.82, 0.81, 0.81, 0.45, 24)
H100 = gpu("H100 SXM", 989.0, 67.0, 34.0, 80.0, 3.35, 132, 0.64, 0.81, 0.81, 0.30, eight_bits=True)
H200 = gpu("H200 SXM", 989.0, 67.0, 34.0, 141.0, 4.8, 132, 0.64, 0.81, 0.81, 0.30, eight_bits=True)
B200 = gpu("B200 SXM", 2250.0, 80.0, 40.0, 180.0, 8.0, 148, 0.62, 0.81, 0.81, 0.30, eight_bits=True)


def cpus(
    name: str, cores: int, gigahertz: float, each: int, channels: int, transfers: float, memory: int
) -> Device:
    """The CPUs of a node: `each` FLOP a clock and core in fp32, half as many in fp64 (16 bits gain nothing); memory
    channels of 8 bytes, in all sockets together, at `transfers` GT/s; GB."""
    flops = cores * gigahertz * GIGA * each
    peaks = {float32: flops, float64: flops / 2, float16: flops, bfloat16: flops}
    return Device(name, peaks, int(memory * GIGA), channels * 8 * transfers * GIGA, 2e-6)


# No row has a host: assumptions, from the makers' data sheets of CPUs (cores, base clock, two AVX2 or AVX-512 units,
# channels and their clock) and of DGX systems (which CPUs, GB). 2 µs an operation, as on the laptop.
XEON_V4 = cpus("2 × Xeon E5-2698 v4", 40, 2.2, 32, 8, 2.4, 512)
EPYC = cpus("2 × EPYC 7742", 128, 2.25, 32, 16, 3.2, 2000)
XEON_8480 = cpus("2 × Xeon Platinum 8480C", 112, 2.0, 64, 16, 4.8, 2000)
XEON_8570 = cpus("2 × Xeon Platinum 8570", 112, 2.1, 64, 16, 5.6, 2000)

# Assumptions, by order of magnitude: 8 cores of 100 GFLOP/s in fp32, 16 GB of memory, 2 µs an operation.
LAPTOP = Device(
    "laptop",
    {float32: 0.8 * TERA, float64: 0.4 * TERA, bfloat16: 0.4 * TERA, float16: 0.4 * TERA},
    int(16 * GIGA),
    50 * GIGA,
    2e-6,
)
# Assumption: what `launch` takes between two processes. One core copies in or out, not both: half duplex.
SHARED_MEMORY = Level(20e-6, 1 / (4 * GIGA), duplex=False)

# Links per GPU: hardware.csv, NVLink 2 (V100) to NVLink 5 (B200), links. GB/s a link: nccl.csv, SM70_NVLINK_BW
# (V100), SM80 (A100), SM90 (H100, H200), SM100 (B200). Gbit/s of a NIC: hardware.csv, IB EDR, HDR and NDR,
# 4x_port. PCIe: nccl.csv, PCI_BW_gen3x16, and hardware.csv, PCIe 4 x16 and PCIe 5 x16, unidirectional, as
# specified, since no row says what is reached; only the host's memory is behind it where there is NVLink.
# Assumptions: four NICs in a DGX-1, so two GPUs share one, and eight in the others; four nodes in a rack.
NODES_PER_RACK = 4


# ------------------------------------------------------------
# The cluster itself: where each rank sits, and what a message between two of them takes.


@dataclass(frozen=True)
class Cluster:
    """`ranks` a device, `devices` a node, `nodes` in all, `rack` nodes a rack (all in one unless given).

    device: None counts time for messages only.  links: Level by name (`LEVELS`); what no pair needs may be missing.
    host: the cores and the memory of a node, behind the link "pcie"; see `part_of_host`. None: what a host does takes
    no time.
    The rest is set by `slow_rank`, `slow_link` and `jitter`, which return another Cluster.
    Raises ValueError for counts below 1, for links that a pair needs and that are missing, and for wires that
    would be shared across nodes (of the spine: across racks).

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> from minidist.comm import Cluster
    >>> cluster = Cluster.dgx_h100(nodes=2)
    >>> print(cluster)
    DGX H100, H100 SXM: 16 ranks = 1 a device × 8 a node × 2 nodes, 4 a rack
      level              α µs      GB/s  wires
      NVLink/NVSwitch     3.4     370.8  one a rank, both ways at once
      PCIe                5.7      63.0  one a rank, both ways at once
      NIC                14.0      48.0  one a rank, both ways at once
      top-of-rack         0.0      48.0  one a rank, both ways at once
      spine               1.0      48.0  one a rank, both ways at once
    >>> def program(comm):
    ...     all_reduce_(comm, torch.zeros(25 * 10**6, device="meta"))  # 100 MB
    >>> for n in (8, 16):  # one node, two nodes
    ...     time = World(n, cluster=cluster, device="meta").run(program).time
    ...     print(f"{1000 * time:.1f} ms")
    0.7 ms
    4.5 ms
    """

    name: str = "cluster"
    device: Device | None = None
    links: dict[str, Level] = field(default_factory=dict)
    ranks: int = 1
    devices: int = 1
    nodes: int = 1
    rack: int | None = None
    slow_ranks: dict[int, float] = field(default_factory=dict)
    slow_links: dict[tuple[int, int], float] = field(default_factory=dict)
    sigma: float = 0.0
    seed: int = 0
    host: Device | None = field(default=None, repr=False)

    def __post_init__(self):
        for what in ("ranks", "devices", "nodes", "rack"):
            if what != "rack" or self.rack is not None:
                whole(getattr(self, what), f"a cluster has at least 1 of its {what}", 1)
        needed = {("device",): self.ranks, ("nvlink", "pcie"): self.devices, ("nic",): self.nodes}
        for names, count in needed.items():
            if count > 1 and not any(name in self.links for name in names):
                raise ValueError(
                    f"the cluster has {self.size} ranks but no link {' or '.join(map(repr, names))}, "
                    f"only {list(self.links)}"
                )
        if self.host is not None and "pcie" not in self.links:
            raise ValueError(
                f"the cluster has a host, {self.host.name}, but no link 'pcie' to it, "
                f"only {list(self.links)}"
            )
        per_node = self.ranks * self.devices
        units = {"device": self.ranks, "spine": per_node * (self.rack or self.nodes)}
        for name, level in self.links.items():
            if name not in LEVELS:
                raise ValueError(f"the levels are {', '.join(LEVELS)}, not {name!r}")
            if units.get(name, per_node) % level.share:
                raise ValueError(
                    f"{level.share} ranks cannot share a wire of level {name!r}, which has "
                    f"{units.get(name, per_node)} ranks in one place"
                )

    @classmethod
    def uniform(cls, n: int, alpha: float, beta: float, device: Device | None = None) -> Cluster:
        """`n` ranks and between any two the same link: alpha seconds a message, beta seconds a byte.

        >>> from minidist.comm import Cluster
        >>> Cluster.uniform(4, alpha=1e-6, beta=1e-9).link(0, 3)
        Link(alpha=1e-06, beta=1e-09)
        """
        return cls("uniform", device, {"nic": Level(alpha, beta)}, nodes=n)

    @classmethod
    def laptop(cls) -> Cluster:
        """One machine of 8 cores, whose memory 8 processes share; each has its part of the cores.

        >>> from minidist.comm import Cluster
        >>> print(Cluster.laptop())
        laptop, laptop: 8 ranks = 8 a device × 1 a node × 1 nodes, 1 a rack
          level              α µs      GB/s  wires
          same device        20.0       4.0  one a rank, one way at a time
        """
        return cls("laptop", LAPTOP, {"device": SHARED_MEMORY}, ranks=8)

    @classmethod
    def dgx1_v100(cls, nodes: int = 1) -> Cluster:
        """8 V100 a node. Its NVLinks are a cube mesh, in which some pairs have two links, some one, some none; here
        any pair has all six, as a switch would give: right for rings along the mesh, too good for the rest.

        >>> from minidist.comm import Cluster
        >>> print(Cluster.dgx1_v100(nodes=2))
        DGX-1 V100, V100 SXM: 16 ranks = 1 a device × 8 a node × 2 nodes, 4 a rack
          level              α µs      GB/s  wires
          NVLink/NVSwitch     3.4     120.0  one a rank, both ways at once
          PCIe                5.7      12.0  one a rank, both ways at once
          NIC                14.0      12.0  2 ranks share one, both ways at once
          top-of-rack         0.0      12.0  one a rank, both ways at once
          spine               1.0      12.0  2 ranks share one, both ways at once
        """
        card = nic(100, share=2)
        return cls._dgx("DGX-1 V100", V100, XEON_V4, nvlink(6, 20.0), 12.0, card, nodes)

    @classmethod
    def dgx_a100(cls, nodes: int = 1) -> Cluster:
        """8 A100 (80 GB) a node behind NVSwitch, a NIC of 200 Gbit/s each.

        >>> from minidist.comm import Cluster
        >>> print(Cluster.dgx_a100(nodes=2))
        DGX A100, A100 SXM: 16 ranks = 1 a device × 8 a node × 2 nodes, 4 a rack
          level              α µs      GB/s  wires
          NVLink/NVSwitch     3.4     240.0  one a rank, both ways at once
          PCIe                5.7      31.0  one a rank, both ways at once
          NIC                14.0      24.0  one a rank, both ways at once
          top-of-rack         0.0      24.0  one a rank, both ways at once
          spine               1.0      24.0  one a rank, both ways at once
        """
        return cls._dgx("DGX A100", A100, EPYC, nvlink(12, 20.0), 31.0, nic(200), nodes)

    @classmethod
    def dgx_h100(cls, nodes: int = 1, oversubscription: int = 1) -> Cluster:
        """8 H100 a node behind NVSwitch, a NIC of 400 Gbit/s each; so many NICs of a rack share one uplink to the
        spine as `oversubscription` says.

        ValueError for an oversubscription below 1, and where so many do not divide the NICs of a rack.

        >>> from minidist.comm import Cluster
        >>> print(Cluster.dgx_h100(nodes=8, oversubscription=4))
        DGX H100, H100 SXM: 64 ranks = 1 a device × 8 a node × 8 nodes, 4 a rack
          level              α µs      GB/s  wires
          NVLink/NVSwitch     3.4     370.8  one a rank, both ways at once
          PCIe                5.7      63.0  one a rank, both ways at once
          NIC                14.0      48.0  one a rank, both ways at once
          top-of-rack         0.0      48.0  one a rank, both ways at once
          spine               1.0      48.0  4 ranks share one, both ways at once
        """
        inside, card = nvlink(18, 20.6), nic(400)
        return cls._dgx("DGX H100", H100, XEON_8480, inside, 63.0, card, nodes, oversubscription)

    @classmethod
    def dgx_h200(cls, nodes: int = 1) -> Cluster:
        """8 H200 a node behind NVSwitch, a NIC of 400 Gbit/s each.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_h200()
        >>> cluster.size, cluster.device.memory // 2**30
        (8, 139)
        """
        return cls._dgx("DGX H200", H200, XEON_8480, nvlink(18, 20.6), 63.0, nic(400), nodes)

    @classmethod
    def dgx_b200(cls, nodes: int = 1) -> Cluster:
        """8 B200 a node behind NVSwitch, a NIC of 400 Gbit/s each.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_b200(nodes=16)
        >>> cluster.size, cluster.levels(0, 127)
        (128, ['nic', 'tor', 'spine'])
        """
        return cls._dgx("DGX B200", B200, XEON_8570, nvlink(18, 40.1), 63.0, nic(400), nodes)

    @classmethod
    def _dgx(
        cls,
        name: str,
        device: Device,
        host: Device,
        inside: Level,
        pcie: float,
        card: Level,
        nodes: int,
        oversubscription: int = 1,
    ) -> Cluster:
        if oversubscription < 1:
            raise ValueError(f"at least 1 NIC has an uplink to itself, not {oversubscription}")
        links = {
            "nvlink": inside,
            "pcie": Level(PCIE_ALPHA, 1 / (pcie * GIGA)),
            "nic": card,
            "tor": Level(0.0, card.beta),  # its time is in NCCL's 14 µs
            "spine": Level(SPINE_ALPHA, card.beta, share=card.share * oversubscription),
        }
        return cls(name, device, links, devices=8, nodes=nodes, rack=NODES_PER_RACK, host=host)

    @property
    def size(self) -> int:
        """How many ranks there is room for."""
        return self.ranks * self.devices * self.nodes

    def _check(self, *ranks: int) -> None:
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise ValueError(
                    f"rank {rank} is not in this cluster of {self.size} ranks, 0 to {self.size - 1}"
                )

    def place(self, rank: int) -> Place:
        """(rack, node, device) of a rank; ValueError for a rank that does not exist.

        >>> from minidist.comm import Cluster
        >>> Cluster.dgx_h100(nodes=8).place(35)  # four nodes make a rack
        Place(rack=1, node=4, device=3)
        """
        self._check(rank)
        return self._places[rank]

    @cached_property
    def _places(self) -> list[Place]:
        nodes = [divmod(rank // self.ranks, self.devices) for rank in range(self.size)]
        return [Place(node // (self.rack or self.nodes), node, device) for node, device in nodes]

    @cached_property
    def _paths(self) -> dict[int, _Path]:
        """The way within a device, a node, a rack, and between racks, by these numbers; of distances that there are."""
        inside = "nvlink" if "nvlink" in self.links else "pcie"
        ways = [
            [name for name in names if name in self.links]
            for names in (("device",), (inside,), ("nic", "tor"), ("nic", "tor", "spine"))
        ]
        return {
            distance: _Path(names, [self.links[name] for name in names])
            for distance, names in enumerate(ways)
            if names
        }

    def _path(self, src: int, dst: int) -> _Path:
        self._check(src, dst)
        if src == dst:
            raise ValueError(f"there is no route from rank {src} to rank {dst}, itself")
        a, b = self._places[src], self._places[dst]
        return self._paths[0 if a == b else 1 if a.node == b.node else 2 if a.rack == b.rack else 3]

    def levels(self, src: int, dst: int) -> list[str]:
        """The levels that a message from `src` to `dst` passes, the ports' first. ValueError if they are one rank.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_h100(nodes=8)
        >>> cluster.levels(0, 7), cluster.levels(0, 8), cluster.levels(0, 32)
        (['nvlink'], ['nic', 'tor'], ['nic', 'tor', 'spine'])
        """
        return self._path(src, dst).names

    def link(self, src: int, dst: int) -> Link:
        """α and β of the free route from `src` to `dst`.

        ValueError if they are one rank, or one of them does not exist.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_h100(nodes=2)
        >>> near, far = cluster.link(0, 1), cluster.link(0, 8)
        >>> f"{1e-9 / near.beta:.1f} and {1e-9 / far.beta:.1f} GB/s"
        '370.8 and 48.0 GB/s'
        """
        path, slow = self._path(src, dst), 1.0
        if self.slow_ranks:  # a rank's own port is slow with it, no shared wire is
            slow = max(self.slow_ranks.get(src, 1.0), self.slow_ranks.get(dst, 1.0))
        whole = self.slow_links.get((src, dst), 1.0)
        port = path.levels[0]
        return Link(
            whole * (port.alpha * slow + path.alpha), whole * max(port.beta * slow, path.beta)
        )

    def route(self, src: int, dst: int) -> Route:
        """What a message from `src` to `dst` takes and occupies.

        ValueError as in `link`.

        >>> from minidist.comm import Cluster
        >>> [wire for wire, _ in Cluster.dgx1_v100(nodes=2).route(1, 8).wires]
        [('nic', 1, 'out'), ('nic', 8, 'in'),
         ('nic', 'ranks from 0', 'out'), ('nic', 'ranks from 8', 'in')]
        """
        path, (alpha, beta) = self._path(src, dst), self.link(src, dst)
        port, both = path.names[0], not path.levels[0].duplex
        wires = [
            ((port, src, "both" if both else "out"), beta),
            ((port, dst, "both" if both else "in"), beta),
        ]
        if path.shares:  # behind the ports
            wires += self._shared(path, src, dst)
        return Route(alpha, beta, tuple(wires))

    def _shared(self, path: _Path, src: int, dst: int) -> list[tuple[tuple, float]]:
        found = {}  # a bus that serves both directions and both ranks is held once
        for name, level in zip(path.names, path.levels):
            for rank, way in ((src, "out"), (dst, "in")) if level.share > 1 else ():
                first = rank // level.share * level.share
                found[name, f"ranks from {first}", way if level.duplex else "both"] = level.beta
        return list(found.items())

    def speed(self, rank: int) -> float:
        """The part of its device's speed that a rank has: 1 alone on it, less if slow or if the device is shared.

        ValueError for a rank that does not exist.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_a100().slow_rank(3, 2.0)
        >>> cluster.speed(0), cluster.speed(3)
        (1.0, 0.5)
        """
        self._check(rank)
        return 1 / (self.ranks * self.slow_ranks.get(rank, 1.0))

    def part_of_host(self, rank: int, n: int) -> HostPart:
        """What `rank` has of its host in a run of `n` ranks, and α and β of its copies. ValueError without a host.

        Those on a node divide its host equally, whether the others use their part or not; and a shared wire likewise.

        >>> from minidist.comm import Cluster
        >>> device, link = Cluster.dgx_h100().part_of_host(0, n=8)
        >>> device.memory, round(1e-9 / link.beta)  # an eighth of 2 TB, over PCIe 5
        (250000000000, 63)
        """
        if self.host is None:
            raise ValueError(f"the cluster {self.name!r} has no host: give it one, host=Device(…)")
        node, pcie = self.place(rank).node, self.links["pcie"]
        per_node = self.ranks * self.devices
        beside = min(n - node * per_node, per_node)
        return HostPart(
            self.host.part(beside), Link(pcie.alpha, pcie.beta * min(pcie.share, beside))
        )

    def noise(self, kind: str, rank: int, k: int) -> float:
        """The factor on the time of the k-th "message" or "operation" of a rank; 1 without `jitter`.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.dgx_h100().jitter(0.1, seed=1)
        >>> cluster.noise("message", rank=3, k=0) == cluster.noise("message", rank=3, k=0)
        True
        >>> Cluster.dgx_h100().noise("message", rank=3, k=0)
        1.0
        """
        return factor(self.sigma, self.seed, kind, rank, k) if self.sigma else 1.0

    def slow_rank(self, rank: int, factor: float) -> Cluster:
        """The same, but `rank` takes `factor` times as long for all it does: operations, α and β of its ports.

        ValueError for a rank that does not exist, and for a factor below 1.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.uniform(4, alpha=1.0, beta=0.25).slow_rank(2, 3.0)
        >>> cluster.link(0, 1), cluster.link(0, 2)
        (Link(alpha=1.0, beta=0.25), Link(alpha=3.0, beta=0.75))
        """
        self._check(rank)
        slower = _longer(factor, f"slow rank {rank}") * self.slow_ranks.get(rank, 1.0)
        return replace(self, slow_ranks=self.slow_ranks | {rank: slower})

    def slow_link(self, src: int, dst: int, factor: float) -> Cluster:
        """The same, but messages from `src` to `dst` (this way only) take `factor` times as long, α and β.

        ValueError for a link that does not exist, and for a factor below 1.

        >>> from minidist.comm import Cluster
        >>> cluster = Cluster.uniform(4, alpha=1.0, beta=0.25).slow_link(0, 1, 2.0)
        >>> cluster.link(0, 1), cluster.link(1, 0)
        (Link(alpha=2.0, beta=0.5), Link(alpha=1.0, beta=0.25))
        """
        self.link(src, dst)
        slower = _longer(factor, f"slow link from {src} to {dst}") * self.slow_links.get(
            (src, dst), 1.0
        )
        return replace(self, slow_links=self.slow_links | {(src, dst): slower})

    def jitter(self, sigma: float, seed: int = 0) -> Cluster:
        """The same, but the time of each message and operation is multiplied by exp(σz), z normal: see `noise`.

        ValueError for a negative sigma.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import all_reduce_
        >>> from minidist.comm import Cluster
        >>> def program(comm):
        ...     all_reduce_(comm, torch.zeros(100))
        >>> cluster = Cluster.uniform(4, alpha=1.0, beta=0.0)
        >>> first, second, other = (
        ...     World(4, cluster=cluster.jitter(0.5, seed)).run(program).time for seed in (1, 1, 2)
        ... )
        >>> first == second, first == other
        (True, False)
        """
        if not sigma >= 0:
            raise ValueError(f"the spread of a jitter is 0 or more, not {sigma}")
        return replace(self, sigma=sigma, seed=seed)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table of links: level, α in µs, GB/s of a wire, who shares it.

        >>> from minidist.comm import Cluster
        >>> Cluster.laptop().rows()
        [('level', 'α µs', 'GB/s', 'wires'),
         ('same device', '20.0', '4.0', 'one a rank, one way at a time')]
        """
        found = [("level", "α µs", "GB/s", "wires")]
        for name in filter(self.links.get, LEVELS):
            level = self.links[name]
            rate = f"{1e-9 / level.beta:,.1f}" if level.beta else "no limit"
            owners = "one a rank" if level.share == 1 else f"{level.share} ranks share one"
            ways = "both ways at once" if level.duplex else "one way at a time"
            found.append((LEVELS[name], f"{level.alpha * 1e6:,.1f}", rate, f"{owners}, {ways}"))
        return found

    def summary(self) -> str:
        """One sentence: how many of what, and what is slow.

        >>> from minidist.comm import Cluster
        >>> Cluster.dgx_a100(nodes=2).slow_rank(3, 2.0).summary()
        'DGX A100, A100 SXM: 16 ranks = 1 a device × 8 a node × 2 nodes, 4 a rack; slow: rank 3 × 2'
        """
        device = f", {self.device.name}" if self.device else ""
        what = f"{self.name}{device}: {self.size:,} ranks = {self.ranks} a device × {self.devices} a node"
        what += f" × {self.nodes:,} nodes, {self.rack or self.nodes} a rack"
        slow = [f"rank {r} × {f:g}" for r, f in self.slow_ranks.items()]
        slow += [f"{src} → {dst} × {f:g}" for (src, dst), f in self.slow_links.items()]
        noise = [f"jitter σ = {self.sigma:g}"] if self.sigma else []
        return "; ".join([what, *(f"slow: {', '.join(slow)}" for _ in slow[:1]), *noise])

    def __str__(self) -> str:
        rows = [f"  {a:<16} {b:>6} {c:>9}  {d}" for a, b, c, d in self.rows()]
        return "\n".join([self.summary(), *rows])

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        table = "".join(f"<th>{name}</th>" for name in head)
        for row in rows:
            table += "</tr><tr>" + "".join(f"<td>{cell}</td>" for cell in row)
        return f"<p>{escape(self.summary())}</p><table><tr>{table}</tr></table>"


class _Path:
    """The levels between ranks of one distance; α and β of those behind the port's, and whether ranks share wires."""

    def __init__(self, names: list[str], levels: list[Level]):
        self.names, self.levels = names, levels
        self.alpha = sum(level.alpha for level in levels[1:])
        self.beta = max((level.beta for level in levels[1:]), default=0.0)
        self.shares = any(level.share > 1 for level in levels)


def _longer(factor: float, what: str) -> float:
    """A factor of at least 1, or ValueError."""
    if not factor >= 1:
        raise ValueError(f"a {what} takes at least 1 times as long as the others, not {factor}")
    return factor
