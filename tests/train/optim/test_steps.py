"""SGD, LARS, AdamW and LAMB, step by step: against torch.optim and against the papers' algorithms on lists."""

import copy

import pytest
import torch
from torch import nn

from minidist.train.optim import LAMB, LARS, SGD, AdamW, groups
from tests.largest import largest
from tests.train.optim.cases import Layers, net
from tests.train.optim.papers import LAMBPaper, LARSPaper, SGDPaper

TORCH = [
    (SGD, torch.optim.SGD, dict(lr=0.01)),
    (SGD, torch.optim.SGD, dict(lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.1)),
    (SGD, torch.optim.SGD, dict(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)),
    (AdamW, torch.optim.AdamW, dict(lr=0.01)),
    (AdamW, torch.optim.AdamW, dict(lr=0.01, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1)),
]
EACH = pytest.mark.parametrize(("ours", "theirs", "how"), TORCH)

PAPERS = {
    "sgd": (SGD, dict(momentum=0.9, weight_decay=0.01), lambda: SGDPaper(0.9, 0.01)),
    "lars": (
        LARS,
        dict(momentum=0.9, weight_decay=0.0005, trust=0.02),
        lambda: LARSPaper(0.9, 0.0005, 0.02),
    ),
    "adamw": (
        AdamW,
        dict(eps=1e-8, weight_decay=0.1),
        lambda: LAMBPaper(eps=1e-8, decay=0.1, trust=False),
    ),
    "lamb": (LAMB, {}, LAMBPaper),
    "clamped": (
        LAMB,
        dict(betas=(0.8, 0.9), weight_decay=0.1, clamp=(0.5, 4.0)),
        lambda: LAMBPaper((0.8, 0.9), decay=0.1, phi=lambda z: min(max(z, 0.5), 4.0)),
    ),
}


def apart(a, b):
    """The largest |p − q|/(1 + |q|) between two lists of layers."""
    return largest(((p - q).abs() / (1 + q.abs())).max().item() for p, q in zip(a, b, strict=True))


@torch.no_grad()
def off_torch(ours, theirs, how, steps=12):
    """The same after every step, with a rate that changes, layers of zeros and layers without a gradient."""
    a = Layers()
    b = Layers()
    worst = 0.0
    mine, other = ours(a.parameters(), **how), theirs(b.parameters(), **how)
    rates = [torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)) for o in (mine, other)]
    for step in range(steps):
        for layers, optimizer, rate in zip((a, b), (mine, other), rates, strict=True):
            layers.backward(step)
            optimizer.step()
            rate.step()
        worst = max(worst, apart(a.parameters(), b.parameters()))
    return worst


@torch.no_grad()
def off_paper(name, steps=12):
    """The same, to the paper's algorithm on lists of floats."""
    cls, how, paper = PAPERS[name]
    layers = Layers()
    paper = paper()
    worst = 0.0
    optimizer = cls(layers.parameters(), lr=0.3, **how)
    lists = [p.reshape(-1).tolist() for p in layers.parameters()]
    done = [0] * len(lists)
    for step in range(steps):
        layers.backward(step)
        rate = optimizer.param_groups[0]["lr"] = 0.3 / (step + 1)
        for i, p in enumerate(layers.parameters()):
            if p.grad is not None:
                done[i] += 1
                paper.step(i, lists[i], p.grad.reshape(-1).tolist(), rate, done[i])
        optimizer.step()
        expected = [torch.tensor(x, dtype=torch.float64) for x in lists]
        worst = max(worst, apart([p.reshape(-1) for p in layers.parameters()], expected))
    return worst


@EACH
def test_as_torch(ours, theirs, how):
    assert off_torch(ours, theirs, how) < 1e-12


@pytest.mark.parametrize("name", PAPERS)
def test_as_the_paper(name):
    assert off_paper(name) < 1e-12


@EACH
@pytest.mark.parametrize("back", [False, True])
def test_states_go_over_to_torchs_class_and_back(ours, theirs, how, back):
    a, b = Layers(), Layers()
    first, then = (theirs, ours) if back else (ours, theirs)
    one, straight = first(a.parameters(), **how), theirs(b.parameters(), **how)
    for step in range(6):
        if step == 3:
            saved, one = one.state_dict(), then(a.parameters(), lr=5.0)
            one.load_state_dict(saved)
        for layers, optimizer in ((a, one), (b, straight)):
            layers.backward(step)
            optimizer.step()
    with torch.no_grad():
        assert apart(a.parameters(), b.parameters()) < 1e-12


def test_what_a_state_dict_does_not_say_stays():
    """torch's knows neither trust nor split, and ours of another run another split; rates are taken over."""
    made = net()
    theirs = torch.optim.AdamW(
        [dict(g, params=[p for _, p in g["params"]]) for g in groups(made)], lr=0.7
    )
    for group in theirs.param_groups:
        group.pop("trust", None)
        group.pop("split")
    ours = LAMB(groups(made), lr=0.1)
    ours.param_groups[0]["split"] = ("tensor",)
    for saved in (theirs.state_dict(), LAMB(groups(made), lr=0.7).state_dict()):
        ours.load_state_dict(saved)
        assert [g["trust"] for g in ours.param_groups] == [1.0, 0.0]
        assert [g["split"] for g in ours.param_groups] == [("tensor",), ()]
        assert [g["lr"] for g in ours.param_groups] == [0.7, 0.7]
    with pytest.raises(ValueError, match="number of parameter groups"):
        ours.load_state_dict(LAMB(made.parameters(), lr=0.7).state_dict())


