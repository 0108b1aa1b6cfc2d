"""The numbers of real machines, each with its source: a row of study/figures/hardware.csv or nccl.csv.

β of NVLink: the practical bandwidth that NCCL assumes, GB/s a link times the number of links; the bus bandwidth
measured in a ring over 8 H200 is 1.4 % below it (365.6 of 370.8 GB/s), over 8 B200 5 % (682.2 of 721.8).
α: NCCL's latency a hop for ring and the Simple protocol, the one that reaches this bandwidth (LL has a fifth of
the α, or less, and about half the bandwidth). What no row backs is called an assumption. NCCL's 14 µs of a
network hop contain one switch; the way over the spine adds two more.
"""

from __future__ import annotations

from torch import bfloat16, float16, float32, float64

from .hardware import Device, Level

TERA, GIGA = 1e12, 1e9
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
    name: str, tensor: float, single: float, double: float, memory: float, bandwidth: float
) -> Device:
    """TFLOP/s of fp16 and bf16, of fp32 and of fp64; GB; TB/s."""
    flops = {
        bfloat16: tensor * TERA,
        float16: tensor * TERA,
        float32: single * TERA,
        float64: double * TERA,
    }
    return Device(name, flops, int(memory * GIGA), bandwidth * TERA, LAUNCH)


# hardware.csv, V100 SXM: fp16, fp32, fp64. Assumptions: bf16 at the speed of fp32 (a V100 has no tensor cores
# for it: the row's note); 32 GB at 0.9 TB/s, the larger of the two that were sold.
V100 = Device(
    "V100 SXM",
    {float16: 125.0 * TERA, bfloat16: 15.7 * TERA, float32: 15.7 * TERA, float64: 7.8 * TERA},
    int(32 * GIGA),
    0.9 * TERA,
    LAUNCH,
)
# hardware.csv, by device: fp16_dense = bf16_dense, fp32, HBM_capacity, HBM_bandwidth. fp64 is an assumption
# (the makers' data sheets, without tensor cores).
A100 = gpu("A100 SXM", 312.0, 19.5, 9.7, 80.0, 2.0)
H100 = gpu("H100 SXM", 989.0, 67.0, 34.0, 80.0, 3.35)
H200 = gpu("H200 SXM", 989.0, 67.0, 34.0, 141.0, 4.8)
B200 = gpu("B200 SXM", 2250.0, 80.0, 40.0, 180.0, 8.0)


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


class Presets:
    """Clusters of machines that exist, as class methods of `Cluster`.

    nodes: how many machines.  oversubscription: how many NICs of a rack share one uplink to the spine.
    """

    @classmethod
    def uniform(
        cls,
        n: int,
        alpha: float,
        beta: float,
        device: Device | None = None,
        host: Device | None = None,
        pcie: Level | None = None,
    ):
        """`n` ranks and between any two the same link: alpha seconds a message, beta seconds a byte. Each may have a
        `host` of its own, behind `pcie`."""
        links = {"nic": Level(alpha, beta)} | ({} if pcie is None else {"pcie": pcie})
        return cls("uniform", device, links, nodes=n, host=host)

    @classmethod
    def laptop(cls, ranks: int = 8):
        """One machine of 8 cores, whose memory `ranks` processes share; each has its part of the cores."""
        return cls("laptop", LAPTOP, {"device": SHARED_MEMORY}, ranks=ranks)

    @classmethod
    def dgx1_v100(cls, nodes: int = 1, oversubscription: int = 1):
        """8 V100 a node. Its NVLinks are a cube mesh, in which some pairs have two links, some one, some none; here
        any pair has all six, as a switch would give: right for rings along the mesh, too good for the rest."""
        card = nic(100, share=2)
        return cls(
            **_dgx(
                "DGX-1 V100", V100, XEON_V4, nvlink(6, 20.0), 12.0, card, nodes, oversubscription
            )
        )

    @classmethod
    def dgx_a100(cls, nodes: int = 1, oversubscription: int = 1):
        """8 A100 (80 GB) a node behind NVSwitch, a NIC of 200 Gbit/s each."""
        return cls(
            **_dgx(
                "DGX A100", A100, EPYC, nvlink(12, 20.0), 31.0, nic(200), nodes, oversubscription
            )
        )

    @classmethod
    def dgx_h100(cls, nodes: int = 1, oversubscription: int = 1):
        """8 H100 a node behind NVSwitch, a NIC of 400 Gbit/s each."""
        return cls(
            **_dgx(
                "DGX H100",
                H100,
                XEON_8480,
                nvlink(18, 20.6),
                63.0,
                nic(400),
                nodes,
                oversubscription,
            )
        )

    @classmethod
    def dgx_h200(cls, nodes: int = 1, oversubscription: int = 1):
        """8 H200 a node behind NVSwitch, a NIC of 400 Gbit/s each."""
        return cls(
            **_dgx(
                "DGX H200",
                H200,
                XEON_8480,
                nvlink(18, 20.6),
                63.0,
                nic(400),
                nodes,
                oversubscription,
            )
        )

    @classmethod
    def dgx_b200(cls, nodes: int = 1, oversubscription: int = 1):
        """8 B200 a node behind NVSwitch, a NIC of 400 Gbit/s each."""
        return cls(
            **_dgx(
                "DGX B200",
                B200,
                XEON_8570,
                nvlink(18, 40.1),
                63.0,
                nic(400),
                nodes,
                oversubscription,
            )
        )


def _dgx(
    name: str,
    device: Device,
    host: Device,
    inside: Level,
    pcie: float,
    card: Level,
    nodes: int,
    oversubscription: int,
) -> dict:
    if oversubscription < 1:
        raise ValueError(f"at least 1 NIC has an uplink to itself, not {oversubscription}")
    tor = Level(0.0, card.beta)  # its time is in NCCL's 14 µs
    spine = Level(SPINE_ALPHA, card.beta, share=card.share * oversubscription)
    links = {
        "nvlink": inside,
        "pcie": Level(PCIE_ALPHA, 1 / (pcie * GIGA)),
        "nic": card,
        "tor": tor,
        "spine": spine,
    }
    return dict(
        name=name,
        device=device,
        host=host,
        devices=8,
        nodes=nodes,
        rack=NODES_PER_RACK,
        links=links,
    )
