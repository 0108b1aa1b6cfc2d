"""An answer run forward, and backward if asked: what it gave, and what became of what it was given.

cases come in pairs: forward alone, whose messages are forward's; then both ways
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..compare import alike, unchanged
from ..data_parallel.averages import near
from ..exam import Case, Exam, Outcome
from ..wrong import Wrong

OTHER = 1024.0  # what the other reader says of each number
HOOKED = (
    "What another reader says of it was added up, too: a hook on a tensor sees all that is said of it, and in "
    "x + f(x) x has two readers. Only the gradient of what f returns is to be summed."
)
ROUNDED = "It is right to six digits: something rounds it, to float32 perhaps. Keep the dtype of what came in."
FORBIDDEN = ("minidist.parallel", "minicheck.tensor.oracle")


class Want(NamedTuple):
    """What a rank should find. grads: by the inputs' names, for those that have one."""

    y: Tensor
    grads: dict[str, Tensor]


def through(function, inputs: list[Tensor], dy: Tensor | None, beside: bool = False) -> dict:
    """Plain values: the output, the inputs' gradients if `dy` is given, and all that was handed in, as it is now.

    beside: the inputs have another reader, as x has in x + f(x); what it says of them is taken off again.
    """
    leaves = [x.clone().requires_grad_() for x in inputs]
    given = [x.view_as(x) for x in leaves] if beside else leaves
    y = function(*given)
    linked = isinstance(y, Tensor) and y.requires_grad
    found = {
        "y": y.detach() if isinstance(y, Tensor) else y,
        "linked": linked,
        "dy": dy,
        "grads": None,
    }
    if dy is not None and linked and y.shape == dy.shape:
        found["dy"] = dy.clone()
        others = given if beside else []
        torch.autograd.backward(
            [y, *others], [found["dy"], *[torch.full_like(x, OTHER) for x in others]]
        )
        found["grads"] = [x.grad - OTHER if beside else x.grad for x in leaves]
    return found | {"inputs": [x.detach() for x in leaves]}


def ways(ns: tuple[int, ...], *given) -> tuple[Case, ...]:
    """For each n: forward alone, then both ways. Case.given: (*given, whether backward)."""
    return tuple(
        Case(n, f"n = {n}, {'forward and backward' if both else 'forward'}", (*given, both))
        for n in ns
        for both in (False, True)
    )


class Through(Exam):
    """An exercise whose answer is a function of tensors and a Comm. names: of its inputs, in order.

    Each rank's arguments are (inputs, dy, …), dy None for forward alone.
    """

    forbidden = FORBIDDEN
    names: tuple[str, ...] = ("x",)

    def run(self, comm, yours, inputs, dy):
        return through(lambda *xs: yours(*xs, comm), inputs, dy)

    def wants(self, case: Case, args: list[tuple]) -> list[Want]:
        """What each rank should find."""
        raise NotImplementedError

    def looks(self, case: Case, args: list[tuple], rank: int, name: str, got: Tensor) -> str:
        """What a wrong output ("y") or gradient ("dx") looks like, or the rule."""
        raise NotImplementedError

    def budget(self, case: Case, args: list[tuple], rank: int) -> tuple[int, int, str]:
        """Bytes that a rank may send forward, and in all; and what they are for."""
        raise NotImplementedError

    def judge(self, case, args, outcome):
        for r, want in enumerate(self.wants(case, args)):
            got = outcome.results[r]
            self._handed_in(r, got, args[r])
            self._told(case, args, r, "y", got["y"], want.y)
            if not got["linked"]:
                raise Wrong(
                    f"rank {r}: the output is right, but autograd does not know where it comes from, so "
                    "backward stops there. Return what Function.apply gives."
                )
            if args[r][1] is not None:
                for name, grad in zip(self.names, got["grads"], strict=True):
                    if grad is None:
                        raise Wrong(
                            f"rank {r}: after backward {name}.grad is None: autograd does not see that {name} "
                            "was used."
                        )
                    self._told(case, args, r, f"d{name}", grad, want.grads[name])
        self._cheap(case, args, outcome)

    def _handed_in(self, rank: int, got: dict, args: tuple) -> None:
        for name, x, before in zip(self.names, got["inputs"], args[0], strict=True):
            unchanged(rank, x, before, name)
        if args[1] is not None and not (isinstance(got["dy"], Tensor) and got["dy"].equal(args[1])):
            raise Wrong(
                f"rank {rank}: the gradient that came into backward was changed. Others read it, too (the "
                "other branch of x + f(x), for one): all_reduce_ works in place, so clone first."
            )

    def _told(self, case: Case, args: list[tuple], rank: int, name: str, got, want: Tensor) -> None:
        alike(rank, got, want, "the output" if name == "y" else name)
        if not near(got, want):
            k = int((got - want).abs().nan_to_num(torch.inf).argmax())
            rounded = bool((got - want).abs().max() <= 1e-6 * want.abs().max())
            look = ROUNDED if rounded else self.looks(case, args, rank, name, got)
            shown = "the output" if name == "y" else f"the gradient {name}"
            raise Wrong(
                f"rank {rank}: {shown} is wrong: its number {k} is {number(got.reshape(-1)[k])}, and should be "
                f"{number(want.reshape(-1)[k])}. {look}"
            )

    def _cheap(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        for r in range(case.n):
            forward, both, what = self.budget(case, args, r)
            most = forward if args[r][1] is None else both
            if outcome.nbytes(r) > most:
                way = "forward" if args[r][1] is None else "forward and backward together"
                raise Wrong(
                    f"the numbers are right, but {way} rank {r} sends {outcome.nbytes(r)} bytes, and {most} "
                    f"are enough: {what}."
                )


def number(x: Tensor) -> str:
    """Whole numbers with all their digits."""
    return f"{x.item():.0f}" if float(x).is_integer() else f"{x.item():.6g}"


def first(got: Tensor, looks: dict[str, Tensor], rule: str) -> str:
    """The first sentence whose numbers `got` has; else the rule."""
    return next((text for text, x in looks.items() if near(got, x)), rule)
