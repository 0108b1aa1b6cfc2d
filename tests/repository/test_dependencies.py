"""One list of dependencies, in pyproject.toml; everything else points at it or pins it."""

import importlib.metadata
import re
import tomllib

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


def unknown_extras(environment, extras):
    """What environment.yml installs from this project that the project does not have."""
    lines = [line for d in environment["dependencies"] if isinstance(d, dict) for line in d["pip"]]
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


def test_a_requirement_without_a_pin_is_found():
    assert unpinned([Requirement("torch>=2.11")], {"numpy": "2.4.6"})
    assert unpinned([Requirement("torch>=2.11")], {"torch": "2.10.0"})
    assert "pluggy" in closure([Requirement("pytest")])


@pytest.mark.parametrize("line", ["numpy>=2", "numpy @ https://x.org/numpy.whl", "-e .", "--pre"])
def test_constraints_hold_nothing_else(line):
    with pytest.raises(ValueError, match="name==version"):
        pins(line)
