"""The gradient noise scale: exact where the noise is known, and the same over ranks as by hand."""

import math

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.optim import (
    NoiseScale,
    Terms,
    best_rate,
    noise_terms,
    samples_ratio,
    square_of,
    steps_ratio,
)
from tests.parallel.cases import data, mse


def test_without_noise_and_with_noise_alone():
    """|G_B|² = |G|² + tr(Σ)/B, put in: 3 and 40 come out."""
    square, trace = 3.0, 40.0
    found = noise_terms(square + trace / 8, square + trace / 64, 8, 64)
    assert found == pytest.approx((square, trace), rel=1e-12) and found.scale == pytest.approx(
        40 / 3
    )
    assert noise_terms(3.0, 3.0, 8, 64) == Terms(3.0, 0.0)
    assert noise_terms(40 / 8, 40 / 64, 8, 64) == pytest.approx((0.0, 40.0)) and math.isnan(
        Terms(-1.0, 5.0).scale
    )


def test_unbiased():
    """Gaussian gradients with a known covariance, of which batches of 2 and 8 are drawn: the means of the estimates."""
    random = torch.Generator().manual_seed(0)
    mean, deviation = (
        torch.tensor([1.0, -0.5, 0.25, 0.0]).double(),
        torch.tensor([0.5, 1.0, 2.0, 1.5]).double(),
    )
    samples = mean + deviation * torch.randn(40_000, 4, 2, 4, generator=random, dtype=torch.float64)
    small, big = samples.mean(2), samples.mean((1, 2))  # of 2, (40000, 4, 4); of 8, (40000, 4)
    found = noise_terms(
        small.square().sum(-1).mean().item(), big.square().sum(-1).mean().item(), 2, 8
    )
    truth = Terms(mean.square().sum().item(), deviation.square().sum().item())
    assert found == pytest.approx(truth, rel=0.03)
    naive = small.square().sum(-1).mean().item()  # |G_b|² taken for |G|²
    assert naive > 2 * truth.square


def trained(comm, steps=4, each=3):
    """A step's terms as ours finds them over ranks, and the average; noise from the first `n·each` samples, rolled."""
    model = DataParallel(mlp([6, 5, 3], dtype=torch.float64), comm)
    noise, found = NoiseScale(model.parameters(), comm, decay=0.5), []
    assert math.isnan(noise.scale)
    x, y = data()
    for step in range(steps):
        model.zero_grad()
        part = slice(step + comm.rank * each, step + (comm.rank + 1) * each)
        mse(model(x[part]), y[part]).backward()
        found.append(noise.update(each))
    return found, noise.terms, noise.scale


def by_hand(n, steps=4, each=3):
    """The same in one process: every micro-batch's gradient, and their mean."""
    model, found = mlp([6, 5, 3], dtype=torch.float64), []
    x, y = data()
    for step in range(steps):
        grads = []
        for r in range(n):
            model.zero_grad()
            part = slice(step + r * each, step + (r + 1) * each)
            mse(model(x[part]), y[part]).backward()
            grads.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
        grads = torch.stack(grads)
        found.append(
            noise_terms(
                grads.square().sum(1).mean().item(),
                grads.mean(0).square().sum().item(),
                each,
                n * each,
            )
        )
    weights = torch.tensor([0.5 ** (steps - i) for i in range(steps)], dtype=torch.float64)
    average = [
        float((weights * torch.tensor(terms, dtype=torch.float64)).sum() / weights.sum())
        for terms in zip(*found)
    ]
    return found, Terms(*average)


@pytest.mark.parametrize(
    ("where", "n"), [("world", 2), ("world", 3), ("world", 4), ("processes", 3)]
)
def test_over_ranks(where, n):
    results = World(n).run(trained) if where == "world" else launch(trained, n)
    steps, average = by_hand(n)
    for found, terms, scale in results:
        for mine, expected in zip(found, steps, strict=True):
            assert mine == pytest.approx(expected, rel=1e-10)
        assert terms == pytest.approx(average, rel=1e-10)
        assert (
            math.isnan(scale)
            if average.square <= 0
            else scale == pytest.approx(average.scale, rel=1e-10)
        )
        assert (found, terms) == results[0][:2]


def test_eight_bytes_a_rank():
    def program(comm, noisy):
        p = nn.Parameter(torch.ones(4))
        noise = NoiseScale([p], comm)
        p.sum().backward()
        if noisy:
            noise.update(1)

    for n in (2, 3, 4):
        sent = [World(n).run(program, noisy).trace for noisy in (False, True)]
        assert (
            sum(sent[1].bytes_sent(r) - sent[0].bytes_sent(r) for r in range(n)) == 2 * (n - 1) * 8
        )


def test_saved_removed_and_without_values():
    def program(comm):
        p = nn.Parameter(torch.ones(4, device=comm.device))
        first, second = NoiseScale([p], comm), NoiseScale([p], comm)
        (p * (comm.rank + 1)).sum().backward()
        first.update(5)
        second.load_state_dict(first.state_dict())
        before = [first.terms, second.terms]
        first.remove()
        p.grad = None
        p.sum().backward()
        return before, float(first._own)

    (mine, other), left = World(2).run(program)[0]
    assert mine == other and left == 0.0
    (mine, _), _ = World(2, device="meta").run(lambda comm: (program_on_meta(comm), 0))[0]
    assert math.isnan(mine)


def program_on_meta(comm):
    p = nn.Parameter(torch.ones(4, device="meta"))
    noise = NoiseScale([p], comm)
    p.sum().backward()
    noise.update(5)
    return noise.scale, 0


def test_what_follows_from_it():
    """McCandlish et al. 2018, equations 2.7 and 2.11: (S/S_min − 1)·(E/E_min − 1) = 1."""
    for batch in (1, 10, 100, 1000):
        assert (steps_ratio(batch, 50) - 1) * (samples_ratio(batch, 50) - 1) == pytest.approx(1)
    assert steps_ratio(50, 50) == samples_ratio(50, 50) == 2 and best_rate(0.4, 50, 50) == 0.2
    # the linear rule holds
    assert best_rate(1, 2, 1e6) / best_rate(1, 1, 1e6) == pytest.approx(2, rel=1e-5)
    assert best_rate(1, 2e6, 10) == pytest.approx(best_rate(1, 1e6, 10), rel=1e-5)
    assert float(square_of([torch.ones(3), None, torch.full((2,), 2.0)])) == pytest.approx(
        11, rel=1e-6
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: noise_terms(1, 1, 8, 8), "not between 8 and 8"),
        (lambda: World(1).run(lambda comm: NoiseScale([], comm)), "not between 1 with 0.9"),
        (
            lambda: World(2).run(lambda comm: NoiseScale([], comm, decay=1.0)),
            "not between 2 with 1.0",
        ),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(ValueError, match=words):
        make()
