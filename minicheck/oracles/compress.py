"""What the exercises of lesson 23 are held against, and the same with one slip: what a wrong answer looks like.

Emptied in the process of an answer: no way to ask. Sources: Lin et al. 2018, Algorithms 4 and 5; Karimireddy et al.
2019, Algorithm 1; Wang and Joshi 2019, section 4.
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


def clip(g: Tensor, limit: float, n: int, slip: str | None) -> Tensor:
    most = {"clip: limit": limit, "clip: n": limit / n}.get(slip or "", limit / math.sqrt(n))
    if slip in ("clip: none", "clip: v"):
        return g
    if slip == "clip: numbers":
        return g.clamp(-most, most)
    factor = most / float(g.norm())
    return g * (factor if slip == "clip: always" else min(1.0, factor))


def compressed(
    grads: Sequence[Tensor], k: int, m: float, limit: float, n: int, slip: str | None = None
) -> Steps:
    """What a rank sends, and what it keeps, in each step."""
    u = torch.zeros_like(grads[0])
    v = torch.zeros_like(grads[0])
    steps = []
    for g in grads:
        g = clip(g, limit, n, slip)
        u = (
            g
            if slip == "no momentum"
            else m * u + {"lerp": 1 - m, "m times g": m}.get(slip or "", 1) * g
        )
        v = v + (g if slip in ("no correction", "no momentum") else u)
        v = clip(v, limit, n, None) if slip == "clip: v" else v
        size = {"of g": g.abs(), "of u": u.abs(), "signed": v, "smallest": -v.abs()}.get(
            slip or "", v.abs()
        )
        places = size.argsort(descending=True)[:k]
        values = {
            "values of g": g,
            "values of u": u,
            "zeros": 0 * v,
            "absolute values": v.abs(),
        }.get(slip or "", v)
        steps.append({"sent": sent(values[places], len(g), places), "u": u, "v": v})
        gone = torch.zeros(len(g), dtype=torch.bool).index_fill(0, places, True)
        v = (
            v
            if slip == "v stays"
            else torch.zeros_like(v)
            if slip == "dropped"
            else v.masked_fill(gone, 0)
        )
        u = {
            "no masking": u,
            "u is cleared": torch.zeros_like(u),
            "inverse": u.masked_fill(~gone, 0),
        }.get(slip or "", u.masked_fill(gone, 0))
        steps[-1] |= {"u": u, "v": v}
    return steps


def signed(
    grads: Sequence[Sequence[Tensor]], slip: str | None = None
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """grads[t][r]: the averages, and each rank's error, after each step."""
    errors = [torch.zeros_like(g) for g in grads[0]]
    means = []
    kept = []
    for of in grads:
        ps = [g + (0 if slip == "not added" else e) for g, e in zip(of, errors)]
        scales = [p.abs().mean() for p in ps]
        if slip == "one scale":
            scales = [sum(scales) / len(scales)] * len(scales)
        if slip == "largest":
            scales = [p.abs().max() for p in ps]
        above = [(p.gt(0) if slip == "zero: −1" else p.ge(0)).to(p.dtype) for p in ps]
        signs = [p.sign() if slip == "zero: 0" else 2 * x - 1 for p, x in zip(ps, above)]
        cs = [sign * (1 if slip == "no scale" else s) for sign, s in zip(signs, scales)]
        mean = sum(cs) / (1 if slip == "sum" else len(cs))
        errors = [
            {
                "average": p - mean,
                "sign": c - p,
                "none": torch.zeros_like(p),
                "sum": p - c,
                "whole": p,
                "of g": g - c,
            }.get(slip or "", p - c)
            for p, c, g in zip(ps, cs, of)
        ]
        means.append(mean)
        kept.append(errors)
    return means, kept


def period(
    losses: Sequence[float],
    periods: Sequence[int],
    tau_0: int,
    gamma: float,
    slip: str | None = None,
) -> int:
    """The next τ."""
    if not periods:
        return tau_0
    ratio = losses[-1] / {"last": losses[-2], "largest": max(losses)}.get(slip or "", losses[0])
    ratio = 1 / ratio if slip == "inverse" else ratio
    root = ratio if slip == "no root" else math.sqrt(ratio)
    of = periods[-1] if slip == "of the last" else tau_0
    up = {"floor": math.floor, "round": round, "one more": lambda x: int(x) + 1}.get(
        slip or "", math.ceil
    )
    found = up(root * of)
    if slip == "smaller":
        return min(found, math.ceil(gamma * periods[-1]))
    if (
        slip in ("no gamma", "of the last")
        or found < periods[-1]
        or (slip == "equal" and found == periods[-1])
    ):
        return found
    shorter = gamma * {"gamma of τ₀": tau_0, "gamma of the new": found}.get(slip or "", periods[-1])
    return math.floor(shorter) if slip == "gamma floor" else math.ceil(shorter)


def stepped(p: Tensor, noise: Tensor) -> Tensor:
    """A local step: not linear, so that when ranks meet matters."""
    return (p + noise).sin() * 3


def local(
    values: Sequence[Tensor], noises: Sequence[Sequence[Tensor]], meets: Sequence[int]
) -> list[list[Tensor]]:
    """Every rank's parameter before each step and at the end; averaged after so many steps. noises[r][t]."""
    now, seen = list(values), [list(values)]
    for t in range(len(noises[0])):
        now = [stepped(p, of[t]) for p, of in zip(now, noises)]
        if t + 1 in meets:
            now = [sum(now) / len(now)] * len(now)
        seen.append(list(now))
    return seen
