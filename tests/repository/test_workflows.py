"""The workflows of GitHub: they parse, run commands that are there, and may do no more than they need.

GitHub itself is not to be had here; CONTRIBUTING says so. The step that pushes Colab's branch is run against a remote on
the disk.
"""

import os
import re
import subprocess

import pytest
import yaml

from course.colab import BRANCH
from tests.repository.files import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NAMES = [path.stem for path in WORKFLOWS]
# What a runner of GitHub has, and this machine need not have.
OF_THE_RUNNER = {"sudo", "git", "command"}


def read(name):
    workflow = yaml.safe_load((ROOT / ".github/workflows" / f"{name}.yml").read_text("utf-8"))
    workflow["on"] = workflow.pop(True)  # YAML 1.1 reads the word as a truth value
    return workflow


def steps(name):
    for job in read(name)["jobs"].values():
        yield from job["steps"]


def unknown(script):
    """Commands of a script that are neither in the repository nor on a runner."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    for line in script.strip().splitlines():
        for command in re.split(r"\|\||&&|;", line):
            first, *words = command.split()
            if first == "make":
                goals = [w for w in words if "=" not in w]
                yield from (f"make {goal}" for goal in goals if goal not in targets)
            elif "/" in first:
                if not os.access(ROOT / first, os.X_OK):
                    yield first
            elif first not in OF_THE_RUNNER:
                yield first


def test_there_are_the_two():
    assert {"site", "test"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_its_commands_are_there(name):
    for step in steps(name):
        if "run" in step:
            assert list(unknown(step["run"])) == []
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)


@pytest.mark.parametrize("script", ["make sit", "ci/run", "jupyter lab", "make site || .ci/runs"])
def test_a_command_that_is_not_there_is_found(script):
    assert list(unknown(script))


@pytest.mark.parametrize("name", NAMES)
def test_its_actions_are_githubs_own_and_pinned(name):
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_what_they_may_do():
    allowed = {}
    for name in NAMES:
        workflow = read(name)
        assert workflow["permissions"] == {"contents": "read"}, name
        for job, what in workflow["jobs"].items():
            allowed[job] = what.get("permissions", {})
            assert "timeout-minutes" in what or job in ("publish", "colab")
    assert allowed["test"] == {}
    assert allowed["build"] == {"contents": "read", "pages": "read"}
    assert allowed["publish"] == {"pages": "write", "id-token": "write"}
    assert allowed["colab"] == {"contents": "write"}


def test_every_version_of_python_is_tested():
    versions = read("test")["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project).groups()
    assert versions == [f"3.{minor}" for minor in range(int(low), int(high))]


def test_what_is_published_is_what_the_site_is_built_into():
    paths = [step["with"]["path"] for step in steps("site") if "upload" in step.get("uses", "")]
    assert paths == ["build/site", "build/site/colab"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for name in next(s["env"] for s in steps("site") if s.get("run") == "make site"):
        assert f"$({name})" in makefile


def test_the_branch_for_colab_holds_the_notebooks_alone(tmp_path):
    remote = tmp_path / "remote"
    clone = tmp_path / "clone"
    environment = os.environ | {"GITHUB_SHA": "0123", "GIT_CONFIG_GLOBAL": os.devnull}

    def git(*words, cwd=clone):
        done = subprocess.run(
            ["git", *words], cwd=cwd, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    git("init", "-q", "--bare", "-b", "main", str(remote), cwd=tmp_path)
    git("clone", "-q", str(remote), str(clone), cwd=tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (clone / "notebooks").mkdir()
    (clone / "notebooks" / "01_a.ipynb").write_text("a clone's")
    (clone / ".gitignore").write_text("/colab/\n")
    git("add", ".")
    git(*identity, "commit", "-qm", "first")
    git("push", "-q", "origin", "HEAD:main")
    script = next(s["run"] for s in steps("site") if s.get("name") == "Replace the branch")
    for text in ("one", "two"):
        git("checkout", "-qf", "main")
        if text == "two":
            git("branch", "-qD", "colab-new")
        (clone / "colab").mkdir(exist_ok=True)
        (clone / "colab" / "01_a.ipynb").write_text(text)
        subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=clone,
            env=environment,
            check=True,
            capture_output=True,
        )
        assert git("ls-tree", "-r", "--name-only", BRANCH, cwd=remote).split() == ["01_a.ipynb"]
        assert git("show", f"{BRANCH}:01_a.ipynb", cwd=remote) == text
        assert git("rev-list", "--count", BRANCH, cwd=remote).strip() == "1"
    assert "notebooks/01_a.ipynb" in git("ls-tree", "-r", "--name-only", "main", cwd=remote)
