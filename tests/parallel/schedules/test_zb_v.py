"""ZB-V: its order, and that each stage's work is all there for every S and M."""

import pytest

from minidist.parallel.schedules import lists, parse, zb_v


def test_as_drawn():
    assert lists(zb_v, 2, 4) == [
        parse(
            "F0 F1 F2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3 I0 W0 F2.1 I2.1 W2.1 I1 W1 F3.1 I3.1 W3.1 I2 W2 I3 W3"
        ),
        parse(
            "F0 F0.1 F1 F1.1 I0.1 W0.1 F2 I0 W0 F2.1 I1.1 W1.1 F3 I1 W1 F3.1 I2.1 W2.1 I2 I3.1 I3 W2 W3.1 W3"
        ),
    ]


def test_all_work_is_there_in_the_order_of_the_micro_batches():
    for S in range(1, 9):
        for M in range(1, 17):
            for actions in lists(zb_v, S, M):
                for kind in "FIW":
                    for chunk in (0, 1):
                        assert [
                            a.micro for a in actions if (a.kind, a.chunk) == (kind, chunk)
                        ] == list(range(M))
                assert len(actions) == 6 * M


def test_bad_arguments():
    with pytest.raises(ValueError, match="no stage 3"):
        zb_v(3, 3, 4)
