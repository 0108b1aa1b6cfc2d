"""A World as a notebook meets it: results, copies, devices, the stop button."""

import contextlib
import os
import signal
import threading
import time

import pytest
import torch

from minidist.comm import Deadlock, Link, Trace, World
from minidist.comm.program import seed_of
from minidist.comm.world.generators import Generators
from minidist.comm.world.world import check_runner


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


def interrupted(program, n=4, after=0.3):
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
    assert interrupted(program, n) < 3
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
                    stack.enter_context(comm.steady)
                for _ in range(4):
                    comm.sendrecv(
                        torch.ones(2), (comm.rank + 1) % 3, torch.ones(2), (comm.rank - 1) % 3
                    )
            drawn.append(torch.rand(()).item())
        with pytest.raises(ValueError, match="rank 7"), comm.steady:
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
        with comm.steady if steady else contextlib.nullcontext():
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
