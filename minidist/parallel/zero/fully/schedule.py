"""When what is sent: each block gathered just before use, the next ones ahead of time, gradients behind.

    forward    compute          F1     │ F2     │ F3          backward  B3       │ B2          │ B1
               lane     gather 1│2     │ 3      │                  3 │ 2          │ reduce 3, 1 │ reduce 2 …

With prefetch = k the blocks that come next, k of them, are gathered on a lane of the Comm beside the computation, in
the order of the forward before; in backward in the reverse order of this one. The gradients of a block are reduced on
the same lane, and waited for only when those of the next block are complete. prefetch = 0 is the naive version: gather,
use, free, reduce, one after the other, on the program's own channel.

Cost a step of N bytes in P blocks: 3P(n−1)α + 3(n−1)/n·Nβ, of which k ≥ 1 hides what computing takes. Memory beside the
shards: 1 + k whole blocks and the gradients of one, or of two where k ≥ 1. Every rank must call the same blocks in
the same order. Where each of s shards has r replicas (hybrid sharding), an all-reduce over these follows the
reduce-scatter of a block, on a lane of their group: 2(r−1)Pα + 2(r−1)/r·N/s·β more. Sources: ZeRO, 2020, sections 5.3
and 7.2.2; Zhao et al. 2023, "PyTorch FSDP", sections 3.2.2 and 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....collectives import all_gather_, all_reduce_, reduce_scatter_
from ....comm.base import Comm
from ...reducer import check_weight, share
from .flat import Flat
from .gradients import collect, deposit
from .unit import Call, Unit


class Done:
    """A work that was done at once."""

    def __init__(self, result=None):
        self._result = result

    def wait(self):
        return self._result


class Both:
    """Two works as one."""

    def __init__(self, *works):
        self._works = works

    def wait(self):
        for work in self._works:
            work.wait()


class Schedule:
    """The order of the blocks' traffic over `comm`, and over `replicas`, the ranks with the same shard."""

    def __init__(self, comm: Comm, prefetch: int, algorithm, replicas: Comm | None = None):
        self.comm = comm
        self.prefetch = prefetch
        self.algorithm = algorithm
        self.replicas = replicas
        self._copies = 1 if replicas is None else replicas.size
        self.units: list[Unit] = []
        self.averages, self.weight = True, None
        self.active = False  # whether a backward has begun and not ended
        self._entered: list[Unit] = []  # in this forward
        self._left: list[Unit] = []
        self._order: list[Unit] = []  # of the forward before: the units as entered, and as left
        self._back: list[Unit] = []
        self._at = 0  # position in `_back` of the unit whose backward runs
        self._reducing: list[tuple[Flat, Tensor, list[int], object]] = []
        self._last, self._last_across = Done(), Done()
        self._part = Done(self._equal)

    def gather(self, chunks: list[Tensor]):
        return self._run(all_gather_, chunks, self.algorithm)

    def _run(self, job, *args):
        """`job(comm, *args)` on the lane, or here and now."""
        if not self.prefetch:
            return Done(job(self.comm, *args))
        self._last = self.comm.stream(_one_by_one, [self._last, job, *args])
        return self._last

    @property
    def _equal(self) -> float:
        """A rank's share in an average of all."""
        return 1 / (self.comm.size * self._copies)

    def _across(self, work, job, *args):
        """`job(replicas, *args)` once `work` is done: on the lane of that group, or here and now."""
        if self.replicas is None:
            return work
        if not self.prefetch:
            return Done(job(self.replicas, *args))
        self._last_across = self.replicas.stream(
            _one_by_one, [Both(self._last_across, work), job, *args]
        )
        return self._last_across

    def _shares(self):
        """This rank's share in the average, as a work."""
        check_weight(self.comm, self.weight)
        if self.weight is None:
            return Done(self._equal)
        if self.replicas is None:
            return self._run(share, self.weight)
        mine = torch.tensor(float(self.weight), dtype=torch.float64, device=self.comm.device)
        total = mine.clone()
        return self._across(self._run(all_reduce_, total), _share_of, mine, total)

    def begin_forward(self) -> None:
        """A forward of the whole begins, perhaps again, within a backward."""
        if self.active and torch._C._current_graph_task_id() == -1:
            self.abandon()  # the backward before raised
        if not self.active:
            self._entered, self._left = [], []

    def enter(self, unit: Unit) -> None:
        """A forward of `unit` begins."""
        unit.start()
        if not self.active:
            self._entered.append(unit)
            done = len(self._entered)
            if self._entered == self._order[:done]:
                self._ahead(self._order[done : done + self.prefetch])
        unit.need()

    def leave(self, unit: Unit) -> None:
        """It has ended."""
        if not self.active:
            self._left.append(unit)

    def end_forward(self) -> None:
        """So has that of the whole: remember its order, drop what was gathered ahead for nothing."""
        if not self.active:
            self._order, self._entered = self._entered, []
            self._back, self._left = self._left, []
            for unit in self.units:
                unit.free()

    def _ahead(self, units: list[Unit]) -> None:
        for unit in units:
            unit.start()

    def begin(self) -> None:
        """A backward runs: ask autograd for a call when it ends."""
        if self.active:
            return
        self.active, self._at = True, len(self._back)
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        if self.averages:
            self._part = self._shares()
        else:
            check_weight(self.comm, self.weight)

    def enter_backward(self, unit: Unit, call: Call) -> None:
        """The gradient of an output of `unit` is there."""
        self.begin()
        if not call.inside:
            call.inside = unit.dirty = True
            if not unit.missing:
                unit.missing = {h.whole for h in unit.held if h.piece.requires_grad}
            unit.calls.add(call)
            unit.start()
            self._move(unit)
        unit.need()

    def _move(self, unit: Unit) -> None:
        """Gather ahead what comes next in backward."""
        before = [i for i in range(self._at) if self._back[i] is unit]
        if before:
            self._at = before[-1]
            self._ahead(self._back[max(0, self._at - self.prefetch) : self._at][::-1])

    def reduce(self, unit: Unit) -> None:
        """Average the gradients of `unit`, which is free again, if any have come."""
        if not unit.dirty or not self.averages:
            return
        unit.dirty = False
        self._settle()  # one block's gradients are on the way, no more
        part = 0.0 if self.weight == 0 else self._part.wait()
        for flat in unit.flats:
            if flat.trains:
                chunks, missing = collect(flat, part)
                mine = chunks[self.comm.rank]
                work = self._run(reduce_scatter_, chunks, "sum", self.algorithm)
                work = self._across(work, all_reduce_, mine, "sum", self.algorithm)
                self._reducing.append((flat, mine, missing, work))
        if not self.prefetch:
            self._settle()

    def _settle(self) -> None:
        """Wait for the gradients on the way."""
        while self._reducing:
            flat, mine, missing, work = self._reducing.pop(0)
            work.wait()
            deposit(flat, mine, missing)

    def _end(self) -> None:
        """The backward is over."""
        for unit in reversed(self.units):
            unit.end()
        self._settle()
        self.active = False

    def abandon(self) -> None:
        """Something was raised: leave nothing gathered, and nothing on the way."""
        self.active = False
        self._entered = []
        self._left = []
        self._reducing = []
        for unit in self.units:
            unit.abandon()
        self._last.wait()
        self._last_across.wait()


def _one_by_one(comm: Comm, job: list):
    """The lane's next job, unless the one before went wrong: then the ranks are no longer in step.

    A lane keeps its arguments until its next job, so the list is emptied: they may be a block's gradients.
    """
    before, run, *args = job
    job.clear()
    before.wait()
    return run(comm, *args)


def _share_of(replicas: Comm, mine: Tensor, total: Tensor) -> Tensor:
    """This rank's weight `mine` as a part of all; total: of its group."""
    return mine / all_reduce_(replicas, total)
