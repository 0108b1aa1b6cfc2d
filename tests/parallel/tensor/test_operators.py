"""Each operator is linear, its backward is its transpose, and the backward of that is itself again."""

import pytest
import torch

from minidist.comm import World
from minidist.parallel.tensor import (
    copy_to,
    gather_from,
    gather_sequence,
    reduce_from,
    reduce_scatter_sequence,
    scatter_to,
)
from minidist.split import uneven
from tests.largest import largest
from tests.parallel.tensor.cases import EVERYWHERE, RUNS, data

F = 11  # no n divides it
OPERATORS = {  # what goes in, what comes out: "whole", "split" or "partial"
    copy_to: ("whole", "partial"),  # each rank uses it for its own part
    reduce_from: ("partial", "whole"),
    scatter_to: ("whole", "split"),
    gather_from: ("split", "whole"),
    gather_sequence: ("split", "partial"),
    reduce_scatter_sequence: ("partial", "split"),
}


def sample(kind, comm, dim, seed):
    """This rank's (3, 11, 2) of a tensor of that kind, or its part of it."""
    x = data(3, F, 2, seed=seed + (100 * (comm.rank + 1) if kind == "partial" else 0)).transpose(
        1, dim
    )
    return x.split(uneven(F, comm.size), dim)[comm.rank].clone() if kind == "split" else x


def inner(x, y, kind):
    """This rank's part of the inner product; what is whole counts once, on the first rank."""
    return (x * y).sum().item(), kind


def every_operator(comm):
    """{operator, dim: (⟨A·x, y⟩, ⟨x, Aᵀ·y⟩, ⟨x, backward of the backward⟩ of this rank)}."""
    results = {}
    for operator, (before, after) in OPERATORS.items():
        for dim in (0, 1, 2):
            along = () if operator in (copy_to, reduce_from) else (dim, uneven(F, comm.size))
            x = sample(before, comm, dim, 0).requires_grad_()
            y = sample(after, comm, dim, 1).requires_grad_()
            kept = x.detach().clone()
            out = operator(x, comm, *along)
            assert out.shape == y.shape and torch.equal(x, kept)
            (back,) = torch.autograd.grad(out, x, y, create_graph=True)
            (twice,) = torch.autograd.grad(back, y, x.detach())
            results[operator.__name__, dim] = (
                inner(out, y, after),
                inner(x, back, before),
                inner(twice, y, after),
            )
    return results


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_backward_is_the_transpose(run, n):
    ranks = RUNS[run](n, every_operator)
    for case in ranks[0]:
        sums = [
            sum(
                of_rank[case][i][0]
                for of_rank in ranks[: 1 if ranks[0][case][i][1] == "whole" else n]
            )
            for i in range(3)
        ]
        assert max(sums) - min(sums) < 1e-12 * largest(1, abs(sums[0])), (case, sums)


def test_forward():
    def program(comm):
        x = data(4, 6) + comm.rank
        return (
            copy_to(x, comm),
            reduce_from(x, comm),
            scatter_to(x, comm),
            gather_from(x, comm, 0),
            gather_sequence(x, comm, 0),
            reduce_scatter_sequence(x, comm, 0),
        )

    a, b = data(4, 6), data(4, 6) + 1
    for rank, mine in enumerate(World(2).run(program)):
        own = (a, b)[rank]
        both = torch.cat([a, b])
        expected = (
            own,
            a + b,
            own[:, 3 * rank : 3 * rank + 3],
            both,
            both,
            (a + b)[2 * rank : 2 * rank + 2],
        )
        assert all(torch.equal(x, y) for x, y in zip(mine, expected, strict=True))


def test_messages():
    """Where an operator sends, its conjugate does not, and the two halves send half each."""

    def program(comm, operator, backward):
        x = data(4, 6).requires_grad_()
        y = operator(x, comm) if operator in (copy_to, reduce_from) else operator(x, comm, 0)
        if backward:
            y.sum().backward()

    whole, sent = 4 * 6 * 8, {}
    for operator in OPERATORS:
        forward, both = (
            World(2).run(program, operator, backward).trace.bytes_sent()
            for backward in (False, True)
        )
        sent[operator] = forward / whole, (both - forward) / whole
    # its x is a part
    assert sent == {
        copy_to: (0, 2),
        reduce_from: (2, 0),
        scatter_to: (0, 1),
        gather_from: (2, 0),
        gather_sequence: (2, 2),
        reduce_scatter_sequence: (1, 1),
    }


def test_lists_travel_together():
    def program(comm):
        xs = [data(3).requires_grad_(), data(2, 2, seed=1).requires_grad_()]
        ys = reduce_from(copy_to(xs, comm), comm)
        sum(y.sum() for y in ys).backward()
        return ys, [x.grad for x in xs]

    results = World(3).run(program)
    assert results.trace.messages(0) == 2 * 4  # two all-reduces, however many tensors
    ys, grads = results[1]
    assert torch.allclose(ys[1], 3 * data(2, 2, seed=1)) and torch.equal(
        grads[0], torch.full((3,), 3.0).double()
    )


def test_gradients_of_others_are_left_alone():
    """An incoming gradient may have other readers, later ones, too, so it must not be summed in place."""

    def program(comm):
        x, other = data(3).requires_grad_(), data(3).requires_grad_()
        later = other * 1  # its backward comes after that of what is made after it
        (copy_to(x, comm) + later).backward(torch.ones(3).double())
        return x.grad, other.grad

    for grad, others in World(2).run(program):
        assert grad.tolist() == [2, 2, 2] and others.tolist() == [1, 1, 1]


def test_operands_of_others_are_left_alone():
    def program(comm):
        x = data(3)
        return reduce_from(x, comm), x

    for total, x in World(2).run(program):
        assert torch.equal(x, data(3)) and torch.equal(total, 2 * data(3))


def test_a_part_does_not_hold_the_whole():
    def program(comm):
        x = data(4, 6).requires_grad_()
        y = gather_from(x, comm, 0)
        y.backward(torch.ones_like(y))
        parts = [scatter_to(x, comm, 0), reduce_scatter_sequence(x, comm, 0), x.grad]
        return [part.untyped_storage().nbytes() / (6 * 8) for part in parts]

    assert World(2).run(program) == [[2, 2, 4]] * 2


@pytest.mark.parametrize("operator", [scatter_to, reduce_scatter_sequence])
def test_sizes_that_do_not_fit(operator):
    with pytest.raises(
        ValueError, match="10 rows do not split over 4 ranks: 10 is not a multiple of 4"
    ):
        World(4).run(lambda comm: operator(data(3, 10, 2), comm, 1))
    with pytest.raises(ValueError, match="add up to 9, not to 10"):
        World(4).run(lambda comm: operator(data(3, 10, 2), comm, 1, [3, 2, 2, 2]))


def test_parts_that_differ_must_be_announced():
    with pytest.raises(ValueError, match=r"sends \(2,\) float64(.|\n)*receives \(3,\)"):
        World(2).run(lambda comm: gather_from(data(3 - comm.rank), comm))
