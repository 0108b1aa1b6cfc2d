"""The exercise of lesson 08 in which numbers are foretold: bytes, segments, work, a share, a momentum, a rate."""

from __future__ import annotations

from ..exam import ask
from ..prediction import Prediction


class PredictRemat(Prediction):
    name = "predict_remat"


def remat_slips(
    L: int, a: float, x: float, k: int, heads: int, s: int, h: int, micro: int
) -> tuple[dict, dict]:
    """A chain of L layers that keep a bytes, x of them their input: whole, in k segments, at best; 64 by halves."""
    peak = lambda n: (n - 1) * x + L / n * a
    best = min((n for n in range(1, L + 1) if L % n == 0), key=peak)
    core = 5 * heads * s / h
    values = {
        "plain_bytes": L * a,
        "segment_bytes": peak(k),
        "best": best,
        "work": (4 - 1 / k) / 3,
        "halves": 6 * x + a,
        "share": core / (34 + core),
        "momentum": 1 - 0.9 ** (1 / micro),
        "rate": 0.1 * micro**0.5,
    }
    slips = {
        "plain_bytes": {
            L * x: "That is their inputs only.",
            L * (a + x): "The input is among the 400 MB.",
        },
        "segment_bytes": {
            k * x
            + L / k * a: "The segment that is computed again has its input among its own bytes.",
            k
            * x: "That is the inputs only: one segment is computed again, with all that it keeps.",
            L / k * a: "The inputs of the other segments are held, too.",
            (k - 1) * a + L / k * a: "Of the other segments only inputs are held.",
            (k - 1) * x + L / k * x: "A layer of the segment keeps 400 MB when it runs again.",
        },
        "best": {
            round(
                L**0.5
            ): "√L is best where a layer keeps its input only. Here it keeps four times as much.",
            L: "Then all inputs are held.",
            5: "The root of L·x/a? It is the other way round.",
        },
        "work": {
            4 / 3: "Nearly: the last segment is not repeated.",
            (4 - 1 / k): "Over a step without: divide by 3.",
            2 - 1 / k: "That is forward only: a step has the backward, too, of two forwards.",
            1 - 1 / k: "That is what is repeated, in forwards.",
            (1 - 1 / k) / 3: "That is what is added.",
            1.5 - 1 / (2 * k): "A backward costs two forwards, so a step costs three.",
        },
        "halves": {
            6 * x: "And the one layer whose backward comes.",
            7 * x + a: "log₂ 64 is 6.",
            7 * a: "Of a half only its input is held.",
            7 * x: "The last layer keeps all of its 400 MB.",
            64 * a: "That is all of them.",
            32 * a: "The first half is halved again, until one layer is left.",
            15 * x: "That is √L, and with layers that keep their input only.",
        },
        "share": {
            core / 34: "Of all that is kept: 34 + 5as/h.",
            core: "The part of all that is kept.",
            34 / (34 + core): "That is what stays.",
            100 * core / (34 + core): "A part of 1, not per cent.",
        },
        "momentum": {
            0.1 / micro: "Nearly: 1 − (1 − m)^(1/k).",
            1 - 0.9**micro: "The other way round: a root.",
            0.9 ** (1 / micro): "That is what is left; the momentum is what comes in.",
            0.1: "Of one update.",
            0.1 ** (1 / micro): "What is left of the old averages counts: (1 − m).",
        },
        "rate": {
            0.1 * micro: "That is the linear rule.",
            0.1: "That is the rate of one micro-batch.",
            0.1 / micro: "A larger batch wants a larger rate.",
            0.1 / micro**0.5: "A larger batch wants a larger rate.",
            micro**0.5: "That is how many times 0.1 it is.",
        },
    }
    for name in ("plain_bytes", "segment_bytes", "halves"):
        slips[name] |= {
            values[name] / 1e6: "In bytes: 1 MB is 1,000,000 of them.",
            values[name] / 1e9: "In bytes: 1 GB is 10⁹ of them.",
        }
    return values, slips


def predict_remat(plain_bytes, segment_bytes, best, work, halves, share, momentum, rate) -> None:
    """100 layers that keep 400 MB each, of which 100 MB are their input: bytes whole and in 10 segments, the best k of
    those that divide 100, the work of 10 segments; bytes of 64 of them by halves; selective's share for 128 heads,
    2,048 tokens, h = 20,480; for 8 micro-batches the momentum of batch norm, and the rate by the root rule.
    """
    values, slips = remat_slips(L=100, a=400e6, x=100e6, k=10, heads=128, s=2048, h=20480, micro=8)
    exam = PredictRemat(
        list(values), values, slips, "Bytes, segments, work, share, momentum and rate: within 1 %."
    )
    ask(exam, plain_bytes, segment_bytes, best, work, halves, share, momentum, rate)
