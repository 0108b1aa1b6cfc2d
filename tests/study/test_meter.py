"""What a function costs, and how it is printed."""

import pytest
import torch
from torch import nn

from minidist.comm.cluster import A100, H100, Device
from minidist.study import Profile, measure
from minidist.study.meter import Tally
from tests.comm.nets import Training, mlp

TOY = Device("toy", {torch.float32: 1e12}, 10**9, bandwidth=1e11, launch=1e-6)
W = torch.ones(100, 100)


def test_a_call_with_its_arguments_and_its_result():
    profile = measure(torch.add, W, W, alpha=2)
    assert isinstance(profile, Profile) and torch.equal(profile.result, 3 * W)
    assert (profile.calls, profile.flops, profile.bytes_moved, profile.device) == (
        1,
        0,
        120_000,
        H100,
    )
    assert profile.time == H100.launch + 120_000 / H100.bandwidth
    assert profile.peak == 80_000 and all(
        isinstance(x, int) for x in (profile.flops, profile.bytes_moved)
    )


def test_the_device_gives_the_time_and_nothing_else():
    first, second = measure(torch.mm, W, W, device=TOY), measure(torch.mm, W, W, device=A100)
    assert first.time == TOY.launch + 2e6 / 1e12 and second.time == A100.launch + 2e6 / 19.5e12
    assert (first.flops, first.peak) == (second.flops, second.peak) == (2_000_000, 80_000)
    with pytest.raises(ValueError, match="toy has a peak for float32, not for float64"):
        measure(torch.mm, W.double(), W.double(), device=TOY)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_phases_of_a_training_step(device):
    training = Training(mlp, "momentum", device)
    profile = measure(training.step, device=TOY)
    layers = [(64, 256), (256, 256), (256, 10)]
    forward = 2 * 96 * sum(a * b for a, b in layers)
    no_input = 2 * 96 * 64 * 256
    assert {name: t.flops for name, t in profile.by_phase.items()} == {
        "forward": forward,
        "backward": 2 * forward - no_input,
        "step": 0,
    }
    assert [name for name, *_ in profile.phases] == ["forward", "backward", "step"]
    edges = [time for _, start, end in profile.phases for time in (start, end)]
    assert (
        edges == sorted(edges)
        and edges[0] == 0.0
        and edges[-1] == pytest.approx(profile.time, rel=1e-12)
    )
    assert profile.total == Tally(
        *map(sum, zip(*profile.by_operator.values(), strict=True))
    )._replace(seconds=profile.time) or profile.time == pytest.approx(
        sum(t.seconds for t in profile.by_operator.values())
    )
    assert profile.by_operator["addmm"].calls == 3 and profile.by_operator["addmm"].flops == forward
    seconds = [t.seconds for t in profile.by_operator.values()]
    assert seconds == sorted(seconds, reverse=True)
    assert profile.by_phase["step"].calls > 0 and profile.timeline.device == device


def test_what_it_is_given_is_there_from_the_start():
    net, x = nn.Linear(10, 10), torch.ones(5, 10)
    for fn, args in (
        (net, (x,)),
        (net.forward, (x,)),
        (lambda: net(x), ()),
        (lambda deep: deep["x"][0](x), ({"x": [net]},)),
    ):
        first = measure(fn, *args).timeline.at(0.0)
        assert first["parameters"] == 440 and first["other"] >= 200
    untouched = [nn.Linear(10, 10)]
    helper = lambda: untouched
    assert measure(lambda: (helper, net(x))).timeline.at(0.0)["parameters"] == 2 * 440


def test_operators_of_the_host_are_not_the_devices():
    def program(x):
        torch.ones(100).sum()
        return x + 1

    on_meta = torch.ones(1000, device="meta")
    assert (
        measure(program, on_meta).calls == 1 and measure(program, on_meta, where="cpu").calls == 2
    )
    assert measure(program, on_meta, where="cpu").peak == 404
    # nothing given: all
    assert measure(lambda: torch.ones(10, device="meta") + torch.ones(3).sum()).calls == 4
    with pytest.raises(
        ValueError,
        match=r"was given cpu tensors, but most of its memory is in meta tensors.*where=…",
    ):
        measure(lambda x: torch.ones(100, device="meta"), torch.ones(3))


def test_an_exception_of_the_function_comes_out():
    def program():
        torch.ones(3)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        measure(program)
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_it_can_be_printed():
    text = str(measure(Training(mlp, "adam").step))
    for words in (
        "Work, by the roofline of H100 SXM",
        "forward",
        "backward",
        "step",
        "MFLOP",
        "cpu tensors",
        "at the peak",
        "activations",
        "Operators, the 12 of",
        "addmm",
    ):
        assert words in text
    assert "GiB" not in text and "allocator" not in text
    html = measure(Training(mlp, "momentum").step)._repr_html_()
    assert html.count("<table") == 3 and "addmm" in html


def test_a_function_that_does_nothing():
    profile = measure(lambda: 3)
    assert (profile.result, profile.calls, profile.flops, profile.time, profile.peak) == (
        3,
        0,
        0,
        0.0,
        0,
    )
    assert "0 FLOP" in str(profile)


def test_the_figures_of_an_allocator_stand_beside_ours():
    profile = measure(torch.add, W, W)
    assert profile.allocator == {}
    profile.allocator = {"allocated": 81_920, "reserved": 2_000_000}
    assert "the allocator's own: reserved" in str(profile) and "2 MB" in str(profile)
