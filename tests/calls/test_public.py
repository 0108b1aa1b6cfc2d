"""A hundred wrong calls over the whole public API: each is refused in words that name what is wrong.

What stands in `test_wrong_calls.py` is not repeated here.
"""

import pytest
import torch
from torch import nn

from minidist import (
    World,
    checkpoint,
    collectives,
    from_env,
    launch,
    models,
    parallel,
    split,
    study,
    text,
    train,
)
from minidist.comm import Cluster, Deadlock, Device, Level, Mesh, Mismatch
from minidist.parallel import schedules, simulate, validate
from minidist.study import allocator, plan, predict

LINES = torch.ones(4, 4)
CROSSED = [schedules.parse("F0 B0"), schedules.parse("B0 F0")]


def layer():
    return nn.Linear(4, 4)


def weights():
    return layer().parameters()


def adam(parameters):
    return train.AdamW(parameters, lr=1e-3)


def total(outputs, _):
    return outputs.sum()


def send_or_receive(comm, sent, received):
    return comm.send(sent, 1) if comm.rank == 0 else comm.recv(received, 0)


HERE = {
    # runners and machines
    "a program is a function program(comm, …), not int": lambda: World(2).run(3),
    "a run has at least 1 rank, not 0": lambda: launch(print, 0),
    'transport is "shm" or "gloo", not \'tcp\'': lambda: launch(print, 2, transport="tcp"),
    "a rate is a number of bytes per second, more than 0, not -1": lambda: launch(
        print, 2, rate=-1
    ),
    "a timeout is a number of seconds": lambda: launch(print, 2, timeout=0),
    'a backend is "gloo" or "nccl", not \'mpi\'': lambda: from_env("mpi"),
    "100 ranks do not fit on the cluster": lambda: World(100, cluster=Cluster.dgx_h100(nodes=1)),
    "a cluster has links of its own": lambda: World(2, alpha=0, cluster=Cluster.dgx_h100(nodes=1)),
    "a cluster has at least 1 of its nodes, not 0": lambda: Cluster.dgx_h100(nodes=0),
    "rank 9 is not in this cluster": lambda: Cluster.laptop().slow_rank(9, 2.0),
    "alpha is a number of seconds, at least 0, not -1": lambda: Level(-1, 0),
    "the efficiency of a device is from 0 to 1, not 3.0": lambda: Device(
        "x", {}, 1, 1.0, efficiency=3.0
    ),
    # costs of collectives
    "the inner algorithm is one of": lambda: collectives.Hierarchical("rings"),
    "a network has at least 1 rank, not 0": lambda: collectives.seconds(
        "all_reduce", "ring", 0, 10, 0, 0
    ),
    "a collective moves at least 0 bytes, not -10": lambda: collectives.seconds(
        "all_reduce", "ring", 2, -10, 0, 0
    ),
    "a collective takes more than 0 seconds, not 0": lambda: collectives.bandwidth(
        "all_reduce", 2, 100, 0
    ),
    "10 rows do not split over 4 ranks": lambda: split.even(10, 4),
    # pipelines
    "2 layers do not make 3 stages": lambda: parallel.partition([1.0, 2.0], 3),
    "a layer costs at least 0, not -2.0": lambda: parallel.partition([1.0, -2.0], 1),
    "'G1' is no action": lambda: schedules.parse("F0 G1"),
    "stage 1, position 0, B0: it needs F0": lambda: validate.validate(CROSSED),
    "a forward takes no time less than 0": lambda: simulate.simulate(
        schedules.lists(schedules.gpipe, 2, 2), forward=-1.0
    ),
    "stage 0 never comes to B0": lambda: simulate.simulate(CROSSED),
    # fewer messages
    "a sparsity is at least 0 and below 1, not 1.5": lambda: parallel.DGC(sparsity=1.5),
    "the rank is 1 or more, not 0": lambda: parallel.PowerSGD(0),
    "16 bits are torch.float16 or torch.bfloat16": lambda: parallel.Half(torch.float32),
    # one rank's training
    "checkpoint(fn, …) calls a function or a module, not 3": lambda: train.checkpoint(3, LINES),
    "2 functions do not split into 3 segments": lambda: train.checkpoint_sequential(
        [layer(), layer()], 3, LINES
    ),
    "an operator is named as torch.ops.aten.bmm": lambda: train.selective(["nosuch"]),
    "lr is not negative: it is -1": lambda: train.AdamW(weights(), lr=-1),
    "betas are at least 0 and below 1": lambda: train.AdamW(weights(), betas=(1.0, 0.9)),
    "trust is not negative": lambda: train.LARS(weights(), lr=1, trust=-1.0),
    "optimizer got an empty parameter list": lambda: train.LAMB([], lr=0.1),
    "S must start finite and above 0": lambda: train.LossScaler(init=0),
    "autocast is to one of": lambda: train.autocast(torch.int8),
    "the levels are O0, O1, O2, O3": lambda: train.prepare(layer(), adam, level="O7"),
    "masters have a floating-point dtype": lambda: train.Masters(
        weights(), train.AdamW, dtype=torch.int8
    ),
    "a warm-up has at least 0 steps": lambda: train.warm_up(-1),
    "a schedule has more than 0 steps": lambda: train.cosine(0),
    "the rule is linear, root, or adam": lambda: train.scaled(0.1, 2, "cubic"),
    "a batch of 10 does not grow to 5": lambda: train.batch_ramp(10, 5),
    "a reversible sequence is made of ReversibleBlocks, not Linear": lambda: (
        train.ReversibleSequence([layer()])
    ),
    # checkpoints
    "/nowhere/at all has no manifest.json": lambda: checkpoint.Saved("/nowhere/at all"),
    "(4, 4) from (0, 0) on is no part of w, (2, 2)": lambda: checkpoint.Piece(
        "w", LINES, whole=(2, 2)
    ),
    "load reads what Saved(path) has found, not int": lambda: checkpoint.load(3, layer()),
    "this is no random_state(): it lacks cuda, numpy": lambda: checkpoint.set_random_state({}),
    # study
    "measure calls a function or a module, not 3": lambda: study.measure(3),
    "a picture has room for 1 to 24 bars": lambda: study.bars({}),
    "curve 'a' needs as many x as y": lambda: study.curves({"a": ([1, 2], [1])}),
    "messages draws the trace of a run, as results.trace is, not int": lambda: study.messages(3),
    "no table of figures is called 'gpt5'": lambda: study.published("gpt5"),
    "a picture has room for 1 to 10 operators": lambda: study.roof({}, Device("x", {}, 1, 1.0)),
    "a picture has room for 1 to 16": lambda: study.stages({}),
    "source shows a function, class": lambda: study.source(3),
    "a device has at least 1 byte, not 0": lambda: allocator.Allocator(0),
    "3 heads do not split hidden = 10": lambda: predict.Transformer(2, 10, 3, 100, 8),
    "ZeRO has the stages 0 (none) to 3, not 7": lambda: predict.Grid(zero=7),
    "precision 'fp4' is none of": lambda: predict.states(100, precision="fp4"),
    "there is a formula for naive": lambda: predict.bubble("2f2b", 4, 8),
    "ZeRO has the stages 0 (none) to 3, not 5": lambda: predict.zero_traffic(5, 10, 2),
    "model 'gpt9' is none of": lambda: plan.plan("gpt9", "a100:1x8", 8),
    "a cluster is v100, a100": lambda: plan.plan("gpt3-175b", "8xz9", 8),
    "a step has at least 1 sequence, not 0": lambda: plan.plan("gpt3-175b", "a100:1x8", 0),
    # models and data
    "a share of the text to test on is from 0 to below 1": lambda: text.split(torch.arange(9), 2.0),
    "this is no state() of a tokenizer: 'nosuch'": lambda: text.tokenizer("nosuch"),
    "5 tokens have no piece of 10": lambda: text.Samples(torch.arange(5), 10),
    "an MLP has at least 2 sizes": lambda: models.mlp([3]),
    "a ResNet has at least 1 class, not 0": lambda: models.resnet(classes=0),
    "there are no parts 3 to 2": lambda: models.stage_of(models.gpt(2, 8, 2, 16, 8), 3, 2),
}

