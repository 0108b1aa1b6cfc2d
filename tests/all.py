"""`make test`: all that is tested, in four parts, with how far it is, the time left, and one summary at the end.

    python -m tests.all                 all parts, one after the other; one that fails stops no other
    python -m tests.all unit nbval      some
    python -m tests.all --show          the command of each part, and nothing runs

    lint     ruff and mypy
    unit     what runs side by side
    alone    what measures wall time or drives a browser, with nothing beside it
    nbval    each notebook, executed and compared

A terminal shows one line that moves; a file or CI gets a line at each 5 % and each half minute. A failure is told when
it happens. The summary says what failed, with the command that runs only that, what was skipped and why, and ends with
a line `N passed, N failed, N skipped`. Ctrl-C ends what runs, and sums up what there is by then.

The time left comes from how long each part and each file took last time, `build/tests/seconds.json`, and before there was
a last time from tests/seconds.json (`--record` writes it anew), stretched by how fast this machine has been so far.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import psutil

from tests import progress, reaper

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "tests"
FIRST = ROOT / "tests" / "seconds.json"
# A file that cannot be collected is a failure among others: the other files are run.
PYTEST = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
NBVAL = ["-p", "tests.warm", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"]
# What `make portable` sets, and the command for one test must then set as well.
SETTINGS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
POLL = 0.2  # seconds between two looks at what has been reported
STEP = 0.05  # of all, between two lines where nothing moves
PAUSE = 30.0  # seconds at most between two
SLOW = 30.0  # seconds after which the test that runs is named
PATIENCE = 15.0  # seconds that an interrupted pytest may take to end its workers
PRIOR = 60.0  # seconds that count as run at the expected speed: the first tests say little about the others
OVER = "no time was left for it: `make test` runs it"
LINES = 40  # of what a failure says, where it is shown whole
CELLS = 3  # of one notebook that failed, before the others are only counted
ENDS = {
    2: "it was interrupted",
    3: "an error of pytest or of a plugin",
    4: "pytest did not understand its command",
    5: "it found no tests",
    -signal.SIGKILL: "it was killed; perhaps the memory was used up",
    -signal.SIGSEGV: "it crashed",
}


@dataclasses.dataclass
class Part:
    """A target of make: some `checks`, commands that pass or fail as a whole, or tests, by pytest."""

    name: str
    checks: list[list[str]] = dataclasses.field(default_factory=list)
    flags: list[str] = dataclasses.field(
        default_factory=list
    )  # without which none of its tests runs
    spread: list[str] = dataclasses.field(default_factory=list)  # which tests, how many at once
    settings: dict[str, str] = dataclasses.field(default_factory=dict)

    def command(self) -> list[str]:
        """Of pytest, for all of its tests."""
        return [*PYTEST, *self.flags, *self.spread]

    def only(self, test: str) -> str:
        """What a person types to run `test` alone, as this part runs it. A cell needs the cells before it."""
        test = progress.file_of(test) if "--nbval" in self.flags else test
        return typed([sys.executable, "-m", "pytest", *self.flags, test], self.environment())

    def environment(self) -> dict[str, str]:
        """What a shell must set for a command of this part."""
        return {name: os.environ[name] for name in SETTINGS if name in os.environ} | self.settings


def typed(command: list[str], settings: dict[str, str]) -> str:
    """A line for a shell in the repository's folder."""
    words = [word.removeprefix(f"{ROOT}/") for word in command]
    return " ".join([*(f"{name}={value}" for name, value in settings.items()), shlex.join(words)])


def parts(jobs: int, threads: int) -> list[Part]:
    """What `make test` runs, in order. Two workers share the cores already: each process has one thread, in notebooks
    `threads`."""
    python = sys.executable
    lint = [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
    ]
    side_by_side = ["-n", str(jobs), "--dist"]
    notebooks = [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("solutions/*/*.ipynb"))]
    notebooks = [str(path.relative_to(ROOT)) for path in notebooks]
    found = [
        Part("lint", checks=lint),
        Part(
            "unit",
            spread=[*side_by_side, "worksteal", "-m", "not alone"],
            settings={"OMP_NUM_THREADS": "1"},
        ),
        Part("alone", spread=["-m", "alone"]),
    ]
    if notebooks:
        kernels = {"OMP_NUM_THREADS": str(threads)}
        loads = [*side_by_side, "loadfile", *notebooks]
        found.append(Part("nbval", flags=NBVAL, spread=loads, settings=kernels))
    return found


