"""What is left behind: processes, files, descriptors."""

import contextlib
import os
import tempfile
import time

import psutil

from minidist.comm import launch as _  # noqa: F401  minidist.comm.launch is the function; the module is beside it


def until(condition, seconds=5.0):
    """Whether `condition()` comes true within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def lives(pid):
    """Whether this process runs, and is no zombie. It may end while it is looked at."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def left():
    """The processes under this one, but for the server itself and what pytest has."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
            if "minidist.comm.server" in " ".join(child.cmdline()):
                found += [p for p in child.children(recursive=True) if lives(p.pid)]
    return found


def files():
    """What lies in the folders where runs could leave something."""
    folders = [f for f in (tempfile.gettempdir(), "/dev/shm") if os.path.isdir(f)]
    names = {os.path.join(f, name) for f in folders for name in os.listdir(f)}
    return {n for n in names if "minidist" in n or "torch" in n or "/sem." in n or "mp-" in n}


def descriptors():
    return (
        len(os.listdir("/proc/self/fd"))
        if os.path.isdir("/proc/self/fd")
        else psutil.Process().num_fds()
    )
