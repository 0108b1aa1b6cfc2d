"""The checked header of a message: what each side says of it, and what is wrong between the two."""

from __future__ import annotations

from typing import NamedTuple

import torch

Call = tuple[int, str] | None


class Side(NamedTuple):
    """What one side of a transfer says of it, in the checked header of the message.

    call: the collective that the message is part of: which one on its Comm, and what its caller said.
    """

    rank: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    label: str | None
    call: Call
    where: str

    def __str__(self) -> str:
        label = f" labelled {self.label!r}" if self.label else ""
        at = f"\n    at {self.where}" if self.where else ""
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{label}{at}"


def order(sent: Call, expected: Call) -> int:
    """1 if a message belongs to a later collective than the receive that it met, −1 if to an earlier one, else 0.

    That happens after a collective which failed on some ranks: they have left it, others have not.
    """
    if sent is None or expected is None:
        return 0
    return (sent[0] > expected[0]) - (sent[0] < expected[0])


def mismatch(sender: Side, receiver: Side) -> str | None:
    """What is wrong between the two sides, naming both; None if they agree."""
    if sender[1:5] == receiver[1:5]:
        return None
    what = f"rank {sender.rank} sends {sender}\n  but rank {receiver.rank} receives {receiver}"
    if sender.call == receiver.call:
        return what
    calls = [f"\n  rank {side.rank} is in {_call(side.call)}" for side in (sender, receiver)]
    return what + "".join(calls)


def _call(call: Call) -> str:
    return "no collective" if call is None else f"{call[1]}, collective {call[0]} of this Comm"
