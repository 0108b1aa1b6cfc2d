"""What a stage keeps of a micro-batch: no more than it must, and for no longer."""

import itertools
import weakref

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.pipeline.kept import Kept, Recomputed
from minidist.parallel.schedules import (
    gpipe,
    in_flight,
    interleaved,
    kept,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from minidist.study import measure
from tests.parallel.pipeline.cases import SCHEDULES, data, gradients, layers, mse, own

WIDTH = 32


class Watched(nn.Module):
    """A layer whose activations are watched, and what it returns, which no graph needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.most = 0
        self.most_sent = 0
        self.seen = []
        self.sent = []

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.seen.append(weakref.ref(y.untyped_storage()))  # tanh keeps its output for backward
        self.most, self.most_sent = (
            max(self.most, self.alive()),
            max(self.most_sent, alive(self.sent)),
        )
        out = y + 1
        self.sent.append(weakref.ref(out.untyped_storage()))
        return out

    def alive(self):
        return alive(self.seen)


def alive(references):
    return sum(reference() is not None for reference in references)


def flat(y, target):
    return (y - target).pow(2).mean()


def watched(comm, schedule, M, v=1, **kwargs):
    parts = [Watched() for _ in range(v)]
    pipeline = Pipeline(parts, comm, schedule, flat, **kwargs)
    x = torch.randn(2 * M, WIDTH)
    pipeline.step(M, x, x)
    del pipeline.kept
    return pipeline.peak, sum(part.most for part in parts), [part.alive() for part in parts]


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "h1", "h2"])
def test_activations_go_with_their_backward(name):
    """Those that the weights' half needs not, with the input's half."""
    S, M = 3, 7
    for stage, (peak, most, left) in enumerate(World(S).run(watched, SCHEDULES[name], M)):
        actions = SCHEDULES[name](stage, S, M)
        assert peak == in_flight(actions) and most == max(kept(actions, rest=0)) and left == [0]


def sent_at_once(comm, names, M):
    """{schedule: the most outputs of this stage that were alive at the beginning of a forward}."""
    found, x = {}, torch.randn(2 * M, WIDTH)
    for name in names:
        part = Watched()
        Pipeline(part, comm, SCHEDULES[name], flat).step(M, x, x)
        found[name] = part.most_sent
    return found


@pytest.mark.parametrize("transport", ["world", "shm", "gloo"])
def test_what_was_sent_goes_when_it_is_answered(transport):
    """Not at the end of the step, and not with a weights' half that comes late."""
    names, M = ["1f1b", "h1", "h2"], 12
    results = (
        World(3).run(sent_at_once, names, M)
        if transport == "world"
        else launch(sent_at_once, 3, names, M, transport=transport)
    )
    for stage, found in enumerate(results[:-1]):
        for name, most in found.items():
            assert most <= max(kept(SCHEDULES[name](stage, 3, M), rest=0)) < M


def test_chunks_count_each():
    S, M = 2, 6
    for stage, (peak, most, left) in enumerate(World(S).run(watched, interleaved, M, 2)):
        assert (
            peak == in_flight(interleaved(stage, S, M))
            and peak <= most <= peak + 1
            and left == [0, 0]
        )


def test_recomputation_keeps_one_graph_at_a_time():
    for peak, most, left in World(3).run(watched, gpipe, 7, recompute=True):
        assert peak == 7 and most == 1 and left == [0]


def peaks(schedule, M, recompute=False):
    """Most live bytes of each of 3 ranks, in a step of M micro-batches of 64 samples."""

    def program(comm):
        part = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)))
        pipeline = Pipeline(part, comm, schedule, flat, recompute=recompute)
        empty = [torch.empty(64, WIDTH)] * M  # the batch is not the pipeline's
        pipeline.step(M, empty, empty)
        pipeline.step(M, empty, empty)

    trace = World(3, meter=True).run(program).trace
    return [trace.memory[rank].peak for rank in range(3)]


