"""A server that has torch loaded and forks a supervisor for each `launch`: `python -m` this file, FD.

Forking a process that has never used a thread is safe and takes milliseconds; importing torch in each
rank takes seconds, and forking the notebook hangs once it has used OpenMP. The notebook sends one end of
a socket pair through the Unix socket FD, and a line with the names of the modules that it has loaded, so
that ranks need not; the supervisor answers on the pair. The server ends when the notebook does, each
supervisor when its launch does or when the notebook is gone: nobody is left running.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback


def serve(fd: int) -> None:
    """For every message, the names of modules: load those; and fork a supervisor for the socket that comes with it."""
    _load(["minidist.comm.processes.supervisor", "torch._dynamo"])  # the latter by the first optimizer, 0.9 s
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the system
    listener = socket.socket(fileno=fd)
    while True:
        message, fds, _, _ = socket.recv_fds(listener, 1 << 16, 16)
        while message and not message.endswith(b"\n"):
            message += listener.recv(1 << 16) or b"\n"
        if not message:
            break
        _load(message.decode().split())
        for end in fds:
            if os.fork() == 0:
                _supervise(listener, end)
            os.close(end)
    os._exit(0)


def _load(modules: list[str]) -> None:
    """Those that are not there yet. Whoever needs one that cannot be loaded will be told."""
    missing = [name for name in modules if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if missing:
        gc.collect()
        gc.freeze()


def _supervise(listener: socket.socket, end: int) -> None:
    """In the forked process: see to one launch."""
    from .supervisor import supervise

    status = 1
    try:
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervise(end)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
