"""Graders of lesson 15: a vocabulary that is split over ranks.

The oracle computes on one rank what the answers compute on several, and what mistakes would give.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.split import bounds, uneven

from ..exam import (
    ALL,
    HALF,
    NUMBERS,
    Case,
    Prediction,
    equal,
    few,
    near,
    normal,
    ranked,
    recognized,
    ring_bytes,
    who,
)
from ..oracles.vocabulary import (
    IGNORED,
    Logits,
    VocabularyExam,
    cut,
    drawn_tokens,
    share_bytes,
    silent,
    three_numbers,
)

# ------------------------------------------------------------
# Rows: the look-up, its gradient, the projection's backward.
#
# Numbers are whole, of both signs, with so many digits that every sum is exact, but not in a shorter dtype. The last
# tokens, the first and the repeated ones are always there.


F32, F64 = torch.float32, torch.float64
ROW_OF_INF = "n = 4, 42 rows, one of them inf"
WIDE = "Do whole rows travel, or more than one all-reduce?"
SHARES = "One reduce-scatter of the masked rows is enough: nobody needs the sums of the others."


def drawn(shape, dtype: torch.dtype, rng: torch.Generator, share: float = 1.0) -> Tensor:
    """Random whole numbers. share: of the digits, where they are multiplied."""
    most = 2 ** int(share * (40 if dtype == torch.float64 else 20))
    return torch.randint(-most, most, tuple(shape), generator=rng).to(dtype)


class LookUp(VocabularyExam):
    """`look_up(comm, rows, tokens, vocab)`: the rows of this rank's share of the tokens. One reduce-scatter."""

    name = "look_up"
    given = ("rows", "tokens")
    rule = (
        "A rank gives the rows of its own words, those of `uneven`, and zeros for all others; the sum over the ranks is "
        "the row of each token, and each rank keeps those of its share, in order."
    )
    right = "n = 1…4, uneven parts and shares, repeated tokens, two dtypes, one reduce-scatter's bytes; then 3 real processes."
    sizes = (
        (3, 40, (8,), F64),
        (2, 41, (3, 2), F32),
        (4, 42, (6, 1, 3), F64),
        (3, 39, (4, 2), F64),
        (1, 5, (2,), F32),
    )
    cases = ranked("n = {0}, {1} rows, tokens {2}", sizes)
    cases += (Case(4, ROW_OF_INF, (42, (7,), F64)),)
    processes = (Case(3, "3 real processes", (40, (5,), F64)),)

    def draw(self, case, rng):
        vocab, shape, dtype = case.given
        rows = cut(drawn((vocab, case.n + 1), dtype, rng), case.n)
        tokens = drawn_tokens(vocab, case.n, shape, rng)
        if tokens.numel() > 4:  # the second word of the last rank, in rank 0's share: at no border
            tokens.view(-1)[2] = bounds(uneven(vocab, case.n))[-1][0] + 1
        if case.what == ROW_OF_INF:  # in the middle of rank 0's
            rows[0][5] = torch.inf
            tokens[2] = 5
        return [(rows[r], tokens, vocab) for r in range(case.n)]

    def wants(self, case, args):
        whole = torch.cat([a[0] for a in args])[args[0][1]]
        return [{"the result": share} for share in cut(whole, case.n)]

    def mistakes(self, case, args, rank, name, got):
        parts, tokens = [a[0] for a in args], args[0][1]
        ranks = range(case.n)
        looks = {
            "Tokens of other ranks got a row, too: they must add zeros.": sum(
                self._own(parts, tokens, r, False) for r in ranks
            )
        }
        for low, high in ((0, 1), (1, 0), (1, 1), (-1, 0), (0, -1)):
            looks[
                "A word at a border is taken by two ranks, or by none: `first` is the first own word, `end` the "
                f"first one of the next rank. ({low}, {high})"
            ] = sum(self._own(parts, tokens, r, True, low, high) for r in ranks)
        own = [self._own(parts, tokens, r) for r in ranks]
        shares = {
            f"These are the rows of rank {s}'s share: rank {rank} keeps its own.": cut(
                sum(own), case.n
            )[s]
            for s in ranks
        }
        looks = {text: cut(look, case.n)[rank] for text, look in looks.items()}
        mine = [cut(x, case.n)[rank] for x in own]
        return recognized(got, looks | shares, "", equal) or who(got, mine, rank)

    def cost(self, case, args, outcome):
        whole = torch.cat([want["the result"] for want in self.wants(case, args)])
        few(outcome, share_bytes(whole, case.n), SHARES, case.n - 1)

    def _own(
        self,
        parts,
        tokens,
        rank,
        mask=True,
        low=0,
        high=0,
    ):
        """What a rank adds. low, high: move the borders of what it takes for its own."""
        first = sum(len(p) for p in parts[:rank])
        local = tokens - first
        here = (local >= low) & (local < len(parts[rank]) + high)
        rows = parts[rank][local.clamp(0, len(parts[rank]) - 1)]
        return rows * here[..., None] if mask else rows


