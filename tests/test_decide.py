"""decide reads one number, and none where there is none."""

import pytest
import torch

from minidist.decide import decide


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
