"""Lesson 24: other right ways pass, oracles agree with the library and with PyTorch, and what only looks right fails.

The usual mistakes are in course/24_local_sgd/bugs.py, which tests/bank examines.
"""

import math
import sys
from fractions import Fraction

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons.local_sgd import (
    FAIR_SLIPS,
    OUTER_SLIPS,
    PERIODS,
    FairWeights,
    NextPeriod,
    predict_local_sgd,
)
from minicheck.oracles import local_sgd as oracle
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.parallel.local_sgd import AdaComm, slow_step_
from minidist.study.predict import local_sgd_bytes
from tests.bank.bank import solved
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_local_sgd()


def in_one_message(comm, params, step, steps, H):
    """In periods; the number of samples travels with the parameters."""
    for first in range(0, steps, H):
        samples = float(sum(step(t) for t in range(first, min(steps, first + H))))
        count = torch.tensor([samples], dtype=torch.float64)
        for p in params:
            p *= samples
        all_reduce_(comm, [*params, count])
        for p in params:
            p /= count


def look_ahead(comm, anchors, params, momentum, eta, beta):
    """The ways are averaged, not the parameters."""
    ways = [x - p for x, p in zip(anchors, params, strict=True)]
    all_reduce_(comm, ways, "mean")
    for x, p, u, d in zip(anchors, params, momentum, ways, strict=True):
        u[:] = beta * u + d
        p[:] = x - eta * d - eta * beta * u
        x[:] = p


def by_logarithms(steepness, rate, steps):
    found = [a / (1 - math.prod([1 - rate * a] * H)) for a, H in zip(steepness, steps, strict=True)]
    return [w / math.fsum(found) for w in found]


def exact(losses, rates, periods, tau_0, shrink):
    if not periods:
        return tau_0
    found = math.ceil(
        math.sqrt(losses[-1]) / math.sqrt(losses[0]) * (rates[0] / rates[-1]) ** 1.5 * tau_0
    )
    if found < periods[-1] or rates[-2] > rates[-1]:
        return found
    return math.ceil(Fraction(shrink) * periods[-1])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("local_sgd", in_one_message),
        ("outer_step", look_ahead),
        ("fair_weights", by_logarithms),
        ("next_period", exact),
    ],
)
def test_other_ways(capsys, name, answer):
    getattr(check, name)(answer)
    assert f"{name}: right." in capsys.readouterr().out


def gathered(comm, anchors, params, momentum, eta, beta):
    for p in params:
        p.copy_(all_gather(comm, p[None]).mean(0))
    look_ahead(comm, anchors, params, momentum, eta, beta)


def test_right_but_dear():
    """Averaged twice is right, and more bytes than a ring's."""
    with pytest.raises(Wrong, match=r"the numbers are right, but rank \d sends"):
        check.outer_step(gathered)


FITS = [
    lambda comm: comm.size < 5,
    lambda comm: type(comm).__name__ == "WorldComm",
    lambda comm: comm.rank != 2,
]


@pytest.mark.parametrize("fits", FITS)
def test_right_for_some_only(fits):
    right = solved("24_local_sgd")["local_sgd"]

    def answer(comm, params, step, steps, H):
        given = [p.clone() for p in params]
        right(comm, params, step, steps, H)
        for p, x in zip(params, given, strict=True):
            p.copy_(p if fits(comm) else x)

    with pytest.raises(Wrong):
        check.local_sgd(answer)


def drawn(seed):
    return torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_outer_oracle_is_pytorchs_nesterov():
    x, u = drawn(0), torch.zeros(6, dtype=torch.float64)
    theirs = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for t in range(4):
        own = [x + drawn(10 * t + r) for r in range(1, 4)]
        theirs.grad = x - sum(own) / 3
        optimizer.step()
        x, u = oracle.outer(x, own, u, 0.7, 0.9)
        assert torch.allclose(x, theirs.detach())


