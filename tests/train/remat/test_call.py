"""A call and its repetition."""

import weakref

import torch

from minidist.train.remat.call import Call


def test_operands_of_all_kinds_and_the_repetition():
    def fn(a, pair, *, scale, name):
        assert name == "n"
        return a * pair[0] + pair[1] * scale + torch.rand(3)

    a, b, c = (torch.full((3,), float(i), requires_grad=i == 1) for i in (1, 2, 3))
    torch.manual_seed(0)
    with torch.no_grad():
        call = Call(fn, (a, [b, c]), dict(scale=4, name="n"))
        assert [id(x) for x in call.tensors] == [id(a), id(b), id(c)]
        first = call.first()
    assert call.tensors == [] and not first.requires_grad
    again = call.again([a, b, c])
    assert torch.equal(again, first) and again.requires_grad
    assert torch.allclose(call.again([a, b, c + 1]), first + 4)


def test_operands_go_once_it_was_made():
    """The call stays for its repetition; who gives operands then has kept them."""
    operands = [torch.ones(3) for _ in range(3)]
    seen = [weakref.ref(x) for x in operands]
    call = Call(lambda a, pair: a + pair[0] + pair[1], (operands[0], operands[1:]), {})
    call.first()
    operands.clear()
    assert [x() for x in seen] == [None] * 3
    assert call.again([torch.ones(3)] * 3).tolist() == [3, 3, 3]
