"""Every schedule is one, for every S and M; and of a wrong one the first wrong action is named."""

import itertools
from functools import partial

import pytest

from minidist.parallel.schedules import (
    Action,
    ScheduleError,
    gpipe,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    pipedream,
    pipedream_2bw,
    validate,
    zb_h1,
    zb_h2,
    zb_v,
)

SIZES = list(itertools.product(range(1, 9), range(1, 17)))


@pytest.mark.parametrize("comm", ["mailbox", "channels"])
@pytest.mark.parametrize("schedule", [naive, gpipe, one_f_one_b, zb_h1, zb_h2, pipedream])
def test_every_schedule_is_one(schedule, comm):
    for S, M in SIZES:
        validate(lists(schedule, S, M), S, M, comm=comm)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_every_interleaved_schedule_is_one(v):
    for S, M in SIZES:
        if M % S == 0:
            for comm in ("mailbox", "channels"):
                validate(lists(partial(interleaved, v=v), S, M), S, M, v, comm=comm)


def test_every_v_is_one():
    for S, M in SIZES:
        for comm in ("mailbox", "channels"):
            validate(lists(zb_v, S, M), S, M, 2, place="V", comm=comm, limit=2 * S)
    with pytest.raises(ScheduleError, match="deadlock"):
        validate(lists(zb_v, 2, 4), 2, 4, 2)  # its chunks are not placed as a loop


def wrong(text, **options):
    """The error that `validate` raises for lists written with | between the stages."""
    with pytest.raises(ScheduleError) as error:
        validate([parse(row) for row in text.split("|")], **options)
    return error.value


def test_the_right_one_passes():
    validate([parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")], 2, 2)
    # whole and split backwards may be mixed
    validate([parse("F0 F1 I0 W0 B1"), parse("F0 B0 F1 I1 W1")], 2, 2)


@pytest.mark.parametrize(
    ("text", "stage", "position", "action", "why"),
    [
        # swapped
        ("F0 F1 B0 B1 | B0 F0 F1 B1", 1, 0, "B0", "it needs F0, which comes later in the list"),
        ("F0 F1 B0 B1 | F0 W0 I0 F1 B1", 1, 1, "W0", "it needs I0, which comes later in the list"),
        # missing
        ("F0 F1 B0 | F0 B0 F1 B1", 0, 3, "B1", "the list ends without this backward"),
        (
            "F0 F1 B0 B1 | F0 I0 F1 B1",
            1,
            4,
            "W0",
            "the list ends without this backward for the weights",
        ),
        ("F0 F1 B0 B1 | F0 B0 B1", 1, 2, "B1", "it needs F1, which is missing from the list"),
        ("F0 F1 B0 B1 | F0 W0 F1 B1", 1, 1, "W0", "it needs I0, which is missing from the list"),
        ("F0 B0 | F0 B0 F1 B1", 0, 2, "F1", "the list ends without this forward"),
        # twice
        ("F0 F1 F1 B0 B1 | F0 B0 F1 B1", 0, 2, "F1", "this forward was done before, by F1"),
        ("F0 F1 B0 B1 | F0 I0 W0 B0 F1 B1", 1, 3, "B0", "this backward was done before, by I0"),
        (
            "F0 F1 B0 B1 | F0 B0 I0 F1 B1",
            1,
            2,
            "I0",
            "this backward for the input was done before, by B0",
        ),
        # nobody can go on
        (
            "F0 B0 F1 B1 | F0 F1 B0 B1",
            0,
            1,
            "B0",
            "deadlock in a circle: stage 0 waits at B0 for the gradient of micro-batch 0 from stage 1; "
            "stage 1 waits at F1 for the activation of micro-batch 1 from stage 0",
        ),
        # unknown
        ("F0 F1 B0 B1 | F0 B0 F1.1 B1", 1, 2, "F1.1", "there is no chunk 1, only 0 to 0"),
    ],
)
def test_the_first_wrong_action_is_named(text, stage, position, action, why):
    error = wrong(text)
    assert (error.stage, error.position, str(error.action), error.why) == (
        stage,
        position,
        action,
        why,
    )
    assert str(error) == f"stage {stage}, position {position}, {action}: {why}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "F0 F1 B0 B1 | F1 B1 F0 B0",
            "stage 1, position 0, F1: the next activation that comes from stage 0",
        ),
        (
            "F0 F1 B1 B0 | F0 B0 F1 B1",
            "stage 0, position 2, B1: the next gradient that comes from stage 1",
        ),
    ],
)
def test_messages_in_another_order(text, said):
    """A stage that keeps what comes until it is wanted does not mind; one that takes what comes next does."""
    first = "F0" if "activation" in said else "B0"
    said += f" is that of its {first}: messages arrive in the order they were sent"
    assert str(wrong(text, comm="channels")) == said
    validate([parse(row) for row in text.split("|")])


def test_the_earliest_of_several_is_named():
    assert wrong("F0 F1 B0 B0 | F0 B0 B1").stage == 1
    assert wrong("F0 F1 B0 | F0 B0 F1").stage == 0


