"""What Local SGD sends, and how long that takes, as formulas. Nothing here is taken from a run.

    a period of H steps     bytes of all ranks         seconds, by rings
    data parallel           H · 2(n−1)(Ψ + P)s         H · (T + 2(n−1)α + 2(n−1)/n·(Ψ + P)sβ)
    Local SGD               2(n−1)Ψs                   H · T + 2(n−1)α + 2(n−1)/n·Ψsβ

Ψ numbers of s bytes in P tensors, T seconds a step without messages; data parallelism sends a flag with each tensor.
So a step costs 1/H of data parallelism's, a little less for the flags. Averaged states count as `copies` of Ψ.
Post-local SGD is the first row up to the switch and the second one after it. AdaComm sends 16 bytes a rank and hop
more for each interval, and 8 for each average if its intervals are seconds; weights cost 8 bytes an average.
"""

from __future__ import annotations

from ...collectives import cost


def average_bytes(params: int, n: int, itemsize: int = 4, copies: int = 1) -> int:
    """Of one average on `n` ranks, all ranks together. copies: 1, and 1 for each state that is averaged too."""
    return 2 * (n - 1) * params * itemsize * copies


def run_bytes(
    steps: int,
    H: int,
    params: int,
    n: int,
    itemsize: int = 4,
    start: int = 0,
    tensors: int = 0,
    copies: int = 1,
) -> int:
    """Of `steps` steps, all ranks together, the first `start` of them data parallel with `tensors` gradients.

    After the last average there may be up to H − 1 steps that nobody hears of.
    """
    dense = min(steps, start)
    each = average_bytes(params, n, itemsize, copies)
    return dense * average_bytes(params + tensors, n, itemsize) + (steps - dense) // H * each


def run_seconds(
    steps: int,
    H: int,
    step: float,
    params: int,
    n: int,
    alpha: float,
    beta: float,
    itemsize: int = 4,
    buckets: int = 1,
) -> float:
    """Of `steps` steps of `step` seconds each without messages, over links of α and β, in equal `buckets`, by rings."""
    nbytes = params * itemsize // buckets
    return steps * step + steps // H * buckets * cost.seconds(
        "all_reduce", "ring", n, nbytes, alpha, beta
    )
