"""The exercises of lesson 12, Vocabulary parallel, about rows: the look-up, its gradient, the projection's backward.

Numbers are whole, of both signs, with so many digits that every sum is exact, but not in a shorter dtype. The last
tokens, the first and the repeated ones are always there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import same, unchanged, who
from ..data_parallel.averages import near, ring_bytes
from ..exam import Case, ask
from .oracle import VocabularyExam, cut, drawn_tokens, few_bytes, silent

F32, F64 = torch.float32, torch.float64
WIDE = "Do whole rows travel, or more than one all-reduce?"


def drawn(shape, dtype: torch.dtype, rng: torch.Generator, share: float = 1.0) -> Tensor:
    """Random whole numbers. share: of the digits, where they are multiplied."""
    most = 2 ** int(share * (40 if dtype == torch.float64 else 20))
    return torch.randint(-most, most, tuple(shape), generator=rng).to(dtype)


def looks_like(got: Tensor, looks: dict[str, Tensor], want: Tensor) -> str | None:
    """The first sentence whose tensor `got` is, but for rounding."""
    rounded = "It is right but for rounding: was it of another dtype on its way?"
    return next(
        (text for text, x in looks.items() if near(got, x)),
        rounded if near(got.float(), want.float()) else None,
    )


class LookUp(VocabularyExam):
    name = "look_up"
    right = "n = 1…4, uneven parts, repeated tokens, two dtypes, one all-reduce's bytes; then 3 real processes."
    given = (
        (3, 40, (5,), F64),
        (2, 41, (2, 3), F32),
        (4, 42, (2, 1, 3), F64),
        (3, 39, (2, 4), F64),
        (1, 5, (4,), F32),
    )
    cases = tuple(
        Case(n, f"n = {n}, {v} rows, tokens {s}", (v, s, dtype)) for n, v, s, dtype in given
    )
    processes = (Case(3, "3 real processes", (40, (5,), F64)),)

    def draw(self, case, rng):
        vocab, shape, dtype = case.given
        rows = cut(drawn((vocab, case.n + 1), dtype, rng), case.n)
        tokens = drawn_tokens(vocab, case.n, shape, rng)
        return [(rows[r], tokens, vocab) for r in range(case.n)]

    def run(self, comm: Comm, yours, rows, tokens, vocab):
        return {"y": yours(comm, rows, tokens, vocab), "rows": rows, "tokens": tokens}

    def judge(self, case, args, outcome):
        parts, tokens = [a[0] for a in args], args[0][1]
        want = torch.cat(parts)[tokens]
        own = [self._own(parts, tokens, r) for r in range(case.n)]
        for r, got in enumerate(outcome.results):
            unchanged(r, got["rows"], parts[r], "rows")
            unchanged(r, got["tokens"], tokens, "tokens")
            looks = self._looks(parts, tokens, r)
            same(
                r,
                got["y"],
                want,
                "the result",
                lambda y, r=r, looks=looks: looks_like(y, looks, want) or who(y, own, r),
            )
        few_bytes(outcome, case.n, ring_bytes([want], case.n), WIDE)

    def _own(
        self,
        parts: list[Tensor],
        tokens: Tensor,
        rank: int,
        mask: bool = True,
        low: int = 0,
        high: int = 0,
    ) -> Tensor:
        """What a rank adds. low, high: move the borders of what it takes for its own."""
        first = sum(len(p) for p in parts[:rank])
        local = tokens - first
        here = (local >= low) & (local < len(parts[rank]) + high)
        rows = parts[rank][local.clamp(0, len(parts[rank]) - 1)]
        return rows * here[..., None] if mask else rows

    def _looks(self, parts: list[Tensor], tokens: Tensor, rank: int) -> dict[str, Tensor]:
        n, everyone = len(parts), range(len(parts))
        wrapped = [p[tokens % len(p)] for p in parts]
        masked = [self._own(parts, tokens, r) for r in everyone]
        text = "Tokens of other ranks got a row, too: they must add zeros. "
        firsts = [sum(len(p) for p in parts[:r]) for r in everyone]
        negative = [p[(tokens - f) % len(p)] for p, f in zip(parts, firsts, strict=True)]
        zeroth = [
            m + p[0] * (m == 0).all(-1, keepdim=True) for m, p in zip(masked, parts, strict=True)
        ]
        looks = {
            f"It is rank {rank}'s own, zeros for all other tokens: nothing was added up.": masked[
                rank
            ],
            f"{text}(Each took row token mod its number of rows.)": sum(wrapped),
            f"{text}(Each took row token − first, modulo.)": sum(negative),
            f"{text}(Each took its nearest row.)": sum(
                self._own(parts, tokens, r, False) for r in everyone
            ),
            f"{text}(Each took its row 0.)": sum(zeroth),
            "It is the mean over the ranks: one has the row, the others add zeros, so the sum is the row.": sum(
                masked
            )
            / n,
        }
        for low, high in ((0, 1), (1, 0), (1, 1), (-1, 0)):
            looks[
                "A word at a border is taken by two ranks, or by none: `first` is the first own word, `end` the "
                f"first one of the next rank. ({low}, {high})"
            ] = sum(self._own(parts, tokens, r, True, low, high) for r in everyone)
        nearest = torch.stack([self._own(parts, tokens, r, False) for r in everyone])
        looks[f"{text}And the sum is asked for, not the largest."] = nearest.amax(0)
        looks[
            "The sum is asked for, not the largest: zeros are larger than numbers below zero."
        ] = torch.stack(masked).amax(0)
        total = torch.cat(parts)
        size = len(total) // n
        floors = [tokens - r * size for r in everyone]
        looks[
            "The parts are those of `uneven`: the first ones have a word more where n does not divide V."
        ] = sum(
            p[f.clamp(0, size - 1)] * ((f >= 0) & (f < size))[..., None]
            for p, f in zip(parts, floors, strict=True)
        )
        looks[f"It is {n} times the row: is it added up twice?"] = n * total[tokens]
        for step, words in ((-1, "before"), (1, "after")):
            looks[f"It is the row {words} the right one."] = total[(tokens + step) % len(total)]
        return looks


class LookUpGradient(VocabularyExam):
    name = "look_up_gradient"
    right = (
        "n = 1…4, uneven parts, tokens that repeat, two dtypes, no message; then 3 real processes."
    )
    given = (
        (3, 11, (7,), F64),
        (2, 9, (2, 4), F32),
        (4, 14, (2, 3, 2), F64),
        (3, 13, (5,), F64),
        (1, 4, (6,), F32),
    )
    cases = tuple(
        Case(n, f"n = {n}, {v} rows, tokens {s}", (v, s, dtype)) for n, v, s, dtype in given
    )
    processes = (Case(3, "3 real processes", (11, (7,), F64)),)

    def draw(self, case, rng):
        vocab, shape, dtype = case.given
        tokens = drawn_tokens(vocab, case.n, shape, rng)
        return [(drawn((*shape, case.n + 1), dtype, rng), tokens, vocab)] * case.n

    def run(self, comm: Comm, yours, grad, tokens, vocab):
        return {"rows": yours(comm, grad, tokens, vocab), "grad": grad, "tokens": tokens}

    def judge(self, case, args, outcome):
        grad, tokens, vocab = args[0]
        flat, at = grad.flatten(0, -2), tokens.reshape(-1)
        zeros = grad.new_zeros(vocab, flat.shape[1])
        parts = cut(zeros.index_add(0, at, flat), case.n)
        once = cut(zeros.index_put((at,), flat), case.n)
        for r, got in enumerate(outcome.results):
            looks = {
                "A token that occurs twice adds twice: = keeps the last gradient, and += with a list of indices "
                "too. Use index_add_.": once[r],
                f"It is {case.n} times too large: every rank has the whole gradient, so nothing is to be summed "
                "over ranks.": case.n * parts[r],
                "It is divided by the number of ranks: nothing is to be averaged.": parts[r]
                / case.n,
                "It is zero.": torch.zeros_like(parts[r]),
                **self._astray(grad, tokens, len(parts[r]), case, r),
            }
            unchanged(r, got["grad"], grad, "grad")
            unchanged(r, got["tokens"], tokens, "tokens")
            same(
                r,
                got["rows"],
                parts[r],
                "the gradient",
                lambda y, r=r, looks=looks: looks_like(y, looks, parts[r]),
            )
        silent(outcome, "every rank has the gradients of all tokens already.")

    def _astray(
        self, grad: Tensor, tokens: Tensor, size: int, case: Case, rank: int
    ) -> dict[str, Tensor]:
        """Gradients that went to rows which are not theirs."""
        at, flat = tokens.reshape(-1), grad.flatten(0, -2)
        parts = cut(torch.arange(case.given[0]), case.n)
        local, zeros = at - parts[rank][0], grad.new_zeros(size, flat.shape[1])
        here = (local >= 0) & (local < size)
        text = "Gradients of other ranks' tokens are in it: leave them out. "
        return {
            f"{text}(They went to row 0.)": zeros.index_add(0, local * here, flat),
            f"{text}(They went to the nearest row.)": zeros.index_add(
                0, local.clamp(0, size - 1), flat
            ),
            f"{text}(They went to row token − first, modulo.)": zeros.index_add(
                0, local % size, flat
            ),
            f"{text}(They went to row token mod {size}.)": zeros.index_add(0, at % size, flat),
        }


class ProjectBackward(VocabularyExam):
    name = "project_backward"
    right = "n = 1…4, uneven and even parts, two dtypes, dx whole, one all-reduce's bytes; then 3 real processes."
    given = ((3, 39, 4, F64), (2, 21, 5, F32), (4, 42, 3, F64), (1, 6, 2, F32))
    cases = tuple(
        Case(n, f"n = {n}, {v} rows, {t} tokens", (v, t, dtype)) for n, v, t, dtype in given
    )
    processes = (Case(3, "3 real processes", (40, 4, F64)),)

    def draw(self, case, rng):
        vocab, tokens, dtype = case.given
        hidden = case.n + 1
        dlogits, x, rows = (
            drawn(shape, dtype, rng, 0.4)
            for shape in ((tokens, vocab), (tokens, hidden), (vocab, hidden))
        )
        return [(d, x, w) for d, w in zip(cut(dlogits, case.n, 1), cut(rows, case.n), strict=True)]

    def run(self, comm: Comm, yours, dlogits, x, rows):
        pair = yours(comm, dlogits, x, rows)
        dx, drows = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (pair, None)
        return {"dx": dx, "drows": drows, "given": [dlogits, x, rows]}

    def judge(self, case, args, outcome):
        n, partial = case.n, [d @ w for d, x, w in args]
        for r, got in enumerate(outcome.results):
            dlogits, x, _ = args[r]
            for after, before, name in zip(
                got["given"], args[r], ("dlogits", "x", "rows"), strict=True
            ):
                unchanged(r, after, before, name)
            same(
                r,
                got["dx"],
                sum(partial),
                "dx",
                lambda y, r=r: looks_like(y, {}, sum(partial)) or who(y, partial, r),
            )
            right = dlogits.T @ x
            mixed = (
                sum(d.T @ x for d, *_ in args)
                if n > 1 and self._even(args)
                else torch.zeros_like(right)
            )
            looks = {
                f"It is {n} times too large: a rank's rows have all their gradient here, nothing is to be added.": n
                * right,
                "It is divided by the number of ranks: nothing is to be averaged.": right / n,
                "It is a sum over ranks: but their rows are different words'. A rank's rows have all their "
                "gradient here.": mixed,
            }
            same(
                r,
                got["drows"],
                right,
                "drows",
                lambda y, looks=looks, right=right: looks_like(y, looks, right),
            )
        few_bytes(outcome, n, ring_bytes([partial[0]], n), WIDE)

    def _even(self, args) -> bool:
        return len({len(rows) for *_, rows in args}) == 1


def look_up(yours) -> None:
    """`look_up(comm, rows, tokens, vocab)`: the rows of the tokens, (…, H), on every rank. One all-reduce."""
    ask(LookUp(), yours)


def look_up_gradient(yours) -> None:
    """`look_up_gradient(comm, grad, tokens, vocab)`: the gradient of this rank's rows, (V_r, H). No message."""
    ask(LookUpGradient(), yours)


def project_backward(yours) -> None:
    """`project_backward(comm, dlogits, x, rows)`: (dx, drows) of logits = x · rowsᵀ. One all-reduce, of dx."""
    ask(ProjectBackward(), yours)
