"""Lesson 11: other right ways pass, what is right only by chance does not, and the oracles agree with the library.

The usual mistakes are in course/11_remat/bugs.py, which tests/bank examines.
"""

import itertools
import random
import sys
from heapq import heappop, heappush

import cloudpickle
import numpy as np
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import near
from minicheck.lessons.remat import ROWS, WIDTH, chained, predict_remat
from minicheck.oracles.remat import alive, fewest, least, peak_of, rerun
from minidist.parallel.accumulate import momentum_for
from minidist.study.predict import segments_bytes, segments_forwards
from minidist.train.remat import plan
from tests.bank.bank import ROOT, shows_bug

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def right(capsys, name, answer):
    getattr(check, name)(answer)
    return f"{name}: right." in capsys.readouterr().out


def test_other_ways_to_accumulate(capsys):
    def as_tensor(loss, micros, counts):
        """The mean as a tensor, the weights before the run."""
        shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        mean = torch.zeros((), dtype=torch.float64)
        for i in shares.nonzero()[:, 0].tolist():
            part = loss(micros[i])
            (part * shares[i]).backward()
            mean += shares[i] * part.detach()
        return mean

    def last_first(loss, micros, counts):
        return as_tensor(loss, micros[::-1], counts[::-1])

    assert right(capsys, "accumulate_tokens", as_tensor)
    assert right(capsys, "accumulate_tokens", last_first)


def test_a_mean_that_has_a_graph():
    def as_it_comes(loss, micros, counts):
        mean = 0.0
        for micro, count in zip(micros, counts, strict=True):
            if count:
                part = loss(micro) * count / sum(counts)
                part.backward()
                mean = mean + part
        return mean

    with pytest.raises(Wrong, match="the mean that it returns has a graph"):
        check.accumulate_tokens(as_it_comes)


def test_other_checkpoints(capsys):
    class OnContext(torch.autograd.Function):
        """The input on ctx, gradients by autograd.grad through an explicit list."""

        @staticmethod
        def forward(ctx, fn, alive, x):
            ctx.fn, ctx.x = fn, x.detach()
            with torch.no_grad():
                return fn(x)

        @staticmethod
        @torch.enable_grad()
        def backward(ctx, dy):
            x = ctx.x.clone().requires_grad_()
            torch.autograd.backward([ctx.fn(x)], [dy])
            return None, None, x.grad

    assert right(capsys, "recompute", OnContext)


def test_a_checkpoint_that_keeps_one_tensor_of_a_block():
    class KeepsOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, fn, alive, x):
            ctx.fn, ctx.product = fn, x @ fn.w
            ctx.save_for_backward(x)
            return fn(x)

        @staticmethod
        def backward(ctx, dy):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                ctx.fn(x).backward(dy)
            return None, None, x.grad

    with pytest.raises(Wrong, match="neither input nor output of a block: 3"):
        check.recompute(KeepsOne)


def test_a_checkpoint_that_differentiates_its_first_run():
    class First(torch.autograd.Function):
        """Keeps w's part of the first run as plain numbers, where no tensor is seen."""

        @staticmethod
        def forward(ctx, fn, alive, x):
            ctx.fn, ctx.factor = fn, fn.factor
            ctx.save_for_backward(x)
            return fn(x)

        @staticmethod
        def backward(ctx, dy):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                ctx.fn(x).backward(dy * (ctx.factor / ctx.fn.factor))
            return None, None, x.grad

    with pytest.raises(Wrong, match="the gradients are those of its first run"):
        check.recompute(First)


def test_the_oracle_of_checkpoints_is_autograd_s_where_blocks_stay_what_they_are():
    drawn = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    given = [(drawn(WIDTH, WIDTH), drawn(WIDTH)) for _ in range(3)], drawn(ROWS, WIDTH)
    for learn in (True, False):
        plain, again = (
            chained(lambda fn, x: fn(x), *given, learn, 1.0, back=back) for back in (None, rerun)
        )
        assert all(map(near, plain["grads"], again["grads"])) and (again["x"] is None) is not learn
        assert not learn or near(again["x"], plain["x"])


def test_other_ways_to_run_twice(capsys):
    def by_fork(fn):
        kept = {}

        def first(*args):
            kept[len(kept)] = torch.random.get_rng_state()
            return fn(*args)

        def again(*args):
            with torch.random.fork_rng(devices=[]):
                torch.random.set_rng_state(kept.pop(len(kept) - 1))
                return fn(*args)

        return [first, again]

    assert right(capsys, "twice", by_fork)


