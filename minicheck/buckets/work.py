"""Networks whose backward takes time on the clock of a World, and what a wrong mean of gradients looks like.

A network is a list of branches, each a stack of matrices: x → tanh(x·W) → … ; its loss is a mean square. In which
order a rank runs its branches, and which of them, is drawn: so hooks fire in another order on every rank.
Only products and messages cost time here, so that how an answer packs its buckets does not matter.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from minidist.comm.cluster import Cluster, Device
from minidist.comm.world.world import World

from ..compare import UNKNOWN, ranks
from ..data_parallel.averages import near

FORBIDDEN = (
    "minidist.parallel.data",
    "minidist.parallel.batchnorm",
    "minidist.parallel.overlap",
    "minidist.parallel",
    "minicheck.buckets.oracle",
    "torch.nn.parallel",
)
ALPHA = 1e-5
BETA = 1e-9
FLOPS = 2e8


def timed(n: int) -> World:
    """A World in which products and messages cost time, and nothing else does."""
    machine = Device("products", {torch.float64: FLOPS, torch.float32: FLOPS}, 1 << 40, 1e18, 0.0)
    return World(n, cluster=Cluster.uniform(n, ALPHA, BETA, machine))


class Network(NamedTuple):
    """`values`: the matrices of all branches, one branch after the other; `depth` of each branch."""

    values: list[Tensor]
    depth: int

    def params(self) -> list[Tensor]:
        return [v.clone().requires_grad_() for v in self.values]

    def loss(self, params: list[Tensor], x: Tensor, order: list[int]) -> Tensor:
        """The mean over the samples of what the branches in `order` give."""
        total = x.new_zeros(())
        for branch in order:
            h = x
            for w in params[branch * self.depth : (branch + 1) * self.depth]:
                h = (h @ w).tanh()
            total = total + h.square().mean()
        return total

    def gradient(self, xs: list[Tensor], order: list[int]) -> list[Tensor]:
        """Of the sum of the losses of several micro-batches, zeros where nothing is reached."""
        params = self.params()
        sum(self.loss(params, x, order) for x in xs).backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]


def network(branches: int, depth: int, rng: torch.Generator, alike: bool = False) -> Network:
    """Random matrices; of one size for all branches if `alike`."""
    values, same = [], None
    for _ in range(branches):
        widths = torch.randint(14, 20, (depth + 1,), generator=rng).tolist()
        widths[0] = 16
        same = widths if same is None or not alike else same
        values += [
            torch.randn(a, b, generator=rng, dtype=torch.float64) / 4 for a, b in pairwise(same)
        ]
    return Network(values, depth)


def reversed_cut(count: int, cuts: int, rng: torch.Generator) -> list[list[int]]:
    """count − 1 … 0, cut at random into so many buckets."""
    edges = sorted((torch.randperm(count - 1, generator=rng)[: cuts - 1] + 1).tolist())
    order = list(range(count))[::-1]
    return [order[a:b] for a, b in zip([0, *edges], [*edges, count], strict=True)]


def clock(exam, args: list[tuple], n: int, answer) -> float:
    """Seconds of a case with another answer."""
    world = exam.world(n, args)
    world.run(lambda comm, some: exam.run(comm, answer, *some[comm.rank]), args)
    return world.time


def looks_of(got: Tensor, rank: int, own: list[Tensor]) -> str:
    """What a wrong mean of the ranks' own gradients may be, in words."""
    n, total = len(own), sum(own)
    if got.isnan().any():
        return "It has nan: was something sent that nobody wrote?"
    texts = {
        f"It is rank {rank}'s own, as after its backward: nothing was averaged, or not in p.grad, or nobody "
        "waited for it.": own[rank],
        f"It is {n} times too large: summed, not averaged?": total,
        f"It is {n} times too small: divided by n twice?": total / n**2,
        "It is zero.": torch.zeros_like(total),
    }
    for r in range(n):
        texts[f"It is rank {r}'s own gradient."] = own[r]
        texts[f"It is rank {r}'s own gradient, divided by {n}."] = own[r] / n
    for there in list(product((0, 1), repeat=n))[1:-1]:
        some, part = (
            [r for r in range(n) if there[r]],
            sum(g for g, t in zip(own, there, strict=True) if t),
        )
        texts[f"It is the mean of {ranks(some)} only."] = part / len(some)
        texts[f"It is 1/{n} of the sum of {ranks(some)} only."] = part / n
    return next((text for text, x in texts.items() if near(got, x)), UNKNOWN)
