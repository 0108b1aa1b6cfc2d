"""The first hour goes on whatever its steps do: they hold, fail, hang, or cannot run. All of this is on a CPU."""

import os
import subprocess
import sys
import time

import pytest

from tests import reaper
from tests.comm.children import lives, until
from tests.gpu import first_hour, ranks, runs
from tests.gpu.first_hour import Row, Step
from tests.repository.files import ROOT

PYTHON = [sys.executable, "-S", "-c"]
# Starts a process in a session of its own, says who both are, and waits for ever.
WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def step(name, source, **kwargs):
    return Step(name, f"{name} holds.", [*PYTHON, source], **dict(limit=30) | kwargs)


HOLDS = step("holds", "print('seen: one'); print('and so on'); print('seen: two')")
FAILS = step("fails", "print('seen: something'); raise SystemExit(3)")
HANGS = step("hangs", WAITS, limit=3)
KILLED = step("killed", "import os; print('seen: it', flush=True); os.kill(os.getpid(), 9)")
SILENT = step("silent", "")
ABSENT = Step("absent", "", ["no-such-program"], 5)
LARGE = step("large", "raise SystemExit('it ran')", gpus=4)
WANTING = step("wanting", "raise SystemExit('it ran')", wants=lambda: "a tool is missing")


@pytest.fixture
def marked(monkeypatch):
    """The mark that steps get one of their own from is there, and is what it was afterwards."""
    monkeypatch.setenv(reaper.MARK, os.environ.get(reaper.MARK, f"/{os.getpid()}/"))


@pytest.fixture
def ran(marked, tmp_path, capsys):
    """Some steps' rows, the table on the disk, and the folder of logs."""

    def run(*steps):
        out = tmp_path / "table.md"
        rows = first_hour.hour(list(steps), 2, out, ["PyTorch: 9.9"])
        return {row.name: row for row in rows}, out.read_text(), tmp_path / "table"

    return run


def test_it_goes_on_whatever_a_step_does(ran):
    rows, text, _ = ran(FAILS, HANGS, LARGE, WANTING, KILLED, SILENT, ABSENT, HOLDS)
    assert {name: row.result for name, row in rows.items()} == {
        "fails": "not held: exit status 3",
        "hangs": "not held: killed at its limit of 3 s",
        "large": "skipped: it needs 4 GPUs, and 2 are seen",
        "wanting": "skipped: a tool is missing",
        "killed": "not held: ended by SIGKILL",
        "silent": "not held: it says nothing of what it saw",
        "absent": rows["absent"].result,
        "holds": "held",
    }
    assert (
        rows["absent"].result.startswith("not held: ")
        and "no-such-program" in rows["absent"].result
    )
    assert rows["holds"].seen == ("one", "two")
    assert 3 <= rows["hangs"].seconds < 30 and rows["large"].seconds is None
    for row in rows.values():
        assert (
            sum(f"| {row.name} " in line and row.result in line for line in text.splitlines()) == 1
        )
    assert (
        "one; two" in text and "1 held, 5 not held, 2 skipped." in text and "- PyTorch: 9.9" in text
    )


def test_nothing_of_a_step_that_hangs_is_left(ran):
    """Nor of its child in another session; and the log says at which line it hung."""
    _, _, logs = ran(HANGS)
    log = (logs / "hangs.log").read_text()
    pids = [
        int(word)
        for line in log.splitlines()
        if line.startswith("pids")
        for word in line.split()[1:]
    ]
    assert len(pids) == 2 and until(lambda: not any(map(lives, pids)), 5)
    assert 'File "<string>", line 5' in log


def test_what_a_step_leaves_running_goes_with_it(ran):
    source = WAITS.replace("time.sleep(600)\n", "print('seen:', child.pid)\n")
    rows, _, _ = ran(step("leaves", source))
    assert rows["leaves"].result == "held" and until(
        lambda: not lives(int(rows["leaves"].seen[0])), 5
    )


def test_the_table_is_there_before_the_last_step(marked, tmp_path):
    out = tmp_path / "table.md"
    reads = step("reads", f"print('seen:', open({str(out)!r}).read().count('| held'))")
    rows = first_hour.hour([HOLDS, reads], 1, out, [])
    assert rows[1].seen == ("1",)


@pytest.fixture
def main(marked, tmp_path, monkeypatch):
    """`main` with other steps, as if so many GPUs had been found."""

    def call(steps, gpus, *words):
        told = ["PyTorch: 9.9"], gpus, "" if gpus else "PyTorch is ill"
        monkeypatch.setattr(first_hour, "probe", lambda folder: told)
        monkeypatch.setattr(first_hour.resource, "setrlimit", lambda *_: None)
        monkeypatch.setattr(reaper, "pytest_configure", lambda: None)  # pytest has done it
        asked = []
        make = lambda gpus, backend: asked.append((gpus, backend)) or steps
        status = first_hour.main([*words, "--out", str(tmp_path / "table.md")], make)
        assert (tmp_path / "table.md").exists()
        return status, asked[0]

    return call


def test_the_exit_status(main, capsys):
    assert main([HOLDS, LARGE], 2) == (0, (2, "nccl"))
    assert main([HOLDS, FAILS, HOLDS], 2)[0] == 1
    said = capsys.readouterr().out
    # the end of its log
    assert "2 held, 1 not held, 0 skipped." in said and "    seen: something" in said


