"""What the NCCL branch must show without a GPU, over a group that behaves like NCCL: see tests/comm/nccl_like.py."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from minidist.parallel.reducer import Reducer
from tests import parallelized
from tests.comm.torchrun import over_nccl_like
from tests.nccl import test_techniques
from tests.test_parallelize import CASES, STEPS

from .world import ROOT, run_tests

OVER = "tests/comm/test_over_nccl.py"


def harness(*names: str) -> tuple[str, bool]:
    return run_tests(*(f"tests/comm/test_nccl_like.py::{name}" for name in names))


def shown(before: str, *tests: str) -> tuple[str, bool]:
    """Tests, after what was seen before the mends."""
    figure, held = run_tests(*tests)
    return f"before: {before}\nafter: {figure}", held


def on_a_grid(comm, name: str):
    (dp, pp, tp), shape, options = CASES[name]
    return parallelized.train(comm, {"dp": dp, "pp": pp, "tp": tp}, shape, options, STEPS)


def grids() -> tuple[str, bool]:
    """`parallelize`'s CASES against the serial run, with headers and without."""
    passed = {}
    wanted = {}
    rows = []
    for name, (axes, shape, _) in CASES.items():
        n = parallelized.ranks(dict(enumerate(axes)))
        if n not in (1, 2, 3, 4):
            continue
        for checked in (True, False):
            wanted[n] = wanted.get(n, 0) + 1
            try:
                found = over_nccl_like(on_a_grid, n, name, checked=checked, timeout=60)
                loss, parameter = parallelized.gaps(found, *parallelized.serial(shape, STEPS))
                passed[n] = passed.get(n, 0) + (loss < 1e-12 and parameter < 1e-10)
            except Exception as error:
                rows.append(
                    f"{name}, {'checked' if checked else 'unchecked'}: {type(error).__name__} {error}"[
                        :300
                    ]
                )
    rows[:0] = [
        f"{n} ranks: {passed.get(n, 0)} of {wanted[n]} pass, with headers and without"
        for n in sorted(wanted)
    ]
    return "\n".join(rows), passed == wanted


def repeated() -> tuple[str, bool]:
    """Data 2 × tensor 2 with several buckets and every ZeRO stage, ten times each: no hang, no race."""
    passed = 0
    shape = parallelized.SHAPE | {"layers": 4}
    for zero in (0, 1, 2, 3):
        found = over_nccl_like(many_times, 4, shape, zero, timeout=60)
        passed += min(found)
    return f"{passed} of 40 runs end, each rank's losses the same every time", passed == 40


def many_times(comm, shape: dict, zero: int) -> int:
    """How many of ten runs give the losses of the first."""
    grid = {"dp": 2, "pp": 1, "tp": 2}
    first = None
    count = 0
    small = functools.partialmethod(_with_small_buckets, really=Reducer.__init__)
    with mock.patch.object(Reducer, "__init__", small):
        for _ in range(10):
            losses, _ = parallelized.train(comm, grid, shape, {"zero": zero}, STEPS)
            first = first or losses
            count += losses == first
    return count


def _with_small_buckets(
    reducer, comm, bucket_bytes, first_bucket_bytes, *rest, really, **options
) -> None:
    really(reducer, comm, 2000, 2000, *rest, **options)


def rows(before: str, *names: str) -> tuple[str, bool]:
    """Rows of the table of techniques, with headers and without, after what was seen before the mends."""
    failed, wanted = [], 0
    for n in test_techniques.ALL:
        for checked in (True, False):
            table = {
                name: test_techniques.EVERY[name]
                for name in names
                if n in test_techniques.EVERY[name].ns
            }
            wanted += len(table)
            with tempfile.TemporaryDirectory() as folder:
                failed += test_techniques.wrong(table, n, Path(folder), checked)
    print(test_techniques.told(failed))
    figure = f"{', '.join(names)}, at 2, 3 and 4 ranks: {len(failed)} of {wanted} fail"
    return f"before: {before}\nafter: {figure}", not failed


def techniques() -> tuple[str, bool]:
    """All of tests/nccl, in full."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "--full",
        "tests/nccl",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    closing = re.findall(r"\d+ (?:passed|failed)[^\n]*", run.stdout)
    if run.returncode:
        print(run.stdout[-6000:])
    return closing[-1] if closing else "no result", run.returncode == 0


ITEMS = {
    "A1 an ungrouped two-way exchange, a first operation not shared, two threads": lambda: harness(
        "test_a_hang_is_found_with_the_lines_of_both_ranks", "test_what_nccl_does_passes"
    ),
    "A2 what is refused, races, waits of the host": lambda: harness(
        "test_what_is_refused", "test_where_the_host_waits_is_seen", "test_devices_are_told_apart"
    ),
    "A3 parallelize's cases": grids,
    "A4 every technique": techniques,
    "B1 pipelines": lambda: shown(
        "with its default of one receive posted ahead, a pipeline hangs at its first step",
        f"{OVER}::test_pipelines",
    ),
    "B2 groups of overlapping ranks": lambda: shown(
        "three stages never meet", f"{OVER}::test_groups_of_overlapping_ranks_meet"
    ),
    "B3a lanes are streams": lambda: shown(
        "a lane is a thread, whose work is on the default stream",
        "tests/comm/test_nccl.py",
    ),
    "B3b data 2 × tensor 2, each ZeRO stage ten times": repeated,
    "B4 saves during training": lambda: rows(
        "descriptions go over the communicators of the program",
        "saved during training",
        "the last checkpoints",
    ),
    "B5 a message as the first operation": lambda: shown(
        "hangs on three ranks", f"{OVER}::test_a_message_may_be_the_first_operation"
    ),
    "B6 split of a reordered Comm": lambda: shown(
        "rows in another order than the ranks", f"{OVER}::test_groups_of_overlapping_ranks_meet"
    ),
    "B7 kernels in float64": lambda: shown(
        "1e-12 and 9e-8 off, by reading; this wants a GPU", "tests/train/fuse/gpu"
    ),
    "B8 the server": lambda: shown("a worker blocks", f"{OVER}::test_a_server_is_refused"),
    "B9 a rank fails": lambda: shown(
        "torchrun does not learn of it", f"{OVER}::test_one_rank_fails_and_the_others_end"
    ),
    "B10 a group of GPUs under gloo; random numbers; MFU": lambda: shown(
        "lanes over gloo; an error where the number of GPUs differs; a product that is too small",
        f"{OVER}::test_a_group_of_gpus_alone_under_a_group_of_gloo",
        "tests/checkpoint/test_random.py",
        "tests/study/test_speed.py",
    ),
    "B11 no needless wait of the host": lambda: rows(
        "a blocking header for each message, one synchronisation a step and stage", "host waits"
    ),
}
