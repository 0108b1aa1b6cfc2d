"""What a large run does not look through for garbage, again and again: all that was there before it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

LARGE = 64  # ranks


@contextlib.contextmanager
def aside(n: int) -> Iterator[None]:
    """While a run of `n` ranks makes its objects, Python's collector leaves those of the notebook alone, torch and
    matplotlib among them: a tenth of the time of 1,024 ranks. Who has frozen objects is left alone, too."""
    ours = n >= LARGE and not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
