"""A `Comm` as a `torch.distributed.ProcessGroup`: PyTorch's own DDP and FSDP2 over our collectives, or the reader's.

    DDP (C++) ──▶ group.allreduce([x], opts) ─────────▶ all_reduce_(comm, flat, "sum")
    FSDP2 ──────▶ group.reduce_scatter_single(o, x) ──▶ reduce_scatter_(comm, chunks, "sum")   ──▶ comm.isend, irecv
    DTensor ────▶ group.all_gather_single(o, x) ──────▶ all_gather_(comm, chunks)

What does the work is handed in: functions called as those of `minidist.collectives`, on flat, contiguous tensors.
"mean" is a sum, divided here, as gloo does it. A method returns before its messages are done: they go on in a lane of
the Comm, one after the other in the order of the calls, which PyTorch keeps equal on all ranks. Whoever waits, in
Python or in C++, gets the error of a function that raised.

Li et al. 2020, *PyTorch Distributed*, section 3; torch/csrc/distributed/c10d/PyProcessGroup.hpp says what C++ can call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_group
from torch.futures import Future

from .base import Comm, Work, describe
from .wires import WorldComm

# ------------------------------------------------------------
# A collective of a `CommGroup` under way, as PyTorch waits for it: from Python by `wait`, from C++ by a future.
#
# A future that was given an exception (`set_exception`) raises it in Python only; for C++ it holds a value that is no
# tensor, on which DDP crashes (torch 2.13). One fails on both sides where a callback of `then` raises. So what is handed
# out is `done.then(outcome)`.


class GroupWork(dist.Work):
    """A collective under way: what C++ and Python ask of one. PyTorch gives up `is_success`, `exception` and the like.

    work: of the lane; None if all was done before the method returned.
    """

    def __init__(self, future: Future, work: Work | None):
        super().__init__()
        self._future = future
        self._work = work

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def wait(self, timeout=None) -> bool:
        """Return once the results are there. How long that may take is the Comm's affair. Raises what went wrong."""
        if self._work is not None:
            self._work.wait()
        return True

    def get_future(self) -> Future:
        """What C++ waits for; it raises what went wrong."""
        return self._future

    def is_completed(self) -> bool:
        """Whether the collective is over, or has failed."""
        return self._future.done()


def start_collective(
    comm: Comm, job: Callable[[Comm], None], result: list, overlap: bool
) -> GroupWork:
    """Do `job(lane)` in a lane of `comm`, or `job(comm)` here and now. result: the value of the future."""
    future: Future = Future()
    if not overlap:
        job(comm)
        future.set_result(result)
        return GroupWork(future, None)
    errors: list[BaseException] = []

    def outcome(_) -> list:
        if errors:
            raise errors[0]
        return result

    def run(lane: Comm) -> None:
        try:
            job(lane)
        except BaseException as error:
            errors.append(error)
        future.set_result(None)
        outcome(None)

    return GroupWork(future.then(outcome), comm.stream(run))


# ------------------------------------------------------------
# The process group: the methods that DDP, FSDP2 and DTensor call, each handed on to a collective.


VERBS = (
    "all_gather_",
    "all_reduce_",
    "all_to_all",
    "barrier",
    "broadcast_",
    "gather",
    "reduce_",
    "reduce_scatter_",
    "scatter",
)
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "prod",
}


