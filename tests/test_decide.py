"""decide reads one number, and none where there is none."""

import pytest
import torch

from minidist.decide import decide, decide_all


def test_the_number():
    assert (
        decide(torch.tensor(3), on_meta=0) == 3 and decide(torch.tensor([[0.5]]), on_meta=0) == 0.5
    )
    assert decide(torch.tensor(True), on_meta=False) is True


def test_on_meta():
    assert decide(torch.empty((), device="meta"), on_meta=7) == 7


def test_one_number_decides():
    for x in (torch.zeros(2), torch.zeros(2, device="meta"), torch.zeros(0)):
        with pytest.raises(ValueError, match=f"not {x.numel()}"):
            decide(x, on_meta=0)


def test_all_numbers():
    assert decide_all(torch.tensor([3, 4]), on_meta=[0, 0]) == [3, 4]
    assert decide_all(torch.empty(2, device="meta"), on_meta=[1, 2]) == [1, 2]
    with pytest.raises(ValueError, match="1 numbers stand for"):
        decide_all(torch.zeros(2), on_meta=[0])
