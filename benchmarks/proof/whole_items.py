"""The trainer as a whole: equal on every grid, killed and resumed, saved on one grid and resumed on another."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import two_hosts as pair
from benchmarks.hosts import left_over, missing, remove
from benchmarks.prose import prose
from benchmarks.trainer import by_torchrun, flags, killed, trained
from minidist.checkpoint import files
from minidist.comm import launch
from minidist.study.plan import TABLES, errors
from tests.largest import largest

SMALL = [
    "--dtype",
    "float64",
    "--layers",
    "4",
    "--hidden",
    "32",
    "--context",
    "32",
    "--batch",
    "16",
    "--lr",
    "0.01",
    "--micro-batches",
    "4",
    "--peak",
    "1",
    "--apart",
    "0",
]
OPTIONS = {
    "plain": [],
    "ZeRO 1, full recomputation": ["--zero", "1", "--recompute", "full"],
    "ZeRO 2, full recomputation": ["--zero", "2", "--recompute", "full"],
    "ZeRO 3, full recomputation": ["--zero", "3", "--recompute", "full"],
    "sequence parallel, two chunks, rotary, SwiGLU, untied": [
        "--sequence-parallel",
        "--schedule",
        "interleaved",
        "--chunks",
        "2",
        "--positions",
        "rotary",
        "--mlp",
        "swiglu",
        "--no-tied",
    ],
}


def distance(a: list[float], b: list[float]) -> float:
    """The largest difference of two runs' losses; of runs with another number of steps, infinite."""
    return (
        largest(abs(x - y) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else float("inf")
    )


def grids() -> tuple[str, bool]:
    """Item 1: torchrun with 8 ranks as (2, 2, 2), 50 steps, against the serial run."""
    rows, held = (
        [
            "torchrun, dp 2, pp 2, tp 2, 1F1B, 4 micro-batches, 50 steps in float64; off the serial losses"
        ],
        True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, more in OPTIONS.items():
            want = [*SMALL, "--steps", "50", *more]
            serial = launch(
                trained, 1, flags(*want, *(["--schedule", "one_f_one_b", "--chunks", "1"]))
            )[0]
            found = by_torchrun(8, Path(folder, name), *want, "--dp", "2", "--pp", "2", "--tp", "2")
            off = distance(found["losses"], serial["losses"])
            held &= off < 1e-10 and len(serial["losses"]) == 50
            rows.append(
                f"{name}: {off:.1e}; loss {serial['losses'][0]:.4f} to {serial['losses'][-1]:.4f}"
            )
    return "\n".join(rows), held


def text() -> tuple[str, bool]:
    """Item 2: Python's reference, as `examples/train_gpt.toml` says."""
    found = prose()
    return str(found), found.bits < found.xz and found.known > 0.9


def kills() -> tuple[str, bool]:
    """Item 3: 100 kills."""
    rows, held = (
        [
            "save every 2 steps beside the program, dropout, 24 steps a run, SIGKILL at random moments"
        ],
        True,
    )
    want = [
        *SMALL,
        "--layers",
        "2",
        "--hidden",
        "16",
        "--steps",
        "24",
        "--save-every",
        "2",
        "--dropout",
        "0.1",
        "--batch",
        "8",
        "--micro-batches",
        "2",
    ]
    for n, count, more in (
        (2, 50, ["--zero", "1"]),
        (4, 50, ["--pp", "2", "--zero", "2", "--recompute", "full"]),
    ):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text")
            text.write_text(
                "To be, or not to be, that is the question: whether 'tis nobler in the mind. " * 100
            )
            runs = killed(Path(folder), n, [*want, *more, "--text", str(text)], count, 1.5)
        died, saving, equal = (
            sum(getattr(run, name) for run in runs) for name in ("kills", "saving", "equal")
        )
        held &= equal == len(runs) and died == count
        rows.append(
            f"n={n}, {' '.join(more)}: {died} kills, {saving} in the middle of a save, at most "
            f"{max(run.lost for run in runs)} steps lost; {equal} of {len(runs)} runs end with every parameter "
            "and state equal, bit for bit"
        )
    with tempfile.TemporaryDirectory() as folder:
        want = [*SMALL, "--steps", "60", "--save-every", "5", "--tp", "2", "--zero", "1"]
        at = (12, 27, 44)
        found = by_torchrun(4, Path(folder), *want, kill_at=at)
        printed = Path(folder, "printed").read_text()
    off = distance(found["losses"], launch(trained, 1, flags(*want, "--tp", "1"))[0]["losses"])
    resumed = [int(words.split()[0]) for words in printed.split("goes on at step ")[1:]]
    held &= off < 1e-10 and len(resumed) == len(at)
    rows.append(
        f"torchrun --max-restarts {len(at)}, a rank killed after the steps {at}, save every 5: went on at "
        f"{resumed}; losses are off the serial ones by {off:.1e}"
    )
    return "\n".join(rows), held


def regrid() -> tuple[str, bool]:
    """Item 4: saved on (2, 2, 2) after half of a run, resumed on others."""
    rows, held = (
        ["saved after 10 of 20 steps on (2, 2, 2), as (dp, pp, tp); off the serial losses"],
        True,
    )
    want = [*SMALL, "--steps", "20", "--save-every", "10"]
    serial = launch(trained, 1, flags(*want))[0]["losses"]
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "first")
        launch(
            trained,
            8,
            flags(*want, "--folder", first, "--dp", 2, "--pp", 2, "--tp", 2, "--zero", 1),
            timeout=120,
        )
        shutil.rmtree(files.finished(first)[-1])  # that of step 20
        for dp, pp, tp in ((1, 1, 1), (4, 1, 2), (1, 4, 1)):
            here = Path(shutil.copytree(first, Path(folder, f"{dp}{pp}{tp}")))
            args = flags(
                *want, "--folder", here, "--dp", dp, "--pp", pp, "--tp", tp, "--zero", dp // 2
            )
            losses = launch(trained, dp * pp * tp, args, timeout=120)[0]["losses"]
            off = distance(losses, serial)
            held &= off < 1e-10
            rows.append(f"resumed on ({dp}, {pp}, {tp}): {off:.1e}")
    return "\n".join(rows), held


def planner() -> tuple[str, bool]:
    """Item 5: every published run beside what the planner says, one constant for the accelerator; and its own time."""
    rows, held = [], True
    for name in TABLES:
        found = errors(name)
        rows.append(f"{name}: {len(found.rows)} runs; {found.words}")
        for row in found.rows:
            memory = "" if row.memory is None else f"; memory {row.memory:+.1%}"
            rows.append(
                f"  {row.name}: {row.seconds:.2f} s published, {row.predicted:.2f} s ({row.time:+.1%}){memory}"
            )
        held &= sum(map(abs, found.time)) / len(found.time) < 0.07
    start = time.perf_counter()
    words = ["--model", "gpt3-175b", "--cluster", "h100:128x8", "--batch", "1536"]
    subprocess.run(
        [sys.executable, "-m", "minidist.study.plan", *words], check=True, capture_output=True
    )
    seconds = time.perf_counter() - start
    rows.append(f"175 B on 1,024 H100s, the whole command: {seconds:.1f} s")
    return "\n".join(rows), held and seconds < 5


def two_hosts() -> tuple[str, bool]:
    """Item 6: the 3D GPT on two hosts, of which one dies and comes back."""
    reason = missing()
    if reason is not None:
        return f"skipped: {reason}", False
    remove(left_over())
    found = pair.run(60, 20)
    off = distance(found.losses, pair.serial(60))
    seen = [
        line for line in found.printed[0].splitlines() if "is lost" in line or "goes on" in line
    ]
    rows = [
        f"host b died after step {found.died}; the run went on at step {found.resumed}, {found.seconds:.1f} s "
        f"later, of which {pair.AWAY:g} s the host was away; losses are off the serial ones by {off:.1e}",
        *seen,
    ]
    return "\n".join(rows), off < 1e-10 and found.resumed <= found.died
