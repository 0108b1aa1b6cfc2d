"""The packages have no hidden state, and nothing in them is postponed."""

import ast

import pytest

from tests.repository.files import ROOT, repository

LATER = ("TO" + "DO", "FIX" + "ME", "XX" + "X")


def complaints(source):
    """What is `global` in `source`, or left for later."""
    for number, line in enumerate(source.splitlines(), 1):
        if any(word in line for word in LATER):
            yield f"line {number}: {line.strip()}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


@pytest.mark.parametrize("package", ["minidist", "minicheck"])
def test_the_packages(package):
    files = repository(f"{package}/*.py")
    assert files
    found = [
        f"{path}: {c}"
        for path in files
        for c in complaints((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    global x\n    x = 1\n",
        f"x = 1  # {LATER[0]}: later\n",
    ],
)
def test_a_bad_file_is_found(source):
    assert list(complaints(source))
