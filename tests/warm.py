"""`python -m MODULE` without the seconds that it takes to import torch: forked from a process that has imported it.

A notebook needs torch twice, in its kernel and in the server of `launch`: half of the time of testing the notebooks.
A `Warm` forks both. What runs is the same command, with its own environment, folder and files, and nothing of
minidist has been imported. Forking is safe here, since this process has never used a thread (as in comm/server.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys

import psutil

MODULES = ("ipykernel_launcher", "minidist.comm.server")  # that are forked
# Not pyplot: a notebook's way to draw is chosen when it is imported, and asks the notebook.
SLOW = (
    "torch._dynamo",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipywidgets",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib_inline",
)
# file descriptors that come are kept up here until they get the numbers that they should have
ABOVE = 200


class Forked(psutil.Process):
    """What a caller of Popen uses of it."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return None if self.is_running() else 0

    def send_signal(self, signum: int) -> None:
        """Nothing, as with Popen, if it has ended: between a look and a signal it may."""
        with contextlib.suppress(psutil.NoSuchProcess):
            super().send_signal(signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """Forks what is asked of it, and ends with whoever started it. `asks`: the socket of one that runs already."""

    def __init__(self, asks: socket.socket | None = None):
        self.asks = asks
        if asks is None:
            self.asks, theirs = socket.socketpair()
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(theirs.fileno())],
                    stdin=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )

    def popen(self) -> type:
        """A Popen that forks `MODULES`, and starts all else as ever."""
        warm = self

        class Popen(subprocess.Popen):
            def __new__(cls, args, **kwargs):
                flags = args.index("-m") if "-m" in args else 0
                forks = flags and args[0] == sys.executable and args[flags + 1] in MODULES
                return (
                    warm.fork(args[1:flags], args[flags + 1 :], **kwargs)
                    if forks
                    else super().__new__(cls)
                )

        return Popen

    def kernel(self, cmd: list[str], independent=False, **kwargs) -> Forked:
        """In place of jupyter_client's launch_kernel."""
        at = cmd.index("-m")
        # It ends with its parent. JPY_PARENT_PID would come too late: it was read when the kernel's modules were.
        ends = f"--IPKernelApp.parent_handle={self.process.pid}"
        return self.fork(cmd[1:at], [*cmd[at + 1 :], ends], start_new_session=True, **kwargs)

    def fork(
        self,
        flags: list[str],
        argv: list[str],
        pass_fds=(),
        cwd=None,
        env=None,
        start_new_session=False,
        **streams,
    ) -> Forked:
        """A process that runs argv[0] as a module."""
        request = {
            "safe": "-P" in flags,
            "argv": argv,
            "cwd": os.path.abspath(cwd or "."),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
            "targets": [0, 1, 2, *pass_fds, None],
        }
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            null = stack.enter_context(open(os.devnull, "r+b"))
            given = [streams.get(name) for name in ("stdin", "stdout", "stderr")]
            files = [
                i if f is None else null if f == subprocess.DEVNULL else f
                for i, f in enumerate(given)
            ]
            fds = [f if isinstance(f, int) else f.fileno() for f in (*files, *pass_fds, self.asks)]
            with theirs:
                socket.send_fds(self.asks, [b"f"], [theirs.fileno()])
            ours.sendall(pickle.dumps(request).ljust(1 << 16))
            socket.send_fds(ours, [b"f"], fds)
            return Forked(int(ours.recv(20)))


def serve(fd: int) -> None:
    """In the process that forks: have all that is slow, then fork whatever comes."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel sets it
    for name in SLOW:
        __import__(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # as in conftest.py
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is forked is reaped by the system
    listener = socket.socket(fileno=fd)
    while True:
        # whoever started this is gone
        if sys.stdin in select.select([sys.stdin, listener], [], [])[0]:
            return
        _, fds, _, _ = socket.recv_fds(listener, 1, 1)
        if not fds:  # it has closed its end
            return
        with socket.socket(fileno=fds[0]) as one:
            request = pickle.loads(one.recv(1 << 16, socket.MSG_WAITALL))
            _, fds, _, _ = socket.recv_fds(one, 1, 16)
            if os.fork() == 0:
                listener.close()
                if request["session"]:
                    os.setsid()
                # it has its own group now, that may be signalled
                one.sendall(str(os.getpid()).encode())
                break
        for each in fds:
            os.close(each)
    become(request, fds)


def become(request: dict, fds: list[int]) -> None:
    """In the forked process: run the command that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(high[:-1], request["targets"]):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [
        *([] if request["safe"] else [request["cwd"]]),
        *[path for path in found if path],
    ]
    sys.argv = request["argv"]
    subprocess.Popen = Warm(socket.socket(fileno=high[-1])).popen()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def pytest_sessionstart(session):
    """`pytest -p tests.warm --nbval`: each process that runs notebooks has kernels that are forked."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        from jupyter_client.provisioning import local_provisioner

        local_provisioner.launch_kernel = Warm().kernel


if __name__ == "__main__":
    serve(int(sys.argv[1]))
