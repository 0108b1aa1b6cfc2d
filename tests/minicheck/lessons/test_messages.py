"""Lesson 02: other right ways pass, and what is right only for some sizes, ranks or numbers does not.

The usual mistakes are in course/02_messages/bugs.py, which tests/bank examines.
"""

import sys
from itertools import pairwise

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons import messages
from minicheck.lessons.messages import predict
from minidist.comm import Recv, Send
from tests.bank.bank import solved
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def shift_posting(first, waits):
    """A shift that posts one side first, and waits in an order of its own."""

    def shift(comm, x, places):
        y, works = x.clone(), {}
        if places % comm.size == 0:
            return y
        for side in (first, "send" if first == "receive" else "receive"):
            if side == "send":
                works[side] = comm.isend(x, (comm.rank + places) % comm.size)
            else:
                works[side] = comm.irecv(y, (comm.rank - places) % comm.size)
        for side in waits:
            works[side].wait()
        return y

    return shift


def shift_receives_first(comm, x, places):
    """A receive that was posted first lets the blocking send pass."""
    y = x.clone()
    if places % comm.size:
        coming = comm.irecv(y, (comm.rank - places) % comm.size)
        comm.send(x, (comm.rank + places) % comm.size)
        coming.wait()
    return y


def test_shift_with_two_works_in_any_order(capsys):
    orders = [("send", "receive"), ("receive", "send")]
    right = [shift_posting(first, waits) for first in ("send", "receive") for waits in orders] + [
        shift_receives_first
    ]
    assert accepted(check.shift, right) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out.count("shift: right.") == 5


def test_shift_whose_sends_wait():
    def shift(comm, x, places):
        y = x.clone()
        if places % comm.size:
            comm.isend(x, (comm.rank + places) % comm.size).wait()
            comm.recv(y, (comm.rank - places) % comm.size)
        return y

    with pytest.raises(Wrong, match="none has posted the receive"):
        check.shift(shift)


def by_sendrecv(comm, x, root, m):
    """The ends of the line send or receive, and those between do both at once."""
    n, r = comm.size, comm.rank
    place = (r - root) % n
    flat = x.contiguous().view(-1)
    pieces = flat.tensor_split(m)
    if place > 0:
        comm.recv(pieces[0], (r - 1) % n)
    for sent, room in pairwise(pieces):
        if 0 < place < n - 1:
            comm.sendrecv(sent, (r + 1) % n, room, (r - 1) % n)
        elif place > 0:
            comm.recv(room, (r - 1) % n)
        elif n > 1:
            comm.send(sent, (r + 1) % n)
    if place < n - 1:
        comm.send(pieces[-1], (r + 1) % n)
    x.copy_(flat.view_as(x))


def without_empty_pieces(comm, x, root, m):
    if x.numel():
        by_sendrecv(comm, x, root, min(m, x.numel()))


def test_broadcast_by_sendrecv_and_without_empty_pieces(capsys):
    assert accepted(check.broadcast, [by_sendrecv, without_empty_pieces]) == [0, 1]
    assert capsys.readouterr().out.count("broadcast: right.") == 2


def test_no_numbers_no_messages(capsys):
    right = solved("02_messages")["all_reduce"]

    def all_reduce(comm, tensors):
        if any(x.numel() for x in tensors):
            right(comm, tensors)

    check.all_reduce(all_reduce)
    assert "all_reduce: right." in capsys.readouterr().out


def test_an_all_gather_that_sends_nothing_of_the_empty(capsys):
    def all_gather(comm, x):
        n, r = comm.size, comm.rank
        lengths = [len(x)]
        for _ in range(n - 1):
            said = torch.tensor([lengths[-1]])
            lengths.append(
                int(comm.sendrecv(said, (r + 1) % n, torch.empty_like(said), (r - 1) % n))
            )
        found = [torch.empty(length, dtype=x.dtype) for length in lengths]
        found[0].copy_(x)
        for sent, room in pairwise(found):
            ops = [Send(sent, (r + 1) % n)] if len(sent) else []
            ops += [Recv(room, (r - 1) % n)] if len(room) else []
            comm.batch(ops).wait()
        return tuple(found[(r - i) % n] for i in range(n))

    check.all_gather(all_gather)
    assert "all_gather: right." in capsys.readouterr().out


def test_all_reduce_in_one_loop(capsys):
    def all_reduce(comm, tensors):
        n, r = comm.size, comm.rank
        flat = torch.cat([x.reshape(-1) for x in tensors])
        chunks = flat.tensor_split(n)
        for step in range(2 * (n - 1)):
            mine = chunks[(r - 2 - step) % n]
            got = comm.sendrecv(
                chunks[(r - 1 - step) % n].clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n
            )
            mine.copy_(mine + got if step < n - 1 else got)
        for x in tensors:
            x.copy_(flat[: x.numel()].view_as(x))
            flat = flat[x.numel() :]

    check.all_reduce(all_reduce)
    assert "all_reduce: right." in capsys.readouterr().out


def only_for(fits):
    """The solution where `fits(comm, x)`, of all numbers; else messages of the right size, and zeros."""
    right = solved("02_messages")["all_reduce"]

    def all_reduce(comm, tensors):
        x = torch.cat([x.reshape(-1) for x in tensors])
        fitting = fits(comm, x) and (len(tensors) == 1 or fits is not FITS[-1])
        right(comm, tensors if fitting else [x])
        for own in [] if fitting else tensors:
            own.zero_()

    return all_reduce


