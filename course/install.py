"""Installs the course into a virtual environment, and shows all the while what is being done.

    python course/install.py VENV EXTRAS PYTHON

PYTHON makes VENV if it is not there. pip alone says nothing for minutes while it chooses versions, and again while it
installs; here a line moves on a terminal, and elsewhere there is one every fifteen seconds. If pip fails, all that it said
is shown. An environment that was made here goes again when the installation fails or is stopped, so nothing broken is
left; one that was there before stays.

Nothing but Python itself is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
GB = 1e9
# Measured for the extra `course`, with PyTorch's build for CPUs and with the one for CUDA, which pip takes on Linux unless
# it is told of another index.
FETCHED = (0.4, 2.9)
INSTALLED = (1.6, 5.6)
SMALLER = "https://download.pytorch.org/whl/cpu"
# What pip tells of its progress: of no use once it has failed.
TOLD = re.compile(
    r"\s*(Collecting|Downloading|Using cached|Requirement already satisfied|Looking in|Processing|Obtaining|Link requires"
    r"|Installing build dependencies|Checking if build backend|Getting requirements|Preparing (editable )?metadata"
    r"|Installing collected packages|Building|Created wheel|Stored in directory|Attempting uninstall|Found existing"
    r"|Uninstalling|Successfully|File was already downloaded|INFO: pip is looking|INFO: This is taking longer)\b"
)


class Progress:
    """Lines that stay, and between them one that says what is being done now."""

    def __init__(self, out: TextIO, every: float = 15.0):
        self._out = out
        self._terminal = out.isatty()
        self._every = every
        self._start = self._shown = time.monotonic()

    @property
    def wait(self) -> float:
        """So many seconds from one `now` to the next."""
        return 0.2 if self._terminal else min(1.0, self._every)

    def elapsed(self) -> str:
        minutes, seconds = divmod(round(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02}"

    def say(self, text: str) -> None:
        clear = "\r\x1b[K" if self._terminal else ""
        print(f"{clear}{text}", file=self._out, flush=True)
        self._shown = time.monotonic()

    def now(self, text: str) -> None:
        line = f"    {self.elapsed()}  {text}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=self._out, flush=True)
        elif time.monotonic() - self._shown >= self._every:
            self.say(line)


class Pip:
    """pip while it runs: what it has said, and what follows from that and from the files it has made."""

    def __init__(self, python: Path, words: Sequence[str], folder: Path):
        self.said: list[str] = []
        self._looked_at: set[str] = set()
        self._fetching = "the course itself"
        self._order: list[str] = []
        self._folder = folder
        self._there = self._count()
        # What is fetched lies on the disk whose space was looked at, and can be measured.
        self._fetched = folder / ".fetched"
        self._fetched.mkdir(exist_ok=True)
        settings = {
            "TMPDIR": str(self._fetched),
            "PYTHONUNBUFFERED": "1",
            "PIP_PROGRESS_BAR": "off",
        }
        self._process = subprocess.Popen(
            [str(python), "-m", "pip", *words],
            cwd=ROOT,
            env=os.environ | settings | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.hear(line.rstrip("\n"))

    def hear(self, line: str) -> None:
        self.said.append(line)
        words = line.split()
        if not words:
            return
        if words[0] == "Collecting" and len(words) > 1:
            self._looked_at.add(re.split(r"[\[<>=!~;]", words[1])[0])
            self._fetching = words[1]
        elif words[0] in ("Downloading", "Using") and ".metadata" not in line:
            name = words[1] if words[0] == "Downloading" else words[-3]
            size = re.search(r"\([\d.]+ \w+\)$", line)
            self._fetching = f"{'-'.join(name.split('-')[:2])} {size[0] if size else ''}".strip()
        elif line.startswith("Installing collected packages: "):
            self._order = line.partition(": ")[2].split(", ")

    def _count(self) -> int:
        """Packages in the environment: pip writes the folder with a package's name last."""
        return sum(1 for _ in self._folder.glob("lib/python*/site-packages/*.dist-info"))

    @property
    def installing(self) -> bool:
        return bool(self._order)

    def doing(self) -> str:
        if self._order:
            done = min(self._count() - self._there, len(self._order) - 1)
            return (
                f"{done} of {len(self._order)} packages installed, now {self._order[max(done, 0)]}"
            )
        megabytes = size_of(self._fetched) / 1e6
        return f"packages found: {len(self._looked_at)}, {megabytes:.0f} MB fetched, now {self._fetching}"

    def ended(self, seconds: float) -> bool:
        """True when it has ended, after so many seconds at the latest."""
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def close(self) -> int:
        """Its exit code; it is stopped if it still runs."""
        if not self.ended(0):
            self._process.terminate()
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        shutil.rmtree(self._fetched, ignore_errors=True)
        return code

    def words(self) -> str:
        """What it said, without its progress."""
        return "\n".join(line for line in self.said if not TOLD.match(line)).strip("\n")


