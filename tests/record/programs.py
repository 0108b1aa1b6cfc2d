"""One small run of every technique: what the record keeps of it is in `record.py`.

A program takes a Comm and returns what it has computed, tensors in dicts and lists. RUNS names each, with the numbers
of ranks that it runs at. Programs use what is public, so that they outlive a change of what is inside.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from minidist.collectives import (
    Hierarchical,
    all_gather,
    all_gather_,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    reduce_scatter_,
    scatter,
)
from minidist.comm.mesh import Mesh
from minidist.models import (
    MLP,
    TransformerLayer,
    gpt,
    initial,
    mlp,
    next_token_loss,
    resnet,
    seeded_,
)
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.parallel.accumulate import accumulate
from minidist.parallel.batchnorm import SyncBatchNorm
from minidist.parallel.compress import DGC, Dense, Half, PowerSGD, Sign
from minidist.parallel.data import DataParallel, Sampler, average_gradients
from minidist.parallel.local_sgd import AdaComm, LocalSGD
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.parallel.pipeline import Pipeline, forward
from minidist.parallel.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_h2, zb_v
from minidist.parallel.server import ParameterServer
from minidist.parallel.simulate import zb_auto
from minidist.parallel.tensor import (
    RowFirstMLP,
    SequenceNorm,
    TensorDropout,
    seed_group_,
    tensor_parallel_,
)
from minidist.parallel.vocab import VocabEmbedding, gathered_cross_entropy, vocab_cross_entropy
from minidist.parallelize import parallelize
from minidist.split import bounds, uneven
from minidist.train.amp import LossScaler, autocast, prepare
from minidist.train.norm import clip_grad_norm_
from minidist.train.optim import LAMB, LARS, NoiseScale
from minidist.train.remat import (
    checkpoint,
    checkpoint_recursive,
    checkpoint_reentrant,
    checkpoint_sequential,
)
from minidist.train.reversible import ReversibleBlock, ReversibleSequence
from minidist.train.selective import ATTENTION, selective
from tests.parallel.cases import CLASSES, FEATURES, Hard, mse

DOUBLE = dict(dtype=torch.float64)
EACH = (1, 2, 3, 4)
SAMPLES, STEPS = 24, 3


class Run(NamedTuple):
    """program(comm), at each of these numbers of ranks."""

    program: Callable
    ranks: tuple[int, ...] = EACH


def numbers(seed, *shape, dtype=torch.float64):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


# ---------------------------------------------------------------------------------------------- collectives
LENGTH = 7


def collective(comm, verb, algorithm):
    """Each verb on seven numbers a rank, or on seven rows where rows are dealt out."""
    x, n = numbers(comm.rank, LENGTH), comm.size
    sizes = uneven(LENGTH, n)
    root = n - 1
    if verb == "broadcast_":
        return broadcast_(comm, x, root, algorithm)
    if verb == "reduce_":
        return reduce_(comm, x, root, algorithm=algorithm)
    if verb == "all_reduce_":
        return all_reduce_(comm, x, algorithm=algorithm)
    if verb == "reduce_scatter":
        return reduce_scatter(comm, x, "mean", sizes, algorithm)
    if verb == "reduce_scatter_":
        chunks = list(x.split(sizes))
        reduce_scatter_(comm, chunks, algorithm=algorithm)
        return chunks[comm.rank]
    if verb == "all_gather":
        return all_gather(comm, x[: sizes[comm.rank]], sizes, algorithm)
    if verb == "all_gather_":
        chunks = list(x.split(sizes))
        all_gather_(comm, chunks, algorithm=algorithm)
        return chunks
    if verb == "gather":
        return gather(comm, x, root, algorithm=algorithm)
    if verb == "scatter":
        return scatter(comm, x if comm.rank == root else None, root, sizes, algorithm=algorithm)
    if verb == "all_to_all":
        return all_to_all(comm, numbers(comm.rank, 2 * n, 3), algorithm=algorithm)
    return barrier(comm, algorithm)


VERBS_OF = {
    "naive": (
        "broadcast_",
        "reduce_",
        "all_reduce_",
        "reduce_scatter",
        "all_gather",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
    ),
    "ring": (
        "broadcast_",
        "reduce_",
        "all_reduce_",
        "reduce_scatter",
        "all_gather",
        "reduce_scatter_",
        "all_gather_",
    ),
    "tree": ("broadcast_", "reduce_", "all_reduce_", "barrier"),
    "double_tree": ("broadcast_", "reduce_", "all_reduce_"),
    "halving_doubling": ("all_reduce_", "reduce_scatter", "all_gather"),
    "pipelined": ("broadcast_", "reduce_", "all_reduce_", "reduce_scatter", "all_gather"),
    "hierarchical": ("broadcast_", "reduce_", "all_reduce_", "reduce_scatter", "all_gather"),
    "auto": ("broadcast_", "all_reduce_", "reduce_scatter", "all_gather", "all_to_all"),
}
COLLECTIVES = {
    f"{verb.rstrip('_')}{' in place' if verb in ('all_gather_', 'reduce_scatter_') else ''}, {algorithm}": Run(
        partial(collective, verb=verb, algorithm=algorithm), (1, 2, 3, 4, 5)
    )
    for algorithm, verbs in VERBS_OF.items()
    for verb in verbs
}
COLLECTIVES["all_reduce, trees between nodes of 2"] = Run(
    partial(collective, verb="all_reduce_", algorithm=Hierarchical("ring", "tree", 2)), (4, 5)
)


# ---------------------------------------------------------------------------------------------- messages
def messages(comm):
    """Sends, posted operations, a batch, a split and a lane."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = numbers(comm.rank, 5)
    if comm.size == 1:
        return x
    from_left = comm.sendrecv(x, right, torch.empty_like(x), left)
    posted = comm.irecv(torch.empty_like(x), left)
    comm.isend(from_left, right).wait()
    pair = comm.split(comm.rank % 2)
    lane = comm.stream(all_reduce_, x.clone())
    return from_left, posted.wait(), all_reduce_(pair, x.clone()), lane.wait()


