"""Mend, items 15 and 16: outputs that hold on every processor."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from .world import ROOT, run_tests, together

# Those that the instructions of another processor changed. `make portable` runs them all.
NOTEBOOKS = (
    "notebooks/06_buckets.ipynb",
    "notebooks/18_pipedream.ipynb",
    "notebooks/26_survive.ipynb",
)
SETTINGS = {
    "SSE": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "two threads": {"OMP_NUM_THREADS": "2"},
}


def tolerance() -> tuple[str, bool]:
    """Item 15: what is equal and what is not, as nbval sees it; the lint of what cannot be stable."""
    return together(
        run_tests("tests/repository/test_tolerance.py"),
        run_tests("tests/repository/test_stable.py"),
    )


def portable() -> tuple[str, bool]:
    """Item 16: the notebooks that failed elsewhere, in three settings; and that kernels and ranks have the settings."""
    rows = [run_tests("tests/repository/test_portable.py")]
    for name, setting in SETTINGS.items():
        env = os.environ | {"OMP_NUM_THREADS": "1"} | setting
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.warm",
            "-p",
            "no:cacheprovider",
            "--nbval",
            "--nbval-current-env",
            "--nbval-cell-timeout",
            "120",
            *NOTEBOOKS,
        ]
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        closing = re.findall(r"\d+ (?:passed|failed)[^\n]*", run.stdout)
        if run.returncode:
            print(run.stdout[-4000:])
        rows.append((f"{name}: {closing[-1] if closing else 'no result'}", run.returncode == 0))
    return together(*rows)
