"""Processes forked from a warm one are like those that Popen starts, and end with whoever asked for them."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests import warm


def test_a_forked_command(tmp_path, monkeypatch):
    source = Path(warm.__file__).read_text()
    short, found = re.subn(r"^SLOW = .*?\)", 'SLOW = ("torch",)', source, flags=re.M | re.S)
    assert found == 1 and all(map(find_spec, warm.SLOW))
    (tmp_path / "short.py").write_text(short)
    # to import all of SLOW takes seconds
    monkeypatch.setattr(warm, "__file__", str(tmp_path / "short.py"))
    (tmp_path / "given.json").write_text('{"a": 1}')
    (tmp_path / "own.py").write_text(
        "import os, sys\nprint(os.getcwd(), sys.argv[1:], os.getpgrp() == os.getpid(),"
        "dict(os.environ), 'minidist' in sys.modules, 'torch' in sys.modules)"
    )
    one = warm.Warm()
    with open(tmp_path / "out", "w") as out:
        assert (
            one.fork([], ["json.tool", "given.json"], cwd=tmp_path, env={}, stdout=out).wait(30)
            is None
        )
        one.fork(
            [], ["own", "x"], cwd=tmp_path, env={"A": "b"}, stdout=out, start_new_session=True
        ).wait(30)
        shell = one.fork([], ["asyncio"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    told = (tmp_path / "out").read_text().partition("}\n")
    assert json.loads(told[0] + "}") == {"a": 1}
    assert told[2] == f"{os.path.realpath(tmp_path)} ['x'] True {{'A': 'b'}} False True\n"
    assert shell.wait(30) is None and shell.poll() == 0
    for end in (shell.terminate, shell.kill, lambda: shell.send_signal(15)):
        end()  # of one that has ended, as with Popen: nothing happens
    plain = one.popen()([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE)
    assert isinstance(plain, subprocess.Popen) and plain.communicate()[0] == b"1\n"
    one.process.stdin.close()
    assert one.process.wait(30) == 0
