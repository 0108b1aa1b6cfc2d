"""One edge: several tensors a message, in any order of use, with no more posted than `ahead`."""

import pytest
import torch

from minidist.comm import World, launch
from minidist.parallel.pipeline.layout import layout
from minidist.parallel.pipeline.mail import Inbox, Local, Outbox

LABELS = {m: f"F{m}" for m in range(4)}


def message(m):
    return [torch.full((m + 1, 2), float(m)), torch.tensor(m)]


def exchange(comm, order, use, ahead, what="a"):
    """Rank 0 sends in one order, rank 1 takes in another; twice, the second time with what is known."""
    looks = {m: [layout(x, False) for x in message(m)] for m in order}
    if comm.rank == 0:
        box = Outbox(comm, what)
        for known in (None, looks):
            box.begin(known)
            for m in order:
                box.put(
                    m,
                    message(m),
                    [True, False] if what == "a" and known is None else [False, False],
                    LABELS[m],
                )
                if known is None:
                    looks[m] = box.known[m]
            box.end()
        return None
    box, found = Inbox(comm, what, ahead), []
    for step in range(2):
        box.begin(order, box.known if step else {} if what == "a" else looks, LABELS)
        for m in use:
            found.append(box.take(m))
            assert len(box.posted) <= max(ahead, len(order))
        box.end()
    return found


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("use", [[0, 2, 1, 3], [3, 1, 2, 0]])
def test_messages_come_whole_in_any_order_of_use(use, ahead):
    found = World(2).run(exchange, [0, 2, 1, 3], use, ahead, "g")[1]
    for m, tensors in zip(use * 2, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, message(m), strict=True))


def test_gradients_wanted_are_told():
    """Only float tensors that want one collect it."""

    def program(comm):
        if comm.rank == 0:
            box = Outbox(comm, "a")
            box.begin(None)
            box.put(0, message(0), [True, False], "F0")
            box.end()
            return None
        box = Inbox(comm, "a", 1)
        box.begin([0], {}, LABELS)
        return [(x.requires_grad, x.is_leaf) for x in box.take(0)]

    assert World(2).run(program)[1] == [(True, True), (False, True)]
    assert launch(program, 2)[1] == [(True, True), (False, True)]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_so_many_receives_are_posted_ahead(ahead):
    def program(comm):
        if comm.rank == 0:
            box = Outbox(comm, "g")
            box.begin(None)
            for m in range(4):
                box.put(m, [torch.zeros(2)], [False], LABELS[m])
            box.end()
            return None
        box, posted = Inbox(comm, "g", ahead), []
        box.begin(range(4), {m: [layout(torch.zeros(2))] for m in range(4)}, LABELS)
        for m in range(4):
            posted.append(len(box.posted))
            box.take(m)
        return posted

    assert World(2).run(program)[1] == [min(ahead, 4 - m) for m in range(4)]


@pytest.mark.parametrize("what", ["a", "g"])
def test_a_send_is_started_and_not_waited_for(what):
    """The receiver posts none of its receives before the sender has put all messages."""

    def program(comm):
        aside = comm.split(0)
        looks = {m: [layout(torch.zeros(2))] for m in range(4)}
        if comm.rank == 0:
            box = Outbox(comm, what)
            box.begin(looks)
            for m in range(4):
                box.put(m, [torch.full((2,), float(m))], [False], LABELS[m])
            aside.send(torch.zeros(1), 1)
            return box.end()
        aside.recv(torch.zeros(1), 0)
        box = Inbox(comm, what, 0)
        box.begin(range(4), looks, LABELS)
        return [box.take(m)[0].tolist() for m in range(4)]

    assert World(2).run(program)[1] == [[m, m] for m in range(4)]


def test_a_receive_is_posted_when_its_layout_becomes_known():
    def program(comm):
        if comm.rank == 0:
            box = Outbox(comm, "g")
            box.begin(None)
            box.put(0, [torch.ones(2)], [False], "F0")
            return box.end()
        box = Inbox(comm, "g", 1)
        box.begin([0], {}, LABELS)
        before = len(box.posted)
        box.expect(0, [layout(torch.zeros(2))])
        return before, len(box.posted), box.take(0)[0].tolist()

    assert World(2).run(program)[1] == (0, 1, [1.0, 1.0])


def test_another_layout_than_the_one_known():
    def put(comm):
        box = Outbox(comm, "a")
        box.begin({0: [layout(torch.zeros(3))]})
        box.put(0, [torch.zeros(2)], [False], "F0")

    def expect(comm):
        box = Inbox(comm, "g", 0)
        box.begin([0], {0: [layout(torch.zeros(3))]}, LABELS)
        box.expect(0, [layout(torch.zeros(2))])

    for program in (put, expect):
        with pytest.raises(ValueError, match=r"F0 .*\(2,\) float32, but .*\(3,\) float32.* forget"):
            World(2).run(program)


def test_an_empty_message_is_none():
    def program(comm):
        box = Outbox(comm, "g") if comm.rank == 0 else Inbox(comm, "g", 1)
        if comm.rank == 0:
            box.begin(None)
            box.put(0, [], [], "B0")
            return box.end()
        box.begin([0], {0: []}, LABELS)
        return box.take(0)

    results = World(2).run(program)
    assert results[1] == [] and results.trace.messages() == 0


def test_within_a_stage():
    box = Local()
    box.begin(None)
    x = torch.ones(2, requires_grad=True) * 2
    box.put(3, [x, torch.tensor(1)], [True, False], "F3")
    box.expect(3, [])
    y, row = box.take(3)
    assert y.is_leaf and y.requires_grad and not row.requires_grad and torch.equal(x, y)
    with pytest.raises(KeyError):
        box.take(3)
