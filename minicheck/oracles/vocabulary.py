"""A vocabulary on one rank: what the answers must give, what the usual mistakes would, and how answers are judged by it.

The numbers come from whole rows and whole logits, in float64, by PyTorch alone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minidist.split import bounds, uneven

from ..exam import Exam, Outcome, Wrong, close, near, ranks, recognized, ring_bytes, same

IGNORED = -100


class VocabularyExam(Exam):
    """What lesson 15 builds may not be called; collectives may. rule: said of a result that no usual mistake gives."""

    forbidden = ("minidist.parallel.vocab", "minidist.parallel", "minicheck.oracles.vocabulary")
    rule: str

    def value(self, case, args, rank, name, got, want):
        same(
            got,
            want,
            f"rank {rank}: {name}",
            partial(self.mistakes, case, args, rank, name),
            self.rule,
        )

    def within(self, slack: float, rounding: float, got, want, what: str, looks) -> None:
        """As `close`, where each number may be off by `slack`. rounding: what float16 would be off by."""
        largest = float(want.nan_to_num().abs().max())
        relative = slack / largest

        def mistakes(got):
            found = recognized(got, looks, "", lambda a, b: near(a, b, relative))
            if not found and not got.isfinite().all() and want.isfinite().all():
                return (
                    "exp of a large number is infinite, and of very small ones 0, whose log is −inf: subtract the "
                    "largest logit of all ranks first."
                )
            if not found and near(got, want, rounding / largest):
                return (
                    "It is right but for rounding: before exp and sums, go to float32 at least, and leave float64 as "
                    "it is."
                )
            return found

        close(got, want, what, mistakes, self.rule, relative)


def cut(whole: Tensor, n: int, dim: int = 0) -> list[Tensor]:
    """Every rank's part of `whole`, along `dim`."""
    return [part.contiguous() for part in whole.split(uneven(whole.shape[dim], n), dim)]


