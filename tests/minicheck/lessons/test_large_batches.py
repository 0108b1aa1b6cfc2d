"""Lesson 25: other right ways pass, the oracle agrees with the library, and what only looks right fails.

The usual mistakes are in course/25_large_batches/bugs.py, which tests/bank examines.
"""

import math
import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.lessons.large_batches import (
    ClipCopies,
    LambStep,
    LarsStep,
    LearningRate,
    NoiseScale,
    predict_large_batches,
)
from minicheck.oracles import large_batches as oracle
from minidist.collectives import all_gather, all_reduce_
from minidist.train.optim import LAMB, LARS, noise_terms, samples_ratio, steps_ratio
from minidist.train.schedule import cosine, ramp_steps, scaled, warm_up
from tests.bank.bank import solved
from tests.minicheck.examined import said
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_large_batches(0.1, 16, 1000, 250, 5000, 32e3, 3.2e6, 4e9, 1.6e12, 50)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_another_schedule(capsys):
    def by_cases(seen, batch, total, warm, peak, floor):
        low, turn = floor * peak, math.pi * (seen - warm) / (total - warm)
        if seen >= total:
            return torch.tensor(low, dtype=torch.float64)
        if seen < warm:
            return peak if seen + batch > warm else (seen + batch) * peak / warm
        return low + (peak - low) * math.cos(turn / 2) ** 2

    check.learning_rate(by_cases)
    assert "learning_rate: right." in capsys.readouterr().out


def test_another_lars(capsys):
    def with_lists(weights, grads, velocities, lr, trust, decay, momentum):
        for i, w in enumerate(weights):
            d = grads[i].clone()
            if w.dim() >= 2:
                wide, steep = (torch.linalg.vector_norm(x).item() for x in (w, grads[i]))
                below = steep + decay * wide
                d.add_(w, alpha=decay).mul_(trust * wide / below if wide * below else 1.0)
            velocities[i].copy_(momentum * velocities[i] + lr * d)
            weights[i] -= velocities[i]

    check.lars_step(with_lists)
    assert "lars_step: right." in capsys.readouterr().out


def test_another_lamb(capsys):
    def gathered(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
        updates = []
        for i, g in enumerate(grads):
            means[i].lerp_(g, 1 - betas[0])
            squares[i].mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
            wide = (squares[i] / (1 - betas[1] ** t)).sqrt() + eps
            updates.append(
                means[i] / (1 - betas[0] ** t) / wide + (not plain[i]) * decay * weights[i]
            )
        chosen = [i for i, free in enumerate(plain) if not free]
        own = [x.square().sum() for i in chosen for x in (weights[i], updates[i])]
        whole = all_gather(comm, torch.stack(own)).view(comm.size, -1, 2).sum(0).sqrt()
        ratios = dict(
            zip(chosen, [float(a / b) if a * b > 0 else 1.0 for a, b in whole], strict=True)
        )
        for i, u in enumerate(updates):
            weights[i].sub_(u, alpha=lr * ratios.get(i, 1.0))

    check.lamb_step(gathered)
    assert "lamb_step: right." in capsys.readouterr().out


def test_the_noise_in_the_same_message(capsys):
    def together(comm, grad, b):
        sums = all_reduce_(
            comm, torch.cat([b * grad, torch.stack([b * (grad @ grad), grad.new_tensor(b)])])
        )
        n, B = comm.size, sums[-1]
        grad.copy_(sums[:-2] / B)
        small, big = sums[-2] / B, grad @ grad
        return [(n * big - small) / (n - 1), (small - big) * B / (n - 1)]

    check.noise_scale(together)
    assert "noise_scale: right." in capsys.readouterr().out


def test_one_norm_in_python_s_numbers(capsys):
    def listed(comm, grads, held, limit):
        own = sum(float(g @ g) / ranks for g, ranks in zip(grads, held, strict=True))
        norm = all_reduce_(comm, torch.tensor([own], dtype=torch.float64)).sqrt()
        if norm > limit:
            [g.mul_(limit / (norm + 1e-6)) for g in grads]
        return norm

    check.clip_copies(listed)
    assert "clip_copies: right." in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "warm", "floor"), [(20, 5, 0.1), (7, 0, 0.0), (30, 29, 1.0)])
def test_the_schedule_is_the_library_s(steps, warm, floor):
    schedule = warm_up(warm, then=cosine(steps - warm, floor))
    for t in range(steps + 5):
        assert math.isclose(
            oracle.rate(t, 1, steps, warm, 2e-4, floor),
            2e-4 * schedule(t),
            rel_tol=1e-12,
            abs_tol=1e-18,
        )


