"""One script, three runners: the same losses, equal replicas, a network that has learned."""

import os
from unittest import mock

import pytest

from tests.examples.scripts import as_torchrun, by_torchrun, distance, results, run_here
from tests.size import FULL

SCRIPT = "train_digits.py"
EPOCHS = 12 if FULL else 4
SHORT = ["--epochs", str(EPOCHS)]
RUNS = {
    "serial": ["--ranks", "1"],
    "world": ["--ranks", "4", "--runner", "world"],
    "processes": ["--ranks", "4", "--runner", "processes"],
    "two": ["--ranks", "2"],
    "gloo": ["--ranks", "3", "--runner", "processes", "--transport", "gloo"],
}
KEEP_LAST = {
    "serial": ["--ranks", "1", "--keep-last", "--epochs", "2"],
    "world": ["--ranks", "8", "--keep-last", "--epochs", "2"],
}


def test_every_world(tmp_path, figure):
    """One test: what it starts is not started twice, on two workers."""
    runs = results(SCRIPT, {name: [*SHORT, *flags] for name, flags in RUNS.items()}, tmp_path)
    torchrun, ranks = (by_torchrun, 4) if FULL else (as_torchrun, 2)
    runs |= results(SCRIPT, {"torchrun": SHORT}, tmp_path, torchrun, ranks=ranks)
    for name, run in runs.items():
        figure(
            f"{name}: accuracy {run['accuracies'][-1]:.4f}, losses at most "
            f"{distance(run, runs['serial']):.1e} from serial"
        )
        assert distance(run, runs["serial"]) < 1e-12, name
        assert run["accuracies"] == runs["serial"]["accuracies"], name
        assert run["accuracies"][-1] > 0.95 and run["losses"][-1] < run["losses"][0] / 5
        assert (
            run["replicas_equal"]
            and len(set(run["digests"])) == 1
            and len(run["digests"]) == run["ranks"]
        )
        lines = [line for line in run["printed"].splitlines() if line.startswith("epoch")]
        assert len(lines) == len(run["losses"]) == EPOCHS, name
        assert (
            f"{run['losses'][-1]:.12f}" in lines[-1] and f"{run['accuracies'][-1]:.4f}" in lines[-1]
        )
        assert run["printed"].count("equal bit for bit") == 1
    for same in (("world", "processes"), ("processes" if FULL else "two", "torchrun")):
        assert len({runs[name]["digests"][0] for name in same}) == 1
    assert runs["serial"]["digests"] != runs["world"]["digests"][:1]  # another order of adding


def test_the_last_smaller_batch(tmp_path):
    found = results(SCRIPT, KEEP_LAST, tmp_path)
    assert distance(found["serial"], found["world"]) < 1e-12 and found["world"]["replicas_equal"]


def test_a_wrong_start_is_explained(capsys):
    with pytest.raises(SystemExit):
        run_here(SCRIPT, ["--runner", "torchrun"])
    assert "torchrun --nproc-per-node 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_here(SCRIPT, ["--ranks", "7"])
    assert "--batch 120 is not a multiple of 7 ranks" in capsys.readouterr().err
    with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2"), pytest.raises(SystemExit):
        run_here(SCRIPT, ["--ranks", "3"])
    assert "torchrun has started 2 ranks" in capsys.readouterr().err