def drawn_tokens(vocab: int, n: int, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Random tokens; the first are the last row of rank 0 and the first one of the last rank, the last one repeats."""
    tokens = torch.randint(vocab, shape, generator=rng)
    parts = bounds(uneven(vocab, n))
    flat = tokens.view(-1)
    flat[:2] = torch.tensor([parts[0][1] - 1, parts[-1][0]])[: len(flat)]
    flat[-1] = flat[0]
    return tokens


class Logits(NamedTuple):
    """Whole logits (tokens, V), float64, and targets (tokens,), some of which may be IGNORED; on n ranks."""

    whole: Tensor
    targets: Tensor
    n: int

    def ours(self) -> list[tuple[int, int]]:
        """(first, end) of every rank's columns."""
        return bounds(uneven(self.whole.shape[1], self.n))

    def totals(self) -> Tensor:
        """log Σ exp(x_c), (tokens,)."""
        return self.whole.logsumexp(1)

    def hits(self, of: int | None = None) -> Tensor:
        """x_t, (tokens,); of one rank: 0 where the target is another's."""
        found = self.whole.gather(1, self.targets.clamp_min(0)[:, None])[:, 0]
        first, end = (0, self.whole.shape[1]) if of is None else self.ours()[of]
        return found.where((self.targets >= first) & (self.targets < end), 0)

    def wrong_totals(self, rank: int) -> dict[str, Tensor]:
        """log Σ exp(x_c) as mistakes have it, by what to say of it."""
        parts = cut(self.whole, self.n, 1)
        own, peaks = (
            torch.stack([p.logsumexp(1) for p in parts]),
            torch.stack([p.amax(1) for p in parts]),
        )
        sums, peak = (own - peaks).exp().sum(0), peaks.amax(0)
        return {
            f"It is made of rank {rank}'s own logits only: exp is to be summed over all parts.": own[
                rank
            ],
            "Each rank subtracted its own largest logit, and the sums were added as they are: s_i belongs to m_i, and "
            "counts s_i·exp(m_i − m).": sums.log() + peak,
            "Each rank subtracted its own largest logit, and the sums were added as they are; then each added its own "
            "m_i again. All must subtract the same m.": sums.log() + peaks[rank],
            "The factor is upside down: exp(x_c − m_i) becomes exp(x_c − m) by exp(m_i − m).": (
                own + peak - 2 * peaks
            )
            .exp()
            .sum(0)
            .log()
            + peak,
            "It is log s: the m that was subtracted before exp has to be added again.": self.totals()
            - peak,
            "It is Σ exp(x_c): its log is missing.": self.totals().exp(),
            "It is the largest logit: the sum of exp is missing, or was lost in the rounding of float16.": peak,
        }

    def wrong_losses(self, rank: int, smoothing: float = 0.0) -> dict[str, Tensor]:
        """Losses as mistakes have them, by what to say of them. smoothing: of the labels."""
        keep = 1 - smoothing
        rest = smoothing * self.whole.mean(1) if smoothing else 0  # of -inf, 0 times would be nan
        total = self.totals() - rest
        hit = keep * self.hits()
        own = keep * self.hits(rank)
        looks = {
            "x_t is missing on the ranks that do not hold the target: one rank has it, and all must hear of it.": total
            - own,
            "It is log Σ exp(x_c): x_t was not subtracted.": total,
            f"x_t counts {self.n} times: do all ranks add the same number?": total - self.n * hit,
        }
        for s, (first, end) in enumerate(self.ours()):
            local = (self.targets - first).clamp(0, end - first - 1)
            x = self.whole[:, first:end].gather(1, local[:, None])[:, 0]
            looks[f"x_t is rank {s}'s own, also where the target is another rank's: mask it."] = (
                total - keep * x
            )
        unmasked = sum(
            self.whole[:, a:b].gather(1, (self.targets - a).clamp(0, b - a - 1)[:, None])[:, 0]
            for a, b in self.ours()
        )
        text = (
            "x_t is a sum of one logit of every rank: those that do not hold the target must add 0."
        )
        looks[text] = total - keep * unmasked
        for text, wrong in self.wrong_totals(rank).items():
            looks |= {
                text: wrong - rest - hit,
                f"{text} And x_t is missing.": wrong - rest - own,
            }
        return looks

    def wrong_smoothing(self, rank: int, smoothing: float) -> dict[str, Tensor]:
        """Losses whose labels are smoothed in a wrong way, by what to say of them."""
        total = self.totals()
        hit = self.hits()
        mean = self.whole.mean(1)
        parts = cut(self.whole, self.n, 1)
        kept, count = total - (1 - smoothing) * hit, self.whole.shape[1]
        own = parts[rank]
        return {
            "Labels are not smoothed: it is log Σ exp(x_c) − x_t.": total - hit,
            "The target keeps its whole weight: smoothed, it has 1 − ε.": total
            - hit
            - smoothing * mean,
            "The mean of all logits is missing: ε is spread over all words.": kept,
            "The mean of the parts' means is not the mean of all: the parts differ in size. Send sums, and divide by V.": kept
            - smoothing * torch.stack([p.mean(1) for p in parts]).mean(0),
            "The logits are averaged over this rank's words alone: ε is spread over all V.": kept
            - smoothing * own.mean(1),
            "The sum of this rank's logits alone is taken: all ranks' belong into the mean.": kept
            - smoothing * own.sum(1) / count,
            "The sum of all logits is divided by this rank's number of words: divide by V.": kept
            - smoothing * self.whole.sum(1) / own.shape[1],
            "The sum of all logits is taken, not their mean: divide by V.": kept
            - smoothing * self.whole.sum(1),
            "ε is 0.1, whatever `smoothing` says.": total - 0.9 * hit - 0.1 * mean,
        }

    def gradient(self) -> Tensor:
        """Of the mean loss over the tokens that count, (tokens, V)."""
        whole = self.whole.clone().requires_grad_()
        F.cross_entropy(whole, self.targets, ignore_index=IGNORED).backward()
        return whole.grad


def silent(outcome: Outcome, why: str) -> None:
    """Raise Wrong if anything was sent."""
    if outcome.messages():
        talkers = [r for r in range(len(outcome.results)) if outcome.messages(r)]
        raise Wrong(f"the numbers are right, but {ranks(talkers)} sent messages: {why}")


def share_bytes(whole: Tensor, n: int) -> int:
    """Bytes of one rank in a reduce-scatter of `whole` along its first dimension: n−1 of the largest share."""
    return (n - 1) * cut(whole, n)[0].nbytes


def three_numbers(tokens: Tensor, n: int) -> int:
    """Bytes that three numbers a token may cost a rank, by ring all-reduces or by an all-gather. `tokens`: one each."""
    return max(3 * ring_bytes([tokens], n), 3 * (n - 1) * tokens.nbytes)
