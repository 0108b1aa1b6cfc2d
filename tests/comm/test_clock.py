"""The baton: one rank at a time, in virtual-time order, the same every time; and how a run ends."""

import os
import random
import threading
import time

import numpy as np
import pytest
import torch

from minidist.comm import ANY, Deadlock, World
from minidist.comm.clock import Clock, Ended, Generators, core, stay


def ring(comm, steps=3):
    x = torch.rand(4)
    for _ in range(steps):
        y = torch.empty(4)
        comm.sendrecv(x, (comm.rank + 1) % comm.size, y, (comm.rank - 1) % comm.size)
        x = y + torch.rand(4)
    return (
        x.tolist(),
        torch.randperm(10).tolist(),
        float(np.random.rand()),
        random.random(),
        comm.now(),
    )


def server(comm):
    """An order of events that real threads would not repeat."""
    if comm.rank:
        for _ in range(5):
            comm.send(torch.rand(1), 0)
            if comm.rank % 2 and comm.rank + 1 < comm.size:
                comm.send(torch.rand(100), comm.rank + 1)
            elif comm.rank % 2 == 0:
                comm.recv(torch.rand(100), comm.rank - 1)
        return
    heard = []
    for _ in range(5 * (comm.size - 1)):
        work = comm.irecv(x := torch.empty(1), ANY)
        work.wait()
        heard.append((work.source, x.item(), comm.now()))
    return heard


@pytest.mark.parametrize(("program", "n"), [(ring, 7), (server, 6)])
def test_two_runs_are_the_same_bit_for_bit(program, n):
    one, two = World(n, seed=5), World(n, seed=5)
    assert one.run(program) == two.run(program)
    assert one.trace == two.trace and len(one.trace) > 0
    assert one.time == two.time > 0


def test_the_notebooks_random_numbers_are_untouched():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    World(3).run(ring)
    with pytest.raises(ZeroDivisionError):
        World(3).run(lambda comm: [torch.rand(3), np.random.rand(), random.random(), 1 / 0])
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_a_ranks_numbers_do_not_depend_on_the_others():
    def alone(comm):
        if comm.rank == 1:
            return [torch.rand(1).item() for _ in range(4)]

    def among(comm):
        out = []
        for _ in range(4):
            out.append(torch.rand(1).item())
            comm.sendrecv(torch.ones(1), (comm.rank + 1) % 3, torch.ones(1), (comm.rank - 1) % 3)
        return out

    assert World(3).run(among)[1] == World(3).run(alone)[1]


def test_ranks_take_turns():
    """No two ranks ever run at once: a counter that is read, and written later, loses nothing."""
    count = {"n": 0}

    def program(comm):
        for _ in range(50):
            n = count["n"]
            time.sleep(0)
            count["n"] = n + 1
            comm.sendrecv(torch.ones(1), (comm.rank + 1) % 4, torch.ones(1), (comm.rank - 1) % 4)

    # which tells that the ranks share it, and did run
    with pytest.raises(ValueError, match="changed 'count'"):
        World(4).run(program)
    assert count["n"] == 200


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("rank ")]


def test_nothing_is_left_running():
    def job(comm):
        comm.stream(lambda lane: None).wait()
        return comm.rank

    World(50).run(job)
    for program in (lambda comm: 1 / 0, lambda comm: comm.recv(torch.ones(1), (comm.rank + 1) % 8)):
        with pytest.raises((ZeroDivisionError, Deadlock)):
            World(8).run(program)
    assert not threads()


def test_exceptions_while_the_run_ends_are_silent(capsys):
    def program(comm):
        try:
            comm.recv(torch.ones(1), (comm.rank + 1) % comm.size)
        finally:
            raise ValueError(f"rank {comm.rank} cleans up")

    with pytest.raises(Deadlock):
        World(5).run(program)
    assert capsys.readouterr() == ("", "")


