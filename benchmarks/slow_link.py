"""Two hosts on one machine and a slow link between them: how long each way to talk less takes to a given loss.

    python -m benchmarks.slow_link [--quick] [--only WAY …] [--rates MBIT …] [--target LOSS]

A host is a network namespace; a veth pair joins the two, and `tc tbf` lets through so many Mbit/s each way. On each
runs `torchrun --nnodes 2`, over gloo, with our collectives; they meet at the address of the link. The program is
`slow_train`: a network of 1.1 million weights, trained until the loss on the digits' test set is small enough.

Beside what was measured stands what a World says: the same program on a virtual clock, over a cluster of two nodes with
that rate and the measured latency of a message, whose device needs as long for a step as a rank here without messages.
`ratio NAME VALUE`: dense's time over the way's, measured.

It needs root and iproute2; where they are missing it says so and measures nothing. Namespaces, links and processes
are gone at the end, also after Ctrl-C, a kill (but kill -9: then the next run removes them) or a failure.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks import slow_train
from benchmarks.hosts import ADDRESSES, LINK, hosts, left_over, missing, remove
from benchmarks.options import options, report
from benchmarks.slow_train import AT_MOST, TARGET, WAYS
from minidist.comm import World
from minidist.comm.cluster import Cluster, Device, Level
from minidist.tasks import digits

ROOT = pathlib.Path(__file__).resolve().parents[1]
PORT = 29500
# of an Ethernet frame of 1,500 bytes, what is left beside the headers down to TCP's
PAYLOAD = 1448 / 1514
RATES = (100, 1000)


def torchrun(name: str, place: int, arguments: list[str], file: pathlib.Path) -> subprocess.Popen:
    """Start torchrun on host `place` with the program and its arguments; what it prints goes to `file`."""
    where = [
        "--nnodes",
        "2",
        "--node-rank",
        str(place),
        "--nproc-per-node",
        "1",
        "--master-addr",
        ADDRESSES[0],
        "--master-port",
        str(PORT),
    ]
    command = [
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        "-m",
        "torch.distributed.run",
        *where,
        "-m",
        "benchmarks.slow_train",
        *arguments,
    ]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": LINK,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with file.open("w") as output:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )


def measure(
    megabits: int, ways: list[str], target: float, at_most: int, limit: float = 900
) -> dict:
    """What `slow_train.measured` says on two hosts. RuntimeError with what they printed if one fails or takes long."""
    with hosts(megabits) as names, tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, name) for name in names]
        arguments = [str(target), str(at_most), *ways]
        started = [
            torchrun(name, i, arguments, file)
            for i, (name, file) in enumerate(zip(names, files, strict=True))
        ]
        end = time.monotonic() + limit
        while (
            any(p.poll() is None for p in started)
            and not any(p.returncode for p in started)
            and time.monotonic() < end
        ):
            time.sleep(0.1)
        codes, printed = [p.poll() for p in started], [file.read_text() for file in files]
        lines = "\n".join(printed).splitlines()
        found = [line for line in lines if line.startswith("measured ")]
        if codes != [0, 0] or len(found) != 1:
            raise RuntimeError(
                f"the hosts ended with {codes} within {limit} s:\n" + "\n".join(printed)
            )
    return json.loads(found[0].removeprefix("measured "))


def cluster(megabits: float, alpha: float, flops: float) -> Cluster:
    """Two nodes of one rank, that link between them."""
    device = Device("a rank", {torch.float32: flops, torch.float16: flops}, 1 << 40, 1e18)
    return Cluster(
        "two hosts", device, {"nic": Level(alpha, 8 / (megabits * 1e6 * PAYLOAD))}, nodes=2
    )


def predicted(
    megabits: float, alpha: float, way: str, alone: float, target: float, at_most: int
) -> dict:
    """The same from a World. alone: seconds of a step without messages."""
    task = digits(torch.float32)
    flops = (
        World(2, cluster=cluster(megabits, alpha, 1.0)).run(slow_train.alone, way, task)[0] / alone
    )
    return World(2, cluster=cluster(megabits, alpha, flops)).run(
        slow_train.until, way, task, target, at_most
    )[0]


def table(
    megabits: int, ways: list[str], target: float = TARGET, at_most: int = AT_MOST
) -> list[dict]:
    """Measure and predict, and print; a row for each way."""
    found, rows = measure(megabits, ways, target, at_most), []
    print(
        f"{megabits} Mbit/s, a message {1e6 * found['alpha']:.0f} µs, to a loss of {target}\n"
        f"  {'':<12} steps  alone ms   seconds   by dense   in a World   by dense   error",
        flush=True,
    )
    for way, run in found["ways"].items():
        said = predicted(megabits, found["alpha"], way, run["alone"], target, at_most)
        row = {
            "way": way,
            "said": said["seconds"],
            "same_steps": said["steps"] == run["steps"],
            **run,
        }
        rows.append(row)
        over, said_over = (rows[0][key] / row[key] for key in ("seconds", "said"))
        other = "" if row["same_steps"] else f"   {said['steps']} steps in the World"
        print(
            f"  {way:<12} {run['steps']:>5} {1e3 * run['alone']:>9.1f} {run['seconds']:>9.2f} {over:>9.2f}x "
            f"{said['seconds']:>12.2f} {said_over:>9.2f}x {said['seconds'] / run['seconds'] - 1:>+7.0%}{other}",
            flush=True,
        )
    report(
        {f"{megabits}_Mbit/s_{row['way']}": rows[0]["seconds"] / row["seconds"] for row in rows[1:]}
    )
    return rows


def main() -> int:
    args = options(
        __doc__,
        only=WAYS,
        quick="dense and Local SGD at 100 Mbit/s",
        rates={"type": int, "nargs": "+", "default": list(RATES)},
        target={"type": float, "default": TARGET},
    )
    torch.set_num_threads(1)
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    remove(left_over())
    ways = [
        way
        for way in WAYS
        if way in args.only and (not args.quick or way in ("dense", "Local SGD"))
    ]
    for megabits in args.rates[:1] if args.quick else args.rates:
        table(megabits, ways, args.target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
