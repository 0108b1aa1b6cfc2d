"""Which parameters are stepped plainly: by default biases and norms. How they are cut: see test_sharded.py."""

import torch

from minidist.train.optim import LAMB, bias_or_norm, groups
from tests.train.optim.cases import net


def test_groups_leave_biases_and_norms_out():
    made = net()
    trusted, plain = groups(made)
    assert [name for name, _ in trusted["params"]] == ["0.weight", "2.weight", "3.weight"]
    assert [name for name, _ in plain["params"]] == ["0.bias", "1.weight", "1.bias"]
    assert (plain["weight_decay"], plain["trust"]) == (0.0, 0.0) and "trust" not in trusted
    assert trusted["split"] == plain["split"] == ()
    for p in made.parameters():
        p.grad = torch.ones_like(p)
    before = [p.detach().clone() for p in made.parameters()]
    optimizer = LAMB(groups(made), lr=0.1)
    optimizer.step()
    assert {tuple(p.shape) for p in optimizer.ratios} == {(5, 4), (3, 5), (3, 2)}
    for (name, p), q in zip(made.named_parameters(), before, strict=True):
        if bias_or_norm(name, p.shape):
            # Adam's first step
            torch.testing.assert_close(p, q - 0.1 / (1 + 1e-6), rtol=1e-12, atol=1e-12)


def test_a_rule_of_ones_own():
    only = lambda name, shape: name == "3.weight"
    first, second = groups(net(), only)
    assert [name for name, _ in second["params"]] == ["3.weight"] and len(first["params"]) == 5
    assert [len(g["params"]) for g in groups(net(), lambda name, shape: False)] == [6]


def test_bias_by_name_or_by_dimensions():
    assert (
        bias_or_norm("layers.0.norm.weight", (5,))
        and bias_or_norm("odd.bias", (3, 4))
        and bias_or_norm("scale", ())
    )
    assert not bias_or_norm("bias.weight", (3, 4))


def test_torchs_own_optimizers_take_the_groups():
    made = net()
    optimizer = torch.optim.AdamW(groups(made), lr=0.1, weight_decay=0.3)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
