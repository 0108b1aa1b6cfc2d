"""What runs over NCCL, over a group that behaves like it (tests/comm/nccl_like.py). The techniques: tests/nccl."""

import functools
import os
import subprocess
import sys
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import CommError, Mesh, Mismatch, Recv, Send
from minidist.comm.torchdist import TorchComm, from_env
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.reducer import Reducer
from minidist.parallel.schedules import gpipe, one_f_one_b
from minidist.parallel.server import ParameterServer
from tests import parallelized
from tests.comm import nccl_like, test_posted_order
from tests.comm.torchrun import in_its_place, over_nccl_like
from tests.repository.files import ROOT

CHECKED = pytest.mark.parametrize("checked", [True, False])
POSTED = (
    "send_first",
    "send_first_waits_crossed",
    "receive_first",
    "receive_first_waits_crossed",
    "another_order_on_each_rank",
    "many_outstanding",
    "mixed_sizes",
    "peers_out_of_order",
    "a_batch_between",
    "a_collective_between",
    "polled",
    "never_waited_for",
    "on_lanes",
)


def in_any_order(comm):
    """How many messages came right."""
    cases = [getattr(test_posted_order, name) for name in POSTED]
    return sum(test_posted_order.compare(case(comm)) for case in cases)


@CHECKED
@pytest.mark.parametrize("n", [2, 3, 4])
def test_posted_operations(n, checked):
    assert all(count > 80 for count in over_nccl_like(in_any_order, n, checked=checked))


def starts(comm):
    """Groups of operations that each step gives to the device: nothing when posted, all at the first wait."""
    peer, groups = 1 - comm.rank, []
    really = nccl_like.NcclLike.together

    def together(group, ops):
        groups.append([(op.op.__name__, op.tensor.numel()) for op in ops])
        return really(group, ops)

    nccl_like.NcclLike.together = together
    ys = [torch.zeros(k, device=comm.device) for k in (1, 2, 0)]
    a = comm.isend(torch.ones(1, device=comm.device), peer)
    b = comm.irecv(ys[0], peer)
    c = comm.batch([Send(torch.full((2,), 2.0, device=comm.device), peer), Recv(ys[1], peer)])
    # nothing to pass
    d = comm.batch([Send(torch.zeros(0, device=comm.device), peer), Recv(ys[2], peer)])
    before = list(groups)
    a.wait()
    once = list(groups)
    for work in (b, c, d):
        work.wait()
    one_way = comm.split([0, 0])
    one_way.one_way = True
    e = one_way.isend(ys[0], peer) if comm.rank else one_way.irecv(ys[0], peer)
    at_once = groups[len(once) :]
    e.wait()
    return before, once, at_once, [y.tolist() for y in ys]


@CHECKED
def test_what_is_posted_starts_together_at_the_first_wait(checked):
    verbs = ["irecv", "isend"]
    for rank, (before, once, at_once, ys) in enumerate(over_nccl_like(starts, 2, checked=checked)):
        assert before == []
        assert once == [[("isend", 1), ("irecv", 1), ("isend", 2), ("irecv", 2)]]
        assert at_once == [[(verbs[rank], 1)]]
        assert ys == [[1], [2, 2], []]


@pytest.mark.parametrize(
    "what", ["done", "flush", "a collective", "a lane", "a split", "another Comm"]
)
def test_what_starts_it(what):
    def program(comm):
        peer, x = 1 - comm.rank, torch.ones(4, device=comm.device)
        other = comm.split([0, 0])
        works = [comm.isend(x, peer), comm.irecv(y := torch.zeros(4, device=comm.device), peer)]
        before = len(comm.posted)
        if what == "done":
            works[0].done()
        elif what == "flush":
            comm.flush()
        elif what == "a collective":
            all_reduce_(comm, torch.ones(1, device=comm.device))
        elif what == "a lane":
            comm.stream(lambda lane: None).wait()
        elif what == "a split":
            comm.split(0)
        else:
            other.sendrecv(x, peer, torch.zeros(4, device=comm.device), peer)
        after = len(comm.posted)
        for work in works:
            work.wait()
        return before, after, y.tolist()

    assert over_nccl_like(program, 2) == [(2, 0, [1.0] * 4)] * 2


