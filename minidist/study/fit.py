"""The planner's constants: on which published runs each was fitted, and how far it errs, fitted and left out.

    python -m minidist.study.fit            fits them again, and prints both tables, in a few minutes

There are six, for six tables of runs (`study.runs.TABLES`). Each belongs to a device (`comm.cluster`), where a World
charges it, too, or to kernels (`study.step`), and says one thing about them. None belongs to a row.

Fitted: they minimize the mean, over the tables, of the mean |ln(predicted / published)| of a table's runs, so that a table
of fifty counts no more than one of four, and no single row decides. In rounds: each constant in turn goes on by its step
while that helps, until none does.

Left out: a table whose constants are all bounded by other tables, too, is predicted with those that are fitted without
it. Of the other two each quarter of the runs is predicted with what is fitted on the other three, and all other tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import mean
from typing import Any, NamedTuple

from minidist.study.charts import Table, table
from minidist.study.runs import TABLES, Run

# ------------------------------------------------------------
# The constants.


class Constant(NamedTuple):
    """A field of a device, or of kernels.

    device: whether it is a device's.  tables: those whose runs it is of.  step: the last digit that is written down.
    """

    field: str
    device: bool
    tables: tuple[str, ...]
    step: float
    meaning: str


A100_TABLES = "bloom", "megatron", "recompute", "llmfoundry_a100"
H100_TABLES = "megatron_h100", "llmfoundry_h100"
CONSTANTS = {
    "A100: efficiency": Constant(
        "efficiency", True, A100_TABLES, 0.01, "of its FLOP/s, what large products reach"
    ),
    "H100: efficiency": Constant("efficiency", True, H100_TABLES, 0.01, "the same"),
    "A100: portable": Constant(
        "portable",
        True,
        ("llmfoundry_a100",),
        0.01,
        "of the attention of the device's own kernels, what Triton's of 2023 reaches",
    ),
    "H100: portable": Constant("portable", True, ("llmfoundry_h100",), 0.01, "the same"),
    "maturity": Constant(
        "maturity",
        False,
        ("bloom", "megatron"),
        0.01,
        "of today's products, what those of Megatron-LM of 2021 reach",
    ),
    "interference": Constant(
        "interference",
        False,
        (*H100_TABLES, "llmfoundry_a100"),
        0.05,
        "seconds lost for a second, on links within a node, of messages that are hidden",
    ),
}

Values = Mapping[str, float]
Runs = Mapping[str, Sequence[Run]]


def all_runs() -> dict[str, list[Run]]:
    """The runs of every table that a constant is fitted on: those in 8 bits are held against all of them."""
    fitted = {table for constant in CONSTANTS.values() for table in constant.tables}
    return {name: list(runs()) for name, runs in TABLES.items() if name in fitted}


def written(runs: Runs) -> dict[str, float]:
    """The constants as they stand in the package."""
    values = {}
    for name, constant in CONSTANTS.items():
        run = runs[constant.tables[0]][0]
        values[name] = getattr(
            run.cluster.device if constant.device else run.kernels, constant.field
        )
    return values


def with_values(run: Run, table_name: str, values: Values) -> Run:
    """The run of a table, predicted with these constants."""
    of_device: dict[str, Any] = {}
    of_kernels: dict[str, Any] = {}
    for name, constant in CONSTANTS.items():
        if table_name in constant.tables:
            fields = of_device if constant.device else of_kernels
            fields[constant.field] = values[name]
    assert run.cluster.device is not None, "what was published was timed on a device"
    cluster = replace(run.cluster, device=replace(run.cluster.device, **of_device))
    return replace(run, cluster=cluster, kernels=replace(run.kernels, **of_kernels))


# ------------------------------------------------------------
# The fit.


class Loss:
    """What is minimized over `runs`. A table is predicted anew only if one of its own constants is another."""

    def __init__(self, runs: Runs):
        self.runs = runs
        self._of_table: dict[tuple, float] = {}

    def __call__(self, values: Values) -> float:
        return mean(self.of_table(name, values) for name in self.runs)

    def of_table(self, name: str, values: Values) -> float:
        own = [values[key] for key, constant in CONSTANTS.items() if name in constant.tables]
        key = (name, *own)
        if key not in self._of_table:
            errors = [with_values(run, name, values).time_error for run in self.runs[name]]
            self._of_table[key] = mean(abs(log(1 + error)) for error in errors)
        return self._of_table[key]


def neighbours(values: Values) -> Iterator[dict[str, float]]:
    """The same with one constant a step, or five, larger or smaller, as far as that is a part of 1."""
    for name, constant in CONSTANTS.items():
        for steps in (1, -1, 5, -5):
            value = round(values[name] + steps * constant.step, 6)
            if 0 < value <= 1:
                yield dict(values) | {name: value}


def fit(runs: Runs, values: Values) -> dict[str, float]:
    """The constants for which `Loss` is least, from `values` on. A table that is not among the runs has no say."""
    loss = Loss(runs)
    best = dict(values)
    while True:
        better = min(neighbours(best), key=loss)
        if loss(better) > loss(best) - 1e-6:
            return best
        best = better


def errors_of(name: str, runs: Sequence[Run], values: Values) -> list[float]:
    return [with_values(run, name, values).time_error for run in runs]


def is_bounded(name: str) -> bool:
    """Whether every constant of a table is one of another table, too."""
    return all(len(c.tables) > 1 for c in CONSTANTS.values() if name in c.tables)


FOLDS = 4


def left_out(runs: Runs, values: Values) -> dict[str, list[float]]:
    """The errors of each table's runs, each predicted by a fit in which it has no part."""
    errors: dict[str, list[float]] = {}
    for name in runs:
        if is_bounded(name):
            others = {other: rows for other, rows in runs.items() if other != name}
            errors[name] = errors_of(name, runs[name], fit(others, values))
    rest = [name for name in runs if name not in errors]
    for fold in range(FOLDS):
        kept = {name: list(rows) for name, rows in runs.items()}
        for name in rest:
            del kept[name][fold::FOLDS]
        found = fit(kept, values)
        for name in rest:
            errors.setdefault(name, []).extend(errors_of(name, runs[name][fold::FOLDS], found))
    return {name: errors[name] for name in runs}


