"""Notebooks as students hand them in: of whatever shape, a right answer is found, and nothing hides it."""

import copy
import json
import os
import random
import re

import nbformat
import pytest

from minicheck import submission
from minicheck.submission import Unreadable, read, repaired, restored
from tests.repository.files import ROOT

SETUP = "import math\nimport minicheck as check"
TEN = "def ten():\n    return 10"
TWICE = "def twice(f):\n    return 2 * f()"
NUMBERS = "small = large = None\nsmall = 1\nlarge = small + math.floor(99.5)"
REPAIRED = "def broken():\n    return 0"
STUB = "    # your code here\n    raise NotImplementedError"
EMPTY = {
    "ten": f"def ten():\n{STUB}",
    "twice": f"def twice(f):\n{STUB}",
    "numbers": "small = large = None\n# your code here\nraise NotImplementedError",
    "broken": f"def broken():\n{STUB}",
    "why_plot": "# your code here\nraise NotImplementedError",
    "why": "*Your answer here.*",
}
SOLVED = {
    "ten": TEN,
    "twice": TWICE,
    "numbers": NUMBERS,
    "broken": REPAIRED,
    "why_plot": "print(ten())",
    "why": "Because 2 · 5 is 10.",
}


def cell(source, kind="code", grade_id=None, **mark):
    """A cell as a notebook has it; with a `grade_id` it is marked, and locked unless it is a solution."""
    metadata = {}
    if grade_id:
        whole = {
            "grade": False,
            "solution": False,
            "locked": not mark.get("solution"),
            "task": False,
        }
        metadata = {"nbgrader": whole | {"grade_id": grade_id, "schema_version": 3} | mark}
    raw = {"cell_type": kind, "metadata": metadata, "source": source.splitlines(keepends=True)}
    return raw | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def sheet(answers):
    """A small assignment with {exercise: cell} as its solutions, as the release has its cells."""

    def solution(name):
        return cell(answers[name], grade_id=name, solution=True)

    def test(name, source, points=1):
        return cell(source, grade_id=f"{name}_test", grade=True, points=points)

    cells = [
        cell("# Exercises", "markdown", "top"),
        cell(SETUP, grade_id="setup"),
        cell("## Ten", "markdown", "ten_spec"),
        solution("ten"),
        test("ten", "check.ten(ten)"),
        cell("large = ten()\nprint(large)"),
        cell("## Twice", "markdown", "twice_spec"),
        solution("twice"),
        test("twice", "check.twice(twice)"),
        solution("numbers"),
        test("numbers", "check.numbers(small, large)"),
        cell("**Find the bug.**", "markdown", "broken_spec"),
        cell("def broken():\n    return 1", grade_id="broken_broken"),
        cell("print(broken())"),
        solution("broken"),
        test("broken", "check.broken(broken)"),
        cell("print(broken())"),
        cell("## Why?", "markdown", "why_spec"),
        cell(answers["why_plot"], grade_id="why_plot", solution=True),
        cell(answers["why"], "markdown", "why", solution=True, grade=True, points=2),
    ]
    for number, raw in enumerate(cells):
        raw["id"] = f"cell-{number}"
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


ASKED = sheet(SOLVED)
RELEASED = sheet(EMPTY)
RIGHT = {"ten_test", "twice_test", "numbers_test", "broken_test"}


def right(rows):
    """The test cells whose answers are right where they are taken."""
    names = {"check": None, "print": lambda *_: None}
    found = set()
    for row in rows:
        if not row.grade_id:
            try:
                exec(row.source, names)
            except Exception:
                continue
        taken = {name: names.get(name) for name in row.wanted}
        try:
            if (
                row.grade_id == "ten_test"
                and taken["ten"]() == 10
                or row.grade_id == "twice_test"
                and taken["twice"](lambda: 4) == 8
                or row.grade_id == "numbers_test"
                and taken == {"small": 1, "large": 100}
                or row.grade_id == "broken_test"
                and taken["broken"]() == 0
            ):
                found.add(row.grade_id)
        except (TypeError, NotImplementedError):
            continue
    return found


def at(notebook, grade_id):
    """The place of a cell."""
    ids = [raw["metadata"].get("nbgrader", {}).get("grade_id") for raw in notebook["cells"]]
    return ids.index(grade_id)


def handed_in(**answers):
    return sheet(SOLVED | answers)


def split(nb):
    """A solution cell cut in two, as JupyterLab does it: both parts have the mark."""
    here = at(nb, "numbers")
    nb["cells"][here : here + 1] = [
        cell("small = 1", grade_id="numbers", solution=True),
        cell("large = 100", grade_id="numbers", solution=True),
    ]


