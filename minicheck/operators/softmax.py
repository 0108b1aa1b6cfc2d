"""The exercises of lesson 09 about softmax in parts: its two numbers, and attention in tiles."""

from __future__ import annotations

import math

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .judge import FORBIDDEN, close, kept, told
from .seen import Seen

OTHERWISE = "Check the rule on two parts of three numbers, on paper."


class Normalizer(Exam):
    name = "normalizer"
    right = (
        "rows of 1 to 24 parts, the largest number anywhere, parts of −inf: m and s in one reading."
    )
    forbidden = FORBIDDEN
    cases = (
        Case(1, "the largest number first", (3, [4, 4, 4], 0, torch.float64)),
        Case(1, "the largest number last", (3, [4, 4, 4], 2, torch.float64)),
        Case(1, "one part, below 0", (2, [5], 0, torch.float64)),
        Case(
            1,
            "24 uneven parts, large numbers",
            (5, [3, 1, 4, 1, 5, 9, 2, 6] * 3, 14, torch.float64),
        ),
        Case(1, "float32", (4, [6, 6, 3], 1, torch.float32)),
        Case(1, "a part of −inf in the middle", (4, [3, 3, 3], 2, torch.float64)),
        Case(1, "a part of −inf first", (4, [3, 3, 3], 1, torch.float64)),
    )

    def draw(self, case, rng):
        rows, sizes, top, dtype = case.given
        scale = 300 if "large numbers" in case.what else 1
        parts = [
            scale * torch.randn(rows, size, generator=rng, dtype=torch.float64).to(dtype)
            for size in sizes
        ]
        if top or len(sizes) > 1:
            parts[top][:, 0] += 3 * scale
        if "below" in case.what:
            parts[0] -= 20
        if "−inf" in case.what:
            parts[0 if "first" in case.what else 1][: rows // 2] = -math.inf
        return [(parts,)]

    def run(self, comm: Comm, yours, parts):
        seen = Seen(parts)
        pair = seen.ask(yours, list(seen.given))
        m, s = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (pair, None)
        return seen.plain({"m": m, "s": s, "parts": seen.given}) | {
            "largest": seen.largest,
            "peak": seen.peak,
            "readings": seen.readings,
            "left": seen.left,
            "may_leave": seen.may_leave,
        }

    def judge(self, case, args, outcome):
        (parts,), got = args[0], outcome.results[0]
        for i, (after, before) in enumerate(zip(got["parts"], parts, strict=True)):
            kept(after, before, f"parts[{i}]")
        m, s = oracle.normalizer(parts)
        looks = {
            "That is the last part's.": parts[-1].amax(1),
            "That is the first part's.": parts[0].amax(1),
            "That is log Σ exp(x).": m + s.log(),
        }
        close(got["m"], m, "m", looks, "It is the largest number of each row.")
        close(got["s"], s, "s", oracle.sums(parts), OTHERWISE)
        told(got, "s")
        self._one_by_one(parts, got)

    def _one_by_one(self, parts, got):
        most = max(part.nbytes for part in parts)
        if len(parts) > 3 and got["largest"] > 1.5 * most:
            raise Wrong(
                f"the numbers are right, but a tensor of {got['largest']} bytes is made, and the largest part "
                f"has {most}: look at one part at a time."
            )
        if len(parts) > 3 and got["peak"] > 6 * most:
            raise Wrong(
                f"the numbers are right, but {got['peak']} bytes are alive at once, and the largest part has "
                f"{most}: look at one part at a time, and keep m and s alone."
            )
        twice = [i for at, i in enumerate(got["readings"]) if i in got["readings"][:at]]
        if twice:
            raise Wrong(
                f"the numbers are right, but parts[{twice[0]}] is read again after others: m and s are to be "
                "taken together, in one reading."
            )


class Attention(Exam):
    name = "attention"
    right = "queries, keys and tiles of 6 sizes, large scores, float32: exact, and nothing larger than q is made."
    forbidden = FORBIDDEN
    step = 10.0
    sizes = ((7, 7, 2, 3), (6, 9, 3, 4), (5, 5, 4, 64), (9, 13, 3, 1), (136, 130, 8, 16))
    cases = (
        *(
            Case(1, f"T = {T}, K = {K}, tile = {tile}", (T, K, d, tile, 1.0, torch.float64))
            for T, K, d, tile in sizes
        ),
        Case(1, "scores of some thousand", (20, 24, 4, 5, 40.0, torch.float64)),
        Case(1, "float32", (20, 24, 4, 5, 2.0, torch.float32)),
    )

    def draw(self, case, rng):
        T, K, d, _, scale, dtype = case.given
        drawn = [
            torch.randn(rows, d, generator=rng, dtype=torch.float64).to(dtype) for rows in (T, K, K)
        ]
        drawn[1][-1] += drawn[0].mean(0)
        return [(drawn[0] * scale * 1.5, drawn[1] * scale, drawn[2], case.given[3])]

    def run(self, comm: Comm, yours, q, k, v, tile):
        seen = Seen([x.clone() for x in (q, k, v)])
        out = seen.ask(yours, *seen.given, tile)
        names = sorted(name for name in seen.names if "attention" in name)
        # not keys, nor values
        rows = [shape for shape in seen.shapes if len(k) in shape and q.shape[1] not in shape]
        found = seen.plain({"out": out, "given": seen.given}) | {
            "names": names,
            "rows": max(rows, default=None),
        }
        return found | {
            key: getattr(seen, key)
            for key in ("flops", "edge", "largest", "peak", "left", "may_leave")
        }

    def judge(self, case, args, outcome):
        (q, k, v, tile), got = args[0], outcome.results[0]
        for after, before, name in zip(got["given"], (q, k, v), "qkv", strict=True):
            kept(after, before, name)
        close(
            got["out"],
            oracle.attention(q, k, v),
            "the result",
            oracle.attention_looks(q, k, v, tile),
            "Compare with the naive way on two tiles of one query.",
        )
        told(got, "the result")
        if got["names"]:
            raise Wrong(f"{got['names'][0]} is PyTorch's own: the exercise is about building it.")
        if len(q) > 100:
            self._memory(q, k, tile, got)

    def _memory(self, q, k, tile, got):
        most, whole = max(q.nbytes, k.nbytes), len(q) * len(k) * q.itemsize
        if got["largest"] > most:
            raise Wrong(
                f"the numbers are right, but a tensor of {got['largest']:,} bytes is made, and q has {most:,}: "
                f"a tile of scores has {tile * tile * q.itemsize:,}, all scores {whole:,}."
            )
        if got["edge"] > max(tile, q.shape[1]) or got["rows"]:
            made = (
                f"scores {got['rows']} are made"
                if got["rows"]
                else f"a product has an extent of {got['edge']}"
            )
            raise Wrong(
                f"the numbers are right, but {made}, and a tile has ({tile}, {tile}): take {tile} queries and "
                f"{tile} keys at a time."
            )
        if got["peak"] > 8 * most:
            raise Wrong(
                f"the numbers are right, but {got['peak']:,} bytes are alive at once, and {8 * most:,} are "
                "plenty: are tiles of scores kept?"
            )
        want = 4 * len(q) * len(k) * q.shape[1]
        if not 0.99 * want <= got["flops"] <= 1.01 * want:
            raise Wrong(
                f"the numbers are right, but the meter saw {got['flops']:,} FLOPs of products, and {want:,} "
                "are needed: two products a tile, each once."
            )


def normalizer(yours) -> None:
    """`normalizer(parts)`: (m, s) of each row, whose parts come one after the other."""
    ask(Normalizer(), yours)


def attention(yours) -> None:
    """`attention(q, k, v, tile)`: softmax(qkᵀ/√d)v, in tiles."""
    ask(Attention(), yours)
