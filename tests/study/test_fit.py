"""The planner's constants are where published runs put them; and what each table says when it is left out."""

from dataclasses import replace
from statistics import mean

import pytest

from minidist.study import fit as fitting
from minidist.study.fit import (
    CONSTANTS,
    Loss,
    all_runs,
    constants_table,
    errors_by_table,
    errors_of,
    fit,
    in_words,
    is_bounded,
    left_out,
    neighbours,
    with_values,
    written,
)
from tests.largest import largest


@pytest.fixture(scope="module")
def runs():
    return all_runs()


def test_the_constants_are_at_the_optimum(runs, figure):
    """What stands in the package is what the fit gives: no constant is better a step, or five, to either side."""
    values = written(runs)
    loss = Loss(runs)
    figure(constants_table(values, runs).text)
    others = list(neighbours(values))
    assert len(others) >= 4 * len(CONSTANTS) - 4
    for other in others:
        assert loss(other) > loss(values) - 1e-6, other


def test_every_constant_decides(runs):
    """Twenty steps to either side are worse, and for the tables that a constant is said to be fitted on."""
    values = written(runs)
    loss = Loss(runs)
    for name, constant in CONSTANTS.items():
        for steps in (-12, 8):
            value = values[name] + steps * constant.step
            if not 0 < value <= 1:
                continue
            other = values | {name: value}
            assert loss(other) > loss(values), (name, value)
            for table in runs:
                changed = loss.of_table(table, other) != loss.of_table(table, values)
                assert changed == (table in constant.tables), (name, table)


def test_constants_of_a_run(runs):
    """They are the device's and the kernels' own: written again, nothing changes."""
    values = written(runs)
    for name, rows in runs.items():
        for run in rows[:3]:
            assert with_values(run, name, values) == run


def test_a_fit_finds_what_made_the_runs(runs):
    """Of runs whose seconds are the planner's own, with other constants."""
    values = written(runs)
    other = values | {"A100: efficiency": 0.79, "maturity": 0.95}
    made = {}
    for name in ("megatron", "recompute"):
        errors = errors_of(name, runs[name], other)
        pairs = zip(runs[name], errors)
        made[name] = [replace(run, seconds=run.seconds * (1 + error)) for run, error in pairs]
    assert fit(made, values) == other


def test_which_tables_are_left_out_whole():
    whole = {name for name in all_runs() if is_bounded(name)}
    assert whole == {"bloom", "megatron", "recompute", "megatron_h100"}


def test_who_is_left_out_has_no_part(monkeypatch, runs):
    """No run is predicted with what it was fitted on, and each is predicted once."""
    small = {name: rows[:5] for name, rows in runs.items()}
    seen = []

    def without(kept, values):
        seen.append(kept)
        return values

    def predicted(name, rows, values):
        last = seen[-1].get(name, [])
        assert rows and not any(run in last for run in rows)
        return [float(small[name].index(run)) for run in rows]

    monkeypatch.setattr(fitting, "fit", without)
    monkeypatch.setattr(fitting, "errors_of", predicted)
    errors = left_out(small, {})
    assert {name: sorted(found) for name, found in errors.items()} == {
        name: [float(i) for i in range(len(rows))] for name, rows in small.items()
    }
    assert len(seen) == 4 + fitting.FOLDS
    assert all(set(kept) == set(small) or len(kept) == len(small) - 1 for kept in seen)


def test_errors_in_words():
    assert in_words([0.1, -0.3]) == ["20.0%", "-10.0%", "-30.0%"]
    printed = errors_by_table({"bloom": [0.1]}, {"bloom": [-0.2]}).text
    assert "10.0%" in printed and "-20.0%" in printed and "the table" in printed


@pytest.mark.full
def test_left_out(runs, figure):
    """The errors by source, of runs in whose fit they had no part."""
    values = written(runs)
    fitted = {name: errors_of(name, rows, values) for name, rows in runs.items()}
    left = left_out(runs, values)
    figure(constants_table(values, runs).text)
    figure(errors_by_table(fitted, left).text)
    for name in runs:
        assert mean(map(abs, fitted[name])) <= 0.06 and mean(map(abs, left[name])) <= 0.1
        assert largest(map(abs, fitted[name])) <= 0.25 and largest(map(abs, left[name])) <= 0.25