def split_without_mark(nb):
    split(nb)
    nb["cells"][at(nb, "numbers") + 1]["metadata"] = {}


def split_with_a_helper(nb):
    nb["cells"].insert(at(nb, "ten") + 1, cell("def five():\n    return 5"))
    nb["cells"][at(nb, "ten")]["source"] = "def ten():\n    return five() + five()"


def duplicated(name):
    def change(nb):
        nb["cells"].insert(at(nb, name), copy.deepcopy(nb["cells"][at(nb, name)]))

    return change


def deleted(name):
    def change(nb):
        del nb["cells"][at(nb, name)]

    return change


def moved(name, to):
    def change(nb):
        raw = nb["cells"].pop(at(nb, name))
        nb["cells"].insert(len(nb["cells"]) if to is None else at(nb, to), raw)

    return change


def edited(name, source):
    def change(nb):
        nb["cells"][at(nb, name)]["source"] = source

    return change


def stripped(nb):
    for raw in nb["cells"]:
        raw["metadata"] = {}
        del raw["id"]


def without_anything_but_code(nb):
    stripped(nb)
    nb["cells"] = [raw for raw in nb["cells"] if raw["cell_type"] == "code"]
    for raw in nb["cells"]:
        del raw["metadata"]


def stripped_without_tests(nb):
    stripped(nb)
    nb["cells"] = [raw for raw in nb["cells"] if "check." not in "".join(raw["source"])]


def renamed(nb):
    for number, raw in enumerate(nb["cells"]):
        if raw["metadata"]:
            raw["metadata"]["nbgrader"]["grade_id"] = f"cell-{number}"


def swapped_marks(nb):
    one, other = nb["cells"][at(nb, "ten")], nb["cells"][at(nb, "twice")]
    one["source"], other["source"] = other["source"], one["source"]


def in_one_cell(nb):
    for name in SOLVED:
        nb["cells"][at(nb, name)]["source"] = EMPTY[name]
    code = [text for name, text in SOLVED.items() if name != "why"]
    nb["cells"][at(nb, "ten")]["source"] = "\n\n".join(code) + "\ncheck.ten(ten)\n"


def in_the_test_cell(nb):
    nb["cells"][at(nb, "ten")]["source"] = EMPTY["ten"]
    nb["cells"][at(nb, "ten_test")]["source"] = f"{TEN}\ncheck.ten(ten)"


def in_the_locked_cell(nb):
    nb["cells"][at(nb, "broken")]["source"] = EMPTY["broken"]
    nb["cells"][at(nb, "broken_broken")]["source"] = REPAIRED


def above_the_empty_one(nb):
    nb["cells"][at(nb, "ten")]["source"] = EMPTY["ten"]
    nb["cells"].insert(at(nb, "ten"), cell(TEN))


def above_one_that_is_half_empty(nb):
    """As releases have it: what is called is there, and uses a class that is not written yet."""
    above_the_empty_one(nb)
    nb["cells"][at(nb, "ten")]["source"] = (
        "class Ten:\n    def of(self):\n        raise NotImplementedError\n\n"
        "def ten():\n    return Ten().of()"
    )


def used_again_below(nb):
    nb["cells"].insert(at(nb, "numbers_test") + 1, cell("small = 'for something else'"))


def as_text(nb):
    nb["cells"][at(nb, "ten")]["cell_type"] = "markdown"


def as_raw_without_mark(nb):
    nb["cells"][at(nb, "ten")] |= {"cell_type": "raw", "metadata": {}}


def the_repaired_one_as_text(nb):
    """Another of that name is there as code, the release's."""
    nb["cells"][at(nb, "broken")] |= {"cell_type": "raw", "metadata": {}}


def with_the_mark_of_a_text(nb):
    nb["cells"][at(nb, "ten")]["metadata"]["nbgrader"]["grade_id"] = "twice_spec"


def texts_as_code(nb):
    for raw in nb["cells"]:
        raw["cell_type"] = "code"


def with_rubbish(nb):
    nb["cells"][3:3] = [None, 7, [], {}, {"cell_type": "code"}, {"source": 3}, {"source": [1, "x"]}]
    nb["cells"][0]["metadata"] = []
    nb["cells"][2]["metadata"]["nbgrader"] = "yes"
    nb["cells"] += [
        {"cell_type": ["code"], "source": "\ud800 = 1", "metadata": {"nbgrader": {"grade_id": {}}}}
    ]


def with_magics(nb):
    nb["cells"][at(nb, "ten")]["source"] = (
        "%%time\n%matplotlib inline\nfiles = !ls\nprint?\n"
        "def ten():\n    if True:\n        %timeit 1\n    return 10"
    )
    nb["cells"].insert(2, cell("%%bash\nfor f in *; do echo; done"))


