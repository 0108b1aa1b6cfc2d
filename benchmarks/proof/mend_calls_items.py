"""Mend, the items about wrong calls, in the World, over shared memory and over gloo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from minidist.comm import World, launch

from .world import run_tests


def changed() -> tuple[str, bool]:
    """Item 4: a tensor, a list and a dict of the notebook that a program changes are named; reading is free."""
    x = torch.zeros(1)
    losses = []
    table = {}

    def adds(comm):
        x.add_(1)

    def appends(comm):
        losses.append(comm.rank)

    def counts(comm):
        table["n"] = comm.rank

    def reads(comm):
        return x.item() + len(losses) + len(table)

    runs = {
        "World": lambda program: World(4).run(program),
        "shared memory": lambda program: launch(program, 4),
        "gloo": lambda program: launch(program, 4, transport="gloo"),
    }
    named, read = 0, 0
    for run in runs.values():
        for program, name in (
            (adds, "'x' (Tensor)"),
            (appends, "'losses' (list)"),
            (counts, "'table' (dict)"),
        ):
            try:
                run(program)
            except ValueError as error:
                named += f"the program changed {name} of the notebook" in str(error)
        x = torch.zeros(1)
        losses = []
        table = {}
        read += run(reads) == [0.0] * 4
    return f"{named} of 9 changes named (World, shared memory, gloo); {read} of 3 read freely", (
        named,
        read,
    ) == (9, 3)


def nan() -> tuple[str, bool]:
    """Item 8: the lint of comparisons that NaN passes, over the library, tests, benchmarks and examples."""
    return run_tests("tests/repository/test_nan.py")


def wrong_calls() -> tuple[str, bool]:
    """Item 14: the table of wrong calls and their words."""
    return run_tests("tests/calls", "tests/test_arguments.py")


def sentences() -> tuple[str, bool]:
    """Item 12, a part: wrong arguments under torchrun end in one sentence of ours, before any rank starts."""
    wrong = {
        "--dp 3 --pp 2": "2 ranks are not 2×3×1",
        "--heads 3": "3 heads do not split",
        "--vocab 10": "at least 257",
        "--text nowhere.txt": "nowhere.txt: No such file",
    }
    torchrun, script = str(Path(sys.executable).with_name("torchrun")), "examples/train_gpt.py"
    rows, held = [], True
    for flags, words in wrong.items():
        with tempfile.TemporaryFile("w+") as said:
            command = [torchrun, "--nproc-per-node", "2", script, *flags.split()]
            status = subprocess.run(command, stdout=said, stderr=said, timeout=100).returncode
            said.seek(0)
            lines = said.read().splitlines()
        ours = [line for line in lines if "train_gpt.py: error:" in line]
        held &= (
            len(ours) == 1
            and words in ours[0]
            and status != 0
            and not any("ValueError" in line for line in lines)
        )
        rows.append(f"{flags}: {len(ours)} of {len(lines)} lines")
    checkpoints, well = run_tests("tests/checkpoint/test_checkpoints.py")
    return (
        f"sentences of ours, the rest is torchrun's report: {'; '.join(rows)}; folders: {checkpoints}",
        held and well,
    )
