"""The exercise of lesson 08 about accumulation by tokens.

Looked at: the gradient and the mean, and what is alive of earlier graphs when the next forward begins.
Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from minidist.comm.base import Comm

from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import FORBIDDEN


class _Graph(torch.autograd.Function):
    """Passes a loss on, and saves a tensor for backward, whose memory lives as long as the graph."""

    @staticmethod
    def forward(ctx, x: Tensor, saved: Tensor) -> Tensor:
        ctx.save_for_backward(saved)
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad * ctx.saved_tensors[0], None


def mean_loss(w: Tensor, micro: Tensor) -> Tensor:
    """The mean of ½(w·x − 1)² over the tokens; nan where there is none."""
    return (micro[micro.any(1)] @ w - 1).square().mean() / 2


def count(micro: Tensor) -> int:
    """The tokens that count: rows of zeros are padding."""
    return int(micro.any(1).sum())


class AccumulateTokens(Exam):
    name = "accumulate_tokens"
    right = "1 to 6 micro-batches of 0 to 40 tokens: the gradient of the mean over tokens, one graph at a time."
    forbidden = FORBIDDEN
    step = 4.0
    cases = tuple(
        Case(1, f"micro-batches of {', '.join(map(str, sizes))} tokens", sizes)
        for sizes in ([3, 3], [1, 2, 3], [40, 5, 17], [7], [4, 0, 9], [5, 1, 1, 8, 2, 30])
    )
    cases += (Case(1, "micro-batches drawn at random", None),)

    def draw(self, case, rng):
        drawn = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)
        sizes = case.given or [3, *torch.randint(20, (5,), generator=rng).tolist()]
        padding = [4, *torch.randint(5, (len(sizes),), generator=rng).tolist()]
        return [
            (
                drawn(5),
                drawn(5),
                [
                    torch.cat([drawn(n, 5), torch.zeros(more, 5, dtype=torch.float64)])
                    for n, more in zip(sizes, padding)
                ],
            )
        ]

    def run(self, comm: Comm, yours, w, before, micros):
        w = w.clone().requires_grad_()
        calls = []
        graphs = []
        w.grad = before.clone()

        def loss(micro):
            index = next((i for i, m in enumerate(micros) if m is micro), -1)
            calls.append((index, sum(graph.expired() for graph in graphs)))
            saved = torch.ones(1, dtype=w.dtype)
            if count(micro):
                graphs.append(StorageWeakRef(saved.untyped_storage()))
            return _Graph.apply(mean_loss(w, micro), saved)

        mean = yours(loss, list(micros), [count(m) for m in micros])
        graph = isinstance(mean, Tensor) and mean.requires_grad
        mean = mean.item() if isinstance(mean, Tensor) and mean.numel() == 1 else mean
        return {"grad": w.grad, "mean": mean, "calls": calls, "graph": graph}

    def judge(self, case, args, outcome):
        (w, before, micros), got = args[0], outcome.results[0]
        self._calls(got["calls"], micros)
        grads = [
            torch.func.grad(mean_loss)(w, m) if count(m) else torch.zeros_like(w) for m in micros
        ]
        losses = [float(mean_loss(w, m)) if count(m) else 0.0 for m in micros]
        total = sum(map(count, micros))
        share = [count(m) / total for m in micros]
        mix = lambda parts, weights: sum(p * x for p, x in zip(parts, weights))
        self._gradient(got["grad"], before, mix(grads, share), grads, micros)
        if isinstance(got["mean"], Other | None) or not isinstance(got["mean"], int | float):
            raise Wrong(
                f"it returns {got['mean']}, and should return the mean loss of all tokens, a number."
            )
        if got["graph"]:
            raise Wrong(
                "the mean that it returns has a graph, which keeps activations alive: detach it, or .item()."
            )
        got["mean"] = max(min(got["mean"], 1e300), -1e300)  # an int may be larger than every float
        if not math.isclose(got["mean"], mix(losses, share), rel_tol=1e-9):
            equal = mix(losses, [1 / len(micros)] * len(micros))
            hint = (
                "That is the mean of the micro-batches' means. "
                if math.isclose(got["mean"], equal)
                else ""
            )
            hint = (
                "Leave out a micro-batch without tokens: its mean is 0/0. "
                if math.isnan(got["mean"])
                else hint
            )
            raise Wrong(
                f"the gradient is right, but the mean loss is {got['mean']:.6g}, and should be "
                f"{mix(losses, share):.6g}. {hint}Weigh the losses as you weigh the gradients."
            )

    def _calls(self, calls, micros) -> None:
        wanted = [i for i, m in enumerate(micros) if count(m)]
        seen = [i for i, _ in calls if i < 0 or count(micros[i])]
        if sorted(seen) != wanted:
            raise Wrong(
                f"`loss` is called once for each micro-batch ({wanted}), and was called for {seen}."
            )
        for nth, (index, gone) in enumerate(calls):
            before = sum(count(micros[i]) > 0 for i, _ in calls[:nth])
            if gone < before:
                raise Wrong(
                    f"when `loss` is called for micro-batch {index}, {gone} of the {before} graphs before it "
                    f"{'is' if gone == 1 else 'are'} gone: the others hold all that they saved, as in one "
                    "large batch. Each micro-batch has its backward, which frees its graph, before the next "
                    "forward."
                )

    def _gradient(
        self, grad, before: Tensor, want: Tensor, grads: list[Tensor], micros: list[Tensor]
    ) -> None:
        if not isinstance(grad, Tensor):
            raise Wrong("after it, .grad is None: `backward` adds to it.")
        if near(grad - before, want):
            return
        k = len(grads)
        sizes = [count(m) for m in micros]
        rows = [len(m) for m in micros]
        mix = lambda weights: sum(g * w for g, w in zip(grads, weights))
        total = sum(sizes)
        looks = {
            "It is nan: a micro-batch without tokens has the mean 0/0. Leave it out.": None,
            "What stood in .grad before is gone: it is added to.": want - before,
            "What stood in .grad before was scaled, too: scale the loss, not .grad.": None,
            "Every micro-batch counts alike: a token of a short one counts more. Weigh by tokens.": mix(
                [1 / k] * k
            ),
            "The micro-batches that count were divided by the number of all.": mix(
                [n / total * (k - 1) / k for n in sizes]
            ),
            "The losses are added up: divide.": mix([1.0] * k),
            "It is the sum over tokens: divide by all of them.": mix(sizes),
            f"It is {k} times too small: the shares add up to 1 already.": want / k,
            "Divided by tokens: the loss is a mean already, so multiply by its tokens.": mix(
                [1 / n / total if n else 0 for n in sizes]
            ),
            "The weights are divided by the largest micro-batch: divide by all tokens.": mix(
                [n / max(sizes) for n in sizes]
            ),
            "They are weighed by the rows of the micro-batches: `counts` has the tokens that count.": mix(
                [n / sum(rows) for n in rows]
            ),
            "Only the last micro-batch is in it.": mix([0] * (k - 1) + [sizes[-1] / total]),
        }
        found = [text for text, x in looks.items() if x is not None and near(grad - before, x)]
        if grad.isnan().any():
            found = [next(iter(looks))]
        factor = (grad - want) / before
        if not found and near(factor, factor[:1].expand_as(factor)):
            found = [[*looks][2]]
        raise Wrong(
            f"the gradient is not that of the mean over all {total} tokens. "
            f"{found[0] if found else 'Is each loss weighted by its part of the tokens?'}"
        )


def accumulate_tokens(yours) -> None:
    """`accumulate_tokens(loss, micros, counts)`: gradients of the mean over all tokens; the mean."""
    ask(AccumulateTokens(), yours)
