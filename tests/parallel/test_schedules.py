"""Schedules as data: what is written, printed, and kept; and every order against the papers."""

import itertools

import pytest

from minidist.parallel import schedules
from minidist.parallel.schedules import (
    Action,
    Item,
    Shape,
    activations_kept,
    gpipe,
    in_flight,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    pipedream,
    pipedream_2bw,
    shape_of,
    zb_h1,
    zb_h2,
    zb_v,
)

# ------------------------------------------------------------
# Actions, their words, and what a schedule asks of its arguments.


@pytest.mark.parametrize(
    ("word", "action"),
    [
        ("F0", Action("F", 0)),
        ("B12", Action("B", 12, 0)),
        ("I3.1", Action("I", 3, 1)),
        ("W7.10", Action("W", 7, 10)),
        ("U5", Action("U", 5)),
    ],
)
def test_words(word, action):
    assert Action.parse(word) == action and str(action) == repr(action) == word


def test_chunk_0_may_be_named():
    assert Action.parse("F3.0") == Action("F", 3) and str(Action("F", 3, 0)) == "F3"


@pytest.mark.parametrize("word", ["", "F", "3", "f3", "X3", "F-1", "F3.", "F3.1.2", "F3 ", "F3,"])
def test_a_word_that_is_no_action(word):
    with pytest.raises(ValueError, match="is no action"):
        Action.parse(word)


def test_a_list_from_words():
    assert parse("F0 F1  B0\nB1") == [
        Action("F", 0),
        Action("F", 1),
        Action("B", 0),
        Action("B", 1),
    ]
    assert str(parse("F0 F1.1")) == "[F0, F1.1]"


def test_lists_of_all_stages():
    assert lists(one_f_one_b, 2, 2) == [parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")]


@pytest.mark.parametrize(
    "schedule", [schedules.naive, schedules.gpipe, one_f_one_b, schedules.interleaved]
)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0, 4), "1 stage, not 0"),
        ((0, 2, 0), "1 micro-batch, not 0"),
        ((2, 2, 4), "no stage 2 in a pipeline of 2"),
        ((-1, 2, 4), "no stage -1"),
    ],
)
def test_bad_arguments(schedule, arguments, words):
    with pytest.raises(ValueError, match=words):
        schedule(*arguments)


# ------------------------------------------------------------
# Where the parts of the model are, and what flows between them.


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


# ------------------------------------------------------------
# What is kept, counted from a list.


def test_whole_backwards():
    assert activations_kept(parse("F0 F1 B0 F2 B1 U1 B2")) == [1, 2, 1, 2, 1, 1, 0]
    assert in_flight(parse("F0 F1 B0 F2 B1 B2")) == 2


def test_split_backwards():
    halves = parse("F0 I0 F1 I1 W0 W1")
    assert activations_kept(halves) == [1, 1, 2, 2, 1, 0] and in_flight(halves) == 2
    assert activations_kept(halves, rest=0.25) == [1, 0.25, 1.25, 0.5, 0.25, 0]
    assert activations_kept(halves, rest=0) == [1, 0, 1, 0, 0, 0]


def test_nothing():
    assert activations_kept([]) == [] and in_flight([]) == 0


# ------------------------------------------------------------
# Naive, GPipe and 1F1B: their lists as the papers draw them, and what they hold for every S and M.


def test_naive():
    assert lists(naive, 3, 2) == [parse("F0 B0 F1 B1")] * 3


def test_gpipe():
    assert lists(gpipe, 3, 2) == [parse("F0 F1 B0 B1")] * 3


