"""What runs in a sandbox reaches nothing, has no more than it may, and leaves nothing behind."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from minicheck import notebook, sandbox
from minicheck.exam import decode
from minicheck.notebook import ENDED, run_cells
from minicheck.sandbox import Limits, Refused, Sandbox
from minicheck.submission import Row
from tests.sandboxed import BWRAP

ROOT = Path(__file__).resolve().parents[2]
TRIES = f"""
import ctypes, errno, importlib, os, resource, socket, sys

def outcome(act, *given):
    try:
        return str(act(*given))
    except BaseException as error:
        return type(error).__name__

def fill(path, megabytes):
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))

def fill_folder(folder):
    for i in range(20):
        fill(f"{{folder}}/{{i}}", 60)

def fork_often():
    pids = []
    try:
        for _ in range(400):
            pid = os.fork()
            if pid == 0:
                import time
                time.sleep(5)
                os._exit(0)
            pids.append(pid)
    finally:
        said.append(len(pids) < 130)
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

def call(*words):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(*words), ctypes.get_errno() == errno.EPERM

said = [
    os.getuid() != 0,
    os.path.exists({str(ROOT / "minicheck" / "guard.py")!r}),
    os.path.exists({str(ROOT / "solutions")!r}),
    os.path.exists("/etc/passwd"),
    sorted(set(os.listdir("/")) - {{"usr", "lib", "lib64", "bin", "etc", "proc", "dev", "tmp", "root", "home", "opt"}})[:9],
    outcome(open, "/usr/lib/written", "w"),
    outcome(open, importlib.import_module("torch").__file__, "a"),
    outcome(socket.socket, socket.AF_INET),
    outcome(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW),
    outcome(socket.getaddrinfo, "example.org", 80),
    outcome(importlib.import_module, "minicheck.oracles.zero"),
    outcome(importlib.import_module("minicheck").all_reduce, 7),
    outcome(resource.setrlimit, resource.RLIMIT_NPROC, (10**6, 10**6)),
    outcome(fill, "/tmp/one", 70),
    outcome(fill_folder, "/tmp"),
    outcome(fill_folder, "/dev/shm"),
    outcome(call, {{"x86_64": 101}}.get(os.uname().machine, 117), 0, 0, 0, 0),
    outcome(os.kill, 1, 0),
]
outcome(fork_often)
"""
NUMBERS = [True, False, False, False]


@pytest.fixture(scope="module")
def made():
    return sandbox.engine()


def told(made, *sources, seconds=5):
    """The value of `said` after each cell, what was odd, and the errors."""
    rows = [Row(source, ["said"], str(number)) for number, source in enumerate(sources)]
    start = partial(made.start, ("minicheck.cells", "serve"), (), seconds)
    found = run_cells(rows, start, seconds, time.monotonic() + 100)
    values = [found.answers[row.grade_id]["said"] for row in rows]
    return [value and decode(value.number) for value in values], found.odd, found.errors


@BWRAP
def test_there_is_python_and_nothing_else(made):
    [said], odd, errors = told(made, TRIES)
    assert errors == [] and odd == ["tried the network"]
    assert said[:4] == NUMBERS
    assert {*said[5:7]} <= {"OSError", "PermissionError"}
    assert said[7:13] == [
        "PermissionError",
        "PermissionError",
        "gaierror",
        "ModuleNotFoundError",
        "None",
        "ValueError",
    ]
    assert said[13:16] == ["OSError"] * 3 and said[16] == "(-1, True)"
    assert said[18] is True


@BWRAP
def test_a_cell_that_ends_everything_costs_itself(made):
    kills = "import os\nsaid = 2\nos.kill(os.getpid(), 9)"
    said, odd, errors = told(made, "said = 1", kills, "said = said + 5")
    assert said == [1, None, 6] and odd == [ENDED] and errors == [ENDED]


@BWRAP
def test_a_cell_that_never_ends(made, monkeypatch):
    monkeypatch.setattr(notebook, "GRACE", 2.0)
    stubborn = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
while True:
    pass
"""
    said, odd, _ = told(made, "said = 1", stubborn, "said = 3", seconds=2)
    assert said == [1, None, 3] and odd == ["the cell takes longer than 2 s"]


@BWRAP
def test_memory_in_all():
    small = Sandbox(Limits(memory=1 << 30))
    greedy = """
import subprocess, sys, threading, time
def start():
    for _ in range(4):
        subprocess.Popen([sys.executable, "-c", "x = b'x' * (500 << 20); input()"], stdin=subprocess.PIPE)
    time.sleep(60)
threading.Thread(target=start, daemon=True).start()
time.sleep(60)
"""
    said, odd, _ = told(small, greedy, "said = 3")
    assert said == [None, 3] and any("GB of memory" in words for words in odd)


@BWRAP
def test_nothing_is_left(made):
    leaves = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(0)
said = 1
"""
    before = set(psutil.pids())
    assert told(made, leaves)[0] == [1]
    left = [pid for pid in psutil.pids() if pid not in before and "inside" in words(pid)]
    assert left == []


def words(pid):
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


USER = ["bwrap", "--unshare-user", "--uid", "65534", "--gid", "65534", "--bind", "/", "/"]
USER += ["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--"]
AS_USER = """
import os
from minicheck.sandbox import engine
from tests.minicheck.test_sandbox import told
assert os.getuid() == 65534
print(told(engine(), "import os; said = [os.getuid(), os.path.exists('/etc/passwd')]"))
"""


@BWRAP
def test_as_an_unprivileged_user():
    """Whoever may not become another user has a namespace of users; this one has no privileges at all."""
    done = subprocess.run(
        [*USER, sys.executable, "-c", AS_USER], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "([[65534, False]], [], [])\n", done.stderr


def test_without_bubblewrap_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(Refused, match=r"bubblewrap is not installed.*--trust-submissions"):
        sandbox.engine()
    with pytest.raises(Refused, match="docker has not been tried"):
        sandbox.engine("docker")
