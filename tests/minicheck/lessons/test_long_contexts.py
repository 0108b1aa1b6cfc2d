"""Lesson 21: other right ways pass, and the numbers are right by hand.

The usual mistakes are in course/21_long_contexts/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons import long_contexts
from minicheck.lessons.long_contexts import predict_context
from minicheck.oracles.long_contexts import (
    attended,
    gradients,
    of_every_head,
    part_of_block,
    zigzag_of,
)
from minidist.split import uneven
from tests.minicheck.examined import assert_odd_answers_are_told
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def by_a_mask(comm, text):
    """Every position says in which chunk it is."""
    T = len(text) - 1
    chunk = torch.repeat_interleave(torch.tensor(uneven(T, 2 * comm.size)))
    own = torch.where((chunk == comm.rank) | (chunk == 2 * comm.size - 1 - comm.rank))[0]
    return own, text[:-1][own], text[1:][own]


def unnormalized(comm, q, k, v, places):
    """The numerator and the denominator are kept, and the largest score; one message each way."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    block = torch.cat([k, v, places[:, None].double()], 1)
    largest = q.new_full((len(q), 1), -torch.inf)
    above, below = torch.zeros_like(q), q.new_zeros(len(q), 1)
    for step in range(comm.size):
        key, value, theirs = block.split((q.shape[1], q.shape[1], 1), 1)
        future = theirs[:, 0] > places[:, None]
        scores = (q @ key.T / q.shape[1] ** 0.5).masked_fill(future, -torch.inf)
        most = torch.maximum(largest, scores.amax(1, keepdim=True))
        weights, old = (scores - most).exp(), (largest - most).exp()
        above, below = above * old + weights @ value, below * old + weights.sum(1, keepdim=True)
        largest = most
        if step < comm.size - 1:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
    return above / below, (largest + below.log())[:, 0]


def counted_apart(comm, losses, counted):
    """Sums and numbers in one tensor, of what counts alone."""
    sums = losses.new_tensor([losses[counted].sum(), counted.sum()])
    own = sums[1].clone()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    every = [sums]
    for _ in range(comm.size - 1):
        every.append(comm.sendrecv(every[-1], right, torch.empty_like(sums), left))
    # in one order on all ranks, so that all have the same bits
    order = [every[(comm.rank - r) % comm.size] for r in range(comm.size)]
    total, number = sum(order)
    return total / number, own / number


def test_other_right_ways_pass(capsys):
    check.zigzag(by_a_mask)
    check.ring_forward(unnormalized)
    check.mean_loss(counted_apart)
    assert capsys.readouterr().out.count("right") == 3


def a_half_of_the_blocks(comm, q, k, v, places):
    """Right on one rank and on two."""
    right = (comm.rank + 1) % comm.size
    if comm.size > 1:
        theirs = comm.sendrecv(torch.stack([k, v]), right, torch.empty(2, *k.shape).double(), right)
        places_there = comm.sendrecv(places, right, torch.empty_like(places), right)
        k, v = torch.cat([k, theirs[0]]), torch.cat([v, theirs[1]])
    else:
        places_there = places[:0]
    return attended(q, k, v, torch.cat([places, places_there]) <= places[:, None])


def test_two_ranks_hide_the_ring():
    with pytest.raises(Wrong, match="ring_forward"):
        check.ring_forward(a_half_of_the_blocks)


def test_the_oracle():
    """Gradients of blocks add up to those of autograd; the zigzag deals out every token once."""
    random = torch.Generator().manual_seed(0)
    draw = lambda heads: [
        torch.randn(heads, 5, 2, generator=random, dtype=torch.float64) for _ in range(3)
    ]
    q, g = draw(4), draw(4)
    k, v = draw(2), draw(2)
    found = gradients(q, k, v, g)
    keys, values = (of_every_head(torch.cat(x, 1), q[0]) for x in (k, v))
    outs = [attended(x, keys, values) for x in q]
    for r in range(3):
        blocks = [part_of_block(q[r], k[s], v[s], g[r], *outs[r])[0] for s in range(3)]
        parts = [part_of_block(q[s], k[r], v[r], g[s], *outs[s]) for s in range(3)]
        assert (sum(blocks) - found[r][0]).abs().max() < 1e-13
        for at in (1, 2):
            assert (sum(part[at] for part in parts) - found[r][at]).abs().max() < 1e-13
    for T in (3, 13, 16):
        assert sorted(torch.cat([zigzag_of(T, 4, r) for r in range(4)]).tolist()) == [*range(T)]
    assert zigzag_of(16, 4, 1).tolist() == [2, 3, 12, 13]


def test_predictions():
    """By hand: 4 ranks, 1,024 tokens, 8 heads of each kind; a block is 2·8·256·128 numbers of two bytes."""
    facts = predict_context(n=4, T=1024, heads=8)
    block = 2 * 8 * 256 * 128 * 2
    values = {
        "ring": 3 * block,
        "heads": 3 / 4 * 2 * block,
        "kept": block,
        "slowest": 4 * 256**2,
        "balanced": 9 * 128**2,  # two blocks in each of four steps, and one more in the first
        "tokens": 38_400,  # 12·t·g·D bytes at 25 GB/s, 5·t²·a·D FLOPs at 400 TFLOP/s
    }
    judge(facts, values, None)
    judge(facts, values | {"ring": 4 * block}, "A rank has its own block already")
    judge(facts, values | {"balanced": 8 * 128**2}, "a diagonal counts half")
    assert slips_are_wrong(predict_context())


def test_odd_answers_are_told():
    assert_odd_answers_are_told(long_contexts)
