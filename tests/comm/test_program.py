"""What a program may reach, what its ranks share, and how its lines are named."""

import functools
import pickle
import random
import sys
import threading
import types

import cloudpickle
import numpy as np
import pytest
import torch

from minidist.comm import World, from_env, launch
from minidist.comm.program import (
    caller,
    copied,
    dumps,
    dumps_program,
    line_of,
    located,
    named,
    never_received,
    outside,
    own_random,
    refuse_shared,
    seed_all,
    seed_of,
    users,
    whole,
)

model = torch.nn.Linear(1, 1)
models = {"a": [model]}
weight = torch.zeros(2, requires_grad=True)
plain = torch.zeros(2)


def helper(x):
    return model(x)


class Trainer:
    def __init__(self, module=None):
        self.module = module

    def step(self, comm):
        return self.module

    def __call__(self, comm):
        return comm.rank


class Reaching:
    def step(self, comm):
        return model


class ByClass:
    shared = model


def global_(comm):
    return model


def in_a_comprehension(comm):
    return [model(x) for x in range(3)]


def in_a_lambda(comm):
    return lambda x: (lambda y: model(y))(x)


def in_a_container(comm):
    return models["a"]


def of_a_helper(comm):
    return helper(1)


def by_default(comm, net=model):
    return net


def by_keyword_default(comm, *, net=model):
    return net


def a_tensor(comm):
    return weight.sum()


def of_a_class(comm):
    return ByClass.shared


def closure(value):
    return lambda comm: value


SHARED = {
    "global": global_,
    "comprehension": in_a_comprehension,
    "lambda": in_a_lambda,
    "container": in_a_container,
    "helper": of_a_helper,
    "default": by_default,
    "keyword": by_keyword_default,
    "tensor": a_tensor,
    "class": of_a_class,
    "closure": closure(model),
    "parameter": closure(model.weight),
    "optimizer": closure(torch.optim.SGD([weight], lr=1.0)),
    "nested": closure(closure(model)),
    "object": closure(Trainer(model)),
    "bound": Trainer(model).step,
    "method": Reaching().step,
    "callable": Trainer(model),
    "bound to it": model.forward,
    "itself": model,
    "partial": functools.partial(global_, 1),
    "partial within": closure(functools.partial(print, model)),
    "builtin container": closure((1, {2: {model}})),
}


