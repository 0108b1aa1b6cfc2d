"""All generators go on where they were."""

import json
import random

import numpy as np
import pytest
import torch

from minidist.comm import World
from minidist.train.checkpoint import random_state, set_random_state
from minidist.train.checkpoint.values import decode, encode


def drawn():
    return torch.rand(3).tolist(), torch.randn(1).item(), random.random(), random.gauss(0, 1), np.random.normal(size=3)


def test_they_go_on():
    drawn()
    tensors = {}
    text = json.dumps(encode(random_state(), lambda at, x: [tensors.setdefault(at, x) is x and at]))
    first = drawn()
    drawn()
    set_random_state(decode(json.loads(text), tensors.__getitem__))
    again = drawn()
    assert first[:4] == again[:4]
    assert np.array_equal(first[4], again[4])


def test_each_rank_of_a_world_has_its_own():
    def program(comm):
        state = random_state()
        first = torch.rand(2)
        set_random_state(state)
        return first, torch.rand(2)

    found = World(3).run(program)
    assert all(torch.equal(a, b) for a, b in found)
    assert len({tuple(a.tolist()) for a, _ in found}) == 3


def test_other_gpus():
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    state = random_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * (gpus + 1)}
    with pytest.raises(ValueError, match=f"that of {gpus + 1} GPUs, this process sees {gpus}"):
        set_random_state(state)
