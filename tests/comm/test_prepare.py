"""A notebook starts the server of `launch` when it imports what lessons and assignments import; a program does not."""

import json
import subprocess
import sys

import psutil

from tests.comm.children import until
from tests.repository.files import ROOT

PROGRAM = """
import importlib, json, psutil, sys
import minicheck as check
from minidist import study

servers = [len(psutil.Process().children())]
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance()
for module in (study, check):
    importlib.reload(module)
    servers.append(len(psutil.Process().children()))
found = psutil.Process().children()

from minidist.comm import launch
loaded = launch(lambda comm: [name in sys.modules for name in ("minidist.study", "minicheck")], 1)
print(json.dumps([servers, found[0].cmdline(), found[0].pid, loaded, len(psutil.Process().children())]))
"""


def test_a_notebook_starts_the_server_when_it_imports_a_lessons_tools():
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    servers, command, server, loaded, at_last = json.loads(told.splitlines()[-1])
    assert servers == [0, 1, 1] and "minidist.comm.server" in command and at_last == 1
    assert loaded == [[True, True]] and until(lambda: not psutil.pid_exists(server))
