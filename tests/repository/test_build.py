"""course/build.py: reproducible, idle when nothing changed, strict with what it cannot reproduce."""

import io
import json
from collections import namedtuple
from contextlib import redirect_stdout

import pytest

from course.build import main
from tests.repository.files import ROOT
from tests.repository.sample import ASSIGNMENT, LESSON, ROW, course

NAMES = (
    "notebooks/07_sample.ipynb",
    "solutions/07_sample/07_sample.ipynb",
    "exercises/07_sample/07_sample.ipynb",
)


Done = namedtuple("Done", "returncode stdout")


def run(root, *args):
    """What `python course/build.py ARGS` does for the course under `root`.

    Jupyter looks for free ports before its kernel takes them, and tests beside this one may be faster: then once more.
    """
    with redirect_stdout(io.StringIO()) as out:
        try:
            code = main(["--root", str(root), *args])
        except RuntimeError as error:
            if "Kernel died before replying" not in str(error):
                raise
            code = main(["--root", str(root), *args])
    return Done(code, out.getvalue())


def notebooks(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.glob("*/**/*.ipynb")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = course(tmp_path_factory.mktemp("built"))
    done = run(root, "--jobs", "2")
    assert done.returncode == 0, done.stdout
    return root


@pytest.fixture
def copy(built, tmp_path):
    """A built course that a test may spoil."""
    root = course(tmp_path)
    for name, content in notebooks(built).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def edit(root, name, old, new):
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


def test_it_writes_three_notebooks(built):
    assert set(notebooks(built)) == set(NAMES)
    lesson, solution, exercise = (json.loads(notebooks(built)[name]) for name in NAMES)
    outputs = [o for cell in lesson["cells"] for o in cell.get("outputs", [])]
    assert outputs[0]["text"] == ["ab 0.3333333333333333\n"]
    assert "image/png" in outputs[2]["data"]
    assert outputs[3]["ename"] == "JSONDecodeError"
    assert not any("File" in line for line in outputs[3]["traceback"])
    assert "return a + b" in json.dumps(solution)
    assert "HIDDEN" in json.dumps(solution)
    assert not any(
        word in json.dumps(exercise) for word in ("return a + b", "HIDDEN", "add(-1, 2)")
    )
    assert "NotImplementedError" in json.dumps(exercise)


def test_what_a_lesson_is_framed_with(built):
    lesson, solution, exercise = (json.loads(notebooks(built)[name]) for name in NAMES)
    head = "".join(lesson["cells"][0]["source"]).splitlines()
    assert head[:3] == ["# A lesson", "", "- **You build** nothing."]
    assert head[-1] == "[exercises](../exercises/07_sample/07_sample.ipynb)"
    assert lesson["cells"][-1]["id"] == "lesson-07-foot"
    assert "[course/lessons.toml](../course/lessons.toml)" in lesson["cells"][-1]["source"][-1]
    for assignment in (solution, exercise):
        assert assignment["cells"][0]["source"] == [
            "# Exercises\n",
            "\n",
            "Lesson [07 A lesson](../../notebooks/07_sample.ipynb) · about 25 minutes",
        ]


def test_what_serves_maintainers_and_what_answers_is_hidden(built):
    cells = json.loads(notebooks(built)[NAMES[0]])["cells"]
    hidden = [cell["source"] for cell in cells if "jupyter" in cell["metadata"]]
    assert hidden == [['assert json.loads("{}") == {}'], ["3"]]
    assert cells[-2]["metadata"]["jupyter"] == {"source_hidden": True}


def test_another_build_gives_the_same_bytes(built, tmp_path):
    root = course(tmp_path)
    assert run(root).returncode == 0
    assert notebooks(root) == notebooks(built)


def test_what_did_not_change_is_not_touched(built):
    before = {name: (built / name).stat().st_mtime_ns for name in NAMES}
    done = run(built)
    assert done.stdout.count("fresh ") == 2
    assert before == {name: (built / name).stat().st_mtime_ns for name in NAMES}
    assert run(built, "--check").returncode == 0


def test_an_assignment_may_be_there_before_its_lesson(copy):
    (copy / "course/07_sample/lesson.py").unlink()
    assert run(copy, "--check").returncode == 1, "the lesson's notebook has no source"
    (copy / NAMES[0]).unlink()
    stale = run(copy, "--check").stdout.splitlines()
    assert [line.split()[0] for line in stale] == list(NAMES[1:]), "it no longer links to a lesson"
    assert run(copy).returncode == 0
    assert run(copy, "--check").returncode == 0
    assert "Lesson 07 A lesson (still to come)" in (copy / NAMES[2]).read_text()


@pytest.mark.parametrize(
    ("name", "old", "new", "stale"),
    [
        ("course/07_sample/lesson.py", "A lesson", "One lesson", NAMES[:1]),
        ("course/07_sample/assignment.py", "a + a", "2 * a", NAMES[1:]),
        ("course/lessons.toml", "nothing", "something", NAMES[:1]),
        ("course/lessons.toml", "exercises = 25", "exercises = 30", (*NAMES[1:], NAMES[0])),
        (NAMES[0], "A lesson", "Edited by hand", NAMES[:1]),
        (NAMES[1], "a + a", "2 * a", NAMES[1:]),
        (NAMES[2], "add(1, 2) == 3", "True", NAMES[2:]),
    ],
)
def test_what_changed_is_named(copy, name, old, new, stale):
    edit(copy, name, old, new)
    done = run(copy, "--check")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(stale)


@pytest.mark.parametrize(
    ("edits", "others"),
    [
        # A source, and a notebook that was run; then an exercise alone, for which nothing is run.
        (
            [
                ("course/07_sample/lesson.py", "A lesson", "One lesson"),
                (NAMES[1], "a + a", "2 * a"),
            ],
            [NAMES[0]],
        ),
        ([(NAMES[2], "add(1, 2) == 3", "True")], []),
    ],
    ids=["lesson and solution", "exercise"],
)
def test_what_changed_is_built_again(built, copy, edits, others):
    for edited in edits:
        edit(copy, *edited)
    assert run(copy).returncode == 0
    assert run(copy, "--check").returncode == 0
    assert [name for name in NAMES if notebooks(copy)[name] != notebooks(built)[name]] == others


def test_a_notebook_without_a_source_is_named(copy):
    (copy / "notebooks/08_lost.ipynb").write_bytes((copy / NAMES[0]).read_bytes())
    done = run(copy, "--check")
    assert done.returncode == 1
    assert "notebooks/08_lost.ipynb has no source" in done.stdout


def test_a_missing_notebook_is_named(copy):
    (copy / NAMES[2]).unlink()
    done = run(copy, "--check")
    assert done.returncode == 1
    assert f"{NAMES[2]} is stale" in done.stdout


FAILS = {
    "1 / 0": "ZeroDivisionError",
    "print(object())": "at 0x",
    "import os; print(os.getcwd())": "prints",
    "import os; os._exit(1)": "died",
    '# %% tags=["raises-exception"]\n1': "raised nothing",
}


def test_a_failure_names_the_cell_and_writes_nothing(tmp_path):
    """Lessons that fail each in its way, and the assignment of the first, which is built all the same."""
    folders = ["07_sample", *(f"{number:02}_fails{number}" for number in range(8, 7 + len(FAILS)))]
    names = [f"course/{folder}/lesson.py" for folder in folders]
    root = course(tmp_path)
    rows = [ROW.format(number=folder[:2], name=folder[3:]) for folder in folders]
    (root / "course/lessons.toml").write_text("".join(rows))
    for name, cell in zip(names, FAILS, strict=True):
        marker = "" if cell.startswith("# %%") else "# %%\n"
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"# %% [markdown]\n# # Title\n\n# %%\n2\n\n{marker}{cell}\n")
    done = run(root)
    assert done.returncode == 1
    failures = done.stdout.split("failed ")[1:]
    said = {name: text for name in names for text in failures if text.startswith(f"{name}: cell 2")}
    for name, word in zip(names, FAILS.values(), strict=True):
        assert word in said[name]
    assert set(notebooks(root)) == set(NAMES[1:])


