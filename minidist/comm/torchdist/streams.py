"""`stream` on a GPU: each lane is a stream of the device, and no thread of the host.

    host             put: issue the job's kernels and messages      wait: tell the caller's stream to wait
    caller's stream  ──compute──●───────compute────────────────────────────○──compute──
    lane's stream               └▶ wait ──messages──● ─────────────────────▶┘

The job runs on the thread that asks for it: it only issues work, which costs microseconds, and the device does it
beside what the caller's stream has to do. So everything is issued in the order of the program, the same on every rank.
Two threads of a rank would feed the device in an order that differs from rank to rank, and two collectives that each
wait for the other's ranks hang. Also, a stream belongs to the thread that chose it: what another thread issues lands on
the default one, behind the computation.

Memory: PyTorch hands out a freed tensor's memory again to the stream that it was allocated on, at once. A job frees
gradients that its stream has yet to send, and makes averages that the caller frees. So all tensors that are reached
from a job's arguments are marked as used by the lane's stream when it begins, and, with its result, as used by the
stream of whoever waits for it.
Source: CUDA C Programming Guide, "Streams" and "Events"; torch.Tensor.record_stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import CellType
from typing import Any

from torch import Tensor, nn

from ..base import Comm, Work


class StreamWork(Work):
    """A job of a lane. `wait()` lets the caller's stream wait, not the host, and gives the job's result."""

    __slots__ = ("_error", "_event", "_gpu", "_held", "_result", "_unwaited", "source")

    def __init__(self, gpu: Any, unwaited: dict[Work, None]):
        self._gpu = gpu
        self._unwaited = unwaited
        self.source = None
        self._result = None
        self._error = None
        self._event = None
        self._held = None
        unwaited[self] = None

    def done(self) -> bool:
        return self._event.query()

    def wait(self):
        stream = self._gpu.current_stream()
        stream.wait_event(self._event)
        self._unwaited.pop(self, None)
        held, self._held = self._held, None
        _mark([held, self._result], stream)
        if self._error is not None:
            raise self._error
        return self._result


class StreamLane:
    """Issues the jobs of one lane, each with the lane's Comm as first argument. gpu: `torch.cuda`, or its stand-in."""

    def __init__(self, comm: Comm, gpu: Any, unwaited: dict[Work, None]):
        self.comm = comm
        self._gpu = gpu
        self._unwaited = unwaited
        self._stream = gpu.Stream()

    def put(self, fn: Callable, args: tuple) -> StreamWork:
        work = StreamWork(self._gpu, self._unwaited)
        work._held = fn, args
        self._stream.wait_stream(self._gpu.current_stream())
        _mark(work._held, self._stream)
        with self._gpu.stream(self._stream):
            try:
                work._result = fn(self.comm, *args)
                # here, on the lane's stream, which knows that the values are there
                self.comm.start()
            except BaseException as error:
                work._error = error
            work._event = self._stream.record_event()
        return work


def _mark(values: Any, stream: Any) -> None:
    """Tensors reached from these are used on `stream`: once freed, their memory is not handed out before it is done."""
    for x in tensors(values):
        if x.is_cuda:
            x.record_stream(stream)


def tensors(values: Any) -> Iterator[Tensor]:
    """All tensors that are reached from `values`: through lists and the like, functions, and this package's objects.

    Not through modules, whose parameters outlive every job, nor through Comms and Works."""
    seen, stack = set(), [values]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple | set | frozenset):
            stack += value
        elif isinstance(value, dict):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, partial):
            stack += [value.func, value.args, value.keywords]
        elif getattr(value, "__self__", None) is not None:  # a method
            stack.append(value.__self__)
        elif getattr(value, "__closure__", None):
            stack += [cell.cell_contents for cell in value.__closure__ if cell != _EMPTY]
        elif type(value).__module__.startswith("minidist.") and not isinstance(
            value, Comm | Work | nn.Module
        ):
            stack += getattr(value, "__dict__", {}).values()
            slots = [
                name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
            ]
            stack += [getattr(value, name, None) for name in slots]


_EMPTY = CellType()
