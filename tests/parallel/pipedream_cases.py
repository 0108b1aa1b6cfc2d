"""PipeDream by hand: one process, no autograd, every version of every layer kept for ever.

The model is a chain of tanh layers; stage s of S has its share of them. In the loop over micro-batches each layer's
forward and backward use the version that the rule's formula names, of that layer alone.
"""

import functools
import itertools

import torch
from torch import nn

from minidist.models import seeded_
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.split import bounds, uneven
from tests.largest import largest

WIDTHS = [5, 7, 4, 6, 8, 3]  # five layers
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
}
RULES = ("stash", "vertical", "2bw", "no stash")


def layer(a, b):
    return nn.Sequential(nn.Linear(a, b, dtype=torch.float64), nn.Tanh())


def model(widths=WIDTHS):
    return seeded_(nn.Sequential(*itertools.starmap(layer, itertools.pairwise(widths))))


def stages(S, layers):
    """(first, end) of each stage's layers."""
    return bounds(uneven(layers, S))


def batches(M, inputs=5, outputs=3, samples=6):
    random = torch.Generator().manual_seed(M)
    sizes = [samples + i % 3 for i in range(M)]  # uneven ones, too
    return [
        tuple(
            torch.randn(size, width, generator=random, dtype=torch.float64)
            for width in (inputs, outputs)
        )
        for size in sizes
    ]


def mse(y, target):
    return ((y - target) ** 2).mean()


def made(comm, rule, optimizer, part, loss_fn=mse, m=None, **kwargs):
    """This rank's pipeline, by its rule's name."""
    if rule == "2bw":
        return PipeDream2BW(part, comm, optimizer, loss_fn, m=m, **kwargs)
    return PipeDream(
        part,
        comm,
        optimizer,
        loss_fn,
        vertical=rule == "vertical",
        wrong_no_stash=rule == "no stash",
        **kwargs,
    )


def run(comm, rule, M, optimizer="momentum", m=None, streams=1, **kwargs):
    """(losses, final weights of this rank's layers, staleness, most versions, most bytes, bytes of the stage)."""
    whole = model()
    first, end = stages(comm.size, len(whole))[comm.rank]
    part = whole[first:end]
    pipeline = made(comm, rule, OPTIMIZERS[optimizer], part, m=m, **kwargs)
    for _ in range(streams):
        losses = pipeline.run(batches(M))
    return (
        losses,
        [p.detach() for p in part.parameters()],
        pipeline.staleness,
        pipeline.versions.most,
        pipeline.versions.most_bytes,
        sum(p.nbytes for p in part.parameters()),
    )


def forward_version(rule, i, s, S, m):
    """The paper's formula: which version of stage s's weights micro-batch i meets."""
    return {"vertical": max(0, i - S + 1), "2bw": max(0, i // (m or 1) - 1)}.get(
        rule, max(0, i - S + 1 + s)
    )


class ByHand:
    """`run` once: losses, and the weights of each layer by version (the last one: after the run)."""

    def __init__(self, rule, S, M, optimizer="momentum", m=None, widths=WIDTHS):
        self.rule = rule
        self.S = S
        self.m = m or S
        linear = [one[0] for one in model(widths)]
        self.owner = [
            s for s, (first, end) in enumerate(stages(S, len(linear))) for _ in range(first, end)
        ]
        self.now = [[one.weight.detach().clone(), one.bias.detach().clone()] for one in linear]
        for p in itertools.chain(*self.now):
            p.grad = torch.zeros_like(p)
        self.versions = [[self.copy(pair)] for pair in self.now]
        self.optimizer, self.losses = OPTIMIZERS[optimizer](list(itertools.chain(*self.now))), []
        for i, (x, target) in enumerate(batches(M)):
            self.micro_batch(i, x, target)
            if rule != "2bw" or (i + 1) % self.m == 0:
                self.update()

    copy = staticmethod(lambda pair: [p.clone() for p in pair])

    def micro_batch(self, i, x, target):
        used = [forward_version(self.rule, i, s, self.S, self.m) for s in self.owner]
        inputs, outputs = [], []
        for own, version in zip(self.versions, used, strict=True):
            inputs.append(x)
            x = torch.tanh(x @ own[version][0].T + own[version][1])
            outputs.append(x)
        self.losses.append(((x - target) ** 2).mean())
        g = 2 * (x - target) / x.numel() / (self.m if self.rule == "2bw" else 1)
        for k in reversed(range(len(used))):
            g = g * (1 - outputs[k] ** 2)
            self.now[k][0].grad += g.T @ inputs[k]
            self.now[k][1].grad += g.sum(0)
            g = g @ self.versions[k][-1 if self.rule == "no stash" else used[k]][0]

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        for own, pair in zip(self.versions, self.now, strict=True):
            own.append(self.copy(pair))


def distance(results, oracle):
    """The largest difference of a loss or a weight."""
    losses, weights = (
        results[-1][0],
        list(itertools.chain.from_iterable(weights for _, weights, *_ in results)),
    )
    assert all(row[0] is None for row in results[:-1]) and len(losses) == len(oracle.losses)
    pairs = [
        *zip(losses, oracle.losses, strict=True),
        *zip(weights, itertools.chain(*oracle.now), strict=True),
    ]
    return largest((a - b).abs().max().item() for a, b in pairs)


by_hand = functools.cache(ByHand)
