"""The library's own collectives over gloo, on every kind of Comm: whole, reordered, partial, a lane's."""

import functools

import pytest
import torch

from minidist.comm import World, launch


def chunks(lengths, fill):
    return [torch.full((length,), float(fill(i))) for i, length in enumerate(lengths)]


def values(xs):
    return [x.tolist() for x in xs]


def collectives(comm, lengths):
    """Every collective on chunks of `lengths`, checked against what it should give; returns how many there were."""
    n = comm.size
    r = comm.rank
    native = comm.native
    lengths = lengths[:n]
    root = n - 1
    total = n * (n + 1) // 2
    x = torch.full((3,), float(r))
    native.broadcast(x, root)
    assert x.tolist() == [root] * 3
    x = torch.full((2,), r + 1.0)
    native.reduce(x, root, "sum")
    assert x.tolist() == [total if r == root else r + 1.0] * 2  # the others keep theirs
    for op, expected in [("sum", total), ("mean", total), ("min", 1), ("max", n)]:
        x = torch.full((2,), r + 1.0)
        native.all_reduce(x, op)
        assert x.tolist() == [expected] * 2
    x = torch.tensor([r + 1])
    native.all_reduce(x, "prod")
    assert x.item() == functools.reduce(int.__mul__, range(1, n + 1))

    cs = chunks(lengths, lambda i: 10 * r + i)
    native.reduce_scatter(cs, "sum")
    assert cs[r].tolist() == [sum(10.0 * q + r for q in range(n))] * lengths[r]
    cs = chunks(lengths, lambda i: r if i == r else -1)
    native.all_gather(cs)
    assert values(cs) == values(chunks(lengths, lambda i: i))
    cs = chunks(lengths, lambda i: r if i == r else -1)
    native.gather(cs, root)
    assert values(cs) == values(chunks(lengths, lambda i: i if r == root or i == r else -1))
    cs = chunks(lengths, lambda i: i if r == root else -1)
    native.scatter(cs, root)
    assert cs[r].tolist() == [r] * lengths[r]
    # rank q sends to rank i as much as lengths[i] says
    into = chunks([lengths[r]] * n, lambda i: -1)
    native.all_to_all(into, chunks(lengths, lambda i: 10 * r + i))
    assert values(into) == values(chunks([lengths[r]] * n, lambda q: 10 * q + r))
    native.barrier()
    return 11


def kinds(comm):
    """On the whole Comm, on one of the reverse order, on a part of it in reverse order."""
    reverse = comm.split(0, key=-comm.rank)
    part = comm.split(0 if comm.rank else None, key=-comm.rank)
    done = [
        collectives(c, lengths)
        for c in (comm, reverse, part)
        if c is not None
        for lengths in ([2, 0, 5], [4, 4, 4], [0, 0, 0])
    ]
    return sum(done)


def test_every_collective_on_every_kind_of_comm():
    assert launch(kinds, 3, transport="gloo") == [66, 99, 99]


def test_lanes_have_a_group_of_their_own():
    """Lanes and the program use the library at once, on different ranks in different orders."""

    def program(comm):
        def job(lane, k):
            for _ in range(50):
                x = torch.full((1,), float(k))
                lane.native.all_reduce(x, "sum")
                assert x.item() == 2 * k, (x, k)
            return lane.native._group is not comm.native._group

        works = [comm.stream(job, k, lane=k) for k in (1, 2)]
        job(comm, 3)
        return [w.wait() for w in works]

    assert launch(program, 2, transport="gloo") == [[True, True]] * 2


@pytest.mark.parametrize("runner", [lambda p: World(1).run(p), lambda p: launch(p, 1)])
def test_only_torch_transports_have_it(runner):
    assert runner(lambda comm: comm.native) == [None]
