"""Ctrl-C as a wish: the ranks finish their step, save, and end.

A process that starts ranks, or is one, hears the signal; the ranks look for a file that it leaves in a folder which all
see. So it is the same in a World, over processes, and under torchrun, which passes the signal on.
"""

import signal
import time
from pathlib import Path

NAME = "stop"
AGAIN = 2.0  # seconds: a terminal and torchrun both send the first one


class Stop:
    """While it is open, SIGINT and SIGTERM leave the file; a second one, later than AGAIN seconds, does what it did."""

    def __init__(self, folder: Path):
        self.file = folder / NAME
        self.first = None
        self.before = {}

    def __enter__(self):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.unlink(missing_ok=True)
        self.before = {
            number: signal.signal(number, self.heard) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def heard(self, number, frame) -> None:
        """The handler."""
        now = time.monotonic()
        if self.first is None:
            self.first = now
            self.file.touch()
        elif now - self.first > AGAIN:
            signal.signal(number, self.before[number])
            signal.raise_signal(number)

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.file.unlink(missing_ok=True)


def asked(folder: Path) -> bool:
    """Whether someone has asked to stop."""
    return (folder / NAME).exists()