@pytest.mark.parametrize("program", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("runner", ["world", "launch"])
def test_what_ranks_would_share_is_refused(runner, program):
    with pytest.raises(
        ValueError,
        match=r"the program uses '\w+', an? [\w ]+ of the notebook.*Pass it as an argument",
    ):
        if runner == "world":
            World(2).run(program)
        else:
            launch(program, 2)


def test_functions_among_the_arguments_count():
    with pytest.raises(ValueError, match="'model', a Linear"):
        World(2).run(lambda comm, step: step(1), helper)
    with pytest.raises(ValueError, match="'model', a Linear"):
        World(2).run(lambda comm, step: step(1), step=helper)


def attribute(comm, box):
    return box.model, box.models


def reads(comm):
    return plain.sum().item(), len(types.__name__), torch.nn.Linear(1, 1).weight.requires_grad


def recursive(comm, n=3):
    return 0 if n == 0 else recursive(comm, n - 1)


FINE = {
    "attribute": (attribute, (types.SimpleNamespace(model=1, models=2),)),
    "reads": (reads, ()),
    "recursive": (recursive, ()),
    "bound": (Trainer().step, ()),
    "callable": (Trainer(), ()),
    "builtin": (repr, ()),
    "installed": (torch.nn.functional.relu, (torch.ones(1),)),
}


@pytest.mark.parametrize(("program", "args"), FINE.values(), ids=FINE)
def test_what_ranks_do_not_share_is_fine(program, args):
    refuse_shared(program, *args)


def test_not_a_program():
    with pytest.raises(TypeError, match=r"a program is a function program\(comm, …\), not int"):
        World(2).run(3)
    with pytest.raises(TypeError, match="not NoneType"):
        launch(None, 2)


def test_a_cell_that_is_still_empty():
    def program(comm):
        return later

    refuse_shared(program)
    later = 1
    assert program(None) == 1


def scale(comm, net, factor, *, bias):
    with torch.no_grad():
        net.weight.fill_(comm.rank * factor)
    return net.weight.item() + bias


def test_what_a_partial_binds_is_an_argument_like_any_other(run_fast):
    net = torch.nn.Linear(1, 1)
    before = net.weight.item()
    program = functools.partial(functools.partial(scale, net), bias=0.5)
    assert run_fast(program, 2, 2.0) == [0.5, 2.5]
    assert run_fast(program, 2, 2.0, bias=1) == [1, 3]
    assert net.weight.item() == before


def test_whole():
    assert whole(print, (1,), {"a": 2}) == (print, (1,), {"a": 2})
    assert whole(functools.partial(print, 0, a=1, b=1), (1,), {"a": 2}) == (
        print,
        (0, 1),
        {"a": 2, "b": 1},
    )


def test_copies_keep_what_was_shared():
    x = torch.zeros(4)
    (a, b), kwargs = copied((x, x[:2]), {"c": [x]})
    a[0] = 1
    assert b[0] == 1 and kwargs["c"][0] is a and x[0] == 0


def test_seeds():
    assert len({seed_of(s, r) for s in range(20) for r in range(100)}) == 2000
    assert seed_of(0, 3) == 3 and 0 <= seed_of(2**62, 7) < 2**63
    seed_all(4)
    one = torch.rand(1).item(), np.random.rand(), random.random()
    seed_all(4)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == one


def test_own_random():
    np.random.seed(1)
    random.seed(1)
    expected = np.random.rand(), random.random()
    np.random.seed(1)
    random.seed(1)
    with own_random(3):
        first = np.random.rand(), random.random()
    assert (np.random.rand(), random.random()) == expected
    with own_random(3):
        assert (np.random.rand(), random.random()) == first


def test_users():
    assert users(helper) and users(Trainer) and users(Trainer()) and users(Trainer().step)
    installed = (
        torch.relu,
        torch.nn.Linear,
        model,
        torch.ones(1),
        3,
        "s",
        None,
        print,
        np.ones(1),
        threading.Thread,
        seed_of,
        World,
        World(1),
    )
    assert not any(users(x) for x in installed)


def test_the_line_of_the_program_is_the_user_s():
    filename, line = caller()
    first = test_the_line_of_the_program_is_the_user_s.__code__.co_firstlineno
    assert filename == __file__ and line == first + 1
    x = torch.ones(1, requires_grad=True)
    found = []
    x.register_hook(lambda g: found.append(functools.reduce(lambda a, b: caller(), [0, 1])) or g)
    x.sum().backward()
    assert found[0][0] == __file__


def test_the_line_of_another_thread():
    go, there = threading.Event(), threading.Event()

    def stand():
        there.set()
        go.wait()  # it stands here

    thread = threading.Thread(target=stand)
    thread.start()
    there.wait()
    try:
        assert line_of(thread).endswith("go.wait()  # it stands here")
    finally:
        go.set()
        thread.join()
    assert line_of(thread) == ""


def test_outside():
    ours, inside = World.__module__.replace(".", "/"), torch.__file__
    package = __import__("minidist.comm.world", fromlist=["x"]).__file__
    collectives = __import__("minidist.collectives.ring", fromlist=["x"]).__file__
    assert ours in package
    assert outside([(package, 1), (inside, 2), ("mine.py", 3), ("main.py", 4)]) == ("mine.py", 3)
    stack = [(package, 1), (collectives, 5), (collectives, 6), (inside, 2), ("<frozen runpy>", 7)]
    assert outside(stack) == (collectives, 6)
    assert outside([(package, 1), (inside, 2)]) is None


def test_located():
    line, file = located.__code__.co_firstlineno, located.__code__.co_filename
    assert (
        located(file, line) == f"program.py:{line}: def located(filename: str, line: int) -> str:"
    )
    assert located("nowhere/train.py", 3) == "train.py:3"
    assert located("/x/ipykernel_12/345.py", 4) == "line 4 of the cell"


def test_named():
    error = ValueError("x")
    assert (
        named(error, 3, 4) is error
        and error.rank == 3
        and error.__notes__ == ["raised on rank 3 of 4"]
    )
    left = named(SystemExit(2), 1, 2)
    assert type(left) is RuntimeError and left.rank == 1 and isinstance(left.__cause__, SystemExit)


def test_never_received():
    assert str(never_received([(0, 1), (2, 1)])) == (
        "the programs returned, but a message was never received: rank 0 → rank 1, rank 2 → rank 1"
    )


# ------------------------------------------------------------
# What is packed here and unpacked in another process.


def through(value):
    return pickle.loads(dumps(value))


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(5),
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.ones(2, 3).t(),
        torch.ones(4).bfloat16()[1::2],
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False]),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.float8_e4m3fn),
        torch.ones(2, requires_grad=True),
    ],
    ids=str,
)
def test_tensors(x):
    y = through(x)
    assert (
        type(y) is type(x)
        and y.dtype == x.dtype
        and y.shape == x.shape
        and y.stride() == x.stride()
    )
    assert y.requires_grad == x.requires_grad and y.is_conj() == x.is_conj()
    assert torch.equal(y.detach().to(torch.complex64), x.detach().to(torch.complex64))


def test_memory_that_is_shared_stays_shared_and_travels_once():
    x = torch.arange(1 << 16, dtype=torch.float32)
    y = {"x": x, "part": x[2:4], "bits": x.view(torch.int32), "again": [x]}
    assert len(dumps(y)) < 1.1 * x.nbytes
    z = through(y)
    z["part"].fill_(-1)
    assert z["x"][1:5].tolist() == [1, -1, -1, 4]
    assert z["bits"].view(torch.float32)[3] == -1 and z["again"][0] is z["x"]
    assert x[2] == 2


def test_tied_parameters_stay_tied():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    again = through(model)
    assert again[1].weight is again[0].weight and torch.equal(again[0].bias, model[0].bias)


def test_a_module_travels_by_value_and_the_registry_is_as_before():
    module = types.ModuleType("of_the_user")
    lines = (
        "factor = 3",
        "def helper(x):",
        "    return factor * x",
        "def program(comm, x):",
        "    return helper(x)",
    )
    exec("\n".join(lines), vars(module))
    sys.modules["of_the_user"] = module
    try:
        data = dumps_program(module.program, (2,), {})
        with pytest.raises(TypeError):
            dumps_program(module.program, (sys._getframe(),), {})
    finally:
        del sys.modules["of_the_user"]
    assert "of_the_user" not in cloudpickle.list_registry_pickle_by_value()
    program, args, kwargs = pickle.loads(data)
    assert program(None, *args, **kwargs) == 6


def test_a_program_under_the_name_of_an_installed_module():
    """`functools.wraps` and doctests give it such a name; the module is there on the other side, and does not travel."""

    @functools.wraps(from_env)
    def program(comm):
        return comm.rank, from_env.__module__

    assert program.__module__ == "minidist.comm.torchdist"
    assert launch(program, 2) == [(0, program.__module__), (1, program.__module__)]