def indented(nb):
    nb["cells"][at(nb, "ten")]["source"] = "  def ten():\n    return 10"


def with_prose_in_code(nb):
    nb["cells"].insert(at(nb, "ten"), cell("I do not think that this is Python"))


REPAIRS = [
    (split, "2 cells had the mark `numbers`"),
    (split_without_mark, None),
    (split_with_a_helper, None),
    (duplicated("ten"), "2 cells had the mark `ten`"),
    (duplicated("ten_test"), "`ten_test` was there 2 times"),
    (deleted("ten_test"), "`ten_test` was missing"),
    (deleted("setup"), "`setup` was missing"),
    (deleted("broken_broken"), "`broken_broken` was missing"),
    (moved("ten", None), "another order"),
    (moved("ten", "twice_test"), "another order"),
    (moved("setup", None), "another order"),
    (moved("ten_test", None), "another order"),
    (moved("broken_broken", "broken_test"), "another order"),
    (edited("ten_test", "check = None"), "`ten_test` was changed"),
    (edited("ten_test", "def check():\n    def"), "`ten_test` was changed"),
    (edited("setup", f"{SETUP}\nprint(math.pi)"), "`setup` was changed"),
    (stripped, "No cell had nbgrader's marks"),
    (without_anything_but_code, "No cell had nbgrader's marks"),
    (stripped_without_tests, "`broken_test` was missing"),
    (renamed, "No cell had nbgrader's marks"),
    (swapped_marks, "`twice` was found in a cell without its mark"),
    (in_one_cell, "`twice` was found in a cell without its mark"),
    (in_the_test_cell, "`ten_test` was changed"),
    (in_the_locked_cell, "`broken_broken` was changed"),
    (above_the_empty_one, "`ten` was found in a cell without its mark"),
    (above_one_that_is_half_empty, "`ten` was found in a cell without its mark"),
    (used_again_below, "Below the test cell `numbers_test` stands another `small`"),
    (as_text, "`ten` was not a cell of code"),
    (as_raw_without_mark, "`ten` was not a cell of code"),
    (the_repaired_one_as_text, "`broken` was not a cell of code"),
    (with_the_mark_of_a_text, "`ten` was found in a cell without its mark"),
    (texts_as_code, None),
    (with_rubbish, None),
    (with_magics, None),
    (indented, None),
    (with_prose_in_code, None),
]


@pytest.mark.parametrize("asked", [ASKED, RELEASED], ids=["solved", "released"])
@pytest.mark.parametrize(("change", "words"), REPAIRS)
def test_a_right_answer_is_found(change, words, asked):
    """In both ways; what nbgrader gets is whole, each marked cell once and in order, and needs no second repair."""
    nb = handed_in()
    change(nb)
    given = copy.deepcopy(nb)
    rows, notes = repaired(nb, asked)
    assert right(rows) == RIGHT, notes
    assert nb == given
    whole, again = restored(nb, asked)
    assert again == notes and (not words or any(words in note for note in notes)), notes
    nbformat.validate(nbformat.from_dict(whole))
    marks = [raw["metadata"]["nbgrader"] for raw in whole["cells"] if raw["metadata"]]
    assert marks == [raw["metadata"]["nbgrader"] for raw in asked["cells"] if raw["metadata"]]
    tests = [raw for raw in whole["cells"] if "".join(raw["source"]).startswith("check.")]
    assert [raw["source"] for raw in tests] == [
        "".join(raw["source"])
        for raw in asked["cells"]
        if "".join(raw["source"]).startswith("check.")
    ]
    assert restored(whole, whole) == (whole, [])


@pytest.mark.parametrize("asked", [ASKED, RELEASED])
@pytest.mark.parametrize("answers", [SOLVED, EMPTY, SOLVED | {"ten": EMPTY["ten"]}])
def test_what_is_as_it_was_handed_out_stays_so(answers, asked):
    whole, notes = restored(sheet(answers), asked)
    assert notes == []
    assert [raw["source"] for raw in whole["cells"]] == [
        "".join(raw["source"]) for raw in sheet(answers)["cells"]
    ]


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("solutions/*/*.ipynb")), ids=lambda path: path.stem
)
def test_every_assignment_stays_as_it_is(path):
    """A wanted name belongs to one solution; solved as it was released, nothing is repaired. But calls of `check` in answers
    are no code."""
    solved = json.loads(path.read_text(encoding="utf-8"))
    released = json.loads(
        (ROOT / "exercises" / path.parent.name / path.name).read_text(encoding="utf-8")
    )
    for raw, other in zip(released["cells"], solved["cells"], strict=True):
        if raw["metadata"].get("nbgrader", {}).get("solution"):
            raw["source"] = other["source"]
    whole, notes = restored(released, solved)
    assert notes == []
    sources = ["".join(raw["source"]) for raw in solved["cells"]]
    assert [raw["source"] for raw in whole["cells"]] == [
        re.sub(r"^(?=check\.\w+\.numbers)", "# ", source, flags=re.MULTILINE) for source in sources
    ]


