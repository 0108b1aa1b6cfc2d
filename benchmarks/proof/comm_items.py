"""Foundation, the items about messages: all-reduce, the World's cost, launch, and what failures look like."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import torch

from benchmarks import all_reduce as bench_all_reduce
from benchmarks import start as bench_start
from benchmarks import world as bench_world
from minidist.collectives import all_reduce_
from minidist.comm import World, launch

LENGTHS = (0, 1, 3, 7, 64, 1_000_003)


def reduce_all(comm, lengths) -> tuple[list, float]:
    """The ring's result for each length, and a random number."""
    xs = [torch.arange(k, dtype=torch.float64) * (comm.rank + 1) for k in lengths]
    return [all_reduce_(comm, x, algorithm="ring") for x in xs], torch.rand(()).item()


def exhaustive() -> tuple[str, bool]:
    """Item 3: every n in 1..8, all lengths, World and processes, against the serial sum."""
    right = True
    counted = True
    same = True
    cases = 0
    for n in range(1, 9):
        world = World(n)
        runs = [world.run(reduce_all, LENGTHS), launch(reduce_all, n, LENGTHS)]
        for results in runs:
            for values, _ in results:
                for length, value in zip(LENGTHS, values, strict=True):
                    right &= torch.equal(
                        value, torch.arange(length, dtype=torch.float64) * (n * (n + 1) // 2)
                    )
                    cases += 1
        first = runs[0]
        again = World(n).run(reduce_all, LENGTHS)
        same &= (
            first.trace == again.trace
            and first.time == again.time
            and [r for _, r in first] == [r for _, r in again]
        )
        for rank in range(n):
            total = 8 * sum(LENGTHS)
            counted &= (
                first.trace.messages(rank)
                == runs[1].trace.messages(rank)
                == 2 * (n - 1) * len(LENGTHS)
            )
            counted &= first.trace.bytes_sent(rank) == runs[1].trace.bytes_sent(rank)
            counted &= abs(first.trace.bytes_sent(rank) - 2 * (n - 1) / n * total) <= 2 * 8 * len(
                LENGTHS
            )
        divisible = World(n).run(
            lambda comm: all_reduce_(comm, torch.zeros(840), algorithm="ring").sum()
        )
        counted &= all(
            divisible.trace.bytes_sent(r) == 2 * (n - 1) * 840 * 4 // n for r in range(n)
        )
    figure = (
        f"{cases} results equal to the serial sum: {right}; 2(n-1) messages and 2(n-1)/n·N bytes a rank: {counted}; "
        f"two runs identical: {same}"
    )
    return figure, right and counted and same


def world_cost() -> tuple[str, bool]:
    """Item 4: µs a message at n = 8 and n = 512, in turns, of this process's time: a busy machine does not count."""
    cost = bench_world.messages((8, 512), 3)
    (small, _), (large, ratio) = cost[8], cost[512]
    return (
        f"{small:.1f} µs a message at n = 8, {large:.1f} µs at n = 512, ratio {ratio:.2f} (medians of 3)",
        small <= 20 and ratio <= 1.5,
    )


def _nothing(comm) -> int:
    return comm.rank


def _processes() -> set[str]:
    """Command lines of living processes that mention this package, but for this process's own server."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {line for line in listed if "minidist.comm.server" in line}


def launches() -> tuple[str, bool]:
    """Item 5: start-up, and what 200 launches leave behind."""
    found = bench_start.measure()
    folders = [pathlib.Path(p) for p in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(p)]
    before = (
        _processes(),
        {p for f in folders for p in f.iterdir()},
        len(os.listdir("/proc/self/fd")),
    )
    for i in range(200):
        launch(_nothing, 4, transport="gloo" if i % 10 == 0 else "shm")
    time.sleep(0.5)
    after = (
        _processes(),
        {p for f in folders for p in f.iterdir()},
        len(os.listdir("/proc/self/fd")),
    )
    processes = len(after[0] - before[0])
    files = len(after[1] - before[1])
    open_files = after[2] - before[2]
    figure = (
        f"4 ranks: launch {found[4][0]:.3f} s, mp.spawn {found[4][1]:.2f} s; "
        f"200 launches leave {processes} processes, {files} files, {open_files} open descriptors"
    )
    return figure, found[4][0] <= 0.3 and processes == files == 0 and open_files <= 0


def ratios() -> tuple[str, bool]:
    """Item 6: the shared-memory ring against gloo's own all-reduce, every size."""
    found = bench_all_reduce.measure([2, 4], bench_all_reduce.SIZES, 15)
    lines = [f"{name.removeprefix('all_reduce ')}: {value:.2f}" for name, value in found.items()]
    return textwrap.fill("; ".join(lines), 110), min(found.values()) > 1.0


_FAILURES = """
import os, signal, sys, threading, time, torch
from minidist.comm import World, launch

def missing(comm):
    if comm.rank == 2:
        return time.sleep(0 if world else 60)
    comm.sendrecv(torch.ones(3), (comm.rank + 1) % 4, torch.empty(3), (comm.rank - 1) % 4)

def mismatched(comm):
    if comm.rank == 0: comm.send(torch.ones(3), 1)
    if comm.rank == 1: comm.recv(torch.ones(2), 0)

def raising(comm):
    if comm.rank == 2: raise KeyError("no such layer")
    comm.recv(torch.empty(1), 2)

def killed(comm):
    if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(torch.empty(1), 1)

def endless(comm):
    while True: time.sleep(0.01)

what, world = sys.argv[1], sys.argv[2] == "World"
if what == "endless":
    threading.Timer(1.0 if world else 4.0, os.kill, (os.getpid(), signal.SIGINT)).start()
elif not world:
    launch(lambda comm: None, 4)   # warm
start = time.perf_counter()
try:
    World(4).run(globals()[what]) if world else launch(globals()[what], 4, timeout=2)
except BaseException as error:
    took = time.perf_counter() - start
    print(f"{took:.2f} {type(error).__name__}: {error}", *getattr(error, "__notes__", []), sep="\\n")
print("still usable:", World(2).run(lambda comm: comm.rank), launch(lambda comm: comm.rank, 2))
"""


def failures() -> tuple[str, bool]:
    """Item 8: what the user sees, and how soon, for five failures in both worlds."""
    limits = {
        "missing": (1, 5, "Deadlock", "RankMissing"),
        "mismatched": (1, 1, "ValueError", "ValueError"),
        "raising": (1, 1, "KeyError", "KeyError"),
        "killed": (None, 1, "", "PeerLost"),
        "endless": (4, 7, "KeyboardInterrupt", "KeyboardInterrupt"),
    }
    rows, held = [], True
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "failures.py"
        script.write_text(_FAILURES)
        for what, (*seconds, in_world, in_launch) in limits.items():
            for runner, limit, kind in (
                ("World", seconds[0], in_world),
                ("launch", seconds[1], in_launch),
            ):
                if limit is None:
                    rows.append(
                        f"{what}, World: ranks are threads of one process, which a kill would end"
                    )
                    continue
                run = subprocess.run(
                    [sys.executable, script, what, runner],
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                took, _, text = run.stdout.partition(" ")
                good = (
                    text.startswith(kind)
                    and float(took) <= limit
                    and "still usable: [0, 1] [0, 1]" in text
                )
                held &= good
                rows += [
                    f"{what}, {runner}: after {took} s"
                    + ("" if good else "  ← NOT as it should be"),
                    textwrap.indent(text.strip(), "    "),
                ]
                rows += (
                    [textwrap.indent(run.stderr[-1000:], "    ! ")]
                    if run.stderr and not good
                    else []
                )
    return "\n".join(rows), held and signal.getsignal(signal.SIGINT) is not None


ITEMS = {
    "3 all-reduce, every n and length": exhaustive,
    "4 cost of a message in a World": world_cost,
    "5 launch": launches,
    "6 ring over processes against gloo": ratios,
    "8 failures": failures,
}
