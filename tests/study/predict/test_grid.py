"""The memory of a rank in a grid: parameters as real models have them, everything divided that should be."""

from dataclasses import replace

import pytest
import torch

from minidist.comm import World
from minidist.comm.mesh import Mesh
from minidist.models import gpt
from minidist.parallelize import parallelize
from minidist.study.predict import (
    Grid,
    Transformer,
    activations,
    embedding_activations,
    expert_layers,
    flops,
    fused_gradients,
    output_activations,
    parameters,
    per_rank,
    rank_parameters,
    states,
)
from tests.largest import largest
from tests.size import FULL

SHAPE = dict(layers=6, hidden=16, heads=4, vocab=40, context=8)
MODEL = Transformer(**SHAPE)
WHOLE = ("norm", "positions", "proj.bias")  # what every tensor-parallel rank holds


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("t", [1, 2, 4])
def test_parameters_of_a_tensor_parallel_rank(t, tied):
    net = gpt(**SHAPE, tied=tied, device="meta")
    named = sum(
        p.numel() // (1 if any(w in name for w in WHOLE) else t)
        for name, p in net.named_parameters()
    )
    assert rank_parameters(replace(MODEL, tied=tied), t) == named


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 4, 6])
def test_stages_add_up_to_the_model(stages, tied):
    model = replace(MODEL, tied=tied)
    held = [rank_parameters(model, 1, stages, s) for s in range(stages)]
    twice = 40 * 16 if tied and stages > 1 else 0
    assert sum(held) == parameters(model) + twice


def test_a_vocabulary_that_does_not_split_evenly():
    odd = replace(MODEL, vocab=41)
    assert rank_parameters(odd, 4) - rank_parameters(MODEL, 4) == 16  # 11 rows, not 10


def test_one_rank():
    one = per_rank(MODEL, Grid(micro_batch=3))
    assert (one.parameters, one.gradients, one.optimizer_states) == tuple(
        states(parameters(MODEL)).bytes.values()
    )
    assert one.activations_of_layers == 6 * activations(MODEL, 3)
    assert one.mask_after_embedding == embedding_activations(MODEL, 3) == 3 * 8 * 16
    assert one.output_and_logits == output_activations(MODEL, 3)
    assert one.layer_being_recomputed == one.buffers == 0 and one.total == sum(one.bytes.values())


def test_gradients_and_optimizer_states_are_divided_too():
    """What public calculators forget: with t · p = 8 all three are about an eighth, not the parameters alone."""
    large = Transformer(48, 1024, 16, 50304, 1024)
    one, part = (
        per_rank(large, Grid()),
        per_rank(large, Grid(tensor=4, pipeline=2, micro_batches=8)),
    )
    for item in ("parameters", "gradients", "optimizer_states"):
        assert 7 < getattr(one, item) / getattr(part, item) <= 8
    assert part.optimizer_states == 6 * part.parameters == 6 * part.gradients


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_divides_what_is_left_of_the_model(zero):
    params = rank_parameters(MODEL, 2, 3, 0)
    rank = per_rank(MODEL, Grid(data=5, tensor=2, pipeline=3, zero=zero), stage=0)
    kept = states(params, precision="bf16", zero=zero, data=5)
    assert (rank.parameters, rank.gradients, rank.optimizer_states) == tuple(kept.bytes.values())
    layer = (12 * 16 * 16 + 7 * 16) // 2 + 6 * 16
    # two layers, and the embeddings: of 16 bits, whole gradients at stage 2, parameters as well at stage 3
    whole = 2 * (2 * layer + 20 * 16 + 8 * 16)
    assert rank.buffers == (0, 0, whole, 2 * whole)[zero]


def test_fused_gradients():
    grid = Grid(tensor=2, fused=True)
    assert (
        per_rank(MODEL, grid).buffers
        == fused_gradients(rank_parameters(MODEL, 2))
        == 4 * rank_parameters(MODEL, 2)
    )


