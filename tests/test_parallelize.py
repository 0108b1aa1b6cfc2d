"""On any mesh the model trains as it does on one rank: losses and parameters, whatever is combined."""

import functools

import pytest

from minidist.parallel.schedules import gpipe, interleaved, zb_h1, zb_v
from tests import parallelized
from tests.parallelized import MODERN, SHAPE, ranks, train

EXPLICIT = SHAPE | dict(attention="explicit")
UNTIED = MODERN | dict(tied=False)

# dp, pp, tp; the model; the options
CASES = {
    "one rank": ((1, 1, 1), SHAPE, dict(micro_batches=5)),
    "one rank, zero 3": ((1, 1, 1), MODERN, dict(zero=3, recompute="full")),
    "dp 2, pp 2, overlapped": ((2, 2, 1), UNTIED, dict(micro_batches=2)),
    "dp 2, pp 2, zero 2, uneven stages": (
        (2, 2, 1),
        SHAPE | dict(context=50),
        dict(zero=2, micro_batches=2),
    ),
    "pp 2": ((1, 2, 1), SHAPE, dict(micro_batches=3)),
    "tp 2": ((1, 1, 2), MODERN, dict(sequence_parallel=True, recompute="full")),
    "pp 3, whole stages again": ((1, 3, 1), UNTIED, dict(micro_batches=2, recompute="stage")),
    "dp 2, pp 2, zero 1, halves": ((2, 2, 1), SHAPE, dict(micro_batches=3, zero=1, schedule=zb_h1)),
    "dp 2, pp 2, zero 2, V": (
        (2, 2, 1),
        SHAPE,
        dict(micro_batches=2, zero=2, schedule=zb_v, chunks=2, place="V"),
    ),
    "dp 2, pp 2, zero 3, interleaved": (
        (2, 2, 1),
        SHAPE,
        dict(micro_batches=4, zero=3, schedule=interleaved, chunks=2),
    ),
    "dp 2, tp 2, selective": ((2, 1, 2), EXPLICIT, dict(recompute="selective", zero=3)),
    "tp 4, more than groups": ((1, 1, 4), MODERN, {}),
    "dp 5, uneven": ((5, 1, 1), SHAPE, dict(zero=2, micro_batches=2)),
    "pp 2, tp 2": ((1, 2, 2), MODERN, dict(micro_batches=3, sequence_parallel=True)),
    "pp 2, tp 3": (
        (1, 2, 3),
        UNTIED,
        dict(micro_batches=2, sequence_parallel=True, recompute="full"),
    ),
    "dp 7, zero 3": ((7, 1, 1), SHAPE, dict(zero=3)),
    "zero 0": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=0, schedule=gpipe)),
    "zero 1": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=1, recompute="full")),
    "zero 2": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=2, recompute="full")),
    "zero 3": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=3, recompute="full")),
    "all at once": (
        (2, 2, 2),
        MODERN,
        dict(
            micro_batches=4,
            zero=3,
            recompute="full",
            sequence_parallel=True,
            schedule=interleaved,
            chunks=2,
        ),
    ),
}
STEPS = 2  # the second has the first's states; a third is no other
OUTSIDE = [
    ("processes", "dp 2, pp 2, zero 3, interleaved"),
    ("processes", "pp 2, tp 2"),
    ("gloo", "pp 2, tp 2"),
]


@functools.cache
def oracle(shape):
    return parallelized.serial(dict(shape), STEPS)


def compare(run, name):
    (dp, pp, tp), shape, options = CASES[name]
    grid = dict(dp=dp, pp=pp, tp=tp)
    results = parallelized.RUNS[run](ranks(grid), train, grid, shape, options, STEPS)
    losses, params = oracle(tuple(shape.items()))
    loss, parameter = parallelized.gaps(results, losses, params)
    assert loss < 1e-12, (name, loss)
    assert parameter < 1e-10, (name, parameter)  # AdamW divides by roots of squares, small ones too


@pytest.mark.parametrize("name", CASES)
def test_the_serial_run(name):
    compare("world", name)


@pytest.mark.parametrize(("run", "name"), OUTSIDE)
def test_in_processes(run, name):
    compare(run, name)
