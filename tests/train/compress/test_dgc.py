"""Deep gradient compression: step by step what the paper's algorithms do, written again in numpy; each part matters."""

import numpy as np
import pytest
import torch

from minidist.comm import World
from minidist.parallel.data import DataParallel
from minidist.train.compress import DGC
from tests.parallel.cases import difference
from tests.train.compress.cases import (
    EVERYWHERE,
    RUNS,
    Momentum,
    by_oracle,
    loss_of,
    net,
    train,
    worst,
)

SMALL = 30  # numbers: the biases and the scale


class Oracle:
    """Lin et al. 2018, Algorithms 4 and 5 (Algorithm 1 without momentum), node by node, threshold and mask."""

    def __init__(self, sparsities, m=0.9, nesterov=False, masking=True, clip=None):
        self.sparsities = sparsities
        self.m = m
        self.nesterov = nesterov
        self.masking = masking
        self.clip = clip
        self.small = Momentum(m, nesterov)
        self.U = {}
        self.V = {}

    def __call__(self, step, grads):
        sparsity = self.sparsities[min(step, len(self.sparsities) - 1)]
        if self.clip:
            grads = [self.clipped(of, len(grads)) for of in grads]
        exact = {name for name, g in grads[0].items() if g.size < SMALL}
        averages = self.small(
            step, [{name: of[name] for name in of if name in exact} for of in grads]
        )
        for node, of in enumerate(grads):
            for name in of.keys() - exact:
                averages[name] = averages.get(name, 0) + self.sparse(
                    (node, name), of[name], sparsity
                )
        return averages

    def clipped(self, grads, nodes):
        threshold, norm = (
            self.clip * nodes**-0.5,
            np.sqrt(sum((g**2).sum() for g in grads.values())),
        )
        return {
            name: g * (threshold / norm if norm > threshold else 1) for name, g in grads.items()
        }

    def sparse(self, key, G, sparsity):
        U, V = self.U.get(key, np.zeros(G.shape)), self.V.get(key, np.zeros(G.shape))
        if self.nesterov:
            U = self.m * (U + G)
            V = V + U + G
        else:
            U = self.m * U + G
            V = V + U
        sent = max(1, round(G.size * (1 - sparsity)))
        threshold = np.sort(np.abs(V).ravel())[::-1][sent - 1]
        mask = np.abs(V) >= threshold
        self.V[key] = np.where(mask, 0, V)
        self.U[key] = np.where(mask, 0, U) if self.masking else U
        return np.where(mask, V, 0)


WARM = (0.5, 0.75, 0.9, 0.95)
CASES = {
    "plain": ({}, {}),
    "nesterov": ({"nesterov": True}, {"nesterov": True}),
    "no masking": ({"masking": False}, {"masking": False}),
    "no momentum": ({"momentum": 0}, {"m": 0}),
    "clipped": ({"clip": 0.3}, {"clip": 0.3}),
    "nesterov, clipped": (
        {"nesterov": True, "clip": 0.1, "momentum": 0.7},
        {"nesterov": True, "clip": 0.1, "m": 0.7},
    ),
}


def compression(**options):
    return DGC(0.97, warm_up=WARM, small=SMALL, **options)


@pytest.mark.parametrize("case", CASES)
def test_the_papers_algorithm_on_one_rank(case):
    ours, theirs = CASES[case]
    results = World(1).run(train, compression(**ours), 20, False, True)
    # the norm is divided by with 1e-6 more, as torch does
    bound = 1e-5 if "clip" in theirs else 1e-12
    assert worst(results, by_oracle(Oracle((*WARM, 0.97), **theirs), 1, 20)) < bound


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("case", ["plain", "nesterov, clipped"])
def test_over_ranks(run, n, case):
    ours, theirs = CASES[case]
    results = RUNS[run](n, train, compression(**ours), 6, False, True)
    assert worst(results, by_oracle(Oracle((*WARM, 0.97), **theirs), n)) < (
        1e-5 if "clip" in theirs else 1e-12
    )


@pytest.mark.parametrize("case", ["plain", "clipped"])
def test_with_weights(case):
    ours, theirs = CASES[case]
    results = World(3).run(train, compression(**ours), 6, True, True)
    expected = by_oracle(Oracle((*WARM, 0.97), **theirs), 3, 6, True)
    assert worst(results, expected) < (1e-5 if "clip" in theirs else 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_each_part_makes_a_difference(case):
    """Ten times the bound at least: a part that does nothing would be found."""
    if case != "plain":
        plain, other = (
            World(2).run(train, compression(**CASES[c][0]), 6, False, True)[0][0][-1]
            for c in ("plain", case)
        )
        assert difference(plain, other) > 1e-4


@pytest.mark.parametrize("nesterov", [False, True])
def test_everything_sent_and_nothing_masked_is_momentum_sgd(nesterov):
    results = World(3).run(train, DGC(0, nesterov=nesterov, masking=False, warm_up=(), small=0))
    assert worst(results, by_oracle(Momentum(0.9, nesterov), 3)) < 1e-12


def conserved(comm, sample):
    """The sum of what was sent and is kept, minus that of the gradients."""
    grads = {"w": torch.zeros(40, 50, dtype=torch.float64)}
    bucket = Bucket(grads)
    ours = DGC(0.95, momentum=0, warm_up=(), sample=sample)
    total = 0
    given = 0
    for step in range(5):
        g = torch.randn(
            40,
            50,
            generator=torch.Generator().manual_seed(step * 7 + comm.rank),
            dtype=torch.float64,
        )
        grads["w"].copy_(g)
        given = given + g
        ours.average_(comm, bucket, None)
        total = total + grads["w"]
    return total, given, ours.of("w")["v"].view(40, 50)


class Bucket:
    """What a compression sees of one."""

    def __init__(self, views):
        self.views, (self.grads,) = views, (g.view(-1) for g in views.values())
        self.flags = torch.ones(1, dtype=torch.float64)

    def there(self):
        return set(self.views)


@pytest.mark.parametrize("sample", [None, 0.1])
@pytest.mark.parametrize("n", [1, 3])
def test_nothing_is_lost(n, sample):
    results = World(n).run(conserved, sample)
    given, kept = (sum(r[i] for r in results) for i in (1, 2))
    for total, _, _ in results:
        assert torch.equal(total, results[0][0])
        assert (total + kept - given).abs().max() < 1e-12
    assert (kept != 0).any()


def test_the_sparsity_of_an_epoch():
    ours = DGC()
    seen = []
    for epoch in range(6):
        ours.set_epoch(epoch)
        seen.append(ours.sparsity)
    assert seen == [0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999]


def test_clipping_waits_for_the_whole_gradient():
    """Nothing is sent before the end of backward; without it the first bucket is."""

    def program(comm, clip):
        model = DataParallel(net(), comm, bucket_bytes=1, compression=DGC(0.9, clip=clip))
        started = []
        model.module.first.bias.register_post_accumulate_grad_hook(
            lambda p: started.append(model._reducer._started)
        )
        for step in range(2):
            model.zero_grad()
            loss_of(model, comm.rank, step).backward()
        return started[-1]

    assert World(2).run(program, 1.0)[0] == 0 < World(2).run(program, None)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sparsity": 1.0}, "sparsity.*1.0"),
        ({"warm_up": (-0.1,)}, "sparsity.*-0.1"),
        ({"momentum": 1}, "momentum.*1"),
        ({"clip": 0}, "clip.*0"),
        ({"sample": 2}, "sample.*2"),
        ({"nesterov": True, "momentum": 0}, "Nesterov.*0"),
    ],
)
def test_what_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        DGC(**options)
