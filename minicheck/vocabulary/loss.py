"""The exercises of lesson 12, Vocabulary parallel, about the loss: in three reductions, backward, and in one message.

Logits are drawn near 0, then shifted by up to 10,000 where exp without care fails, in float64, float32 and float16.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..compare import unchanged
from ..exam import Case, Outcome, ask
from ..wrong import Wrong
from .oracle import (
    IGNORED,
    Logits,
    VocabularyExam,
    cut,
    drawn_tokens,
    few_bytes,
    right,
    silent,
    three_numbers,
)

# n, V, tokens, dtype, largest logit.
GIVEN = (
    (3, 40, 4, torch.float64, 3),
    (2, 41, 5, torch.float64, 3),
    (4, 61, 6, torch.float64, 10_000),
    (3, 40, 4, torch.float16, 10_000),
    (2, 300, 5, torch.float16, 3),
    (3, 44, 400, torch.float32, 3),
    (1, 7, 3, torch.float64, 3),
)
HALF = 2**-10  # float16 keeps 11 bits
GATHERED = "Three numbers a token are enough, however large V is. Are logits gathered?"


def cases_of(given) -> tuple[Case, ...]:
    return tuple(
        Case(
            n, f"n = {n}, V = {v}, {t} tokens, {str(d)[6:]}, logits up to {most:,}", (v, t, d, most)
        )
        for n, v, t, d, most in given
    )


def the_same(outcome: Outcome, name: str) -> None:
    """Raise Wrong unless all ranks have the same numbers, bit for bit."""
    for r, got in enumerate(outcome.results):
        if not got[name].equal(outcome.results[0][name]):
            raise Wrong(
                f"{name} is right but for rounding, which differs on rank 0 and rank {r}: it should be the "
                "same on every rank, so add up in the same order."
            )


class LossExam(VocabularyExam):
    """Every rank has its part of the logits; a case's `given`: V, tokens, dtype, the size of the logits."""

    def draw(self, case, rng):
        vocab, tokens, dtype, most = case.given
        logits = torch.randn(tokens, vocab, generator=rng, dtype=torch.float64)
        if most > 100:  # near ±10,000; one row all below zero; of another, one rank's
            sign = torch.randint(0, 2, (tokens, vocab), generator=rng).mul(2).sub(1)
            sign[0], sign[1], sign[1, : -(-vocab // case.n)] = -1, 1, -1
            logits = logits * 3 + most * sign
        targets = drawn_tokens(vocab, case.n, (tokens,), rng)
        return [(part, targets, vocab) for part in cut(logits.to(dtype), case.n, 1)]

    def whole(self, case: Case, args) -> Logits:
        return Logits(torch.cat([a[0] for a in args], 1).double(), args[0][1], case.n)

    def losses(self, case: Case, args, outcome: Outcome) -> tuple[Logits, torch.dtype, float]:
        """Judge the losses; returns the whole, the dtype of results, and how far these may be off."""
        logits, dtype = self.whole(case, args), torch.promote_types(args[0][0].dtype, torch.float32)
        # of a difference of such numbers
        rounding = 8 * torch.finfo(dtype).eps * float(logits.whole.abs().max())
        slack = rounding + (1e-9 if dtype == torch.float64 else 3e-5)
        for r, got in enumerate(outcome.results):
            right(
                r,
                got["losses"],
                logits.totals() - logits.hits(),
                dtype,
                "losses",
                logits.wrong_losses(r),
                slack,
                float(logits.whole.abs().max()) * HALF,
            )
            unchanged(r, got["part"], args[r][0], "part")
        the_same(outcome, "losses")
        return logits, dtype, slack


class SplitLoss(LossExam):
    name = "split_loss"
    right = "n = 1…4, uneven parts, logits of ±10,000, three dtypes, three numbers a token; then 3 real processes."
    cases = cases_of(GIVEN)
    processes = cases_of(GIVEN[:1])

    def run(self, comm: Comm, yours, part, targets, vocab):
        pair = yours(comm, part, targets, vocab)
        losses, log_total = (
            pair if isinstance(pair, list | tuple) and len(pair) == 2 else (pair, None)
        )
        return {"losses": losses, "log_total": log_total, "part": part}

    def judge(self, case, args, outcome):
        logits, dtype, slack = self.losses(case, args, outcome)
        for r, got in enumerate(outcome.results):
            right(
                r,
                got["log_total"],
                logits.totals(),
                dtype,
                "log_total",
                logits.wrong_totals(r),
                slack,
                float(logits.whole.abs().max()) * HALF,
            )
        the_same(outcome, "log_total")
        few_bytes(outcome, case.n, three_numbers(logits.totals().to(dtype), case.n), GATHERED)


class MergedLoss(LossExam):
    name = "merged_loss"
    right = "n = 1…4, uneven parts, parts of very different size, n−1 messages a rank; then 3 real processes."
    cases = cases_of(c for c in GIVEN if c[3] == torch.float64)
    processes = cases_of(GIVEN[:1])

    def run(self, comm: Comm, yours, part, targets, vocab):
        return {"losses": yours(comm, part, targets, vocab), "part": part}

    def judge(self, case, args, outcome):
        logits, *_ = self.losses(case, args, outcome)
        for r in range(case.n):
            if outcome.messages(r) > case.n - 1:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages: n−1 = "
                    f"{case.n - 1} are enough. One all-gather of all three numbers of all tokens."
                )
        few_bytes(outcome, case.n, 3 * (case.n - 1) * logits.totals().nbytes, GATHERED)


class LogitsGradient(LossExam):
    name = "logits_gradient"
    right = "n = 1…4, uneven parts, ignored tokens, logits of ±10,000, three dtypes, no message; then 3 real processes."
    cases = cases_of(GIVEN)
    processes = cases_of(GIVEN[:1])

    def draw(self, case, rng):
        args = super().draw(case, rng)
        targets = args[0][1]
        ignored = [1, *([2] if case.n == 4 else [])] if case.n != 2 else []
        targets[ignored] = IGNORED
        return [
            (
                part,
                targets,
                vocab,
                torch.cat([a[0] for a in args], 1)
                .double()
                .logsumexp(1)
                .to(torch.promote_types(part.dtype, torch.float32)),
            )
            for part, _, vocab in args
        ]

    def run(self, comm: Comm, yours, part, targets, vocab, log_total):
        return {
            "grad": yours(comm, part, targets, vocab, log_total),
            "part": part,
            "log_total": log_total,
        }

    def judge(self, case, args, outcome):
        logits, part = self.whole(case, args), args[0][0].dtype
        slack = {torch.float64: 1e-9, torch.float32: 1e-5}.get(part, 2e-3)
        wants = cut(logits.gradient(), case.n, 1)
        for r, got in enumerate(outcome.results):
            right(r, got["grad"], wants[r], part, "the gradient", self._looks(logits, r), slack)
            unchanged(r, got["part"], args[r][0], "part")
            unchanged(r, got["log_total"], args[r][3], "log_total")
        silent(outcome, "log_total and the targets are on every rank: backward needs nothing more.")

    def _looks(self, logits: Logits, rank: int) -> dict[str, torch.Tensor]:
        first, end = logits.ours()[rank]
        counted = (logits.targets != IGNORED)[:, None]
        soft = logits.whole.softmax(1)[:, first:end]
        own = logits.whole[:, first:end].softmax(1)
        hot = torch.nn.functional.one_hot(logits.targets.clamp_min(0), logits.whole.shape[1])[
            :, first:end
        ].double()
        width = end - first
        tokens = len(counted)
        many = counted.sum()
        here = ((logits.targets >= first) & (logits.targets < end)).sum()
        rough = (logits.whole - logits.totals().half().double()[:, None]).exp()[:, first:end]
        local = (logits.targets - first)[:, None]
        at = torch.arange(width)
        nearest, modulo = (at == local.clamp(0, width - 1)).double(), (at == local % width).double()
        unshifted = (at == logits.targets[:, None]).double()
        right = (soft - hot) * counted
        mean = "the mean is over the tokens that are not ignored: divide by their number."
        return {
            "Ignored tokens have a gradient, too: theirs is zero.": (soft - hot) / many,
            "Ignored tokens have a gradient, too: theirs is zero. (Their −100 took no logit's 1.)": (
                soft - hot * counted
            )
            / many,
            f"It is the gradient of the sum: {mean}": right,
            f"It is divided by all tokens, ignored ones too: {mean}": right / tokens,
            "It is divided by the number of those targets that are here: the mean is over the tokens of all ranks.": right
            / here,
            "log_total was rounded to float16: subtract, and take exp, in float32 at least.": (
                rough - hot
            )
            * counted
            / many,
            f"It is divided by V: {mean}": right / logits.whole.shape[1],
            f"It is divided by the number of ranks, too: {mean}": right / many / logits.n,
            "It is the softmax: 1 is to be subtracted at the target, on the rank that holds it.": soft
            * counted
            / many,
            "The softmax is that of this rank's logits alone: exp(x − log_total) is that of all.": (
                own - hot
            )
            * counted
            / many,
            "The sign is wrong: softmax − 1 at the target.": -right / many,
            "1 was added at the target: it is to be subtracted.": (soft + hot) * counted / many,
            "Targets of other ranks took 1 from a logit here: mask them. (The nearest one.)": (
                soft - nearest
            )
            * counted
            / many,
            "Targets of other ranks took 1 from a logit here: mask them. (Modulo.)": (soft - modulo)
            * counted
            / many,
            "The target's column here is target − first: the 1 was taken from another one.": (
                soft - unshifted
            )
            * counted
            / many,
            "1 was subtracted everywhere: only at the target.": (soft - 1) * counted / many,
            "It is zero.": torch.zeros_like(soft),
        }


def split_loss(yours) -> None:
    """`split_loss(comm, part, targets, vocab)`: (losses, log_total), (tokens,) each. Three numbers a token travel."""
    ask(SplitLoss(), yours)


def logits_gradient(yours) -> None:
    """`logits_gradient(comm, part, targets, vocab, log_total)`: of the mean loss, (tokens, V_r). No message."""
    ask(LogitsGradient(), yours)


def merged_loss(yours) -> None:
    """`merged_loss(comm, part, targets, vocab)`: losses (tokens,) by one all-gather of three numbers a token."""
    ask(MergedLoss(), yours)
