"""Where what one does not trust runs: a sandbox that bubblewrap makes, in which there is Python and nothing else.

    teacher's process ── two pipes ──▶ bwrap ──▶ Python: its first message is the code of the course (inside.py)

In there: no network; another user, without capabilities; Python, its packages and the system's libraries, read-only; a
work folder in memory; no file of the course, no gradebook, no other submission. The kernel refuses system calls that
lead to other processes and other namespaces (kernel.py). Limits on time, memory, processes, sizes of files and output.
When it is closed, everything in it ends.

Source: bubblewrap's manual, https://github.com/containers/bubblewrap; namespaces(7).
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import platform
import resource
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple, Self

from . import refuse
from .kernel import MACHINES, sandbox_filter
from .pipe import Pipe

# ------------------------------------------------------------
# The sandbox, and a process in it.


class Refused(ValueError):
    """No sandbox can be made; the message says why, and what to do."""


class Limits(NamedTuple):
    """Of one sandbox: bytes of memory in all and of its work folder, processes and threads, bytes of one file, seconds."""

    memory: int = 4 << 30
    work: int = 256 << 20
    processes: int = 128
    file: int = 64 << 20
    seconds: int = 600

    def of_a_process(self) -> dict[int, int]:
        return {
            resource.RLIMIT_CPU: self.seconds,
            resource.RLIMIT_DATA: self.memory,
            resource.RLIMIT_NPROC: self.processes,
            resource.RLIMIT_FSIZE: self.file,
            resource.RLIMIT_NOFILE: 256,
            resource.RLIMIT_CORE: 0,
        }


WATCH = 0.25  # seconds between two looks at memory and processes
ENDING = 30.0  # seconds that the kernel may take to end some gigabytes and a hundred processes
HERE = Path(__file__).resolve().parent
PACKAGES = (HERE.parent / "minidist", HERE)
ORACLES = ("minicheck.oracles",)
EXAMINATIONS = ("minicheck.lessons", *ORACLES)


def engine(name: str = "bwrap", limits: Limits | None = None) -> Sandbox:
    """The sandbox of this name. Raises Refused, in a sentence, where it cannot be made."""
    if name != "bwrap":
        raise Refused(
            f"{name} has not been tried with this course: use bubblewrap (--engine bwrap)"
        )
    if shutil.which("bwrap") is None:
        raise Refused(
            "bubblewrap is not installed, and submissions are not run without a sandbox: install it (Debian's and "
            "Fedora's package is called bubblewrap), or say --trust-submissions"
        )
    if platform.machine() not in MACHINES:
        raise Refused(f"on {platform.machine()} the numbers of system calls are not known here")
    sandbox = Sandbox(limits or Limits())
    sandbox.try_out()
    return sandbox


def choose(name: str | None, seconds: float | None, trust: bool = False) -> Sandbox | None:
    """The sandbox of this name for submissions that may take so many seconds each; None: they are trusted."""
    if trust:
        return None
    limits = Limits() if seconds is None else Limits(seconds=math.ceil(seconds))
    return engine(name or "bwrap", limits)


class Sandbox:
    """Makes processes in sandboxes of their own."""

    def __init__(self, limits: Limits):
        self.limits = limits

    def try_out(self) -> None:
        """Raise Refused with bubblewrap's own words if it makes no sandbox here."""
        with self._filter() as fd:
            done = subprocess.run(
                [*self._bwrap(fd), sys.executable, "-I", "-c", "print('in')"],
                pass_fds=[fd],
                capture_output=True,
                text=True,
            )
        if done.stdout != "in\n":
            raise Refused(f"bubblewrap makes no sandbox here: {done.stderr.strip()[-500:]}")

    def start(self, run: tuple[str, str], *given, examines: bool = False) -> Inside:
        """Begin `module.function(reads, writes, finder, *given)` in a new sandbox; `given`: plain values.

        examines: whether answers are examined there. Then the examinations are there, and no /proc, in which processes
        see what others do.
        """
        asked, ask = os.pipe()
        told, tell = os.pipe()
        with self._filter() as fd:
            process = subprocess.Popen(
                [
                    *self._bwrap(fd, proc=not examines),
                    sys.executable,
                    "-I",
                    "-c",
                    text(),
                    str(asked),
                    str(tell),
                ],
                pass_fds=[fd, asked, tell],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                # all that can be read of bwrap itself
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        os.close(asked)
        os.close(tell)
        first = {
            "limits": self.limits.of_a_process(),
            "modules": modules(examines),
            "run": run,
            "given": given,
        }
        return Inside(process, Pipe(told, ask), marshal.dumps(first), self.limits)

    @contextlib.contextmanager
    def _filter(self) -> Iterator[int]:
        with tempfile.TemporaryFile() as file:
            file.write(sandbox_filter(platform.machine()))
            file.seek(0)
            yield file.fileno()

    def _bwrap(self, fd: int, proc: bool = True) -> list[str]:
        """The command before the program's words."""
        work = str(self.limits.work)
        words = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
        words += ["--cap-drop", "ALL", "--hostname", "sandbox", "--seccomp", str(fd)]
        words += [*(["--proc", "/proc"] if proc else []), "--dev", "/dev"]
        for path in ("/dev/shm", "/tmp"):
            words += ["--perms", "1777", "--size", work, "--tmpfs", path]
        for path in readable():  # also where that is in /tmp
            words += bound(path)
        for path in hidden():
            words += ["--tmpfs", path]
        for path in data():
            words += bound(path)
        for name, value in ENVIRONMENT.items():
            words += ["--setenv", name, value]
        words += ["--chdir", "/tmp"]
        if os.getuid() == 0:  # the kernel limits no processes of root's: another user, really
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            user = str((1 << 30) + os.getpid())
            drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
            return [*words, "--", *drop, "--inh-caps=-all", "--"]
        return [*words, "--unshare-user", "--uid", "65534", "--gid", "65534", "--"]


ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def bound(path: str) -> list[str]:
    """The words that show `path` in the sandbox, read-only; another user than the caller gets there, too."""
    words = []
    for parent in reversed(Path(path).parents[:-1]):
        words += ["--perms", "0755", "--dir", str(parent)]
    return [*words, "--ro-bind", path, path]


@cache
def readable() -> list[str]:
    """What Python and its packages need of the file system: folders outside each other."""
    paths = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"]
    paths += [sys.base_prefix, sys.prefix, *site.getsitepackages()]
    found: list[str] = []
    for path in sorted(p for p in paths if os.path.exists(p)):
        if not any(path == f or path.startswith(f + os.sep) for f in found):
            found.append(path)
    return found


@cache
def hidden() -> list[str]:
    """The course's folders, where they lie within what is readable: it is installed there."""
    within = tuple(path + os.sep for path in readable())
    return [str(folder) for folder in PACKAGES if str(folder).startswith(within)]


@cache
def data() -> list[str]:
    """Folders of the library with what it reads while it runs, tables and pages."""
    return [str(PACKAGES[0] / "study" / name) for name in ("figures", "page")]


@cache
def text() -> str:
    return (HERE / "inside.py").read_text(encoding="utf-8")


@cache
def modules(examines: bool) -> dict[str, tuple[str, bool, bytes]]:
    """The modules of the library and of the graders, as `inside.Sent` imports them. The graders' package is empty, as
    what it imports is all there is; so are the oracles, whose functions nobody may call there."""
    found = {}
    for folder in PACKAGES:
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
            name = name.removesuffix(".__init__")
            code = SourceFileLoader(name, str(file)).get_code(name)
            if name == "minicheck":
                code = compile("", str(file), "exec")
            elif refuse.under(name, ORACLES):
                code = refuse.emptied(code)
            if examines or not refuse.under(name, EXAMINATIONS):
                found[name] = (str(file), file.name == "__init__.py", marshal.dumps(code))
    return found


class Child:
    """A process that runs what somebody else wrote. `line`: what it says is not to be believed. `odd`: what it did.

    A context: afterwards nothing of it is left."""

    def __init__(self, process: subprocess.Popen, line: Pipe):
        self.process = process
        self.line = line
        self.odd: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._end()
        self.line.close()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()


class Inside(Child):
    """A process in a sandbox of its own. With it everything in there ends."""

    def __init__(self, process: subprocess.Popen, line: Pipe, first: bytes, limits: Limits):
        super().__init__(process, line)
        self._limits = limits
        self._closed = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()
        with contextlib.suppress(OSError):  # it is dead: the first question will tell
            line.send(first, 60.0)

    def close(self) -> None:
        self._closed.set()
        self._watching.join()
        super().close()

    def _end(self) -> None:
        """Wait for bubblewrap to end by itself, which it does once the kernel has taken away all that was in there."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING)
        super()._end()

    def _kill(self) -> None:
        # among them is the first process of the sandbox: with it the kernel ends all others
        for pid in descendants(self.process.pid) or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        """End it once it has more memory, or more processes, than it may."""
        while not self._closed.wait(WATCH):
            pids = descendants(self.process.pid)
            used = sum(map(resident, pids))
            if used > self._limits.memory:
                self.odd.append(f"ended: it used {used / 1e9:.1f} GB of memory")
            elif len(pids) > self._limits.processes + 16:  # bubblewrap's own, and what is ending
                self.odd.append(f"ended: it started {len(pids)} processes")
            else:
                continue
            self._kill()
            return


def descendants(pid: int) -> set[int]:
    """The processes that one has started, by whichever of its threads, and those that they have, as far as /proc tells;
    no zombies."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found.update(new)
        waiting += new
    return found


def resident(pid: int) -> int:
    """Bytes of memory that a process has written and not given back, of what it shares with others its part; where
    the kernel does not tell us the parts, all of that."""
    for file, names in (("smaps_rollup", PARTS), ("status", WHOLE)):
        try:
            rows = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        except OSError:
            continue
        return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith(names))
    return 0


PARTS = ("Pss_Anon", "Pss_Shmem")
WHOLE = ("RssAnon", "RssShmem")
