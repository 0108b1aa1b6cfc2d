"""A step is announced from stage to stage: its number, its M, its samples."""

import pytest
import torch

from minidist.comm import World
from minidist.parallel.pipeline.mail import Inbox, Local, Outbox
from minidist.parallel.pipeline.post import Post
from minidist.parallel.schedules import Shape


def parts(*sizes, width=2):
    return [(torch.zeros(size, width),) for size in sizes]


def announced(comm, steps):
    post = Post(comm, Shape(comm.size, 1), 1)
    return [post.announce(p if comm.rank == 0 else None, len(p)) for p in steps]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_same_kind_of_batch_has_the_same_number(n):
    steps = [parts(2, 2), parts(2, 1), parts(2, 2), parts(4), parts(2, 2, width=3), parts(2, 1)]
    results = World(n).run(announced, steps)
    assert list(results) == [[(0, 4), (1, 3), (0, 4), (2, 4), (3, 4), (1, 3)]] * n
    assert (
        results.trace.messages() == 6 * (n - 1) and results.trace.bytes_sent() == 6 * (n - 1) * 24
    )


def test_another_m():
    def program(comm):
        Post(comm, Shape(2, 1), 1).announce(parts(2, 2) if comm.rank == 0 else None, 2 + comm.rank)

    with pytest.raises(ValueError, match="stage 1 was given M = 3, but stage 0 M = 2"):
        World(2).run(program)


def test_forgotten_kinds_are_numbered_anew():
    def program(comm):
        post = Post(comm, Shape(comm.size, 1), 1)
        found = []
        for step in (parts(1), parts(2), parts(2)):
            found.append(post.announce(step if comm.rank == 0 else None, 1)[0])
            if len(found) == 2:
                post.forget()
        return found

    assert World(2).run(program) == [[0, 1, 0]] * 2


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        (Shape(2, 1), [[Outbox, Inbox], [Inbox, Outbox]]),
        (Shape(1, 1, 2), [[Local, Local]]),
        (
            Shape(2, 1, 2, "V"),
            [[Outbox, Inbox, Inbox, Outbox], [Inbox, Outbox, Local, Local, Outbox, Inbox]],
        ),
    ],
)
def test_boxes(shape, kinds):
    """Made without a message, each of remote ones on a channel of its own."""

    def program(comm):
        return [type(box) for box in Post(comm, shape, 1).boxes.values()]

    results = World(shape.S).run(program)
    assert [list(r) for r in results] == kinds and results.trace.messages() == 0
