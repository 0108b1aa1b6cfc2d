"""What each rank holds: the text exactly, and whose hue a chunk gets."""

import pytest
import torch

from minidist.study import chunks, holdings
from minidist.study.chunks import _hues, _rows


def hues(*steps, owner=None):
    return list(
        _hues({str(i): _rows(str(i), step) for i, step in enumerate(steps)}, owner).values()
    )


def test_text():
    made = holdings(
        [["a0", "a1"], ["b0", "b1"]], [["a0+b0", None], [None, "a1+b1"]], title="Reduce-scatter"
    )
    assert made.text == (
        "Reduce-scatter\n"
        "before:\n"
        "  rank 0: a0     a1\n"
        "  rank 1: b0     b1\n"
        "after:\n"
        "  rank 0: a0+b0  –\n"
        "  rank 1: –      a1+b1"
    )
    assert made.png.startswith(b"\x89PNG")


def test_named_steps_tensors_and_nothing():
    made = holdings(
        {"start": [torch.tensor([1.0, 2.5]), None], "end": [torch.eye(2).int(), 7]}, title=""
    )
    assert made.text == (
        "start:\n  rank 0: 1    2.5\n  rank 1: nothing\nend:\n  rank 0: 1 0  0 1\n  rank 1: 7"
    )


def test_arrows_or_none(monkeypatch):
    drawn = []
    monkeypatch.setattr(chunks, "_word", lambda fig, x, y, word, **style: drawn.append(word))
    for arrows in (True, False):
        holdings({"naive": [["a"]], "ring": [["b"]]}, arrows=arrows)
    assert drawn.count("→") == 1 and drawn.count("naive") == 2


def test_one_step_alone():
    assert (
        holdings([["x"], None]).text
        == "What each rank holds\nbefore:\n  rank 0: x\n  rank 1: nothing"
    )


def test_a_chunk_keeps_the_hue_of_its_first_holder():
    first, last = hues([["a"], ["b"]], [["a", "b"], ["a", "b"]])
    assert first == [[[0]], [[1]]]
    assert last == [[[0], [1]], [[0], [1]]]


def test_a_sum_shows_every_term_and_a_new_value_none():
    assert hues([["a"], ["b"], ["c"]], [["c+a"], ["Σ"], ["a+b+c"]])[1] == [
        [[2, 0]],
        [[]],
        [[0, 1, 2]],
    ]


def test_equal_numbers_after_a_computation_are_a_coincidence():
    moved = hues([[1, 2], [3, 4]], [[1, 3], [2, 4]])[1]
    assert moved == [[[0], [1]], [[0], [1]]]
    summed = hues([[1, 2], [3, 4]], [[4, 6], [4, 6]])[1]  # 4 was rank 1's, but here it is 1 + 3
    assert summed == [[[], []], [[], []]]


def test_owner_is_asked_instead():
    assert hues([["a0"], ["b1"]], owner=lambda word: int(word[1]) ^ 1)[0] == [[[1]], [[0]]]
    assert hues([["x"]], owner=lambda word: (2, 3))[0] == [[[2, 3]]]


def test_many_steps_break_into_lines_of_the_page():
    step = [[f"{r}{i}" for i in range(4)] for r in "abcd"]
    made = holdings({f"step {k}": step for k in range(6)})
    assert made.width <= 9.2 * 96
    assert made.height > holdings({"one": step}).height


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([["a"]], [["a"], ["b"]]), "'before' has 1 ranks, but step 'after' has 2"),
        (([],), "at least one step with at least one rank"),
        (({},), "at least one step"),
        (({"a": [["x"]]}, [["x"]]), "not both"),
        (("abc",), "a list with one entry per rank, not 'abc'"),
        (([["x"]] * 33,), "at most 32 ranks of 32 chunks; step 'before' has 33 ranks of 1"),
        (([torch.zeros(1000)],), "has 1 ranks of 1000"),
        (([torch.zeros(2, device="meta")],), r"a meta tensor \(2,\) has no values"),
    ],
)
def test_bad_input(args, message):
    with pytest.raises(ValueError, match=message):
        holdings(*args)
