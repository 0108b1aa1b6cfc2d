"""What a project has beside its code says one version, the whole of its licences, and forms that a person can fill in."""

import hashlib
import re
import subprocess
import tomllib
from datetime import date

import pytest
import yaml

import minidist
from tests.repository.files import ROOT, repository

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# Of the official text, https://creativecommons.org/licenses/by/4.0/legalcode.txt
CC_BY = "fd3a263fe19ed8faa9068b43abaebafc02c77897b0c6fc09abc04bb592e5f16e"
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


# ------------------------------------------------------------
# The version.


def versions(citation, changelog):
    """The version and the day of its release, as CITATION.cff and as the newest entry of CHANGELOG.md have them."""
    cited = yaml.safe_load(citation)
    version, day = RELEASE.search(changelog).groups()
    return (str(cited["version"]), cited["date-released"]), (version, date.fromisoformat(day))


def test_one_version_is_said_everywhere():
    cited, newest = versions(read("CITATION.cff"), read("CHANGELOG.md"))
    assert cited == newest
    assert cited[0] == minidist.__version__
    project = tomllib.loads(read("pyproject.toml"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "minidist.__version__"}


@pytest.mark.parametrize(
    ("old", "new"), [("version: 1.0.0", "version: 1.0.1"), ("2026-11-27", "2026-11-28")]
)
def test_another_version_is_found(old, new):
    citation = read("CITATION.cff").replace(old, new)
    cited, newest = versions(citation, read("CHANGELOG.md"))
    assert cited != newest


def test_the_changelog_goes_back_in_time():
    text = read("CHANGELOG.md")
    released = [tuple(map(int, version.split("."))) for version, _ in RELEASE.findall(text)]
    days = [day for _, day in RELEASE.findall(text)]
    assert released == sorted(released, reverse=True) and days == sorted(days, reverse=True)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]" and len(headings) == len(released) + 1
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS


def test_the_citation_has_what_its_format_asks_for():
    cited = yaml.safe_load(read("CITATION.cff"))
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert {"message", "title", "abstract", "keywords"} <= set(cited)
    assert cited["authors"] == [
        {"name": "The minidist authors"}
    ]  # as in pyproject.toml; no one is made up
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["authors"] == [{"name": "the minidist authors"}]
    assert cited["license"] == project["license"] == "MIT"


# ------------------------------------------------------------
# Licences, and how people treat each other.


def test_the_licence_of_texts_is_whole_and_as_it_was_written():
    assert hashlib.sha256((ROOT / "LICENSE-TEXTS").read_bytes()).hexdigest() == CC_BY


def test_every_file_is_under_a_licence():
    """Each folder, drawing and page has a row in LICENSES.md; settings, in folders with a dot, are code."""
    rows = re.findall(r"^\| (.+) \| (MIT|CC BY 4\.0.*) \|$", read("LICENSES.md"), re.MULTILINE)
    named = " ".join(what for what, _ in rows)
    for path in repository():
        folder = path.parts[0] + "/"
        is_drawn = path.suffix in (".svg", ".png")
        if is_drawn:
            is_schematic = path.match("course/*/figures/*")
            drawing = "course/*/figures/" if is_schematic else path.as_posix()
            assert f"`{drawing}`" in named, path
        elif path.suffix == ".md" and not folder.startswith("."):
            assert folder == "docs/" or len(path.parts) == 1, path
        elif len(path.parts) > 1 and folder != "docs/" and not folder.startswith("."):
            assert f"`{folder}`" in named, path
    assert {licence for _, licence in rows} == {"MIT", "CC BY 4.0", "CC BY 4.0, by its own authors"}


def test_the_wheel_is_under_mit_alone():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert (project["license"], project["license-files"]) == ("MIT", ["LICENSE"])
    assert read("LICENSE").startswith("MIT License\n")


def test_the_code_of_conduct_is_whole_and_says_whom_to_ask():
    text = read("CODE_OF_CONDUCT.md")
    sections = (
        "Our Pledge",
        "Our Standards",
        "Enforcement Responsibilities",
        "Scope",
        "Enforcement",
        "Enforcement Guidelines",
        "Attribution",
    )
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == sections
    assert len(re.findall(r"^### \d\. ", text, re.MULTILINE)) == 4
    assert "INSERT" not in text and "version 2.1" in text
    assert "private\nmessage to any maintainer" in text


# ------------------------------------------------------------
# What GitHub reads: https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests


def wrong(form):
    """What is wrong with an issue form, given as what its YAML says."""
    for key in ("name", "description", "body"):
        if not form.get(key):
            yield f"no {key}"
    names = []
    asked = 0
    for part in form.get("body") or []:
        kind = part.get("type")
        attributes = part.get("attributes", {})
        if kind == "markdown":
            if not attributes.get("value"):
                yield "a text that says nothing"
            continue
        asked += 1
        names.append(part.get("id"))
        if not attributes.get("label"):
            yield f"{part.get('id')} has no label"
        if kind not in ("textarea", "input", "dropdown", "checkboxes"):
            yield f"{kind} is no kind of field"
        if kind in ("dropdown", "checkboxes") and not attributes.get("options"):
            yield f"{part.get('id')} offers nothing"
    if not asked:
        yield "asks nothing"
    if len(set(names)) < len(names) or None in names:
        yield f"ids are not one each: {names}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
    else:
        assert list(wrong(form)) == []


def test_the_forms_that_there_are():
    assert [path.stem for path in FORMS] == ["bug", "config", "grader", "lesson", "question"]


def test_a_wrong_form_is_found():
    field = {"type": "input", "id": "a", "attributes": {"label": "A"}}
    good = {"name": "n", "description": "d", "body": [field]}
    assert list(wrong(good)) == []
    assert list(wrong(good | {"name": ""})) == ["no name"]
    assert list(wrong(good | {"body": []})) == ["no body", "asks nothing"]
    assert list(wrong(good | {"body": [field, field]})) == ["ids are not one each: ['a', 'a']"]
    choice = {"type": "dropdown", "id": "b", "attributes": {"label": "B"}}
    assert list(wrong(good | {"body": [choice]})) == ["b offers nothing"]
    strange = {"type": "inptu", "id": "c", "attributes": {}}
    assert list(wrong(good | {"body": [strange]})) == [
        "c has no label",
        "inptu is no kind of field",
    ]


MENTIONED = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:md|cff))\b")


@pytest.mark.parametrize(
    "name",
    [
        *(path.relative_to(ROOT).as_posix() for path in FORMS),
        ".github/PULL_REQUEST_TEMPLATE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSES.md",
        "SECURITY.md",
    ],
)
def test_pages_that_are_named_are_there(name):
    for page in MENTIONED.findall(read(name)):
        assert (ROOT / page).is_file(), f"{name} names {page}"


def test_what_is_built_is_folded_in_a_pull_request():
    built = repository("notebooks/*.ipynb", "exercises/*.ipynb", "solutions/*.ipynb", "docs/*.svg")
    text = repository("course/*.py", "docs/glossary.md", "minidist/*.py")
    asked = [path.as_posix() for path in (*built, *text)]
    said = subprocess.run(
        ["git", "check-attr", "linguist-generated", "--", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    folded = {line.partition(":")[0] for line in said if line.endswith(": set")}
    assert folded == {path.as_posix() for path in built}
