"""examples/train_gpt.py, run from other programs: on processes, killed, and on torchrun.

A run that is killed is started again in its folder until it ends; its last checkpoint is compared with an undisturbed
run's, tensor by tensor.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from safetensors.torch import load_file

from minidist.checkpoint import Saved, files
from minidist.comm import launch
from minidist.comm.base import PeerLost

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPT = EXAMPLES / "train_gpt.py"


def flags(*words: object):
    """The trainer's settings."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import train_gpt  # noqa: F401  here, so that the processes have loaded it
    from gpt_flags import flags_of
    from settings import settings
    from started import parser

    return settings(flags_of(parser("train_gpt")), [str(word) for word in words])


def trained(comm, args, victim: int | None = None, after: float = 0.0) -> dict:
    """One rank of the trainer; rank `victim` is killed after so many seconds, whatever it does then."""
    from train_gpt import program

    if comm.rank == victim:
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    return program(comm, args)


def by_torchrun(n: int, folder: Path, *words: object, kill_at: tuple[int, ...] = ()) -> dict:
    """What rank 0 of a run in `folder` reports. After each step of `kill_at` a rank is killed, and torchrun restarts.

    Raises RuntimeError with what was printed, if it failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, printed = folder / "found.json", folder / "printed"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(n),
        "--max-restarts",
        str(len(kill_at)),
        str(SCRIPT),
        "--json",
        str(file),
        *map(str, words),
    ]
    command += ["--folder", str(folder)] if kill_at else []
    with printed.open("w") as output:
        # see from_env
        environ = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        agent = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    for step in kill_at:
        while agent.poll() is None and said(folder) < step:
            time.sleep(0.02)
        kill_a_rank(agent.pid)
    if agent.wait():
        raise RuntimeError(f"torchrun ended with {agent.returncode}: {printed.read_text()}")
    return json.loads(file.read_text())


def kill_a_rank(agent: int) -> None:
    """SIGKILL to the last rank that torchrun, process `agent`, has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ranks = [
            child for child in psutil.Process(agent).children() if str(SCRIPT) in child.cmdline()
        ]
        if ranks:
            ranks[-1].kill()


class Killed(NamedTuple):
    """A run with kills. saving: of them in the middle of a save.  lost: most steps that one kill cost."""

    kills: int
    saving: int
    lost: int
    equal: bool


def with_kills(
    folder: Path,
    n: int,
    want: list[str],
    times: Iterator[float],
    draw: random.Random,
    most: int,
    whole: dict[str, torch.Tensor],
) -> Killed:
    """A run of `n` processes with flags `want`, killed at most `most` times. whole: the tensors it must end with."""
    kills = saving = lost = 0
    args = flags(*want, "--folder", folder)
    while True:
        victim = draw.randrange(n) if kills < most else None
        try:
            launch(trained, n, args, victim, next(times), timeout=120)
            return Killed(kills, saving, lost, same(tensors(folder), whole))
        except PeerLost:
            kills += 1
        good = files.finished(folder)
        saving += len(files.begun(folder)) > len(good)
        lost = max(lost, said(folder) - (Saved(good[-1]).step if good else 0))


def said(folder: Path) -> int:
    """The last step that a run's log tells of."""
    lines = (
        (folder / "log.jsonl").read_text().splitlines() if (folder / "log.jsonl").exists() else []
    )
    return json.loads(lines[-1])["step"] if lines else 0


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All of the newest checkpoint: parameters, and what the optimizer has of each."""
    found = {}
    for prefix in ("model/", "optimizer/"):
        file = folder / "whole.safetensors"
        Saved(files.finished(folder)[-1]).export(file, prefix)
        found |= {prefix + name: x for name, x in load_file(file).items()}
        file.unlink()
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())


def killed(
    folder: Path, n: int, want: list[str], count: int, longest: float, seed: int = 0
) -> list[Killed]:
    """Runs, one after the other, until `count` kills have been survived, at times drawn up to `longest` seconds."""
    draw, runs = random.Random(seed), []
    launch(trained, n, flags(*want, "--folder", folder / "whole"), timeout=120)
    whole = tensors(folder / "whole")
    times = iter(lambda: draw.uniform(0, longest), None)
    left = count
    while left > 0:
        here = folder / f"run-{len(runs)}"
        runs.append(with_kills(here, n, want, times, draw, left, whole))
        shutil.rmtree(here)
        left = count - sum(run.kills for run in runs)
    return runs