def test_a_lesson_must_have_a_row_and_a_title(copy):
    (copy / "course/08_other").mkdir()
    (copy / "course/08_other/lesson.py").write_text("# %% [markdown]\n# Text\n")
    done = run(copy, "08")
    assert (done.returncode, "course/lessons.toml has no row for it" in done.stdout) == (1, True)
    assert run(copy, "--check").returncode == 1
    with (copy / "course/lessons.toml").open("a") as table:
        table.write(ROW.format(number="08", name="other"))
    done = run(copy, "08")
    assert done.returncode == 1
    assert "course/08_other/lesson.py: cell 0 does not begin with a title, `# 08" in done.stdout


def test_an_unknown_link_names_the_cell(copy):
    edit(copy, "course/07_sample/lesson.py", "# # A lesson", "# # A lesson\n# [x](term:rank)")
    for args in ((), ("--check",)):
        done = run(copy, *args)
        assert done.returncode == 1
        assert "course/07_sample/lesson.py: cell 0: docs/glossary.md has no term" in done.stdout


def test_a_lesson_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        run(ROOT, "77")
    assert "no lesson 77" in capsys.readouterr().err


def test_the_sample_has_what_these_tests_edit():
    assert "A lesson" in LESSON
    assert "a + a" in ASSIGNMENT
