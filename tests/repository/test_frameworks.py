"""docs/frameworks.md: each technique of README's table is in it, each name says where it stands, and PyTorch's are there."""

import re
from pathlib import Path

import pytest
import torch

from tests.repository.files import ROOT
from tests.repository.test_readme import TECHNIQUES

TEXT = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
MAP, FILES = TEXT.split("## Where each name stands")
HEAD, *ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in MAP.split("| technique |")[1].splitlines()
    if line.count(" | ") > 6
]
FRAMEWORKS = re.findall(r"^### (.+): files$", FILES, re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")


def files(framework):
    """{name: its file}."""
    section = FILES.split(f"### {framework}: files")[1].split("###")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|$", section, re.MULTILINE))


def test_the_table_is_whole():
    assert [cell.strip() for cell in HEAD] == FRAMEWORKS and len(FRAMEWORKS) == 9
    for row in ROWS:
        assert len(row) == 10 and all(row), row
    assert not re.search(r"\| *\|", MAP), "a technique that is not there has a dash"


@pytest.mark.parametrize("technique", sorted({row[0] for row in TECHNIQUES}))
def test_each_technique_of_readme_is_in_it(technique):
    assert technique in [name for row in ROWS for name in row[0].split("<br>")]


@pytest.mark.parametrize("number", range(9))
def test_each_name_says_where_it_stands(number):
    named = {name for row in ROWS for name in NAME.findall(row[number + 1])}
    assert named == set(files(FRAMEWORKS[number]))


def test_each_framework_has_a_version():
    for framework in FRAMEWORKS:
        assert re.search(rf"^\| {framework} \| .*\d+\.\d+\.\d+", MAP, re.MULTILINE)


def missing(found, root):
    """Names that do not stand in their files: the last part of each, without what is in brackets."""
    absent = []
    for name, path in found.items():
        word = re.split(r"[(=]", name)[0].rpartition(".")[2]
        file = root / path
        if not file.exists() or word not in file.read_text(encoding="utf-8"):
            absent.append(name)
    return absent


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the map tells of PyTorch 2.13"
)
@pytest.mark.parametrize("framework", ["DDP", "FSDP2"])
def test_pytorch_s_names_are_in_pytorch(framework):
    site_packages = Path(torch.__file__).parents[1]
    found = files(framework)
    assert len(found) > 10 and missing(found, site_packages) == []
    assert missing(found | {"no_such_name": "torch/__init__.py"}, site_packages) == ["no_such_name"]


def test_readme_names_the_map():
    assert "(docs/frameworks.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
