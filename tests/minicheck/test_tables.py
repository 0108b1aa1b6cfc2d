"""What is written of a class can be imported, and no text of a student's does anything there."""

import csv

import pytest

from minicheck.notebook import Mark
from minicheck.tables import Graded, cell, feedback, file_name, plain, write_all
from minicheck.uploads import Owner

HOSTILE = '=HYPERLINK("http://x")\x1b[2J\u202eevil\nsecond\x00 line\ud800'


def graded(owner, wrong=None, failed=False, **words):
    marks = [Mark("add_test", 2, wrong), Mark("half_test", 3.5, None)]
    return Graded(owner, marks, words.get("notes", []), words.get("odd", []), failed, 1.0)


ANN = graded(Owner("leeann_12", "canvas", "leeann", "12"), odd=["handed in late"])
BOB = graded(Owner("Bob Kim_7", "moodle", "Bob Kim", "7"), "1 < 2", notes=["A cell was split."])
CYD = graded(Owner("cyd"), HOSTILE)
DAN = graded(Owner("=dan"), "not graded", failed=True, odd=["the marking failed"])
CLASS = [ANN, BOB, CYD, DAN]


@pytest.fixture
def tables(tmp_path):
    write_all(tmp_path, "06_buckets", "Buckets (99)", CLASS, {})
    return tmp_path


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_grades(tables):
    head, *found = rows(tables / "grades.csv")
    assert head == ["student", "exercise", "points", "of", "words", "oddities"]
    assert found[:2] == [
        ["leeann_12", "add", "2", "2", "right", "handed in late"],
        ["leeann_12", "half", "3.5", "3.5", "right", "handed in late"],
    ]
    assert found[2] == ["Bob Kim_7", "add", "0", "2", "1 < 2", ""]
    assert found[4] == ["cyd", "add", "0", "2", '\'=HYPERLINK("http://x")evil\nsecond line', ""]
    assert found[6] == ["'=dan", "add", "", "2", "not graded", "the marking failed"]


def test_canvas(tables):
    """Its importer wants Student and ID first, and Section before the assignments; who is not there keeps his points."""
    head, possible, ann, _, cyd = rows(tables / "canvas.csv")
    assert head == ["Student", "ID", "SIS Login ID", "Section", "Buckets (99)"]
    assert "Points Possible" in possible[0] and possible[-1] == "5.5"
    assert ann == ["leeann", "12", "", "", "5.5"]
    assert cyd == ["cyd", "", "cyd", "", "3.5"]


def test_moodle(tables):
    """Its importer wants Identifier, Grade and Last modified (grade) by these names; comments are HTML."""
    head, ann, bob, cyd = rows(tables / "moodle.csv")
    assert {"Identifier", "Grade", "Last modified (grade)", "Feedback comments"} <= set(head)
    by_name = dict(zip(head, bob, strict=True))
    assert (by_name["Identifier"], by_name["Grade"]) == ("Participant 7", "3.5")
    assert by_name["Feedback comments"] == (
        "add: 0 of 2. 1 &lt; 2<br>half: 3.5 of 3.5. right<br>A cell was split."
    )
    assert (ann[0], ann[2]) == ("", "leeann_12")
    assert "\x1b" not in "".join(cyd) and "\u202e" not in "".join(cyd)


def test_an_open_answer_is_left_to_the_teacher(tmp_path):
    """It has a row without points and a section, and counts in no sum."""
    write_all(tmp_path, "06_buckets", "Buckets (99)", [ANN], {"why": 2.5})
    *_, last = rows(tmp_path / "grades.csv")
    by_hand = "your teacher reads it, and grades it by hand"
    assert last == ["leeann_12", "why", "", "2.5", by_hand, "handed in late"]
    _, possible, ann = rows(tmp_path / "canvas.csv")
    assert possible[-1] == ann[-1] == rows(tmp_path / "moodle.csv")[1][3] == "5.5"
    assert f"\n\n## why: of 2.5\n\n    {by_hand}\n\n## What was odd" in feedback(
        "06_buckets", ANN, {"why": 2.5}
    )


def test_a_part_of_the_points(tmp_path):
    """What is right but dear: the same number everywhere, and the words why."""
    marks = [Mark("add_test", 2, "add: too many bytes", 0.75), Mark("half_test", 3.5, None)]
    one = Graded(Owner("eve"), marks, [], [], False, 1.0)
    write_all(tmp_path, "06_buckets", "Buckets (99)", [one], {})
    assert rows(tmp_path / "grades.csv")[1] == ["eve", "add", "1.5", "2", "add: too many bytes", ""]
    assert rows(tmp_path / "canvas.csv")[-1][-1] == rows(tmp_path / "moodle.csv")[-1][3] == "5"
    assert "## add: 1.5 of 2\n\n    add: too many bytes\n" in feedback("06_buckets", one, {})


def test_every_student_has_a_page(tables):
    assert len(list((tables / "feedback").iterdir())) == len(CLASS)
    page = (tables / "feedback" / "Bob Kim_7.md").read_text()
    assert page.startswith("# 06_buckets: 3.5 of 5.5 points\n")
    assert "## add: 0 of 2\n\n    1 < 2\n" in page and "    A cell was split." in page
    page = feedback("06_buckets", DAN, {})
    assert "look at it" in page and "0 of" not in page


def test_words_are_no_markup():
    """Every line that a student may have written is indented, so that it is shown as it is."""
    text = feedback(
        "06_buckets", graded(Owner("eve"), "a\n# b\n```\n<script>", notes=["# c\n# d"]), {}
    )
    assert all(f"    {words}\n" in text for words in ("a", "# b", "```", "<script>", "# c # d"))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\n=1", "\x1b[1m=1", "＝1"]
)
def test_a_formula_is_quoted(text):
    assert cell(text).startswith("'")


def test_other_text_is_not():
    assert cell("rank 0 = 1") == "rank 0 = 1"
    assert plain("a\tb\r\nc\x1b]0;title\x07d\x9b1me") == "a   b\ncd1me"


def test_names_of_files():
    names = [
        "ann",
        "Ann Lee_1",
        "../ann",
        "..",
        "a/b",
        "a\\b",
        "x" * 300,
        "x" * 301,
        ".hid",
        "=a",
        "a\nb",
    ]
    made = [file_name(name) for name in names]
    assert made[:2] == names[:2]
    assert len(set(made)) == len(names)
    assert not any(c in name for name in made for c in "/\\=\n")
    assert all(name[0] != "." and len(name) < 100 for name in made)
