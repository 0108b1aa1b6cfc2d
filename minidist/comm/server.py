"""A server that has torch loaded and forks a supervisor for each `launch`: `python -m` this file, FD.

Forking a process that has never used a thread is safe and takes milliseconds; importing torch in each
rank takes seconds, and forking the notebook hangs once it has used OpenMP. The notebook sends one end of
a socket pair through the Unix socket FD, and a line with the names of the modules of minidist that it has
loaded, so that ranks need not load them; other modules can be named in the variable MINIDIST_PRELOAD, with
spaces between. The supervisor answers on the pair. The server ends when the notebook does, each supervisor
when its launch does or when the notebook is gone: nobody is left running.
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
    warm_up()
    _load(["minidist.comm.supervisor", *os.environ.get("MINIDIST_PRELOAD", "").split()])
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


def warm_up() -> None:
    """Do what most ranks begin with, so that they inherit what a first call sets up: 0.9 s of imports by the first
    optimizer, and some milliseconds of all else.

    On one thread, and without a backward pass: PyTorch's engine does not survive a fork."""
    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    repr(nn.functional.mse_loss(layer(torch.ones(2, 4)), torch.ones(2, 4)))
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()


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
