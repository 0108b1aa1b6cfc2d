"""Items and totals: sums, shares and tables."""

from dataclasses import dataclass

import pytest

from minidist.study.predict import GB, GiB, Totals, divided, listing
from tests.study.predict.saved import Item, Items


@dataclass(frozen=True)
class Two(Totals):
    first_part: int
    rest: int


def test_totals():
    two = Two(3 * GB, GiB)
    assert two.total == 3 * GB + GiB and two.bytes == {"first part": 3 * GB, "rest": GiB}
    lines = str(two).splitlines()
    assert lines[2].split() == ["first", "part", "3,000,000,000", "3", "2.794"]
    assert lines[-1].split() == ["total", "4,073,741,824", "4.074", "3.794"]
    assert "<table" in two._repr_html_()


def test_items():
    items = Items([Item("a", 10, 8, "two more"), Item("b", 4, 4, "never shown")], "both")
    assert (items.total, items.paper, len(list(items))) == (14, 12, 2)
    text = repr(items)
    assert "two more" in text and "never shown" not in text
    assert text.splitlines()[-1].split() == ["total", "14", "12", "2"]
    assert "paper" not in repr(Items([Item("a", 10)]))
    assert "two more" in items._repr_html_()


def test_shares():
    item = Item("a", 12, 8, "why", "split")
    assert item.times(3) == Item("a", 36, 24, "why", "split") and item.over(4) == Item(
        "a", 3, 2, "why", "split"
    )
    with pytest.raises(ValueError, match="12 a do not split over 5 ranks"):
        item.over(5)
    assert divided(12, 3, "heads") == 4
    with pytest.raises(ValueError, match="12 heads do not split over 0 ranks"):
        divided(12, 0, "heads")


def test_a_listing_sums_up():
    last = listing({"x": GB, "y": 2 * GB}, "title").text.splitlines()[-1]
    assert last.split() == ["total", "3,000,000,000", "3", "2.794"]
