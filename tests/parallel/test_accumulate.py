"""Against the batch as a whole: tokens weigh alike, whatever micro-batch they are in."""

import copy
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.comm import World, launch
from minidist.models import gpt, seeded_
from minidist.parallel.accumulate import (
    accumulate,
    accumulate_naive,
    adjust_momentum_,
    batch_norm_gap,
    momentum_for,
)
from minidist.parallel.batchnorm import SyncBatchNorm
from minidist.parallel.data import DataParallel
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


# ------------------------------------------------------------
# What micro-batches do to batch norm, and what another momentum mends of it.


K = 8


def data(batch=64, shift=3.0):
    return (
        torch.randn(batch, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
        + shift
    )


def net(norm=nn.BatchNorm1d):
    return seeded_(nn.Sequential(nn.Linear(6, 6), norm(6), nn.Linear(6, 4))).double()


@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9])
def test_k_updates_forget_as_much_as_one(momentum):
    adjusted = momentum_for(momentum, K)
    assert (1 - adjusted) ** K == pytest.approx(1 - momentum) and momentum_for(
        momentum, 1
    ) == pytest.approx(momentum)
    one, many = (
        nn.BatchNorm1d(1, momentum=momentum).double(),
        nn.BatchNorm1d(1, momentum=momentum).double(),
    )
    x = torch.tensor([[4.0], [6.0]], dtype=torch.float64)
    one(x)
    adjust_momentum_(many, K)
    for _ in range(K):
        many(x)  # where all micro-batches are alike, the averages are equal
    assert torch.allclose(one.running_mean, many.running_mean, 1e-12)
    assert torch.allclose(one.running_var, many.running_var, 1e-12)


def test_the_gap_of_one_micro_batch_and_of_none_is_zero():
    gap = batch_norm_gap(net(), data(), 1)
    assert gap[:4] == (0.0, 0.0, 0.0, 0.0) and gap.forgotten[0] == gap.forgotten[1]


def test_it_grows_with_k_and_the_momentum_mends_the_averages_only():
    gaps = [batch_norm_gap(net(), data(), k) for k in (2, 4, 8)]
    for a, b in pairwise(gaps):
        assert 0 < a.outputs < b.outputs and 0 < a.gradients < b.gradients and 0 < a.mean < b.mean
    assert gaps[-1].forgotten == pytest.approx((0.9, 0.9**8))
    mended = batch_norm_gap(net(), data(), 8, adjusted=True)
    assert mended.forgotten == pytest.approx((0.9, 0.9))
    assert mended.mean < gaps[-1].mean / 20 and mended.variance < gaps[-1].variance / 5
    assert mended.outputs == gaps[-1].outputs > 0.1


def test_the_gap_by_hand():
    """Two micro-batches of two numbers each: batch norm makes −1 and 1 of any two."""
    x = torch.tensor([[0.0], [2.0], [10.0], [12.0]], dtype=torch.float64)
    norm = nn.BatchNorm1d(1, eps=1e-12).double()
    gap = batch_norm_gap(norm, x, 2)
    y = (x - 6) / 26**0.5
    off = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64) - y
    assert gap.outputs == pytest.approx(((off**2).sum() / (y**2).sum()).sqrt().item(), rel=1e-9)
    mean, parts = 0.1 * 6, 0.9 * 0.1 * 1 + 0.1 * 11
    assert gap.mean == pytest.approx(abs(parts - mean) / mean)


def test_other_norms_have_no_gap_in_what_they_compute():
    class Both(nn.Module):  # one batch norm aside, so that there is something to compare
        def __init__(self):
            super().__init__()
            self.norm, self.aside = nn.LayerNorm(6), nn.BatchNorm1d(6)

        def forward(self, x):
            self.aside(x.detach())
            return self.norm(x)

    gap = batch_norm_gap(Both().double(), data(), K)
    assert gap.outputs < 1e-15 and gap.gradients < 1e-14 and gap.mean > 0.1


def test_a_convolution_and_that_the_module_is_left_as_it_is():
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    before = copy.deepcopy(module.state_dict())
    gap = batch_norm_gap(
        module,
        torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
        4,
        adjusted=True,
    )
    assert all(map(torch.equal, module.state_dict().values(), before.values()))
    assert module[1].momentum == 0.1 and all(p.grad is None for p in module.parameters())
    assert 0.01 < gap.outputs < 2 and gap.forgotten == pytest.approx((0.9, 0.9))


def test_every_kind_is_adjusted_but_that_without_momentum():
    module = nn.Sequential(
        nn.BatchNorm2d(3, momentum=0.3), nn.BatchNorm1d(3, momentum=None), nn.LayerNorm(3)
    )
    adjust_momentum_(module, 4)
    assert module[0].momentum == momentum_for(0.3, 4) and module[1].momentum is None
    assert issubclass(SyncBatchNorm, nn.modules.batchnorm._BatchNorm)  # ours, too
    with pytest.raises(ValueError, match="k >= 1 micro-batches, not 0"):
        adjust_momentum_(module, 0)


def test_a_batch_that_does_not_split():
    with pytest.raises(ValueError, match="a batch of 64 does not split into 7 equal micro-batches"):
        batch_norm_gap(net(), data(), 7)
    with pytest.raises(ValueError, match="a batch of 64 does not split into 0 equal micro-batches"):
        batch_norm_gap(net(), data(), 0)


def test_nothing_to_compare():
    for norms in ([], [nn.BatchNorm1d(3, momentum=None)]):
        with pytest.raises(ValueError, match="no batch norm in the module has a momentum"):
            batch_norm_gap(nn.Sequential(nn.Linear(3, 3), *norms), torch.ones(4, 3), 2)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
        nn.Sequential(nn.Embedding(5, 4), nn.BatchNorm1d(4)),
    ],
    ids=["without running statistics", "of whole numbers"],
)
def test_gaps_of_other_modules(net):
    x = torch.randint(5, (8,)) if isinstance(net[0], nn.Embedding) else torch.randn(8, 4)
    gap = batch_norm_gap(net, x, 2)
    assert gap.outputs > 0 and gap.gradients > 0