class CommGroup(dist.ProcessGroup):
    """The ranks of `comm`, for whoever takes a ProcessGroup. To give it a name and sub-groups: `process_group`.

    verbs: where functions of the names VERBS are found, such as `minidist.collectives`.  own: functions by name, before
    those. A call of one that is not there raises NotImplementedError.  overlap: in a lane, beside the program; in a
    World pass False, because PyTorch's waits in C++ do not know its clock (ValueError). Tensors are dense, on the CPU.
    ValueError for a function of any other name, and, when they are called, for other tensors and other reductions.

    >>> import torch
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from minidist import World, collectives
    >>> from minidist.comm.processgroup import CommGroup
    >>> def program(comm):
    ...     model = torch.nn.Linear(2, 1, bias=False)
    ...     group = CommGroup(comm, collectives, overlap=False)
    ...     ddp = DistributedDataParallel(model, process_group=group)
    ...     ddp(torch.tensor([[1.0, 2.0]]) * comm.rank).sum().backward()
    ...     return model.weight.grad.tolist()
    >>> World(3).run(program)  # the mean of 0, 1 and 2 times the input
    [[[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 2.0]]]
    """

    options: _Options  # of a group that torch.distributed has made

    def __init__(self, comm: Comm, verbs: Any = None, overlap: bool = True, **own: Callable):
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]  # not in the stubs
        for name in own:
            if name not in VERBS:
                raise ValueError(f"a group has no function {name!r}: there are {', '.join(VERBS)}")
        if overlap and isinstance(comm, WorldComm):
            raise ValueError(
                "a World's ranks share one clock, and PyTorch waits without it: overlap=False"
            )
        self.comm = comm
        self.verbs = verbs
        self.overlap = overlap
        self.own = own
        self._name = ""

    def getBackendName(self) -> str:
        """What PyTorch shows as this group's backend."""
        return "minidist"

    # Without these two PyTorch would ask a C++ backend for the name, and there is none.
    def setGroupName(self, name: str) -> None:
        """Take the name under which torch.distributed knows the group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return that name."""
        return self._name

    def _verb(self, name: str) -> Callable:
        function = self.own.get(name) or getattr(self.verbs, name, None)
        if function is None:
            raise NotImplementedError(
                f"{name} is called, and this group has none: process_group(…, {name}=…)"
            )
        return function

    def _reduction(self, opts) -> tuple[str, int]:
        """A reduction of options, of a ReduceOp itself, or of nothing (a sum): its name, and what it is divided by."""
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
        name = next((name for known, name in _OPS.items() if op == known), None)
        if name is None:
            raise ValueError(f"this group reduces by {', '.join(_OPS.values())}, and not by {op}")
        return ("sum", self.comm.size) if name == "mean" else (name, 1)

    def _start(
        self, result: list, tensors: Sequence[Tensor], job: Callable[[Comm], None]
    ) -> GroupWork:
        """Do `job`, in the lane or here. `result`: what its future will hold.  tensors: all that it touches."""
        for x in tensors:
            if x.device.type not in ("cpu", "meta") or x.layout is not torch.strided:
                raise ValueError(
                    f"this group sends dense CPU tensors, not {describe(x)} {x.layout} on {x.device}"
                )
        return start_collective(self.comm, job, result, self.overlap)

    def _by_dtype(self, tensors, work: Callable[[Comm, Tensor], None]) -> GroupWork:
        """Do `work(comm, flat)` for all tensors of one dtype, one after the other in `flat`, which goes back to them."""
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)

        def job(comm: Comm) -> None:
            for dtype in dict.fromkeys(x.dtype for x in tensors):
                alike = [x for x in tensors if x.dtype == dtype]
                flat = _flat(alike)
                work(comm, flat)
                _copy_back(flat, alike)

        return self._start(tensors, tensors, job)

    def allreduce(self, tensors, opts=None) -> GroupWork:
        """DDP's buckets; also norms. Several tensors are one message each way, by dtype."""
        op, parts = self._reduction(opts)
        run = self._verb("all_reduce_")

        def work(comm: Comm, flat: Tensor) -> None:
            run(comm, flat, op)
            if parts > 1:
                flat.div_(parts)

        return self._by_dtype(tensors, work)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors, opts=None) -> GroupWork:
        """DDP's parameters at the start, its buffers before each forward."""
        root = opts if isinstance(opts, int) else opts.rootRank
        run = self._verb("broadcast_")
        return self._by_dtype(tensors, lambda comm, flat: run(comm, flat, root))

    def reduce(self, tensors, opts) -> GroupWork:
        """`tensors`, combined over the ranks, on `opts.rootRank`; the other ranks keep theirs."""
        op, parts = self._reduction(opts)
        run = self._verb("reduce_")

        def work(comm: Comm, flat: Tensor) -> None:
            run(comm, flat, opts.rootRank, op)
            if parts > 1 and comm.rank == opts.rootRank:
                flat.div_(parts)

        return self._by_dtype(tensors, work)

    def allgather(self, outputs, inputs, opts=None) -> GroupWork:
        """`outputs[i][r]` becomes rank r's `inputs[i]`. Sizes may differ between ranks, where every rank knows them."""
        run = self._verb("all_gather_")

        def job(comm: Comm) -> None:
            for outs, x in zip(outputs, inputs, strict=True):
                _copy_back(x.reshape(-1), [outs[comm.rank]])
                chunks = [_flat([out]) for out in outs]
                run(comm, chunks)
                for chunk, out in zip(chunks, outs, strict=True):
                    _copy_back(chunk, [out])

        return self._start(outputs, [*inputs, *(out for outs in outputs for out in outs)], job)

    allgather_coalesced = allgather

    def all_gather_single(self, output: Tensor, input: Tensor, opts=None) -> GroupWork:
        """FSDP2's parameters: (k,) on each rank → (n·k,)."""
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> GroupWork:
        """Several at once: `inputs[i]` (k,) on each rank → `outputs[i]` (n·k,). ValueError for other lengths."""
        for output, x in zip(outputs, inputs, strict=True):
            _fits(output, self.comm.size * x.numel(), "all-gather", x, self.comm.size)
        return self.allgather([_chunks(output, self.comm.size) for output in outputs], inputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs, inputs, opts=None) -> GroupWork:
        """`outputs[i]` becomes `inputs[i][rank]`, combined over the ranks. The inputs stay as they are: this copies."""
        op, parts = self._reduction(opts)
        run = self._verb("reduce_scatter_")

        def job(comm: Comm) -> None:
            for output, xs in zip(outputs, inputs, strict=True):
                chunks = list(torch.cat([x.reshape(-1) for x in xs]).split([x.numel() for x in xs]))
                run(comm, chunks, op)
                _copy_back(chunks[comm.rank], [output])
                if parts > 1:
                    output.div_(parts)

        return self._start(outputs, [*outputs, *(x for xs in inputs for x in xs)], job)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts=None) -> GroupWork:
        """FSDP2's gradients: (n·k,) on each rank → (k,)."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> GroupWork:
        """Several at once: `inputs[i]` (n·k,) on each rank → `outputs[i]` (k,). ValueError for other lengths."""
        for output, x in zip(outputs, inputs, strict=True):
            _fits(x, self.comm.size * output.numel(), "reduce-scatter", output, self.comm.size)
        return self.reduce_scatter(outputs, [_chunks(x, self.comm.size) for x in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs, inputs, opts) -> GroupWork:
        """`outputs[0][r]` on `opts.rootRank` becomes rank r's `inputs[0]`."""
        root, run = opts.rootRank, self._verb("gather")

        def job(comm: Comm) -> None:
            rows = run(comm, inputs[0].reshape(1, -1), root)
            if comm.rank == root:
                _copy_back(rows.reshape(-1), outputs[0])

        return self._start(outputs, [*inputs, *(out for outs in outputs for out in outs)], job)

    def scatter(self, outputs, inputs, opts) -> GroupWork:
        """`outputs[0]` becomes `inputs[0][rank]` of `opts.rootRank`."""
        root, run = opts.rootRank, self._verb("scatter")

        def job(comm: Comm) -> None:
            rows = torch.stack([x.reshape(-1) for x in inputs[0]]) if comm.rank == root else None
            row = outputs[0].new_empty(1, outputs[0].numel())
            _copy_back(run(comm, rows, root, out=row).reshape(-1), outputs)

        return self._start(outputs, [*outputs, *(x for xs in inputs for x in xs)], job)

    def alltoall(self, outputs, inputs, opts=None) -> GroupWork:
        """`outputs[r]` becomes what rank r has in `inputs[rank]`."""
        run = self._verb("all_to_all")

        def job(comm: Comm) -> None:
            sizes, back = [x.numel() for x in inputs], [x.numel() for x in outputs]
            _copy_back(run(comm, torch.cat([x.reshape(-1) for x in inputs]), sizes, back), outputs)

        return self._start(outputs, [*outputs, *inputs], job)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, out_sizes=(), sizes=(), opts=None
    ) -> GroupWork:
        """Rows; `sizes[r]` of them go to rank r, `out_sizes[r]` come from it. None given: even."""
        n = self.comm.size
        outputs = list(output.split(list(out_sizes))) if out_sizes else _chunks(output, n)
        inputs = list(input.split(list(sizes))) if sizes else _chunks(input, n)
        return self.alltoall(outputs, inputs)

    alltoall_base = all_to_all_single

    def barrier(self, opts=None) -> GroupWork:
        """Done once every rank has come here."""
        return self._start([], [], self._verb("barrier"))

    def shutdown(self) -> None:
        """Nothing to end: the Comm is whose it was."""

    abort = shutdown


