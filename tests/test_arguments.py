"""What a caller gave: each check takes what it should, and says a sentence for all else."""

import re

import numpy as np
import pytest
import torch

from minidist.arguments import choice, device, flags, floating, number, whole

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), np.uint8(3)], ids=repr)
def test_whole(value):
    found = whole(value, "", 3)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize(
    "value", [True, False, 2.0, "2", None, [2], torch.tensor(2.0), np.float64(2), NAN], ids=repr
)
def test_not_whole(value):
    with pytest.raises(ValueError, match=re.escape(f"at least 1 rank, not {value!r}")):
        whole(value, "at least 1 rank")


def test_whole_and_too_small():
    assert whole(-5, "") == -5
    with pytest.raises(ValueError, match=r"at least 1 rank, not 0$"):
        whole(0, "at least 1 rank", 1)
    with pytest.raises(ValueError, match=r"at least 1 rank, not -2$"):
        whole(np.int64(-2), "at least 1 rank", 1)


def test_number():
    assert [number(value, "", 0, 1) for value in (0, 1, 0.5, np.float64(0.5))] == [0, 1, 0.5, 0.5]
    for value in (True, "0.5", None, NAN, -0.1, 1.1, INFINITE, -INFINITE, torch.tensor(0.5)):
        with pytest.raises(ValueError, match="a share, not "):
            number(value, "a share", 0, 1)
    for value in (INFINITE, -INFINITE, NAN):
        with pytest.raises(ValueError, match="seconds, not "):
            number(value, "seconds")


def test_flags():
    flags(overlap=True, tied=False)
    for value in ("no", 1, 0, None, torch.tensor(True)):
        with pytest.raises(ValueError, match="tied is True or False, not "):
            flags(overlap=True, tied=value)


def test_choice():
    assert choice("a", "word", ("a", "b")) == "a"
    for value in ("c", "", None, 3, ["a"], ("a",)):
        with pytest.raises(ValueError, match=re.escape(f"word is one of 'a', 'b', not {value!r}")):
            choice(value, "word", {"a": 1, "b": 2})


def test_device():
    assert device("meta") == device(torch.device("meta")) == torch.device("meta")
    assert device("cuda:1").index == 1
    for value in ("gpu", 0, None, 1.5, "", True):
        with pytest.raises(ValueError, match=re.escape(f'"meta", not {value!r}')):
            device(value)


def test_floating():
    for value in (None, torch.float64, torch.float32, torch.bfloat16, torch.float16):
        floating(value, "")
    for value in (torch.int64, torch.float8_e4m3fn, torch.bool, "float32", 32):
        with pytest.raises(ValueError, match="real numbers, not "):
            floating(value, "real numbers")
