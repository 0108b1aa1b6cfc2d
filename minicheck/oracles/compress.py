"""What the exercises of lesson 23 are held against, and the same with one slip: what a wrong answer looks like.

Emptied in the process of an answer: no way to ask. Sources: Lin et al. 2018, Algorithms 4 and 5; Karimireddy et al.
2019, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Steps = list[dict[str, Tensor]]


def sent(chosen: Tensor, size: int, places: Tensor) -> Tensor:
    """A sparse vector, dense."""
    return torch.zeros(size, dtype=chosen.dtype).index_put((places,), chosen)


def compressed(
    grads: Sequence[Tensor], k: int, m: float, limit: float, n: int, slip: str = ""
) -> Steps:
    """What a rank sends, and what it keeps, in each step."""
    u = torch.zeros_like(grads[0])
    v = torch.zeros_like(grads[0])
    steps = []
    for g in grads:
        most = {"clip: limit": limit, "clip: n": limit / n}.get(slip, limit / math.sqrt(n))
        factor = most / float(g.norm())
        g = g * {"clip: none": 1.0, "clip: always": factor}.get(slip, min(1.0, factor))
        ordinary = m * u + g
        u = ordinary if slip == "ordinary" else m * (u + g)
        v = v + {"ordinary": u, "only u": u, "no correction": g}.get(slip, u + g)
        size = {"of g": g.abs(), "signed": v}.get(slip, v.abs())
        places = size.argsort(descending=True)[:k]
        values = {"zeros": 0 * v, "absolute values": v.abs()}.get(slip, v)
        chosen = sent(values[places], len(g), places)
        u = {"no masking": u, "u is cleared": 0 * u}.get(slip, u.index_fill(0, places, 0))
        v = {"v stays": v, "dropped": 0 * v}.get(slip, v.index_fill(0, places, 0))
        steps.append({"sent": chosen, "u": u, "v": v})
    return steps


def signed(
    grads: Sequence[Sequence[Tensor]], slip: str = ""
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """grads[t][r]: the averages, and each rank's error, after each step."""
    errors = [torch.zeros_like(g) for g in grads[0]]
    means = []
    kept = []
    for of in grads:
        ps = [g + (0 if slip == "not added" else e) for g, e in zip(of, errors)]
        cs = [torch.where(p < 0, -p.abs().mean(), p.abs().mean()) for p in ps]
        size = torch.stack([p.abs().mean() for p in ps]).mean()
        if slip == "one scale":
            cs = [torch.where(p < 0, -size, size) for p in ps]
        mean = sum(cs) / len(cs)
        errors = [
            {"average": p - mean, "sign": c - p, "none": 0 * p}.get(slip, p - c)
            for p, c in zip(ps, cs)
        ]
        means.append(mean)
        kept.append(errors)
    return means, kept
