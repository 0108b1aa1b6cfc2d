"""Lesson 11: other right ways pass, what is right only by chance does not, and the oracles agree with the library.

The usual mistakes are in course/11_remat/bugs.py, which tests/bank examines.
"""

import itertools
import random
import sys
from functools import cache

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import near
from minicheck.lessons import remat
from minicheck.lessons.remat import ROWS, WIDTH, chained, predict_remat
from minicheck.oracles.remat import fewest, peak_of, rerun
from minidist.study.predict import halves_bytes, halves_forwards, segments_bytes, segments_forwards
from minidist.train.remat import plan
from tests.bank.bank import ROOT, shows_bug
from tests.minicheck.examined import said

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def right(capsys, name, answer):
    getattr(check, name)(answer)
    return f"{name}: right." in capsys.readouterr().out


def kept(ctx, fn, xs):
    """A right forward of a checkpoint."""
    ctx.fn = fn
    ctx.save_for_backward(*xs)
    return fn(*xs)


def back(ctx, dy):
    """A right backward of a checkpoint."""
    xs = [x.detach() for x in ctx.saved_tensors]
    for x, needed in zip(xs, ctx.needs_input_grad[2:], strict=True):
        x.requires_grad_(needed)
    with torch.enable_grad():
        ctx.fn(*xs).backward(dy)
    return None, None, *[x.grad for x in xs]


def test_other_checkpoints(capsys):
    class OnContext(torch.autograd.Function):
        """The inputs on ctx; all floats get a gradient, needed or not."""

        @staticmethod
        def forward(ctx, fn, alive, *xs):
            ctx.fn, ctx.xs = fn, [x.detach() for x in xs]
            with torch.no_grad():
                return fn(*xs)

        @staticmethod
        @torch.enable_grad()
        def backward(ctx, dy):
            xs = [x.clone().requires_grad_(x.is_floating_point()) for x in ctx.xs]
            torch.autograd.backward([ctx.fn(*xs)], [dy])
            return None, None, *[x.grad for x in xs]

    assert right(capsys, "recompute", OnContext)


def test_a_checkpoint_that_keeps_one_tensor_of_a_block():
    class KeepsOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, fn, alive, *xs):
            ctx.product = xs[0] @ fn.w
            return kept(ctx, fn, xs)

        @staticmethod
        def backward(ctx, dy):
            return back(ctx, dy)

    with pytest.raises(Wrong, match="neither input nor output of a block: 3"):
        check.recompute(KeepsOne)


def test_a_checkpoint_that_differentiates_its_first_run():
    class First(torch.autograd.Function):
        """Keeps w's part of the first run as plain numbers, where no tensor is seen."""

        @staticmethod
        def forward(ctx, fn, alive, *xs):
            ctx.factor = fn.factor
            return kept(ctx, fn, xs)

        @staticmethod
        def backward(ctx, dy):
            return back(ctx, dy * (ctx.factor / ctx.fn.factor))

    with pytest.raises(Wrong, match="the gradients are those of its first run"):
        check.recompute(First)


def test_the_oracle_of_checkpoints_is_autograd_s_where_blocks_stay_what_they_are():
    drawn = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    weights = [(drawn(WIDTH, WIDTH), drawn(WIDTH)) for _ in range(3)]
    given = weights, drawn(ROWS, WIDTH), drawn(WIDTH)
    for learn in itertools.product((True, False), repeat=2):
        plain, again = (
            chained(lambda fn, *xs: fn(*xs), *given, learn, 1.0, back=back)
            for back in (None, rerun)
        )
        assert all(map(near, plain["grads"], again["grads"]))
        for name, learns in zip(("x", "base"), learn, strict=True):
            assert (again[name] is None) is not learns
            assert not learns or near(again[name], plain[name])


def test_other_ways_to_run_twice(capsys):
    def by_fork(fn, buffers):
        """Values as lists of numbers, the generator by PyTorch's own."""
        kept = {}

        def fill(values):
            for buffer, value in zip(buffers, values, strict=True):
                buffer.fill_(value)

        def first(*args):
            kept[len(kept)] = torch.random.get_rng_state(), [b.item() for b in buffers]
            return fn(*args)

        def again(*args):
            now = [b.item() for b in buffers]
            state, values = kept.pop(len(kept) - 1)
            fill(values)
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.random.set_rng_state(state)
                    return fn(*args)
            finally:
                fill(now)

        return [first, again]

    assert right(capsys, "twice", by_fork)


