"""The judgement on banks can fail: a small lesson that is right, and each way to break it."""

import pytest

from minicheck.exam import FAILED, Prediction
from tests.bank import __main__ as command
from tests.bank import judge as module
from tests.bank.bank import Bug, assignment, edited, planted
from tests.bank.judge import (
    bank_faults,
    graders_kept,
    planted_fault,
    solution_fault,
    stub_fault,
    together,
    words_fault,
)

GRADER = """# %%
from minicheck import Wrong

def judge(name, answer):
    try:
        found = answer()
    except NotImplementedError:
        raise Wrong(f"{name}: not written yet") from None
    if found == "cheat":
        raise Wrong(f"{name}: an answer reads and writes no files (notes.txt)")
    if found != 1:
        raise Wrong(f"{name}: the answer is {found}, and should be 1")
    print(f"{name}: right.")

"""
EXERCISE = """# %% nbgrader={{"grade_id": "{name}", "solution": true}}
def {name}():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION

# %% nbgrader={{"grade_id": "{name}_test", "points": 3}}
judge("{name}", {name})

"""
NAMES = ["one", "two", "three", "four"]


@pytest.fixture
def lesson(tmp_path):
    """Its folder, which a test may change before it asks: what is read is kept."""
    assignment.cache_clear()
    planted.cache_clear()
    (tmp_path / "assignment.py").write_text(
        GRADER + "".join(EXERCISE.format(name=name) for name in NAMES)
    )
    plant(tmp_path, BUGS)
    yield tmp_path
    assignment.cache_clear()
    planted.cache_clear()


def wrong(exercise, value, title, **more):
    return Bug(exercise, title, cell=f"def {exercise}():\n    return {value!r}", **more)


BUGS = [
    *(wrong(name, i + 2, f"wrong number {i}") for name in NAMES for i in range(5)),
    *(wrong(name, "cheat", f"cheat {i}", cheat=True) for name in NAMES for i in range(2)),
]


def plant(folder, bugs):
    (folder / "bugs.py").write_text(
        f"from tests.bank.bank import Bug\n\nBUGS = {bugs!r}\n", encoding="utf-8"
    )


def change(folder, before, after):
    text = (folder / "assignment.py").read_text()
    assert before in text
    (folder / "assignment.py").write_text(text.replace(before, after))


def told(folder, capsys, status):
    """What the command says, which ends with `status`."""
    assert command.main([folder]) == status
    return capsys.readouterr().out


def test_a_lesson_that_is_right(lesson, capsys):
    assert all(
        fault(lesson, name) == "" for name in NAMES for fault in (solution_fault, stub_fault)
    )
    assert bank_faults(lesson) == [] and all(
        planted_fault(lesson, bug) == "" for bug in planted(lesson)
    )
    assert "4 exercises, 28 planted, 28 caught" in told(lesson, capsys, 0)


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        (["it passes", "", ""], ""),
        (["it passes", "", "it passes"], "it passes"),
        (["it passes"] * 3, "it passes"),
        (["it passes", "", "no words"], "no words"),
    ],
)
def test_what_is_drawn_may_hide_a_mistake_once(lesson, monkeypatch, outcomes, found):
    monkeypatch.setattr(module, "judged", lambda folder, bug: outcomes.pop(0))
    with pytest.warns(UserWarning, match="passed once"):
        assert planted_fault(lesson, planted(lesson)[0]) == found
    assert outcomes == []


@pytest.mark.filterwarnings("ignore:.* passed once")
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("    return 1\n", "    return 7\n", "one: the solution fails: one: the answer is 7"),
        ("right.", "fine.", "one: the grader does not say that it is right"),
        (
            "    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION",
            "    return 1",
            "one: the stub passes",
        ),
        ("not written yet", "hm", "one: the stub fails with other words: one: hm"),
        ("found != 1", "found not in (1, 4)", "one: wrong number 2: it passes"),
        (
            "{name}: the answer is",
            "the answer is",
            "one: wrong number 0: the message does not begin with",
        ),
        (
            ", and should be 1",
            ". It looks like no usual mistake.",
            "wrong number 0: the message does not know",
        ),
        (
            "the answer is {found}, and",
            "the library's",
            "one: wrong number 0: a mistake is called a cheat",
        ),
        ('"points": 3', '"points": 1', "4 exercises and 4 points, and should be at least 4 and 10"),
        ('"grade_id": "four_test"', '"grade_id": "fifth_test"', "solutions of ['four', 'one'"),
        ("if found != 1", "if fuond != 1", "one: wrong number 0: the grader itself fails"),
    ],
)
def test_a_lesson_that_is_not(lesson, capsys, before, after, says):
    change(lesson, before, after)
    assert says in told(lesson, capsys, 1)


