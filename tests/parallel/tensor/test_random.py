"""Random numbers: the same where data is whole, different where it is split, and again the same when computed again."""

from contextlib import suppress

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minidist.comm import World
from minidist.models import TransformerLayer, seeded_
from minidist.parallel.tensor import TensorLayer, gather_from, scatter_to, seed_group_, split_random
from tests.largest import largest
from tests.parallel.tensor.cases import RUNS, WIDE, batch, difference, found


def draws(comm):
    """Whole, split, whole, split and whole numbers."""
    seed_group_(comm, 5)
    numbers = []
    for _ in range(2):
        numbers.append(torch.rand(50))
        with split_random(comm):
            numbers.append(torch.rand(50))
    return [*numbers, torch.rand(50)]


@pytest.mark.parametrize("run", RUNS)
def test_same_and_different(run):
    ranks = RUNS[run](3, draws)
    for i, whole in enumerate((True, False, True, False, True)):
        assert all(torch.equal(ranks[0][i], other[i]) is whole for other in ranks[1:])
    everything = torch.cat([torch.cat(ranks[0]), *(torch.cat([r[1], r[3]]) for r in ranks[1:])])
    # no stream is another one's, or its own again
    assert len(everything.unique()) == len(everything) == 9 * 50


def test_what_is_drawn_within_does_not_matter_outside():
    def program(comm, count):
        seed_group_(comm, 5)
        with split_random(comm):
            torch.rand(count)
        return torch.rand(5)

    assert all(
        torch.equal(*pair)
        for pair in zip(World(2).run(program, 1), World(2).run(program, 99), strict=True)
    )


def test_an_exception_leaves_the_numbers_in_order():
    def program(comm, fail):
        seed_group_(comm, 5)
        with suppress(KeyError), split_random(comm):
            if fail:
                raise KeyError("within")
        return torch.rand(3)

    assert torch.equal(World(1).run(program, True)[0], World(1).run(program, False)[0])


def groups(comm):
    """Two groups of two ranks, with a seed each."""
    group = comm.split(comm.rank // 2)
    seed_group_(group, comm.rank // 2)
    return torch.rand(4)


def test_groups():
    a, b, c, d = World(4).run(groups)
    assert torch.equal(a, b) and torch.equal(c, d) and not torch.equal(a, c)


def layers(comm, sequence, dropout=0.3, count=2):
    seed_group_(comm, 8)
    return [
        TensorLayer(24, 12, comm, dropout=dropout, sequence=sequence, **WIDE) for _ in range(count)
    ]


@pytest.mark.parametrize("sequence", [False, True])
def test_copies_stay_copies(sequence):
    first, *others = World(3).run(
        lambda comm: found(layers(comm, sequence), batch(), comm, sequence)
    )
    assert all(difference(other, first) == 0 for other in others)


def without_attention_dropout(layer):
    layer.attention.weights_dropout.p = 0.0
    return layer


def test_dropout_on_whole_data_is_the_serial_one():
    def program(comm):
        return found(map(without_attention_dropout, layers(comm, False)), batch(), comm)

    serial = [
        without_attention_dropout(seeded_(TransformerLayer(24, 12, dropout=0.3, **WIDE)))
        for _ in range(2)
    ]
    torch.manual_seed(8)
    oracle = found(serial, batch())
    for mine in World(3).run(program):
        assert difference(mine, oracle) < 1e-12


class Checkpointed(torch.nn.Module):
    def __init__(self, layer, reentrant):
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_another_order(run, sequence, reentrant):
    """Backward computes the last layer's forward again first; each draws what it has drawn before."""

    def program(comm, again):
        blocks = layers(comm, sequence, count=3)
        blocks = [Checkpointed(block, reentrant) for block in blocks] if again else blocks
        y, grads = found(blocks, batch(), comm, sequence)
        return y, {name.replace(".layer", ""): g for name, g in grads.items()}

    plain, again = (RUNS[run](2, program, which) for which in (False, True))
    assert largest(map(difference, plain, again)) < 1e-12


def test_heads_drop_different_weights():
    """All heads are made alike, so that only what they drop can differ."""

    def program(comm):
        layer = layers(comm, False, count=1)[0].attention
        layer.dropout.p = 0.0
        with torch.no_grad():
            for p in layer.qkv.parameters():
                p.zero_()
            layer.qkv.bias.fill_(1)
            layer.proj.weight.fill_(1)
        kept = {}
        layer.proj.forward = lambda y: kept.setdefault("heads", y)
        layer(torch.ones(1, 20, 24, **WIDE))
        return kept["heads"]

    heads = World(2).run(program)
    assert not torch.equal(*heads) and heads[0].std() > 0.01


def test_a_split_sequence_drops_different_tokens():
    def program(comm):
        layer = layers(comm, True, count=1)[0]
        x = torch.ones(1, 400, 24, **WIDE)
        drops = layer.attention.dropout, layer.mlp.dropout
        return [gather_from(drop(scatter_to(x, comm, 1)), comm, 1) for drop in drops]

    for masks in World(2).run(program):
        for mask in masks:
            assert not torch.equal(mask[:, :200], mask[:, 200:])
            assert (mask == 0).double().mean().item() == pytest.approx(0.3, abs=0.02)


def test_without_the_seed_it_is_refused():
    def program(comm, dropout, train):
        layer = TensorLayer(24, 12, comm, dropout=dropout).train(train)
        return layer(torch.ones(1, 2, 24)).shape

    with pytest.raises(ValueError, match="seed_group_"):
        World(2).run(program, 0.1, True)
    assert World(2).run(program, 0.1, False) == World(2).run(program, 0.0, True) == [(1, 2, 24)] * 2


def test_no_dropout_draws_nothing():
    def program(comm, compute):
        seed_group_(comm, 1)
        if compute:
            TensorLayer(24, 12, comm)(torch.ones(1, 2, 24))
            TensorLayer(24, 12, comm, dropout=0.5).eval()(torch.ones(1, 2, 24))
        return torch.rand(3)

    assert torch.equal(World(1).run(program, True)[0], World(1).run(program, False)[0])