# ---------------------------------------------------------------------------------------------- data parallel
def made(name):
    if name == "hard":
        return seeded_(Hard().double())
    return mlp([FEATURES, 9, 8, 7, CLASSES], **DOUBLE)


def data():
    return numbers(1, SAMPLES, FEATURES), numbers(2, SAMPLES, CLASSES)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)


def found(module):
    """What training has made: parameters by name."""
    return {name: p.detach() for name, p in module.named_parameters()}


def train(comm, model, optimizer, weighted=None, batch=11):
    """Steps on this rank's part of each batch, of which no two parts need be as large: losses."""
    x, y = data()
    first, end = bounds(uneven(batch, comm.size))[comm.rank]
    losses = []
    for step in range(STEPS):
        part = slice(step * 6 + first, step * 6 + end)
        optimizer.zero_grad()
        if weighted is not None:
            weighted.weight = end - first
        loss = mse(model(x[part]), y[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def by_hand(comm):
    """The naive average: one all-reduce a parameter."""
    model = made("mlp")
    optimizer, (x, y) = sgd(model.parameters()), data()
    for _ in range(STEPS):
        optimizer.zero_grad()
        first, end = bounds(uneven(SAMPLES, comm.size))[comm.rank]
        mse(model(x[first:end]), y[first:end]).backward()
        average_gradients(comm, model, end - first)
        optimizer.step()
    return found(model)


def data_parallel(comm, name="mlp", **options):
    module = made(name)
    model = DataParallel(module, comm, **options)
    losses = train(comm, model, sgd(model.parameters()), model)
    return losses, found(module)


def compressed(comm, make):
    """No rank may be without samples here, so that none is weighed."""
    module = made("mlp")
    model = DataParallel(module, comm, compression=make())
    losses = train(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), batch=12)
    return losses, found(module)


def accumulated(comm):
    model = DataParallel(made("mlp"), comm)
    optimizer, (x, y) = sgd(model.parameters()), data()
    first, end = bounds(uneven(SAMPLES, comm.size))[comm.rank]
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        micros = list(zip(x[first:end].split(3), y[first:end].split(3), strict=True))
        weights = [len(micro[0]) for micro in micros]
        losses.append(
            accumulate(lambda micro: mse(model(micro[0]), micro[1]), micros, weights, model)
        )
        optimizer.step()
    return losses, found(model)


def batch_norm(comm):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)
    ).double()
    module = SyncBatchNorm.convert(seeded_(module), comm)
    model = DataParallel(module, comm)
    losses = train(comm, model, sgd(model.parameters()), model)
    return losses, found(module), dict(module.named_buffers())


