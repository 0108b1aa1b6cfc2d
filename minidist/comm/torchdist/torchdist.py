"""Any torch.distributed group as a `Comm`: what runs under torchrun, on one machine or many.

A Comm is sends and receives, and all else is built on them; so this file is short. When checked, each
message is two: a header of 512 bytes (shape, dtype, label, line of the program) and the values. Without
it gloo returns a silently wrong result when shapes differ.

                   over gloo                             over NCCL
    values         of the CPU, by threads                of GPUs, on their streams
    channels       tags of one group                     a group each, made and met by all its ranks (`named`)
    posted         starts at once (`torchwork`)          starts with what else is posted, in one group (`grouped`)
    headers        before the values                     beside the values, over gloo
    lanes          a thread each (`lanes`)               a stream each (`streams`)
    small things   the same Comm                         `on_host()`: a Comm of the same ranks over gloo

Several Comms of one group have channels of their own. As in MPI, all ranks of a group make its Comms,
in the same order: the group's store counts them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BackendConfig, _get_process_group_store

from ..base import ANY, Comm, CommError, Link, Mismatch, Recv, Send, Work, agree
from ..cluster.hardware import ends
from ..lanes import ThreadLane
from ..program import DEFAULT_TIMEOUT, check_seed, check_timeout, seed_all, seed_of
from ..trace import Trace, lane_of
from .grouped import GroupedWork, lost, start_together
from .interface import name_interface
from .named import named_group, warm
from .native import Native
from .progress import Source, progress
from .streams import StreamLane
from .torchwork import TorchWork


class TorchComm(Comm):
    """`group`: any process group (default: the world's).

    checked: send headers; None: if the group can carry CPU tensors.  timeout: seconds a wait may take.
    All ranks of the group make it, and several in the same order. Over gloo it raises PeerLost when the other side is
    dead, and RankMissing when it does not come in time. Over NCCL the host does not wait for values: nobody is told of
    a death but by torchrun, which ends the other ranks, or by NCCL's watchdog, which ends the process after `timeout`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        checked: bool | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        trace: Trace | None = None,
    ):
        check_timeout(timeout)
        if checked not in (None, True, False):
            raise ValueError(f"checked is True, False or None, not {checked!r}")
        if group is None and not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed has no group yet: from_env() makes one under torchrun, "
                "dist.init_process_group(…) elsewhere"
            )
        if not isinstance(group, dist.ProcessGroup | None):
            raise TypeError(
                f"a TorchComm is made of a process group of torch.distributed, not of {group!r}"
            )
        self.group = dist.group.WORLD if group is None else group
        backends = dist.get_backend_config(self.group)
        self.nccl, cpu = "nccl" in backends, "cpu:" in backends
        if checked and not cpu:
            raise ValueError(
                f"a checked TorchComm sends its headers over gloo, and this group has {backends}"
            )
        self.checked = cpu if checked is None else checked
        self.timeout = timeout
        self.trace = trace
        self.unwaited: dict[Work, None] = {}  # of this Comm and all made from it, for `flush`
        # likewise: those with operations that have not started
        self.posting: dict[TorchComm, None] = {}
        self.tracing, self.progress = threading.Lock(), progress()
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.counts = _get_process_group_store(self.group)
        self.number = self.counts.add(f"minidist/comms/{rank}", 1)
        everyone, channel = list(range(size)), "main" if self.number == 1 else f"main {self.number}"
        self._devices()
        self._host = None
        if self.nccl:
            self._host = self._over_gloo(self.group, everyone, rank, channel) if cpu else None
            if self.number > 1:
                self.group = named_group(
                    self.group, everyone, channel, timeout, _of_gpus(self.group)
                )
            warm(self.group, self.device)
        self._open(everyone, rank, channel)

    def _devices(self) -> None:
        """Where values are, and who moves them. Another backend than NCCL that works on streams, such as the one of the
        tests, brings what it has in place of `torch.cuda` along, as `group.gpu`."""
        self.gpu = getattr(self.group, "gpu", torch.cuda) if self.nccl else None
        kind = getattr(self.group, "device_type", "cuda")
        self.device = (
            torch.device(kind, self.gpu.current_device()) if self.nccl else torch.device("cpu")
        )
        self.algorithm = "native" if self.nccl else "ring"
        self.any_source = not self.nccl

    def _open(self, ranks: list[int], rank: int, channel: str) -> TorchComm:
        """`ranks`: this Comm's ranks in `group`."""
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.channel = channel
        self.members = tuple(dist.get_global_rank(self.group, r) for r in ranks)
        self.tag = crc32(channel.encode()) % 2**30
        self.sources: dict[int, Source] = {}  # by rank, or ANY
        self.behind: deque = deque()  # receives that were posted behind a wildcard
        self.wild = False  # whether a wildcard receive has not been met
        self.posted: list[GroupedWork] = []  # over NCCL: not started yet
        self.broken: CommError | None = None  # over NCCL: why it is of no use any more
        self.native, self._lanes = Native(self), {}
        return self

    def _another(self) -> TorchComm:
        """Another Comm with what all share that are made from one another, not opened yet."""
        other = object.__new__(TorchComm)
        for attribute in (
            "group",
            "nccl",
            "checked",
            "timeout",
            "trace",
            "device",
            "algorithm",
            "unwaited",
            "posting",
            "tracing",
            "progress",
            "counts",
            "number",
            "gpu",
            "any_source",
        ):
            setattr(other, attribute, getattr(self, attribute))
        other._host = None
        return other

    def _beside(self, ranks: list[int], rank: int, name: str) -> TorchComm:
        """A Comm of some of these ranks on a channel of its own. `ranks`: in `group`."""
        other, channel = self._another(), f"{self.channel}/{name}"
        if self.nccl:
            if self._host is not None:
                other._host = self._host._beside([self._host.ranks[r] for r in ranks], rank, name)
            other.group = named_group(
                self.group, ranks, channel, self.timeout, _of_gpus(self.group)
            )
            warm(other.group, self.device)
            ranks = list(range(len(ranks)))
        return other._open(ranks, rank, channel)

    def _over_gloo(
        self, group: dist.ProcessGroup, ranks: list[int], rank: int, channel: str
    ) -> TorchComm:
        """The Comm of these ranks of a group for CPU tensors."""
        other = self._another()
        other.group = group
        other.nccl = False
        other.gpu = None
        other.any_source = True
        other.device, other.algorithm = torch.device("cpu"), "ring"
        return other._open(ranks, rank, f"{channel}/host")

    def on_host(self) -> TorchComm:
        if not self.nccl:
            return self
        if self._host is None:  # a group for GPUs alone
            group = named_group(
                self.group, self.ranks, f"{self.channel}/host", self.timeout, "gloo"
            )
            self._host = self._over_gloo(group, list(range(self.size)), self.rank, self.channel)
        return self._host

    @property
    def patience(self) -> timedelta:
        """How long a wait may take."""
        return timedelta(seconds=self.timeout)

    def local(self, rank: int) -> int:
        """The rank here of a rank of `group`."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        if self.nccl and any(isinstance(op, Recv) and op.src == ANY for op in ops):
            raise ValueError("NCCL cannot receive from any rank: name the source")
        if not self.nccl:
            return TorchWork(self, ops, waited)
        self.check_usable()
        work = GroupedWork(self, ops)
        self.posted.append(work)
        self.posting[self] = None
        if self.one_way:
            self.start()
        return work

    def start(self) -> None:
        """Over NCCL: start all that has been posted here, in one group."""
        if self.posted:
            works, self.posted = self.posted, []
            self.posting.pop(self, None)
            start_together(works)

    def start_all(self) -> None:
        """Over NCCL: likewise, and on all Comms made from one another; else nobody starts what others wait for."""
        for comm in list(self.posting):
            comm.start()

    def post_header(self, header: torch.Tensor, op: Send | Recv) -> dist.Work:
        """Over NCCL: send the header of a message, or have room for it, over gloo."""
        host = self._host
        if isinstance(op, Send):
            return dist.isend(
                header, group=host.group, group_dst=host.ranks[op.dst], tag=2 * self.tag
            )
        return dist.irecv(header, group=host.group, group_src=host.ranks[op.src], tag=2 * self.tag)

    def lose(self, error: Mismatch) -> None:
        """Give the communicator up: a transfer of it can never end."""
        self.broken = lost(error)
        with contextlib.suppress(Exception):
            self.group.abort()

    def check_usable(self) -> None:
        """CommError after a mismatch that the communicator did not survive."""
        if self.broken is not None:
            raise self.broken

    def record(self, op: Send, start: float | None = None) -> None:
        """Note a message in the trace. start: None: when is not known, as the device does it."""
        now = time.monotonic()
        src = self.members[self.rank]
        dst = self.members[op.dst]
        nbytes = op.x.numel() * op.x.element_size()
        with self.tracing:  # lanes record, too
            self.trace.add(
                src, dst, nbytes, start or now, now, now, op.label, lane_of(self.channel)
            )

    def _agree(self) -> None:
        if self.checked and not self.nccl:
            agree(self)

    def _abandon(self, call: tuple) -> None:
        for work in list(self.unwaited):
            if (
                isinstance(work, TorchWork | GroupedWork)
                and work.call == call
                and work._comm is self
            ):
                work.abandon()

    def made_elsewhere(self, peer: int) -> str:
        """For a timeout: that the other side has made fewer Comms of this group than this rank, if it has."""
        key = f"minidist/comms/{self.ranks[peer]}"
        made = (
            int(self.counts.get(key)) if peer != ANY and self.counts.check([key]) else self.number
        )
        if made >= self.number:
            return ""
        return (
            f"; this is Comm number {self.number} of its group, and that rank has made {made}: "
            "all ranks make them, in the same order"
        )

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return self._beside([self.ranks[r] for r in ranks], ranks.index(self.rank), name)

    def _exchange(self, row: list[int]) -> list[list[int]]:
        self.start_all()
        return self.on_host()._exchange(row) if self.nccl else super()._exchange(row)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        if lane not in self._lanes:
            self.start_all()
            comm = self._beside(self.ranks, self.rank, f"lane {lane}")
            if self.nccl:
                self._lanes[lane] = StreamLane(comm, self.gpu, self.unwaited)
            else:
                self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.unwaited)
        return self._lanes[lane].put(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        return Link(10e-6, 1 / 100e9) if self.nccl else Link(50e-6, 1 / 2e9)

    def now(self) -> float:
        return time.monotonic()

    def flush(self) -> None:
        """Wait for all that was posted; raises what went wrong in it."""
        self.start_all()
        while self.unwaited:
            next(iter(self.unwaited)).wait()


def _of_gpus(group: dist.ProcessGroup) -> str:
    """The backend of a group that carries GPUs' tensors, such as "nccl"."""
    return BackendConfig(dist.Backend(dist.get_backend_config(group))).get_device_backend_map()[
        "cuda"
    ]


