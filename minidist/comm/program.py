"""A program and its arguments, as every world treats them: refused, copied, located in the same way.

Ranks share nothing. In a World they are threads, under `launch` processes: without care a module of
the notebook would be one object in the first and n objects in the second. So arguments are copied for
each rank, and a program that reaches a module, a parameter or an optimizer of the notebook by another
way is refused.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import linecache
import os
import random
import sys
import threading
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType

import numpy as np
import torch

from .base import Deadlock

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMM = os.path.join(_PACKAGE, "comm") + os.sep
_LONGEST = 365 * 24 * 3600  # seconds
_INSTALLED = (_PACKAGE, os.path.dirname(os.path.dirname(torch.__file__)) + os.sep,
              os.path.dirname(threading.__file__) + os.sep, "<frozen ")  # fmt: skip


def copied(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """One rank's own copy of the arguments; what two arguments shared, the copies share."""
    return copy.deepcopy((args, kwargs))


def whole(program, args: tuple, kwargs: dict) -> tuple:
    """The program without `functools.partial`, whose arguments become arguments like any others."""
    while isinstance(program, functools.partial):
        program, args, kwargs = program.func, program.args + args, program.keywords | kwargs
    return program, args, kwargs


def check_timeout(timeout: float) -> None:
    """The seconds that a wait may take, as the caller gave them."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"a timeout is a number of seconds, such as 30, not {timeout!r}")
    if not 0 < timeout <= _LONGEST:
        raise ValueError(f"a timeout is more than 0 seconds and at most {_LONGEST} (a year), not {timeout!r}")


def check_seed(seed: int) -> None:
    """The seed of a run's random numbers, as the caller gave it."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"a seed is a whole number, such as 0, not {seed!r}")


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's random numbers, the same in every world."""
    return (seed * 1_000_003 + rank) % 2**63


def seed_all(seed: int) -> None:
    """Seed torch, numpy and Python in a process that is a rank."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def own_random(seed: int):
    """Seed numpy and Python for a World, whose ranks share these two; the notebook's go on undisturbed."""
    kept = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


def refuse_shared(program, *args) -> None:
    """Raise ValueError if `program`, or a function among `args`, reaches what ranks would share.

    That is: a module, a parameter (any tensor that requires grad) or an optimizer of the notebook, through
    a closure, a global name, a default argument, or the object that a method is bound to.
    """
    if not callable(program):
        raise TypeError(f"a program is a function program(comm, …), not {type(program).__name__}")
    for name, value in reachable(program, *(arg for arg in args if isinstance(arg, FunctionType))):
        tracked = isinstance(value, torch.Tensor) and value.requires_grad
        if tracked or isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            what = f"{type(value).__name__} that requires grad" if tracked else type(value).__name__
            raise ValueError(
                f"the program uses {name or 'itself'!r}, a {what} of the notebook: the ranks of a World would share "
                "it, processes would not. Pass it as an argument (each rank gets its own copy) or make it inside."
            )


def reachable(*values) -> Iterator[tuple[str, object]]:
    """(name, object) of `values` and of all that they reach, a thousand objects at most."""
    seen: set[int] = set()
    todo = [("", value) for value in values]
    while todo:
        name, value = todo.pop()
        yield name, value
        if id(value) not in seen and len(seen) < 1000:
            seen.add(id(value))
            todo += _reached(name, value)


def _reached(name: str, value) -> list[tuple[str, object]]:
    """What the user's functions, objects and containers reach by name. Installed code is not searched."""
    if isinstance(value, list | tuple | set | frozenset):
        return [(name, v) for v in value]
    if isinstance(value, dict):
        return [(name, v) for v in value.values()]
    if isinstance(value, functools.partial):
        return [(name, v) for v in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, MethodType):
        return [(type(value.__self__).__name__, value.__self__), ("", value.__func__)]
    if isinstance(value, ModuleType) or not users(value):
        return []
    if isinstance(value, FunctionType):
        return _reached_by_function(value)
    return [*getattr(value, "__dict__", {}).items(), *([] if isinstance(value, type) else [("", type(value))])]


def _reached_by_function(function: FunctionType) -> list[tuple[str, object]]:
    code, cells = function.__code__, function.__closure__ or ()
    found = [(n, function.__globals__[n]) for n in _global_names(code) if n in function.__globals__]
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found.append((name, cell.cell_contents))
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return [*found, *zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]


def _global_names(code: CodeType) -> set[str]:
    """Names that a function, or a function within it, looks up outside; an attribute's name is none of them."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def users(value) -> bool:
    """Whether a function, a class or an object is the user's: of a notebook, a script, a module not installed."""
    if isinstance(value, FunctionType):
        return not value.__code__.co_filename.startswith(_INSTALLED)
    module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
    file = getattr(module, "__file__", None)
    builtin = module is not None and module.__name__ in sys.builtin_module_names
    return not builtin and not (file or "").startswith(_INSTALLED)


def caller() -> tuple[CodeType, int] | None:
    """Where the user's program is in this thread: the innermost line outside this package."""
    return _user_line(sys._getframe(1))


def line_of(thread: threading.Thread) -> str:
    """The line of the user's program at which another thread stands; "" once the program has returned."""
    frame = sys._current_frames().get(thread.ident)
    found = frame and _user_line(frame)
    return located(found[0].co_filename, found[1]) if found else ""


def _user_line(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The innermost frame outside installed code if there is one, else the package's outermost one outside `comm`."""
    within = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INSTALLED):
            return frame.f_code, frame.f_lineno
        if name.startswith(_PACKAGE) and not name.startswith(_COMM):
            within = frame.f_code, frame.f_lineno
        frame = frame.f_back
    return within


def outside(places: list[tuple[str, int]]) -> tuple[str, int] | None:
    """The same choice among (file, line) of a stack, innermost first."""
    theirs = [p for p in places if not p[0].startswith(_INSTALLED)]
    within = [p for p in places if p[0].startswith(_PACKAGE) and not p[0].startswith(_COMM)]
    return next(iter(theirs or within[::-1]), None)


def located(filename: str, line: int) -> str:
    """`train.py:12: loss.backward()`; a notebook's cells have no name worth showing, only lines."""
    notebook = "ipykernel" in filename or filename.startswith("<ipython")
    place = f"line {line} of the cell" if notebook else f"{os.path.basename(filename)}:{line}"
    text = linecache.getline(filename, line).strip()
    return f"{place}: {text}" if text else place


def never_received(pairs: Iterable[tuple[int, int]]) -> Deadlock:
    """The programs have returned, but a message from src to dst, for each of `pairs`, was not received."""
    links = ", ".join(f"rank {src} → rank {dst}" for src, dst in pairs)
    return Deadlock(f"the programs returned, but a message was never received: {links}")


def named(error: BaseException, rank: int, n: int) -> BaseException:
    """The same exception, saying on which rank it was raised (also as `error.rank`).

    A rank that leaves with SystemExit or the like must not end the notebook: that becomes a RuntimeError.
    """
    if not isinstance(error, Exception):
        cause, error = error, RuntimeError(f"the program left with {type(error).__name__}({error})")
        error.__cause__ = cause
    if not isinstance(getattr(error, "rank", None), int):
        error.rank = rank
    error.add_note(f"raised on rank {rank} of {n}")
    return error