def test_without_a_gpu_nothing_runs(main, capsys, tmp_path):
    assert main([FAILS, HANGS], 0)[0] == 0
    said, sentence = (
        capsys.readouterr().out,
        "No GPU was found, so none of this was shown: PyTorch is ill.",
    )
    assert said.startswith(f"{sentence}\n") and said.count(sentence) == 1
    assert sentence in (tmp_path / "table.md").read_text()
    assert said.count("skipped: no GPU is seen") == 2 and "0 held, 0 not held, 2 skipped." in said


def test_a_rehearsal_is_over_gloo(main, capsys):
    # LARGE has room, and fails
    assert main([HOLDS, LARGE], 0, "--rehearse", "4") == (1, (4, "gloo"))
    assert "A rehearsal: on the CPU, over gloo, as if there were 4 GPUs." in capsys.readouterr().out


def test_only_some(main, capsys):
    assert main([HOLDS, FAILS, HOLDS._replace(name="holds-2")], 2, "--only", "holds")[0] == 0
    assert "2 held, 0 not held" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"there is no step hold: there are holds, fails"):
        main([HOLDS, FAILS], 2, "--only", "hold")


ENDED = """
import sys
from tests.gpu import first_hour
first_hour.probe = lambda folder: ([], 1, "")
hangs = first_hour.Step("hangs", "", [sys.executable, "-S", "-c", sys.argv[2]], 600)
first_hour.main(["--out", sys.argv[1]], lambda gpus, backend: [hangs])
"""


def test_nothing_outlives_it(tmp_path):
    """kill -9 to the first hour itself, while a step runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED, str(tmp_path / "t.md"), WAITS],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    log, pids = tmp_path / "t" / "hangs.log", []
    try:
        assert until(lambda: log.exists() and log.read_text().endswith("\n"), 60)
        pids = [int(word) for word in log.read_text().split()[1:]]
        assert len(pids) == 2 and all(map(lives, pids))
    finally:
        process.kill()
        process.wait()
    assert until(lambda: not any(map(lives, pids)), 10)


def test_this_machine(tmp_path):
    """As `make gpu` starts it, with all GPUs hidden: a sentence, all that is skipped, and the exit status 0."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.first_hour", "--out", str(tmp_path / "t.md")],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith(
        "No GPU was found, so none of this was shown: PyTorch "
    ) and first.endswith(".")
    names = [each.name for each in first_hour.steps(0, "nccl")]
    assert [line.split()[1] for line in lines if "skipped: no GPU is seen" in line] == names
    assert (
        any(line.startswith("- PyTorch: ") for line in lines)
        and str(tmp_path / "t.md") in lines[-1]
    )


def test_torchrun_over_gloo(marked, tmp_path):
    """A step of ranks as it is on GPUs, but for the device; and one whose ranks find that the device is another."""
    good = Step("good", "", first_hour.ranks(2, "gloo", "collectives", "posted"), 120)
    row = first_hour.run(good, tmp_path / "good.log", 1)
    assert row.result == "held" and len(row.seen) == 2, (tmp_path / "good.log").read_text()
    assert row.seen[0].startswith("ranks: 2, collectives: 9")


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_each_step_starts_what_there_is(gpus, backend):
    """All programs, over this backend, on ranks enough; no more of them than the step says that it needs GPUs."""
    found = first_hour.steps(gpus, backend)
    assert len({each.name for each in found}) == len(found)
    programs, compared = set(), set()
    for each in found:
        words = each.command
        assert (
            all(isinstance(word, str) for word in words)
            and 0 < each.limit <= 900
            and each.shows.endswith(".")
        )
        modules = [words[i + 1] for i, word in enumerate(words) if word == "-m"]
        assert all(
            (ROOT / f"{name.replace('.', '/')}.py").exists()
            for name in modules
            if name.startswith("tests.")
        )
        if "--backend" in words:
            assert words[words.index("--backend") + 1] == backend
        if "--nproc-per-node" in words:
            assert int(words[words.index("--nproc-per-node") + 1]) <= max(each.gpus, gpus)
            named = words[words.index("--backend") + 2 :]
            assert named and set(named) <= set(ranks.PROGRAMS)
            programs |= set(named)
        elif "tests.gpu.runs" in words:
            assert int(words[words.index("--ranks") + 1]) <= max(each.gpus, gpus)
            compared.add(words[words.index("tests.gpu.runs") + 1])
    assert programs == set(ranks.PROGRAMS) and compared == {"world", *runs.RUNS}


def test_the_sanitizer(monkeypatch, tmp_path):
    """Found on the path or beside CUDA, and its complaints are a failure of the step."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(first_hour, "CUDA", ())
    assert "is not there" in first_hour.no_sanitizer()
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    assert first_hour.no_sanitizer() == ""
    found = next(each for each in first_hour.steps(1, "nccl") if each.name == "sanitizer")
    assert (
        found.command[0] == str(tool)
        and found.command[found.command.index("--error-exitcode") + 1] == "9"
    )


def test_the_document_has_every_step():
    """docs/gpus.md says of each step what it shows, and how many GPUs it needs."""
    rows = [
        line
        for line in (ROOT / "docs" / "gpus.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows == [
        f"| `{each.name}` | {each.gpus} | {each.shows} |" for each in first_hour.steps(8, "nccl")
    ]


def test_make_gpu_runs_it():
    rule = (ROOT / "Makefile").read_text().partition("\ngpu: ")[2].partition("\n\n")[0]
    assert "-m tests.gpu.first_hour" in rule


def test_seconds_are_those_of_the_step(marked, tmp_path):
    start = time.monotonic()
    row = first_hour.run(
        step("sleeps", "import time; time.sleep(0.5); print('seen: it')"), tmp_path / "log", 1
    )
    assert 0.5 <= row.seconds <= time.monotonic() - start and isinstance(row, Row)
