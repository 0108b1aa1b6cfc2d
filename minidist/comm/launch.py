"""`launch`: the same program on processes of this machine, from a notebook cell.

    results = launch(program, 4, *args)     # program(comm, *args) in 4 processes

The program travels by cloudpickle, so functions and classes defined in a cell work, without an
`if __name__ == "__main__"`. A server with torch loaded is started once (about 2 s) and forks the ranks
from then on (about 0.1 s). Nothing is left behind, whatever happens: see server.py and supervisor.py.
"""

from __future__ import annotations

import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import cloudpickle
import torch

from .base import Deadlock, PeerLost, RankMissing
from .program import located, named, outside, refuse_shared
from .trace import Results, Trace
from .world import check_runner


def launch(program: Callable, n: int, *args, timeout: float = 30, checked: bool = True, seed: int = 0,
           on_failure: str = "end", transport: str = "shm", **kwargs) -> Results:  # fmt: skip
    """Run `program(comm, *args, **kwargs)` in `n` processes; returns their results, with `.trace` and `.time`.

    timeout: seconds that a wait may take without progress (computing may take longer).
    checked: compare shape, dtype and label of every message.  seed: of each rank's random numbers.
    on_failure: "end" the others when a rank fails, or "continue" (the failed one's result is its exception).
    transport: "shm" (ring buffers in shared memory) or "gloo" (torch.distributed's sockets).
    Raises the first failing rank's exception, with its own lines; PeerLost if its process died;
    RankMissing, saying who is missing and where it is instead. What ranks print comes in rank order.
    """
    check_runner(n, on_failure)
    if transport not in ("shm", "gloo"):
        raise ValueError(f'transport is "shm" or "gloo", not {transport!r}')
    if not timeout > 0:
        raise ValueError(f"a timeout is more than 0 seconds, not {timeout!r}")
    refuse_shared(program)
    request = {"n": n, "payload": cloudpickle.dumps((program, args, kwargs)), "timeout": timeout, "checked": checked,
               "seed": seed, "on_failure": on_failure, "transport": transport, "path": sys.path, "cwd": os.getcwd(),
               "environ": dict(os.environ), "dtype": torch.get_default_dtype()}  # fmt: skip
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(_server(os.getpid()), [b"l"], [theirs.fileno()])
        try:
            outcomes, where, unread = _follow(ours, pickle.dumps(request), n)
        except BaseException:
            ours.shutdown(socket.SHUT_WR)  # the supervisor ends the ranks, then closes its end
            while ours.recv(1 << 16):
                pass
            raise
    return _results(outcomes, where, unread, n, on_failure, timeout)


@functools.cache
def _server(pid: int) -> socket.socket:
    """The connection to this process's server, started at the first call; it ends with this process."""
    ours, theirs = socket.socketpair()
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    loaded = sorted(name for name in sys.modules if name.startswith("minidist.") and not name.endswith("__main__"))
    with theirs:
        command = [sys.executable, "-m", "minidist.comm.server", str(theirs.fileno()), *loaded]
        subprocess.Popen(command, pass_fds=[theirs.fileno()],
                         stdin=subprocess.DEVNULL, start_new_session=True, env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    return ours


def _follow(ours: socket.socket, request: bytes, n: int) -> tuple:
    """Send the request, show what ranks print (rank 0 at once, the others after it), return the end."""
    printed = [b""] * n
    connection = Connection(os.dup(ours.fileno()))
    try:
        connection.send_bytes(request)
        while True:
            kind, *rest = connection.recv()
            if kind == "end":
                break
            rank, data = rest
            if rank == 0:
                print(data.decode(errors="replace"), end="", flush=True)
            else:
                printed[rank] += data
    except EOFError:
        raise RuntimeError("the supervisor of the ranks died; its message is on the server's standard error") from None
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


def _results(outcomes: list, where: dict, unread: list, n: int, on_failure: str, timeout: float) -> Results:
    errors = {r: _error(o, r, n, where) for r, o in enumerate(outcomes) if o is not None and not o["ok"]}
    if errors and on_failure == "end":
        raise min(errors.values(), key=lambda e: isinstance(e, PeerLost))  # the cause before its victims
    if unread and not errors:
        pairs = ", ".join(f"rank {src} → rank {dst}" for src, dst in unread)
        raise Deadlock(f"the programs returned, but a message was never received: {pairs}")
    trace = Trace(n)
    for outcome in outcomes:
        trace.merge(outcome.get("trace") or Trace(n))
    spans = [o["span"] for o in outcomes if o["ok"]]
    start = min((s for s, _ in spans), default=0.0)
    trace.sort(start)
    values = [errors[r] if r in errors else pickle.loads(o["value"]) for r, o in enumerate(outcomes)]
    return Results(values, trace, max((e for _, e in spans), default=start) - start)


def _error(outcome: dict, rank: int, n: int, where: dict) -> BaseException:
    """A failed rank's exception, as if it had been raised here."""
    if "died" in outcome:
        return named(PeerLost(rank, outcome["died"]), rank, n)
    error = pickle.loads(outcome["error"])
    if outcome["missing"]:
        rows = [f"  rank {r} is at {place}" for r, place in where.items() if r != rank]
        error = RankMissing("\n".join([str(error), *rows]))
    lines = [f"Traceback on rank {rank} (most recent call last):"]
    for filename, line, name in outcome["frames"]:
        if outside([(filename, line)]) == (filename, line):
            lines.append(f"  {located(filename, line)}    (in {name})")
    error.__cause__ = RankTraceback("\n".join(lines))
    return named(error, rank, n)
