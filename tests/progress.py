"""`pytest -p tests.progress`: tells whoever started it, test by test, how far it is and what failed.

It appends a line of JSON for each event to the file that MINIDIST_PROGRESS names. pytest's controller writes it: with
pytest-xdist the workers' reports arrive there as well. `python -m tests.all` reads the file while it grows.

    {"event": "collected", "tests": {"tests/test_split.py": 31, …}}
    {"event": "started", "test": "tests/test_split.py::test_bounds"}
    {"event": "report", "test": …, "outcome": "failed", "ended": false, "seconds": 0.2, "why": …, "text": …}

A test reports up to three times: set up, called, torn down; "ended" is true at its last report.
"""

from __future__ import annotations

import collections
import json
import os
import re

FILE = "MINIDIST_PROGRESS"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def pytest_configure(config):
    """What runs inside a test, another pytest say, has its own events: only this one knows the file."""
    path = os.environ.get(FILE)
    if path and not hasattr(config, "workerinput"):
        del os.environ[FILE]
        config.pluginmanager.register(Events(path), "minidist-events")


class Events:
    """The hooks of a controller."""

    def __init__(self, path: str):
        self.path = path
        self.collected = False

    def write(self, event: str, **found) -> None:
        # Opened anew each time: no process that a test forks has it.
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **found}) + "\n")

    def pytest_collection_finish(self, session):
        self.count(item.nodeid for item in session.items)

    def pytest_xdist_node_collection_finished(self, node, ids):
        """All workers collect the same tests, and one that replaces a crashed worker does so again."""
        self.count(ids)

    def count(self, tests):
        if not self.collected:
            self.collected = True
            self.write("collected", tests=collections.Counter(file_of(test) for test in tests))

    def pytest_runtest_logstart(self, nodeid):
        self.write("started", test=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if hasattr(report, "wasxfail"):  # expected to fail: it did ("skipped"), or passed
            outcome = "passed"
        # A worker that crashed in a test tells of it once, and of no phase.
        ended = report.when not in ("setup", "call")
        self.report(report, outcome, ended, report.duration)

    def pytest_collectreport(self, report):
        """A file that cannot be collected is a test that failed; one that is skipped whole, a test that is skipped."""
        if report.outcome != "passed":
            self.report(report, report.outcome, True, 0.0)

    def report(self, report, outcome: str, ended: bool, seconds: float) -> None:
        more = {}
        if outcome != "passed":
            more["why"] = why(report.longrepr)
        if outcome == "failed":
            more["text"] = COLOUR.sub("", str(report.longrepr))
        self.write(
            "report",
            test=report.nodeid,
            outcome=outcome,
            ended=ended,
            seconds=round(seconds, 4),
            **more,
        )


def file_of(test: str) -> str:
    """The file of a test that pytest calls `test`."""
    return test.split("::")[0]


def why(longrepr) -> str:
    """The first line of what went wrong, or the reason of a skip."""
    if isinstance(longrepr, tuple):
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return COLOUR.sub("", crash.message).strip().split("\n")[0]
    lines = [line for line in COLOUR.sub("", str(longrepr)).splitlines() if line.strip()]
    if lines[0] == "Notebook cell execution failed":
        return why_cell(lines)
    # Of a file that cannot be collected there is only a text: its error is what pytest marks.
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return [*errors, lines[0].strip()][0]


def why_cell(lines: list[str]) -> str:
    """What nbval says of a cell: that it raised, and what; or that it printed something else, and what."""
    after = lines[lines.index("Traceback:") + 1 :] if "Traceback:" in lines else []
    compared = [line for line in after if " == " in line and "reference_output" not in line]
    what = re.sub(r"^Cell \d+: ", "", lines[1])
    return ": ".join([what, *(line.strip() for line in compared[:1] or after[-1:])])
