"""Slots: filled at once, emptied as they are read, gone with their node."""

import pytest
import torch

from minidist.train.remat.frame import Frame


class Doubles(Frame):
    """Recomputes what was saved, times two, so that one sees where a value comes from."""

    def __init__(self, values):
        super().__init__()
        self.values, self.refills = values, 0

    def refill(self):
        self.refills += 1
        for i, x in enumerate(self.values):
            self.fill(i, 2 * x)


def test_backward_gets_what_the_frame_computes_and_once():
    x, frame = torch.ones(3, requires_grad=True), Doubles([torch.ones(3), torch.ones(3).exp()])
    with frame.saving():
        y = x.square().sum() + x.exp().sum()
    assert len(frame.living()) == 2 and all(slot.value is None for slot in frame.living())
    y.backward()
    assert (
        torch.allclose(x.grad, 2 * (2 * torch.ones(3) + torch.ones(3).exp())) and frame.refills == 1
    )
    assert frame.living() == []


def test_dead_slots_are_passed_over_and_read_ones_filled_again():
    frame = Doubles([torch.ones(1), torch.ones(2)])
    first, second = frame.pack(torch.empty(1)), frame.pack(torch.empty(2))
    assert (
        frame.unpack(first).tolist() == [2]
        and frame.unpack(second).tolist() == [2, 2]
        and frame.refills == 1
    )
    assert first.value is None and frame.unpack(first).tolist() == [2] and frame.refills == 2
    del second
    assert frame.living() == [first]


def test_another_shape_is_refused():
    frame = Doubles([torch.ones(2)])
    slot = frame.pack(torch.empty(1))
    with pytest.raises(
        ValueError, match=r"tensor 0 .* was \(1,\) torch.float32 in forward, and is \(2,\)"
    ):
        frame.unpack(slot)
