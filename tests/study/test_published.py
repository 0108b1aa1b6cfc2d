"""Published figures: every table is read, and says where its values come from."""

import pytest

from minidist.study import published

NAMES = [
    "activation_recomputation",
    "claims_checked",
    "hardware",
    "megatron_sc21_table1",
    "nccl",
    "training_runs",
    "zero",
    "zero_bubble_rates",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_a_source_and_a_value(name):
    rows = published(name)
    assert rows
    for row in rows:
        assert row["source"] and row["evidence"] and row["quantity"] and row["value"] is not None, (
            row
        )


def test_numbers_are_numbers():
    row = published("zero")[1]
    assert row["params"] == 7_500_000_000 and isinstance(row["params"], int)
    assert (
        row["value"] == 31.4
        and row["unit"] == "GB (1e9)"
        and row["MP"] is None
        and row["stage"] == "Pos"
    )
    values = {row["quantity"]: row["value"] for row in published("activation_recomputation")}
    assert values["recompute_overhead_reduction"] == ">90" and values["MFU_530B_2240_GPUs"] == 54.2
    assert published("megatron_sc21_table1")[4]["value"] == 1.54668e16


def test_a_name_that_is_no_table():
    with pytest.raises(
        ValueError,
        match=r"'zeroes'; there are activation_recomputation, .*, zero, zero_bubble_rates$",
    ):
        published("zeroes")
    with pytest.raises(ValueError):
        published("../figures/zero")
