"""Lesson 23: other right ways pass, oracles agree with the library, and what only looks right fails.

The usual mistakes are in course/23_compress/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.lessons import compress
from minicheck.lessons.compress import (
    SPARSE_SLIPS,
    predict_compress,
)
from minicheck.oracles import compress as oracle
from minidist.collectives import all_gather
from minidist.comm import World
from minidist.parallel.compress import DGC
from minidist.study.predict import dense_bytes, dgc_bytes, sign_bytes
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_compress(8, 10e6, 0.001, 90, 1000, 4, 12.5e6)


def by_order(u, v, g, k, m, limit, n):
    most = limit * n**-0.5
    g = g if g.norm() < most else g * most / g.norm()
    u[:] = m * u + m * g
    v += u
    v += g
    places = torch.tensor(sorted(range(len(v)), key=lambda i: abs(float(v[i])))[-k:])
    sent = torch.zeros_like(v, dtype=torch.bool).index_fill(0, places, True)
    values = v[places].clone()
    u *= ~sent
    v[sent] = 0
    return [values, places]


def one_message(comm, values, places, size):
    total = torch.zeros(size, dtype=torch.float64)
    lengths = all_gather(comm, torch.tensor([len(places)])).tolist()
    mine = torch.full((max(lengths), 2), -1.0, dtype=torch.float64)
    mine[: len(places)] = torch.stack([values, places.double()], 1)
    for k, theirs in zip(lengths, all_gather(comm, mine[None]), strict=True):
        there, where = theirs[:k].T
        dense = torch.zeros_like(total)
        dense[where.long()] = there
        total += dense
    return total.div_(comm.size)


def scaled(comm, g, error):
    p = g + error
    signs = torch.where(p < 0, -1, 1).to(torch.int8)
    scale = p.abs().sum() / len(p)
    error[:] = p - scale * signs
    return (all_gather(comm, signs[None]).T * all_gather(comm, scale[None])).sum(1) / comm.size


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("compress", by_order),
        ("sparse_mean", one_message),
        ("sign_average", scaled),
    ],
)
def test_other_ways(capsys, name, answer):
    getattr(check, name)(answer)
    assert f"{name}: right." in capsys.readouterr().out


@pytest.mark.parametrize("clip", [1.0, 99.0])
def test_the_oracle_compresses_as_the_library(clip):
    """One rank, one tensor."""
    grads = [
        torch.randn(50, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        for t in range(6)
    ]
    ours, theirs = (
        oracle.compressed(grads, 5, 0.9, clip, 1, "ordinary"),
        DGC(0.9, warm_up=(), small=0),
    )

    def program(comm):
        found = []
        for g in grads:
            factor = min(1.0, clip / float(g.norm()))
            _, values = theirs._choose("w", (g * factor).clone())
            found.append(
                (values.abs().sum(), theirs.state["w"]["u"].clone(), theirs.state["w"]["v"].clone())
            )
        return found

    for step, (size, u, v) in zip(ours, World(1).run(program)[0], strict=True):
        assert torch.allclose(step["sent"].abs().sum(), size) and torch.allclose(step["u"], u)
        assert torch.allclose(step["v"], v)


def test_each_slip_is_another_answer():
    draw = lambda t: torch.randn(
        30, generator=torch.Generator().manual_seed(t), dtype=torch.float64
    )
    grads = [draw(t) * (0.4 + t % 2) for t in range(4)]  # norms below and above 3
    right = oracle.compressed(grads, 3, 0.9, 6.0, 4)
    for slip in SPARSE_SLIPS:
        other = oracle.compressed(grads, 3, 0.9, 6.0, 4, slip)
        assert any(
            not torch.allclose(a[x], b[x]) for a, b in zip(right, other, strict=True) for x in a
        ), slip


def test_each_slip_of_signs_is_another_answer():
    grads = [
        [
            torch.randn(9, generator=torch.Generator().manual_seed(3 * t + r), dtype=torch.float64)
            for r in range(3)
        ]
        for t in range(3)
    ]
    grads[0][1][4] = 0
    means, kept = oracle.signed(grads)
    for slip in compress.SIGNS_SLIPS:
        others, keeps = oracle.signed(grads, slip)
        same = [
            torch.allclose(torch.stack([a, *b]), torch.stack([c, *d]))
            for a, b, c, d in zip(means, kept, others, keeps, strict=True)
        ]
        assert not all(same), slip


def test_the_oracle_s_signs():
    """What is sent and what is kept are what came in: Σ c + Σ e = Σ g + Σ e before."""
    grads = [[torch.randn(9, dtype=torch.float64) for _ in range(3)] for _ in range(4)]
    means, kept = oracle.signed(grads)
    given = sum(sum(of) for of in grads)
    assert torch.allclose(3 * sum(means) + sum(kept[-1]), given)


def test_predictions_are_the_formulas():
    """But for flags: one number a tensor; and for the blocks of places."""
    values, shape = FACTS[0], [(10_000, 1000)]
    assert abs(dense_bytes(shape, 8) / 8 - values["dense"]) < 100
    assert abs(sign_bytes(shape, 8) / 8 - values["signs"]) < 100
    assert abs(dgc_bytes(shape, 8) / 8 - values["sparse"]) < 0.03 * values["sparse"]
    sent = [dgc_bytes(shape, 8, 1 - s) for s in (1 / 4, 1 / 16, 1 / 64, 1 / 256)]
    all_sent = sum(sent) + 86 * dgc_bytes(shape, 8)
    assert abs(sum(sent) / all_sent - values["warm"]) < 0.01
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dense", 35e6, "one half"),
        ("sparse", 280e3, "needs its place"),
        ("signs", 70e6, "one bit, not a byte"),
        ("warm", 4 / 90, "bytes are asked for"),
        ("thin", 4000, "P and Q"),
        ("crossing", 1000, "6 bytes"),
        ("signs", None, "not set"),
        ("dense", 70e6, None),
    ],
)
def test_numbers(name, value, says):
    judge(FACTS, FACTS[0] | {name: value}, says)
