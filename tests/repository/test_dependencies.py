"""One list of dependencies, in pyproject.toml; everything else points at it or pins it."""

import importlib.metadata
import os
import re
import subprocess
import sys
import time
import tomllib
from contextlib import suppress

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.repository.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
# What a build of torch for an accelerator brings along depends on the machine.
ACCELERATOR = re.compile(r"nvidia-|cuda-|triton|pytorch-triton|intel-")


def pins(text):
    """{name: version} of a constraints file, which holds `name==version` and nothing else."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", line)
        if not match:
            raise ValueError(f"not name==version: {line!r}")
        found[canonicalize_name(match[1])] = match[2]
    return found


def requirements():
    extras = PROJECT["optional-dependencies"].values()
    return [
        Requirement(r) for r in [*PROJECT["dependencies"], *(r for extra in extras for r in extra)]
    ]


def unpinned(needs, pinned):
    """The requirements that `pinned` does not fix, or fixes against what they ask for."""
    fits = {r: pinned.get(canonicalize_name(r.name)) for r in needs}
    return [
        str(r)
        for r, version in fits.items()
        if version is None or not r.specifier.contains(version, True)
    ]


def closure(needs):
    """All that is installed because of `needs`: their requirements, and the requirements of those, as names."""
    seen, todo = set(), [(canonicalize_name(r.name), frozenset(r.extras)) for r in needs]
    while todo:
        name, extras = item = todo.pop()
        if item in seen or ACCELERATOR.match(name):
            continue
        seen.add(item)
        for r in map(Requirement, importlib.metadata.requires(name) or []):
            if not r.marker or any(r.marker.evaluate({"extra": e}) for e in extras | {""}):
                todo.append((canonicalize_name(r.name), frozenset(r.extras)))
    return {name for name, _ in seen}


def pip_lines(environment):
    """What environment.yml hands to pip: the lines of a file of requirements."""
    return [line for d in environment["dependencies"] if isinstance(d, dict) for line in d["pip"]]


def unknown_extras(environment, extras):
    """What environment.yml installs from this project that the project does not have."""
    lines = [line for line in pip_lines(environment) if not line.startswith("-c ")]
    named = [e.strip() for line in lines for e in re.findall(r"\[(.*?)\]", line)[0].split(",")]
    return sorted(set(named) - set(extras)) if named else ["none named"]


def test_the_core_stays_small():
    names = {Requirement(r).name for r in PROJECT["dependencies"]}
    assert names == {"torch", "numpy", "cloudpickle", "safetensors", "matplotlib"}


def test_environment_points_at_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(
        d for d in environment["dependencies"] if isinstance(d, str) and d.startswith("python")
    )
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert pip_lines(environment) == ["-c constraints.txt", "-e .[course]"]
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])
    assert unknown_extras(environment, PROJECT["optional-dependencies"]) == []


@pytest.mark.parametrize("line", ["-e .[curse]", "-e .[course,tech]"])
def test_a_wrong_extra_is_found(line):
    assert unknown_extras(
        {"dependencies": ["pip", {"pip": [line]}]}, PROJECT["optional-dependencies"]
    )


def test_constraints_fit_every_requirement():
    assert unpinned(requirements(), pins(CONSTRAINTS)) == []


def test_constraints_fix_what_these_require_in_turn():
    assert closure(requirements()) - set(pins(CONSTRAINTS)) == set()


def refused(pinned, pythons):
    """What is installed as it is pinned, and does not install with one of these versions of Python."""
    asked = {}
    for name, version in pinned.items():
        with suppress(importlib.metadata.PackageNotFoundError):
            metadata = importlib.metadata.metadata(name)
            if metadata["Version"].partition("+")[0] == version:
                asked[name] = metadata["Requires-Python"] or ""
    return {
        name: specifier
        for name, specifier in asked.items()
        if not all(SpecifierSet(specifier).contains(python) for python in pythons)
    }


def test_constraints_fit_the_first_release_of_each_python():
    """Debian 12 has 3.11.2: what asks for 3.11.5 cannot be installed there."""
    assert refused(pins(CONSTRAINTS), ["3.11.0", "3.12.0", "3.13.0"]) == {}
    assert len(refused(pins(CONSTRAINTS), ["3.5"])) > 50


def test_a_requirement_without_a_pin_is_found():
    assert unpinned([Requirement("torch>=2.11")], {"numpy": "2.4.6"})
    assert unpinned([Requirement("torch>=2.11")], {"torch": "2.10.0"})
    assert "pluggy" in closure([Requirement("pytest")])


@pytest.mark.parametrize("line", ["numpy>=2", "numpy @ https://x.org/numpy.whl", "-e .", "--pre"])
def test_constraints_hold_nothing_else(line):
    with pytest.raises(ValueError, match="name==version"):
        pins(line)


@pytest.mark.full
@pytest.mark.parametrize("name", ["condaenv.requirements.txt", ".binder/requirements.txt"])
def test_pip_takes_what_conda_and_binder_hand_to_it(tmp_path, figure, name):
    """They themselves are not tried. conda writes the lines under `pip` to a file beside environment.yml, and runs pip there;
    Binder runs pip in the repository. Where PyTorch's builds for CPUs are is left to the settings of this machine."""
    clone = tmp_path / "minidist"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    if name.startswith("conda"):
        lines = pip_lines(yaml.safe_load((clone / "environment.yml").read_text()))
        words = ["install", "-U", "-r", name, "--exists-action=b"]
    else:
        lines = (clone / name).read_text().splitlines()
        lines = [line for line in lines if line.startswith(("-c ", "-e "))]
        words = ["install", "--no-cache-dir", "-r", name]
    (clone / name).write_text("\n".join(lines))
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = tmp_path / "venv" / "bin" / "python"

    def run(*words):
        done = subprocess.run(words, cwd=clone, env=ours, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    start = time.monotonic()
    run(python, "-m", "pip", *words)
    minutes = (time.monotonic() - start) / 60
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--exclude-editable")
    pinned = pins(CONSTRAINTS)
    # A local version, torch==2.13.0+cpu, is the pinned one.
    installed = {name: version.partition("+")[0] for name, version in pins(listed).items()}
    other = {name: v for name, v in installed.items() if v != pinned.get(name)}
    figure(f"{name}: {len(installed)} packages in {minutes:.1f} min, all but pip itself as pinned")
    assert set(other) <= {"pip"} and len(installed) > 50
