"""What `make quick` runs: the tests that mirror what has changed, until its time is over."""

import io
import os
import subprocess
import sys
import time

import pytest

from tests import quick
from tests.all import Part, Run
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


def test_what_runs_when_a_lesson_has_changed():
    found = {part.name: part for part in quick.chosen(["course/02_messages/bugs.py", "a.py"])}
    assert found["lint"].checks[-1][1:] == ["course/build.py", "--check", "02"]
    assert found["bank"].spread[-2:] == ["-k", "02_messages"]
    assert found["nbval"].spread[-2:] == [
        "notebooks/02_messages.ipynb",
        "solutions/02_messages/02_messages.ipynb",
    ]
    assert list(found) == ["lint", "tests", "bank", "nbval"]
    assert [part.name for part in quick.chosen(["minidist/split.py"])] == ["lint", "tests"]


def test_no_part_begins_when_the_time_is_over(tmp_path):
    parts = [Part("lint", checks=[[sys.executable, "-c", ""]]), Part("tests", spread=["--help"])]
    out = io.StringIO()
    assert Run(parts, {}, tmp_path, out, time.time() - 1).run() == 0
    assert "0 passed, 0 failed, 2 skipped" in out.getvalue() and "`make test`" in out.getvalue()


@pytest.mark.parametrize(("seconds", "words"), [(-1, "1 skipped"), (600, "1 passed")])
def test_nothing_begins_when_the_time_is_over(tmp_path, seconds, words):
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-rs", tmp_path / "test_a.py"]
    environment = os.environ | {quick.UNTIL: str(time.time() + seconds)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert words in run.stdout and ("make test" in run.stdout) == (seconds < 0)
