"""What is wrong with a machine's surroundings is found and said, with what to do; what is right is left alone."""

import os
import socket
from pathlib import Path

import pytest
import torch

from minidist.comm import doctor
from minidist.comm.__main__ import main
from minidist.comm.doctor import allowed, examine
from tests.comm.dumps import entry, written

TWO = {"10.0.0.1": "eth0", "172.17.0.1": "docker0"}
MANY = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture
def host(monkeypatch):
    """`host(own, interfaces, routes)`: of a machine whose name stands for `own`. routes: {other address: own}."""

    def stands(own="10.0.0.1", interfaces=TWO, routes=()):
        routes = dict(routes)
        monkeypatch.setattr(doctor, "interfaces", lambda: interfaces)
        monkeypatch.setattr(doctor, "address_of", lambda name: own)
        monkeypatch.setattr(doctor, "address_towards", lambda other: routes.get(other, ""))
        monkeypatch.setattr(socket, "gethostname", lambda: "hosta")

    stands()
    return stands


def wrong(environ):
    return [finding for finding in examine(environ) if finding.do]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_nothing_is_wrong_with_a_plain_machine(host):
    found = examine({"MASTER_PORT": free_port()})
    assert [f for f in found if f.do] == []
    assert all(f.what and f.why for f in found)


@pytest.mark.parametrize(
    ("environ", "what", "do"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "GLOO_SOCKET_IFNAME=eth9", "not eth9"),
        ({"GLOO_SOCKET_IFNAME": "lo", **MANY}, "GLOO_SOCKET_IFNAME=lo", "over loopback"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "NCCL chooses from nothing", "name one of eth0, docker0"),
        ({"NCCL_SOCKET_IFNAME": "lo", **MANY}, "NCCL chooses from lo", "over loopback"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http", "from 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536", "from 1 to 65535"),
        ({"MASTER_ADDR": "host.invalid"}, "MASTER_ADDR=host.invalid", "no host is known"),
        ({"MASTER_ADDR": "127.0.0.1", **MANY}, "MASTER_ADDR=127.0.0.1", "on the network"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "64"}, "CONNECTIONS=64", "from 1 to 32"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "one"}, "CONNECTIONS=one", "from 1 to 32"),
        *(
            ({name: value}, f"{name}={value}", f"unset {name}")
            for name, values, _ in doctor.HARMFUL
            for value in values[:1]
        ),
        ({"NCCL_P2P_DISABLE": "true"}, "NCCL_P2P_DISABLE=true", "unset NCCL_P2P_DISABLE"),
    ],
)
def test_what_is_wrong_is_the_only_finding(host, environ, what, do):
    if "MASTER_PORT" not in environ:
        environ = {"MASTER_PORT": free_port(), **environ}
    finding, *others = wrong(environ)
    # of two hosts neither has the other's loopback
    assert len(others) == ("WORLD_SIZE" in environ and "MASTER_ADDR" not in environ)
    assert what in finding.what and do in finding.do and finding.why
    assert str(finding).startswith("WRONG  ") and "\n       do: " in str(finding)


