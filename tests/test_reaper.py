"""When a run of the tests is killed in the midst, nothing that it has started is left."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.comm.children import lives, until
from tests.repository.files import ROOT

SECONDS = 10  # for all to be gone; two seconds do where nothing else runs


def under(pid):
    """The process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


@pytest.mark.alone
@pytest.mark.parametrize(
    ("what", "pids", "killed"),
    [
        ("test_lost", 0, "all"),
        ("test_ranks", 4, "worker"),
        ("test_kernel_and_lost", 6, "first"),
    ],
)
def test_nothing_outlives_a_killed_run(what, pids, killed, tmp_path):
    """kill -9 when so many processes have said that they are there: to the first pytest, a worker, or all at once."""
    told = tmp_path / "pids"
    told.touch()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.warm",
        "-p",
        "no:cacheprovider",
        "-n",
        "1",
        f"tests/reaped.py::{what}",
    ]
    first = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"REAPED": str(told)}, stdout=subprocess.DEVNULL
    )
    started = []
    try:
        assert until(
            lambda: len(under(first.pid)) > 2 and len(told.read_text().split()) >= pids, 60
        )
        below = under(first.pid)
        # as xdist starts them
        workers = [p for p in below[0].children() if "readline" in " ".join(p.cmdline())]
        assert len(workers) == 1
        ended = {"first": below[:1], "worker": workers, "all": [below[0], *workers]}[killed]
        started = [p.pid for p in (under(workers[0].pid) if killed == "worker" else below)]
        started += [int(pid) for pid in told.read_text().split()]
        for process in ended:
            process.kill()
        first.poll()
        left = lambda: [pid for pid in started if lives(pid)]
        assert until(lambda: not left(), SECONDS), [psutil.Process(pid).cmdline() for pid in left()]
    finally:
        for process in [*under(first.pid), *(p for pid in started for p in under(pid))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        first.wait()
