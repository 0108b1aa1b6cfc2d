"""A program and its arguments, as every world treats them: refused, copied, located in the same way.

Ranks share nothing. In a World they are threads, under `launch` processes: without care a module of
the notebook would be one object in the first and n objects in the second. So arguments are copied for
each rank, and a program that reaches a module, a parameter or an optimizer of the notebook by another
way is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
import linecache
import os
import sys
import threading
from types import CodeType, FrameType, FunctionType, MethodType

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMM = os.path.join(_PACKAGE, "comm") + os.sep
_INSTALLED = (_PACKAGE, os.path.dirname(os.path.dirname(torch.__file__)) + os.sep, os.path.dirname(threading.__file__) + os.sep)


def copied(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """One rank's own copy of the arguments; what two arguments shared, the copies share."""
    return copy.deepcopy((args, kwargs))


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's random numbers, the same in every world."""
    return (seed * 1_000_003 + rank) % 2**63


def refuse_shared(program) -> None:
    """Raise ValueError if `program` reaches a module, parameter or optimizer that ranks would share."""
    if not callable(program):
        raise TypeError(f"a program is a function program(comm, …), not {type(program).__name__}")
    seen: set[int] = set()
    todo = [("", program)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, torch.nn.Module | torch.nn.Parameter | torch.optim.Optimizer):
            raise ValueError(
                f"the program uses {name or 'itself'!r}, a {type(value).__name__} of the notebook: the ranks of a World would "
                "share it, processes would not. Pass it as an argument (each rank gets its own copy) or make it inside."
            )
        if id(value) not in seen and len(seen) < 1000:
            seen.add(id(value))
            todo += _reached(value)


def _reached(value) -> list[tuple[str, object]]:
    """What a function of the user's reaches by name: its closure and globals. Installed code is not searched."""
    if isinstance(value, functools.partial):
        return [("", value.func)]  # its arguments are copied like any others
    if isinstance(value, MethodType):
        return [(type(value.__self__).__name__, value.__self__), ("", value.__func__)]
    if not isinstance(value, FunctionType) or value.__code__.co_filename.startswith(_INSTALLED):
        return []
    try:
        found = inspect.getclosurevars(value)
    except ValueError:  # a closure cell that is still empty
        return []
    return [*found.nonlocals.items(), *found.globals.items()]


def caller() -> tuple[CodeType, int] | None:
    """Where the user's program is in this thread: the innermost line outside this package."""
    return _user_line(sys._getframe(1))


def line_of(thread: threading.Thread) -> str:
    """The line of the user's program at which another thread stands."""
    frame = sys._current_frames().get(thread.ident)
    found = frame and _user_line(frame)
    return located(found[0].co_filename, found[1]) if found else "(no line of the program)"


def _user_line(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """Outside the package if there is such a frame, else the outermost one outside `comm`."""
    within = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name == threading.__file__:  # the root of a rank's thread
            break
        if not name.startswith(_PACKAGE):
            return frame.f_code, frame.f_lineno
        if not name.startswith(_COMM):
            within = frame.f_code, frame.f_lineno
        frame = frame.f_back
    return within


def outside(places: list[tuple[str, int]]) -> tuple[str, int] | None:
    """The same choice among (file, line) of a stack, innermost first."""
    ours = [p for p in places if not p[0].startswith(_COMM)]
    theirs = [p for p in ours if not p[0].startswith(_INSTALLED)]
    return next(iter(theirs or ours[::-1]), None)


def located(filename: str, line: int) -> str:
    """`train.py:12: loss.backward()`; a notebook's cells have no name worth showing, only lines."""
    notebook = "ipykernel" in filename or filename.startswith("<ipython")
    place = f"line {line} of the cell" if notebook else f"{os.path.basename(filename)}:{line}"
    text = linecache.getline(filename, line).strip()
    return f"{place}: {text}" if text else place


def named(error: BaseException, rank: int, n: int) -> BaseException:
    """The same exception, saying on which rank it was raised (also as `error.rank`)."""
    if not isinstance(getattr(error, "rank", None), int):
        error.rank = rank
    error.add_note(f"raised on rank {rank} of {n}")
    return error
