"""The program of the slow link on a virtual clock, with a small network, and what is printed of it."""

import pytest
import torch

from benchmarks import slow_link, slow_train
from benchmarks.hosts import left_over, missing, remove
from benchmarks.slow_train import AT_MOST, TARGET, WAYS
from minidist.comm import World
from minidist.tasks import digits

PARAMS = 64 * 32 + 32 + 32 * 10 + 10
ALPHA = 1e-3


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    if not request.node.get_closest_marker("full"):
        monkeypatch.setattr(slow_train, "WIDTHS", [64, 32, 10])


def test_each_way_learns_and_counts_its_steps():
    task = digits(torch.float32)
    for way in WAYS:
        steps = 16 if way.startswith("DGC") else 8  # most of its gradients have to gather first
        first, second = World(2).run(slow_train.until, way, task, 0.0, steps)
        assert first == second and first["steps"] == steps and len(first["losses"]) == steps // 8
        assert first["losses"][-1] < 2.3, way  # chance is ln 10 = 2.303
    assert World(2).run(slow_train.until, "dense", task, 2.4, 16)[0]["steps"] == 8


def predicted(way, megabits=1.0):
    return slow_link.predicted(megabits, ALPHA, way, 0.5, 0.0, 8)["seconds"]


def test_dense_takes_what_the_formula_says():
    """1 Mbit/s, half a second of computing: 8 steps of two messages of half the gradients and 4 flags."""
    beta = 8 / (1e6 * slow_link.PAYLOAD)
    message = 2 * (ALPHA + 4 * (PARAMS + 4) / 2 * beta)
    # the rest: agreeing on a time
    assert predicted("dense") == pytest.approx(8 * (0.5 + message), rel=0.02)


def test_local_sgd_takes_an_eighth_of_it():
    beta = 8 / (1e6 * slow_link.PAYLOAD)
    message = 2 * (ALPHA + 4 * PARAMS / 2 * beta)
    assert predicted("Local SGD") == pytest.approx(8 * 0.5 + message, rel=0.02)
    assert predicted("fp16") < predicted("dense") and predicted("dense", 2.0) < predicted("dense")


def test_where_it_cannot_be_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(slow_link, "missing", lambda: "there is no tc")
    monkeypatch.setattr("sys.argv", ["slow_link"])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    assert slow_link.main() == 0
    assert capsys.readouterr().out == "skipped: there is no tc\n"


def test_the_table(monkeypatch, capsys):
    run = {"steps": 8, "seconds": 20.0, "alone": 0.5, "loss": 0.1, "losses": [0.1]}
    ways = {"dense": run, "Local SGD": run | {"seconds": 10.0}}
    monkeypatch.setattr(slow_link, "measure", lambda *_: {"alpha": ALPHA, "ways": ways})
    rows = slow_link.table(1, list(ways), 0.0, 8)
    assert [row["way"] for row in rows] == list(ways) and all(row["same_steps"] for row in rows)
    assert "ratio 1_Mbit/s_Local_SGD 2.000" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("megabits", slow_link.RATES)
def test_time_to_a_loss(megabits, figure):
    """All reach it, after as many steps as in the World. At 100 Mbit/s talking less is faster than dense, both where
    it is measured and where it is predicted."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    remove(left_over())
    found = slow_link.table(megabits, list(WAYS), TARGET, AT_MOST)
    dense = found[0]
    for row in found:
        figure(
            f"{megabits} Mbit/s, {row['way']}: {row['steps']} steps, {row['seconds']:.2f} s measured, "
            f"{row['said']:.2f} s predicted; {dense['seconds'] / row['seconds']:.2f} and "
            f"{dense['said'] / row['said']:.2f} times as fast as dense"
        )
    assert all(row["loss"] <= TARGET and row["same_steps"] for row in found)
    if megabits == slow_link.RATES[0]:
        for row in found[1:]:
            assert row["seconds"] < dense["seconds"] and row["said"] < dense["said"], row["way"]
