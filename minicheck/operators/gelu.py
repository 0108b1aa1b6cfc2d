"""The exercise of lesson 09 about a backward of one's own: bias and GELU, nothing kept but what was given."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .judge import FORBIDDEN, close, kept, told
from .seen import Seen

OTHERWISE = "Compare with F.gelu(x + b), number by number."


class BiasGelu(Exam):
    name = "bias_gelu"
    right = "5 shapes, float32 and float64, gradients of x and b; nothing is kept but x and b."
    forbidden = FORBIDDEN
    cases = (
        Case(1, "x (6, 4)", ((6, 4), torch.float64, True)),
        Case(1, "x (1, 3)", ((1, 3), torch.float64, True)),
        Case(1, "x (2, 5, 4)", ((2, 5, 4), torch.float64, True)),
        Case(1, "float32", ((40, 8), torch.float32, True)),
        Case(1, "x needs no gradient", ((6, 4), torch.float64, False)),
    )

    def draw(self, case, rng):
        shape, dtype, needs = case.given
        drawn = [
            2 * torch.randn(s, generator=rng, dtype=torch.float64).to(dtype)
            for s in (shape, shape[-1:], shape)
        ]
        return [(*drawn, needs)]

    def run(self, comm: Comm, yours, x, b, dy, needs):
        seen = Seen([x, b, dy])
        x, b, dy = seen.given
        leaves = [x.requires_grad_(), b.requires_grad_()] if needs else [b.requires_grad_()]
        y = seen.ask(yours, x, b)
        held, result = seen.alive(y), y.detach() if isinstance(y, torch.Tensor) else y
        graph = lambda: torch.autograd.grad(y, leaves, dy, allow_unused=True)
        grads = seen.ask(graph) if isinstance(y, torch.Tensor) and y.requires_grad else None
        found = seen.plain({"y": result, "grads": grads, "given": [x.detach(), b.detach()]})
        return found | {"held": held, "left": seen.left, "may_leave": seen.may_leave}

    def judge(self, case, args, outcome):
        (x, b, dy, needs), got = args[0], outcome.results[0]
        close(got["y"], gelu(x + b), "y", oracle.gelu_looks(x, b), OTHERWISE)
        for after, before, name in zip(got["given"], (x, b), "xb", strict=True):
            kept(after, before, name)
        told(got, "y")
        if got["grads"] is None:
            raise Wrong(
                "y has no backward: does bias_gelu call BiasGelu.apply, and nothing with no_grad?"
            )
        dx, looks = dy * oracle.slope(x + b), oracle.dx_looks(dy, x, b)
        if needs:
            close(got["grads"][0], dx, "dx", looks, OTHERWISE)
        over = tuple(range(x.dim() - 1))
        close(
            got["grads"][-1],
            dx.sum(over),
            "db",
            {text: look.sum(over) for text, look in looks.items()}
            | {
                "It is the mean over rows: the sum is asked for.": dx.mean(over),
                "That is one row's.": dx[(0,) * len(over)],
                "That is minus the right one.": -dx.sum(over),
            },
            OTHERWISE,
        )
        if got["held"] > b.nbytes:
            raise Wrong(
                f"the numbers are right, but {got['held']} bytes are kept for backward beside x, b and y: save "
                "x and b, and form x + b again."
            )


def bias_gelu(yours) -> None:
    """`bias_gelu(x, b)`: F.gelu(x + b), whose backward needs x and b alone."""
    ask(BiasGelu(), yours)
