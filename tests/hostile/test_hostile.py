"""Hostile submissions: each gets a right mark in bounded time, and nothing outside of its sandbox is other than before.

As whoever runs the tests; and, where that is root, as a user without rights too.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from tests.bank.bank import ROOT
from tests.hostile.bank import BANK, FOUR, TWELVE, in_one
from tests.hostile.outside import LOOT, Outside
from tests.hostile.submission import ALL, EXERCISES, PREAMBLE

NOBODY = 65534
ALONE = [name for name in TWELVE if name not in FOUR]
OTHERS = [name for name in BANK if name not in ALONE]


@pytest.fixture(scope="module")
def sandbox():
    """A skip is a failure where the tests are to decide."""
    sandboxes = pytest.importorskip("minicheck.sandbox")
    try:
        return sandboxes.engine("bwrap")
    except Exception as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def outside(sandbox, tmp_path_factory):
    """What they must not reach; at the end no file of the machine holds their token."""
    with Outside(tmp_path_factory.mktemp("outside")) as one:
        yield one
        assert one.written() == []


@pytest.mark.parametrize(
    "name", [*ALONE, *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)]
)
def test_a_hostile_submission(name, outside, sandbox):
    from tests.hostile.trial import faults  # here: it needs the sandbox's door

    assert faults(BANK[name], outside, sandbox) == []


def test_four_attacks_of_one_submission(outside, sandbox):
    """Two sandboxes for all four. What each of them changes or reaches is told by its name; at full size each is alone."""
    from tests.hostile.trial import faults

    assert faults(in_one(*FOUR), outside, sandbox) == []


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="these tests have run as a user without rights")
def test_as_a_user_without_rights(sandbox, figure):
    """All of them again, in a process that is nobody's, if nobody may read the interpreter and the repository."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable]
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, NOBODY, NOBODY)
        env = os.environ | {"HOME": home, "TMPDIR": home, "PYTHONPATH": str(ROOT)}
        try:
            subprocess.run([*user, "-c", "import minicheck"], cwd=ROOT, env=env, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(
                f"another user cannot run this interpreter, or read this repository: {error}"
            )
        command = [*user, "-m", "tests.hostile"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    figure(
        f"{len(BANK)} hostile submissions as a user without rights: each marked, nothing changed"
    )


def test_the_bank():
    """At least sixty, each with an aim, and something that it must keep, lose or be told."""
    assert len(BANK) >= 60 and len(TWELVE) == 12 and set(TWELVE) <= set(BANK)
    for name, one in BANK.items():
        assert name == one.name and one.tries.endswith(".") and not one.keeps & one.loses
        assert one.keeps | one.loses <= ALL and set(EXERCISES) == ALL


def test_who_is_not_boxed_finds_the_loot(tmp_path):
    """The attacks do what they say: without a box, in a process of the teacher's, each of these reads its secret."""
    with Outside(tmp_path) as one:
        for name in (
            "file_read",
            "environment",
            "environments_of_others",
            "roots_of_others",
            "inherited_files",
            "shared_memory",
            "tcp",
            "udp",
            "abstract_socket",
            "socket_with_a_path",
        ):
            cells = [PREAMBLE.format(out=one.out()), BANK[name].predict, "print(messages)"]
            command = [sys.executable, "-S", "-c", "\n".join(cells)]
            done = subprocess.run(command, capture_output=True, text=True, close_fds=False)
            assert done.stdout == "14\n", (name, done.stderr)


def test_the_trial_sees_what_has_changed(tmp_path):
    """Each way in which a submission could harm, done by the test itself, is told."""
    with Outside(tmp_path) as one:
        one.renew()
        one.path.write_text("{}")
        one.handed_in()
        assert one.faults() == [] == one.written([str(tmp_path)])
        (one.folder / "grades.csv").write_text("")
        (one.folder / "graders" / "new.py").write_text(one.token)
        one.path.write_text("[]")
        one.shared.write_text("")
        os.kill(one.victim.pid, signal.SIGSTOP)
        os.waitpid(one.victim.pid, os.WUNTRACED)
        for address in (("127.0.0.1", one.port), one.abstract, f"{one.folder}/talk"):
            family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
            with socket.socket(family) as visitor:
                visitor.connect(address)
                assert json.loads(visitor.recv(1000))["loot"] == LOOT
        code = "import time; print('here', flush=True); time.sleep(99)"
        command = [sys.executable, "-c", code, one.token]
        left = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # Between the moment at which Popen returns and the one at which the kernel has set the
        # new program's arguments, /proc shows a process without a command.
        assert left.stdout.readline() == "here\n"
        found = " | ".join(one.faults())
        left.wait()
        left.stdout.close()
        (tmp_path / "planted.py").write_text(f"# {one.token}")
        assert one.written([str(tmp_path)]) == [str(tmp_path / "planted.py")]
    for words in (
        "reached TCP",
        "reached an abstract socket",
        "reached a socket's path",
        "grades.csv has changed",
        "graders/new.py has changed",
        "the submission has changed",
        "shared memory has changed",
        "ended or stopped",
        "a process is left",
    ):
        assert words in found
