"""The right numbers of lesson 12's exercises, and those of mistakes. Emptied in the process of an answer.

Attention as Dao et al. 2022; the two numbers of a softmax as Milakov and Gimelshein 2018; time as Williams et al. 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu

Looks = dict[str, Tensor]


Kernel = tuple[int, int, bool]


def clock_of_cpu(launched: float, began: float, ended: float, asked: bool) -> float:
    """When the CPU goes on after a kernel, which it has launched and the device has begun and ended at these times."""
    return ended if asked else launched


def run_ahead(
    kernels: list[Kernel],
    device: dict[str, float],
    work: Callable[[float, float], float] = max,
    clock: Callable[[float, float, float, bool], float] = clock_of_cpu,
) -> tuple[float, list[str]]:
    """The end of the last kernel, and what each waited for. work: of its two times.  clock: of the CPU, afterwards."""
    launched = ended = 0.0
    words = []
    for nbytes, flops, asked in kernels:
        launched += device["launch"]
        memory, compute = nbytes / device["bandwidth"], flops / device["peak"]
        busy = "memory" if memory > compute else "compute"
        words.append("launch" if launched > ended else busy)
        began = max(launched, ended)
        ended = began + work(memory, compute)
        launched = clock(launched, began, ended, asked)
    return ended, words


def run_ahead_slips(kernels: list[Kernel], device: dict[str, float]) -> dict[str, float]:
    launch = device["launch"]
    busy = sum(max(b / device["bandwidth"], f / device["peak"]) for b, f, _ in kernels)
    return {
        "That is with each launch on top, as in the lesson: the CPU waits only where it asks.": run_ahead(
            kernels, device, clock=lambda launched, began, ended, asked: ended
        )[0],
        "Where a kernel's number is asked for, the CPU waits for its end.": run_ahead(
            kernels, device, clock=lambda launched, began, ended, asked: launched
        )[0],
        "After a kernel that is asked for, the CPU goes on when the device has ended it: set one clock to the "
        "other. It is not the kernel's own time that is added.": run_ahead(
            kernels,
            device,
            clock=lambda launched, began, ended, asked: launched + (ended - began) * asked,
        )[0],
        "The CPU waits here until a kernel has begun before it launches the next: it need not.": run_ahead(
            kernels,
            device,
            clock=lambda launched, began, ended, asked: ended if asked else began,
        )[0],
        "Bytes and FLOPs go on at the same time: the longer of the two counts.": run_ahead(
            kernels, device, work=lambda memory, compute: memory + compute
        )[0],
        "The launches are missing: the first, at least, is not hidden.": busy,
        "Only one launch is counted: the device waits also for each later one that is not in time.": launch
        + busy,
        "Those are the launches: when has the last kernel ended?": launch * len(kernels),
        "It is more than the larger of all launches and all work: no kernel begins before its launch.": max(
            launch * len(kernels), busy
        ),
    }


def slope(z: Tensor) -> Tensor:
    """Of GELU."""
    return (1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density(z)


def density(z: Tensor) -> Tensor:
    """Of the normal distribution."""
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def geglu(h: Tensor, b: Tensor) -> Tensor:
    gate, value = (h + b).chunk(2, -1)
    return gelu(gate) * value


def geglu_looks(h: Tensor, b: Tensor) -> Looks:
    gate, value = (h + b).chunk(2, -1)
    return {
        "That is without the bias.": geglu(h, 0 * b),
        "The second half lacks its bias.": gelu(gate) * h.chunk(2, -1)[1],
        "That is the tanh approximation: erf is asked for.": gelu(gate, approximate="tanh") * value,
        "GELU is that of the first half: the second half is the value.": gate * gelu(value),
        "That is the product of the halves: where is GELU?": gate * value,
        "That is GELU of the first half: times the second half.": gelu(gate),
        "That is Φ of the first half, times the second: GELU is z · Φ(z).": gelu(gate)
        / gate
        * value,
    }


def dh(dy: Tensor, h: Tensor, b: Tensor) -> Tensor:
    gate, value = (h + b).chunk(2, -1)
    return torch.cat([dy * value * slope(gate), dy * gelu(gate)], -1)


def dh_looks(dy: Tensor, h: Tensor, b: Tensor) -> Looks:
    gate, value = (h + b).chunk(2, -1)
    phi = (1 + torch.erf(gate * math.sqrt(0.5))) / 2
    both = lambda first, second=None: torch.cat(
        [dy * first, dy * (gelu(gate) if second is None else second)], -1
    )
    return {
        "The slope's second part is missing in the first half: z·φ(z), from the slope of Φ.": both(
            value * phi
        ),
        "The slope's first part is missing in the first half: Φ(z).": both(
            value * gate * density(gate)
        ),
        "Backward saw h without the bias: form z = h + b again.": dh(dy, h, 0 * b),
        "φ lacks its 1/√(2π).": both(value * (phi + gate * torch.exp(-gate * gate / 2))),
        "φ is exp(−z²/2)/√(2π): the minus is missing.": both(
            value * (phi + gate * torch.exp(gate * gate / 2) / math.sqrt(2 * math.pi))
        ),
        "In the first half, dy and the second half multiply both parts of the slope, Φ(z) and z·φ(z).": torch.cat(
            [dy * value * phi + gate * density(gate), dy * gelu(gate)], -1
        ),
        "The first half is GELU, not its slope.": both(value * gelu(gate)),
        "The first half's gradient lacks the second half.": both(slope(gate)),
        "The second half's gradient is GELU of the first half, not its slope.": both(
            value * slope(gate), slope(gate)
        ),
        "The second half's gradient lacks GELU of the first.": both(
            value * slope(gate), 1.0 + 0 * gate
        ),
        "The second half's gradient is dy · GELU of the first half, z · Φ(z): z is missing.": both(
            value * slope(gate), phi
        ),
        "The first half's gradient lacks dy.": torch.cat(
            [value * slope(gate), dy * gelu(gate)], -1
        ),
        "The two halves are exchanged.": dh(dy, h, b).roll(gate.shape[-1], -1),
    }


def entropy(parts: list[Tensor]) -> Tensor:
    return torch.special.entr(torch.cat(parts, 1).softmax(1)).sum(1)


def entropies(parts: list[Tensor]) -> Looks:
    """What a wrong entropy may be."""
    whole, right = torch.cat(parts, 1), entropy(parts)
    low = torch.finfo(whole.dtype).min
    m = torch.full_like(right, low)
    s, t, kept_s, both_t, lagging, away, bare = torch.zeros(7, len(m), dtype=m.dtype)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        less, x = (m - peak).exp(), part - peak[:, None]
        p = x.exp()
        px = torch.special.entr(p).sum(1).neg()
        lagging = lagging + s * (m - peak) * less + px  # t moved, but not rescaled
        move = (m - peak).masked_fill(s == 0, 0)  # m starts below every number
        away = (away - s * move) * less + px
        bare = (bare + move) * less + px
        s, t = s * less + p.sum(1), t * less + px
        kept_s, both_t = kept_s + p.sum(1), both_t + px
        m = peak
    own = [entropy([part.clamp(min=low)]) for part in parts]
    return {
        "t is rescaled like s: but x − m in it changes, too, by old m − new m in each of its terms.": s.log()
        - t / s,
        "Nothing is rescaled when a larger number comes.": kept_s.log() - both_t / kept_s,
        "The sum s is not rescaled when a larger number comes.": kept_s.log()
        + (right - s.log()) * s / kept_s,
        "The sum t is not rescaled when a larger number comes.": s.log() - lagging / s,
        "t is moved by new m − old m: it should be old m − new m, which is negative.": s.log()
        - away / s,
        "t is moved once: each term of the old sum moves, so it is s · (old m − new m).": s.log()
        - bare / s,
        "That is log s: and t/s?": s.log(),
        "That is log Σ exp(x).": whole.logsumexp(1),
        "The sign of t/s: log s − t/s.": 2 * s.log() - right,
        "It is in bits: take the natural logarithm.": right / math.log(2),
        "It is minus the entropy.": -right,
        "Those are the entropies of the parts, added up.": sum(own),
        "That is the last part's alone.": own[-1],
    }


def seen_by(T: int, K: int, shift: int = 0) -> Tensor:
    """Which of K keys each of the last T tokens sees."""
    return torch.ones(T, K, dtype=torch.bool).tril(K - T + shift)


def causal_flops(T: int, K: int, d: int, tile: int) -> tuple[int, int]:
    """Of two products: of the scores that are seen alone, and of all tiles that hold one."""
    most = 0
    for first in range(0, T, tile):
        rows = min(tile, T - first)
        seen = min(K, -(-(first + rows + K - T) // tile) * tile)
        most += rows * seen
    return 4 * d * int(seen_by(T, K).sum()), 4 * d * most


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen_by(len(q), len(k)), -math.inf)


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def log_looks(q: Tensor, k: Tensor) -> Looks:
    scores = scores_of(q, k)
    m, both = scores.amax(-1), scores.logsumexp(-1)
    return {
        "That is m alone: plus log s.": m,
        "That is log s alone: plus m.": both - m,
        "That is m + s: plus log s.": m + (both - m).exp(),
        "That is s.": (both - m).exp(),
        "It is that of all keys: those that are later than the query do not count.": (
            q @ k.mT * q.shape[-1] ** -0.5
        ).logsumexp(-1),
    }


def attention_looks(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Looks:
    open_, scores = q @ k.mT * q.shape[-1] ** -0.5, scores_of(q, k)
    T, K = scores.shape
    whole = K // tile * tile
    own = [
        some.softmax(-1).nan_to_num() @ part
        for some, part in zip(scores.split(tile, 1), v.split(tile))
    ]
    peak = scores.cummax(1).values[:, [min(j + tile, K) - 1 for j in range(0, K, tile)]]
    late = torch.cat([s - peak[:, [j]] for j, s in enumerate(scores.split(tile, 1))], 1).exp()
    last = peak[:, -1:]
    fixed = (scores - last).exp()
    first = (torch.arange(T) // tile * tile + K - T)[:, None]  # token of the tile's first query
    start = torch.arange(K) // tile * tile
    reached = start < first + tile
    place = torch.arange(T)[:, None]
    latest = (
        (place // tile * tile + tile).clamp(max=T) - 1 + K - T
    )  # token of the tile's last query
    masked = lambda mask, x=open_: x.masked_fill(~mask, -math.inf).softmax(-1) @ v
    pad = -K % tile
    return {
        "Keys that are later than the query count: it sees its own token and earlier ones.": open_.softmax(
            -1
        )
        @ v,
        "Query i sees keys 0 to i: but the queries are the last of the tokens, query i is token i + K − T.": masked(
            seen_by(T, K, T - K)
        ),
        "A query does not see its own token.": masked(seen_by(T, K, -1)),
        "A query sees the next token.": masked(seen_by(T, K, 1) & reached),
        "Later keys have the score 0, and should have −inf.": masked(
            reached, open_.where(seen_by(T, K), 0)
        ),
        "A tile on the diagonal is seen whole: mask in it what is later.": masked(reached),
        "Tiles are masked where both have the same number: where K > T, the diagonal runs through others.": masked(
            reached & ((place // tile != start // tile) | (torch.arange(K) - start <= place % tile))
        ),
        "Later keys still have a weight: with scores so far below 0, only −inf masks them.": masked(
            reached, open_.where(seen_by(T, K), -1e4)
        ),
        "That is the last tile's softmax alone: the largest score so far is not carried on.": masked(
            seen_by(T, K) & (start >= latest // tile * tile)
        ).nan_to_num(),
        "The last tile that some of these queries see is left out: go on to the last query's token.": masked(
            seen_by(T, K) & (start < first.clamp(min=1))
        ),
        "The scores are not divided by √d.": (scores * q.shape[-1] ** 0.5).softmax(-1) @ v,
        "Each tile of keys has a softmax of its own; they are added up.": sum(own),
        "It is not divided by the sum s.": fixed @ v,
        "Neither the sum nor the result so far is rescaled when a larger score comes.": late
        @ v
        / late.sum(1, keepdim=True),
        "The sum so far is not rescaled when a larger score comes.": fixed
        @ v
        / late.sum(1, keepdim=True),
        "The result so far is not rescaled when a larger score comes.": late
        @ v
        / fixed.sum(1, keepdim=True),
        "The keys that fill no whole tile are missing.": scores[:, :whole].softmax(-1).nan_to_num()
        @ v[:whole],
        "Zeros that fill up the last tile count as keys: their score is 0, and should be −inf.": torch.cat(
            [open_, open_.new_zeros(T, pad)], 1
        )
        .masked_fill(~seen_by(T, K + pad), -math.inf)
        .softmax(-1)[:, :K]
        @ v,
    }


Operator = tuple[str, str, list[str], str]


def runs(operators: list[Operator]) -> list[list[Operator]]:
    """A product begins a kernel, and a reduction after one; all else goes on."""
    found: list[list[Operator]] = []
    for one in operators:
        tiles = bool(found) and found[-1][0][1] == "product"
        if not found or one[1] == "product" or (one[1] == "reduction" and tiles):
            found.append([])
        found[-1].append(one)
    return found


def reads(group: list[Operator]) -> list[str]:
    """What the operators read, one after the other."""
    return [name for one in group for name in one[2]]


def read_outside(group: list[Operator], operators: list[Operator]) -> set[str]:
    return set(reads([one for one in operators if one not in group]))


def moved(
    group: list[Operator], operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> int:
    """Bytes that a group moves, as one kernel."""
    made = {one[3] for one in group}
    outside = read_outside(group, operators) | set(wanted)
    return sum(sizes[name] for name in set(reads(group)) - made | made & outside)


def fused(
    operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> list[tuple[list[str], int]]:
    return [
        ([one[0] for one in group], moved(group, operators, sizes, wanted))
        for group in runs(operators)
    ]


def byte_looks(
    group: list[Operator], operators: list[Operator], sizes: dict[str, int], wanted: list[str]
) -> dict:
    """What a wrong number of bytes may come from."""
    made, outside = {one[3] for one in group}, read_outside(group, operators)
    read = set(reads(group))
    times = [name for name in reads(group) if name not in made]
    total = lambda names: sum(sizes[name] for name in names)
    kept = made & (outside | set(wanted))
    return {
        total(
            read - made
        ): "Only what is read is counted: results that somebody outside reads are written.",
        total(times)
        + total(kept): "A tensor that is read twice in a group is read from memory once.",
        sum(
            total(one[2]) + sizes[one[3]] for one in group
        ): "That is what they move one by one: results that "
        "are read inside the group only never go to memory.",
        total(read - made)
        + total(made): "All results are counted: those that are read inside the group only "
        "stay on the chip.",
        total(read - made) + total(made & outside): "Results in `wanted` are written, too.",
        total(read - made)
        + total(
            kept | {group[-1][3]}
        ): "The last result of this kernel is needed by nobody, and is not written.",
        total(read - made)
        + sizes[group[-1][3]]: "Only the last result is written: another one is read outside, "
        "or wanted.",
        total(read - made) + total(made & set(wanted)): "Results that a later group reads are "
        "written, too.",
    }
