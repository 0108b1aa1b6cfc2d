"""Runs of the trainer that are killed: they end as if nothing had happened, and what is not equal is found."""

import torch

from benchmarks.trainer import flags, killed, same, trained
from minidist.comm import World

WANT = [
    "--dtype",
    "float64",
    "--layers",
    "1",
    "--hidden",
    "8",
    "--context",
    "8",
    "--batch",
    "4",
    "--steps",
    "12",
    "--save-every",
    "2",
    "--dropout",
    "0.1",
    "--peak",
    "1",
    "--apart",
    "0",
    "--zero",
    "1",
]


def test_three_kills(tmp_path):
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 40)
    runs = killed(tmp_path, 2, [*WANT, "--text", str(tmp_path / "text")], 3, 1.0)
    assert sum(run.kills for run in runs) == 3 and all(run.equal for run in runs)
    # 2 since the last save, and those beside which it was being written
    assert all(run.lost <= 4 for run in runs)


def test_it_is_the_trainer():
    found = World(1).run(trained, flags(*WANT))[0]
    assert len(found["losses"]) == 12


def test_what_differs_is_found():
    one = {"x": torch.zeros(2), "y": torch.ones(1)}
    assert same(one, {"x": torch.zeros(2), "y": torch.ones(1)}) and not same(
        one, {"x": torch.zeros(2)}
    )
    assert not same(one, one | {"y": torch.ones(1).nextafter(torch.zeros(1))})
