"""What the exercises of lesson 25 are held against, and the usual slips: the right way with one thing changed.

Written from the papers' algorithms, on whole tensors, with no code of `minidist.train`; the tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minidist.split import uneven

FORBIDDEN = (
    "minidist.parallel",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.study",
    "minicheck.oracles.large_batches",
)


def rate(seen: int, batch: int, total: int, warm: int, peak: float, floor: float) -> float:
    """The learning rate of a step: a line to `peak`, then half a cosine to `floor` · peak, which stays."""
    if seen < warm:
        return peak * min(1.0, (seen + batch) / warm)
    return peak * (floor + (1 - floor) * half(min(1.0, (seen - warm) / (total - warm))))


def half(x: float) -> float:
    """Half a cosine wave, from 1 at 0 to 0 at 1."""
    return (1 + math.cos(math.pi * x)) / 2


def wrong_rates(
    seen: int, batch: int, total: int, warm: int, peak: float, floor: float
) -> dict[str, float]:
    """What a wrong rate of a step may be: one mistake each, in the warm-up or after it."""
    right = rate(seen, batch, total, warm, peak, floor)
    above = lambda y: peak * (floor + (1 - floor) * y)
    x = (seen - warm) / (total - warm)
    end = min(1.0, x)
    y = half(end)
    span = max(1, warm)
    warming = {
        "The step is taken where it begins, and the first has a rate of 0: in the warm-up its last token counts.": peak
        * seen
        / span,
        "It adds 1, as if a step were one token: in the warm-up a step goes by its last token, seen + batch.": peak
        * (seen + 1)
        / span,
        "A step that reaches beyond the warm-up has the peak, and not more.": peak
        * (seen + batch)
        / span,
    }
    cooling = {
        "The cosine begins with the first token, below the warm-up, so the rate jumps: it begins when the warm-up "
        "ends.": above(half(min(1.0, seen / total))),
        "The cosine counts the step's own tokens: after the warm-up a step goes by where it begins.": above(
            half(min(1.0, (seen + batch - warm) / (total - warm)))
        ),
        "The cosine ends too soon: seen = total, and nothing before it, is the first at the floor.": above(
            half(min(1.0, (seen - warm) / max(1, total - 1 - warm)))
        ),
        "The cosine is as long as the whole training: it ends at seen = total.": above(
            half(min(1.0, (seen - warm) / total))
        ),
        "After the end the cosine rises again: stay at the floor.": above(half(x)),
        "It goes down to 0: the floor is missing.": peak * y,
        "The floor is added to the cosine, so the peak is missed: the cosine spans 1 − floor.": peak
        * (floor + y),
        "The floor cuts the cosine: it is to end at the floor, not to be held by it.": peak
        * max(floor, y),
        "That is a line: a cosine is asked for.": above(1 - end),
    }
    here, others = (warming, cooling) if seen < warm else (cooling, warming)
    always = {"There is no warm-up in it.": rate(seen, batch, total, 0, peak, floor)}
    return always | here | dict.fromkeys(others, right)


class Lars:
    """LARS on whole tensors, the rate within the momentum: You et al. 2017, algorithm 1. slip: one of LARS_SLIPS."""

    def __init__(self, weights: list[Tensor], slip: str = ""):
        self.w, self.slip = [w.clone() for w in weights], slip
        self.v = [torch.zeros_like(w) for w in weights]

    def step(
        self, grads: list[Tensor], lr: float, trust: float, decay: float, momentum: float
    ) -> None:
        slip, lengths = self.slip, [(w.norm(), g.norm()) for w, g in zip(self.w, grads)]
        if slip == "all":
            lengths = [tuple(torch.stack(x).norm() for x in zip(*lengths))] * len(grads)
        for i, (w, g, (wide, steep)) in enumerate(zip(self.w, grads, lengths)):
            matrix = w.dim() > 1
            b = decay * ((matrix and slip != "no decay") or slip == "bias decayed")
            below = {"one norm": (g + b * w).norm(), "g alone": steep}.get(slip, steep + b * wide)
            ratio = trust * wide / below
            if not (wide > 0 and steep + b * wide > 0) and slip != "nan":
                ratio = 1.0
            if slip == "whole decay" and not steep > 0:
                ratio = 1.0
            if slip == "plain" or not (matrix or slip == "bias trusted"):
                ratio = 1.0
            self.v[i] = momentum * self.v[i] + (1.0 if slip == "outside" else lr) * ratio * (
                g + b * w
            )
            w.sub_((lr if slip == "outside" else 1.0) * self.v[i])


LARS_SLIPS = {
    "whole decay": "‖g‖ is 0, and decay · ‖w‖ is not: the ratio is trust / decay, as by the formula.",
    "plain": "That is SGD's: a matrix' step is times trust · ‖w‖ / (‖g‖ + decay · ‖w‖).",
    "all": "The norms are those of all tensors together: each has a ratio of its own.",
    "g alone": "The ratio's denominator is ‖g‖ + decay · ‖w‖: the decay is part of what is scaled.",
    "one norm": "The denominator is the sum of two norms, ‖g‖ + decay · ‖w‖, as in the paper.",
    "no decay": "There is no weight decay in it.",
    "outside": "The rate is within the momentum: v ← momentum·v + lr·…, and w ← w − v. It differs when lr changes.",
    "bias trusted": "It has fewer than 2 dimensions, and is stepped plainly: no ratio.",
    "bias decayed": "It has fewer than 2 dimensions, and is stepped plainly: no decay.",
    "nan": "‖w‖ is 0, or all below the line: then the ratio is 1, whatever the formula gives.",
}


class Lamb:
    """LAMB on whole flat tensors: You et al. 2020, algorithm 2. slip: one of LAMB_SLIPS.  n: ranks, for one of them."""

    def __init__(self, weights: list[Tensor], plain: list[bool], n: int, slip: str = ""):
        self.w = [w.clone() for w in weights]
        self.plain = plain
        self.n = n
        self.slip = slip
        self.m, self.v = ([torch.zeros_like(w) for w in weights] for _ in range(2))

    def step(
        self, grads: list[Tensor], t: int, lr: float, betas: tuple, eps: float, decay: float
    ) -> None:
        slip, (one, two) = self.slip, betas
        for i, (w, g) in enumerate(zip(self.w, grads)):
            if slip == "twice":
                g = g / self.n
            self.m[i] = one * self.m[i] + (1 - one) * g
            self.v[i] = two * self.v[i] + (1 - two) * g**2
            m, v = self.m[i] / (1 - one**t), self.v[i] / (1 - two**t)
            if slip == "kept":
                self.m[i], self.v[i] = m, v
            if slip == "no correction":
                m, v = self.m[i], self.v[i]
            plain = self.plain[i]
            late = decay * w if slip == "after" and not plain else 0.0
            early = slip != "after" and (not plain or slip == "plain decayed")
            u = m / (v.sqrt() + eps) + decay * early * w
            ratio = 1.0 if plain and slip != "plain trusted" else self._ratio(w, u)
            w.sub_(lr * (ratio * u + late))

    def _ratio(self, w: Tensor, u: Tensor) -> Tensor | float:
        slip, pieces = self.slip, lambda x: x.split(uneven(len(x), self.n))
        norm = {
            "own": lambda x: torch.cat([p.norm().expand(len(p)) for p in pieces(x)]),
            "sums": lambda x: sum(p.norm() for p in pieces(x)),
        }.get(slip, Tensor.norm)
        wide, long = norm(w), norm(u)
        ratio = (wide.clamp(max=10.0) if slip == "clamped" else wide) / long
        if slip != "nan":
            ratio = torch.where((wide > 0) & (long > 0), ratio, 1.0)
        return {"bounded": ratio.clamp(max=10.0), "plain": 1.0}.get(slip, ratio)


LAMB_SLIPS = {
    "own": "The ratio is that of this rank's piece: norms are those of the whole, squares added up over the ranks.",
    "sums": "The ranks' norms were added up. Squares add up, norms do not.",
    "plain": "That is AdamW's: the step is times ‖w‖/‖u‖.",
    "no correction": "The moments are not corrected for their start at 0: divide by 1 − βᵗ.",
    "after": "The decay belongs into u, before the ratio.",
    "plain trusted": "It is plain: no ratio.",
    "plain decayed": "It is plain: no decay.",
    "nan": "A norm is 0. Then the ratio is 1, whatever the formula gives.",
    "clamped": "‖w‖ is clamped to 10: here it is not.",
    "bounded": "The ratio is clamped to 10: here it is not.",
    "twice": "The gradients are averaged already.",
    "kept": "m̂ and v̂ are for this step only: the moments themselves stay uncorrected.",
}


def mean(grads: Sequence[Tensor], parts: Sequence[int]) -> Tensor:
    """The mean over all samples, of which rank r has parts[r]."""
    return torch.stack([b * g for b, g in zip(parts, grads)]).sum(0) / sum(parts)


def terms(grads: Sequence[Tensor], parts: Sequence[int]) -> tuple[float, float]:
    """|G|² and tr(Σ) from the ranks' gradients of so many samples each: McCandlish et al. 2018, appendix A.1, for uneven
    ranks. The ranks' squares, weighted by samples, are on average |G|² + n·tr(Σ)/B."""
    whole = mean(grads, parts)
    small = sum(b * float((g * g).sum()) for b, g in zip(parts, grads)) / sum(parts)
    return solved(small, float((whole * whole).sum()), len(parts), sum(parts))


def solved(small: float, big: float, n: int, total: int) -> tuple[float, float]:
    """|G|² and tr(Σ) from the two squares, of n ranks with `total` samples."""
    trace = (small - big) * total / (n - 1)
    return big - trace / total, trace


def within(x: float) -> float:
    """`x`, with which floats can be compared: an int may be larger than all of them."""
    return max(min(x, 1e300), -1e300)


def norm(own: list[list[tuple[Tensor, int]]]) -> float:
    """The norm of the gradients of all ranks, each with the number of ranks that hold it; each counts once."""
    total = 0.0
    for some in own:
        for g, ranks in some:
            total += float(g.double().square().sum()) / ranks
    return math.sqrt(total)
