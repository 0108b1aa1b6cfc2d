"""What workers compute in lesson 06's exercises: a gradient that betrays its rank, its step and its weights.

g = scale·w + offset, with numbers drawn for each rank and step. It takes time on the clock of a World, by a product of
two vectors; nothing else does but messages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.cluster import Cluster, Device
from minidist.comm.world.world import World

FORBIDDEN = ("minidist.parallel", "minicheck.server.oracle")
ALPHA, FLOPS = 1e-5, 1e8


def timed(n: int, beta: float) -> World:
    """A World in which products and messages cost time, and nothing else does."""
    machine = Device("products", {torch.float64: FLOPS}, 1 << 40, 1e18, 0.0)
    return World(n, cluster=Cluster.uniform(n, ALPHA, beta, machine))


class Gradient:
    """`gradient(w)` of one worker. offsets[t], seconds[t]: of its step t.  seen: the weights it was called with."""

    def __init__(self, scale: float, offsets: Tensor, seconds: list[float]):
        self.scale = scale
        self.offsets = offsets
        self.seconds = seconds
        self.seen = []

    def __call__(self, w: Tensor) -> Tensor:
        t = len(self.seen)
        if t == len(self.seconds):
            raise ValueError(
                f"gradient(w) is called for the {t + 1}th time: this worker has {t} steps"
            )
        self.seen.append(w.clone() if isinstance(w, Tensor) else w)
        x = torch.empty(max(1, round(self.seconds[t] * FLOPS / 2)), dtype=torch.float64)
        _ = x[None] @ x[:, None]
        return self.of(w, t)

    def of(self, w: Tensor, t: int) -> Tensor:
        """Of step t at the weights w."""
        return self.scale * w + self.offsets[t]


def draw_rate(rng: torch.Generator) -> float:
    return 0.2 + 0.2 * torch.rand((), generator=rng).item()


def draw_gradient(
    rng: torch.Generator, length: int, seconds: list[float]
) -> tuple[float, Tensor, list[float]]:
    """The arguments of a `Gradient`."""
    scale = 0.2 + 0.6 * torch.rand((), generator=rng).item()
    return scale, torch.randn(len(seconds), length, generator=rng, dtype=torch.float64), seconds
