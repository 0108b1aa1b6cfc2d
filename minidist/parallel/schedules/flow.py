"""What flows through a pipeline: which action needs what, and from which stage it comes.

An activation "a" of a micro-batch leaves part p of the model with its F and is needed by part p + 1's F; a gradient
"g" leaves part p with its B or I and is needed by part p − 1's. Within a stage a backward needs its forward, a W its
I, an update the backward of its micro-batch.

Where the parts are, with v chunks a stage:   loop, part c·S + stage        V, v = 2: down, then up again
    S = 3                                     0 1 2 | 3 4 5                 0 1 2
                                                                            5 4 3
Sources: Narayanan et al. 2021 (loop); Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6 (V).
"""

from __future__ import annotations

from typing import NamedTuple

from ...arguments import whole
from .action import Action

PLACES = ("loop", "V")
NOUN = {"a": "activation", "g": "gradient"}


class Item(NamedTuple):
    """What an action leaves behind: "a" or "g" (or "w" and "u", for the own stage only), of a part of the model."""

    what: str
    micro: int
    part: int


class Shape(NamedTuple):
    """A pipeline: S stages, M micro-batches, v chunks a stage, and where the parts are ("loop" or "V")."""

    S: int
    M: int
    v: int = 1
    place: str = "loop"

    def checked(self) -> Shape:
        """Itself. ValueError for a pipeline that cannot be."""
        S, M, v, place = self
        S = whole(S, "a pipeline has at least 1 stage", 1)
        M = whole(M, "a step has at least 1 micro-batch", 1)
        v = whole(v, "a stage has at least 1 chunk", 1)
        if place not in PLACES or (place == "V" and v != 2):
            raise ValueError(
                f'parts are placed as a "loop", or as a "V" of 2 chunks, not as {place!r} of {v}'
            )
        return Shape(S, M, v, place)

    def part(self, stage: int, chunk: int) -> int:
        """Which part of the model a stage's chunk is."""
        return 2 * self.S - 1 - stage if self.place == "V" and chunk else chunk * self.S + stage

    def stage(self, part: int) -> int:
        """The stage that holds a part."""
        return 2 * self.S - 1 - part if self.place == "V" and part >= self.S else part % self.S

    def gives(self, stage: int, action: Action) -> Item:
        """What `action` leaves behind."""
        what = {"F": "a", "B": "g", "I": "g", "W": "w", "U": "u"}[action.kind]
        return Item(what, action.micro, self.part(stage, action.chunk))

    def needs(self, stage: int, action: Action) -> list[Item]:
        """What must be there before `action`: from its own stage first, then from its neighbour."""
        kind = action.kind
        micro = action.micro
        part = self.part(stage, action.chunk)
        if kind == "F":
            return [Item("a", micro, part - 1)] if part else []
        if kind in "BI":
            return [Item("a", micro, part)] + [Item("g", micro, part + 1)] * (
                part < self.S * self.v - 1
            )
        return [Item("g", micro, part)]

    def far(self, stage: int, action: Action) -> list[Item]:
        """What `action` needs from another stage: nothing, or one message."""
        return [item for item in self.needs(stage, action) if self.stage(item.part) != stage]


def shape_of(lists: list[list[Action]], place: str = "loop") -> Shape:
    """The pipeline that these lists are for, by the highest numbers in them."""
    everything = [a for actions in lists for a in actions]
    if not everything:
        raise ValueError(f"{len(lists)} lists without an action are no schedule")
    micros, chunks = (1 + max(column) for column in zip(*(a[1:] for a in everything)))
    return Shape(len(lists), micros, chunks, place).checked()
