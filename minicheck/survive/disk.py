"""A disk in memory that can lose its power behind any call: what the exercises of lesson 18 save on.

    write    the bytes are in a cache: a power cut leaves all of them, a part, or none
    sync     now they are on the disk
    rename   atomic, and safe at once: the new name has the file, a former one of that name is gone
    remove   safe at once

That is the least that file systems promise, and what makes rename before sync a mistake: the name survives, its bytes
do not (Pillai et al. 2014, "All File Systems Are Not Created Equal"). A real disk asks for an fsync of the folder too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..wrong import Wrong

CHANGES = ("write", "sync", "rename", "remove")
KEPT = (0.0, 0.5, 1.0)  # of what was not synced


class Disk:
    """Files by name, as rank `rank` sees them; all handles of one disk share `files` and `log`.

    log: [rank, call, name, what] of each call; what: the bytes as latin-1, or the new name.
    """

    def __init__(
        self, files: dict[str, bytes] | None = None, rank: int = 0, log: list | None = None
    ):
        self.files, self.rank = {} if files is None else files, rank
        self.log = [] if log is None else log
        self.begun = dict(self.files)

    def of(self, rank: int) -> Disk:
        """The same disk, as another rank sees it."""
        other = type(self)(self.files, rank, self.log)
        other.begun = self.begun
        return other

    def write(self, name: str, data: bytes) -> None:
        """A file of these bytes; a former one of that name is gone."""
        self._note("write", name, bytes(data).decode("latin-1"))
        self.files[name] = bytes(data)

    def sync(self, name: str) -> None:
        """Return when the file's bytes are on the disk. KeyError if there is none."""
        self._there(name)
        self._note("sync", name)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once. KeyError if there is none."""
        self._there(old)
        self._note("rename", old, str(new))
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        """KeyError if there is none."""
        self._there(name)
        self._note("remove", name)
        del self.files[name]

    def names(self) -> list[str]:
        """Of all files, in order."""
        return sorted(self.files)

    def size(self, name: str) -> int:
        """Bytes of a file, without reading it. KeyError if there is none."""
        self._there(name)
        return len(self.files[name])

    def read(self, name: str) -> bytes:
        """All bytes of a file. KeyError if there is none."""
        self._there(name)
        self._note("read", name)
        return self.files[name]

    def crashes(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """What a power cut behind each call may leave: (the call, {name: bytes})."""
        changes = [one for one in self.log if one[1] in CHANGES]
        for calls in range(len(changes) + 1):
            for kept in KEPT:
                yield said(changes, calls), crashed(self.begun, changes[:calls], kept)

    def _there(self, name: str) -> None:
        if name not in self.files:
            raise KeyError(f"no file {name!r} is on the disk")

    def _note(self, call: str, name: str, what: str = "") -> None:
        if not isinstance(name, str):
            raise TypeError(f"a file's name is a str, not {type(name).__name__}")
        self.log.append([self.rank, call, name, what])


def watched(files: dict[str, bytes], rank: int = 0) -> tuple[Disk, list]:
    """A disk for an answer, and a log that the disk does not hold, as an answer could rewrite its own."""
    noted: list = []

    class Watched(Disk):
        def _note(self, call: str, name: str, what: str = "") -> None:
            super()._note(call, name, what)
            noted.append([self.rank, call, str(name), what])

    return Watched(files, rank), noted


def honest(log) -> list:
    """A log as `watched` writes it; Wrong for what is none."""
    whole = lambda one: isinstance(one, list) and [type(x) for x in one] == [int, str, str, str]
    if not isinstance(log, list) or not all(whole(one) for one in log):
        raise Wrong("the list of calls is not what the disk wrote.")
    return log


def crashed(begun: dict[str, bytes], log: list, kept: float) -> dict[str, bytes]:
    """The files after these calls and a power cut that leaves a share `kept` of each file that was not synced."""
    held = {name: [data, True] for name, data in begun.items()}
    for _, call, name, what in log:
        if call == "write":
            held[name] = [what.encode("latin-1"), False]
        elif call == "sync":
            held[name][1] = True
        elif call == "rename":
            held[what] = held.pop(name)
        elif call == "remove":
            del held[name]
    return {
        name: data if safe else data[: int(kept * len(data))] for name, (data, safe) in held.items()
    }


def said(log: list, calls: int) -> str:
    """The last of so many calls, in words."""
    if not calls:
        return "before the first call"
    rank, call, name, what = log[calls - 1]
    return f"behind rank {rank}'s {call} of {name}" + f" to {what}" * (call == "rename")
