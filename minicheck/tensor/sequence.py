"""The exercises of lesson 11 about a split sequence: the two halves of an all-reduce as operators, and a norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..exam import Case, ask
from . import oracle
from .through import HOOKED, OTHER, Through, Want, first, through, ways


class SequencePair(Through):
    name = "sequence_pair"
    right = (
        "n = 1…4: an all-gather and a reduce-scatter along the tokens, each the other's backward, half an "
        "all-reduce each; then 3 real processes."
    )
    cases = tuple(
        case._replace(what=f"{word}_sequence, {case.what}")
        for word in ("gather", "reduce_scatter")
        for case in ways((2, 3, 1, 4), word)
    )
    processes = tuple(
        Case(3, f"{word}_sequence, 3 real processes", (word, True))
        for word in ("gather", "reduce_scatter")
    )

    def draw(self, case, rng):
        word, both = case.given
        batch = case.n * oracle.between(rng, 1, 2)
        tokens = oracle.between(rng, 2, 3)
        hidden = oracle.between(rng, 2, 4)
        part, full = (batch, tokens, hidden), (batch, tokens * case.n, hidden)
        ins, outs = (part, full) if word == "gather" else (full, part)
        whole = lambda shape: oracle.whole(rng, *shape, short=case.n == 4)
        return [([whole(ins)], whole(outs) if both else None, word) for _ in range(case.n)]

    def run(self, comm, gather, scatter, inputs, dy, word):
        yours = gather if word == "gather" else scatter
        return through(lambda x: yours(x, comm), inputs, dy)

    def wants(self, case, args):
        xs, dys = [a[0][0] for a in args], [a[1] for a in args]
        if case.given[0] == "gather":
            grads = self._scattered(dys) if case.given[1] else [None] * case.n
            return [Want(torch.cat(xs, 1), {"x": grad}) for grad in grads]
        grad = torch.cat(dys, 1) if case.given[1] else None
        return [Want(y, {"x": grad}) for y in self._scattered(xs)]

    def _scattered(self, xs: list[Tensor]) -> list[Tensor]:
        return oracle.cut(sum(xs), len(xs), 1)

    def looks(self, case, args, rank, name, got):
        n, gathers = case.n, (case.given[0] == "gather") == (name == "y")
        parts = [a[0][0] if name == "y" else a[1] for a in args]
        if gathers:
            own = torch.zeros_like(torch.cat(parts, 1))
            own.narrow(1, rank * parts[0].shape[1], parts[0].shape[1]).copy_(parts[rank])
            looks = {
                "The parts are put together along another dimension, and cut anew: along dim 1 they belong.": torch.cat(
                    parts
                ).view_as(own),
                "It has this rank's part only: what comes from the others is missing. Whole data come from an "
                "all-gather.": own,
                "It repeats this rank's part: nothing came from the others.": torch.cat(
                    [parts[rank]] * n, 1
                ),
                f"It is {n} times too large: an all-gather adds up nothing.": n
                * torch.cat(parts, 1),
                "The parts are in another order than the ranks.": torch.cat(parts[::-1], 1),
            }
            return first(
                got,
                looks,
                "It is all ranks' parts, one after the other along dim 1, in rank order.",
            )
        mine, rule = (
            self._scattered(parts),
            "It is this rank's part, along dim 1, of the sum over the ranks.",
        )
        looks = {
            "It is this rank's part of its own data: those of the other ranks are not added. Each rank's "
            f"{'x' if name == 'y' else 'gradient'} is partial, the whole is their sum: reduce-scatter.": parts[
                rank
            ].chunk(n, 1)[rank],
            f"It is divided by {n}: a sum is asked for.": mine[rank] / n,
            "It is cut along another dimension than the tokens, and reshaped: dim 1 is the sequence.": sum(
                parts
            )
            .chunk(n)[rank]
            .reshape_as(mine[rank]),
            f"It is {n} times too large.": n * mine[rank],
        }
        return first(
            got, looks | {f"It is rank {s}'s part.": mine[s] for s in range(n) if s != rank}, rule
        )

    def budget(self, case, args, rank):
        half = (
            oracle.all_reduce_bytes(
                self.wants(case, args)[0].y if case.given[0] == "gather" else args[0][0][0], case.n
            )
            // 2
        )
        what = "an all-gather or a reduce-scatter sends (n−1)/n·N, half an all-reduce, and there is one each way"
        return half, 2 * half, what


class SequenceNorm(Through):
    name = "sequence_norm"
    right = "n = 1…4: outputs and gradients of the serial norm, 2 all-reduces of H numbers; then 3 real processes."
    names = ("x", "weight", "bias")
    cases, processes = (
        ways((2, 3, 1, 4)),
        (Case(3, "3 real processes, forward and backward", (True,)),),
    )

    def draw(self, case, rng):
        batch, tokens, hidden = (oracle.between(rng, *size) for size in ((1, 3), (2, 4), (3, 7)))
        x, dy = (oracle.draw(rng, batch, tokens * case.n, hidden) for _ in range(2))
        weight, bias = oracle.draw(rng, hidden), oracle.draw(rng, hidden)
        parts = zip(oracle.cut(x, case.n, 1), oracle.cut(dy, case.n, 1), strict=True)
        return [([part, weight, bias], grad if case.given[-1] else None) for part, grad in parts]

    def wants(self, case, args):
        found = [
            oracle.serial(self._norm, inputs, torch.zeros_like(inputs[0]) if dy is None else dy)
            for inputs, dy in args
        ]
        weight, bias = (sum(grads[k] for _, grads in found) for k in (1, 2))
        return [Want(y, {"x": grads[0], "weight": weight, "bias": bias}) for y, grads in found]

    def run(self, comm, yours, inputs, dy):
        return through(lambda *xs: yours(*xs, comm), inputs, dy, beside=True)

    def _norm(self, x, weight, bias):
        return F.layer_norm(x, weight.shape, weight, bias)

    def looks(self, case, args, rank, name, got):
        inputs, dy = args[rank]
        if name == "y":
            looks = {
                "Weight and bias are not used.": F.layer_norm(inputs[0], inputs[1].shape),
                f"Weight and bias are {case.n} times too large: f changes nothing forward.": self._norm(
                    inputs[0], case.n * inputs[1], case.n * inputs[2]
                ),
            }
            return first(
                got,
                looks,
                "A token's norm needs that token alone: F.layer_norm of this rank's tokens.",
            )
        right = self.wants(case, args)[rank].grads[name[1:]]
        own = oracle.serial(self._norm, inputs, dy)[1][self.names.index(name[1:])]
        if name == "dx":
            return (
                "A token's gradient comes from its own rank alone: x is split, it needs neither f nor g. Only what "
                "is whole on every rank, and used on a part of the data, needs f."
            )
        looks = oracle.usual(case.n, right, own) | {HOOKED: right + (case.n - 1) * OTHER}
        return first(
            got, looks, f"It is the sum, over all ranks' tokens, of what they say of {name[1:]}."
        )

    def budget(self, case, args, rank):
        both = 2 * oracle.all_reduce_bytes(args[0][0][1], case.n)
        return (
            0,
            both,
            "the gradients of weight and bias, H numbers each, are all that has to travel",
        )


def sequence_pair(gather, scatter) -> None:
    """`gather_sequence(x, comm)` and `reduce_scatter_sequence(x, comm)`, along dim 1."""
    ask(SequencePair(), gather, scatter)


def sequence_norm(yours) -> None:
    """`sequence_norm(x, weight, bias, comm)`: layer norm of this rank's tokens, with the gradients of all."""
    ask(SequenceNorm(), yours)
