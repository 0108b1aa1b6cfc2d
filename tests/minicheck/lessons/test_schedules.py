"""Lesson 17: other right ways pass, what is right for some only does not, and the oracles are what they should be.

The usual mistakes are in course/17_schedules/bugs.py, which tests/bank examines.
"""

import sys
from functools import partial
from itertools import product

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.lessons.schedules import Interleaved, WhatHangs, ZeroBubble, predict_schedules
from minicheck.oracles.schedules import hanging, held_back, in_groups, mlp_gradients
from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import simulate
from minidist.parallel.validate import ScheduleError, validate
from tests.bank.bank import solved
from tests.minicheck.examined import accepted
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_other_ways_to_find_who_hangs(capsys):
    right = solved("17_schedules")["what_hangs"]

    def from_another(lists, v):
        """The circle begins with another stage; pairs are lists."""
        found = right(lists, v)
        return tuple([stage, word] for stage, word in found[1:] + found[:1])

    check.what_hangs(from_another)
    assert "what_hangs: right." in capsys.readouterr().out


def test_other_lists_and_halves(capsys):
    def by_counting(stage, S, groups, v, ahead):
        """From the k-th pass to its micro-batch and chunk."""

        def word(kind, k):
            first = 0
            for size in groups:
                if k < size * v:
                    chunk, member = divmod(k, size)
                    chunk = chunk if kind == "F" else v - 1 - chunk
                    return f"{kind}{first + member}" + f".{chunk}" * (chunk > 0)
                k -= size * v
                first += size

        count = sum(groups) * v
        warm = min(count, ahead * (S - 1 - stage) + (v - 1) * max(groups))
        out = [word("F", k) for k in range(warm)]
        for k in range(count):
            out += [word("F", warm + k)] if warm + k < count else []
            out.append(word("B", k))
        return tuple(out)

    def alike(stage, S, M, room):
        """The stage with the least room decides how long the step takes: no other holds back more than it."""
        late = max(0, min(stage, min(room) - (S - stage)))
        out = []
        f = 0
        i = 0
        w = 0
        while w < M:
            if f < M and f - i < S - stage:
                out.append(f"F{f}")
                f += 1
            elif i < M:
                out.append(f"I{i}")
                i += 1
            if i - w > late or (i == M and f == M and w < i):
                out.append(f"W{w}")
                w += 1
        return out

    def in_a_list(x, w1, h, w2, dy):
        dh = torch.mm(dy, w2.t())
        dh[h == 0] = 0
        return [
            torch.mm(dh, w1.t()),
            lambda: [torch.einsum("bi,bh->ih", x, dh), torch.mm(h.t(), dy)],
        ]

    check.interleaved(by_counting)
    check.zero_bubble(alike)
    check.split_backward(in_a_list)
    assert capsys.readouterr().out.count("right.") == 3


FITS = {
    "few stages": lambda stage, S, M: S < 5,
    "enough micro-batches": lambda stage, S, M: M >= S,
    "what stands in the grader": lambda stage, S, M: (S, M) in ((4, 8), (3, 3), (3, 7), (5, 12)),
    "not the last stage": lambda stage, S, M: stage < S - 1,
}


def test_lists_right_for_some_only():
    right = solved("17_schedules")["zero_bubble"]

    def only(fits):
        def answer(stage, S, M, room):
            words = right(stage, S, M, room)
            return words if fits(stage, S, M) else [*words[1:], words[0]]

        return answer

    assert accepted(check.zero_bubble, {what: only(fits) for what, fits in FITS.items()}) == []


@pytest.mark.parametrize("case", WhatHangs.cases, ids=lambda case: case.what)
@pytest.mark.parametrize("seed", range(3))
def test_who_hangs_is_who_the_validator_stops_at(case, seed):
    [(lists, v)] = WhatHangs().draw(case, rng(seed))
    stuck, waits, answers = hanging(lists, v)
    assert bool(answers) == bool(stuck) and set(waits.values()) <= set(stuck) | set(waits)
    for answer in answers:
        stages = [stage for stage, _ in answer]
        assert [waits[stage] for stage in stages] == stages[1:] + stages[:1]
    try:
        validate([parse(" ".join(row)) for row in lists], v=v)
    except ScheduleError:
        return
    assert (
        not stuck or len(lists) == 1
    )  # it does not ask what chunks of one stage need of each other


