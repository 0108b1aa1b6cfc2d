"""The exercise of lesson 06 about its figures: a server's wire, several servers, staleness and what it costs."""

from __future__ import annotations

import math

from ..exam import ask
from ..prediction import HALF, Prediction

MILLI = "In seconds."


class PredictServer(Prediction):
    name = "predict_server"


def server_slips(
    n: int,
    nbytes: float,
    compute: float,
    alpha: float,
    beta: float,
    wanted: float,
    slower: int,
    bound: int,
    curvature: float,
) -> tuple[dict, dict]:
    """The values of `predict_server`, and slips."""
    wire = nbytes * beta
    one, ring = compute + 2 * alpha + (n + 1) * wire, compute + 2 * (n - 1) * (alpha + wire / n)
    servers = n / (wanted / wire - 1)
    gradients = (n - 1) * slower + 1
    d = n - 1
    into, stalest = n * nbytes / servers, (n - 1) * (2 * bound + 1)
    rate = 2 * math.sin(math.pi / (4 * d + 2)) / curvature
    values = {
        "one": one,
        "ring": ring,
        "servers": servers,
        "into": into,
        "gradients": gradients,
        "stalest": stalest,
        "rate": rate,
    }
    slips = {
        "one": {
            compute
            + 2
            * n
            * wire: "That is one way after the other: gradients come in while weights go out.",
            (n + 1) * wire: "And the computing?",
            compute + 2 * wire: "Every worker's gradients pass the wire.",
            compute
            + n
            * wire: "Nearly: the first gradients come when one worker has its weights, N bytes.",
            1e3 * one: MILLI,
        },
        "ring": {
            1e3 * ring: MILLI,
            compute + n * wire: "A ring moves 2(n−1)/n of the bytes, whatever n is.",
            ring - compute: "And the computing?",
            compute + (n - 1) * (alpha + wire / n): HALF,
            compute + 2 * n * wire: "That is a server.",
        },
        "servers": {
            n: "That would make it 2Nβ. How many make it (n/s + 1)Nβ = 100 ms?",
            n / (wanted / wire): "And the + 1?",
            n - 1: "Solve (n/s + 1)Nβ = 100 ms for s.",
        },
        "into": {
            nbytes / servers: "That is one worker's.",
            n * nbytes: "That is one server's wire if it owns all.",
            2 * into: "In and out: only what comes in is asked for.",
            nbytes: "All workers push to each server.",
            into / 1e9: "In bytes: 1 GB is 10⁹.",
        },
        "gradients": {
            n: "That is the synchronous run's.",
            slower * n: "One of them is the slow one.",
            (n - 1) * slower: "The slow one has one, too.",
        },
        "stalest": {
            bound: "That is how far clocks drift, not how many updates.",
            (n - 1)
            * bound: "Between its pull and its push another one may go from `bound` behind to `bound` + 1 ahead.",
            (n - 1) * (bound + 1): "It was up to `bound` behind at the pull, too.",
            n * (2 * bound + 1): "Its own pushes do not count.",
            n - 1: "That is among equal workers.",
        },
        "rate": {
            math.pi / (2 * d) / curvature: "Nearly: π/2d is 2·sin(π/(4d + 2)) for a large d.",
            math.pi / (2 * d): "π/2d is for a large d only, and the loss has curvature 4.",
            rate * curvature: "The loss has curvature 4: the step is w − 4ηw′.",
            2 / curvature: "That is with fresh gradients.",
            2
            * math.sin(math.pi / (4 * n + 2))
            / curvature: "The staleness is n − 1, its own push not counted.",
            rate * curvature**2: "Divide by the curvature.",
        },
    }
    return values, slips


def predict_server(one, ring, servers, into, gradients, stalest, rate) -> None:
    """32 workers, 1 GB, 40 ms, α = 10 µs, β = 1/(50 GB/s), 100 ms, 3 times slower, bound 2, curvature 4."""
    values, slips = server_slips(
        n=32,
        nbytes=1e9,
        compute=40e-3,
        alpha=10e-6,
        beta=1 / 50e9,
        wanted=100e-3,
        slower=3,
        bound=2,
        curvature=4.0,
    )
    right = "Seconds, servers, bytes, gradients, staleness and a rate, within 1 %."
    ask(
        PredictServer(list(values), values, slips, right),
        one,
        ring,
        servers,
        into,
        gradients,
        stalest,
        rate,
    )
