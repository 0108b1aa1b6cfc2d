"""Steps on a World's clock: the formulas' bubbles, messages hidden behind computation, tensors without data."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1
from minidist.study.predict import bubble
from tests.parallel.pipeline import cases

WIDTH, ROWS = 64, 16  # a forward of a part is 2·ROWS·WIDTH² FLOPs: 2·ROWS seconds on this device


class Part(nn.Module):
    """One product, behind a parameter that wants its input's gradient: so all parts take the same times."""

    def __init__(self):
        super().__init__()
        self.shift, self.linear = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x + self.shift)


def loss(y, target):
    return ((y - target) ** 2).mean()


def stepped(comm, schedule, M, v=1, ahead=1):
    pipeline = Pipeline(
        [Part().to(comm.device) for _ in range(v)], comm, schedule, loss, ahead=ahead
    )
    x = torch.zeros(ROWS * M, WIDTH, device=comm.device)
    for _ in range(2):
        pipeline.step(M, x, x)
    return pipeline.spans


def world(S, alpha=1e-9):
    device = Device("products take time", {torch.float32: float(WIDTH**2)}, 1 << 30, 1e30)
    return World(S, cluster=Cluster.uniform(S, alpha, 1e-30, device), device="meta")


def time_and_bubble(spans):
    """Seconds from the first forward to the last action, and the share of it in which stages wait."""
    time = max(end for rank in spans for *_, end in rank) - min(
        start for rank in spans for _, start, _ in rank
    )
    busy = sum(end - start for rank in spans for _, start, end in rank)
    return time, 1 - busy / len(spans) / time


@pytest.mark.parametrize(
    ("name", "schedule", "v"),
    [
        ("naive", naive, 1),
        ("gpipe", gpipe, 1),
        ("one_f_one_b", one_f_one_b, 1),
        ("interleaved", interleaved, 2),
        ("zb_h1", zb_h1, 1),
    ],
)
@pytest.mark.parametrize(("S", "M"), [(1, 2), (2, 4), (4, 8)])
def test_the_bubble_of_the_formula(name, schedule, v, S, M):
    spans = world(S).run(stepped, schedule, M, v)
    time, waits = time_and_bubble(spans)
    assert waits == pytest.approx(bubble(name, S, M, v), abs=1e-6)
    assert time * (1 - waits) == pytest.approx(M * v * 3 * 2 * ROWS, rel=1e-6), (
        "three products for each F and its B"
    )


def test_messages_hide_behind_the_computation():
    """With a message as long as half a forward: posted ahead it is hidden in the steady state, else it is not."""
    alpha, M = ROWS, 16
    times = [
        time_and_bubble(world(2, alpha).run(stepped, gpipe, M, 1, ahead))[0] for ahead in (1, 0)
    ]
    compute = M * 6 * ROWS
    assert times[0] < compute + 12 * ROWS < times[1]


def test_backward_and_its_halves_take_the_times_of_their_products():
    spans = world(2).run(stepped, zb_h1, 2)
    lengths = {
        action.kind: round((end - start) / (2 * ROWS), 6)
        for rank in spans
        for action, start, end in rank
    }
    assert lengths == {"F": 1, "I": 1, "W": 1}
    spans = world(2).run(stepped, gpipe, 2)
    lengths = {
        action.kind: round((end - start) / (2 * ROWS), 6)
        for rank in spans
        for action, start, end in rank
    }
    assert lengths == {"F": 1, "B": 2}


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_without_data(name):
    """On meta tensors: the same messages."""
    v = cases.chunks_of(name)

    def program(comm):
        mine = [nn.Linear(4, 4, device=comm.device) for _ in range(v)]
        tied = {"bias": mine[0].bias}
        pipeline = Pipeline(
            mine, comm, cases.SCHEDULES[name], loss, recompute=name == "gpipe", tied=tied
        )
        x = torch.empty(9, 4, device=comm.device)
        losses = pipeline.step(4, x, x)
        return pipeline.peak, losses if losses is None else len(losses), mine[0].weight.grad.shape

    labels = []
    for device in ("meta", "cpu"):
        results = World(2, device=device).run(program)
        labels.append(sorted((m.src, m.dst, m.label, m.nbytes) for m in results.trace if m.label))
        assert [losses for _, losses, _ in results] == [None, 4]
    assert labels[0] == labels[1]
