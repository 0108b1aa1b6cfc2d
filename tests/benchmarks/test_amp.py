"""Mixed precision on the digits and on text: what each level loses, and what it loses without a scaler."""

import math

import pytest

from benchmarks.amp import off, table_of_losses
from tests.largest import largest, smallest


@pytest.mark.full
def test_losses_of_five_seeds(figure):
    found = table_of_losses()
    for job, losses in found.items():
        exact = losses["fp32"]
        errors = {way: off(of_way, exact) for way, of_way in losses.items()}
        figure(
            f"{job}: off fp32's loss, median of five seeds: "
            + ", ".join(f"{way} {error:.2%}" for way, error in errors.items())
        )
        if job == "updates":
            assert smallest(losses["O3, bf16"]) > largest(exact) and errors["O2, bf16"] < 0.01
        else:
            assert errors["O1"] < 0.01 and errors["O2"] < 0.01
            assert all(
                smallest(losses[f"{way}, no scaler"]) > largest(exact) for way in ("O1", "O2")
            )
            assert not any(map(math.isfinite, losses["O3"]))
