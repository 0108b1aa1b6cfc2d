"""What NCCL asks for besides sends and receives: its own collectives, groups with a name, and streams.

Native         torch.distributed's collectives behind the same calls as ours, `algorithm="native"`. Each works on flat
               chunks, chunk i belonging to rank i, as `minidist.collectives` lays them out; where NCCL wants chunks of
               one size, uneven ones are padded. Bytes moved here are not counted.
named_group    a group for each channel, made and met by all its ranks
StreamLane     `comm.stream` on a CUDA stream of its own
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial, wraps
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d

from .base import Comm, RankMissing, Work

# ------------------------------------------------------------
# Process groups whose members alone make them, under names that each member computes by itself.
#
# `new_group` wants all ranks of the run, or numbers a group by how many its maker has made before. With three stages,
# where rank 1 is on two edges and ranks 0 and 2 on one, these numbers differ, and the members wait for each other under
# different names. Here the name is what all members know: the channel of the Comm that asks, and the ranks. Members keep
# the order in which they are listed, which `new_group` would sort.


def named_group(
    parent: dist.ProcessGroup,
    ranks: Sequence[int],
    channel: str,
    timeout: float,
    backend: str | None = None,
) -> dist.ProcessGroup:
    """A group of these ranks of `parent`, this one among them, in this order. All of them call it; each waits for all.

    channel: what its members know it by; used once for each parent.  timeout: seconds that its operations may take.
    backend: such as "gloo"; None: what the parent has.
    """
    everyone = [dist.get_global_rank(parent, rank) for rank in ranks]
    name = (
        f"minidist/{c10d._get_process_group_name(parent)}/{channel}/{','.join(map(str, everyone))}"
    )
    whole, place = c10d._get_default_group(), everyone.index(dist.get_rank())
    # Over a connection of its own: who waits for a key holds up whoever shares the connection, such as another lane.
    store = c10d._get_default_store().clone()  # type: ignore[attr-defined]  # not in the stubs
    # With a device bound, PyTorch would split the new communicator off the whole run's, and wait for all ranks there.
    bound, whole.bound_device_id = whole.bound_device_id, None
    try:
        group, _ = c10d._new_process_group_helper(
            len(everyone),
            place,
            everyone,
            dist.Backend(backend or dist.get_backend_config(parent)),
            store,
            c10d.GroupName(name),
            timeout=timedelta(seconds=timeout),
            device_id=bound,
            group_desc=channel,
        )
    finally:
        whole.bound_device_id = bound
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(everyone)}
    return group


def warm(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let all members of a new group on GPUs meet. Its first operation makes its communicator, which takes all of them:
    were that a message between two, the others would be waited for."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)


# ------------------------------------------------------------
# The library's own collectives, behind the same calls as ours.


_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}

# Their names since PyTorch 2.13, where the older ones warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _named(collective: Callable) -> Callable:
    """With gloo's timeout turned into RankMissing, and the other ranks' places in it."""

    @wraps(collective)
    def call(self: Native, *args) -> None:
        try:
            collective(self, *args)
        except RuntimeError as error:
            if "imed out" not in str(error):
                raise
            raise self._missing(collective.__name__) from None

    return call


class Native:
    """The collectives of a TorchComm's group. "mean" is a sum here; the caller divides.

    What has been posted starts before each: over NCCL both are in one stream, in the same order on every rank.
    Over gloo they raise RankMissing when a rank does not come in time.
    """

    def __init__(self, comm):
        self._comm, self._own = comm, None

    @property
    def _group(self) -> dist.ProcessGroup:
        """A group of the Comm's ranks, in their order; made at the first use, in a lane's thread or the program's."""
        comm = self._comm
        if comm.channel == "main" or comm.nccl:
            return comm.group
        if self._own is None:
            self._own = named_group(comm.group, comm.ranks, f"{comm.channel}/native", comm.timeout)
        return self._own

    def _missing(self, name: str) -> RankMissing:
        comm = self._comm
        rank, watch = comm.members[comm.rank], comm.run.watch
        words = (
            f"rank {rank} waited {comm.timeout:g} s for PyTorch's own {name} of {comm.size} ranks"
        )
        return RankMissing("\n".join([words, *(watch.where(comm.members) if watch else [])]))

    def _start_posted(self) -> None:
        self._comm.check_usable()
        self._comm.start_all()

    @_named
    def broadcast(self, flat: Tensor, root: int) -> None:
        self._start_posted()
        dist.broadcast(flat, group_src=root, group=self._group)

    @_named
    def reduce(self, flat: Tensor, root: int, op: str) -> None:
        self._start_posted()
        own = flat.clone()  # the library may overwrite the tensors of the other ranks
        dist.reduce(flat, group_dst=root, op=_OPS[op], group=self._group)
        if self._comm.rank != root:
            flat.copy_(own)

    @_named
    def all_reduce(self, flat: Tensor, op: str) -> None:
        self._start_posted()
        dist.all_reduce(flat, op=_OPS[op], group=self._group)

    @_named
    def reduce_scatter(self, chunks: list[Tensor], out: Tensor, op: str) -> None:
        self._start_posted()
        flat = _joined(chunks)
        padded = torch.empty(flat.numel() // len(chunks), dtype=flat.dtype, device=flat.device)
        _reduce_scatter(padded, flat, op=_OPS[op], group=self._group)
        out.copy_(padded[: out.numel()])

    @_named
    def all_gather(self, chunks: list[Tensor]) -> None:
        self._start_posted()
        flat = _joined(chunks)
        padded = flat.chunk(len(chunks)) if flat.numel() else chunks
        _all_gather(flat, padded[self._comm.rank].clone(), group=self._group)
        for chunk, values in zip(chunks, padded, strict=True):
            if chunk.data_ptr() != values.data_ptr():
                chunk.copy_(values[: chunk.numel()])

    def gather(self, chunks: list[Tensor], root: int) -> None:
        """An all-to-all in which only the root receives; so chunks may be uneven."""
        own = chunks[self._comm.rank]
        outputs = chunks if self._comm.rank == root else self._alone(root, own[:0])
        self.all_to_all(outputs, self._alone(root, own))

    def scatter(self, chunks: list[Tensor], root: int) -> None:
        """An all-to-all in which only the root sends."""
        own = chunks[self._comm.rank]
        inputs = chunks if self._comm.rank == root else self._alone(root, own[:0])
        self.all_to_all(self._alone(root, own), inputs)

    def _alone(self, root: int, chunk: Tensor) -> list[Tensor]:
        """A chunk for each rank, of which only the root's is not empty."""
        return [chunk if r == root else chunk[:0] for r in range(self._comm.size)]

    @_named
    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        self._start_posted()
        out, into = torch.cat(outputs), torch.cat(inputs)
        dist.all_to_all_single(
            out, into, [o.numel() for o in outputs], [i.numel() for i in inputs], group=self._group
        )
        for chunk, values in zip(outputs, out.split([o.numel() for o in outputs]), strict=True):
            chunk.copy_(values)

    @_named
    def barrier(self, token: Tensor) -> None:
        self._start_posted()
        dist.barrier(group=self._group)


def _padded(chunks: list[Tensor]) -> list[Tensor]:
    longest = max(c.numel() for c in chunks)
    return [torch.nn.functional.pad(c, (0, longest - c.numel())) for c in chunks]


def _joined(chunks: list[Tensor]) -> Tensor:
    """All chunks in one tensor, each as long as the longest: their own memory where they lie so already."""
    first = chunks[0]
    one_memory = len({c.untyped_storage().data_ptr() for c in chunks}) == 1
    places = [first.storage_offset() + i * first.numel() for i in range(len(chunks))]
    even = all(c.numel() == first.numel() for c in chunks)
    if one_memory and even and [c.storage_offset() for c in chunks] == places:
        return first.as_strided((first.numel() * len(chunks),), (1,))
    return torch.cat(_padded(chunks))


# ------------------------------------------------------------
# `stream` on a GPU: each lane is a stream of the device, and no thread of the host.
#
#     host             submit: issue the job's kernels and messages      wait: tell the caller's stream to wait
#     caller's stream  ──compute──●───────compute────────────────────────────○──compute──
#     lane's stream               └▶ wait ──messages──● ─────────────────────▶┘
#
# The job runs on the thread that asks for it: it only issues work, which costs microseconds, and the device does it
# beside what the caller's stream has to do. So everything is issued in the order of the program, the same on every rank.
# Two threads of a rank would feed the device in an order that differs from rank to rank, and two collectives that each
# wait for the other's ranks hang. Also, a stream belongs to the thread that chose it: what another thread issues lands on
# the default one, behind the computation.
#
# Memory: PyTorch hands out a freed tensor's memory again to the stream that it was allocated on, at once. A job frees
# gradients that its stream has yet to send, and makes averages that the caller frees. So all tensors that are reached
# from a job's arguments are marked as used by the lane's stream when it begins, and, with its result, as used by the
# stream of whoever waits for it.
# Source: CUDA C Programming Guide, "Streams" and "Events"; torch.Tensor.record_stream.


class StreamWork(Work):
    """A job of a lane. `wait()` lets the caller's stream wait, not the host, and gives the job's result."""

    __slots__ = ("_error", "_event", "_gpu", "_held", "_result", "_unwaited", "source")

    def __init__(self, gpu: Any, unwaited: dict[Work, None]):
        self._gpu = gpu
        self._unwaited = unwaited
        self.source = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._event: Any = None
        self._held: tuple = ()
        unwaited[self] = None

    def done(self) -> bool:
        return self._event.query()

    def wait(self):
        stream = self._gpu.current_stream()
        stream.wait_event(self._event)
        self._unwaited.pop(self, None)
        held, self._held = self._held, ()
        _mark([held, self._result], stream)
        if self._error is not None:
            raise self._error
        return self._result


class StreamLane:
    """Issues the jobs of one lane, each with the lane's TorchComm as first argument. gpu: `torch.cuda`, or its stand-in."""

    def __init__(self, comm: Any, gpu: Any, unwaited: dict[Work, None]):
        self.comm = comm
        self._gpu = gpu
        self._unwaited = unwaited
        self._stream = gpu.Stream()

    def submit(self, fn: Callable, args: tuple) -> StreamWork:
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


# what is looked through: what may hold a job's tensors, and nothing that outlives every job
_HOLDERS = (list, tuple, set, frozenset, dict, partial, CellType, MethodType, BuiltinMethodType)


def tensors(values: Any) -> Iterator[Tensor]:
    """All tensors that are reached from `values`: through lists and the like, functions, and this package's objects.

    Not through modules, whose parameters outlive every job, nor through Comms and Works."""
    seen, stack = set(), [values]
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, Comm | Work | nn.Module | type):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, FunctionType):
            stack.append(value.__closure__)
        elif isinstance(value, _HOLDERS) or type(value).__module__.startswith("minidist."):
            stack += gc.get_referents(value)
