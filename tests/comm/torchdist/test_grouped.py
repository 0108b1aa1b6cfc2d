"""Over NCCL posted operations start together, in one group, at the first wait or collective. Without a GPU: over gloo,
by ranks whose Comm believes in NCCL; what would be a group is recorded, and passed on one by one."""

import pytest
import torch
import torch.distributed as dist

from minidist.comm import Mismatch, Recv, Send, launch


class Group:
    """What NCCL gives for a group: one work, which may be waited for as often as one likes."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        while self.works:
            self.works.pop().wait()

    def is_completed(self):
        return not self.works


class Recorder:
    """In place of torch's: the groups, as (verb, peer, numbers)."""

    def __init__(self):
        self.groups, self.really = [], dist.batch_isend_irecv
        dist.batch_isend_irecv = self

    def __call__(self, ops):
        self.groups.append([(op.op.__name__, op.group_peer, op.tensor.numel()) for op in ops])
        return [Group(self.really(ops))]


def as_nccl(comm):
    comm.nccl, comm.device = True, torch.device("cpu")
    return Recorder()


def posted(comm):
    """Nothing starts when it is posted; all of it at the first wait, in the order of posting."""
    recorder, peer = as_nccl(comm), 1 - comm.rank
    ys = [torch.zeros(k) for k in (1, 2, 3)]
    a = comm.isend(torch.ones(1), peer)
    b = comm.irecv(ys[0], peer)
    c = comm.batch([Send(torch.full((2,), 2.0), peer), Recv(ys[1], peer)])
    before = list(recorder.groups)
    a.wait()
    once = len(recorder.groups)
    b.wait()
    c.wait()
    d = comm.isend(torch.full((3,), 3.0), peer)
    comm.recv(ys[2], peer)
    d.wait()
    return before, once, recorder.groups, [y.tolist() for y in ys]


@pytest.mark.parametrize("checked", [True, False])
def test_what_is_posted_starts_together_at_the_first_wait(checked):
    for rank, (before, once, groups, ys) in enumerate(launch(posted, 2, transport="gloo", checked=checked)):
        peer = 1 - rank
        assert before == [] and once == 1
        assert groups == [[("isend", peer, 1), ("irecv", peer, 1), ("isend", peer, 2), ("irecv", peer, 2)],
                          [("isend", peer, 3), ("irecv", peer, 3)]]  # fmt: skip
        assert ys == [[1], [2, 2], [3, 3, 3]]


STARTS = {"done": lambda comm, work: work.done(), "flush": lambda comm, work: comm.flush(),
          "a native collective": lambda comm, work: comm.native.barrier(),
          "a lane": lambda comm, work: comm.stream(lambda lane: None).wait(),
          "a split": lambda comm, work: comm._exchange([comm.rank]),
          "a wait": lambda comm, work: work.wait()}  # fmt: skip


@pytest.mark.parametrize("what", STARTS)
def test_what_starts_it(what):
    def program(comm):
        recorder, peer = as_nccl(comm), 1 - comm.rank
        works = [comm.isend(torch.ones(4), peer), comm.irecv(y := torch.zeros(4), peer)]
        before = len(recorder.groups)
        STARTS[what](comm, works[comm.rank])
        after = len(recorder.groups)
        for work in works:
            work.wait()
        return before, after, len(recorder.groups), y.tolist()

    assert launch(program, 2, transport="gloo") == [(0, 1, 1, [1.0] * 4)] * 2


def test_a_mismatch_is_told_and_leaves_no_group_half_started():
    def program(comm):
        recorder, peer = as_nccl(comm), 1 - comm.rank
        work = comm.batch([Send(torch.ones(2 + comm.rank), peer), Recv(torch.zeros(2 + comm.rank), peer)])
        with pytest.raises(Mismatch):
            work.wait()
        y = comm.sendrecv(torch.full((2,), 5.0), peer, torch.zeros(2), peer)
        return recorder.groups[0][1], y.tolist()

    assert launch(program, 2, transport="gloo") == [(("irecv", 1, 3), [5, 5]), (("irecv", 0, 2), [5, 5])]
