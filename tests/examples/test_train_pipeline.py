"""A GPT in stages, its embedding tied over the first and the last: the serial losses in every world."""

import pytest

from tests.examples.gpts import SHORT, check_losses
from tests.examples.scripts import as_torchrun, results, run_here

SCRIPT = "train_pipeline.py"
RUNS = {
    "serial": ["--ranks", "1"],
    "world": ["--ranks", "4", "--schedule", "gpipe"],
    "processes": ["--ranks", "2", "--runner", "processes", "--schedule", "zb_h1"],
}


def test_the_serial_losses_in_every_world(tmp_path):
    runs = results(SCRIPT, {name: [*SHORT, *flags] for name, flags in RUNS.items()}, tmp_path)
    runs |= results(
        SCRIPT, {"torchrun": [*SHORT, "--micro-batches", "2"]}, tmp_path, as_torchrun, ranks=2
    )
    check_losses(runs)
    assert [run["peaks"] for run in runs.values()] == [[1], [4, 4, 4, 4], [2, 2], [2, 1]]
    assert runs["world"]["parts"] == [0, 1] and runs["serial"]["parts"] == [0, 4]


def test_bad_flags(capsys):
    with pytest.raises(SystemExit):
        run_here(SCRIPT, ["--micro-batches", "3"])
    assert "3 micro-batches do not divide a batch of 8" in capsys.readouterr().err