def test_1f1b_needs_no_more_memory_for_more_micro_batches():
    """Nor do messages pile up: what was sent goes when it is known to have come."""
    few, many = peaks(one_f_one_b, 8), peaks(one_f_one_b, 26)
    assert all(b - a < 24 * 64 for a, b in zip(few, many, strict=True)), "losses only"
    few, many = peaks(gpipe, 6), peaks(gpipe, 24)
    activation = 64 * WIDTH * 4
    assert all(b - a >= 18 * 6 * activation for a, b in zip(few, many, strict=True)), (
        "6 activations a micro-batch"
    )


def test_zero_bubble_keeps_more_than_1f1b_on_the_last_stage_only_as_said():
    one, h1, h2 = (peaks(schedule, 12) for schedule in (one_f_one_b, zb_h1, zb_h2))
    assert one[2] < h1[2] < h2[2] and one[0] < h2[0]


def test_recomputation_keeps_inputs_only():
    activation = 64 * WIDTH * 4
    whole, less = peaks(gpipe, 12), peaks(gpipe, 12, recompute=True)
    assert all(a - b > 11 * 4 * activation for a, b in zip(whole, less, strict=True))


class Drops(nn.Module):
    """Random numbers, running averages, and a count."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, dtype=torch.float64)
        self.norm, self.drop = nn.BatchNorm1d(outputs, dtype=torch.float64), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(torch.relu(self.linear(x))))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "h1", "interleaved"])
def test_recomputation_repeats_the_forward(name):
    """Same random numbers, running averages counted once, and the program's own random numbers go on as they would."""

    def program(comm, recompute):
        torch.manual_seed(comm.rank)
        v = 2 if name == "interleaved" else 1
        widths = [5, *[4] * (comm.size * v - 1), 3]
        mine = own(comm, nn.ModuleList(Drops(a, b) for a, b in itertools.pairwise(widths)), v)
        pipeline = Pipeline(mine, comm, SCHEDULES[name], mse, recompute=recompute)
        losses = [pipeline.step(4, *data(13)) for _ in range(2)]
        return [[gradients(m), dict(m.named_buffers())] for m in mine], losses, torch.rand(3)

    plain, again = (World(2).run(program, recompute) for recompute in (False, True))
    for (parts, losses, drawn), (others, losses_again, drawn_again) in zip(
        plain, again, strict=True
    ):
        assert torch.equal(drawn, drawn_again) and losses == losses_again
        for part, other in zip(parts, others, strict=True):
            for ours, theirs in zip(part, other, strict=True):
                assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_recomputation_runs_forward_once_more():
    x = torch.randn(4, 8, requires_grad=True)
    part = nn.Linear(8, 8)
    run = lambda x: (part(x),)

    def both(kind, *more):
        one = kind(run, [x], *more)
        one.outputs = ()
        one.backward([torch.ones(4, 8)])

    assert measure(both, Kept).flops == 3 * 2 * 4 * 64
    assert measure(both, Recomputed, part).flops == 4 * 2 * 4 * 64


def test_an_input_that_is_not_used_gets_zeros():
    x, z = (torch.ones(2, requires_grad=True) for _ in range(2))
    for half in (Kept.backward, Kept.input):
        found = half(Kept(lambda x, z: (x * 2,), [x, z]), [torch.ones(2)])
        assert torch.equal(found[1], torch.zeros(2)) and torch.equal(
            found[0], torch.full((2,), 2.0)
        )
        x.grad = None


def test_layers_are_not_kept_by_the_pipeline():
    """After a step nothing holds the batch's activations."""

    def program(comm):
        part = own(comm, layers(2), 1)[0]
        pipeline = Pipeline(part, comm, one_f_one_b, mse)
        pipeline.step(3, *data(6))
        return len(pipeline.kept)

    assert World(2).run(program) == [0, 0]
