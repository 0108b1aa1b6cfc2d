"""One statement a line: what the formatter cannot see, the syntax tree tells.

    a.step(), b.step()                  a tuple as a statement
    [f(x) for x in xs]                  a comprehension as a statement
    f(x) if x else g(x)                 a conditional expression as a statement
    while (x := read()): …              an assignment expression
    [f(x) for x in xs for y in x if y]  a comprehension of more than two clauses
    a, b, c = 1, x, f(y)                a literal tuple of more than two values, unpacked

Unpacking the values of one call (`B, T, C = x.size()`) is fine. waiting.json counts what is left of these in files that
are still to be rebuilt. It only shrinks.
"""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.repository.files import ROOT, repository

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WAITING = json.loads(Path(__file__).with_name("waiting.json").read_text(encoding="utf-8"))
REBUILT = ("minidist/", "minicheck/", "tests/")  # only what is rebuilt may wait


def packed(source):
    """(line, what) of each statement that holds several."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Tuple):
                yield node.lineno, "a tuple as a statement"
            elif isinstance(node.value, COMPREHENSIONS):
                yield node.lineno, "a comprehension as a statement"
            elif isinstance(node.value, ast.IfExp):
                yield node.lineno, "a conditional expression as a statement"
        elif isinstance(node, ast.NamedExpr):
            yield node.lineno, "an assignment expression"
        elif isinstance(node, COMPREHENSIONS):
            if sum(1 + len(part.ifs) for part in node.generators) > 2:
                yield node.lineno, "a comprehension of more than two clauses"
        elif isinstance(node, ast.Assign):
            unpacked = any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)
            if unpacked and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 2:
                yield node.lineno, "a literal tuple of more than two values, unpacked"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("a.step(), b.step()", "a tuple as a statement"),
        ("[f(x) for x in xs]", "a comprehension as a statement"),
        ("f(x) if x else g(x)", "a conditional expression as a statement"),
        ("while (x := read()): print(x)", "an assignment expression"),
        ("s = [f(x) for x in xs for y in x if y]", "a comprehension of more than two clauses"),
        ("s = max(x for x in xs if x if x > 1)", "a comprehension of more than two clauses"),
        ("a, b, c = 1, x, f(y)", "a literal tuple of more than two values, unpacked"),
        ("if x:\n    [a, *b] = (1, 2, 3)", "a literal tuple of more than two values, unpacked"),
    ],
)
def test_what_is_refused(source, what):
    assert [found for _, found in packed(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "B, T, C = x.size()",
        "a, b = b, a",
        "SIZES = (1, 2, 3)",
        "x = f(x) if x else g(x)",
        "s = [f(x) for x in xs if x]",
        "s = {(x, y) for x in xs for y in ys}",
        "return_value = [[y for y in x if y] for x in xs]",
    ],
)
def test_what_is_fine(source):
    assert not [*packed(source)]


def test_one_statement_a_line():
    found = {}
    for path in repository("*.py"):
        findings = [*packed((ROOT / path).read_text(encoding="utf-8"))]
        if len(findings) > WAITING.get(str(path), 0):
            found[str(path)] = findings
    assert not found, f"write each as statements of their own: {found}"


def test_the_list_only_shrinks():
    """It names no more than there is, and only what is still to be rebuilt."""
    count = Counter()
    for path in repository(*WAITING):
        count[str(path)] = len([*packed((ROOT / path).read_text(encoding="utf-8"))])
    assert dict(count) == WAITING, "take from waiting.json what is no longer there"
    assert all(name.startswith(REBUILT) for name in WAITING)
