"""What is packed here and unpacked in another process."""

import pickle
import sys
import types

import cloudpickle
import pytest
import torch

from minidist.comm.processes.packing import dumps, dumps_program


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
