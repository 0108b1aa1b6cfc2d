"""Schedules against torch.optim.lr_scheduler's and the papers' formulas; resumed; the warm-up of another training."""

import itertools
import math

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    SequentialLR,
)

from minidist.train.optim import SGD
from minidist.train.schedule import (
    Scaled,
    batch_ramp,
    batches,
    constant,
    cosine,
    ramp_steps,
    scaled,
    warm_up,
    warm_up_steps,
)

RATE = 0.3


def optimizer():
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


def rates(make, steps=40):
    """The rate of each step."""
    one = optimizer()
    schedule, found = make(one), []
    for _ in range(steps):
        found.append(one.param_groups[0]["lr"])
        one.step()
        schedule.step()
    return found


def ours(schedule):
    return rates(lambda one: LambdaLR(one, schedule))


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (warm_up(10), lambda o: LinearLR(o, 0.1, total_iters=9)),
        (constant, lambda o: LambdaLR(o, lambda t: 1.0)),
    ],
)
def test_as_torch(schedule, theirs):
    assert ours(schedule) == pytest.approx(rates(theirs), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_as_torch_until_its_end_and_then_the_floor(floor):
    theirs = rates(lambda o: CosineAnnealingLR(o, 25, eta_min=floor * RATE))
    assert ours(cosine(25, floor)) == pytest.approx(
        [*theirs[:26], *[floor * RATE] * 14], rel=1e-12, abs=1e-15
    )


def test_one_after_the_other_as_torch():
    def theirs(one):
        return SequentialLR(
            one, [LinearLR(one, 0.1, total_iters=9), CosineAnnealingLR(one, 30, 0.1 * RATE)], [10]
        )

    assert ours(warm_up(10, then=cosine(30))) == pytest.approx(rates(theirs), rel=1e-12)


def test_schedules_gpt3():
    """375 M tokens of warm-up, then a cosine to 10 % until 260 B: in tokens, by hand."""
    schedule = warm_up(375e6, then=cosine(260e9 - 375e6, floor=0.1))
    assert schedule(187.5e6) == pytest.approx(0.5, rel=1e-8) and schedule(375e6) == 1.0
    assert schedule(375e6 + (260e9 - 375e6) / 2) == pytest.approx(0.55) and schedule(
        300e9
    ) == pytest.approx(0.1)


def test_no_warm_up_and_a_broken_one():
    assert warm_up(0)(0) == 1.0 and warm_up(0, then=cosine(10))(10) == pytest.approx(0.1)
    steps = [warm_up(2.5, then=cosine(4, 0.0))(t) for t in range(8)]
    assert (
        steps[:2] == pytest.approx([0.4, 0.8]) and all(0 <= x <= 1 for x in steps) and steps[7] == 0
    )


def test_resumed():
    schedule = warm_up(5, then=cosine(20))
    straight = ours(schedule)
    one = optimizer()
    first = LambdaLR(one, schedule)
    for _ in range(13):
        one.step()
        first.step()
    other = optimizer()
    other.load_state_dict(one.state_dict())
    again = LambdaLR(other, schedule, last_epoch=12)
    again.load_state_dict(first.state_dict())
    found = []
    for _ in range(27):
        found.append(other.param_groups[0]["lr"])
        other.step()
        again.step()
    assert found == straight[13:]


def test_the_warm_up_of_another_training():
    assert (
        warm_up_steps(100_000) == 200
        and warm_up_steps(100_000, 0.005) == 500
        and warm_up_steps(10) == 1
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: warm_up(-1), "not -1"),
        (lambda: cosine(0), "not 0 and 0.1"),
        (lambda: cosine(5, floor=-1), "not 5 and -1"),
        (lambda: warm_up_steps(10, 2), "not 2"),
    ],
)
def test_schedules_mistakes(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ------------------------------------------------------------
# A batch that grows with the tokens seen.


def test_ramp_gpt3():
    batch = batch_ramp(32_000, 3_200_000, 4e9)
    assert [batch(seen) for seen in (0, 1e9, 2e9, 4e9, 3e11)] == [
        32_000,
        824_000,
        1_616_000,
        3_200_000,
        3_200_000,
    ]


def test_multiples_never_shrink_nor_exceed():
    batch = batch_ramp(100, 1000, 5000, multiple=48)
    sizes = [batch(seen) for seen in range(0, 7000, 10)]
    assert (
        sizes == sorted(sizes)
        and sizes[0] == 96
        and sizes[-1] == 960
        and all(size % 48 == 0 for size in sizes)
    )


def test_no_ramp_at_all():
    assert [batch_ramp(10, 10, 0)(seen) for seen in (0, 5)] == [10, 10]
    assert batch_ramp(10, 20, 0)(0) == 20


def test_steps_add_up_and_go_on_from_where_they_were():
    batch = batch_ramp(32_000, 3_200_000, 4e9, multiple=2048)
    steps = list(batches(batch, 6e9))
    assert steps[0] == (0, 30_720) and all(
        a + b == c for (a, b), (c, _) in itertools.pairwise(steps)
    )
    assert steps[-1][0] < 6e9 <= sum(steps[-1])
    assert list(batches(batch, 6e9, seen=steps[1000][0])) == steps[1000:]
    assert list(batches(batch, 6e9, seen=6_000_000_000)) == []


@pytest.mark.parametrize(
    ("first", "last", "over"), [(32_000, 3_200_000, 4e9), (1_000, 2_000, 1e6), (500, 500, 1e5)]
)
def test_the_formula_counts_the_steps(first, last, over):
    """Steps of the ramp, by walking it: the formula grows within a step, so it is a little below."""
    walked = sum(1 for _ in batches(batch_ramp(first, last, over), over))
    assert ramp_steps(first, last, over) == pytest.approx(walked, rel=5e-3)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(first=0), "batch of 0 does not grow"),
        (dict(first=10, last=5), "batch of 10 does not grow to 5"),
        (dict(first=10, multiple=16), "multiples of 16"),
        (dict(over=-1), "over -1 tokens"),
    ],
)
def test_ramp_mistakes(how, words):
    with pytest.raises(ValueError, match=words):
        batch_ramp(**how)