def convolutions(comm):
    module = SyncBatchNorm.convert(
        resnet(18, classes=3, channels=1, width=2, small=True, **DOUBLE), comm
    )
    model = DataParallel(module, comm)
    model(numbers(comm.rank, 2, 1, 8, 8)).square().mean().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def noise_scale(comm):
    module = made("mlp")
    model = DataParallel(module, comm)
    noise = NoiseScale(model.parameters(), comm)
    (x, y), each = data(), SAMPLES // comm.size
    part = slice(comm.rank * each, (comm.rank + 1) * each)
    mse(model(x[part]), y[part]).backward()
    return list(noise.update(each))


def dealt(comm):
    """Which samples a rank gets, in two epochs: the last batch is short, and then left out."""
    rows = []
    for drop_last in (False, True):
        sampler = Sampler(SAMPLES + 2, 4 * comm.size, comm, drop_last=drop_last)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            rows.append([part.tolist() for part in sampler])
    return rows


DATA = {
    "sampler": Run(dealt),
    "gradients averaged by hand": Run(by_hand),
    "DataParallel": Run(data_parallel),
    "DataParallel, hard": Run(partial(data_parallel, name="hard")),
    "DataParallel, small buckets": Run(
        partial(data_parallel, bucket_bytes=300, first_bucket_bytes=100)
    ),
    "DataParallel, no overlap": Run(partial(data_parallel, bucket_bytes=300, overlap=False)),
    "DataParallel, tree": Run(partial(data_parallel, algorithm="tree")),
    "accumulation": Run(accumulated),
    "SyncBatchNorm": Run(batch_norm),
    "SyncBatchNorm, convolutions": Run(convolutions, (1, 2, 3)),
    "compression, none": Run(partial(compressed, make=Dense)),
    "compression, fp16": Run(partial(compressed, make=Half)),
    "compression, signs": Run(partial(compressed, make=Sign)),
    "compression, PowerSGD": Run(partial(compressed, make=partial(PowerSGD, 2))),
    "compression, DGC": Run(partial(compressed, make=partial(DGC, 0.9))),
}


# ---------------------------------------------------------------------------------------------- ZeRO
def sharded_optimizer(comm, stage, name="mlp", inner=adamw, **options):
    module = made(name)
    optimizer = ShardedOptimizer(module.parameters(), inner, comm, stage, **options)
    losses = train(comm, module, optimizer, optimizer)
    return losses, found(module)


def clipped_shards(comm, stage):
    module = made("mlp")
    optimizer = ShardedOptimizer(module.parameters(), sgd, comm, stage)
    (x, y), norms = data(), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        part = slice(*bounds(uneven(SAMPLES, comm.size))[comm.rank])
        optimizer.weight = part.stop - part.start
        mse(module(x[part]), y[part]).backward()
        norms.append(optimizer.clip_grad_norm_(0.3))
        optimizer.step()
    return norms, found(module)


def fully_sharded(comm, name="mlp", **options):
    model = FullySharded(made(name), comm, **options)
    losses = train(comm, model, adamw(model.parameters()), model)
    return losses, model.full_state_dict()


