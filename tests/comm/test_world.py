"""A World as a notebook meets it: results, copies, devices, the stop button."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from jupyter_client.manager import KernelManager

from minidist.collectives import all_reduce_, all_to_all, broadcast_
from minidist.comm import ANY, Cluster, Deadlock, Link, Recv, Send, Trace, World
from minidist.comm.clock import Generators
from minidist.comm.cluster import H100
from minidist.comm.program import seed_of
from minidist.comm.wires import Wires
from minidist.comm.world import check_runner
from tests.largest import largest
from tests.repository.files import ROOT
from tests.size import FULL


def test_results():
    world = World(3, alpha=1.0, beta=0.0)
    assert (world.time, len(world.trace)) == (0.0, 0)

    def program(comm, a, *, b):
        if comm.rank < 2:
            comm.sendrecv(torch.ones(2), 1 - comm.rank, torch.ones(2), 1 - comm.rank, label="pair")
        return comm.rank, a, b

    results = world.run(program, 1, b="x")
    assert results == [(0, 1, "x"), (1, 1, "x"), (2, 1, "x")]
    assert isinstance(results, list) and isinstance(results.trace, Trace)
    assert results.trace is world.trace
    assert results.time == world.time == 1.0
    assert world.trace.bytes_sent(link=(1, 0)) == 8
    world.run(program, 1, b=2)
    assert world.trace.messages() == 2  # of the last run
    assert len(results.trace) == 2


def test_the_issue_s_defaults():
    world = World(2)
    assert (world.alpha, world.beta, world.rendezvous, world.seed) == (5e-6, 1 / 50e9, True, 0)
    assert world.run(lambda comm: comm.link(1 - comm.rank)) == [Link(5e-6, 1 / 50e9)] * 2


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(n=0), "at least 1 rank, not 0"),
        (dict(n=2.0), "not 2.0"),
        (dict(n=2, alpha=-1.0), "alpha is .* not -1.0"),
        (dict(n=2, beta=-0.5), "beta is .* not -0.5"),
        (dict(n=2, on_failure="?"), "not '?'"),
    ],
)
def test_bad_arguments(kwargs, words):
    with pytest.raises(ValueError, match=words):
        World(**kwargs)


def test_check_runner():
    check_runner(1, "end")
    check_runner(3, "continue")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_device(device):
    def program(comm):
        x = torch.ones(2, device=comm.device)
        y = comm.sendrecv(x, 1 - comm.rank, torch.empty_like(x), 1 - comm.rank)
        return (
            y.device.type,
            comm.split(0).device.type,
            comm.stream(lambda lane: lane.device.type).wait(),
        )

    assert World(2, device=device).run(program) == [(device,) * 3] * 2


def test_each_rank_has_its_copies_and_can_be_run_again():
    model, optimizer_state = torch.nn.Linear(2, 1), {"steps": 0}

    def program(comm, model, state):
        state["steps"] += 1 + comm.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.ones(2)).backward()
        optimizer.step()
        return state["steps"], model.weight.detach().clone(), model.weight.grad is not None

    before = model.weight.detach().clone()
    world = World(2)
    for _ in range(2):
        results = world.run(program, model, optimizer_state)
        assert [r[0] for r in results] == [1, 2]
        assert torch.equal(results[0][1], before - 1) and torch.equal(results[1][1], before - 1)
    assert (
        torch.equal(model.weight, before)
        and model.weight.grad is None
        and optimizer_state == {"steps": 0}
    )


def test_arguments_that_cannot_be_copied_start_nothing():
    ran = []
    with pytest.raises(TypeError, match="lock"):
        World(2).run(lambda comm, lock: ran.append(1), threading.Lock())
    assert not ran


def test_the_first_failure_ends_the_run():
    reached = []

    def program(comm):
        if comm.rank == 1:
            raise ValueError("first")
        comm.recv(torch.ones(1), (comm.rank + 1) % 4)
        reached.append(comm.rank)

    world = World(4)
    with pytest.raises(ValueError, match="first") as caught:
        world.run(program)
    assert caught.value.rank == 1 and not reached
    assert [entry.name for entry in caught.traceback][-1] == "program"


def test_the_trace_of_a_failed_run_is_there():
    def program(comm):
        comm.sendrecv(torch.ones(1), 1 - comm.rank, torch.ones(1), 1 - comm.rank)
        comm.recv(torch.ones(1), 1 - comm.rank)

    world = World(2)
    with pytest.raises(Deadlock):
        world.run(program)
    assert world.trace.messages() == 2 and world.time == 5e-6 + 4 / 50e9


def test_others_go_on_and_lanes_of_a_failed_rank_hold_nobody():
    def program(comm):
        if comm.rank == 0:
            comm.stream(lambda lane: lane.recv(torch.ones(1), 1))
            raise ValueError("mine")
        return comm.rank

    results = World(2, on_failure="continue").run(program)
    assert str(results[0]) == "mine" and results[1] == 1


def test_what_left_before_a_rank_failed_arrives():
    def program(comm):
        if comm.rank == 1:
            comm.send(torch.full((1,), 5.0), 0)
            raise ValueError
        if comm.rank == 2:
            return comm.send(torch.ones(1), 0)
        comm.recv(torch.zeros(1), 2)
        return comm.recv(torch.zeros(1), 1).item()

    assert World(3, rendezvous=False, on_failure="continue").run(program)[0] == 5


def interrupted_world(program, n=4, after=0.3):
    """Press the stop button `after` seconds into the run; the seconds until the run is over."""
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        World(n).run(program)
    return time.monotonic() - start - after


def endless(comm):
    if comm.rank == 2:
        while True:
            pass
    comm.recv(torch.ones(1), 2)


def endless_polling(comm):
    peer = 1 - comm.rank
    while True:
        comm.sendrecv(torch.ones(1), peer, torch.ones(1), peer)


@pytest.mark.parametrize(("program", "n"), [(endless, 4), (endless_polling, 2)])
def test_the_stop_button(program, n):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert interrupted_world(program, n) < 3
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]
    assert torch.equal(torch.get_rng_state(), state)
    assert World(3).run(lambda comm: comm.rank) == [0, 1, 2]  # as good as new


def test_many_ranks():
    def program(comm):
        x = torch.tensor([comm.rank])
        return comm.sendrecv(
            x, (comm.rank + 1) % comm.size, torch.zeros_like(x), (comm.rank - 1) % comm.size
        ).item()

    assert World(300).run(program) == [(r - 1) % 300 for r in range(300)]


@pytest.mark.parametrize("steady", [0, 1, 2])
def test_steady_code_leaves_random_numbers_alone(run_fast, steady):
    """A rank's numbers are its own around code that draws none, however deep; and it may fail."""

    def program(comm, steady):
        drawn = [torch.rand(()).item()]
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                for _ in range(steady):
                    stack.enter_context(comm.without_rng_swap)
                for _ in range(4):
                    comm.sendrecv(
                        torch.ones(2), (comm.rank + 1) % 3, torch.ones(2), (comm.rank - 1) % 3
                    )
            drawn.append(torch.rand(()).item())
        with pytest.raises(ValueError, match="rank 7"), comm.without_rng_swap:
            comm.send(torch.ones(1), 7)
        comm.sendrecv(torch.ones(2), (comm.rank + 1) % 3, torch.ones(2), (comm.rank - 1) % 3)
        return drawn + [torch.rand(()).item()]

    alone = [
        torch.rand(5, generator=torch.Generator().manual_seed(seed_of(0, rank))).tolist()
        for rank in range(3)
    ]
    assert run_fast(program, 3, steady) == alone


