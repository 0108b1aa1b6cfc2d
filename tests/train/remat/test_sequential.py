"""Chains in segments, by plans and by halves: gradients, memory as predicted, FLOPs."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from minidist.models import seeded_
from minidist.study import measure
from minidist.train.remat import (
    Plan,
    Segment,
    checkpoint_recursive,
    checkpoint_sequential,
    plan,
    smallest,
)
from minidist.train.remat.formulas import (
    best_segments,
    halves_bytes,
    halves_forwards,
    segments_bytes,
    segments_forwards,
)

ROWS, WIDTH = 512, 64
EDGE = ROWS * WIDTH * 4


def chain(widths, device="cpu", dropout=0.0):
    """Layers that keep their input and what goes into GELU."""
    layers = [
        nn.Sequential(
            nn.Linear(a, b, device="meta"), nn.GELU(), *([nn.Dropout(dropout)] if dropout else [])
        )
        for a, b in pairwise(widths)
    ]
    return seeded_(nn.Sequential(*layers).to_empty(device=device))


WAYS = {
    **{
        f"{k} segments": lambda layers, x, k=k: checkpoint_sequential(layers, k, x)
        for k in (None, 1, 2, 3, 7)
    },
    "halves": checkpoint_recursive,
    "plan": lambda layers, x: checkpoint_sequential(
        layers, Plan((Segment(0, 2, True), Segment(2, 3, False), Segment(3, 7, True)), 0, 0), x
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way):
    def run(how):
        layers, x = chain([4, 5, 6, 5, 4, 3, 4, 2], dropout=0.4), torch.ones(3, 4).requires_grad_()
        torch.manual_seed(2)
        y = how(layers, x)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in layers.parameters())]

    assert all(map(torch.equal, run(WAYS[way]), run(lambda layers, x: layers(x))))


def test_few_functions():
    x = torch.ones(2, requires_grad=True)
    for how in (checkpoint_recursive, lambda layers, x: checkpoint_sequential(layers, None, x)):
        assert how([], x) is x and torch.equal(how([torch.exp], x), x.exp())


def test_wrong_numbers_are_refused():
    layers, x = [torch.exp] * 3, torch.ones(2)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"3 functions do not split into {k} segments"):
            checkpoint_sequential(layers, k, x)
    with pytest.raises(ValueError, match="the plan is for 2 layers, there are 3"):
        checkpoint_sequential(layers, plan([1, 1], [1, 1], 10), x)


def step(layers, x, how):
    for p in layers.parameters():
        p.grad.zero_()
    how(layers, x).sum().backward()


def metered(widths, how):
    layers = chain(widths, "meta")
    for p in layers.parameters():
        p.grad = torch.zeros_like(p)
    return measure(step, layers, torch.empty(ROWS, widths[0], device="meta"), how)


def kept(profile):
    return profile.timeline.live["activations"].max() - 4  # the gradient of the loss


@pytest.mark.parametrize("layers", [4, 9, 16, 23, 32, 64])
def test_memory_grows_like_the_root_as_predicted_and_flops_by_a_third_at_most(layers):
    widths = [WIDTH] * (layers + 1)
    a = 2 * EDGE
    x = EDGE
    whole = metered(widths, lambda chain, x: chain(x))
    assert kept(whole) == layers * a
    root = round(layers**0.5)
    for k in {root, best_segments(layers, a, x)}:
        ours = metered(widths, lambda chain, x, k=k: checkpoint_sequential(chain, k, x))
        assert kept(ours) == segments_bytes(layers, k, a, x)
        forward = 2 * ROWS * WIDTH * WIDTH
        assert whole.flops == (3 * layers - 1) * forward  # the first input needs no gradient
        assert ours.flops == whole.flops + segments_forwards(layers, k) * forward
        assert ours.flops <= 1.34 * 3 * layers * forward
    assert kept(ours) <= 3 * layers**0.5 * EDGE


@pytest.mark.parametrize("layers", [4, 8, 16, 64])
def test_by_halves_memory_grows_like_the_logarithm(layers):
    ours = metered([WIDTH] * (layers + 1), checkpoint_recursive)
    assert kept(ours) == halves_bytes(layers, 2 * EDGE, EDGE)
    forward = 2 * ROWS * WIDTH * WIDTH
    assert ours.flops == (3 * layers - 1 + halves_forwards(layers)) * forward


WIDTHS = [40, 60, 30, 90, 20, 50, 100, 70, 30, 80, 10, 60, 4]
"""Uneven, so that each plan is another."""


def planned(budget=None):
    """A plan for the chain of WIDTHS, by looking at it: a layer keeps its input and what goes into GELU.

    Its backward takes two gradients at GELU, then, what went into GELU being gone, that of its input and its weights'.
    The gradient of the last output is one number, expanded; the first input needs none.
    """
    edges = [ROWS * width * 4 for width in WIDTHS]
    costs = [2 * ROWS * a * b for a, b in pairwise(WIDTHS)]
    inputs = [0, *edges[1:-1]]
    weights = [4 * (a * b + b) for a, b in pairwise(WIDTHS)]
    two = [2 * edge for edge in edges[1:-1]] + [edges[-1]]
    work = [max(gelu, x + w) for gelu, x, w in zip(two, inputs, weights, strict=True)]
    if budget is None:
        return smallest(costs, edges[1:], edges, work)
    return plan(costs, edges[1:], budget, edges, work)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_the_peak_and_the_flops_of_a_plan_are_those_measured(share):
    low, high = planned().peak, planned(10**9).peak
    found = planned(low + share * (high - low))
    assert found.peak <= low + share * (high - low) and (found.repeated == 0) is (share == 1.0)
    ours = metered(WIDTHS, lambda layers, x: checkpoint_sequential(layers, found, x))
    constant = sum(ours.at_peak[kind] for kind in ("parameters", "gradients"))
    assert ours.peak == constant + found.peak + 8  # the loss and its gradient
    assert ours.flops == metered(WIDTHS, lambda layers, x: layers(x)).flops + found.repeated
