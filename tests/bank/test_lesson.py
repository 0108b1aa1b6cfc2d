"""All of a lesson: its planted answers, and its notebooks executed and compared, within their time."""

import os
import subprocess
import sys
import time

import pytest

from tests.bank.__main__ import faults
from tests.bank.bank import ROOT, lessons, planted

BANK_SECONDS = 45
NOTEBOOK_SECONDS = 30
NBVAL = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env")


@pytest.mark.full
@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in lessons()])
def test_a_lesson(folder, figure):
    name = folder.name
    start = time.monotonic()
    wrong, caught = faults(folder)
    took = time.monotonic() - start
    figure(f"{name}: {caught} of {len(planted(folder))} planted answers are caught in {took:.0f} s")
    assert not wrong and caught == len(planted(folder)) and took < BANK_SECONDS
    taught = [f"notebooks/{name}.ipynb"] if (folder / "lesson.py").exists() else []
    for notebook in [*taught, f"solutions/{name}/{name}.ipynb"]:
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, *NBVAL, "--nbval-cell-timeout", "120", notebook],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        took = time.monotonic() - start
        figure(f"{notebook}: executed and compared in {took:.0f} s")
        assert done.returncode == 0, done.stdout[-3000:]
        assert took < NOTEBOOK_SECONDS