def moved(cls, **how):
    layers = Layers()
    optimizer = cls(layers.parameters(), lr=0.1, **how)
    for step in range(3):
        layers.backward(step)
        optimizer.step()
    return layers, optimizer


@pytest.mark.parametrize(
    ("trusted", "plain", "how"),
    [
        (LARS, SGD, dict(momentum=0.9, weight_decay=0.1)),
        (LAMB, AdamW, dict(eps=1e-6, weight_decay=0.1)),
    ],
)
def test_without_trust_they_are_the_plain_ones_bit_for_bit(trusted, plain, how):
    off, own = moved(trusted, trust=0.0, **how), moved(plain, **how)
    assert all(map(torch.equal, off[0].parameters(), own[0].parameters()))
    assert off[1].ratios == {} and len(moved(trusted, **how)[1].ratios) == len(Layers.SHAPES)


def test_a_layers_step_is_a_part_of_its_length():
    """LARS without momentum: η·lr; LAMB: lr. Whatever the gradient's scale."""
    for cls, how, part in ((LARS, dict(momentum=0.0, trust=0.02), 0.3 * 0.02), (LAMB, {}, 0.3)):
        layers = Layers()
        before = [p.detach().clone() for p in layers.parameters()]
        layers.backward(0)
        cls(layers.parameters(), lr=0.3, **how).step()
        for i, (p, q) in enumerate(zip(layers.parameters(), before, strict=True)):
            if i != 3:
                assert ((p - q).norm() / q.norm()).item() == pytest.approx(part, rel=1e-9)


@pytest.mark.parametrize(
    ("wrong", "how"),
    [
        ("rate outside of the momentum", dict(trust=0.02)),
        ("no decay in the ratio", dict(trust=0.02, weight_decay=0.3)),
    ],
)
def test_another_lars_is_told_apart(wrong, how):
    """Public variants differ from the paper by more than rounding."""

    class Other(LARS):
        def _ratio(self, group, weights, gradient):
            return group["trust"] * weights / gradient

        def _apply(self, group, p, ratio):
            if wrong.startswith("rate"):
                p.grad = p.grad * super()._ratio(group, p.norm(), p.grad.norm())
                ratio = None
            super()._apply(group, p, ratio)

    runs = []
    for cls in (LARS, Other):
        layers = Layers()
        optimizer = cls(layers.parameters(), lr=1.0, **how)
        for step, rate in enumerate((1.0, 0.1)):
            layers.backward(step)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        runs.append(layers.all[0].detach())
    assert (runs[0] - runs[1]).abs().max() > 1e-3


def test_a_late_group_and_a_closure():
    layers = Layers()
    first, *rest = layers.parameters()
    optimizer = LAMB([first], lr=0.1)
    optimizer.add_param_group(dict(params=rest, lr=0.0, trust=0.0))
    layers.backward(0)
    before = [p.detach().clone() for p in rest]

    def closure():
        assert torch.is_grad_enabled()
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert all(map(torch.equal, rest, before)) and list(optimizer.ratios) == [first]


def test_a_copy_goes_on():
    layers, optimizer = moved(LAMB)
    other, copied = copy.deepcopy((layers, optimizer))
    for some, each in ((layers, optimizer), (other, copied)):
        some.backward(3)
        each.step()
    assert all(map(torch.equal, layers.parameters(), other.parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_of_half_precision_is_found_in_float32(dtype):
    # its squares and their sum are beyond fp16
    p = nn.Parameter(torch.full((300,), 1000.0, dtype=dtype))
    p.grad = torch.ones_like(p)
    optimizer = LAMB([p], lr=0.1, weight_decay=0.0)
    optimizer.step()
    assert float(optimizer.ratios[p]) == pytest.approx(1000.0, rel=2 * torch.finfo(dtype).eps)
    assert bool((p == 900).all())


def test_meta_tensors_have_no_values_and_need_none():
    for cls, how in ((LARS, {}), (LAMB, {}), (SGD, dict(momentum=0.9)), (AdamW, {})):
        p = nn.Parameter(torch.empty(3, 4, device="meta"))
        p.grad = torch.empty_like(p)
        cls([p], lr=0.1, **how).step()


@pytest.mark.parametrize(
    ("cls", "how", "words"),
    [
        (SGD, dict(lr=-1), "lr is not negative: it is -1"),
        (SGD, dict(nesterov=True), "momentum 0"),
        (LARS, dict(lr=1, trust=-0.5), "trust is not negative: it is -0.5"),
        (LAMB, dict(lr=1, betas=(0.9, 1.0)), r"\(0.9, 1.0\)"),
        (LAMB, dict(lr=1, clamp=(10, 1)), r"\(10, 1\)"),
        (AdamW, dict(eps=-1), "eps"),
    ],
)
def test_wrong_options(cls, how, words):
    with pytest.raises(ValueError, match=words):
        cls([nn.Parameter(torch.ones(2))], **how)


def test_what_is_refused_at_a_step():
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = AdamW([p])
    optimizer.load_state_dict(torch.optim.AdamW([p], amsgrad=True).state_dict())
    with pytest.raises(ValueError, match="amsgrad=True is not done here"):
        optimizer.step()
    with pytest.raises(ValueError, match=r"'tensor', but across=\{…\} names the ranks of \[\]"):
        LAMB([dict(params=[p], split=("tensor",))], lr=1).step()
    p.grad = torch.ones(3).to_sparse()
    with pytest.raises(ValueError, match="sparse"):
        SGD([p]).step()
