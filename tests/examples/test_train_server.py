"""The script in three worlds: synchronous training as one worker would, the other modes learn, too."""

import pytest

from tests.examples.scripts import as_torchrun, results, run_here
from tests.largest import largest

SCRIPT = "train_server.py"
SHORT = ["--epochs", "2"]
SYNC = {
    "one": ["--ranks", "2", *SHORT],
    "world": ["--ranks", "5", "--servers", "2", "--runner", "world", *SHORT],
    "processes": ["--ranks", "4", "--runner", "processes", *SHORT],
}
OTHERS = {
    "async": ["--ranks", "4", "--mode", "async", "--momentum", "0", *SHORT],
    "ssp": [
        "--ranks",
        "4",
        "--mode",
        "ssp",
        "--bound",
        "1",
        "--servers",
        "2",
        "--momentum",
        "0",
        *SHORT,
    ],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    started = results(
        SCRIPT, {"torchrun": ["--servers", "2", *SHORT]}, folder, as_torchrun, ranks=4
    )
    return results(SCRIPT, SYNC, folder) | started


def test_synchronous_training_is_one_workers(runs):
    for name, run in runs.items():
        far = [abs(a - b) for a, b in zip(run["weights"], runs["one"]["weights"], strict=True)]
        assert largest(far) < 1e-10 and run["accuracy"] == runs["one"]["accuracy"] > 0.85, name
        assert run["stale"] == 0 and run["updates"] == 2 * 11 * (run["ranks"] - len(run["nbytes"]))
        assert f"accuracy {run['accuracy']:.4f}" in run["printed"] and "mode sync" in run["printed"]


def test_the_other_modes_learn(tmp_path):
    for name, run in results(SCRIPT, OTHERS, tmp_path).items():
        assert run["accuracy"] > 0.8 and 0 < run["stale"] <= (6 if name == "ssp" else 99), name
        assert max(run["nbytes"]) - min(run["nbytes"]) <= 8


def test_a_wrong_start_is_explained(capsys):
    with pytest.raises(SystemExit):
        run_here(SCRIPT, ["--ranks", "2", "--servers", "2"])
    assert "2 servers among 2 ranks" in capsys.readouterr().err