FITS = [
    # what one can read in the grader
    lambda comm, x: x.numel() in (0, 1, 2, 5, 6, 7, 11, 20, 26, 1002),
    lambda comm, x: comm.size < 5,
    lambda comm, x: x.numel() % comm.size == 0,
    lambda comm, x: x.numel() >= comm.size,
    lambda comm, x: x.dtype != torch.int64,
    lambda comm, x: comm.rank < 4,
    lambda comm, x: type(comm).__name__ == "WorldComm",
    lambda comm, x: comm.size > 1,
    lambda comm, x: True,  # with one tensor only
]


def test_right_for_some_only():
    assert accepted(check.all_reduce, map(only_for, FITS)) == []


def test_a_message_shows_the_learners_own_line():
    def shift(comm, x, places):
        return comm.recv(torch.empty(3), (comm.rank + 1) % comm.size)

    with pytest.raises(Wrong, match=r"test_messages.py:\d+: return comm.recv"):
        check.shift(shift)


def test_a_notebook_shows_the_message_alone():
    assert Wrong("x is 3")._render_traceback_() == ["Wrong: x is 3"]


# ------------------------------------------------------------
# Predicted numbers: right within 1 %, and the usual slips are named.


RIGHT = {"messages": 14, "nbytes": 7e6, "naive_nbytes": 28e6, "seconds": 0.00021}
FACTS = predict(n=8, size=1_000_000, itemsize=4, alpha=5e-6, beta=1 / 50e9)


def test_right_numbers(capsys):
    check.predict(*RIGHT.values())
    assert capsys.readouterr().out == "predict: right. Messages, bytes and seconds, within 1 %.\n"
    judge(FACTS, RIGHT | {"nbytes": 7.05e6, "messages": 14.0}, None)
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"messages": 7}, "one half"),
        ({"messages": 16}, "n−1 steps"),
        ({"messages": 112}, "all ranks"),
        ({"messages": 1400}, "a ring for each tensor"),
        ({"seconds": 100 * 14 * 5e-6 + 7e6 / 50e9}, "a ring for each tensor"),
        ({"nbytes": 1.75e6}, "numbers"),
        ({"nbytes": 8e6}, "Nearly"),
        ({"nbytes": 56e6}, "one chunk"),
        ({"naive_nbytes": 32e6}, "itself"),
        ({"naive_nbytes": 56e6}, "receives"),
        ({"seconds": 0.00014}, "α"),
        ({"seconds": 7e-5}, "β"),
        ({"seconds": None}, "not set yet"),
        ({"messages": "14"}, "a number"),
        ({"messages": True}, "a number"),
        ({"nbytes": 7.2e6}, "too large"),
        ({"seconds": -1}, "not above zero"),
        ({"seconds": float("nan")}, "not above zero"),
        ({"messages": 10**400}, "too large"),
        ({"seconds": float("inf")}, "too large"),
        ({"nbytes": -(10**400)}, "not above zero"),
    ],
)
def test_wrong_numbers(numbers, says):
    judge(FACTS, RIGHT | numbers, says)


STYLES = [
    (
        "shift",
        "return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        """
y = torch.empty_like(x)
comm.batch([Recv(y, (r - places) % n), Send(x, (r + places) % n)]).wait()
return y
""",
    ),
    (
        "reduce_scatter",
        "received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)",
        """
received = torch.empty_like(mine)
a, b = comm.isend(partial, (r - 1) % n), comm.irecv(received, (r + 1) % n)
b.wait()
a.wait()
""",
    ),
    (
        "all_gather",
        "comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        "comm.sendrecv(parts[(r - k) % n].reshape(-1), (r + 1) % n, parts[(r - k - 1) % n].reshape(-1), (r - 1) % n)",
    ),
    (
        "all_gather",
        "comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        """
b = comm.irecv(parts[(r - k - 1) % n], (r - 1) % n)
a = comm.isend(parts[(r - k) % n], (r + 1) % n)
b.wait()
a.wait()
""",
    ),
    (
        "all_reduce",
        "flat = torch.cat([x.reshape(-1) for x in tensors])",
        "flat = torch.cat([x.flatten() for x in tensors], 0)",
    ),
    (
        "ring_sum",
        "received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        """
received = torch.empty_like(x)
w = comm.isend(passing, (r + 1) % n)
comm.recv(received, (r - 1) % n)
w.wait()
""",
    ),
    (
        "predict",
        """
n = 8
N = 4_000_000
alpha = 5e-6
beta = 1 / 50e9
messages = 2 * (n - 1)
nbytes = 2 * (n - 1) / n * N
seconds = messages * alpha + nbytes * beta
naive_nbytes = (n - 1) * N
""",
        """
n = 8
N = 4_000_000
alpha = 5e-6
beta = 1 / 50e9
messages = 2 * (n - 1)
nbytes = 2 * (n - 1) / n * N
seconds = messages * alpha + nbytes * beta
naive_nbytes = (n - 1) * N
from fractions import Fraction
nbytes, seconds = Fraction(nbytes), Fraction(seconds)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("02_messages", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(messages)
