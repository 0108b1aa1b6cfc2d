"""The exercises of lesson 05 about buckets alone: which gradients share one, and a flat all-reduce of each."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import UNKNOWN, alike, unchanged
from ..data_parallel.averages import near, ring_bytes
from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .oracle import fill
from .work import FORBIDDEN, looks_of, reversed_cut

RETURN = "Is there a `return`?"
MIXED = (
    "It is no mean of the ranks' gradients of this parameter. Is it p.grad that goes in, and do the pieces come "
    "out in the order in which they went in?"
)


class AssignBuckets(Exam):
    name = "assign_buckets"
    right = "Up to 60 gradients, sizes and rooms drawn at random: in order of use, full, every gradient once."
    forbidden = FORBIDDEN
    # how many gradients, the largest, the room of a bucket and of the first, in shares of the largest
    cases = tuple(
        Case(1, what, given)
        for what, given in {
            "6 gradients of 8 bytes, room for 2": (6, 0, 2.0, 2.0),
            "a small first bucket": (9, 0, 3.0, 1.0),
            "12 gradients": (12, 100, 2.5, 1.0),
            "40 gradients": (40, 1000, 3.0, 1.5),
            "60 gradients": (60, 4000, 10.0, 0.5),
            "gradients larger than a bucket": (20, 500, 0.6, 0.3),
            "one bucket for all": (15, 100, 99.0, 99.0),
            "one gradient": (1, 50, 1.0, 0.1),
            "no gradient": (0, 50, 1.0, 1.0),
            "a first bucket larger than the others": (20, 100, 1.5, 4.0),
        }.items()
    )

    def draw(self, case, rng):
        count, most, room, first = case.given
        sizes = (
            torch.randint(1, most + 1, (count,), generator=rng).tolist() if most else [8] * count
        )
        return [(sizes, int(room * (most or 8)), int(first * (most or 8)))]

    def run(self, comm: Comm, yours, sizes, room, first):
        return {"buckets": yours(sizes, room, first), "sizes": sizes}

    def judge(self, case, args, outcome):
        (sizes, room, first), got = args[0], outcome.results[0]
        if got["sizes"] != sizes:
            raise Wrong("`nbytes` was changed, and belongs to the caller.")
        buckets = _lists(got["buckets"])
        if buckets == fill(sizes, room, first):
            return
        flat, count = [i for b in buckets for i in b], len(sizes)
        shown = f"{sizes} bytes, room for {room}, {first} in the first: " if count <= 12 else ""
        if sorted(flat) != list(range(count)):
            lost, twice = (
                sorted(set(range(count)) - set(flat)),
                sorted({i for i in flat if flat.count(i) > 1}),
            )
            what = f"{twice[:5]} are there twice" if twice else "some do not exist"
            what = f"{lost[:5]} are in none" if lost else what
            raise Wrong(
                f"{shown}every position from 0 to {count - 1} belongs into one bucket: {what}."
            )
        if [] in buckets:
            raise Wrong(
                f"{shown}bucket {buckets.index([])} is empty. A gradient that is larger than the room opens a "
                "bucket of its own, the next empty one."
            )
        if flat == list(range(count)):
            raise Wrong(
                f"{shown}the buckets begin with gradient 0, of the first layer: backward reaches it last. "
                "Begin with the last gradient."
            )
        if flat != list(range(count))[::-1]:
            raise Wrong(
                f"{shown}one bucket after the other, the positions should go from {count - 1} down to 0, the "
                f"order in which gradients are ready, and they are {flat[:12]}."
            )
        _rooms(buckets, sizes, room, first, shown)


def _lists(buckets) -> list[list[int]]:
    if buckets is None:
        raise Wrong(f"the result is None. {RETURN}")
    if not isinstance(buckets, list | tuple) or not all(
        isinstance(b, list | tuple) for b in buckets
    ):
        raise Wrong(
            f"the result is {_kind(buckets)}, and should be a list of buckets, each a list of positions."
        )
    if not all(type(i) is int for b in buckets for i in b):
        raise Wrong(
            "a bucket holds the positions of its gradients in `nbytes`: integers, no tensors."
        )
    return [list(b) for b in buckets]


def _kind(x) -> str:
    return f"a {kind_of(x)}"


def _rooms(buckets: list[list[int]], sizes: list[int], room: int, first: int, shown: str) -> None:
    """Say which bucket is too full, or could have taken one more."""
    for k, bucket in enumerate(buckets):
        limit, held = room if k else first, sum(sizes[i] for i in bucket)
        which = f"bucket {k}" if k else "bucket 0, the first,"
        if held > limit and len(bucket) > 1:
            raise Wrong(
                f"{shown}{which} holds {len(bucket)} gradients of {held} bytes, and has room for {limit}. Only "
                "a gradient that is alone may be larger than the room."
            )
        if k + 1 < len(buckets) and held + sizes[buckets[k + 1][0]] <= limit:
            raise Wrong(
                f"{shown}{which} has room for {limit} bytes and holds {held}: the next gradient of "
                f"{sizes[buckets[k + 1][0]]} still fits. Is it < where it should be <=? Is the room counted "
                "anew in every bucket?"
            )


class Bucketed(Exam):
    name = "bucketed"
    right = (
        "n = 1…5, 1 to 9 gradients in 1 to 4 buckets: the means, as views of one flat tensor a bucket, "
        "2(n−1) messages a bucket; then 2 and 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {count} gradients in {cuts} bucket{'s' * (cuts > 1)}", (count, cuts))
        for n, given in {
            3: ((6, 2), (1, 1), (9, 4), (5, 5)),
            2: ((6, 3), (4, 1)),
            4: ((7, 3),),
            1: ((4, 2),),
            5: ((8, 3),),
        }.items()
        for count, cuts in given
    )
    processes = (
        Case(3, "3 real processes, 6 gradients in 2 buckets", (6, 2)),
        Case(2, "2 real processes", (5, 3)),
    )

    def draw(self, case, rng):
        (count, cuts), draw = (
            case.given,
            lambda low, high: int(torch.randint(low, high, (), generator=rng)),
        )
        shapes = [
            [(draw(2, 6), draw(2, 9)), (draw(3, 20),), ()][min(2, draw(0, 5) // 2)]
            for _ in range(count)
        ]
        dtype = torch.float32 if case.n == 2 and count == 4 else torch.float64
        buckets = reversed_cut(count, cuts, rng)
        if case != self.cases[0]:  # neither neighbours nor in reverse
            order = torch.randperm(count, generator=rng).tolist()
            buckets = [[order[i] for i in bucket] for bucket in buckets]
        values = [torch.randn(s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes]
        return [
            (
                values,
                [torch.randn(s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes],
                buckets,
            )
            for _ in range(case.n)
        ]

    def run(self, comm: Comm, yours, values, grads, buckets):
        params = [v.clone().requires_grad_() for v in values]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        yours(comm, list(params), buckets)
        there = [p.grad.untyped_storage() if isinstance(p.grad, Tensor) else None for p in params]
        places = [s and s.data_ptr() for s in there]
        return {
            "grads": [p.grad for p in params],
            "values": [p.detach() for p in params],
            "buckets": buckets,
            "where": [places.index(p) for p in places],
            "bytes": [s and s.nbytes() for s in there],
        }

    def judge(self, case, args, outcome):
        (values, _, buckets), n = args[0], case.n
        own = [[grads[i] for _, grads, _ in args] for i in range(len(values))]
        for r, got in enumerate(outcome.results):
            for i, value in enumerate(values):
                unchanged(r, got["values"][i], value, f"params[{i}]")
                want = sum(own[i]) / n
                alike(r, got["grads"][i], want, f"params[{i}].grad")
                if not near(got["grads"][i], want):
                    text = looks_of(got["grads"][i], r, own[i]).replace(UNKNOWN, MIXED)
                    raise Wrong(f"rank {r}: params[{i}].grad is wrong. {text}")
                if not got["grads"][i].equal(outcome.results[0]["grads"][i]):
                    raise Wrong(
                        f"params[{i}].grad is right but for rounding, which differs on rank 0 and rank {r}."
                    )
            _views(r, got, [list(b) for b in buckets], values)
        _messages(outcome, n, buckets, values)


def _views(rank: int, got: dict, buckets: list[list[int]], values: list[Tensor]) -> None:
    if got["buckets"] != buckets:
        raise Wrong(f"rank {rank}: `buckets` was changed, and belongs to the caller.")
    homes = []
    for k, bucket in enumerate(buckets):
        where = {got["where"][i] for i in bucket}
        if len(where) > 1:
            raise Wrong(
                f"rank {rank}: the means are right, but the gradients of bucket {k} lie in {len(where)} "
                "places: each p.grad should be a view of the one flat tensor that was sent."
            )
        room, least = got["bytes"][bucket[0]], sum(values[i].nbytes for i in bucket)
        if room > least + 64 * len(bucket) and len(buckets) > 1:
            raise Wrong(
                f"rank {rank}: the flat tensor of bucket {k} has {room} bytes, and its gradients {least}: one "
                "flat tensor for each bucket, so that each can travel alone."
            )
        homes += where
    if len(set(homes)) < len(homes):
        raise Wrong(f"rank {rank}: two buckets share one flat tensor: each should travel alone.")


def _messages(outcome, n: int, buckets: list[list[int]], values: list[Tensor]) -> None:
    flats = [torch.cat([values[i].reshape(-1) for i in bucket]) for bucket in buckets]
    for r in range(n):
        count, most = outcome.messages(r), 2 * (n - 1) * len(buckets)
        if count > most:
            raise Wrong(
                f"the numbers are right, but rank {r} sends {count} messages, and {len(buckets)} all-reduces "
                f"are 2(n−1) · {len(buckets)} = {most}. Does each gradient travel alone?"
            )
        if n > 1 and count < most:
            raise Wrong(
                f"the numbers are right, but rank {r} sends {count} messages only, and {len(buckets)} buckets "
                f"are {most}: is everything in one?"
            )
        if outcome.nbytes(r) > ring_bytes(flats, n):
            raise Wrong(
                f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and "
                f"{ring_bytes(flats, n)} are enough."
            )


def assign_buckets(yours) -> None:
    """`assign_buckets(nbytes, bucket_bytes, first_bucket_bytes)`: lists of positions, in the order of use."""
    ask(AssignBuckets(), yours)


def bucketed(yours) -> None:
    """`bucketed(comm, params, buckets)`: one flat all-reduce a bucket; each p.grad becomes a view of it."""
    ask(Bucketed(), yours)