def hybrid_sharded(comm):
    """Shards within pairs, replicas across them."""
    pairs = comm.split(comm.rank // 2)
    replicas = comm.split(comm.rank % 2)
    model = FullySharded(made("mlp"), pairs, blocks=nn.Linear, replicas=replicas)
    losses = train(comm, model, adamw(model.parameters()), batch=12)
    return losses, model.full_state_dict()


def offloaded(comm, **options):
    module = made("mlp")
    model = DataParallel(module, comm)
    optimizer = OffloadedOptimizer(model.parameters(), adamw, comm, **options)
    losses = train(comm, model, optimizer, model)
    optimizer.finish()
    return losses, found(module)


ZERO = {
    **{f"ZeRO {stage}": Run(partial(sharded_optimizer, stage=stage)) for stage in (1, 2)},
    **{
        f"ZeRO {stage}, hard": Run(partial(sharded_optimizer, stage=stage, name="hard"))
        for stage in (1, 2)
    },
    **{f"ZeRO {stage}, clipped": Run(partial(clipped_shards, stage=stage)) for stage in (1, 2)},
    "ZeRO 2, small buckets": Run(
        partial(sharded_optimizer, stage=2, bucket_bytes=300, first_bucket_bytes=100)
    ),
    "ZeRO 1, masters": Run(partial(sharded_optimizer, stage=1, master_dtype=torch.float32)),
    "ZeRO 3": Run(fully_sharded),
    "ZeRO 3, hard": Run(partial(fully_sharded, name="hard")),
    "ZeRO 3, blocks, no prefetch": Run(partial(fully_sharded, blocks=nn.Linear, prefetch=0)),
    "ZeRO 3, blocks": Run(partial(fully_sharded, blocks=nn.Linear)),
    "ZeRO 3, blocks, half": Run(
        partial(fully_sharded, blocks=nn.Linear, compute_dtype=torch.bfloat16)
    ),
    "ZeRO 3, offloaded": Run(partial(fully_sharded, blocks=nn.Linear, offload=True)),
    "ZeRO 3, replicas": Run(hybrid_sharded, (2, 4)),
    "offload": Run(offloaded),
    "offload, delayed": Run(partial(offloaded, mode="delayed", warmup=1)),
}


# ---------------------------------------------------------------------------------------------- seldom, and large
def local_sgd(comm, H=2, **options):
    module = made("mlp")
    options = {key: value() if key == "H" else value for key, value in options.items()}
    optimizer = LocalSGD(sgd(module.parameters()), comm, **({"H": H} | options))
    x, y = data()
    part = slice(*bounds(uneven(SAMPLES, comm.size))[comm.rank])
    for _ in range(5):
        optimizer.zero_grad()
        loss = mse(module(x[part]), y[part])
        loss.backward()
        optimizer.step(loss=loss.detach())
    optimizer.average()
    return found(module)


def large_batch(comm, make, how):
    module = made("mlp")
    inner = partial(make, lr=0.1)
    if how == "fully":
        model = FullySharded(module, comm)
        optimizer = inner(model.parameters())
    else:
        model = module
        optimizer = ShardedOptimizer(module.parameters(), inner, comm, 1)
    losses = train(comm, model, optimizer, model if how == "fully" else optimizer)
    return losses, model.full_state_dict() if how == "fully" else found(module)


SELDOM = {
    "LocalSGD": Run(local_sgd),
    "LocalSGD, post-local": Run(partial(local_sgd, H=3, start=2)),
    "LocalSGD, slow momentum": Run(partial(local_sgd, slow_momentum=0.5)),
    "LocalSGD, states averaged": Run(partial(local_sgd, states="average")),
    "AdaComm": Run(partial(local_sgd, H=AdaComm(2, 2))),
    "LARS, ZeRO 1": Run(partial(large_batch, make=LARS, how="ZeRO 1")),
    "LAMB, ZeRO 1": Run(partial(large_batch, make=LAMB, how="ZeRO 1")),
    "LAMB, ZeRO 3": Run(partial(large_batch, make=LAMB, how="fully")),
    "the noise scale": Run(noise_scale, (2, 3, 4)),
}


# ---------------------------------------------------------------------------------------------- tensor, vocabulary
HIDDEN = 24
HEADS = 6
TOKENS = 12
VOCAB = 13


def weighted(y):
    """One number, in which every output has another weight."""
    return (y * numbers(5, *y.shape, dtype=y.dtype)).sum()


def tensor_block(comm, make):
    """Output and gradients of one block, of what is whole or of this rank's part of the sequence."""
    block = make(comm)
    sequence = make.keywords.get("sequence", False)
    x = numbers(3, 2, TOKENS, HIDDEN)
    if sequence:
        x = x.chunk(comm.size, 1)[comm.rank].contiguous()
    x.requires_grad_()
    y = block(x)
    weighted(y).backward()
    return y.detach(), x.grad, {name: p.grad for name, p in block.named_parameters()}


def tensor_layer(comm, sequence=False, regather=False, **options):
    layer = TransformerLayer(HIDDEN, HEADS, device="meta", **options, **DOUBLE)
    return tensor_parallel_(layer, comm, sequence, regather)


def tensor_mlp(comm, sequence=False):
    return tensor_parallel_(MLP(HIDDEN, device="meta", **DOUBLE), comm, sequence)


def row_first(comm):
    return RowFirstMLP(HIDDEN, comm, **DOUBLE)


def random_numbers(comm):
    """Dropout of whole data, the same everywhere, and of split data."""
    seed_group_(comm, 5)
    x = torch.ones(40, **DOUBLE)
    return (
        TensorDropout(0.5, comm)(x),
        TensorDropout(0.5, comm, split=True)(x),
        TensorDropout(0.5, comm)(x),
    )


def sequence_norm(comm):
    norm = SequenceNorm(HIDDEN, comm, **DOUBLE)
    x = numbers(3, 2, TOKENS, HIDDEN).chunk(comm.size, 1)[comm.rank].contiguous().requires_grad_()
    weighted(norm(x)).backward()
    return x.grad, norm.weight.grad, norm.bias.grad


def split_loss(comm, loss_fn, **options):
    logits, targets = 3 * numbers(4, 2, 5, VOCAB), torch.arange(10).view(2, 5) % VOCAB
    part = logits.split(uneven(VOCAB, comm.size), -1)[comm.rank].clone().requires_grad_()
    loss = loss_fn(part, targets, comm, VOCAB, **options)
    loss.sum().backward()
    return loss.detach(), part.grad


def split_embedding(comm):
    embedding, tokens = (
        VocabEmbedding(VOCAB, 4, comm, **DOUBLE),
        torch.arange(10).view(2, 5) * 3 % VOCAB,
    )
    optimizer, losses = sgd(embedding.parameters()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = embedding.project(embedding(tokens).tanh())
        losses.append(vocab_cross_entropy(logits, tokens.flip(1), comm, VOCAB))
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses], embedding.weight.detach()


TENSOR = {
    **{
        f"tensor layer, {name}": Run(partial(tensor_block, make=partial(tensor_layer, **options)))
        for name, options in {
            "plain": {},
            "sequence": dict(sequence=True),
            "explicit": dict(attention="explicit"),
            "regather": dict(sequence=True, regather=True),
            "groups": dict(kv_heads=2),
            "rotary and gated": dict(rotary=True, gated=True, ffn=13),
        }.items()
    },
    "tensor MLP": Run(partial(tensor_block, make=partial(tensor_mlp))),
    "tensor MLP, sequence": Run(partial(tensor_block, make=partial(tensor_mlp, sequence=True))),
    "tensor MLP, rows first": Run(partial(tensor_block, make=partial(row_first))),
    "random numbers of tensor ranks": Run(random_numbers),
    "norm of a sequence": Run(sequence_norm),
    "vocabulary, loss": Run(partial(split_loss, loss_fn=vocab_cross_entropy)),
    "vocabulary, loss, smoothed": Run(
        partial(split_loss, loss_fn=vocab_cross_entropy, label_smoothing=0.1)
    ),
    "vocabulary, loss of gathered logits": Run(partial(split_loss, loss_fn=gathered_cross_entropy)),
    "vocabulary, embedding": Run(split_embedding),
}


# ---------------------------------------------------------------------------------------------- pipelines
def chain(parts):
    """A Sequential of so many parts, each of another width."""
    widths = [FEATURES, *(3 + (7 * i) % 5 for i in range(1, parts)), CLASSES]
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(widths)]
    return seeded_(nn.Sequential(*layers).double())


