"""What `make quick` runs: the tests that mirror what has changed, until its time is over."""

import os
import subprocess
import sys
import time

import pytest

from tests import quick
from tests.repository.files import ROOT, repository


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("minidist/split.py", "tests/test_split.py"),
        ("minidist/comm/launch.py", "tests/comm/test_launch.py"),
        ("minidist/collectives/buffers.py", "tests/collectives/test_buffers.py"),
        ("minidist/parallel/data.py", "tests/parallel/test_data.py"),
        ("minidist/comm/__init__.py", "tests/comm"),
        ("minicheck/guard.py", "tests/minicheck/test_guard.py"),
        ("minicheck/lessons/zero.py", "tests/minicheck/lessons/test_zero.py"),
        ("minicheck/oracles/zero.py", "tests/minicheck/lessons/test_zero.py"),
        ("benchmarks/trainer.py", "tests/benchmarks/test_trainer.py"),
        ("tests/test_split.py", "tests/test_split.py"),
        ("tests/collectives/cases.py", "tests/collectives"),
        ("course/04_trees/figures/tree_rounds.svg", "tests/repository/test_figures.py"),
        ("tests/test_that_is_gone.py", None),
        ("README.md", None),
        ("conftest.py", None),
        ("minidist/__init__.py", None),
    ],
)
def test_the_tests_of_a_file(path, tests):
    assert quick.tests_of(path) == tests


def test_all_that_it_names_is_there():
    named = {path: quick.tests_of(str(path)) for path in repository("*.py")}
    assert all((ROOT / tests).exists() for tests in named.values() if tests)
    without = [
        str(path)
        for path, tests in named.items()
        if tests is None and path.parts[0] in ("minidist", "minicheck")
    ]
    assert without == ["minidist/__init__.py"]


def test_lessons():
    paths = ["course/02_messages/bugs.py", "course/build.py", "course/01_walls/lesson.py", "a.py"]
    paths += ["course/04_trees/figures/tree_rounds.svg"]
    assert quick.lessons_of(paths) == ["01_walls", "02_messages"]


@pytest.mark.parametrize(("seconds", "words"), [(-1, "1 skipped"), (600, "1 passed")])
def test_nothing_begins_when_the_time_is_over(tmp_path, seconds, words):
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-rs", tmp_path / "test_a.py"]
    environment = os.environ | {quick.UNTIL: str(time.time() + seconds)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert words in run.stdout and ("make test" in run.stdout) == (seconds < 0)
