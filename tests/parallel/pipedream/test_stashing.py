"""The gradient of every micro-batch is the gradient at the weights that its forward used; not so without stashing.

Nothing of the pipeline is asked: a hook sees the weights that each forward runs with, an optimizer the gradients that
it is given; afterwards the whole model, put together from the weights seen, is differentiated by autograd alone.
"""

import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

from minidist.comm import World, launch
from minidist.models import TransformerLayer, seeded_
from minidist.parallel.pipedream import PipeDream2BW
from tests.largest import largest, smallest
from tests.parallel.pipedream.cases import batches, made, mse

S = 4


class Norm(nn.Module):
    """Uses a weight twice, beside a frozen one, with what autograd saves in other ways."""

    def __init__(self):
        super().__init__()
        self.norm, self.once = nn.LayerNorm(6), nn.Linear(6, 6)
        self.twice = self.once
        self.frozen = nn.Parameter(torch.full((6,), 0.5), requires_grad=False)

    def forward(self, x):
        return self.twice(torch.sigmoid(self.once(self.norm(x)))) * self.frozen


class Attention(nn.Module):
    """A transformer layer over the batch, as if it were a text."""

    def __init__(self):
        super().__init__()
        self.layer = TransformerLayer(6, 2)

    def forward(self, x):
        return self.layer(x[None])[0]


def model():
    parts = [
        nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 6)),
        Norm(),
        Attention(),
        nn.Sequential(nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 3)),
    ]
    return seeded_(nn.Sequential(*parts).double())


class Recorded(torch.optim.SGD):
    """Remembers the gradients of every step."""

    def __init__(self, parameters, seen):
        super().__init__(parameters, lr=0.05, momentum=0.5)
        self.seen = seen

    def step(self):
        self.seen.append(
            [None if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]
        )
        super().step()


def trained(module):
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def watched(comm, rule, M, **kwargs):
    """(weights of every forward, gradients of every update) of this stage."""
    part = model()[comm.rank]
    weights = []
    gradients = []
    part.register_forward_pre_hook(
        lambda module, _: weights.append(
            {name: p.detach().clone() for name, p in trained(module).items()}
        )
    )
    made(comm, rule, functools.partial(Recorded, seen=gradients), part, **kwargs).run(batches(M))
    return weights, [dict(zip(trained(part), row, strict=True)) for row in gradients]


def gradient_at(weights, x, target, share=1.0):
    """{name: gradient} of each stage, of the whole model with these weights of its stages."""
    whole = model()
    leaves = [{name: p.clone().requires_grad_() for name, p in own.items()} for own in weights]
    for part, own in zip(whole, leaves, strict=True):
        x = functional_call(part, own, x)
    (mse(x, target) * share).backward()
    return [{name: p.grad for name, p in own.items()} for own in leaves]


def errors(results, M, m=1):
    """By micro-batch (or group of m) and stage: how far from the gradient at the weights of the forward."""
    data, found = batches(M), []
    for first in range(0, M, m):
        at = [
            gradient_at([weights[i] for weights, _ in results], *data[i], 1 / m)
            for i in range(first, first + m)
        ]
        found.append(
            [
                largest(
                    (seen[first // m][name] - sum(g[s][name] for g in at)).abs().max().item()
                    for name in seen[first // m]
                )
                for s, (_, seen) in enumerate(results)
            ]
        )
    return found


def worst(rows):
    return largest(map(largest, rows))


@pytest.mark.parametrize(
    "runner",
    [
        lambda program, *args: World(S).run(program, *args),
        lambda program, *args: launch(program, S, *args),
    ],
    ids=["world", "processes"],
)
@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_the_gradient_at_the_weights_of_the_forward(runner, rule):
    results = runner(watched, rule, 9)
    assert worst(errors(results, 9)) < 1e-12
    for s, (weights, _) in enumerate(results):  # and those were old ones
        same = [
            all(torch.equal(weights[i][name], weights[i + 1][name]) for name in weights[i])
            for i in range(8)
        ]
        assert same == [i < (S - 1 if rule == "vertical" else S - 1 - s) for i in range(8)]


def test_of_a_group():
    results = World(S).run(watched, "2bw", 12, m=4)
    assert worst(errors(results, 12, 4)) < 1e-12


def test_without_stashing_it_is_not():
    """From the first update on; only the last stage is right, whose backward comes at once."""
    found = errors(World(S).run(watched, "no stash", 9), 9)
    assert largest(found[0]) < 1e-12  # nothing has been updated before
    assert all(row[S - 1] < 1e-12 for row in found)
    for row in found[1:]:
        assert smallest(row[: S - 1]) > 1e-5, row


def nearest(rows, weights):
    """The version that these weights are."""
    far = [
        largest((row[name] - p).abs().max().item() for name, p in weights.items()) for row in rows
    ]
    assert sorted(far)[0] < 1e-12 < 1e-5 < sorted(far)[1]
    return far.index(min(far))


@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_all_stages_use_one_version_only_with_vertical_sync(rule):
    """With it the gradient of micro-batch i is that of the whole model after k updates, k the same everywhere."""
    M = 9
    results, made_by = World(S).run(watched, rule, M), []
    for weights, gradients in results:  # all versions of a stage, from its gradients
        own = weights[0]
        rows, speed = [own], {name: torch.zeros_like(p) for name, p in own.items()}
        for row in gradients:
            speed = {name: 0.5 * v + row[name] for name, v in speed.items()}
            rows.append({name: p - 0.05 * speed[name] for name, p in rows[-1].items()})
        made_by.append(rows)
    for i in range(M):
        ages = [
            nearest(rows, weights[i]) for rows, (weights, _) in zip(made_by, results, strict=True)
        ]
        assert ages == [max(0, i - (S - 1 if rule == "vertical" else S - 1 - s)) for s in range(S)]


def test_2bw_default_group_is_a_stage_each():
    def program(comm):
        return PipeDream2BW(nn.Linear(1, 1), comm, lambda p: torch.optim.SGD(p, lr=1), mse).group

    assert World(3).run(program) == [3, 3, 3]
