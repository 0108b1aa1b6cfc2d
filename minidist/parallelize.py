"""A GPT that knows no parallelism, made ready for a mesh of ranks: each technique in turn, always in this order.

    mesh = Mesh(comm, dp=2, pp=2, tp=2)
    engine = parallelize(gpt(…, device="meta"), mesh, lambda params: AdamW(params, lr=1e-3), micro_batches=4, zero=1)
    for x, y in batches:                           # this data rank's part of each
        loss = engine.step(x, y, max_norm=1.0)

First what is split within a layer, then between layers; what the forward of what is left keeps, and in which precision;
last, who of several holders keeps it. In the style of torchtitan's `parallelize_llama`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.optim import Optimizer

from .comm.mesh import Mesh
from .models import GPT, sequence
from .parallel import gpt, onto
from .parallel.engine import Engine, Stages
from .parallel.pipeline import by_parameters, partition
from .parallel.schedules.flow import Shape
from .parallel.vocab import vocab_cross_entropy


def parallelize(
    model: GPT,
    mesh: Mesh,
    optimizer: Callable[[list[dict]], Optimizer],
    *,
    micro_batches: int = 1,
    schedule="1f1b",
    chunks: int = 1,
    place: str = "loop",
    ahead: int = 1,
    cost=by_parameters,
    sequence_parallel: bool = False,
    recompute: str = "none",
    amp: str = "O0",
    half: torch.dtype = torch.bfloat16,
    zero: int = 0,
    compression=None,
    seed: int = 0,
) -> Engine:
    """`model` on the ranks of `mesh`, ready to train: the same losses and parameters as on one rank.

    model: on the device "meta", which costs nothing: each rank makes the initial values of its part, by `seed`. Or with
    values, of which each rank takes its part. It stays as it is.  optimizer: makes one of groups of parameters.
    micro_batches: of a step, for each data rank.  schedule: a function, as for `Pipeline`, or the word for one, "1f1b",
    "gpipe", …: see `onto.SCHEDULES`.  chunks (v), place, ahead: as for `Pipeline`.  cost: of the parts, as for
    `partition`.  sequence_parallel: tp divides the tokens of a sample.
    recompute: "none", "selective" (attention's scores), "full" (a layer), "stage" (a stage keeps its inputs alone).
    amp, half: a level of `train.amp`, and its 16-bit dtype.  zero: ZeRO's stage, over dp.  compression: see
    `train.compress`.  seed: also of dropout.  Raises ValueError for what does not go together, see `onto.refuse`.
    """
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"parallelize takes a Mesh, such as Mesh(comm, dp=2), not {type(mesh).__name__}"
        )
    onto.known(model, optimizer, cost, sequence_parallel, seed)
    parts, shape = sequence(model), Shape(mesh.pp.size, micro_batches, chunks, place).checked()
    schedule = onto.schedule_of(schedule, shape)
    onto.refuse(model, shape, recompute, amp, half, zero, compression)
    # of the serial model, so the same on all ranks
    cuts = partition(cost(parts), shape.S * shape.v)
    whole, rename = dict(model.named_parameters()), partial(gpt.serial_name, parts=len(parts))
    # 1 tensor, 2 vocabulary: no values yet
    parts = gpt.split_layers(parts, mesh.tp, sequence_parallel)
    parts = gpt.split_vocabulary(parts, mesh.tp, sequence_parallel)
    # 3 pipeline: what this rank holds gets its values, and no other part does
    module = gpt.chunks(parts, cuts, shape, mesh.pp.rank)
    gpt.fill_(module, rename, whole, mesh.tp, seed, onto.stored(amp, half, zero))
    # 4 activation checkpointing, 5 precision
    onto.forms(module, recompute)
    around, scaler = onto.precision(amp, half, mesh.comm)
    # 6 ZeRO or data parallel, 7 compression
    module = onto.shard(module, mesh.dp, zero, amp, half)
    tied = gpt.tied(module, rename) if model.head is None and mesh.pp.size > 1 else {}
    groups = onto.groups(module, rename, whole)
    made, data = onto.averaged(
        module, groups, tied, mesh.dp, zero, amp, onto.makes_one(optimizer), compression
    )
    onto.seed_(mesh, seed)
    loss = partial(vocab_cross_entropy, comm=mesh.tp, vocab=model.tokens.num_embeddings)
    pipeline = Stages(
        list(module),
        mesh.pp,
        schedule,
        loss,
        recompute == "stage",
        tied,
        place,
        ahead,
        scaler=scaler,
        around=around,
    )
    return Engine(
        module, mesh, pipeline, made, zero, data, model.tokens.num_embeddings, micro_batches, rename
    )
