"""The checked header of a message: what each side says of it, and what is wrong between the two."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Side(NamedTuple):
    """What one side of a transfer says of it, in the checked header of the message."""

    rank: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    label: str | None
    where: str

    def __str__(self) -> str:
        label = f" labelled {self.label!r}" if self.label else ""
        at = f"\n    at {self.where}" if self.where else ""
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{label}{at}"


def mismatch(sender: Side, receiver: Side) -> str | None:
    """What is wrong between the two sides, naming both; None if they agree."""
    what = f"rank {sender.rank} sends {sender}\n  but rank {receiver.rank} receives {receiver}"
    return None if sender[1:4] == receiver[1:4] else what