def _flat(tensors: list[Tensor]) -> Tensor:
    """Their numbers, one after the other: of a single contiguous tensor its own memory."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0].detach().view(-1)
    return torch.cat([x.detach().reshape(-1) for x in tensors])


def _copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write the numbers back, where they are not there already."""
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        if x.data_ptr() != part.data_ptr() or not x.is_contiguous():
            x.detach().copy_(part.view(x.shape))


def _chunks(x: Tensor, n: int) -> list[Tensor]:
    """A tensor as n flat chunks of its own memory."""
    return list(x.detach().view(-1).tensor_split(n))


def _fits(whole: Tensor, numbers: int, what: str, part: Tensor, n: int) -> None:
    if whole.numel() != numbers:
        raise ValueError(
            f"the whole of this {what} is {describe(whole)}, and {n} parts of {describe(part)} "
            f"are {numbers} numbers"
        )
    if not whole.is_contiguous():
        raise ValueError(
            f"the whole of this {what} has strides {whole.stride()}: it must be contiguous"
        )


# ------------------------------------------------------------
# `process_group`: a CommGroup that torch.distributed knows by name, so that it can make groups of its ranks.
#
# DDP is content with a CommGroup. FSDP2 lays its ranks out in a DeviceMesh, and functional collectives (DTensor) find a
# group by its name: so it is made by torch.distributed itself, by a registered backend. There is no rendezvous, because
# the Comm's ranks have met already: each process has a store of its own, which stays empty.


