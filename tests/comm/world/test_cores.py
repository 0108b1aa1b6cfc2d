"""A fiber's thread stays on one core and wakes without interrupting."""

import os
import threading

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
