"""Every command of README.md, and of the pages that go on where it stops, does what is said of it, in a fresh shell.

A block of commands is a fence without a language. Each is given to a new bash, in a copy of the repository, with nothing
in its environment. What cannot run here as it stands has a stand-in, named below with the reason. What would take minutes
has one where the tests are small; at full size, which is what `make proof NAME=front` runs, it has none.
"""

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from minidist.models import mlp
from minidist.study.compare import record
from tests.comm.dumps import dump, entry
from tests.repository.files import ROOT, repository
from tests.size import FULL

PAGES = ("README.md", "docs/planner.md", "docs/trainer.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "@@ ended with"
LESSON = "02_messages"


class Case(NamedTuple):
    """What a block of commands needs, and says."""

    says: tuple = ()  # expressions, each of which its output has
    prepare: object = None  # called with the folder before
    codes: dict = {}  # of commands that may end with another exit code than 0
    full: bool = False  # at full size only
    outside: bool = False  # not in the repository, but where one would clone it


class StandIn(NamedTuple):
    instead_of: str
    runs: str
    because: str


# ------------------------------------------------------------
# Stand-ins.

ALWAYS = [
    StandIn("git clone ADDRESS", "git clone -q {root}", "a repository does not know its address"),
    StandIn("make lab", "make -n lab", "test_lab.py opens it; test_front.py installs and opens it"),
    StandIn("make test", "make -n test", "it would run this test, too"),
    StandIn("conda ", "python3 conda.py ", "conda is not here: what its file names is looked for"),
    StandIn("jupyter lab", "{bin}/jupyter lab --version", "test_lab.py opens it"),
    StandIn("pip install", "pip install -q --dry-run --no-deps", "the environment stays as it is"),
    StandIn("torchrun --nnodes 2", "on_both torchrun --nnodes 2", "two machines are one"),
    StandIn("--master-addr ADDRESS", "--master-addr 127.0.0.1 --master-port {port}", "loopback"),
    StandIn("~/.cache/torch/comm_lib_trace_rank_", "dumps/rank_", "what such a run has left"),
    StandIn("runs/reference", "runs/reference --steps 20", "twelve minutes: benchmarks/prose.py"),
    StandIn("runs/notes", "runs/notes --steps 4", "minutes"),
]
# Where the tests are small.
QUICK = [
    StandIn("make site", "make -n site", "half a minute: test_site.py makes a small one"),
    StandIn("pip wheel . ", "pip wheel -q --no-build-isolation . ", "the network"),
    StandIn("8 examples/train_digits.py", "1 examples/train_digits.py --epochs 1", "two cores"),
]
CONDA = """
import pathlib, re, sys
asked = sys.argv[1:]
if asked == ["activate", "minidist"]:
    sys.exit()
assert asked == ["env", "create", "-f", "environment.yml"], asked
text = pathlib.Path("environment.yml").read_text()
assert re.search(r"^name: minidist$", text, re.M)
assert pathlib.Path(re.search(r"-c (\\S+)", text)[1]).is_file()
"""
# The command for the first machine, and for the second, whose rank is the fifth word, at the same time.
ON_BOTH = """
on_both() {
    "$@" &
    words=("$@")
    words[4]=1
    "${words[@]}" && wait $!
}
"""


def changed(command, stand_ins, words):
    """What runs in the place of a command."""
    for stand_in in stand_ins:
        if stand_in.instead_of in command:
            command = command.replace(stand_in.instead_of, stand_in.runs.format(**words))
    return command


# ------------------------------------------------------------
# What a block needs, and says. Its key: how one of its commands begins.


def take_assignments(folder):
    """The student's own copies are there, and one has an older text."""
    subprocess.run([sys.executable, "-m", "minicheck", "work"], cwd=folder, check=True)
    exercise = folder / f"exercises/{LESSON}/{LESSON}.ipynb"
    exercise.write_text(exercise.read_text().replace("Messages", "The messages"))


def hand_in(folder):
    """One student has handed in an exercise as it was handed out, for the command and for nbgrader."""
    released = folder / f"exercises/{LESSON}/{LESSON}.ipynb"
    copy = folder / f"submitted/ann/{LESSON}/{LESSON}.ipynb"
    copy.parent.mkdir(parents=True)
    shutil.copy(released, copy)


def record_runs(folder):
    """A serial run, and one whose gradient is n times too large."""
    for name, factor in (("serial", 1), ("parallel", 2)):
        model = mlp([4, 4, 2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = record(model, folder / "runs" / name, rank=0)
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad *= factor
        with run.step(loss=loss):
            optimizer.step()


def leave_dumps(folder):
    """Rank 1 has not come to the second call."""
    (folder / "dumps").mkdir()
    first = entry(1, "broadcast")
    for rank, entries in enumerate(([first, entry(2, "all_reduce", over=False)], [first])):
        groups = {("0", "default_pg"): [0, 1]}
        (folder / f"dumps/rank_{rank}").write_bytes(pickle.dumps(dump(entries, groups)))


def leave_weights(folder):
    """A GPT-2 of a few thousand parameters, as `transformers` saves it, and a text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=257, n_positions=128, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(shape).save_pretrained(folder / "gpt2")
    (folder / "notes").mkdir()
    (folder / "notes/one.txt").write_text("All that is sent is received. " * 400)


CASES = {
    "git clone": Case((r"jupyter lab",), outside=True),
    "conda env": Case((r"^4\.",)),
    "python -m minicheck 02_messages": Case(
        (r"0 of \d+ points", r"all +0/\d+"), codes={f"python -m minicheck {LESSON}": 1}
    ),
    "make work RENEW": Case((r"02_messages",), take_assignments),
    "pip wheel": Case(),
    "make site": Case(),
    "python -m minidist.study.plan --model": Case(
        (r"2,942 grids", r"data 16, tensor 4, pipeline 16 × 6 chunks.*7\.71 s.*MFU 43\.4%")
    ),
    "python -m minidist.study.plan --help": Case((r"--rate",)),
    "python -m minidist.study.runs": Case((r"bloom: time: mean error 5\.1%.*largest -22\.4%",)),
    "python -m minidist.study.compare": Case(
        (r"gradient of 2.bias", r"likely cause: factor"),
        record_runs,
        {"python -m minidist.study.compare runs/serial runs/parallel": 1},
    ),
    "make release": Case((r"There: make lab", r"ann"), hand_in),
    "nbgrader generate_assignment": Case((), hand_in, full=True),
    "torchrun --nproc-per-node 8 examples/train_digits.py": Case((r"equal bit for bit",)),
    "torchrun --nnodes 2": Case((r"equal bit for bit",)),
    "python -m minidist.comm --doctor": Case((r"^ok ",)),
    "python -m minidist.comm --hang": Case(
        (r"rank 1 has not come to it",),
        leave_dumps,
        {"python -m minidist.comm --hang ~/.cache/torch/comm_lib_trace_rank_": 1},
    ),
    "make test": Case(),
    'pip install -c constraints.txt -e ".[train]"': Case(),
    "torchrun --nproc-per-node 8 examples/train_gpt.py --dp 2": Case((r"step",), full=True),
    "torchrun --nproc-per-node 2 examples/train_gpt.py --tp 2": Case((), leave_weights, full=True),
}


# ------------------------------------------------------------
# Running them.


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text):
    """The blocks of commands of a page, each a list of lines."""
    found = [body.splitlines() for language, body in FENCE.findall(text) if not language]
    return [[line for line in lines if line] for lines in found]


def case_of(block):
    """What CASES says of a block. ValueError unless exactly one key begins one of its commands."""
    keys = [key for key in CASES if any(line.startswith(key) for line in block)]
    if len(keys) != 1:
        raise ValueError(f"CASES has {len(keys)} cases for {block}, and needs 1")
    return CASES[keys[0]]


def commands():
    known = []
    for page in PAGES:
        for block in blocks(read(page)):
            if block in known:
                continue
            known.append(block)
            marks = [pytest.mark.full] if case_of(block).full else []
            name = next(line for line in block if "activate" not in line)
            yield pytest.param(block, id=f"{page}: {name}", marks=marks)


@pytest.fixture
def folder(tmp_path):
    """A copy of the repository, whose .venv is the environment of these tests."""
    copy = tmp_path / "copy"
    for path in repository():
        (copy / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(copy / name, (0, 0))  # older than the environment: nothing is to be installed
    (copy / ".venv").symlink_to(sys.prefix)
    (copy / "conda.py").write_text(CONDA)
    system = tmp_path / "system"
    system.mkdir()
    (system / "python3").symlink_to(sys._base_executable)
    return copy


def in_a_fresh_shell(lines, folder, home):
    """(its exit code, what it printed) of each line, typed into a new bash."""
    script = [ON_BOTH]
    for line in lines:
        script.append(f"{line}\ncode=$?\necho\necho '{END}' $code")
    text = "\n".join(script)
    environment = {
        "HOME": str(home),
        "PATH": f"{home}/system:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    parts = re.split(rf"^{END} (\d+)\n", done.stdout, flags=re.MULTILINE)
    codes = [int(code) for code in parts[1::2]]
    assert len(codes) == len(lines), done.stdout
    return list(zip(codes, parts[::2]))


@pytest.mark.parametrize("block", list(commands()))
def test_each_does_what_is_said(block, folder):
    case = case_of(block)
    if case.prepare:
        case.prepare(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = {"root": ROOT, "bin": f"{sys.prefix}/bin", "port": port}
    stand_ins = ALWAYS if FULL else ALWAYS + QUICK
    lines = [changed(line, stand_ins, words) for line in block]
    ended = in_a_fresh_shell(lines, folder.parent if case.outside else folder, folder.parent)
    for command, (code, printed) in zip(block, ended):
        assert code == case.codes.get(command, 0), f"{command}\n{printed[-3000:]}"
        # nbgrader's own way with its database is no fault of the command
        printed = printed.replace("SAWarning", "")
        assert "Traceback" not in printed and "Warning" not in printed, printed
    printed = "".join(text for _, text in ended)
    for expression in case.says:
        assert re.search(expression, printed, re.MULTILINE), f"{expression}\n{printed[-3000:]}"


def test_each_stand_in_stands_for_something():
    """One that no command needs is gone with its command."""
    known = [stand_in.runs for stand_in in ALWAYS]
    for page in PAGES:
        for block in blocks(read(page)):
            known += block
    for stand_ins in (ALWAYS, QUICK):
        for stand_in in stand_ins:
            assert any(stand_in.instead_of in line for line in known), stand_in


def test_what_fails_is_seen(folder):
    ended = in_a_fresh_shell(["torchrun --help", "cd none && ls", "true"], folder, folder.parent)
    assert [code for code, _ in ended] == [127, 1, 0]
    assert "not found" in ended[0][1]


def test_a_block_that_no_case_knows_is_refused():
    with pytest.raises(ValueError, match="0 cases"):
        case_of(["make money"])
