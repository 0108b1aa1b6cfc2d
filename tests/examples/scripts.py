"""The scripts of examples/, run in this process or in the place of torchrun, and what they wrote."""

import contextlib
import io
import json
import runpy
import subprocess
import sys
from unittest import mock

from tests.comm.torchrun import in_its_place
from tests.largest import largest
from tests.repository.files import ROOT

FOLDER = str(ROOT / "examples")


def run_here(script, arguments):
    """What the script's `main` prints, run in this process: torch is imported already."""
    printed, path = io.StringIO(), f"{FOLDER}/{script}"
    here = (
        mock.patch.object(sys, "path", [FOLDER, *sys.path]),
        mock.patch.object(sys, "argv", [path, *arguments]),
    )
    with here[0], here[1], contextlib.redirect_stdout(printed):
        said = runpy.run_path(path)["main"]()
    assert said == 0, said
    return printed.getvalue()


def as_torchrun(script, arguments, ranks):
    """What the ranks print that find what torchrun leaves them, in processes that have imported torch already.

    torchrun itself starts train_gpt.py, in test_the_slurm_script, and what runs at full size."""
    return "".join(in_its_place(run_here, ranks, script, arguments))


def by_torchrun(script, arguments, ranks):
    """What all ranks print under torchrun itself."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [f"{FOLDER}/{script}", *arguments]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def results(script, runs, folder, runner=run_here, **kwargs):
    """{name: what the run wrote, and what it printed}, for {name: arguments}."""
    found = {}
    for name, arguments in runs.items():
        printed = runner(script, [*arguments, "--json", str(folder / f"{name}.json")], **kwargs)
        found[name] = json.loads((folder / f"{name}.json").read_text()) | {"printed": printed}
    return found


def distance(a, b):
    """The largest difference of two runs' losses."""
    return largest(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))
