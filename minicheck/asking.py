"""The half of an examination that asks: what the process of an answer needs of the files of lessons/.

The other half knows what is right. An answer could find it, as Python hides nothing: the examination's class among the
subclasses of `object`, its `wants`, the words of its `check`, the lesson's tables. So it is not there. What `run` reaches by
name stays; all other functions, classes and values of these files are gone before an answer is loaded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from . import refuse
from .exam import Exam

FILES = ("minicheck.lessons", "minicheck.oracles")
ASKS = ("run", "call", "world")
JUDGES = ("draw", "judge", "check", "wants", "value", "mistakes", "cost")


def keep_asking(exam: Exam) -> None:
    """From now on, of the files of the examinations, this process has what `exam` needs to ask."""
    kept = Reached(exam)
    modules = [module for name, module in sys.modules.items() if refuse.under(name, FILES)]
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, type) and refuse.under(value.__module__, FILES):
                _strip(value, kept)
    for module in modules:
        for name in [name for name in vars(module) if not name.startswith("__")]:
            if (id(vars(module)), name) not in kept.names:
                delattr(module, name)


def _strip(kind: type, kept: Reached) -> None:
    for name, value in list(vars(kind).items()):
        method = isinstance(value, FunctionType | staticmethod | classmethod | property)
        if method and (id(kind), name) not in kept.names:
            with contextlib.suppress(TypeError, AttributeError):  # a class of Python's own kind
                delattr(kind, name)


class Reached:
    """What an examination's `ASKS` reach. names: (id of a module's dict or of a class, a name in it)."""

    def __init__(self, exam: Exam):
        self.names: set[tuple[int, str]] = set()
        self._seen: dict[int, object] = {}
        # (id, names) in which any name that code mentions may be meant: of examinations, and of modules
        kinds = [k for k in type(exam).__mro__ if issubclass(k, Exam) and k is not Exam]
        self._spaces: dict[int, Mapping[str, Any]] = {id(k): vars(k) for k in kinds}
        mentioned = 0
        while mentioned < len(self._spaces):
            mentioned = len(self._spaces)
            self._seen.clear()
            for name in ASKS:
                self._mention(name)
            self._value(list(vars(exam).values()))

    def _mention(self, name: str) -> None:
        for key, space in list(self._spaces.items()):
            if name in space and name not in JUDGES:
                self.names.add((key, name))
                self._value(space[name])

    def _value(self, value) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, FunctionType):
            if refuse.under(value.__module__ or "", FILES):
                self._function(value)
        elif isinstance(value, ModuleType):
            if refuse.under(value.__name__, FILES):
                self._spaces[id(vars(value))] = vars(value)
        elif isinstance(value, type):
            if refuse.under(value.__module__, FILES):
                self._kind(value)
        else:
            for part in _parts(value):
                self._value(part)

    def _function(self, function: FunctionType) -> None:
        names = function.__globals__
        for name in _names(function.__code__):
            if name in names:
                self.names.add((id(names), name))
                self._value(names[name])
            self._mention(name)
        cells = [_held(cell) for cell in function.__closure__ or ()]
        self._value([cells, function.__defaults__, function.__kwdefaults__])
        self._value(getattr(function, "__wrapped__", None))

    def _kind(self, kind: type) -> None:
        if issubclass(kind, Exam):
            self._spaces[id(kind)] = vars(kind)
            return
        for base in kind.__mro__:
            if refuse.under(base.__module__, FILES):
                for name, value in list(vars(base).items()):
                    self.names.add((id(base), name))
                    self._value(value)


def _names(code: CodeType) -> set[str]:
    """All names in code, also in that of the functions within."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*inner)


def _held(cell) -> list:
    """What a function's cell holds; nothing, if it is empty."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _parts(value) -> list:
    """What a container, or what wraps a function, has in it."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if refuse.under(type(value).__module__, FILES):
        return [type(value), *vars(value).values()] if hasattr(value, "__dict__") else [type(value)]
    return [getattr(value, "__wrapped__", None)]
