import pytest
import torch
import torch.nn.functional as F

from minidist.study.meter import measure
from minidist.train.fuse import bias_gelu, bias_gelu_plain
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work

WAYS = pytest.mark.parametrize("way", ["none", "tanh"])
ROWS, H = 24, 40
N = ROWS * H


def pair(way):
    return lambda x, b: bias_gelu(x, b, way), lambda x, b: F.gelu(x + b, approximate=way)


@WAYS
@pytest.mark.parametrize("shape", [(3, 5, 7), (7,), (0, 7), (1, 1)])
def test_equals_torch(way, shape):
    inputs = randoms(shape, shape[-1:])
    assert_same(*pair(way), inputs)
    assert_same(lambda x, b: bias_gelu_plain(x, b, way == "tanh"), pair(way)[1], inputs)


@WAYS
def test_large_numbers(way):
    x = torch.tensor([[-1e3, -40.0, 0.0, 40.0, 1e3]], dtype=torch.float64)
    assert_same(*pair(way), (x, torch.zeros(5, dtype=torch.float64)))


@WAYS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(way, dtype):
    assert_wide(*pair(way), randoms((600, 5), (5,), dtype=dtype))


@WAYS
def test_the_gradient(way):
    assert torch.autograd.gradcheck(
        pair(way)[0], [x.requires_grad_() for x in randoms((2, 3), (3,))]
    )


@WAYS
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_and_bytes(way, device):
    dy, x, b = (torch.ones(s, device=device) for s in ((ROWS, H), (ROWS, H), (H,)))
    inputs = x.requires_grad_(), b.requires_grad_()
    mine, theirs = (work(both(fn), dy, *inputs) for fn in pair(way))
    assert mine[0] == (1, 4 * (2 * N + H))
    assert theirs[0] == (2, 4 * (4 * N + H))
    assert mine[1] == (1, 4 * (3 * N + 2 * H))
    # gelu_backward reads two and writes one; the sum for the bias reads one
    assert theirs[1] == (2, 4 * (4 * N + H))


def test_keeps_its_input_alone():
    x, b = torch.ones(ROWS, H, requires_grad=True), torch.ones(H, requires_grad=True)
    kept = measure(lambda: bias_gelu(x, b)).timeline.at(float("inf"))
    assert sum(kept.values()) == 4 * (2 * N + H)  # x, b and the result
    kept = measure(lambda: F.gelu(x + b)).timeline.at(float("inf"))
    assert sum(kept.values()) == 4 * (3 * N + H)


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="'erf'"):
        bias_gelu(torch.ones(2, 3), torch.ones(3), "erf")
    with pytest.raises(ValueError, match=r"bias must be \(3,\)"):
        bias_gelu(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="floating"):
        bias_gelu(torch.ones(2, 3).long(), torch.ones(3).long())
