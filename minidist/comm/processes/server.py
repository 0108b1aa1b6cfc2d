"""A server that has torch loaded and forks a supervisor for each `launch`: `python -m` this file, FD.

Forking a process that has never used a thread is safe and takes milliseconds; importing torch in each
rank takes seconds, and forking the notebook hangs once it has used OpenMP. The notebook sends one end of
a socket pair through the Unix socket FD; the supervisor answers on it. The server ends when the notebook
does, each supervisor when its launch does or when the notebook is gone: nobody is left running.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import traceback


def serve(fd: int, modules: list[str]) -> None:
    """Fork a supervisor for every socket that comes. `modules`: what else to have loaded."""
    import torch._dynamo  # noqa: F401  the first optimizer imports it, 0.9 s

    import minidist.comm.processes.supervisor as supervisor

    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the system
    listener = socket.socket(fileno=fd)
    while True:
        message, fds, _, _ = socket.recv_fds(listener, 1, 1)
        if not message:
            break
        if os.fork() == 0:
            status = 1
            try:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                supervisor.supervise(fds[0])
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(fds[0])
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
