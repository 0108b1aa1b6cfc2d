"""A cell whose source is hidden defines nothing that a later visible cell uses, except what draws.

A reader of a visible cell must find each of its names in a cell that they can see. The one exception is a function whose
name begins with `draw_`: what it does is to be seen in the picture.
"""

import ast
import symtable

import pytest

from course.build import ROOT, read, sources


def is_hidden(cell):
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def names_in(statement):
    """The global names that a statement reads, and those that it binds."""
    reads, binds = set(), set()

    def visit(table, outermost):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            is_global = outermost or symbol.is_global()
            if is_global and symbol.is_referenced():
                reads.add(name)
            if is_global and (
                symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            ):
                binds.add(name)
        for child in table.get_children():
            visit(child, False)

    visit(symtable.symtable(ast.unparse(statement), "cell", "exec"), True)
    # a loop or a comprehension reads what it binds itself; `x += 1` reads what it binds from before
    updated = {
        node.target.id
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        reads -= binds
    return reads | updated & binds, binds


def borrowed(cells):
    """(cell, name) for what a visible cell takes from a hidden one. Cells are (source, hidden)."""
    secret = set()
    public = set()
    found = []
    for i, (source, hidden) in enumerate(cells):
        for statement in ast.parse(source).body:
            reads, binds = names_in(statement)
            if hidden:
                draws = isinstance(statement, ast.FunctionDef) and statement.name.startswith(
                    "draw_"
                )
                is_import = isinstance(statement, ast.Import | ast.ImportFrom)
                secret |= set() if draws else binds - (public if is_import else set())
            else:
                found += [(i, name) for name in sorted(reads & secret)]
                secret -= binds
                public |= binds
    return found


def test_no_lesson_hides_what_it_uses():
    for source in sources(ROOT, []):
        cells = [
            (cell.source, is_hidden(cell))
            for cell in read(ROOT, source).cells
            if cell.cell_type == "code"
        ]
        assert borrowed(cells) == [], source


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [
        ("x = 1", "print(x)"),
        ("x = 1", "def f():\n    return x"),
        ("def f(): pass", "f()"),
        ("class A: pass", "A()"),
        ("import json", "json.loads('1')"),
        ("from json import loads as f", "f('1')"),
        ("x = 1", "x = x + 1"),
        ("x = 1", "x += 1"),
        ("x = 1", "[x for y in range(3)]"),
        ("for x in range(3): pass", "x"),
        ("with open('a') as x: pass", "x"),
        ("draw_all = 1", "draw_all"),
        ("if True:\n    x = 1", "x"),
        ("a, (b, *x) = 1, (2, 3)", "x"),
    ],
)
def test_what_is_borrowed_is_found(hidden, visible):
    assert len(borrowed([(hidden, True), (visible, False)])) == 1


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [
        ("assert True", "1"),
        ("def draw_all(): pass", "draw_all()"),
        ("x = 1", "x = 2\nprint(x)"),
        ("x = 1", "def f(x):\n    return x"),
        ("x = 1", "[x for x in range(3)]"),
        ("x = 1", "for x in range(3):\n    print(x)"),
        ("x = 1", "a.x"),
        ("def f():\n    x = 1", "x"),
    ],
)
def test_what_is_not_borrowed_is_not(hidden, visible):
    assert borrowed([(hidden, True), (visible, False)]) == []


def test_an_import_that_was_seen_may_be_hidden_again():
    cells = [("import json", False), ("import json", True), ("json", False)]
    assert borrowed(cells) == []
    cells[0] = ("json = 1", False)
    cells[1] = ("json = 2", True)
    assert borrowed(cells) == [(2, "json")]
