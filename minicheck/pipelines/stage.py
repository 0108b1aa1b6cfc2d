"""The exercise of lesson 13 in which a stage runs its list: receive, compute, send, forward and backward.

Looked at: gradients, the order of the work, messages and bytes of each edge, and how many micro-batches' graphs are
alive, counted by what autograd has saved.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from minidist.comm.base import Comm
from minidist.parallel.schedules import in_flight, parse

from ..compare import ranks
from ..data_parallel.averages import near
from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from .oracle import whole_gradient, words
from .seconds import KINDS
from .words import FORBIDDEN

WIDTH = 5
# the most that autograd keeps of a micro-batch: inputs and weights of 2 layers, the tanh, 2 of the loss
SAVED = 7


class Saved:
    """A tensor that autograd keeps; `alive` counts them."""

    def __init__(self, x: Tensor, alive: list[int]):
        self.x, self.alive = x, alive
        alive[0] += 1

    def __del__(self):
        self.alive[0] -= 1


def noted(comm: Comm, works: list) -> Comm:
    """The same Comm; what its `isend` returns is put into `works`."""
    isend = comm.isend

    def noting(*args, **kwargs):
        works.append(isend(*args, **kwargs))
        return works[-1]

    comm.isend = noting
    return comm


def part_of(weights: list[Tensor]) -> nn.Sequential:
    """A stage: two layers."""
    first, second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
    for layer, weight in zip((first, second), weights, strict=True):
        layer.weight = nn.Parameter(weight.clone())
    return nn.Sequential(first, nn.Tanh(), second)


class RunStage(Exam):
    name = "run_stage"
    right = (
        "1 to 4 stages, three schedules, up to 12 micro-batches in any order: the serial gradient, the order of "
        "the list, two messages an edge and micro-batch; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(S, f"{S} stage{'s' * (S > 1)}, {M} micro-batches, {KINDS[kind]}", (kind, M))
        for kind, S, M in (
            ("naive", 2, 2),
            ("gpipe", 2, 3),
            ("1f1b", 2, 3),
            ("1f1b", 3, 4),
            ("1f1b", 1, 3),
            ("gpipe", 3, 12),
            ("1f1b", 4, 12),
        )
    )
    processes = (
        Case(3, "3 real processes, 5 micro-batches, one forward, one backward", ("1f1b", 5)),
    )

    def draw(self, case, rng):
        kind, M = case.given
        dtype = torch.float32 if M > 9 and kind == "gpipe" else torch.float64
        drawn = lambda *shape: torch.randn(shape, generator=rng, dtype=dtype)
        rows, orders = 2 + M % 3, {kind: range(M) for kind in "FB"}
        if M > 9:
            orders["F"] = orders["B"] = torch.randperm(M, generator=rng).tolist()
            if kind == "gpipe":
                orders["B"] = torch.randperm(M, generator=rng).tolist()
        named = lambda word: f"{word[0]}{orders[word[0]][int(word[1:])]}"
        weights = [[drawn(WIDTH, WIDTH) / 2 for _ in range(2)] for _ in range(case.n)]
        xs, ys = ([drawn(rows, WIDTH) for _ in range(M)] for _ in range(2))
        blank = [torch.zeros(rows, WIDTH, dtype=dtype)] * M
        lists = [[named(word) for word in words(kind, s, case.n, M)] for s in range(case.n)]
        return [
            (weights[s], lists[s], xs if s == 0 else blank, ys if s == case.n - 1 else blank)
            for s in range(case.n)
        ]

    def part(self, weights: list[Tensor]) -> nn.Sequential:
        """The stage that an answer gets."""
        return part_of(weights)

    def run(self, comm: Comm, yours, weights, order, xs, ys):
        part = self.part(weights)
        log = []
        alive = [0]
        most = [0]
        works = []
        kept, forwards = [x.clone() for x in xs], [word for word in order if word[0] == "F"]

        def watch(module, inputs, output):
            micro = (
                [*forwards, "F?"][min(len(most) - 1, len(forwards))]
                if down.rank
                else next((f"F{m}" for m, x in enumerate(xs) if x.equal(inputs[0])), "F?")
            )[1:]
            log.append(f"F{micro}")
            most.append(alive[0])
            if output.requires_grad:
                output.register_hook(lambda grad: log.append(f"B{micro}"))

        part.register_forward_hook(watch)
        down, up = (noted(comm.split([0] * comm.size), works) for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: Saved(x, alive), lambda saved: saved.x
        ):
            yours(down, up, part, list(order), xs, ys, smooth_l1_loss)
        under_way = sum(not work.done() for work in works)
        return {
            "under_way": under_way,
            "log": log,
            "most": max(most),
            "xs": all(map(torch.equal, xs, kept)),
            "grads": [p.grad for p in part.parameters()],
            "weights": [p.detach() for p in part.parameters()],
        }

    def judge(self, case, args, outcome):
        S, (_, M) = case.n, case.given
        xs, ys = args[0][2], args[-1][3]
        want, other = (
            whole_gradient([part_of(weights) for weights, *_ in args], xs, ys, loss)
            for loss in (smooth_l1_loss, mse_loss)
        )
        for s, got in enumerate(outcome.results):
            self._order(s, got["log"], args[s][1])
            if len(got["weights"]) != len(want[s]):
                raise Wrong(f"stage {s}: `part` has other parameters than before.")
            if not all(
                w.equal(before) for w, before in zip(got["weights"], args[s][0], strict=True)
            ):
                raise Wrong(
                    f"stage {s}: the weights themselves were changed: gradients are asked for."
                )
            if not got["xs"]:
                raise Wrong(f"stage {s}: the micro-batches were changed, and belong to the caller.")
        # the last stage first: a wrong gradient goes on to the stages before
        for s in reversed(range(S)):
            self._gradients(s, S, M, outcome.results[s]["grads"], want[s], other[s])
        self._messages(outcome, S, M, xs[0].nbytes)
        for s, got in enumerate(outcome.results):
            self._memory(s, got["most"], args[s][1])
            if got["under_way"]:
                raise Wrong(
                    f"stage {s}: the gradients are right, but it returns while {got['under_way']} of its sends "
                    "are under way. Wait for them at the end: what they send must not change."
                )

    def _order(self, stage: int, log: list[str], order: list[str]) -> None:
        if log == order:
            return
        done = " ".join(log) or "nothing"
        text = f"stage {stage}: its list is {' '.join(order)}, and it does {done}."
        if sum(word[0] == "F" for word in log) > sum(word[0] == "F" for word in order):
            raise Wrong(f"{text} Some forwards are run twice: keep what backward needs.")
        if sorted(word[0] for word in log) == sorted(word[0] for word in order):
            raise Wrong(
                f"{text} The order is the list's, whatever the schedule, and so are the "
                "numbers of the micro-batches."
            )
        raise Wrong(f"{text} Each F runs `part` once; each B runs backward from what that gave.")

    def _gradients(
        self, stage: int, S: int, M: int, grads: list, want: list[Tensor], other
    ) -> None:
        for i, (got, right) in enumerate(zip(grads, want, strict=True)):
            if got is None:
                raise Wrong(
                    f"stage {stage}: the gradient of layer {i} is None: nothing has come back to it."
                )
            if near(got, right):
                continue
            looks = {
                f"It is {M} times too large: the loss of a batch is the mean over its micro-batches.": right
                * M,
                f"It is {M} times too small: divided by M twice?": right / M,
                "It is that of mse_loss: the loss is `loss_fn`, whatever it is.": other[i],
            }
            found = next((text for text, x in looks.items() if near(got, x)), None)
            hint = "is each gradient from the right used for the output of the same micro-batch?"
            if stage == S - 1:
                hint = "does the loss compare each output with the targets of the same micro-batch?"
            raise Wrong(
                f"stage {stage}: the gradient of layer {i} is not the serial one. "
                f"{found or f'Micro-batches mixed up? Here, {hint}'}"
            )

    def _messages(self, outcome: Outcome, S: int, M: int, size: int) -> None:
        for s in range(S):
            near_by = [r for r in (s - 1, s + 1) if 0 <= r < S]
            if [r for r in outcome.receivers(s) if r not in near_by]:
                raise Wrong(
                    f"the gradients are right, but stage {s} sends to {ranks(outcome.receivers(s))}: its "
                    f"neighbours are {ranks(near_by)}."
                )
            most, nbytes = M * len(near_by), M * len(near_by) * size
            if (outcome.messages(s), outcome.nbytes(s)) != (most, nbytes):
                raise Wrong(
                    f"the gradients are right, but stage {s} sends {outcome.messages(s)} messages with "
                    f"{outcome.nbytes(s)} bytes: {most} with {nbytes} are enough, an activation to the right "
                    "and a gradient to the left for each micro-batch."
                )

    def _memory(self, stage: int, most: int, order: list[str]) -> None:
        peak = in_flight(parse(" ".join(order)))
        if most > SAVED * peak:
            raise Wrong(
                f"stage {stage}: the gradients are right, but after a backward its graph is still alive. Each "
                "backward should free what its forward has kept: retain_graph is not needed."
            )


def run_stage(yours) -> None:
    """`run_stage(down, up, part, words, xs, ys, loss_fn)`: a stage runs its list; gradients in `part`."""
    ask(RunStage(), yours)
