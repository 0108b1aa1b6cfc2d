"""`python -m tests.mutants [TECHNIQUE …]`: plants each fault in a copy of the package, and runs its tests.

A fault is found if one of its tests fails. It survives if no test sees it, if a test hangs, or if the package can no
longer be imported. The same tests must first pass without any fault. The command ends with 1 if a fault survives.

Each run of pytest is a fork of this process, which has loaded PyTorch and nothing of the package: that saves most of
pytest's start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo

from tests.mutants.fault import Fault, techniques
from tests.repository.files import ROOT, repository

LIMIT = 240.0  # seconds for the tests of a fault
FOUND = "found"


class Copy:
    """The package and its tests in a folder of their own, in which one fault at a time is planted."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writes = 0
        self._whole = ""
        for path in repository():
            if path.suffix not in (".ipynb", ".png"):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, folder / path)

    def plant(self, fault: Fault) -> None:
        self._whole = (self.folder / fault.path).read_text(encoding="utf-8")
        self._write(fault, fault.planted(self._whole))

    def heal(self, fault: Fault) -> None:
        self._write(fault, self._whole)

    def _write(self, fault: Fault, text: str) -> None:
        """With a time that no text of the file had before: compiled files go by it, to the second."""
        self._writes += 1
        path, second = self.folder / fault.path, int(time.time()) + self._writes
        path.write_text(text, encoding="utf-8")
        os.utime(path, (second, second))


class Run:
    """pytest in a process of its own."""

    def __init__(self, copy: Copy, tests: list[str], limit: float):
        self.copy = copy
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._end = time.monotonic() + limit
        self._pid = os.fork()
        if self._pid == 0:
            os.setsid()
            for stream in (1, 2):
                os.dup2(self._said.fileno(), stream)
            os._exit(self._pytest(tests))

    def _pytest(self, tests: list[str]) -> int:
        folder = str(self.copy.folder)
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        sys.path[:] = [folder, *(path for path in sys.path if path not in ("", str(ROOT)))]
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        os.environ.pop("MINIDIST_FULL", None)  # a fault is seen at the small size
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests])
        sys.stdout.flush()
        return int(status)

    def verdict(self) -> str | None:
        """FOUND, why the fault is not found, or None: it is not over yet."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            words = {0: "no test sees it", 1: FOUND}
            found = words.get(code, f"pytest ends with {code}: {self.said()[-400:]}")
        elif time.monotonic() > self._end:
            found = "a test hangs"
        else:
            return None
        self.end()
        return found

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def end(self) -> None:
        """Nothing that it has started goes on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def judged(faults: list[Fault], jobs: int) -> Iterator[tuple[Fault, str]]:
    """(fault, verdict), as they come. SystemExit if the tests fail without a fault."""
    with tempfile.TemporaryDirectory() as folder:
        free = [Copy(Path(folder) / str(i)) for i in range(jobs)]
        tests = sorted({test for fault in faults for test in fault.asked})
        clean = Run(free[0], tests, LIMIT * len(tests))
        while (verdict := clean.verdict()) is None:
            time.sleep(0.05)
        if verdict != "no test sees it":
            raise SystemExit(f"the tests do not pass without a fault: {clean.said()[-3000:]}")
        waiting, running = list(reversed(faults)), {}
        try:
            while waiting or running:
                while waiting and free:
                    fault, copy = waiting.pop(), free.pop()
                    copy.plant(fault)
                    running[fault] = Run(copy, fault.asked, LIMIT)
                for fault, run in list(running.items()):
                    found = run.verdict()
                    if found is not None:
                        del running[fault]
                        run.copy.heal(fault)
                        free.append(run.copy)
                        yield fault, found
                time.sleep(0.02)
        finally:
            for run in running.values():
                run.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="TECHNIQUE", help="those whose names begin so; all unless given"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--list", action="store_true", help="the techniques, and how many faults each has"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork hangs in what its parent has begun with threads
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = {
        name: faults
        for name, faults in techniques().items()
        if name.startswith(tuple(options.names or [""]))
    }
    if options.list:
        for name, faults in chosen.items():
            print(f"{len(faults):3}  {name}")
        return 0
    technique = {fault: name for name, faults in chosen.items() for fault in faults}
    survivors = dict.fromkeys(chosen, 0)
    for fault, verdict in judged(list(technique), options.jobs):
        if verdict != FOUND:
            survivors[technique[fault]] += 1
            print(f"{technique[fault]}: {fault.title} ({fault.file}): {verdict}", flush=True)
    for name, count in survivors.items():
        print(f"{len(chosen[name]):3} faults, {count} not found: {name}")
    print(f"{len(technique)} faults, {sum(survivors.values())} not found")
    return int(any(survivors.values()))


if __name__ == "__main__":
    sys.exit(main())
