"""Two hosts and a slow link: there while they are wanted, gone afterwards, whatever happens; or a reason why not."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from benchmarks import hosts as module
from benchmarks.hosts import ADDRESSES, LINK, hosts, ip, left_over, missing, remove
from tests.repository.files import ROOT


@pytest.fixture
def possible():
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


def ours(pid):
    return [
        line.split()[0]
        for line in ip("netns", "list").splitlines()
        if line.startswith(f"minidist-{pid}-")
    ]


def test_a_reason(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else "/bin/true")
    assert missing() == "iproute2 is not installed: there is no tc"
    monkeypatch.setattr(shutil, "which", lambda tool: "/bin/true")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "network namespaces need root, and this is user 1000"

    def refused(*words, check=True):
        if check:
            raise subprocess.CalledProcessError(
                1, ["ip", *words], stderr="Operation not permitted\n"
            )
        return ""

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "ip", refused)
    assert (
        missing()
        == f"the kernel refuses `ip netns add minidist-{os.getpid()}-a`: Operation not permitted"
    )


def test_they_are_joined_at_the_rate(possible):
    before = {each: signal.getsignal(each) for each in module.STOPS}
    with hosts(100) as names:
        assert ours(os.getpid()) and set(ours(os.getpid())) == set(names)
        for name, address in zip(names, ADDRESSES, strict=True):
            assert f"inet {address}/24" in ip("-n", name, "address", "show", "dev", LINK)
            assert (
                "tbf" in (rule := ip("tc", "-n", name, "qdisc", "show", "dev", LINK))
                and "rate 100Mbit" in rule
            )
    assert ours(os.getpid()) == [] and before == {
        each: signal.getsignal(each) for each in module.STOPS
    }


def test_a_failure_leaves_nothing(possible):
    started = []

    def fails():
        with hosts(100) as names:
            started.append(subprocess.Popen(["ip", "netns", "exec", names[1], "sleep", "600"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert started[0].wait(timeout=30) == -signal.SIGKILL and ours(os.getpid()) == []


def test_a_process_that_has_yet_to_enter_is_ended(possible):
    with hosts(100) as names:
        words = [
            sys.executable,
            "-c",
            "import time; time.sleep(600)",
            "netns",
            "exec",
            names[0],
            "sleep",
        ]
        late = subprocess.Popen(words)
    assert late.wait(timeout=30) == -signal.SIGKILL


def test_a_process_that_one_look_misses_is_ended(possible, monkeypatch):
    """In the middle of exec it has no words."""
    looks, inside = [], module.inside
    monkeypatch.setattr(
        module,
        "inside",
        lambda name: looks.append(name) or (inside(name) if len(looks) > 1 else []),
    )
    with hosts(100) as names:
        late = subprocess.Popen(["ip", "netns", "exec", names[0], "sleep", "600"])
    assert late.wait(timeout=30) == -signal.SIGKILL and looks.count(names[0]) >= 4


WAITS = """
import subprocess, sys, time
from benchmarks.hosts import hosts
with hosts(100) as names:
    sleeper = subprocess.Popen(["ip", "netns", "exec", names[0], "sleep", "600"])
    print(sleeper.pid, flush=True)
    sleeper.wait()
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_signal_leaves_nothing(number, status, possible):
    """Twice Ctrl-C, as one does; after kill -9 the next run finds what is left."""
    child = subprocess.Popen(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    sleeper = int(child.stdout.readline())
    child.send_signal(number)
    child.send_signal(number)
    assert child.wait(timeout=60) == status
    if number == signal.SIGKILL:
        assert set(ours(child.pid)) <= set(left_over()) and len(ours(child.pid)) == 2
        remove(ours(child.pid))
    assert ours(child.pid) == []
    state = pathlib.Path(f"/proc/{sleeper}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
