"""The process in which a notebook's cells run, one after the other, and which packs the answers.

It hears a list of cells, each `{"source", "wanted"}` with the names that are wanted after it, and says for each cell what
came of it: `{"answers", "error", "odd"}`, the answers packed and unopened. The cells are a student's: nothing that this
process says is believed, beyond that these are the answers. A cell that fails does not stop the next, as when nbgrader
runs them.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import signal
import sys
from types import ModuleType

import torch

from . import refuse
from .exam import Wrong, decode, encode, pack
from .pipe import Pipe

HOUR = 3600.0  # who asks has the watch
READY = "ready"


def serve(
    reads: int, writes: int, finder=None, forbidden: tuple[str, ...] = (), seconds: int = 30
) -> None:
    """Run what comes in through `reads`, and report through `writes`. Never returns.

    finder: in a sandbox, what imports the course. There, the modules that answers may not call are emptied and
    forgotten, and `minicheck` examines nothing.  seconds: that one cell may take.
    """
    line = Pipe(reads, writes)
    cells = decode(line.receive(HOUR))
    if finder is not None:
        _empty(finder, forbidden)
    line.send(encode(READY), HOUR)
    odd: list[str] = []
    sys.addaudithook(lambda event, args: odd.append(event) if event in NETWORK else None)
    names = {
        "__name__": "__main__",
        "display": lambda *args, **kwargs: None,
        "get_ipython": lambda: None,
    }
    signal.signal(signal.SIGALRM, lambda *_: _too_long(seconds))
    for number, cell in enumerate(cells):
        error = _run_cell(cell["source"], f"<ipython cell {number}>", names, seconds)
        answers = {name: _packed(name, names, seconds) for name in cell["wanted"]}
        tried = ["tried the network"] if odd else []
        line.send(encode({"answers": answers, "error": error, "odd": tried}), HOUR)
        odd.clear()
    os._exit(0)


NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind")


def _empty(finder, forbidden: tuple[str, ...]) -> None:
    forbidden = tuple(name for name in forbidden if not refuse.under(name, ("minicheck",)))
    for name in [name for name in finder.modules if refuse.under(name, forbidden)]:
        with contextlib.suppress(ImportError):  # it needs what is not installed
            importlib.import_module(name)  # a cell may import it for something else
    refuse.library(forbidden)
    refuse.graders()
    finder.forget((*forbidden, "minicheck"))
    for name in forbidden:  # also what PyTorch has and nobody has loaded
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # as Python has what cannot be imported
    sys.modules["minicheck"] = Unasked("minicheck")


class Unasked(ModuleType):
    """In the place of `minicheck`: a student's own cells may ask it, and hear nothing. What `limit` gives is a context,
    which does nothing: here each cell has its limit."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "limit":
            return lambda seconds: contextlib.nullcontext()
        return lambda *answers, **more: None


def _too_long(seconds: int) -> None:
    raise TimeoutError(f"the cell takes longer than {seconds} s")


def _run_cell(source: str, where: str, names: dict, seconds: int) -> str | None:
    """Run one cell; magics and shell lines are left out. Returns its error in a line, None without."""
    source = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
    )
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    signal.alarm(seconds)
    try:
        exec(compile(source, where, "exec"), names)
    except BaseException as error:
        return described(error)
    finally:
        signal.alarm(0)
    return None


def described(error: BaseException) -> str:
    """An error in a line, whatever its own words do."""
    try:
        return f"{type(error).__name__}: {error}"[:2000]
    except BaseException:
        return type(error).__name__


def _packed(name: str, names: dict, seconds: int) -> dict | None:
    """An answer as `Packed` has it; None if there is no such name."""
    if name not in names:
        return None
    signal.alarm(seconds)
    try:
        packed = pack(name, names[name])
    except Wrong as error:
        return {"error": str(error)}
    except BaseException as error:
        return {"error": f"{name}: the answer cannot be sent: {described(error)}"}
    finally:
        signal.alarm(0)
    data, number = (
        torch.frombuffer(bytearray(x), dtype=torch.uint8) for x in (packed.data, packed.number)
    )
    return {"data": data, "sources": packed.sources, "number": number}


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
