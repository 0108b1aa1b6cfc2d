"""`make test`: what it says while it runs, what it says at the end, and that its commands run only what failed."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import nbformat.v4 as v4
import pytest
from nbformat import writes

from tests import all as everything
from tests.all import Part, Run, Tally
from tests.comm.children import lives, until
from tests.repository.files import ROOT

MIXED = """
import os
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("word", ["a 'b' $c", "d"])
def test_fails(word):
    assert word == "d", f"{word} is not d"

@pytest.fixture
def broken():
    yield
    raise OSError("the disk is full")

def test_leaves(broken):
    pass

def test_needs():
    pytest.skip("no GPU is seen")

def test_needs_too():
    pytest.skip("no GPU is seen")

@pytest.mark.xfail
def test_expected():
    assert False

def test_crashes():
    os._exit(3)
"""
WRONG = "print('line 7 is wrong'); raise SystemExit(1)"
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\n\Z", re.MULTILINE)
COUNTS = ("passed", "failed", "skipped")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """A repository with nothing but a few tests: `all` works there."""
    folder = tmp_path_factory.mktemp("away")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everything, "ROOT", folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("MINIDIST_FULL", raising=False)
        yield folder


def ran(chosen, folder, out):
    """The exit code, what was printed, and the summary as a program reads it."""
    code = Run(chosen, {}, folder, out).run()
    return code, out.getvalue(), json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def mixed(away):
    """Three parts: tests of all kinds, two checks of which one fails, a test that passes."""
    (away / "test_mixed.py").write_text(MIXED)
    (away / "test_unread.py").write_text("import no_such_module\n")
    (away / "test_last.py").write_text("def test_last():\n    pass\n")
    chosen = [
        Part("unit", spread=["-n", "1", "test_mixed.py", "test_unread.py"]),
        Part("lint", checks=[[sys.executable, "-c", WRONG], [sys.executable, "-c", ""]]),
        Part("alone", spread=["test_last.py"], settings={"OMP_NUM_THREADS": "1"}),
    ]
    return ran(chosen, away / "build", io.StringIO())


def test_every_part_runs_and_each_test_is_counted_once(mixed):
    code, printed, summary = mixed
    assert code == 1
    assert {name: [row[what] for what in COUNTS] for name, row in summary.items()} == {
        "unit": [
            3,
            4,
            2,
        ],  # the crash, the wrong word, what is torn down, and what cannot be collected
        "lint": [1, 1, 0],
        "alone": [1, 0, 0],
    }
    assert CLOSING.findall(printed) == [("5", "5", "2")]


def test_failures_are_told_at_once_and_summed_up_at_the_end(mixed):
    _, printed, _ = mixed
    during, _, summary = printed.partition("── Summary")
    for failure in (
        "test_mixed.py::test_fails[a 'b' $c]: AssertionError: a 'b' $c is not d",
        "test_mixed.py::test_leaves: OSError: the disk is full",
        "test_unread.py: ModuleNotFoundError: No module named 'no_such_module'",
    ):
        test, _, why = failure.partition(": ")
        assert f"FAILED {failure}\n" in during
        assert f"  {test}\n      {why}\n" in summary
    assert "crashed while running" in during and "line 7 is wrong" in summary
    assert during.index("FAILED test_mixed.py::test_leaves") < during.index("lint (2 of 3)")
    assert "unit (1 of 3): 8 of 8, 4 failed" in during and "alone (3 of 3): 1 of 1" in during
    assert "     2  no GPU is seen (test_mixed.py)\n" in summary
    assert 'raise OSError("the disk is full")' in during  # whole, for a log that nobody can repeat


@pytest.mark.parametrize("test", ["test_fails", "test_unread", "SystemExit"])
def test_a_command_of_the_summary_runs_only_what_failed(mixed, away, test):
    _, printed, summary = mixed
    failures = [failure for row in summary.values() for failure in row["failures"]]
    [found] = [failure for failure in failures if test in failure["test"]]
    assert f"\n    {found['command']}\n" in printed
    done = subprocess.run(found["command"], shell=True, cwd=away, capture_output=True, text=True)
    assert done.returncode and found["why"] in done.stdout
    if test != "SystemExit":
        assert re.search(r"^=+ 1 (failed|error) in", done.stdout, re.MULTILINE)


def test_on_a_terminal_one_line_moves(away):
    (away / "test_slow.py").write_text("import time\n\ndef test_slow():\n    time.sleep(1)\n")
    code, printed, _ = ran([Part("unit", spread=["test_slow.py"])], away / "build", Terminal())
    moved = printed.split("\n")[1]
    assert code == 0 and moved.count("\r\x1b[K") >= 4
    assert "0 of 1, 0 failed" in moved and "\n1 passed, 0 failed, 0 skipped\n" in printed.replace(
        "\r\x1b[K", ""
    )


def test_a_pytest_that_is_killed_has_failed(away):
    (away / "test_kill.py").write_text(
        "import os\n\ndef test_a():\n    pass\n\ndef test_kill():\n    os.kill(os.getpid(), 9)\n"
    )
    code, printed, summary = ran(
        [Part("unit", spread=["test_kill.py"])], away / "build", io.StringIO()
    )
    assert code == 1 and summary["unit"]["failed"] == 1
    assert (
        "FAILED all of unit: ended by signal 9: it was killed; perhaps the memory was used up"
        in printed
    )


def test_no_tests_are_no_success(away):
    (away / "test_none.py").write_text("")
    code, printed, _ = ran([Part("unit", spread=["test_none.py"])], away / "build", io.StringIO())
    assert code == 1 and "FAILED all of unit: exit code 5: it found no tests" in printed


HANG = """
import os, subprocess, sys, time, pytest

