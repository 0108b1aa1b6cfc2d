import pytest
import torch
import torch.nn.functional as F

from minidist.study.meter import measure
from minidist.train.fuse import cross_entropy, cross_entropy_plain
from minidist.train.fuse.online import PART
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work

TOKENS, V = 24, 50
N = TOKENS * V


def targets_of(tokens, vocab, seed=3):
    return torch.randint(0, vocab, (tokens,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("vocab", [1, 7, PART + 5])
def test_equals_torch(reduction, vocab):
    x, targets = *randoms((5, vocab)), targets_of(5, vocab)
    targets[3] = -100
    assert_same(
        lambda x: cross_entropy(x, targets, reduction),
        lambda x: F.cross_entropy(x, targets, reduction=reduction),
        (x,),
    )


def test_equals_the_written_one():
    targets = targets_of(TOKENS, V)
    assert_same(
        lambda x: cross_entropy(x, targets, "none"),
        lambda x: cross_entropy_plain(x, targets),
        randoms((TOKENS, V)),
    )


def test_more_dimensions_and_another_index_to_ignore():
    x, targets = *randoms((2, 3, V)), targets_of(6, V).view(2, 3)
    targets[1, 1] = 7
    assert_same(
        lambda x: cross_entropy(x, targets, ignore_index=7),
        lambda x: F.cross_entropy(x.flatten(0, 1), targets.flatten(), ignore_index=7),
        (x,),
    )


def test_all_ignored():
    x, targets = torch.ones(3, V, requires_grad=True), torch.full((3,), -100)
    assert cross_entropy(x, targets).isnan()
    cross_entropy(x, targets, "sum").backward()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(dtype):
    targets = targets_of(TOKENS, 300)
    (x,) = randoms((TOKENS, 300), dtype=dtype)
    assert cross_entropy(x, targets).dtype == torch.float32
    assert_wide(
        lambda x: cross_entropy(x, targets, "none"),
        lambda x: F.cross_entropy(x, targets, reduction="none"),
        (x,),
    )


def test_a_sure_hit_has_a_gradient_in_fp16():
    """exp(x − lse) − 1 of a probability near 1 is formed in float32: in fp16 1 − 1e-4 is 1."""
    x = torch.tensor([[9.0, 0.0]], dtype=torch.float16, requires_grad=True)
    cross_entropy(x, torch.tensor([0]), "sum").backward()
    assert x.grad[0, 0].item() == pytest.approx(-1.234e-4, rel=1e-2)


def test_the_gradient():
    targets = torch.tensor([0, 3, -100])
    for reduction in ("mean", "none"):
        assert torch.autograd.gradcheck(
            lambda x, r=reduction: cross_entropy(x, targets, r),
            [x.requires_grad_() for x in randoms((3, 4))],
        )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_and_bytes(device):
    x, targets = (
        torch.ones(TOKENS, V, device=device, requires_grad=True),
        torch.ones(TOKENS, device=device).long(),
    )
    dy = torch.ones(TOKENS, device=device)
    mine = work(both(lambda x: cross_entropy(x, targets, "none")), dy, x)
    plain = work(both(lambda x: cross_entropy_plain(x, targets)), dy, x)
    assert mine[0] == (1, 4 * N + 8 * TOKENS + 2 * 4 * TOKENS)
    assert mine[1] == (1, 4 * 2 * N + 8 * TOKENS + 2 * 4 * TOKENS)
    assert plain[0][0] == 7 and plain[0][1] > 5 * mine[0][1]
    assert plain[1][0] > 5 and plain[1][1] > 3 * mine[1][1]


def test_no_second_tensor_of_all_logits_is_kept():
    x, targets = torch.ones(TOKENS, V, requires_grad=True), targets_of(TOKENS, V)
    kept = lambda loss: sum(measure(lambda: loss(x, targets)).timeline.at(float("inf")).values())
    assert kept(cross_entropy) < 4 * N + 30 * TOKENS
    assert kept(F.cross_entropy) >= 4 * 2 * N


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="'max'"):
        cross_entropy(torch.ones(2, 3), torch.zeros(2).long(), "max")
    for targets in (torch.zeros(3).long(), torch.zeros(2)):
        with pytest.raises(ValueError, match="want targets"):
            cross_entropy(torch.ones(2, 3), targets)
    with pytest.raises(RuntimeError):
        cross_entropy(torch.ones(2, 3), torch.tensor([0, 3]))
