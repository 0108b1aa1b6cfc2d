"""Bytes by category, the peak of a step, traffic: counted on a model of 10 million parameters, against the formulas."""

import functools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.parallel.zero.fully import FullySharded, kept, peak, traffic
from minidist.parallel.zero.fully import flat as flats
from minidist.study.predict import states
from tests.parallel.zero.fully.cases import LAYER, WIDTHS, large

PARAMS = 10 * LAYER
RANK = Device("a rank", {torch.float32: 1e12, torch.float16: 1e12}, 1 << 40, 1e12)


def steps(comm, count, backwards=1, prefetch=1, planted=None, compute=torch.float16):
    """(start of the forward, end of the backward) of each step, in virtual seconds."""
    model = FullySharded(
        large(comm.device.type), comm, compute, prefetch=prefetch, blocks=nn.Linear
    )
    if planted:
        planted(model)
    opt = torch.optim.Adam(model.parameters())
    x = torch.empty(8, WIDTHS[0], device=comm.device)
    times = []
    for _ in range(count):
        opt.zero_grad()
        start = comm.now()
        for _ in range(backwards):
            model(x).float().square().mean().backward()
        times.append((start, comm.now()))
        opt.step()
    return times


@functools.cache
def metered(n, *args):
    """Rank 0's timeline, and the span of the last step."""
    world = World(n, cluster=Cluster.uniform(n, 1e-6, 1e-10, RANK), device="meta")
    times = world.run(steps, *args)
    return world.trace.memory[0], times[0][-1]


def most(timeline, start, end, category=None):
    within = (timeline.times >= start) & (timeline.times <= end)
    return int((timeline.total if category is None else timeline.live[category])[within].max())


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_is_kept(n):
    timeline, (_, end) = metered(n, 2, 1, 1)
    found = timeline.at(end)
    assert found.pop("other") < 100_000  # inputs and outputs; a block's gradients are 2 MB
    # of a layer: each is cut on its own
    formula = states(PARAMS // 10, "adam", "fp32", zero=3, data=n)
    expected = {
        "parameters": 10 * formula.parameters,
        "gradients": 10 * formula.gradients,
        "optimizer states": 10 * formula.optimizer_states,
    }
    assert found == expected | {"activations": 0, "buffers": 0}
    assert expected == {name: 10 * nbytes for name, nbytes in kept(LAYER, n).items()}
    paper = states(PARAMS // 10, "adam", "fp16", zero=3, data=n)
    assert sum(expected.values()) == 10 * paper.total
    if LAYER % n == 0:
        assert sum(expected.values()) == 16 * PARAMS // n


def violated(n, prefetch, *args):
    """Which of the promises the last step broke. Blocks are in fp16, 2 bytes an element, shards in fp32."""
    timeline, span = metered(n, 2, args[0] if args else 1, prefetch, *args[1:])
    shards = {name: 10 * nbytes for name, nbytes in kept(LAYER, n).items()}
    live = {name: most(timeline, *span, name) for name in timeline.live}
    whole = peak(sum(shards.values()), 2 * LAYER, 2 * LAYER, live["activations"], prefetch)
    limits = {
        "parameters": shards["parameters"] + (1 + prefetch) * 2 * LAYER,
        "gradients": shards["gradients"] + 2 * LAYER,
        "optimizer states": shards["optimizer states"],
    }
    broken = [name for name, limit in limits.items() if live[name] > limit]
    broken += [
        f"{name} after it"
        for name, nbytes in shards.items()
        if timeline.at(span[1])[name] != nbytes
    ]
    return broken + ["peak"] * (most(timeline, *span) > whole)


@pytest.mark.parametrize(("n", "prefetch"), [(2, 0), (2, 1), (3, 1), (3, 2), (4, 0), (4, 1)])
def test_peak_of_a_step(n, prefetch):
    assert violated(n, prefetch) == []


def test_gradients_that_accumulate_in_the_shards_cost_a_chunk_more():
    """The ring's: while one block is reduced, the shards of all have their gradients already."""
    timeline, span = metered(3, 2, 2, 1)
    shards = 10 * sum(kept(LAYER, 3).values())
    found = most(timeline, *span) - peak(
        shards, 2 * LAYER, 2 * LAYER, most(timeline, *span, "activations")
    )
    # and two outputs of a layer, which are "other"
    assert found <= 2 * LAYER // 3 + 2 * 8 * 1000 * 2


def never_frees(model):
    for unit in model.units:
        for flat in unit.flats:
            flat.full.untyped_storage().resize_(flat.nbytes)
            flat.release = lambda: None


def gathers_all_ahead(model):
    model._schedule.prefetch = 10


def keeps_gradients(model):
    model._schedule.averages = False


def frees_after_backward_only(model):
    for unit in model.units:
        unit.free_, unit.free = (
            unit.free,
            lambda unit=unit: unit.free_() if model._schedule.active else None,
        )


WRONG = {
    never_frees: "parameters",
    gathers_all_ahead: "parameters",
    keeps_gradients: "optimizer states after it",
    frees_after_backward_only: "parameters",
}


@pytest.mark.parametrize(
    ("n", "wrong"),
    [*((2, wrong) for wrong in WRONG), (4, never_frees), (4, frees_after_backward_only)],
)
def test_what_shards_too_little_is_found(n, wrong):
    assert WRONG[wrong] in violated(n, 1, 1, wrong)
    assert n == 2 or "peak" in violated(n, 1, 1, wrong)


def test_a_rank_that_owns_all_is_found(monkeypatch):
    monkeypatch.setattr(flats, "uneven", lambda total, n: [total] + [0] * (n - 1))
    found = violated(2, 1, 1, id)
    assert {"parameters after it", "gradients after it", "optimizer states after it", "peak"} <= {
        *found
    }


@pytest.mark.parametrize(("n", "prefetch"), [(1, 1), (2, 0), (3, 1), (4, 0), (4, 1)])
def test_traffic_of_a_step(n, prefetch):
    sent = []
    for count in (1, 2):
        world = World(n, device="meta", meter=False)
        world.run(steps, count, 1, prefetch)
        sent.append(world.trace.bytes_sent())
    # elements of 2 bytes, the mean over ranks
    assert Fraction(sent[1] - sent[0], 2 * n) == traffic(PARAMS, n)


def freezes_one(model):
    for h in model.units[5].held:
        h.piece.requires_grad_(False)


@pytest.mark.parametrize("n", [2, 3])
def test_traffic_of_a_step_with_frozen_blocks(n):
    """One in the midst is gathered twice, as backward passes through it, and never reduced."""
    sent = []
    for count in (1, 2):
        world = World(n, device="meta", meter=False)
        world.run(steps, count, 1, 1, freezes_one)
        sent.append(world.trace.bytes_sent())
    assert Fraction(sent[1] - sent[0], 2 * n) == traffic(9 * LAYER, n, frozen=LAYER)


def test_the_peak_of_memory_in_use_is_the_same_on_real_tensors():
    """Storages are resized by a method of their own: the meter hears it on the CPU, too."""
    found = []
    for device in ("cpu", "meta"):
        world = World(2, cluster=Cluster.uniform(2, 1e-6, 1e-10, RANK), device=device)
        times = world.run(steps, 1, 1, 1, None, None)
        found.append([most(world.trace.memory[rank], *times[rank][-1]) for rank in (0, 1)])
    assert np.allclose(*found, rtol=0.01)
