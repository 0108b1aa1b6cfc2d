"""Ranks that say different things of a collective hear it at once, and the next collective works, in all worlds."""

import contextlib
import time

import pytest
import torch

from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    scatter,
)
from minidist.comm import CommError, Mismatch, launch
from tests.largest import largest
from tests.size import FULL

ODD = {
    "all-gather, as many numbers": (
        lambda c: all_gather(c, torch.ones(2, 6)),
        lambda c: all_gather(c, torch.ones(2, 2, 3)),
    ),
    "reduce-scatter, as many numbers": (
        lambda c: reduce_scatter(c, torch.ones(12, 6)),
        lambda c: reduce_scatter(c, torch.ones(12, 2, 3)),
    ),
    "all-reduce, as many numbers": (
        lambda c: all_reduce_(c, torch.ones(2, 6)),
        lambda c: all_reduce_(c, torch.ones(2, 2, 3)),
    ),
    "all-reduce, other operations": (
        lambda c: all_reduce_(c, torch.ones(12)),
        lambda c: all_reduce_(c, torch.ones(12), "max"),
    ),
    "all-to-all, other rows": (
        lambda c: all_to_all(c, torch.ones(12, 6)),
        lambda c: all_to_all(c, torch.ones(12, 2, 3)),
    ),
    "all-gather, other sizes": (
        lambda c: all_gather(c, torch.ones(2), [2] * c.size),
        lambda c: all_gather(c, torch.ones(2)),
    ),
    "broadcast, other roots": (
        lambda c: broadcast_(c, torch.ones(12)),
        lambda c: broadcast_(c, torch.ones(12), 1),
    ),
    "broadcast, other roots, crossed": (
        lambda c: broadcast_(c, torch.ones(12), 1),
        lambda c: broadcast_(c, torch.ones(12)),
    ),
    "a long broadcast, other roots": (
        lambda c: broadcast_(c, torch.ones(1 << 20)),
        lambda c: broadcast_(c, torch.ones(1 << 20), 1),
    ),
    "broadcast, other shapes": (
        lambda c: broadcast_(c, torch.ones(2, 6)),
        lambda c: broadcast_(c, torch.ones(12)),
    ),
    "reduce, other roots": (
        lambda c: reduce_(c, torch.ones(12)),
        lambda c: reduce_(c, torch.ones(12), 1),
    ),
    "gather, other roots": (
        lambda c: gather(c, torch.ones(2)),
        lambda c: gather(c, torch.ones(2), 1),
    ),
    "scatter, other roots": (
        lambda c: scatter(c, torch.ones(12)),
        lambda c: scatter(c, torch.ones(12), 1),
    ),
    "naive broadcast, other roots": (
        lambda c: broadcast_(c, torch.ones(12), algorithm="naive"),
        lambda c: broadcast_(c, torch.ones(12), 1, algorithm="naive"),
    ),
    "a barrier and an all-reduce": (lambda c: barrier(c), lambda c: all_reduce_(c, torch.ones(12))),
    "a broadcast and an all-reduce": (
        lambda c: broadcast_(c, torch.ones(12)),
        lambda c: all_reduce_(c, torch.ones(12)),
    ),
}


def odd(comm, case, who):
    """Rank `who` makes another call than the others."""
    ODD[case][comm.rank == who](comm)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("case", ODD)
def test_what_callers_say_is_compared(run_fast, case, n):
    # at once: a rank that had waited in vain would say RankMissing
    with pytest.raises(Mismatch) as caught:
        run_fast(odd, n, case, n - 1)
    text = str(caught.value)
    assert f"rank {n - 1} " in text and text.count("test_disagreement.py") >= 2, text


def all_cases_over(comm):
    """One after the other in one run: each in a group of its own, where an error does not reach the next."""
    told = {}
    for case in ODD:
        start = time.monotonic()
        group = comm.split([0] * comm.size)
        # the others hear that one has gone on, if not of the call itself
        with contextlib.suppress(CommError):
            odd(group, case, comm.size - 1)
            continue
        told[case] = time.monotonic() - start
    return told


@pytest.mark.parametrize("n", [2])
def test_over_gloo(n, figure):
    told = launch(all_cases_over, n, transport="gloo", timeout=20)
    for case in ODD:
        assert any(case in of_rank for of_rank in told), case
        seconds = max(of_rank.get(case, 0) for of_rank in told)
        figure(f"{n} ranks over gloo, {case}: an error after {seconds:.1f} s")
        assert seconds < 15, case


FEW = (
    "all-gather, as many numbers",
    "broadcast, other roots",
    "all-reduce, other operations",
    "a barrier and an all-reduce",
)


@pytest.mark.full
@pytest.mark.parametrize("case", FEW)
def test_a_run_of_three_ranks_over_gloo_ends(case, figure):
    start = time.monotonic()
    with pytest.raises(Mismatch):
        launch(odd, 3, case, 2, transport="gloo")
    figure(f"3 ranks over gloo, {case}: the run ends after {time.monotonic() - start:.1f} s")


# After a mismatch


def failing(comm, kind, x):
    """Fails on ranks whose `x` has another length than their neighbours'."""
    if kind == "all-gather":
        all_gather(comm, x)
    elif kind == "broadcast":
        broadcast_(comm, x, algorithm="pipelined")
    elif kind == "pipelined":
        all_reduce_(comm, x, algorithm="pipelined")
    else:
        all_reduce_(comm, x, algorithm="ring")


def again(comm, kind, lengths, times=3):
    """Another length on rank 0, then a right collective; how long all took, and what came."""
    start = time.monotonic()
    caught = 0
    right = 0
    for i in range(times):
        x = torch.ones(lengths[comm.rank == 0] + i)
        try:
            failing(comm, kind, x)
        except CommError:
            caught += 1
        y = all_reduce_(comm, torch.full((7,), comm.rank + 1.0 + i))
        z = all_gather(comm, torch.full((2,), float(comm.rank)))
        right += torch.equal(y, torch.full((7,), sum(r + 1.0 + i for r in range(comm.size))))
        right += torch.equal(z, torch.arange(float(comm.size)).repeat_interleave(2))
    return caught, right, time.monotonic() - start


@pytest.mark.parametrize("lengths", [(12, 10), (200_000, 300_000)])
@pytest.mark.parametrize("kind", ["ring", "all-gather", "broadcast", "pipelined"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_after_a_mismatch_the_next_collective_works(run_fast, n, kind, lengths, figure, request):
    results = run_fast(again, n, kind, lengths)
    for caught, right, seconds in results:
        assert caught == 3 and right == 6 and seconds < 25  # the timeout is 30
    if kind == "ring":
        where, slowest = (
            request.node.callspec.params["run_fast"],
            largest(row[2] for row in results),
        )
        figure(f"{where}, {n} ranks, lengths {lengths}: 3 mismatches in {slowest:.2f} s")


def again_all(comm):
    found = []
    for kind in ("ring", "all-gather", "broadcast", "pipelined"):
        for lengths in ((12, 10), (200_000, 300_000)):
            found.append(again(comm.split([0] * comm.size), kind, lengths))
    return found


@pytest.mark.parametrize("n", [2, 3, 4] if FULL else [3])
def test_after_a_mismatch_over_gloo(n):
    for found in launch(again_all, n, transport="gloo", timeout=10):
        for caught, right, seconds in found:
            assert caught == 3 and right == 6 and seconds < 9
