"""The comparison of notebook outputs: a float may move by one unit in its last digit, nothing else may."""

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


def table(*rows):
    """Rows of words in columns set to the right, as `study.table` and pandas write them."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(word.rjust(width) for word, width in zip(row, widths)) for row in rows]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


EQUAL = [
    ("no number", "no number"),
    # Relatively by 1e-3, whatever is printed.
    ("loss 0.123456", "loss 0.123457"),
    ("tensor([1.0000, -2.5000])", "tensor([1.0001, -2.5000])"),
    ("1e-05 s", "1.0001e-05 s"),
    ("1234.5678", "1235.1234"),
    ("0.30000000000000004", "0.3"),
    # One unit in the last digit printed.
    ("47: 4.07·10⁻⁵; 48: 0.0138", "47: 4.08·10⁻⁵; 48: 0.0137"),
    ("loss 0.12", "loss 0.13"),
    ("0.5 and 0.4", "0.4 and 0.5"),
    ("tensor([-0.01, 2.5])", "tensor([0.00, 2.5])"),
    ("0.00", "-0.00"),
    ("+0.0%", "-0.0%"),
    ("2·10⁻⁶", "3·10⁻⁶"),
    ("5e-06 s", "6e-06 s"),
    # Rounding changes the number of digits, or of the power.
    ("9.99", "10.00"),
    ("9.99", "10.0"),
    ("99.9%", "100.0%"),
    ("0.999·10⁻⁵", "1.00·10⁻⁵"),
    ("9.99·10⁻⁶", "1.00·10⁻⁵"),
    ("9.99·10⁻⁶", "10⁻⁵"),
    ("9.99e-06", "1.00e-05"),
    ("9e-6", "1e-5"),
    ("-9.99", "-10.00"),
    # `short` drops zeros.
    ("1.4", "1.41"),
    ("0.00014", "0.000141"),
    ("1.9·10⁻⁶", "1.91·10⁻⁶"),
    # All ways to write one number.
    ("1e-5 and 2.5e-3", "1.0001·10⁻⁵ and 2.5001 × 10^-3"),
    ("3.1 x 10^{-4}", "3.2×10⁻⁴"),
    ("3.10 · 10³", "3.11·10⁺³"),
    ("−4.07", "−4.08"),
    ("1,234.5 GB", "1,234.6 GB"),
    ("999.9 GB", "1,000.0 GB"),
    ("4.1µs, 2.0GB, 3.1x, 16.5%", "4.2µs, 2.1GB, 3.0x, 16.6%"),
    ("(0.12)[0.12]{0.12}=0.12:0.12;", "(0.13)[0.13]{0.13}=0.13:0.13;"),
    ("It took 1.5.", "It took 1.6."),
    ("<td>0.12</td>", "<td>0.13</td>"),
    ("0.1–0.2 and 0.1-0.2", "0.2–0.2 and 0.2-0.2"),
    # A whole number as PyTorch prints it, and one beside it that is not.
    ("tensor([4., 6.])", "tensor([4.0000, 5.9999])"),
    # What follows from a longer number: the padding.
    (
        table(["x", "loss"], ["1", "9.99"], ["20", "8.00"]),
        table(["x", "loss"], ["1", "10.00"], ["20", "8.00"]),
    ),
    (table(["9.99", "y"], ["8.00", "1"]), table(["10.00", "y"], ["8.00", "1"])),
    ("tensor([9.99, 9.98])", "tensor([10.00,  9.98])"),
    ("tensor([-0.0000, 1.5000])", "tensor([0.0000, 1.5000])"),
    ("loss 9.99    ok\n     8.00    no", "loss 10.00   ok\n      8.00   no"),
]

DIFFERENT = [
    # Too far apart.
    ("4.07", "4.09"),
    ("4.07·10⁻⁵", "4.09·10⁻⁵"),
    ("loss 0.1234", "loss 0.1244"),
    ("0.5", "0.3"),
    ("1e-5", "1e-6"),
    ("below 1e-10", "below 1e-12"),
    ("10⁻⁵", "10⁻⁶"),
    ("4.07·10⁻⁵", "4.07·10⁻⁶"),
    ("1.5·10³", "1.5·10⁻³"),
    ("4.07e-05", "4.07"),
    ("9.98", "10.00"),
    ("9.98·10⁻⁶", "1.00·10⁻⁵"),
    ("error 1.2e-16", "error 3.1e-17"),
    ("1.5", "-1.5"),
    ("−4.07", "4.07"),
    ("0.02", "-0.02"),
    ("1,234.5", "1,236.9"),
    ("1.4", "1.42"),
    # Integers, in all their forms.
    ("6 messages", "7 messages"),
    ("1000000 bytes", "1000001 bytes"),
    ("12,345,678 B", "12,345,679 B"),
    ("5", "6"),
    ("84%", "85%"),
    ("rank 0", "rank 1"),
    ("(2, 3)", "(2, 4)"),
    ("[1,2]", "[1,3]"),
    ("sent 1000.", "sent 1001."),
    ("after step 5.", "after step 6."),
    ("tensor([4., 6.])", "tensor([4., 5.])"),
    ("tensor(4.)", "tensor(5.)"),
    ("rank-00001.safetensors", "rank-00002.safetensors"),
    # An integer and a float are two kinds: a program that counts has begun to measure.
    ("1", "1.0"),
    ("1", "1."),
    ("10", "9.99"),
    ("100%", "99.9%"),
    ("1000", "1e3"),
    # Not a number, or not one number.
    ("nan", "0.5"),
    ("inf", "1e300"),
    ("nan", "inf"),
    ("Python 3.11.7", "Python 3.11.8"),
    ("1.2.3", "1.2.4"),
    ("10.0.0.1", "10.0.0.2"),
    ("2026-11-24", "2026-11-25"),
    ("24.11.2026", "25.11.2026"),
    ("0x1f2e", "0x1f2f"),
    ("0x1.8p3", "0x1.9p3"),
    ("#1e5c9a", "#2e5c9a"),
    ("#129e45", "#128e45"),
    ("fp16", "fp32"),
    ("v1.5", "v1.6"),
    ("0.weight", "1.weight"),
    ("layers.0.weight", "layers.1.weight"),
    ("2⁻¹⁴", "2⁻¹⁵"),
    ("x²", "x³"),
    ("10·n", "11·n"),
    # Words, and how many numbers there are.
    ("right", "wrong"),
    ("1.0 GB", "1.0 GiB"),
    ("0.5 0.5", "0.5"),
    ("0.5", "0.5 0.5"),
    ("0.5ms", "0.5µs"),
    ("0.5, 0.6", "0.5; 0.6"),
    # Spaces and lines, where no number became longer or shorter.
    ("0.5", "0.5 "),
    ("0.5  0.5", "0.5 0.5"),
    ("0.5\n", "0.5"),
    (" 0.5", "  0.5"),
    ("a  b", "a b"),
    # And where one did, still not a line, nor a space between two words.
    ("9.99 ok", "10.00\nok"),
    ("9.99 a b", "10.00 ab"),
    ("9.99 ok", "10.00ok"),
    ("9.99", "10.00\n"),
    ("9.99  7 messages", "10.00  8 messages"),
]


@pytest.mark.parametrize(("built", "again"), EQUAL)
def test_close_is_equal(built, again):
    for a, b in ((built, again), (again, built), (built, built)):
        assert Printed(a) == Printed(b)
        assert (Printed(a) != Printed(b)) is False  # the operator that nbval uses


@pytest.mark.parametrize(("built", "again"), DIFFERENT)
def test_different_is_different(built, again):
    for a, b in ((built, again), (again, built)):
        assert Printed(a) != Printed(b)
        assert (Printed(a) == Printed(b)) is False


def test_only_text_is_equal_to_text():
    assert (
        Printed("0.5") == "0.5" and Printed("0.5") == "0.6" and hash(Printed("0.5")) == hash("0.5")
    )
    assert Printed("0.5") != 0.5 and Printed("None") != None  # noqa: E711


def nbval(folder, *cells):
    """The verdicts of nbval, with the project's conftest, on cells: (source, output when it was built)."""
    made = [
        v4.new_code_cell(source, execution_count=i, outputs=[output])
        for i, (source, output) in enumerate(cells, 1)
    ]
    (folder / "one.ipynb").write_text(writes(v4.new_notebook(cells=made)))
    shutil.copy(ROOT / "conftest.py", folder)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
        "--nbval",
        "--nbval-current-env",
        "one.ipynb",
    ]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120
    )
    found = {
        int(cell): verdict
        for verdict, cell in re.findall(r"^(PASSED|FAILED).*::Cell (\d+)", done.stdout, re.M)
    }
    assert sorted(found) == list(range(len(cells))), done.stdout + done.stderr
    return [found[i] for i in range(len(cells))]


