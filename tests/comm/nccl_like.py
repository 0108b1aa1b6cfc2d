"""A process group that behaves like NCCL, over gloo, on CPU tensors: what would hang, be wrong or be refused on GPUs.

    comm = from_env("nccl_like", timeout=20)         # after `import tests.comm.nccl_like`, which registers the name

The rank's device is called cpu:0, and its host cpu. To torch they are one; here a tensor is followed from where it is
made: on `device=comm.device`, or from others that are on the device. So technique code runs as it would on a GPU.

What it takes from NCCL, and from PyTorch's use of it:
 1. A group's first operation makes its communicator, so it takes all its ranks.
 2. A communicator does one operation after the other, in the order in which this rank issued them. A batch of sends and
    receives is one operation.
 3. An operation starts after all that the stream it was issued on waits for. A stream waits for an operation when
    `wait` was called on it. There is one default stream for all threads that choose none.
 4. Sends meet their receives: neither ends before the other side is there. ANY, and tags, do not exist.
 5. Tensors of the host, tensors with gaps, and dtypes that NCCL does not know are refused.
 6. An operator whose tensors are partly on the device and partly on the host is refused (numbers without dimensions may
    be anywhere).
 7. What an operation or another stream writes may be used only by a stream that has waited for it, and what it reads
    may not be overwritten before: else `Race`.
 8. Where the host waits for the device (`item`, `tolist`, `cpu`) is noted, in `host_waits`.
A wait longer than the timeout of the group raises `Hang`, with what each rank was doing at which line.

Where it and NCCL may differ: `wait` holds the host here, because the values must be there for the CPU; over NCCL only
the stream waits, and the host may issue what resolves a hang seen here. Computation does not queue: what a stream
computes late is not seen. NCCL may buffer a small send, and two kernels of different communicators need places on the
device, which it does not promise. Memory handed out again too early, bandwidth, and kernels are not seen at all.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAME = "nccl_like"
DEVICE = torch.device("cpu", 0)
UNKNOWN = {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128}
# Operators that may have operands on both sides.
CROSSING = (
    "copy_",
    "_to_copy",
    "lift_fresh",
    "index",
    "index_put_",
    "index_put",
    "set_",
    "_index_put_impl_",
)


class Hang(RuntimeError):
    """A wait that takes longer than the timeout. The message says what each rank was doing, at which line."""


class Race(RuntimeError):
    """Two streams use memory, and neither waits for the other. The message names both lines."""


class Refused(RuntimeError):
    """NCCL would not take it."""


class Clocks(dict):
    """{stream: how many of its operations are known to be over}, a vector clock."""

    def meet(self, other: dict) -> None:
        for stream, count in other.items():
            if self.get(stream, 0) < count:
                self[stream] = count


class Event:
    """A point of a stream. pending: operations of communicators that it comes after."""

    def __init__(self, stream: Stream):
        self.pending, self.clocks = list(stream.pending), Clocks(stream.clocks)

    def query(self) -> bool:
        return all(operation.finished.is_set() for operation in self.pending)


class Stream:
    """An order of operations."""

    def __init__(self):
        self.pending: list[Operation] = []
        self.clocks = Clocks()

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self.pending = [operation for operation in self.pending if not operation.finished.is_set()]
        self.pending += [
            operation for operation in event.pending if not operation.finished.is_set()
        ]
        self.clocks.meet(event.clocks)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(Event(other))

    def tick(self) -> None:
        self.clocks[self] = self.clocks.get(self, 0) + 1


class Gpu:
    """In place of `torch.cuda`. waits: lines at which the host waited for the device."""

    Stream, Event = Stream, Event

    def __init__(self):
        self._default, self._chosen = Stream(), threading.local()
        self.waits: list[str] = []

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> Stream:
        return getattr(self._chosen, "stream", self._default)

    @contextmanager
    def stream(self, chosen: Stream):
        before, self._chosen.stream = self.current_stream(), chosen
        try:
            yield
        finally:
            self._chosen.stream = before


class Use(NamedTuple):
    """What a stream did with a part of a storage: its count then, the line, and the bytes from `first` to `end`."""

    stream: Stream
    count: int
    where: str
    first: int
    end: int


class Memory:
    """A storage of the device: who wrote its parts last, and who has read them since."""

    def __init__(self, storage):
        self.alive = StorageWeakRef(storage)  # keeps the address from being used for another one
        self.written: list[Use] = []
        self.read: list[Use] = []


class Device:
    """Which storages are the device's, and what its streams do with them."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self._known = {}
        self._limit = 1000
        # a function of PyTorch's that makes tensors of its own, beside those that it was given
        self.within = False

    def holds(self, x) -> bool:
        return (
            isinstance(x, Tensor)
            and x.layout is torch.strided
            and x.untyped_storage()._cdata in self._known
        )

    def take(self, x: Tensor) -> None:
        if len(self._known) > self._limit:
            for key in [key for key, memory in list(self._known.items()) if memory.alive.expired()]:
                del self._known[key]
            self._limit = 1000 + 2 * len(self._known)
        storage = x.untyped_storage()
        if storage._cdata not in self._known:
            self._known[storage._cdata] = Memory(storage)

    def leave(self, x: Tensor) -> None:
        self._known.pop(x.untyped_storage()._cdata, None)

    def use(self, tensors, stream: Stream, writes: bool) -> None:
        """A stream reads or writes these, after what it has waited for."""
        for x in tensors:
            if not self.holds(x) or x.numel() == 0:
                continue
            memory = self._known[x.untyped_storage()._cdata]
            now = Use(stream, stream.clocks.get(stream, 0), line(), *_span(x))
            for before in [*memory.written, *(memory.read if writes else [])]:
                apart = before.end <= now.first or now.end <= before.first
                if (
                    not apart
                    and before.stream is not stream
                    and stream.clocks.get(before.stream, 0) < before.count
                ):
                    verb = "written" if writes else "read"
                    raise Race(
                        f"memory of {tuple(x.shape)} {x.dtype} is {verb} at {now.where}, on a stream that has "
                        f"not waited for what happened to it at {before.where}"
                    )
            if writes:
                memory.written = [
                    before for before in memory.written if not _covers(now, before)
                ] + [now]
                memory.read = [before for before in memory.read if not _covers(now, before)]
            else:
                memory.read = [
                    before
                    for before in memory.read
                    if before.stream is not stream or not _covers(now, before)
                ] + [now]


