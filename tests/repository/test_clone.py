"""From a clone to the end of `make test`, in an environment of its own."""

import json
import os
import subprocess
import time

import pytest

from tests.repository.files import ROOT

MINUTES = 15


def make(target, folder):
    """The exit code of `make`, what it printed, and how many minutes it took."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "MINIDIST_FULL")
    start = time.monotonic()
    done = subprocess.run(
        ["make", target],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in ours},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout, (time.monotonic() - start) / 60


@pytest.mark.full
def test_make_test_in_a_fresh_clone(tmp_path, figure):
    """`make test` drives `make lab` in a real browser. Only what needs a GPU may be skipped."""
    folder = tmp_path / "minidist"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    _, _, installing = make(".venv/.test", folder)
    code, text, minutes = make("test", folder)
    summary = json.loads((folder / "build" / "tests" / "summary.json").read_text())
    figure(f"installing: {installing:.1f} min; make test: {minutes:.1f} min, exit code {code}")
    for name, part in summary.items():
        figure(
            "{name}: {passed} passed, {failed} failed, {skipped} skipped".format(name=name, **part)
        )
    skips = [
        f"skipped: {test}: {reason}" for part in summary.values() for test, reason in part["skips"]
    ]
    figure("\n".join(skips))
    assert code == 0, text[-6000:]
    assert list(summary) == ["lint", "unit", "alone", "nbval"]
    assert all(part["passed"] and part["ended"] for part in summary.values())
    assert all("/gpu/" in skip for skip in skips)
    assert minutes < MINUTES
