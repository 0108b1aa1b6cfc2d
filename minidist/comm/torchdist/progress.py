"""Who reads the headers of posted receives over gloo, where nothing moves unless a thread waits for it.

A message is a header and its values. The values can be received once the header has been read, and only then can the
sender go on. So whoever waits, for whatever it is, must see to it that the headers of all posted receives are read,
or two ranks that have posted everything wait for each other:

    rank 0   a = isend(x, 1);  b = irecv(y, 1);  a.wait()      a is over when rank 1 has read its header,
    rank 1   a = isend(x, 0);  b = irecv(y, 0);  a.wait()      which it does while it waits for its own a

The waiting thread reads the headers of one source itself: where nothing else is outstanding (a blocking call, a
step of a ring) no other thread is woken. For each other source from which a header is expected, a thread is started,
which ends when none is expected any more. Headers from one source are read in the order of posting.

A receive from any source is met by the first message that no receive before it takes, and what is posted after it
comes after it (as in MPI): it is posted to gloo only when the wildcard has been met.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..base import ANY


class Receive:
    """A posted receive. `read`: its header has been read, so that its values are on their way or it has failed."""

    __slots__ = ("op", "read", "said", "source", "work")

    def __init__(self, work, op, said: tuple):
        self.work = work
        self.op = op
        self.said = said
        self.read = False
        self.source = None


class Source:
    """Headers that a Comm expects from one rank, or from any.

    unread: receives in the order of posting.  posted: headers that gloo has been asked for; they may outnumber the
    receives.  early: what has been read and belongs to a later receive.  busy: a thread is reading.
    """

    __slots__ = ("busy", "driven", "early", "posted", "unread")

    def __init__(self):
        self.unread = deque()
        self.posted = deque()
        self.early = deque()
        self.busy = self.driven = False  # driven: a thread of its own will read on


class Progress:
    """All that the Comms of a process expect."""

    def __init__(self):
        self.changed = threading.Condition()
        self.leaving: list = []  # sends of operations that failed: they must stay alive
        self._expecting: dict[Source, None] = {}  # with unread receives
        self._waiting = 0  # threads

    def post(self, comm, receives: list[Receive]) -> None:
        with self.changed:
            for receive in receives:
                comm.behind.append(receive)
            self._release(comm)
        if self._waiting and not receives[0].work.waited:
            self._drive()

    def _release(self, comm) -> None:
        """Ask gloo for all that no wildcard comes before."""
        while comm.behind and not comm.wild:
            receive = comm.behind.popleft()
            work, op = receive.work, receive.op
            try:
                if op.src != ANY and not comm.checked:
                    work.take(op, comm.ranks[op.src])
                    receive.read = True
                    continue
                comm.wild = op.src == ANY
                source = receive.source = comm.sources.setdefault(op.src, Source())
                source.unread.append(receive)
                self._expecting[source] = None
                if not comm.checked:
                    source.posted.append(work.take(op, None))
                elif len(source.posted) + len(source.early) < len(source.unread):
                    source.posted.append(work.listen(op))
            except Exception as error:
                work.fail(error)
                self._over(comm, receive)

    def _over(self, comm, receive: Receive) -> None:
        """The header has been read, or will never be. The condition is held."""
        source = receive.source
        if source is not None and receive in source.unread:
            source.unread.remove(receive)
            if not source.unread:
                self._expecting.pop(source, None)
        receive.read = True
        if receive.op.src == ANY:
            comm.wild = False
            self._release(comm)
        self.changed.notify_all()

    def withdraw(self, receives: list[Receive]) -> None:
        """These take nothing any more."""
        with self.changed:
            for receive in receives:
                if not receive.read:
                    comm = receive.work._comm
                    if receive in comm.behind:
                        comm.behind.remove(receive)
                    self._over(comm, receive)

    @contextmanager
    def waiting(self, work, receives: list[Receive], patient: bool) -> Iterator[None]:
        """While a thread waits for a work: first the headers of its receives are read."""
        with self.changed:
            self._waiting += 1
        try:
            unread = [receive for receive in receives if not receive.read]
            if unread:
                self._drive(work, unread[0].source)
                for receive in unread:
                    self._read(receive.source, receive, patient)
            if self._expecting:
                self._drive(work)
            yield
        finally:
            with self.changed:
                self._waiting -= 1

    def _drive(self, work=None, own: Source | None = None) -> None:
        """Start a thread for each source that is not `own` and from which a header is expected. What another thread
        posted and waits for at once is its own affair."""
        with self.changed:
            for source in self._expecting:
                needed = any(r.work is work or not r.work.waited for r in source.unread)
                if source is not own and not source.driven and needed:
                    source.driven = True
                    threading.Thread(
                        target=self._read, args=(source,), name="headers", daemon=True
                    ).start()

    def _read(
        self, source: Source | None, until: Receive | None = None, patient: bool = True
    ) -> None:
        """Read headers until that of `until` has been read; None: until no more are expected."""
        limit = None if patient else time.monotonic() + until.work._comm.timeout
        while True:
            with self.changed:
                while True:
                    if until is None and not source.unread:
                        source.driven = False
                        return
                    if until is not None:
                        if until.read:
                            return
                        source = until.source
                    if source is not None and source.unread and not source.busy:
                        break
                    left = None if limit is None else limit - time.monotonic()
                    if left is not None and left <= 0:
                        raise until.work.missing(until.op)
                    self.changed.wait(left)
                source.busy = True
                receive = source.unread[0]
            self._read_one(source, receive, patient)

    def _read_before(self, comm, src: int) -> None:
        """A wildcard has heard from `src`: what receives from there were posted before it have heard, too, and their
        values come first."""
        with self.changed:
            unread = list(comm.sources[src].unread) if src in comm.sources else []
        for receive in unread:
            self._read(receive.source, receive)

    def _read_one(self, source: Source, receive: Receive, patient: bool) -> None:
        """Wait for the next header of a source, and give it to the receive, if it is for it."""
        work = receive.work
        op = receive.op
        comm = receive.work._comm
        verdict, found = "both", None
        try:
            if not comm.checked:
                work.came(source.posted.popleft(), op, patient)
            elif source.early:
                found = source.early.popleft()
            else:
                if not source.posted:
                    source.posted.append(work.listen(op))
                found = work.heard(source.posted.popleft(), op, patient)
                if op.src == ANY:
                    self._read_before(comm, found[0])
            if found is not None and receive.read:  # withdrawn while we waited
                verdict = "keep"
            elif found is not None:
                verdict = work.match(receive, *found)
        except Exception as error:
            work.fail(error)
        with self.changed:
            source.busy = False
            if verdict == "keep":
                source.early.appendleft(found)
            if verdict != "drop" and not receive.read:
                wild = op.src == ANY
                self._over(comm, receive)
                if not wild:
                    return
            self.changed.notify_all()
        if op.src == ANY:
            self._drive()


@functools.cache
def progress() -> Progress:
    """This process's: waiting on one Comm drives what was posted on the others."""
    return Progress()