def test_steady_code_takes_no_turns(monkeypatch):
    turns = []
    turn = Generators.turn
    monkeypatch.setattr(
        Generators, "turn", lambda self, rank: turns.append(rank) or turn(self, rank)
    )

    def program(comm, steady):
        with comm.without_rng_swap if steady else contextlib.nullcontext():
            for _ in range(50):
                comm.sendrecv(torch.ones(2), 1 - comm.rank, torch.ones(2), 1 - comm.rank)

    counts = []
    for steady in (True, False):
        turns.clear()
        World(2).run(program, steady)
        counts.append(len(turns))
    assert counts[0] <= 2 * 2 and counts[1] >= 50


def test_a_world_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(World(3).run(lambda comm: comm.rank)))
    thread.start()
    thread.join(10)
    assert results == [[0, 1, 2]]


# ------------------------------------------------------------
# Transfers that do not wait for the clock take the same time as those that do.


ALIKE = Cluster.uniform(6, 5e-6, 1e-9, H100)
CLUSTERS = {
    "alike": ALIKE,
    "late and unequal": ALIKE.jitter(0.3).slow_rank(2, 3.0).slow_link(4, 5, 7.0),
    "a card for two": replace(Cluster.dgx1_v100(nodes=3), devices=2),
    "one node": Cluster.dgx_h100(),
}