@dataclasses.dataclass
class Failure:
    test: str
    why: str  # in a line
    text: str
    command: str
    whole: bool = False  # of the part, or of a check: what is wrong stands in no test


class Tally:
    """What a part has reported so far. `before` says how long it took: seconds, collecting, and those of each file."""

    def __init__(self, part: Part, before: dict):
        self.part = part
        self.before = before
        self.tests: dict[str, int] = {}  # by file
        self.ended: collections.Counter[str] = collections.Counter()  # by file
        self.passed = 0
        self.failures: list[Failure] = []
        self.skipped: list[tuple[str, str]] = []  # (test, reason)
        self.running: dict[str, float] = {}  # since when
        self.phases: dict[str, str] = {}  # the worst outcome so far of a test that has not ended
        self.seconds: collections.Counter[str] = collections.Counter()  # by file
        self.begun = self.collected = self.over = None  # when

    def hear(self, event: dict) -> list[Failure]:
        """Count an event of tests/progress.py; the failures in it."""
        if event["event"] == "collected":
            self.collect(event["tests"])
        elif event["event"] == "started":
            self.running[event["test"]] = time.monotonic()
        else:
            return self.report(**event)
        return []

    def collect(self, tests: dict[str, int]) -> None:
        self.tests = tests
        self.collected = time.monotonic()

    def report(self, event, test, outcome, ended, seconds, why="", text="") -> list[Failure]:
        file = progress.file_of(test)
        self.seconds[file] += seconds
        if outcome == "skipped":
            self.skipped.append((test, why))
        failures = [Failure(test, why, text, self.part.only(test))] if outcome == "failed" else []
        self.failures += failures
        if outcome != "passed":
            self.phases[test] = outcome
        if ended:
            self.passed += self.phases.pop(test, "passed") == "passed"
            self.running.pop(test, None)
            self.ended[file] += 1
        return failures

    def fail(self, what: str, why: str, text: str, command: str) -> list[Failure]:
        """A failure of the whole part, or of one of its checks."""
        failure = Failure(what, why, text, command, whole=True)
        self.failures.append(failure)
        return [failure]

    @property
    def failed(self) -> int:
        """Tests that failed: one that fails when it is torn down, too, counts once."""
        return len({failure.test for failure in self.failures})

    def place(self) -> tuple[int, int]:
        """How many of its tests have ended, and how many there are. A file that could not be collected is in neither."""
        return sum(self.ended[file] for file in self.tests), sum(self.tests.values())

    def counts(self) -> dict[str, int]:
        return {"passed": self.passed, "failed": self.failed, "skipped": len(self.skipped)}

    def all_seconds(self) -> float:
        return self.before.get("seconds", 0.0)

    def done_seconds(self) -> float:
        """How much of `all_seconds()` is done, by what its files took before."""
        if self.begun is None:
            return 0.0
        if self.over is not None:
            return self.all_seconds()
        collecting = self.before.get("collecting", 0.0)
        if self.collected is None:
            return min(time.monotonic() - self.begun, collecting)
        before = self.before.get("files", {})
        known = {file: before[file] for file in self.tests if file in before}
        per_test = sum(known.values()) / max(1, sum(self.tests[file] for file in known))
        each = {file: before.get(file, per_test * n) / n for file, n in self.tests.items()}
        if not known:
            each = dict.fromkeys(self.tests, 1.0)
        done = sum(each[file] * min(self.ended[file], n) for file, n in self.tests.items())
        whole = sum(each[file] * n for file, n in self.tests.items())
        return collecting + (self.all_seconds() - collecting) * done / max(whole, 1e-9)

    def measured(self) -> dict | None:
        """What to expect the next time; None if it did not run to its end."""
        if self.over is None or self.collected is None:
            return None
        files = {file: round(seconds, 2) for file, seconds in sorted(self.seconds.items())}
        return {
            "seconds": round(self.over - self.begun, 1),
            "collecting": round(self.collected - self.begun, 1),
            "files": files,
        }


