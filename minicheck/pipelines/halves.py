"""The exercise of lesson 13 about a backward in two: the input's gradient first, those of the weights later.

Products are counted by their FLOPs, in each half: both together do the work of a whole backward, and no more.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import mlp_gradients
from .words import FORBIDDEN

ANOTHER = "It is that of a call that came in between: each `later` has tensors of its own."


class SplitBackward(Exam):
    name = "split_backward"
    right = "7 shapes, float64 and float32, another call in between: the three gradients; two products in each half."
    forbidden = FORBIDDEN
    shapes = (
        (4, 2, 3, 2),
        (2, 2, 2, 2),
        (6, 3, 5, 2),
        (3, 7, 2, 4),
        (8, 4, 4, 4),
        (2, 4, 6, 3),
        (5, 6, 9, 2),
    )
    cases = tuple(Case(1, f"{b} rows, {i} → {h} → {o}", (b, i, h, o)) for b, i, h, o in shapes)

    def draw(self, case, rng):
        b, i, h, o = case.given
        dtype = torch.float32 if (b, i) in ((2, 2), (3, 7), (5, 6)) else torch.float64
        x, w1, w2, dy = (
            torch.randn(shape, generator=rng, dtype=dtype)
            for shape in ((b, i), (i, h), (h, o), (b, o))
        )
        return [(x, w1, w2, dy)]

    def run(self, comm: Comm, yours, x, w1, w2, dy):
        given = [x, w1, (x @ w1).relu(), w2, dy]
        before = [t.clone() for t in given]
        with FlopCounterMode(display=False) as first:
            found = yours(*given)
        if not (isinstance(found, tuple | list) and len(found) == 2 and callable(found[1])):
            return {"kind": "None" if found is None else type(found).__name__}
        dx, later = found
        dx = dx.clone() if isinstance(dx, Tensor) else dx  # as it is now
        yours(*[2 * t for t in given])  # another micro-batch, whose weights wait, too
        with FlopCounterMode(display=False) as second:
            weights = later()
        return {
            "dx": dx,
            "weights": weights,
            "flops": [first.get_total_flops(), second.get_total_flops()],
            "kept": all(map(torch.equal, given, before)),
        }

    def judge(self, case, args, outcome):
        got, (x, w1, w2, dy) = outcome.results[0], args[0]
        if "kind" in got:
            raise Wrong(
                f"it returns {got['kind']}, and should return two things: dx, and a function that returns "
                "(dw1, dw2)."
            )
        if not got["kept"]:
            raise Wrong("one of the tensors that were given was changed: it belongs to the caller.")
        dx, dw1, dw2 = mlp_gradients(x, w1, w2, dy)
        active = (x @ w1 > 0).to(x.dtype)
        self._same(
            got["dx"],
            dx,
            "dx",
            {"The relu lets a gradient through only where h > 0.": dy @ w2.T @ w1.T},
        )
        weights = got["weights"]
        if not (isinstance(weights, tuple | list) and len(weights) == 2):
            kind = (
                "None"
                if weights is None
                else weights.kind
                if isinstance(weights, Other)
                else "not two tensors"
            )
            raise Wrong(f"the second half returns {kind}, and should return (dw1, dw2).")
        dz = dy @ w2.T * active
        self._same(
            weights[0],
            dw1,
            "dw1",
            {
                "The relu lets a gradient through only where h > 0.": x.T @ (dy @ w2.T),
                "It is transposed.": dw1.T,
                "It is dw2.": dw2,
                ANOTHER: 8 * dw1,
            },
        )
        self._same(
            weights[1],
            dw2,
            "dw2",
            {
                "It is made from z = x·w1: what went into w2 is h, after the relu.": (x @ w1).T
                @ dy,
                "It is transposed.": dw2.T,
                "It is dw1.": dw1,
                ANOTHER: 4 * dw2,
                "It is made with dz: the gradient of what left w2 is dy.": (x @ w1).relu().T @ dz
                if dz.shape == dy.shape
                else dw2,
            },
        )
        self._work(got["flops"], *case.given)

    def _same(self, got, want: Tensor, name: str, looks: dict[str, Tensor]) -> None:
        try:
            alike(0, got, want, name)
        except Wrong as wrong:
            turned = isinstance(got, Tensor) and got.shape == want.T.shape
            text = str(wrong).removeprefix("rank 0: ")
            raise Wrong(
                f"{text}{' It is transposed.' if turned and got.shape != want.shape else ''}"
            ) from None
        if not near(got, want):
            found = next(
                (text for text, x in looks.items() if x.shape == got.shape and near(got, x)), None
            )
            steps = "Go back step by step: dh = dy·w2ᵀ, dz = dh where h > 0, dx = dz·w1ᵀ."
            raise Wrong(f"{name} is not what PyTorch's backward gives. {found or steps}")

    def _work(self, flops: list[int], b: int, i: int, h: int, o: int) -> None:
        half = 2 * b * h * (i + o)
        first, second = flops
        if first + second > 2 * half:
            raise Wrong(
                f"the gradients are right, but both halves together take {first + second} FLOPs, and a whole "
                f"backward takes {2 * half}. Is something computed twice, or a forward run again?"
            )
        if first > half:
            raise Wrong(
                f"the gradients are right, but the first half takes {first} FLOPs, and dx alone takes {half}: "
                "the stage before waits for dx. Leave the weights' products to the second half."
            )
        if (first, second) != (half, half):
            raise Wrong(
                f"the gradients are right, but the halves take {first} and {second} FLOPs, and should take "
                f"{half} each: two products of matrices, with @."
            )


def split_backward(yours) -> None:
    """`split_backward(x, w1, h, w2, dy)`: dx, and a function that returns (dw1, dw2)."""
    ask(SplitBackward(), yours)