def _span(x: Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after its last."""
    first = x.storage_offset()
    last = first + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return first * x.element_size(), (last + 1) * x.element_size()


def _covers(now: Use, before: Use) -> bool:
    return now.first <= before.first and before.end <= now.end


class Follow(TorchDispatchMode):
    """Every operator: which tensors it makes on the device, and what it reads and writes there."""

    def __init__(self, device: Device):
        super().__init__()
        self.device = device
        self._writes: dict = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs, device = kwargs or {}, self.device
        inputs = [
            x
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor) and x.layout is torch.strided
        ]
        here = [x for x in inputs if device.holds(x)]
        name = operator.__name__.split(".")[0]
        if here and name not in CROSSING:
            apart = [x for x in inputs if x.dim() and x.numel() and not device.holds(x)]
            if apart:
                raise Refused(
                    f"{operator} at {line()}: all tensors are expected on one device, and "
                    f"{[tuple(x.shape) for x in here]} are on cpu:0, {[tuple(x.shape) for x in apart]} on the"
                    " host"
                )
        stream = device.gpu.current_stream()
        stream.tick()
        written = self._written(operator, args, kwargs) if here else []
        if here and name != "detach":
            device.use([x for x in here if all(x is not w for w in written)], stream, writes=False)
            device.use(written, stream, writes=True)
        if here and name == "_local_scalar_dense":
            device.gpu.waits.append(line())
        found = operator(*args, **kwargs)
        asked = kwargs.get("device")
        if (
            here
            and asked == torch.device("cpu")
            and (name == "_to_copy" or name.startswith("new_"))
        ):
            # autograd's own, which copies the options of a tensor; a program's goes through `Pretend`
            asked = None
        if device.within and not inputs:
            asked = DEVICE
        on_device = (
            asked == DEVICE if asked is not None else bool(here) and name not in ("copy_", "set_")
        )
        for x in tree_leaves(found) if on_device else ():
            if isinstance(x, Tensor) and x.layout is torch.strided:
                device.take(x)
        return found

    def _written(self, operator, args, kwargs) -> list[Tensor]:
        """The arguments that it changes in place."""
        if operator not in self._writes:
            arguments = operator._schema.arguments
            self._writes[operator] = [
                (i, a.name)
                for i, a in enumerate(arguments)
                if a.alias_info is not None and a.alias_info.is_write
            ]
        found = [
            args[i] if i < len(args) else kwargs.get(name) for i, name in self._writes[operator]
        ]
        return [x for x in tree_leaves(found) if isinstance(x, Tensor)]


class Pretend:
    """What PyTorch's Python says of a device, and where values leave it: functions in place of PyTorch's, from `begin`
    to `end`. (A TorchFunctionMode would be off within a backward, whose hooks are the techniques.)"""

    def __init__(self, device: Device):
        self.device, self._before = device, []

    def begin(self) -> None:
        for place, name, own in (
            (Tensor, "device", property(self._device)),
            (Tensor, "to", self._to),
            (Tensor, "cpu", self._cpu),
            (Tensor, "numpy", self._numpy),
            (Tensor, "tolist", self._tolist),
            (Tensor, "__deepcopy__", self._deepcopy),
            (Tensor, "new_tensor", self._new),
            (torch, "tensor", self._maker(torch.tensor)),
            (torch, "as_tensor", self._maker(torch.as_tensor)),
            (torch, "asarray", self._maker(torch.asarray)),
            (
                functional,
                "scaled_dot_product_attention",
                self._composed(functional.scaled_dot_product_attention),
            ),
        ):
            self._before.append((place, name, place.__dict__.get(name)))
            setattr(place, name, own if isinstance(own, property) else _unbound(own))

    def end(self) -> None:
        for place, name, before in self._before:
            if before is None:
                delattr(place, name)
            else:
                setattr(place, name, before)
        self._before = []

    def _device(self, x: Tensor) -> torch.device:
        return DEVICE if self.device.holds(x) else torch._C.TensorBase.device.__get__(x)

    def _maker(self, made):
        def make(*args, **kwargs):
            x = made(*args, **kwargs)
            if _same(kwargs.get("device")):
                self.device.take(x)
            return x

        return make

    def _composed(self, function):
        """A function that makes what it needs on the device of its first tensor, where an operator cannot tell."""

        def compose(x: Tensor, *args, **kwargs):
            before, self.device.within = self.device.within, self.device.holds(x)
            try:
                return function(x, *args, **kwargs)
            finally:
                self.device.within = before

        return compose

    def _new(self, x: Tensor, *args, **kwargs) -> Tensor:
        made = torch._C.TensorBase.new_tensor(x, *args, **kwargs)
        if self.device.holds(x):
            self.device.take(made)
        return made

    def _deepcopy(self, x: Tensor, memo: dict) -> Tensor:
        made = self._copied(x, memo)
        if self.device.holds(x):
            self.device.take(made)
        return made

    _copied = staticmethod(Tensor.__deepcopy__)

    def _seen(self, x: Tensor) -> None:
        if self.device.holds(x):
            self.device.gpu.waits.append(line())

    def _numpy(self, x: Tensor, **kwargs):
        if self.device.holds(x):
            raise Refused(f"at {line()}: a tensor of the device has no NumPy array")
        return torch._C.TensorBase.numpy(x, **kwargs)

    def _tolist(self, x: Tensor) -> list:
        self._seen(x)
        return torch._C.TensorBase.tolist(x)

    def _cpu(self, x: Tensor, *args, **kwargs) -> Tensor:
        return self._to(x, "cpu")

    def _to(self, x: Tensor, *args, **kwargs) -> Tensor:
        to = torch._C.TensorBase.to
        if not self.device.holds(x):
            return to(x, *args, **kwargs)
        rest = [a for a in args if not isinstance(a, torch.device | str)]
        more = {key: value for key, value in kwargs.items() if key != "device"}
        asked = [
            torch.device(a)
            for a in (*args, kwargs.get("device"))
            if isinstance(a, torch.device | str)
        ]
        if asked == [torch.device("cpu")]:
            self._seen(x)
            there = (to(x, *rest, **more) if rest or more else x).clone()
            self.device.leave(there)
            return there
        return to(x, *(rest if asked else args), **more) if rest or more else x


def _unbound(function):
    """As a method of a class gets its tensor."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def _same(where) -> bool:
    return isinstance(where, torch.device | str) and torch.device(where) == DEVICE


def line() -> str:
    """The innermost line that is neither PyTorch's nor this file's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and "/torch/" not in name and "<" not in name and not within(frame):
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def within(frame) -> bool:
    """Whether it is another mode's."""
    return frame.f_code.co_name in ("__torch_function__", "__torch_dispatch__")


def lines(thread: threading.Thread, depth: int = 6) -> str:
    """The innermost lines of a thread that are not PyTorch's."""
    frame, found = sys._current_frames().get(thread.ident), []
    while frame is not None and len(found) < depth:
        name = frame.f_code.co_filename
        if name != __file__ and "/torch/" not in name and "/threading.py" not in name:
            found.append(f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


class Operation(dist.Work):
    """One operation of a communicator: `run` does it, once what the stream waited for is over."""

    def __init__(self, group: NcclLike, what: str, reads: list[Tensor], writes: list[Tensor], run):
        super().__init__()
        self.group = group
        self.what = what
        self.where = line()
        self.run = run
        self.finished, self.error = threading.Event(), None
        device, stream = group.device, group.gpu.current_stream()
        self.pending = list(stream.pending)
        group.order.clocks.meet(stream.clocks)
        group.order.tick()
        device.use(reads, group.order, writes=False)
        device.use(writes, group.order, writes=True)
        self.clocks = Clocks(group.order.clocks)
        self.inference = torch.is_inference_mode_enabled()  # which belongs to a thread

    def wait(self, timeout=None) -> bool:
        stream = self.group.gpu.current_stream()
        stream.pending = [
            operation for operation in stream.pending if not operation.finished.is_set()
        ]
        if not self.finished.is_set():
            stream.pending.append(self)
            if not self.finished.wait(self.group.limit):
                raise self.group.witness.hang(self)
        stream.clocks.meet(self.clocks)
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """Once it is, whatever is issued later finds its values."""
        if self.finished.is_set():
            self.group.gpu.current_stream().clocks.meet(self.clocks)
        return self.finished.is_set()

    def do(self) -> None:
        """In the communicator's thread."""
        for operation in self.pending:
            operation.finished.wait()
        try:
            with torch.inference_mode(self.inference):
                self.run()
        except Exception as error:
            self.error = error
        self.pending = []
        self.finished.set()

    def __str__(self) -> str:
        return f"{self.what} at {self.where}"


class Witness:
    """What this rank is doing, for the others to read when they hang."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        self.store = store
        self.rank = rank
        self.size = size
        self.under_way: list[Operation] = []
        self._main = threading.main_thread()
        threading.Thread(target=self._tell, name="witness", daemon=True).start()

    def now(self) -> str:
        waiting = [
            str(operation) for operation in list(self.under_way) if not operation.finished.is_set()
        ]
        return f"{' then '.join(waiting[:4]) or 'nothing'}; its program is at {lines(self._main)}"

    def _tell(self) -> None:
        before = ""
        while True:
            time.sleep(0.5)
            self.under_way = [
                operation for operation in self.under_way if not operation.finished.is_set()
            ]
            now = self.now()
            try:
                if now == before:
                    self.store.set(f"{NAME}/{self.rank}", now)
            except Exception:  # the run is over
                return
            before = now

    def hang(self, operation: Operation) -> Hang:
        rows = [f"  rank {self.rank}: {self.now()}"]
        for rank in range(self.size):
            key = f"{NAME}/{rank}"
            if rank != self.rank:
                text = self.store.get(key).decode() if self.store.check([key]) else "it went on"
                rows.append(f"  rank {rank}: {text}")
        return Hang(
            f"{operation} is not over after {operation.group.limit:g} s\n" + "\n".join(sorted(rows))
        )


class Process:
    """What all groups of this process share; made with the default group."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        self.gpu = Gpu()
        self.device = Device(self.gpu)
        self.witness = Witness(store, rank, size)
        self.names, self.operators = Pretend(self.device), Follow(self.device)
        self.names.begin()
        self.operators.__enter__()

    def end(self) -> None:
        self.operators.__exit__(None, None, None)
        self.names.end()


class NcclLike(dist.ProcessGroup):
    """One communicator, whose operations a thread does in order; and gloo, for tensors of the host."""

    device_type = "cpu"

    def __init__(self, process: Process, store, rank: int, size: int, timeout):
        super().__init__(rank, size)
        self.gpu = process.gpu
        self.device = process.device
        self.witness = process.witness
        self.limit = timeout.total_seconds()
        self.order = Stream()
        self._name = ""
        later = timeout + timedelta(seconds=60)  # a hang is told by us, not by gloo
        gloo = lambda name: dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, later)
        self.wires = gloo("wires")
        self.host = None if dist.is_initialized() else gloo("host")
        self._new = True
        self._condition = threading.Condition()
        self._queue = []
        threading.Thread(target=self._work, name=NAME, daemon=True).start()

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._queue:
                    self._condition.wait()
                operation = self._queue.pop(0)
            if self._new:
                self.wires.barrier().wait()
                self._new = False
            operation.do()

    def _issue(self, what: str, reads, writes, run) -> Operation:
        tensors = [*reads, *writes]
        for x in tensors:
            shape = f"{what} at {line()}: a tensor of {tuple(x.shape)} {x.dtype}"
            if not self.device.holds(x):
                raise Refused(f"{shape} is on the host; NCCL moves what is on its device")
            if x.dtype in UNKNOWN:
                raise Refused(f"{shape} has a dtype that NCCL does not know")
            if not x.is_contiguous():
                raise Refused(f"{shape} is not contiguous")
        operation = Operation(self, what, reads, writes, run)
        self.witness.under_way.append(operation)
        with self._condition:
            self._queue.append(operation)
            self._condition.notify()
        return operation

    def _on_host(self, tensors) -> bool:
        """Whether gloo takes it: the default group has both, as "cpu:gloo,cuda:nccl"."""
        found = [self.device.holds(x) for x in tree_leaves(tensors)]
        return self.host is not None and bool(found) and not any(found)

    def _collective(self, what: str, verb: str, reads, writes, *args):
        if self._on_host([reads, writes]):
            return getattr(self.host, verb)(*args)
        run = lambda: getattr(self.wires, verb)(*args).wait()
        return self._issue(what, tree_leaves(reads), tree_leaves(writes), run)

    def allreduce(self, tensors, opts=None):
        return self._collective("all_reduce", "allreduce", [], tensors, tensors, *_given(opts))

    def broadcast(self, tensors, opts=None):
        return self._collective("broadcast", "broadcast", [], tensors, tensors, *_given(opts))

    def reduce(self, tensors, opts=None):
        return self._collective("reduce", "reduce", [], tensors, tensors, *_given(opts))

    def allgather(self, outputs, inputs, opts=None):
        return self._collective(
            "all_gather", "allgather", inputs, outputs, outputs, inputs, *_given(opts)
        )

    def all_gather_single(self, output, input, opts=None):
        return self._collective(
            "all_gather", "_allgather_base", [input], [output], output, input, *_given(opts)
        )

    def reduce_scatter(self, outputs, inputs, opts=None):
        return self._collective(
            "reduce_scatter", "reduce_scatter", inputs, outputs, outputs, inputs, *_given(opts)
        )

    def reduce_scatter_single(self, output, input, opts=None):
        given = output, input, *_given(opts)
        return self._collective("reduce_scatter", "_reduce_scatter_base", [input], [output], *given)

    def gather(self, outputs, inputs, opts=None):
        return self._collective("gather", "gather", inputs, outputs, outputs, inputs, *_given(opts))

    def scatter(self, outputs, inputs, opts=None):
        return self._collective(
            "scatter", "scatter", inputs, outputs, outputs, inputs, *_given(opts)
        )

    def all_to_all_single(self, output, input, out_sizes, sizes, opts=None):
        given = output, input, list(out_sizes), list(sizes)
        return self._collective(
            "all_to_all", "alltoall_base", [input], [output], *given, *_given(opts)
        )

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def barrier(self, opts=None):
        return self._issue("barrier", [], [], lambda: self.wires.barrier().wait())

    def send(self, tensors, dst: int, tag: int):
        if self._on_host(tensors):
            return self.host.send(tensors, dst, tag)
        return self._issue(
            f"send to {dst}", tensors, [], lambda: self._pass([(tensors[0], dst)], [])
        )

    def recv(self, tensors, src: int, tag: int):
        if self._on_host(tensors):
            return self.host.recv(tensors, src, tag)
        return self._issue(
            f"receive from {src}", [], tensors, lambda: self._pass([], [(tensors[0], src)])
        )

    def recv_anysource(self, tensors, tag: int):
        if self._on_host(tensors):
            return self.host.recv_anysource(tensors, tag)
        raise Refused(f"at {line()}: NCCL receives from a rank, not from any")

    def together(self, ops: list[dist.P2POp]) -> list[Operation]:
        """A batch: one operation."""
        sends, receives = (
            [(op.tensor, op.group_peer) for op in ops if (op.op is dist.isend) is sending]
            for sending in (True, False)
        )
        words = [f"send to {peer}" for _, peer in sends] + [
            f"receive from {peer}" for _, peer in receives
        ]
        return [
            self._issue(
                " and ".join(words),
                [x for x, _ in sends],
                [x for x, _ in receives],
                lambda: self._pass(sends, receives),
            )
        ]

    def _pass(self, sends, receives) -> None:
        """What comes from one peer is received in order, beside what comes from the others."""
        works = []
        for x, peer in sends:
            works += [
                self.wires.send([torch.tensor([x.nbytes])], peer, 1),
                self.wires.send([x], peer, 0),
            ]
        by_peer: dict[int, list[Tensor]] = {}
        for x, peer in receives:
            by_peer.setdefault(peer, []).append(x)
        first, *others = by_peer.items() or [(None, [])]
        with ThreadPoolExecutor(max(1, len(others))) as beside:
            mode = torch.is_inference_mode_enabled()
            later = [beside.submit(self._receive, *one, mode) for one in others]
            self._receive(*first, mode)
            for one in later:
                one.result()
        for work in works:
            work.wait()

    def _receive(self, peer: int, xs: list[Tensor], inference: bool) -> None:
        """Bytes first: where the two sides differ NCCL never ends, and gloo would end the process."""
        with torch.inference_mode(inference):
            for x in xs:
                size = torch.zeros(1, dtype=torch.int64)
                self.wires.recv([size], peer, 1).wait()
                if size.item() != x.nbytes:
                    threading.Event().wait()
                self.wires.recv([x], peer, 0).wait()

    def shutdown(self) -> None:
        """A communicator is destroyed by all its ranks: who sits in a collective is waited for."""
        self._issue("destruction", [], [], lambda: self.wires.barrier().wait()).wait()

    def abort(self) -> None:
        """Given up by this rank alone."""


def _given(opts) -> list:
    return [] if opts is None else [opts]


PROCESS: list[Process] = []  # at most one: a backend is made by PyTorch, which hands nothing on


def _made(store, rank: int, size: int, timeout) -> NcclLike:
    if not PROCESS or not dist.is_initialized():
        PROCESS[:] = [Process(store, rank, size)]
    return NcclLike(PROCESS[0], store, rank, size, timeout)


def host_waits() -> list[str]:
    """Lines at which the host has waited for the device, since the last call."""
    found, PROCESS[0].gpu.waits = PROCESS[0].gpu.waits, []
    return found


def given_back(value):
    """The result of a program, which leaves this process: what it pretended ends."""
    PROCESS.pop().end()
    return value


def _batched(together):
    def batch(ops: list[dist.P2POp]):
        group = ops[0].group if ops else None
        return group.together(ops) if isinstance(group, NcclLike) else together(ops)

    return batch


if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, _made, devices=["cpu", "cuda"])
    # PyTorch groups for backends in C++ alone
    dist.batch_isend_irecv = _batched(dist.batch_isend_irecv)
