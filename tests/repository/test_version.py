"""The version stands in one place, and a system on which nothing can work says so at the import."""

import subprocess
import sys
import tomllib

import minidist
from minicheck.__main__ import main
from tests.repository.files import ROOT

# What a reader would meet there, without the machine: only the name of the system is another.
ELSEWHERE = "import sys; sys.platform = 'win32'; import {}"


def test_pyproject_reads_the_version_of_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in settings["project"] and settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "minidist.__version__"}


def test_the_command_says_it(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"minidist {minidist.__version__}\n"


def test_windows_is_told_of_wsl():
    for package in ("minidist", "minicheck", "minidist.comm.world"):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE.format(package)],
            cwd=ROOT,
            text=True,
            capture_output=True,
        )
        last = done.stderr.splitlines()[-1]
        assert done.returncode and last.startswith("ImportError: minidist runs on Linux and macOS")
        assert "WSL" in last and "SIGALRM" in last
