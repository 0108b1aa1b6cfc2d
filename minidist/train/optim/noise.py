"""How large a batch is worth it: the gradient noise scale, from gradients that data parallelism has anyway.

A batch of B samples has the gradient G plus noise of variance tr(Σ)/B. Up to B ≈ B_noise = tr(Σ)/|G|² twice the batch
is nearly twice the progress of a step; beyond it the noise is gone, and more samples add nothing. Two sizes of batch
are two equations for the two unknowns, without bias:

    E|G_B|² = |G|² + tr(Σ)/B        rank: B/n samples, before the average         all: B, after it
    |G|²  = (B·|G_B|² − b·|G_b|²)/(B − b)            tr(Σ) = (|G_b|² − |G_B|²)/(1/b − 1/B)

Both are noisy, |G|² may even come out negative: average each over steps, then divide. Cost: 8 bytes a rank and step.
To a target loss: steps/fewest = 1 + B_noise/B, samples/fewest = 1 + B/B_noise; best rate/highest = 1/(1 + B_noise/B).
Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2 and appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm
from ..decide import decide
from .norms import squares


class Terms(NamedTuple):
    """|G|² and tr(Σ), estimated."""

    square: float
    trace: float

    @property
    def scale(self) -> float:
        """B_noise, in samples; nan where |G|² came out below 0, which more steps mend."""
        return self.trace / self.square if self.square > 0 else math.nan


def noise_terms(small_square: float, big_square: float, small: float, big: float) -> Terms:
    """From the mean |G_b|² of gradients of `small` samples, and |G_B|² of their mean, over `big` samples.

    Raises ValueError unless 0 < small < big.
    """
    if not 0 < small < big:
        raise ValueError(
            f"the noise shows between a small batch and a larger one, not between {small} and {big}"
        )
    return Terms(
        (big * big_square - small * small_square) / (big - small),
        (small_square - big_square) / (1 / small - 1 / big),
    )


def square_of(grads: Iterable[Tensor | None]) -> Tensor:
    """The sum of squares of all these gradients, |G|², a float64 number. None counts as zeros."""
    return squares([*grads]).sum()


class NoiseScale:
    """The noise scale of a training over ranks, averaged over its steps.

        noise = NoiseScale(model.parameters(), comm)           # model: a DataParallel, or any whose ranks average
        loss.backward(); noise.update(samples=len(x))          # x: this rank's part; every rank has as many
        noise.scale                                            # B_noise, in samples

    Hooks see each rank's gradient as autograd makes it, before it is averaged; `update` reads `.grad`, the average.
    One backward a step: with accumulation, `update` after each would see sums.  decay: of the averages over steps,
    corrected for their start.  terms, scale: nan before the first step. All ranks find the same.
    Raises ValueError for a Comm of one rank, which has one size of batch: give `noise_terms` its micro-batches.
    """

    def __init__(self, params: Iterable[Tensor], comm: Comm, decay: float = 0.9):
        if comm.size < 2 or not 0 <= decay < 1:
            raise ValueError(
                f"noise shows between at least 2 ranks, averaged with a decay of 0 to 1, not between "
                f"{comm.size} with {decay}"
            )
        self.comm, self.decay = comm, decay
        self._params = [p for p in params if p.requires_grad]
        self._own = 0.0
        self._sums = [0.0, 0.0]
        self._weight = 0.0
        self._hooks = [p.register_hook(self._seen) for p in self._params]

    def _seen(self, grad: Tensor) -> None:
        self._own = self._own + square_of([grad])

    def update(self, samples: int) -> Terms:
        """After a backward of `samples` on this rank: what this step alone says."""
        own, self._own = self._own, 0.0
        small = all_reduce_(
            self.comm, torch.as_tensor(own, dtype=torch.float64, device=self.comm.device), "mean"
        )
        means = [decide(x, math.nan) for x in (small, square_of(p.grad for p in self._params))]
        found = noise_terms(*means, samples, self.comm.size * samples)
        self._sums = [
            self.decay * s + (1 - self.decay) * x for s, x in zip(self._sums, found, strict=True)
        ]
        self._weight = self.decay * self._weight + 1 - self.decay
        return found

    @property
    def terms(self) -> Terms:
        """|G|² and tr(Σ), averaged over the steps so far."""
        return Terms(*(s / self._weight if self._weight else math.nan for s in self._sums))

    @property
    def scale(self) -> float:
        return self.terms.scale

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"sums": list(self._sums), "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums, self._weight = list(state["sums"]), state["weight"]


def steps_ratio(batch: float, noise: float) -> float:
    """Steps to a loss, over the fewest possible with any batch: 1 + B_noise/B."""
    return 1 + noise / batch


def samples_ratio(batch: float, noise: float) -> float:
    """Samples to a loss, over the fewest possible: 1 + B/B_noise."""
    return 1 + batch / noise


def best_rate(highest: float, batch: float, noise: float) -> float:
    """The rate of SGD that gains most in a step: highest/(1 + B_noise/B), linear in B while B is far below B_noise."""
    return highest / steps_ratio(batch, noise)
