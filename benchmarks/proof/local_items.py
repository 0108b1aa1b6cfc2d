"""Local SGD and a slow link: against PyTorch's own, and the time that each way to talk less needs."""

from __future__ import annotations

import torch

from benchmarks import slow_link
from benchmarks.hosts import left_over, missing, remove
from benchmarks.slow_train import AT_MOST, TARGET, WAYS
from minidist.comm import launch
from tests.parallel import test_local_sgd

from .world import run_tests, together

RANKS = (2, 3, 4)


def post_local() -> tuple[str, bool]:
    """Issue 6, item 3, the half of post-local SGD: PyTorch's optimizer, averager and hook, over the same processes."""
    rows, held = (
        ["largest difference of a parameter after 20 steps, the switch after 6, H = 4, over gloo"],
        True,
    )
    for dtype in (torch.float64, torch.float32):
        for n in RANKS:
            found = launch(test_local_sgd.all_beside, n, dtype, transport="gloo")
            worst = {name: max(of_rank[name] for of_rank in found) for name in found[0]}
            rows.append(
                f"n={n}, {dtype}: " + ", ".join(f"{name} {off:.1e}" for name, off in worst.items())
            )
            held &= max(worst.values()) < 1e-6
    return together(("\n".join(rows), held), run_tests("tests/parallel/test_local_sgd.py"))


def slow() -> tuple[str, bool]:
    """Issue 6, item 5: time to a loss on links of 100 Mbit/s and 1 Gbit/s, each way against dense.

    Held at 100 Mbit/s, if all reach the loss, after as many steps as in the World, and talking less is faster than
    dense both where it was measured and where it was predicted.
    """
    reason = missing()
    if reason is not None:
        return f"skipped: {reason}", False
    remove(left_over())
    rows, held = [], True
    for megabits in slow_link.RATES:
        found = slow_link.table(megabits, list(WAYS), TARGET, AT_MOST)
        for row in found:
            held &= row["loss"] <= TARGET and row["same_steps"]
            if row is not found[0] and megabits == slow_link.RATES[0]:
                held &= row["seconds"] < found[0]["seconds"] and row["said"] < found[0]["said"]
            rows.append(
                f"{megabits} Mbit/s, {row['way']}: {row['steps']} steps, {row['seconds']:.2f} s measured, "
                f"{row['said']:.2f} s predicted; {found[0]['seconds'] / row['seconds']:.2f} and "
                f"{found[0]['said'] / row['said']:.2f} times as fast as dense"
            )
    return together(("\n".join(rows), held), run_tests("tests/benchmarks"))