def work(comm, i):
    """Some time of its own, another for each rank and step."""
    x = torch.ones(100 + 37 * ((comm.rank * 5 + i) % 7), 64)
    for _ in range(1 + (comm.rank + i) % 3):
        x = x * 1.5
    return x


def rings(comm):
    x = torch.full((103,), float(comm.rank))
    for i in range(4):
        work(comm, i)
        all_reduce_(comm, x, algorithm=("ring", "tree", "halving_doubling")[i % 3])
    return x, comm.now()


def pipeline(comm):
    """Neither all at once nor in step: down the ranks, and some back."""
    x = torch.full((500,), float(comm.rank))
    for i in range(6):
        if comm.rank:
            comm.recv(x, comm.rank - 1)
        x += work(comm, i).sum()
        if comm.rank + 1 < comm.size:
            comm.send(x, comm.rank + 1)
        if i % 2:
            broadcast_(comm, x, comm.size - 1)
    return x, comm.now()


def exchange(comm):
    rows = torch.arange(6.0 * comm.size).reshape(comm.size, 6) + comm.rank
    return all_to_all(comm, rows), comm.now()


def several(comm):
    """A rank whose wires are wanted twice: by a lane, by a group, by what it does not wait for."""
    x, y = torch.ones(50), torch.ones(5000)
    job = comm.stream(lambda lane: all_reduce_(lane, y, algorithm="ring"))
    work(comm, 1)
    all_reduce_(comm, x, algorithm="ring")
    half = comm.split(comm.rank % 2)
    all_reduce_(half, x, algorithm="ring")
    job.wait()
    return x, y, comm.now()


def split_later(comm):
    """A group that is made while messages are on their way: those had to wait for the clock."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    under_way = comm.batch([Send(torch.ones(50_000), right), Recv(torch.ones(50_000), left)])
    if comm.rank:
        work(comm, 2)
    half = comm.split([r // 2 for r in range(comm.size)])
    half.sendrecv(torch.ones(20), 1 - half.rank, torch.ones(20), 1 - half.rank)
    under_way.wait()
    return comm.now()


def split_meanwhile(comm):
    """Rank 1 comes late for a message that rank 0 does not wait for, which sends another one first."""
    group = [0, 1, 0, 1, 1, 1]
    if comm.rank == 0:
        under_way = comm.isend(torch.ones(50_000), 1)
        while not under_way.done() and comm.now() == 0:
            pass  # until ranks 3 and 4 have met
        comm.split(group).send(torch.ones(50_000), 1)
        under_way.wait()
    elif comm.rank == 1:
        for i in range(20):
            work(comm, i)
        comm.recv(torch.ones(50_000), 0)
    elif comm.rank == 2:
        comm.split(group).recv(torch.ones(50_000), 0)
    elif comm.rank < 5:
        comm.batch([Send(torch.ones(9), 7 - comm.rank), Recv(torch.ones(9), 7 - comm.rank)]).wait()
    return comm.now()


def together(comm):
    """Several messages of a batch want one wire: the first that is ready goes first."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    work(comm, 3)
    many = [Send(torch.ones(k), right) for k in (9, 900)] + [Send(torch.ones(90), left)]
    heard = [Recv(torch.ones(k), left) for k in (9, 900)] + [Recv(torch.ones(90), right)]
    comm.batch(many + heard).wait()
    return comm.now()


