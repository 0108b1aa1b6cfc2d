"""Model states: ZeRO's published figures, and shards that add up."""

from fractions import Fraction

import pytest

from minidist.split import uneven
from minidist.study import published
from minidist.study.predict import (
    GB,
    PRECISIONS,
    TB,
    GiB,
    fused_gradients,
    largest,
    per_parameter,
    states,
)
from tests.study.predict.kept import shown

STAGES = {"baseline": 0, "Pos": 1, "Pos+g": 2, "Pos+g+p": 3}
TABLE_2 = "max_theoretical_model_size"


def rows(table, quantity=None):
    found = [r for r in published("zero") if r["table_or_figure"].startswith(table)]
    found = [r for r in found if quantity in (None, r["quantity"])]
    assert found
    return found


def test_table_1_of_zero():
    """All 54 cells. The table truncates to whole GB and rounds decimals half up; one note has these confused."""
    cells = rows("Table 1", "model_state_memory_per_device")
    cells = [r for r in cells if r["table_or_figure"] == "Table 1"]
    assert len(cells) == 54
    for row in cells:
        ours = Fraction(states(row["params"], zero=STAGES[row["stage"]], data=row["Nd"]).total, GB)
        how, note = shown(ours, row["value"]), row["note"] or ""
        assert how, (row, float(ours))
        if "TRUNCATES" in note and row["value"] != 41.3:  # 41.25 printed as 41.3 is rounded half up
            assert how == {"truncated"}, row
        if "rounds" in note:
            assert "rounded" in how, row


def test_figure_1_of_zero():
    for row in rows("Figure 1"):
        made = states(row["params"], zero=STAGES[row["stage"]], data=row["Nd"])
        assert "rounded" in shown(Fraction(made.total, GB), row["value"]), row


def test_table_2_of_zero():
    """The largest models of 32 GB, theoretical. The table multiplies its first, rounded, row by the tensor size."""
    cells = rows("Table 2", TABLE_2)
    assert len(cells) == 20
    for row in cells:
        zero, tensor = STAGES[row["stage"]], row["MP"]
        first = round(largest(32 * GB, zero=zero, data=row["Nd"]) / GB, 1)
        ours = tensor * largest(32 * GB, zero=zero, data=row["Nd"]) / GB
        if row["stage"] == "Pos+g+p" and tensor >= 4:
            assert row["value"] == {4: 500, 8: 1000, 16: 2000}[tensor]  # printed as 0.5 T, 1 T, 2 T
            assert (
                ours == 128 * tensor
                and round(ours / 1000, 1 if tensor == 4 else 0) * 1000 == row["value"]
            )
        else:
            assert row["value"] == pytest.approx(tensor * first, abs=1e-9)
            assert ours == pytest.approx(row["value"], rel=0.007)


def test_text_of_zero():
    said = {r["quantity"]: r["value"] for r in rows("text")}
    assert states(1_500_000_000).total == said["gpt2_1.5B_model_states"] * GB
    assert states(1_500_000_000).parameters == said["gpt2_1.5B_fp16_params"] * GB
    assert fused_gradients(1_500_000_000) == said["flattened_fp32_buffer_1.5B"] * GB
    assert fused_gradients(3_000_000_000) == said["flattened_fp32_buffer_3B"] * GB
    assert states(10**12).total == said["1T_adam_fp16_total"] * TB
    assert "truncated" in shown(Fraction(states(10**12, zero=3, data=1024).total, GB), 15)
    assert round(states(10**12, zero=3, data=1024).total / GB) == said["1T_on_1024_gpus"]


@pytest.mark.parametrize(
    ("params", "precision"),
    [
        ("fp16 params fp16 grads", "fp16, fp32 gradients in the optimizer"),
        ("bf16 params fp32 grads", "bf16, fp32 gradients"),
        ("fp32 params fp32 grads", "fp32"),
    ],
)
def test_bytes_a_parameter_of_megatron(params, precision):
    said = {r["quantity"]: r["value"] for r in rows("bytes per parameter") if r["stage"] == params}
    assert states(1, precision=precision).total == said["non_distributed"]
    whole, _, part = said["distributed"].replace("/d", "").partition("+")
    assert states(64, precision=precision, zero=1, data=64).total == 64 * int(whole) + int(part)


def test_bytes_a_parameter_by_optimizer():
    total = lambda *words: sum(per_parameter(*words).values())
    assert total("momentum", "fp32") == total("momentum", "fp16") == 12
    assert total("adam", "fp32") == total("adam", "fp16") == 16 and total("sgd", "fp32") == 8
    assert per_parameter("adam", "fp16") == {
        "parameters": 2,
        "gradients": 2,
        "optimizer states": 12,
    }
    assert per_parameter("adam", "all 16 bits") == {
        "parameters": 2,
        "gradients": 2,
        "optimizer states": 4,
    }
    said = {
        r["quantity"]: r["value"] for r in published("training_runs") if r["unit"] == "bytes/param"
    }
    optimizers = {"AdamW": "adam", "8-bit": "adam 8-bit", "SGD momentum": "momentum"}
    assert {
        f"{name} optimizer bytes": per_parameter(ours, "fp16")["optimizer states"]
        for name, ours in optimizers.items()
    } == said


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("params", [0, 1, 5, 12, 1001])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_of_all_ranks_add_up_to_the_whole(n, params, zero):
    for precision, per in PRECISIONS.items():
        ranks = [states(params, precision=precision, zero=zero, data=n, rank=r) for r in range(n)]
        whole = states(params, precision=precision)
        assert sum(r.optimizer_states for r in ranks) == whole.optimizer_states
        shares, all_of_it = uneven(params, n), [params] * n
        assert [r.gradients for r in ranks] == [
            per.gradient * s for s in (shares if zero > 1 else all_of_it)
        ]
        assert [r.parameters for r in ranks] == [
            per.parameter * s for s in (shares if zero > 2 else all_of_it)
        ]
        assert max(r.total for r in ranks) == ranks[0].total


def test_largest():
    assert largest(32 * GB) == 2 * 10**9 and largest(32 * GiB) == 2**31
    assert largest(15) == 0 and largest(16) == 1 and largest(0) == 0
    for grid in (
        {},
        dict(zero=3, data=7),
        dict(zero=1, data=4, optimizer="momentum"),
    ):
        most = largest(10**6 + 3, **grid)
        assert states(most, **grid).total <= 10**6 + 3 < states(most + 1, **grid).total


def test_bad_input():
    for wrong, words in (
        (dict(optimizer="adamw"), r"'adamw' is none of 'sgd', .*'adam'"),
        (dict(precision="fp8"), "precision 'fp8'"),
        (dict(zero=4), "0 .none. to 3, not 4"),
        (dict(data=4, rank=4), "no rank 4 among 4"),
    ):
        with pytest.raises(ValueError, match=words):
            states(10, **wrong)
    with pytest.raises(ValueError, match="-1"):
        largest(-1)
