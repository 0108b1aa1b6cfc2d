"""No comparison is passed by NaN, for which every `<` and every `>` is false.

    assert error < bound            fails for NaN
    assert not error > bound        is passed by it          assert error <= bound
    if error > bound: raise         is passed by it          if not error <= bound: raise
    assert max(errors) < bound      max(0.0, nan) is 0.0     assert largest(errors) < bound
    assert min(gains) > bound       likewise                 assert smallest(gains) > bound

The cells of the course follow with their next rebuild.
"""

import ast
import math

import pytest

from tests.largest import largest, smallest
from tests.repository.files import ROOT, repository

ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
MEASURES = ("abs", "abs_", "fabs", "norm", "difference", "distance", "gap", "dist")
BUILTIN = {"max": (ast.Lt, ast.LtE), "min": (ast.Gt, ast.GtE)}


def called(node):
    """The name of what a call calls, or None."""
    if not isinstance(node, ast.Call):
        return None
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)


def builtin(node, names):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def measures(node):
    return any(called(inner) in MEASURES for inner in ast.walk(node))


def over(node):
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE))


def passed_by_nan(source):
    """(line, what) of each comparison that NaN passes, as far as the syntax tells."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            yield from asserted(node.test)
        elif isinstance(node, ast.If) and any(isinstance(line, ast.Raise) for line in node.body):
            for inner in ast.walk(node.test):
                if over(inner) and measures(inner.left):
                    yield inner.lineno, f"if {ast.unparse(inner)}: raise"
        elif builtin(node, ("max",)) and measures(node):
            yield node.lineno, ast.unparse(node)


def asserted(test):
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and any(
            builtin(node.left, (name,)) and isinstance(node.ops[0], ops)
            for name, ops in BUILTIN.items()
        ):
            yield node.lineno, f"assert {ast.unparse(node)}"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = node.operand
            if isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ORDER):
                yield node.lineno, f"assert {ast.unparse(node)}"
            if builtin(inner, ("any",)) and any(over(each) for each in ast.walk(inner)):
                yield node.lineno, f"assert {ast.unparse(node)}"


def test_nothing_is_passed_by_nan():
    found = []
    for pattern in (
        "minidist/*.py",
        "minicheck/*.py",
        "tests/*.py",
        "benchmarks/*.py",
        "examples/*.py",
    ):
        for path in repository(pattern):
            name = path.as_posix()
            if name == "tests/repository/test_nan.py":
                continue
            source = (ROOT / path).read_text(encoding="utf-8")
            found += [f"{name}:{line}  {what}" for line, what in passed_by_nan(source)]
    assert not found, "NaN passes:\n" + "\n".join(sorted(set(found)))


@pytest.mark.parametrize(
    "source",
    [
        "assert not a > b",
        "assert not (x - y).abs().max() >= 1e-3",
        "assert not any(e > bound for e in errors)",
        "assert max(errors) < 1e-9",
        "assert max(abs(a - b) for a, b in pairs) <= 1",
        "assert 1 < n and max(a, b) < 2",
        "assert min(gains) > 1",
        "worst = max(abs(a), abs(b))",
        "def f():\n    return max((a - b).abs().max() for a, b in c)",
        "if abs(a - b) > bound:\n    raise ValueError",
        "if (x - y).norm() >= 1:\n    raise ValueError",
    ],
)
def test_a_comparison_that_nan_passes_is_found(source):
    assert list(passed_by_nan(source))


@pytest.mark.parametrize(
    "source",
    [
        "assert a < b",
        "assert (x - y).abs().max() < 1e-3",
        "assert all(e < bound for e in errors)",
        "assert largest(errors) < 1e-9",
        "if not abs(a - b) <= bound:\n    raise ValueError",
        "n = max(sizes)",
        "assert not missing",
        "assert not any(found)",
        "assert max(sizes) == 3",
    ],
)
def test_one_that_fails_is_not(source):
    assert not list(passed_by_nan(source))


def test_largest():
    nan = math.nan
    assert (
        largest([1, 3, 2]) == largest(1, 3, 2) == 3
        and largest([], default=0) == 0
        and smallest([1, 3, 2]) == 1
    )
    for values in ([nan, 1.0], [1.0, nan], [1.0, nan, 2.0]):
        assert (
            math.isnan(largest(values))
            and math.isnan(largest(*values))
            and math.isnan(smallest(values))
        )
    assert max([1.0, nan]) == 1.0 != largest([1.0, nan])
