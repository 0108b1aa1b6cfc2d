"""What is compared with a model on a mesh: the serial one, trained in a plain loop."""

import math

import torch
from torch.optim import AdamW

from minidist.comm import World, launch
from minidist.comm.mesh import Mesh
from minidist.models import gpt, next_token_loss
from minidist.parallelize import batch_ranks, parallelize
from tests.largest import largest

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
    "gloo": lambda n, program, *args: launch(program, n, *args, transport="gloo"),
}
SHAPE = dict(layers=2, hidden=12, heads=6, vocab=13, context=6, dtype=torch.float64)
MODERN = SHAPE | dict(kv_heads=3, gated=True, ffn=10, rotary=True)
BATCH = 12
STEPS = 3
CLIP = 0.3


def data(step):
    """The batch of a step, of all data ranks: x and y, (B, T)."""
    rows = torch.randint(
        0, SHAPE["vocab"], (BATCH, 7), generator=torch.Generator().manual_seed(step)
    )
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def adam(groups):
    return AdamW(groups, lr=0.01, weight_decay=0.1)


def serial(shape, steps=STEPS, clip=CLIP):
    """(losses, {name: parameter}) after so many steps."""
    model = gpt(**shape)
    params = list(model.parameters())
    optimizer = adam(
        [
            {"params": [p for p in params if p.dim() > 1]},
            {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0},
        ]
    )
    losses = []
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad()
        loss = next_token_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def mine(mesh, x):
    """This rank's part of a batch among data and expert ranks, the first ones larger."""
    ranks = batch_ranks(mesh)
    return x.tensor_split(ranks.size)[ranks.rank]


def train(comm, grid, shape, options, steps=STEPS, clip=CLIP):
    """One rank: its losses, and what it has of the parameters: (name, whole shape, first, values)."""
    mesh = Mesh(comm, **grid)
    engine = parallelize(gpt(**shape, device="meta"), mesh, adam, **options)
    losses = []
    for step in range(steps):
        x, y = (mine(mesh, both).to(comm.device) for both in data(step))
        weight = None if BATCH % batch_ranks(mesh).size == 0 else len(x)
        losses.append(engine.step(x, y, max_norm=clip, weight=weight).item())
    return losses, held(engine)


def held(engine):
    return [
        (piece.name.removeprefix("model/"), piece.first, piece.values.to("cpu", copy=True))
        for piece in engine.pieces()
        if piece.name.startswith("model/")
    ]


def gaps(results, losses, params):
    """The largest differences, of losses and of parameters; all of every parameter is somewhere."""
    loss = largest(abs(a - b) for found, _ in results for a, b in zip(found, losses, strict=True))
    seen, worst = {name: torch.zeros_like(p) for name, p in params.items()}, [0.0]
    for _, pieces in results:
        for name, first, values in pieces:
            box = tuple(slice(at, at + size) for at, size in zip(first, values.shape, strict=True))
            seen[name][box] = 1
            if values.numel():
                worst.append((params[name][box] - values).abs().max().item())
    assert all(x.all() for x in seen.values())
    return loss, max(worst)


def ranks(grid):
    return math.prod(grid.values())
