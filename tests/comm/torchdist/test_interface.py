"""Hosts whose names stand for loopback, as Debian's do, find each other all the same."""

import os
import subprocess
import sys

import pytest

from benchmarks.hosts import ADDRESSES, LINK, hosts, ip, missing
from minidist.comm import from_env
from minidist.comm.torchdist import interface
from tests.repository.files import ROOT

PROGRAM = """
import os, sys, torch
from minidist.collectives import all_reduce_
from minidist.comm import from_env
for port, master in enumerate(sys.argv[1:], 29411):  # they meet here, then there
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(port))
    comm = from_env(timeout=30)
    print(all_reduce_(comm, torch.ones(2) + comm.rank).tolist(), os.environ.pop("GLOO_SOCKET_IFNAME"))
    torch.distributed.destroy_process_group()
"""
# A name of its own, and a list of names of its own.
NAMED = (
    'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
)
NAMES = ("hosta", "hostb")


def started(host, place, folder, command, **variables):
    """Start a command on a host that knows itself by loopback only, and the other by its address."""
    lines = ["127.0.0.1 localhost"]
    lines += [
        f"{'127.0.1.1' if i == place else ADDRESSES[i]} {name}" for i, name in enumerate(NAMES)
    ]
    (folder / NAMES[place]).write_text("\n".join(lines) + "\n")
    inside = [
        "unshare",
        "--uts",
        "--mount",
        "sh",
        "-c",
        NAMED,
        "sh",
        NAMES[place],
        str(folder / NAMES[place]),
    ]
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *inside, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


def both(folder, *masters):
    """What a rank on each host prints, and the errors."""
    with hosts(1000) as names:
        command = [sys.executable, "-c", PROGRAM, *masters]
        ranks = [
            started(
                host,
                i,
                folder,
                command,
                RANK=str(i),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                OMP_NUM_THREADS="1",
            )
            for i, host in enumerate(names)
        ]
        return [rank.communicate(timeout=120) for rank in ranks]


@pytest.mark.alone
def test_two_hosts_whose_names_stand_for_loopback(tmp_path):
    """They meet at an address, or at a name that stands for loopback on one of the two."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    found = both(tmp_path, ADDRESSES[0], NAMES[0])
    assert [printed for printed, _ in found] == [f"[3.0, 3.0] {LINK}\n" * 2] * 2, found


@pytest.fixture
def named(monkeypatch):
    """This host's name stands for the given address, and it has these interfaces and these ways."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(interface.sys, "platform", "linux")
    monkeypatch.setattr(interface.socket, "gethostname", lambda: "hosta")

    def given(address, found=(), ways=()):
        monkeypatch.setattr(interface, "address_of", lambda host: address)
        monkeypatch.setattr(interface, "interfaces", lambda: dict(found))
        monkeypatch.setattr(interface, "address_towards", lambda host: dict(ways).get(host, ""))
        return os.environ

    return given


TWO = {"10.0.0.1": "eth0", "172.17.0.1": "docker0"}


def test_the_interface_towards_the_others(named):
    environ = named("127.0.1.1", TWO, {"10.0.0.9": "10.0.0.1"})
    interface.name_interface("10.0.0.9")
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_default_route_if_all_meet_here(named):
    environ = named("127.0.1.1", TWO, {"hosta": "127.0.0.1", interface.ANYWHERE: "10.0.0.1"})
    interface.name_interface("hosta")
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_several_and_no_route_says_what_to_set(named):
    named("127.0.1.1", TWO)
    with pytest.raises(
        RuntimeError, match=r"hosta, stands for 127\.0\.1\.1.*set GLOO_SOCKET_IFNAME.*\(eth0, doc"
    ):
        interface.name_interface("hosta")


@pytest.mark.parametrize(
    ("own", "master"),
    [("10.0.0.1", "10.0.0.9"), ("127.0.1.1", "localhost"), ("127.0.1.1", "127.0.0.1")],
)
def test_a_good_name_and_a_lone_machine_stay_as_they_are(own, master, named):
    environ = named(own, TWO, {"10.0.0.9": "10.0.0.1"})
    interface.name_interface(master)
    assert "GLOO_SOCKET_IFNAME" not in environ


def test_what_the_user_has_set_stays(named, monkeypatch):
    named("127.0.1.1", TWO, {"10.0.0.9": "10.0.0.1"})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "docker0")
    interface.name_interface("10.0.0.9")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "docker0"


def test_this_machine_s_own():
    found = interface.interfaces()
    listed = ip("-4", "-o", "address").splitlines() if missing() is None else []
    assert set(found.values()) >= {
        line.split()[1].split("@")[0] for line in listed if " lo " not in line
    } - {"lo"}
    assert interface.address_towards("127.0.0.1").startswith("127.") and callable(from_env)
