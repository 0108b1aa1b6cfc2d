"""Where the parts of the model are, and what flows between them."""

import pytest

from minidist.parallel.schedules import Action, parse
from minidist.parallel.schedules.flow import Item, Shape, shape_of


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("loop", [[0, 3], [1, 4], [2, 5]]),
        ("V", [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_parts(place, parts):
    shape = Shape(3, 4, 2, place).checked()
    assert [[shape.part(stage, chunk) for chunk in (0, 1)] for stage in range(3)] == parts
    for stage, row in enumerate(parts):
        assert [shape.stage(part) for part in row] == [stage, stage]


def test_needs():
    shape = Shape(3, 4, 2)
    assert shape.needs(0, Action("F", 1)) == [] and shape.far(0, Action("F", 1)) == []
    assert shape.needs(0, Action("F", 1, 1)) == shape.far(0, Action("F", 1, 1)) == [Item("a", 1, 2)]
    assert shape.needs(1, Action("B", 2)) == [Item("a", 2, 1), Item("g", 2, 2)]
    assert (
        shape.far(1, Action("B", 2)) == [Item("g", 2, 2)] and shape.far(2, Action("I", 2, 1)) == []
    )
    assert shape.needs(1, Action("W", 2)) == shape.needs(1, Action("U", 2)) == [Item("g", 2, 1)]
    turn = Shape(3, 4, 2, "V")  # the bottom of the V: both parts are on the last stage
    assert (
        turn.needs(2, Action("F", 0, 1)) == [Item("a", 0, 2)]
        and turn.far(2, Action("F", 0, 1)) == []
    )


def test_gives():
    shape = Shape(3, 4, 2)
    given = [shape.gives(1, action) for action in parse("F0.1 B0.1 I0.1 W0.1 U0")]
    assert given == [
        Item("a", 0, 4),
        Item("g", 0, 4),
        Item("g", 0, 4),
        Item("w", 0, 4),
        Item("u", 0, 1),
    ]


def test_shape_of_lists():
    assert shape_of([parse("F0 F2.1"), parse("F1")]) == Shape(2, 3, 2)
    with pytest.raises(ValueError, match="2 lists without"):
        shape_of([[], []])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(0, 1), "1 stage, not 0"),
        (Shape(1, 1, 0), "1 chunk, not 0"),
        (Shape(2, 2, 2, "U"), "not as 'U' of 2"),
        (Shape(2, 2, 3, "V"), "not as 'V' of 3"),
    ],
)
def test_a_pipeline_that_cannot_be(shape, words):
    with pytest.raises(ValueError, match=words):
        shape.checked()
