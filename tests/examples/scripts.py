"""The scripts of examples/, run in this process, under torchrun or in its place, and what they wrote."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from unittest import mock

from tests.comm.torchrun import in_its_place
from tests.repository.files import ROOT

FOLDER = str(ROOT / "examples")


def run_here(script, arguments):
    """What the script's `main` prints, run in this process: torch is imported already."""
    printed, path = io.StringIO(), f"{FOLDER}/{script}"
    here = mock.patch.object(sys, "path", [FOLDER, *sys.path]), mock.patch.object(sys, "argv", [path, *arguments])
    with here[0], here[1], contextlib.redirect_stdout(printed):
        assert runpy.run_path(path)["main"]() == 0
    return printed.getvalue()


def torchrun(script, arguments, ranks):
    """What the ranks print, started by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, f"{FOLDER}/{script}", *arguments], env=environment, capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_torchrun(script, arguments, ranks):
    """The same, in processes that have imported torch already."""
    return "".join(in_its_place(run_here, ranks, script, arguments))


def results(script, runs, folder, runner=run_here, **kwargs):
    """{name: what the run wrote, and what it printed}, for {name: arguments}."""
    found = {}
    for name, arguments in runs.items():
        printed = runner(script, [*arguments, "--json", str(folder / f"{name}.json")], **kwargs)
        found[name] = json.loads((folder / f"{name}.json").read_text()) | {"printed": printed}
    return found


def distance(a, b):
    """The largest difference of two runs' losses."""
    return max(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))
