"""A GPT whose layers and vocabulary are split: the serial losses in every world."""

from tests.examples.gpts import SHORT, check_losses
from tests.examples.scripts import as_torchrun, results

SCRIPT = "train_tensor.py"
RUNS = {
    "serial": ["--ranks", "1"],
    "world, uneven": ["--ranks", "3"],
    "processes, sequence": ["--ranks", "2", "--runner", "processes", "--sequence"],
}


def test_the_serial_losses_in_every_world(tmp_path):
    runs = results(SCRIPT, {name: [*SHORT, *flags] for name, flags in RUNS.items()}, tmp_path)
    runs |= results(SCRIPT, {"torchrun": SHORT}, tmp_path, as_torchrun, ranks=2)
    check_losses(runs)
    assert [run["ranks"] for run in runs.values()] == [1, 3, 2, 2]
    held = {run["ranks"]: run["parameters"] for run in runs.values()}
    whole = 12 * 16 + 2 * 6 * 16 + 2 * 16  # positions; norms and biases after g; the last norm
    assert held[2] - whole == (held[1] - whole) / 2 and held[3] < held[2]
