"""Ours beside PyTorch's own, as `make bench` measures it: what must be at least as fast."""

import pytest
import torch

from benchmarks import (
    all_reduce,
    context,
    data_parallel,
    fuse,
    pipeline,
    remat,
    start,
    tensor,
    zero,
)
from tests.largest import smallest


def each(figure, ratios):
    for name, value in ratios.items():
        figure(f"{name}: {value:.2f}")


@pytest.mark.full
def test_start(figure):
    ours, theirs = start.measure()[4]
    figure(f"4 ranks: launch {ours:.3f} s, mp.spawn {theirs:.2f} s")
    assert ours <= 0.3


@pytest.mark.full
def test_all_reduce(figure):
    """The ring over shared memory, beside gloo's own, at every size."""
    ratios = all_reduce.measure([2, 4], all_reduce.SIZES, 15)
    each(figure, ratios)
    assert smallest(ratios.values()) > 1.0


@pytest.mark.full
def test_data_parallel(figure):
    """A step beside DDP's over gloo; then what overlap gains over a slow link, in wall time and in a World."""
    ratios = data_parallel.measure([2, 4], 30)
    each(figure, ratios)
    for n in (2, 4):
        slow = data_parallel.measure_slow(n, 10)
        for name in data_parallel.BUCKETS:
            (on, in_world), (off, in_world_off) = (
                slow[f"{name}, overlap"],
                slow[f"{name}, at the end"],
            )
            figure(
                f"n={n}, 100 MB/s, buckets of {name}: a step in {on * 1e3:.0f} ms with overlap, "
                f"{off * 1e3:.0f} ms without, gain {off / on:.3f} (World {in_world_off / in_world:.3f})"
            )
    assert all(value >= 1.0 for name, value in ratios.items() if "overlap" in name)


@pytest.mark.full
def test_tensor(figure):
    ratios = tensor.measure([2, 4], 30, [*tensor.CASES])
    each(figure, ratios)
    assert smallest(ratios.values()) >= 1


@pytest.mark.full
def test_context(figure):
    """Both rings run the same operators on the same blocks: nearly all of a step is theirs."""
    ratios = tensor.measure([2, 4], 15, [*context.CASES], context.program, "context")
    each(figure, ratios)
    assert smallest(ratios.values()) >= 0.9


@pytest.mark.full
def test_pipeline(figure):
    ratios = pipeline.measure([2, 4], 20)
    each(figure, ratios)
    assert smallest(ratios.values()) >= 1


@pytest.mark.full
def test_zero(figure):
    """Time of stages 1 and 3, and memory beside PyTorch's."""
    found = zero.measure([2, 4], 20, ["stage_1", "stage_3"])
    each(figure, found)
    assert all(value >= 1 for name, value in found.items() if name.startswith("ratio"))
    assert all(value <= 1.05 for name, value in found.items() if not name.startswith("ratio"))


@pytest.mark.full
def test_remat(figure):
    """Both do the same work by nature."""
    found = remat.measure(25)
    each(figure, found)
    assert all(value >= 0.97 for name, value in found.items() if not name.endswith("peak"))


@pytest.mark.full
def test_fuse(figure):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    each(figure, fuse.measure([*fuse.CASES], 15))
    torch.set_num_threads(before)