def pipeline(comm, schedule, chunks=1, place="loop", **options):
    """Losses, gradients, and the most micro-batches kept."""
    whole = chain(comm.size * chunks)
    if place == "V":
        parts = [comm.rank, 2 * comm.size - 1 - comm.rank]
    else:
        parts = [c * comm.size + comm.rank for c in range(chunks)]
    mine = [whole[part] for part in parts]
    engine = Pipeline(mine, comm, schedule, mse, place=place, **options)
    (x, y), losses = data(), []
    for _ in range(2):
        losses.append(
            engine.step(
                2 * comm.size, x if engine.first_stage else None, y if engine.last_stage else None
            )
        )
    outputs = forward(engine, x if engine.first_stage else None)
    grads = {
        f"{part}.{name}": p.grad
        for part, one in zip(parts, mine, strict=True)
        for name, p in one.named_parameters()
    }
    return losses, grads, outputs, engine.peak


def tied_ends(comm):
    """The first and the last stage share a matrix."""
    whole = seeded_(
        nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(comm.size))).double()
    )
    part = whole[comm.rank]
    first = comm.rank == 0
    last = comm.rank == comm.size - 1
    tied = {}
    if first or last:
        part.weight = nn.Parameter(initial(0, "tied", (FEATURES, FEATURES)).double())
        tied = {"tied": part.weight}
    engine = Pipeline(part, comm, gpipe, mse, tied=tied if comm.size > 1 else None)
    optimizer, x = sgd(part.parameters()), numbers(1, SAMPLES, FEATURES)
    for _ in range(2):
        optimizer.zero_grad()
        engine.step(4, x if first else None, x if last else None)
        optimizer.step()
    return found(part)


