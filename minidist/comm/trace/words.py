"""Names that come again and again in what is recorded: written down once, then a number."""

from __future__ import annotations


class Words(dict):
    """The number of each distinct tuple of names, in the order in which they came; `list(words)` are the tuples."""

    def __missing__(self, names: tuple) -> int:
        return self.setdefault(names, len(self))