@pytest.mark.parametrize("case", Interleaved.cases, ids=lambda case: case.what)
def test_groups_take_as_long_as_the_formula_says(case):
    [(S, groups, v, ahead, _)] = Interleaved().draw(case, rng())
    rows = [parse(" ".join(in_groups(s, S, groups, v, ahead))) for s in range(S)]
    validate(rows, S, sum(groups), v)
    took = simulate(rows, forward=1 / v, backward=2 / v).time
    assert took == pytest.approx(3 * sum(groups) + 3 * (S - 1) / v)


def test_groups_of_s_are_the_librarys():
    for S, v in ((4, 2), (3, 3), (2, 4)):
        for stage in range(S):
            mine = in_groups(stage, S, [S, S, S], v, 2)
            assert parse(" ".join(mine)) == schedules.interleaved(stage, S, 3 * S, v)


def test_room_for_s_is_zb_h1():
    for S, M in ((1, 3), (4, 8), (5, 3)):
        assert ZeroBubble.best(S, M, [S] * S) == schedules.lists(schedules.zb_h1, S, M)


@pytest.mark.parametrize(("S", "M"), [(3, 7), (3, 2), (3, 1), (2, 5), (4, 5)])
def test_nothing_within_the_room_is_faster(S, M):
    """Of all fixed numbers of W's to hold back."""

    def time(lates):
        return simulate([parse(" ".join(held_back(s, S, M, lates[s]))) for s in range(S)]).time

    for room in product(*(range(S - s, S + 2) for s in range(S))):
        best = ZeroBubble.best(S, M, room)
        assert all(in_flight(row) <= most for row, most in zip(best, room, strict=True))
        every = product(*(range(most - (S - s) + 1) for s, most in enumerate(room)))
        least = min(map(time, every))
        assert simulate(best).time == least
        if M >= S:
            assert least == 3 * M + S - 1 + max(0, S - min(room))


def test_the_oracle_of_gradients():
    x, w1, w2, dy = (
        torch.randn(s, generator=rng(i), dtype=torch.float64)
        for i, s in enumerate(((4, 3), (3, 5), (5, 2), (4, 2)))
    )
    dx, dw1, dw2 = mlp_gradients(x, w1, w2, dy)
    dz = (dy @ w2.T) * (x @ w1 > 0)
    assert all(map(torch.allclose, (dx, dw1, dw2), (dz @ w1.T, x.T @ dz, (x @ w1).relu().T @ dy)))


FACTS = predict_schedules()
NUMBERS = {
    "interleaved_bubble": 7 / 151,
    "messages": 2208,
    "stage_keeps": 31 / 3,
    "h1_bubble": 7 / 151,
    "h2_keeps": 15,
    "short_w": 10.5,
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"interleaved_bubble": 7 / 144}, "over the time without it"),
        ({"messages": 1104}, "one direction"),
        ({"stage_keeps": 31}, "Those are chunks"),
        ({"h1_bubble": 7 / 55}, "1F1B"),
        ({"h2_keeps": 16}, "One less"),
        ({"short_w": 7}, "as long as an F"),
        ({"short_w": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    assert FACTS[0] == NUMBERS
    judge(FACTS, NUMBERS | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(("S", "M"), [(8, 48), (4, 24), (12, 24)])
def test_the_predicted_numbers_are_those_of_the_lists(S, M):
    values = predict_schedules(S, M)[0]
    three = schedules.lists(partial(schedules.interleaved, v=3), S, M)
    h1, h2 = (schedules.lists(some, S, M) for some in (schedules.zb_h1, schedules.zb_h2))
    found = {
        "interleaved_bubble": simulate(three, forward=1 / 3, backward=2 / 3).bubble,
        "messages": sum(map(len, three)) - 2 * M,
        "stage_keeps": in_flight(three[0]) / 3,
        "h1_bubble": simulate(h1).bubble,
        "h2_keeps": in_flight(h2[0]),
        "short_w": simulate(h1, weight=0.5).time - 2.5 * M,
    }
    assert values == pytest.approx(found)
