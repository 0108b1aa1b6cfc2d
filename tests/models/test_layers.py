"""On the device "meta" a model is built for nothing; elsewhere its parts are torch's own."""

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, World
from minidist.models import GPT, gpt, layers, mlp, resnet
from minidist.parallel.tensor import RowFirstMLP, TensorLayer

MAKES = {
    "mlp": lambda comm: mlp([64, 128, 10], device="meta"),
    "resnet": lambda comm: resnet(50, device="meta"),
    "GPT": lambda comm: GPT(2, 32, 4, 50, 16, device="meta"),
    "gpt": lambda comm: gpt(2, 32, 4, 50, 16, tied=False, device="meta"),
    "layer": lambda comm: TensorLayer(24, 4, comm, 2),
    "layer, sequence": lambda comm: TensorLayer(24, 4, comm, sequence=True),
    "rows first": lambda comm: RowFirstMLP(24, comm),
}


@pytest.mark.parametrize("name", MAKES)
def test_what_is_built_on_meta_takes_no_time_and_no_memory_but_its_own(name):
    # of batch norm: torch fills them as it makes them
    statistics = {"zeros", "ones"} if name == "resnet" else set()

    def program(comm):
        model = MAKES[name](comm)
        assert all(x.is_meta for x in [*model.parameters(), *model.buffers()])
        return model, sum(x.nbytes for x in [*model.parameters(), *model.buffers()])

    world = World(2, cluster=Cluster.dgx_h100(), device="meta")
    results = world.run(program)
    assert {span.name for span in world.trace.spans} <= statistics
    assert (world.time == 0) == (not statistics)
    assert all(world.trace.memory[r].peak <= results[r][1] for r in range(2))


TORCHS = {
    "Linear": (4, 3),
    "Embedding": (5, 3),
    "LayerNorm": (3,),
    "Conv2d": (2, 3, 3),
    "BatchNorm2d": (3,),
}


@pytest.mark.parametrize("kind", TORCHS)
def test_elsewhere_they_are_torchs(kind):
    made = []
    for place in (layers, nn):
        torch.manual_seed(0)
        made.append(getattr(place, kind)(*TORCHS[kind]).state_dict())
    assert list(made[0]) == list(made[1]) and all(
        torch.equal(made[0][k], made[1][k]) for k in made[0]
    )
