"""What cannot be is refused, and the message says which value."""

import pytest

from minidist.train.options import fractions, nesterov_has, not_negative, refuse


def test_what_can_be():
    not_negative(lr=0, decay=0.5)
    fractions((0.0, 0.999))
    nesterov_has(0.9, 0)
    refuse(dict(amsgrad=False, lr=1), "here")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: not_negative(lr=1, eps=-2), "eps is not negative: it is -2"),
        (lambda: fractions((0.9, 1.0)), r"not \(0.9, 1.0\)"),
        (lambda: nesterov_has(0.0, 0), "momentum 0.0, dampening 0"),
        (lambda: nesterov_has(0.9, 0.1), "momentum 0.9, dampening 0.1"),
        (
            lambda: refuse(dict(maximize=True), "over a flat buffer"),
            "maximize=True is not done over a flat buffer",
        ),
    ],
)
def test_what_cannot(call, words):
    with pytest.raises(ValueError, match=words):
        call()