class Screen:
    """Where it is told: a line that moves on a terminal, lines elsewhere."""

    def __init__(self, out: IO[str]):
        self.out = out
        self.moves = out.isatty()

    def write(self, text: str) -> None:
        self.out.write("\r\x1b[K" * self.moves + text + "\n")
        self.out.flush()

    def move(self, text: str) -> None:
        """Show `text` in place of the last such line; only on a terminal."""
        if self.moves:
            columns = shutil.get_terminal_size().columns
            self.out.write("\r\x1b[K" + text[: columns - 1])
            self.out.flush()


class Run:
    """Runs parts, one after the other, and tells of them."""

    def __init__(
        self,
        chosen: list[Part],
        before: dict,
        folder: Path,
        out: IO[str],
        until: float = math.inf,
    ):
        """`until`: of time.time(); what has not begun by then is skipped."""
        self.folder = folder
        self.until = until
        self.screen = Screen(out)
        self.tallies = [Tally(part, before.get(part.name, {})) for part in chosen]
        self.current = 0
        self.interrupted = False
        self.told = (0.0, 0.0)  # when, and what share was done

    def run(self) -> int:
        """The exit code: 0 if all passed, 1 if not, 130 if it was interrupted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begun, self.cpu = time.monotonic(), cpu_seconds()
        expected = sum(tally.all_seconds() for tally in self.tallies)
        names = ", ".join(tally.part.name for tally in self.tallies)
        about = f": about {minutes(expected)}" if expected else ""
        self.screen.write(f"{names}{about}; their output goes to {shown(self.folder)}/")
        try:
            for index, tally in enumerate(self.tallies):
                self.current = index
                self.run_part(tally)
        except KeyboardInterrupt:
            self.interrupted = True
        self.sum_up()
        if self.interrupted:
            return 130
        return int(any(tally.failures for tally in self.tallies))

    def run_part(self, tally: Tally) -> None:
        tally.begun = time.monotonic()
        if time.time() > self.until:
            tally.skipped.append((tally.part.name, OVER))
            tally.over = tally.begun
            return
        self.told = (0.0, 0.0)
        part = tally.part
        log = self.folder / f"{part.name}.txt"
        log.write_text("")
        if part.checks:
            tally.collect({typed(check, {}): 1 for check in part.checks})
        self.tell()
        for check in part.checks:
            self.run_check(tally, check, log)
        if not part.checks:
            self.run_tests(tally, part.command(), log)
        tally.over = time.monotonic()
        self.tell(ended=True)

    def run_check(self, tally: Tally, command: list[str], log: Path) -> None:
        name = typed(command, {})
        if time.time() > self.until:
            tally.skipped.append((name, OVER))
            return
        printed = log.stat().st_size
        tally.running[name] = time.monotonic()
        code = self.follow(tally, command, log, None)
        failures = []
        if code:
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(printed)
                text = file.read().strip()
            why = text.splitlines()[-1] if text else ended_with(code)
            failures = tally.fail(name, why, text, name)
        else:
            tally.passed += 1
        tally.seconds[name] = time.monotonic() - tally.running.pop(name)
        tally.ended[name] += 1
        self.tell(failures)

    def run_tests(self, tally: Tally, command: list[str], log: Path) -> None:
        handle, path = tempfile.mkstemp(suffix=".jsonl", dir=self.folder)
        os.close(handle)
        try:
            code = self.follow(tally, [*command, "-p", "tests.progress"], log, Path(path))
        finally:
            os.unlink(path)
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:])
        again = typed(command, tally.part.environment())
        ended, tests = tally.place()
        failures = []
        if code not in (0, 1) or (code == 1 and not tally.failures):
            failures = tally.fail(f"all of {tally.part.name}", ended_with(code), tail, again)
        elif ended < tests and not tally.failures:
            short = f"only {ended} of its {tests} tests have ended"
            failures = tally.fail(f"all of {tally.part.name}", short, tail, again)
        self.tell(failures)

    def follow(self, tally: Tally, command: list[str], log: Path, events: Path | None) -> int:
        """The exit code of `command`; meanwhile its events are told. However this ends, the command has ended, too."""
        environment = os.environ | tally.part.settings
        if events:
            environment[progress.FILE] = str(events)
        with open(log, "a", encoding="utf-8") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes here, and `end` passes it on
            )
        with open(events or os.devnull, encoding="utf-8") as reader:
            try:
                while process.poll() is None:
                    self.read(tally, reader)
                    time.sleep(POLL)
            except KeyboardInterrupt:
                self.screen.write(
                    "Interrupted: stopping what is running; press Ctrl-C again to kill it"
                )
                raise
            finally:
                end(process)
                self.read(tally, reader)
        return process.returncode

    def read(self, tally: Tally, reader: IO[str]) -> None:
        """Tell what is new in the file of events. Its last line may be half written."""
        failures = []
        place = reader.tell()
        line = reader.readline()
        while line.endswith("\n"):
            failures += tally.hear(json.loads(line))
            place = reader.tell()
            line = reader.readline()
        reader.seek(place)
        self.tell(failures)

    def left(self) -> float | None:
        """Seconds; None where nobody knows."""
        whole = sum(tally.all_seconds() for tally in self.tallies)
        done = sum(tally.done_seconds() for tally in self.tallies)
        if not whole:
            return None
        slower = (time.monotonic() - self.begun + PRIOR) / (done + PRIOR)
        return max(0.0, whole - done) * slower

    def line(self) -> str:
        """Where it is."""
        tally, now = self.tallies[self.current], time.monotonic()
        place = f"{tally.part.name} ({self.current + 1} of {len(self.tallies)})"
        if tally.collected is None:
            words = "collecting"
        else:
            words = "{} of {}".format(*tally.place())
        failed = sum(tally.failed for tally in self.tallies)
        left = self.left()
        slow = [(since, test) for test, since in tally.running.items() if now - since > SLOW]
        pieces = [f"{place}: {words}, {failed} failed", f"{clock(now - self.begun)} so far"]
        if left is not None:
            pieces.append(f"about {minutes(left)} left")
        if slow:
            since, test = min(slow)
            pieces.append(f"{test} has run for {now - since:.0f} s")
        return "; ".join(pieces)

    def tell(self, failures: list[Failure] = (), ended: bool = False) -> None:
        """Each failure, and where it is, if that is due."""
        for failure in failures:
            self.screen.write(f"FAILED {failure.test}: {failure.why}")
        tally, now = self.tallies[self.current], time.monotonic()
        ran, tests = tally.place()
        share = ran / max(1, tests)
        since, before = self.told
        if self.screen.moves and not ended:
            self.screen.move(self.line())
        elif now - since > PAUSE or share - before >= STEP or (ended and share > before):
            self.told = (now, share)
            self.screen.write(self.line())

    def sum_up(self) -> None:
        """The one summary, and build/tests/summary.json beside it."""
        write = self.screen.write
        if not self.screen.moves:
            self.show_texts()
        write("\n── Summary " + "─" * 60)
        for tally in self.tallies:
            write(f"{tally.part.name:<8}{told(tally)}")
        self.show_skipped()
        self.show_failures()
        seconds, cpu = time.monotonic() - self.begun, cpu_seconds() - self.cpu
        write(
            f"\n{seconds / 60:.1f} minutes, in which this machine was busy for {cpu / 60:.1f} CPU minutes"
        )
        counts = collections.Counter()
        for tally in self.tallies:
            counts.update(tally.counts())
        write(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        kept = {tally.part.name: summary_of(tally) for tally in self.tallies}
        (self.folder / "summary.json").write_text(json.dumps(kept, indent=1) + "\n")

    def show_texts(self) -> None:
        """What the failures say, where nobody can run them again: in the log of a CI."""
        for tally in self.tallies:
            for failure in tally.failures:
                lines = failure.text.splitlines()
                cut = [f"… the first {len(lines) - LINES} lines are left out"] * (
                    len(lines) > LINES
                )
                self.screen.write("\n".join([f"\n── {failure.test}", *cut, *lines[-LINES:]]))

    def show_skipped(self) -> None:
        tests = collections.defaultdict(list)
        for tally in self.tallies:
            for test, reason in tally.skipped:
                tests[reason].append(test)
        if tests:
            self.screen.write("\nSkipped")
        for reason, skipped in sorted(tests.items(), key=lambda item: -len(item[1])):
            files = sorted({progress.file_of(test) for test in skipped})
            where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
            self.screen.write(f"  {len(skipped):>4}  {reason} ({where})")

    def show_failures(self) -> None:
        """By the command that runs them alone: cells of one notebook have the same."""
        commands = collections.defaultdict(list)
        for tally in self.tallies:
            for failure in tally.failures:
                commands[failure.command].append(failure)
        if commands:
            self.screen.write("\nFailed, each with the command that runs it alone")
        for command, found in commands.items():
            for failure in found[:CELLS]:
                self.screen.write(f"  {failure.test}\n      {failure.why}")
                if failure.whole and self.screen.moves:
                    lines = failure.text.splitlines()[-LINES:]
                    self.screen.write("\n".join(f"      {line}" for line in lines))
            if len(found) > CELLS:
                self.screen.write(f"  and {len(found) - CELLS} more that this command runs")
            self.screen.write(f"    {command}")


def end(process: subprocess.Popen) -> None:
    """Ctrl-C for a command that still runs and its workers, as at a terminal; after a while a kill. What they started in
    sessions of their own ends by tests/reaper.py."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended_with(code: int) -> str:
    meaning = f": {ENDS[code]}" if code in ENDS else ""
    return f"ended by signal {-code}{meaning}" if code < 0 else f"exit code {code}{meaning}"


