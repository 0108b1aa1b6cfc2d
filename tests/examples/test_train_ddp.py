"""PyTorch's own DDP and FSDP2 on the script's ring: the same losses everywhere, those of one rank."""

from tests.examples.scripts import as_torchrun, distance, results

SCRIPT = "train_ddp.py"
SHORT = ["--steps", "10"]
RUNS = {
    "one": ["--ranks", "1", *SHORT],
    "world": ["--ranks", "4", *SHORT],
    "processes": ["--ranks", "3", "--runner", "processes", *SHORT],
    "sharded": ["--ranks", "3", "--runner", "processes", "--fsdp", *SHORT],
}


def test_all_train_as_one_rank(tmp_path):
    runs = results(SCRIPT, RUNS, tmp_path)
    runs |= results(SCRIPT, {"torchrun": ["--fsdp", *SHORT]}, tmp_path, as_torchrun, ranks=2)
    for name, run in runs.items():
        assert distance(run, runs["one"]) < 1e-12, name
        assert f"loss {run['losses'][-1]:.9f}"[:14] in run["printed"]
    assert runs["one"]["losses"][-1] < 0.8 * runs["one"]["losses"][0]
