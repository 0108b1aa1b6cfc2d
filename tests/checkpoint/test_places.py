"""Where parameters are found; what comes of it is tested in test_training.py."""

import itertools

import pytest
import torch
from torch import nn

from minidist.checkpoint.places import Fused, places
from minidist.comm import World
from minidist.parallel.zero import FullySharded
from tests.parallel.cases import Hard


def named(model):
    return {place.name: (place.whole, place.entire) for place in places(model).values()}


def test_a_serial_model():
    model = Hard()
    model.register_buffer("kept", torch.zeros(2))
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    oracle = {name: (tuple(x.shape), True) for name, x in model.state_dict().items()}
    oracle.pop("again.weight")  # tied: under its first name
    assert named(model) == oracle


def test_names_do_not_say_that_a_module_is_wrapped():
    def program(comm):
        inner = FullySharded(nn.Linear(3, 2), comm)
        return named(FullySharded(nn.Sequential(inner, Hard()), comm)), named(nn.Sequential(inner))

    for outer, alone in World(2).run(program):
        whole = nn.Sequential(nn.Linear(3, 2), Hard()).state_dict()
        oracle = {name: (tuple(x.shape), False) for name, x in whole.items()}
        oracle.pop("1.again.weight")
        assert outer == oracle
        assert alone == {"0.weight": ((2, 3), False), "0.bias": ((2,), False)}


def test_every_element_is_somewhere_once():
    """Elements that say where they are, of a strided parameter in runs."""

    def program(comm):
        model = Hard()
        with torch.no_grad():
            model.strided.copy_(torch.arange(18.0).view(3, 6))
        shards = FullySharded(model, comm)
        return [
            (one.box, one.values.clone())
            for x, place in places(shards).items()
            if place.name == "strided"
            for one in place.pieces(x, "")
        ]

    for n in (1, 2, 3, 4, 7):
        whole = torch.full((3, 6), -1.0)
        for box, values in itertools.chain(*World(n).run(program)):
            assert (box.view(whole) == -1).all()
            box.view(whole).copy_(values)
        assert torch.equal(whole, torch.arange(18.0).view(3, 6))


def test_sections_that_do_not_fit():
    module = nn.Linear(3, 4)
    module.comm, module.cuts = (
        type("Alone", (), dict(rank=0, size=1)),
        {"weight": Fused(0, [[2], [3]])},
    )
    with pytest.raises(ValueError, match="a parameter has 4 along dimension 0, its sections 5"):
        places(module)
