"""One batch of sends and receives over NCCL, where what is posted starts together with what else is.

NCCL does the operations of one communicator one after the other. A send and a receive between the same two ranks must
be in one group, or each rank's first operation waits for the other's second. So posting only notes an operation, and
at the next wait or collective all that has been posted starts, the operations of each Comm in one group. A Comm whose
messages all go one way (`Comm.one_way`) has nothing to fear: there each batch starts when it is posted.

The host waits for no values: `wait` tells the current stream to. When checked, the headers travel beside, over gloo,
and `wait` compares them. The values do not wait for that; where the two sides differ in bytes, neither can end, so the
Comm is of no use after the Mismatch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..base import CommError, Mismatch, Send, Work
from ..header import mismatch
from ..processes.message import says, settled, side
from ..processes.rings import HEADER
from .torchwork import naming, packed_header, unpacked_header

# What NCCL knows (ncclDataType_t); other dtypes travel as bytes.
KNOWN = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}


class GroupedWork(Work):
    """Sends and receives of one Comm. Nothing has started before `start_together`."""

    __slots__ = (
        "_comm",
        "_error",
        "_headers",
        "_over",
        "_running",
        "_said",
        "_stage",
        "call",
        "ops",
        "source",
    )

    def __init__(self, comm, ops):
        self._comm = comm
        self.ops = ops
        self.source = None
        self.call = comm.call
        self._over, self._error = False, None
        self._said = [says(op, comm.checked, comm.call) for op in ops]
        # (work of torch, op, the header's bytes, what this side says)
        self._headers: list[tuple] = []
        self._running: list[dist.Work] = []
        # (target, staged): received values on their way to a strided tensor
        self._stage: list[tuple] = []
        comm.unwaited[self] = None

    def done(self) -> bool:
        """Whether all values are there; where there are none to pass, the headers are waited for."""
        self._comm.start_all()
        if not self._over and all(work.is_completed() for work in self._running):
            self._settle()
        return self._over

    def wait(self) -> None:
        """Let the current stream wait for the values; the host waits for the headers alone."""
        self._comm.start_all()
        self._comm.unwaited.pop(self, None)
        self._settle()
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        """Finish, once. What goes wrong is kept for `wait`."""
        if self._over:
            return
        self._over = True
        try:
            self._comm.check_usable()
            self._compare()
            for work in self._running:
                work.wait()
            for x, staged in self._stage:
                x.copy_(staged)
            self._record()
        except BaseException as error:
            self._error = error
        self.ops = ()
        self._running = []
        self._stage = []
        self._headers = []

    def _compare(self) -> None:
        comm = self._comm
        for work, op, header, said in self._headers:
            with naming(comm.on_host(), op):
                work.wait(comm.patience)
            if isinstance(op, Send):
                continue
            sent = unpacked_header(header)
            if sent[:4] != said[:4]:
                ranks = comm.on_host().ranks
                error = Mismatch(mismatch(side(ranks[op.src], sent), side(ranks[comm.rank], said)))
                if _nbytes(sent) != _nbytes(said):
                    comm.lose(error)
                raise error

    def abandon(self) -> None:
        """Nobody will wait for this."""
        self._comm.unwaited.pop(self, None)
        if self in self._comm.posted:
            self._comm.posted.remove(self)
        if not self._over:
            self._over, self._error = True, Mismatch("its collective was given up")

    def _record(self) -> None:
        comm = self._comm
        for op in self.ops if comm.trace is not None else ():
            if isinstance(op, Send):
                comm.record(op)

    def begin(self) -> list[dist.P2POp]:
        """Send and await the headers; the operations that carry values, for the group."""
        comm, found = self._comm, []
        for op, said in zip(self.ops, self._said, strict=True):
            sending = isinstance(op, Send)
            peer = op.dst if sending else op.src
            if comm.checked:
                header = packed_header(said) if sending else torch.empty(HEADER, dtype=torch.uint8)
                self._headers.append((comm.post_header(header, op), op, header, said))
            if op.x.numel() == 0:  # both sides know, and leave it out
                continue
            x = op.x.detach()
            staged = settled(x)
            if staged is not x and not sending:
                self._stage.append((x, staged))
            values = staged if staged.dtype in KNOWN else staged.reshape(-1).view(torch.uint8)
            verb = dist.isend if sending else dist.irecv
            found.append(dist.P2POp(verb, values, group=comm.group, group_peer=comm.ranks[peer]))
        return found

    def run(self, works: list[dist.Work]) -> None:
        self._running = works


def start_together(works: list[GroupedWork]) -> None:
    """All values that these have to pass, in one group."""
    batch = [op for work in works for op in work.begin()]
    group = dist.batch_isend_irecv(batch) if batch else []
    for work in works:
        work.run(group)


def _nbytes(said: tuple) -> int:
    shape, dtype, *_ = said
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize


def lost(error: Mismatch) -> CommError:
    """What to say to whoever goes on with a communicator whose two sides differ in bytes."""
    return CommError(
        "this Comm's communicator was given up after a mismatch, which NCCL does not survive: end the "
        f"run, and start it again.\n{error}"
    )
