"""What the tests of predicted numbers have in common."""

import pytest

from minicheck import Wrong
from minicheck.exam import Prediction, bare, encode


def judge(facts, values, says):
    """The verdict on predicted `values`: right where `says` is None, else wrong with these words.

    facts: the right values and the slips, as the lesson's own function computes them.
    """
    exam = Prediction(lambda: facts, "")
    numbers = [encode(bare(values[name])) for name in facts[0]]
    if says is None:
        return exam.compare(numbers)
    with pytest.raises(Wrong, match=says):
        exam.compare(numbers)


def slips_are_wrong(facts):
    """Whether no slip is within the 1 % by which a prediction may be off."""
    right, slips = facts
    return all(
        abs(slip - right[name]) > 0.01 * right[name]
        for name, some in slips.items()
        for slip in some
    )