@pytest.mark.parametrize(
    "environ",
    [
        {"GLOO_SOCKET_IFNAME": "docker0", "NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_DEBUG": "INFO"},
        {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        {"NCCL_IB_DISABLE": "0", "NCCL_SOCKET_IFNAME": "eth"},
        {"WORLD_SIZE": "eight", "LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_what_is_right_is_left_alone(host, environ):
    assert wrong({"MASTER_PORT": free_port()} | environ) == []


def test_a_name_that_is_loopback(host):
    """What `name_interface` takes is said; what it would refuse is wrong."""
    host("127.0.1.1", TWO)
    (finding,) = wrong({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": free_port(), **MANY})[:1]
    assert "hosta, is 127.0.1.1" in finding.what and "eth0, docker0" in finding.do
    host("127.0.1.1", TWO, {"10.0.0.9": "10.0.0.1"})
    finding = doctor.gloo_interface({"MASTER_ADDR": "10.0.0.9", **MANY}, TWO)
    assert finding.do == "" and finding.what.endswith("from_env() takes eth0")
    host("10.0.0.1", TWO)
    assert "(eth0), which gloo takes" in doctor.gloo_interface({}, TWO).what


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("^eth", ["ib0", "lo"]),
        ("^=eth0,lo", ["eth1", "ib0"]),
    ],
)
def test_nccl_s_beginnings_of_names(asked, taken):
    assert allowed(asked, ["eth0", "eth1", "ib0", "lo"]) == taken


def test_a_port_that_is_taken(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        (finding,) = wrong({"MASTER_PORT": taken})
        assert "the port is taken" in finding.what and "--standalone" in finding.do


def test_a_host_that_is_there_or_not(host, monkeypatch):
    """As if 127.0.0.1 were another host: `found` is no address of this one."""
    ask = lambda port: doctor.meeting_point({"MASTER_ADDR": "hostb", "MASTER_PORT": port}, TWO)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.2")
    connect = socket.create_connection
    to_this_host = lambda place, timeout: connect(("127.0.0.1", place[1]), timeout)
    monkeypatch.setattr(socket, "create_connection", to_this_host)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "which listens there" in ask(str(server.getsockname()[1])).what
    assert "nobody listens there yet" in ask(free_port()).what and not ask(free_port()).do

    def lost(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", lost)
    assert "does not answer" in ask("29500").what and "firewall" in ask("29500").do


def test_shared_memory_that_is_small(tmp_path):
    there = os.statvfs(tmp_path).f_frsize
    assert doctor.shared_memory(str(tmp_path), least=there).do == ""
    finding = doctor.shared_memory(str(tmp_path), least=2**60)
    assert "--shm-size" in finding.do and "GiB are free" in finding.what
    assert "is not there" in doctor.shared_memory("/nowhere").what


def test_gpus_as_if_there_were_some(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: {a, b} != {1, 2})
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    (finding,) = doctor.gpus({"LOCAL_WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert finding.do == "start 3 ranks on this machine" and "'0,1,2'; ranks: 4" in finding.what
    whats = [finding.what for finding in doctor.gpus({"LOCAL_WORLD_SIZE": "3"})]
    assert whats == [
        "GPUs: 3",
        "pairs that do not reach each other's memory: 1–2",
        "NCCL 2.28.9",
    ]


# ------------------------------------------------------------
# The command.


def test_the_doctor_s_exit_status(host, monkeypatch, capsys):
    for name in [*os.environ]:
        if name.startswith(("NCCL", "TORCH_NCCL", "TORCH_FR", "GLOO", "MASTER", "WORLD", "CUDA")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_PORT", free_port())
    assert main(["--doctor"]) == 0
    said = capsys.readouterr().out
    assert "WRONG" not in said and "/dev/shm" in said and "MASTER_PORT" in said
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    assert main(["--doctor"]) == 1
    assert "WRONG  GLOO_SOCKET_IFNAME=eth9" in capsys.readouterr().out


def test_the_command_that_reads_dumps(tmp_path, capsys):
    group = {("0", "default_pg"): range(2)}
    prefix = written(tmp_path, {0: [entry(1, "all_reduce", over=False)], 1: []}, group)
    assert main(["--hang", prefix]) == 1
    said = capsys.readouterr().out
    assert "rank 0 is in all_reduce" in said and "rank 1 has not come to it" in said
    (Path(prefix + "1")).unlink()
    assert main(["--hang", prefix, "--ranks", "2"]) == 1
    assert "rank 1 is not heard of" in capsys.readouterr().out
    prefix = written(tmp_path, {0: [entry(1, "all_reduce")], 1: [entry(1, "all_reduce")]}, group)
    assert main(["--hang", prefix]) == 0
    assert capsys.readouterr().out == "2 dumps: no call of theirs is unfinished\n"
    with pytest.raises(SystemExit, match="2"):
        main(["--hang", str(tmp_path / "none")])
    assert "there is no dump" in capsys.readouterr().err
