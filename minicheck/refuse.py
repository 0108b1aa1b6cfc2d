"""What an answer may not do while it is examined: call what it is to build, or reach outside its process.

Two means, both in the answer's own process and before the answer is loaded. The library's functions get
another code (not another name: whoever holds them, holds the refusal). An audit hook (PEP 578), which
cannot be taken off again, refuses files, sockets, processes and the ways around it.

This stops shortcuts, not an attacker who knows CPython by heart; for him the numbers are compared in
another process, and the bytes of ranks are read there too.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import sys
import sysconfig
from types import CodeType, FunctionType, ModuleType

import torch

import minidist

_BEGINNINGS = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.fork",
    "os.kill",
    "os.system",
    "os.remove",
    "os.rename",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.mkdir",
    "os.rmdir",
    "shutil.",
    "pty.",
    "urllib.",
    "sqlite3.",
    "ctypes.dl",
    "ctypes.addressof",
    "ctypes.cdata",
    "mmap.",
)
_EXACTLY = (
    "sys.settrace",
    "sys.setprofile",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "resource.setrlimit",
    "os.putenv",
)
_COLLECTIVES = "torch.distributed.distributed_c10d"  # what no exercise is about calling
# their stores are sockets and files, written in C++
_STORES = ("torch.distributed", "torch._C._distributed_c10d")
# the library's folder, and the graders'
PACKAGE, GRADERS = (os.path.dirname(os.path.abspath(f)) for f in (minidist.__file__, __file__))
OURS = ("minidist", "minicheck")
WRITTEN = (PACKAGE + os.sep, GRADERS + os.sep)
PRESENTS = "minidist.study"
# of the library, which an answer may not load if they are not loaded yet
FOLDERS = ("checkpoint", "collectives", "parallel", "study", "train")
METERS = (
    "tracemalloc",
    "_tracemalloc",
)  # what counts outside of tensors; who stops it is not counted
LIBRARYS = "this is the library's: the exercise is about building it yourself"


class Refused(PermissionError):
    """The answer did what it may not do. An OSError, so that library code which can do without a file does."""


def _refused(*args, **kwargs):
    import sys

    # with the globals of whatever function it becomes the code of
    refuse = sys.modules["minicheck.refuse"]
    raise refuse.Refused(refuse.LIBRARYS)


class Nothing:
    """In the place of a class of which there must be no object."""

    def __init__(self, *args, **kwargs):
        _refused()


def loaded(forbidden: tuple[str, ...]) -> None:
    """Load what an answer may not call: before the forks, where it takes its time once. Not what is slow to import,
    pictures and PyTorch's own pipelines: what has not been loaded, `outside` keeps out."""
    for name in forbidden:
        if under(name, OURS) and not under(name, (PRESENTS,)):
            importlib.import_module(name)


def library(forbidden: tuple[str, ...]) -> None:
    """Every function and method of the modules named (their submodules too), and of torch's collectives, raises
    Refused from now on."""
    forbidden = (*forbidden, _COLLECTIVES)
    loaded(forbidden)
    # after a fork, what is not touched is free
    names = [name for name in list(sys.modules) if under(name, forbidden)]
    for module in [m for m in map(sys.modules.get, names) if isinstance(m, ModuleType)]:
        for value in list(vars(module).values()):
            # isinstance would ask the object itself, which may be one that warns
            kind = type(value)
            if issubclass(kind, FunctionType | type) and under(value.__module__, forbidden):
                for part in list(vars(value).values()) if issubclass(kind, type) else [value]:
                    _empty(part, forbidden)
    for module in [sys.modules[name] for name in list(sys.modules) if name.startswith(_STORES)]:
        for store in [name for name in vars(module) if name.endswith("Store")]:
            setattr(module, store, Nothing)
    # reads a file without an audit event
    torch.from_file = torch.UntypedStorage.from_file = _refused


