import pytest
import torch

from minidist.train.fuse import softmax, softmax_plain
from minidist.train.fuse.online import PART, merge, normalizer
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work


def torchs(x):
    return x.softmax(-1)


@pytest.mark.parametrize("shape", [(3, 5, 7), (7,), (0, 7), (4, 1), (2, PART + 5)])
@pytest.mark.parametrize("ours", [softmax, softmax_plain])
def test_equals_torch(ours, shape):
    assert_same(ours, torchs, randoms(shape))


@pytest.mark.parametrize("part", [1, 3, 10, 64])
def test_parts_of_any_size_give_one_normalizer(part):
    (x,) = randoms((6, 10))
    x[1] += torch.arange(10) * 100.0  # each part has a larger peak than those before
    x[2] -= torch.arange(10) * 100.0
    m, s = normalizer(x, part)
    assert torch.equal(m, x.amax(-1))
    torch.testing.assert_close(m + s.log(), x.logsumexp(-1), rtol=1e-13, atol=1e-13)


def test_merging_by_hand():
    m, s = merge(torch.tensor([[0.0, 1.0]]), torch.tensor([3.0]), torch.tensor([2.0]))
    assert m.item() == 3
    assert s.item() == pytest.approx(2 + 2.718281828**-3 + 2.718281828**-2)


def test_nothing_overflows_and_infinities_are_torchs():
    x = torch.tensor(
        [[1e4, -1e4, 0.0], [-torch.inf, 0.0, 1.0], [-torch.inf] * 3, [0.0, torch.inf, 1.0]]
    )
    torch.testing.assert_close(softmax(x), x.softmax(-1), equal_nan=True)


def test_a_first_part_of_minus_infinity():
    x = torch.zeros(1, PART + 3)
    x[:, :PART] = -torch.inf
    torch.testing.assert_close(softmax(x), x.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(dtype):
    assert_wide(softmax, torchs, randoms((20, 300), dtype=dtype))


def test_the_gradient():
    assert torch.autograd.gradcheck(softmax, [x.requires_grad_() for x in randoms((3, 4))])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_and_bytes(device):
    rows, V = 20, 50
    N = rows * V
    dy, x = (
        torch.ones(rows, V, device=device),
        torch.ones(rows, V, device=device, requires_grad=True),
    )
    mine, plain = work(both(softmax), dy, x), work(both(softmax_plain), dy, x)
    assert mine[0] == (1, 4 * 3 * N)
    assert plain[0] == (5, 4 * (8 * N + 4 * rows))
    assert mine[1][1] == 4 * 5 * N and mine[1][0] == 1
    assert plain[1][0] > 5 and plain[1][1] > 2 * mine[1][1]


def test_wrong_inputs_are_refused():
    for x in (torch.tensor(1.0), torch.ones(3).long(), torch.ones(3, 0)):
        with pytest.raises(ValueError, match="x must be"):
            softmax(x)
