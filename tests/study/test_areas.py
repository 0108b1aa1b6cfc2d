"""Live memory over time: the highest moment of a pixel is what it shows."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minidist.study import line
from minidist.study.areas import PIXELS, by_pixel, categories, highest, peak_words, stack
from tests.study.traces import held, remembered


def test_the_first_rank_with_the_highest_peak():
    memory = remembered().memory
    assert highest(memory, [0, 1]) == 1
    assert highest(memory, [0, 7]) == 0
    assert highest({0: memory[1], 1: memory[1]}, [1, 0]) == 1
    assert highest(memory, [7]) is None


def test_categories_that_held_something_in_the_order_of_their_colours():
    assert categories(remembered().memory[1]) == ["parameters", "gradients", "activations", "other"]
    assert [c for c in line.MEMORY if c in categories(remembered().memory[1])] == categories(
        remembered().memory[1]
    )


def test_a_moment_of_no_length_is_seen():
    memory = remembered().memory[1]
    starts, shown = by_pixel(memory, (0.0, 4e-3))
    totals = memory.total[shown]
    assert len(starts) == len(shown) == PIXELS
    assert totals.max() == memory.peak == 5500
    assert (totals == 5500).sum() <= 2
    assert starts[totals.argmax()] == pytest.approx(2e-3, abs=4e-3 / PIXELS)
    assert totals[-1] == 2000


def test_nothing_is_shown_before_the_first_moment():
    starts, shown = by_pixel(held([(2.0, "other", 8)]), (0.0, 4.0))
    np.testing.assert_allclose(starts[0], 2.0, atol=4 / PIXELS)
    assert set(shown) == {0}


def test_a_part_of_the_time_begins_with_what_was_held():
    memory = remembered().memory[0]
    starts, shown = by_pixel(memory, (2e-3, 4e-3))
    assert starts[0] == 2e-3
    assert memory.total[shown[0]] == 1500


def test_areas_are_stacked():
    ax = Figure().add_subplot()
    stack(ax, remembered().memory[1], (0.0, 4e-3), 1e-3, most=11_000)
    tops = [c.get_paths()[0].vertices[:, 1].max() for c in ax.collections]
    # kB: parameters, gradients, activations, other
    np.testing.assert_allclose(tops, [1, 2, 2, 5.5], rtol=1e-6)
    assert ax.get_ylabel() == "kB"
    assert ax.get_ylim()[1] == pytest.approx(11 * 1.06)


def test_words():
    assert peak_words(3, held([(0.5, "buffers", 20_000)])) == (
        "memory of rank 3: peak 20 kB at 500 ms (buffers 20 kB)"
    )
