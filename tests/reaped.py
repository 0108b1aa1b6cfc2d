"""What a killed run of the tests might leave behind. `pytest tests/reaped.py` never ends; test_reaper.py kills it.

Each test says who it is in the file that REAPED names, and waits for ever, in its own way.
"""

import os
import subprocess
import sys
import time

import nbformat.v4 as v4
from nbclient import NotebookClient

from minidist.comm import launch

ASLEEP = "import time; time.sleep(600)"
# The child of a child that has ended, in a session of its own: nobody's tree shows it.
LOST = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "{ASLEEP}"], stdout=subprocess.DEVNULL).pid)
"""


def tell(*pids):
    """Add the processes to the list of those that are to go."""
    with open(os.environ["REAPED"], "a") as file:
        file.write("".join(f"{pid}\n" for pid in pids))


def test_ranks():
    def program(comm):
        tell(os.getpid(), os.getppid())
        time.sleep(600)

    launch(program, 2)


def test_kernel_and_lost():
    """A forked kernel, if tests.warm is loaded, which has launched ranks; and a process that nobody's tree shows."""
    start_lost()
    source = (
        f"import os, sys\nsys.path.insert(0, {os.getcwd()!r})\n"
        "from tests.reaped import test_ranks, tell\ntell(os.getpid())\ntest_ranks()"
    )
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()


def start_lost():
    told = subprocess.run(
        [sys.executable, "-c", LOST],
        stdout=subprocess.PIPE,
        check=True,
        start_new_session=True,
        text=True,
    ).stdout
    tell(told.strip())


def test_lost():
    start_lost()
    time.sleep(600)
