"""Against the batch as a whole: tokens weigh alike, whatever micro-batch they are in."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.comm import World, launch
from minidist.models import gpt, seeded_
from minidist.parallel.data import DataParallel
from minidist.train.accumulate import accumulate, accumulate_naive
from tests.largest import largest

VOCAB, PADDING = 11, -100


def model():
    return gpt(1, 8, 2, VOCAB, 6, dtype=torch.float64)


def sequences(lengths, seed=0):
    """(len(lengths), 6) token numbers and targets, of which `lengths` count."""
    random = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, VOCAB, (len(lengths), 6), generator=random) for _ in "xy")
    for row, length in zip(y, lengths, strict=True):
        row[length:] = PADDING
    return x, y


def mean(net):
    def loss(micro):
        x, y = micro
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=PADDING)

    return loss


def cut(x, y, sizes):
    micros = list(zip(x.split(sizes), y.split(sizes), strict=True))
    return micros, [(part != PADDING).sum() for _, part in micros]


def whole(x, y):
    net = model()
    loss = mean(net)((x, y))
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


def furthest(grads, others):
    return largest((a - b).abs().max().item() for a, b in zip(grads, others, strict=True))


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 3], [1, 1, 1, 1]])
@pytest.mark.parametrize("lengths", [[6, 6, 6, 6], [6, 1, 4, 2], [0, 5, 6, 0]])
def test_every_token_weighs_alike(lengths, sizes):
    x, y = sequences(lengths)
    expected, grads = whole(x, y)
    net = model()
    found = accumulate(mean(net), *cut(x, y, sizes))
    assert (
        abs(found - expected) < 1e-14
        and furthest([p.grad for p in net.parameters()], grads) < 1e-14
    )


@pytest.mark.parametrize(("lengths", "right"), [([6, 6, 6, 6], True), ([6, 1, 4, 2], False)])
def test_the_naive_form_is_right_only_for_equal_ones(lengths, right):
    x, y = sequences(lengths)
    expected, grads = whole(x, y)
    net = model()
    found = accumulate_naive(mean(net), cut(x, y, [1, 1, 1, 1])[0])
    off = furthest([p.grad for p in net.parameters()], grads)
    assert (abs(found - expected).item() < 1e-14) is right and (
        off < 1e-14 if right else off > 1e-3
    )


def test_gradients_add_to_what_is_there():
    net = model()
    x, y = sequences([6, 2])
    for _ in range(2):
        accumulate(mean(net), *cut(x, y, [1, 1]))
    assert furthest([p.grad / 2 for p in net.parameters()], whole(x, y)[1]) < 1e-14


PARTS = {2: [[6, 1, 4], [2, 5, 0]], 3: [[6, 1], [0, 0], [3, 2]]}
RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}


def among_ranks(comm, ranks):
    net = model()
    parallel = DataParallel(net, comm, bucket_bytes=1000)
    x, y = sequences(ranks[comm.rank], comm.rank)
    accumulate(mean(parallel), *cut(x, y, [1] * len(x)), model=parallel)
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize(("run", "n"), [("world", 2), ("world", 3), ("processes", 3)])
def test_among_ranks_with_different_numbers_of_tokens_and_one_without(run, n):
    x, y = (
        torch.cat(both)
        for both in zip(*(sequences(part, r) for r, part in enumerate(PARTS[n])), strict=True)
    )
    for found in RUNS[run](n, among_ranks, PARTS[n]):
        assert furthest(found, whole(x, y)[1]) < 1e-14


def test_ranks_talk_once_a_step():
    def program(comm, k):
        net = nn.Linear(4, 1)
        parallel = DataParallel(seeded_(net), comm)
        accumulate(lambda x: parallel(x).mean(), torch.ones(k, 2, 4), [2] * k, model=parallel)

    counts = [World(2).run(program, k).trace.messages() for k in (1, 5)]
    assert counts[0] == counts[1] > 0


def test_wrong_weights():
    with pytest.raises(ValueError, match="2 micro-batches have 3 weights"):
        accumulate(None, [1, 2], [1, 1, 1])
    for weights in ([0, 0], [2, -1], [], [1, math.nan], [math.inf, 1]):
        with pytest.raises(ValueError, match=f"of {len(weights)} micro-batches make no mean"):
            accumulate(None, [0] * len(weights), weights)