def told(tally: Tally) -> str:
    """A part's line of the summary."""
    if tally.begun is None:
        return "not run"
    counts = [f"{n} {what}" for what, n in tally.counts().items() if n]
    words = ", ".join(counts) or "no test had ended"
    if tally.over is None:
        where = "while collecting"
        if tally.collected is not None:
            where = "after {} of {}".format(*tally.place())
        running = [f"\n        was running: {test}" for test in tally.running]
        return "".join([f"interrupted {where}: {words}", *running])
    return f"{words:<44}{(tally.over - tally.begun) / 60:>6.1f} minutes"


def summary_of(tally: Tally) -> dict:
    """A part as a program reads it."""
    return {
        **tally.counts(),
        "ended": tally.over is not None,
        "skips": tally.skipped,
        "failures": [dataclasses.asdict(failure) for failure in tally.failures],
    }


def cpu_seconds() -> float:
    """Of the whole machine: what a test forks, or starts in a session of its own, no process above it can count."""
    times = psutil.cpu_times()._asdict()
    return sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def seconds_before(folder: Path) -> dict:
    """By part: as they were here last, or as they were where the repository was written."""
    found = json.loads(FIRST.read_text())
    own = folder / "seconds.json"
    if own.exists():
        found |= json.loads(own.read_text())
    return found