def test_activations_of_a_stage():
    at = lambda stage, **words: per_rank(MODEL, Grid(pipeline=3, **words), stage)
    layer = activations(MODEL, 1)
    assert [at(s, micro_batches=9).activations_of_layers // layer for s in range(3)] == [6, 4, 2]
    assert [at(s, micro_batches=2).activations_of_layers // layer for s in range(3)] == [4, 4, 2]
    # L(1 + (p − 1)/(p m)) with p = 3 and m = 2 chunks of one layer: 8.
    assert at(0, micro_batches=9, interleave=2).activations_of_layers == 8 * layer
    assert [at(s, micro_batches=9).mask_after_embedding for s in range(3)] == [3 * 8 * 16, 0, 0]
    assert at(0, micro_batches=9, interleave=2).mask_after_embedding == 6 * 8 * 16
    assert at(0, micro_batches=9, dropout=False).mask_after_embedding == 0
    assert (
        at(2, micro_batches=9).output_and_logits == output_activations(MODEL, 1)
        and at(1).output_and_logits == 0
    )


def test_uneven_layers():
    five = replace(MODEL, layers=5)
    ranks = [per_rank(five, Grid(pipeline=2, micro_batches=4), s) for s in range(2)]
    assert [r.activations_of_layers // activations(five, 1) for r in ranks] == [2 * 3, 1 * 2]
    with pytest.raises(ValueError, match="5 layers do not split over 4"):
        per_rank(five, Grid(pipeline=2, interleave=2, micro_batches=4))


def test_the_fullest_stage_is_taken():
    grid = Grid(pipeline=3, micro_batches=6)
    assert per_rank(MODEL, grid) == max(
        (per_rank(MODEL, grid, s) for s in range(3)), key=lambda r: r.total
    )
    big = replace(MODEL, vocab=4000)
    assert per_rank(big, grid) == per_rank(big, grid, 2)  # logits


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_recomputation(recompute):
    words = dict(tensor=4, sequence=True, recompute=recompute, micro_batch=2)
    rank = per_rank(MODEL, Grid(**words))
    assert rank.activations_of_layers == 6 * activations(
        MODEL, 2, tensor=4, sequence=True, recompute=recompute
    )
    again = {
        "none": 0,
        "selective": 5 * 4 * 8 * 8 * 2 // 4,
        "full": activations(MODEL, 2, tensor=4, sequence=True) - 2 * 2 * 8 * 16 // 4,
    }
    assert rank.layer_being_recomputed == again[recompute]


def test_the_last_stage_is_fullest_at_the_turn_or_in_backward():
    """Logits are gone when the first layer has been computed again."""
    words = dict(recompute="full", micro_batch=2)
    again = activations(MODEL, 2) - activations(MODEL, 2, recompute="full") + 2 * 2 * 8 * (16 + 64)
    few, many = (per_rank(replace(MODEL, vocab=v), Grid(**words)) for v in (40, 4000))
    assert few.output_and_logits == 0
    assert few.layer_being_recomputed + few.gradients_of_activations == again
    assert many.layer_being_recomputed == many.gradients_of_activations == 0
    assert many.output_and_logits == output_activations(MODEL, 2) + 4 * 2 * 8 * 3960 > again
    with_logits = per_rank(replace(MODEL, vocab=4000), Grid(pipeline=2, **words), 0)
    assert with_logits.layer_being_recomputed > 0 == with_logits.output_and_logits


def test_gradients_are_whole_when_backward_has_begun():
    """ZeRO 3 at the turn: parameters of two layers and of the ends are gathered, and no gradients are whole yet."""
    many = per_rank(replace(MODEL, vocab=4000), Grid(zero=3, data=2, micro_batch=9))
    layer = 12 * 16 * 16 + 13 * 16
    assert many.output_and_logits > 0
    assert many.buffers == 2 * (2 * layer + 4000 * 16 + 8 * 16 + 2 * 16)
    one_layer = per_rank(replace(MODEL, layers=1), Grid(zero=3, data=2))
    assert one_layer.buffers == 2 * 2 * (layer + 40 * 16 + 8 * 16 + 2 * 16)


def test_output_under_tensor_and_sequence_parallelism():
    split = per_rank(MODEL, Grid(tensor=4, sequence=True)).output_and_logits
    whole = per_rank(MODEL, Grid(tensor=4)).output_and_logits
    assert split == output_activations(MODEL, 1, 4, 4) == 4 * 8 * 16 // 4 + 4 * 8 * 40 // 4
    assert whole == 4 * 8 * 16 + 4 * 8 * 40 // 4


def test_bloom_fits_where_it_ran():
    """384 A100 of 80 GB, 8 × 12 × 4, ZeRO 1, every layer recomputed (BigScience): a rank needs half of its card."""
    bloom = Transformer(70, 14336, 112, 250880, 2048, positions=False)
    grid = Grid(
        8,
        4,
        12,
        zero=1,
        micro_batch=2,
        micro_batches=128,
        recompute="full",
        precision="bf16, fp32 gradients",
    )
    assert grid.ranks == 384
    assert 39.8e9 < per_rank(bloom, grid).total < 39.9e9
    assert per_rank(bloom, replace(grid, recompute="none")).total > 80e9
    assert per_rank(bloom, replace(grid, data=1, tensor=1, pipeline=1, zero=0)).total > 3e12


def test_printed():
    text = str(per_rank(MODEL, Grid(tensor=2)))
    assert "activations of layers" in text and text.splitlines()[-1].startswith("total")


def test_bad_input():
    for grid, words in (
        (Grid(tensor=8), "4 heads do not split over 8"),
        (Grid(pipeline=7), "6 layers do not make 7 stages"),
    ):
        with pytest.raises(ValueError, match=words):
            per_rank(MODEL, grid)
    for wrong, words in (
        (dict(zero=4), "not 4"),
        (dict(recompute="part"), "not 'part'"),
        (dict(attention="flash"), "explicit, fused, not 'flash'"),
        (dict(recompute="selective", attention="fused"), "there recompute is none or full"),
    ):
        with pytest.raises(ValueError, match=words):
            Grid(**wrong)
    with pytest.raises(ValueError, match="no stage 3 among 3"):
        per_rank(MODEL, Grid(pipeline=3), 3)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("expert", [1, 2, 3])
def test_parameters_of_a_rank_that_shares_out_experts(expert, stages):
    """As `parallelize` deals them out, the first rank's: layers, routers, experts, on each stage."""
    shape = SHAPE | dict(experts=5, ffn=24, gated=True)

    def program(comm):
        mesh = Mesh(comm, ep=expert, pp=stages, order="pp dp ep tp")
        make = lambda groups: torch.optim.SGD(groups, lr=0.1)
        cuts = lambda parts: [1e-9, *[1.0] * 6, 1e-9]
        engine = parallelize(gpt(**shape, device="meta"), mesh, make, cost=cuts)
        return sum(p.numel() for p in engine.module.parameters())

    held = list(World(stages * expert, device="meta").run(program))[::expert]
    model = Transformer(**shape)
    assert held == [rank_parameters(model, 1, stages, s, expert) for s in range(stages)]
    assert [expert_layers(model, stages, s) for s in range(stages)] == [[3], [1, 2]][stages - 1]


@pytest.mark.parametrize(
    ("data", "expert", "zero"), [(4, 2, 1), *([(6, 3, 1), (4, 2, 2), (6, 2, 2)] if FULL else [])]
)
def test_states_of_experts_are_divided_among_those_who_hold_them(data, expert, zero):
    """Adam's moments of all ranks of the mesh, as `parallelize` divides them; the first ones have the most experts."""
    shape = SHAPE | dict(experts=6, ffn=24, gated=True)

    def program(comm):
        mesh = Mesh(comm, dp=data // expert, ep=expert, order="pp dp ep tp")
        engine = parallelize(gpt(**shape, device="meta"), mesh, torch.optim.AdamW, zero=zero)
        x = torch.zeros(1, shape["context"], dtype=torch.long)
        engine.step(x, x)
        states = engine.optimizer.own_state_dict()["state"].values()
        return sum(state[name].nbytes for state in states for name in ("exp_avg", "exp_avg_sq"))

    grid = Grid(data, expert=expert, zero=zero, precision="fp32")
    predicted = per_rank(Transformer(**shape), grid).optimizer_states
    held = list(World(data).run(program))
    assert sum(held) == pytest.approx(data * predicted, rel=1e-3)
    assert largest(held) < 1.5 * predicted


def test_flops_of_a_token_grow_with_its_experts_alone():
    dense = flops(MODEL, 1)
    for experts in (4, 8):
        model = replace(MODEL, experts=experts, top_k=2)
        mlps = (
            3 * 3 * 2 * 8 * 8 * 16**2
        )  # layers, passes, FLOPs of a weight, tokens, weights of an MLP
        routers = 3 * 3 * 2 * 8 * 16 * experts
        assert flops(model, 1) == dense + mlps + routers


@pytest.mark.parametrize(("data", "expert", "zero"), [(4, 3, 0), (2, 4, 0), (2, 0, 0), (4, 2, 3)])
def test_expert_ranks_that_cannot_be(data, expert, zero):
    with pytest.raises(ValueError, match=f"{expert} ranks that share out .* {data} .* ZeRO {zero}"):
        Grid(data=data, expert=expert, zero=zero)
