"""Nested states come back as they were, and nothing else is taken."""

import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch

from minidist.checkpoint.values import decode, encode

VALUES = [
    None,
    True,
    0,
    -(2**70),
    0.1,
    -0.0,
    5e-324,
    math.inf,
    "wörd\n\ud800",
    "",
    [],
    {},
    (),
    [1, (2, [3])],
    {1: "int", "1": "str", (1, 2): None, None: 0.0},
    {"betas": (0.9, 0.95), "fused": None},
    ["tensor", "x"],
    ["dict", []],
    {"list": ["list"]},
]


def there_and_back(value):
    tensors = {}

    def keep(at, x):
        tensors[at] = x
        return [at]

    text = json.dumps(encode(value, keep))
    return decode(json.loads(text), tensors.__getitem__)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_exactly(value):
    found = there_and_back(value)
    assert repr(found) == repr(value)
    assert type(found) is type(value)


def test_nan_and_orders():
    assert math.isnan(there_and_back([math.nan])[0])
    assert there_and_back(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]


def test_tensors():
    value = {"a": [torch.ones(2), {"b": torch.zeros(())}]}
    found = there_and_back(value)
    assert found["a"][0] is value["a"][0]
    assert found["a"][1]["b"] is value["a"][1]["b"]


@pytest.mark.parametrize(
    "wrong", [{1, 2}, b"bytes", object(), np.zeros(2), torch.float32, lambda: 0, 1j]
)
def test_others_are_refused_by_place(wrong):
    with pytest.raises(
        ValueError, match=f"more/1/x is a {type(wrong).__name__}: a checkpoint holds dicts"
    ):
        encode({"more": [0, {"x": wrong}]}, None)


@pytest.mark.parametrize("note", [["os.system", "ls"], ["object", []], ["builtins.eval", "1"]])
def test_other_notes_are_refused(note):
    with pytest.raises(ValueError, match=f"'{note[0]}' is nothing that a checkpoint holds"):
        decode(note, None)