def pipedream(comm, rule, **options):
    whole = chain(5)
    part = whole[slice(*bounds(uneven(5, comm.size))[comm.rank])]
    kind = PipeDream2BW if rule == "2bw" else partial(PipeDream, vertical=rule == "vertical")
    engine = kind(part, comm, sgd, mse, **options)
    x, y = data()
    losses = engine.run(list(zip(x.split(2), y.split(2), strict=True)))
    return losses, found(part), engine.staleness, engine.versions.most, engine.versions.most_bytes


SCHEDULES = {
    "naive": naive,
    "gpipe": gpipe,
    "1F1B": one_f_one_b,
    "ZB-H1": zb_h1,
    "ZB-H2": zb_h2,
    "automatic": zb_auto,
}
PIPELINES = {
    **{
        f"pipeline, {name}": Run(partial(pipeline, schedule=schedule))
        for name, schedule in SCHEDULES.items()
    },
    "pipeline, interleaved": Run(partial(pipeline, schedule=interleaved, chunks=2)),
    "pipeline, V": Run(partial(pipeline, schedule=zb_v, chunks=2, place="V")),
    "pipeline, 1F1B, recomputed": Run(partial(pipeline, schedule=one_f_one_b, recompute=True)),
    "pipeline, tied ends": Run(tied_ends),
    **{
        f"PipeDream, {rule}": Run(partial(pipedream, rule=rule))
        for rule in ("stash", "vertical", "2bw")
    },
    "PipeDream, recomputed": Run(partial(pipedream, rule="stash", recompute=True)),
}


# ---------------------------------------------------------------------------------------------- parameter server
def server(comm, servers=1, **options):
    model, (x, y) = made("mlp"), data()
    trainer = ParameterServer(model, comm, adamw, servers, **options)

    def step(part):
        mse(model(x[part]), y[part]).backward()
        return part.start

    batches = None
    if trainer.worker is not None:
        each = SAMPLES // trainer.workers
        first = trainer.worker * each
        batches = [slice(first + i, first + i + each - 2) for i in range(3)]
    report = trainer.train(batches, step)
    return found(model), report.values, [list(update) for update in report.updates]


