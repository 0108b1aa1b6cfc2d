"""The data: real, scaled, always the same, and harder than a guess."""

import sys

import pytest
import torch

from minidist.tasks import digits, text


def test_digits():
    task = digits()
    assert task.x.shape == (1437, 64) and task.test_x.shape == (360, 64)
    assert (
        task.x.dtype == task.test_x.dtype == torch.float64
        and task.y.dtype == task.test_y.dtype == torch.int64
    )
    assert task.x.min() == 0 and task.x.max() == 1
    assert set(task.y.tolist()) == set(task.test_y.tolist()) == set(range(10))


def test_the_test_set_is_apart_and_all_images_are_there():
    from sklearn.datasets import load_digits

    task = digits()
    train, test = (
        {(*row, y) for row, y in zip(x.tolist(), y.tolist(), strict=True)}
        for x, y in ((task.x, task.y), (task.test_x, task.test_y))
    )
    images, classes = load_digits(return_X_y=True)
    assert not train & test
    assert train | test == {
        (*(row / 16).tolist(), int(y)) for row, y in zip(images, classes, strict=True)
    }


def test_every_class_is_in_both_parts_in_proportion():
    task = digits()
    for y, n in ((task.y, 1437), (task.test_y, 360)):
        assert (torch.bincount(y, minlength=10) / n - 0.1).abs().max() < 0.04


def test_always_the_same_whatever_was_drawn_before():
    first = digits()
    torch.manual_seed(5)
    for a, b in zip(first, digits(), strict=True):
        assert torch.equal(a, b)
    assert first.y[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]  # on every machine


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtype(dtype):
    # sixteenths are exact in every dtype
    assert torch.equal(digits(dtype).x, digits().x.to(dtype)) and torch.equal(
        digits(dtype).x.double(), digits().x
    )


def test_a_missing_scikit_learn_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"minidist\[course\]"):
        digits()


def test_the_text_is_pythons_reference():
    whole = bytes(text().tolist()).decode()
    assert len(whole) > 100_000 and "for_stmt" in whole and text().equal(text())
