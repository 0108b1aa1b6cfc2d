"""The library's own code, shown in a lesson as it stands: highlighted, named, never copied.

The highlighting has its colours in the HTML itself, on the card of every picture, so that it reads
in a light and in a dark notebook. Without pygments, which comes with JupyterLab, the code is plain.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from html import escape
from types import ModuleType
from typing import Any

from minidist.study.picture import CARD, EDGE, INK, MUTED

MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
EXAMPLE = re.compile(
    r'(""".*)?\n\n *>>> (?:(?!""")[\s\S])*?(\n *""")'
)  # to the end of its docstring
COLORS = {
    "Keyword": "bold #0B5C8A",
    "Keyword.Constant": "nobold #0B5C8A",
    "Operator.Word": "bold #0B5C8A",
    "Name.Function": "#7A3566",
    "Name.Class": "bold #7A3566",
    "Name.Decorator": "#7A3566",
    "Literal.String": "#00664A",
    "Literal.Number": "#9C3F00",
    "Comment": "italic " + MUTED,
}


class Source:
    """Code of the library: `name` (its path in the package), `text` (the code), shown highlighted."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        count = self.text.count("\n") + 1
        card = (
            f"background-color: {CARD}; color: {INK}; border: 1px solid {EDGE}; border-radius: 8px"
        )
        what = f"{escape(self.name)} · {count} line{'s' * (count != 1)}"
        head = f'<div style="color: {MUTED}; font-size: 12px; padding-bottom: 6px">{what}</div>'
        type_ = f"font-family: {MONO}; font-size: 12px; line-height: 1.5; overflow: visible"
        plain = f"margin: 0; padding: 0; background-color: {CARD}; color: {INK}; white-space: pre; {type_}"
        code = f'<pre style="{plain}">{_highlighted(self.text)}</pre>'
        return f'<div style="{card}; padding: 10px 14px; overflow-x: auto">{head}{code}</div>'


def source(obj: Any, *, docstring: bool = True) -> Source:
    """The source of a function, class, method, property or module, as it stands in the package.

    Examples at the end of docstrings are left out: they are meant for the reference, and a lesson has its own examples.

    docstring: False leaves out the docstring of `obj` itself.
    Errors: ValueError for an object without Python source.

    >>> from minidist.comm.base import describe
    >>> from minidist.study import source
    >>> source(describe, docstring=False)
    def describe(x: Tensor) -> str:
        return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
    """
    target = _definition(obj)
    try:
        text = inspect.getsource(target)
    except (TypeError, OSError) as error:
        raise ValueError(
            f"source shows a function, class, method or module written in Python, not {obj!r}"
        ) from error
    if not isinstance(target, ModuleType):
        text = _flush_left(text)
    text = text if docstring else _without_docstring(text, isinstance(target, ModuleType))
    text = EXAMPLE.sub(lambda found: found[1] + '"""' if found[1] else found[2], text)
    return Source(_name(target), text.strip("\n"))


def _definition(obj: Any) -> Any:
    """What was written: the function inside a property, a partial or a bound method."""
    if isinstance(obj, functools.partial):
        obj = obj.func
    if isinstance(obj, property):
        obj = obj.fget
    if isinstance(obj, functools.cached_property):
        obj = obj.func
    return inspect.unwrap(obj) if callable(obj) else obj


def _name(target: Any) -> str:
    if isinstance(target, ModuleType):
        return target.__name__
    name = target.__qualname__.replace("<locals>.", "")
    return (
        f"{name}, defined in this notebook"
        if target.__module__ == "__main__"
        else f"{target.__module__}.{name}"
    )


def _flush_left(text: str) -> str:
    """Without the indentation of the first line; lines of a long string that stand further left stay."""
    indent = len(text) - len(text.lstrip(" "))
    return "".join(t.removeprefix(" " * indent) for t in text.splitlines(keepends=True))


def _without_docstring(text: str, module: bool) -> str:
    tree = ast.parse(text)
    owner = tree if module else tree.body[0]
    if not isinstance(owner, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return text
    if ast.get_docstring(owner) is None or len(owner.body) == 1:
        return text
    first, second = owner.body[:2]
    lines = text.splitlines(keepends=True)
    start, stop = first.lineno - 1, first.end_lineno or first.lineno
    if lines[start][: first.col_offset].strip() or second.lineno <= stop:
        return text  # something else stands on its lines
    while stop < len(lines) and not lines[stop].strip():
        stop += 1
    return "".join(lines[:start] + lines[stop:])


def _highlighted(text: str) -> str:
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
        from pygments.style import Style
        from pygments.token import string_to_tokentype
    except ImportError:
        return escape(text)

    class House(Style):
        styles = {string_to_tokentype(kind): color for kind, color in COLORS.items()}

    lexer, marks = (
        PythonLexer(stripnl=False, ensurenl=False),
        HtmlFormatter(style=House, noclasses=True, nowrap=True),
    )
    return highlight(text, lexer, marks).removesuffix("\n")  # which the formatter adds
