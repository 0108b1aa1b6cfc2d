"""What the first hour compares: ranks of a World on one GPU with the serial run, and runs of the scripts in examples/.

    python -m tests.gpu.runs saving --ranks 4 --backend nccl

A function raises AssertionError where something is not as it must be, and returns in words what was seen. How scripts
are started is handed in: by torchrun here, in its place by the tests of this on a CPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from minidist.checkpoint import Saved, files, random_state, set_random_state
from minidist.comm import World
from tests import parallelized
from tests.examples.scripts import FOLDER, distance, results, run_here
from tests.gpu.ranks import as_serial, train
from tests.test_parallelize import CASES, STEPS

SHARED = ("one rank, zero 3", "dp 2, pp 2, overlapped", "tp 2", "zero 2", "all at once")
LEVELS = ("O1", "O2", "O3")
SHORT = [
    "--layers",
    "2",
    "--hidden",
    "32",
    "--context",
    "16",
    "--sample",
    "4",
    "--warm-up",
    "2",
    "--lr",
    "0.01",
]


def torchrun(ranks):
    """The command that starts so many ranks on this machine."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]


def by_torchrun(script, arguments, ranks):
    """What the script's ranks print; its standard error goes where ours does."""
    return subprocess.run(
        [*torchrun(ranks), f"{FOLDER}/{script}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


# In this process: a World.


def world(device):
    """Ranks that share one device train as one rank does on a CPU; in 16 bits nearly; its generator goes on."""
    for name in SHARED:
        shared(device, name)
    for level in LEVELS:
        half(device, level)
    if device == "cuda":
        generator_goes_on()
    return f"{len(SHARED)} grids on one {device} as one rank, {len(LEVELS)} levels of 16 bits close to it"


def shared(device, name):
    axes, shape, options = CASES[name]
    n = parallelized.ranks(dict(enumerate(axes)))
    as_serial(name, shape, World(n, device=device).run(train, axes, shape, options))


def half(device, level):
    shape = parallelized.SHAPE | dict(dtype=torch.float32)
    [(losses, _)] = World(1, device=device).run(
        parallelized.train, dict(dp=1), shape, dict(amp=level), STEPS
    )
    whole, _ = parallelized.serial(shape, STEPS)
    gaps = [abs(a - b) for a, b in zip(losses, whole, strict=True)]
    assert all(0 < gap < 0.03 for gap in gaps), (level, losses, whole)  # not in 32 bits


def generator_goes_on():
    """What a GPU draws after `set_random_state` is what it drew after `random_state`."""
    torch.rand(1, device="cuda")
    state = random_state()
    following = torch.rand(5, device="cuda")
    set_random_state(state)
    assert state["cuda"] is not None
    assert torch.equal(torch.rand(5, device="cuda"), following)


# Scripts.


def digits(run, ranks, backend, folder):
    """The same losses on the CPU, as one rank and over gloo, and over `backend`; replicas equal bit for bit."""
    short = ["--epochs", "3"]
    found = results("train_digits.py", {"serial": [*short, "--ranks", "1"]}, folder, run_here)
    runs = {name: [*short, "--backend", name] for name in dict.fromkeys(("gloo", backend))}
    found |= results("train_digits.py", runs, folder, run, ranks=ranks)
    apart = {name: distance(found[name], found["serial"]) for name in runs}
    assert all(gap < 1e-9 for gap in apart.values()), apart
    assert all(found[name]["replicas_equal"] and found[name]["ranks"] == ranks for name in runs)
    return f"ranks: {ranks}, over {' and '.join(runs)} the losses of one, at most {max(apart.values()):.1e} off"


def trainer(run, ranks, backend, folder):
    """In 16 bits, with ZeRO 3, whole layers computed again: it learns, goes on where it was, says how fast it is."""
    flags = [
        *SHORT,
        "--batch",
        str(2 * ranks),
        "--zero",
        "3",
        "--amp",
        "O2",
        "--recompute",
        "full",
        "--backend",
        backend,
        "--folder",
        str(folder / "run"),
    ]
    runs = {steps: [*flags, "--steps", steps] for steps in ("3", "6")}
    found = results("train_gpt.py", runs, folder, run, ranks=ranks)
    assert (
        "goes on at step 3" in found["6"]["printed"]
        and found["6"]["losses"][:3] == found["3"]["losses"]
    )
    assert found["6"]["losses"][-1] < found["6"]["losses"][0], found["6"]["losses"]
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 6 and all(line["MFU"] > 0 and line["tokens/s"] > 0 for line in lines)
    first, *_, last = found["6"]["losses"]
    return f"6 steps with a stop after 3, loss {first:.2f} to {last:.2f}, {lines[-1]['GB']:.2f} GB a rank"


def saving(run, ranks, backend, folder):
    """Saved beside the run at every step: the losses are those of a run that saves nothing, and every checkpoint is
    whole. From one in the midst a run goes on as if it had not been stopped; for its dropout the generators must, too.
    """
    steps, kept = 6, folder / "run"
    grid = {1: [], 2: ["--zero", "3"], 3: ["--zero", "2"]}.get(ranks, ["--pp", "2", "--zero", "2"])
    flags = [
        *SHORT,
        "--dtype",
        "float64",
        "--dropout",
        "0.1",
        "--batch",
        str(2 * ranks),
        "--micro-batches",
        "2",
        *grid,
        "--steps",
        str(steps),
        "--backend",
        backend,
    ]
    saves = [*flags, "--save-every", "1", "--keep", "100", "--folder", str(kept)]
    found = results("train_gpt.py", {"never": flags, "always": saves}, folder, run, ranks=ranks)
    whole = files.finished(kept)
    assert [Saved(path).step for path in whole] == list(range(1, steps + 1)), whole
    for path in whole:
        Saved(path).verify()
    for path in whole[steps // 2 :]:
        shutil.rmtree(path)
    found |= results("train_gpt.py", {"again": saves}, folder, run, ranks=ranks)
    assert f"goes on at step {steps // 2}" in found["again"]["printed"]
    apart = {name: distance(found[name], found["never"]) for name in ("always", "again")}
    assert all(gap < 1e-9 for gap in apart.values()), apart
    return f"ranks: {ranks}, checkpoints: {steps}, each whole; losses at most {max(apart.values()):.1e} off"


RUNS = {"digits": digits, "trainer": trainer, "saving": saving}


def main():
    flags = argparse.ArgumentParser(description="Comparisons of the first hour.")
    flags.add_argument("name", choices=["world", *RUNS])
    flags.add_argument("--ranks", type=int, default=1)
    flags.add_argument("--backend", required=True)
    args = flags.parse_args()
    if args.name == "world":
        print("seen:", world("cuda" if args.backend == "nccl" else "cpu"))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        print("seen:", RUNS[args.name](by_torchrun, args.ranks, args.backend, Path(folder)))


if __name__ == "__main__":
    main()