def below_the_empty_one(nb):
    """The text of an open answer in a new cell, and the cell for it left as it was."""
    edited("why", EMPTY["why"])(nb)
    nb["cells"].append(cell("Because 5 + 5 is.", "markdown"))


def as_code(nb):
    nb["cells"][at(nb, "why")]["cell_type"] = "code"


def with_more_below(nb):
    nb["cells"].append(cell("And 5 · 2 is 10, too.", "markdown"))


def with_a_remark_above(nb):
    nb["cells"].insert(at(nb, "why_spec"), cell("I liked this one.", "markdown"))
    nb["cells"][at(nb, "why")]["metadata"] = {}


@pytest.mark.parametrize("asked", [ASKED, RELEASED], ids=["solved", "released"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (stripped, "No cell had nbgrader's marks"),
        (renamed, "No cell had nbgrader's marks"),
        (deleted("why_plot"), "`why_plot` was missing"),
        (moved("why", "setup"), "another order"),
        (duplicated("why"), "2 cells had the mark `why`"),
        (below_the_empty_one, "`why` was found in a cell without its mark"),
        (as_code, "`why` was not a cell of markdown"),
        (with_more_below, None),
        (with_a_remark_above, "`why` was found in a cell without its mark"),
    ],
)
def test_an_open_answer_is_found(change, words, asked):
    """It is in the marked cell, which a teacher grades; nbgrader gives nothing for one that is as it was handed out."""
    nb = handed_in(why="Because 5 + 5 is.")
    change(nb)
    whole, notes = restored(nb, asked)
    assert whole["cells"][at(whole, "why")]["source"] == "Because 5 + 5 is.", notes
    assert [raw["source"] for raw in whole["cells"]].count(EMPTY["why"]) == 0
    assert not words or any(words in note for note in notes), notes


def test_no_solution_is_given_away():
    """What is not there is empty, even where the release is known only as solved."""
    asked = sheet(
        {name: f"### BEGIN SOLUTION\n{text}\n### END SOLUTION" for name, text in SOLVED.items()}
    )
    whole, notes = restored({"cells": []}, asked)
    assert right(repaired({"cells": []}, asked).rows) == set()
    assert "BEGIN SOLUTION" not in json.dumps(whole)
    assert whole["cells"][at(whole, "why")]["source"] == EMPTY["why"]
    assert "The cell `ten` was missing, and no answer to it was found." in notes


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (edited("ten", "def ten(:\n    return 10"), {"ten_test"}),
        (edited("numbers", "small = 1"), {"numbers_test"}),
        (edited("broken", "def broken():\n    return 1"), {"broken_test"}),
        (edited("twice", EMPTY["twice"]), {"twice_test"}),
        (edited("twice", ""), {"twice_test"}),
        (deleted("twice"), {"twice_test"}),
    ],
)
def test_what_is_wrong_costs_itself_alone(change, lost):
    nb = handed_in()
    change(nb)
    assert right(repaired(nb, ASKED).rows) == RIGHT - lost


def test_a_syntax_error_is_told():
    nb = handed_in(ten="def ten(:\n    return 10")
    [note] = repaired(nb, ASKED).notes
    assert note.startswith("The cell `ten` is not Python (line 1: ")
    nb["cells"].insert(at(nb, "ten"), cell(TEN))
    assert right(repaired(nb, ASKED).rows) == RIGHT


def test_the_one_above_the_test_counts_where_the_test_is():
    """Also of two functions, which only their order tells apart; without the test it is the last."""
    nb = handed_in()
    nb["cells"].insert(at(nb, "ten_test") + 1, cell("def ten():\n    return 11"))
    assert right(repaired(nb, ASKED).rows) == RIGHT
    deleted("ten_test")(nb)
    assert right(repaired(nb, ASKED).rows) == RIGHT - {"ten_test"}


