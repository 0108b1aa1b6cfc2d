"""A collective of a `CommGroup` under way, as PyTorch waits for it: from Python by `wait`, from C++ by a future.

A future that was given an exception (`set_exception`) raises it in Python only; for C++ it holds a value that is no
tensor, on which DDP crashes (torch 2.13). One fails on both sides where a callback of `then` raises. So what is handed
out is `done.then(outcome)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch.futures import Future

from ..base import Comm, Work


class GroupWork(dist.Work):
    """A collective under way. C++ asks for `get_future` and `wait`, Python for the rest, too.

    work: of the lane; None if all was done before the method returned.  future: its value is `tensors`.
    """

    def __init__(self, future: Future, work: Work | None, tensors: list):
        super().__init__()
        self._future = future
        self._work = work
        self._tensors = tensors

    def wait(self, timeout=None) -> bool:
        """Return once the results are there. How long that may take is the Comm's affair. Raises what went wrong."""
        if self._work is not None:
            self._work.wait()
        return True

    def get_future(self) -> Future:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What went wrong; None if nothing did, or not yet."""
        try:
            if self.is_completed():
                self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list:
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()


def begin(comm: Comm, job: Callable[[Comm], None], result: list, overlap: bool) -> GroupWork:
    """`job(lane)` in a lane of `comm`, or `job(comm)` here and now. result: the value of the future."""
    future: Future = Future()
    if not overlap:
        job(comm)
        future.set_result(result)
        return GroupWork(future, None, result)
    errors: list[BaseException] = []

    def outcome(_) -> list:
        if errors:
            raise errors[0]
        return result

    def beside(lane: Comm) -> None:
        try:
            job(lane)
        except BaseException as error:
            errors.append(error)
        future.set_result(None)
        outcome(None)

    told = future.then(outcome)
    return GroupWork(told, comm.stream(beside), result)