class LookUpGradient(VocabularyExam):
    """`look_up_gradient(comm, grad, tokens, vocab)`: the gradient of this rank's rows, (V_r, H). No message."""

    name = "look_up_gradient"
    returns, given = ("the gradient",), ("grad", "tokens")
    rule = (
        "Row token − first has the sum of what its tokens say; tokens of other ranks are left out, and nothing is summed, or "
        "averaged, over ranks."
    )
    right = (
        "n = 1…4, uneven parts, tokens that repeat, two dtypes, no message; then 3 real processes."
    )
    sizes = (
        (3, 11, (7,), F64),
        (2, 9, (2, 4), F32),
        (4, 14, (2, 3, 2), F64),
        (3, 13, (), F64),
        (1, 6, (6,), F32),
    )
    cases = ranked("n = {0}, {1} rows, tokens {2}", sizes)
    processes = (Case(3, "3 real processes", (11, (7,), F64)),)

    def draw(self, case, rng):
        vocab, shape, dtype = case.given
        tokens = drawn_tokens(vocab, case.n, shape, rng)
        grad = drawn((*shape, case.n + 1), dtype, rng)
        if case.n == 1:  # of every word: a product with ones and zeros makes all of a column nan
            tokens = torch.arange(vocab)
            grad[:, 0] = torch.nan
        return [(grad, tokens, vocab)] * case.n

    def wants(self, case, args):
        grad, tokens, vocab = args[0]
        zeros = grad.new_zeros(vocab, grad.shape[-1])
        whole = zeros.index_add(0, tokens.reshape(-1), grad.reshape(-1, grad.shape[-1]))
        return [{"the gradient": part} for part in cut(whole, case.n)]

    def mistakes(self, case, args, rank, name, got):
        grad, tokens, vocab = args[0]
        zeros, flat = grad.new_zeros(vocab, grad.shape[-1]), grad.reshape(-1, grad.shape[-1])
        once = cut(zeros.index_put((tokens.reshape(-1),), flat), case.n)[rank]
        return {
            "A token that occurs twice adds twice: = keeps the last gradient, and += with a list of indices "
            "too. Use index_add_.": once
        }

    def cost(self, case, args, outcome):
        silent(outcome, "every rank has the gradients of all tokens already.")


