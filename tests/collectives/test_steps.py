"""The executor of pipelines, the number of pieces, and the formula of S steps."""

import pytest
import torch

from minidist.collectives import steps
from minidist.comm import World
from minidist.comm.base import Link, Recv, Send


def there(comm, count, length, numbers):
    """`count` messages of `length` bytes from rank 0 to rank 1, at steps `numbers(i)`; what was done, in order."""
    xs, seen = [torch.full((length,), i, dtype=torch.uint8) for i in range(count)], []
    into = [torch.empty(length, dtype=torch.uint8) for _ in xs]
    ops = [Send(x, 1) if comm.rank == 0 else Recv(y, 0) for x, y in zip(xs, into, strict=True)]

    def each():
        for i, op in enumerate(ops):
            seen.append(f"start {i}")
            yield numbers(i), [op], lambda i=i: seen.append(f"end {i}")

    steps.run(comm, each())
    return seen, comm.now(), [int(y[0]) for y in into] if comm.rank else None


def test_two_are_under_way():
    (seen, _, _), (same, _, values) = World(2).run(there, 4, 100, lambda i: i)
    assert (
        seen
        == same
        == ["start 0", "start 1", "start 2", "end 0", "start 3", "end 1", "end 2", "end 3"]
    )
    assert values == [0, 1, 2, 3]


def test_numbers_may_be_missing():
    """A step two later waits, whatever lies between."""
    seen = World(2).run(there, 3, 100, lambda i: 2 * i)[0][0]
    assert seen == ["start 0", "start 1", "end 0", "start 2", "end 1", "end 2"]


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0, 1e-9), (1e-7, 1e-9), (1e-6, 1e-9), (3e-6, 1e-9), (1e-6, 0)]
)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_seconds(count, alpha, beta):
    got = max(
        time for _, time, _ in World(2, alpha=alpha, beta=beta).run(there, count, 1000, lambda i: i)
    )
    assert got == pytest.approx(steps.seconds(count, Link(alpha, beta), 1000), rel=1e-12)


def test_nothing_takes_no_time():
    assert steps.seconds(0, Link(1, 1), 1) == 0


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("hops", [2, 5, 15, 63])
@pytest.mark.parametrize("alpha", [1e-6, 5e-6, 5e-5])
def test_no_other_number_of_pieces_is_much_better(nbytes, hops, alpha):
    link = Link(alpha, 1 / 50e9)

    def time(k):
        return (hops - 1) * (link.alpha + nbytes / k * link.beta) + steps.seconds(
            k, link, nbytes / k
        )

    most = -(-nbytes // steps.LEAST)
    best = min(time(k) for k in range(1, min(most, 3000) + 1))
    assert time(steps.pieces(hops, nbytes, link)) <= 1.03 * best


def test_pieces_at_the_ends():
    link = Link(5e-6, 1 / 50e9)
    assert steps.pieces(1, 1 << 30, link) == 1  # one link: nothing to overlap
    assert steps.pieces(9, 0, link) == steps.pieces(9, steps.LEAST, link) == 1
    assert steps.pieces(9, 10 * steps.LEAST, Link(0, 1e-9)) == 10
    assert steps.pieces(9, 1 << 20, Link(1e-6, 0)) == 1


def test_cut():
    assert [p.tolist() for p in steps.cut(torch.arange(5), 3)] == [[0, 1], [2, 3], [4]]
    assert [len(p) for p in steps.cut(torch.arange(2), 4)] == [1, 1, 0, 0]
