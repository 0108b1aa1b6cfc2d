"""Schedules against torch.optim.lr_scheduler's and the papers' formulas; resumed; the warm-up of another training."""

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    PolynomialLR,
    SequentialLR,
)

from minidist.train.optim import (
    SGD,
    constant,
    cosine,
    inverse_root,
    polynomial,
    warm_up,
    warm_up_share,
    warm_up_steps,
)
from tests.largest import largest

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
        (warm_up(10, start=0.25), lambda o: LinearLR(o, 0.25 + 0.75 / 10, total_iters=9)),
        (polynomial(25), lambda o: PolynomialLR(o, 25, power=2.0)),
        (polynomial(25, power=1), lambda o: PolynomialLR(o, 25)),
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


def test_gpt3():
    """375 M tokens of warm-up, then a cosine to 10 % until 260 B: in tokens, by hand."""
    schedule = warm_up(375e6, then=cosine(260e9 - 375e6, floor=0.1))
    assert schedule(187.5e6) == pytest.approx(0.5, rel=1e-8) and schedule(375e6) == 1.0
    assert schedule(375e6 + (260e9 - 375e6) / 2) == pytest.approx(0.55) and schedule(
        300e9
    ) == pytest.approx(0.1)


def test_vaswani():
    """d^(−1/2)·min(t^(−1/2), t·4000^(−3/2)), equation 3, whose largest value is at t = 4000."""
    paper = [min((t + 1) ** -0.5, (t + 1) * 4000**-1.5) for t in range(0, 9000, 7)]
    found = [inverse_root(4000)(t) for t in range(0, 9000, 7)]
    assert found == pytest.approx([x * 4000**0.5 for x in paper], rel=1e-12)
    assert largest(found) < 1 == pytest.approx(inverse_root(4000)(3999))


def test_lars_papers_decay():
    """γ₀·(1 − t/T)², algorithm 1."""
    assert [polynomial(7)(t) for t in range(8)] == pytest.approx(
        [(1 - t / 7) ** 2 for t in range(8)]
    )


def test_no_warm_up_and_a_broken_one():
    assert warm_up(0)(0) == 1.0 and warm_up(0, then=cosine(10))(10) == pytest.approx(0.1)
    steps = [warm_up(2.5, then=polynomial(4, 1))(t) for t in range(8)]
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
    # You et al. 2020, untuned LAMB: the share at batches of 512 … 32,768
    shares = [
        warm_up_share(1 / 320, batch / 512) for batch in (512, 1024, 2048, 4096, 8192, 16384, 32768)
    ]
    assert (
        shares == [1 / 320, 1 / 160, 1 / 80, 1 / 40, 1 / 20, 1 / 10, 1 / 5]
        and warm_up_share(0.3, 8) == 1.0
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: warm_up(-1), "not -1 and 0.0"),
        (lambda: warm_up(5, start=1.5), "not 5 and 1.5"),
        (lambda: cosine(0), "not 0 and 0.1"),
        (lambda: polynomial(5, floor=-1), "not 5 and -1"),
        (lambda: inverse_root(0), "not 0"),
        (lambda: warm_up_share(0.1, 0), "not k = 0"),
        (lambda: warm_up_steps(10, 2), "not 2"),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(ValueError, match=words):
        make()