def test_lars_is_the_library_s():
    weights = [drawn(4, 3), drawn(5), torch.zeros(2, 2, dtype=torch.float64)]
    ours, theirs = oracle.Lars(weights), [torch.nn.Parameter(w.clone()) for w in weights]
    how = [
        dict(params=[p], trust=0.02 * (p.dim() > 1), weight_decay=0.1 * (p.dim() > 1))
        for p in theirs
    ]
    optimizer = LARS(how, lr=0.3, momentum=0.9)
    for k in range(3):
        grads = [drawn(*w.shape, seed=k + 1) for w in weights]
        grads[0] *= k != 1  # a gradient of zeros, and weights that are none
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        ours.step(grads, 0.3, 0.02, 0.1, 0.9)
        assert all(
            torch.allclose(w, p, rtol=1e-12, atol=1e-14)
            for w, p in zip(ours.w, theirs, strict=True)
        )


def test_lamb_is_the_library_s():
    weights, plain = (
        [5 * drawn(12), drawn(7), torch.zeros(4, dtype=torch.float64)],
        [False, True, False],
    )
    ours, theirs = oracle.Lamb(weights, plain, 1), [torch.nn.Parameter(w.clone()) for w in weights]
    how = [
        dict(params=[p], trust=1.0 - free, weight_decay=0.1 * (not free))
        for p, free in zip(theirs, plain, strict=True)
    ]
    optimizer = LAMB(how, lr=0.05, betas=(0.8, 0.97), eps=1e-3)
    for k in range(3):
        grads = [drawn(len(w), seed=k + 1) for w in weights]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        ours.step(grads, k + 1, 0.05, (0.8, 0.97), 1e-3, 0.1)
        assert all(
            torch.allclose(w, p, rtol=1e-12, atol=1e-14)
            for w, p in zip(ours.w, theirs, strict=True)
        )


def test_the_noise_is_the_library_s():
    grads = [drawn(50, seed=s) for s in range(4)]
    mean = sum(grads) / 4
    want = noise_terms(sum(float(g @ g) for g in grads) / 4, float(mean @ mean), 3, 12)
    assert oracle.terms(grads, [3] * 4) == pytest.approx(want, rel=1e-12)


def test_predictions_are_the_library_s():
    right, _ = FACTS
    assert slips_are_wrong(FACTS)
    assert (
        right["linear"] == scaled(0.1, 16, "linear").lr
        and right["root"] == scaled(0.1, 16, "root").lr
    )
    assert right["steps"] == 5000 * steps_ratio(250, 1000)
    assert right["samples"] == 5000 * 1000 * samples_ratio(250, 1000)
    assert right["ramp"] == pytest.approx(ramp_steps(32e3, 3.2e6, 4e9))
    assert right["quarter"] == pytest.approx(cosine(100, 0.1)(25))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"ramp": 1250}, "without a ramp"),
        ({"root": 1.6}, "linear"),
        ({"warm": None}, "not set yet"),
        ({"nbytes": 100}, "how many bytes"),
    ],
)
def test_what_is_said_of_predictions(change, says):
    judge(FACTS, FACTS[0] | change, says)


@pytest.mark.parametrize(
    "exam",
    [LearningRate(), LarsStep(), LambStep(), NoiseScale(), ClipCopies()],
    ids=lambda exam: exam.name,
)
def test_no_draw_makes_the_solution_wrong(exam):
    answer = solved("25_large_batches")[exam.name]
    assert [said(exam, answer, case, seed) for case in exam.cases for seed in range(2)] == [
        ""
    ] * 2 * len(exam.cases)


@pytest.mark.parametrize("seed", range(4))
def test_the_cases_made_for_one_mistake_always_show_it(seed):
    """Noise alone makes |G|² negative; without decay a gradient of 0 is an update of 0, and ratios are large."""
    [alone] = [case for case in NoiseScale.cases if "alone" in case.what]
    args = NoiseScale().draw(alone, torch.Generator().manual_seed(seed))
    assert oracle.terms(*zip(*args, strict=True))[0] < 0
    [bare] = [case for case in LambStep.cases if "no decay" in case.what]
    for slip in ("nan", "bounded"):
        args = LambStep().draw(bare, torch.Generator().manual_seed(seed))
        weights, steps = (
            [torch.cat(x) for x in zip(*some, strict=True)]
            for some in ([a[0] for a in args], [a[1][0] for a in args])
        )
        right, wrong = (oracle.Lamb(weights, list(args[0][2]), 1, what) for what in ("", slip))
        for one in (right, wrong):
            one.step(steps, 1, *args[0][3:])
        assert not all(map(torch.equal, right.w, wrong.w))


def test_a_step_that_is_not_there():
    nothing = lambda *args: None
    assert "in place" in said(LarsStep(), nothing, LarsStep.cases[0], 0)
    assert "in place" in said(LambStep(), nothing, LambStep.cases[0], 0)
    assert "not in place" in said(NoiseScale(), nothing, NoiseScale.cases[0], 0)
    assert "the norm is None" in said(ClipCopies(), nothing, ClipCopies.cases[0], 0)
