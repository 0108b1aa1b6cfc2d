"""Forward through the stages alone: the serial outputs, wherever the parts are, and few messages."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.pipeline import Pipeline, forward
from minidist.parallel.schedules import Shape, interleaved, one_f_one_b, zb_v

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}
SIZES = [5, 7, 4, 6, 3, 8, 2]  # six linear layers


def program(comm, x, v, place):
    layers = [layer for layer in mlp(SIZES, dtype=torch.float64) if isinstance(layer, nn.Linear)]
    shape = Shape(comm.size, 1, v, place)
    per = len(layers) // (comm.size * v)
    parts = [nn.Sequential(*layers[shape.part(comm.rank, c) * per :][:per]) for c in range(v)]
    schedule = {
        1: one_f_one_b,
        2: zb_v if place == "V" else interleaved,
        3: lambda *a: interleaved(*a, v=3),
    }[v]
    pipeline = Pipeline(parts, comm, schedule, lambda y, target: y.mean(), place=place)
    found = [forward(pipeline, part if pipeline.first_stage else None) for part in x.split([1, 4])]
    assert all(y is None or not y.requires_grad for y in found)
    return None if found[0] is None else torch.cat(found)


@pytest.mark.parametrize(
    ("run", "S", "v", "place"),
    [
        ("world", 1, 1, "loop"),
        ("world", 3, 1, "loop"),
        ("world", 3, 2, "loop"),
        ("world", 3, 2, "V"),
        ("world", 2, 3, "loop"),
        ("processes", 2, 1, "loop"),
    ],
)
def test_the_serial_outputs(run, S, v, place):
    x = torch.randn(5, 5, dtype=torch.float64)
    y = x
    for layer in mlp(SIZES, dtype=torch.float64):
        y = layer(y) if isinstance(layer, nn.Linear) else y
    end = Shape(S, 1, v, place).stage(S * v - 1)
    for rank, found in enumerate(RUNS[run](S, program, x, v, place)):
        assert (found is None) == (rank != end)
        assert rank != end or (found - y).abs().max() < 1e-14


def test_two_messages_an_edge():
    world = World(3)
    world.run(program, torch.randn(5, 5, dtype=torch.float64), 1, "loop")
    sent = [m for m in world.trace if m.label == "forward"]
    assert [(m.src, m.dst, m.nbytes) for m in sent if m.src == 0] == [
        (0, 1, 4 * 8),
        (0, 1, 4 * 4 * 8),
    ]
    assert (
        len(sent) == 4 == len([m for m in world.trace if m.label == "layout" and m.nbytes == 128])
    )
