"""Lesson 14: other right ways pass, and what the graders reckon with agrees with runs and with the library.

The usual mistakes are in course/14_tensor/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import minicheck as check
from minicheck import Wrong
from minicheck.exam import ring_bytes
from minicheck.lessons.tensor import OTHER, predict_tensor, through
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import World
from minidist.parallel.tensor import RowFirstMLP
from minidist.study import predict
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


class Sum(Function):
    """f and g in one: which way sums is said."""

    @staticmethod
    def forward(ctx, x, comm, forward):
        ctx.comm, ctx.sums = comm, not forward
        return all_reduce_(comm, x.clone()) if forward else x

    @staticmethod
    def backward(ctx, grad):
        return Sum.apply(grad, ctx.comm, ctx.sums), None, None


def hooked(x, comm):
    y = x.view_as(x)
    y.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
    return y


class Halves(Function):
    """An all-reduce as a reduce-scatter and an all-gather of rows, padded."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        flat = F.pad(x.reshape(-1), (0, -x.numel() % comm.size))
        return all_gather(comm, reduce_scatter(comm, flat))[: x.numel()].reshape(x.shape)

    @staticmethod
    def backward(ctx, grad):
        return Sum.apply(grad, ctx.comm, False), None


def of_lists(f):
    """An f of lists, from one of a tensor: columns of a single row."""

    def answer(x, comm):
        if not isinstance(x, list):
            return f(x, comm)
        row = f(torch.cat([t.flatten() for t in x])[None], comm)
        columns = row.split([t.numel() for t in x], dim=1)
        return tuple(column.view_as(t) for column, t in zip(columns, x, strict=True))

    return answer


class Several(Function):
    """f of any number of tensors, in one Function."""

    @staticmethod
    def forward(ctx, comm, *xs):
        ctx.comm = comm
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    def backward(ctx, *grads):
        flat = all_reduce_(ctx.comm, torch.cat([grad.reshape(-1) for grad in grads]))
        pieces = flat.split([grad.numel() for grad in grads])
        return None, *(p.view(grad.shape) for p, grad in zip(pieces, grads, strict=True))


def several(x, comm):
    return Several.apply(comm, *x) if isinstance(x, list) else Several.apply(comm, x)[0]


@pytest.mark.parametrize(
    ("grader", "answer"),
    [
        (check.copy_to, several),
        (check.copy_to, of_lists(lambda x, comm: Sum.apply(x, comm, False))),
        (check.copy_to, of_lists(hooked)),
        (check.reduce_from, lambda x, comm: Halves.apply(x, comm)),
        (check.reduce_from, lambda x, comm: Sum.apply(x, comm, True)),
    ],
)
def test_other_ways_to_write_f_and_g(grader, answer, capsys):
    grader(answer)
    assert ": right." in capsys.readouterr().out


def test_other_ways_to_do_the_rest(capsys):
    def row_linear(x, weight, bias, comm):
        return torch.add(bias, Sum.apply(x @ weight.mT, comm, True))

    def mlp(x, fc, fc_bias, proj, proj_bias, comm):
        # the features in two pieces, one f for both
        one, half = Sum.apply(x, comm, False), len(fc) // 2
        some = [
            F.gelu(one @ fc[k].mT + fc_bias[k], approximate="tanh") @ proj[:, k].mT
            for k in (slice(half), slice(half, None))
        ]
        return Sum.apply(sum(some), comm, True) + proj_bias

    def my_heads(weight, heads, comm):
        if heads % comm.size:
            raise ValueError(f"{comm.size} ranks, {heads} heads")
        fused = weight.view(3, comm.size, -1, *weight.shape[1:])
        return fused[:, comm.rank].clone().flatten(0, 1)

    def sequence_norm(x, weight, bias, comm):
        both = Sum.apply(torch.stack([weight, bias]), comm, False)
        return F.layer_norm(x, weight.shape) * both[0] + both[1]

    check.row_linear(row_linear)
    check.mlp(mlp)
    check.my_heads(my_heads)
    check.sequence_norm(sequence_norm)
    assert capsys.readouterr().out.count(": right.") == 4


def test_what_is_right_for_two_ranks_only_is_not_right():
    with pytest.raises(Wrong, match="n = 3"):
        check.copy_to(lambda x, comm: Sum.apply(x, comm, False) if comm.size < 3 else x.view_as(x))
    with pytest.raises(Wrong, match="3 real processes"):
        check.reduce_from(lambda x, comm: Sum.apply(x, comm, "World" in type(comm).__name__))


def test_another_reader_is_taken_off_again():
    x, dy = torch.arange(3.0), torch.tensor([1.0, 5, 7])
    [comm] = World(1).run(lambda comm: comm)
    found = through(lambda x, comm: 2 * x, comm, [x], dy, beside=True)
    assert (
        found["grads"][0].tolist() == [2, 10, 14] and found["dy"].equal(dy) and not x.requires_grad
    )

    def sees_all(x, comm):
        x.register_hook(lambda grad: 3 * grad)
        return 2 * x

    assert through(sees_all, comm, [x], dy, beside=True)["grads"][0].tolist() == [
        2 * OTHER + k for k in (6, 30, 42)
    ]


PREDICTED = {
    "messages": 24,
    "nbytes": 402.65e6,
    "seconds": 1.4622e-3,
    "row_first": 503.32e6,
    "heads": 402.65e6,
    "sequence": 402.65e6,
    "weights": 402.65e6,
}
ASKED = (4, 1, 4096, 8192, 2, 5e-6, 1 / 300e9)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"messages": 12}, "two blocks"),
        ({"messages": 32}, "n−1 steps"),
        ({"nbytes": 268.4e6}, "2\\(n−1\\)"),
        ({"nbytes": 536.9e6}, "Nearly"),
        ({"seconds": 1.342e-3}, "α"),
        ({"row_first": 402.65e6}, "first sum"),
        ({"heads": 805.3e6}, "however many heads"),
        ({"sequence": 100.66e6}, "traffic is not"),
        ({"weights": 268.4e6}, "MLP alone"),
        ({"weights": 5}, "too small"),
        ({"weights": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(predict_tensor(*ASKED), PREDICTED | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(predict_tensor(*ASKED))


def test_the_predictions_are_what_the_library_sends():
    values, _ = predict_tensor(4, 2, 12, 16, 4, 5e-6, 1e-9)
    assert (
        values["nbytes"]
        == values["sequence"]
        == pytest.approx(sum(predict.tensor_layer_bytes(4, 2, 12, 16, 4)) / 4)
    )
    world = World(4, device="meta")
    world.run(lambda comm: RowFirstMLP(16, comm)(torch.empty(2, 12, 16, device="meta")).shape)
    assert values["row_first"] == pytest.approx(world.trace.bytes_sent(0))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_oracle_is_what_a_ring_sends(n):
    # where n does not divide, no rank has all of the larger chunks
    for size, exactly in ((6, True), (7, n == 1)):
        x, world = torch.ones(size, dtype=torch.float64), World(n)
        world.run(lambda comm, x: all_reduce_(comm, x), x)
        sent, most = max(world.trace.bytes_sent(r) for r in range(n)), ring_bytes([x], n)
        assert sent == most if exactly else most - 16 * n < sent <= most
