"""A schedule is data: for each stage the list of what it does, in order, to which micro-batch.

    F  forward                                     F0 F1 F2 B0 …
    B  backward, whole
    I  backward for the input's gradient only: what the stage before waits for (the zero-bubble paper's "B")
    W  backward for the weights' gradient, after its I, at any time
    U  update of the weights with the gradients so far, the last of them of this micro-batch (PipeDream)

S stages, numbered from 0, hold v chunks each; the model is cut into v·S parts, and part c·S + stage is chunk c
of `stage` (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2). M micro-batches,
numbered from 0. Everything else in this package reads such lists or writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ...arguments import whole

KINDS = "FBIWU"
WORD = re.compile(rf"([{KINDS}])(\d+)(?:\.(\d+))?")


class Action(NamedTuple):
    """One step of a stage: kind of work ("F", "B", "I", "W" or "U"), micro-batch, and which of the stage's chunks.

    Printed as `F3`, with a chunk other than 0 as `F3.1`.
    """

    kind: str
    micro: int
    chunk: int = 0

    def __repr__(self) -> str:
        return f"{self.kind}{self.micro}" + f".{self.chunk}" * bool(self.chunk)

    __str__ = __repr__

    @classmethod
    def parse(cls, word: str) -> Action:
        """`Action.parse("F3.1") == Action("F", 3, 1)`. ValueError for a word that is no action."""
        found = WORD.fullmatch(word)
        if not found:
            raise ValueError(
                f"{word!r} is no action: write one of {', '.join(KINDS)}, then the micro-batch, as in F3,"
                " or F3.1 with its chunk"
            )
        return cls(found[1], int(found[2]), int(found[3] or 0))


Schedule = Callable[[int, int, int], list[Action]]


def parse(text: str) -> list[Action]:
    """A stage's list from its words: `parse("F0 F1 B0 B1")`."""
    return [Action.parse(word) for word in text.split()]


def lists(schedule: Schedule, S: int, M: int) -> list[list[Action]]:
    """The lists of all S stages, stage 0 first."""
    return [schedule(stage, S, M) for stage in range(S)]


def check(stage: int, S: int, M: int) -> None:
    """What every schedule asks of its arguments."""
    whole(S, "a pipeline has at least 1 stage", 1)
    whole(M, "a step has at least 1 micro-batch", 1)
    if not 0 <= whole(stage, f"a stage is a whole number, 0 to {S - 1}") < S:
        raise ValueError(f"there is no stage {stage} in a pipeline of {S} stages, 0 to {S - 1}")
