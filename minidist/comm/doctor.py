"""Check what in a machine's environment would make a run fail, hang or crawl, before it starts.

    python -m minidist.comm --doctor

Each finding says what is the case, why it matters, and, where something is wrong, what to do. The exit status is 1 if
anything is. Nothing is changed. Run it on each machine, in the environment in which torchrun will run.

Sources: "Environment Variables" of NCCL's user guide; "PYTORCH ProcessGroupNCCL Environment Variables" and
ProcessGroupNCCL.hpp of PyTorch 2.13; "CUDA Environment Variables" of NVIDIA's programming guide; Megatron-Core's user
guide of Megatron-FSDP.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Mapping
from typing import NamedTuple

import torch

from .torchdist import ANYWHERE, LOOPBACK, address_of, address_towards, interfaces

GIB = 2**30


class Finding(NamedTuple):
    """what: what is the case.  why: why it matters.  do: what to do about it; "" where nothing is wrong."""

    what: str
    why: str
    do: str = ""

    def __str__(self) -> str:
        mark = "WRONG" if self.do else "ok   "
        rows = [f"{mark}  {self.what}", f"       why: {self.why}"]
        return "\n".join([*rows, f"       do: {self.do}"] if self.do else rows)


def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """All findings, for the environment that ranks would have."""
    here = interfaces()
    return [
        gloo_interface(environ, here),
        nccl_interface(environ, here),
        meeting_point(environ, here),
        shared_memory(),
        *gpus(environ),
        connections(environ),
        *variables(environ),
    ]


# ------------------------------------------------------------
# The network.


def gloo_interface(environ: Mapping[str, str], here: dict[str, str]) -> Finding:
    """Where gloo waits for other hosts. here: this host's interfaces, {address: name}."""
    listed = ", ".join(f"{name} {address}" for address, name in here.items()) or "none but loopback"
    why = "gloo waits for the other ranks at one address, which must be reached from their hosts"
    name = environ.get("GLOO_SOCKET_IFNAME")
    if name is not None:
        what = f"GLOO_SOCKET_IFNAME={name}; interfaces: {listed}"
        absent = [n for n in name.split(",") if n not in (*here.values(), "lo")]
        if absent:
            return Finding(what, why, f"unset it, or name one of these, not {', '.join(absent)}")
        if _hosts(environ) > 1 and name == "lo":
            return Finding(what, why, "unset it: other hosts cannot be reached over loopback")
        return Finding(what, why)
    host = socket.gethostname()
    own = address_of(host)
    towards = [
        here[address]
        for address in (address_towards(environ.get("MASTER_ADDR", "")), address_towards(ANYWHERE))
        if address in here
    ]
    what = f"interfaces: {listed}; GLOO_SOCKET_IFNAME is not set, and this host's name, {host}, is {own}"
    if not own.startswith(LOOPBACK):
        return Finding(f"{what} ({here.get(own, 'no interface here')}), which gloo takes", why)
    if towards or len(here) < 2 or _hosts(environ) == 1:
        taken = [*towards, *here.values(), "loopback"][0]
        return Finding(f"{what}; between hosts from_env() takes {taken}", why)
    return Finding(what, why, f"set GLOO_SOCKET_IFNAME to one of {', '.join(here.values())}")


def nccl_interface(environ: Mapping[str, str], here: dict[str, str]) -> Finding:
    """Which interfaces NCCL may take: a list of prefixes, `^` for all others, `=` for whole names."""
    why = "NCCL's ranks meet over sockets, and exchange everything over them where there is no InfiniBand"
    asked = environ.get("NCCL_SOCKET_IFNAME")
    if asked is None:
        taken = ", ".join(here.values()) or "loopback"
        return Finding(f"NCCL_SOCKET_IFNAME is not set: NCCL chooses from {taken}", why)
    taken = allowed(asked, [*here.values(), "lo"])
    what = f"NCCL_SOCKET_IFNAME={asked}: NCCL chooses from {', '.join(taken) or 'nothing'}"
    if not taken:
        return Finding(what, why, f"unset it, or name one of {', '.join(here.values()) or 'lo'}")
    if _hosts(environ) > 1 and taken == ["lo"]:
        return Finding(what, why, "unset it: other hosts cannot be reached over loopback")
    return Finding(what, why)


def allowed(asked: str, names: list[str]) -> list[str]:
    """Those of the interfaces that NCCL_SOCKET_IFNAME=`asked` lets NCCL take."""
    others = asked.startswith("^")
    words = asked.removeprefix("^")
    whole = words.startswith("=")
    listed = [word for word in words.removeprefix("=").split(",") if word]
    hit = lambda name: any(name == word if whole else name.startswith(word) for word in listed)
    return [name for name in names if hit(name) != others]


