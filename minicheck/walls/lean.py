"""The exercise of lesson 01, The walls, about a loop that eats memory: the same numbers, at the peak of one batch.

Peak and FLOPs are measured, in the answer's process, by the ledger and the dispatch mode of comm (ledger.py,
charge.py); its own loop, which holds nothing that it does not need, says what is enough.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from minidist.comm.base import Comm
from minidist.comm.charge.charge import Charge
from minidist.comm.charge.ledger import Ledger
from minidist.comm.charge.watch import Watch
from minidist.models import mlp

from ..exam import Case, ask
from ..wrong import Wrong
from . import oracle
from .figures import RETURN, Sheet, kind

OPTIMIZERS = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
CLOSE = 1e-7  # of losses and weights in float64: another order of sums, not another step


class Given(NamedTuple):
    """Sizes of an MLP, the word of an optimizer, batches and test set as (x, y)."""

    sizes: list[int]
    optimizer: str
    batches: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]


def metered(train, given: Given) -> dict:
    """Run a training loop under the meter; plain values. held: bytes of gradients at each forward that has a graph."""
    model = mlp(given.sizes, dtype=torch.float64)
    optimizer = OPTIMIZERS[given.optimizer](model.parameters())
    held = []
    after = []
    flops = []
    clock = SimpleNamespace(time=0.0)
    ledger = Ledger(lambda: clock.time)
    ledger.existing([model, optimizer, given.batches, given.test])

    def forward(module, inputs):
        if torch.is_grad_enabled():
            held.append(sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))

    def stepped(*_):
        after.append(clock.time)
        clock.time += 1.0  # what is freed from here on is freed later

    model.register_forward_pre_hook(forward)
    optimizer.register_step_post_hook(stepped)
    tick = lambda cost: 1.0  # the clock counts operators
    with (
        Watch(),
        Charge(clock, ledger, tick, lambda name, cost, start, end: flops.append(cost.flops)),
    ):
        found = train(model, optimizer, cross_entropy, given.batches, given.test)
    line = ledger.timeline("cpu")
    return {
        "found": found,
        "weights": nn.utils.parameters_to_vector(model.parameters()).detach(),
        "held": held,
        "peak": line.peak,
        "flops": sum(flops),
        "live": [sum(line.at(time).values()) for time in after],
        "gradients": sum(p.nbytes for p in model.parameters()),
    }


class TrainLean(Sheet):
    name = "train_lean"
    right = "6 networks, 2 optimizers, 2 to 5 batches: the same numbers, at the peak of one forward and backward."
    cases = tuple(
        Case(1, f"{word}, {steps} batches", (word, steps))
        for word, steps in zip([*OPTIMIZERS] * 3, (3, 2, 5, 4, 2, 3), strict=True)
    )
    step = 10.0

    def draw(self, case, rng):
        word, steps = case.given
        draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        sizes = [draw(20, 40), *(draw(60, 80) for _ in range(7)), 10]
        batch = draw(150, 250)
        data = [
            (
                torch.randn(n, sizes[0], generator=rng, dtype=torch.float64),
                torch.randint(10, (n,), generator=rng),
            )
            for n in [batch] * steps + [batch * 3 // 2]
        ]
        return [(sizes, word, data[:-1], data[-1])]

    def run(self, comm: Comm, yours, *given):
        return metered(yours, Given(*given))

    def judge(self, case, args, outcome):
        got, lean = outcome.results[0], metered(oracle.train, Given(*args[0]))
        found = got["found"]
        if found is None:
            raise Wrong(f"the result is None. {RETURN}")
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise Wrong(
                f"the result is {kind(found)}, and should be two lists: losses, and losses of the test set."
            )
        for name, mine, right in zip(("losses", "tests"), found, lean["found"], strict=True):
            _numbers(name, mine, right)
        if not torch.allclose(got["weights"], lean["weights"], rtol=CLOSE, atol=CLOSE):
            raise Wrong(
                "the losses are right, but the weights are not those of the loop above: is a step missing, or "
                "one too many?"
            )
        _flops(got["flops"], lean["flops"])
        _memory(got, lean)


def _numbers(name: str, got, want: list[float]) -> None:
    if not isinstance(got, list):
        raise Wrong(f"{name} is {kind(got)}, and should be a list.")
    if len(got) != len(want):
        raise Wrong(
            f"{name} has length {len(got)}, and should have {len(want)}: a number for each batch."
        )
    for i, (mine, right) in enumerate(zip(got, want, strict=True)):
        if isinstance(mine, Tensor):
            raise Wrong(
                f"{name}[{i}] is a tensor. As long as it lives it may hold the graph that it came from, with "
                "all activations: keep the number, x.item()."
            )
        if not isinstance(mine, float):
            raise Wrong(f"{name}[{i}] is {kind(mine)}, and should be a float.")
        if abs(mine - right) > CLOSE * max(1.0, abs(right)):
            hint = {
                "losses": "Are gradients cleared before each backward, and is there a step for each batch?",
                "tests": "It is the loss of the whole test set, after the step.",
            }[name]
            raise Wrong(
                f"{name}[{i}] is {mine:.6g}, and should be {right:.6g}, as in the loop above. {hint}"
            )


def _flops(got: int, want: int) -> None:
    if got < 0.99 * want:
        raise Wrong(
            f"the numbers are right, but the meter saw {got:,} FLOPs, and {want:,} are needed: what is "
            "computed elsewhere takes memory elsewhere."
        )
    if got > 1.01 * want:
        raise Wrong(
            f"the numbers are right, but {got:,} FLOPs are executed, and {want:,} are enough: is a forward run "
            "more than once for the same number?"
        )


def _memory(got: dict, lean: dict) -> None:
    """The peak may be that of the lean loop; a fifth of the gradients is slack."""
    gradients = lean["gradients"]
    if any(
        mine < right - gradients // 5
        for mine, right in zip(got["live"], lean["live"], strict=False)
    ):
        raise Wrong(
            "the numbers are right, but after a step the meter sees fewer bytes than weights, gradients and "
            "optimizer states have: what is hidden from it?"
        )
    if got["peak"] <= lean["peak"] + gradients // 5:
        return
    said = f"the numbers are right, but the peak is {got['peak']:,} bytes, and {lean['peak']:,} are enough."
    growth = [b - a for a, b in zip(got["live"], got["live"][1:], strict=False)]
    if growth and min(growth) > gradients // 3:
        raise Wrong(
            f"{said} After each step {max(growth):,} bytes more are left than after the one before: what does "
            "the loop hold on to? A graph keeps its activations until its backward; without one, as long as "
            "its loss lives. torch.no_grad() makes none."
        )
    if max(got["held"][1:], default=0) > 0:
        if len(got["held"]) > len(lean["held"]):
            raise Wrong(
                f"{said} The forward of the test set makes a graph, and keeps activations for a backward that "
                "never comes: torch.no_grad()."
            )
        raise Wrong(
            f"{said} When a forward begins, {max(got['held']):,} bytes of gradients of the step before are "
            "still there. Free them earlier: zero_grad() before the forward sets them to None."
        )
    if len(got["held"]) > len(lean["held"]):
        raise Wrong(
            f"{said} A forward makes a graph, and keeps activations for a backward that never comes: "
            "torch.no_grad()."
        )
    raise Wrong(
        f"{said} What is alive that is not needed any more: outputs, a graph that is retained, copies?"
    )


def train_lean(yours) -> None:
    """`train(model, optimizer, loss_fn, batches, test)`: losses and test losses, at the peak of one batch."""
    ask(TrainLean(), yours)
