"""`stream` where time is real: each lane is a thread of the rank, with a Comm of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from .base import Comm, Work


class ThreadWork(Work):
    """A job of a lane; `wait()` gives its result or raises its exception."""

    __slots__ = ("_error", "_finished", "_result", "_unwaited", "source")

    def __init__(self, unwaited: dict[Work, None]):
        self._finished = threading.Event()
        self._result = None
        self._error = None
        self.source = None
        self._unwaited = unwaited
        unwaited[self] = None

    def run(self, fn: Callable, args: tuple) -> None:
        try:
            self._result = fn(*args)
        except BaseException as error:
            self._error = error
        self._finished.set()

    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self):
        self._finished.wait()
        self._unwaited.pop(self, None)
        if self._error is not None:
            raise self._error
        return self._result


class ThreadLane:
    """Does the jobs of one lane, one after the other, each with the lane's Comm as first argument."""

    def __init__(self, comm: Comm, name: str, unwaited: dict[Work, None]):
        self.comm, self._unwaited = comm, unwaited
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, fn: Callable, args: tuple) -> ThreadWork:
        work = ThreadWork(self._unwaited)
        self._jobs.put((work, fn, args))
        return work

    def _run(self) -> None:
        while True:
            work, fn, args = self._jobs.get()
            work.run(fn, (self.comm, *args))
