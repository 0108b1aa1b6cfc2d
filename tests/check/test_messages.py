"""Lesson 02: other right ways pass, and what is right only for some sizes, ranks or numbers does not.

The usual mistakes are in course/02_messages/bugs, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

from minidist import check
from minidist.check import Wrong
from tests.bank.bank import solved
from tests.check.examined import accepted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def test_shift_with_two_works():
    def shift(comm, x):
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

    with pytest.raises(Wrong, match="deadlock"):  # a receive posted first holds the send back, as on an NCCL stream
        check.shift(shift)


def tree(comm, x, root):
    n, r, reach = comm.size, (comm.rank - root) % comm.size, 1
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
            got = comm.sendrecv(chunks[(r - 1 - step) % n].clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
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
    lambda comm, x: x.numel() in (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 15, 64, 1000),  # what one can read in the grader
    lambda comm, x: comm.size < 5, lambda comm, x: x.numel() % comm.size == 0, lambda comm, x: x.dim() == 1,
    lambda comm, x: x.numel() >= comm.size, lambda comm, x: x.dtype != torch.int64, lambda comm, x: comm.rank < 4,
    lambda comm, x: type(comm).__name__ == "WorldComm", lambda comm, x: comm.size > 1 or x.zero_() is None,
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