# ------------------------------------------------------------
# The rules, and the reasons for them.


def test_the_rules():
    assert scaled(0.1, 8, "linear") == Scaled(0.8)
    assert scaled(0.1, 16, "root", (0.9, 0.99), 1e-8) == Scaled(0.4, (0.9, 0.99), 1e-8)
    found = scaled(1e-3, 4, "adam", (0.9, 0.99), 1e-8)
    assert found.lr == 2e-3 and found.eps == 5e-9 and found.betas == pytest.approx((0.6, 0.96))
    for rule in ("linear", "root"):
        assert scaled(0.1, 1, rule).lr == 0.1 and scaled(
            scaled(0.1, 4, rule).lr, 1 / 4, rule
        ).lr == pytest.approx(0.1)


@pytest.mark.parametrize("k", [2, 8])
def test_linear_k_small_steps_are_one_long_one(k):
    """On a loss with one slope everywhere, exactly."""

    def run(steps, lr):
        w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr)
        for _ in range(steps):
            optimizer.zero_grad()
            (w * torch.tensor([1.0, 2.0, -3.0])).sum().backward()
            optimizer.step()
        return w.detach()

    assert torch.allclose(run(k, 0.01), run(1, scaled(0.01, k, "linear").lr), 1e-14)


@pytest.mark.parametrize("k", [4, 16])
def test_root_the_noise_of_a_step_keeps_its_variance(k):
    noise = torch.randn(4000, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, many = 0.1 * noise[:, 0], scaled(0.1, k, "root").lr * noise.mean(1)
    assert many.var() / one.var() == pytest.approx(1, abs=0.1)


def test_adam_remembers_as_many_samples():
    """The weight of what is k·100 samples old: of single ones, and of batches k times as large."""
    k, beta = 4, 0.999
    larger = scaled(1, k, "adam", (0.9, beta), 1e-8).betas[1]
    assert larger**100 == pytest.approx(beta ** (k * 100), rel=2e-3) and math.isclose(
        1 - larger, k * (1 - beta)
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((0.1, 0, "linear"), "k > 0 times as large, not k = 0"),
        ((0.1, 2, "cubic"), "linear, root, or adam with betas and eps: not 'cubic'"),
        ((0.1, 2, "adam"), "not 'adam' with None and None"),
        ((0.1, 20, "adam", (0.9, 0.99), 1e-8), r"k = 20 is too large for betas = \(0.9, 0.99\)"),
    ],
)
def test_refused(args, said):
    with pytest.raises(ValueError, match=said):
        scaled(*args)