SERVER = {
    "server, synchronous": Run(server, (2, 3, 4, 5)),
    "server, two servers": Run(partial(server, servers=2), (3, 4, 5)),
    "server, asynchronous": Run(partial(server, mode="async"), (2, 3, 4)),
    "server, bounded": Run(partial(server, mode="ssp", bound=1), (2, 3, 4)),
}


# ---------------------------------------------------------------------------------------------- on one rank
def levels(comm, level, half):
    """A level of mixed precision, over data ranks."""
    model = DataParallel(mlp([FEATURES, 9, 8, CLASSES]), comm)
    amp = prepare(model, lambda params: torch.optim.SGD(params, lr=0.1), level, half)
    x, y = (whole.float().chunk(comm.size)[comm.rank] for whole in data())
    losses = []
    for _ in range(STEPS):
        with amp.autocast:
            loss = mse(amp.model(x).float(), y)
        losses.append(loss.detach())
        amp.step(loss)
    return losses, found(model), amp.scaler.skipped


def lists(comm):
    with autocast(torch.bfloat16):
        x = torch.ones(2, 3)
        y = F.linear(x, torch.ones(4, 3))
        return y, F.softmax(y, -1), F.layer_norm(y, (4,)), y + x.sum()


def overflow(comm):
    """All ranks skip the step in which one has an inf."""
    model = mlp([3, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, scales = LossScaler(256.0, comm=comm), []
    for step in range(STEPS):
        for p in model.parameters():
            p.grad = torch.full_like(
                p, float("inf") if step == 1 and comm.rank == comm.size - 1 else 256.0
            )
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.skipped)
    return found(model), scales


def again(comm, form):
    """A chain of layers, with less kept for backward."""
    layers = seeded_(
        nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(9))).double()
    )
    x = numbers(comm.rank, 40, 16).requires_grad_()
    weighted(form(layers, x)).backward()
    return x.grad, {name: p.grad for name, p in layers.named_parameters()}


def each_layer(form, layers, x):
    for layer in layers:
        x = form(layer, x)
    return x


def attention_again(comm):
    model = gpt(2, HIDDEN, HEADS, VOCAB, TOKENS, attention="explicit", **DOUBLE)
    form = selective(ATTENTION)
    for layer in model.layers:
        layer.forward = partial(form, layer.forward)
    tokens = torch.arange(2 * TOKENS).view(2, TOKENS) % VOCAB
    next_token_loss(model(tokens), tokens).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def reversible(comm, bits=None):
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
    parts = seeded_(nn.ModuleList(parts)).double()
    blocks = [ReversibleBlock(f, g, bits) for f, g in zip(parts[::2], parts[1::2], strict=True)]
    x1, x2 = (numbers(i, 10, 8).mul(1024).round().div(1024).requires_grad_() for i in (1, 2))
    y1, y2 = ReversibleSequence(blocks)(x1, x2)
    (weighted(y1) + weighted(y2)).backward()
    return (
        y1.detach(),
        y2.detach(),
        x1.grad,
        x2.grad,
        {name: p.grad for name, p in parts.named_parameters()},
    )


ALONE = {
    **{
        f"mixed precision, {level}, {str(half)[6:]}": Run(
            partial(levels, level=level, half=half), (1, 2, 3)
        )
        for level in ("O0", "O1", "O2", "O3")
        for half in (torch.float16, torch.bfloat16)
    },
    "mixed precision, lists": Run(lists, (1,)),
    "mixed precision, an overflow": Run(overflow),
    "recomputation, none": Run(partial(again, form=lambda layers, x: layers(x)), (1,)),
    "recomputation, a layer": Run(partial(again, form=partial(each_layer, checkpoint)), (1,)),
    "recomputation, a layer, reentrant": Run(
        partial(again, form=partial(each_layer, checkpoint_reentrant)), (1,)
    ),
    "recomputation, segments": Run(
        partial(again, form=lambda layers, x: checkpoint_sequential(layers, None, x)), (1,)
    ),
    "recomputation, halves": Run(partial(again, form=checkpoint_recursive), (1,)),
    "recomputation, attention": Run(attention_again, (1,)),
    "reversible": Run(reversible, (1,)),
    "reversible, exact": Run(partial(reversible, bits=20), (1,)),
}