@CHECKED
def test_a_message_may_be_the_first_operation(checked):
    """Of the whole run's Comm, and of a part's."""

    def program(comm):
        x, part = (
            torch.full((3,), float(comm.rank), device=comm.device),
            comm.split(0 if comm.rank else None),
        )
        for one, far in ((comm, 2), (part, 1)):
            if one is not None and one.rank == 0:
                one.send(x, far)
            elif one is not None and one.rank == far:
                one.recv(x, 0)
        return x.tolist()

    assert over_nccl_like(program, 3, checked=checked) == [[0.0] * 3, [1.0] * 3, [1.0] * 3]


def test_groups_of_overlapping_ranks_meet():
    """Each rank is in another number of groups; split in another order of ranks, and again."""

    def program(comm):
        n, found = comm.size, []
        for first in range(n - 1):
            pair = comm.split([0 if r in (first, first + 1) else None for r in range(n)])
            if pair is not None:
                found.append(
                    all_reduce_(pair, torch.tensor([float(comm.rank)], device=comm.device)).tolist()
                )
        back = comm.split(0, key=-comm.rank)
        again = back.split(back.rank % 2, key=-back.rank)
        everyone = back.on_host()._exchange([comm.rank])
        x = torch.tensor([float(comm.rank)], device=comm.device)
        y = back.sendrecv(x, (back.rank + 1) % n, torch.zeros_like(x), (back.rank - 1) % n)
        mesh = Mesh(comm, dp=2, tp=2)
        return (
            found,
            back.rank,
            again.members,
            everyone,
            y.tolist(),
            mesh.dp.members,
            mesh.tp.members,
        )

    for r, (found, rank, again, everyone, y, dp, tp) in enumerate(over_nccl_like(program, 4)):
        assert found == [[float(2 * first + 1)] for first in (r - 1, r) if 0 <= first < 3]
        assert rank == 3 - r and everyone == [[3], [2], [1], [0]] and y == [(r + 1) % 4]
        assert again == ((1, 3) if r % 2 else (0, 2))
        assert dp == (r % 2, r % 2 + 2) and tp == (r // 2 * 2, r // 2 * 2 + 1)


def test_a_group_of_gpus_alone_under_a_group_of_gloo():
    """Its lanes and parts are on its backend, and its hosts meet over gloo."""

    def program():
        from_env("gloo", timeout=20)
        group = dist.new_group(backend=f"cuda:{nccl_like.NAME}")
        comm = TorchComm(group, timeout=20)
        x = torch.ones(3, device=comm.device)
        lane = comm.stream(lambda lane: (type(lane.group).__name__, all_reduce_(lane, x).tolist()))
        part = comm.split(comm.rank, key=0)
        words = comm.on_host()
        kinds = (
            comm.checked,
            lane.wait(),
            type(part.group).__name__,
            words.checked,
            words.device.type,
        )
        return nccl_like.given_back((*kinds, all_reduce_(words, torch.ones(2)).tolist()))

    assert (
        in_its_place(program, 2)
        == [(False, ("NcclLike", [2.0] * 3), "NcclLike", False, "cpu", [2.0, 2.0])] * 2
    )


@pytest.mark.parametrize(("schedule", "checked"), [(gpipe, False), (one_f_one_b, True)])
def test_pipelines(schedule, checked):
    """Receives are posted ahead; two stages and three, whose edges overlap."""

    def program(comm):
        losses = []
        for stages in (2, 3):
            part = comm.split(0 if comm.rank < stages else None)
            if part is None:
                continue
            torch.manual_seed(0)
            layer = nn.Linear(8, 8).to(comm.device)
            pipeline = Pipeline(layer, part, schedule, nn.functional.mse_loss)
            x, y = torch.randn(8, 8).to(comm.device), torch.randn(8, 8).to(comm.device)
            losses.append([pipeline.step(4, x, y) for _ in range(2)])
        return [
            [[round(loss.item(), 6) for loss in step or ()] for step in pair] for pair in losses
        ]

    found = over_nccl_like(program, 3, checked=checked)
    (two, _), (three,) = found[1], found[2]
    assert len(two[0]) == 4 and two == [two[0]] * 2 and three == [three[0]] * 2


def test_a_mismatch_is_told_and_the_comm_is_given_up():
    def program(comm):
        x, peer = torch.ones(2 + comm.rank, device=comm.device), 1 - comm.rank
        with pytest.raises(
            Mismatch, match=r"rank 0 sends \(2,\) float32|rank 1 sends \(3,\) float32"
        ):
            comm.sendrecv(x, peer, torch.zeros(2 + comm.rank, device=comm.device), peer)
        with pytest.raises(CommError, match="given up after a mismatch"):
            comm.isend(x, peer)
        with pytest.raises(CommError, match="given up after a mismatch"):
            all_reduce_(comm, x)
        return "told"

    assert over_nccl_like(program, 2) == ["told"] * 2


def test_a_mismatch_of_words_leaves_the_comm_usable():
    def program(comm):
        x = torch.ones(2, device=comm.device)
        y = torch.zeros(2, device=comm.device)
        peer = 1 - comm.rank
        with pytest.raises(Mismatch, match="labelled 'a'"):
            comm.sendrecv(x, peer, y, peer, "ab"[comm.rank])
        return comm.sendrecv(x, peer, y, peer).tolist()

    assert over_nccl_like(program, 2) == [[1.0, 1.0]] * 2


def test_dtypes_that_nccl_does_not_know_travel_as_bytes():
    def program(comm):
        peer = 1 - comm.rank
        found = []
        for dtype in (torch.int16, torch.uint16, torch.bool, torch.complex64):
            x = torch.ones(3, device=comm.device).to(dtype)
            found.append(comm.sendrecv(x, peer, torch.zeros_like(x), peer).float().tolist())
        return found

    assert over_nccl_like(program, 2) == [[[1.0] * 3] * 4] * 2


def test_a_server_is_refused():
    def program(comm):
        with pytest.raises(ValueError, match=r"which NCCL cannot: .* --backend gloo"):
            ParameterServer(
                nn.Linear(2, 2).to(comm.device), comm, lambda p: torch.optim.SGD(p, 0.1)
            )
        return True

    assert over_nccl_like(program, 2) == [True] * 2


FAILING = """
import sys, time, torch
import tests.comm.nccl_like
from minidist.collectives import all_reduce_
from minidist.comm import from_env
comm = from_env(sys.argv[1], timeout=300)
x = torch.ones(1, device=comm.device)
all_reduce_(comm, x)
if comm.rank == 1:
    raise ValueError("rank 1 has had enough")
all_reduce_(comm, x)
"""


@pytest.mark.alone
@pytest.mark.parametrize("backend", ["gloo", nccl_like.NAME])
def test_one_rank_fails_and_the_others_end(backend, tmp_path):
    """Under torchrun: rank 0 sits in a collective, whose timeout is five minutes."""
    script, start = tmp_path / "failing.py", time.monotonic()
    script.write_text(FAILING)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
            backend,
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    assert "rank 1 has had enough" in run.stderr
    assert time.monotonic() - start < 60


def with_small_buckets(reducer, comm, bucket_bytes, first_bucket_bytes, *rest, really, **options):
    really(reducer, comm, 2000, 2000, *rest, **options)


def again(comm, zero, times):
    """How many runs have the losses of the first."""
    shape = parallelized.SHAPE | {"layers": 4}
    small = functools.partialmethod(with_small_buckets, really=Reducer.__init__)
    with mock.patch.object(Reducer, "__init__", small):
        first, *others = [
            parallelized.train(comm, dict(dp=2, pp=1, tp=2), shape, {"zero": zero}, 3)[0]
            for _ in range(times)
        ]
    return 1 + sum(losses == first for losses in others)


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_data_and_tensor_ranks_again_and_again(zero, figure):
    """With several buckets: no hang, no race."""
    found = over_nccl_like(again, 4, zero, 10, timeout=60)
    figure(f"ZeRO {zero}: {min(found)} of 10 runs end with the same losses")
    assert found == [10] * 4


def both_channels(comm):
    """A message between hosts and one between GPUs, posted in another order on the other side."""
    host = comm.on_host()
    small, values = torch.zeros(3), torch.zeros(5, device=comm.device)
    if comm.rank == 0:
        works = host.irecv(small, 1, "host"), comm.irecv(values, 1, "device")
        works[1].wait()
        works[0].wait()
        return small.tolist(), values.tolist()
    comm.isend(values + 2, 0, "device").wait()
    host.send(small + 1, 0, "host")
    return None


def test_headers_do_not_mix_with_the_hosts_own_messages():
    results = over_nccl_like(both_channels, 2, checked=True, timeout=8.0)
    assert results[0] == ([1.0] * 3, [2.0] * 5)
