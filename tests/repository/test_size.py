"""How large the package is, and how many of its files a reader opens who follows one call."""

import io
import subprocess
import threading
import tokenize

import pytest
import torch
from torch import nn

from minidist import World
from minidist.collectives import all_reduce_
from minidist.parallel import DataParallel, Pipeline, ShardedOptimizer
from minidist.train import checkpoint
from tests.repository.files import ROOT

BEFORE = (
    "c6d1835e6853ef50167fbbc24439e37acb35b729"  # when the mutants were there, and nothing had moved
)
SIZED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
# What has been reached, with types that mypy accepts. It may fall, and rise with a new technique or lesson only.
MOST = {
    "tracked files": 1_000,
    "files of the library": 99,
    "files of graders": 74,
    "skips of the formatter": 2,
    "tokens of the library": 235_400,
    "of them, of techniques": 114_100,
    "tokens of graders": 213_000,
}
TECHNIQUES = ("collectives/", "parallel/", "train/", "checkpoint/", "models", "split")


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
    library = [f for f in ours if f not in graders]
    techniques = [f for f in library if f.removeprefix("minidist/").startswith(TECHNIQUES)]
    return {
        "tracked files": len(files),
        "files of the library": len(library),
        "files of graders": len(graders),
        "skips of the formatter": sum(text.count("# fmt: skip") for text in texts.values()),
        "tokens of the library": sum(tokens(texts[file]) for file in library),
        "of them, of techniques": sum(tokens(texts[file]) for file in techniques),
        "tokens of graders": sum(tokens(texts[file]) for file in graders),
    }


@pytest.mark.full
def test_it_has_not_grown(figure):
    """Since the commit before the first move."""
    before, now = sizes(BEFORE), sizes("HEAD")
    for what, count in now.items():
        figure(f"{what}: {before[what]:,} before, {count:,} now")
    assert {what: count for what, count in now.items() if count > MOST[what]} == {}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def look(comm):
    """From here on, the files that any thread enters count."""


def look_away(comm):
    """No more."""


def files_of(n, program):
    """Files of the package that are entered while rank 0 looks, in a World of n ranks."""
    package = str(ROOT / "minidist") + "/"
    files, looking = set(), []

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code in (look.__code__, look_away.__code__):
            if frame.f_locals["comm"].rank == 0:
                looking[:] = [True] if code is look.__code__ else []
        if event == "call" and looking and code.co_filename.startswith(package):
            files.add(code.co_filename.removeprefix(package))

    threading.setprofile(profile)
    try:
        World(n).run(program)
    finally:
        threading.setprofile(None)
    return sorted(files)


def send(comm):
    x = torch.ones(10)
    look(comm)
    if comm.rank == 0:
        comm.send(x, 1)
    else:
        comm.recv(x, 0)
    look_away(comm)


def ring(comm):
    x = torch.ones(10)
    all_reduce_(comm, x)
    look(comm)
    all_reduce_(comm, x)
    look_away(comm)


def train(comm, net, optimizer):
    """Three steps, of which the last is looked at: by then all is set up."""
    for step in range(3):
        x = torch.randn(4, 8)
        if step == 2:
            look(comm)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    look_away(comm)


def data_parallel(comm):
    net = DataParallel(model(), comm)
    train(comm, net, torch.optim.SGD(net.parameters(), 0.1))


def zero_1(comm):
    net = model()
    train(comm, net, ShardedOptimizer(net.parameters(), torch.optim.SGD, comm, lr=0.1))


def one_f_one_b(comm):
    part = model()[:2] if comm.rank == 0 else model()[2:]
    pipe = Pipeline(part, comm, loss_fn=lambda y, target: (y - target).square().mean())
    for step in range(3):
        x, target = torch.randn(8, 8), torch.randn(8, 1)
        if step == 2:
            look(comm)
        pipe.step(4, x, target)
    look_away(comm)


def checkpointed(comm):
    x = torch.randn(4, 8, requires_grad=True)
    look(comm)
    checkpoint(model(), x).sum().backward()
    look_away(comm)


@pytest.mark.parametrize(
    ("program", "n", "most"),
    [
        (send, 2, 6),
        (ring, 3, 6),
        (data_parallel, 2, 8),
        (zero_1, 2, 8),
        (one_f_one_b, 2, 7),
        (checkpointed, 1, 1),
    ],
)
def test_files_of_one_call(program, n, most, figure):
    files = files_of(n, program)
    figure(f"{program.__name__}: {len(files)} files, at most {most}: {', '.join(files)}")
    assert 0 < len(files) <= most
