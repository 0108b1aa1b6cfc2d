"""PipeDream's lists: 1F1B with updates."""

import pytest

from minidist.parallel.schedules import lists, one_f_one_b, parse, pipedream, pipedream_2bw


def test_an_update_after_every_backward():
    assert lists(pipedream, 2, 3) == [
        parse("F0 F1 B0 U0 F2 B1 U1 B2 U2"),
        parse("F0 B0 U0 F1 B1 U1 F2 B2 U2"),
    ]


def test_2bw_updates_every_m():
    first, last = (pipedream_2bw(stage, 2, 4, 2) for stage in (0, 1))
    assert first == parse("F0 F1 B0 F2 B1 U1 F3 B2 B3 U3") and last == parse(
        "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3"
    )


def test_without_its_updates_it_is_1f1b():
    for S in range(1, 9):
        for M in range(1, 17):
            for with_updates, plain in zip(lists(pipedream, S, M), lists(one_f_one_b, S, M)):
                assert [a for a in with_updates if a.kind != "U"] == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 4, 12, 3), "every 3 micro-batches, two versions do not do for 4 stages"),
        ((0, 2, 7, 3), "7 micro-batches are not a multiple of the 3"),
        ((4, 4, 8, 4), "no stage 4"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        pipedream_2bw(*arguments)
