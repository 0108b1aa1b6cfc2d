"""The run that the planner predicts: a GPT that `parallelize` splits over data × tensor × pipeline ranks of a World."""

from functools import partial

import torch

from minidist.collectives import barrier
from minidist.comm.mesh import Mesh
from minidist.models import TransformerLayer, gpt
from minidist.parallel.schedules import interleaved, one_f_one_b
from minidist.parallelize import parallelize


def program(comm, model, grid):
    """A second step of training, from when all ranks begin until all have ended; returns its seconds."""
    mesh = Mesh(comm, dp=grid.data, pp=grid.pipeline, tp=grid.tensor)
    masters = grid.precision == "bf16"
    serial = gpt(
        model.layers,
        model.hidden,
        model.heads,
        model.vocab,
        model.context,
        tied=model.tied,
        attention="sdpa" if grid.attention == "fused" else "explicit",
        device="meta",
        dtype=torch.float32 if masters else torch.bfloat16,
    )
    engine = parallelize(
        serial,
        mesh,
        partial(torch.optim.AdamW, lr=1e-3, foreach=True),
        micro_batches=grid.micro_batches,
        schedule=interleaved if grid.interleave > 1 else one_f_one_b,
        chunks=grid.interleave,
        recompute=grid.recompute,
        amp="O2" if masters else "O0",
        zero=grid.zero,
        cost=lambda parts: [isinstance(part, TransformerLayer) for part in parts],
    )
    batch = torch.empty(
        grid.micro_batch * grid.micro_batches, model.context, dtype=torch.long, device="meta"
    )
    engine.step(batch, batch)
    barrier(comm)
    start = comm.now()
    engine.step(batch, batch)
    barrier(comm)
    return comm.now() - start
