"""A notebook checked without nbgrader: by what its cells define, not by what they claim."""

import json
import runpy
import sys

import nbformat
import pytest

from minidist.check.__main__ import main
from minidist.check.notebook import ROOT, marks, solved
from minidist.check.regrade import Regrade

SHIFT = """
def shift(comm, x):
    n, r = comm.size, comm.rank
    if n == 1:
        return x.clone()
    return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
"""
NUMBERS = "messages, nbytes, naive_nbytes, seconds = 14, 7e6, 28e6, 0.00021"


def code(source, grade_id=None, points=None):
    metadata = {"nbgrader": {"grade_id": grade_id, "grade": points is not None, "points": points}} if grade_id else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}


def notebook(shift=SHIFT, numbers=NUMBERS):
    return {"cells": [code("import torch\nfrom minidist import check"), code(shift, "shift"),
                      code("check.shift(shift)", "shift_test", 2), code(numbers, "numbers"),
                      code("check.predict(messages, nbytes, naive_nbytes, seconds)", "numbers_test", 3)],
            "metadata": {}, "nbformat": 4, "nbformat_minor": 4}  # fmt: skip


def results(answered):
    return {m.grade_id: m.wrong for m in marks(answered, notebook())}


PATCH = """
import minidist.check, minidist.check.messages.point
minidist.check.shift = minidist.check.messages.point.shift = check.shift = lambda *_: None
minidist.check.Wrong = minidist.check.messages.point.ask = print
def shift(comm, x):
    return x
"""


# PATCH itself: in test_regrade_marks_what_the_kernel_believed.
@pytest.mark.parametrize("cheat", ["import os\nos._exit(0)", "1 /",
                                   "check = type('C', (), {'shift': print, 'predict': print})\nshift = 1"])
def test_a_cell_that_cheats_earns_nothing(cheat):
    assert results(notebook(shift=cheat))["shift_test"]


def test_changed_and_missing_test_cells_do_not_count():
    changed = notebook(shift="def shift(comm, x):\n    return x\n")
    changed["cells"][2]["source"] = "def shift(comm, x): return 0"
    changed["cells"][2]["metadata"]["nbgrader"]["points"] = 100
    missing = notebook(numbers=NUMBERS.replace("14", "7"))
    del missing["cells"][4]
    for tampered, wrong, points in ((changed, 0, 2), (missing, 1, 3)):
        found = marks(tampered, notebook())
        assert found[wrong].wrong and found[wrong].points == points and found[1 - wrong].wrong is None


def test_what_is_not_there_is_named_with_the_cause():
    assert results(notebook(shift="%matplotlib inline\n!ls\nraise KeyError('no')"))["shift_test"] == (
        "shift: not defined. A cell above failed: KeyError: 'no'")  # fmt: skip


def test_command_line(tmp_path, capsys):
    asked, half = tmp_path / "asked.ipynb", tmp_path / "half.ipynb"
    asked.write_text(json.dumps(notebook()))
    half.write_text(json.dumps(notebook(numbers=NUMBERS.replace("14", "7"))))
    assert main([str(asked), "--against", str(asked)]) == 0
    assert capsys.readouterr().out.splitlines() == ["shift    2/2  right", "numbers  3/3  right", "all      5/5"]
    assert main([str(half), "--against", str(asked)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "shift    2/2  right" and "0/3  predict" in lines[1] and lines[-1] == "all      2/5"
    assert main([str(tmp_path / "none.ipynb"), "--against", str(asked)]) == 2
    assert "cannot be checked" in capsys.readouterr().err


def test_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minidist.check", "--help"])
    with pytest.warns(RuntimeWarning, match="found in sys.modules"), pytest.raises(SystemExit) as ended:
        runpy.run_module("minidist.check", run_name="__main__")
    assert not ended.value.code and "NOTEBOOK" in capsys.readouterr().out.upper()


def test_the_questions_come_from_solutions(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no solutions/99_magic/99_magic\.ipynb"):
        solved(tmp_path / "99_magic.ipynb")
    for path in sorted(ROOT.glob("solutions/*/*.ipynb")):
        assert solved(ROOT / "exercises" / path.parent.name / path.name) == path


def test_regrade_marks_what_the_kernel_believed():
    nb = nbformat.from_dict(notebook(shift=PATCH))
    nb.cells[2].outputs = [nbformat.v4.new_output("stream", text="right\n")]
    nb, _ = Regrade().preprocess(nb, {})
    assert Regrade().enabled
    [output] = nb.cells[2].outputs
    assert output.output_type == "error" and "Wrong: " in output.traceback[0]
    assert not nb.cells[4].outputs
