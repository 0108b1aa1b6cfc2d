"""Names of functions, as a list has them and as a mode gets them."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from minidist.train.amp import BLACK, GRAY, WHITE, name_of


class Listen(TorchFunctionMode):
    """Notes the name of each function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.heard = name_of(func)
        return func(*args, **kwargs or {})


def test_no_name_is_on_two_lists():
    assert (
        not (WHITE & BLACK | WHITE & GRAY | BLACK & GRAY)
        and "matmul" in WHITE
        and "softmax" in BLACK
    )


x = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "matmul",
            [
                lambda: x @ x,
                lambda: x.matmul(x),
                lambda: torch.matmul(x, x),
                lambda: torch.linalg.matmul(x, x),
                lambda: torch.ops.aten.matmul(x, x),
                lambda: torch.ops.aten.matmul.default(x, x),
            ],
        ),
        (
            "pow",
            [
                lambda: x**2,
                lambda: x.pow(2),
                lambda: torch.pow(x, 2),
                lambda: torch.ops.aten.pow(x, 2),
            ],
        ),
        ("rpow", [lambda: 2**x]),
        ("rdiv", [lambda: 1 / x]),
        (
            "softmax",
            [
                lambda: F.softmax(x, 0),
                lambda: x.softmax(0),
                lambda: torch.softmax(x, 0),
                lambda: torch.special.softmax(x, 0),
                lambda: torch.nn.Softmax(0)(x),
            ],
        ),
        ("norm", [lambda: x.norm(), lambda: torch.norm(x), lambda: torch.linalg.norm(x)]),
        ("mm", [lambda: torch.mm(x, x), lambda: x.mm(x)]),
        ("pow_", [lambda: x.clone().pow_(2)]),
        ("addmm_", [lambda: x.clone().addmm_(x, x)]),
    ],
)
def test_one_name_for_all_spellings(name, calls):
    for call in calls:
        with Listen() as listen:
            call()
        assert listen.heard == name_of(name) == name
