"""Runs the cells of a notebook in a process of its own, and packs the answers: `python -m minicheck.cells FD`.

It hears a JSON list of cells on its standard input, each with its `source` and the names that are `wanted`
after it, and writes a line of JSON to the file descriptor FD for each cell: the packed answers, unopened,
and the error if there was one. The cells are a student's: nothing that this process says is believed,
beyond that these are the answers. A cell that fails does not stop the next, as when nbgrader runs them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import linecache
import os
import signal
import sys

from .exam import pack
from .wrong import Wrong

CELL_SECONDS = 30


def main(fd: int) -> None:
    cells = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    names = {
        "__name__": "__main__",
        "display": lambda *args, **kwargs: None,
        "get_ipython": lambda: None,
    }
    signal.signal(signal.SIGALRM, _too_long)
    with os.fdopen(fd, "w") as out:
        for number, cell in enumerate(cells):
            error = _run(cell["source"], f"<ipython cell {number}>", names)
            print(
                json.dumps(
                    {
                        "error": error,
                        "answers": {name: _packed(name, names) for name in cell["wanted"]},
                    }
                ),
                file=out,
                flush=True,
            )
    os._exit(0)


def _too_long(*_):
    raise TimeoutError(f"the cell takes longer than {CELL_SECONDS} s")


def _run(source: str, where: str, names: dict) -> str | None:
    """Run one cell; magics and shell lines are left out. Returns its error in a line, None without."""
    source = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
    )
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    signal.alarm(CELL_SECONDS)
    try:
        exec(compile(source, where, "exec"), names)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return None


def _packed(name: str, names: dict) -> dict | None:
    """An answer as JSON can carry it; None if there is no such name."""
    if name not in names:
        return None
    try:
        packed = pack(name, names[name])
    except Wrong as error:
        return {"error": str(error)}
    return {"data": base64.b64encode(packed.data).decode(), "sources": packed.sources}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]))
