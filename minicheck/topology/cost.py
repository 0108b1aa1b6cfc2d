"""The exercises of lesson 03 about numbers: what all-reduces cost, as formulas and predicted, and as bandwidth.

A formula is compared with the clock of a World, which knows none: it only moves messages.
"""

from __future__ import annotations

import math
import sys

import torch

from minidist.collectives import all_reduce_
from minidist.comm.base import Comm
from minidist.comm.world.world import World

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..prediction import ALL, HALF, Prediction, close
from ..wrong import Wrong

RANKS = {
    "ring": (4, 2, 3, 7, 16, 1),
    "tree": (4, 2, 8, 32, 1),
    "halving_doubling": (4, 2, 8, 32, 1),
}
NEARLY = "Nearly: the factor is 2(n−1)/n."


def clock(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce of `nbytes` on a World of n ranks: it is run, on tensors without data."""
    world = World(n, alpha=alpha, beta=beta, device="meta")
    data = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    world.run(lambda comm, x: all_reduce_(comm, x, algorithm=algorithm), data)
    return world.time


class AllReduceSeconds(Exam):
    name = "all_reduce_seconds"
    right = (
        "Three algorithms, n = 1…32, bytes, α and β drawn at random: as on the clock of a World."
    )
    cases = tuple(Case(1, f"{name}, n = {n}", (name, n)) for name, ns in RANKS.items() for n in ns)

    def draw(self, case, rng):
        algorithm, n = case.given
        alpha, beta, share = [
            10 ** (low + wide * float(torch.rand((), generator=rng)))
            for low, wide in ((-6, 2), (-11, 2), (-0.5, 1))
        ]
        # so that no term is lost in the other
        return [(algorithm, n, n * int(share * alpha / beta), alpha, beta)]

    def run(self, comm: Comm, yours, *args):
        return yours(*args)

    def judge(self, case, args, outcome):
        _, _, nbytes, alpha, beta = args[0]
        got, want = number(outcome.results[0]), clock(*args[0])
        if abs(got - want) > 1e-6 * want:
            slip = next(
                (text for value, text in slips_of(*args[0]).items() if close(got, value)), ""
            )
            raise Wrong(
                f"{nbytes} bytes, α = {alpha:.3g} s, β = {beta:.3g} s/B: your formula gives {got:.6g} s, the "
                f"World takes {want:.6g} s. {slip or part_wrong(*args[0], got, want)}".rstrip()
            )


def number(value) -> float:
    """Raise Wrong unless an answer is a number."""
    if value is None:
        raise Wrong("it returns None. Is there a `return`?")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        kind = kind_of(value)
        shown = (
            value if kind == "float" else "far too large" if kind == "int" else f"of type {kind}"
        )
        raise Wrong(f"a finite number is asked for, and this is {shown}.")
    return float(value)


def slips_of(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> dict[float, str]:
    """Wrong values and what they mean."""
    steps = 2 * (n - 1) if algorithm == "ring" else 2 * math.log2(n)
    sent = 2 * math.log2(n) * nbytes if algorithm == "tree" else 2 * (n - 1) / n * nbytes
    log, whole = 2 * math.log(n), steps * (alpha + nbytes * beta)
    right = steps * alpha + sent * beta
    slips = {
        right / 2: "That is one half: up to the sum, and not back to everyone.",
        log * alpha
        + (log * nbytes if algorithm == "tree" else sent) * beta: "The logarithm is to base 2.",
        alpha + sent * beta: "Every step costs an α, not the first alone.",
        whole: "In each step only a part of x travels, not all N bytes.",
        n * (alpha + nbytes / n * beta) * 2: "In a ring of n ranks a chunk takes n−1 steps, not n.",
        2 * (n - 1) * alpha
        + 2 * (n - 1) / n * nbytes * beta: "Those are the steps of a ring, 2(n−1).",
        steps
        * (alpha + nbytes / n * beta): "How many bytes does a rank send in all the steps together?",
        steps * alpha
        + 2 * nbytes * beta: "How many bytes does a rank send in all the steps together?",
        steps * alpha + 8 * sent * beta: "Bytes, not bits.",
        1e6 * right: "Seconds are asked for.",
    }
    return slips if n > 1 else {}


def part_wrong(
    algorithm: str, n: int, nbytes: int, alpha: float, beta: float, got: float, want: float
) -> str:
    """Which of the two terms is off, if the other fits."""
    latency = clock(algorithm, n, nbytes, alpha, 0.0)
    for value, text in ((latency, "the bytes"), (want - latency, "the latencies")):
        if n > 1 and close(got, value):
            return f"{text.capitalize()} are missing."
    return (
        "With one rank nothing is sent."
        if n == 1
        else f"It is too {'large' if got > want else 'small'}."
    )


FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


class Bandwidth(Exam):
    """NVIDIA/nccl-tests, doc/PERFORMANCE.md."""

    name = "bandwidth"
    right = "Six verbs, ranks, bytes and seconds drawn at random, as nccl-tests define it."
    cases = tuple(Case(1, verb, (verb, n)) for verb in FACTORS for n in (8, 2, 3, None))

    def draw(self, case, rng):
        verb, n = case.given
        n = n or int(torch.randint(4, 2000, (), generator=rng))
        nbytes, seconds = [
            10 ** (low + 3 * float(torch.rand((), generator=rng))) for low in (6, -4)
        ]
        return [(verb, n, int(nbytes), seconds)]

    def run(self, comm: Comm, yours, *args):
        return yours(*args)

    def judge(self, case, args, outcome):
        verb, n, nbytes, seconds = args[0]
        got = outcome.results[0]
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Wrong("it should return two numbers: (algorithm bandwidth, bus bandwidth).")
        algorithm, bus = map(number, got)
        want = nbytes / seconds
        if not near(algorithm, want):
            text = "Nearly: is something rounded?" if close(algorithm, want) else ""
            text = (
                "That is the other of the two."
                if near(algorithm, want * FACTORS[verb](n))
                else text
            )
            raise Wrong(
                f"n = {n}, {nbytes} bytes in {seconds:.3g} s: the algorithm bandwidth is {algorithm:.6g}, and "
                f"should be N over seconds, {want:.6g} bytes per second. {text}".rstrip()
            )
        if not near(bus, want * FACTORS[verb](n)):
            raise Wrong(
                f"n = {n}: the bus bandwidth is {bus / want:.4g} times the algorithm bandwidth, and should be "
                f"{FACTORS[verb](n):.4g} times. {self._why(verb, n, bus / want)}".rstrip()
            )

    def _why(self, verb: str, n: int, factor: float) -> str:
        one = (n - 1) / n
        if close(factor, 2 * one):
            return "An all-reduce has two halves; this verb is one, or none."
        texts = {
            one: HALF if verb == "all_reduce" else "Each must have all N bytes, and pass them on.",
            1: NEARLY
            if verb == "all_reduce"
            else "What it has already, a rank need not send: 1/n of N.",
            n / (n - 1): "It is the other way up.",
            n - 1: "N is the whole tensor, not the part of one rank.",
            n / (2 * (n - 1)): "It is the other way up.",
        }
        return next(
            (text for value, text in texts.items() if close(factor, value)),
            "What must each rank send?",
        )


def near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * abs(b)  # so that what is rounded to whole bytes per second shows


def cost_slips(
    n: int, nodes: int, nbytes: float, alpha: float, beta: float, p: float
) -> tuple[dict, dict]:
    """Latency of a ring's and a tree's all-reduce, where they cross, bytes between nodes, a step with a late rank."""
    log, piece = math.log2(n), nbytes * nodes / n
    cross = (n - 1 - log) * alpha / ((log - (n - 1) / n) * beta)
    values = {
        "ring": 2 * (n - 1) * alpha,
        "tree": 2 * log * alpha,
        "crossover": cross,
        "across": 2 * (nodes - 1) / nodes * piece,
        "late": 1 - (1 - p) ** n,
    }
    slips = {
        "ring": {
            (n - 1) * alpha: HALF,
            2 * log * alpha: "That is the tree.",
            alpha: "Each of 2(n−1) steps has an α.",
        },
        "tree": {
            log * alpha: "To the root, and back: two trees.",
            2 * (n - 1) * alpha: "That is the ring.",
            2 * math.log(n) * alpha: "The logarithm is to base 2.",
        },
        "crossover": {
            (n - 1)
            * alpha
            / (log * beta): "Nearly: a tree has latencies, too, and a ring has bytes.",
            (n - 1 - log) * alpha / (log * beta): "Nearly: the ring's bytes count, too.",
            (n - 1) * alpha / ((log - 1) * beta): "Nearly: the tree's latencies count, too.",
            cross / 4: "Bytes are asked for, not numbers.",
            cross / n: "That is one chunk: the whole tensor is asked for.",
        },
        "across": {
            2 * (nodes - 1) / nodes * nbytes: "Each rank of a node carries one piece of 8.",
            2 * piece: "Nearly: the ring is over m = 64 nodes, not over all ranks: 2(m−1)/m.",
            piece: "In a ring each rank sends nearly twice its tensor: 2(m−1)/m.",
            (nodes - 1) / nodes * piece: HALF,
            2 * (nodes - 1) * piece: ALL,
        },
        "late": {
            n * p: "Two may be late at once: then they are counted twice.",
            p: "That is one rank.",
            (1 - p) ** n: "That is how likely it is that nobody is late.",
        },
    }
    return values, slips


class PredictCost(Prediction):
    name = "predict_cost"


def all_reduce_seconds(yours) -> None:
    """`all_reduce_seconds(algorithm, n, nbytes, alpha, beta)`: of "ring", "tree" and "halving_doubling"."""
    ask(AllReduceSeconds(), yours)


def bandwidth(yours) -> None:
    """`bandwidth(verb, n, nbytes, seconds)`: (algorithm bandwidth, bus bandwidth), bytes per second."""
    ask(Bandwidth(), yours)


def predict_cost(ring, tree, crossover, across, late) -> None:
    """512 ranks, α = 5 µs, β = 1/(50 GB/s): seconds of a ring's and a tree's latencies, and where the two cross.

    across: bytes that a rank sends to other nodes, when 64 nodes of 8 reduce 10⁹ bytes in three steps.
    late: how likely a step waits, if each rank is late once in a thousand steps.
    """
    values, slips = cost_slips(n=512, nodes=64, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, p=0.001)
    exam = PredictCost(list(values), values, slips, "Seconds, bytes and odds, within 1 %.")
    ask(exam, ring, tree, crossover, across, late)
