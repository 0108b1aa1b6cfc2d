"""A nested state as pieces: its tensors under their places in it, and the rest of it as one tensor of text.

    "optimizer/w"            uint8     {"step": 5, "exp_avg": …}    as JSON, see values.py
    "optimizer/w/exp_avg"    float32   the tensor; where it has the shape of the parameter, cut as the parameter is

So a checkpoint knows one kind of thing only, and a state that belongs to a parameter goes wherever that goes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from .manifest import Refused
from .piece import Piece, piece
from .places import Place
from .saved import Saved
from .values import decode, encode


def pieces(name: str, value: Any, place: Place | None = None) -> list[Piece]:
    """A nested state called `name`. place: of the parameter that it belongs to.

    Raises ValueError for what a checkpoint does not hold, and for a state of a split parameter that is neither split
    as it is nor a single number: nobody could put it together.
    """
    found: dict[str, list[Piece]] = {}

    def keep(at: str, x: Tensor) -> list:
        key = name + at
        while key in found:  # {1: …, "1": …}
            key += "'"
        like = place is not None and tuple(x.shape) == place.shape
        if place is not None and not like and x.dim() and not place.entire:
            raise ValueError(
                f"{key} is {tuple(x.shape)} and belongs to a part {place.shape} of {place.name}, "
                f"which is {place.whole}: how it is split is not known"
            )
        found[key] = place.pieces(x, key) if like else [piece(key, x)]
        return [key, like]

    found[name] = []  # the text comes first
    text = json.dumps(encode(value, keep)).encode()
    found[name] = [piece(name, torch.frombuffer(bytearray(text), dtype=torch.uint8))]
    return [one for several in found.values() for one in several]


def read(saved: Saved, name: str, place: Place | None = None, like: Tensor | None = None) -> Any:
    """The state that was saved as `name`. place, like: the parameter's, here.

    Raises ValueError for one that is not there, Refused for what `pieces` does not write.
    """

    def find(key: str, split: bool) -> Tensor:
        if not split or place is None:
            return saved.whole(key)
        # padding stays zero
        x = torch.zeros_like(like, dtype=saved.dtype(key), requires_grad=False)
        saved.read(place.pieces(x, key))
        return x

    try:
        return decode(json.loads(bytes(saved.whole(name).tolist())), find)
    except (
        UnicodeDecodeError,
        json.JSONDecodeError,
        TypeError,
        LookupError,
        RecursionError,
    ) as error:
        raise Refused(f"{name} in {saved.path} is no state that was saved: {error!r}") from error
