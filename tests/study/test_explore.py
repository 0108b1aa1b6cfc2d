"""Sliders over a function: the table that Python fills in, its words, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest

from minidist.study import explore
from minidist.study.picture import BLUE, GREEN, HUES, MEANING, measure
from tests.study.frames import run_of

US = 1e-6


def cost(n, N):
    return {"ring": 2 * (n - 1) * 5 * US + N * 1e-9, "naive": n * N * 1e-9}


def lines(**more):
    words = dict(title="An all-reduce", over="N", unit="s", units={"N": "B"}, ylabel="time")
    return explore(cost, n=[2, 4, 8], N=[10**3, 10**4, 10**5, 10**6], **words | more)


def memory(stage, n):
    parts = {"parameters": 4, "gradients": 4, "activations": 2}
    return {
        name: v * 10**9 // (n if name != "activations" and stage else 1)
        for name, v in parts.items()
    }


def test_every_position_is_what_the_function_returns():
    made = lines()
    run = run_of(made.page)
    for i, n in enumerate([2, 4, 8]):
        for j, N in enumerate([10**3, 10**4, 10**5, 10**6]):
            row = 4 * i + j
            assert made.at(n=n, N=N) == made.rows[row] == cost(n, N)
            for series, (name, value) in zip(run["series"], cost(n, N).items(), strict=True):
                assert series["name"] == name
                assert series["words"][row] == measure(value, "s")
                assert series["values"][row] == pytest.approx(value, rel=1e-3)
    assert [axis["words"] for axis in run["axes"]] == [
        ["2", "4", "8"],
        ["1,000 B", "10 kB", "100 kB", "1 MB"],
    ]
    assert [axis["start"] for axis in run["axes"]] == [1, 2]
    assert (run["over"], run["axes"][1]["values"]) == (1, [10**3, 10**4, 10**5, 10**6])


def test_text_of_lines():
    assert lines(start={"n": 8}, labels={"n": "ranks n"}).text == (
        "An all-reduce\n"
        "  slider ranks n: 2, 4, 8; here 8\n"
        "  slider N: 1,000 B, 10 kB, 100 kB, 1 MB; here 100 kB\n"
        "  here: ring 170 µs, naive 800 µs\n"
        "time against N\n"
        "  line ring: 1,000 B: 71 µs; 10 kB: 80 µs; 100 kB: 170 µs; 1 MB: 1.07 ms\n"
        "  line naive: 1,000 B: 8 µs; 10 kB: 80 µs; 100 kB: 800 µs; 1 MB: 8 ms"
    )


def test_text_of_parts_with_a_target():
    made = explore(
        memory,
        title="Memory",
        unit="B",
        stack=True,
        target=8 * 10**9,
        note="a device",
        stage=[0, 1],
        n=list(range(1, 9)),
        start={"stage": 0, "n": 1},
    )
    assert made.text == (
        "Memory\n"
        "  slider stage: 0, 1; here 0\n"
        "  slider n: 1 to 8 (8 positions); here 1\n"
        "  here: parameters 4 GB, gradients 4 GB, activations 2 GB\n"
        "  sum: 10 GB (parameters 4 GB, gradients 4 GB, activations 2 GB)\n"
        "  (a device: 8 GB)"
    )
    run = run_of(made.page)
    assert run["sums"][made.index([1, 3])] == "4 GB"
    assert run["target"] == [8 * 10**9, "a device 8 GB"]
    assert [each["color"] for each in run["series"]] == [
        MEANING[name] for name in ("parameters", "gradients", "activations")
    ]


def test_bars_beside_words_and_other_units():
    def f(n):
        return {"seconds": 1.5 * n, "share": 0.25, "best": "ring", "none": None}

    made = explore(f, unit={"seconds": "s", "share": "%"}, n=[1, 2, 3])
    run = run_of(made.page)
    assert made.drawn == ["seconds"]
    assert [each["words"][2] for each in run["series"]] == ["4.5 s", "0.25 %", "ring", ""]
    assert [bool(each["values"]) for each in run["series"]] == [True, False, False, False]
    assert run["series"][0]["color"] == BLUE
    assert "here: seconds 3 s, share 0.25 %, best ring, none –" in made.text


@pytest.mark.parametrize("value", [3, 3.0, np.float64(3), np.int64(3), Fraction(3)])
def test_numbers_of_every_kind(value):
    made = explore(lambda n: value, ylabel="time", n=np.arange(2))
    assert run_of(made.page)["series"][0]["values"] == [3, 3]
    assert made.names == ["time"]


def test_colours_are_those_of_lines():
    made = lines()
    assert list(made.colors.values()) == list(HUES[:2])
    made = explore(lambda n: {"activations": n, "x": n}, over="n", n=[1, 2])
    assert made.colors["activations"] == GREEN


def test_a_position_without_a_value_says_why():
    def f(n, N):
        if n == 3:
            raise ValueError("3 ranks do not share 8 layers")
        return {"kept": N / n if N < 3 else None, "all": N}

    made = explore(f, over="N", n=[2, 3, 4], N=[1, 2, 3], start={"n": 2})
    run = run_of(made.page)
    assert run["why"] == {str(row): "3 ranks do not share 8 layers" for row in (3, 4, 5)}
    assert run["series"][0]["values"] == [0.5, 1, None, None, None, None, 0.25, 0.5, None]
    assert made.at(n=3) is None
    assert "line kept: 1: 0.5; 2: 1\n" in made.text


def test_other_errors_of_the_function_are_seen():
    with pytest.raises(ZeroDivisionError):
        explore(lambda n: 1 / n, n=[0, 1])
    with pytest.raises(TypeError, match="missing"):
        explore(cost, n=[1])


@pytest.mark.parametrize(
    ("function", "more", "words"),
    [
        (lambda: 1, {}, r"there is no axis: name the values"),
        (lambda n: n, {"n": []}, "the axis 'n' has no value"),
        (
            lambda a, b: 1,
            {"a": range(51), "b": range(100)},
            r"51 · 100 = 5,100 positions, and at most 5,000",
        ),
        (lambda n: n, {"n": [1], "over": "N"}, "there is no axis 'N', only n"),
        (lambda n: n, {"n": [1], "units": {"m": "s"}}, "there is no axis 'm', only n"),
        (
            lambda n: n,
            {"n": [1, 2], "start": {"n": 3}},
            r"n starts at 3, which is none of its values \[1, 2\]",
        ),
        (lambda n: {str(n): 1}, {"n": [1, 2]}, r"returns \['2'\] here and \['1'\] there"),
        (lambda n: "word", {"n": [1]}, "nothing to draw where the sliders start: no number"),
        (lambda n: math.inf, {"n": [1]}, "'value' is inf at one position: return None"),
        (lambda n: -n, {"n": [1, 2]}, "'value' is -1: bars are not negative"),
        (
            lambda n: n - 1,
            {"n": [2, 1], "over": "n", "logy": True, "start": {"n": 2}},
            "'value' is 0, which has no place",
        ),
        (
            lambda n: 1,
            {"n": [0, 1], "over": "n", "logx": True},
            "n is 0, which has no place on its axis",
        ),
        (lambda n: 1, {"n": ["a"], "over": "n"}, "n is 'a', which has no place on its axis"),
    ],
)
def test_refused(function, more, words):
    with pytest.raises(ValueError, match=words):
        explore(function, **more)


def even(n):
    if n % 2 == 0:
        raise ValueError(f"{n} is even")
    return n


def test_a_function_that_refuses_everything_says_why():
    def f(n):
        raise ValueError(f"{n} is odd")

    with pytest.raises(ValueError, match="returns nothing at any position: 1 is odd"):
        explore(f, n=[1, 3])
    with pytest.raises(ValueError, match="nothing to draw where the sliders start: 2 is even"):
        explore(even, n=[1, 2])
