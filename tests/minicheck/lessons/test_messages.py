"""Lesson 02: other right ways pass, and what is right only for some sizes, ranks or numbers does not.

The usual mistakes are in course/02_messages/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons import messages
from minicheck.lessons.messages import predict
from tests.bank.bank import solved
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def shift_posting(first, waits):
    """A shift that posts one side first, and waits in an order of its own."""

    def shift(comm, x):
        y, works = x.clone(), {}
        if comm.size == 1:
            return y
        for side in (first, "send" if first == "receive" else "receive"):
            if side == "send":
                works[side] = comm.isend(x, (comm.rank + 1) % comm.size)
            else:
                works[side] = comm.irecv(y, (comm.rank - 1) % comm.size)
        for side in waits:
            works[side].wait()
        return y

    return shift


def shift_one_begins(comm, x):
    """A receive that was posted first lets the blocking send pass."""
    y = x.clone()
    if comm.size > 1:
        coming = comm.irecv(y, (comm.rank - 1) % comm.size)
        if comm.rank == 0:
            comm.send(x, 1)
            coming.wait()
        else:
            coming.wait()
            comm.send(x, (comm.rank + 1) % comm.size)
    return y


def test_shift_with_two_works_in_any_order(capsys):
    orders = [("send", "receive"), ("receive", "send")]
    right = [shift_posting(first, waits) for first in ("send", "receive") for waits in orders] + [
        shift_one_begins
    ]
    assert accepted(check.shift, right) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out.count("shift: right.") == 5


def test_shift_whose_sends_wait():
    def shift(comm, x):
        y = x.clone()
        if comm.size > 1:
            comm.isend(x, (comm.rank + 1) % comm.size).wait()
            comm.recv(y, (comm.rank - 1) % comm.size)
        return y

    with pytest.raises(Wrong, match="none has posted the receive"):
        check.shift(shift)


def tree(comm, x, root):
    n = comm.size
    r = (comm.rank - root) % comm.size
    reach = 1
    while reach < n:
        if r < reach and r + reach < n:
            comm.send(x, (root + r + reach) % n)
        elif reach <= r < 2 * reach:
            comm.recv(x, (root + r - reach) % n)
        reach *= 2


def chain(comm, x, root):
    n, r = comm.size, (comm.rank - root) % comm.size
    if r > 0:
        comm.recv(x, (comm.rank - 1) % n)
    if r < n - 1:
        comm.send(x, (comm.rank + 1) % n)


def test_broadcast_as_a_tree_or_a_chain(capsys):
    assert accepted(check.broadcast, [tree, chain]) == [0, 1]
    assert capsys.readouterr().out.count("broadcast: right.") == 2


def test_no_numbers_no_messages(capsys):
    right = solved("02_messages")["all_reduce"]

    def all_reduce(comm, x):
        if x.numel():
            right(comm, x)

    check.all_reduce(all_reduce)
    assert "all_reduce: right." in capsys.readouterr().out


def test_all_reduce_in_one_loop(capsys):
    def all_reduce(comm, x):
        n, r = comm.size, comm.rank
        chunks = x.view(-1).tensor_split(n)
        for step in range(2 * (n - 1)):
            mine = chunks[(r - 2 - step) % n]
            got = comm.sendrecv(
                chunks[(r - 1 - step) % n].clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n
            )
            mine.copy_(mine + got if step < n - 1 else got)

    check.all_reduce(all_reduce)
    assert "all_reduce: right." in capsys.readouterr().out


def only_for(fits):
    """The solution where `fits(comm, x)`, else nothing but messages of the right size."""
    right = solved("02_messages")["all_reduce"]

    def all_reduce(comm, x):
        right(comm, x if fits(comm, x) else x.clone())

    return all_reduce


FITS = [
    # what one can read in the grader
    lambda comm, x: x.numel() in (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 15, 64, 1000),
    lambda comm, x: comm.size < 5,
    lambda comm, x: x.numel() % comm.size == 0,
    lambda comm, x: x.dim() == 1,
    lambda comm, x: x.numel() >= comm.size,
    lambda comm, x: x.dtype != torch.int64,
    lambda comm, x: comm.rank < 4,
    lambda comm, x: type(comm).__name__ == "WorldComm",
    lambda comm, x: comm.size > 1 or x.zero_() is None,
]


def test_right_for_some_only():
    assert accepted(check.all_reduce, map(only_for, FITS)) == []


def test_a_message_shows_the_learners_own_line():
    def shift(comm, x):
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
        "return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        """
y = torch.empty_like(x)
if r % 2 == 0 and not (n % 2 and r == n - 1):
    comm.send(x, (r + 1) % n)
    comm.recv(y, (r - 1) % n)
else:
    comm.recv(y, (r - 1) % n)
    comm.send(x, (r + 1) % n)
return y
""",
    ),
    (
        "reduce_scatter",
        "received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)",
        """
received = torch.empty_like(mine)
a, b = comm.isend(partial, (r + 1) % n), comm.irecv(received, (r - 1) % n)
b.wait()
a.wait()
""",
    ),
    (
        "all_gather",
        "comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        "comm.sendrecv(chunks[(r - step) % n].reshape(-1), (r + 1) % n, chunks[(r - step - 1) % n].reshape(-1), (r - 1) % n)",
    ),
    (
        "all_gather",
        "comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        """
b = comm.irecv(chunks[(r - step - 1) % n], (r - 1) % n)
a = comm.isend(chunks[(r - step) % n], (r + 1) % n)
b.wait()
a.wait()
""",
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
