"""A limit of time for what runs in the notebook itself: the pictures that a learner's function draws.

    with check.limit(10):
        parts = World(3).run(my_batches, order, 6)

A check runs an answer in processes of its own, and ends them. A picture needs what the answer returns, so it runs the
answer here, where an endless loop would hold the notebook until somebody presses the stop button.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from .exam import Wrong


class _TimeIsUp(BaseException):
    """Unwinds what takes too long. Not an Exception: an answer must not catch it by accident."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise Wrong if the block takes longer than `seconds`, also where it waits for the ranks of a World or of `launch`.

    An answer that catches the end is ended again after as many seconds. A limit around this one goes on counting.
    ValueError unless it is called on the main thread, where a notebook runs its cells: Python handles signals there.
    """
    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, _time_is_up)
    around, again = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    except _TimeIsUp:
        raise Wrong(
            f"the picture: no end after {seconds:g} s. An endless loop? The check above says in which line."
        ) from None
    finally:
        left = max(1e-3, around - (time.monotonic() - started)) if around else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left, again)


def _time_is_up(*_) -> None:
    raise _TimeIsUp
