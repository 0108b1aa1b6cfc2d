"""Naive, GPipe and 1F1B: their lists as the papers draw them, and what they hold for every S and M."""

import itertools

import pytest

from minidist.parallel.schedules import gpipe, lists, naive, one_f_one_b, parse


def test_naive():
    assert lists(naive, 3, 2) == [parse("F0 B0 F1 B1")] * 3


def test_gpipe():
    assert lists(gpipe, 3, 2) == [parse("F0 F1 B0 B1")] * 3


def test_1f1b_as_in_the_paper():
    """Narayanan et al. 2021, figure 4, below: its first flush, with 8 micro-batches on 4 devices."""
    assert lists(one_f_one_b, 4, 8) == [
        parse("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        parse("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        parse("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        parse("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ]


def test_fewer_micro_batches_than_stages():
    assert lists(one_f_one_b, 4, 2) == [parse("F0 F1 B0 B1")] * 3 + [parse("F0 B0 F1 B1")]


@pytest.mark.parametrize("schedule", [naive, gpipe, one_f_one_b])
def test_gradients_add_up_in_the_order_of_the_micro_batches(schedule):
    for S, M in itertools.product(range(1, 9), range(1, 17)):
        for actions in lists(schedule, S, M):
            for kind in "FB":
                assert [a.micro for a in actions if a.kind == kind] == list(range(M))
            assert len(actions) == 2 * M