NAME = "minidist"


class _Options(NamedTuple):
    """How to make a group; of the same kind are the groups that are made of its ranks."""

    comm: Comm
    verbs: Any
    overlap: bool
    own: dict[str, Callable]


def process_group(
    comm: Comm, verbs: Any = None, overlap: bool = True, **own: Callable
) -> dist.ProcessGroup:
    """`comm`'s ranks as a process group; verbs, overlap, own: see CommGroup. To be called by every rank.

        group = process_group(comm, minidist.collectives, all_reduce_=my_ring)
        model = DistributedDataParallel(model, process_group=group)
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))

    The first of a process becomes torch.distributed's default group, unless there is one (torchrun); then `comm` must
    have the ranks of that one. `dist.destroy_process_group()` at the end. Raises ValueError for other ranks, and in a
    World, whose ranks share a process.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from minidist import collectives, launch
    >>> from minidist.comm.processgroup import process_group
    >>> def program(comm):
    ...     group = process_group(comm, collectives)
    ...     x = torch.tensor([comm.rank + 1.0])
    ...     dist.all_reduce(x, group=group)  # PyTorch's function, our ring
    ...     dist.destroy_process_group()
    ...     return x.item()
    >>> launch(program, 2)
    [3.0, 3.0]
    """
    if isinstance(comm, WorldComm):
        raise ValueError(
            "torch.distributed has one rank a process, and a World has them all in one: for DDP a "
            "CommGroup is enough; for FSDP2, launch(program, n)"
        )
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    options = _Options(comm, verbs, overlap, own)
    if not dist.is_initialized():
        dist.init_process_group(
            NAME, store=dist.HashStore(), rank=comm.rank, world_size=comm.size, pg_options=options
        )
        return _get_default_group()
    if (comm.rank, comm.size) != (dist.get_rank(), dist.get_world_size()):
        raise ValueError(
            f"the Comm is rank {comm.rank} of {comm.size}, and torch.distributed is rank "
            f"{dist.get_rank()} of {dist.get_world_size()}"
        )
    return dist.new_group(backend=NAME, pg_options=options)


def _create(asked, options: _Options | None) -> CommGroup:
    """A group of the ranks that torch.distributed names (none: all, for the default group)."""
    whole: Any = dist.group.WORLD
    options = options or whole.options
    comm = options.comm
    if asked.global_ranks_in_group:
        comm = comm._subgroup(list(asked.global_ranks_in_group), f"group {asked.group_id}")
    group = CommGroup(comm, options.verbs, options.overlap, **options.own)
    group.options = options
    return group
