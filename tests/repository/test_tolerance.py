"""The comparison of notebook outputs: floats may move a little, nothing else may."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat.v4 as v4
import pytest
from nbformat import writes

from conftest import Printed
from tests.repository.files import ROOT


@pytest.mark.parametrize(("built", "again"), [
    ("loss 0.123456", "loss 0.123457"),
    ("tensor([1.0000, -2.5000])", "tensor([1.0001, -2.5000])"),
    ("error 1.2e-16", "error -3.1e-17"),
    ("1e-05 s", "1.0001e-05 s"),
    ("no number", "no number"),
])
def test_close_is_equal(built, again):
    assert Printed(built) == Printed(again)
    assert (Printed(built) != Printed(again)) is False  # the operator that nbval uses


@pytest.mark.parametrize(("built", "again"), [
    ("loss 0.1234", "loss 0.1244"),
    ("5e-06 s", "5.1e-06 s"),
    ("6 messages", "7 messages"),
    ("1000000 bytes", "1000001 bytes"),
    ("Python 3.11.7", "Python 3.11.8"),
    ("nan", "0.5"),
    ("0.5", "0.5 "),
    ("0.5 0.5", "0.5"),
    ("rank 0", "rank 1"),
    ("1.0 GB", "1.0 GiB"),
])
def test_different_is_different(built, again):
    assert Printed(built) != Printed(again)


def nbval(folder, source, outputs):
    """Run nbval, with the project's conftest, on cells that printed `outputs` when they were built."""
    cells = [v4.new_code_cell(source, execution_count=i, outputs=[v4.new_output("stream", name="stdout", text=output)])
             for i, output in enumerate(outputs, 1)]  # fmt: skip
    (folder / "one.ipynb").write_text(writes(v4.new_notebook(cells=cells)))
    shutil.copy(ROOT / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", "/dev/null",
               f"--rootdir={folder}"]  # fmt: skip
    return subprocess.run([*command, "--nbval", "--nbval-current-env", "one.ipynb"], cwd=folder, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, timeout=120)


def test_nbval_uses_it(tmp_path):
    outputs = {"0.33333\n": "PASSED", "0.33340\n": "PASSED", "0.34\n": "FAILED"}
    done = nbval(tmp_path, "print(1 / 3)", outputs)
    found = re.findall(r"^(PASSED|FAILED).*::Cell (\d)", done.stdout, re.M)
    assert sorted(found, key=lambda row: row[1]) == [(verdict, str(i)) for i, verdict in enumerate(outputs.values())], (
        done.stdout + done.stderr)  # fmt: skip
    cells = json.loads((tmp_path / "one.ipynb").read_text())["cells"]
    assert [cell["outputs"][0]["text"] for cell in cells] == [[output] for output in outputs]
