"""What README.md tells a newcomer to type works, and its table of techniques is true."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.repository.files import ROOT, repository

README = (ROOT / "README.md").read_text(encoding="utf-8")
FINDER = (ROOT / "course/python.sh").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| ([^|]+) \| `(\w+)` \| \[(minidist/[\w/]+\.py)\]\((\S+)\) "
    r"\| \[(\d\d)\]\(((?:notebooks|exercises)/\S+)\.ipynb\) \|$",
    re.MULTILINE,
)
TECHNIQUES = ROW.findall(README)
VERSIONS = ["3.11", "3.12", "3.13"]
# What is there only once the environment is activated.
ACTIVATED = (". .venv/bin/activate", "conda activate minidist")
INSTALLED = ("python ", "torchrun ", "nbgrader ", "pip ", "jupyter ")


def test_there_are_techniques():
    assert len(TECHNIQUES) > 50


@pytest.mark.parametrize(
    ("technique", "name", "path", "link", "number", "notebook"),
    TECHNIQUES,
    ids=[f"{row[2]}:{row[1]}" for row in TECHNIQUES],
)
def test_each_technique_is_where_the_table_says(technique, name, path, link, number, notebook):
    """Where a technique has no lesson yet, the table leads to its exercises."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert getattr(module, name).__module__ == module.__name__, (
        "it is imported there, and stands elsewhere"
    )
    assert (
        link == path
        and Path(notebook).name.startswith(f"{number}_")
        and (ROOT / f"{notebook}.ipynb").exists()
    )
    folder = ROOT / "course" / Path(notebook).name
    assert notebook.startswith("notebooks/") == (folder / "lesson.py").exists()


def programs():
    """The blocks of Python that stand alone."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if block.startswith("import torch")]


def results(program):
    """[(value, comment)] of the lines at its end that say in a comment what they give."""
    names = {}
    body, shown = [], []
    for line in program.splitlines():
        code, _, comment = line.partition("  # ")
        if comment and not line.startswith((" ", "run =")):
            shown.append((code, comment))
        else:
            body.append(line)
    exec("\n".join(body), names)
    return [(eval(code, names), comment) for code, comment in shown], names


def test_the_example_trains_as_it_says():
    train, _ = programs()
    shown, names = results(train)
    assert [round(value, 3) for value in names["run"]] == [0.903] * 4
    (sent, says), (launched, _) = shown
    assert str(sent) == says
    assert [round(value, 3) for value in launched] == [0.903] * 4


def test_the_simulation_says_seconds_and_bytes():
    _, simulation = programs()
    [((seconds, peak), _)], _ = results(simulation)
    assert 0 < seconds < 0.1
    assert peak >= 64 << 20


def test_each_folder_of_techniques_is_in_the_table():
    folders = {
        path.parent
        for path in repository("minidist/train/*/__init__.py", "minidist/parallel/*/__init__.py")
    }
    named = {parent for row in TECHNIQUES for parent in Path(row[2]).parents}
    assert {f for f in folders if len(f.parts) == 3} - named == set()


def without_activation(text):
    """The blocks of commands that use what is installed, and do not activate the environment first."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        used = [i for i, line in enumerate(lines) if line.startswith(INSTALLED)]
        before = lines[: used[0]] if used else []
        if used and not any(line.startswith(ACTIVATED) for line in before):
            found.append(block)
    return found


def test_commands_come_after_the_environment():
    assert without_activation(README) == []


def test_a_command_without_it_is_found():
    assert without_activation("```\ntorchrun x.py\n. .venv/bin/activate\n```\n")
    assert without_activation("```python\nx = 1\n```\n\n```\npython -m x\n```\n")
    assert not without_activation(
        "```\n. .venv/bin/activate\ntorchrun x.py\n```\n```\nmake lab\n```\n"
    )


def test_no_heading_and_no_link_says_nothing():
    assert (
        re.findall(
            r"\*\*here\*\*|\[here\]|^#+ *here|\| *\| *\|", README, re.MULTILINE | re.IGNORECASE
        )
        == []
    )


def test_the_versions_of_python_are_those_of_the_package():
    asked = SpecifierSet(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    )
    assert [v for v in (f"3.{minor}" for minor in range(9, 20)) if asked.contains(v)] == VERSIONS
    words = f"Python {', '.join(VERSIONS[:-1])} or {VERSIONS[-1]}"
    assert words in README and words in FINDER
