"""Every number of a preset that a published row backs is that row's."""

import pytest
import torch

from minidist.comm import Cluster
from minidist.study.published import published

PRESETS = {
    "V100 SXM": Cluster.dgx1_v100,
    "A100 SXM": Cluster.dgx_a100,
    "H100 SXM": Cluster.dgx_h100,
    "H200 SXM": Cluster.dgx_h200,
    "B200 SXM": Cluster.dgx_b200,
}
ARCHITECTURE = {
    "V100 SXM": "SM70",
    "A100 SXM": "SM80",
    "H100 SXM": "SM90",
    "H200 SXM": "SM90",
    "B200 SXM": "SM100",
}
NVLINK = {
    "V100 SXM": "NVLink 2 (V100)",
    "A100 SXM": "NVLink 3 (A100)",
    "H100 SXM": "NVLink 4 (H100/H200/GH200)",
    "H200 SXM": "NVLink 4 (H100/H200/GH200)",
    "B200 SXM": "NVLink 5 (B200)",
}
CARD = {
    "V100 SXM": "IB EDR",
    "A100 SXM": "IB HDR",
    "H100 SXM": "IB NDR",
    "H200 SXM": "IB NDR",
    "B200 SXM": "IB NDR",
}


def near(x):
    return pytest.approx(x, rel=1e-12, abs=0)  # β is smaller than the absolute tolerance would be


def value(table, quantity, **where):
    """The value of the one row that fits; several sources must agree."""
    found = {
        row["value"]
        for row in published(table)
        if row["quantity"] == quantity and all(row[key] == wanted for key, wanted in where.items())
    }
    assert len(found) == 1, (table, quantity, where, found)
    return found.pop()


