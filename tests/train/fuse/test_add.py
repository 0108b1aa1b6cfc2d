import pytest
import torch

from minidist.train.fuse import add3, add3_plain
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work

N = 1000


def plain(a, b, c):
    return a + b + c


def test_equals_two_additions():
    assert_same(add3, plain, randoms((3, 5), (3, 5), (3, 5)))
    assert_same(add3_plain, plain, randoms((3, 5), (3, 5), (3, 5)))
    a, b, c = randoms((4, 6), (6, 4), (4, 6))
    assert_same(lambda a, b, c: add3(a, b.t(), c), lambda a, b, c: a + b.t() + c, (a, b, c))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounds_once(dtype):
    a, b, c = randoms((500,), (500,), (500,), dtype=dtype)
    exact = (a.double() + b.double() + c.double()).to(dtype)
    assert torch.equal(add3(a, b, c), exact)
    assert not torch.equal(a + b + c, exact)


def test_wide():
    assert_wide(add3, plain, randoms((50,), (50,), (50,), dtype=torch.float16))


def test_the_gradient():
    assert torch.autograd.gradcheck(
        add3, [x.requires_grad_() for x in randoms((2, 3), (2, 3), (2, 3))]
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_and_bytes(device):
    dy, *inputs = (torch.ones(N, device=device) for _ in range(4))
    for x in inputs:
        x.requires_grad_()
    mine, theirs = work(both(add3), dy, *inputs), work(both(plain), dy, *inputs)
    assert mine[0] == (1, 4 * N * 4)
    assert theirs[0] == (2, 6 * N * 4)
    assert mine[1] == theirs[1] == (0, 0)


@pytest.mark.parametrize(
    "other", [torch.ones(4), torch.ones(3).half(), torch.ones(3, device="meta")]
)
def test_others_are_refused(other):
    with pytest.raises(ValueError, match="c must be as a"):
        add3(torch.ones(3), torch.ones(3), other)