def test_a_bank_that_is_too_small(lesson, capsys):
    gone = [wrong("two", "cheat", "cheat 0", cheat=True), wrong("three", 6, "wrong number 4")]
    more = [
        wrong("five", 2, "of no exercise"),
        wrong("four", 2, ""),
        wrong("one", 9, "wrong number 0"),
    ]
    plant(lesson, [bug for bug in BUGS if bug not in gone] + more)
    out = told(lesson, capsys, 1)
    for says in (
        "two: 5 planted mistakes and 1 cheats",
        "three: 4 planted mistakes and 2 cheats",
        "of no exercise: no such exercise: five",
        "four: an answer does not say what is wrong",
        "one: 2 answers have the title 'wrong number 0'",
    ):
        assert says in out


SOLUTION = """def f(x):
    ### BEGIN SOLUTION
    if x:
        y = 1
        z = 1
    return y
    ### END SOLUTION"""


@pytest.mark.parametrize(
    ("bug", "code"),
    [
        (
            dict(old="y = 1", new="y = 2"),
            ["    if x:", "        y = 2", "        z = 1", "    return y"],
        ),
        (
            dict(old="y = 1\nz = 1", new="\nfor z in x:\n    y = z\n"),
            ["    if x:", "        for z in x:", "            y = z", "    return y"],
        ),
        (
            dict(old="    z = 1\nreturn y", new="    z = 2\nreturn y, z"),
            ["    if x:", "        y = 1", "        z = 2", "    return y, z"],
        ),
        (dict(old="z = 1", new=""), ["    if x:", "        y = 1", "    return y"]),
        (
            dict(edits=(("y = 1", "y = 0"), ("return y", "return y, z"))),
            ["    if x:", "        y = 0", "        z = 1", "    return y, z"],
        ),
    ],
)
def test_edits(bug, code):
    assert Bug("f", "why", **bug).code(SOLUTION) == "\n".join(["def f(x):", *code])


def test_a_whole_cell():
    assert Bug("f", "why", cell="\ndef f(x):\n    pass\n").code(SOLUTION) == "def f(x):\n    pass"


@pytest.mark.parametrize(("old", "times"), [("y = 3", 0), ("a = 1", 2)])
def test_an_edit_that_fits_no_place_or_several(old, times):
    with pytest.raises(
        ValueError, match=f"one: why: the lines to be changed stand in the solution {times} times"
    ):
        edited("a = 1\nif a:\n    a = 1\n", old, "", "one: why")


def test_an_edit_that_does_not_fit_is_told(lesson):
    bug = Bug("one", "why", old="return 3", new="return 4")
    assert planted_fault(lesson, bug).startswith(
        "one: why: the lines to be changed stand in the solution 0 times"
    )


def test_words():
    bug = Bug("one", "why")
    assert words_fault(bug, "one: the answer is 7, and should be 1") == ""
    assert words_fault(bug, "one: the answer is") and words_fault(
        bug, "two: the answer is 7, and should be 1"
    )
    assert words_fault(Bug("one", "why", cheat=True), "one: this is the library's: build it") == ""
    assert "fails" in words_fault(bug, f"one: {FAILED}: ValueError: max() of nothing, in one.py")


def test_what_graders_ask_is_asked_in_one_launch(monkeypatch):
    launches = []

    def examinations(exam, answers):
        launches.append((exam, answers))
        return [None if answer == "right" else f"not {answer}" for answer in answers]

    def judgement(*answers):
        def judge():
            return [module.guard.examinations(b"exam", [answer])[0] for answer in answers]

        return judge

    monkeypatch.setattr(module.guard, "examinations", examinations)
    judgements = [judgement("right"), judgement(), judgement("right", "wrong"), judgement("wrong")]
    assert together(judgements) == [[None], [], [None, "not wrong"], ["not wrong"]]
    assert launches == [(b"exam", ["right", "right", "wrong"]), (b"exam", ["wrong"])]


def test_a_cheat_that_silences_a_grader_silences_no_other():
    before = vars(Prediction)["compare"]
    with graders_kept():
        Prediction.compare = lambda *args: None
        Prediction.added = 1
    assert vars(Prediction)["compare"] is before and not hasattr(Prediction, "added")
