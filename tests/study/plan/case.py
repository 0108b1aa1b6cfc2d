"""The run that the planner predicts: a GPT of minidist's own parts on data × tensor × pipeline ranks of a World."""

import torch
from torch import nn

from minidist.collectives import barrier
from minidist.models.layers import Embedding, LayerNorm
from minidist.parallel.data import DataParallel
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import interleaved, one_f_one_b
from minidist.parallel.tensor import TensorLayer
from minidist.parallel.vocab import VocabEmbedding, vocab_cross_entropy
from minidist.parallel.zero import ShardedOptimizer
from minidist.study.memory.grid import stage_layers


class Entry(nn.Module):
    """Token and position embeddings."""

    def __init__(self, model, comm, **like):
        super().__init__()
        self.tokens = VocabEmbedding(model.vocab, model.hidden, comm, **like)
        self.positions = Embedding(model.context, model.hidden, **like)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))


class Exit(nn.Module):
    """The last norm and the projection, with a matrix of its own."""

    def __init__(self, model, comm, **like):
        super().__init__()
        self.norm = LayerNorm(model.hidden, **like)
        self.words = VocabEmbedding(model.vocab, model.hidden, comm, name="head", **like)

    def forward(self, x):
        return self.words.project(self.norm(x))


def parts_of(model, comm, part, parts, **like):
    """Part `part` of `parts` of the model."""
    count = stage_layers(model.layers, parts)[part]
    layers = [TensorLayer(model.hidden, model.heads, comm, **like) for _ in range(count)]
    first, last = [Entry(model, comm, **like)] * (part == 0), [Exit(model, comm, **like)] * (part == parts - 1)
    return nn.Sequential(*first, *layers, *last)


def program(comm, model, grid):
    """A second step of training, from when all ranks begin until all have ended; returns its seconds."""
    t, d, S, v = grid.tensor, grid.data, grid.pipeline, grid.interleave
    place = comm.rank
    tensor = comm.split(place // t)
    data = comm.split(place // (t * d) * t + place % t)
    stages = comm.split(place % (t * d))
    like = dict(dtype=torch.bfloat16, device="meta")
    modules = [parts_of(model, tensor, c * S + stages.rank, S * v, **like) for c in range(v)]
    whole = nn.ModuleList(modules)
    loss = lambda y, words: vocab_cross_entropy(y, words, tensor, model.vocab)
    order = (lambda s, n, M: interleaved(s, n, M, v)) if v > 1 else one_f_one_b
    pipeline = Pipeline(modules, stages, order, loss, recompute=grid.recompute == "full")
    adam = dict(lr=1e-3, foreach=True)
    if grid.zero:
        adam |= dict(master_dtype=torch.float32)
        wrapped = optimizer = ShardedOptimizer(whole.parameters(), torch.optim.AdamW, data, **adam)
    else:
        wrapped, optimizer = DataParallel(whole, data, overlap=False), torch.optim.AdamW(whole.parameters(), **adam)
    batch = torch.empty(grid.micro_batch * grid.micro_batches, model.context, dtype=torch.long, device="meta")

    def step():
        with wrapped.no_sync():
            pipeline.step(grid.micro_batches, batch, batch)
        if not grid.zero:
            wrapped.average()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    barrier(comm)
    start = comm.now()
    step()
    barrier(comm)
    return comm.now() - start
