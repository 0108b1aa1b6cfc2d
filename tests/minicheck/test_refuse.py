"""What an answer may not do is refused, with a message that says so; what it needs is not."""

import inspect
import marshal
import sys
from types import CodeType, FunctionType

import cloudpickle
import pytest
import torch

import minicheck
import minicheck as check
import minidist
import minidist.collectives
import minidist.collectives.ring
from minicheck import Wrong, refuse
from minicheck.sandbox import EXAMINATIONS, ORACLES, modules
from tests.minicheck.answers import double
from tests.minicheck.examined import assert_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel

LIBRARY = "this is the library's"


def answer_of(lines):
    names = {"__name__": "__main__"}
    body = "\n    ".join(lines)
    exec(f"import sys, torch\ndef answer(comm, x):\n    {body}\n    return 2 * x", names)
    return names["answer"]


def refused(words, *answers):
    """Whether answers with these lines, the last an expression, are refused with these words."""
    assert_wrong(words, double, {"; ".join(lines): answer_of(lines) for lines in answers})


THE_LIBRARY = [
    ["from minidist.collectives import all_reduce_", "all_reduce_(comm, x)"],
    ["import minidist.collectives.naive as f", "f.all_reduce(comm, [x], torch.add)"],
    ["import sys", "sys.modules['minidist.collectives.verbs'].barrier(comm)"],
    ["import torch.distributed as dist", "dist.all_reduce(x)"],
    ["import torch.distributed as dist", "dist.TCPStore('localhost', 0, is_master=True)"],
    ["torch.from_file('x', size=1)"],
    ["from minicheck.exam import Exam", "Exam.run = None"],
    ["import minicheck"],
    ["import minicheck.lessons.messages as r", "open(r.__file__).read()"],
    ["import inspect, minidist.collectives.ring as r", "open(inspect.getsourcefile(r))"],
    ["import importlib, minidist.collectives.ring as r", "importlib.reload(r)"],
]


def test_the_library():
    refused(LIBRARY, *THE_LIBRARY)


def test_a_module_that_is_not_loaded_yet():
    """The learner has only imported it: he is not told of a file."""
    refused(
        LIBRARY,
        *[
            [
                f"for name in [m for m in sys.modules if m.startswith('{module}')]:",
                "    del sys.modules[name]",
                f"import {module}",
            ]
            for module in (
                "minidist.parallel.pipedream",
                "minicheck.oracles.walls",
                "minidist.study.predict",
            )
        ],
    )


def test_a_file_of_the_library():
    files = [
        f"{minidist.__path__[0]}/{part}/new.py"
        for part in ("checkpoint", "collectives", "parallel", "study", "train")
    ]
    files.append(f"{minidist.__path__[0]}/parallelize.py")
    files.append(f"{minicheck.__path__[0]}/new.py")
    refused(LIBRARY, *[[f"open({file!r})"] for file in files])
    refused("reads and writes no files", *[[f"open({file!r}, 'w')"] for file in files])


def test_the_librarys_code_does_not_come_with_the_answer():
    """Built again from its code, or pickled by value, it would not be what was emptied."""
    ring = minidist.collectives.ring
    again = FunctionType(ring.all_reduce.__code__, {"__name__": "__main__"})
    names = {"__name__": "__main__", "held": [again]}
    exec("def answer(comm, x):\n    return held and 2 * x", names)
    with pytest.raises(Wrong, match=LIBRARY):
        double(names["answer"])
    cloudpickle.register_pickle_by_value(ring)
    try:
        with pytest.raises(Wrong, match=LIBRARY):
            double(lambda comm, x, held=ring.all_reduce: held and 2 * x)
    finally:
        cloudpickle.unregister_pickle_by_value(ring)


FILES = [
    ["open('solutions/02_messages/02_messages.ipynb').read()"],
    ["open('note.txt', 'w').write('x')"],
    ["import os", "os.open('/tmp/board', os.O_RDWR | os.O_CREAT)"],
    ["import numpy", "numpy.fromfile('/etc/hostname')"],
    ["torch.load('x.pt')"],
    ["import minidist.comm.base as base", "open(base.__file__, 'a')"],
]


def test_files():
    refused("reads and writes no files", *FILES)


OUTSIDE = [
    ["import socket", "socket.create_server(('localhost', 0))"],
    ["import subprocess", "subprocess.run(['ls'])"],
    ["import os", "os.system('ls')"],
    ["import os", "os.fork()"],
    ["import os", "os.kill(os.getppid(), 9)"],
    ["import gc", "gc.get_objects()"],
    ["import ctypes", "ctypes.CDLL(None)"],
    ["import os", "os.remove('x')"],
]


def test_the_world_outside():
    refused("to nothing else", *OUTSIDE)


def test_what_the_module_holds_does_not_weaken_the_hook():
    lines = [
        "r = sys.modules['minicheck.refuse']",
        "r._BEGINNINGS = r._EXACTLY = ()",
        "r.PACKAGE = '/'",
        "import os",
        "os.system('ls')",
    ]
    refused("to nothing else", lines)


def test_the_library_itself_as_answer():
    answers = [minidist.collectives.all_reduce_, minidist.collectives.ring.all_gather]
    assert_wrong("the library's own code", double, answers)


SLOW = [
    "import torch.distributed.pipelining",
    "from torch.distributed.pipelining import Schedule1F1B",
    "import importlib; importlib.import_module('torch.distributed.pipelining.schedules')",
]


def test_what_is_slow_to_load_is_refused_when_it_is_loaded():
    def schedule(line):
        return lambda stage, S, M: exec(line) or []

    assert_wrong(LIBRARY, check.one_f_one_b, map(schedule, SLOW))


def test_ordinary_work_is_not_refused():
    def answer(comm, x):
        import dataclasses
        import math
        import wave  # not loaded yet: read from the standard library

        from minidist.split import uneven

        assert (
            sum(uneven(7, 2)) == math.floor(7.9) and wave and dataclasses.make_dataclass("D", ["a"])
        )
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return 2 * x

    double(answer)


SECRETS = """
from functools import cache

TABLE = {k: k * k for k in range(3)}
RULES = {"twice": lambda x: 2 * x}


@cache
def answer(x=1, *more, key=2):
    def inner():
        return x
    return inner()


class Kept:
    size = 4

    def __init__(self, x):
        self.x = x

    def more(self):
        return super().__str__()
"""


def test_code_that_is_emptied_has_no_function_that_could_be_called():
    names = {"__name__": "secrets"}
    exec(refuse.emptied(compile(SECRETS, "secrets.py", "exec")), names)
    assert names["TABLE"] == {0: 0, 1: 1, 2: 4} and names["Kept"].size == 4
    for call in (names["answer"], names["RULES"]["twice"], names["Kept"], names["Kept"].more):
        with pytest.raises(refuse.Refused, match="the library's"):
            call(3)


def functions(code):
    """The names of all functions in code."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & inspect.CO_NEWLOCALS and not const.co_name.endswith("comp>"):
                yield const.co_name
            yield from functions(const)


def test_a_sandbox_hears_of_no_right_answer():
    """Where answers are examined the oracles have names alone; where a notebook's cells run there is no examination."""
    there = modules(examines=True)
    oracles = [name for name in there if refuse.under(name, ORACLES)]
    assert len(oracles) > 10 and "minicheck.lessons.zero" in there
    found = {name: {*functions(marshal.loads(there[name][2]))} for name in oracles}
    assert all(names <= {"_refused", "<genexpr>"} for names in found.values())
    assert not [name for name in modules(examines=False) if refuse.under(name, EXAMINATIONS)]
