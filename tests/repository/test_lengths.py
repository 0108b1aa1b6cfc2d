"""The package can be read in an afternoon: files of 250 lines, functions of 40, no hidden state, nothing postponed."""

import ast

import pytest

from tests.repository.files import ROOT, repository

FILE_LINES, FUNCTION_LINES = 250, 40
LATER = ("TO" + "DO", "FIX" + "ME", "XX" + "X")


def complaints(source):
    """What is too long in `source`, is `global`, or is left for later."""
    lines = source.splitlines()
    if len(lines) > FILE_LINES:
        yield f"{len(lines)} lines, {FILE_LINES} at most"
    for number, line in enumerate(lines, 1):
        if any(word in line for word in LATER):
            yield f"line {number}: {line.strip()}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"line {node.lineno}: {node.name} has {length} lines, {FUNCTION_LINES} at most"
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def test_the_package():
    files = repository("minidist/*.py")
    assert files
    found = [f"{path}: {c}" for path in files for c in complaints((ROOT / path).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("source", [
    "x = 1\n" * 251,
    "def f():\n" + "    x = 1\n" * 40,
    "class A:\n    async def f():\n" + "        x = 1\n" * 40,
    "def f():\n    global x\n    x = 1\n",
    f"x = 1  # {LATER[0]}: later\n",
])
def test_a_bad_file_is_found(source):
    assert list(complaints(source))


def test_a_file_at_the_limit_is_not():
    assert not list(complaints("def f():\n" + "    x = 1\n" * 39 + "y = 2\n" * 210))
