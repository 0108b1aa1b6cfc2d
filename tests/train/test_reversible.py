"""Reconstruction, gradients against the ordinary blocks, memory that does not grow with depth."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.data import DataParallel
from minidist.study import measure
from minidist.train.reversible import ReversibleBlock, ReversibleSequence, fixed
from tests.largest import largest

WIDE = dict(dtype=torch.float64)
BITS = {torch.float64: 30, torch.float32: 14}


def part(width=8, dropout=0.2, norm=nn.LayerNorm):
    return nn.Sequential(
        norm(width),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
    )


def make(count=4, bits=None, dtype=torch.float64, device="cpu", **words):
    torch.manual_seed(0)
    blocks = [ReversibleBlock(part(**words), part(**words), bits) for _ in range(count)]
    return ReversibleSequence(blocks).to(dtype).to(device)


def ordinary(sequence, x1, x2):
    for block in sequence.blocks:
        x1, x2 = block(x1, x2)
    return x1, x2


def reversible(sequence, x1, x2):
    return sequence(x1, x2)


def batch(dtype=torch.float64, width=8, seed=3):
    return torch.randn(2, 5, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(how, sequence, x, learn=True, times=1):
    x = x.clone().requires_grad_(learn)
    torch.manual_seed(1)
    y1, y2 = how(sequence, *x.unbind())
    loss = (y1.exp() * y2).sum()
    for i in range(times):
        loss.backward(retain_graph=i + 1 < times)
    return [
        y1.detach(),
        y2.detach(),
        *([x.grad] if learn else []),
        *(p.grad for p in sequence.parameters() if p.requires_grad),
        torch.rand(2),
    ]


def furthest(some, others):
    """The largest difference, as a part of the largest number of its tensor."""
    assert len(some) == len(others)
    return largest(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize(("learn", "times"), [(True, 1), (False, 1), (True, 2)])
def test_gradients_are_those_of_the_ordinary_blocks_within_rounding(learn, times):
    found, expected = (
        gradients(how, make(), batch(), learn, times) for how in (reversible, ordinary)
    )
    assert furthest(found, expected) < 1e-13
    assert all(map(torch.equal, found[:2], expected[:2]))  # forward is the same


@pytest.mark.parametrize("dtype", BITS)
def test_with_bits_everything_is_equal_bit_for_bit(dtype):
    bits = BITS[dtype]
    x = fixed(batch(dtype), bits)
    found, expected = (gradients(how, make(12, bits, dtype), x) for how in (reversible, ordinary))
    assert all(map(torch.equal, found, expected))
    plain = gradients(reversible, make(12, None, dtype), batch(dtype))
    assert 0 < furthest(found[:-1], plain[:-1]) < 1e4 * 2.0**-bits  # of the same function, nearly


def reconstruction(count, bits, dtype):
    """How far the inputs come back, as a part of the largest one."""
    sequence, x = make(count, bits, dtype, dropout=0.0), batch(dtype)
    x = x if bits is None else fixed(x, bits)
    with torch.no_grad():
        y = sequence(*x.unbind())
        for block in reversed(sequence.blocks):
            y = block.inverse(*y)
    return ((torch.stack(y) - x).abs().max() / x.abs().max()).item()


@pytest.mark.parametrize("dtype", BITS)
def test_what_exact_means(dtype):
    """Plain sums come back within some roundings a block, and not to the bit; with bits to the bit."""
    eps = torch.finfo(dtype).eps
    for count in (1, 8, 32):
        assert 0 < reconstruction(count, None, dtype) < 4 * eps * count
        assert reconstruction(count, BITS[dtype], dtype) == 0


def test_too_large_for_the_bits():
    with pytest.raises(
        ValueError,
        match=r"with 20 bits behind the point torch.float32 holds numbers up to 16 exactly, "
        r"but a sum reaches 1[\d.]+: take fewer bits",
    ):
        make(1, 20, torch.float32)(torch.full((2, 8), 100.0), torch.zeros(2, 8))
    with pytest.raises(ValueError, match="take fewer bits"):
        make(1, 20, torch.float32)(torch.full((2, 8), float("nan")), torch.zeros(2, 8))
    with pytest.raises(ValueError, match="block 0 has bits=3, block 1 has bits=None"):
        ReversibleSequence([*make(1, 3).blocks, *make(1).blocks])


@pytest.mark.parametrize("bits", [1, 5, 40])
def test_rounding_is_to_multiples_and_exact(bits):
    x = torch.cat([batch().flatten() * 10.0**e for e in range(-14, 4)])
    y = fixed(x.requires_grad_(), bits)
    assert torch.equal(y, (x * 2.0**bits).round() / 2.0**bits)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def step(how, sequence, x1, x2):
    for p in sequence.parameters():
        p.grad.zero_()
    y1, y2 = how(sequence, x1, x2)
    (y1.sum() + y2.sum()).backward()


@pytest.mark.parametrize("bits", [None, 10])
def test_memory_does_not_grow_with_depth_and_flops_by_a_third(bits):
    def metered(how, count):
        sequence = make(count, bits, torch.float32, "meta", width=64)
        for p in sequence.parameters():
            p.grad = torch.zeros_like(p)
        x = torch.empty(2, 512, 64, device="meta").requires_grad_()
        profile = measure(step, how, sequence, *x.unbind())
        return profile.peak - profile.at_peak["parameters"] - profile.at_peak[
            "gradients"
        ], profile.flops

    peaks, flops = zip(*(metered(reversible, count) for count in (2, 4, 16)), strict=True)
    assert peaks[0] == peaks[1] == peaks[2]
    ordinary_peaks, ordinary_flops = zip(
        *(metered(ordinary, count) for count in (2, 16)), strict=True
    )
    assert ordinary_peaks[1] > 6 * ordinary_peaks[0] > 6 * peaks[0]
    assert 3 * flops[2] == 4 * ordinary_flops[1]


class Channels(nn.Module):
    """Batch norm over the last dimension."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(x)


