"""A program and its arguments, as every world treats them: refused, copied, located in the same way.

Ranks share nothing. In a World they are threads, under `launch` processes: without care a module of
the notebook would be one object in the first and n objects in the second. So arguments are copied for
each rank, and a program that reaches a module, a parameter or an optimizer of the notebook by another
way is refused. Other values of the notebook, tensors and lists among them, a program may read; a run after which one of
them is not what it was is refused, too.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import io
import itertools
import linecache
import os
import pickle
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from types import (
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)

import cloudpickle
import numpy as np
import torch

from .. import arguments
from .base import Deadlock

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMM = os.path.join(_PACKAGE, "comm") + os.sep
_LONGEST = 365 * 24 * 3600  # seconds


def _beside() -> tuple[str, ...]:
    """The folders of the packages that are installed with this one, this one's among them."""
    try:
        names = metadata.distribution("minidist").read_text("top_level.txt") or ""
    except metadata.PackageNotFoundError:
        return (_PACKAGE,)
    above = os.path.dirname(os.path.dirname(_PACKAGE))
    return tuple({_PACKAGE, *(os.path.join(above, name) + os.sep for name in names.split())})


PACKAGES = _beside()  # folders
_INSTALLED = (
    *PACKAGES,
    os.path.dirname(os.path.dirname(torch.__file__)) + os.sep,
    os.path.dirname(threading.__file__) + os.sep,
    "<frozen ",
)

# entries of a container that are compared before and after a run, in a few milliseconds
MANY = 100_000
# bytes of an array or a tensor whose values are compared: a thousand of them take 0.2 s at most
SMALL = 1 << 18
_PLAIN = (int, float, complex, bool, str, bytes, NoneType, frozenset)
_SEEDED = (random._inst, torch.default_generator)  # every rank has its own state of these


