"""What a stage keeps for its backwards while a list runs: the other price of a schedule.

A forward keeps a micro-batch's activations until its backward is done; of a split backward the input's half lets go
of some of them, and the weights' half needs the rest (in a transformer layer 32h of 34h + 5as bytes a token, says
Qi et al. 2023, table 1). Counted in micro-batches of one chunk: with v chunks each is a v-th of a stage's.

Peaks of the hand-written schedules are in `formulas`; here they are counted from the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .action import Action


def kept(actions: Sequence[Action], each: float = 1.0, rest: float | None = None) -> list[float]:
    """What is kept after each action of a list, in the unit of `each`.

    each: what one forward keeps.  rest: what of it is still there between I and W, by default all.
    """
    rest = each if rest is None else rest
    change = {"F": each, "B": -each, "I": rest - each, "W": -rest, "U": 0.0}
    return list(accumulate(change[a.kind] for a in actions))


def in_flight(actions: Sequence[Action]) -> int:
    """The most forwards of a list whose backward (all of it) has not been done: activations kept at the peak."""
    return int(max(kept(actions), default=0))