def stream(text):
    return v4.new_output("stream", name="stdout", text=text)


def shown(kind, text):
    return v4.new_output("display_data", data={"text/plain": "<x>", kind: text})


SHOW = "from IPython.display import display\ndisplay({'text/plain': '<x>', %r: %r}, raw=True)"


def test_nbval_uses_it_for_all_that_is_compared(tmp_path):
    kinds = ("text/html", "text/markdown", "text/latex", "image/svg+xml")
    cells = [
        ("print(1 / 3)", stream("0.33333\n")),
        ("print(4.07)", stream("4.08\n")),
        ("print(4.07)", stream("4.09\n")),
        ("4.07", v4.new_output("execute_result", data={"text/plain": "4.08"}, execution_count=4)),
        ("4.07", v4.new_output("execute_result", data={"text/plain": "4.09"}, execution_count=5)),
    ]
    for kind in kinds:
        cells += [
            (SHOW % (kind, "<td>4.07</td>"), shown(kind, f"<td>{there}</td>"))
            for there in ("4.08", "4.09")
        ]
    image = '<img alt="%s" src="data:image/png;base64,%s">'
    for there in (("two bars", "iVBO/+9="), ("one bar", "iVBOR4ws")):
        made = SHOW % ("text/html", image % ("two bars", "iVBOR4ws"))
        cells.append((made, shown("text/html", image % there)))
    verdicts = nbval(tmp_path, *cells)
    assert verdicts == ["PASSED", "PASSED", "FAILED", "PASSED", "FAILED"] + [
        "PASSED",
        "FAILED",
    ] * (len(kinds) + 1)
    written = json.loads((tmp_path / "one.ipynb").read_text())["cells"]
    assert written[0]["outputs"][0]["text"] == ["0.33333\n"]  # nothing is written into the notebook