class ProjectBackward(VocabularyExam):
    """`project_backward(comm, dlogits, x, rows)`: (dx, drows) of logits = x · rowsᵀ. One all-reduce, of dx."""

    name = "project_backward"
    returns, given = ("dx", "drows"), ("dlogits", "x", "rows")
    rule = (
        "dx is summed over the ranks, whose logits all came from x. A rank's rows have all their gradient here: others' are "
        "of other words."
    )
    right = "n = 1…4, uneven and even parts, two dtypes, dx whole, one all-reduce's bytes; then 3 real processes."
    sizes = ((3, 39, 4, F64), (2, 21, 5, F32), (4, 42, 3, F64), (1, 6, 2, F32))
    cases = ranked("n = {0}, {1} rows, {2} tokens", sizes)
    processes = (Case(3, "3 real processes", (40, 4, F64)),)

    def draw(self, case, rng):
        vocab, tokens, dtype = case.given
        hidden = case.n + 1
        dlogits, x, rows = (
            drawn(shape, dtype, rng, 0.4)
            for shape in ((tokens, vocab), (tokens, hidden), (vocab, hidden))
        )
        if case.n == 1:
            dlogits[0, 0] = torch.nan
        return [(d, x, w) for d, w in zip(cut(dlogits, case.n, 1), cut(rows, case.n))]

    def wants(self, case, args):
        dx = sum(d @ w for d, _, w in args)
        return [{"dx": dx, "drows": dlogits.T @ x} for dlogits, x, _ in args]

    def mistakes(self, case, args, rank, name, got):
        return who(got, [d @ w for d, _, w in args], rank) if name == "dx" else None

    def cost(self, case, args, outcome):
        nbytes = ring_bytes([self.wants(case, args)[0]["dx"]], case.n)
        few(outcome, nbytes, WIDE, 2 * (case.n - 1))


# ------------------------------------------------------------
# The loss: in three reductions, backward, and in one message.
#
# Logits are drawn near 0, then shifted by up to 10,000 where exp without care fails, in float64, float32 and float16.


# n, V, tokens, dtype, largest logit.
GIVEN = (
    (3, 40, 40, torch.float64, 3),
    (2, 41, 1, torch.float64, 3),
    (4, 61, 6, torch.float64, 10_000),
    (3, 40, 4, torch.float16, 10_000),
    (2, 300, 5, torch.float16, 3),
    (3, 44, 400, torch.float32, 3),
    (1, 7, 3, torch.float64, 3),
)
HALF_ROUNDING = 2**-10  # float16 keeps 11 bits
GATHERED = "Three numbers a token are enough, however large V is. Are logits gathered?"


def cases_of(given) -> tuple[Case, ...]:
    return ranked(
        lambda n, v, t, d, most: (
            f"n = {n}, V = {v}, {t} tokens, {str(d)[6:]}, logits up to {most:,}"
        ),
        given,
    )


