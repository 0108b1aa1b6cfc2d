"""Predicted numbers: right within 1 %, and the usual slips are named."""

import pytest

from minicheck import Wrong, predict
from minicheck.lessons.predictions import Prediction, ring_slips

RIGHT = {"messages": 14, "nbytes": 7e6, "naive_nbytes": 28e6, "seconds": 0.00021}


def judged(**numbers):
    from minicheck.exam import Case, Outcome

    values, slips = ring_slips(n=8, size=1_000_000, itemsize=4, alpha=5e-6, beta=1 / 50e9)
    Prediction(list(values), values, slips, "").judge(
        Case(1, ""), [()], Outcome([RIGHT | numbers], [])
    )


def test_right_numbers(capsys):
    predict(**RIGHT)
    assert capsys.readouterr().out == "predict: right. Messages, bytes and seconds, within 1 %.\n"
    judged(nbytes=7.05e6, messages=14.0)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"messages": 7}, "one half"),
        ({"messages": 16}, "n−1 steps"),
        ({"messages": 112}, "all ranks"),
        ({"nbytes": 1.75e6}, "numbers"),
        ({"nbytes": 8e6}, "Nearly"),
        ({"nbytes": 56e6}, "one chunk"),
        ({"naive_nbytes": 32e6}, "itself"),
        ({"naive_nbytes": 56e6}, "receives"),
        ({"seconds": 0.00014}, "α"),
        ({"seconds": 7e-5}, "β"),
        ({"seconds": None}, "not set yet"),
        ({"messages": "14"}, "a number"),
        ({"messages": True}, "a number"),
        ({"nbytes": 7.2e6}, "too large"),
        ({"seconds": -1}, "not above zero"),
        ({"seconds": float("nan")}, "not above zero"),
        ({"messages": 10**400}, "too large"),
        ({"seconds": float("inf")}, "too large"),
        ({"nbytes": -(10**400)}, "not above zero"),
    ],
)
def test_wrong_numbers(numbers, says):
    with pytest.raises(Wrong, match=says):
        judged(**numbers)
