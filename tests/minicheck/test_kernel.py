"""What the kernel grants the process of an answer: to compute, and to read files."""

import fcntl
import os
import platform
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

from minicheck import kernel

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in kernel.MACHINES,
    reason="no filters of system calls",
)


def outcome(act, *given, **more):
    try:
        return act(*given, **more) is not NotImplemented
    except (OSError, RuntimeError, ValueError):
        return False


def in_a_filtered_fork(acts):
    """Whether each act succeeds in a process that keeps to itself."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.keep_to_itself(True)
        os.write(tell, bytes(outcome(*act) for act in acts))
        os._exit(0)
    os.close(tell)
    said = os.read(told, 100)
    os.close(told)
    os.waitpid(pid, 0)
    return [bool(byte) for byte in said]


def threads():
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    thread.join()


def lock(path):
    with open(path) as file:
        fcntl.lockf(file, fcntl.LOCK_SH)


def shares(path):
    torch._C._VariableFunctions.from_file(path, shared=True, size=8, dtype=torch.uint8)


def test_what_is_granted():
    reads = (Path(__file__).read_text,)
    computes = (lambda: torch.ones(300, 300) @ torch.ones(300, 300),)
    scheduled = (lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),)
    limits = (resource.getrlimit, resource.RLIMIT_CORE)
    acts = [reads, computes, scheduled, limits, (threads,), (os.listdir, "/"), (os.dup, 0)]
    assert in_a_filtered_fork(acts) == [True] * len(acts)


def test_what_is_refused(tmp_path):
    """All that another process could see, or that starts one."""
    path = str(tmp_path / "file")
    Path(path).write_bytes(bytes(8))
    acts = [
        (open, path, "w"),
        (open, path, "r+"),
        (os.open, f"{path}1", os.O_CREAT | os.O_RDONLY),
        (os.mknod, f"{path}2"),
        (os.mkfifo, f"{path}3"),
        (os.mkdir, f"{path}4"),
        (os.symlink, path, f"{path}5"),
        (os.rename, path, f"{path}6"),
        (os.unlink, path),
        (os.utime, path, (1, 1)),
        (os.chmod, path, 0o600),
        (shares, path),
        (torch._C.PyTorchFileWriter, f"{path}7"),
        (lock, path),
        (os.fork,),
        (os.execv, "/bin/true", ["true"]),
        (os.posix_spawn, "/bin/true", ["true"], {}),
        (os.kill, os.getppid(), 0),
        (os.setpriority, os.PRIO_PROCESS, 0, 19),
        (os.sched_getaffinity, os.getppid()),
        (resource.setrlimit, resource.RLIMIT_CORE, (0, 0)),
        (socket.socket, socket.AF_UNIX),
        (socket.socketpair,),
        (os.memfd_create, "memory"),
    ]
    assert in_a_filtered_fork(acts) == [False] * len(acts)
    assert Path(path).read_bytes() == bytes(8) and os.listdir(tmp_path) == ["file"]


def test_without_the_filter_they_can(tmp_path):
    """The acts above are no mistakes of their own."""
    assert outcome(os.mknod, str(tmp_path / "file")) and outcome(socket.socketpair)
    assert outcome(os.kill, os.getppid(), 0) and outcome(lock, __file__)


def test_threads_where_none_are_granted():
    """Neither by the thread that asked for the filter, nor by one that had been there."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        asked = threading.Event()
        said = []

        def before():
            asked.wait()
            said.append(outcome(threads))

        thread = threading.Thread(target=before)
        thread.start()
        kernel.keep_to_itself(False)
        asked.set()
        thread.join()
        os.write(tell, bytes([outcome(threads), *said]))
        os._exit(0)
    os.close(tell)
    assert list(os.read(told, 100)) == [False, False]
    os.close(told)
    os.waitpid(pid, 0)