def test_1f1b_as_in_the_paper():
    """Narayanan et al. 2021, figure 4, below: its first flush, with 8 micro-batches on 4 devices."""
    assert lists(one_f_one_b, 4, 8) == [
        parse("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        parse("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        parse("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        parse("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ]


def test_fewer_micro_batches_than_stages():
    assert lists(one_f_one_b, 4, 2) == [parse("F0 F1 B0 B1")] * 3 + [parse("F0 B0 F1 B1")]


@pytest.mark.parametrize("schedule", [naive, gpipe, one_f_one_b])
def test_gradients_add_up_in_the_order_of_the_micro_batches(schedule):
    for S, M in itertools.product(range(1, 9), range(1, 17)):
        for actions in lists(schedule, S, M):
            for kind in "FB":
                assert [a.micro for a in actions if a.kind == kind] == list(range(M))
            assert len(actions) == 2 * M


# ------------------------------------------------------------
# Interleaved 1F1B: Megatron's order, and what it holds for every S, M and v.


def test_as_in_the_paper():
    """Narayanan et al. 2021, figure 4: 8 micro-batches, 4 devices, 2 chunks; the first device's first 22 passes."""
    first = interleaved(0, 4, 8)
    assert first[:10] == parse("F0 F1 F2 F3 F0.1 F1.1 F2.1 F3.1 F4 F5")
    assert first[10:22] == parse("F6 B0.1 F7 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0 F7.1 B1")


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("S", [1, 2, 3, 4, 8])
def test_all_work_is_there_in_groups(S, v):
    for M in (S, 2 * S, 3 * S):
        for actions in lists(lambda stage, S, M: interleaved(stage, S, M, v), S, M):
            assert len(actions) == len(set(actions)) == 2 * M * v
            assert {a.chunk for a in actions} == set(range(v)) and {
                a.micro for a in actions
            } == set(range(M))
            forwards = [a for a in actions if a.kind == "F"]
            assert forwards[: S * v] == [Action("F", m, c) for c in range(v) for m in range(S)]
            for chunk in range(v):  # gradients of a chunk add up in the order of the micro-batches
                assert [a.micro for a in actions if (a.kind, a.chunk) == ("B", chunk)] == list(
                    range(M)
                )


@pytest.mark.parametrize(("S", "M"), [(4, 6), (3, 2), (2, 1)])
def test_stages_must_divide_micro_batches(S, M):
    with pytest.raises(ValueError, match=f"{S} stages do not divide {M} micro-batches"):
        interleaved(0, S, M)


def test_no_chunk():
    with pytest.raises(ValueError, match="not 0"):
        interleaved(0, 2, 2, v=0)


# ------------------------------------------------------------
# ZB-H1 and ZB-H2: the split backward moves, and 1F1B's order stays.


SIZES = [(S, M) for S in range(1, 9) for M in range(1, 17)]


def test_as_drawn():
    assert lists(zb_h1, 3, 4) == [
        parse("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"),
        parse("F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"),
        parse("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"),
    ]
    assert lists(zb_h2, 2, 4) == [
        parse("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"),
        parse("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"),
    ]


def test_h1_is_1f1b_with_the_backward_split():
    for S, M in SIZES:
        for half, whole in zip(lists(zb_h1, S, M), lists(one_f_one_b, S, M)):
            assert [
                Action("B", a.micro) if a.kind == "I" else a for a in half if a.kind != "W"
            ] == whole


@pytest.mark.parametrize(("schedule", "most"), [(zb_h1, lambda S: S), (zb_h2, lambda S: 2 * S - 1)])
def test_every_stage_keeps_as_much_as_the_first(schedule, most):
    for S, M in SIZES:
        for actions in lists(schedule, S, M):
            assert max(activations_kept(actions)) == min(M, most(S))
            assert [a.micro for a in actions if a.kind == "W"] == list(range(M))


# ------------------------------------------------------------
# ZB-V: its order, and that each stage's work is all there for every S and M.


def test_a_v_as_drawn():
    assert lists(zb_v, 2, 4) == [
        parse(
            "F0 F1 F2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3 I0 W0 F2.1 I2.1 W2.1 I1 W1 F3.1 I3.1 W3.1 I2 W2 I3 W3"
        ),
        parse(
            "F0 F0.1 F1 F1.1 I0.1 W0.1 F2 I0 W0 F2.1 I1.1 W1.1 F3 I1 W1 F3.1 I2.1 W2.1 I2 I3.1 I3 W2 W3.1 W3"
        ),
    ]


def test_all_work_of_a_v_is_there_in_order():
    for S in range(1, 9):
        for M in range(1, 17):
            for actions in lists(zb_v, S, M):
                for kind in "FIW":
                    for chunk in (0, 1):
                        assert [
                            a.micro for a in actions if (a.kind, a.chunk) == (kind, chunk)
                        ] == list(range(M))
                assert len(actions) == 6 * M


def test_bad_arguments_of_a_v():
    with pytest.raises(ValueError, match="no stage 3"):
        zb_v(3, 3, 4)


# ------------------------------------------------------------
# PipeDream's lists: 1F1B with updates.


def test_an_update_after_every_backward():
    assert lists(pipedream, 2, 3) == [
        parse("F0 F1 B0 U0 F2 B1 U1 B2 U2"),
        parse("F0 B0 U0 F1 B1 U1 F2 B2 U2"),
    ]


def test_2bw_updates_every_m():
    first, last = (pipedream_2bw(stage, 2, 4, 2) for stage in (0, 1))
    assert first == parse("F0 F1 B0 F2 B1 U1 F3 B2 B3 U3") and last == parse(
        "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3"
    )


def test_without_its_updates_it_is_1f1b():
    for S in range(1, 9):
        for M in range(1, 17):
            for with_updates, plain in zip(lists(pipedream, S, M), lists(one_f_one_b, S, M)):
                assert [a for a in with_updates if a.kind != "U"] == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 4, 12, 3), "every 3 micro-batches, two versions do not do for 4 stages"),
        ((0, 2, 7, 3), "7 micro-batches are not a multiple of the 3"),
        ((4, 4, 8, 4), "no stage 4"),
    ],
)
def test_bad_arguments_of_2bw(arguments, words):
    with pytest.raises(ValueError, match=words):
        pipedream_2bw(*arguments)
