"""How large the package is, and how many of its files a reader opens who follows one call."""

import io
import subprocess
import sys
import tokenize

import pytest
import torch

from minidist import World
from minidist.collectives import all_reduce_
from tests.repository.files import ROOT

BEFORE = "c6d1835e6853ef50167fbbc24439e37acb35b729"  # when record and mutants were there, and nothing had moved
SIZED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
MOST = {
    "tracked files": 800,
    "library files": 200,
    "files of graders": 50,
    "skips of the formatter": 29,
}


def git(*command):
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def tokens(text):
    """Names, operators and numbers, whatever the layout."""
    return sum(
        token.type in SIZED for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def sizes(commit):
    """Files, and tokens of library and graders, at a commit."""
    files = git("ls-tree", "-r", "--name-only", commit).splitlines()
    texts = {file: git("show", f"{commit}:{file}") for file in files if file.endswith(".py")}
    ours = [file for file in texts if file.startswith(("minidist/", "minicheck/"))]
    graders = [f for f in ours if f.startswith(("minicheck/", "minidist/check/"))]
    return {
        "tracked files": len(files),
        "library files": len(ours) - len(graders),
        "files of graders": len(graders),
        "skips of the formatter": sum(text.count("# fmt: skip") for text in texts.values()),
        "tokens": sum(tokens(texts[file]) for file in ours),
    }


@pytest.mark.full
def test_it_has_not_grown(figure):
    """Since the commit before the first move."""
    before, now = sizes(BEFORE), sizes("HEAD")
    for what, count in now.items():
        figure(f"{what}: {before[what]:,} before, {count:,} now")
    assert now["tokens"] <= before["tokens"]
    assert all(now[what] <= most for what, most in MOST.items())


def send(comm, x):
    """One message from rank 0 to rank 1."""
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)


def files_of(n, act):
    """Files of the package that the second of two calls enters on rank 0 of a World of n ranks."""
    package = str(ROOT / "minidist") + "/"

    def program(comm):
        entered = set()

        def profile(frame, event, arg):
            file = frame.f_code.co_filename
            if event == "call" and file.startswith(package):
                entered.add(file.removeprefix(package))

        x = torch.ones(10)
        act(comm, x)
        if comm.rank == 0:
            sys.setprofile(profile)
        act(comm, x)
        sys.setprofile(None)
        return sorted(entered)

    return World(n).run(program)[0]


@pytest.mark.parametrize(("act", "n", "most"), [(send, 2, 7), (all_reduce_, 3, 9)])
def test_files_of_one_call(act, n, most, figure):
    found = files_of(n, act)
    figure(f"{act.__name__}: {len(found)} files, at most {most}: {', '.join(found)}")
    assert len(found) <= most