def beside_posted(comm):
    """Blocking operations of ranks that have posted others: their wires may be wanted at any time."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y = torch.ones(30_000)
    posted = [comm.isend(torch.ones(30_000), left), comm.irecv(y, right)]
    for i in range(3):
        work(comm, i)
        comm.sendrecv(torch.ones(4000), right, torch.ones(4000), left)
    for one in reversed(posted):
        one.wait()
    comm.sendrecv(y, right, torch.ones(30_000), left)
    return y, comm.now()


def a_receiver_that_posted(comm):
    """Rank 0 blocks for a message while another one that it has posted comes to wait for the same wire."""
    if comm.rank == 0:
        late = comm.irecv(torch.ones(40_000), 1)
        comm.recv(torch.ones(50_000), 2)
        late.wait()
    elif comm.rank == 1:
        comm.sendrecv(torch.ones(2), 3, torch.ones(2), 3)
        comm.send(torch.ones(40_000), 0)
    elif comm.rank == 2:
        for i in range(2):
            work(comm, i)
        comm.send(torch.ones(50_000), 0)
    elif comm.rank == 3:
        comm.sendrecv(torch.ones(2), 1, torch.ones(2), 1)
    return comm.now()


def whoever(comm):
    if comm.rank:
        work(comm, 0)
        comm.send(torch.ones(100), 0)
        return comm.now()
    return [
        (w.wait(), w.source)[1]
        for w in [comm.irecv(torch.ones(100), ANY) for _ in range(comm.size - 1)]
    ]


ORDERED = (rings, pipeline, exchange, several, split_later, split_meanwhile, together, whoever)
APART_PROGRAMS = [(program, ordered) for program in ORDERED for ordered in (False, True)]
# an ordered World hangs on these
APART_PROGRAMS += [(beside_posted, False), (a_receiver_that_posted, False)]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(("program", "ordered"), APART_PROGRAMS)
def test_the_same_as_if_each_waited_for_the_clock(monkeypatch, program, cluster, ordered):
    def run():
        return World(6, cluster=CLUSTERS[cluster], ordered=ordered).run(program)

    found, took = run(), []
    apart = Wires._apart
    monkeypatch.setattr(Wires, "_apart", lambda *args: took.append(apart(*args)) and False)
    wanted = run()
    torch.testing.assert_close(list(found), list(wanted), rtol=0, atol=0)
    assert found.time == wanted.time and list(found.trace) == list(wanted.trace)
    assert sorted(found.trace.spans) == sorted(wanted.trace.spans)
    assert found.trace.memory == wanted.trace.memory
    if program is not a_receiver_that_posted:  # of its two pairs, one shares a card
        assert (True in took) == (program in (rings, pipeline, exchange, beside_posted))


# ------------------------------------------------------------
# The stop button: an interrupt ends a World within a second, and Worlds inside its ranks with it.
#
# In a process of its own with a real SIGINT, and in a notebook's kernel.


# Programs that never end. `nested(3, what)` is a World in a rank of a World in a rank of a World that does `what`.
INTERRUPT_PROGRAMS = """
import json, os, signal, sys, threading, time
import numpy as np
import torch
from minidist.comm import World

def computes(comm):
    if comm.rank == 2:
        x = 0
        while True:
            x += 1
    comm.recv(torch.ones(1), 2)

def computes_with_torch(comm):
    x = torch.ones(50, 50)
    while True:
        x = (x @ x).tanh()

