"""A notebook checked without nbgrader: by what its cells define, not by what they claim."""

import json
import logging
import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest
from nbgrader.utils import determine_grade

import minicheck as check
from minicheck import __main__
from minicheck import notebook as judge
from minicheck.__main__ import main
from minicheck.exam import pack
from minicheck.notebook import ROOT, Mark, examine
from minicheck.regrade import MOST_PICTURE, Regrade, _outputs, no_files, plots, show_plot
from minicheck.sandbox import choose
from tests.sandboxed import BWRAP

SHIFT = """
def shift(comm, x, places):
    n, r = comm.size, comm.rank
    if places % n == 0:
        return x.clone()
    return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)
"""
NUMBERS = "messages, nbytes, naive_nbytes, seconds = 14, 7e6, 28e6, 0.00021"


def code(source, grade_id=None, points=None):
    metadata = (
        {
            "nbgrader": {
                "grade_id": grade_id,
                "grade": points is not None,
                "points": points,
                "solution": points is None,
            }
        }
        if grade_id
        else {}
    )
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def notebook(shift=SHIFT, numbers=NUMBERS):
    return {
        "cells": [
            code("import torch\nimport minicheck as check"),
            code(shift, "shift"),
            code("check.shift(shift)", "shift_test", 2),
            code(numbers, "numbers"),
            code("check.predict(messages, nbytes, naive_nbytes, seconds)", "numbers_test", 3),
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def results(answered):
    return {m.grade_id: m.wrong for m in examine(answered, notebook(), None).marks}


def test_each_student_has_numbers():
    """In the notebook of whoever gives a name, the text's are wrong and its own are right."""
    asked = notebook()
    asked["cells"][-1]["source"] = (
        "check.predict(messages, nbytes, naive_nbytes, seconds, of=STUDENT)"
    )
    own = check.predict.exam.figures(**check.predict.exam.drawn("Ada"))[0]
    words = {}
    for name, numbers in (
        ("None", NUMBERS),
        ('"Ada"', NUMBERS),
        ('"Ada"', f"{', '.join(own)} = {tuple(own.values())}"),
    ):
        cell = f"STUDENT = {name}\ncheck.predict.numbers(STUDENT)\n{numbers}"
        marked = examine(notebook(numbers=cell), asked, None)
        words[name, numbers] = marked.marks[1].wrong
        assert marked.whose == name.strip('"').replace("None", "")
    assert examine(notebook(), asked, None).marks[1].wrong is None  # the line is not there
    right, wrong, ours = words.values()
    assert right is None and ours is None
    assert wrong.startswith("predict: your numbers: messages = 14 is ")


PATCH = """
import minicheck, minicheck.lessons.messages
minicheck.shift = minicheck.lessons.messages.shift = check.shift = lambda *_: None
minicheck.Wrong = minicheck.guard.ask = print
def shift(comm, x, places):
    return x
"""


# PATCH itself: in test_regrade_marks_what_the_kernel_believed.
CHEAT = """
check = type('C', (), {'shift': print, 'predict': print})
shift = 1
"""


def test_a_cell_that_cheats_earns_nothing():
    """By another `check`; by the end of the process, after which nothing is answered."""
    found = results(notebook(shift=CHEAT, numbers=f"{NUMBERS}\nimport os\nos._exit(0)"))
    assert found["shift_test"].startswith("shift") and "process" not in found["shift_test"]
    assert "ended the whole process" in found["numbers_test"]


def test_what_is_not_there_is_named_with_the_cause():
    found = results(notebook(shift="%matplotlib inline\n!ls\nraise KeyError('no')", numbers="1 /"))
    assert found["shift_test"] == "shift: not defined. A cell above failed: KeyError: 'no'"
    assert found["numbers_test"].startswith(
        "messages, naive_nbytes, nbytes, seconds: not defined. A cell above"
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import sys as s\ns.modules", "sys"),
        ("from concurrent.futures import thread", "concurrent"),
        ("def f(x):\n    return gc.get_objects(), eval('x')", "eval, gc"),
        (
            "class A:\n    def __reduce__(self):\n        return f.__globals__, ()",
            "__globals__, __reduce__",
        ),
        ("model.eval()\nx.system = compiled = 1", ""),
        ("!ls\nimport sys", ""),
        (SHIFT, ""),
    ],
)
def test_what_a_teacher_should_look_at(source, names):
    assert judge.inspected(source) == (
        f"an answer has {names}: look at it by hand" if names else ""
    )


def test_what_it_should_be_told_of_is_odd():
    odd = examine(notebook(shift=f"import gc\n{SHIFT}"), notebook(), None).odd
    assert odd == ["an answer has gc: look at it by hand"]


def test_command_line(tmp_path, capsys):
    """Of three exercises the first is right; the test of the second was changed, that of the third is gone."""
    asked, right, half = (tmp_path / f"{name}.ipynb" for name in ("asked", "right", "half"))
    whole, tampered = notebook(), notebook(numbers=NUMBERS.replace("14", "7"))
    right.write_text(json.dumps(whole))
    changed = code("print('right')", "turn_test", 100)
    for nb, test in ((whole, code("check.shift(turn)", "turn_test", 2)), (tampered, changed)):
        nb["cells"][3:3] = [
            code("def turn(comm, x, places):\n    raise ValueError('\\ud800')\n", "turn"),
            test,
        ]
    asked.write_text(json.dumps(whole))
    assert tampered["cells"].pop()["metadata"]["nbgrader"]["grade_id"] == "numbers_test"
    half.write_text(json.dumps(tampered))
    assert main([str(half), "--against", str(asked)]) == 1
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert lines[0] == "shift    2/2  right" and "0/3  predict" in lines[-2]
    assert "0/2  " in lines[1] and lines[1].endswith("rank 0 raised ValueError: ")
    assert lines[-1] == "all      2/7" and lines[1].startswith("turn ")
    assert main([str(right), "--against", str(right)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shift    2/2  right",
        "numbers  3/3  right",
        "all      5/5",
    ]
    mark = {"grade_id": "why", "grade": True, "solution": True, "points": 2}
    text = {
        "cell_type": "markdown",
        "metadata": {"nbgrader": mark},
        "source": "*Your answer here.*",
    }
    asked.write_text(json.dumps(notebook() | {"cells": [*notebook()["cells"], text]}))
    assert main([str(right), "--against", str(asked)]) == 0
    said = capsys.readouterr().out
    assert "all      5/5\n\nwhy is graded by hand, with up to 2 points more.\n" in said


def test_the_command_says_what_it_has_repaired(tmp_path, capsys):
    """A test cell that is gone, one that is there twice, an answer without its mark; the file stays as it is."""
    asked, path = tmp_path / "asked.ipynb", tmp_path / "answered.ipynb"
    asked.write_text(json.dumps(notebook()))
    answered = notebook()
    answered["cells"][3:3] = [answered["cells"][2]]
    answered["cells"][1]["metadata"] = {}
    del answered["cells"][-1]
    text = json.dumps(answered)
    path.write_text(text)
    (tmp_path / "link.ipynb").symlink_to(path)
    assert main([str(tmp_path / "link.ipynb"), "--against", str(asked)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "all      5/5" and path.read_text() == text
    assert lines[4:] == [
        "Repaired before it was checked, in a copy:",
        "- The answer `shift` was found in a cell without its mark.",
        "- The test cell `shift_test` was there 2 times; it is there once.",
        "- The test cell `numbers_test` was missing; it is there again.",
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "none.ipynb cannot be opened: No such file or directory"),
        (b"", "it is empty"),
        (b"\xff\xfe", "is not a notebook, which is JSON"),
        (b"[" * 100_000, "is not a notebook, which is JSON"),
        (b"[1]", "it has no list of cells"),
        (b'{"cells": []}', "no assignment is named none"),
    ],
)
def test_what_cannot_be_checked_is_told_in_a_sentence(tmp_path, capsys, data, words):
    path = tmp_path / "none.ipynb"
    if data is not None:
        path.write_bytes(data)
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{path} cannot be checked: ") and words in said
    assert said.count("\n") == 1


def test_a_process_that_does_not_start_is_told_in_a_sentence(tmp_path, capsys, monkeypatch):
    path = tmp_path / "02_messages.ipynb"
    path.write_text('{"cells": []}')
    monkeypatch.setattr(__main__, "examine", lambda *_: {}["no"])
    assert main([str(path)]) == 2 and "KeyError('no')" in capsys.readouterr().err


@BWRAP
def test_a_grader_that_fails_says_so_and_costs_no_other_exercise(monkeypatch):
    """Its first judgement fails, in the middle of an examination; the second is as ever."""
    kind = type(check.shift.exam)
    right, calls = kind.judge, []

    def judge(*given):
        calls.append(given)
        return right(*given) if len(calls) > 1 else {}["no"]

    monkeypatch.setattr(kind, "judge", judge)
    nb = notebook()
    nb["cells"] += [code(SHIFT.replace("shift", "turn")), code("check.shift(turn)", "turn_test", 2)]
    first, _, last = examine(nb, nb, choose("bwrap", None)).marks
    assert last.wrong is None
    assert re.fullmatch(
        r"shift: the grader itself failed, .*: KeyError: 'no', in \w+\.py, line \d+\. .*",
        first.wrong,
    )


def test_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minicheck", "--help"])
    with (
        pytest.warns(RuntimeWarning, match="found in sys.modules"),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_module("minicheck", run_name="__main__")
    assert not ended.value.code and "NOTEBOOK" in capsys.readouterr().out.upper()


def test_the_readmes_command():
    """Of an exercise as it is handed out: the questions are found beside it, and nothing is written yet."""
    command = [sys.executable, "-m", "minicheck", "exercises/02_messages/02_messages.ipynb"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    table, by_hand = run.stdout.split("\n\n")
    *exercises, last = table.splitlines()
    assert run.returncode == 1 and len(exercises) > 3, run.stderr
    assert by_hand == "pieces is graded by hand, with up to 2 points more.\n"
    assert all("is not written yet" in line or "  0/" in line for line in exercises)
    assert last.split()[0] == "all" and last.split()[1].startswith("0/")


def test_nbgrader_takes_a_number_for_some_of_the_points():
    """The last output decides: an error, a number, or none."""
    for wrong, share, points in ((None, 0.0, 3), ("no", 0.0, 0), ("dear", 0.75, 2.25)):
        cell = nbformat.from_dict(code("check.shift(shift)", "shift_test", 3))
        cell.outputs = _outputs(Mark("shift_test", 3, wrong, share))
        assert determine_grade(cell) == (points, 3)
        nbformat.validate(cell.outputs[-1], ref="output", version=4)


def test_links_and_pipes_are_no_files(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "own.txt").write_text("own")
    (inner / "link.txt").symlink_to(inner / "own.txt")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "away").symlink_to(inner)
    assert sorted(no_files(str(tmp_path))) == [str(inner / "link.txt"), str(tmp_path / "pipe")]
    assert no_files(str(tmp_path / "away"))[0] == str(tmp_path / "away")
    for number in range(20):
        (inner / f"{number}.txt").symlink_to(inner / "own.txt")
    assert no_files(str(tmp_path)) == [str(tmp_path)]


def test_the_plot_of_an_open_answer_is_shown_as_handed_in():
    """Pictures of its own cell only, and nothing that is not one."""
    png = "iVBORw0KGgoAAAA=\n"
    other = "iVBORw0KGgoBBBB="
    plot, elsewhere = code("draw()", "why_plot"), code("draw()", "what_plot")
    drawn = "iVBORw0KGgoCCCC="
    html = ["<script>alert(1)</script>", f'<img alt="a line" src="data:image/png;base64,{drawn}">']
    data = [{"image/png": png}, {"text/html": other}, {"image/png": f"{other} onload="}, 7]
    data.append({"text/html": html})
    plot["outputs"] = [{"output_type": "display_data", "data": given} for given in data] + [None]
    elsewhere["outputs"] = [{"output_type": "display_data", "data": {"image/png": other}}]
    answered = {"cells": [None, {"metadata": 3}, elsewhere, plot]}
    assert plots(answered, "why") == [png.strip(), drawn]
    whole = {"cells": [code("draw()", "why_plot"), code("", "why", 2)], "nbformat_minor": 5}
    show_plot(whole, "why", answered)
    shown = whole["cells"].pop(1)
    assert shown["source"].split("\n\n") == [
        f"![as it was handed in](data:image/png;base64,{p})" for p in (png.strip(), drawn)
    ]
    assert [cell["metadata"]["nbgrader"]["grade_id"] for cell in whole["cells"]] == [
        "why_plot",
        "why",
    ]
    plot["outputs"] = [{"data": {"image/png": "iVBORw0KGgo" + "A" * MOST_PICTURE}}]
    assert plots(answered, "why") == []


@BWRAP
def test_regrade_marks_what_the_kernel_believed(caplog):
    nb = nbformat.from_dict(notebook(shift=f"import gc\n{PATCH}"))
    nb.cells[2].outputs = [nbformat.v4.new_output("stream", text="right\n")]
    step = Regrade(log=logging.getLogger("graded"))
    nb, _ = step.preprocess(nb, {})
    assert step.enabled and "an answer has gc: look at it by hand" in caplog.text
    [output] = nb.cells[2].outputs
    assert output.output_type == "error" and "Wrong: " in output.traceback[0]
    assert [output.text for output in nb.cells[4].outputs] == ["right\n"]


def test_a_judge_that_fails_leaves_the_nursery(monkeypatch):
    """Else the next exercise would be examined where the last one's modules are refused, and not its own."""

    class Box:
        line = None
        process = SimpleNamespace(pid=0)
        odd = ()
        closed = False

        def close(self):
            self.closed = True

    class Asked(judge.Nursery):
        def ask(self, *given, seconds=0.0): ...

    def fails(*given):
        raise KeyError("found")

    box = Box()
    monkeypatch.setattr(judge, "Nursery", Asked)
    monkeypatch.setattr(judge, "examined", fails)
    examiner = judge.Examiner(SimpleNamespace(start=lambda *given, **more: box))
    with pytest.raises(KeyError):
        examiner.all_reduce(pack("all_reduce", len))
    assert box.closed and examiner._inside is None