def test_the_outer_slips():
    anchor = drawn(1)
    own = [drawn(2), drawn(3)]
    u = drawn(4)
    right = oracle.outer(anchor, own, u, 0.7, 0.9)
    for slip in OUTER_SLIPS:
        found = oracle.outer(anchor, own, u, 0.7, 0.9, slip)
        assert not all(torch.allclose(a, b) for a, b in zip(found, right, strict=True)), slip
    # the lesson's is the library's
    average = sum(own) / 2
    kept = anchor.clone()
    momentum = u.clone()
    slow_step_(average, kept, momentum, 0.9, 0.7)
    assert torch.allclose(average, oracle.outer(anchor, own, u, 0.7, 0.9, "lesson")[0])


def test_fair_weights_rest_at_the_minimum():
    steepness = [1.0, 2.0, 0.5]
    minima = [0.0, 6.0, -3.0]
    steps = [2, 5, 1]
    best = sum(a * c for a, c in zip(steepness, minima, strict=True)) / sum(steepness)
    w = 0.0
    for _ in range(500):
        ends = [
            c + (1 - 0.3 * a) ** H * (w - c)
            for a, c, H in zip(steepness, minima, steps, strict=True)
        ]
        weights = oracle.fair(steepness, 0.3, steps)
        w = sum(p * end for p, end in zip(weights, ends, strict=True))
    assert abs(w - best) < 1e-9


def test_each_slip_of_fair_weights_shows_where_nothing_is_drawn():
    given = [case.given for case in FairWeights.cases if isinstance(case.given[0], list)]
    same = lambda one, slip: all(
        abs(a - b) < 1e-9 for a, b in zip(oracle.fair(*one), oracle.fair(*one, slip), strict=True)
    )
    assert [slip for slip in FAIR_SLIPS if all(same(one, slip) for one in given)] == []


def runs_of(losses, falls, tau_0, shrink, slip=""):
    rates = [0.5 * 0.25 ** sum(i >= fall for fall in falls) for i in range(len(losses))]
    found = []
    for i in range(1, len(losses) + 1):
        found.append(oracle.period(losses[:i], rates[:i], found, tau_0, shrink, slip))
    return found


def test_each_slip_of_periods_shows_where_nothing_is_drawn():
    given = [case.given for case in NextPeriod.cases if isinstance(case.given[0], list)]
    shown = lambda slip: any(runs_of(*one) != runs_of(*one, slip) for one in given)
    assert [slip for slip in PERIODS if not shown(slip)] == []


def test_the_oracle_adapts_as_the_library():
    """Where the rate stays."""

    def periods(comm, losses):
        adaptive = AdaComm(20, steps=1)
        for step, loss in enumerate(losses):
            adaptive.begin(comm, step, loss, None)
        return [interval.period for interval in adaptive.intervals]

    losses = [2.0, 1.0, 0.5, 0.5, 0.6, 0.01, 0.02]
    assert runs_of(losses, [], 20, 0.5) == World(1).run(periods, losses)[0]


def test_predictions_are_the_formulas():
    values = FACTS[0]
    assert local_sgd_bytes(1000, 10, 10_000_000, 8) / 8 == values["local"]
    assert local_sgd_bytes(1000, 10, 10_000_000, 8, start=200) / 8 == values["post"]
    assert local_sgd_bytes(1000, 10, 10_000_000, 8, copies=3) / 8 == values["states"]
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("local", 70e9, "one in H"),
        ("post", 5.6e9, "first steps"),
        ("states", 14e9, "two states"),
        ("seconds", 5.7, "dense step"),
        ("period", 56, "one half"),
        ("best", 5, "still compute"),
        ("memory", 40e6, "x and u"),
        ("memory", None, "not set"),
        ("local", 7e9, None),
    ],
)
def test_numbers(name, value, says):
    judge(FACTS, FACTS[0] | {name: value}, says)
