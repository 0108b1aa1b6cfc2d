"""`make quick`: lint, who imports whom, and the tests and notebooks of what has changed, in two minutes.

What has changed is what git sees beside the last commit; in a clean tree, what the last commit changed.

    minidist/A/B.py         tests/A/test_B.py; without it tests/A/, or what mirrors the nearest folder above
    minicheck/A/B.py        the same below tests/minicheck/; an oracle is tested with its lesson
    benchmarks/B.py         tests/benchmarks/test_B.py
    tests/A/test_B.py       itself; a file beside the tests of a folder, all of them
    course/NN_topic/*.py    the lesson's planted answers, and its notebooks: fresh, and their outputs as they were
    course/**/*.svg         tests/repository/test_figures.py

What has not begun after two minutes is skipped, and told. It is for the minutes between two edits: `make test` runs
everything. How it tells of all this is tests/all.py's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.all import FOLDER, NBVAL, Part, Run, begin

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


def chosen(paths: list[str]) -> list[Part]:
    """What runs when `paths` have changed, in order."""
    python = sys.executable
    checks = [
        [python, "-m", "ruff", "check", "-q", "."],
        [python, "-m", "ruff", "format", "-q", "--check", "."],
        [python, "-m", "mypy"],
    ]
    lessons = lessons_of(paths)
    if lessons:
        numbers = [lesson.partition("_")[0] for lesson in lessons]
        checks.append([python, "course/build.py", "--check", *numbers])
    one_thread = {"OMP_NUM_THREADS": "1"}
    side_by_side = ["-p", "tests.quick", "-n", "2", "--dist"]
    tests = dict.fromkeys([*ALWAYS, *filter(None, map(tests_of, paths))])
    spread = [*side_by_side, "worksteal", "-m", "not alone", *tests]
    found = [Part("lint", checks=checks), Part("tests", spread=spread, settings=one_thread)]
    if lessons:
        planted = ["tests/bank/test_bank.py", "-k", " or ".join(lessons)]
        spread = [*side_by_side, "worksteal", *planted]
        found.append(Part("bank", spread=spread, settings=one_thread))
    built = [path for lesson in lessons for path in notebooks_of(lesson)]
    if built:
        spread = [*side_by_side, "loadfile", *built]
        found.append(Part("nbval", flags=NBVAL, spread=spread, settings=one_thread))
    return found


def notebooks_of(lesson: str) -> list[str]:
    named = (f"notebooks/{lesson}.ipynb", f"solutions/{lesson}/{lesson}.ipynb")
    return [path for path in named if (ROOT / path).exists()]


def main() -> int:
    until = time.time() + SECONDS
    os.environ[UNTIL] = str(until)
    paths = changed_files()
    code = begin(Run(chosen(paths), {}, FOLDER / "quick", sys.stdout, until))
    untested = [
        path
        for path in paths
        if path.endswith(".py") and not path.startswith("course/") and tests_of(path) is None
    ]
    if untested:
        print(f"-- no test mirrors {', '.join(untested)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
