"""Graders of lesson 21: the tokens of one sample on many ranks."""

from __future__ import annotations

import torch

from minidist.split import bounds, uneven

from ..exam import (
    ALL,
    NUMBERS,
    Costly,
    Exam,
    Prediction,
    Wrong,
    few,
    near,
    normal,
    ranked,
    recognized,
    ring_bytes,
    same,
)
from ..oracles.long_contexts import (
    CEILED_CHUNKS,
    EVEN_CHUNKS,
    NEXT_LATE,
    attended,
    gradients,
    of_every_head,
    of_last_block,
    part_of_block,
    scores_of,
    zigzag_of,
)
from ..oracles.vocabulary import silent

BUILT = ("minidist.parallel.context", "minidist.parallel", "minicheck.oracles.long_contexts")

# ------------------------------------------------------------
# Who has which tokens.


class Zigzag(Exam):
    """`zigzag(comm, text)`: the positions, tokens and labels of this rank, int64, an early chunk and a late one. No message."""

    name = "zigzag"
    returns, given = ("places", "tokens", "labels"), ("text",)
    forbidden = BUILT
    right = "n = 1…4, T that 2n divides and not, no message; then 3 real processes."
    cases = ranked(
        lambda n, T: f"n = {n}, {T} tokens", ((4, 64), (3, 13), (2, 7), (4, 27), (1, 5), (3, 2))
    )
    processes = ranked(lambda n, T: f"{n} real processes, {T} tokens", ((3, 20),))

    def draw(self, case, rng):
        text = 100 + torch.randperm(case.given + 1, generator=rng)
        return [(text,)] * case.n

    def wants(self, case, args):
        text = args[0][0]
        places = [zigzag_of(case.given, case.n, r) for r in range(case.n)]
        return [{"places": own, "tokens": text[own], "labels": text[own + 1]} for own in places]

    def value(self, case, args, rank, name, got, want):
        T, n = case.given, case.n
        text = args[0][0]
        places = zigzag_of(T, n, rank)
        start = sum(len(zigzag_of(T, n, r)) for r in range(rank))
        looks, otherwise = {}, "They are those of chunk r and of chunk 2n − 1 − r."
        if name == "places":
            for words, slip in {
                "these are the numbers of the chunks, and a chunk has several tokens.": torch.tensor(
                    [rank, 2 * n - 1 - rank]
                ),
                "T is one less than the length of the text: its last token is only a label.": zigzag_of(
                    T + 1, n, rank
                ),
                "All chunks are T // 2n: tokens at the end belong to nobody. Use `uneven`.": zigzag_of(
                    T, n, rank, EVEN_CHUNKS
                ),
                "All chunks but the last are of ⌈T/2n⌉ tokens: cut them with `uneven`.": zigzag_of(
                    T, n, rank, CEILED_CHUNKS
                ),
            }.items():
                if not torch.equal(slip, want) and isinstance(got, torch.Tensor):
                    if torch.equal(got, slip):
                        raise Wrong(f"{self.where(rank)}{name}: {words}")
            looks = {
                "The late chunk is that of rank n − 1 − r: chunk 2n − 1 − r, counted from 0.": zigzag_of(
                    T, n, rank, NEXT_LATE
                ),
                "It is the contiguous order.": torch.arange(start, start + len(want)),
                "The late chunk stands before the early one.": want.flip(0)
                .sort()
                .values[torch.arange(len(want)).roll(-len(want) // 2)],
            }
        elif name == "labels":
            own = text[places]
            looks = {
                "Tokens were shifted after the split: what follows a chunk's last token is in another chunk, of another rank.": own.roll(
                    -1
                ),
                "They are the tokens: a label is the *next* token.": own,
                "They are the tokens before: a label is the *next* token.": text[places - 1],
            }
            otherwise = "A label is the token that follows in the text, wherever it lies."
        else:
            looks = {"These are the labels.": text[places + 1]}
            otherwise = "They are the text's at your places."
        same(got, want, f"{self.where(rank)}{name}", looks, otherwise)

    def cost(self, case, args, outcome):
        silent(outcome, "The text, n and the rank say it all.")


# ------------------------------------------------------------
# The ring.


SIZES = ((3, 4, 5, 1), (2, 3, 2, 1), (4, 2, 4, 1), (3, 5, 3, 600), (1, 6, 3, 1))


def cases_of(sizes):
    return ranked(
        lambda n, t, d, size: f"n = {n}, {t} tokens of size {d} on a rank, scores × {size}", sizes
    )


class RingForward(Exam):
    """`ring_forward(comm, q, k, v, places)`: (out, lse) of this rank's queries, of all keys not after them."""

    name = "ring_forward"
    returns, given = ("out", "lse"), ("q", "k", "v", "places")
    forbidden = (*BUILT, "minidist.collectives")
    right = (
        "n = 1…4, places in any order, scores of hundreds, nothing changed; then 3 real processes."
    )
    cases = cases_of(SIZES)
    processes = cases_of(SIZES[:1])

    def draw(self, case, rng):
        t, d, size = case.given
        order = torch.randperm(case.n * t, generator=rng).chunk(case.n)
        return [
            (size * normal(rng, t, d), normal(rng, t, d), normal(rng, t, d), places)
            for places in order
        ]

    def wants(self, case, args):
        _, keys, values, places = (torch.cat(xs) for xs in zip(*args))
        found = [attended(q, keys, values, places <= own[:, None]) for q, _, _, own in args]
        return [{"out": out, "lse": lse} for out, lse in found]

    def mistakes(self, case, args, rank, name, got):
        q, _, own_v, own = args[rank]
        n, t = case.n, len(q)
        at = self.returns.index(name)
        keys, values, places = (torch.cat(xs) for xs in list(zip(*args))[1:])
        seen = places <= own[:, None]
        blocks = [attended(q, k, v, seen.split(t, 1)[r]) for r, (_, k, v, _) in enumerate(args)]
        looks = {
            f"It is what rank {rank}'s own keys give: nothing of the other ranks is in it.": blocks[
                rank
            ][at],
            "No key is masked: a query sees those at its place and before.": attended(
                q, keys, values
            )[at],
            "Places are taken for rank·t, rank·t + 1, …, as in the contiguous order: use `places`.": attended(
                q,
                keys,
                values,
                torch.arange(n * t) <= torch.arange(rank * t, (rank + 1) * t)[:, None],
            )[at],
            "Keys are masked by the places of the queries' own rank: places travel with their keys.": attended(
                q, keys, values, own.repeat(n) <= own[:, None]
            )[at],
            "Keys come from one side and places from the other: both have to be of the same rank.": attended(
                q,
                keys,
                values,
                torch.cat([args[(2 * rank - r) % n][3] for r in range(n)]) <= own[:, None],
            )[at],
            "Scores are to be divided by √D.": attended(q * q.shape[1] ** 0.5, keys, values, seen)[
                at
            ],
        }
        rising, later = own.argsort(), own > 0
        looks["Rows are in the order of rising places: leave them in the order of `places`."] = (
            attended(q[rising], keys, values, seen[rising])[at]
        )
        looks[
            "A query sees the keys at its place and *after* it: those before it are asked for."
        ] = attended(q, keys, values, places >= own[:, None])[at]
        without = attended(q, keys, values, places < own[:, None])[at]
        if near(got[later], without[later]):
            return "A query sees the key at its own place, too."
        large = case.given[2] > 1
        nothing_left = large and name == "out" and (got == 0).all(1).any()  # divided by infinity
        if nothing_left or not got.isfinite().all():
            return (
                "exp of a large score is infinite, and −inf − (−inf) is nan: logsumexp and logaddexp subtract what is "
                "largest first, and a query that sees no key of a block has −inf there: begin with your own block, where "
                "a query sees at least the key at its own place, and subtract the lse of all blocks so far."
            )
        for lacking in range(n) if n > 1 else ():
            rest = torch.arange(n * t) // t != lacking
            looks[f"It lacks the keys of rank {lacking}. One step short?"] = attended(
                q, keys, values, seen & rest
            )[at]
        round_trip = [(rank - step) % n for step in range(n)]
        looks["What is merged must be of all keys so far: is `lse` that of the last block?"] = (
            of_last_block(
                q, [args[r][1:3] for r in round_trip], [seen.split(t, 1)[r] for r in round_trip]
            )[at]
        )
        if name == "out":
            total = sum(out for out, _ in blocks)
            looks |= {
                "Values stay here, and keys travel: each key goes with its own value.": attended(
                    q, keys, own_v.repeat(n, 1), seen
                )[0],
                "The results of blocks are added up, each with a softmax of its own: weigh them by exp(lse₁ − lse).": total,
                "It is the mean of the blocks' results: weigh them by exp(lse₁ − lse), of which the sum is 1.": total
                / n,
            }
        else:
            every = scores_of(q, keys).masked_fill(~seen, -torch.inf)
            looks |= {
                "It is Σ exp: its log is missing.": every.exp().sum(1),
                "It is the largest score: log Σ exp(score − largest) is missing.": every.amax(1),
            }
        return looks

    def cost(self, case, args, outcome):
        block = 2 * args[0][1].nbytes + args[0][3].nbytes
        few(
            outcome,
            (case.n - 1) * block,
            "Only keys, values and their places travel, each block n − 1 times, keys and values in one message.",
            2 * (case.n - 1),
        )


SLIPS = {
    "P is a block of the softmax of all keys, exp(scores − lse): here each block has a softmax of its own.": "softmax",
    "rowsum(grad ∘ out) is to be subtracted from grad·vᵀ.": "rows",
    "What is subtracted from grad·vᵀ is a sum over *all* keys, rowsum(grad ∘ out): here it is that of each block.": "rows of block",
    "Head h of the queries has the keys of head h // (a/g): here heads of keys take turns.": "turns",
    "dk and dv are sums over all a/g heads of queries that share a head of keys: it is the first one's.": "first head",
}


GROUPED = (
    (3, 4, 2, 3, 5, 1),
    (2, 2, 2, 2, 3, 1),
    (4, 6, 2, 2, 4, 1),
    (3, 3, 1, 4, 3, 2_000),
    (1, 4, 2, 3, 3, 1),
)


class RingBackward(Exam):
    """`ring_backward(comm, grad, q, k, v, out, lse)`: (dq, dk, dv), of the losses of all ranks, with shared heads of keys."""

    name = "ring_backward"
    returns = ("dq", "dk", "dv")
    given = ("grad", "q", "k", "v", "out", "lse")
    forbidden = (*BUILT, "minidist.collectives")
    right = "n = 1…4, shared heads and not, large scores, 2n − 1 messages, nothing changed; then 3 real processes."
    cases = ranked(
        lambda n, a, g, t, d, size: (
            f"n = {n}, {a} heads of queries and {g} of keys, {t} tokens of size {d} on a rank, scores × {size}"
        ),
        GROUPED,
    )
    processes = cases[:1]

    def draw(self, case, rng):
        a, g, t, d, size = case.given
        rows = [
            (normal(rng, a, t, d), normal(rng, g, t, d), normal(rng, g, t, d))
            for _ in range(case.n)
        ]
        if size > 1:  # all scores are as much larger, and their softmax is what it was
            for q, k, _ in rows:
                q[..., 0], k[..., 0] = 1, size
        keys, values = (of_every_head(torch.cat(xs, 1), rows[0][0]) for xs in list(zip(*rows))[1:])
        return [(normal(rng, a, t, d), q, k, v, *attended(q, keys, values)) for q, k, v in rows]

    def wants(self, case, args):
        grads, queries, keys, values, *_ = zip(*args)
        found = gradients(list(queries), list(keys), list(values), list(grads))
        return [dict(zip(self.returns, of_rank)) for of_rank in found]

    def mistakes(self, case, args, rank, name, got):
        if not got.isfinite().all():
            return "exp of a large score is infinite: subtract lse from the scores first, exp(scores − lse)."
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
            "The factor 1/√D is missing.": total * q.shape[-1] ** 0.5,
            "The factor 1/√D is there twice.": total * q.shape[-1] ** -0.5,
            "It is the mean over the heads that share keys: their gradients are summed.": total
            * (len(own_k) / len(q)),
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
        t = q.shape[-2]
        earlier = [
            torch.ones(t, t).tril(0 if r == rank else t * (1 if r < rank else -1)) for r in range(n)
        ]
        later = [
            torch.ones(t, t).tril(0 if r == rank else t * (1 if r > rank else -1)) for r in range(n)
        ]
        looks["Keys of later tokens are left out: here nothing is masked."] = sum(
            part_of_block(q, x[2], x[3], grad, out, lse, mask=earlier[r])[0]
            if name == "dq"
            else part_of_block(x[1], own_k, own_v, x[0], x[4], x[5], mask=later[r])[at]
            for r, x in enumerate(args)
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
    """`heads_for_tokens(comm, x, T)`: (a, T_r, D), all heads of some tokens → (a_r, T, D), all tokens of some heads."""

    name = "heads_for_tokens"
    given = ("x",)
    forbidden = BUILT
    exact = True
    right = "n = 1…4, heads and tokens that n divides and not, one all-to-all's bytes; then 3 real processes."
    sizes = ((3, 5, 13, 2), (2, 3, 6, 5), (4, 8, 9, 3), (4, 3, 8, 2), (3, 3, 15, 1), (1, 2, 3, 2))
    cases = ranked(lambda n, a, T, d: f"n = {n}, {a} heads, {T} tokens of size {d} in all", sizes)
    processes = cases[:1]

    def draw(self, case, rng):
        a, T, d = case.given
        return [(normal(rng, a, t, d), T) for t in uneven(T, case.n)]

    def wants(self, case, args):
        whole = torch.cat([x for x, _ in args], 1)
        parts = whole.split(uneven(case.given[0], case.n))
        return [{"the result": part.contiguous()} for part in parts]

    def mistakes(self, case, args, rank, name, got):
        n, (a, T, _) = case.n, case.given
        heads, tokens = uneven(a, n), uneven(T, n)
        want = self.wants(case, args)[rank]["the result"]
        own = [x.split(heads)[rank] for x, _ in args]
        came = torch.cat([part.reshape(-1) for part in own])  # as it comes
        by_tokens = []  # what each rank sends where tokens come before heads in its flat tensor
        for (x, _), t in zip(args, tokens):
            flat = x.transpose(0, 1).reshape(-1)
            part = flat.split([h * t * x.shape[2] for h in heads])[rank]
            by_tokens.append(part.reshape(heads[rank], t, x.shape[2]))
        return recognized(
            got,
            {
                "What came was viewed as (a_r, T, D): that mixes heads and tokens. Join the ranks' parts along the tokens.": (
                    came.reshape(want.shape)
                ),
                "In the flat tensor tokens come before heads: what goes to a rank are all tokens of *its heads*.": (
                    torch.cat(by_tokens, 1)
                ),
                "Tokens of the ranks take turns: all of rank 0 come first.": want[
                    :, taking_turns(tokens)
                ],
                "Heads are dealt out in turn: rank r has neighbours, as `uneven` cuts them.": torch.cat(
                    [x for x, _ in args], 1
                )[rank::n],
                "Ranks come in reverse.": torch.cat(own[::-1], 1),
                "All tokens are of other heads: of the next rank's.": self.wants(case, args)[
                    (rank + 1) % n
                ]["the result"],
            },
        )

    def cost(self, case, args, outcome):
        heads = uneven(case.given[0], case.n)
        for r, (x, _) in enumerate(args):
            sent = x.nbytes - x[: heads[r]].nbytes
            if outcome.nbytes(r) > sent:
                raise Costly(
                    f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and {sent} are enough. A rank keeps "
                    "its own heads of its own tokens, and sends each number of the others once."
                )


def taking_turns(tokens):
    """Positions in the order: the first token of each rank, then the second of each."""
    starts = [first for first, _ in bounds(tokens)]
    order = []
    for i in range(max(tokens)):
        order += [start + i for start, t in zip(starts, tokens) if i < t]
    return order


class MeanLoss(Exam):
    """`mean_loss(comm, losses, counted)`: (the mean of all that count, this rank's share of them). Two numbers travel."""

    name = "mean_loss"
    returns = ("loss", "factor")
    given = ("losses", "counted")
    replicated = ("loss",)
    forbidden = BUILT
    right = "n = 1…4, ranks with many and with no tokens that count, what does not count is nan, one all-reduce; then 3 real processes."
    sizes = ((3, 8, 0), (2, 5, 1), (4, 6, 2), (1, 4, 3))
    cases = ranked(lambda n, t, _: f"n = {n}, {t} tokens on a rank", sizes)
    processes = cases[:1]

    def draw(self, case, rng):
        t = case.given[0]
        rows = []
        for rank in range(case.n):
            losses = normal(rng, t).abs() + 1
            counted = torch.randperm(t, generator=rng) < (0 if rank == 1 else t - 2 * rank)
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
                "It is upside down: how many count here, divided by how many count everywhere.": got.new_tensor(
                    total / max(1, numbers[rank])
                ),
                "It is n times too large: ranks are summed, and not averaged.": got.new_tensor(
                    n * numbers[rank] / total
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
    slowest rank computes in the contiguous order.  balanced: those of each rank in the zigzag order.  tokens: of a rank,
    from which on backward's messages hide, at 400 TFLOP/s and 25 GB/s.
    """
    groups, size = 8, 128
    block = 2 * groups * T // n * size * 2
    exchanged = (n - 1) / n * (2 * heads + 2 * groups) * T / n * size * 2
    slowest = n * (T // n) ** 2
    balanced = (2 * n + 1) * (T // (2 * n)) ** 2
    forward = groups / heads * 2 * 400e12 / 25e9  # tokens from which on forward's messages hide
    tokens = forward * 3 / 2.5
    values = {
        "ring": (n - 1) * block,
        "heads": exchanged,
        "kept": block,
        "slowest": slowest,
        "balanced": balanced,
        "tokens": tokens,
    }
    slips = {
        "ring": {
            n * block: "A rank has its own block already: n − 1 messages.",
            (n - 1) * block / 2: "Keys and values travel, or two bytes a number: that is one half.",
            (n - 1) * block * 4: "With backward, yes: forward alone is asked for.",
            (n - 1)
            * block
            * heads
            / groups: "Keys and values have 8 heads alone, and forward alone is asked for.",
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
            exchanged
            * (2 * heads + groups)
            / (2 * heads + 2 * groups): "Keys go there, and values.",
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
            slowest
            * (n - 0.5)
            / n: "So it is where a diagonal counts half: this kernel computes the block on it whole.",
            n * slowest: "That is T²: all pairs, of all ranks.",
            slowest * (n + 1) / (2 * n): "That is the mean: the slowest is asked for.",
            slowest / 2: "That is the mean: the slowest is asked for.",
            slowest * heads: "One head is asked for.",
        },
        "balanced": {
            balanced
            * 2
            * n
            / (
                2 * n + 1
            ): "So it is where a diagonal counts half: in the first step this kernel computes three blocks.",
            balanced * 4: "A chunk has T/2n tokens: each rank has two.",
            balanced * n: ALL,
            balanced * heads: "One head is asked for.",
            slowest: "That is the contiguous order's.",
            3 * n * balanced / (2 * n + 1): "Three blocks are computed in the first step alone.",
        },
        "tokens": {
            forward: "That is forward: in backward five products are computed, and sums travel, too.",
            forward * 3: "Five products are computed in backward, where forward has two.",
            forward / 2.5: "The sums of gradients travel, too, with four bytes a number.",
            forward
            * 2
            / 2.5: "A block comes with two bytes a number, and the sum behind it with four: three blocks' bytes.",
            tokens / 2: "In zigzag order two of four pairs of chunks are computed in a step.",
            tokens * heads / groups: "Keys and values have 8 heads alone.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_context,
    "Bytes, pairs and tokens, within 1 %.",
    {
        "n": ("{} ranks", (4, 16, 32)),
        "T": ("{:,} tokens", (65_536, 262_144)),
        "heads": ("{} heads", (16, 64)),
    },
)
