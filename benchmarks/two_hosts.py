"""The trainer on two hosts, of which one dies and comes back.

    python -m benchmarks.two_hosts [--steps 60] [--quick]

A host is a network namespace (see `hosts`). On each runs `torchrun --nnodes 2` with four ranks, the GPT on a grid of
dp 2, pp 2, tp 2 over both (--quick: two ranks, without stages). Every process of the second host is killed in the
middle, and its torchrun started again. What the user sees of it is printed, and at the end what it cost: steps done
twice, and how far the losses are from the serial run's.

It needs root and iproute2; where they are missing it says so and does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.hosts import ADDRESSES, LINK, hosts, inside, left_over, missing, remove
from benchmarks.options import options
from benchmarks.trainer import SCRIPT, flags, said, trained
from minidist.comm import World
from tests.largest import largest

PORT = 29501
AWAY = 8.0  # seconds until a host is back: longer than torchrun believes in a silent one, 3 here
GRIDS = {1: "--dp 2", 2: "--dp 2 --tp 2", 4: "--dp 2 --pp 2 --tp 2"}  # by ranks a host
SMALL = [
    "--dtype",
    "float64",
    "--layers",
    "2",
    "--hidden",
    "16",
    "--context",
    "16",
    "--batch",
    "8",
    "--peak",
    "1",
    "--apart",
    "0",
    "--save-every",
    "5",
    "--micro-batches",
    "2",
    "--zero",
    "1",
]


class Found(NamedTuple):
    """died: the last step before the kill.  resumed: the step at which the run went on.  seconds: from the kill to the
    next step.  losses: of all steps.  printed: by the hosts, the second's before and after its death apart."""

    died: int
    resumed: int
    seconds: float
    losses: list[float]
    printed: list[str]


def torchrun(name: str, place: int, each: int, words: list[str], file: Path) -> subprocess.Popen:
    """Start a host's torchrun, of `each` ranks; what it prints goes to `file`."""
    where = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        str(each),
        "--max-restarts",
        "3",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{ADDRESSES[0]}:{PORT}",
        "--rdzv-id",
        "two",
        "--local-addr",
        ADDRESSES[place],
        "--rdzv-conf",
        f"is_host={1 - place},keep_alive_interval=1,keep_alive_max_attempt=3",
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
        str(SCRIPT),
        *words,
    ]
    # Else a host that comes back waits for an address that the others have told each other before (torch 2.13).
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"}
    with file.open("w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def kill(name: str) -> None:
    """The host is gone: no process of it says goodbye."""
    for pid in inside(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(
    folder: Path, step: int, started: list[subprocess.Popen], files: list[Path], limit: float = 180
) -> None:
    """Wait for a step. RuntimeError with what the hosts printed if one ends before it, or it takes long."""
    end = time.monotonic() + limit
    while said(folder) < step:
        if time.monotonic() > end or any(p.poll() is not None for p in started):
            raise RuntimeError(f"no step {step}:\n" + "\n".join(file.read_text() for file in files))
        time.sleep(0.05)


def run(steps: int, at: int, each: int = 4, rate: int = 1000) -> Found:
    """`steps` steps on two hosts of `each` ranks, and the death of the second after `at` of them."""
    with hosts(rate) as names, tempfile.TemporaryDirectory() as where:
        folder, files = Path(where, "run"), [Path(where, name) for name in ("a", "b", "b again")]
        words = [*SMALL, *GRIDS[each].split(), "--steps", str(steps), "--folder", str(folder)]
        words += ["--json", f"{where}/found.json"]
        a, b = (torchrun(names[place], place, each, words, files[place]) for place in (0, 1))
        until(folder, at, [a, b], files[:2])
        kill(names[1])
        b.wait()
        died, start = said(folder), time.monotonic()
        time.sleep(AWAY)
        again = torchrun(names[1], 1, each, words, files[2])
        until(folder, died + 1, [a], files)
        seconds = time.monotonic() - start
        codes = [p.wait(timeout=300) for p in (a, again)]
        printed = [file.read_text() for file in files]
        if codes != [0, 0]:
            raise RuntimeError(f"the hosts ended with {codes}:\n" + "\n".join(printed))
        # rank 0 may be on either host by then
        said_so = re.findall(r"goes on at step (\d+)", "\n".join(printed))
        if not said_so:
            raise RuntimeError("nobody says where the run went on:\n" + "\n".join(printed))
        resumed = int(said_so[0])
        return Found(
            died,
            resumed,
            seconds,
            json.loads(Path(where, "found.json").read_text())["losses"],
            printed,
        )


def serial(steps: int) -> list[float]:
    """The same run's losses on one rank."""
    return World(1).run(trained, flags(*SMALL, "--steps", steps))[0]["losses"]


def main() -> int:
    args = options(__doc__, quick="two ranks a host", steps={"type": int, "default": 60})
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    remove(left_over())
    found = run(args.steps, args.steps // 3, 2 if args.quick else 4)
    for name, text in zip(("host a", "host b", "host b again"), found.printed, strict=True):
        print(f"── {name}\n{text}")
    off = largest(abs(x - y) for x, y in zip(found.losses, serial(args.steps), strict=True))
    print(
        f"host b died after step {found.died}; the run went on at step {found.resumed}, {found.seconds:.1f} s later; "
        f"losses are off the serial ones by {off:.1e}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
