"""What no operator tells: registered parameters and buffers, resized storages; hooks that come and go."""

import pytest
import torch
from torch import nn

from minidist.study.meter import measure


def at_peak(fn, *args):
    return {name: nbytes for name, nbytes in measure(fn, *args).at_peak.items() if nbytes}


def test_parameters_also_those_that_no_operator_touches():
    def program():
        module = nn.Module()
        module.unused = nn.Parameter(torch.empty(100))
        module.register_buffer("table", torch.empty(50))
        module.table = torch.empty(60)  # replaces it
        return module

    assert at_peak(program) == {"parameters": 400, "buffers": 440}
    assert at_peak(lambda module: torch.ones(1), program()) == {
        "parameters": 400,
        "buffers": 240,
        "other": 4,
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_that_are_emptied_and_filled_again(device):
    weight = nn.Parameter(torch.ones(100, 10, device=device))

    def program():
        weight.data.untyped_storage().resize_(0)
        torch.zeros(300, device=device)
        weight.data.untyped_storage().resize_(4000)
        return weight * 2

    timeline = measure(program).timeline
    assert timeline.live["parameters"].tolist()[:2] == [4000, 0] and timeline.peak == 8000
    assert min(timeline.total) == 0


def test_hooks_are_gone_afterwards():
    before = (
        torch.UntypedStorage.resize_,
        len(torch.nn.modules.module._global_buffer_registration_hooks),
    )
    measure(torch.ones, 3)
    assert before == (
        torch.UntypedStorage.resize_,
        len(torch.nn.modules.module._global_buffer_registration_hooks),
    )
    with pytest.raises(TypeError):
        measure(torch.ones, "x")
    assert before[0] == torch.UntypedStorage.resize_
