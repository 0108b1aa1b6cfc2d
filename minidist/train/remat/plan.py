"""Which layers of a chain to keep and which to compute again: the least compute that fits into a budget of memory.

Layers 0 … L−1 have edges 0 … L between them: edge i is the input of layer i. A plan cuts them into segments. A *kept*
one holds the edges and the saved tensors of its layers until their backward; a *repeated* one only its first edge, and
costs the forward of its layers once more. Held by all segments before layer i: H(i). Backward runs from the end;
at layer l of a segment that begins at s there are

    H(s) + Σ (edge i + saved i for i = s … l) + work l      bytes,

with the work of one layer's backward (the gradients of both edges, unless it is given). The largest is the peak.

Least compute by dynamic programming from the first layer on: after i layers only (compute so far, H) matters, and of
these only pairs that no other one beats in both. So the plan is the best of all that repeat a layer at most once.
Source: Chen et al. 2016, section 3; exact over all segments as Beaumont et al. 2019, "Optimal checkpointing for
heterogeneous chains", section 4, and Jain et al. 2020, "Checkmate", section 4, do for wider classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Segment(NamedTuple):
    """Layers `first` to `end` − 1. `repeated`: their forward runs again in backward."""

    first: int
    end: int
    repeated: bool


@dataclass(frozen=True)
class Plan:
    """Segments in order, the largest number of bytes live in backward, and the forward cost that is paid again."""

    segments: tuple[Segment, ...]
    peak: float
    repeated: float

    def __str__(self) -> str:
        return " ".join(
            f"{'again' if again else 'kept'} {first}–{end - 1}"
            for first, end, again in self.segments
        )


class Chain:
    """What the layers of a chain cost: see `plan`, whose arguments these are."""

    def __init__(
        self,
        costs: Sequence[float],
        memories: Sequence[float],
        edges: Sequence[float] | None = None,
        work: Sequence[float] | None = None,
    ):
        self.layers = len(costs)
        self.costs, self.memories = list(costs), list(memories)
        self.edges = [0] * (self.layers + 1) if edges is None else list(edges)
        self.work = [a + b for a, b in pairwise(self.edges)] if work is None else list(work)
        for name, values, n in (
            ("memories", self.memories, self.layers),
            ("edges", self.edges, self.layers + 1),
            ("work", self.work, self.layers),
        ):
            if len(values) != n:
                raise ValueError(
                    f"{self.layers} layers have a cost, so there are {n} {name}, not {len(values)}"
                )

    def kept(self, first: int, end: int) -> float:
        """Bytes of the edges and saved tensors of these layers."""
        return sum(self.edges[first:end]) + sum(self.memories[first:end])

    def peak(self, first: int, end: int) -> float:
        """The most bytes of these layers in the backward of one of them."""
        return max(self.kept(first, layer + 1) + self.work[layer] for layer in range(first, end))

    def held(self, segment: Segment) -> float:
        """Bytes of a segment until its backward."""
        return (
            self.edges[segment.first] if segment.repeated else self.kept(segment.first, segment.end)
        )


def plan(
    costs: Sequence[float],
    memories: Sequence[float],
    budget: float,
    edges: Sequence[float] | None = None,
    work: Sequence[float] | None = None,
) -> Plan:
    """The plan with the least repeated forward whose peak is at most `budget`; of several, one that holds the least.

    costs: of each layer's forward, in FLOPs or seconds, one for each of L layers.  memories: bytes that it saves for
    backward, its input and output apart.  edges: bytes between the layers, L + 1 of them, 0 unless given.  work: bytes
    that its backward takes besides, the gradients of both its edges unless given.  budget: in bytes.
    Time: O(L²) for each pair (compute, held) that is not beaten, which are few where layers are alike.
    Raises ValueError if nothing fits, with the least that is needed; and where the numbers of values do not match.
    """
    chain = Chain(costs, memories, edges, work)
    found = _search(chain, budget, lambda partial: partial.repeated)
    if found is None:
        needed = _search(chain, math.inf, lambda partial: partial.peak).peak
        raise ValueError(
            f"no plan of {chain.layers} layers fits into {budget} bytes: {needed} are needed"
        )
    return found


def smallest(
    costs: Sequence[float],
    memories: Sequence[float],
    edges: Sequence[float] | None = None,
    work: Sequence[float] | None = None,
) -> Plan:
    """The plan with the lowest peak, whatever it repeats. Arguments as for `plan`."""
    return _search(Chain(costs, memories, edges, work), math.inf, lambda partial: partial.peak)


class _Partial(NamedTuple):
    """A plan of the first layers."""

    held: float
    repeated: float
    peak: float
    segments: tuple[Segment, ...]

    def after(self, segment: Segment, held: float, inside: float, again: float) -> _Partial:
        return _Partial(
            self.held + held,
            self.repeated + again * segment.repeated,
            max(self.peak, self.held + inside),
            (*self.segments, segment),
        )


def _search(chain: Chain, budget: float, wanted: Callable[[_Partial], float]) -> Plan | None:
    """The plan within the budget of which least is `wanted`; None if there is none."""
    best: list[list[_Partial]] = [[_Partial(0, 0, 0, ())], *([] for _ in range(chain.layers))]
    for first in range(chain.layers):
        best[first] = _unbeaten(best[first], wanted)
        for end in range(first + 1, chain.layers + 1):
            inside, again = chain.peak(first, end), sum(chain.costs[first:end])
            for partial in best[first]:
                if partial.held + inside > budget:
                    break  # they come in the order of `held`
                best[end] += [
                    partial.after(s, chain.held(s), inside, again) for s in _choices(first, end)
                ]
    found = _unbeaten(best[-1], wanted)
    return Plan(found[-1].segments, found[-1].peak, found[-1].repeated) if found else None


def _choices(first: int, end: int) -> list[Segment]:
    """A kept segment is one layer: several are several segments."""
    return [Segment(first, end, True), *([Segment(first, end, False)] if end == first + 1 else [])]


def _unbeaten(partials: list[_Partial], wanted: Callable[[_Partial], float]) -> list[_Partial]:
    """Those than which no other one both holds as little and has as little of what is wanted, by bytes held."""
    found: list[_Partial] = []
    for partial in sorted(partials, key=lambda p: (p.held, wanted(p))):
        if not found or wanted(partial) < wanted(found[-1]):
            found.append(partial)
    return found
