"""Who waits gets the result when it is there, or the error: in Python, by the future, in C++."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist.comm import World, launch
from minidist.comm.torchdist import CommGroup


class Broken(Exception):
    pass


def fails(comm, x, op):
    raise Broken("of no use")


def waited(comm):
    """A collective that waits for us: not done before, done after."""
    go = threading.Event()
    group = CommGroup(
        comm, all_reduce_=lambda comm, x, op: go.wait() and x.add_(1), barrier=lambda comm: None
    )
    x = torch.zeros(2)
    work, behind = group.allreduce([x]), group.barrier()
    future = work.get_future()
    told = future.then(lambda future: future.value()[0].sum().item())
    time.sleep(0.05)
    before = work.is_completed(), work.is_success(), behind.is_completed(), x.sum().item()
    go.set()
    work.synchronize()
    assert behind.wait() and work.exception() is None and work.result()[0] is x
    return before, (work.is_completed(), work.is_success(), x.sum().item(), told.wait())


def test_it_returns_at_once_and_is_done_later():
    assert launch(waited, 2) == [((False, False, False, 0.0), (True, True, 2.0, 2.0))] * 2


def errors(comm):
    group, found = CommGroup(comm, all_reduce_=fails), []
    work = group.allreduce([torch.ones(1)])
    for wait in (work.wait, work.result, work.get_future().wait):
        with pytest.raises((Broken, RuntimeError), match="of no use"):
            wait()
    found.append((work.is_completed(), work.is_success(), type(work.exception()).__name__))
    model = nn.parallel.DistributedDataParallel(
        nn.Linear(2, 2), process_group=group, init_sync=False
    )
    with pytest.raises(RuntimeError, match="of no use"):
        model(torch.ones(1, 2)).sum().backward()
    return found


def test_an_error_reaches_whoever_waits():
    with pytest.raises(Broken):  # of DDP's work: nobody but C++ waited for it
        launch(errors, 2)


def test_an_error_in_place():
    def program(comm):
        dist.all_reduce(torch.ones(1), group=CommGroup(comm, overlap=False, all_reduce_=fails))

    with pytest.raises(Broken, match="of no use"):
        World(2).run(program)