class Failed(Exception):
    """The installation cannot go on; the words say why."""


def size_of(folder: Path) -> int:
    """The bytes of all files in `folder`, which pip may be removing."""
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue
    return found


def free(folder: Path) -> float:
    """GB that are free on the disk where `folder` is, or will be."""
    return shutil.disk_usage(next(p for p in folder.absolute().parents if p.exists())).free / GB


def announce(folder: Path, progress: Progress, available: float, platform: str) -> None:
    """What is to be expected. Failed if the disk cannot hold it."""
    cuda = platform == "linux"
    progress.say(
        f"Installing the course into {folder}, with the versions that constraints.txt pins.\n"
        f"It downloads {FETCHED[0]} GB and takes up {INSTALLED[0]} GB, of which PyTorch is about half"
        + (
            f"; with PyTorch's build for CUDA {FETCHED[1]} GB and {INSTALLED[1]} GB.\n"
            if cuda
            else ".\n"
        )
        + "Allow five to ten minutes. Ctrl-C stops it, and leaves nothing behind."
    )
    if available < INSTALLED[0] + FETCHED[0]:
        raise Failed(
            f"There are only {available:.1f} GB free on the disk of {folder}, and the installation needs "
            f"{INSTALLED[0] + FETCHED[0]:.1f} GB while it runs. Make room, or name a folder on another disk: "
            "make lab VENV=/path/to/folder"
        )
    if cuda and available < INSTALLED[1] + FETCHED[1]:
        progress.say(
            f"There are {available:.1f} GB free: enough for PyTorch's build for CPUs, but not for the one for CUDA. To take "
            f"the smaller one: PIP_EXTRA_INDEX_URL={SMALLER} make lab"
        )


def make_environment(folder: Path, python: str, progress: Progress) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".unfinished").touch()
    progress.say(f"1 of 4  making an empty environment with {python}")
    done = subprocess.run(
        [python, "-m", "venv", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Failed(f"{done.stdout}\n{python} -m venv {folder} failed.")


def install(folder: Path, extras: str, progress: Progress) -> None:
    python = folder / "bin" / "python"
    if subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode:
        # uv leaves it out of its environments.
        subprocess.run([python, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    progress.say("2 of 4  finding and fetching the packages")
    pip = Pip(python, ["install", "-c", "constraints.txt", "-e", f".[{extras}]"], folder)
    try:
        step = 2
        while not pip.ended(progress.wait):
            if pip.installing and step == 2:
                step = 3
                progress.say(f"3 of 4  installing them ({progress.elapsed()} so far)")
            progress.now(pip.doing())
    finally:
        code = pip.close()
    if code:
        hint = ""
        if "No space left on device" in pip.words():
            hint = (
                f"\nThe disk of {folder} is full. make lab VENV=/path/to/folder installs elsewhere."
            )
        raise Failed(f"{pip.words()}{hint}")
    progress.say(f"4 of 4  importing PyTorch and matplotlib once ({progress.elapsed()} so far)")
    # matplotlib looks for its fonts here, not in a lesson.
    first = [python, "-c", "import matplotlib.pyplot, torch"]
    done = subprocess.run(first, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failed(done.stdout)


def remove(folder: Path) -> None:
    """The folder goes, its mark last: what a second interruption leaves is known as unfinished."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".unfinished":
            path.unlink()
    shutil.rmtree(folder)


def stop(*_) -> None:
    raise KeyboardInterrupt


def main(folder: Path, extras: str, python: str, out: TextIO) -> int:
    progress = Progress(out)
    unfinished = folder / ".unfinished"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        if unfinished.exists():
            remove_and_say = (
                f"{folder} was left unfinished when an installation was killed; it is made anew."
            )
            progress.say(remove_and_say)
            shutil.rmtree(folder)
        if not (folder / "bin" / "python").exists():
            announce(folder, progress, free(folder), sys.platform)
            make_environment(folder, python, progress)
        else:
            progress.say(f"Updating {folder} to what pyproject.toml and constraints.txt ask for")
        install(folder, extras, progress)
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        progress.say(str(error))
        said, code = f"The installation failed after {progress.elapsed()} min", 1
    except KeyboardInterrupt:
        said, code = f"Stopped after {progress.elapsed()} min", 130
    else:
        unfinished.unlink(missing_ok=True)
        progress.say(f"The course is installed; it took {progress.elapsed()} min.")
        return 0
    if unfinished.exists():
        progress.say(f"{said}; {folder} is being removed.")
        remove(folder)
        progress.say("It is removed. pip keeps what it has downloaded, so a second try is shorter.")
    else:
        progress.say(f"{said}. {folder} was there before, and stays.")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.stdout))
