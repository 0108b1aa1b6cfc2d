"""The exercise of lesson 08 about accumulation by tokens.

Looked at: the gradient and the mean, and that each micro-batch has had its backward before the next forward.
Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...comm.base import Comm
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import FORBIDDEN

BEFORE = 0.5  # what stands in .grad before


class _Count(torch.autograd.Function):
    """Passes a loss on, and notes that its backward has come."""

    @staticmethod
    def forward(ctx, x: Tensor, done: list) -> Tensor:
        ctx.done = done
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        ctx.done.append(1)
        return grad, None


def mean_loss(w: Tensor, micro: Tensor) -> Tensor:
    """The mean of ½(w·x − 1)² over the rows; nan where there is none."""
    return (micro @ w - 1).square().mean() / 2


class AccumulateTokens(Exam):
    name = "accumulate_tokens"
    right = "1 to 6 micro-batches of 0 to 40 tokens: the gradient of the mean over tokens, one graph at a time."
    forbidden = FORBIDDEN
    step = 4.0
    cases = tuple(Case(1, f"micro-batches of {', '.join(map(str, sizes))} tokens", sizes) for sizes in
                  ([3, 3], [1, 2, 3], [40, 5, 17], [7], [4, 0, 9], [5, 1, 1, 8, 2, 30]))  # fmt: skip

    def draw(self, case, rng):
        drawn = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)
        return [(drawn(5), [drawn(n, 5) for n in case.given])]

    def run(self, comm: Comm, yours, w, micros):
        w, calls, done = w.clone().requires_grad_(), [], []
        w.grad = torch.full_like(w, BEFORE)

        def loss(micro):
            calls.append((next((i for i, m in enumerate(micros) if m is micro), -1), len(done)))
            return _Count.apply(mean_loss(w, micro), done)

        mean = yours(loss, list(micros), [len(m) for m in micros])
        graph = isinstance(mean, Tensor) and mean.requires_grad
        mean = mean.item() if isinstance(mean, Tensor) and mean.numel() == 1 else mean
        return {"grad": w.grad, "mean": mean, "calls": calls, "done": len(done), "graph": graph}

    def judge(self, case, args, outcome):
        (w, micros), got = args[0], outcome.results[0]
        self._calls(got, micros)
        grads = [torch.func.grad(mean_loss)(w, m) if len(m) else torch.zeros_like(w) for m in micros]
        losses = [float(mean_loss(w, m)) if len(m) else 0.0 for m in micros]
        total = sum(len(m) for m in micros)
        share = [len(m) / total for m in micros]
        mix = lambda parts, weights: sum(p * x for p, x in zip(parts, weights))
        self._gradient(got["grad"], mix(grads, share), grads, micros)
        if isinstance(got["mean"], Other | None) or not isinstance(got["mean"], int | float):
            raise Wrong(f"it returns {got['mean']}, and should return the mean loss of all tokens, a number.")
        if got["graph"]:
            raise Wrong("the mean that it returns has a graph, which keeps activations alive: detach it, or .item().")
        if not math.isclose(got["mean"], mix(losses, share), rel_tol=1e-9):
            equal = mix(losses, [1 / len(micros)] * len(micros))
            hint = "That is the mean of the micro-batches' means. " if math.isclose(got["mean"], equal) else ""
            hint = "Leave out a micro-batch without tokens: its mean is 0/0. " if math.isnan(got["mean"]) else hint
            raise Wrong(f"the gradient is right, but the mean loss is {got['mean']:.6g}, and should be "
                        f"{mix(losses, share):.6g}. {hint}Weigh the losses as you weigh the gradients.")  # fmt: skip

    def _calls(self, got, micros) -> None:
        wanted = [i for i, m in enumerate(micros) if len(m)]
        seen = [i for i, _ in got["calls"] if i < 0 or len(micros[i])]
        if seen != wanted:
            raise Wrong(f"`loss` is called once for each micro-batch, in order ({wanted}), and was called for {seen}.")
        for nth, (_, done) in enumerate(got["calls"]):
            if done < sum(len(micros[i]) > 0 for i, _ in got["calls"][:nth]):
                raise Wrong(f"when `loss` is called for the {nth + 1}. time, {done} backwards are done: all graphs are "
                            "alive at once, as in one large batch. Each micro-batch has its backward before the next "
                            "forward.")  # fmt: skip
        if got["done"] < len(wanted):
            raise Wrong(f"{len(wanted)} micro-batches have tokens, and {got['done']} had a backward.")

    def _gradient(self, grad, want: Tensor, grads: list[Tensor], micros: list[Tensor]) -> None:
        if not isinstance(grad, Tensor):
            raise Wrong("after it, .grad is None: `backward` adds to it.")
        if near(grad - BEFORE, want):
            return
        k, sizes = len(grads), [len(m) for m in micros]
        mix = lambda weights: sum(g * w for g, w in zip(grads, weights))
        total = sum(sizes)
        looks = {"It is nan: a micro-batch without tokens has the mean 0/0. Leave it out.": None,
                 "What stood in .grad before is gone: it is added to.": want - BEFORE,
                 "What stood in .grad before was scaled, too: scale the loss, not .grad.": None,
                 "Every micro-batch counts alike: a token of a short one counts more. Weigh by tokens.":
                 mix([1 / k] * k), "The micro-batches that count were divided by the number of all.":
                 mix([n / total * (k - 1) / k for n in sizes]),
                 "The losses are added up: divide.": mix([1.0] * k),
                 "It is the sum over tokens: divide by all of them.": mix(sizes),
                 f"It is {k} times too small: the shares add up to 1 already.": want / k,
                 "Divided by tokens: the loss is a mean already, so multiply by its tokens.":
                 mix([1 / n / total if n else 0 for n in sizes]),
                 "The weights are divided by the largest micro-batch: divide by all tokens.":
                 mix([n / max(sizes) for n in sizes]),
                 "Only the last micro-batch is in it.": mix([0] * (k - 1) + [sizes[-1] / total])}  # fmt: skip
        found = [text for text, x in looks.items() if x is not None and near(grad - BEFORE, x)]
        if grad.isnan().any():
            found = [next(iter(looks))]
        factor = (grad - want) / BEFORE
        if not found and near(factor, factor[:1].expand_as(factor)):
            found = [[*looks][2]]
        raise Wrong(f"the gradient is not that of the mean over all {total} tokens. "
                    f"{found[0] if found else 'Is each loss weighted by its part of the tokens?'}")  # fmt: skip


def accumulate_tokens(yours) -> None:
    """`accumulate_tokens(loss, micros, counts)`: gradients of the mean over all tokens; the mean."""
    ask(AccumulateTokens(), yours)