TOGETHER = {
    # meshes, messages, collectives
    "2 ranks are not": lambda comm: Mesh(comm, dp=3),
    "group is no name for an axis": lambda comm: Mesh(comm, group=2, order="pp dp tp group"),
    "the order of a mesh names": lambda comm: Mesh(comm, dp=2, order=("dp", "tp")),
    "rank 0 can only send to rank 1 a tensor, not list": lambda comm: comm.send([1.0], 1),
    "rank 0 can only send to rank 1 a dense tensor": lambda comm: comm.send(LINES.to_sparse(), 1),
    "rank 0 cannot receive into (3,) float32": lambda comm: comm.recv(torch.ones(1).expand(3), 1),
    "rank 0 sends (3,) float32": lambda comm: send_or_receive(comm, torch.ones(3), torch.ones(4)),
    "rank 0 sends (4, 4) float32": lambda comm: send_or_receive(comm, LINES, LINES.long()),
    "no rank can go on": lambda comm: comm.recv(torch.ones(3), 1 - comm.rank),
    "a stream runs a function fn(lane, …), not 3": lambda comm: comm.stream(3),
    "a batch is a list of Send and Recv; tuple": lambda comm: comm.batch([("send", 1)]),
    "a collective takes a tensor, or in place a list of tensors, not int": lambda comm: (
        collectives.all_reduce_(comm, [1, 2])
    ),
    "a collective takes a tensor, or in place a list of tensors, not list": lambda comm: (
        collectives.scatter(comm, LINES, out=[torch.ones(2, 4)])
    ),
    "a collective takes a tensor, or in place a list of tensors, not WorldComm": lambda comm: (
        collectives.all_reduce_(LINES, comm)
    ),
    "rank 1 sends (2,) float32": lambda comm: collectives.all_reduce_(
        comm, torch.ones(3 + comm.rank)
    ),
    "the mean of torch.int64 tensors": lambda comm: collectives.all_reduce_(
        comm, LINES.long(), "mean"
    ),
    "there is no collective 'allreduce'": lambda comm: collectives.fastest(comm, "allreduce", 10),
    "Object of type set is not JSON serializable": lambda comm: collectives.all_gather_json(
        comm, {1, 2}
    ),
    # data parallel
    "10 samples do not make a batch of 0": lambda comm: parallel.Sampler(10, 0, comm),
    "2 samples do not make a batch of 8": lambda comm: parallel.Sampler(2, 8, comm),
    "rank 0 has a weight of -1": lambda comm: parallel.average_gradients(comm, layer(), weight=-1),
    "a batch norm has at least 1 channel, not 0": lambda comm: parallel.SyncBatchNorm(0, comm),
    "this batch norm has 3 channels": lambda comm: parallel.SyncBatchNorm(3, comm)(LINES),
    # ZeRO
    "a sharded optimizer has the stages 1 and 2 of ZeRO, not 4": lambda comm: (
        parallel.ShardedOptimizer(weights(), train.AdamW, comm, stage=4)
    ),
    "optimizer_class makes an optimizer, as AdamW does, not 'adam'": lambda comm: (
        parallel.ShardedOptimizer(weights(), "adam", comm)
    ),
    "optimizer got an empty parameter list": lambda comm: parallel.ShardedOptimizer(
        [], train.AdamW, comm
    ),
    "FullySharded(module, comm) shards over the ranks of a Comm, not int": lambda comm: (
        parallel.FullySharded(layer(), 2)
    ),
    "at least 0 blocks are gathered ahead, not -1": lambda comm: parallel.FullySharded(
        layer(), comm, prefetch=-1
    ),
    "blocks compute in a dtype of real numbers of 16 bits or more, not torch.int32": lambda comm: (
        parallel.FullySharded(layer(), comm, compute_dtype=torch.int32)
    ),
    "mode is one of 'exact', 'delayed', not 'late'": lambda comm: parallel.OffloadedOptimizer(
        weights(), train.AdamW, comm, mode="late"
    ),
    "gradients are clipped to a norm of at least 0, not '1'": lambda comm: train.clip_grad_norm_(
        layer(), "1", comm
    ),
    # tensor and vocabulary parallel
    "the sizes [1, 1] add up to 2": lambda comm: parallel.ColumnLinear(4, 3, comm, sizes=[1, 1]),
    "a Linear has no attention and no MLP to split": lambda comm: parallel.tensor_parallel_(
        layer(), comm
    ),
    "this Attention is split already": lambda comm: parallel.tensor_parallel_(
        parallel.tensor_parallel_(models.TransformerLayer(8, 2), comm), comm
    ),
    "a layer has at least 1 hidden feature, not 0": lambda comm: parallel.tensor_parallel_(
        models.TransformerLayer(0, 2), comm
    ),
    "token 9 is no token of a vocabulary of 8": lambda comm: parallel.VocabEmbedding(8, 4, comm)(
        torch.tensor([9])
    ),
    "a token is the number of a token": lambda comm: parallel.VocabEmbedding(8, 4, comm)(
        torch.tensor([0.5])
    ),
    "target 9 is no token": lambda comm: parallel.vocab_cross_entropy(
        torch.ones(2, 4), torch.tensor([0, 9]), comm, 8
    ),
    "rank 0 of 2 holds 4 of 8 logits": lambda comm: parallel.vocab_cross_entropy(
        torch.ones(2, 3), torch.tensor([0, 1]), comm, 8
    ),
    # pipelines
    "a schedule is a function schedule(stage, S, M), such as schedules.gpipe, not '1f1b'": (
        lambda comm: parallel.Pipeline(layer(), comm, "1f1b")
    ),
    "a stage has at least 1 chunk, not 0": lambda comm: parallel.Pipeline([], comm),
    "stage 1 has the last part of the model": lambda comm: parallel.Pipeline(layer(), comm).step(
        2, LINES, LINES
    ),
    "optimizer is a function that makes one of parameters, not 3": lambda comm: parallel.PipeDream(
        layer(), comm, 3
    ),
    # fewer messages
    "a period has H steps, at least 1, not 0": lambda comm: parallel.LocalSGD(
        train.SGD(weights(), lr=0.1), comm, 0
    ),
    "a period has H steps, at least 1, not 2.5": lambda comm: parallel.LocalSGD(
        train.SGD(weights(), lr=0.1), comm, 2.5
    ),
    "LocalSGD(optimizer, comm, H) wraps an optimizer, not str": lambda comm: parallel.LocalSGD(
        "sgd", comm, 2
    ),
    'mode is "sync", "async" or "ssp"': lambda comm: parallel.ParameterServer(
        layer(), comm, adam, mode="later"
    ),
    "2 servers among 2 ranks": lambda comm: parallel.ParameterServer(
        layer(), comm, adam, servers=2
    ),
    'a bound belongs to mode="ssp"': lambda comm: parallel.ParameterServer(
        layer(), comm, adam, mode="async", bound=-1
    ),
    "noise is measured on parameters that train": lambda comm: train.NoiseScale([], comm),
    "at least 1 checkpoint is kept, not 0": lambda comm: checkpoint.Checkpoints("x", comm, keep=0),
}


def refused(call, words):
    kinds = (ValueError, TypeError, Mismatch, Deadlock, checkpoint.Refused)
    with pytest.raises(kinds) as caught:
        call()
    assert str(caught.value).startswith(words), f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("words", HERE)
def test_a_wrong_call(words):
    refused(HERE[words], words)


@pytest.mark.parametrize("words", TOGETHER)
def test_a_wrong_call_of_two_ranks(words):
    refused(lambda: World(2).run(TOGETHER[words]), words)


def test_there_are_a_hundred(figure):
    figure(f"{len(HERE) + len(TOGETHER)} wrong calls")
    assert len(HERE) + len(TOGETHER) >= 100
