"""`make lab` finds a Python that fits, shows what it does, and leaves nothing broken. Each Python here is a shell script."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from course import install
from tests.repository.files import ROOT

NAMES = ("python3", "python3.13", "python3.12", "python3.11")
# Makes a folder as venv does; {fits} and {whole} are exit codes, {pip} is what its pip does.
PYTHON = """#!/bin/sh
case "$1 $2" in
"--version ") echo Python {version} ;;
*version_info*) exit {fits} ;;
*ensurepip,*) exit {whole} ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") {pip} ;;
course/install.py*) exec {real} "$@" ;;
esac
"""
# What a Python without its version chosen is, among pyenv's.
SHIM = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"
WORKS = "echo Collecting torch; echo Installing collected packages: torch"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def python(version="3.12.1", fits=0, whole=0, pip=WORKS):
    return PYTHON.format(version=version, fits=fits, whole=whole, pip=pip, real=sys.executable)


OLD = python("3.10.13", fits=1)


def found(folder, *words, **pythons):
    """What the finder says in a world that has these Pythons and no other."""
    for name in NAMES:
        script(folder / "bin" / name, pythons.get(name.replace(".", "_"), SHIM))
    return subprocess.run(
        ["sh", "course/python.sh", str(folder / "venv"), "lab", *words],
        cwd=ROOT,
        env={"PATH": f"{folder}/bin:/usr/bin:/bin"},
        text=True,
        capture_output=True,
    )


@pytest.mark.parametrize(
    ("pythons", "name"),
    [
        ({"python3": python()}, "python3"),
        ({"python3": OLD, "python3_11": python(), "python3_13": OLD}, "python3.11"),
        ({"python3": python(whole=1), "python3_12": python()}, "python3.12"),
    ],
)
def test_the_first_that_fits_is_taken(tmp_path, pythons, name):
    done = found(tmp_path, **pythons)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n", "")


def test_without_one_it_says_what_there_is_and_how_to_get_one(tmp_path):
    done = found(tmp_path, python3=OLD)
    assert done.returncode and done.stdout == ""
    assert (
        "needs Python 3.11, 3.12 or 3.13. Found: python3 (Python 3.10.13)." in done.stderr
        and "apt install python3 python3-venv" in done.stderr
        and "brew install python@3.13" in done.stderr
        and "conda create" in done.stderr
        and 'make lab PYTHON="$(uv python find 3.13)"' in done.stderr
    )
    assert "Found: none of python3 python3.13" in found(tmp_path).stderr


@pytest.mark.parametrize("words", [[], ["python3.12"]])
def test_one_without_venv_names_the_package_that_has_it(tmp_path, words):
    done = found(tmp_path, *words, python3_12=python(whole=1))
    assert done.returncode and "sudo apt install python3.12-venv\n" in done.stderr


def test_the_one_that_was_named_is_taken_or_refused(tmp_path):
    assert found(tmp_path, "python3.11", python3_11=python(), python3=python()).stdout == (
        "python3.11\n"
    )
    done = found(tmp_path, "python9")
    assert done.returncode and "python9 is not there" in done.stderr


def test_an_environment_whose_python_has_gone_is_named(tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    done = found(tmp_path, python3=python())
    assert done.returncode and f"Remove it: rm -r {tmp_path}/venv" in done.stderr


def test_windows_without_wsl_is_told_of_it(tmp_path):
    script(tmp_path / "bin" / "uname", "#!/bin/sh\necho MINGW64_NT-10.0-22631\n")
    done = found(tmp_path, python3=python())
    assert done.returncode and "wsl --install" in done.stderr and "SIGALRM" in done.stderr


def command(folder, text):
    script(folder / "python", text)
    return ["make", ".course", f"PYTHON={folder}/python", f"VENV={folder}/venv"]


def made(folder, text):
    """`make` with a Python that is a shell script; only what installs, as Lab would start otherwise."""
    words = command(folder, text)
    words[1] = f"{folder}/venv/.course"
    return subprocess.run(words, cwd=ROOT, text=True, capture_output=True)


def test_another_python_is_refused_before_anything_is_made(tmp_path):
    done = made(tmp_path, OLD)
    assert done.returncode and not (tmp_path / "venv").exists()
    assert (
        "minidist needs Python 3.11, 3.12 or 3.13, and" in done.stderr
        and "is Python 3.10.13." in done.stderr
        and "PYTHON=python3.12" in done.stderr
    )


def test_it_says_what_to_expect_and_what_it_does(tmp_path):
    done = made(tmp_path, python())
    assert done.returncode == 0, done.stderr
    assert "GB, of which PyTorch" in done.stdout and "ten minutes" in done.stdout
    assert [f"{n} of 4" in done.stdout for n in (1, 2, 4)] == [True] * 3
    assert (tmp_path / "venv" / ".course").exists()
    assert not (tmp_path / "venv" / ".unfinished").exists()


ERROR = "echo 'ERROR: No matching distribution' >&2; echo '  a second line'; exit 1"


def test_what_an_installation_that_failed_has_made_is_removed(tmp_path):
    done = made(tmp_path, python(pip=f"echo Collecting torch; {ERROR}"))
    assert done.returncode and not (tmp_path / "venv").exists(), done.stdout
    assert "ERROR: No matching distribution\n  a second line\n" in done.stdout
    assert "Collecting" not in done.stdout and "It is removed" in done.stdout


def test_an_environment_that_was_there_stays(tmp_path):
    script(tmp_path / "venv" / "bin" / "python", python(pip=ERROR))
    done = made(tmp_path, python())
    assert done.returncode and (tmp_path / "venv" / "bin" / "python").exists()
    assert "was there before, and stays" in done.stdout and not (tmp_path / "venv/.course").exists()


def test_an_environment_of_another_python_is_named(tmp_path):
    script(tmp_path / "venv" / "bin" / "python", OLD)
    done = made(tmp_path, python())
    assert (
        done.returncode and f"{tmp_path}/venv has Python 3.10.13. Remove it: rm -r" in done.stderr
    )


def test_what_was_killed_is_made_anew(tmp_path):
    script(tmp_path / "venv" / "bin" / "python", OLD)
    (tmp_path / "venv" / ".unfinished").touch()
    (tmp_path / "venv" / "half").touch()
    done = made(tmp_path, python())
    assert done.returncode == 0 and "made anew" in done.stdout
    assert not (tmp_path / "venv" / "half").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing(tmp_path, number):
    script(tmp_path / "python", python(pip="echo Collecting torch; exec sleep 60"))
    running = subprocess.Popen(
        [sys.executable, "course/install.py", f"{tmp_path}/venv", "course", f"{tmp_path}/python"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    while not (tmp_path / "venv" / ".fetched").exists():
        time.sleep(0.01)
        assert running.poll() is None
    os.killpg(running.pid, number)
    said = running.communicate(timeout=20)[0]
    assert running.returncode == 130 and "Stopped after" in said and "Traceback" not in said
    assert not (tmp_path / "venv").exists()


def test_a_full_disk_is_told_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "free", lambda folder: 1.2)
    out = io.StringIO()
    assert install.main(tmp_path / "venv", "course", sys.executable, out) == 1
    assert "only 1.2 GB free" in out.getvalue() and not (tmp_path / "venv").exists()


def test_on_linux_the_build_for_cuda_may_not_fit(tmp_path):
    for platform, warned in (("linux", True), ("darwin", False)):
        out = io.StringIO()
        install.announce(tmp_path / "venv", install.Progress(out), 4.0, platform)
        assert (f"PIP_EXTRA_INDEX_URL={install.SMALLER} make lab" in out.getvalue()) == warned
        assert ("CUDA" in out.getvalue()) == warned


def test_what_pip_says_becomes_one_line(tmp_path):
    script(tmp_path / "python", "#!/bin/sh\nexec sleep 60\n")
    pip = install.Pip(tmp_path / "python", [], tmp_path)
    told = {
        "Collecting torch==2.13.0 (from -c constraints.txt (line 158))": "1, 0 MB fetched, now torch==2.13.0",
        "  Downloading torch-2.13.0-cp312-linux.whl.metadata (28 kB)": "1, 0 MB fetched, now torch==2.13.0",
        "Collecting numpy": "2, 0 MB fetched, now numpy",
        "Downloading torch-2.13.0-cp312-linux.whl (801.5 MB)": "2, 0 MB fetched, now torch-2.13.0 (801.5 MB)",
    }
    for line, shown in told.items():
        pip.hear(line)
        assert pip.doing() == f"packages found: {shown}"
    (tmp_path / ".fetched" / "torch").write_bytes(bytes(3_000_000))
    assert "3 MB fetched" in pip.doing() and not pip.installing
    pip.hear("Installing collected packages: numpy, torch")
    assert pip.installing and pip.doing() == "0 of 2 packages installed, now numpy"
    (tmp_path / "lib/python3.12/site-packages/numpy.dist-info").mkdir(parents=True)
    assert pip.doing() == "1 of 2 packages installed, now torch"
    assert not pip.ended(0) and pip.words() == ""
    assert pip.close() != 0 and not (tmp_path / ".fetched").exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_moves_on_a_terminal_and_elsewhere_comes_seldom():
    terminal, file = Terminal(), io.StringIO()
    moving, seldom = install.Progress(terminal), install.Progress(file, every=0.05)
    for k in range(3):
        moving.now(f"step {k} " + "x" * 500)
        seldom.now(f"step {k}")
        time.sleep(0.03)
    moving.say("done")
    shown = terminal.getvalue()
    assert shown.count("\r\x1b[K") == 4 and shown.count("\n") == 1 and len(shown) < 1000
    assert file.getvalue() == "    0:00  step 2\n"
