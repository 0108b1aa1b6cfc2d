"""Models and clusters: by name, by their numbers, or from a file."""

from __future__ import annotations

import re
from dataclasses import replace
from math import gcd
from typing import Any

from minidist.comm.cluster import A100, HBM, Cluster, nic
from minidist.study.predict import (
    Transformer,
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
    device = replace(A100, name="A100 SXM 40 GB", memory=int(40 * HBM), bandwidth=1.555e12)
    return replace(whole, name="DGX A100 40 GB", device=device)
