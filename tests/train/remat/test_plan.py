"""The dynamic program against all plans there are."""

import itertools
import math
import random

import pytest

from minidist.train.remat import Plan, Segment, plan, smallest


def every_plan(costs, memories, edges, work):
    """(peak, repeated, held) of each way to cut a chain into segments, kept or repeated, layer by layer."""
    layers = len(costs)
    for cuts in itertools.product([False, True], repeat=layers - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [layers]
        segments = list(zip([0, *ends], ends, strict=False))
        for again in itertools.product([False, True], repeat=len(segments)):
            held = 0
            peak = 0
            repeated = 0
            for (first, end), repeats in zip(segments, again, strict=True):
                live = held
                for i in range(first, end):
                    live += edges[i] + memories[i]
                    peak = max(peak, live + work[i])
                held = held + edges[first] if repeats else live
                repeated += sum(costs[first:end]) if repeats else 0
            yield peak, repeated, held


def drawn(seed, layers):
    random.seed(seed)
    numbers = lambda n, high: [random.randint(0, high) for _ in range(n)]
    return [numbers(layers, 9), numbers(layers, 20), numbers(layers + 1, 6), numbers(layers, 5)]


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_better(layers, seed):
    costs, memories, edges, work = drawn(seed, layers)
    everything = list(every_plan(costs, memories, edges, work))
    low, high = min(everything)[0], max(everything)[0]
    assert smallest(costs, memories, edges, work).peak == low
    for budget in sorted({low, high, *(random.randint(low, high) for _ in range(5))}):
        found = plan(costs, memories, budget, edges, work)
        assert found.repeated == min(repeated for peak, repeated, _ in everything if peak <= budget)
        assert found.peak <= budget
        assert (found.peak, found.repeated) in {
            (peak, repeated) for peak, repeated, _ in everything
        }
    with pytest.raises(
        ValueError, match=f"no plan of {layers} layers fits into {low - 1} bytes: {low} are needed"
    ):
        plan(costs, memories, low - 1, edges, work)


def test_what_a_plan_says_of_itself_is_true():
    """Peak and cost again from the segments alone."""
    costs, memories, edges, work = drawn(9, 7)
    for budget in range(smallest(costs, memories, edges, work).peak, 120, 7):
        found = plan(costs, memories, budget, edges, work)
        assert [s.first for s in found.segments] == [0, *(s.end for s in found.segments[:-1])]
        assert found.segments[-1].end == 7
        assert found.repeated == sum(
            sum(costs[first:end]) for first, end, again in found.segments if again
        )


def test_by_hand():
    """Four layers that keep 10 bytes each, with edges of 1: all is 44 and twice an edge's gradient."""
    assert plan([1] * 4, [10] * 4, 46, [1] * 5) == Plan(
        tuple(Segment(i, i + 1, False) for i in range(4)), 46, 0
    )
    two = plan([1] * 4, [10] * 4, 25, [1] * 5)
    assert (two.peak, two.repeated) == (25, 2) and str(two) == "again 0–1 kept 2–2 kept 3–3"
    assert smallest([1] * 4, [10] * 4, [1] * 5).peak == 4 + 10 + 2


def test_the_gradients_of_both_edges_are_the_work_unless_it_is_given():
    assert plan([1], [10], 99, [3, 4]).peak == 3 + 10 + 3 + 4
    assert plan([1], [10], 99, [3, 4], [0]).peak == 13 and plan([1], [10], 99).peak == 10


def test_sixteen_equal_layers_are_cut_near_the_root():
    found = smallest([1] * 16, [0] * 16, [1] * 17)
    assert found.peak - 2 <= 2 * math.sqrt(16) and found.repeated <= 16


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("memories", ([1], None, None)),
        ("edges", ([1, 1], [1, 1], None)),
        ("work", ([1, 1], None, [1])),
    ],
)
def test_numbers_that_do_not_match(name, values):
    memories, edges, work = values
    said = f"2 layers have a cost, so there are {3 if name == 'edges' else 2} {name}, not {2 if name == 'edges' else 1}"
    with pytest.raises(ValueError, match=said):
        plan([1, 1], memories, 10, edges, work)
