"""Graders of lesson 06: gradients in buckets, beside backward.

The networks, whose backward takes time, come first; how long a step may take, the oracle runs on the clock of a World.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from minidist.comm.base import Comm, Work
from minidist.comm.shm import ShmComm
from minidist.comm.world import World

from ..exam import (
    HALF,
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Solo,
    Wrong,
    alone,
    few,
    first_near,
    holds,
    integer,
    integers,
    left_open,
    near,
    normal,
    number,
    on_time,
    one_of,
    ranked,
    real,
    recognized,
    ring_bytes,
    shaped,
    shuffled,
    timed,
    unchanged,
    uniform,
    wrong_means,
)
from ..oracles.buckets import accumulated, buckets_hooked, clock, fill
from .data_parallel import same_gradients

# ------------------------------------------------------------
# Networks whose backward takes time on the clock of a World, and what a wrong mean of gradients looks like.
#
# A network is a list of branches, each a stack of matrices: x → tanh(x·W) → … ; its loss is a mean square. In which
# order a rank runs its branches, and which of them, is drawn: so hooks fire in another order on every rank.
# Only products and messages cost time here, so that how an answer packs its buckets does not matter.


FORBIDDEN = (
    "minidist.parallel.data",
    "minidist.parallel",
    "minidist.study",
    "minicheck.oracles.buckets",
    "torch.nn.parallel",
)
ALPHA = 1e-5
BETA = 1e-9
FLOPS = 2e8


def world_of(n: int) -> World:
    return timed(n, ALPHA, BETA, FLOPS)


class Network(NamedTuple):
    """`values`: the matrices of all branches, one branch after the other; `depth` of each branch."""

    values: list[Tensor]
    depth: int

    def params(self) -> list[Tensor]:
        return [v.clone().requires_grad_() for v in self.values]

    def loss(self, params: list[Tensor], x: Tensor, order: list[int]) -> Tensor:
        """The mean over the samples of what the branches in `order` give."""
        total = x.new_zeros(())
        for branch in order:
            h = x
            for w in params[branch * self.depth : (branch + 1) * self.depth]:
                h = (h @ w).tanh()
            total = total + h.square().mean()
        return total

    def gradient(self, xs: list[Tensor], order: list[int]) -> list[Tensor]:
        """Of the sum of the losses of several micro-batches, zeros where nothing is reached."""
        params = self.params()
        sum(self.loss(params, x, order) for x in xs).backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]


def network(branches: int, depth: int, rng: torch.Generator, alike: bool = False) -> Network:
    """Random matrices; of one size for all branches if `alike`."""
    values, same = [], None
    for _ in range(branches):
        widths = integers(rng, 14, 20, depth + 1)
        widths[0] = 16
        same = widths if same is None or not alike else same
        values += [normal(rng, a, b) / 4 for a, b in pairwise(same)]
    return Network(values, depth)


def reversed_cut(count: int, cuts: int, rng: torch.Generator) -> list[list[int]]:
    """count − 1 … 0, cut at random into so many buckets."""
    edges = sorted((torch.randperm(count - 1, generator=rng)[: cuts - 1] + 1).tolist())
    order = list(range(count))[::-1]
    return [order[a:b] for a, b in zip([0, *edges], [*edges, count], strict=True)]


# ------------------------------------------------------------
# Buckets alone: which gradients share one, and a flat all-reduce of each.


MIXED = (
    "It is not a mean of the ranks' gradients of this parameter. Is it p.grad that goes into the flat tensor, and do the "
    "pieces come out in the order in which they went in?"
)


class AssignBuckets(Solo):
    """`assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes)`: lists of positions, in the order of use."""

    name = "assign_buckets"
    right = (
        "Tried with up to 60 gradients of 1 to 3 dtypes, with sizes and rooms drawn at random: every gradient is in one "
        "bucket, the buckets are as full as can be, and they stand in the order in which they are complete."
    )
    forbidden = FORBIDDEN
    # how many gradients, the largest, the room of a bucket and of the first, in shares of the largest; dtypes
    cases = alone(
        {
            "6 gradients of 8 bytes, room for 2": (6, 0, 2.0, 2.0, 1),
            "a small first bucket": (9, 0, 3.0, 1.0, 1),
            "12 gradients": (12, 100, 2.5, 1.0, 1),
            "9 gradients of 8 bytes, 2 dtypes": (9, 0, 2.0, 1.0, 2),
            "12 gradients of 2 dtypes": (12, 100, 2.5, 1.0, 2),
            "40 gradients": (40, 1000, 3.0, 1.5, 1),
            "60 gradients of 3 dtypes": (60, 4000, 10.0, 0.5, 3),
            "gradients larger than a bucket": (20, 500, 0.6, 0.3, 2),
            "one bucket for all": (45, 100, 99.0, 99.0, 1),
            "one gradient": (1, 50, 1.0, 0.1, 1),
            "no gradient": (0, 50, 1.0, 1.0, 1),
            "a first bucket larger than the others": (20, 100, 1.5, 4.0, 1),
        }
    )

    def draw(self, case, rng):
        count, most, room, first, kinds = case.given
        sizes = integers(rng, 1, most + 1, count) if most else [8] * count
        if first < 1 and not case.what.startswith("one"):
            sizes[-2:] = [1, most]  # larger than the room of the first: alone in there
        dtypes = [DTYPES[kind] for kind in integers(rng, 0, kinds, count)]
        if kinds > 1:
            dtypes[-3:] = DTYPES[1], DTYPES[0], DTYPES[1]
        return [(sizes, dtypes, int(room * (most or 8)), int(first * (most or 8)))]

    given = ("`nbytes`", "`dtypes`")

    def wants(self, case, args):
        return [{"the result": fill(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        sizes, dtypes, room, first = args[0]
        should = "a list of buckets, each a list of positions: integers"
        buckets = [list(bucket) for bucket in shaped(got, [[int]], "the result", should)]
        if buckets == want:
            return
        flat, count = [i for b in buckets for i in b], len(sizes)
        names = f" of {dtypes}" if len(set(dtypes)) > 1 else ""
        shown = f"{sizes} bytes{names}, room for {room}, {first} in the first: "
        shown = shown if count <= 12 else ""
        if [] in buckets:
            raise Wrong(
                f"{shown}bucket {buckets.index([])} is empty. A gradient that is larger than the room goes alone into the "
                "bucket that it opens."
            )
        if sorted(flat) != list(range(count)):
            raise Wrong(
                f"{shown}each of the positions 0 to {count - 1} should be in one bucket, once, and yours are {flat[:12]}."
            )
        for k, bucket in enumerate(buckets):
            if len({dtypes[i] for i in bucket}) > 1:
                raise Wrong(
                    f"{shown}bucket {k} holds gradients of {sorted({dtypes[i] for i in bucket})}: one flat tensor has "
                    "one dtype."
                )
        if any(bucket != sorted(bucket, reverse=True) for bucket in buckets):
            raise Wrong(
                f"{shown}in a bucket the positions should go down, in the order in which gradients become ready, and "
                f"yours are {flat[:12]}."
            )
        _rooms(buckets, args[0], shown)
        raise Wrong(
            f"{shown}the bucket that is complete first should stand first: backward goes from the last position down "
            "to 0, and a bucket is complete with its lowest position. The lowest positions of your buckets are "
            f"{[min(b) for b in buckets][:12]}."
        )


DTYPES = ("float32", "bfloat16", "float16")


def _rooms(buckets, given, shown):
    """Say which bucket is too full, or could have taken one more. A dtype's buckets follow each other."""
    sizes, dtypes, room, first = given
    for dtype in set(dtypes):
        own = sorted((b for b in buckets if dtypes[b[0]] == dtype), key=max, reverse=True)
        if any(min(a) < max(b) for a, b in pairwise(own)):
            raise Wrong(
                f"{shown}a gradient has gone into an earlier bucket of {dtype}: what does not fit closes a bucket for good."
            )
        for k, bucket in enumerate(own):
            limit, held = room if k else first, sum(sizes[i] for i in bucket)
            which = f"the bucket that begins with gradient {bucket[0]}"
            which += "" if k else f", the first of {dtype},"
            if held > limit and len(bucket) > 1:
                raise Wrong(
                    f"{shown}{which} holds {len(bucket)} gradients of {held} bytes, and has room for {limit}. Only "
                    "a gradient that is alone may be larger than the room."
                )
            if k + 1 < len(own) and held + sizes[own[k + 1][0]] <= limit:
                raise Wrong(
                    f"{shown}{which} has room for {limit} bytes and holds {held}: the next gradient of {dtype}, of "
                    f"{sizes[own[k + 1][0]]} bytes, still fits. Is it < where it should be <=? Is the room counted "
                    "anew in every bucket, and for every dtype?"
                )


