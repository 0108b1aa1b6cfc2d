"""What runs in the notebook itself has a limit of time, whatever it does."""

import contextlib
import signal
import time

import pytest

import minicheck as check
from minicheck import Wrong
from minicheck.cells import Unasked
from minidist.comm import World, launch


def endless(comm=None):
    while True:
        pass


def deaf(comm=None):
    """Catches every Exception."""
    while True:
        with contextlib.suppress(Exception):
            endless()


def deafer(comm=None):
    """Catches whatever ends it, once."""
    try:
        endless()
    except BaseException:
        endless()


def in_a_world():
    World(3).run(endless)


def in_processes():
    launch(endless, 2)


@pytest.mark.parametrize("act", [endless, deaf, deafer, in_a_world, in_processes])
def test_what_does_not_end_is_ended(act):
    start = time.monotonic()
    with pytest.raises(Wrong, match=r"no end after 0\.3 s"), check.limit(0.3):
        act()
    assert time.monotonic() - start < 10
    assert World(2).run(lambda comm: comm.rank) == [0, 1]


def test_what_ends_in_time_is_left_alone():
    with check.limit(0.2):
        found = World(2).run(lambda comm: comm.rank)
    time.sleep(0.3)
    assert found == [0, 1] and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    with pytest.raises(ZeroDivisionError), check.limit(5):
        raise ZeroDivisionError
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_limit_around_goes_on_counting():
    with pytest.raises(Wrong, match=r"no end after 0\.5 s"), check.limit(0.5):
        with check.limit(30):
            time.sleep(0.1)
        assert 0.1 < signal.getitimer(signal.ITIMER_REAL)[0] < 0.45
        endless()


def test_a_limit_that_was_over_meanwhile_is_heard():
    with pytest.raises(Wrong, match=r"no end after 0\.1 s"), check.limit(0.1):
        with check.limit(30):
            time.sleep(0.3)
        endless()


def test_where_a_submission_runs_a_limit_is_a_context_that_does_nothing():
    with Unasked("minicheck").limit(5):
        pass
