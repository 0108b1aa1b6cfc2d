"""`launch`: the same program on processes of this machine, from a notebook cell.

    results = launch(program, 4, *args)     # program(comm, *args) in 4 processes

The program travels by cloudpickle, so functions and classes defined in a cell work, without an
`if __name__ == "__main__"`. A server with torch loaded is started once (some seconds; `prepare` does it in the
background) and forks the ranks from then on (about 0.1 s). Nothing is left behind, whatever happens: see server.py
and supervisor.py.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import linecache
import math
import mmap
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from ..arguments import flags, number
from .base import PeerLost, RankMissing
from .program import (
    PACKAGES,
    check_seed,
    check_timeout,
    dumps_program,
    located,
    named,
    never_received,
    outside,
    refuse_changed,
    refuse_shared,
    whole,
)
from .trace import Results, Trace
from .world import check_runner


def launch(
    program: Callable,
    n: int,
    *args,
    timeout: float = 30,
    checked: bool = True,
    seed: int = 0,
    on_failure: str = "end",
    transport: str = "shm",
    rate: float | None = None,
    **kwargs,
) -> Results:
    """Run `program(comm, *args, **kwargs)` in `n` processes; returns their results, with `.trace` and `.time`.

    timeout: seconds for which a rank may wait without progress (computing may take longer).
    checked: compare the shape, dtype and label of every message.  seed: seeds each rank's random numbers.
    on_failure: when a rank fails, "end" the others, or "continue" (the failed rank's result is its exception).
    transport: "shm" (ring buffers in shared memory) or "gloo" (torch.distributed's sockets).
    rate: slows the links down for real, over "shm" only: a rank sends at most this many bytes per second, even while it
    computes.
    The ranks' printed output appears in rank order.
    Raises the first failing rank's exception, with the lines of its own process; PeerLost if its process died;
    RankMissing, which says which rank is missing and where it is instead; Deadlock when a message is never received.
    Raises ValueError if the program uses one of the notebook's modules, optimizers or tensors that require grad without
    getting it as an argument, or changes one of the notebook's values that it did not get as an argument; for an
    unknown transport; and for a rate over "gloo", or a rate at which fewer than two pages of memory pass within the
    timeout. TypeError if the program is not a function.

    >>> import os
    >>> import torch
    >>> from minidist import launch
    >>> from minidist.collectives import all_reduce_
    >>> def program(comm, x):
    ...     return all_reduce_(comm, x * (comm.rank + 1)).tolist(), os.getpid()
    >>> results = launch(program, 2, torch.tensor([1.0, 10.0]))
    >>> [values for values, _ in results]
    [[3.0, 30.0], [3.0, 30.0]]
    >>> len({process for _, process in results}), results.trace.bytes_sent(rank=0)
    (2, 8)
    """
    n = check_runner(n, on_failure)
    if transport not in ("shm", "gloo"):
        raise ValueError(f'transport is "shm" or "gloo", not {transport!r}')
    check_timeout(timeout)
    seed = check_seed(seed)
    flags(checked=checked)
    _check_rate(rate, transport, timeout)
    program, args, kwargs = whole(program, args, kwargs)
    refuse_shared(program, *args, *kwargs.values())
    cells = {
        name: lines
        for name, lines in linecache.cache.items()
        if len(lines) == 4 and lines[1] is None
    }
    request = {
        "n": n,
        "payload": dumps_program(program, args, kwargs),
        "timeout": timeout,
        "checked": checked,
        "seed": seed,
        "on_failure": on_failure,
        "transport": transport,
        "path": sys.path,
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "cells": cells,
        "environ": dict(os.environ),
        "dtype": torch.get_default_dtype(),
        "rate": rate,
    }
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            _tell([theirs.fileno()])
        try:
            outcomes, unread = _follow(ours, pickle.dumps(request), n)
        except BaseException:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_WR)  # the supervisor ends the ranks, then closes its end
                ours.settimeout(3)  # if the server is still starting, it will see that nobody waits
                while ours.recv(1 << 16):
                    pass
            raise
    return _results(outcomes, unread, n, on_failure)


def _check_rate(rate: float | None, transport: str, timeout: float) -> None:
    """Bytes per second that can be kept: the least that moves is a page, and each wait sees one within its timeout."""
    if rate is None:
        return
    number(rate, "a rate is a number of bytes per second, more than 0", math.ulp(0))
    if transport != "shm":
        raise ValueError(
            f'a rate of {rate:g} bytes/s is kept by transport="shm" only, not by {transport!r}'
        )
    seconds = 2 * mmap.PAGESIZE / rate
    if seconds > timeout:
        raise ValueError(
            f"at {rate:g} bytes/s {2 * mmap.PAGESIZE} bytes take {seconds:g} s: no progress "
            f"within the timeout of {timeout:g} s"
        )


def prepare() -> None:
    """In a notebook, start the server, if there is none yet, and have it load what is loaded here, while the notebook
    goes on. Elsewhere nothing: who imports a module there wants no process.

    >>> from minidist.comm.launch import prepare
    >>> prepare()  # not in a notebook: nothing is started
    """
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        _tell([])


def _tell(fds: list[int]) -> None:
    """Give the server the names of what it should have loaded, and one end of a socket pair for a launch; a new server
    if it has died."""
    ours = tuple(f"{os.path.basename(os.path.dirname(folder))}." for folder in PACKAGES)
    loaded = [n for n in sys.modules if n.startswith(ours) and not n.endswith("__main__")]
    message = " ".join(sorted(loaded)).encode() + b"\n"
    try:
        socket.send_fds(_server(os.getpid())[0], [message], fds)
    except ConnectionError:
        _server.cache_clear()
        socket.send_fds(_server(os.getpid())[0], [message], fds)


@functools.cache
def _server(pid: int) -> tuple[socket.socket, subprocess.Popen]:
    """The connection to this process's server, and the server, started at the first call; it ends with this process."""
    ours, theirs = socket.socketpair()
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    # In huge pages the server is forked faster: there are fewer of them to map. Without caches of threads (tcache) a
    # small piece beside a large freed block joins it again, and the next tensor of that size fits there.
    tunables = "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0"
    environ = {"GLIBC_TUNABLES": tunables} | os.environ | {"PYTHONPATH": path}
    with theirs:
        command = [sys.executable, "-P", "-m", "minidist.comm.server", str(theirs.fileno())]
        server = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environ,
        )
    return ours, server


def _follow(ours: socket.socket, request: bytes, n: int) -> tuple:
    """Send the request, show what ranks print (rank 0 at once, the others after it), return the end."""
    printed = [bytearray() for _ in range(n)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    connection = Connection(os.dup(ours.fileno()))
    try:
        connection.send_bytes(request)
        while True:
            kind, *rest = connection.recv()
            if kind == "end":
                break
            if kind == "failed":
                raise RuntimeError(
                    f"launch could not start {n} ranks, or not see them through: {rest[0]}. "
                    "`python -m minidist.comm --doctor` looks at what this machine has"
                )
            rank, data = rest
            if rank == 0:
                print(decoder.decode(data), end="", flush=True)
            else:
                printed[rank] += data
    except EOFError:
        raise RuntimeError(
            "the supervisor of the ranks died; its message is on the server's standard error"
        ) from None
    finally:
        connection.close()
        print(b"".join(printed).decode(errors="replace"), end="", flush=True)
    return tuple(rest)


class RankTraceback(Exception):
    """The lines that a rank's exception passed through."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def _results(outcomes: list, unread: list, n: int, on_failure: str) -> Results:
    errors = {r: _error(o, r, n) for r, o in enumerate(outcomes) if o is not None and not o["ok"]}
    if errors and on_failure == "end":
        raise errors[min(errors, key=lambda r: _blame(outcomes[r]))]
    if unread and not errors:
        raise never_received(unread)
    if not errors:
        refuse_changed(sorted({words for outcome in outcomes for words in outcome["changed"]}))
    trace = Trace(n)
    for outcome in outcomes:
        trace.merge(outcome.get("trace") or Trace(n))
    spans = [o["span"] for o in outcomes if o["ok"]]
    start = min((s for s, _ in spans), default=0.0)
    trace.since(start)
    values = [
        errors[r] if r in errors else pickle.loads(o["value"]) for r, o in enumerate(outcomes)
    ]
    return Results(values, trace, max((e for _, e in spans), default=start) - start)


def _blame(outcome: dict) -> tuple[int, int]:
    """The cause before its victims: first those that waited in vain, then those whose connection was closed; then the
    order in which the supervisor heard of them."""
    return outcome.get("missing", 0) + 2 * outcome.get("lost", 0), outcome["order"]


def _stopped(pids: dict[int, int], n: int) -> RankMissing:
    """What to say of ranks whose processes are stopped, whoever noticed it."""
    ranks = " and ".join(f"rank {rank}" for rank in pids)
    are, processes = ("is", "its process is") if len(pids) == 1 else ("are", "their processes are")
    error = RankMissing(
        f"{ranks} {are} missing: {processes} stopped (by SIGSTOP, Ctrl-Z or a debugger); "
        f"`kill -CONT {' '.join(map(str, pids.values()))}` lets it go on"
    )
    error.rank = min(pids)  # type: ignore[attr-defined]  # any exception takes it
    error.add_note(f"the processes of the other ranks of {n} were waiting")
    return error


def _error(outcome: dict, rank: int, n: int) -> BaseException:
    """A failed rank's exception, as if it had been raised here."""
    if "died" in outcome:
        return named(PeerLost(rank, outcome["died"]), rank, n)
    if outcome.get("stopped"):
        return _stopped(outcome["stopped"], n)
    error = pickle.loads(outcome["error"])
    if outcome["missing"]:
        rows = [f"  rank {r} is at {place}" for r, place in sorted(outcome["where"].items())]
        error = RankMissing("\n".join([str(error), *rows]))
    frames = [frame for frame in outcome["frames"] if outside([frame[:2]])] or outcome["frames"]
    rows = [f"  {located(filename, line)}    (in {name})" for filename, line, name in frames]
    error = named(error, rank, n)
    error.__cause__ = RankTraceback(
        "\n".join([f"Traceback on rank {rank} (most recent call last):", *rows])
    )
    return error