def test_other_segments(capsys):
    def from_the_last(memories, edge, budget):
        """The number of segments first, then each as short as the rest allows."""

        def split(end, k):
            """Lengths of k segments that end with this layer; the last one as long as it can be."""
            if k == 0:
                return [] if end == 0 else None
            for first in range(end):
                if sum(memories[first:end]) <= budget - (k - 1) * edge:
                    before = split(first, k - 1)
                    if before is not None:
                        return [*before, end - first]
            return None

        for k in range(1, len(memories) + 1):
            if sum(budget - j * edge for j in range(k)) < sum(memories):
                continue
            found = cache(split)(len(memories), k)
            if found:
                return tuple(found)
        raise ValueError("none fits")

    exam = next(e for e in vars(remat).values() if getattr(e, "name", "") == "segments")()
    for case in exam.cases[:12]:
        assert not said(exam, from_the_last, case)


def test_other_gated_layers(capsys):
    class Fused(torch.autograd.Function):
        """One product for both halves, silu(a) and b kept where a comes back from neither, autograd between."""

        @staticmethod
        def forward(ctx, x, w1, w3, w2):
            both = x @ torch.cat([w1, w3], 1)
            ctx.save_for_backward(x, w1, w3, w2, both)
            a, b = both.chunk(2, 1)
            return (torch.nn.functional.silu(a) * b) @ w2

        @staticmethod
        def backward(ctx, dy):
            x, w1, w3, w2, both = ctx.saved_tensors
            both = both.detach().requires_grad_()
            with torch.enable_grad():
                a, b = both.chunk(2, 1)
                wide = torch.nn.functional.silu(a) * b
            wide.backward(dy @ w2.T)
            dw1, dw3 = (x.T @ both.grad).chunk(2, 1)
            return both.grad @ torch.cat([w1, w3], 1).T, dw1, dw3, wide.detach().T @ dy

    assert right(capsys, "gated_layer", Fused)


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


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_of_segments_against_all_cuts(seed):
    random.seed(seed)
    n = random.randint(1, 8)
    memories, edge = [random.randint(1, 9) for _ in range(n)], random.randint(0, 3)
    for budget in range(1, sum(memories) + 1):
        fits = []
        for k in range(n):
            for ends in itertools.combinations(range(1, n), k):
                lengths = [b - a for a, b in itertools.pairwise((0, *ends, n))]
                if max(peak_of(lengths, memories, edge)) <= budget:
                    fits.append(k + 1)
        assert fewest(memories, edge, budget) == min(fits, default=None)


def test_the_oracle_of_segments_finds_the_library_s_smallest_peak():
    for layers in (1, 2, 7, 16, 64, 65, 66, 67):
        ones, free = [1] * layers, [0] * layers
        lowest = plan(ones, free, [1] * (layers + 1), free).peak
        assert fewest(ones, 1, lowest) and fewest(ones, 1, lowest - 1) is None


def test_what_is_foretold_is_what_the_library_says():
    values, slips = predict_remat(L=100, a=400e6, x=100e6, k=10, heads=128, s=2048, h=20480)
    assert values["segment_bytes"] == segments_bytes(100, 10, 400e6, 100e6)
    divisors = [k for k in range(1, 101) if 100 % k == 0]
    assert values["best"] == min(divisors, key=lambda k: segments_bytes(100, k, 400e6, 100e6))
    assert values["work"] == pytest.approx((300 + segments_forwards(100, 10)) / 300)
    assert values["halves"] == halves_bytes(64, 400e6, 100e6)
    assert values["halves_work"] == (3 * 64 + halves_forwards(64)) / (3 * 64)
    assert values["uneven"] == plan([1] * 100, [0] * 100, [1] * 101, [0] * 100).peak
    for name, wrong in slips.items():
        assert all(abs(value - values[name]) > 0.01 * abs(values[name]) for value in wrong), name


def test_the_bug_to_find_is_a_planted_one():
    folder = ROOT / "course" / "11_remat"
    assert shows_bug(folder, "twice", "the lesson's: random numbers only")
