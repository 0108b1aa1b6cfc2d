"""Shards in the memory of the host: what lies where, what goes over its link, and the same numbers."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero.fully import FullySharded, kept
from tests.parallel.zero.fully.cases import LAYER, WIDTHS, far, large, serial, train


@pytest.mark.parametrize(
    "run", [World(3).run, lambda *args, **more: launch(args[0], 3, *args[1:], **more)]
)
def test_trains_as_one_rank(run):
    for state in run(train, "hard", "adamw", clip=0.5, blocks=nn.Linear, offload=True):
        assert far(state, serial("hard", "adamw", clip=0.5)) < 1e-12


def offloaded(comm, device, backwards):
    model = FullySharded(large(device), comm, torch.float16, blocks=nn.Linear, offload=True)
    opt = torch.optim.Adam(model.parameters())
    start = comm.now()
    for _ in range(backwards):
        model(torch.empty(8, WIDTHS[0], device=device)).float().square().mean().backward()
    model.clip_grad_norm_(1.0)
    with comm.host:
        opt.step()
    end = comm.now()
    state = model.full_state_dict()
    model.load_full_state_dict(state)
    return start, end


@pytest.mark.parametrize(("device", "backwards"), [("meta", 1), ("meta", 2), ("cpu", 1)])
def test_what_lies_where(device, backwards):
    world = World(2, device=device, meter=True)
    times = world.run(offloaded, device, backwards)
    expected = {name: 10 * nbytes for name, nbytes in kept(LAYER, 2).items()}
    expected["optimizer states"] += 4 * 20  # Adam counts the steps of each piece
    for rank, (_, end) in enumerate(times):
        host, device_ = world.trace.host[rank].memory.at(end), world.trace.memory[rank].at(end)
        assert {name: host[name] for name in expected} == expected
        assert sum(host.values()) <= sum(expected.values()) + 1000  # norms, say
        assert device_["parameters"] == device_["gradients"] == device_["optimizer states"] == 0


def test_the_host_narrows_what_goes_up():
    """Beside the shards it holds one block's part in 16 bits for a while."""

    def program(comm):
        model = FullySharded(
            large("meta"), comm, torch.float16, blocks=nn.Linear, prefetch=0, offload=True
        )
        with torch.no_grad():
            model(torch.empty(8, WIDTHS[0], device="meta"))

    world = World(2, device="meta", meter=True)
    world.run(program)
    assert world.trace.host[0].memory.peak == 10 * 4 * LAYER // 2 + 2 * LAYER // 2


def test_what_goes_over_the_link():
    """Each shard up twice in 16 bits, its gradient down once, and fp32 shards at the start and for a state dict."""

    def program(comm):
        model = FullySharded(large("meta"), comm, torch.float16, blocks=nn.Linear, offload=True)
        for _ in range(2):
            model(torch.empty(8, WIDTHS[0], device="meta")).float().square().mean().backward()

    world = World(2, device="meta", meter=True)
    world.run(program)
    shard = 10 * LAYER // 2
    assert world.trace.host[0].down == 4 * shard + 2 * (2 * shard)
    assert world.trace.host[0].up == 2 * 2 * (2 * shard)