class Bucketed(Exam):
    """`bucketed(comm, params, buckets, align)`: one flat all-reduce a bucket; each p.grad becomes a view of it."""

    name = "bucketed"
    right = (
        "Tried on 1 to 5 ranks with 1 to 9 gradients in 1 to 5 buckets, then in 2 and 3 real processes: the means are right, "
        "and are aligned views of one flat tensor for each bucket, which takes 2(n−1) messages."
    )
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, count, cuts: (
            f"n = {n}, {count} gradients in {cuts} bucket{'s' * (cuts > 1)}{', nan in one' * (n == 5)}"
        ),
        (
            (3, 6, 2),
            (3, 1, 1),
            (3, 9, 4),
            (3, 5, 5),
            (2, 6, 3),
            (2, 4, 1),
            (4, 7, 3),
            (1, 4, 2),
            (5, 8, 3),
        ),
    )
    processes = (
        Case(3, "3 real processes, 6 gradients in 2 buckets", (6, 2)),
        Case(2, "2 real processes", (5, 3)),
    )

    def draw(self, case, rng):
        (count, cuts), draw = case.given, partial(integer, rng)
        shapes = [((draw(2, 6), draw(2, 9)), (draw(3, 20),), ())[draw(0, 3)] for _ in range(count)]
        dtype = torch.float32 if case.n == 2 and count == 4 else torch.float64
        buckets = reversed_cut(count, cuts, rng)
        if case != self.cases[0]:  # neither neighbours nor in reverse
            order = shuffled(rng, count)
            buckets = [[order[i] for i in bucket] for bucket in buckets]
        values = [normal(rng, s).to(dtype) for s in shapes]
        own = [[normal(rng, s).to(dtype) for s in shapes] for _ in range(case.n)]
        if "nan" in case.what:
            own[-1][0].view(-1)[0] = torch.nan
        align = 1 if case == self.cases[0] else one_of(4, rng) * 4
        return [(values, grads, buckets, align) for grads in own]

    def run(self, comm, yours, values, grads, buckets, align):
        params = [v.clone().requires_grad_() for v in values]
        for p, g in zip(params, grads, strict=True):
            p.grad = (
                g.t().contiguous().t() if g.dim() == 2 else g.clone()
            )  # a matrix is not contiguous
        yours(comm, list(params), buckets, align)
        there = [p.grad.untyped_storage() if isinstance(p.grad, Tensor) else None for p in params]
        places = [s and s.data_ptr() for s in there]
        return {
            "grads": [p.grad for p in params],
            "values": [p.detach() for p in params],
            "buckets": buckets,
            "where": [places.index(p) for p in places],
            "begins": [
                p.grad.storage_offset() if isinstance(p.grad, Tensor) else 0 for p in params
            ],
            "bytes": [s and s.nbytes() for s in there],
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        (values, _, buckets, align), n = args[0], case.n
        for r, got in enumerate(outcome.results):
            unchanged(got["buckets"], buckets, f"rank {r}: `buckets`")
            unchanged(got["values"], values, f"rank {r}: params")
        own, found = [grads for _, grads, *_ in args], [got["grads"] for got in outcome.results]
        means(found, own, lambda *_: None, MIXED)
        for r, got in enumerate(outcome.results):
            _views(r, got, buckets, values, align)
        _messages(outcome, n, buckets, values, align)


def _views(rank, got, buckets, values, align):
    homes = []
    for k, bucket in enumerate(buckets):
        where = {got["where"][i] for i in bucket}
        if len(where) > 1:
            raise Wrong(
                f"rank {rank}: the means are right, but the gradients of bucket {k} lie in {len(where)} "
                "places: each p.grad should be a view of the one flat tensor that was sent."
            )
        room, least = got["bytes"][bucket[0]], _padded(values, bucket, align)
        if room > least + 64 and len(buckets) > 1:
            raise Wrong(
                f"rank {rank}: the flat tensor of bucket {k} has {room} bytes, and its gradients with their padding take "
                f"{least}: there should be one flat tensor for each bucket, and no longer than that."
            )
        homes += where
        begins = [got["begins"][i] for i in bucket]
        if begins != sorted(begins):
            raise Wrong(
                f"rank {rank}: the means are right, but in the flat tensor of bucket {k} the gradients begin at the "
                f"elements {begins[:12]}: they should lie in the order of the bucket."
            )
        for i in bucket:
            if got["begins"][i] % align:
                raise Wrong(
                    f"rank {rank}: the means are right, but the gradient of params[{i}] begins at element "
                    f"{got['begins'][i]} of its flat tensor, and should begin at a multiple of {align}."
                )
    if len(set(homes)) < len(homes):
        raise Wrong(f"rank {rank}: two buckets share one flat tensor. Each should have its own.")


def _padded(values, bucket, align):
    """Bytes of a bucket in which every gradient begins at a multiple of `align` elements."""
    return sum(-(-values[i].numel() // align) * align * values[i].element_size() for i in bucket)


def _messages(outcome, n, buckets, values, align):
    counted(outcome, n, len(buckets))
    for r in range(n):
        count, most = outcome.messages(r), 2 * (n - 1) * len(buckets)
        if count < most:
            raise Wrong(
                f"the numbers are right, but rank {r} sends only {count} messages, and {len(buckets)} buckets "
                f"take {most}: does everything travel in one?"
            )
    size = values[0].element_size()
    flats = [
        torch.empty(_padded(values, bucket, align) // size, dtype=values[0].dtype)
        for bucket in buckets
    ]
    few(outcome, ring_bytes(flats, n), "Is more than the gradients and their padding sent?")


# ------------------------------------------------------------
# Overlap: hooks that start buckets beside backward, also with micro-batches.
#
# Numbers are held against the mean of all ranks' own gradients; time against a reference on the same clock.


# kind: branches, depth of each, buckets, whether the branches are of one size
KINDS = {
    "chain": (1, 6, 3, False),
    "long": (1, 9, 5, False),
    "uneven": (1, 9, 5, False),
    "orders": (3, 2, 3, True),
    "routed": (2, 3, 3, False),
    "unused": (3, 2, 4, False),
    "nan": (1, 4, 2, False),
    "turns": (3, 2, 4, False),
}
WORDS = {
    "chain": "6 layers, 3 buckets",
    "long": "9 layers, 5 buckets, of which the second is complete first",
    "uneven": "9 layers, 5 buckets, the small ones first",
    "orders": "ranks whose hooks fire in different orders",
    "routed": "a branch that only one rank uses",
    "unused": "a branch that no rank uses",
    "nan": "nan on one rank",
    "turns": "micro-batches that reach different branches",
}
IN_FLIGHT = {"orders": 1, "routed": 3}  # of the others 2
CHANGED = "the parameters themselves were changed. Only the gradients, p.grad, are to be averaged."
RACE = (
    "It is not a mean of the ranks' gradients of this parameter. Did a bucket start before all its gradients were in "
    "p.grad, or did something write to it while it was being sent?"
)
SLACK = 0.1  # of the time that overlap saves
EXACTLY = 1e-4  # of a time that a formula gives


def drawn(
    kind: str, n: int, rng: torch.Generator
) -> tuple[Network, list[list[int]], list[list[int]]]:
    """A network, its buckets, and each rank's order of its branches."""
    branches, depth, cuts, same = KINDS[kind]
    model = network(branches, depth, rng, same)
    buckets = reversed_cut(branches * depth, cuts, rng)
    orders = [list(range(branches)) for _ in range(n)]
    if kind == "long":
        buckets = [[7, 6], [8], [5, 4], [3, 2], [1, 0]]
    if kind == "uneven":  # they follow so fast that a hook which waits too long costs time
        buckets = [[8], [7], [6], [5], [4, 3, 2, 1, 0]]
    if kind == "orders":
        buckets = [
            [k * depth + i for i in reversed(range(depth))] for k in reversed(range(branches))
        ]
        orders = [shuffled(rng, branches) for _ in range(n)]
        orders[-1] = orders[0][::-1]
    if kind == "routed":
        user = one_of(n, rng)
        orders = [[0, 1] if r == user else [0] for r in range(n)]
    if kind == "turns":  # a rank's micro-batches reach the branches one after the other
        orders = [[-1 - (r % 2), branches] for r in range(n)]
    if kind in ("routed", "unused", "turns"):  # no clock is looked at: buckets of any positions
        anew = shuffled(rng, branches * depth)
        buckets = [[anew[i] for i in bucket] for bucket in buckets]
    if kind == "unused":
        orders = [[0, 2]] * n
    return model, buckets, orders


def reached(order: list[int], j: int) -> list[int]:
    """The branches that micro-batch j of a rank reaches. An order that begins below zero, [-1 - first, branches]: one of
    them, another each time."""
    if order and order[0] < 0:
        first, branches = -1 - order[0], order[1]
        return [(first + j) % branches]
    return order


def means(found: list, own: list[list[Tensor]], said, otherwise: str = RACE) -> None:
    """Raise Wrong unless every rank has the mean of all ranks' own gradients. said: (rank, i, wrong gradient) → words."""
    count, n = len(own[0]), len(own)
    mine = {f"params[{i}]": [grads[i] for grads in own] for i in range(count)}
    whole = {
        name: sum(some) / n if any(map(Tensor.any, some)) else None for name, some in mine.items()
    }
    named = [dict(zip(mine, grads, strict=True)) for grads in found]

    def mistakes(r: int, name: str, got: Tensor):
        return said(r, list(mine).index(name), got) or wrong_means(r, mine[name])

    same_gradients(named, whole, mistakes, otherwise)


def in_time(exam, case, args, outcome, beside, after, said) -> None:
    """Raise Wrong if a case takes longer than with overlap. beside, after: answers that do and do not overlap."""
    if outcome.time is None or case.n == 1 or case.given[0] not in ("chain", "long", "uneven"):
        return
    best, late = exam.seconds(args, beside), exam.seconds(args, after)
    hint = f"That is the time if the buckets travel beside backward. {said}"
    if outcome.time < 0.999 * late:
        hint = (
            f"Without overlap it takes {1e3 * late:.3g} ms. Does each bucket start as soon as it is complete and all "
            "before it have started? Does a hook wait for a bucket that might still travel?"
        )
    most = best + SLACK * (late - best) + 1e-9
    on_time(outcome, 0.98 * best, most, best, "the gradients are", hint)


def counted(outcome: Outcome, n: int, all_reduces: int, extra: int = 0) -> None:
    """Raise Wrong for more messages than so many ring all-reduces, and `extra` of the grader's own."""
    most = 2 * (n - 1) * all_reduces + extra
    for r in range(n):
        if outcome.messages(r) > most:
            raise Costly(
                f"the gradients are right, but rank {r} sends {outcome.messages(r) - extra} "
                f"messages, and {all_reduces} all-reduces, one for each bucket and step, take "
                f"{2 * (n - 1) * all_reduces}. Is something sent twice, or does each gradient travel alone?"
            )


class Overlapped(Exam):
    """`overlapped(comm, params, buckets, most)`: hooks that start buckets on a lane; returns `finish`, which waits."""

    name = "overlapped"
    steps = 3
    right = (
        "Tried on 1 to 5 ranks with 7 networks, then in 2 and 3 real processes: in three steps the means are right, and the "
        "buckets start in their order though hooks fire in another, with 1 to 3 in flight, as fast as the clock allows."
    )
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, kind, k: f"n = {n}, {WORDS[kind]}",
        (
            (3, "chain", 1),
            (3, "orders", 1),
            (3, "routed", 1),
            (3, "unused", 1),
            (3, "nan", 1),
            (2, "orders", 1),
            (4, "long", 1),
            (5, "uneven", 1),
            (1, "chain", 1),
            (5, "orders", 1),
        ),
    )
    processes = (
        Case(3, "3 real processes, a branch that only one rank uses", ("routed", 1)),
        Case(2, "2 real processes, 6 layers", ("chain", 1)),
    )

    def draw(self, case, rng):
        """Of several steps, each with k micro-batches."""
        kind, k = case.given
        model, buckets, orders = drawn(kind, case.n, rng)
        steps = lambda: [[normal(rng, 8, 16) for _ in range(k)] for _ in range(self.steps)]
        args = [(*model, buckets, order, steps(), IN_FLIGHT.get(kind, 2)) for order in orders]
        if kind == "nan":
            args[one_of(case.n, rng)][4][1][0][0] = torch.nan
        return args

    def world(self, n, args):
        return world_of(n)

    def run(self, comm, yours, values, depth, buckets, order, steps, most):
        model, found = Network(values, depth), []
        params = model.params()
        flights = flights_of(comm)
        finish = yours(comm, params, buckets, most)
        if not callable(finish):
            return {"finish": "None" if finish is None else type(finish).__name__}
        for [x] in steps:
            for p in params:
                p.grad = None
            model.loss(params, x, order).backward()
            finish()
            found.append([p.grad if p.grad is None else p.grad.clone() for p in params])
        kept = all(map(torch.equal, params, values))
        flew = max(flights, default=0)
        return {"found": found, "kept": kept, "flew": flew, "open": left_open(comm)}

    def judge(self, case, args, outcome):
        for r, got in enumerate(outcome.results):
            if "finish" in got:
                raise Wrong(
                    f"it returns {got['finish']}, and should return a function: finish(), which waits."
                )
            holds(got, {"kept": CHANGED}, f"rank {r}: ")
        self.averaged(case, args, outcome)
        most = args[0][-1]
        for r, got in enumerate(outcome.results):
            if got["flew"] > most:
                raise Wrong(
                    f"the gradients are right, but on rank {r} a bucket starts before anyone has waited for the bucket "
                    f"{got['flew'] - 1} places before it, and at most {most} may be in flight at once: each holds memory "
                    "until it is waited for. Wait for the oldest one first."
                )
        counted(outcome, case.n, self.steps * len(args[0][2]))
        after = partial(buckets_hooked, beside=False)
        hint = (
            "Does a hook wait without need? Or does everything start in finish()? comm.stream starts a bucket and returns "
            "at once; finish() is the place to wait."
        )
        in_time(self, case, args, outcome, buckets_hooked, after, hint)

    def averaged(self, case, args, outcome):
        """Raise Wrong unless every rank has the means after each step."""
        model = Network(*args[0][:2])
        for step in range(self.steps):
            micro = [
                [model.gradient([x], reached(order, j)) for j, x in enumerate(steps[step])]
                for *_, order, steps, _ in args
            ]
            own = [[sum(g) for g in zip(*mine, strict=True)] for mine in micro]
            found = [got["found"][step] for got in outcome.results]
            means(found, own, partial(self.said, case, args, step, micro))

    def said(self, case, args, step, micro, rank, i, got):
        """What a wrong gradient of parameter i looks like. micro[r][j]: rank r's gradients of micro-batch j."""
        if near(got, micro[rank][0][i]):
            which = (
                "Nothing was averaged: do the hooks start anything, and does finish() wait for it?"
            )
            if step:
                which = (
                    f"In step 1 it was averaged, and in step {step + 1} it is not. Does finish() set everything back, what "
                    "is missing and what was started?"
                )
            return f"It is rank {rank}'s own, as after its backward. {which}"
        if case.given[0] == "orders":
            orders = [a[3][::-1] for a in args]
            return (
                f"The ranks' hooks fire in different orders here: on rank 0, 1, … backward reaches the branches in the "
                f"orders {orders}. Bucket k must be the k-th to start on every rank, or else one rank's bucket is added to "
                "a different bucket of another rank."
            )
        return None


def flights_of(comm: Comm) -> list[int]:
    """A list to which each start of a job on a lane adds how many jobs there are from the oldest that was not waited for
    to this one. In a World."""
    flights: list[int] = []
    works: list[Work] = []
    start = comm.stream

    def counting(*args, **options):
        under_way = [k for k, work in enumerate(works) if work in comm._open]
        flights.append(len(works) - min(under_way, default=len(works)) + 1)
        works.append(start(*args, **options))
        return works[-1]

    if not isinstance(comm, ShmComm):  # which does not tell the jobs of a lane from its messages
        comm.stream = counting  # type: ignore[method-assign]
    return flights


class AccumulateOverlapped(Overlapped):
    """`accumulate_overlapped(comm, params, backwards, buckets)`: one average, beside the last backward."""

    name = "accumulate_overlapped"
    steps = 2  # each call makes its hooks anew
    right = (
        "Tried on 1 to 4 ranks with 1 to 4 micro-batches, then in 2 and 3 real processes: in two steps the means are "
        "right, and take the messages of one average, beside the last backward."
    )
    cases = ranked(
        lambda n, kind, k: f"n = {n}, {k} micro-batch{'es' * (k > 1)}, {WORDS[kind]}",
        (
            (3, "chain", 2),
            (3, "chain", 1),
            (4, "long", 3),
            (1, "chain", 2),
            (3, "orders", 2),
            (3, "nan", 4),
            (3, "turns", 2),
            (4, "turns", 3),
            (2, "unused", 2),
        ),
    )
    processes = (
        Case(3, "3 real processes, 2 micro-batches that reach different branches", ("turns", 2)),
        Case(2, "2 real processes, 3 micro-batches", ("chain", 3)),
    )

    def run(self, comm, yours, values, depth, buckets, order, steps, _):
        model = Network(values, depth)
        found = []
        called = []
        params = model.params()

        def micro(x: Tensor, j: int) -> None:
            called.append(1)
            loss = model.loss(params, x, reached(order, j))
            loss.backward()
            if comm.size > 1:  # as for a log; and messages under way get time
                loss = loss.detach()
                right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                comm.sendrecv(loss, right, torch.empty_like(loss), left)

        for xs in steps:
            for p in params:
                p.grad = None
            yours(comm, params, [partial(micro, x, j) for j, x in enumerate(xs)], buckets)
            found.append([p.grad if p.grad is None else p.grad.clone() for p in params])
        hooks = [(p._post_accumulate_grad_hooks, p._backward_hooks) for p in params]
        return {
            "found": found,
            "called": len(called),
            "clean": not any(map(any, hooks)),
            "kept": all(map(torch.equal, params, values)),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        k = case.given[1]
        for r, got in enumerate(outcome.results):
            if got["called"] != self.steps * k:
                raise Wrong(
                    f"rank {r}: in {self.steps} steps {self.steps * k} backwards were handed over, and {got['called']} were "
                    "called."
                )
            holds(got, {"kept": CHANGED}, f"rank {r}: ")
        self.averaged(case, args, outcome)
        counted(outcome, case.n, self.steps * len(args[0][2]), extra=self.steps * k * (case.n > 1))
        left = (
            "the gradients are right, but hooks are left on the parameters: the next step registers its own, and would "
            "have them twice."
        )
        for got in outcome.results:
            holds(got, {"clean": left})
        after = partial(accumulated, beside=False)
        hint = "Is the average taken beside the last backward, or after it?"
        in_time(self, case, args, outcome, accumulated, after, hint)

    def said(self, case, args, step, micro, rank, i, got):
        micro = [[grads[i] for grads in mine] for mine in micro]
        n, k = len(micro), len(micro[0])
        for j in range(1, k):
            early, rest = sum(sum(mine[:j]) for mine in micro) / n, sum(micro[rank][j:])
            if near(got, early + rest):
                return (
                    f"The first {j} of {k} micro-batches are averaged, and what was added after that is this rank's own: "
                    "the hooks started the bucket too early."
                )
        if near(got, sum(mine[-1] for mine in micro) / n) and k > 1:
            return "It is the mean of the last micro-batch alone: the others were cleared, or never added."
        part = (
            "Part of it is averaged, and part is not: a bucket must not be sent while a later backward still "
            "adds to it."
        )
        own = wrong_means(rank, [sum(mine) for mine in micro])
        return recognized(got, own, part if k > 1 else RACE)


# ------------------------------------------------------------
# Time: when the last bucket is averaged, and what buckets save.


class StepSeconds(Solo):
    """`step_seconds(nbytes, ready, n, alpha, beta, most)`: when the last bucket is averaged."""

    name = "step_seconds"
    right = (
        "Tried with 1 to 16 ranks, 1 to 12 buckets, limits from 1 to 6, and fast and slow wires: the times are those on "
        "the clock of a World."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            1,
            f"n = {n}, {count} bucket{'s' * (count > 1)}, {most} in flight, a {word} wire",
            (n, count, share, most),
        )
        for n, count, word, share, most in (
            (4, 3, "slow", 3.0, 4),
            (4, 3, "fast", 0.3, 3),
            (2, 6, "slow", 2.0, 6),
            (3, 6, "fast", 0.6, 1),
            (5, 9, "slow", 1.1, 1),
            (8, 12, "slow", 1.3, 2),
            (6, 12, "slow", 1.05, 2),
            (16, 5, "fast", 0.8, 2),
            (5, 1, "slow", 1.5, 1),
            (1, 3, "fast", 0.0, 2),
        )
    )

    def draw(self, case, rng):
        """`share`: seconds on the wire for each of backward, on average."""
        n, count, share, limit = case.given
        between = lambda low, high: low + (high - low) * uniform(rng)
        # so many products of two numbers
        ready = list(accumulate(round(between(1.5e5, 8.5e5)) * 2e-9 for _ in range(count)))
        wire, steps = ready[-1] / count * max(share, 0.1), max(1, 2 * (n - 1))
        alpha, beta = between(0.1, 0.4) * wire / steps, 10 ** between(-10.5, -9.5)
        most = 0.75 * wire / steps / beta
        nbytes = [n * max(1, int(between(0.4, 1.6) * most)) for _ in range(count)]
        return [(nbytes, ready, n, alpha, beta, limit)]

    def judge(self, case, args, outcome):
        [result] = outcome.results
        for name, after, before in zip(("`nbytes`", "`ready`"), result["given"], args[0]):
            unchanged(after, before, name)
        got, want = number(result["found"], "the result"), clock(*args[0])
        if not near(got, want, EXACTLY):
            slip = first_near(got, slips_of(*args[0]), EXACTLY)
            raise Wrong(
                "if backward never stood still, the buckets would be complete after "
                f"{[round(1e3 * t, 3) for t in args[0][1]]} ms. Your formula gives {1e3 * real(got):.6g} ms, and the World "
                f"takes {1e3 * want:.6g} ms. "
                f"{slip or _direction(got, want, args[0][1][-1])}"
            )


def _direction(got, want, backward):
    if got < backward:
        return "Backward alone takes longer than that: the last bucket cannot start before it is complete."
    if got < want:
        return (
            "Too short: a bucket starts when it is complete *and* the one before it is over; and while a hook waits, "
            "backward stands still."
        )
    return "Too long: does a bucket, or backward, wait for something that it need not wait for?"


def slips_of(
    nbytes: list[int], ready: list[float], n: int, alpha: float, beta: float, most: int
) -> dict[float, str]:
    """Wrong values and what they mean; of several meanings of one value the first."""

    def took(size, steps=2 * (n - 1), share=2 * (n - 1) / n) -> float:
        return steps * alpha + share * size * beta

    def queued(costs, most=most) -> float:
        ends: list[float] = []
        stalled = 0.0
        for at, cost in zip(ready, costs, strict=True):
            due = at + stalled
            free = ends[-most] if len(ends) >= most else 0.0
            stalled += max(0.0, free - due)
            ends.append(max(due, free, *ends[-1:]) + cost)
        return ends[-1]

    costs = [took(size) for size in nbytes]
    right = queued(costs)
    slips = [
        (
            queued(costs, len(costs)),
            f"That is the time without a limit: with {most} in flight backward stands still at times, and what follows "
            "is later.",
        ),
        (
            queued(costs, most + 1),
            f"At most {most} may be in flight, including the one that starts.",
        ),
        (
            queued(costs, max(1, most - 1)),
            f"As many as {most} may be in flight, including the one that starts.",
        ),
        (
            ready[-1] + sum(costs),
            "That is the time without overlap: buckets may travel while backward goes on.",
        ),
        (
            ready[-1] + costs[-1],
            "The last bucket may have to wait for the wire, still busy with those before it.",
        ),
        (
            ready[0] + sum(costs),
            "The wire rests at times: a bucket cannot start before it is complete.",
        ),
        (
            max(map(sum, zip(ready, costs))),
            "The wire carries one bucket at a time: a bucket waits for the one before it.",
        ),
        (sum(costs), "That is the time on the wire alone."),
        (queued([took(s, n - 1, (n - 1) / n) for s in nbytes]), HALF),
        (
            queued([took(s, 2 * (n - 1), 2) for s in nbytes]),
            "Nearly: a ring sends 2(n−1)/n of the bytes.",
        ),
        (
            queued([took(s, 1) for s in nbytes]),
            "Each of the 2(n−1) messages of a ring starts with an α.",
        ),
        (queued([took(s, 0) for s in nbytes]), "The latencies are missing."),
        (
            queued([took(s, 2 * n, 2) for s in nbytes]),
            "In a ring of n ranks a chunk takes n−1 steps, not n.",
        ),
        (1e3 * right, "Seconds are asked for."),
    ]
    found: dict[float, str] = {}
    for value, text in slips:
        if not near(value, right, EXACTLY):
            found.setdefault(value, text)
    return found


def predict_overlap(
    n=16, tensors=160, nbytes=400e6, backward=40e-3, b=10, alpha=10e-6, beta=1 / 25e9
):
    """16 ranks, 160 gradients of 400 MB in all, backward 40 ms, α = 10 µs, β = 1/(25 GB/s), 10 equal buckets."""
    steps, factor = 2 * (n - 1), 2 * (n - 1) / n
    one = steps * alpha + factor * nbytes / b * beta
    slow = steps * alpha + 2 * factor * nbytes / b * beta
    fits = steps * alpha / (backward / nbytes - factor * beta)
    values = {
        "saved": steps * (tensors - b),
        "bucket": one,
        "afterwards": backward + b * one,
        "beside": backward + one,
        "slow": backward / b + b * slow,
        "smallest": fits,
    }
    slips = {
        "saved": {
            tensors - b: "Those are all-reduces: each takes 2(n−1) messages of a rank.",
            steps * tensors: "That is what is sent without buckets.",
            steps * b: "That is what is still sent.",
            steps * (tensors - 1): f"That is what one bucket saves: there are {b}.",
            (n - 1) * (tensors - b): HALF,
        },
        "bucket": {
            one / 2: HALF,
            factor * nbytes / b * beta: "The latencies are missing.",
            steps * alpha + factor * nbytes * beta: "That is all gradients in one bucket.",
            alpha + factor * nbytes / b * beta: "Each of the 2(n−1) messages starts with an α.",
        },
        "afterwards": {
            backward + one: "That is one bucket after backward: here all of them come after it.",
            b * one: "Backward is missing.",
        },
        "beside": {
            backward + b * one: "That is the time without overlap.",
            backward: "The last bucket starts when backward ends.",
            backward / b
            + b * one: "The wire is faster than backward here, and waits for each bucket.",
        },
        "slow": {
            backward
            + slow: "A bucket takes longer on the wire than the next one takes to be computed, so they queue.",
            backward + b * slow: "That is the time without overlap.",
            backward / b + b * 2 * one: "Bytes take twice as long, but latencies do not.",
            backward + one: "The wire is half as fast: β is twice as large.",
        },
        "smallest": {
            steps * alpha / (backward / nbytes): "The bytes take time on the wire, too.",
            steps * alpha / (factor * beta): "That is where latency and bytes take equally long.",
            nbytes / b: f"That is the size of one of {b} buckets: smaller ones keep up, too.",
            fits / 4: "Bytes are asked for.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_overlap,
    "Your messages, seconds and bytes are right within 1 %.",
    {
        "n": ("{} ranks", (10, 12, 20)),
        "b": ("{} buckets", (5, 8, 20)),
        "backward": ("a backward of {:g} s", (42e-3, 45e-3, 50e-3, 54e-3)),
    },
)
