"""Messages of bytes between a judge and the process of an answer, each within a time."""

from __future__ import annotations

import os
import select
import time

MOST = 256 << 20  # bytes of a message


class Silent(TimeoutError):
    """The other side has not spoken, or not listened, within the time."""


class Pipe:
    """One end of a two-way connection: reads from one file descriptor, writes to another."""

    def __init__(self, reads: int, writes: int):
        self.reads, self.writes = reads, writes
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)

    def send(self, data: bytes, seconds: float) -> None:
        """Raises Silent, or BrokenPipeError when the other side is dead."""
        until = time.monotonic() + seconds
        view = memoryview(len(data).to_bytes(8, "little") + data)
        while view:
            self._wait([], [self.writes], until)
            view = view[os.write(self.writes, view) :]

    def receive(self, seconds: float) -> bytes:
        """Raises Silent, EOFError when the other side is dead, ValueError for more than MOST bytes."""
        until = time.monotonic() + seconds
        size = int.from_bytes(self._read(8, until), "little")
        if size > MOST:
            raise ValueError(f"a message of {size} bytes: {MOST} at most")
        return self._read(size, until)

    def _read(self, size: int, until: float) -> bytes:
        parts: list[bytes] = []
        while size:
            self._wait([self.reads], [], until)
            part = os.read(self.reads, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, reads: list[int], writes: list[int], until: float) -> None:
        if not any(select.select(reads, writes, [], max(0.0, until - time.monotonic()))):
            raise Silent

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)
