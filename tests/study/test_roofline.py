"""What bounds an operator: each of the three parts in turn, by hand; the table and the picture of a run."""

import pytest
import torch

from minidist.comm.cluster import Device
from minidist.study import bound, measure, roof, roofline
from minidist.study.meter import Tally

TOY = Device("toy", {torch.float32: 100.0}, 10**9, 10.0, launch=2.0)  # a ridge of 10 FLOPs a byte


def product(n):
    return measure(torch.mm, *(torch.empty(n, n, device="meta") for _ in "ab"), device=TOY)


@pytest.mark.parametrize(
    ("nbytes", "flops", "expected"),
    [
        (10, 0, "launch"),
        (30, 0, "memory"),
        (30, 299, "memory"),
        (30, 301, "compute"),
        (10, 199, "launch"),
        (10, 201, "compute"),
    ],
)
def test_the_largest_of_three_parts_binds(nbytes, flops, expected):
    seconds = 2.0 + max(nbytes / 10, flops / 100)
    assert bound(Tally(1, flops, nbytes, seconds), TOY) == expected


def test_many_calls_are_launches():
    assert bound(Tally(5, 0, 90, 5 * 2.0 + 9), TOY) == "launch"
    assert bound(Tally(4, 0, 90, 4 * 2.0 + 9), TOY) == "memory"


def test_table():
    def both():
        a = torch.empty(64, 64, device="meta")
        return (a + a) @ a

    rows = roofline(measure(both, device=TOY, where="meta")).rows
    by_hand = 2 * 64**3 / (3 * 4 * 64**2)
    assert rows[0][:4] == ["mm", "1", f"{by_hand:.2f}", "compute"]
    assert rows[1][:4] == ["add", "1", "0", "memory"]


def test_picture():
    tera = Device("toy", {torch.float32: 100e12}, 10**9, 10e12, launch=2e-12)
    runs = {
        name: measure(
            torch.mm, *(torch.empty(n, n, device="meta") for _ in range(2)), device=tera
        ).total
        for name, n in (("small", 4), ("large", 1000))
    }
    made = roof(runs | {"add": Tally(1, 0, 12, 3.2)}, tera)
    assert "line toy, float32: 0.167: 1.67; 10: 100; 667: 100" in made.text
    assert "the ridge at 10 (no FLOPs: add)" in made.text
    seconds = 2 + 3 * 4 * 16 / 10  # the small one: launch and bytes
    assert f"points small: 0.667: {128 / seconds:.3g}" in made.text
    assert made.text.endswith("points large: 167: 100")


@pytest.mark.parametrize("count", [0, 11])
def test_too_few_or_too_many(count):
    with pytest.raises(ValueError, match=f"1 to 10 operators that have FLOPs, not {count}"):
        roof(
            {str(i): Tally(1, 10, 10, 3.0) for i in range(count)} | {"add": Tally(1, 0, 12, 3.2)},
            TOY,
        )


def test_a_dtype_without_a_peak():
    with pytest.raises(ValueError, match="not for float64"):
        roof({"mm": product(4).total}, TOY, torch.float64)