def from_env(
    backend: str | None = None,
    seed: int = 0,
    checked: bool | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Comm:
    """The Comm of a process that torchrun started: NCCL where there are GPUs, else gloo.

    backend: "nccl" or "gloo" to insist, or one that was registered with PyTorch.  seed: of each rank's random numbers,
    as in a World.  timeout: seconds that a wait may take, of all its groups.
    An exception that nobody catches ends the process at once: its groups would wait for peers that wait for it, and
    torchrun, which ends the others, would not learn of it.
    Raises RuntimeError outside torchrun, where a restart would hang, and where other hosts would find no interface of
    this one; ValueError when there are more local ranks than GPUs.
    """
    check_timeout(timeout)
    seed = check_seed(seed)
    if backend not in (None, "gloo", "nccl") and str(backend).upper() not in dist.Backend._plugins:
        raise ValueError(f'a backend is "gloo" or "nccl", not {backend!r}')
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "RANK and WORLD_SIZE are not set: start with `torchrun --nproc-per-node 4 …`, "
            "or use World(4).run(program) or launch(program, 4)"
        )
    _refuse_stale_store()
    local, ranks_here = (
        int(os.environ.get("LOCAL_RANK", 0)),
        int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    )
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = backend or ("nccl" if gpus else "gloo")
    device = None
    if backend == "nccl":
        if ranks_here > gpus:
            only = f"{ranks_here} ranks on this machine and {gpus} GPUs"
            raise ValueError(f'{only}: NCCL needs one each (or backend="gloo")')
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
    if not dist.is_initialized():
        if int(os.environ["WORLD_SIZE"]) > ranks_here:
            name_interface(os.environ.get("MASTER_ADDR", "localhost"))
        backends = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
        dist.init_process_group(backends, timeout=timedelta(seconds=timeout), device_id=device)
        atexit.register(close)
        sys.excepthook = _ends_the_process(sys.excepthook)
    seed_all(seed_of(seed, dist.get_rank()))
    comm = TorchComm(checked=checked, timeout=timeout)
    if comm.nccl:
        atexit.register(_start_the_rest, [comm])
    return comm


def _start_the_rest(comms: list[TorchComm]) -> None:
    """Before the groups are left: start what was posted, and that nobody has waited for. Then let go of the Comm."""
    comms.pop().start_all()


def _ends_the_process(told: Callable) -> Callable:
    """A `sys.excepthook` that says what `told` says, and leaves without a word to the process groups."""

    def hook(kind, error, trace) -> None:
        told(kind, error, trace)
        leave(1)

    return hook


def leave(status: int) -> None:
    """End this process now, its groups as they are: peers that wait for it learn of its end within seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _refuse_stale_store() -> None:
    """torchrun's shared store keeps the addresses of ranks that died; gloo would wait for them (seen in torch 2.13)."""
    asked = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if asked and shared and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        raise RuntimeError(
            f"--max-restarts {asked}: restarted ranks would wait for the addresses of dead ones; "
            "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        )


def close() -> None:
    """Leave the default group. Collected first: a gloo rank can abort when work dies after its group."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
