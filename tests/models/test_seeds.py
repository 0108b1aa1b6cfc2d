"""Initial values belong to names."""

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, World
from minidist.models import generator, initial, initial_, mlp, seeded_, seeds
from minidist.split import uneven


def test_the_same_seed_gives_the_same_model_and_another_another():
    a = mlp([8, 8, 8], seed=1)
    b = mlp([8, 8, 8], seed=1)
    c = mlp([8, 8, 8], seed=2)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a[0].weight, c[0].weight)
    assert not torch.equal(a[0].weight, a[2].weight)  # one shape, two names


def test_values_do_not_depend_on_what_was_drawn_before():
    whole = mlp([6, 5, 4, 3], seed=3)
    torch.manual_seed(99)
    assert torch.equal(mlp([6, 5, 4], seed=3)[2].weight, whole[2].weight)
    before = torch.get_rng_state()
    mlp([6, 5, 4])
    assert torch.equal(before, torch.get_rng_state())


def test_a_part_cut_from_the_whole_starts_equal():
    whole = mlp([6, 8], seed=3, dtype=torch.float64)
    parts = [initial(3, "0.weight", (8, 6)).chunk(2)[rank] for rank in range(2)]
    assert torch.equal(torch.cat(parts), whole[0].weight)


def test_always_the_same_numbers():
    known = torch.tensor(
        [[0.641404750957, 0.307129568990], [-0.267303036476, -0.396434331878]], dtype=torch.float64
    )
    assert torch.allclose(initial(0, "0.weight", (2, 2)), known, atol=1e-11)
    assert generator(1, "2.weight").initial_seed() != generator(12, ".weight").initial_seed()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_the_float64_values_rounded(dtype):
    exact, rounded = mlp([6, 5, 4], dtype=torch.float64), mlp([6, 5, 4], dtype=dtype)
    for p, q in zip(exact.parameters(), rounded.parameters(), strict=True):
        assert q.dtype == dtype and torch.equal(p.to(dtype), q)


def test_scale():
    weight = initial(0, "w", (500, 400))
    assert (
        weight.std().item() == pytest.approx(400**-0.5, rel=0.01)
        and abs(weight.mean().item()) < 3e-4
    )
    assert initial(0, "conv", (64, 8, 5, 5)).std().item() == pytest.approx(200**-0.5, rel=0.02)


def test_vectors():
    layer = seeded_(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert layer[0].bias.eq(0).all() and layer[1].bias.eq(0).all() and layer[1].weight.eq(1).all()
    assert initial(0, "scale", ()) == 1 and initial(0, "w", (3, 0)).shape == (3, 0)


def test_tied_parameters_stay_tied():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    seeded_(tied, 5)
    assert tied[1].weight is tied[0].weight and torch.equal(
        tied[1].weight, initial(5, "0.weight", (4, 4)).float()
    )


def drawn_at_once(name, shape):
    """The whole by one call of torch: what the blocks must put together."""
    return (
        torch.empty(shape, dtype=torch.float64).normal_(generator=generator(3, name))
        * shape[-1] ** -0.5
    )


@pytest.mark.parametrize("block", [1, 100, seeds.BLOCK])
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (16, 1), (17, 1), (31, 1), (32, 1), (47, 3), (49, 3), (100, 7)]
)
def test_blocks_do_not_change_the_numbers(block, shape, monkeypatch):
    monkeypatch.setattr(seeds, "BLOCK", block)
    assert torch.equal(initial(3, "a.weight", shape), drawn_at_once("a.weight", shape))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_every_split_has_the_numbers_of_the_whole(n, dim, monkeypatch):
    monkeypatch.setattr(seeds, "BLOCK", 100)
    shape = (70, 5)
    whole, at = drawn_at_once("w", shape), 0
    for size in uneven(shape[dim], n):
        part = torch.empty((size, 5) if dim == 0 else (70, size))  # rounded to float32
        assert torch.equal(
            initial_(part, 3, "w", dim, at, shape[dim]), whole.narrow(dim, at, size).float()
        )
        at += size


def test_drawing_takes_one_block_of_memory(monkeypatch):
    monkeypatch.setattr(seeds, "BLOCK", 1000)

    def program(comm, dim):
        part = torch.empty((500, 400) if dim == 0 else (4000, 50))
        initial_(part, 0, "w", dim, 0, (4000, 400)[dim])
        return part.nbytes

    for dim in (0, 1):
        world = World(1, cluster=Cluster.dgx_h100(), device="cpu")
        [part] = world.run(program, dim)
        assert part < world.trace.memory[0].peak <= part + 16 * 400 * 8


def test_a_part_that_is_not_there():
    with pytest.raises(ValueError, match="4 from 5 on are no part of 8 along dimension 1 of w"):
        initial_(torch.empty(2, 4), 0, "w", 1, 5, 8)
    with pytest.raises(ValueError, match="4 from -1 on"):
        initial_(torch.empty(4), 0, "w", first=-1)
    assert initial_(torch.empty(2, 4, device="meta"), 0, "w").is_meta
