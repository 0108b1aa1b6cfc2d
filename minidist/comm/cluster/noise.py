"""Seeded random slow-downs: the k-th event of a rank takes the same time in every run.

A run of a World must be the same bit for bit, whatever order its ranks come to their events in. So a factor
is not drawn from a generator that all share: it is a function of (seed, kind of event, rank, k), a hash of
the four (SplitMix64, Steele, Lea and Flood 2014) turned into a normal number z. The factor is exp(σz): its
median is 1, and half of all events take longer.
"""

from __future__ import annotations

from math import exp
from statistics import NormalDist

_NORMAL = NormalDist()
_WORD = 2**64 - 1
KINDS = ("message", "operation")


def factor(sigma: float, seed: int, kind: str, rank: int, k: int) -> float:
    """By how much the time of the k-th event of `kind` (one of `KINDS`) on `rank` is multiplied."""
    if kind not in KINDS:
        raise ValueError(f"events are {' or '.join(map(repr, KINDS))}, not {kind!r}")
    word = 0
    for part in (seed, KINDS.index(kind), rank, k):
        word = _mixed(word + part)
    return exp(sigma * _NORMAL.inv_cdf((word >> 11 | 1) * 2.0**-53))  # strictly between 0 and 1


def _mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
