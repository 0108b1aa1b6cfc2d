"""A schedule printed as a grid: a row for each stage, a column for each slot of time.

    stage 0  F0 F1 .  .  B0 ── F2 .  B1 ── …        an action that takes two slots goes on as ──
    stage 1  .  F0 B0 ── F1 B1 ── F2 …              .   the stage waits

The columns come from `simulate`, so the grid shows what the lists alone do not: the bubble.
"""

from __future__ import annotations

from collections.abc import Sequence

from .action import Action
from .simulate import Simulation, simulate


def grid(lists: Sequence[Sequence[Action]] | Simulation, slot: float = 1.0, **times) -> str:
    """The grid of a schedule's lists, or of a Simulation.

    slot: the time of one column.  times: as for `simulate`; by default F, I, W and U take 1 and B 2. A schedule that
    hangs is drawn as far as it comes, with the action that each stage waits for: `B0?`.
    Raises ValueError for a slot that is too long to show an action.
    """
    run = (
        lists
        if isinstance(lists, Simulation)
        else simulate(lists, **{"update": 1.0} | times, partly=True)
    )
    words = [[(round(s.start / slot), round(s.end / slot), s) for s in row] for row in run.spans]
    for begin, end, span in (word for row in words for word in row):
        if begin == end:
            raise ValueError(
                f"{span.action} of stage {span.stage} takes {span.end - span.start:g}, too little to show"
                f" in slots of {slot:g}"
            )
    columns = max((row[-1][1] for row in words if row), default=0)
    table = [_row(row, columns) for row in words]
    for row, action in zip(table, run.stuck):
        row += [] if action is None else [f"{action}?"]
    width = max(len(word) for row in table for word in row)
    name = len(f"stage {len(table) - 1}")
    lines = (
        f"{f'stage {i}':<{name}}  " + " ".join(_fill(w, width) for w in row)
        for i, row in enumerate(table)
    )
    return "\n".join(line.rstrip() for line in lines)


def _row(words: list, columns: int) -> list[str]:
    """The words of one stage, slot by slot."""
    row = ["."] * columns
    for begin, end, span in words:
        row[begin:end] = [str(span.action)] + ["─"] * (end - begin - 1)
    return row


def _fill(word: str, width: int) -> str:
    return word * width if word == "─" else f"{word:<{width}}"
