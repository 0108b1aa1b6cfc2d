"""Any torch.distributed group as a `Comm`: what runs under torchrun, on one machine or many.

A Comm is sends and receives, and all else is built on them; so this file is short. When checked, each
message is two: a header of 512 bytes (shape, dtype, label, line of the program) and the values. Without
it gloo returns a silently wrong result when shapes differ. Over gloo, channels (lanes and groups) are
tags. NCCL has no tags, so there they are process groups of their own, made in the same order on every
rank; and it must be given two-way traffic in one group, so what is posted starts at the first wait or
collective, together, after the headers, which go over gloo.

Several Comms of one group have channels of their own. As in MPI, all ranks of a group make its Comms,
in the same order: the group's store counts them.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from ..base import ANY, Comm, Link, Recv, Send, Work, agree
from ..cluster.hardware import ends
from ..lanes import ThreadLane
from ..program import check_seed, check_timeout, seed_all, seed_of
from ..trace import Trace
from .interface import name_interface
from .native import Native
from .progress import Source, progress
from .torchwork import TorchWork, start_together


class TorchComm(Comm):
    """`group`: any process group (default: the world's).

    checked: send headers; None: if the group can carry CPU tensors.  timeout: seconds a wait may take.
    All ranks of the group make it, and several in the same order. Raises PeerLost when the other side is dead,
    RankMissing when it does not come in time.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, checked: bool | None = None, timeout: float = 1800.0,
                 trace: Trace | None = None):  # fmt: skip
        check_timeout(timeout)
        if checked not in (None, True, False):
            raise ValueError(f"checked is True, False or None, not {checked!r}")
        if group is None and not dist.is_initialized():
            raise RuntimeError("torch.distributed has no group yet: from_env() makes one under torchrun, "
                               "dist.init_process_group(…) elsewhere")  # fmt: skip
        if not isinstance(group, dist.ProcessGroup | None):
            raise TypeError(f"a TorchComm is made of a process group of torch.distributed, not of {group!r}")
        self.group = dist.group.WORLD if group is None else group
        backends = dist.get_backend_config(self.group)
        self.nccl, cpu = "nccl" in backends, "cpu:gloo" in backends
        if checked and not cpu:
            raise ValueError(f"a checked TorchComm sends its headers over gloo, and this group has {backends}")
        self.checked, self.timeout, self.trace = cpu if checked is None else checked, timeout, trace
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.nccl else torch.device("cpu")
        self.algorithm = "native" if self.nccl else "ring"
        self.unwaited: dict[Work, None] = {}  # of this Comm and all made from it, for `flush`
        self.tracing, self.progress = threading.Lock(), progress()
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.counts = _get_process_group_store(self.group)
        self.number = self.counts.add(f"minidist/comms/{rank}", 1)
        if self.nccl and self.number > 1:
            everyone = [dist.get_global_rank(self.group, r) for r in range(size)]
            self.group = dist.new_group(everyone, use_local_synchronization=True)
        self._open(list(range(size)), rank, "main" if self.number == 1 else f"main {self.number}")

    def _open(self, ranks: list[int], rank: int, channel: str) -> TorchComm:
        """`ranks`: this Comm's ranks in `group`."""
        self.ranks, self.rank, self.size, self.channel = ranks, rank, len(ranks), channel
        self.members = tuple(dist.get_global_rank(self.group, r) for r in ranks)
        self.tag = crc32(channel.encode()) % 2**30
        self.sources: dict[int, Source] = {}  # by rank, or ANY
        self.behind: deque = deque()  # receives that were posted behind a wildcard
        self.wild = False  # whether a wildcard receive has not been met
        self.posted: list[TorchWork] = []  # over NCCL: not started yet
        self.native, self._lanes = Native(self), {}
        return self

    def _beside(self, ranks: list[int], rank: int, name: str) -> TorchComm:
        """A Comm of some of these ranks on a channel of its own."""
        other = object.__new__(TorchComm)
        for attribute in ("group", "nccl", "checked", "timeout", "trace", "device", "algorithm", "unwaited", "tracing",
                          "progress", "counts", "number"):  # fmt: skip
            setattr(other, attribute, getattr(self, attribute))
        if self.nccl:
            everyone = [dist.get_global_rank(self.group, r) for r in ranks]
            other.group = dist.new_group(everyone, use_local_synchronization=True)
            ranks = [dist.get_group_rank(other.group, r) for r in everyone]  # a group sorts its ranks
        return other._open(ranks, rank, f"{self.channel}/{name}")

    def local(self, rank: int) -> int:
        """The rank here of a rank of `group`."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        if self.nccl and any(isinstance(op, Recv) and op.src == ANY for op in ops):
            raise ValueError("NCCL cannot receive from any rank: name the source")
        return TorchWork(self, ops, waited)

    def start(self) -> None:
        """Over NCCL: start all that has been posted, in one group."""
        if self.posted:
            works, self.posted = self.posted, []
            start_together(self, works)

    def _agree(self) -> None:
        if self.checked and not self.nccl:
            agree(self)

    def _abandon(self, call: tuple) -> None:
        for work in list(self.unwaited):
            if isinstance(work, TorchWork) and work.call == call and work._comm is self:
                work.abandon()

    def made_elsewhere(self, peer: int) -> str:
        """For a timeout: that the other side has made fewer Comms of this group than this rank, if it has."""
        key = f"minidist/comms/{self.ranks[peer]}"
        made = int(self.counts.get(key)) if peer != ANY and self.counts.check([key]) else self.number
        if made >= self.number:
            return ""
        return (f"; this is Comm number {self.number} of its group, and that rank has made {made}: "
                "all ranks make them, in the same order")  # fmt: skip

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return self._beside([self.ranks[r] for r in ranks], ranks.index(self.rank), name)

    def _exchange(self, row: list[int]) -> list[list[int]]:
        if not self.nccl:
            return super()._exchange(row)
        self.start()
        rows: list = [None] * self.size
        dist.all_gather_object(rows, row, group=self.group)
        return rows

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        if lane not in self._lanes:
            self.start()
            comm = self._beside(self.ranks, self.rank, f"lane {lane}")
            comm.native.open()  # here, where all ranks do it in the same order, not in the lane's thread
            self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.unwaited)
        return self._lanes[lane].put(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        return Link(10e-6, 1 / 100e9) if self.nccl else Link(50e-6, 1 / 2e9)

    def now(self) -> float:
        return time.monotonic()

    def flush(self) -> None:
        """Wait for all that was posted; raises what went wrong in it."""
        self.start()
        while self.unwaited:
            next(iter(self.unwaited)).wait()


def from_env(backend: str | None = None, seed: int = 0, checked: bool | None = None, timeout: float = 1800.0) -> Comm:
    """The Comm of a process that torchrun started: NCCL where there are GPUs, else gloo.

    backend: "nccl" or "gloo" to insist.  seed: of each rank's random numbers, as in a World.
    Raises RuntimeError outside torchrun, where a restart would hang, and where other hosts would find no interface of
    this one; ValueError when there are more local ranks than GPUs.
    """
    check_timeout(timeout)
    seed = check_seed(seed)
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'a backend is "gloo" or "nccl", not {backend!r}')
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise RuntimeError("RANK and WORLD_SIZE are not set: start with `torchrun --nproc-per-node 4 …`, "
                           "or use World(4).run(program) or launch(program, 4)")  # fmt: skip
    _refuse_stale_store()
    local, ranks_here = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = backend or ("nccl" if gpus else "gloo")
    if backend == "nccl" and ranks_here > gpus:
        raise ValueError(f'{ranks_here} ranks on this machine and {gpus} GPUs: NCCL needs one each (or backend="gloo")')
    if backend == "nccl":
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        if int(os.environ["WORLD_SIZE"]) > ranks_here:
            name_interface(os.environ.get("MASTER_ADDR", "localhost"))
        backends = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
        dist.init_process_group(backends, timeout=timedelta(seconds=timeout))
        atexit.register(close)
    seed_all(seed_of(seed, dist.get_rank()))
    return TorchComm(checked=checked, timeout=timeout)


def _refuse_stale_store() -> None:
    """torchrun's shared store keeps the addresses of ranks that died; gloo would wait for them (seen in torch 2.13)."""
    asked = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if asked and shared and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        raise RuntimeError(f"--max-restarts {asked}: restarted ranks would wait for the addresses of dead ones; "
                           "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment")  # fmt: skip


def close() -> None:
    """Leave the default group. Collected first: a gloo rank can abort when work dies after its group."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
