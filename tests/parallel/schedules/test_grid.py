"""The printed grid."""

import pytest

from minidist.parallel.schedules import (
    grid,
    interleaved,
    lists,
    one_f_one_b,
    parse,
    simulate,
    zb_h1,
)


def test_1f1b():
    assert grid(lists(one_f_one_b, 2, 3)) == (
        "stage 0  F0 F1 .  .  B0 ── F2 B1 ── .  B2 ──\nstage 1  .  F0 B0 ── F1 B1 ── F2 B2 ── .  ."
    )


def test_zero_bubble():
    assert grid(lists(zb_h1, 2, 3)) == (
        "stage 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2\nstage 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2"
    )


def test_chunks_and_many_micro_batches_stay_in_columns():
    rows = grid(lists(interleaved, 2, 2), backward=1).splitlines()
    assert rows[0] == "stage 0  F0   F1   F0.1 F1.1 .    B0.1 .    B1.1 B0   B1"
    wide = grid(lists(one_f_one_b, 1, 12), backward=1)
    assert wide.startswith("stage 0  F0  B0  F1 ") and wide.endswith("F11 B11")


def test_slots_of_another_length():
    run = simulate(lists(one_f_one_b, 2, 1), forward=10, backward=20, comm=10)
    assert grid(run, slot=10) == "stage 0  F0 .  .  .  .  .  B0 ──\nstage 1  .  .  F0 B0 ── .  .  ."
    with pytest.raises(
        ValueError, match="F0 of stage 0 takes 10, too little to show in slots of 50"
    ):
        grid(run, slot=50)


def test_a_schedule_that_hangs():
    assert (
        grid([parse("F0 B0 F1 B1"), parse("F0 F1 B0 B1")])
        == "stage 0  F0  .   B0?\nstage 1  .   F0  F1?"
    )
