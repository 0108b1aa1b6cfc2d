"""Nested states as JSON and tensors: what can be read back exactly, and without running anything that was read.

    {"step": 5, "betas": (0.9, 0.95), "m": tensor}   ⟷   ["dict", [["step", 5], ["betas", ["tuple", [0.9, 0.95]]],
                                                          ["m", ["tensor", "m", false]]]]          and the tensor m

Numbers and words stand as they are; all else is a list that begins with its kind. Python prints a float so that it
reads back the same, and whole numbers of any length. pickle would do more: it calls whatever the file says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

PLAIN = (str, int, float, bool, type(None))
CONTAINERS = {"list": list, "tuple": tuple}

Keep = Callable[[str, Tensor], list]
Find = Callable[..., Tensor]


def encode(value: Any, keep: Keep, at: str = "") -> Any:
    """`value` as JSON. keep(place, tensor): what the note says of a tensor; its place is like "groups/0/lr".

    Raises ValueError, which names the place, for all but dicts, lists, tuples, tensors, numbers, words and None.
    """
    if isinstance(value, Tensor):
        return ["tensor", *keep(at, value)]
    if isinstance(value, dict):
        return [
            "dict",
            [
                [encode(k, keep, f"{at}/key"), encode(v, keep, f"{at}/{k}")]
                for k, v in value.items()
            ],
        ]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [encode(v, keep, f"{at}/{i}") for i, v in enumerate(value)]]
    if isinstance(value, PLAIN):
        return value
    raise ValueError(
        f"{at.strip('/') or 'the state'} is a {type(value).__name__}: a checkpoint holds dicts, lists, "
        "tuples, tensors, numbers, words and None"
    )


def decode(note: Any, find: Find) -> Any:
    """The value that `encode` noted. find(*what keep said): the tensor. ValueError for what is no such note."""
    if not isinstance(note, list):
        return note
    kind, *rest = note
    if kind == "tensor":
        return find(*rest)
    if kind == "dict":
        return {decode(k, find): decode(v, find) for k, v in rest[0]}
    if kind not in CONTAINERS:
        raise ValueError(f"{kind!r} is nothing that a checkpoint holds")
    return CONTAINERS[kind](decode(v, find) for v in rest[0])
