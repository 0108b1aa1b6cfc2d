"""Live bytes by category over time: what a ledger gives once the run is over."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

CATEGORIES = ("parameters", "gradients", "optimizer states", "activations", "buffers", "other")


class Timeline:
    """How many bytes of each category were live, and when.

    times: seconds, ascending; several changes may share one.  live[category]: bytes from each of these times on,
    as many as there are times.  total: their sum.  peak: the most bytes at once.  at_peak: what they were.
    device: the type of the device that holds them.
    """

    def __init__(self, times, changes, categories, device: str = "cpu"):
        """changes: bytes more, or less, at each of the times; categories: the number in CATEGORIES of each."""
        self.device = device
        self.times = np.asarray(times, dtype=np.float64)
        self._changes = np.asarray(changes, dtype=np.int64)
        self._categories = np.asarray(categories, dtype=np.int8)

    @classmethod
    def of(cls, times, changes, which, category, device, name: str, code: int) -> Timeline:
        """From a ledger's columns, the storages on device `name`, number `code`; what was there before comes first."""
        times, changes, which, category, device = map(
            np.array, (times, changes, which, category, device)
        )
        kept = np.flatnonzero(device[which] == code)
        kept = kept[np.argsort(times[kept], kind="stable")]
        return cls(np.maximum(times[kept], 0.0), changes[kept], category[which[kept]], name)

    @cached_property
    def live(self) -> dict[str, np.ndarray]:
        """Bytes of each category, int64, one for each of `times`."""
        return {
            name: np.cumsum(np.where(self._categories == c, self._changes, 0))
            for c, name in enumerate(CATEGORIES)
        }

    @cached_property
    def total(self) -> np.ndarray:
        """Bytes of all categories together, int64, one for each of `times`."""
        return np.cumsum(self._changes)

    @property
    def peak(self) -> int:
        """The most bytes that were live at once."""
        return int(self.total.max(initial=0))

    @property
    def at_peak(self) -> dict[str, int]:
        """What the peak is made of, at the first moment that reaches it."""
        return self._row(int(self.total.argmax()) if len(self.times) and self.peak else -1)

    def at(self, time: float) -> dict[str, int]:
        """Live bytes of each category at `time`, after all that changed then."""
        return self._row(int(np.searchsorted(self.times, time, side="right")) - 1)

    def since(self, origin: float) -> Timeline:
        """The same, in seconds after `origin`."""
        return Timeline(self.times - origin, self._changes, self._categories, self.device)

    def _row(self, i: int) -> dict[str, int]:
        return {name: int(live[i]) if i >= 0 else 0 for name, live in self.live.items()}

    def __eq__(self, other) -> bool:
        mine = lambda t: (t.times, t._changes, t._categories)
        return isinstance(other, Timeline) and all(map(np.array_equal, mine(self), mine(other)))

    __hash__ = None

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {nbytes:,}" for name, nbytes in self.at_peak.items() if nbytes)
        return f"Timeline({len(self):,} changes, peak {self.peak:,} bytes" + (
            f": {parts})" if parts else ")"
        )


class OnHost(NamedTuple):
    """A rank's part of its host: live bytes there over time, and the bytes copied down to it and back up."""

    memory: Timeline
    down: int
    up: int
