"""docs/troubleshooting.md: what it quotes is what one sees. Each message is produced here, or found in its source."""

import ast
import errno
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minidist.comm import doctor, from_env, torchdist
from tests.repository.files import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```\n+```text\n(.*?)\n```", re.DOTALL)
QUOTED = re.compile(r"```text\n(.*?)\n```", re.DOTALL)
# What only another machine shows: a GPU, a second network, a child without its file's last lines.
SOURCES = [
    ROOT / "minidist" / "comm" / "launch.py",
    "jupyter_server.serverapp",
    "torch.cuda",
    "multiprocessing.spawn",
]


def said(error):
    """An exception as Python ends its traceback; its notes, and what module it is of, are left out."""
    return f"{type(error).__name__}: {error}"


def in_source(message, source):
    """Whether a string of a Python file, its values filled in, is this message or has it within."""
    words = " ".join(re.sub(r"^\w+(\.\w+)*Error: ", "", message).split())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [
                re.escape(part.value) if isinstance(part, ast.Constant) else ".+"
                for part in node.values
            ]
            fixed = sum(len(part.value) for part in node.values if isinstance(part, ast.Constant))
            if fixed > len(words) / 2 and re.fullmatch("".join(parts), words):
                return True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split()).replace("%i", "8888")
            if words in text:
                return True
    return False


def a_command_that_is_not_found(tmp_path):
    told = subprocess.run(
        ["/bin/sh", "-c", "torchrun"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    found = re.search(r"torchrun:.*not found", told.stderr)[0]
    return "torchrun: command not found" if found else ""


def a_module_that_is_not_found(tmp_path):
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import minidist"], cwd=tmp_path, capture_output=True
    )
    return told.stderr.decode().splitlines()[-1]


def a_python_that_is_too_old(tmp_path):
    (tmp_path / "python3").write_text(
        '#!/bin/sh\ntest "$1" = --version && echo Python 3.10.13 && exit\nexit 1\n'
    )
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "uname").symlink_to(shutil.which("uname"))
    told = subprocess.run(
        ["/bin/sh", str(ROOT / "course" / "python.sh"), str(tmp_path / "none"), "lab", ""],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    return told.stderr.splitlines()[0]


def no_gpus(monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError) as refused:
        from_env(backend="nccl")
    return said(refused.value)


def a_port_that_is_taken():
    """PyTorch's message, and the doctor's."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(dist.DistNetworkError) as refused:
            dist.TCPStore("127.0.0.1", port, is_master=True, use_libuv=True)
        finding = doctor.meeting_point({"MASTER_PORT": str(port)}, {})
    found = [f"torch.distributed.{said(refused.value)}", str(finding)]
    return [words.replace(str(port), "29500") for words in found]


def a_name_that_is_loopback(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    monkeypatch.setattr(torchdist, "address_of", lambda host: "127.0.1.1")
    monkeypatch.setattr(torchdist, "address_towards", lambda host: "")
    two = {"10.0.0.1": "eth0", "172.17.0.1": "docker0"}
    monkeypatch.setattr(torchdist, "interfaces", lambda: two)
    with pytest.raises(RuntimeError) as refused:
        torchdist.name_interface("10.0.0.9")
    return said(refused.value)


def a_tensor_that_cannot_fit():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(10**15)
    return said(refused.value)


def a_name_that_is_new():
    with pytest.raises(ImportError) as refused:
        exec("from minidist.study import of_tomorrow")
    told = said(refused.value).replace("of_tomorrow", "viewer")
    return told.partition(" (")[0]


def unproduced(page, produced):
    """The messages of a page that are neither produced nor in a source."""
    sources = [path for path in SOURCES if isinstance(path, Path)]
    sources += [
        Path(importlib.util.find_spec(name).origin) for name in SOURCES if isinstance(name, str)
    ]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    ran = {message for _, _, message in PROGRAM.findall(page)}  # by test_a_program_of_the_page
    return [
        message
        for message in QUOTED.findall(page)
        if message not in ran | set(produced)
        and not any(in_source(message, text) for text in texts)
    ]


def test_every_message_is_what_one_sees(tmp_path, monkeypatch):
    produced = [
        a_command_that_is_not_found(tmp_path),
        a_module_that_is_not_found(tmp_path),
        a_python_that_is_too_old(tmp_path),
        no_gpus(monkeypatch),
        *a_port_that_is_taken(),
        a_name_that_is_loopback(monkeypatch),
        a_tensor_that_cannot_fit(),
        a_name_that_is_new(),
    ]
    assert unproduced(PAGE, produced) == []
    assert not [message for message in produced if message not in PAGE]
    changed = PAGE.replace("could not start 96", "cannot start 96").replace("eth0, d", "eth1, d")
    changed = changed.replace("Running as root is", "Running as root was")
    assert len(unproduced(changed, produced)) == 3


@pytest.mark.parametrize("name", ["uses.py", "both_wait.py", "late.py", "killed.py"])
def test_a_program_of_the_page_says_what_stands_below_it(name, tmp_path, monkeypatch):
    [(source, message)] = [
        (source, message) for file, source, message in PROGRAM.findall(PAGE) if file == name
    ]
    monkeypatch.chdir(tmp_path)
    source = f"# {name}\n{source}"
    (tmp_path / name).write_text(source)
    with pytest.raises(Exception) as raised:  # the page says which
        exec(compile(source, str(tmp_path / name), "exec"), {"__name__": "__main__"})
    assert said(raised.value) == message


def test_all_programs_are_run():
    assert [file for file, _, _ in PROGRAM.findall(PAGE)] == [
        "uses.py",
        "both_wait.py",
        "late.py",
        "killed.py",
    ]
    assert PAGE.count("\n## ") == 10, "README.md says that there are ten"


def test_the_megabytes_of_semaphores():
    megabytes = lambda n: (n + 2 * n * (n - 1)) * 4096  # those of comm/message.py, a page each
    said = "{:.0f} MB for 64 ranks,\n{:.0f} MB for 96"
    assert said.format(megabytes(64) / 1e6, megabytes(96) / 1e6) in PAGE
    assert "suffices for 90 ranks" in PAGE and megabytes(90) < 64 << 20 < megabytes(91)


def test_the_errors_have_these_names():
    """Of numbers of errors the page quotes what the system says."""
    assert os.strerror(errno.EMFILE) in PAGE and os.strerror(errno.EAGAIN) in PAGE
    assert os.strerror(errno.ENOSPC) in PAGE
