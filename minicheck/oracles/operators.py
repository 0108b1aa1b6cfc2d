"""The right numbers of lesson 12's exercises, and those of mistakes. Emptied in the process of an answer.

Attention as Dao et al. 2022; the two numbers of a softmax as Milakov and Gimelshein 2018; time as Williams et al. 2009.
"""

from __future__ import annotations

import math
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import gelu

Looks = dict[str, Tensor]


def seconds(launches: int, nbytes: int, flops: int, device: dict[str, float]) -> tuple[float, str]:
    """The roofline, and the longest of its three parts."""
    parts = {
        "launch": launches * device["launch"],
        "memory": nbytes / device["bandwidth"],
        "compute": flops / device["peak"],
    }
    return parts["launch"] + max(parts["memory"], parts["compute"]), max(parts, key=parts.get)


def slope(z: Tensor) -> Tensor:
    """Of GELU."""
    return (1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density(z)


def density(z: Tensor) -> Tensor:
    """Of the normal distribution."""
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def gelu_looks(x: Tensor, b: Tensor) -> Looks:
    z = x + b
    return {
        "That is GELU of x, without the bias.": gelu(x),
        "That is the tanh approximation: erf is asked for.": gelu(z, approximate="tanh"),
        "That is x + bias: where is GELU?": z,
        "That is Φ(z): times z.": (1 + torch.erf(z * math.sqrt(0.5))) / 2,
        "Is z divided by √2 in erf?": z * (1 + torch.erf(z)) / 2,
    }


def dx_looks(dy: Tensor, x: Tensor, b: Tensor) -> Looks:
    z, phi = x + b, (1 + torch.erf((x + b) * math.sqrt(0.5))) / 2
    return {
        "The second part is missing: z·φ(z), from the slope of Φ.": dy * phi,
        "The first part is missing: Φ(z).": dy * z * density(z),
        "Backward saw x without the bias: form z = x + b again.": dy * slope(x),
        "φ lacks its 1/√(2π).": dy * (phi + z * torch.exp(-z * z / 2)),
        "It is GELU, not its slope.": dy * gelu(z),
    }


def normalizer(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The peak m and Σ exp(x − m) of each row."""
    whole = torch.cat(parts, 1)
    m = whole.amax(1)
    return m, (whole - m[:, None]).exp().sum(1)


def sums(parts: list[Tensor]) -> Looks:
    """What a wrong sum may be."""
    whole, (m, s) = torch.cat(parts, 1), normalizer(parts)
    running = []
    kept = torch.zeros_like(m)
    m_so_far = torch.full_like(m, torch.finfo(m.dtype).min)
    for part in parts:
        m_so_far = torch.maximum(m_so_far, part.amax(1))
        kept = kept + (part - m_so_far[:, None]).exp().sum(1)
        running.append(
            (part - part.amax(1).clamp(min=torch.finfo(m.dtype).min)[:, None]).exp().sum(1)
        )
    return {
        "What was summed up before a larger number came keeps its old m: rescale it.": kept,
        "That is the sum of the parts' own sums: each has its own m.": torch.stack(running).sum(0),
        "That is the last part's sum alone.": running[-1],
        "That is Σ exp(x), without m.": whole.exp().sum(1),
        "That is log s: s is asked for.": s.log(),
    }


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def attention_looks(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Looks:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    whole = len(k) // tile * tile
    own = [(some.softmax(-1) @ part) for some, part in zip(scores.split(tile, 1), v.split(tile))]
    peak = scores.cummax(1).values[:, [min(j + tile, len(k)) - 1 for j in range(0, len(k), tile)]]
    late = torch.cat([s - peak[:, [j]] for j, s in enumerate(scores.split(tile, 1))], 1).exp()
    last = peak[:, -1:]
    fixed = (scores - last).exp()
    return {
        "The scores are not divided by √d.": (q @ k.mT).softmax(-1) @ v,
        "Each tile of keys has a softmax of its own; they are added up.": sum(own),
        "It is not divided by the sum s.": fixed @ v,
        "Neither the sum nor the result so far is rescaled when a larger score comes.": late
        @ v
        / late.sum(1, keepdim=True),
        "The sum so far is not rescaled when a larger score comes.": fixed
        @ v
        / late.sum(1, keepdim=True),
        "The result so far is not rescaled when a larger score comes.": late
        @ v
        / fixed.sum(1, keepdim=True),
        "Keys later than the query are left out: all are asked for.": scores.masked_fill(
            torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf
        ).softmax(-1)
        @ v,
        "The keys that fill no whole tile are missing.": scores[:, :whole].softmax(-1) @ v[:whole],
        "Zeros that fill up the last tile count as keys: their score is 0, and should be −inf.": torch.cat(
            [scores, scores[:, : -len(k) % tile] * 0], 1
        ).softmax(-1)[:, : len(k)]
        @ v,
    }


Operator = tuple[str, str, list[str], str]


def runs(operators: list[Operator]) -> list[list[Operator]]:
    """Products alone, neighbours between them together."""
    found: list[list[Operator]] = []
    for product, some in groupby(operators, lambda one: one[1] == "product"):
        members = list(some)
        found += [[one] for one in members] if product else [members]
    return found


def reads(group: list[Operator]) -> list[str]:
    """What the operators read, one after the other."""
    return [name for one in group for name in one[2]]


def read_outside(group: list[Operator], operators: list[Operator]) -> set[str]:
    return set(reads([one for one in operators if one not in group]))


def moved(
    group: list[Operator], operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> int:
    """Bytes that a group moves, as one kernel."""
    made = {one[3] for one in group}
    outside = read_outside(group, operators) | set(wanted)
    return sum(sizes[name] for name in set(reads(group)) - made | made & outside)


def fused(
    operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> list[tuple[list[str], int]]:
    return [
        ([one[0] for one in group], moved(group, operators, sizes, wanted))
        for group in runs(operators)
    ]


def byte_looks(
    group: list[Operator], operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> dict:
    """What a wrong number of bytes may come from."""
    made, outside = {one[3] for one in group}, read_outside(group, operators)
    read = set(reads(group))
    times = [name for name in reads(group) if name not in made]
    total = lambda names: sum(sizes[name] for name in names)
    kept = made & (outside | set(wanted))
    return {
        total(
            read - made
        ): "Only what is read is counted: results that somebody outside reads are written.",
        total(times)
        + total(kept): "A tensor that is read twice in a group is read from memory once.",
        sum(
            total(one[2]) + sizes[one[3]] for one in group
        ): "That is what they move one by one: results that "
        "are read inside the group only never go to memory.",
        total(read - made)
        + total(made): "All results are counted: those that are read inside the group only "
        "stay on the chip.",
        total(read - made) + total(made & outside): "Results in `wanted` are written, too.",
        total(read - made)
        + sizes[group[-1][3]]: "Only the last result is written: another one is read outside, "
        "or wanted.",
        total(read - made) + total(made & set(wanted)): "Results that a later group reads are "
        "written, too.",
    }
