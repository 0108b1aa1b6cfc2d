"""Jobs on threads of a rank."""

import threading

import pytest

from minidist.comm.lanes import ThreadLane


def test_jobs_run_in_their_order_beside_the_caller():
    unwaited = {}
    go = threading.Event()
    log = []
    lane = ThreadLane("the comm", "lane 0", unwaited)

    def job(comm, i):
        go.wait(5)
        log.append((comm, i, threading.current_thread() is not threading.main_thread()))
        return 10 * i

    works = [lane.put(job, (i,)) for i in range(4)]
    assert not works[0].done() and len(unwaited) == 4
    go.set()
    assert [w.wait() for w in works] == [0, 10, 20, 30]
    assert log == [("the comm", i, True) for i in range(4)]
    assert all(w.done() for w in works) and not unwaited


def test_an_exception_is_raised_by_wait_and_the_lane_goes_on():
    lane = ThreadLane(None, "lane 0", unwaited := {})
    failed, fine = lane.put(lambda comm: 1 / 0, ()), lane.put(lambda comm: 3, ())
    assert fine.wait() == 3 and failed.done() and list(unwaited) == [failed]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failed.wait()


def test_two_lanes_run_side_by_side():
    barrier = threading.Barrier(2, timeout=5)
    works = [
        ThreadLane(None, f"lane {i}", {}).put(lambda comm: barrier.wait(), ()) for i in range(2)
    ]
    assert sorted(w.wait() for w in works) == [0, 1]
