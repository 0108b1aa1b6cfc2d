"""Recordings: the order of allocations as it is, and replayed."""

import pytest
import torch

from minidist.models import mlp
from minidist.study.allocator import Allocator, GiB, OutOfMemory, record, replay
from minidist.study.meter import measure
from tests.study.allocator.events import lasting, peak


def chain():
    a = torch.empty(100)
    b = a + 1
    c = b.view(10, 10).T
    del a
    b.add_(1)
    return c @ c


def test_order_and_sizes():
    found = record(chain)
    assert [(e.tensor, e.nbytes) for e in found] == [(1, 400), (2, 400), (1, 0), (3, 400), (2, 0)]
    assert [e.operator for e in found][:2] == ["aten.empty.memory_format", "aten.add.Tensor"]
    assert lasting(found) == {3} and peak(found) == 800 and len(found) == 5


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_peaks_where_the_meter_says(device):
    def step(model, x):
        model(x).sum().backward()

    model, x = mlp([300, 500, 200], device=device), torch.empty(64, 300, device=device)
    found = record(step, model, x, there=[*model.parameters(), x])
    grads = sum(e.nbytes for e in found if e.tensor in lasting(found))
    assert grads == 2 * sum(4 * p.numel() for p in model.parameters()) + 64 * 300 * 4
    model.zero_grad()
    assert peak(found) == measure(step, model, x).peak


def test_the_same_storage_twice_is_one():
    x = torch.empty(10)
    assert [e.nbytes for e in record(lambda: [x.view(2, 5), x[3:]], there=[x, x[1:]])] == [40]


def test_replay():
    memory = Allocator(GiB)
    blocks = replay(record(chain, there=[torch.empty(3)]), memory)
    assert [(n, b.label, b.asked) for n, b in blocks.items()] == [
        (1, "there before", 12),
        (4, "long-lived", 400),
    ]
    assert memory.allocated == 1024 and memory.asked == 412
    with pytest.raises(OutOfMemory):
        replay(record(lambda: torch.empty(10**9, device="meta")), memory)
