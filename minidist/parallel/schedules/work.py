"""Whether each stage's list, by itself, has all its work, once, and in an order that can be.

For every micro-batch and chunk: one F, then one B, or one I and after it one W. An update U comes after the backward
of its micro-batch. What other stages do is not looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence

from .action import KINDS, Action
from .error import ScheduleError
from .flow import Shape

NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward for the input",
    "W": "backward for the weights",
    "U": "update",
}


def check_work(lists: Sequence[Sequence[Action]], shape: Shape) -> None:
    """Raise ScheduleError for the action that stands first in its list among those that are wrong, else return."""
    found = [
        wrong for stage, actions in enumerate(lists) for wrong in _wrong(stage, actions, shape)
    ]
    if found:
        raise min(found, key=lambda e: (e.position, e.stage))


def _wrong(stage: int, actions: Sequence[Action], shape: Shape) -> list[ScheduleError]:
    """The first wrong action of one stage, if there is one."""
    done, there = set(), set(actions)
    for position, action in enumerate(actions):
        why = _unknown(action, shape) or _again(action, done) or _early(action, done, there)
        if why:
            return [ScheduleError(stage, position, action, why)]
        done.add(action)
    for action in (Action("F", m, c) for m in range(shape.M) for c in range(shape.v)):
        split = action._replace(kind="I") in done
        missing = [action] + [action._replace(kind=k) for k in ("IW" if split else "B")]
        for lost in (a for a in missing if a not in done):
            why = f"the list ends without this {NAMES[lost.kind]}"
            return [ScheduleError(stage, len(actions), lost, why)]
    return []


def _unknown(action: Action, shape: Shape) -> str | None:
    kind, micro, chunk = action
    if kind not in KINDS:
        return f"there is no kind {kind!r}, only {', '.join(KINDS)}"
    if not 0 <= micro < shape.M:
        return f"there is no micro-batch {micro}, only 0 to {shape.M - 1}"
    if not 0 <= chunk < shape.v:
        return f"there is no chunk {chunk}, only 0 to {shape.v - 1}"
    return None


def _again(action: Action, done: set[Action]) -> str | None:
    """Whether the same work was done before: a whole backward is both halves."""
    for kind in {"B": "BIW", "I": "IB", "W": "WB"}.get(action.kind, action.kind):
        if action._replace(kind=kind) in done:
            return f"this {NAMES[action.kind]} was done before, by {action._replace(kind=kind)}"
    return None


def _early(action: Action, done: set[Action], there: set[Action]) -> str | None:
    """Whether an action comes before what it needs of its own stage."""
    needed = {"B": "F", "I": "F", "W": "I", "U": "BW"}.get(action.kind, "")
    before = [action._replace(kind=kind) for kind in needed]
    if not before or any(a in done for a in before):
        return None
    first = next((a for a in before if a in there), before[0])
    return f"it needs {first}, which " + (
        "comes later in the list" if first in there else "is missing from the list"
    )
