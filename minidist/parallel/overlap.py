"""When the gradients are averaged, and which bucket size is best: the answer of the α–β model, before any run.

Backward computes gradients one after the other, T seconds in all. The all-reduce of a bucket of s bytes takes
c(s), with a ring on n ranks 2(n−1)α + 2(n−1)/n·sβ; it starts when the bucket is complete and the last one done.

    backward  g4 │ g3 │ g2 │ g1 │                   fast wire: it waits for backward, end = T + c(s)
    wire         └─ g4 ─┘└─ g3 g2 ─┘└─ g1 ─┘        slow wire: backward is over long before

Large buckets pay few latencies, small ones start early and leave little for the end. With N bytes that are
computed evenly, the best size is about N·√(2(n−1)α/T) if the wire is slower than backward; else the smallest
whose all-reduce is over before the next is complete, 2(n−1)α/(T/N − 2(n−1)/n·β).

Nothing here is taken from a run. Source: Li et al. 2020, "PyTorch Distributed", sections 2.2.1, 3.2.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..collectives import verbs


def step_time(
    sizes: Sequence[int],
    seconds: Sequence[float],
    n: int,
    alpha: float,
    beta: float,
    bucket_bytes: int = 25 << 20,
    first_bucket_bytes: int = 1 << 20,
    overlap: bool = True,
    algorithm: str = "ring",
) -> float:
    """Seconds from the start of backward until all gradients are averaged.

    sizes: bytes of each gradient, in the order in which they become ready (one dtype).  seconds: to compute each.
    n ranks, links of `alpha` seconds and `beta` seconds per byte.  The rest as in `DataParallel`.
    Raises ValueError unless there are as many seconds as sizes.
    """
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} gradients have a size, but {len(seconds)} a time")
    ready = 0.0
    filled = 0
    limit = min(first_bucket_bytes, bucket_bytes)
    wire = 0.0 if overlap else sum(seconds)  # when it is free

    def averaged() -> float:
        return max(wire, ready) + verbs.seconds("all_reduce", algorithm, n, filled, alpha, beta)

    for size, took in zip(sizes, seconds, strict=True):
        if filled and filled + size > limit:
            wire = averaged()
            filled, limit = 0, bucket_bytes
        filled += size
        ready += took
    return averaged() if sizes else 0.0


def best_bucket(
    sizes: Sequence[int],
    seconds: Sequence[float],
    n: int,
    alpha: float,
    beta: float,
    candidates: Sequence[int] | None = None,
    algorithm: str = "ring",
) -> int:
    """The `bucket_bytes` with the smallest `step_time`, the first one as large as the others.

    candidates: the sizes to choose from; None: the powers of two from the smallest gradient's up to their sum.
    Of equally good ones the largest wins, as it sends the fewest messages.
    """
    if candidates is None:
        low, high = max(1, min(sizes, default=1)).bit_length() - 1, max(1, sum(sizes)).bit_length()
        candidates = [1 << i for i in range(low, high + 1)]

    def time(size: int) -> float:
        return step_time(sizes, seconds, n, alpha, beta, size, size, algorithm=algorithm)

    return min(candidates, key=lambda size: (time(size), -size))
