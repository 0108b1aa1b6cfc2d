"""The exercise of lesson 08 about a reversible block: its inputs and their gradients from its outputs.

Looked at: inputs, gradients, and the work: how often f and g run, and how many products of matrices are computed.
Source: Gomez et al. 2017, "The Reversible Residual Network", Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minidist.comm.base import Comm

from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import FORBIDDEN

NAMES = ("x1", "x2", "the gradient of x1", "the gradient of x2")


PRODUCTS = 12  # of f and g: two in a forward, four in a backward


class Products(TorchDispatchMode):
    """Counts products of matrices, whoever computes them."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


class Part(nn.Module):
    """tanh(x w + b) w. runs: one more entry for each call."""

    def __init__(self, w: Tensor, b: Tensor, runs: list | None = None):
        super().__init__()
        self.w = nn.Parameter(w.clone())
        self.b = nn.Parameter(b.clone())
        self._runs = [] if runs is None else runs

    def forward(self, x: Tensor) -> Tensor:
        self._runs.append(1)
        return (x @ self.w + self.b).tanh() @ self.w


def serial(
    f: Part, g: Part, x1: Tensor, x2: Tensor, dy1: Tensor, dy2: Tensor
) -> tuple[Tensor, ...]:
    """y1, y2, and the gradients of x1 and x2; those of the parameters in .grad."""
    x1, x2 = x1.clone().requires_grad_(), x2.clone().requires_grad_()
    y1 = x1 + f(x2)
    y2 = x2 + g(y1)
    torch.autograd.backward([y1, y2], [dy1, dy2])
    return y1.detach(), y2.detach(), x1.grad, x2.grad


