import pytest
import torch
import torch.nn.functional as F

from minidist.study.meter import measure
from minidist.train.fuse import layer_norm, layer_norm_plain
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work

ROWS, H = 24, 40
N = ROWS * H


def torchs(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


@pytest.mark.parametrize("shape", [(3, 5, 7), (7,), (0, 7), (4, 1)])
@pytest.mark.parametrize("ours", [layer_norm, layer_norm_plain])
def test_equals_torch(ours, shape):
    assert_same(ours, torchs, randoms(shape, shape[-1:], shape[-1:]))


def test_epsilon():
    x, w, b = randoms((4, 6), (6,), (6,))
    assert_same(
        lambda *a: layer_norm(*a, eps=0.3),
        lambda x, w, b: F.layer_norm(x, (6,), w, b, 0.3),
        (x, w, b),
    )


def test_a_large_mean_costs_no_digits():
    x, w, b = randoms((4, 64), (64,), (64,))
    found = layer_norm((x + 1e4).float(), w.float(), b.float())
    torch.testing.assert_close(
        found.double(), torchs((x + 1e4).float().double(), w, b), rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(dtype):
    assert_wide(layer_norm, torchs, randoms((600, 16), (16,), (16,), dtype=dtype))


def test_the_gradient():
    assert torch.autograd.gradcheck(
        layer_norm, [x.requires_grad_() for x in randoms((3, 4), (4,), (4,))]
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_and_bytes(device):
    dy, x, w, b = (torch.ones(s, device=device) for s in ((ROWS, H), (ROWS, H), (H,), (H,)))
    inputs = [t.requires_grad_() for t in (x, w, b)]
    (calls, nbytes), backward = work(both(layer_norm), dy, *inputs)
    assert (calls, nbytes) == (1, 4 * (2 * N + 2 * H + 2 * ROWS))
    profile = measure(both(layer_norm), dy, *inputs)
    assert profile.by_operator["layer_norm_backward"][:3] == (1, 0, 4 * (3 * N + 3 * H + 2 * ROWS))
    plain = work(both(layer_norm_plain), dy, *inputs)
    assert plain[0][0] == 9 and plain[0][1] > 5 * nbytes
    assert plain[1][0] > 3 * backward[0] and plain[1][1] > 3 * backward[1]


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match=r"weight must be \(3,\)"):
        layer_norm(torch.ones(2, 3), torch.ones(2), torch.ones(3))
