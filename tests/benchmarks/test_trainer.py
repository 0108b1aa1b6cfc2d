"""The trainer as a whole: killed, it ends as if nothing had happened; on every grid, and from one to another, it has
the losses of one rank. What is not equal is found."""

import shutil

import pytest
import torch

from benchmarks.trainer import by_torchrun, flags, killed, same, trained
from minidist.checkpoint import files
from minidist.comm import World, launch
from tests.largest import largest
from tests.size import FULL

FIRST = "--dtype float64 --peak 1 --apart 0"
WANT = (
    f"{FIRST} --layers 1 --hidden 8 --context 8 --batch 4 --steps 12 --save-every 2 --dropout 0.1"
)
LARGER = f"{FIRST} --layers 2 --hidden 16 --context 32 --batch 8 --lr 0.01 --micro-batches 2"
LARGER += " --steps 24 --save-every 2 --dropout 0.1"
DEEP = f"{FIRST} --layers 4 --hidden 32 --context 32 --batch 16 --lr 0.01 --micro-batches 4"

# Flags, ranks, kills, and the longest time until one.
KILLS = [(WANT + " --zero 1", 2, 3, 1.0)]
if FULL:
    KILLS = [
        (LARGER + " --zero 1", 2, 50, 1.5),
        (LARGER + " --pp 2 --zero 2 --recompute full", 4, 50, 1.5),
    ]


@pytest.mark.parametrize(("want", "n", "count", "longest"), KILLS)
def test_kills(want, n, count, longest, tmp_path, figure):
    """At random moments. Every parameter and state at the end is equal to those of an undisturbed run, bit for bit."""
    text = "To be, or not to be, that is the question: whether 'tis nobler in the mind. "
    (tmp_path / "text").write_text(text * 100)
    runs = killed(tmp_path, n, [*want.split(), "--text", str(tmp_path / "text")], count, longest)
    figure(
        f"{n} ranks: {sum(run.kills for run in runs)} kills, {sum(run.saving for run in runs)} in the middle of a "
        f"save, at most {max(run.lost for run in runs)} steps lost; {sum(run.equal for run in runs)} of {len(runs)} "
        "runs end equal, bit for bit"
    )
    assert sum(run.kills for run in runs) == count and all(run.equal for run in runs)
    # 2 since the last save, and those beside which it was being written
    assert FULL or all(run.lost <= 4 for run in runs)


def test_it_is_the_trainer():
    found = World(1).run(trained, flags(*WANT.split()))[0]
    assert len(found["losses"]) == 12


def test_what_differs_is_found():
    one = {"x": torch.zeros(2), "y": torch.ones(1)}
    assert same(one, {"x": torch.zeros(2), "y": torch.ones(1)}) and not same(
        one, {"x": torch.zeros(2)}
    )
    assert not same(one, one | {"y": torch.ones(1).nextafter(torch.zeros(1))})


def off(losses, serial):
    """The largest difference of two runs' losses."""
    return largest(abs(a - b) for a, b in zip(losses, serial, strict=True))


@pytest.mark.full
def test_ranks_are_killed_under_torchrun(tmp_path, figure):
    want = f"{DEEP} --steps 60 --save-every 5 --zero 1".split()
    at = (12, 27, 44)
    found = by_torchrun(4, tmp_path, *want, "--tp", "2", kill_at=at)
    serial = launch(trained, 1, flags(*want))[0]["losses"]
    printed = (tmp_path / "printed").read_text()
    resumed = [int(words.split()[0]) for words in printed.split("goes on at step ")[1:]]
    figure(
        f"torchrun --max-restarts {len(at)}, a rank killed after the steps {at}, saved every 5: went on at {resumed}; "
        f"losses are off the serial ones by {off(found['losses'], serial):.1e}"
    )
    assert off(found["losses"], serial) < 1e-10 and len(resumed) == len(at)


OPTIONS = {
    "plain": "",
    "ZeRO 1, full recomputation": "--zero 1 --recompute full",
    "ZeRO 2, full recomputation": "--zero 2 --recompute full",
    "ZeRO 3, full recomputation": "--zero 3 --recompute full",
    "sequence parallel, two chunks, rotary, SwiGLU, untied": "--sequence-parallel --schedule interleaved --chunks 2 "
    "--positions rotary --mlp swiglu --no-tied",
}


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
def test_a_grid_of_eight_ranks_under_torchrun(name, tmp_path, figure):
    """Two each of data, pipeline and tensor ranks; 1F1B if not said otherwise."""
    want = f"{DEEP} --steps 50 {OPTIONS[name]}".split()
    alone = flags(*want, "--schedule", "one_f_one_b", "--chunks", "1")
    serial = launch(trained, 1, alone)[0]["losses"]
    found = by_torchrun(8, tmp_path, *want, "--dp", "2", "--pp", "2", "--tp", "2")["losses"]
    figure(f"{name}: {off(found, serial):.1e} off; loss {serial[0]:.4f} to {serial[-1]:.4f}")
    assert off(found, serial) < 1e-10 and len(serial) == 50


@pytest.mark.full
def test_saved_on_a_cube_and_resumed_elsewhere(tmp_path, figure):
    """Saved after 10 of 20 steps on dp 2, pp 2, tp 2."""
    want = f"{DEEP} --steps 20 --save-every 10".split()
    serial = launch(trained, 1, flags(*want))[0]["losses"]
    first = tmp_path / "first"
    cube = ("--dp", 2, "--pp", 2, "--tp", 2, "--zero", 1)
    launch(trained, 8, flags(*want, "--folder", first, *cube), timeout=120)
    shutil.rmtree(files.finished(first)[-1])  # that of step 20
    for dp, pp, tp in ((1, 1, 1), (4, 1, 2), (1, 4, 1)):
        here = shutil.copytree(first, tmp_path / f"{dp}{pp}{tp}")
        grid = ("--dp", dp, "--pp", pp, "--tp", tp, "--zero", dp // 2)
        args = flags(*want, "--folder", here, *grid)
        losses = launch(trained, dp * pp * tp, args, timeout=120)[0]["losses"]
        figure(f"resumed on dp {dp}, pp {pp}, tp {tp}: {off(losses, serial):.1e} off")
        assert off(losses, serial) < 1e-10