def copied(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """One rank's own copy of the arguments; what two arguments shared, the copies share."""
    return copy.deepcopy((args, kwargs))


def whole(program, args: tuple, kwargs: dict) -> tuple:
    """The program without `functools.partial`, whose arguments become arguments like any others."""
    while isinstance(program, functools.partial):
        args = program.args + args
        kwargs = program.keywords | kwargs
        program = program.func
    return program, args, kwargs


# seconds, as PyTorch's: on one rank a first compilation or a slow disk may take minutes
DEFAULT_TIMEOUT = 1800.0


def check_timeout(timeout: float) -> float:
    """The seconds that a wait may take, as the caller gave them."""
    asked = (
        f"a timeout is a number of seconds, such as 30, more than 0 and at most {_LONGEST} (a year)"
    )
    return arguments.number(timeout, asked, 1e-9, _LONGEST)


def check_seed(seed: int) -> int:
    """The seed of a run, in any world."""
    return arguments.whole(seed, "a seed is a whole number")


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's random numbers, the same in every world."""
    return (seed * 1_000_003 + rank) % 2**63


def seed_all(seed: int) -> None:
    """Seed torch, numpy and Python in a process that is a rank."""
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed looks for all kinds of devices, a third of a rank's start
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def own_random(seed: int):
    """Seed numpy and Python for a World, whose ranks share these two; the notebook's go on undisturbed."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def refuse_shared(program, *args) -> None:
    """Raise ValueError if `program`, or a function among `args`, reaches what ranks would share.

    That is: a module, a parameter (any tensor that requires grad) or an optimizer of the notebook, through
    a closure, a global name, a default argument, or the object that a method is bound to.
    """
    if not callable(program):
        raise TypeError(f"a program is a function program(comm, …), not {type(program).__name__}")
    for name, value in _reached_by_program(program, args):
        tracked = isinstance(value, torch.Tensor) and value.requires_grad
        if tracked or isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            what = f"{type(value).__name__} that requires grad" if tracked else type(value).__name__
            raise ValueError(
                f"the program uses {name or 'itself'!r}, a {what} of the notebook: the ranks of a World would share "
                "it, processes would not. Pass it as an argument (each rank gets its own copy) or make it inside."
            )


def _reached_by_program(program, args: tuple) -> Iterator[tuple[str, object]]:
    """(name, object) of all that a program reaches, and the functions among its arguments."""
    return reachable(program, *(arg for arg in args if isinstance(arg, FunctionType)))


class Unchanged:
    """What `program`, and the functions among `args`, reach of the notebook, as it is now. Raises as `refuse_shared`.

    A World has one such object for a run, each process one for its own copies, so that all say the same.
    """

    def __init__(self, program, *args):
        refuse_shared(program, *args)
        self._before: dict[int, tuple[str, object, dict]] = {}
        for name, value in _reached_by_program(program, args):
            if id(value) not in self._before:
                self._before[id(value)] = name, value, _entries(value)

    def changed(self) -> list[str]:
        """What is no longer as it was, each by its name and its kind."""
        changes = set()
        missing = object()
        for name, value, before in self._before.values():
            after = _entries(value)
            for key in before | after:
                if _same(before.get(key, missing), after.get(key, missing)):
                    continue
                if isinstance(key, int):
                    changes.add((name or "itself", type(value).__name__))
                elif isinstance(value, FunctionType):
                    changes.add((key, "global or outer name"))
                else:
                    changes.add((key, "attribute"))
        return [f"{name!r} ({kind})" for name, kind in sorted(changes)]


def refuse_changed(changed: Iterable[str]) -> None:
    """Raise ValueError if a program has changed anything; `changed`: as `Unchanged` names it."""
    names = ", ".join(changed)
    if names:
        raise ValueError(
            f"the program changed {names} of the notebook: the ranks of a World share it, processes do not, so the "
            "results would differ. Return it instead: run and launch give back each rank's result. Or pass it as an "
            "argument: each rank gets its own copy."
        )


def _same(a, b) -> bool:
    """Whether an entry is what it was: the same object, or an equal number or string."""
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)


def _entries(value) -> dict:
    """What is compared of a value before and after a run, by name or by number; nothing of what is not followed.

    Of a function what its names mean, of an object its attributes, by name. Of a container its entries, unless they are
    too many: then their number. Of a tensor how often it was changed, and its values: messages change them uncounted.
    """
    parts: list = []
    if isinstance(value, torch.Tensor):
        parts = [value.is_inference() or value._version, _hash_of(value)]
    elif isinstance(value, np.ndarray):
        parts = [hash(value.tobytes()) if value.nbytes <= SMALL else None]
    elif isinstance(value, dict | list | set | deque | bytearray):
        if len(value) > MANY:
            parts = [len(value)]
        elif isinstance(value, set):
            parts = [frozenset(value)]
        else:
            parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
    elif isinstance(value, torch.Generator | np.random.Generator | random.Random):
        if not any(value is seeded for seeded in _SEEDED):
            parts = [pickle.dumps(_state(value))]
    elif isinstance(value, ModuleType | MethodType):
        pass
    elif isinstance(value, FunctionType) and users(value):
        return dict(_reached_by_function(value))
    elif isinstance(value, SimpleNamespace) or users(value):
        # Methods are no state: torch.optim.Optimizer puts another `step` into a class when the first of it is made.
        attributes = getattr(value, "__dict__", {})
        return {
            key: x
            for key, x in attributes.items()
            if not (key.startswith("__") or isinstance(x, FunctionType))
        }
    return dict(enumerate(parts))


def _hash_of(x: torch.Tensor) -> int | None:
    """A number for the values of a small tensor on the CPU; None for any other."""
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.layout is not torch.strided:
        return None
    storage = x.untyped_storage()
    if storage.nbytes() > SMALL:
        return None
    return hash(_bytes_of(storage))


def _state(generator: torch.Generator | np.random.Generator | random.Random):
    """Where a random generator is in its sequence."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return (
        generator.get_state().tolist()
        if isinstance(generator, torch.Generator)
        else generator.getstate()
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
    """What the user's functions, objects and containers reach by name. Installed code is not searched.

    Numbers and strings in a container reach nothing: there may be many, and they have no name.
    """
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [(name, v) for v in itertools.islice(value, MANY) if type(v) not in _PLAIN]
    if isinstance(value, dict):
        return [(name, v) for v in itertools.islice(value.values(), MANY) if type(v) not in _PLAIN]
    if isinstance(value, functools.partial):
        return [(name, v) for v in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, MethodType):
        return [(type(value.__self__).__name__, value.__self__), ("", value.__func__)]
    if isinstance(value, SimpleNamespace):
        return list(vars(value).items())
    if isinstance(value, ModuleType) or not users(value):
        return []
    if isinstance(value, FunctionType):
        return _reached_by_function(value)
    return [
        *getattr(value, "__dict__", {}).items(),
        *([] if isinstance(value, type) else [("", type(value))]),
    ]


def _reached_by_function(function: FunctionType) -> list[tuple[str, object]]:
    code, cells = function.__code__, function.__closure__ or ()
    outer = function.__globals__
    reached = [(name, outer[name]) for name in _global_names(code) if name in outer]
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            reached.append((name, cell.cell_contents))
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return [*reached, *zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]


@functools.lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> set[str]:
    """Names that a function, or a function within it, looks up outside; an attribute's name is none of them."""
    names = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return names.union(*(_global_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def users(value) -> bool:
    """Whether a function, a class or an object is the user's: of a notebook, a script, a module not installed."""
    if isinstance(value, FunctionType):
        return not value.__code__.co_filename.startswith(_INSTALLED)
    return _written_by_user(sys.modules.get(getattr(value, "__module__", None) or "builtins"))


def _written_by_user(module: ModuleType | None) -> bool:
    """Whether a module is the notebook, a script, or one that is not installed."""
    # of a rank, another file than where the user's classes come from
    if module is sys.modules.get("__main__"):
        return True
    file = getattr(module, "__file__", None)
    builtin = module is not None and module.__name__ in sys.builtin_module_names
    return not builtin and not (file or "").startswith(_INSTALLED)


def caller() -> tuple[str, int] | None:
    """Where the user's program is in this thread: the file and the line."""
    return outside(_places(sys._getframe(1)))


def line_of(thread: threading.Thread) -> str:
    """The line of the user's program at which another thread stands; "" once the program has returned."""
    frame = sys._current_frames().get(thread.ident or 0)
    place = outside(_places(frame))
    return located(*place) if place else ""


def _places(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """(file, line) of a stack, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def outside(places: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Of a stack's (file, line), innermost first: the first outside installed code if there is one, else the package's
    outermost one outside `comm`."""
    within = None
    for place in places:
        if not place[0].startswith(_INSTALLED):
            return place
        if place[0].startswith(PACKAGES) and not place[0].startswith(_COMM):
            within = place
    return within


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
        error.rank = rank  # type: ignore[attr-defined]  # any exception takes it
    error.add_note(f"raised on rank {rank} of {n}")
    return error


# ------------------------------------------------------------
# How a program, its arguments and its results travel between the notebook and its ranks.
#
# cloudpickle, with three differences. Tensors that share memory share it on the other side, too (as deepcopy
# keeps it in a World); pickle alone would send it twice. Code keeps the name of its file, so that an error there
# shows the line, which cloudpickle forgets from 3.1.3 on. And what a module of the user's defines travels as
# a cell's definitions do, by value: as it is now, and without running that module again on every rank.


_REGISTERING = threading.Lock()  # cloudpickle's registry belongs to the whole process


# what the constructor of code takes, in its order, from Python 3.11 to 3.13
_CODE = (
    *("argcount", "posonlyargcount", "kwonlyargcount", "nlocals", "stacksize", "flags", "code"),
    *("consts", "names", "varnames", "filename", "name", "qualname", "firstlineno"),
    *("linetable", "exceptiontable", "freevars", "cellvars"),
)


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj):
        if isinstance(obj, torch.storage.TypedStorage):  # made anew for each tensor that is pickled
            return _typed, (obj._untyped_storage, obj.dtype)
        # one object for each memory
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return _storage, (_bytes_of(obj),)
        if isinstance(obj, CodeType):
            return CodeType, tuple(getattr(obj, f"co_{part}") for part in _CODE)
        return super().reducer_override(obj)


def _typed(storage: torch.storage.TypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(
        wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True
    )


def _storage(data: bytes) -> torch.storage.TypedStorage:
    """Typed, as torch itself unpickles an untyped one: tensors of the newer dtypes count on it."""
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))._typed_storage()


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def dumps(value) -> bytes:
    """`value` for `pickle.loads`."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps_program(program: Callable, args: tuple, kwargs: dict) -> bytes:
    """The program and its arguments, with what the modules of the user's define that they come from."""
    origins = {
        sys.modules.get(getattr(x, "__module__", None) or "")
        for x in (program, *args, *kwargs.values())
        if users(x)
    }
    with _REGISTERING, contextlib.ExitStack() as registered:
        known = cloudpickle.list_registry_pickle_by_value()
        for module in origins - {sys.modules["__main__"]}:
            # an installed one is there on the other side; `functools.wraps` and doctests give its name to what is not in it
            if module is not None and _written_by_user(module) and module.__name__ not in known:
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return dumps((program, args, kwargs))
        except Exception as error:
            error.add_note("launch sends the program and its arguments to other processes")
            raise
