"""What a function costs, and how it is printed; what bounds it; and how fast the device at hand is."""

import time

import pytest
import torch
from torch import nn

from minidist.comm.cluster import A100, H100, Device
from minidist.study import Profile, bound, measure, meter, roof, roofline
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
    assert profile.time == H100.launch + H100.moving(120_000)
    assert profile.peak == 80_000 and all(
        isinstance(x, int) for x in (profile.flops, profile.bytes_moved)
    )


def test_what_memory_bounds_is_said_of_a_device_that_reaches_a_part_of_its_own():
    x = torch.ones(10**7, device="meta")
    profile = measure(lambda: x + x, device=H100)
    [row] = roofline(profile).rows
    assert "memory" in row and "compute" not in row


def test_the_device_gives_the_time_and_nothing_else():
    first, second = measure(torch.mm, W, W, device=TOY), measure(torch.mm, W, W, device=A100.ideal)
    assert first.time == TOY.launch + 2e6 / 1e12 and second.time == A100.launch + 2e6 / 19.5e12
    third = measure(torch.mm, W, W, device=A100)
    assert third.time == A100.launch + A100.product(100, 100, 100, 1, torch.float32)
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


# ------------------------------------------------------------
# What bounds an operator: each of the three parts in turn, by hand; the table and the picture of a run.

RIDGE = Device("toy", {torch.float32: 100.0}, 10**9, 10.0, launch=2.0)  # a ridge of 10 FLOPs a byte


def product(n):
    return measure(torch.mm, *(torch.empty(n, n, device="meta") for _ in "ab"), device=RIDGE)


@pytest.mark.parametrize(
    ("nbytes", "flops", "expected"),
    [
        (10, 0, "launch"),
        (30, 0, "memory"),
        (30, 299, "memory"),
        (30, 301, "compute"),
        (10, 199, "launch"),
        (10, 201, "compute"),
    ],
)
def test_the_largest_of_three_parts_binds(nbytes, flops, expected):
    seconds = 2.0 + max(nbytes / 10, flops / 100)
    assert bound(Tally(1, flops, nbytes, seconds), RIDGE) == expected


def test_many_calls_are_launches():
    assert bound(Tally(5, 0, 90, 5 * 2.0 + 9), RIDGE) == "launch"
    assert bound(Tally(4, 0, 90, 4 * 2.0 + 9), RIDGE) == "memory"


def test_a_table_of_what_bounds():
    def both():
        a = torch.empty(64, 64, device="meta")
        return (a + a) @ a

    rows = roofline(measure(both, device=RIDGE, where="meta")).rows
    by_hand = 2 * 64**3 / (3 * 4 * 64**2)
    assert rows[0][:4] == ["mm", "1", f"{by_hand:.2f}", "compute"]
    assert rows[1][:4] == ["add", "1", "0", "memory"]


def test_the_picture_of_a_roof():
    tera = Device("toy", {torch.float32: 100e12}, 10**9, 10e12, launch=2e-12)
    runs = {
        name: measure(
            torch.mm, *(torch.empty(n, n, device="meta") for _ in range(2)), device=tera
        ).total
        for name, n in (("small", 4), ("large", 1000))
    }
    made = roof(runs | {"add": Tally(1, 0, 12, 3.2)}, tera)
    assert "line toy, float32: 0.167: 1.67; 10: 100; 667: 100" in made.text
    assert "the ridge at 10 (no FLOPs: add)" in made.text
    seconds = 2 + 3 * 4 * 16 / 10  # the small one: launch and bytes
    assert f"points small: 0.667: {128 / seconds:.3g}" in made.text
    assert made.text.endswith("points large: 167: 100")


@pytest.mark.parametrize("count", [0, 11])
def test_too_few_or_too_many(count):
    with pytest.raises(
        ValueError, match=f"1 to 10 operators that have FLOPs, and there are {count}"
    ):
        roof(
            {str(i): Tally(1, 10, 10, 3.0) for i in range(count)} | {"add": Tally(1, 0, 12, 3.2)},
            RIDGE,
        )


def test_a_dtype_without_a_peak():
    with pytest.raises(ValueError, match="not for float64"):
        roof({"mm": product(4).total}, TOY, torch.float64)


# ------------------------------------------------------------
# A device's speed is that of products which take far longer than it takes to start one. Its measuring is bounded.

META = torch.device("meta")
START = 1e-5  # seconds to start a product on a GPU, and to hear of its end


def pretended(monkeypatch, flops, start=START):
    """Let products take the time of a device of so many FLOP/s; the sizes that are tried, in bytes of both matrices."""
    tried = []

    def seconds(device, dtype, size, repeats):
        tried.append(2 * size**2 * dtype.itemsize)
        return start + 2 * size**3 / flops

    monkeypatch.setattr(meter, "product_seconds", seconds)
    return tried


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("flops", [1e9, 5e10, 1e13, 2e14, 1e15])
def test_what_it_costs_to_start_a_product_does_not_show(monkeypatch, flops, dtype):
    pretended(monkeypatch, flops)
    assert meter.measured_peak(META, dtype) == pytest.approx(flops, rel=0.01)


def test_a_small_product_would_show_it(monkeypatch):
    """The check above can fail: of 512 rows, as it was, an H100 would have a thirtieth of its speed."""
    pretended(monkeypatch, 1e15)
    monkeypatch.setattr(meter, "SMALLEST", 512)
    monkeypatch.setattr(meter, "LONG", 0.0)
    assert meter.measured_peak(META, torch.bfloat16) < 1e15 / 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_matrices_are_bounded(monkeypatch, dtype):
    tried = pretended(monkeypatch, 1e30, start=0.0)
    meter.measured_peak(META, dtype)
    assert 2**29 <= max(tried) <= meter.LARGEST


def test_products_that_take_long_are_few(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.2 * next(ticks))
    meter.product_seconds(torch.device("cpu"), torch.float32, 2, 100)
    assert next(ticks) < 10


def test_on_this_cpu():
    assert 1e7 < meter.device_peak(torch.device("cpu"), torch.float32) < 1e15


def test_it_draws_no_random_numbers():
    before = torch.get_rng_state()
    meter.measured_peak(torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H100 80GB HBM3", True), ("Some GPU of tomorrow", False)]
)
def test_a_known_gpu_has_its_published_figure(name, known):
    assert (meter.known_device(name) is not None) == known
