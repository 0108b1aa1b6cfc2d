"""What must hold while the package is moved and rebuilt: the two nets, how large it is, how far a reader travels."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tokenize

import torch

from minidist import World
from minidist.collectives import all_reduce_

from .world import ROOT, run_tests, together

SIZED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)


def git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def tokens(text: str) -> int:
    """Names, operators and numbers, whatever the layout."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type in SIZED for token in found)


def sizes(commit: str) -> dict[str, int]:
    """Files, and tokens of library and graders, at a commit."""
    files = git("ls-tree", "-r", "--name-only", commit).splitlines()
    python = [file for file in files if file.endswith(".py")]
    texts = {file: git("show", f"{commit}:{file}") for file in python}
    ours = [file for file in python if file.startswith(("minidist/", "minicheck/"))]
    graders = [f for f in ours if f.startswith(("minicheck/", "minidist/check/"))]
    return {
        "tracked files": len(files),
        "library files": len(ours) - len(graders),
        "files of graders": len(graders),
        "skips of the formatter": sum(text.count("# fmt: skip") for text in texts.values()),
        "tokens": sum(tokens(texts[file]) for file in ours),
    }


def size() -> tuple[str, bool]:
    """Item 3: before is the commit of the record."""
    record = json.loads((ROOT / "tests/record/techniques.json").read_text(encoding="utf-8"))
    before, now = sizes(record["commit"]), sizes("HEAD")
    most = {
        "tracked files": 800,
        "library files": 200,
        "files of graders": 50,
        "skips of the formatter": 29,
        "tokens": before["tokens"],
    }
    rows = [f"{what}: {before[what]:,} before, {now[what]:,} now" for what in now]
    return "\n".join(rows), all(now[what] <= most[what] for what in now)


def files_of(n: int, act) -> list[str]:
    """Files of the package that the second of two calls enters on rank 0 of a World of n ranks."""
    package = str(ROOT / "minidist") + "/"

    def program(comm):
        entered: set[str] = set()

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


def pass_on(comm, x) -> None:
    """One message from rank 0 to rank 1."""
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)


def files_of_a_call() -> tuple[str, bool]:
    """Item 4: what a reader opens who follows one call."""
    rows, held = [], True
    for name, n, act, most in [("send", 2, pass_on, 7), ("ring all-reduce", 3, all_reduce_, 9)]:
        found = files_of(n, act)
        rows.append(f"{name}: {len(found)} files, at most {most}: {', '.join(found)}")
        held &= len(found) <= most
    return "\n".join(rows), held


def mutants() -> tuple[str, bool]:
    """Item 2: how many faults by technique, and that each is found."""
    command = [sys.executable, "-m", "tests.mutants"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip(), done.returncode == 0


def moved() -> tuple[str, bool]:
    """Item 5: who may import whom, without a circle; one statement a line; every row of the README is there."""
    names = ("imports", "syntax", "source", "readme", "wheel")
    return together(run_tests(*(f"tests/repository/test_{name}.py" for name in names)))


ITEMS = {
    "1 the record": lambda: run_tests("tests/record"),
    "2 mutants": mutants,
    "3 size": size,
    "4 files of one call": files_of_a_call,
    "5 imports, layout, README": moved,
}
