"""Models and clusters: by name, by their numbers, or from a file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import torch

from minidist.comm.cluster import A100, GIGA, HBM, LEVELS, TERA, Cluster, Device, Level, nic
from minidist.study.predict import Transformer, known

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


def model_of(name: str | None = None, **numbers: Any) -> Transformer:
    """A model by its name, with some of its numbers replaced, or by its numbers alone (fields of `Transformer`; None is not
    given). ValueError for a name that is unknown, and for numbers without a name of which one is missing."""
    given = {key: value for key, value in numbers.items() if value is not None}
    if name is not None:
        return replace(known(name, MODELS, "model"), **given)
    needed = ("layers", "hidden", "heads", "vocab", "context")
    missing = [key for key in needed if key not in given]
    if missing:
        raise ValueError(
            f"a model without a name needs {', '.join(needed)}: {', '.join(missing)} missing"
        )
    return Transformer(**given)


def cluster_of(word: str) -> Cluster:
    """`h100:128x8`: 128 nodes of 8 H100; `a100:4` is `a100:4x8`; a name that ends in .toml is a file (`cluster_in`).
    ValueError for another word, device or number."""
    if word.endswith(".toml"):
        return cluster_in(word)
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


# ------------------------------------------------------------
# A cluster of one's own, in a file that says how it differs from one that is known:
#
#     like = "h100"                   # devices, links, host and what is reached, unless the file has others
#     nodes = 16
#     devices = 8                     # a node
#     [device]
#     name = "H100 NVL"
#     memory = 94                     # GiB, as the data sheet's "GB"
#     bandwidth = 3.9                 # TB/s
#     tflops = 835                    # of bf16 and fp16; fp32 stays as it is
#     efficiency = 0.6                # of the FLOP/s that large products reach
#     [links.nic]
#     gigabytes = 25                  # a second on one wire
#     microseconds = 14
#     share = 2                       # devices that have one wire together
#     [host]
#     memory = 1000                   # GB of a node


KEYS = {
    "": {"like", "name", "nodes", "devices", "device", "links", "host"},
    "device": {"name", "memory", "bandwidth", "tflops", "efficiency"},
    "host": {"memory"},
    "links": {"gigabytes", "microseconds", "share"},
}


TEXTS = {"like", "name"}


def cluster_in(path: str | Path) -> Cluster:
    """The cluster in a TOML file (above). ValueError for a file that cannot be read, a key that is none, and for what a
    `Cluster` refuses."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the cluster in {path} cannot be read: {error}") from None
    _check_keys(path, "", found)
    whole = cluster_of(f"{found.get('like')}:{found.get('nodes', 1)}x{found.get('devices', 8)}")
    device, host = whole.device, whole.host
    assert device is not None, "machines with names have devices"
    if "device" in found:
        device = _device(path, device, found["device"])
    if "host" in found:
        _check_keys(path, "host", found["host"])
        assert host is not None, "machines with names have hosts"
        host = replace(host, memory=int(found["host"].get("memory", host.memory / GIGA) * GIGA))
    links = dict(whole.links)
    for name, values in found.get("links", {}).items():
        _check_keys(path, "links", values)
        if name not in LEVELS:
            raise ValueError(f"{path}: the levels are {', '.join(LEVELS)}, not {name!r}")
        if name not in links and not {"gigabytes", "microseconds"} <= values.keys():
            raise ValueError(
                f"{path}: {found['like']} has no link {name!r}, so it needs gigabytes and microseconds"
            )
        links[name] = _level(links.get(name, Level(0.0, 0.0)), values)
    name = found.get("name", Path(path).stem)
    return replace(whole, name=name, device=device, host=host, links=links)


def _check_keys(path: str | Path, part: str, found: dict) -> None:
    """ValueError for a key that this part of a file does not have, and for what should be a number above 0."""
    for key, value in found.items():
        if key not in KEYS[part]:
            there = ", ".join(sorted(KEYS[part]))
            raise ValueError(f"{path}: {part or 'a cluster'} has {there}, not {key!r}")
        given = (
            isinstance(value, dict) or key in TEXTS or (type(value) in (int, float) and value > 0)
        )
        if not given:
            raise ValueError(f"{path}: {key} is a number above 0, not {value!r}")


def _device(path: str | Path, like: Device, values: dict) -> Device:
    _check_keys(path, "device", values)
    flops = dict(like.flops)
    if "tflops" in values:
        flops |= dict.fromkeys((torch.bfloat16, torch.float16), values["tflops"] * TERA)
    return replace(
        like,
        name=values.get("name", like.name),
        flops=flops,
        memory=int(values["memory"] * HBM) if "memory" in values else like.memory,
        bandwidth=values.get("bandwidth", like.bandwidth / TERA) * TERA,
        efficiency=values.get("efficiency", like.efficiency),
    )


def _level(like: Level, values: dict) -> Level:
    return replace(
        like,
        alpha=values["microseconds"] * 1e-6 if "microseconds" in values else like.alpha,
        beta=1 / (values["gigabytes"] * GIGA) if "gigabytes" in values else like.beta,
        share=values.get("share", like.share),
    )


# ------------------------------------------------------------
# Clusters on which published runs ran.


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
    device = replace(A100, name="A100 SXM 40 GB", memory=int(40 * HBM), bandwidth=1.555e12)
    return replace(whole, name="DGX A100 40 GB", device=device)
