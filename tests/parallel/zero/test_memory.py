"""Bytes by category and bytes sent, counted by a World, against formulas that know nothing of the optimizer.

A model of 12.6 million parameters on meta tensors: 12 layers, which 2, 3 and 4 ranks share evenly.
"""

import itertools

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.comm.cluster import H100, Cluster
from minidist.models import mlp
from minidist.parallel.data import average_gradients
from minidist.parallel.zero import ShardedOptimizer, step_bytes
from minidist.study.predict import states
from tests.parallel.cases import difference
from tests.parallel.zero.cases import serial, train

WIDTHS = [1024] * 13
PARAMS, TENSORS = sum(a * b + b for a, b in itertools.pairwise(WIDTHS)), 24
LAYER = 1024 * 1025
FP16 = (torch.float16, torch.float32)
FP32 = (torch.float32, None)


def steps(comm, stage, dtypes, count, wrap=ShardedOptimizer, **options):
    """`count` steps of Adam; the times at the end of the last one's forward, backward and step."""
    model = mlp(WIDTHS, dtype=dtypes[0], device="meta")
    optimizer = wrap(model.parameters(), torch.optim.Adam, comm, stage, dtypes[1], **options)
    x = torch.empty(8, WIDTHS[0], device="meta", dtype=dtypes[0])
    times = (0.0, 0.0, 0.0)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        forward = comm.now()
        loss.backward()
        times = forward, comm.now()
        x.neg()  # so that the step begins later than backward ends
        optimizer.step()
        times = *times, comm.now()
    return times


def run(n, *args, **options):
    """(times of each rank, trace)"""
    results = World(n, device="meta", cluster=Cluster.uniform(n, 5e-6, 1 / 50e9, H100)).run(
        steps, *args, **options
    )
    return list(results), results.trace


def unlike(n, stage, dtypes, precision, **options):
    """What is not as the formulas say, at the end of the second backward: (rank, category, bytes, formula)."""
    times, trace = run(n, stage, dtypes, 2, **options)
    found = []
    for rank, (_, backward, _) in enumerate(times):
        live = trace.memory[rank].at(backward)
        said = states(PARAMS, "adam", precision, zero=stage, data=n, rank=rank)
        want = {
            "parameters": said.parameters,
            "gradients": said.gradients,
            "optimizer states": said.optimizer_states,
        }
        found += [
            (rank, kind, live[kind], nbytes)
            for kind, nbytes in want.items()
            if live[kind] != nbytes
        ]
    return found


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("n", "dtypes", "precision"),
    [(1, FP16, "fp16"), (2, FP16, "fp16"), (3, FP32, "fp32"), (4, FP16, "fp16")],
)
def test_bytes_by_category(n, stage, dtypes, precision):
    """4Ψ + 12Ψ/n and 2Ψ + 14Ψ/n, and without masters 8Ψ + 8Ψ/n and 4Ψ + 12Ψ/n, to the byte."""
    assert unlike(n, stage, dtypes, precision) == []
    total = {
        ("fp16", 1): 4 + 12 / n,
        ("fp16", 2): 2 + 14 / n,
        ("fp32", 1): 8 + 8 / n,
        ("fp32", 2): 4 + 12 / n,
    }
    assert (
        states(PARAMS, "adam", precision, zero=stage, data=n).total
        == PARAMS * total[precision, stage]
    )


class ShardsNothing:
    """Averages all gradients and steps all parameters on every rank: right numbers, at the price of no sharding."""

    def __init__(self, params, optimizer_class, comm, stage, master_dtype=None):
        self.module = nn.ParameterList(params)
        self.comm = comm
        self.weight = None
        self.optimizer = optimizer_class(self.module)
        self.zero_grad, self.state_dict = self.optimizer.zero_grad, self.optimizer.state_dict

    def step(self):
        average_gradients(self.comm, self.module, self.weight)
        self.optimizer.step()


class FreesNothing(ShardedOptimizer):
    """Says stage 2 and does stage 1."""

    def __init__(self, params, optimizer_class, comm, stage, *args, **options):
        super().__init__(params, optimizer_class, comm, 1, *args, **options)


def test_one_that_shards_nothing_is_found():
    results = World(2).run(train, "mlp", "adamw", 1, wrap=ShardsNothing)
    # its numbers are right
    assert all(difference(params, serial("mlp", "adamw")[0]) < 1e-12 for params, *_ in results)
    wrong = unlike(2, 1, FP32, "fp32", wrap=ShardsNothing)
    assert {(rank, kind): nbytes / PARAMS for rank, kind, nbytes, _ in wrong} == {
        (0, "optimizer states"): 8,
        (1, "optimizer states"): 8,
    }
    wrong = unlike(2, 2, FP16, "fp16", wrap=FreesNothing)
    assert {kind for _, kind, *_ in wrong} == {"gradients"} and len(wrong) == 2


def most(timeline, kinds, start, end):
    """The most bytes of these categories at once between two times."""
    total = sum(timeline.live[kind] for kind in kinds)
    inside = (timeline.times >= start) & (timeline.times <= end)
    return int(total[inside].max())


@pytest.mark.parametrize("n", [2, 4])
def test_stage_2_frees_during_backward(n):
    """At most what is owned, a bucket that fills, one that is sent (of two layers), and what a ring receives: up to
    three slices, here layers. Stage 1 has all of it."""
    peaks = {}
    for stage, wrap in ((1, ShardedOptimizer), (2, ShardedOptimizer), (2, FreesNothing)):
        times, trace = run(
            n, stage, FP16, 2, wrap=wrap, bucket_bytes=4 * LAYER, first_bucket_bytes=2 * LAYER
        )
        peaks[stage, wrap] = max(
            most(trace.memory[r], ("gradients", "other"), forward, backward)
            for r, (forward, backward, _) in enumerate(times)
        )
    bound = 2 * PARAMS // n + (4 + min(3, n - 1)) * 2 * LAYER + 2**18
    assert peaks[2, ShardedOptimizer] < bound < peaks[2, FreesNothing] == peaks[1, ShardedOptimizer]
    assert peaks[1, ShardedOptimizer] >= 2 * PARAMS


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bytes_of_a_step(n, stage):
    """Ψ of gradients and Ψ of parameters, (n−1)/n of it from each rank, and a flag for each tensor."""
    traces = [run(n, stage, FP16, count)[1] for count in (1, 2)]
    for rank in range(n):
        sent = traces[1].bytes_sent(rank) - traces[0].bytes_sent(rank)
        assert (
            sent
            == 2 * (n - 1) * (2 * PARAMS + TENSORS) // n
            == step_bytes(PARAMS, TENSORS, n, 2) // n
        )


def test_bytes_of_a_step_where_the_shards_are_uneven():
    """All ranks together send the same, whoever owns what."""
    for n in (2, 3, 4, 6):
        for name, numbers, tensors in (("mlp", 53, 4), ("hard", 73, 7)):
            sent = [
                World(n).run(train, name, "momentum", 1 + n % 2, 12, count).trace.bytes_sent()
                for count in (1, 2)
            ]
            assert sent[1] - sent[0] == step_bytes(numbers, tensors, n, 8)
