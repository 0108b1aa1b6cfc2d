"""Nested states as pieces."""

import pytest
import torch

from minidist.checkpoint import nested
from minidist.checkpoint.boxes import Box
from minidist.checkpoint.manifest import Refused
from minidist.checkpoint.piece import piece
from minidist.checkpoint.places import Place
from minidist.checkpoint.saved import Saved
from tests.checkpoint.test_saved import alone

SPLIT = Place("w", (4, 2), ((Box.of((3, 2)), (1, 0)),), (3, 2))
ENTIRE = Place("w", (3, 2), ((Box.of((3, 2)), (0, 0)),), (3, 2))


def test_there_and_back(tmp_path):
    value = {
        "step": 5,
        1: torch.ones(3),
        "1": torch.zeros((), dtype=torch.int64),
        "more": [(0.1, torch.rand(2, 2))],
    }
    found = nested.read(Saved(alone(tmp_path, nested.pieces("state", value))), "state")
    assert found.keys() == value.keys()
    assert torch.equal(found[1], value[1])
    assert torch.equal(found["1"], value["1"])
    assert torch.equal(found["more"][0][1], value["more"][0][1])
    assert (found["step"], found["more"][0][0]) == (5, 0.1)


def test_what_is_split_with_its_parameter():
    x = torch.rand(3, 2)
    text, m, step = nested.pieces("o/w", {"m": x, "step": torch.tensor(3.0)}, SPLIT)
    assert (m.name, m.whole, m.first) == ("o/w/m", (4, 2), (1, 0))
    assert (step.name, step.whole) == ("o/w/step", ())
    assert (text.name, text.values.dtype) == ("o/w", torch.uint8)


def test_what_nobody_could_put_together():
    rows = {"rows": torch.ones(3)}  # as a factored second moment has
    with pytest.raises(
        ValueError,
        match=r"o/w/rows is \(3,\) and belongs to a part \(3, 2\) of w, which is \(4, 2\)",
    ):
        nested.pieces("o/w", rows, SPLIT)
    assert nested.pieces("o/w", rows, ENTIRE)[1].whole == (3,)


@pytest.mark.parametrize(
    "text",
    [
        b'["dict"]',
        b'["dict", [1]]',
        b'["dict", [[["list", []], 1]]]',
        b"{",
        b"\xff",
        b'["tensor"]',
        b'[["a"], 1]',
        b"[" * 10**5,
    ],
)
def test_what_was_never_written(tmp_path, text):
    found = Saved(
        alone(tmp_path, [piece("state", torch.frombuffer(bytearray(text), dtype=torch.uint8))])
    )
    with pytest.raises(Refused, match=r"state in .* is no state that was saved: "):
        nested.read(found, "state")
