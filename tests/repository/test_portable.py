"""`make portable`: all notebooks, as other processors and two threads compute them, in kernels and in ranks alike."""

import os
import re
import subprocess
import sys

import nbformat.v4 as v4
import pytest
from nbformat import writes

from tests.all import parts
from tests.repository.files import ROOT, repository

SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
)


PORTABLE = (
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OMP_NUM_THREADS": "1",
    },
    {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "1",
    },
    {"OMP_NUM_THREADS": "2"},
)
# Those that the instructions of another processor changed, before floats were compared as floats.
CHANGED = ("06_buckets", "18_pipedream", "26_survive")
NBVAL = ("-p", "no:cacheprovider", "-p", "tests.warm", "--nbval", "--nbval-current-env")


def test_make_portable_runs_every_notebook_in_each_setting():
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAKE") and name not in SETTINGS
    }
    told = subprocess.run(
        ["make", "-n", "portable"], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    found, outer = [], {}
    for line in told.stdout.splitlines():
        if re.search(r"\bmake\S* nbval", line):
            pairs = re.findall(r"(\w+)=(\S+)", line)
            outer = {name: value for name, value in pairs if name in SETTINGS}
        elif "tests.all nbval" in line:
            threads = int(re.search(r"--threads (\d+)", line)[1])
            [part] = [part for part in parts(2, threads) if part.name == "nbval"]
            found.append(outer | part.settings)
            notebooks = repository("notebooks/*.ipynb", "solutions/*.ipynb")
            assert {str(path) for path in notebooks} <= set(part.command())
            assert "--nbval" in part.command()
    assert found == [*PORTABLE]


@pytest.mark.full
@pytest.mark.parametrize("setting", PORTABLE, ids=("SSE", "AVX2", "two threads"))
@pytest.mark.parametrize("name", CHANGED)
def test_a_notebook_elsewhere(name, setting):
    command = [
        "-m",
        "pytest",
        "-q",
        *NBVAL,
        "--nbval-cell-timeout",
        "120",
        f"notebooks/{name}.ipynb",
    ]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | setting,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


CELL = """
import torch
from minidist.comm import World, launch

def capability(comm):
    from torch.backends.cpu import get_cpu_capability

    return get_cpu_capability()

print(torch.get_num_threads(), *World(2).run(capability), *launch(capability, 2))
"""


def test_kernels_and_ranks_have_the_setting(tmp_path):
    env = os.environ | {
        "ATEN_CPU_CAPABILITY": "default",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(ROOT),
    }
    output = v4.new_output("stream", name="stdout", text="2" + " DEFAULT" * 4 + "\n")
    made = v4.new_notebook(cells=[v4.new_code_cell(CELL, execution_count=1, outputs=[output])])
    (tmp_path / "one.ipynb").write_text(writes(made))
    command = [
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        *NBVAL,
        "one.ipynb",
    ]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
