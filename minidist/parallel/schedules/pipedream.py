"""PipeDream's lists: 1F1B that never empties. M is then the number of micro-batches of the whole run.

    PipeDream     an update after every backward: no bubble after the start, but a micro-batch meets old weights, and
                  stage s must keep S − s versions of them
    PipeDream-2BW an update after every m ≥ S micro-batches, whose gradients are added up: two versions are enough

    S = 2    stage 0  F0 F1 B0 U0 F2 B1 U1 F3 …         which weights each F and B uses: see `versions`
             stage 1  F0 B0 U0 F1 B1 U1 F2 …

Sources: Narayanan et al. 2019, "PipeDream", sections 3.2 and 3.3; Narayanan et al. 2021, "Memory-Efficient
Pipeline-Parallel DNN Training", section 3.1.
"""

from __future__ import annotations

from .action import Action
from .flushed import one_f_one_b


def pipedream(stage: int, S: int, M: int) -> list[Action]:
    """1F1B with an update after every backward."""
    return _updated(one_f_one_b(stage, S, M), 1)


def pipedream_2bw(stage: int, S: int, M: int, m: int) -> list[Action]:
    """1F1B with an update after every m-th backward. ValueError for m < S, and if m does not divide M."""
    actions = one_f_one_b(stage, S, M)
    if m < S:
        raise ValueError(
            f"with an update every {m} micro-batches, two versions do not do for {S} stages: m ≥ S"
        )
    if M % m:
        raise ValueError(f"{M} micro-batches are not a multiple of the {m} between two updates")
    return _updated(actions, m)


def _updated(actions: list[Action], m: int) -> list[Action]:
    updates = {
        a: [Action("U", a.micro)] for a in actions if a.kind == "B" and (a.micro + 1) % m == 0
    }
    return [step for a in actions for step in [a, *updates.get(a, [])]]
