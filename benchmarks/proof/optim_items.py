"""Large batches: optimizers against their papers, alone and sharded, and what they hold."""

from __future__ import annotations

import statistics

from benchmarks import optim as bench_optim
from minidist.comm import World
from tests.train import optim_cases, test_optim

from .world import run_tests, together

RANKS = (1, 2, 3, 4)


def optimizers() -> tuple[str, bool]:
    """Issue 6, item 4: SGD, LARS, AdamW, LAMB against references, after every step; sharded against unsharded."""
    found = {
        f"{ours.__name__} to torch.optim's, {how}": test_optim.off_torch(ours, theirs, how)
        for ours, theirs, how in test_optim.TORCH
    }
    found |= {
        f"{name} to its paper's algorithm": test_optim.off_paper(name) for name in test_optim.PAPERS
    }
    oracle = {name: optim_cases.serial(name) for name in optim_cases.OPTIMIZERS}
    for n in RANKS:
        results = World(n).run(test_optim.everything)
        found |= {
            f"{name}, ZeRO {stage}, n={n}, to unsharded": max(
                optim_cases.far(x[name, stage], oracle[name]) for x in results
            )
            for name, stage in results[0]
        }
        for cls, how in test_optim.TENSOR:
            expected, results = (
                test_optim.whole(cls, how),
                World(n).run(test_optim.tensor, cls, how),
            )
            off = max(optim_cases.far(x, expected) for x in results)
            found[f"{cls.__name__}, tensor parallel, n={n}, to unsharded"] = off
    rows = [
        "largest difference of a parameter; to references |a − b|/(1 + |b|), after any of 12 steps"
    ]
    rows += [f"{name}: {off:.1e}" for name, off in found.items()]
    held = all(off < 1e-12 for off in found.values())
    return together(
        ("\n".join(rows), held),
        run_tests(
            "tests/train/test_optim.py", "tests/train/test_norm.py", "tests/train/test_schedule.py"
        ),
    )


def large_batches() -> tuple[str, bool]:
    """For lesson 25: wrong variants fail on the same task by more than the spread of five seeds; steps by batch."""
    found = bench_optim.table()
    rows = [f"{name}: {' '.join(f'{x:.1f}' for x in seeds)}" for name, seeds in found.items()]
    pairs = [
        ("linear, k = 8", "linear, k = 8, no warm-up"),
        ("LARS, k = 16", "linear, k = 16"),
        ("LAMB, k = 16", "linear, k = 16"),
        ("LARS, k = 32", "linear, k = 32"),
        ("LAMB, k = 32", "linear, k = 32"),
        ("LAMB, k = 32", "root, k = 32"),
    ]
    steps = bench_optim.critical()
    rows += [
        f"batch {batch}: {mean:.1f} steps to the loss, the law says {says:.1f}"
        for batch, (mean, says) in steps.items()
    ]
    held = all(fails(found[a], found[b]) for a, b in pairs) and all(
        abs(mean / says - 1) < 0.2 for mean, says in steps.values()
    )
    return "\n".join(["accuracy in percent, five seeds", *rows]), held


def fails(right: list[float], wrong: list[float]) -> bool:
    """Whether `wrong` is below `right` by more than the right one's seeds lie apart."""
    return statistics.mean(right) - statistics.mean(wrong) > max(right) - min(right)