@pytest.mark.parametrize("gpu", PRESETS)
def test_devices(gpu):
    device = PRESETS[gpu]().device
    rows = {torch.float16: "fp16_dense", torch.bfloat16: "bf16_dense", torch.float32: "fp32"}
    if gpu == "V100 SXM":
        rows = {torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
    for dtype, quantity in rows.items():
        assert device.peak(dtype) == value("hardware", quantity, device=gpu) * 1e12
    if gpu != "V100 SXM":
        sold = {"A100 SXM": "A100 SXM 80GB"}.get(gpu, gpu)
        assert device.memory == value("hardware", "HBM_capacity", device=sold) * 10**9
        assert device.bandwidth == value("hardware", "HBM_bandwidth", device=sold) * 1e12
    assert isinstance(device.memory, int) and device.launch > 0


@pytest.mark.parametrize("gpu", PRESETS)
def test_links(gpu):
    cluster = PRESETS[gpu](nodes=8)
    links = value("hardware", "links", device=NVLINK[gpu])
    each = value("nccl", f"{ARCHITECTURE[gpu]}_NVLINK_BW") * 1e9
    card = (
        value("hardware", "4x_port", device=CARD[gpu]) / 100 * value("nccl", "NET_BW_100Gbit") * 1e9
    )
    latency = {
        hw: value("nccl", "per_hop_latency", algo="Ring", proto="Simple", hw=hw) * 1e-6
        for hw in ("NVLINK", "PCI", "NET")
    }
    assert cluster.link(0, 7) == near((latency["NVLINK"], 1 / (links * each)))
    assert cluster.link(0, 8) == near((latency["NET"], 1 / card))  # the next node, in the rack
    assert cluster.link(0, 32).alpha > cluster.link(0, 31).alpha  # the next rack
    assert cluster.link(0, 32).beta == cluster.link(0, 31).beta
    pcie = {
        "V100 SXM": value("nccl", "PCI_BW_gen3x16"),
        "A100 SXM": value("hardware", "unidirectional", device="PCIe 4 x16"),
    }
    gen5 = value("hardware", "unidirectional", device="PCIe 5 x16")
    assert cluster.links["pcie"].beta == near(1e-9 / pcie.get(gpu, gen5))
    assert cluster.links["pcie"].alpha == near(latency["PCI"])


# Sockets, cores of each, GHz, FLOP a clock (two units of 8 or 16 numbers, two FLOP each), channels, GT/s, GB.
HOSTS = {
    "V100 SXM": (2, 20, 2.2, 32, 4, 2.4, 512),
    "A100 SXM": (2, 64, 2.25, 32, 8, 3.2, 2000),
    "H100 SXM": (2, 56, 2.0, 64, 8, 4.8, 2000),
    "H200 SXM": (2, 56, 2.0, 64, 8, 4.8, 2000),
    "B200 SXM": (2, 56, 2.1, 64, 8, 5.6, 2000),
}


@pytest.mark.parametrize("gpu", PRESETS)
def test_hosts(gpu):
    cluster = PRESETS[gpu](nodes=2)
    sockets, cores, clock, each, channels, transfers, memory = HOSTS[gpu]
    host, part = cluster.host, cluster.part_of_host(0, 16)
    assert (
        host.peak(torch.float32)
        == near(sockets * cores * clock * each * 1e9)
        == 2 * host.peak(torch.float64)
    )
    assert (
        host.bandwidth == near(sockets * channels * transfers * 8e9)
        and host.memory == memory * 10**9
    )
    assert part.device.bandwidth == host.bandwidth / 8 and part.device.memory == host.memory // 8
    assert part.link == (cluster.links["pcie"].alpha, cluster.links["pcie"].beta)
    assert "Xeon" not in repr(cluster) and "EPYC" not in repr(cluster)  # which is long enough


@pytest.mark.parametrize("gpu", PRESETS)
def test_shapes(gpu):
    cluster = PRESETS[gpu](nodes=16)
    assert (cluster.size, cluster.nodes, cluster.devices, cluster.ranks) == (128, 16, 8, 1)
    assert cluster.place(127) == (3, 15, 7)
    assert cluster.links["nic"].share == (2 if gpu == "V100 SXM" else 1)
    assert PRESETS[gpu]().size == 8


def test_the_measured_bandwidth_is_near():
    """NCCL's own assumption, against the bus bandwidth of rings measured over 8 GPUs: 1.4 % and 5.5 %."""
    for cluster, hw, within in (
        (Cluster.dgx_h200(), "H200", 0.015),
        (Cluster.dgx_b200(), "B200", 0.06),
    ):
        measured = value("nccl", "busbw", hw=hw, ranks=8, algo="NVLS off (Ring)") * 1e9
        assert measured < 1 / cluster.link(0, 1).beta < measured * (1 + within)


def test_oversubscription():
    cluster = Cluster.dgx_h100(nodes=8, oversubscription=4)
    uplinks = [name for name, _ in cluster.route(5, 40).wires[2:]]
    assert uplinks == [("spine", "ranks from 4", "out"), ("spine", "ranks from 40", "in")]
    assert len(cluster.route(5, 14).wires) == 2  # within the rack
    assert len(Cluster.dgx_h100(nodes=8).route(5, 40).wires) == 2  # an uplink each
    # two NICs, two GPUs each
    assert Cluster.dgx1_v100(nodes=8, oversubscription=2).links["spine"].share == 4
    with pytest.raises(ValueError, match="not 0"):
        Cluster.dgx_h100(oversubscription=0)
    with pytest.raises(
        ValueError, match="5 ranks cannot share a wire of level 'spine', which has 32"
    ):
        Cluster.dgx_h100(nodes=8, oversubscription=5)


def test_uniform_and_laptop():
    assert Cluster.uniform(5, 2.0, 0.25).size == 5
    assert {
        Cluster.uniform(5, 2.0, 0.25).link(a, b) for a in range(5) for b in range(5) if a != b
    } == {(2.0, 0.25)}
    assert Cluster.uniform(1, 0.0, 0.0).device is None
    laptop = Cluster.laptop(ranks=4)
    assert laptop.size == 4 and laptop.place(3) == (0, 0, 0) and laptop.speed(3) == 1 / 4
    assert laptop.link(0, 3) == (20e-6, 1 / 4e9) and not laptop.links["device"].duplex