def test_running_averages_count_once():
    found, expected = make(norm=Channels), make(norm=Channels)
    assert (
        furthest(gradients(reversible, found, batch()), gradients(ordinary, expected, batch()))
        < 1e-12
    )
    assert all(map(torch.equal, found.buffers(), expected.buffers()))


def test_frozen_shared_and_missing_parameters():
    def build():
        sequence = make(3)
        sequence.blocks[1].f[1].weight.requires_grad_(False)
        sequence.blocks[2].g = sequence.blocks[0].g
        sequence.blocks[1].g = nn.Identity()
        return sequence

    found, expected = (gradients(how, build(), batch()) for how in (reversible, ordinary))
    assert furthest(found, expected) < 1e-13
    constant = ReversibleSequence([ReversibleBlock(Constant(), Constant())])
    x = batch().requires_grad_()
    sum(constant(*x.unbind())).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


class Constant(nn.Module):
    def forward(self, x):
        return torch.ones_like(x)


def test_gradients_by_name():
    def run(how):
        sequence, x = make(), batch().requires_grad_()
        torch.manual_seed(1)
        y1, y2 = how(sequence, *x.unbind())
        return torch.autograd.grad((y1 * y2).sum(), [x, sequence.blocks[2].f[1].weight])

    assert furthest(run(reversible), run(ordinary)) < 1e-13


def test_one_output_is_enough_and_none_is_fine():
    def run(how):
        sequence, x = make(), batch().requires_grad_()
        torch.manual_seed(1)
        how(sequence, *x.unbind())[0].sum().backward()
        return [x.grad]

    assert furthest(run(reversible), run(ordinary)) < 1e-13
    x = batch().unbind()
    assert all(map(torch.equal, make(0)(*x), x))
    with torch.no_grad():
        assert all(map(torch.equal, make(dropout=0.0)(*x), ordinary(make(dropout=0.0), *x)))


@pytest.mark.parametrize("cast", [False, True])
def test_autocast_is_that_of_forward(cast):
    def run(how):
        sequence, x = make(dropout=0.0, dtype=torch.float32), batch(torch.float32).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y1, y2 = how(sequence, *x.unbind())
        (y1 * y2).sum().backward()
        return [x.grad]

    assert furthest(run(reversible), run(ordinary)) < (2e-2 if cast else 1e-5)


def averaged(comm, how):
    """Gradients averaged over ranks with random numbers of their own, and when each was ready."""
    sequence, ready = make(3), []
    for name, p in sequence.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name.split(".")[1]))
    DataParallel(sequence, comm, bucket_bytes=500)
    torch.manual_seed(comm.rank)
    y1, y2 = how(sequence, *batch(seed=comm.rank).unbind())
    (y1.exp() * y2).sum().backward()
    return [p.grad.clone() for p in sequence.parameters()], list(dict.fromkeys(ready))


@pytest.mark.parametrize(
    "run", [lambda *args: World(3).run(*args), lambda program, *args: launch(program, 2, *args)]
)
def test_among_ranks_gradients_are_averaged_as_they_come(run):
    ours, expected = run(averaged, reversible), run(averaged, ordinary)
    for (mine, order), (theirs, _) in zip(ours, expected, strict=True):
        assert furthest(mine, theirs) < 1e-13 and order == ["2", "1", "0"]
    assert all(map(torch.equal, ours[0][0], ours[1][0]))
