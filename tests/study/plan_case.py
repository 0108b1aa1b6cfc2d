"""The run that the planner predicts: a GPT that `parallelize` splits over data × tensor × pipeline ranks of a World."""

from functools import partial

import torch

from benchmarks.simulate import train
from minidist.collectives import barrier
from minidist.models import TransformerLayer, gpt, next_token_loss
from minidist.parallel.zero import FullySharded, ShardedOptimizer


def program(comm, model, grid):
    """A second step of training, which all ranks begin together; returns its seconds."""
    step = train(comm, model, grid, steps=2)[-1]
    return step.end - step.start


def hybrid(comm, model, grid):
    """The same of a GPT in 16 bits whose shards lie within a group of neighbours, each in `grid.replicas` of them."""
    serial = gpt(
        model.layers,
        model.hidden,
        model.heads,
        model.vocab,
        model.context,
        tied=model.tied,
        attention="sdpa" if grid.attention == "fused" else "explicit",
        device="meta",
        dtype=torch.bfloat16,
    )
    within = comm.split(comm.rank // grid.shards, comm.rank)
    across = comm.split(comm.rank % grid.shards, comm.rank)
    make, model_of_rank = partial(torch.optim.AdamW, lr=1e-3, foreach=True), serial
    if grid.zero == 3:
        model_of_rank = FullySharded(serial, within, blocks=TransformerLayer, replicas=across)
        optimizer = make(model_of_rank.parameters())
    else:
        # one bucket: of a small one a single rank owns most, and the wires of the others are idle
        sizes = dict(bucket_bytes=1 << 40, first_bucket_bytes=1 << 40)
        optimizer = ShardedOptimizer(
            serial.parameters(), make, within, grid.zero, replicas=across, overlap=False, **sizes
        )
    batch = torch.empty(grid.micro_batch, model.context, dtype=torch.long, device="meta")

    def step():
        optimizer.zero_grad()
        for _ in range(grid.micro_batches):
            next_token_loss(model_of_rank(batch), batch).backward()
        optimizer.step()

    step()
    barrier(comm)
    start = comm.now()
    step()
    barrier(comm)
    return comm.now() - start