def test_no_check_of_the_students_is_run():
    nb = handed_in(twice=f"check.ten(\n    ten\n)\n{TWICE}\ncheck.twice(twice); used = 1")
    nb["cells"] += [cell("check.ten(ten)  # again"), cell("check.ten(ten)\ncheck.numbers(1, 2)")]
    edited("numbers_test", "check.numbers(1, 100)")(nb)
    rows = repaired(nb, ASKED).rows
    [kept] = [
        row.source for row in rows if row.source.count("check.") and "def twice" in row.source
    ]
    assert kept.splitlines()[:3] == ["# check.ten(", "#     ten", "# )"]
    assert kept.endswith("\ncheck.twice(twice); used = 1")
    assert not any("check." in row.source for row in rows if row.source != kept)


def test_whatever_is_done_to_the_cells():
    """Copied, cut, moved, unmarked at random, where no answer is lost: all of it is found, by both ways."""
    rng = random.Random(0)
    for _ in range(60):
        nb = handed_in()
        done = []
        for _ in range(rng.randrange(1, 6)):
            cells = nb["cells"]
            here = rng.randrange(len(cells))
            marks = cells[here]["metadata"].get("nbgrader", {})
            act = rng.choice(["copy", "move", "unmark", "delete"])
            if act == "copy":
                cells.insert(rng.randrange(len(cells)), copy.deepcopy(cells[here]))
            elif act == "move":
                cells.insert(rng.randrange(len(cells)), cells.pop(here))
            elif act == "unmark":
                cells[here]["metadata"] = {}
            elif marks and not marks["solution"]:
                del cells[here]
            done.append((act, here))
        whole, _ = restored(nb, RELEASED)
        nbformat.validate(nbformat.from_dict(whole))
        assert right(repaired(nb, RELEASED).rows) == RIGHT, done
        assert restored(whole, whole) == (whole, []), done


# ------------------------------------------------------------
# The file.


def test_a_notebook_is_read(tmp_path):
    path = tmp_path / "a.ipynb"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_text(json.dumps(handed_in()), encoding=encoding)
        assert read(path) == handed_in()
    assert read(path, within=tmp_path.parent) == handed_in()


def test_format_3_is_read(tmp_path):
    path = tmp_path / "old.ipynb"
    cells = [raw | {"input": raw["source"]} for raw in handed_in()["cells"]]
    for raw in cells:
        del raw["source"]
    path.write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}, 3, {}]}))
    assert right(repaired(read(path), ASKED).rows) == RIGHT


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"\xff\xfe\x00", "which is JSON"),
        (b"PK\x03\x04", "which is JSON"),
        (b'{"cells": [', "which is JSON"),
        (b"[" * 100_000, "which is JSON"),
        (b"1" * 100_000, "which is JSON"),
        (b"[]", "no list of cells"),
        (b'{"cells": {}}', "no list of cells"),
        (b'{"nbformat": 2, "worksheets": 1}', "no list of cells"),
        (b'{"cells": [' + b"{}," * 2000 + b"{}]}", "at most 2,000 cells"),
        (b'{"cells": [{"source": "' + b"x" * 400_001 + b'"}]}', "400,000 characters"),
        (b" " * 2_000_001, "more than 2,000,000 bytes"),
    ],
    ids=range(12),
)
def test_no_notebook(tmp_path, monkeypatch, data, words):
    monkeypatch.setattr(submission, "MOST_BYTES", 2_000_000)
    path = tmp_path / "a.ipynb"
    path.write_bytes(data)
    with pytest.raises(Unreadable, match=words):
        read(path)


def test_nothing_but_a_file_is_opened(tmp_path):
    """No link, to a file or in its way; no pipe, which would wait for ever; no folder; no file."""
    path = tmp_path / "real" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps(handed_in()))
    (tmp_path / "linked").symlink_to(path.parent)
    (tmp_path / "link.ipynb").symlink_to(path)
    (tmp_path / "folder.ipynb").mkdir()
    os.mkfifo(tmp_path / "pipe.ipynb")
    for name, words in (
        ("link.ipynb", "link.ipynb is a link, and"),
        ("folder.ipynb", "not a regular file"),
        ("pipe.ipynb", "not a regular file"),
        ("none.ipynb", "No such file"),
    ):
        with pytest.raises(Unreadable, match=words):
            read(tmp_path / name)
    with pytest.raises(Unreadable, match="linked is a link, and"):
        read(tmp_path / "linked" / "a.ipynb", within=tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "-" * 100_000 + "1",
        "a" + ".b" * 20_000,
        "x + " * 5_000 + "x",
        "a" + ".b" * 900,
        "\0",
        "(" * 300,
    ],
    ids=range(6),
)
def test_source_that_no_parser_reads(source):
    nb = handed_in()
    nb["cells"].insert(2, cell(source))
    assert right(repaired(nb, ASKED).rows) == RIGHT