def test_the_deadlock_report():
    def program(comm):
        if comm.rank == 3:
            return
        lane = (
            comm.stream(lambda lane: lane.recv(torch.ones(2), 1), lane=4)
            if comm.rank == 0
            else None
        )
        if comm.rank < 2:
            comm.recv(torch.zeros(2, 3, dtype=torch.int64), (comm.rank + 1) % 3, label="step")
        if comm.rank == 2:
            comm.irecv(torch.ones(1), ANY).wait()
        return lane

    started = time.monotonic()
    with pytest.raises(Deadlock) as caught:
        World(4).run(program)
    assert time.monotonic() - started < 20  # at once
    rows = str(caught.value).splitlines()
    assert rows[0] == "no rank can go on (4 wait for each other):"
    assert [r.strip() for r in rows[1::2]] == [
        "rank 0, lane 4, waits for receive of (2,) float32 from rank 1",
        "rank 0 waits for receive of (2, 3) int64 from rank 1 [step]",
        "rank 1 waits for receive of (2, 3) int64 from rank 2 [step]",
        "rank 2 waits for receive of (1,) float32 from any rank",
        "ended already: rank 3",
    ]
    assert all(r.startswith("    at test_clock.py:") for r in rows[2:9:2])
    assert (
        "lane.recv(torch.ones(2), 1)" in rows[2] and "irecv(torch.ones(1), ANY).wait()" in rows[8]
    )


def test_a_batch_that_waits_says_for_what():
    def program(comm):
        if comm.rank == 0:
            comm.sendrecv(torch.ones(1), 1, torch.ones(1), 1)
        else:
            comm.recv(torch.ones(1), 0)

    with pytest.raises(Deadlock) as caught:
        World(2).run(program)
    # the send was done
    assert "rank 0 waits for receive of (1,) float32 from rank 1\n" in str(caught.value)


def test_what_was_never_received_is_found_at_the_end():
    def program(comm):
        if comm.rank == 0:
            comm.isend(torch.ones(1), 1)  # posted

    with pytest.raises(Deadlock) as caught:
        World(2).run(program)
    assert "one rank cannot end" in str(caught.value)
    assert "at the end of its program; posted at test_clock.py:" in str(caught.value)
    assert "# posted" in str(caught.value)


def test_a_deadlock_shows_the_failed_job_that_it_came_from():
    def program(comm):
        def job(lane):
            if lane.rank == 1:
                raise KeyError("gone")
            lane.recv(torch.ones(1), 1)

        comm.stream(job)
        comm.recv(torch.ones(1), 1 - comm.rank)

    with pytest.raises(Deadlock) as caught:
        World(2).run(program)
    assert isinstance(caught.value.__cause__, KeyError)


def test_polling_ranks_that_wait_for_each_other():
    def program(comm):
        if comm.rank > 1:
            for _ in range(5):
                comm.sendrecv(torch.ones(1), 5 - comm.rank, torch.ones(1), 5 - comm.rank)
            return
        work = comm.irecv(torch.ones(1), 1 - comm.rank)
        while not work.done():
            pass

    with pytest.raises(Deadlock) as caught:
        World(4).run(program)
    rows = str(caught.value).splitlines()
    assert rows[1].strip() == "rank 0 waits for receive of (1,) float32 from rank 1"
    assert rows[2].endswith("while not work.done():")
    assert rows[-1].strip() == "ended already: rank 2, 3"


def test_polling_sees_each_thing_when_it_happens():
    """Two works polled in turn: b is there at 3, a at 103; the time at which each is seen is exact."""

    def program(comm):
        if comm.rank:
            return comm.send(torch.zeros(100 if comm.rank == 1 else 1, dtype=torch.uint8), 0)
        a, b = (
            comm.irecv(torch.zeros(100, dtype=torch.uint8), 1),
            comm.irecv(torch.zeros(1, dtype=torch.uint8), 2),
        )
        seen, todo = [], {"a": a, "b": b}
        while todo:
            for name, work in list(todo.items()):
                if work.done():
                    del todo[name]
                    seen.append((name, comm.now()))
        return seen

    assert World(3, alpha=2, beta=1).run(program)[0] == [("a", 102.0), ("b", 103.0)]  # one wire in
    # at once: in either order
    assert sorted(World(3, alpha=2, beta=0).run(program)[0]) == [("a", 2.0), ("b", 2.0)]


