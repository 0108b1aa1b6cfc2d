"""All generators go on where they were."""

import json
import random

import numpy as np
import pytest
import torch

from minidist.checkpoint.random import random_state, set_random_state
from minidist.checkpoint.values import decode, encode
from minidist.comm import World


def drawn():
    return (
        torch.rand(3).tolist(),
        torch.randn(1).item(),
        random.random(),
        random.gauss(0, 1),
        np.random.normal(size=3),
    )


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


class Gpus:
    """In place of `torch.cuda`: so many GPUs, each with a generator of its own; device: the current one."""

    def __init__(self, count, device=0):
        self.states = [torch.tensor([10 * i, 0], dtype=torch.uint8) for i in range(count)]
        self.device = device

    def stand_in(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.states[self.device].clone())
        monkeypatch.setattr(
            torch.cuda, "set_rng_state", lambda state: self.states[self.device].copy_(state)
        )
        return self

    def draw(self):
        """A number of the current GPU's generator."""
        self.states[self.device][1] += 1
        return self.states[self.device].tolist()


@pytest.mark.parametrize(("gpus", "device"), [(4, 3), (2, 0), (1, 0)])
def test_the_own_gpu_goes_on_where_there_are_others(monkeypatch, gpus, device):
    """Saved by a rank on GPU 1 of 2, set on a machine with another number of them, as another one there."""
    before = Gpus(2, 1).stand_in(monkeypatch)
    before.draw()
    state = random_state()
    following = before.draw()
    after = Gpus(gpus, device).stand_in(monkeypatch)
    others = [state.clone() for state in after.states]
    set_random_state(state)
    assert after.draw() == following == [10, 2]
    assert all(torch.equal(after.states[i], others[i]) for i in range(gpus) if i != device)


def test_what_was_saved_of_all_gpus(monkeypatch):
    """By versions before: of as many GPUs the current one's is right; else nobody knows which, and this is said."""
    state = random_state() | {"cuda": Gpus(4).states}
    alike = Gpus(4, 2).stand_in(monkeypatch)
    alike.draw()
    set_random_state(state)
    assert alike.draw() == [20, 1]
    fewer = Gpus(2, 1).stand_in(monkeypatch)
    fewer.draw()
    torch.rand(3)
    with pytest.warns(
        UserWarning, match="generators of 4 GPUs .* sees 2: the generator of GPU 1 stays as it is"
    ):
        set_random_state(state)
    assert fewer.draw() == [10, 2]
    assert torch.equal(torch.get_rng_state(), state["torch"])  # the others are set all the same


def test_a_gpu_run_goes_on_without_one(monkeypatch):
    Gpus(1).stand_in(monkeypatch)
    state = random_state()
    first = torch.rand(3)
    Gpus(0).stand_in(monkeypatch)
    with pytest.warns(UserWarning, match="the generator of a GPU, and this process sees none"):
        set_random_state(state)
    assert torch.equal(torch.rand(3), first)


def test_a_run_that_used_no_gpu_leaves_it_alone(monkeypatch):
    state = random_state() | {"cuda": []}
    gpus = Gpus(1).stand_in(monkeypatch)
    gpus.draw()
    set_random_state(state)
    assert gpus.draw() == [0, 2]
