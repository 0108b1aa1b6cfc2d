"""Mend, the items about wires: channels, order of posting, mismatches, stopped ranks, arguments."""

from __future__ import annotations

import os
import signal
import time

import torch

from minidist.collectives import all_gather, all_reduce_, barrier, broadcast_
from minidist.comm import CommError, Mismatch, RankMissing, World, launch

TRANSPORTS = ("shm", "gloo")


def _everywhere(program, n, *args) -> dict[str, list]:
    """The results in the World, over shared memory, over gloo."""
    runs = {"World": World(n).run(program, *args)}
    return runs | {
        name: launch(program, n, *args, transport=name, timeout=20) for name in TRANSPORTS
    }


def _two_comms(comm) -> tuple[float, float]:
    from minidist.comm.torchdist import TorchComm

    pair = [TorchComm(timeout=20), TorchComm(timeout=20)]
    xs = [torch.ones(1), torch.full((1,), 100.0)]
    works = [
        c.stream(lambda lane, x: all_reduce_(lane, x), x) for c, x in zip(pair, xs, strict=True)
    ]
    for work in works:
        work.wait()
    return tuple(x.item() for x in xs)


def channels() -> tuple[str, bool]:
    """Item 2: two Comms of one group, an all-reduce on a lane of each at the same time."""
    found = {n: launch(_two_comms, n, transport="gloo") for n in (2, 3)}
    held = all(results == [(float(n), 100.0 * n)] * n for n, results in found.items())
    return (
        f"gloo, two Comms, all-reduces of 1 and 100 on lanes: {found[2][0]} at n = 2, {found[3][0]} at n = 3",
        held,
    )


def _posted(comm, size) -> tuple[bool, float]:
    """Everyone posts a send, then a receive, and waits for the send first. Whether it was right, and seconds."""
    start = time.monotonic()
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    y = torch.zeros(size)
    a, b = comm.isend(torch.full((size,), float(comm.rank)), right), comm.irecv(y, left)
    a.wait()
    b.wait()
    return y.unique().tolist() == [left], time.monotonic() - start


def order() -> tuple[str, bool]:
    """Item 5 on processes: a = isend, b = irecv, a.wait(), b.wait(), for 5 numbers and for 10 MB."""
    kinds = [(name, size) for name in TRANSPORTS for size in (5, 2_500_000)]
    figures, held = [], True
    for name, size in kinds:
        results = launch(_posted, 4, size, transport=name)
        right = sum(correct for correct, _ in results)
        held &= right == 4
        slowest = max(seconds for _, seconds in results)
        figures.append(
            f"{name}, {4 * size:,} bytes: right on {right} of 4 ranks, {slowest * 1e3:.0f} ms"
        )
    return "; ".join(figures), held


def _mismatched(comm) -> tuple[int, int, float]:
    """Three times 10 numbers against 12, each followed by two right collectives: caught, right, seconds."""
    start = time.monotonic()
    caught = 0
    right = 0
    for _ in range(3):
        try:
            all_reduce_(comm, torch.ones(10 if comm.rank == 0 else 12))
        except CommError:
            caught += 1
        right += all_reduce_(comm, torch.ones(5)).tolist() == [comm.size] * 5
        right += all_gather(comm, torch.tensor([comm.rank])).tolist() == list(range(comm.size))
    return caught, right, time.monotonic() - start


def after_a_mismatch() -> tuple[str, bool]:
    """Item 6: on 2, 3 and 4 ranks, everywhere."""
    rows, held = [], True
    for n in (2, 3, 4):
        for name, results in _everywhere(_mismatched, n).items():
            held &= all(caught == 3 and right == 6 for caught, right, _ in results)
            rows.append(f"{name}, n = {n}: {max(seconds for *_, seconds in results) * 1e3:.0f} ms")
    return "3 of 3 mismatches caught and 6 of 6 collectives right on every rank; " + "; ".join(
        rows
    ), held


_ODD = {
    "(2, 6) and (2, 2, 3)": lambda c, odd: all_gather(
        c, torch.ones(2, 2, 3) if odd else torch.ones(2, 6)
    ),
    "roots 0 and 1": lambda c, odd: broadcast_(c, torch.ones(12), int(odd)),
    "sum and max": lambda c, odd: all_reduce_(c, torch.ones(12), "max" if odd else "sum"),
    "barrier and all-reduce": lambda c, odd: barrier(c) if odd else all_reduce_(c, torch.ones(12)),
}


def _odd(comm, case) -> None:
    _ODD[case](comm, comm.rank == comm.size - 1)


def disagreement() -> tuple[str, bool]:
    """Item 7: the error in each world, and its time."""
    rows, held = [], True
    runs = {"World": lambda *args: World(3).run(*args)}
    runs |= {
        name: lambda *args, name=name: launch(args[0], 3, *args[1:], transport=name)
        for name in TRANSPORTS
    }
    for case in _ODD:
        for name, run in runs.items():
            start, found = time.monotonic(), "nothing"
            try:
                run(_odd, case)
            except CommError as error:
                found = type(error).__name__
            held &= found == Mismatch.__name__
            rows.append(f"{case}, {name}: {found} after {time.monotonic() - start:.1f} s")
    return "; ".join(rows), held


def _stops(comm) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce_(comm, torch.ones(4))


def stopped(times: int = 10) -> tuple[str, bool]:
    """Item 9: how often the stopped rank is named, and only it, in ten runs over each transport."""
    named = dict.fromkeys(TRANSPORTS, 0)
    for name in TRANSPORTS:
        for _ in range(times):
            try:
                launch(_stops, 3, timeout=0.5, transport=name)
            except RankMissing as error:
                text = str(error)
                named[name] += (
                    text.startswith("rank 1 is missing: its process is stopped")
                    and text.count("rank ") == 1
                )
    figures = ", ".join(f"{count} of {times} runs over {name}" for name, count in named.items())
    return f"named, and only it, in {figures}", all(count == times for count in named.values())


def arguments() -> tuple[str, bool]:
    """Item 14, launch(timeout="5")."""
    try:
        launch(_stops, 2, timeout="5")
    except ValueError as error:
        return str(error), "a timeout is a number of seconds" in str(error)
    return "no error", False
