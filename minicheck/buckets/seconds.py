"""The exercises of lesson 05 about time: when the last bucket is averaged, and what buckets save."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..prediction import ALL, HALF, Prediction, close
from ..topology.cost import number
from ..wrong import Wrong
from .oracle import clock
from .work import FORBIDDEN


class StepSeconds(Exam):
    name = "step_seconds"
    right = "n = 1…16, 1 to 12 buckets, fast and slow wires: as on the clock of a World."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"n = {n}, {count} bucket{'s' * (count > 1)}, a {word} wire", (n, count, share))
        for n, count, word, share in (
            (4, 3, "slow", 3.0),
            (4, 3, "fast", 0.3),
            (2, 6, "slow", 2.0),
            (3, 6, "fast", 0.6),
            (8, 12, "slow", 1.3),
            (16, 5, "fast", 0.8),
            (5, 1, "slow", 1.5),
            (1, 3, "fast", 0.0),
        )
    )

    def draw(self, case, rng):
        """`share`: seconds on the wire for each of backward, on average."""
        n, count, share = case.given
        uniform = lambda low, high: (
            low + (high - low) * torch.rand((), generator=rng, dtype=torch.float64).item()
        )
        ready, total = [], 0.0
        for _ in range(count):
            total += round(uniform(0.3, 1.7) * 1e6) * 2e-9  # so many products of two numbers
            ready.append(total)
        alpha = uniform(0.1, 0.4) * max(share, 0.1) * total / count / max(1, 2 * (n - 1))
        beta = 10 ** uniform(-10.5, -9.5)
        wire = 0.75 * max(share, 0.1) * total / count / beta
        nbytes = [n * int(uniform(0.4, 1.6) * wire / (2 * max(1, n - 1))) for _ in range(count)]
        return [([max(n, size) for size in nbytes], ready, n, alpha, beta)]

    def run(self, comm: Comm, yours, *args):
        return yours(*args)

    def judge(self, case, args, outcome):
        got, want = number(outcome.results[0]), clock(*args[0])
        if abs(got - want) > 1e-4 * want:
            slip = next(
                (text for value, text in slips_of(*args[0]).items() if close(got, value)), None
            )
            raise Wrong(
                f"the gradients are ready after {[round(1e3 * t, 3) for t in args[0][1]]} ms. Your formula "
                f"gives {1e3 * got:.6g} ms, the World takes {1e3 * want:.6g} ms. "
                f"{slip or _direction(got, want, args[0][1][-1])}"
            )


def _direction(got: float, want: float, backward: float) -> str:
    if got < backward:
        return "Backward alone takes longer than that: the last bucket cannot start before it is complete."
    if got < want:
        return "Too short: a bucket starts when it is complete *and* the one before it is over."
    return "Too long: does a bucket wait for something that it need not wait for?"


def slips_of(
    nbytes: list[int], ready: list[float], n: int, alpha: float, beta: float
) -> dict[float, str]:
    """Wrong values and what they mean."""

    def took(size, steps=2 * (n - 1), share=2 * (n - 1) / n) -> float:
        return steps * alpha + share * size * beta

    def queued(costs) -> float:
        wire = 0.0
        for at, cost in zip(ready, costs, strict=True):
            wire = max(wire, at) + cost
        return wire

    costs = [took(size) for size in nbytes]
    right, gaps = queued(costs), [b - a for a, b in zip([0.0, *ready], ready, strict=False)]
    slips = {
        ready[-1]
        + sum(costs): "That is without overlap: buckets may travel while backward goes on.",
        max(
            ready[-1], sum(costs)
        ): "The larger of the two times is a lower bound: the wire rests until the first "
        "bucket is complete, and backward is over before the last one starts.",
        ready[-1]
        + costs[
            -1
        ]: "The last bucket may have to wait for the wire, still busy with those before it.",
        ready[0]
        + sum(costs): "The wire may rest, too: a bucket does not start before it is complete.",
        max(
            at + cost for at, cost in zip(ready, costs, strict=True)
        ): "One wire, one bucket at a time: a bucket waits for the one before it.",
        sum(costs): "That is the wire's time alone.",
        ready[-1]: "That is backward alone.",
        queued([took(s, n - 1, (n - 1) / n) for s in nbytes]): HALF,
        queued(
            [took(s, 2 * (n - 1), 2) for s in nbytes]
        ): "Nearly: a ring sends 2(n−1)/n of the bytes.",
        queued(
            [took(s, 1) for s in nbytes]
        ): "Each of the 2(n−1) messages of a ring starts with an α.",
        queued([took(s, 0) for s in nbytes]): "The latencies are missing.",
        queued([took(s, 2 * (n - 1), 0) for s in nbytes]): "The bytes are missing.",
        queued(
            [took(s, 2 * n, 2) for s in nbytes]
        ): "In a ring of n ranks a chunk takes n−1 steps, not n.",
        sum(
            max(gap, cost) for gap, cost in zip(gaps, costs, strict=True)
        ): "Bucket k travels while bucket k+1 is computed, not while it is computed itself.",
        1e3 * right: "Seconds are asked for.",
    }
    return {value: text for value, text in slips.items() if not close(value, right)}


def overlap_slips(
    n: int, tensors: int, nbytes: float, backward: float, b: int, alpha: float, beta: float
) -> tuple[dict, dict]:
    """What b buckets save, take alone, afterwards, beside backward, and on a wire half as fast; and slips."""
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
        "variance": 3.25,
    }
    slips = {
        "saved": {
            tensors - b: "Those are all-reduces: each is 2(n−1) messages a rank.",
            steps * tensors: "That is what is sent without buckets.",
            steps * b: "That is what is still sent.",
            steps * (tensors - 1): f"That is with one bucket: there are {b}.",
            (n - 1) * (tensors - b): HALF,
            n * steps * (tensors - b): ALL,
        },
        "bucket": {
            one / 2: HALF,
            factor * nbytes / b * beta: "The latencies are missing.",
            steps * alpha + factor * nbytes * beta: "That is all gradients in one bucket.",
            b * one: f"That is all {b} buckets.",
            steps * alpha: "The bytes are missing.",
            alpha + factor * nbytes / b * beta: "Each of the 2(n−1) messages starts with an α.",
        },
        "afterwards": {
            backward + one: "That is one bucket after backward: here all of them come after it.",
            b * one: "And backward?",
            backward: "And the buckets?",
        },
        "beside": {
            backward + b * one: "That is without overlap.",
            backward: "The last bucket starts when backward ends.",
            backward / b
            + b * one: "The wire is faster than backward here, and waits for each bucket.",
            b * one: "The wire waits for the gradients.",
        },
        "slow": {
            backward
            + slow: "A bucket takes longer than the next one needs to be computed: they queue.",
            backward + b * slow: "That is without overlap.",
            b * slow: "The wire rests until the first bucket.",
            backward / b + b * 2 * one: "Bytes take twice as long, latencies do not.",
            backward + one: "The wire is half as fast: β is twice as large.",
        },
        "smallest": {
            steps * alpha / (backward / nbytes): "The bytes take time on the wire, too.",
            steps * alpha / (factor * beta): "That is where latency and bytes take equally long.",
            nbytes / b: f"That is the size of one of {b} buckets: smaller ones keep up, too.",
            fits / 4: "Bytes are asked for.",
        },
        "variance": {
            2.0: "That is within the ranks: their means differ.",
            1.25: "That is between the ranks alone.",
            2 + 5 / 3: "Divide by the number of means, not by one less.",
        },
    }
    return values, slips


class PredictOverlap(Prediction):
    name = "predict_overlap"


def step_seconds(yours) -> None:
    """`step_seconds(nbytes, ready, n, alpha, beta)`: when the last bucket is averaged."""
    ask(StepSeconds(), yours)


def predict_overlap(saved, bucket, afterwards, beside, slow, smallest, variance) -> None:
    """16 ranks, 160 gradients of 400 MB in all, backward 40 ms, α = 10 µs, β = 1/(25 GB/s), 10 equal buckets."""
    values, slips = overlap_slips(
        n=16, tensors=160, nbytes=400e6, backward=40e-3, b=10, alpha=10e-6, beta=1 / 25e9
    )
    right = "Messages, seconds, bytes and a variance, within 1 %."
    ask(
        PredictOverlap(list(values), values, slips, right),
        saved,
        bucket,
        afterwards,
        beside,
        slow,
        smallest,
        variance,
    )