@pytest.mark.parametrize("n", [0, 1, 2])
def test_hangs(n):
    if n < 2:
        lost = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with open("pids", "a") as file:
            file.write(f"{os.getpid()} {lost.pid}\\n")
        while True:
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                open("heard", "a").close()
                if not os.path.exists("deaf"):
                    raise
"""
INTERRUPTED = """
import pathlib, sys
from tests import all
all.ROOT = all.FOLDER = pathlib.Path.cwd()
all.parts = lambda jobs, threads: [
    all.Part("unit", spread=["-n", "2", "-p", "tests.reaper", "test_hang.py"]), all.Part("alone", spread=["test_hang.py"])
]
sys.exit(all.main(["unit", "alone"]))
"""


@pytest.mark.parametrize(
    ("number", "deaf"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.full),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.full),
    ],
)
def test_ctrl_c_ends_all_and_sums_up(away, number, deaf):
    """Workers that hang, and what they have started in sessions of their own; they may be deaf to Ctrl-C."""
    (away / "test_hang.py").write_text(HANG)
    for name in ("deaf", "heard"):
        (away / name).unlink(missing_ok=True)
    if deaf:
        (away / "deaf").touch()
    pids = away / "pids"
    pids.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], cwd=away, stdout=subprocess.PIPE, text=True
    )
    assert until(lambda: len(pids.read_text().splitlines()) == 2, 60)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    started = [int(pid) for pid in pids.read_text().split()]
    assert until(lambda: not any(lives(pid) for pid in started), 20)
    if number == signal.SIGKILL:
        return
    assert process.returncode == 130
    assert (away / "heard").exists()  # a worker gets the chance to tidy up
    assert "unit    interrupted after 0 of 3: no test had ended" in printed
    assert "was running: test_hang.py::test_hangs[0]" in printed
    assert "alone   not run" in printed and CLOSING.findall(printed) == [("0", "0", "0")]


def test_a_cell_is_run_with_its_notebook(away):
    says_two = [v4.new_output("stream", name="stdout", text="2\n")]
    cells = [
        v4.new_code_cell("x = 1", execution_count=1),
        v4.new_code_cell("y", execution_count=2),
        v4.new_code_cell("print(x)", execution_count=3, outputs=says_two),
    ]
    (away / "one.ipynb").write_text(writes(v4.new_notebook(cells=cells)))
    flags = ["--nbval", "--nbval-current-env"]
    part = Part("nbval", flags=flags, spread=["one.ipynb"])
    code, printed, _ = ran([part], away / "build", io.StringIO())
    assert code == 1
    raised = "Cell execution caused an exception: NameError: name 'y' is not defined"
    assert f"FAILED one.ipynb::Cell 1: {raised}\n" in printed
    assert "FAILED one.ipynb::Cell 2: Cell outputs differ: '2\\n' == '1\\n'\n" in printed
    assert printed.count("-m pytest --nbval --nbval-current-env one.ipynb\n") == 1
    assert CLOSING.findall(printed) == [("1", "2", "0")]


def test_the_time_left(tmp_path):
    """Half of a part that took 100 s before, by what its files took; a second part of 300; all at half the speed."""
    before = {
        "unit": {"seconds": 110.0, "collecting": 10.0, "files": {"a.py": 75.0, "b.py": 25.0}},
        "alone": {"seconds": 300.0},
    }
    run = Run([Part("unit"), Part("alone")], before, tmp_path, io.StringIO())
    now = time.monotonic()
    tally = run.tallies[0]
    tally.begun = now - 200
    tally.collected = now
    tally.tests = {"a.py": 3, "b.py": 1, "new.py": 1}
    run.begun = now - 200
    assert tally.done_seconds() == pytest.approx(10)
    tally.ended.update({"a.py": 2})
    done = 10 + 100 * 50 / 125  # a test of a new file counts as the average of those that are known
    assert tally.done_seconds() == pytest.approx(done)
    slower = (200 + everything.PRIOR) / (done + everything.PRIOR)
    assert run.left() == pytest.approx((410 - done) * slower, rel=1e-3)
    tally.over = now
    assert tally.done_seconds() == 110
    assert Run([Part("unit")], {}, tmp_path, io.StringIO()).tallies[0].done_seconds() == 0


def test_what_is_measured_serves_the_next_run(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "FIRST", tmp_path / "first.json")
    (tmp_path / "first.json").write_text('{"unit": {"seconds": 7}, "lint": {"seconds": 3}}')
    tally = Tally(Part("unit"), {})
    for when, name in enumerate(("begun", "collected", "over")):
        setattr(tally, name, 10.0 * when)
    tally.seconds.update({"a.py": 9.0})
    everything.keep_seconds([tally, Tally(Part("lint"), {})], tmp_path, record=False)
    found = everything.seconds_before(tmp_path)
    assert found["unit"] == {"seconds": 20.0, "collecting": 10.0, "files": {"a.py": 9.0}}
    assert found["lint"] == {"seconds": 3}
    everything.keep_seconds([tally], tmp_path, record=True)
    first = json.loads((tmp_path / "first.json").read_text())
    assert first == {"unit": {"seconds": 20.0, "collecting": 10.0}, "lint": {"seconds": 3}}


def test_the_first_estimate_names_all_parts(monkeypatch):
    monkeypatch.setattr(everything, "ROOT", ROOT)
    names = [part.name for part in everything.parts(2, 1)]
    assert list(json.loads(everything.FIRST.read_text())) == names


def test_make_s_targets_are_the_parts(tmp_path):
    """With an environment that is there, and newer than what it was made from."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".course", ".test"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    plan = subprocess.run(
        ["make", "-n", "test", "lint", "unit", "alone", "nbval", f"VENV={tmp_path}", "THREADS=2"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    words = [line.split() for line in plan.stdout.splitlines() if "tests.all" in line]
    flags = ["--jobs", "2", "--threads", "2"]
    called = [f"{tmp_path}/bin/python", "-m", "tests.all"]
    chosen = [[], ["lint"], ["unit"], ["alone"], ["nbval"]]
    assert words == [[*called, *part, *flags] for part in chosen], plan.stderr
