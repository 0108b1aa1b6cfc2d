"""One script, three runners: the same losses, equal replicas, a network that has learned."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from unittest import mock

import pytest

from tests.repository.files import ROOT

SCRIPT = str(ROOT / "examples" / "train_digits.py")
RUNS = {
    "serial": ["--ranks", "1"],
    "world": ["--ranks", "4", "--runner", "world"],
    "processes": ["--ranks", "4", "--runner", "processes"],
    "gloo": ["--ranks", "3", "--runner", "processes", "--transport", "gloo"],
}
KEEP_LAST = {
    "serial": ["--ranks", "1", "--keep-last", "--epochs", "2"],
    "world": ["--ranks", "8", "--keep-last", "--epochs", "2"],
}


def run_here(arguments):
    """What the script's `main` prints, run in this process: torch is imported already."""
    printed = io.StringIO()
    with mock.patch.object(sys, "argv", [SCRIPT, *arguments]), contextlib.redirect_stdout(printed):
        assert runpy.run_path(SCRIPT)["main"]() == 0
    return printed.getvalue()


def torchrun(arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", SCRIPT]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(runs, folder, runner=run_here):
    """{name: what the run wrote}, and what it printed."""
    found = {}
    for name, arguments in runs.items():
        printed = runner([*arguments, "--json", str(folder / f"{name}.json")])
        found[name] = json.loads((folder / f"{name}.json").read_text()) | {"printed": printed}
    return found


def distance(a, b):
    return max(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return results(RUNS, folder) | results({"torchrun": []}, folder, torchrun)


def test_losses_are_the_serial_runs(runs):
    for name, run in runs.items():
        assert distance(run, runs["serial"]) < 1e-12, name
        assert run["accuracies"] == runs["serial"]["accuracies"], name


def test_it_has_learned(runs):
    for run in runs.values():
        assert run["accuracies"][-1] > 0.95 and run["losses"][-1] < run["losses"][0] / 5


def test_replicas_are_equal_and_so_are_the_worlds(runs):
    for run in runs.values():
        assert run["replicas_equal"] and len(set(run["digests"])) == 1 and len(run["digests"]) == run["ranks"]
    assert len({runs[name]["digests"][0] for name in ("world", "processes", "torchrun")}) == 1
    assert runs["serial"]["digests"] != runs["world"]["digests"][:1]  # another order of adding


def test_rank_0_prints(runs):
    for name, run in runs.items():
        lines = [line for line in run["printed"].splitlines() if line.startswith("epoch")]
        assert len(lines) == len(run["losses"]) == 12, name
        assert f"{run['losses'][-1]:.12f}" in lines[-1] and f"{run['accuracies'][-1]:.4f}" in lines[-1]
        assert run["printed"].count("equal bit for bit") == 1


def test_the_last_smaller_batch(tmp_path):
    found = results(KEEP_LAST, tmp_path)
    assert distance(found["serial"], found["world"]) < 1e-12 and found["world"]["replicas_equal"]


def test_a_wrong_start_is_explained(capsys):
    with pytest.raises(SystemExit):
        run_here(["--runner", "torchrun"])
    assert "torchrun --nproc-per-node 4" in capsys.readouterr().err
    with pytest.raises(ValueError, match="120 samples of a batch do not split over 7 ranks"):
        run_here(["--ranks", "7"])
    with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2"), pytest.raises(SystemExit):
        run_here(["--ranks", "3"])
    assert "torchrun has started 2 ranks" in capsys.readouterr().err