def talks(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    while True:
        comm.sendrecv(torch.ones(1), right, torch.ones(1), left)

def polls(comm):
    if comm.rank < 2:
        talks(comm.split([0, 0, 1]))
    comm.split([0, 0, 1])
    work = comm.irecv(torch.ones(1), 0)
    while not work.done():
        pass

def insists(comm):
    while True:
        try:
            computes(comm)
        except Exception:
            pass

def in_a_lane(comm):
    comm.stream(lambda lane: computes_with_torch(lane)).wait()

def sleeps(comm):
    time.sleep(3)

def nested(depth, what):
    def program(comm, depth):
        if depth > 1 and comm.rank == 1:
            World(3).run(program, depth - 1)
        elif depth > 1:
            comm.recv(torch.ones(1), 1)
        else:
            what(comm)
    World(3).run(program, depth)

def left():
    return [t.name for t in threading.enumerate() if t.name.startswith("rank ")]

def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()

def ring(comm):
    x = torch.rand(1)
    return comm.sendrecv(x, (comm.rank + 1) % 3, torch.empty(1), (comm.rank - 1) % 3).item()
"""

ALONE = """
import random
before, wanted = states(), list(World(3).run(ring))
started = []

delay = float(sys.argv[2])

def press():
    time.sleep(delay * random.random() if delay < 0.1 else delay)
    started.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

for depth, what in json.loads(sys.argv[1]):
    try:
        threading.Thread(target=press).start()  # which may press at once
        nested(depth, globals()[what])
    except KeyboardInterrupt:
        took = time.monotonic() - started.pop()
    remaining, same = left(), states() == before
    if remaining:
        time.sleep(3)
    right = same and states() == before and list(World(3).run(ring)) == wanted
    print(json.dumps([took, remaining, left(), right]))
"""
ENDLESS = [(1, "computes"), (1, "polls")]
ENDLESS += [
    (3, what)
    for what in ("computes", "computes_with_torch", "talks", "polls", "insists", "in_a_lane")
]
if FULL:
    ENDLESS += [(depth, what) for depth in (1, 2) for what in ("computes", "talks", "in_a_lane")]


def interrupted_interrupt(asked, delay=0.2):
    """For each (depth, program): seconds until it was over, threads left then and later, whether random numbers and
    the next run are right. delay: seconds until the interrupt; below 0.1 a part of it, while the Worlds are made."""
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPT_PROGRAMS + ALONE, json.dumps(asked), str(delay)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.alone
def test_an_interrupt_ends_worlds_in_worlds_within_a_second(figure):
    """Then no thread is left, and random numbers and the next run are as before. `time.sleep` cannot be interrupted
    in a thread: it holds nobody up, and the thread ends after it."""
    *rows, (took, remaining, later, right) = interrupted_interrupt([*ENDLESS, (3, "sleeps")])
    assert len(rows) == len(ENDLESS)
    for (depth, what), row in zip(ENDLESS, rows, strict=True):
        figure(f"{depth} deep, {what}: over after {row[0]:.2f} s, {len(row[2])} threads left")
    assert largest(row[0] for row in rows) < 1
    assert [row[1:] for row in rows] == [[[], [], True]] * len(rows)
    assert took < 1
    assert remaining and later == []
    assert right


@pytest.mark.alone
def test_an_interrupt_while_worlds_are_made():
    """It may come when a thread has been asked for and does not run yet, and just before the wait for the end."""
    rows = interrupted_interrupt([(1 + i % 3, "talks") for i in range(24)], delay=0.02)
    assert len(rows) == 24
    assert largest(row[0] for row in rows) < 1
    assert [row[1:] for row in rows] == [[[], [], True]] * len(rows)


def executed(client, code, timeout=30):
    """What a cell ends in, and what it prints."""
    printed = []
    reply = client.execute_interactive(
        code, timeout=timeout, store_history=False, output_hook=printed.append
    )
    text = "".join(m["content"].get("text", "") for m in printed if m["msg_type"] == "stream")
    return reply["content"], text


@pytest.mark.alone
def test_the_stop_button_of_a_notebook():
    """The kernel answers within a second, and the notebook goes on with all that it had."""
    manager = KernelManager()
    manager.start_kernel(cwd=str(ROOT))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        content, _ = executed(
            client, INTERRUPT_PROGRAMS + "wanted, before = list(World(3).run(ring)), states()"
        )
        assert content["status"] == "ok", content
        for depth, what in ((1, "computes"), (2, "talks"), (3, "insists")):
            client.execute(f"nested({depth}, {what})", store_history=False, stop_on_error=False)
            while client.get_iopub_msg(timeout=30)["msg_type"] != "execute_input":
                pass  # the cell has not begun
            time.sleep(0.3)
            start = time.monotonic()
            manager.interrupt_kernel()
            while (reply := client.get_shell_msg(timeout=30))["msg_type"] != "execute_reply":
                pass
            took = time.monotonic() - start
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            assert took < 1, f"{what}, {depth} deep"
            content, text = executed(
                client, "print(left(), states() == before, list(World(3).run(ring)) == wanted)"
            )
            assert text.strip() == "[] True True", content
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
