"""The record tells every difference, and the same program leaves the same row."""

import pytest
import torch

from tests.one_thread import _one_thread  # noqa: F401
from tests.record.__main__ import differences, packed, written
from tests.record.answers import masked
from tests.record.programs import RUNS
from tests.record.record import leaves, recorded
from tests.size import FULL

FEW = [
    "all_reduce, ring · 3",
    "DataParallel · 2",
    "ZeRO 2 · 3",
    "tensor layer, plain · 2",
    "pipeline, 1F1B · 2",
]


ROWS = sorted(written("techniques").keys() - {"commit"}) if FULL else FEW


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_what_was_recorded(row):
    name, _, n = row.rpartition(" · ")
    assert list(differences(written("techniques")[row], recorded(name, int(n)))) == []


@pytest.mark.parametrize("part", ["planner", "answers"] if FULL else ["planner"])
def test_a_part_is_what_was_recorded(part):
    before = written(part)
    del before["commit"]
    assert list(differences(before, packed(part))) == []


def test_every_technique_is_in_it():
    rows = {f"{name} · {n}" for name, run in RUNS.items() for n in run.ranks}
    assert rows == written("techniques").keys() - {"commit"}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"bytes": [1, 2]}, {"bytes": [1, 3]}, "bytes[1]: 2 was recorded, and it is 3"),
        ({"a": 1}, {"b": 1}, "a: is gone"),
        ({"a": 1}, {"a": 1, "b": 1}, "b: is new"),
        ([1, 2], [1], ": [1, 2] was recorded, and it is [1]"),
        (0.5, 0.500001, None),
        (0.5, 0.501, ": 0.5 was recorded, and it is 0.501"),
        (1, 1.0, None),
        ("ring", "tree", ": 'ring' was recorded, and it is 'tree'"),
    ],
)
def test_differences(before, after, words):
    assert words in [None, *differences(before, after)] and (words is None) == (
        not list(differences(before, after))
    )


def test_a_permutation_is_seen():
    x = torch.arange(5.0)
    assert list(leaves(x)) != list(leaves(x.flip(0)))


def test_numbers_in_words_are_masked():
    assert masked("rank 3: 1,024 bytes, not −2.5e-7") == "rank #: # bytes, not #"