# ---------------------------------------------------------------------------------------------- a grid
def on_a_grid(comm, dp, pp, tp, model=None, **options):
    shape = dict(layers=2, hidden=12, heads=6, vocab=13, context=6, **DOUBLE) | (model or {})
    engine = parallelize(
        gpt(**shape, device="meta"), Mesh(comm, dp=dp, pp=pp, tp=tp), adamw, **options
    )
    tokens = torch.arange(12 * 7).mul(5).view(12, 7) % 13
    part = tokens.tensor_split(dp)[engine.mesh.dp.rank]
    losses = [engine.step(part[:, :-1], part[:, 1:], 0.3, len(part)) for _ in range(2)]
    return losses, {piece.name: piece.values.detach() for piece in engine.pieces()}


MODERN = dict(kv_heads=3, gated=True, ffn=10, rotary=True)
GRIDS = {
    "1 × 1 × 1": (1, 1, 1, {}),
    "2 × 1 × 1, ZeRO 2": (2, 1, 1, dict(zero=2, micro_batches=2)),
    "3 × 1 × 1, ZeRO 3": (3, 1, 1, dict(zero=3, recompute="full")),
    "1 × 2 × 1": (1, 2, 1, dict(micro_batches=3)),
    "1 × 1 × 2, sequence": (1, 1, 2, dict(model=MODERN, sequence_parallel=True, recompute="full")),
    "1 × 3 × 1, stages": (
        1,
        3,
        1,
        dict(model=dict(tied=False), micro_batches=2, recompute="stage"),
    ),
    "2 × 2 × 1, ZeRO 3, interleaved": (
        2,
        2,
        1,
        dict(micro_batches=4, zero=3, schedule=interleaved, chunks=2),
    ),
    "2 × 1 × 2, selective": (
        2,
        1,
        2,
        dict(model=dict(attention="explicit"), recompute="selective", zero=3),
    ),
    "1 × 2 × 2": (1, 2, 2, dict(model=MODERN, micro_batches=3, sequence_parallel=True)),
    "2 × 2 × 2, ZeRO 0": (2, 2, 2, dict(micro_batches=3, schedule=gpipe)),
    "2 × 2 × 2, ZeRO 1": (2, 2, 2, dict(micro_batches=3, zero=1, recompute="full")),
    "2 × 2 × 2, O2, ZeRO 2": (
        2,
        2,
        2,
        dict(model=dict(dtype=torch.float32), micro_batches=3, zero=2, amp="O2"),
    ),
    "2 × 2 × 2, PowerSGD": (
        2,
        2,
        2,
        dict(model=dict(tied=False), micro_batches=3, compression=PowerSGD(2)),
    ),
    "2 × 2 × 2, all at once": (
        2,
        2,
        2,
        dict(
            model=MODERN,
            micro_batches=4,
            zero=3,
            recompute="full",
            sequence_parallel=True,
            schedule=interleaved,
            chunks=2,
        ),
    ),
}
WHOLE = {
    f"grid, {name}": Run(partial(on_a_grid, dp=dp, pp=pp, tp=tp, **options), (dp * pp * tp,))
    for name, (dp, pp, tp, options) in GRIDS.items()
}


# ---------------------------------------------------------------------------------------------- the clipped norm
def clipped_norm(comm):
    """Stages of a model, whose norm is that of all."""
    part = seeded_(nn.Linear(4, comm.rank + 2).double())
    weighted(part(numbers(comm.rank, 3, 4))).backward()
    norm = clip_grad_norm_(part, 0.5, comm)
    return norm, {name: p.grad for name, p in part.named_parameters()}


RUNS = {
    **COLLECTIVES,
    "messages": Run(messages),
    **DATA,
    **ZERO,
    **SELDOM,
    **TENSOR,
    **PIPELINES,
    **SERVER,
    **ALONE,
    **WHOLE,
    "the clipped norm": Run(clipped_norm),
}
