"""What `pip wheel .` makes holds all that the package reads, and works where the repository is not."""

import os
import shutil
import subprocess
import sys
import time
import zipfile

import pytest

import minidist
from course.install import size_of
from tests.repository.files import ROOT, repository

PACKAGES = ("minidist", "minicheck")
# pip builds where PyTorch is not there yet.
BUILD = """
import sys
sys.modules["torch"] = None
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""
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


def test_its_version_is_that_of_the_package(wheel):
    """It is read from the text, without importing the package."""
    assert wheel.name.startswith(f"minidist-{minidist.__version__}-")


def test_it_holds_every_file_of_the_package(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {path.as_posix() for path in repository(*PACKAGES)}
    assert {path for path in files if not path.endswith(".py")}, "files that are read"
    assert files - held == set()
    assert {name for name in held - files if ".dist-info/" not in name} == set()


def test_it_says_its_licence_and_brings_it(wheel):
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    head = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    said = [line for line in head if line.startswith("License")]
    assert said == ["License-Expression: MIT", "License-File: LICENSE"]
    [licence] = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def used(python, site, folder, environment):
    """Works in `folder` with the package that lies somewhere under `site`; the row of the planner."""
    used = subprocess.run(
        [python, "-P", "-c", USE, str(site)],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
    )
    ranks, files, *planned = used.stdout.splitlines() or [used.stderr] * 2
    assert ranks == "[3.0, 3.0, 3.0] " * 2 + "[3.0, 3.0, 3.0]"
    assert files == "True 5"
    rows = [line for line in planned if "MFU" in line]
    assert rows, used.stderr
    return rows[0]


def test_it_works_outside_the_repository(wheel, tmp_path):
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    used(sys.executable, unpacked, tmp_path, os.environ | {"PYTHONPATH": str(unpacked)})


IMPORTED = """
import sys
import minidist
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
"""


def test_the_import_takes_no_more_than_it_needs():
    """Pictures and checkpoints wait until they are asked for, and nothing that only the course needs is looked for."""
    core = ("torch", "numpy", "cloudpickle", "safetensors", "matplotlib")
    others = ("IPython", "ipykernel", "ipywidgets", "jupyterlab", "nbformat", "sklearn", "pygments")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *core, *others],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == ["cloudpickle", "numpy", "torch"]


@pytest.mark.full
def test_pip_installs_it_into_an_empty_environment(tmp_path, figure):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words, cwd=tmp_path):
        """What it prints, and its seconds."""
        start = time.monotonic()
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, time.monotonic() - start

    python = str(tmp_path / "venv" / "bin" / "python")
    run(sys.executable, "-m", "venv", "venv")
    run(python, "-m", "pip", "wheel", ".", "--no-deps", "-w", str(tmp_path), cwd=ROOT)
    [wheel] = tmp_path.glob("*.whl")
    constraints = ["-c", str(ROOT / "constraints.txt")]
    _, seconds = run(python, "-m", "pip", "install", *constraints, str(wheel))
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    sizes = {path.name: size_of(path) / 1e6 for path in site.iterdir()}
    packages, _ = run(python, "-m", "pip", "list", "--format=freeze")
    figure(
        f"pip install of the wheel ({wheel.stat().st_size / 1e6:.1f} MB): {len(packages.split())} packages, "
        f"{sum(sizes.values()):.0f} MB, of which torch {sizes['torch']:.0f}, in {seconds:.0f} s"
    )
    run(python, "-c", "import torch")
    _, torch_seconds = run(python, "-c", "import torch")
    run(python, "-c", "import minidist")
    _, minidist_seconds = run(python, "-c", "import minidist")
    figure(f"import torch: {torch_seconds:.1f} s; import minidist: {minidist_seconds:.1f} s")
    row = used(python, tmp_path / "venv", tmp_path, environment)
    figure(f"World, shared memory and gloo alike; the planner: {row.strip()}")