def under(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of the packages, or in one of them."""
    return any(name == p or name.startswith(p + ".") for p in packages)


def _empty(part, forbidden: tuple[str, ...]) -> None:
    """Of a function, a method or a property: in whatever it is wrapped, if it was written in one of these modules."""
    if isinstance(part, property):
        for function in (part.fget, part.fset, part.fdel):
            _empty(function, forbidden)
        return
    try:
        function = inspect.unwrap(getattr(part, "__func__", part))
    except ValueError:
        return
    if not isinstance(function, FunctionType) or not under(function.__module__ or "", forbidden):
        return
    # torch itself asks is_initialized, is_available
    if not function.__name__.startswith("is_"):
        function.__code__ = _instead_of(function.__code__)


def _instead_of(code: CodeType) -> CodeType:
    """The code of `_refused`, with as many free names as the closure of a function has."""
    return _refused.__code__.replace(co_freevars=code.co_freevars)


def emptied(code: CodeType) -> CodeType:
    """A module's code, or a class's, of which no function can be called: each raises Refused. The others are not in it."""
    consts = []
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if not const.co_flags & inspect.CO_NEWLOCALS:
                const = emptied(const)  # of a class
            elif const.co_name == "<lambda>" or not const.co_name.startswith("<"):
                const = _instead_of(const)
        consts.append(const)
    return code.replace(co_consts=tuple(consts))


def others() -> None:
    """Other processes of this user's cannot look into this one, nor into its forks, from now on."""
    PR_SET_DUMPABLE = 4  # prctl(2)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def graders() -> None:
    """The graders' modules can be imported no more: an answer that changes them changes what is run and reported."""
    for name in [name for name in sys.modules if under(name, (__package__,)) and name != __name__]:
        del sys.modules[name]


def outside(forbidden: tuple[str, ...] = ()) -> None:
    """Refuse files, sockets, processes and the inspection of other objects, from now on; among the files those of
    `forbidden` modules that have not been loaded."""
    _ = ctypes.pythonapi.PyThreadState_SetAsyncExc  # a World looks it up when it ends a rank
    sys.dont_write_bytecode = True
    for name in METERS:
        sys.modules.pop(name, None)
    sys.addaudithook(_hook([name for name in forbidden if name not in sys.modules]))


def _hook(absent: list[str]):
    """A closure: nothing that a module holds can change what it does."""
    beginnings, exactly = _BEGINNINGS, frozenset(_EXACTLY)
    installed = tuple(
        os.path.realpath(p) + os.sep for p in sysconfig.get_paths().values() if "python" in p
    )
    package, written = os.path.realpath(PACKAGE) + os.sep, WRITTEN
    kept = tuple(package + part + os.sep for part in FOLDERS)
    kept += (package + "parallelize.py", os.path.realpath(GRADERS) + os.sep)
    site = os.path.dirname(os.path.dirname(os.path.realpath(torch.__file__)))
    kept += tuple(os.path.join(site, *name.split(".")) for name in absent)
    refused = Refused
    real = os.path.realpath
    fsdecode = os.fsdecode
    string = (str, bytes)
    librarys, meters = LIBRARYS, METERS

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, mode, flags = args
            name = real(fsdecode(path)) if isinstance(path, string) else ""
            reads = not (mode and set(mode) & set("wax+")) and not (flags or 0) & 3
            if reads and name.startswith(kept):  # an import of what was not loaded yet, too
                raise refused(librarys)
            if name == "/dev/null" or reads and name.startswith((*installed, package)):
                return
            raise refused(f"an answer reads and writes no files ({os.path.basename(name) or path})")
        if event == "code.__new__" and args[1].startswith(written):
            # a copy of the library's code, pickled by value, has come with the answer
            raise refused(librarys)
        if event == "import" and args[0] in meters:
            raise refused(f"an answer does not set the meters ({args[0]})")
        if event in exactly or event.startswith(beginnings):
            raise refused(
                f"an answer talks to other ranks with its Comm, and to nothing else ({event})"
            )

    return hook
