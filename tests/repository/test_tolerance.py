"""The comparison of notebook outputs: floats may move a little, nothing else may."""

import json
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


def nbval(folder, source, output):
    """Run nbval, with the project's conftest, on a notebook of one cell that printed `output` when it was built."""
    cell = v4.new_code_cell(source, execution_count=1, outputs=[v4.new_output("stream", name="stdout", text=output)])
    (folder / "one.ipynb").write_text(writes(v4.new_notebook(cells=[cell])))
    shutil.copy(ROOT / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={folder}"]
    return subprocess.run([*command, "--nbval", "--nbval-current-env", "one.ipynb"], cwd=folder, capture_output=True,
                          text=True, timeout=120)


@pytest.mark.parametrize(("output", "passes"), [("0.33333\n", True), ("0.33340\n", True), ("0.34\n", False)])
def test_nbval_uses_it(tmp_path, output, passes):
    done = nbval(tmp_path, "print(1 / 3)", output)
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    assert json.loads((tmp_path / "one.ipynb").read_text())["cells"][0]["outputs"][0]["text"] == [output]
