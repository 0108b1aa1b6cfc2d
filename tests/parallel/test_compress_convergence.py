"""What momentum correction and masking are for: without one, a rate at which DGC learns is too high. Of the proof."""

import pytest
import torch

from benchmarks.proof.compress_items import WAYS, parts


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_without_a_part_it_does_not_learn():
    ways = [way for way in WAYS if way != "dense"]
    found = {
        way: accuracies[0] for way, accuracies in parts(seeds=(0,), epochs=8, ways=ways).items()
    }
    assert found["DGC"] > 90
    assert found["no momentum correction"] < found["DGC"] - 3
    assert found["no masking"] < found["DGC"] - 10
