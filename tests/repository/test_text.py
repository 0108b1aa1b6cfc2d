"""Texts name what exists, and nothing that exists on one machine only."""

import json
import re

import pytest
from docutils.utils.math import MathError, latex2mathml

from tests.repository.files import ROOT, repository

MACHINE = re.compile(
    r"(?<![\w.~-])/(?:home|Users|root|work|opt)/[\w.]+"  # someone's folder
    r"|file://[/\w]+|[A-Z]:\\Users"
    r"|(?:index-url|find-links)\s*=?\s*(?!https://download\.pytorch\.org/)\S+"  # someone's registry
    r"|^(?:<{7}|={7}|>{7})(?: |$)",
    re.MULTILINE,
)
TOP = "(?:minidist|course|notebooks|exercises|solutions|tests|benchmarks|examples|\\.ci)"
PATH = re.compile(rf"(?<![\w/.-]){TOP}/[\w./*-]*[\w/*]|(?<![\w/.-])[\w-]+\.(?:md|toml|txt|yml)\b")
LINK = re.compile(r"\]\((?!https?:|#|mailto:|(?:term|lesson|file|paper):)([^)#\s]+)")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
MODULE = re.compile(r"-m ((?:minidist|benchmarks)(?:\.\w+)*)")


def machine_words(text):
    return [m[0] for m in MACHINE.finditer(text)]


def dead_paths(text, exists):
    """The paths that `text` names and that are not there. NN stands for any lesson, `*` for anything."""
    named = {m[0] for m in PATH.finditer(text)} | {m[1] for m in LINK.finditer(text)}
    named |= {m[1].replace(".", "/") for m in MODULE.finditer(text)}
    return sorted(p for p in named if not exists(re.sub(r"NN_\w+", "*", p)))


def exists(pattern):
    """Whether a file, a folder or a module matches `pattern`."""
    return any(next(ROOT.glob(p), None) for p in (pattern.rstrip("/"), f"{pattern}.py"))


def test_no_machine_in_any_text():
    found = []
    for path in repository():
        if path.suffix not in (".png", ".pt", ".safetensors") and path.name != "test_text.py":
            text = (ROOT / path).read_text(encoding="utf-8")
            found += [f"{path}: {word}" for word in machine_words(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "see /home/ann/course",
        "open('/root/x')",
        "cd /opt/wheels",
        "numpy @ file:///wheels/numpy.whl",
        "--index-url https://registry.example.org",
        "C:\\Users",
        "<<<<<<< HEAD",
    ],
)
def test_a_machine_is_found(text):
    assert machine_words(text)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "Makefile", ".ci/run", "nbgrader_config.py"]
)
def test_named_paths_exist(name):
    assert dead_paths((ROOT / name).read_text(encoding="utf-8"), exists) == []


@pytest.mark.parametrize(
    "text",
    [
        "see `minidist/comm/telepathy.py`",
        "[a lesson](notebooks/99_magic.ipynb)",
        "python -m benchmarks.telepathy",
        "python examples/none.py --ranks 4",
        "read NOTHING.md",
        "course/NN_topic/nothing.py",
    ],
)
def test_a_dead_path_is_found(text):
    assert dead_paths(text, exists)


def test_a_living_path_is_not():
    text = "course/build.py, pyproject.toml, `minidist/comm`, [x](LICENSE), https://x.org/a.md"
    assert dead_paths(text, exists) == []


def unknown_formulas(text):
    """The formulas that the site's translator to MathML does not take: it knows a part of TeX."""
    found = []
    for shown, inline in FORMULA.findall(text):
        try:
            latex2mathml.tex2mathml(shown or inline)
        except MathError:
            found.append(shown or inline)
    return found


def test_every_formula_can_be_shown_on_the_site(figure):
    found = {}
    formulas = 0
    for path in repository("notebooks/*.ipynb", "exercises/*.ipynb", "solutions/*.ipynb"):
        for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                formulas += len(FORMULA.findall(text))
                if unknown_formulas(text):
                    found[path.as_posix()] = unknown_formulas(text)
    figure(f"{formulas} formulas")
    assert found == {}


def test_a_formula_that_the_site_does_not_know_is_found():
    assert unknown_formulas(r"$\frac{7}{8}$ and $$\frac78$$") == [r"\frac78"]
    assert unknown_formulas(r"between $1$ and $2, \dots$") == [r"2, \dots"]
