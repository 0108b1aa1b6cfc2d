"""Lesson 28: other right ways pass, what is foretold is what PyTorch does, and what only looks right fails.

The usual mistakes are in course/28_capstone/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import minicheck as check
from minicheck import Wrong
from minicheck.lessons import capstone
from minicheck.lessons.capstone import DTYPES, draw_numbers, predict_capstone
from minicheck.oracles import capstone as oracle
from minidist import collectives
from minidist.comm import Recv, Send, World, launch
from minidist.comm.processgroup import process_group
from tests.bank.bank import solved
from tests.minicheck.examined import rng
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_capstone(8, 4, 24_000_000, 5, 3, 20e-6, 1e-10)


def in_python(comm, x, op, order):
    """Sends first where it can, combines the other way around, by its own arithmetic."""
    n = comm.size
    rank = order.index(comm.rank)
    right = order[(rank + 1) % n]
    left = order[rank - 1]
    ends = [len(x) * i // n for i in range(n + 1)]
    part = lambda i: x[ends[i % n] : ends[i % n + 1]]
    for s in range(2 * (n - 1)):
        send, into = part(rank - 1 - s), part(rank - 2 - s)
        room = torch.zeros_like(into)
        work = comm.batch([Recv(room, left), Send(send, right)])
        work.wait()
        if s < n - 1:
            room = {"sum": room + into, "prod": room * into}.get(op, torch.stack([room, into]))
            room = room if room.dim() == 1 else (room.amax(0) if op == "max" else room.amin(0))
        into.copy_(room)


def by_then(comm, jobs, result):
    begun = torch.futures.Future()

    def told(_):
        if isinstance(error[0], Exception):
            raise error[0]
        return result

    def beside(lane):
        for job in jobs:
            try:
                job(lane)
            except Exception as raised:
                error[0] = error[0] or raised
        begun.set_result(0)

    error, future = [None], begun.then(told)
    comm.stream(beside, lane=3)
    return future


def by_a_second_job(comm, jobs, result):
    """The lane itself tells, after the job; in processes its thread may be late."""
    future = torch.futures.Future()
    works = [comm.stream(job) for job in jobs]

    def tell(lane):
        errors = []
        for work in works:
            try:
                work.wait()
            except Exception as raised:
                errors.append(raised)
        if errors:
            future.set_exception(errors[0])
        else:
            future.set_result(result)

    comm.stream(tell)
    return future


def beside_the_backward(comm, bucket):
    """A hook that returns before it is done."""
    x, future = bucket.buffer() / comm.size, torch.futures.Future()

    def job(lane):
        collectives.all_reduce_(lane, x)
        future.set_result(x)

    comm.stream(job)
    return future


def by_concatenating(comm, output, input):
    held, seen = input.to(output.dtype), [None] * comm.size
    for step in range(comm.size):
        seen[comm.rank - step] = held.clone()
        if step < comm.size - 1:
            held = comm.sendrecv(
                held,
                (comm.rank + 1) % comm.size,
                torch.empty_like(held),
                (comm.rank - 1) % comm.size,
            )
    torch.cat(seen, out=output)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ddp_ring", in_python),
        ("later", by_then),
        ("later", by_a_second_job),
        ("mean_hook", beside_the_backward),
        ("gather_single", by_concatenating),
    ],
)
def test_other_ways(capsys, name, answer):
    getattr(check, name)(answer)
    assert f"{name}: right." in capsys.readouterr().out


FITS = [
    lambda comm, x: comm.size < 5,
    lambda comm, x: type(comm).__name__ == "WorldComm",
    lambda comm, x: len(x) != 66,
    *(lambda comm, x, dtype=dtype: x.dtype != dtype for dtype in DTYPES),
]


@pytest.mark.parametrize("fits", FITS)
def test_right_for_some_only(fits):
    right = solved("28_capstone")["ddp_ring"]

    def answer(comm, x, op, order):
        given = x.clone()
        right(comm, x, op, order)
        x.copy_(x if fits(comm, x) else given)

    with pytest.raises(Wrong):
        check.ddp_ring(answer)


def test_a_wrong_mean_is_seen_by_ddp_alone():
    """Right for each op but under DDP, where there are 66 numbers."""
    right = solved("28_capstone")["ddp_ring"]

    def answer(comm, x, op, order):
        right(comm, x, op, order)
        four = (4 * x).nan_to_num()
        if op == "sum" and comm.size > 1 and not four.equal(four.round()):
            x /= comm.size

    with pytest.raises(
        Wrong, match="PyTorch's DDP on 3 ranks: under PyTorch's DDP: rank 0, step 1: number"
    ):
        check.ddp_ring(answer)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_oracle_trains_as_data_parallel(n):
    """Against PyTorch's DDP on the library's collectives, and the average of the gradients against autograd's."""
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    start, xs = draw(66), [draw(3, 5) for _ in range(n)]
    want = capstone.trained(start, xs)
    ring = lambda comm, x, op: collectives.all_reduce_(comm, x, op)
    for got in World(n).run(lambda comm: capstone.train(comm, start, xs[comm.rank], ring)):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(got, want, strict=True))
    net = capstone.network(start)
    (sum(capstone.loss_of(net, x) for x in xs) / n).backward()
    mean = oracle.combined([capstone.gradient(start, x) for x in xs], "mean")
    assert torch.allclose(
        mean, torch.cat([p.grad.reshape(-1) for p in net.parameters()]), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_drawn_is_exact_in_any_order(dtype):
    xs = {op: draw_numbers(200, 5, op, dtype, rng()) for op in ("sum", "prod", "max", "min")}
    assert all(oracle.combined(x, op).equal(oracle.combined(x[::-1], op)) for op, x in xs.items())
    assert all(
        x.dtype == dtype and (x < 0).any() and (x > 0).any() for some in xs.values() for x in some
    )
    assert not any(
        oracle.combined([x.abs() for x in xs[op]], op).equal(oracle.combined(xs[op], op))
        for op in xs
    )


def step_of_fully_shard(comm):
    """Calls of a step of four layers in groups of their own, with rings: how often each, and what was sent."""
    calls = []

    def gather(comm, chunks):
        calls.append("gather")
        collectives.all_gather_(comm, chunks)

    def reduce(comm, chunks, op):
        calls.append("reduce")
        collectives.reduce_scatter_(comm, chunks, op)

    group = process_group(comm, overlap=False, all_gather_=gather, reduce_scatter_=reduce)
    net, mesh = (
        nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))),
        DeviceMesh.from_group(group, "cpu"),
    )
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)(torch.ones(2, 8)).sum().backward()
    return calls.count("gather"), calls.count("reduce"), sum(p.numel() for p in net.parameters())


def test_predictions_are_what_pytorch_does():
    n, layers = 4, 4
    run = launch(step_of_fully_shard, n)
    gathers, reduces, psi = run[0]
    values = predict_capstone(n, layers, psi, 1, 1, 0.0, 0.0)[0]
    assert (gathers, reduces) == (values["gathers"], layers)
    assert (
        run.trace.messages(0) == values["fsdp_messages"]
        and run.trace.bytes_sent(0) == values["fsdp_bytes"]
    )
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ddp_messages", 14, "one bucket"),
        ("ddp_bytes", 84e6, "one half"),
        ("gathers", 4, "backward needs it again"),
        ("gathers", 7, "freed"),
        ("fsdp_bytes", 168e6, "DDP's"),
        ("seconds", None, "not set"),
        ("micro_bytes", 168e6, "no_sync"),
        ("fsdp_messages", 84, None),
    ],
)
def test_numbers(name, value, says):
    judge(FACTS, FACTS[0] | {name: value}, says)
