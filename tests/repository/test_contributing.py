"""Each first change of CONTRIBUTING.md is what a newcomer can do: its lines are there, and its commands work."""

import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from tests.repository.files import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:In `([^`]+)`:\n\n)?```(sh|diff)\n(.*?)```", re.DOTALL)


def first_changes(text):
    """The steps of each change, and of what comes before them: (heading, [(file or None, "sh" or "diff", lines)])."""
    section = text.partition("## Your first change in 15 minutes\n")[2].partition("\n## ")[0]
    for part in section.split("\n### "):
        yield part.partition("\n")[0], BLOCK.findall(part)


def edited(before, lines, name):
    """The text `before` with the edit that a diff's `lines` show. ValueError unless what it changes stands there once."""
    old = [line[1:] for line in lines.splitlines() if line[0] in "- "]
    new = [line[1:] for line in lines.splitlines() if line[0] in "+ "]
    found = before.count("\n".join(old))
    if found != 1:
        raise ValueError(f"{name} has {old} {found} times")
    return before.replace("\n".join(old), "\n".join(new))


START, *CHANGES = first_changes(TEXT)


def test_there_are_three():
    assert [heading for heading, _ in CHANGES] == [
        "A sentence of a lesson",
        "A clearer error, with its test",
        "A wrong answer that a grader must find",
    ]
    assert [len(steps) for _, steps in (START, *CHANGES)] == [1, 4, 5, 3]


@pytest.mark.parametrize(("heading", "steps"), CHANGES, ids=[heading for heading, _ in CHANGES])
def test_what_a_change_edits_is_there(heading, steps):
    edits = [(name, lines) for name, kind, lines in steps if kind == "diff"]
    assert edits
    for name, lines in edits:
        before = (ROOT / name).read_text(encoding="utf-8")
        assert edited(before, lines, name) != before


def test_an_edit_of_what_is_not_there_is_found():
    assert edited("a\nb\n", "-b\n+c\n", "x") == "a\nc\n"
    assert edited("a\nb\n", " a\n+c\n", "x") == "a\nc\nb\n"
    for before in ("a\n", "b\nb\n"):
        with pytest.raises(ValueError, match=r"x has \['b'\]"):
            edited(before, "-b\n+c\n", "x")


class Newcomer:
    """A clone, and a copy of it in the place of the one on GitHub; what is installed here stands for its `.venv`."""

    def __init__(self, folder):
        self.folder = folder / "minidist"
        self.fork = folder / "fork.git"
        subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(self.fork)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.fork), str(self.folder)], check=True)
        self.git("switch", "-q", "-C", "main")
        self.git("config", "user.name", "A newcomer")
        self.git("config", "user.email", "newcomer@example.org")

    def git(self, *words):
        return subprocess.run(
            ["git", *words], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout

    def run(self, command):
        """A command of the page. `make quick` and `.venv/bin/` mean here what they mean where `.venv` is made."""
        words = shlex.split(command)
        if words == ["make", "quick"]:
            words = [".venv/bin/python", "-m", "tests.quick"]
        if words[0] == ".venv/bin/python":
            words[0] = sys.executable
        elif words[0].startswith(".venv/bin/"):
            words[:1] = [sys.executable, "-m", words[0].removeprefix(".venv/bin/")]
        ours = ("PYTHONPATH", "MINIDIST_FULL")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        return subprocess.run(
            words,
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def test_the_commands_that_begin_it():
    [(_, kind, lines)] = START[1]
    assert kind == "sh"
    assert lines.splitlines()[1:] == ["cd minidist", "make quick"]
    assert lines.startswith("git clone https://github.com/OWNER/NAME.git minidist\n")


@pytest.mark.full
@pytest.mark.parametrize(("heading", "steps"), CHANGES, ids=[heading for heading, _ in CHANGES])
def test_a_change_goes_as_it_says(heading, steps, tmp_path, figure):
    newcomer = Newcomer(tmp_path)
    start = time.monotonic()
    failed = []
    for name, kind, lines in steps:
        if kind == "diff":
            path = newcomer.folder / name
            path.write_text(edited(path.read_text(encoding="utf-8"), lines, name), encoding="utf-8")
            continue
        for command in lines.splitlines():
            done = newcomer.run(command)
            if done.returncode:
                failed.append(command)
                assert "at least 1 rank" in done.stdout, f"{command}\n{done.stdout[-3000:]}"
    minutes = (time.monotonic() - start) / 60
    figure(f"{heading}: {minutes:.1f} min without installing")
    wanted = ".venv/bin/python -m pytest -q tests/test_split.py"  # before the message is mended
    assert failed == ([wanted] if heading.startswith("A clearer error") else [])
    assert newcomer.git("status", "--short") == ""
    changed = newcomer.git("diff", "--name-only", "main", "HEAD").split()
    edits = {name for name, kind, _ in steps if kind == "diff"}
    built = {"notebooks/02_messages.ipynb"} if heading.startswith("A sentence") else set()
    assert set(changed) == edits | built
    branch = newcomer.git("branch", "--show-current").strip()
    assert newcomer.git("rev-parse", f"origin/{branch}") == newcomer.git("rev-parse", "HEAD")
    assert minutes < 10
