"""The stop button: an interrupt ends a World within a second, and Worlds inside its ranks with it.

In a process of its own with a real SIGINT, and in a notebook's kernel.
"""

import json
import subprocess
import sys
import time

import pytest
from jupyter_client.manager import KernelManager

from tests.largest import largest
from tests.repository.files import ROOT

# Programs that never end. `nested(3, what)` is a World in a rank of a World in a rank of a World that does `what`.
PROGRAMS = """
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
    threading.Thread(target=press).start()
    try:
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


def interrupted(asked, delay=0.2):
    """For each (depth, program): seconds until it was over, threads left then and later, whether random numbers and
    the next run are right. delay: seconds until the interrupt; below 0.1 a part of it, while the Worlds are made."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAMS + ALONE, json.dumps(asked), str(delay)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.alone
def test_an_interrupt_ends_worlds_in_worlds_within_a_second():
    """Then no thread is left, and random numbers and the next run are as before. `time.sleep` cannot be interrupted
    in a thread: it holds nobody up, and the thread ends after it."""
    *rows, (took, remaining, later, right) = interrupted([*ENDLESS, (3, "sleeps")])
    assert len(rows) == len(ENDLESS)
    assert largest(row[0] for row in rows) < 1
    assert [row[1:] for row in rows] == [[[], [], True]] * len(rows)
    assert took < 1
    assert remaining and later == []
    assert right


@pytest.mark.alone
def test_an_interrupt_while_worlds_are_made():
    """It may come when a thread has been asked for and does not run yet, and just before the wait for the end."""
    rows = interrupted([(1 + i % 3, "talks") for i in range(24)], delay=0.02)
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
            client, PROGRAMS + "wanted, before = list(World(3).run(ring)), states()"
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
