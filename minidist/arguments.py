"""What a caller gave, checked at the door: one sentence instead of an error from deep inside.

Each function returns the value as the rest of the code wants it, or raises ValueError with `sentence`, which says what
is asked for, and with what was given: `whole(0, "a GPT has at least 1 layer", 1)` raises "a GPT has at least 1 layer,
not 0".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

import torch


def whole(value, sentence: str, least: float = -math.inf) -> int:
    """A whole number of at least `least`: all that Python takes for an index, but True and False are none."""
    if type(value) is not int:  # the common case costs nothing
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise ValueError(f"{sentence}, not {value!r}")
        value = number
    if value < least:
        raise ValueError(f"{sentence}, not {value}")
    return value


def number(value, sentence: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from `least` to `most`; True, False and NaN are none."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not least <= value <= most or math.isinf(value):
        raise ValueError(f"{sentence}, not {value!r}")
    return value


def flags(**values: bool) -> None:
    """Each is True or False: what else has a truth value, such as "no", is a mistake."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is True or False, not {value!r}")


def choice(value, name: str, among: Iterable[str]) -> str:
    """One of these words."""
    words = list(among)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is one of {', '.join(map(repr, words))}, not {value!r}")
    return value


def function(value, sentence: str):
    """What can be called."""
    if not callable(value):
        raise ValueError(f"{sentence}, not {value!r}")
    return value


def instance(value, kind: type, sentence: str) -> None:
    """An object of this class."""
    if not isinstance(value, kind):
        raise ValueError(f"{sentence}, not {type(value).__name__}")


def device(value) -> torch.device:
    """A device of torch, by its name."""
    try:
        if not isinstance(value, int):
            return torch.device(value)
    except (RuntimeError, TypeError):
        pass
    raise ValueError(f'a device is "cpu", "cuda" or "meta", not {value!r}')


def floating(value, sentence: str) -> None:
    """None, or a dtype of real numbers of 16 bits and more, with which every operation of a model can be done."""
    real = isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize > 1
    if value is not None and not real:
        raise ValueError(f"{sentence}, not {value!r}")