# ------------------------------------------------------------
# For people.


def constants_table(values: Values, runs: Runs) -> Table:
    """Each constant, and the runs it was fitted on."""
    rows = []
    for name, constant in CONSTANTS.items():
        count = sum(len(runs[table_name]) for table_name in constant.tables)
        tables = ", ".join(constant.tables)
        rows.append([name, f"{values[name]:g}", count, tables, constant.meaning])
    return table(rows, ["constant", "fitted", "runs", "of", "meaning"])


def in_words(errors: Sequence[float]) -> list[str]:
    return [f"{mean(map(abs, errors)):.1%}", f"{mean(errors):+.1%}", f"{max(errors, key=abs):+.1%}"]


def errors_by_table(
    fitted: Mapping[str, Sequence[float]], left: Mapping[str, Sequence[float]]
) -> Table:
    """Of each table the mean error in time, with its sign, and the largest: fitted, and left out."""
    rows = []
    for name, errors in fitted.items():
        how = "the table" if is_bounded(name) else f"in {FOLDS} folds"
        rows.append([name, len(errors), *in_words(errors), how, *in_words(left[name])])
    columns = ["runs of", "runs", "fitted", "signed", "largest"]
    return table(rows, [*columns, "left out", "mean", "signed", "largest"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the planner's constants on the published runs, and print them, and the errors in time of each table."""
    parser = argparse.ArgumentParser(prog="python -m minidist.study.fit", description=main.__doc__)
    parser.parse_args(arguments)
    runs = all_runs()
    values = fit(runs, written(runs))
    fitted = {name: errors_of(name, rows, values) for name, rows in runs.items()}
    print(constants_table(values, runs).text)
    print()
    print(errors_by_table(fitted, left_out(runs, values)).text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