class LossExam(VocabularyExam):
    """Every rank has its part of the logits; a case's `given`: V, tokens, dtype, the size of the logits."""

    rule = "A loss is log Σ exp(x_c) − x_t, the sum being over all V words."

    def draw(self, case, rng):
        vocab, tokens, dtype, most = case.given
        logits = normal(rng, tokens, vocab)
        if most > 100:  # near ±10,000; one row all below zero; of another, one rank's
            sign = torch.randint(0, 2, (tokens, vocab), generator=rng).mul(2).sub(1)
            sign[0] = -1
            sign[1] = 1
            sign[1, : -(-vocab // case.n)] = -1
            logits = logits * 3 + most * sign
        if case.n == 1:
            logits[0, 0] = torch.nan
        targets = drawn_tokens(vocab, case.n, (tokens,), rng)
        return [(part, targets, vocab) for part in cut(logits.to(dtype), case.n, 1)]

    def whole(self, case, args):
        return Logits(torch.cat([a[0] for a in args], 1).double(), args[0][1], case.n)

    def wants(self, case, args):
        logits = self.whole(case, args)
        dtype, total = torch.promote_types(args[0][0].dtype, torch.float32), logits.totals()
        found = {"losses": (total - logits.hits()).to(dtype), "log_total": total.to(dtype)}
        return [found] * case.n

    def value(self, case, args, rank, name, got, want):
        logits = self.whole(case, args)
        largest = float(logits.whole.nan_to_num(neginf=0).abs().max())
        # of a difference of such numbers
        slack = 8 * torch.finfo(want.dtype).eps * largest
        slack += 1e-9 if want.dtype == torch.float64 else 3e-5
        what, rounding = f"rank {rank}: {name}", max(0.02, largest * HALF_ROUNDING)
        self.within(slack, rounding, got, want, what, self.wrong(case, args, rank, name))

    def wrong(self, case, args, rank, name) -> dict:
        """What usual mistakes give, by what to say of them."""
        logits = self.whole(case, args)
        return logits.wrong_losses(rank) if name == "losses" else logits.wrong_totals(rank)


class SplitLoss(LossExam):
    """`split_loss(comm, part, targets, vocab, words)`: (losses, log_total), (tokens,) each. Three numbers a token travel.

    The columns from `words` on are padding, with logits larger than all others.
    """

    name = "split_loss"
    returns = replicated = ("losses", "log_total")
    given = ("part", "targets")
    rule = "A loss is log Σ exp(x_c) − x_t, the sum being over the words that exist."
    right = "n = 1…4, uneven parts, padding, logits of ±10,000, three dtypes, three numbers a token; then 3 real processes."
    cases = cases_of(GIVEN)
    processes = cases_of(GIVEN[:1])

    def draw(self, case, rng):
        args = super().draw(case, rng)
        vocab, _, _, most = case.given
        padding = 0 if vocab % 11 == 0 else min(5, vocab // 3)  # none in one case
        words = vocab - padding
        if padding:
            args[-1][0][:, -padding:] = 2 * most
        args[0][1].clamp_(max=words - 1)
        return [(*a, words) for a in args]

    def whole(self, case, args):
        logits = super().whole(case, args)
        logits.whole[:, args[0][3] :] = -torch.inf
        return logits

    def wrong(self, case, args, rank, name):
        words, whole = args[0][3], torch.cat([a[0] for a in args], 1).double()
        zeros = whole.clone()
        zeros[:, words:] = 0
        one_more = whole.clone()
        one_more[:, words + 1 :] = -torch.inf
        one_less = whole.clone()
        one_less[:, words - 1 :] = -torch.inf
        from_0 = torch.cat(
            [
                a[0].double().masked_fill(torch.arange(a[0].shape[1]) >= words, -torch.inf)
                for a in args
            ],
            1,
        )
        looks = {
            f"Padding counts: the columns from {words} on are words that do not exist.": whole,
            "Padding counts as logits of 0, and exp(0) is 1: its share of the sum is 0.": zeros,
            f"Word {words}, the first of the padding, counts: the words are 0 to {words - 1}.": one_more,
            f"Word {words - 1}, the last that exists, does not count.": one_less,
            "Columns are compared with `words` as if each part began with word 0: column i is word first + i.": from_0,
        }
        right = self.whole(case, args)
        logits = {text: right._replace(whole=x) for text, x in looks.items()}
        if name == "losses":
            looks = {text: x.totals() - x.hits() for text, x in logits.items()}
            right = right.totals() - right.hits()
        else:
            looks = {text: x.totals() for text, x in logits.items()}
            right = right.totals()
        looks = {text: x for text, x in looks.items() if not near(x, right, 1e-9)}
        return looks | super().wrong(case, args, rank, name)

    def cost(self, case, args, outcome):
        losses, hint = self.wants(case, args)[0]["losses"], GATHERED
        few(outcome, three_numbers(losses, case.n), hint, 6 * (case.n - 1))


class MergedLoss(LossExam):
    """`merged_loss(comm, part, targets, vocab, smoothing)`: losses (tokens,) by one all-gather of four numbers a token."""

    name = "merged_loss"
    returns = replicated = ("losses",)
    given = ("part", "targets")
    rule = "A loss is log Σ exp(x_c) − (1 − ε)·x_t − ε/V·Σ x_c, the sums being over all V words."
    right = "n = 1…4, uneven parts, parts of very different size, three smoothings, n−1 messages a rank; then 3 real processes."
    cases = cases_of(c for c in GIVEN if c[3] == torch.float64)
    processes = cases_of(GIVEN[:1])

    def draw(self, case, rng):
        smoothing = {2: 0.25, 1: 0.0}.get(case.n, 0.1)
        return [(*a, smoothing) for a in super().draw(case, rng)]

    def wants(self, case, args):
        logits, smoothing = self.whole(case, args), args[0][3]
        target = (1 - smoothing) * logits.hits() + smoothing * logits.whole.mean(1)
        return [{"losses": logits.totals() - target}] * case.n

    def wrong(self, case, args, rank, name):
        logits, smoothing = self.whole(case, args), args[0][3]
        smoothed = logits.wrong_smoothing(rank, smoothing)
        right = self.wants(case, args)[0][name]
        smoothed = {text: x for text, x in smoothed.items() if not near(x, right, 1e-9)}
        return smoothed | logits.wrong_losses(rank, smoothing)

    def cost(self, case, args, outcome):
        others, losses = case.n - 1, self.wants(case, args)[0]["losses"]
        few(outcome, math.inf, "One all-gather of all four numbers of all tokens.", others)
        few(
            outcome,
            4 * others * losses.nbytes,
            "Four numbers a token are enough, however large V is.",
        )


class LogitsGradient(LossExam):
    """`logits_gradient(comm, part, targets, vocab, log_total)`: of the mean loss, (tokens, V_r). No message."""

    name = "logits_gradient"
    returns, given = ("the gradient",), ("part", "targets", "", "log_total")
    right = "n = 1…4, uneven parts, ignored tokens, logits of ±10,000, three dtypes, no message; then 3 real processes."
    cases = cases_of(GIVEN)
    processes = cases_of(GIVEN[:1])
    rule = "It is exp(x_c − log_total) − [c = t], divided by how many tokens count; zero for the others."

    def draw(self, case, rng):
        args = super().draw(case, rng)
        targets = args[0][1]
        ignored = (
            [1, *([2] if case.n == 4 else [])] if case.n != 2 else []
        )  # not the token with a nan
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

    def wants(self, case, args):
        dtype, whole = args[0][0].dtype, self.whole(case, args).gradient()
        return [{"the gradient": part.to(dtype)} for part in cut(whole, case.n, 1)]

    def value(self, case, args, rank, name, got, want):
        slack = {torch.float64: 1e-9, torch.float32: 1e-5}.get(want.dtype, 2e-3)
        looks = self._looks(self.whole(case, args), rank)
        rounding = 0.02 * float(want.nan_to_num().abs().max())
        self.within(slack, rounding, got, want, f"rank {rank}: {name}", looks)

    def cost(self, case, args, outcome):
        silent(outcome, "log_total and the targets are on every rank: backward needs nothing more.")

    def _looks(self, logits, rank):
        first, end = logits.ours()[rank]
        counted = (logits.targets != IGNORED)[:, None]
        soft = logits.whole.softmax(1)[:, first:end]
        own = logits.whole[:, first:end].softmax(1)
        hot = torch.nn.functional.one_hot(logits.targets.clamp_min(0), logits.whole.shape[1])[
            :, first:end
        ].double()
        tokens = len(counted)
        many = counted.sum()
        here = ((logits.targets >= first) & (logits.targets < end)).sum()
        rough = (logits.whole - logits.totals().half().double()[:, None]).exp()[:, first:end]
        local = (logits.targets - first)[:, None].clamp(0, end - first - 1)
        nearest = (torch.arange(end - first) == local).double()
        of_mean = lambda x: x * counted / many
        right = (soft - hot) * counted
        mean = "the mean is over the tokens that are not ignored: divide by their number."
        return {
            "Ignored tokens have a gradient, too: theirs is zero.": (soft - hot) / many,
            "Ignored tokens have a gradient, too: theirs is zero. (Their −100 took no logit's 1.)": (
                soft - hot * counted
            )
            / many,
            f"It is the gradient of the sum, and ignored tokens have one, too: {mean}": soft
            - hot * counted,
            f"It is the gradient of the sum: {mean}": right,
            f"It is divided by all tokens, ignored ones too: {mean}": right / tokens,
            "It is divided by the number of those targets that are here: the mean is over the tokens of all ranks.": right
            / here,
            "log_total was rounded to float16: subtract, and take exp, in float32 at least.": of_mean(
                rough - hot
            ),
            "It is the softmax: 1 is to be subtracted at the target, on the rank that holds it.": of_mean(
                soft
            ),
            "The softmax is that of this rank's logits alone: exp(x − log_total) is that of all.": of_mean(
                own - hot
            ),
            "Targets of other ranks took 1 from a logit here: mask them.": of_mean(soft - nearest),
        }


# ------------------------------------------------------------
# Numbers: what a split saves, and what it sends.


def predict_vocabulary(n=8, vocab=64_000, hidden=5_120):
    """64,000 words, H = 5,120, float32, 8 ranks, rings. Bytes are those that one rank sends for one token.

    saved: MiB of weights that a rank does not keep.  gathered: bytes to gather the logits.
    reduced: bytes of three all-reduces.  doubled: the same with 128,000 words.
    messages: of a rank, where s and x_t share an all-reduce.  looked_up: bytes of a look-up's all-reduce.
    """
    mib, ring = vocab * hidden * 4 / 2**20, 2 * (n - 1) / n
    gathered = (n - 1) / n * vocab * 4
    reduced = ring * 3 * 4
    looked = ring * hidden * 4
    values = {
        "saved": mib * (n - 1) / n,
        "gathered": gathered,
        "reduced": reduced,
        "doubled": reduced,
        "messages": 4 * (n - 1),
        "looked_up": looked,
    }
    slips = {
        "saved": {
            mib: "That is the whole matrix: a rank keeps its part of it.",
            mib / n: "That is what a rank keeps: what does it save?",
            mib * (n - 1) / n * 2**20 / 1e6: "Those are MB = 10⁶: a MiB is 2²⁰ bytes.",
            2 * mib * (n - 1) / n: "With the gradients, yes: the weights alone are asked for.",
            mib * (n - 1) / n / 4: NUMBERS,
        },
        "gathered": {
            vocab * 4: "A rank has 1/n of the logits already.",
            gathered / 4: NUMBERS,
            vocab * 4 / n: "That is one message of n−1: the ring passes on what it receives.",
            2 * gathered: "That is an all-reduce: an all-gather is one half of it.",
            gathered * n: ALL,
        },
        "reduced": {
            reduced / 2: HALF,
            reduced / 4: NUMBERS,
            12: "Nearly: the factor is 2(n−1)/n.",
            24: "Nearly: the factor is 2(n−1)/n.",
            reduced / 3: "That is one number a token: there are three.",
            reduced * n: ALL,
            12 * (n - 1): "That is an all-gather of the three: all-reduces are asked for.",
        },
        "doubled": {
            2 * reduced: "Of twice as many words the rank sends still three numbers: m, s and x_t.",
            reduced / 4: NUMBERS,
        },
        "messages": {
            2 * (n - 1): "That is one all-reduce: there are two, since s needs m first.",
            6 * (n - 1): "s and x_t travel in one: that leaves two all-reduces.",
            2: "An all-reduce is 2(n−1) messages a rank.",
            4 * n: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            4 * (n - 1) * n: ALL,
        },
        "looked_up": {
            looked / 4: NUMBERS,
            looked / 2: HALF,
            hidden * 4: "Nearly: the factor is 2(n−1)/n.",
            2 * hidden * 4: "Nearly: the factor is 2(n−1)/n.",
            looked * n: ALL,
            reduced: "Those are the loss's: a look-up adds up rows of H numbers.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_vocabulary,
    "Memory, bytes and messages, within 1 %.",
    {
        "n": ("{} ranks", (4, 16, 32)),
        "vocab": ("{:,} words", (32_000, 48_000, 128_000)),
        "hidden": ("H = {:,}", (2_048, 4_096, 8_192)),
    },
)
