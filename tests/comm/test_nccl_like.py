"""The pretended NCCL keeps its promises: what would hang is found within ten seconds, what would be refused is."""

import threading
import time

import pytest
import torch
import torch.distributed as dist

from minidist.collectives import all_reduce_
from minidist.comm import ANY
from minidist.comm.nccl import named_group
from tests.comm import nccl_like
from tests.comm.torchrun import over_nccl_like

SOON = 2.0  # seconds until the pretence says that it hangs
LATE = 20.0  # where nothing hangs, however slow the machine is


def told(program, n, *args, timeout=SOON, **options):
    """What each rank was told, and after how many seconds."""

    def caught(comm):
        start = time.monotonic()
        try:
            program(comm, *args)
        except (nccl_like.Hang, nccl_like.Race, nccl_like.Refused, ValueError) as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - start
        return "passed", time.monotonic() - start

    return over_nccl_like(caught, n, timeout=timeout, **options)


def ungrouped(comm):
    """Each sends, then receives; not in one group."""
    peer, x = 1 - comm.rank, torch.ones(3, device=comm.device)
    send = dist.isend(x, peer, group=comm.group)
    receive = dist.irecv(torch.zeros(3, device=comm.device), peer, group=comm.group)
    send.wait()
    receive.wait()


def first_operation_of_two(comm):
    """A new group of three, whose first operation is a message between two of them."""
    group = named_group(comm.group, [0, 1, 2], "three", SOON, nccl_like.NAME)
    x = torch.ones(3, device=comm.device)
    if comm.rank == 0:
        dist.send(x, 1, group=group)
    elif comm.rank == 1:
        dist.recv(x, 0, group=group)


def two_threads(comm):
    """Two groups, used by two threads of each rank: on rank 0 the one comes first, on rank 1 the other."""
    groups = [named_group(comm.group, [0, 1], f"group {i}", SOON, nccl_like.NAME) for i in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(1, device=comm.device), group=group)
    xs = [torch.ones(1, device=comm.device) for _ in groups]

    def beside():
        time.sleep(0.3 * comm.rank)
        groups[0].allreduce([xs[0]]).wait()

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()
    time.sleep(0.3 * (1 - comm.rank))
    dist.all_reduce(xs[1], group=groups[1])


@pytest.mark.parametrize(
    ("program", "n", "words"),
    [
        (ungrouped, 2, ("send to 1 at test_nccl_like.py", "send to 0 at test_nccl_like.py")),
        (first_operation_of_two, 3, ("send to 1", "receive from 0")),
        (two_threads, 2, ("all_reduce at test_nccl_like.py",)),
    ],
)
def test_a_hang_is_found_with_the_lines_of_both_ranks(program, n, words):
    found = told(program, n)[:2]
    for text, seconds in found:
        assert text.startswith("Hang") and "rank 0: " in text and "rank 1: " in text, text
        assert all(word in text for word in words), text
        assert seconds < 10


def grouped(comm):
    peer = 1 - comm.rank
    x = torch.ones(3, device=comm.device)
    y = torch.zeros(3, device=comm.device)
    ops = [
        dist.P2POp(dist.isend, x, group=comm.group, group_peer=peer),
        dist.P2POp(dist.irecv, y, group=comm.group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert y.tolist() == [1, 1, 1]


def two_groups_in_one_order(comm):
    groups = [named_group(comm.group, [0, 1], f"group {i}", LATE, nccl_like.NAME) for i in range(2)]
    for group in groups * 2:
        dist.all_reduce(torch.ones(1, device=comm.device), group=group)


@pytest.mark.parametrize("program", [grouped, two_groups_in_one_order])
def test_what_nccl_does_passes(program):
    assert [text for text, _ in told(program, 2, timeout=LATE)] == ["passed"] * 2


def of_the_host(comm):
    dist.all_reduce(torch.ones(3), group=named_group(comm.group, [0, 1], "g", LATE, nccl_like.NAME))


def of_an_unknown_dtype(comm):
    dist.all_reduce(torch.ones(3, dtype=torch.int16, device=comm.device), group=comm.group)


def with_gaps(comm):
    dist.all_reduce(torch.ones(3, 2, device=comm.device).t(), group=comm.group)


def from_any(comm):
    comm.irecv(torch.ones(3, device=comm.device), ANY)


def on_both_sides(comm):
    torch.ones(3, device=comm.device) + torch.ones(3)


def as_numpy(comm):
    torch.ones(3, device=comm.device).numpy()


def used_before_it_came(comm):
    x = torch.ones(3, device=comm.device)
    dist.all_reduce(x, group=comm.group, async_op=True)
    x + 1


def changed_while_it_is_sent(comm):
    x, y = torch.ones(3, device=comm.device), torch.ones(3, device=comm.device)
    work = comm.batch(nccl_like_ops(comm, x, y))
    comm.start_all()
    x.add_(1)
    work.wait()


def nccl_like_ops(comm, x, y):
    from minidist.comm import Recv, Send

    return [Send(x, 1 - comm.rank), Recv(y, 1 - comm.rank)]


def a_lane_that_nobody_waits_for(comm):
    x = torch.ones(3, device=comm.device)
    comm.stream(all_reduce_, x)
    x.add_(1)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (of_the_host, ["Refused", "is on the host"]),
        (of_an_unknown_dtype, ["Refused", "int16"]),
        (with_gaps, ["Refused", "not contiguous"]),
        (from_any, ["ValueError", "NCCL cannot receive from any rank"]),
        (on_both_sides, ["Refused", "all tensors are expected on one device"]),
        (as_numpy, ["Refused", "NumPy"]),
        (used_before_it_came, ["Race", "is read at test_nccl_like.py"]),
        (changed_while_it_is_sent, ["Race", "is written at test_nccl_like.py"]),
        (a_lane_that_nobody_waits_for, ["Race", "is written at test_nccl_like.py"]),
    ],
)
def test_what_is_refused(program, words):
    for text, _ in told(program, 2, timeout=LATE):
        assert all(word in text for word in words), text


def test_where_the_host_waits_is_seen():
    def program(comm):
        x = torch.ones(3, device=comm.device)
        all_reduce_(comm, x)
        nothing = nccl_like.host_waits()
        x.sum().item()
        x.tolist()
        x.cpu()
        return nothing, [where.split(":")[0] for where in nccl_like.host_waits()]

    assert over_nccl_like(program, 2) == [([], ["test_nccl_like.py"] * 3)] * 2


def test_devices_are_told_apart():
    def program(comm):
        x = torch.ones(3, device=comm.device)
        host = [
            torch.ones(3),
            x.cpu(),
            x.to("cpu"),
            torch.empty_like(x, device="cpu"),
            torch.tensor([1.0]),
        ]
        device = [
            x,
            x + 1,
            x.view(3, 1),
            torch.empty_like(x),
            torch.tensor([1.0], device=comm.device),
            x.to(comm.device),
            torch.ones(2).to(comm.device),
            x.new_tensor([1]),
            torch.nn.Linear(2, 2, device=x.device).weight,
        ]
        return (
            [y.device.index for y in host],
            [y.device.index for y in device],
            x.to(comm.device) is x,
        )

    assert over_nccl_like(program, 1) == [([None] * 5, [0] * 9, True)]
