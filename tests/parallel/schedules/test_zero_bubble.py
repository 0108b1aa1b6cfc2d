"""ZB-H1 and ZB-H2: the split backward moves, and 1F1B's order stays."""

import pytest

from minidist.parallel.schedules import (
    Action,
    kept,
    lists,
    one_f_one_b,
    parse,
    zb_h1,
    zb_h2,
    zero_bubble,
)

SIZES = [(S, M) for S in range(1, 9) for M in range(1, 17)]


def test_as_drawn():
    assert lists(zb_h1, 3, 4) == [
        parse("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"),
        parse("F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"),
        parse("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"),
    ]
    assert lists(zb_h2, 2, 4) == [
        parse("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"),
        parse("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"),
    ]


def test_h1_is_1f1b_with_the_backward_split():
    for S, M in SIZES:
        for half, whole in zip(lists(zb_h1, S, M), lists(one_f_one_b, S, M)):
            assert [
                Action("B", a.micro) if a.kind == "I" else a for a in half if a.kind != "W"
            ] == whole


@pytest.mark.parametrize(("schedule", "most"), [(zb_h1, lambda S: S), (zb_h2, lambda S: 2 * S - 1)])
def test_every_stage_keeps_as_much_as_the_first(schedule, most):
    for S, M in SIZES:
        for actions in lists(schedule, S, M):
            assert max(kept(actions)) == min(M, most(S))
            assert [a.micro for a in actions if a.kind == "W"] == list(range(M))


def test_ahead():
    assert zero_bubble(1, 4, 9, ahead=2) == zb_h2(1, 4, 9) != zero_bubble(1, 4, 9, ahead=3)
    with pytest.raises(ValueError, match="not 0"):
        zero_bubble(0, 2, 2, ahead=0)
    with pytest.raises(ValueError, match="no stage 2"):
        zb_h1(2, 2, 2)