def test_other_segments(capsys):
    def as_even_as_can_be(L, budget):
        """As few, and none longer than need be: taken from the longest ones."""
        k = next((k for k in range(1, budget + 1) if sum(range(budget, budget - k, -1)) >= L), 0)
        if not k:
            raise ValueError("none fits")
        lengths = [budget - j for j in range(k)]
        while sum(lengths) > L:
            lengths[max(range(k), key=lengths.__getitem__)] -= 1
        return tuple(lengths)

    assert right(capsys, "segments", as_even_as_can_be)


def test_other_plans(capsys):
    def cheapest_first(costs, memories, budget):
        """Dijkstra's algorithm over (layer, bytes held)."""
        queue, seen = [(0, 0, 0, ())], set()
        while queue:
            paid, layer, held, kept = heappop(queue)
            if layer == len(costs):
                return [np.bool_(k) for k in kept]
            if (layer, held) not in seen and held + memories[layer] <= budget:
                seen.add((layer, held))
                heappush(queue, (paid, layer + 1, held + memories[layer], (*kept, True)))
                heappush(queue, (paid + costs[layer], layer + 1, held, (*kept, False)))
        raise ValueError("none fits")

    assert right(capsys, "best_plan", cheapest_first)


def test_other_ways_back(capsys):
    def by_grad(f, g, y1, y2, dy1, dy2):
        """autograd.grad, and the parameters' gradients added by hand."""

        def back(fn, at, dy):
            at, params = at.detach().requires_grad_(), list(fn.parameters())
            with torch.enable_grad():
                out = fn(at)
            through, *grads = torch.autograd.grad(out, [at, *params], dy)
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad if p.grad is None else p.grad + grad
            return out.detach(), through

        part, through = back(g, y1, dy2)
        x2, dx1 = y2 - part, dy1 + through
        part, through = back(f, x2, dx1)
        return [y1 - part, x2, dx1, dy2 + through]

    assert right(capsys, "reversible_backward", by_grad)


def test_the_oracle_of_segments_finds_the_library_s_smallest_peak():
    for layers in (1, 2, 7, 16, 64, 65, 66, 67):
        free = [0] * layers
        lowest = plan([1] * layers, free, [1] * (layers + 1), free).peak
        assert fewest(layers, lowest) and fewest(layers, lowest - 1) is None
        lengths = [min(lowest - j, layers) for j in range(fewest(layers, lowest))]
        assert peak_of(lengths) <= lowest


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_of_plans_against_all_plans_and_the_library(seed):
    random.seed(seed)
    n = random.randint(1, 8)
    costs, memories = ([random.randint(1, 9) for _ in range(n)] for _ in range(2))
    layers = costs, memories, [0] * (n + 1), [0] * n
    for budget in (max(memories) - 1, max(memories), sum(memories) // 2, sum(memories)):
        plans = [
            kept
            for kept in itertools.product([True, False], repeat=n)
            if max(alive(memories, kept)) <= budget
        ]
        paid = [sum(c for c, k in zip(costs, kept, strict=True) if not k) for kept in plans]
        assert least(costs, memories, budget) == min(paid, default=None)
        if paid:
            assert plan(*layers, budget).repeated <= min(paid)
        else:
            with pytest.raises(ValueError):
                plan(*layers, budget)


def test_what_is_foretold_is_what_the_library_says():
    values, slips = predict_remat(
        L=100, a=400e6, x=100e6, k=10, heads=128, s=2048, h=20480, micro=8
    )
    assert values["segment_bytes"] == segments_bytes(100, 10, 400e6, 100e6)
    divisors = [k for k in range(1, 101) if 100 % k == 0]
    assert values["best"] == min(divisors, key=lambda k: segments_bytes(100, k, 400e6, 100e6))
    assert values["work"] == pytest.approx((300 + segments_forwards(100, 10)) / 300)
    assert values["momentum"] == pytest.approx(momentum_for(0.1, 8))
    for name, wrong in slips.items():
        assert all(abs(value - values[name]) > 0.01 * abs(values[name]) for value in wrong), name


def test_the_bug_to_find_is_a_planted_one():
    folder = ROOT / "course" / "11_remat"
    assert shows_bug(folder, "twice", "the generator stays where the second run left it")