def keep_seconds(tallies: list[Tally], folder: Path, record: bool) -> None:
    """For the next run; `record` for that of others, too."""
    measured = {tally.part.name: tally.measured() for tally in tallies}
    measured = {name: found for name, found in measured.items() if found}
    own = folder / "seconds.json"
    kept = json.loads(own.read_text()) if own.exists() else {}
    own.write_text(json.dumps(kept | measured, indent=1) + "\n")
    if record:
        first = json.loads(FIRST.read_text()) if FIRST.exists() else {}
        for name, found in measured.items():
            first[name] = {"seconds": found["seconds"], "collecting": found["collecting"]}
        FIRST.write_text(json.dumps(first, indent=1) + "\n")


def begin(run: Run) -> int:
    """Run it as the one thing that this process does; the exit code."""
    # `make test &` in a script is told to ignore Ctrl-C; and a TERM, of `timeout` say, is answered as Ctrl-C is.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reaper.pytest_configure()  # what outlives this process, it ends
    return run.run()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="lint, unit, alone, nbval")
    parser.add_argument("--jobs", type=int, default=2, help="workers of pytest (2)")
    parser.add_argument("--threads", type=int, default=1, help="of each notebook (1)")
    parser.add_argument("--show", action="store_true", help="print the commands, and run nothing")
    parser.add_argument("--record", action="store_true", help="write tests/seconds.json")
    asked = parser.parse_args(words)
    found = {part.name: part for part in parts(asked.jobs, asked.threads)}
    unknown = set(asked.parts) - set(found)
    if unknown:
        parser.error(f"no part is called {min(unknown)}; there are {', '.join(found)}")
    chosen = [part for name, part in found.items() if not asked.parts or name in asked.parts]
    if asked.show:
        for part in chosen:
            for command in part.checks or [part.command()]:
                print(typed(command, part.settings))
        return 0
    run = Run(chosen, seconds_before(FOLDER), FOLDER, sys.stdout)
    code = begin(run)
    keep_seconds(run.tallies, FOLDER, asked.record)
    return code


if __name__ == "__main__":
    sys.exit(main())