def meeting_point(environ: Mapping[str, str], here: dict[str, str]) -> Finding:
    """MASTER_ADDR and MASTER_PORT: where all ranks meet first."""
    address = environ.get("MASTER_ADDR", "127.0.0.1")
    number = environ.get("MASTER_PORT", "29500")
    what = f"MASTER_ADDR={address}, MASTER_PORT={number}"
    what += "" if "MASTER_PORT" in environ else " (torchrun's, unless told otherwise)"
    why = "rank 0 listens there, and a rank that cannot reach it waits until its timeout"
    if not number.isdecimal() or not 0 < int(number) < 2**16:
        return Finding(what, why, "set MASTER_PORT to a number from 1 to 65535, such as 29500")
    try:
        found = socket.gethostbyname(address)
    except OSError:
        return Finding(what, why, "no host is known by MASTER_ADDR: set it to rank 0's IP address")
    if found in here or found.startswith(LOOPBACK):
        if _hosts(environ) > 1 and found.startswith(LOOPBACK):
            do = "set MASTER_ADDR to rank 0's address on the network: this one is each host itself"
            return Finding(what, why, do)
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((found, int(number)))
            except OSError as error:
                do = f"choose another port, or --standalone on one machine: {error.strerror}"
                return Finding(f"{what}: this host, where the port is taken", why, do)
        return Finding(f"{what}: this host, where the port is free", why)
    try:
        socket.create_connection((found, int(number)), timeout=3).close()
    except ConnectionRefusedError:
        return Finding(f"{what}: another host, which answers; nobody listens there yet", why)
    except OSError as error:
        do = f"look at the firewall, the route and the address: {error}"
        return Finding(f"{what}: another host, which does not answer", why, do)
    return Finding(f"{what}: another host, which listens there", why)


def _hosts(environ: Mapping[str, str]) -> int:
    """How many hosts a run has, as far as torchrun has said."""
    world = _count(environ, "WORLD_SIZE", 1)
    return -(-world // _count(environ, "LOCAL_WORLD_SIZE", world))


def _count(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() and int(value) else otherwise


# ------------------------------------------------------------
# The machine.


def shared_memory(path: str = "/dev/shm", least: int = GIB) -> Finding:
    """least: bytes that its file system should have."""
    why = "NCCL, workers of a DataLoader and ranks of one machine exchange tensors in shared memory"
    if not os.path.isdir(path):
        return Finding(f"{path} is not there", why)
    disk = shutil.disk_usage(path)
    what = f"{path}: {disk.free / GIB:.2f} of {disk.total / GIB:.2f} GiB are free"
    if disk.free < least:
        do = f"give it {least / GIB:g} GiB or more; a Docker container has 64 MB without --shm-size"
        return Finding(what, why, do)
    return Finding(what, why)


def gpus(environ: Mapping[str, str]) -> list[Finding]:
    """GPUs, which of them reach one another directly, and NCCL."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = _count(environ, "LOCAL_WORLD_SIZE", 1)
    seen = environ.get("CUDA_VISIBLE_DEVICES")
    what = f"GPUs: {count}" + ("" if seen is None else f", with CUDA_VISIBLE_DEVICES={seen!r}")
    why = "NCCL wants a GPU for each rank of a machine; without GPUs ranks speak over gloo"
    if count and ranks > count:
        return [Finding(f"{what}; ranks: {ranks}", why, f"start {count} ranks on this machine")]
    if not count:
        return [Finding(what, why)]
    pairs = itertools.combinations(range(count), 2)
    apart = [f"{a}–{b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    peers = f"pairs that do not reach each other's memory: {', '.join(apart) or 'none'}"
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return [
        Finding(what, why),
        Finding(peers, "between those every message goes through the host's memory"),
        Finding(f"NCCL {version}", "all hosts of a run need the same version"),
    ]


def connections(environ: Mapping[str, str]) -> Finding:
    """CUDA_DEVICE_MAX_CONNECTIONS, of which different techniques want different values."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = environ.get(name)
    why = (
        "with 1, kernels start in the order of launching, which Megatron-LM's overlap of tensor and context "
        "parallel counts on; FSDP (ZeRO 3) and lanes (`comm.stream`) want it unset, or exchange waits for computation"
    )
    if value is None:
        return Finding(f"{name} is not set: 8 queues of work", why)
    if not value.isdecimal() or not 1 <= int(value) <= 32:
        return Finding(f"{name}={value}", why, "unset it, or set it to a number from 1 to 32")
    return Finding(f"{name}={value}", why)


# ------------------------------------------------------------
# Variables that turn something off, each with the values that do.


OFF = ("0", "N", "NO", "F", "FALSE")
ON = ("1", "Y", "YES", "T", "TRUE")
HARMFUL = [
    (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        OFF,
        "no rank ends when another has died or a call takes too long: the run waits for ever",
    ),
    ("TORCH_NCCL_BLOCKING_WAIT", ON, "the host waits in every call, and nothing overlaps"),
    (
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        OFF,
        "after a timeout nothing is written about which call each rank was in",
    ),
    ("TORCH_FR_BUFFER_SIZE", OFF, "the flight recorder is off: nobody knows where a run hangs"),
    (
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        OFF,
        "the flight recorder is off: nobody knows where a run hangs",
    ),
    ("NCCL_P2P_DISABLE", ON, "GPUs do not reach each other's memory: no NVLink"),
    ("NCCL_SHM_DISABLE", ON, "ranks of one machine speak over its network"),
    ("NCCL_IB_DISABLE", ON, "hosts speak over sockets, not InfiniBand or RoCE"),
    ("CUDA_LAUNCH_BLOCKING", ON, "the host waits for each kernel, and nothing overlaps"),
]


def variables(environ: Mapping[str, str]) -> list[Finding]:
    """Those of NCCL and of PyTorch's group over it that are set; and those that turn off what a run needs."""
    ours = [name for name in environ if name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))]
    words = ", ".join(f"{name}={environ[name]}" for name in sorted(ours)) or "none"
    found = [
        Finding(
            f"NCCL_*, TORCH_NCCL_* and TORCH_FR_* that are set: {words}", "they change what runs"
        )
    ]
    for name, values, why in HARMFUL:
        value = environ.get(name)
        if value is not None and value.upper() in values:
            found.append(Finding(f"{name}={value}", why, f"unset {name}"))
    return found
