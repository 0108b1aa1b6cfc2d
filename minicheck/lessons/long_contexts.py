"""Graders of lesson 21: the tokens of one sample on many ranks."""

from __future__ import annotations

import torch

from ..exam import (
    ALL,
    NUMBERS,
    Exam,
    Prediction,
    few,
    normal,
    ranked,
    recognized,
    ring_bytes,
    same,
)
from ..oracles.long_contexts import (
    EVEN_CHUNKS,
    NEXT_LATE,
    attended,
    gradients,
    of_last_block,
    part_of_block,
    scores_of,
    summed_blocks,
    zigzag_of,
)
from ..oracles.vocabulary import silent

BUILT = ("minidist.parallel.context", "minidist.parallel", "minicheck.oracles.long_contexts")

# ------------------------------------------------------------
# Who has which tokens.


class Zigzag(Exam):
    """`zigzag(comm, T)`: the positions of this rank's tokens, int64, an early chunk and a late one. No message."""

    name = "zigzag"
    returns = ("the positions",)
    forbidden = BUILT
    right = "n = 1…4, T that 2n divides and not, no message; then 3 real processes."
    cases = ranked(
        lambda n, T: f"n = {n}, {T} tokens", ((4, 64), (3, 13), (2, 7), (4, 27), (1, 5), (3, 2))
    )
    processes = ranked(lambda n, T: f"{n} real processes, {T} tokens", ((3, 20),))

    def draw(self, case, rng):
        return [(case.given,)] * case.n

    def wants(self, case, args):
        return [{"the positions": zigzag_of(case.given, case.n, r)} for r in range(case.n)]

    def value(self, case, args, rank, name, got, want):
        T, n = case.given, case.n
        start = sum(len(zigzag_of(T, n, r)) for r in range(rank))
        looks = {
            "The late chunk is that of rank n − 1 − r: chunk 2n − 1 − r, counted from 0.": zigzag_of(
                T, n, rank, NEXT_LATE
            ),
            "All chunks are T // 2n: tokens at the end belong to nobody. Use `uneven`.": zigzag_of(
                T, n, rank, EVEN_CHUNKS
            ),
            "It is the contiguous order.": torch.arange(start, start + len(want)),
            "The late chunk stands before the early one.": want.flip(0)
            .sort()
            .values[torch.arange(len(want)).roll(-len(want) // 2)],
        }
        same(
            got,
            want,
            f"{self.where(rank)}{name}",
            looks,
            "They are those of chunk r and of chunk 2n − 1 − r.",
        )

    def cost(self, case, args, outcome):
        silent(outcome, "T, n and the rank say it all.")


# ------------------------------------------------------------
# The ring.


SIZES = ((3, 4, 5, 1), (2, 3, 2, 1), (4, 2, 4, 1), (3, 5, 3, 600), (1, 6, 3, 1))


def cases_of(sizes):
    return ranked(
        lambda n, t, d, size: f"n = {n}, {t} tokens of size {d} on a rank, scores × {size}", sizes
    )


class RingForward(Exam):
    """`ring_forward(comm, q, k, v)`: (out, lse) of this rank's queries, of all keys. n − 1 messages."""

    name = "ring_forward"
    returns, given = ("out", "lse"), ("q", "k", "v")
    forbidden = (*BUILT, "minidist.collectives")
    right = "n = 1…4, scores of hundreds, n − 1 messages, nothing changed; then 3 real processes."
    cases = cases_of(SIZES)
    processes = cases_of(SIZES[:1])

    def draw(self, case, rng):
        t, d, size = case.given
        return [
            (size * normal(rng, t, d), normal(rng, t, d), normal(rng, t, d)) for _ in range(case.n)
        ]

    def wants(self, case, args):
        _, keys, values = (torch.cat(xs) for xs in zip(*args))
        found = [attended(q, keys, values) for q, _, _ in args]
        return [{"out": out, "lse": lse} for out, lse in found]

    def mistakes(self, case, args, rank, name, got):
        q, own_k, own_v = args[rank]
        n = case.n
        keys, values = [k for _, k, _ in args], [v for _, _, v in args]
        if not got.isfinite().all():
            return (
                "exp of a large score is infinite, and that of a very negative one 0, whose log is −inf: logsumexp and "
                "logaddexp subtract what is largest first."
            )
        own, own_lse = attended(q, own_k, own_v)
        looks = {
            f"It is what rank {rank}'s own keys give: nothing of the other ranks is in it.": (
                own if name == "out" else own_lse
            )
        }
        for lacking in range(n) if n > 1 else ():
            rest = [r for r in range(n) if r != lacking]
            out, lse = attended(
                q, torch.cat([keys[r] for r in rest]), torch.cat([values[r] for r in rest])
            )
            words = f"It lacks the keys of rank {lacking}. One step short?"
            looks[words] = out if name == "out" else lse
        stale = of_last_block(q, [args[(rank - step) % n][1:] for step in range(n)])
        looks["What is merged must be of all keys so far: is `lse` that of the last block?"] = (
            stale[0 if name == "out" else 1]
        )
        everything = torch.cat(keys)
        root = q.shape[1] ** 0.5
        if name == "out":
            total = summed_blocks(q, keys, values)
            looks |= {
                "Values stay here, and keys travel: each key goes with its own value.": attended(
                    q, torch.cat(keys), own_v.repeat(n, 1)
                )[0],
                "The results of blocks are added up, each with a softmax of its own: weigh them by exp(lse₁ − lse).": total,
                "It is the mean of the blocks' results: weigh them by exp(lse₁ − lse), of which the sum is 1.": total
                / n,
                "Scores are to be divided by √D.": (scores_of(q, everything) * root).softmax(1)
                @ torch.cat(values),
            }
        else:
            every = scores_of(q, everything)
            looks |= {
                "It is Σ exp: its log is missing.": every.exp().sum(1),
                "It is the largest score: log Σ exp(score − largest) is missing.": every.amax(1),
                "Scores are to be divided by √D.": (every * root).logsumexp(1),
            }
        return looks

    def cost(self, case, args, outcome):
        block = 2 * args[0][1].nbytes
        few(
            outcome,
            (case.n - 1) * block,
            "Only keys and values travel, each block n − 1 times.",
            case.n - 1,
        )


SLIPS = {
    "P is a block of the softmax of all keys, exp(scores − lse): here each block has a softmax of its own.": "softmax",
    "rowsum(grad ∘ out) is to be subtracted from grad·vᵀ.": "rows",
}


class RingBackward(Exam):
    """`ring_backward(comm, grad, q, k, v, out, lse)`: (dq, dk, dv), of the losses of all ranks."""

    name = "ring_backward"
    returns = ("dq", "dk", "dv")
    given = ("grad", "q", "k", "v", "out", "lse")
    forbidden = (*BUILT, "minidist.collectives")
    right = "n = 1…4, large scores, 2n − 1 messages, nothing changed; then 3 real processes."
    cases = cases_of((n, t, d, 2_000 if size > 1 else 1) for n, t, d, size in SIZES)
    processes = cases_of(SIZES[:1])

    def draw(self, case, rng):
        t, d, size = case.given
        rows = [(normal(rng, t, d), normal(rng, t, d), normal(rng, t, d)) for _ in range(case.n)]
        if size > 1:  # all scores are as much larger, and their softmax is what it was
            for q, k, _ in rows:
                q[:, 0], k[:, 0] = 1, size
        keys, values = torch.cat([k for _, k, _ in rows]), torch.cat([v for _, _, v in rows])
        return [(normal(rng, t, d), q, k, v, *attended(q, keys, values)) for q, k, v in rows]

    def wants(self, case, args):
        grads, queries, keys, values, *_ = zip(*args)
        found = gradients(list(queries), list(keys), list(values), list(grads))
        return [dict(zip(self.returns, of_rank)) for of_rank in found]

    def mistakes(self, case, args, rank, name, got):
        n = case.n
        at = self.returns.index(name)
        grad, q, own_k, own_v, out, lse = args[rank]
        if name == "dq":
            parts = [part_of_block(q, a[2], a[3], grad, out, lse)[0] for a in args]
            blocks = "blocks"
        else:
            parts = [part_of_block(a[1], own_k, own_v, a[0], a[4], a[5])[at] for a in args]
            blocks = "ranks"
        total = sum(parts)
        looks = {
            f"It is rank {rank}'s own part: those of the other {blocks} are missing.": parts[rank],
            f"It is {n} times too small: gradients are summed, not averaged.": total / n,
            "The factor 1/√D is missing.": total * q.shape[1] ** 0.5,
            "The factor 1/√D is there twice.": total * q.shape[1] ** -0.5,
        }
        for words, slip in SLIPS.items():
            if name == "dq":
                looks[words] = sum(
                    part_of_block(q, a[2], a[3], grad, out, lse, slip)[0] for a in args
                )
            else:
                looks[words] = sum(
                    part_of_block(a[1], own_k, own_v, a[0], a[4], a[5], slip)[at] for a in args
                )
        if name == "dq":
            for r, part in enumerate(parts):
                looks[f"It is what the block of rank {r} adds: all blocks' are summed."] = part
        else:
            looks[
                "These are what the own queries add to all blocks: each block's sum has to travel on."
            ] = sum(part_of_block(q, a[2], a[3], grad, out, lse)[at] for a in args)
            swapped = self.wants(case, args)[rank]["dv" if name == "dk" else "dk"]
            looks["dk and dv are swapped."] = swapped
        for lacking in range(n) if n > 1 else ():
            looks[f"It lacks the part of rank {lacking}. One step short?"] = total - parts[lacking]
        for other in range(n):
            if other != rank:
                looks[
                    f"It is the gradient of rank {other}'s block: one hop too many, or too few?"
                ] = self.wants(case, args)[other][name]
        return looks

    def cost(self, case, args, outcome):
        n, block = case.n, 2 * args[0][2].nbytes
        enough = (n - 1) * block + (n > 1) * n * block
        few(
            outcome,
            enough,
            "A block travels n − 1 times, its two gradients n times; queries stay.",
            max(0, 2 * n - 1) if n > 1 else 0,
        )


# ------------------------------------------------------------
# All-to-all on heads, and the mean over all tokens.


class HeadsForTokens(Exam):
    """`heads_for_tokens(comm, x)`: (a, T/n, D), all heads of some tokens → (a/n, T, D), all tokens of some heads."""

    name = "heads_for_tokens"
    given = ("x",)
    forbidden = BUILT
    exact = True
    right = "n = 1…4, one head a rank and more, one all-to-all's bytes; then 3 real processes."
    sizes = ((3, 6, 4, 2), (2, 2, 3, 5), (4, 8, 2, 3), (3, 3, 5, 1), (1, 2, 3, 2))
    cases = ranked(
        lambda n, a, t, d: f"n = {n}, {a} heads, {t} tokens of size {d} on a rank", sizes
    )
    processes = cases[:1]

    def draw(self, case, rng):
        return [(normal(rng, *case.given),) for _ in range(case.n)]

    def wants(self, case, args):
        whole = torch.cat([x for (x,) in args], 1)
        return [{"the result": part.contiguous()} for part in whole.chunk(case.n)]

    def mistakes(self, case, args, rank, name, got):
        n, (a, t, d) = case.n, case.given
        whole = self.wants(case, args)[rank]["the result"]
        shape = (a // n, n * t, d)
        came = torch.cat([x.chunk(n)[rank] for (x,) in args])  # (a, T/n, D), as it comes
        looks = {
            "What came was viewed as (a/n, T, D): that mixes heads and tokens. Join the ranks' parts along the tokens.": (
                came.reshape(shape)
            ),
            "Tokens of the ranks take turns: all of rank 0 come first.": whole.unflatten(1, (n, t))
            .transpose(1, 2)
            .reshape(shape),
            "Heads are dealt out in turn: rank r has the heads from r·a/n on.": torch.cat(
                [x for (x,) in args], 1
            )[rank::n],
            "Ranks come in reverse.": torch.cat([x.chunk(n)[rank] for (x,) in args[::-1]], 1),
            "All tokens are of other heads: of the next rank's.": self.wants(case, args)[
                (rank + 1) % n
            ]["the result"],
        }
        return recognized(got, looks)

    def cost(self, case, args, outcome):
        x = args[0][0]
        few(
            outcome,
            x.nbytes * (case.n - 1) // case.n,
            "A rank keeps its own heads of its own tokens, and sends each number of the others once.",
        )


class MeanLoss(Exam):
    """`mean_loss(comm, losses, counted)`: (the mean of all that count, this rank's share of them). Two numbers travel."""

    name = "mean_loss"
    returns = ("loss", "factor")
    given = ("losses", "counted")
    replicated = ("loss",)
    forbidden = BUILT
    right = "n = 1…4, ranks with many and with no tokens that count, nan where none does, one all-reduce; then 3 real processes."
    sizes = ((3, 8, 0), (2, 5, 1), (4, 6, 2), (1, 4, 3))
    cases = ranked(lambda n, t, _: f"n = {n}, {t} tokens on a rank", sizes)
    processes = cases[:1]

    def draw(self, case, rng):
        t = case.given[0]
        rows = []
        for rank in range(case.n):
            losses = normal(rng, t).abs() + 1
            counted = torch.arange(t) < (0 if rank == 1 else t - 2 * rank)
            losses[~counted] = torch.nan
            rows.append((losses, counted))
        return rows

    def wants(self, case, args):
        sums, numbers = self.parts(args)
        loss, total = sum(sums) / sum(numbers), sum(numbers)
        return [
            {"loss": loss.clone(), "factor": torch.tensor(number / total, dtype=loss.dtype)}
            for number in numbers
        ]

    def parts(self, args):
        return [x[c].sum() for x, c in args], [int(c.sum()) for _, c in args]

    def mistakes(self, case, args, rank, name, got):
        sums, numbers = self.parts(args)
        n = case.n
        tokens = len(args[0][0])
        total = sum(numbers)
        if name == "factor":
            return {
                "It is 1/n: ranks do not have as many tokens that count.": got.new_tensor(1 / n),
                "It is the part of this rank's tokens that count: the part of all that count is asked for.": (
                    got.new_tensor(numbers[rank] / tokens)
                ),
                "It is how many count here: divide by how many count everywhere.": got.new_tensor(
                    numbers[rank]
                ),
                "It is the factor of the sum: this rank's mean is to be multiplied.": got.new_tensor(
                    1 / total
                ),
            }
        if not got.isfinite():
            return "What does not count may be nan, and nan · 0 is nan: take 0 in its place. Or was 0 divided by 0?"
        means = [s / max(1, k) for s, k in zip(sums, numbers)]
        return {
            "It is the mean of the ranks' means: ranks do not have as many tokens that count.": sum(
                means
            )
            / n,
            "It is the sum of the ranks' means.": sum(means),
            "It is the sum: divide by the number of tokens that count.": sum(sums),
            "It is divided by all tokens: divide by the number of those that count.": sum(sums)
            / (n * tokens),
            "It is divided by the tokens that count here: their number is to be summed, too.": sum(
                sums
            )
            / max(1, numbers[rank]),
        } | {f"It is the mean of rank {r} alone.": mean for r, mean in enumerate(means)}

    def cost(self, case, args, outcome):
        few(
            outcome,
            max(ring_bytes([torch.zeros(2, dtype=torch.float64)], case.n), 0),
            "Two numbers are enough: a sum of losses, and how many they are.",
            2 * (case.n - 1),
        )


# ------------------------------------------------------------
# Numbers.


def predict_context(n=8, T=131_072, heads=32):
    """A layer of a causal GPT: T tokens on n ranks, heads of size 128, 8 of keys and values, two bytes a number.

    ring, heads: bytes that one rank sends forward.  kept: bytes of keys and values that it keeps.  slowest: pairs that the
    slowest rank computes in the contiguous order.  gain: how many times fewer in the zigzag order.
    """
    groups, size = 8, 128
    block = 2 * groups * T // n * size * 2
    exchanged = (n - 1) / n * (2 * heads + 2 * groups) * T / n * size * 2
    slowest = n * (T // n) ** 2
    gain = 4 * n / (2 * n + 1)
    values = {
        "ring": (n - 1) * block,
        "heads": exchanged,
        "kept": block,
        "slowest": slowest,
        "gain": gain,
    }
    slips = {
        "ring": {
            n * block: "A rank has its own block already: n − 1 messages.",
            (n - 1) * block / 2: "Keys and values travel, or two bytes a number: that is one half.",
            (n - 1) * block * heads / groups: "Keys and values have 8 heads alone.",
            n * (n - 1) * block: ALL,
            block: "That is one message: how many are there?",
        },
        "heads": {
            exchanged * n / (n - 1): "A rank keeps its own heads of its own tokens.",
            exchanged / 2: NUMBERS,
            exchanged * n: ALL,
            exchanged
            * (heads + 2 * groups)
            / (2 * heads + 2 * groups): "The results go back, too.",
            exchanged * 4 * heads / (2 * heads + 2 * groups): "Keys and values have 8 heads alone.",
        },
        "kept": {
            n * block: "That is of all tokens: a rank keeps its own.",
            block / 2: "Keys and values, at two bytes a number.",
            block * heads / groups: "Keys and values have 8 heads alone.",
            3 * block: "While it runs, yes. For backward its own are kept.",
        },
        "slowest": {
            slowest / n: "That is one block: the last rank computes one for each rank.",
            n * slowest: "That is T²: all pairs, of all ranks.",
            slowest * (n + 1) / (2 * n): "That is the mean: the slowest is asked for.",
        },
        "gain": {
            1 / gain: "Upside down: how many times fewer?",
            2: "Nearly: a diagonal is computed whole. With c = T/2n, n·(2c)² against (2n + 1)·c².",
            n: "All ranks together do the same work in both orders.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_context,
    "Bytes, pairs and the gain, within 1 %.",
    {
        "n": ("{} ranks", (4, 16, 32)),
        "T": ("{:,} tokens", (65_536, 262_144)),
        "heads": ("{} heads", (16, 64)),
    },
)