def test_a_micro_batch_too_many():
    assert wrong("F0 F1 B0 B1 | F0 B0 F1 B1", M=1).why == "there is no micro-batch 1, only 0 to 0"
    assert (
        str(wrong("F0 B0 | F0 B0", M=2))
        == "stage 0, position 2, F1: the list ends without this forward"
    )


def test_an_unknown_kind():
    with pytest.raises(
        ScheduleError, match="stage 0, position 0, X0: there is no kind 'X', only F, B, I, W, U"
    ):
        validate([[Action("X", 0)]])


def test_a_deadlock_is_told_from_its_earliest_action():
    error = wrong("F0 F1 B0 F2 B1 B2 | F0 F2 B0 B2 F1 B1")
    assert (error.stage, error.position) == (1, 1)
    assert error.why == (
        "deadlock in a circle: stage 1 waits at F2 for the activation of micro-batch 2 from stage 0; "
        "stage 0 waits at B0 for the gradient of micro-batch 0 from stage 1"
    )


def test_deadlock_of_three_is_told_from_its_first_action():
    error = wrong("F0 B0 F1 B1 | F0 F1 B0 B1 | F0 F1 B0 B1")
    assert (error.stage, error.position) == (0, 1) and error.why.count("waits at") == 2


def test_memory_over_the_limit():
    for S, M in SIZES:
        validate(lists(one_f_one_b, S, M), S, M, limit=[S - stage for stage in range(S)])
        validate(lists(zb_h1, S, M), S, M, limit=S)
    error = wrong("F0 F1 F2 B0 B1 B2 | F0 B0 F1 B1 F2 B2", limit=2)
    assert (
        str(error)
        == "stage 0, position 2, F2: with it 3 are kept for backwards to come, and the limit is 2"
    )
    error = wrong("F0 F1 F2 B0 B1 B2 | F0 F1 B0 F2 B1 B2", limit=[3, 1])
    assert (
        str(error)
        == "stage 1, position 1, F1: with it 2 are kept for backwards to come, and the limit is 1"
    )


def test_memory_between_the_halves_of_a_backward():
    halves = "F0 I0 F1 I1 F2 I2 W0 W1 W2"
    validate([parse(halves)], limit=2.5, rest=0.75)  # F2 on top of two halves
    assert wrong(halves, limit=2.4, rest=0.75).position == 4
    assert wrong(halves, limit=2.4).position == 4


def test_weights_of_another_version():
    """1F1B without a flush: without stashing the second backward already meets new weights."""
    error = wrong("F0 F1 B0 U0 B1 U1 | F0 B0 U0 F1 B1 U1", stash=False)
    assert str(error) == (
        "stage 0, position 4, B1: its forward used version 0 of the weights, and without stashing it "
        "would use version 1"
    )
    for S, M in itertools.product((1, 2, 3, 8), (1, 2, 3, 5, 16)):
        validate(lists(pipedream, S, M), S, M, most=S)
        if S > 1 and M > 1:
            with pytest.raises(ScheduleError, match=r"B1: its forward used version 0"):
                validate(lists(pipedream, S, M), stash=False)
        if M >= 2 * S - 2 > 0:
            with pytest.raises(ScheduleError, match=f"U.*: with it the stage holds {S} versions"):
                validate(lists(pipedream, S, M), most=S - 1)


def test_a_version_that_is_not_made_yet():
    late = [parse("F0 F1 B0 B1 F2 B2 U2 F3 B3"), parse("F0 B0 F1 B1 F2 B2 U2 F3 B3")]
    with pytest.raises(
        ScheduleError, match="position 4, F2: it needs version 1 of the weights, and only version 0"
    ):
        validate(late, rule="2bw", group=1)


def test_two_versions_are_enough_for_2bw():
    for S in range(1, 9):
        for m in (S, S + 1):
            actions = lists(partial(pipedream_2bw, m=m), S, 4 * m)
            validate(actions, S, 4 * m, rule="2bw", group=m, most=2)
            if S > 1:
                with pytest.raises(ScheduleError, match="1 at most"):
                    validate(actions, S, 4 * m, rule="2bw", group=m, most=1)


def test_an_update_before_its_backward():
    assert wrong("F0 U0 B0").why == "it needs B0, which comes later in the list"
    assert wrong("F0 I0 U0 W0").why == "it needs W0, which comes later in the list"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(S=3), "2 lists were given for 3 stages"),
        (dict(limit=[1]), "1 limits were given for 2 stages"),
        (dict(M=0), "1 micro-batch, not 0"),
        (dict(place="V"), "not as 'V' of 1"),
        (dict(rule="old"), "not by 'old'"),
        (dict(rule="2bw"), "group is None"),
    ],
)
def test_a_wrong_question(options, words):
    with pytest.raises(ValueError, match=words) as error:
        validate([parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")], **options)
    assert not isinstance(error.value, ScheduleError)
