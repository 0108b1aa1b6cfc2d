"""The error: what it says, and that it passes between processes."""

import pickle

from minidist.parallel.schedules import Action, ScheduleError


def test_what_it_says():
    error = ScheduleError(1, 2, Action("B", 3), "it is late")
    assert str(error) == "stage 1, position 2, B3: it is late" and isinstance(error, ValueError)
    assert (error.stage, error.position, error.action, error.why) == (
        1,
        2,
        Action("B", 3),
        "it is late",
    )


def test_it_survives_a_pickle():
    error = ScheduleError(1, 2, Action("B", 3), "it is late")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.action == error.action
