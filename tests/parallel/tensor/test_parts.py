"""Weights taken apart and put together again are the serial model's, for every n, also where sizes are uneven."""

import functools

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, World, launch
from minidist.models import GPT, TransformerLayer, initial, seeded_, seeds
from minidist.parallel.tensor import Cut, TensorLayer, cuts, shard, unshard
from tests.parallel.tensor.cases import EVERYWHERE, RUNS, WIDE, batch

# 5 groups and 80 features: 2, 3 and 4 ranks get uneven parts
SHAPE = dict(hidden=20, heads=10, kv_heads=5)


def there_and_back(comm, state):
    """A serial state dict through the ranks, and how many numbers this rank had of it."""
    layer = TensorLayer(20, 10, comm, 5, seed=9, **WIDE)
    mine = shard(state, layer, comm)
    layer.load_state_dict(mine)
    del state, mine
    return (
        unshard(layer, comm),
        sum(p.numel() for p in layer.parameters()),
        layer(batch(20)).detach(),
    )


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_apart_and_together(run, n):
    serial = seeded_(TransformerLayer(**SHAPE, **WIDE), 4)
    state, expected = serial.state_dict(), serial(batch(20)).detach()
    ranks = RUNS[run](n, there_and_back, state)
    vectors = 6 * 20  # whole on every rank
    numbers = sum(p.numel() for p in serial.parameters()) - vectors
    assert sum(count - vectors for _, count, _ in ranks) == numbers
    for back, _, y in ranks:
        assert list(back) == list(state) and all(torch.equal(back[k], state[k]) for k in state)
        assert (y - expected).abs().max() < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sequence", [False, True])
def test_initial_values_are_the_serial_ones(n, sequence):
    """As layer 1 of a GPT, by name."""

    def program(comm):
        model = nn.ModuleDict(
            {
                "layers": nn.ModuleList(
                    TensorLayer(20, 10, comm, 5, sequence=sequence, seed=4, name=f"layers.{i}")
                    for i in range(2)
                )
            }
        )
        return unshard(model, comm)

    serial = seeded_(GPT(2, vocab=7, context=3, **SHAPE), 4).state_dict()
    for mine in World(n).run(program):
        assert len(mine) == 24 and all(torch.equal(x, serial[name]) for name, x in mine.items())
        assert not torch.equal(mine["layers.0.mlp.fc.weight"], mine["layers.1.mlp.fc.weight"])


def test_a_module_may_be_given_and_parts_do_not_hold_the_whole():
    def program(comm, serial):
        layer = TensorLayer(20, 10, comm, 5, **WIDE)
        mine = shard(serial, layer, comm)
        return [x.untyped_storage().nbytes() == x.nbytes for x in mine.values()], list(mine)

    for own, names in World(2).run(program, TransformerLayer(**SHAPE, **WIDE)):
        assert all(own) and names == list(TransformerLayer(**SHAPE).state_dict())


def test_what_is_put_together_is_the_callers_own():
    def program(comm):
        layer = TensorLayer(20, 10, comm, 5, seed=9)
        before = {name: x.clone() for name, x in layer.state_dict().items()}
        for x in unshard(layer, comm).values():
            x.add_(1)
        return [torch.equal(x, before[name]) for name, x in layer.state_dict().items()]

    for n in (1, 2):
        assert all(all(same) for same in World(n).run(program))


def test_cuts():
    def program(comm):
        return cuts(TensorLayer(20, 10, comm, 5))

    found = World(4).run(program)[0]
    assert found["mlp.fc.weight"] == found["mlp.fc.bias"] == (0, [20] * 4) and found[
        "mlp.proj.weight"
    ] == (1, [20] * 4)
    assert found["attention.qkv.weight"] == (0, [16, 8, 8, 8]) and found[
        "attention.proj.weight"
    ] == (1, [8, 4, 4, 4])
    assert len(found) == 6


def test_a_cut():
    whole = torch.arange(10).view(2, 5)
    cut = Cut(1, [2, 0, 3])
    assert [cut.part(whole, r).tolist() for r in range(3)] == [
        [[0, 1], [5, 6]],
        [[], []],
        [[2, 3, 4], [7, 8, 9]],
    ]
    assert cut.shape((2, 5, 4), 3) == (2, 3, 4) and Cut(0, []).shape((7,), 2) == (2,)


def test_bad_input():
    def program(comm, change):
        layer = TensorLayer(20, 10, comm, 5)
        state = seeded_(TransformerLayer(**SHAPE)).state_dict()
        change(state)
        shard(state, layer, comm)

    def another(shape, state):
        state["mlp.fc.weight"] = torch.zeros(shape)

    with pytest.raises(ValueError, match=r"missing \['norm_1.bias'\], unknown \[\]"):
        World(2).run(program, lambda state: state.pop("norm_1.bias"))
    with pytest.raises(ValueError, match=r"missing \[\], unknown \['more'\]"):
        World(2).run(program, lambda state: state.update(more=torch.zeros(1)))
    with pytest.raises(
        ValueError, match=r"mlp.fc.weight has shape \(80, 20\) here, but \(40, 20\)"
    ):
        World(2).run(program, functools.partial(another, (40, 20)))


def test_processes_start_alike():
    """Seeds belong to names, in every world."""
    weights = launch(
        lambda comm: unshard(TensorLayer(20, 10, comm, 5, name="a"), comm)["mlp.fc.weight"], 2
    )
    assert torch.equal(weights[0], initial(0, "a.mlp.fc.weight", (80, 20)).float())


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_is_made_without_the_whole(sequence, monkeypatch):
    """Beside its own parameters a rank holds a block of rows of the whole, 16 of 256 numbers here."""
    monkeypatch.setattr(seeds, "BLOCK", 1)

    def program(comm):
        layer = TensorLayer(64, 4, comm, sequence=sequence)
        return layer, sum(p.nbytes for p in layer.parameters())

    world = World(3, cluster=Cluster.dgx_h100(), device="cpu")
    own = world.run(program)
    whole = sum(p.nbytes for p in TransformerLayer(64, 4).parameters())
    for rank, (_, nbytes) in enumerate(own):
        assert nbytes <= world.trace.memory[rank].peak <= nbytes + 16 * 256 * 8 < whole
