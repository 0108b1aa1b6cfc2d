"""Where there is nothing but Debian: README.md followed to the letter, and the commands of the Dockerfile.

No docker daemon is asked: a Debian root of debootstrap stands in for the image that the Dockerfile begins with, with
Debian's own Python for the image's. The rest is run as it stands there.
"""

import json
import re
import shlex
import shutil
import stat
import subprocess
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests.repository.debian import Root, missing
from tests.repository.files import ROOT, repository
from tests.repository.newcomer import (
    FIRST,
    InDebian,
    Terminal,
    commands,
    first_picture,
    front_door,
    plain,
    run,
    wait_for,
)
from tests.repository.test_dependencies import unknown_extras

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What an empty Debian lacks of README's list: `sudo apt install git make python3-venv`.
LIST = "git make python3 python3-venv"
BASE = "python:3.11-slim-bookworm"


def instructions(text):
    """(INSTRUCTION, the rest of it) of a Dockerfile, in order, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def words_of(text, kind):
    return [rest for word, rest in instructions(text) if word == kind]


def test_instructions_are_read():
    text = "# x\nFROM a\n\nRUN b \\\n    && c\n# y\nUSER d\n"
    assert instructions(text) == [("FROM", "a"), ("RUN", "b && c"), ("USER", "d")]


def test_the_image_serves_lab_and_not_as_root():
    assert words_of(DOCKERFILE, "FROM") == [BASE]
    assert words_of(DOCKERFILE, "EXPOSE") == ["8888"]
    assert words_of(DOCKERFILE, "USER") == ["learner"]
    [last] = words_of(DOCKERFILE, "CMD")
    assert json.loads(last)[:2] == ["make", "lab"] and "--ip=0.0.0.0" in last
    asked = SpecifierSet(PROJECT["requires-python"])
    assert asked.contains(re.match(r"python:([\d.]+)-slim", BASE)[1])


def ignored(path):
    """Whether .dockerignore leaves out a path: its patterns begin at the root, and ** stands for any folders."""
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        if pattern and not pattern.startswith("#"):
            regex = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
            if re.fullmatch(regex + "(/.*)?", path):
                return True
    return False


def test_the_image_holds_the_repository_and_nothing_of_its_user():
    assert [path for path in repository() if ignored(path.as_posix())] == []
    own = (".git/HEAD", ".venv/bin/python", "work/x/x.ipynb", "minidist/__pycache__/x.pyc")
    assert all(map(ignored, (*own, "graded/grades.csv", "gradebook.db", "minidist.egg-info/x")))
    # What git ignores is somebody's own, or can be made again.
    lines = (ROOT / ".gitignore").read_text().splitlines()
    left = [line.strip("/") for line in lines if line and not line.startswith("#")]
    assert [line for line in left if not ignored(line.replace("*", "x"))] == []


def test_the_container_for_development_opens_the_first_lesson():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    opened = container["customizations"]["codespaces"]["openFiles"]
    assert opened == [FIRST] and (ROOT / FIRST).exists()
    targets = shlex.split(container["postCreateCommand"])
    assert targets == ["make", ".venv/.course", "work"]
    plan = subprocess.run(["make", "-n", *targets[1:]], cwd=ROOT, text=True, capture_output=True)
    assert plan.returncode == 0 and "minicheck work" in plan.stdout
    version = re.search(r"python:([\d.]+)-", container["image"])[1]
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_binder_takes_the_pinned_versions():
    lines = (ROOT / ".binder/requirements.txt").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[1:] == ["-c ../constraints.txt", "-e .[course]"]
    environment = {"dependencies": [{"pip": lines[2:]}]}
    assert unknown_extras(environment, PROJECT["optional-dependencies"]) == []
    runtime = (ROOT / ".binder/runtime.txt").read_text().strip().removeprefix("python-")
    assert SpecifierSet(PROJECT["requires-python"]).contains(runtime)
    assert (ROOT / ".binder/postBuild").stat().st_mode & stat.S_IXUSR


def test_all_three_take_pytorch_for_cpus_from_one_place():
    index = "https://download.pytorch.org/whl/cpu"
    for name in ("Dockerfile", ".binder/requirements.txt", ".devcontainer/devcontainer.json"):
        assert (ROOT / name).read_text().count(index) == 1, name


def test_the_lines_of_a_readme_are_found():
    text = "## A\n\n```\nmake a   # why\n# a remark\n```\ntext\n```python\nx = 1\n```\n```sh\nb\n```\n## B\n```\nmake work\nc\n```\n"
    assert commands(text, heading="## A") == ["make a", "b"]
    assert commands(text, having="make work") == ["make work", "c"]


def test_what_a_terminal_shows_in_the_end(tmp_path):
    assert plain("a\r\n\r\x1b[K 1 of 2\r\x1b[K 2 of 2\r\x1b[Kdone\r\n") == "a\ndone\n"
    shell = Terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"], cwd=str(tmp_path))
    try:
        assert shell.type("cd / && X=1").code == 0
        done = shell.type('echo "$X in $PWD"; false')
        assert (done.code, done.text) == (1, "1 in /\n")
        with pytest.raises(AssertionError, match="command not found"):
            run(shell, "python -m nothing; no-such-command; true", None)
        with pytest.raises(AssertionError, match="no address:\nit ends"):
            shell.serve("echo it ends", 10)
    finally:
        shell.close()


# ------------------------------------------------------------
# In a fresh root, which takes some minutes.


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    why = missing()
    if why:
        pytest.skip(why)
    root = Root(tmp_path_factory.mktemp("debian") / "root")
    yield root
    root.remove()


@pytest.fixture
def debian(bare, tmp_path):
    root = bare.copy(tmp_path / "root")
    yield root
    root.remove()


def install(root, packages):
    line = f"apt-get update -qq && apt-get install --yes -qq --no-install-recommends {packages}"
    root.run(line, env={"DEBIAN_FRONTEND": "noninteractive"})


@pytest.mark.full
def test_readme_in_a_fresh_debian(debian, figure):
    """A new user's account, not root's."""
    install(debian, LIST)
    debian.run("useradd --create-home --shell /bin/bash ada")
    clone = debian.folder / "srv" / "minidist"
    subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(clone)], check=True)
    debian.run("chown -R ada:ada /srv/minidist")
    version = debian.run("cat /etc/debian_version; python3 --version").split("\n")
    figure(f"Debian {version[0]}, {version[1]}, with {LIST}")
    front_door(InDebian(debian, "ada"), "/srv/minidist", figure)


@pytest.mark.full
def test_the_commands_of_the_dockerfile(debian, figure):
    """In order, each as the user, in the folder and with the variables that the lines before it have named."""
    # The image that it begins with has Python, and no index of packages but the usual one: here pip's own settings are used.
    install(debian, "python3 python3-venv")
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    user, folder = "root", "/"
    variables = {}
    for word, rest in instructions(DOCKERFILE):
        if word == "RUN":
            text = debian.run(rest, user=user, cwd=folder, env=variables)
            figure(f"RUN {rest[:60]}: {text.strip().splitlines()[-1][:80] if text.strip() else ''}")
        elif word == "USER":
            user = rest
        elif word == "WORKDIR":
            folder = rest
        elif word == "ENV":
            name, _, value = rest.partition("=")
            path = debian.run("echo $PATH", user=user).strip()
            variables[name] = value.replace("$PATH", path)
        elif word == "COPY":
            assert rest == "--chown=learner:learner . ."
            copy_into(debian, folder)
        elif word == "CMD":
            command = json.loads(rest)
        else:
            assert word in ("FROM", "ARG", "EXPOSE"), word
    lab = Terminal(
        debian.words(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"], user, folder, variables, True
        )
    )
    try:
        address, token = lab.serve(shlex.join(command))
        wait_for(address, token)
        cell = first_picture(address, token, FIRST)
        figure(f"{shlex.join(command)}: {address}; cell {cell} of {FIRST} shows a picture")
        lab.stop()
        done = run(lab, container["postCreateCommand"], figure)
        assert "28 assignments were copied" in done.text
    finally:
        lab.close()
    # From outside, where nothing is mounted in it.
    size = subprocess.run(
        ["du", "-sm", str(debian.folder)], text=True, capture_output=True, check=True
    ).stdout.split()[0]
    figure(f"the whole root: {int(size) / 1000:.1f} GB")


def copy_into(debian, folder):
    for path in repository():
        if not ignored(path.as_posix()):
            target = debian.folder / folder[1:] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target)
    debian.run(f"chown -R learner:learner {folder}")
