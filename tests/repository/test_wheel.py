"""What `pip wheel .` makes holds all that the package reads, and works where the repository is not."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.repository.files import ROOT, repository

PACKAGES = ("minidist", "minicheck")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
USE = """
import runpy, sys, torch, minicheck, minidist
from minidist.collectives import all_reduce_
from minidist.comm import World, launch

def program(comm):
    return all_reduce_(comm, torch.ones(1000) * comm.rank)[0].item()

for package in (minicheck, minidist):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
run = World(3).run(program)
print(list(run), list(launch(program, 3)), list(launch(program, 3, transport="gloo")))
from minidist.study import published, viewer
viewer(run.trace).save("run.html")
print(len(published("zero")) > 0, open("run.html").read().count("<script"))
sys.argv = "plan --model gpt2-1.5b --cluster h100:1x8 --batch 8".split()
runpy.run_module("minidist.study.plan", run_name="__main__")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the repository as it would be cloned."""
    clone, made = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("made")
    for path in repository(*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        (clone / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, clone / path)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(made)], cwd=clone, check=True, capture_output=True
    )
    return next(made.glob("*.whl"))


def test_it_holds_every_file_of_the_package(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {path.as_posix() for path in repository(*PACKAGES)}
    assert {path for path in files if not path.endswith(".py")}, "files that are read"
    assert files - held == set()
    assert {name for name in held - files if ".dist-info/" not in name} == set()


def test_it_works_outside_the_repository(wheel, tmp_path):
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    environment = os.environ | {"PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
    used = subprocess.run(
        [sys.executable, "-P", "-c", USE, str(unpacked)],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
    )
    ranks, files, *planned = used.stdout.splitlines() or [used.stderr] * 2
    assert ranks == "[3.0, 3.0, 3.0] " * 2 + "[3.0, 3.0, 3.0]"
    assert files == "True 5"
    assert any("MFU" in line for line in planned), used.stderr
