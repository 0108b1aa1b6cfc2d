"""A fiber's thread stays on one core and wakes without interrupting."""

import os
import threading

from minidist.comm import World
from minidist.comm.world.cores import core, stay


def test_a_thread_stays_and_its_process_does_not():
    if not hasattr(os, "sched_getaffinity"):  # macOS has no such choice
        assert core() is None
        return
    allowed, found = os.sched_getaffinity(0), {}

    def body():
        stay(core())
        found.update(cores=os.sched_getaffinity(0), policy=os.sched_getscheduler(0))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert len(found["cores"]) == 1 and found["cores"] <= allowed
    assert found["policy"] == os.SCHED_BATCH
    assert os.sched_getaffinity(0) == allowed and os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_fiber_that_computes_keeps_all_cores():
    if not hasattr(os, "sched_getaffinity"):
        return
    look = lambda comm: (os.sched_getaffinity(0), os.sched_getscheduler(0))
    assert World(2).run(look) == [(os.sched_getaffinity(0), os.SCHED_BATCH)] * 2
    assert all(len(cores) == 1 for cores, _ in World(2, device="meta").run(look))
