"""README.md followed to the letter by a newcomer, who has nothing but this machine's Python, git and make."""

import shutil
import subprocess

import pytest

from tests.repository.files import ROOT
from tests.repository.newcomer import Here, commands, front_door

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_lines_that_a_newcomer_types_are_in_it():
    """Should a block be renamed, this fails before the long way does."""
    assert commands(README, having="git clone") == [
        "git clone ADDRESS minidist",
        "cd minidist",
        "make lab",
    ]
    assert commands(README, having="make work")[:2] == ["make work", ". .venv/bin/activate"]
    assert "python -m minicheck 02_messages" in commands(README, having="make work")


@pytest.mark.full
def test_a_fresh_clone_in_a_fresh_shell(tmp_path, figure):
    (tmp_path / "home").mkdir()
    bare = tmp_path / "repository"
    subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(bare)], check=True)
    typed = front_door(Here(tmp_path / "home"), str(bare), figure)
    assert len(typed) > 8
    size = sum(
        f.stat().st_size for f in (tmp_path / "home/minidist/.venv").rglob("*") if f.is_file()
    )
    figure(f"the environment: {size / 1e9:.1f} GB")
    shutil.rmtree(tmp_path / "home")
