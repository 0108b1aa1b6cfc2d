"""What a validator says of a wrong schedule: the first wrong action, where it stands, and what it misses."""

from __future__ import annotations

from .action import Action


class ScheduleError(ValueError):
    """A schedule is wrong. stage, position (from 0 in the stage's list), action: the first wrong one; why: in words.

    An action that is missing at the end of a list has the position behind it.
    """

    def __init__(self, stage: int, position: int, action: Action, why: str):
        super().__init__(stage, position, action, why)
        self.stage = stage
        self.position = position
        self.action = action
        self.why = why

    def __str__(self) -> str:
        return f"stage {self.stage}, position {self.position}, {self.action}: {self.why}"
