"""`make quick`: lint, who imports whom, and the tests and notebooks of what has changed, in two minutes.

What has changed is what git sees beside the last commit; in a clean tree, what the last commit changed.

    minidist/A/B.py         tests/A/test_B.py; without it tests/A/, or what mirrors the nearest folder above
    minicheck/A/B.py        the same below tests/minicheck/; an oracle is tested with its lesson
    benchmarks/B.py         tests/benchmarks/test_B.py
    tests/A/test_B.py       itself; a file beside the tests of a folder, all of them
    course/NN_topic/*.py    the lesson's planted answers, and its notebooks: fresh, and their outputs as they were
    course/**/*.svg         tests/repository/test_figures.py

What has not begun after two minutes is skipped, and told. It is for the minutes between two edits: `make test` runs
everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120
UNTIL = "MINIDIST_QUICK_UNTIL"  # of the clock, for the workers of pytest
ALWAYS = ("tests/repository/test_imports.py", "tests/repository/test_syntax.py")
FIGURES = "tests/repository/test_figures.py"


def pytest_runtest_setup(item):
    """With `-p tests.quick`: nothing begins when the time is over."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"{SECONDS} s are over: `make test` runs it")


def changed_files() -> list[str]:
    """Paths from the root, in order."""
    beside = git("diff", "--name-only", "HEAD") + git("ls-files", "-o", "--exclude-standard")
    return sorted(set(beside or git("diff", "--name-only", "HEAD~1", "HEAD")))


def git(*command: str) -> list[str]:
    run = ["git", *command]
    return subprocess.run(
        run, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def tests_of(path: str) -> str | None:
    """The test file or folder that is nearest to a file of the repository; None if none mirrors it."""
    file = Path(path)
    if file.parts[0] == "course" and file.suffix == ".svg":
        return FIGURES
    if file.suffix != ".py" or len(file.parts) < 2:
        return None
    if file.parts[0] == "tests":
        mirrored = file
        if file.name.startswith("test_"):
            return path if (ROOT / path).exists() else None
    elif file.parts[0] == "minidist":
        mirrored = Path("tests", *file.parts[1:])
    else:  # an oracle is tested with its lesson
        mirrored = Path("tests", *("lessons" if part == "oracles" else part for part in file.parts))
    for stem, folder in [(mirrored.stem, mirrored.parent)] + [
        (above.name, above.parent) for above in mirrored.parents
    ]:
        if folder in (Path(), Path(".")):
            return None
        test = folder / f"test_{stem}.py"
        if (ROOT / test).exists():
            return str(test)
        if folder != Path("tests") and [*(ROOT / folder).glob("test_*.py")]:
            return str(folder)
    return None


def lessons_of(paths: list[str]) -> list[str]:
    """The folders of the course that hold one of `paths` which is Python: a figure changes no notebook."""
    parts = [Path(path).parts for path in paths if path.endswith(".py")]
    return sorted({p[1] for p in parts if p[0] == "course" and len(p) > 2})


def main() -> int:
    until = time.time() + SECONDS
    paths = changed_files()
    lessons = lessons_of(paths)
    failed = []

    def run(what: str, *command: str) -> None:
        left = until - time.time()
        print(f"-- {what}" if left > 0 else f"-- {what}: not run, {SECONDS} s are over", flush=True)
        environment = os.environ | {UNTIL: str(until), "OMP_NUM_THREADS": "1"}
        if left > 0 and subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed.append(what)

    python = sys.executable
    run("lint", python, "-m", "ruff", "check", "-q", ".")
    run("format", python, "-m", "ruff", "format", "-q", "--check", ".")
    run("types", python, "-m", "mypy")
    if lessons:
        numbers = [lesson.partition("_")[0] for lesson in lessons]
        run("notebooks are fresh", python, "course/build.py", "--check", *numbers)
    tests = dict.fromkeys([*ALWAYS, *filter(None, map(tests_of, paths))])
    pytest_command = (python, "-m", "pytest", "-q", "-p", "tests.quick")
    side_by_side = (*pytest_command, "-n", "2", "--dist", "worksteal")
    run(f"{len(tests)} tests or folders of them", *side_by_side, "-m", "not alone", *tests)
    for lesson in lessons:
        run(f"{lesson}: planted answers", *side_by_side, "tests/bank/test_bank.py", "-k", lesson)
        for notebook in (f"notebooks/{lesson}.ipynb", f"solutions/{lesson}/{lesson}.ipynb"):
            if (ROOT / notebook).exists():
                nbval = ("-p", "tests.warm", "--nbval", "--nbval-current-env")
                run(notebook, *pytest_command, *nbval, notebook)
    untested = [
        path
        for path in paths
        if path.endswith(".py") and not path.startswith("course/") and tests_of(path) is None
    ]
    if untested:
        print(f"-- no test mirrors {', '.join(untested)}")
    print(f"-- failed: {', '.join(failed)}" if failed else "-- passed; `make test` runs everything")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