def test_a_run_inside_a_rank():
    def program(comm):
        before = torch.rand(1)
        inner = World(2, seed=comm.rank).run(lambda c: (c.rank, torch.rand(1).item()))
        comm.sendrecv(torch.ones(1), 1 - comm.rank, torch.ones(1), 1 - comm.rank)
        return before.item(), list(inner), torch.rand(1).item()

    def plain(comm):
        return torch.rand(1).item(), torch.rand(1).item()

    results = World(2).run(program)
    assert [(a, c) for a, _, c in results] == World(2).run(plain)
    assert results[1][1] == World(2, seed=1).run(lambda c: (c.rank, torch.rand(1).item()))


def test_events_come_before_later_fibers_and_ties_go_by_order():
    log = []
    clock = Clock(2, lambda rank: rank, torch.device("cpu"))

    def body(name):
        log.append((name, clock.current.time))

    def act(time, name):
        log.append((name, time))
        if name == "c":
            clock.at(time, (9,), act, "again")

    with clock:
        clock.spawn(0, "late", lambda: body("late"), 2.0)
        clock.spawn(1, "early", lambda: body("early"), 1.0)
        for at, order, name in [
            (1.0, (2,), "b"),
            (1.0, (1,), "c"),
            (1.5, (0,), "d"),
            (2.5, (0,), "e"),
        ]:
            clock.at(at, order, act, name)
        clock.run()
    assert log == [
        ("early", 1.0),
        ("c", 1.0),
        ("b", 1.0),
        ("again", 1.0),
        ("d", 1.5),
        ("late", 2.0),
        ("e", 2.5),
    ]


def test_an_event_that_fails_ends_the_run():
    clock, reached = Clock(1, lambda rank: rank, torch.device("cpu")), []

    def body():
        try:
            clock.block("nothing")
        except Exception:
            reached.append("the rank that held the baton")

    with clock:
        clock.spawn(0, "main", body)
        clock.at(1.0, (0,), lambda time: 1 / 0)
        clock.run()
    assert isinstance(clock.error, ZeroDivisionError) and not reached


def test_a_fiber_of_a_run_that_is_over_is_unwound():
    clock = Clock(1, lambda rank: 0, torch.device("cpu"))
    clock.ending = True
    with pytest.raises(Ended):
        clock.check()
    assert not issubclass(Ended, Exception)


# ------------------------------------------------------------
# A fiber's thread stays on one core and wakes without interrupting.


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


def drawn(seed, n):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()


def test_turns_do_not_mix_and_the_process_keeps_its_own():
    torch.manual_seed(3)
    expected = drawn(3, 2)
    assert torch.rand(()).item() == expected[0]
    with Generators(torch.device("meta"), [7, 8, 9]) as generators:
        mine = {rank: [] for rank in (0, 1, 2)}
        for rank in (1, 0, 0, 1, 2, 0, 1, 2, 2):
            generators.turn(rank)
            mine[rank].append(torch.rand(()).item())
    assert mine == {0: drawn(7, 3), 1: drawn(8, 3), 2: drawn(9, 3)}
    assert torch.rand(()).item() == expected[1]


def test_normal_numbers_come_in_pairs_and_their_second_half_is_kept():
    """randn keeps a number for the next call: it is part of the state."""
    expected = [
        torch.randn((), generator=g) for g in [torch.Generator().manual_seed(4)] for _ in range(4)
    ]
    with Generators(torch.device("cpu"), [4, 5]) as generators:
        mine = []
        for _ in range(4):
            generators.turn(0)
            mine.append(torch.randn(()))
            generators.turn(1)
            torch.randn(3)
    assert mine == expected
