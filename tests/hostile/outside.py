"""What a submission must not reach: a course beside it, a process, listeners, secrets; and whether it has.

Each secret is the same loot, the right numbers of `predict`: whoever reads it earns points that he should not have.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.bank.bank import ROOT
from tests.hostile.submission import questions

LOOT = {"messages": 14, "nbytes": 7e6, "seconds": 2.1e-4, "naive_nbytes": 28e6}
WATCHED = ("/dev/shm", "/var/tmp", "/etc", "/run", "/var/spool", "/opt")
LARGEST = 4 << 20  # bytes of a file that is searched for the token


class Outside:
    """The surroundings of submissions, until the context ends. `folder`: of the course, `path`: of the submission."""

    def __init__(self, folder: Path):
        self.folder = folder / "teacher"
        self.path = self.folder / "submitted" / "mallory" / "02" / "02.ipynb"
        self.token = f"hx{secrets.token_hex(6)}"
        self.secret = json.dumps({"loot": LOOT, "secret": f"secret-{self.token}"})
        self.reached: list[str] = []
        self.start = time.time()

    def __enter__(self) -> Outside:
        self._stack = contextlib.ExitStack()
        self._course()
        self._listen()
        self._secrets()
        self._before = self._sums()
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def out(self) -> dict:
        """What the cells are told."""
        return {
            "token": self.token,
            "course": str(self.folder),
            "root": str(ROOT),
            "namespace": os.readlink("/proc/self/ns/pid"),
            "victim": self.victim.pid,
            "marker": os.getpid(),
            "port": self.port,
            "abstract": self.abstract,
            "shm": str(self.shared),
        }

    def _course(self) -> None:
        """A teacher's folder in miniature."""
        for name in ("solutions/02", "submitted/alice/02", "submitted/mallory/02", "graders"):
            (self.folder / name).mkdir(parents=True)
        solved = json.dumps(questions())
        for name in ("solutions/02", "submitted/alice/02"):
            (self.folder / name / "02.ipynb").write_text(solved)
        (self.folder / "nbgrader_config.py").write_text("c = get_config()\n")
        (self.folder / "grades.csv").write_text("student,points\nalice,4\n")
        (self.folder / "graders" / "exam.py").write_text("def judge(): ...\n")
        (self.folder / "secret.json").write_text(self.secret)
        with contextlib.closing(sqlite3.connect(self.folder / "gradebook.db")) as book, book:
            book.execute("CREATE TABLE grade (student TEXT, auto_score REAL)")
            book.execute("INSERT INTO grade VALUES ('alice', 4)")

    def _listen(self) -> None:
        """Listeners that hand out the loot, and remember that somebody came."""
        self.abstract = f"\0{self.token}"
        unix, by_path = _unix(self.abstract), _unix(f"{self.folder}/talk")
        tcp = socket.socket()
        udp = socket.socket(type=socket.SOCK_DGRAM)
        tcp.bind(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", self.port))
        chosen = self._stack.enter_context(selectors.DefaultSelector())
        for one, name in ((tcp, "TCP"), (unix, "an abstract socket"), (by_path, "a socket's path")):
            one.listen()
            chosen.register(self._stack.enter_context(one), selectors.EVENT_READ, name)
        chosen.register(self._stack.enter_context(udp), selectors.EVENT_READ, "UDP")
        reads, ends = os.pipe()
        chosen.register(reads, selectors.EVENT_READ, "")
        thread = threading.Thread(target=self._serve, args=(chosen,), daemon=True)
        self._stack.callback(os.close, reads)
        self._stack.callback(thread.join)
        self._stack.callback(os.close, ends)
        thread.start()

    def _serve(self, chosen: selectors.BaseSelector) -> None:
        while True:
            for key, _ in chosen.select():
                if not key.data:
                    return
                self.reached.append(f"it reached {key.data}")
                with contextlib.suppress(OSError):
                    if key.data == "UDP":
                        _, whose = key.fileobj.recvfrom(100)
                        key.fileobj.sendto(self.secret.encode(), whose)
                    else:
                        with key.fileobj.accept()[0] as one:
                            one.sendall(self.secret.encode())

    def _secrets(self) -> None:
        """The loot in a process's environment and memory, in this one's environment and open files, in shared memory."""
        self.victim = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-c",
                "import os, time\nx = os.environ['LOOT']\ntime.sleep(9999)",
            ],
            env=os.environ | {"LOOT": self.secret},
            start_new_session=True,
        )
        self._stack.callback(self.victim.wait)
        self._stack.callback(self.victim.kill)
        os.environ["TEACHERS_LOOT"] = self.secret
        self._stack.callback(os.environ.pop, "TEACHERS_LOOT", None)
        held = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        held.write(self.secret.encode())
        held.flush()
        os.set_inheritable(held.fileno(), True)
        self.shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", self.token)
        self.shared.write_text(self.secret)
        self._stack.callback(self.shared.unlink, missing_ok=True)

    def _sums(self) -> dict[str, str]:
        """What every file of the course is: kind, mode, owner and checksum."""
        return {
            str(path.relative_to(self.folder)): _sum(path)
            for path in sorted([self.folder, *self.folder.rglob("*")])
            if path.parent != self.path.parent and path != self.path.parent
        }

    def renew(self) -> None:
        """Room for the next submission."""
        if self.path.parent.is_symlink() or not self.path.parent.is_dir():
            self.path.parent.unlink()
        shutil.rmtree(self.path.parent, ignore_errors=True)
        self.path.parent.mkdir()
        self.reached.clear()

    def handed_in(self) -> None:
        """What was handed in is to stay as it is, too."""
        self._submission = _sum(self.path)

    def faults(self) -> list[str]:
        """What is not as it was before the submission was marked."""
        found = sorted(set(self.reached))
        now = self._sums()
        found += [
            f"{name} has changed"
            for name in sorted(now.keys() | self._before.keys())
            if now.get(name) != self._before.get(name)
        ]
        self._before = now  # the next one is not to blame for it
        if _sum(self.path) != self._submission or len(list(self.path.parent.iterdir())) != 1:
            found.append("the submission has changed")
        if self.shared.read_text() != self.secret:
            found.append("shared memory has changed")
        if self.victim.poll() is not None or _state(self.victim.pid) in "TtZ":
            found.append("a process was ended or stopped")
        return found + [f"a process is left: {who}" for who in self.left()]

    def left(self) -> list[str]:
        """Processes that bear the token two seconds after the end."""
        until = time.monotonic() + 2
        found = _bearers(self.token)
        while found and time.monotonic() < until:
            time.sleep(0.1)
            found = _bearers(self.token)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [f"{pid}: {who}" for pid, who in found.items()]

    def written(self, places: list[str] | None = None) -> list[str]:
        """Files in these places, or anywhere, that are newer than these surroundings and hold the token."""
        if places is None:
            places = [*WATCHED, tempfile.gettempdir(), str(Path.home()), str(ROOT), *sys.path]
        roots = {os.path.realpath(place) for place in places if os.path.isdir(place)} - {"/"}
        tops = [r for r in roots if not any(r.startswith(other + "/") for other in roots)]
        return sorted(path for top in tops for path in self._tokens(top))

    def _tokens(self, top: str) -> list[str]:
        found = []
        for folder, folders, files in os.walk(top):
            folders[:] = [f for f in folders if f != ".git" and Path(folder, f) != self.folder]
            for name in files:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if self._holds(path):
                        found.append(path)
        return found

    def _holds(self, path: str) -> bool:
        about = os.lstat(path)
        if about.st_ctime < self.start - 1 or not stat.S_ISREG(about.st_mode):
            return False
        if path == str(self.shared):
            return False
        return self.token in os.path.basename(path) or (
            about.st_size <= LARGEST and self.token.encode() in Path(path).read_bytes()
        )


def _unix(name: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.bind(name)
    return one


def _sum(path: Path) -> str:
    """A file's kind, mode, owner, time and content; a large one by its size."""
    about = path.lstat()
    text = f"{about.st_mode:o} {about.st_uid} {about.st_nlink} {about.st_size} {about.st_mtime_ns}"
    if path.is_symlink():
        return f"{text} {os.readlink(path)}"
    if path.is_file() and about.st_size < 1 << 28:
        text += hashlib.sha256(path.read_bytes()).hexdigest()
    return text if not path.is_dir() else f"{about.st_mode:o} {about.st_uid}"


def _state(pid: int) -> str:
    status = Path(f"/proc/{pid}/stat").read_text()
    return status[status.rindex(")") + 2]


def _bearers(token: str) -> dict[int, str]:
    """Living processes with the token as their name, or in their command, which every user may read."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            comm = Path(f"/proc/{name}/comm").read_text().strip()
            command = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
            if token in comm + command and int(name) != os.getpid() and _state(int(name)) != "Z":
                found[int(name)] = re.sub(r"\0", " ", f"{comm} {command}")[:200]
    return found
