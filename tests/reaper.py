"""Nothing that the tests start outlives them, however they end.

Kernels, servers, browsers and ranks run in sessions of their own: when pytest is killed, no signal reaches them all.
What they share is their environment. So pytest writes its mark there, and a process beside it waits for its end, then
kills whoever bears the mark. A worker of xdist adds a mark of its own to that.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

MARK = "MINIDIST_TESTS"
SECONDS = 60  # after which one that cannot be killed is left


def pytest_configure():
    """In each process of pytest."""
    outer = os.environ.get(MARK, "/")
    os.environ[MARK] = f"{outer}{os.getpid()}/"
    environment = dict(os.environ)
    mark = environment.pop(MARK)
    subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), mark],
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def reap(parent: int, mark: str) -> None:
    """Wait for the end of `parent`, then kill all that bear the mark, until two looks find none: one may be forking."""
    while os.getppid() == parent:
        time.sleep(0.2)
    end, clean = time.monotonic() + SECONDS, 0
    while clean < 2 and time.monotonic() < end:
        found = marked(mark)
        clean = 0 if found else clean + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """The living processes that have inherited the mark, or one made from it."""
    import psutil  # here: it need not be in memory while nothing has ended

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if (
                process.environ().get(MARK, "").startswith(mark)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
    return found


if __name__ == "__main__":
    reap(int(sys.argv[1]), sys.argv[2])
