"""Mend, the items about where it runs: other Pythons, an empty environment, two hosts, and what a killed run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from minidist.comm import RankMissing, launch

from .world import ROOT, run_tests, together


def asleep(comm):
    import time

    import torch

    if comm.rank == 0:
        time.sleep(60)
    comm.recv(torch.empty(1), 0)


def two_hosts() -> tuple[str, bool]:
    """Of item 12: hosts whose names stand for loopback, over gloo."""
    return run_tests("tests/comm/test_torchdist.py")


def killed() -> tuple[str, bool]:
    """Item 13: kill -9 to pytest, to a worker, to both; nothing that they have started is left after ten seconds."""
    return run_tests("tests/test_reaper.py")


def versions() -> tuple[str, bool]:
    """Item 17, on the Python that runs this: where a missing rank is, several times, since a class that is called often
    is called in another way; and the norm that recursed without end."""
    named = []
    for transport in ("shm", "shm", "shm", "gloo"):
        try:
            launch(asleep, 2, timeout=1, transport=transport)
        except RankMissing as error:
            named.append("rank 0 is at mend_python_items.py" in str(error))
    figure = f"Python {sys.version.split()[0]}: a missing rank is named with where it is, {sum(named)} times of 4"
    return together(
        (figure, named == [True] * 4), run_tests("tests/minicheck/lessons/test_zero.py")
    )


_USE = """
import sys, torch, minidist
from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.study import published, viewer

def program(comm):
    return all_reduce_(comm, torch.ones(1000) * comm.rank)[0].item()

run = World(3).run(program)
same = list(run) == list(launch(program, 3)) == list(launch(program, 3, transport="gloo")) == [3.0] * 3
assert minidist.__file__.startswith(sys.prefix)
print(f"World, shared memory and gloo alike: {same}")
print(f"{len(published('zero'))} published figures of ZeRO; a browser page of {len(viewer(run.trace).page)} letters")
"""


def installed() -> tuple[str, bool]:
    """Item 18: `pip wheel .`, installed into an empty environment outside the repository."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run = lambda *words, cwd=folder: subprocess.run(
            words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        made = [
            run(sys.executable, "-m", "venv", "venv"),
            run(python, "-m", "pip", "wheel", ".", "--no-deps", "-w", folder, cwd=ROOT),
        ]
        wheel = next(map(str, Path(folder).glob("*.whl")), "no wheel")
        made.append(run(python, "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"), wheel))
        used = run(python, "-c", _USE)
        words = ["--model", "gpt3-175b", "--cluster", "h100:128x8", "--batch", "1536"]
        planned = run(python, "-m", "minidist.study.plan", *words)
    held = all(step.returncode == 0 for step in (*made, used, planned))
    failed = [step.stderr.strip()[-500:] for step in (*made, used, planned) if step.returncode]
    row = next((line for line in planned.stdout.splitlines() if "MFU" in line), "no plan")
    figure = "\n".join(
        [used.stdout.strip(), row, *(textwrap.indent(text, "    ! ") for text in failed)]
    )
    return figure, held and "alike: True" in used.stdout and "MFU" in row


def readme() -> tuple[str, bool]:
    """Item 19: the table of techniques, the commands, and set-up with a Python that does not fit."""
    return run_tests("tests/repository/test_readme.py")