class ReversibleBackward(Exam):
    name = "reversible_backward"
    right = "blocks of 1 to 6 numbers: inputs and gradients from outputs, f and g once each."
    forbidden = FORBIDDEN
    step = 3.0
    cases = tuple(
        Case(1, f"{rows} rows of {width}", (rows, width))
        for rows, width in ((2, 3), (5, 6), (1, 1))
    )

    def draw(self, case, rng):
        rows, width = case.given
        drawn = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)
        weights = [(drawn(width, width), drawn(width)) for _ in range(2)]
        x1, x2, dy1, dy2 = (drawn(rows, width) for _ in range(4))
        f, g = (Part(w, b) for w, b in weights)
        y1, y2, _, _ = serial(f, g, x1, x2, dy1, dy2)
        return [(weights, [y1, y2, dy1, dy2])]  # the inputs stay here

    def run(self, comm: Comm, yours, weights, tensors):
        runs: list = []
        made = [Part(w, b, runs) for w, b in weights]
        for module in made:
            module.w.grad = torch.ones_like(module.w)
        mine = [x.clone() for x in tensors]
        with Products() as products:
            found = yours(*made, *mine)
        graph = isinstance(found, tuple | list) and any(
            isinstance(x, Tensor) and x.requires_grad for x in found
        )
        return {
            "found": list(found) if isinstance(found, tuple | list) else found,
            "graph": graph,
            "runs": len(runs),
            "products": products.count,
            "grads": [p.grad for m in made for p in m.parameters()],
            "same": all(map(torch.equal, mine, tensors)),
        }

    def judge(self, case, args, outcome):
        (weights, (y1, y2, dy1, dy2)), got = args[0], outcome.results[0]
        f, g = (Part(w, b) for w, b in weights)
        with torch.no_grad():
            x2 = y2 - g(y1)
            x1 = y1 - f(x2)
        _, _, dx1, dx2 = serial(f, g, x1, x2, dy1, dy2)
        found, want = got["found"], (x1, x2, dx1, dx2)
        if not isinstance(found, list) or len(found) != 4:
            raise Wrong(
                "it returns four tensors: x1, x2, and the gradients of both. Is there a `return`?"
            )
        if not got["same"]:
            raise Wrong("a tensor that was given was changed, and belongs to the caller.")
        with torch.no_grad():
            looks = {
                "x1": {
                    "That is y1 + f(x2): subtract.": y1 + f(x2),
                    "f takes x2, which comes first: not y2.": y1 - f(y2),
                    "That is y1.": y1,
                    "f takes x2, not x1 or y1.": y1 - f(y1),
                },
                "x2": {
                    "That is y2 + g(y1): subtract.": y2 + g(y1),
                    "That is y2.": y2,
                    "f and g are exchanged.": y2 - f(y1),
                    "That is x1: the order is x1, x2, and their gradients.": x1,
                },
                NAMES[2]: {
                    "That is dy1: y1 goes through g into y2, too.": dy1,
                    "That is dy1 + dy2: the way through g is missing.": dy1 + dy2,
                    "The direct way is missing: dy1.": dx1 - dy1,
                },
                NAMES[3]: {
                    "That is dy2: x2 goes through f into y1, too.": dy2,
                    "The direct way is missing: dy2.": dx2 - dy2,
                    "Through f comes the whole gradient of y1, not dy1 alone.": self._through(
                        f, x2, dy1
                    )
                    + dy2,
                },
            }
        for i in (1, 0, 2, 3):  # x1 comes from x2
            name = NAMES[i]
            mine = found[i]
            right = want[i]
            if not isinstance(mine, Tensor) or mine.shape != right.shape:
                raise Wrong(
                    f"{name} should be a tensor of shape {tuple(right.shape)}, and is "
                    f"{'None' if mine is None else 'something else'}."
                )
            if not near(mine, right):
                hint = next(
                    (text for text, x in looks[name].items() if near(mine, x)),
                    "Follow each way from it to y1 and y2: gradients of all ways are added.",
                )
                raise Wrong(f"{name} is wrong. {hint}")
        self._parameters(got, [*f.parameters(), *g.parameters()])

    def _parameters(self, got: dict, parameters: list[Tensor]) -> None:
        for i, (mine, p) in enumerate(zip(got["grads"], parameters, strict=True)):
            name = f"the {'b' if i % 2 else 'w'} of {'fg'[i // 2]}"
            before = 1 - i % 2
            if mine is None or (
                before and isinstance(mine, Tensor) and mine.equal(torch.ones_like(mine))
            ):
                raise Wrong(
                    f"x1, x2 and their gradients are right, but {name} gets no gradient: use `.backward()` in "
                    "there, which adds to .grad."
                )
            if before and near(mine, p.grad):
                raise Wrong(f"what stood in .grad of {name} before is gone: gradients are added.")
            if not near(mine - before, p.grad):
                raise Wrong(
                    f"the gradient of {name} is wrong: one backward through f, with the whole gradient of y1, "
                    "and one through g, with dy2."
                )
        if got["graph"]:
            raise Wrong("what it returns has a graph, which keeps activations alive: detach.")
        if got["runs"] != 2 or got["products"] > PRODUCTS:
            raise Wrong(
                f"f and g should run once each, for the inputs and for the gradients: 2 runs, and {PRODUCTS} "
                f"products of matrices with their backward. Here are {got['runs']} and {got['products']}: that "
                "is more than a third more work."
            )
        if got["products"] < PRODUCTS:
            raise Wrong(
                f"it is right, but only {got['products']} products of matrices were seen, and forward and "
                f"backward of f and g have {PRODUCTS}: what is computed out of sight is not counted."
            )

    def _through(self, f: Part, x2: Tensor, dy1: Tensor) -> Tensor:
        with torch.enable_grad():
            x2 = x2.clone().requires_grad_()
            return torch.autograd.grad(f(x2), x2, dy1)[0]


def reversible_backward(yours) -> None:
    """`reversible_backward(f, g, y1, y2, dy1, dy2)`: x1, x2 and their gradients; the parameters' are added."""
    ask(ReversibleBackward(), yours)
