"""Overlap: a bucket of gradients is averaged while backward still computes those of the layers before it.

    backward   layer 3 │ layer 2 │ layer 1 │            finish: wait for the last bucket only
    lane               └─ bucket 0 ─┘ └─ bucket 1 ─┘ └─ bucket 2 ─┘

The last gradient of a bucket starts its all-reduce on a lane of the Comm, beside the computation. Which
gradient that is differs from rank to rank; the order of the buckets must not: bucket k starts when it and
all before it are complete. What no backward reached is completed at the end. After the first backward the
buckets are laid out anew, in the order in which rank 0's gradients became ready.

Time with compute T and one all-reduce of c seconds a bucket, b of them: T + c at best, T/b + bc where the
wire is slower (see overlap.py). Source: Li et al. 2020, "PyTorch Distributed", sections 3.2.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..collectives import all_reduce_, broadcast_
from ..comm.base import Comm, Work
from .buckets import Bucket, assign


def share(comm: Comm, weight: float | None) -> Tensor | float:
    """This rank's share in an average: 1/n, or weight/(sum of all ranks' weights), a message of 8 bytes."""
    if weight is None:
        return 1 / comm.size
    check_weight(comm, weight)
    mine = torch.tensor(float(weight), dtype=torch.float64, device=comm.device)
    return mine / all_reduce_(comm, mine.clone())


def check_weight(comm: Comm, weight: float | None) -> None:
    if weight is not None and not weight >= 0:
        raise ValueError(
            f"rank {comm.rank} has a weight of {weight}: a number of samples is at least 0"
        )


class Reducer:
    """Averages the gradients of one backward after the other: `begin`, `ready(p)` for each, `finish`.

    bucket: makes one of a list of parameters; it says where their averages go.  in_flight: how many may be under way;
    the next one waits, and backward with it, so that on a slow wire they do not pile up in memory. None: any number.
    first: `first(comm, buckets, share)` is run where the buckets are, before the first of them, once all gradients are
    there: then nothing is sent while backward runs.
    """

    def __init__(
        self,
        comm: Comm,
        bucket_bytes: int,
        first_bucket_bytes: int,
        overlap: bool,
        algorithm: str | None,
        bucket: Callable[[list[Tensor]], Bucket] = Bucket,
        in_flight: int | None = None,
        first: Callable | None = None,
    ):
        self.comm = comm
        self.overlap = overlap
        self.algorithm = algorithm
        self.bucket_bytes, self.first_bucket_bytes = bucket_bytes, first_bucket_bytes
        assign([], [], bucket_bytes, first_bucket_bytes)  # raises for a size that cannot be
        self._bucket = bucket
        self._in_flight = in_flight
        self._first = first
        self._early = overlap and first is None  # whether a bucket starts before all are complete
        self.active = False  # whether a backward has begun and not finished
        self.buckets: list[Bucket] = []
        self._names: dict[Tensor, str] = {}  # of the parameters that the buckets are for
        self._bucket_of: dict[Tensor, Bucket] = {}
        # a new order for the buckets, from the next backward on
        self._order: list[Tensor] | None = None
        self._agreed = False  # whether the buckets lie in the order of use
        self._works: list[Work] = []

    def begin(self, names: Mapping[Tensor, str], weight: float | None) -> None:
        """A backward begins. names: of the parameters that require a gradient, in the order of registration.

        weight: of this rank's gradients, or None where all ranks weigh alike. Nothing is waited for.
        """
        check_weight(self.comm, weight)
        if list(map(id, names)) != list(map(id, self._names)):
            self._names, self._agreed = dict(names), False
            self._lay_out(list(names)[::-1])
        elif self._order is not None:
            self._lay_out(self._order)
        for bucket in self.buckets:
            bucket.missing = set(bucket.params)
        self.active = True
        self._ready = []
        self._started = 0
        self._works = []
        # Without weights one pass scales a gradient and moves it; else the sum of the weights is still on its way.
        self._factor = 1 / self.comm.size if weight is None else float(weight > 0)
        self._share = None if weight is None else self._run(share, weight)

    def names(self) -> list[list[str]]:
        """The parameters of each bucket."""
        return [[self._names[p] for p in bucket.params] for bucket in self.buckets]

    def _lay_out(self, order: list[Tensor]) -> None:
        sizes = [p.numel() * p.element_size() for p in order]
        positions = assign(
            sizes, [p.dtype for p in order], self.bucket_bytes, self.first_bucket_bytes
        )
        self.buckets = [self._bucket([order[i] for i in bucket]) for bucket in positions]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}
        self._order = None

    def _run(self, job, *args) -> Work | Tensor | float | None:
        """`job(comm, *args)` on the lane, or here and now."""
        if not self.overlap:
            return job(self.comm, *args)
        self._works.append(self.comm.stream(_bucket_by_bucket, self._works[-1:], job, *args))
        return self._works[-1]

    def ready(self, p: Tensor) -> None:
        """The gradient of `p` is there. The last one of a bucket starts the all-reduce."""
        self._put(p)
        self._ready.append(p)
        while (
            self._early
            and self._started < len(self.buckets)
            and not self.buckets[self._started].missing
        ):
            self._start()

    def _put(self, p: Tensor) -> None:
        if p.grad is not None and p.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {self._names[p]} is sparse: this all-reduce is for dense ones "
                "(sparse=False)"
            )
        self._bucket_of[p].put(p, self._factor)

    def _start(self) -> None:
        bucket = self.buckets[self._started]
        self._started += 1
        bucket.seal()
        if self._in_flight is not None and len(self._works) >= self._in_flight:
            with suppress(Exception):  # `finish` raises it
                self._works[-self._in_flight].wait()
        self._run(_reduce, bucket, self._share, self.algorithm)

    def finish(self) -> None:
        """The backward has ended: complete the buckets, wait for all of them, hand out the averages."""
        late = self.buckets[self._started :]
        for p in [p for bucket in late for p in bucket.params if p in bucket.missing]:
            self._put(p)
        if self._first is not None:
            self._run(_with_share, self._first, self.buckets, self._share)
        for _ in late:
            self._start()
        agreed = None if self._agreed else self._agree()
        self.active = False
        self._wait()
        if agreed is not None:
            self._order = [
                list(self._bucket_of)[i] for i in (agreed.wait() if self.overlap else agreed)
            ]
        for bucket in self.buckets:
            bucket.hand_out()

    def _agree(self) -> Work | list[int] | None:
        """Learn in which order rank 0's gradients became ready; one bucket for each dtype needs no order."""
        self._agreed = True
        if len(self.buckets) == len({p.dtype for p in self._names}):
            return None
        place = {p: i for i, p in enumerate(self._bucket_of)}
        seen = [place.pop(p) for p in self._ready]
        return self._run(_from_rank_0, [*seen, *place.values()])

    def _wait(self) -> None:
        """Wait for all that was started, and raise the first thing that went wrong in it."""
        failed = None
        for work in self._works:
            try:
                work.wait()
            except Exception as error:
                failed = failed or error
        self._works = []
        if failed is not None:
            raise failed


def _bucket_by_bucket(comm: Comm, before: list[Work], job, *args):
    """The lane's next job, unless the one before went wrong: then the ranks are no longer in step."""
    for work in before:
        work.wait()
    return job(comm, *args)


def _reduce(comm: Comm, bucket: Bucket, part: Work | Tensor | None, algorithm: str | None) -> None:
    """What the lane does with a bucket."""
    bucket.reduce(comm, _known(part), algorithm)


def _with_share(
    comm: Comm, job: Callable, buckets: list[Bucket], part: Work | Tensor | None
) -> None:
    job(comm, buckets, _known(part))


def _known(part: Work | Tensor | None) -> Tensor | None:
    return part.wait() if isinstance(part, Work) else part


def _from_rank_0(comm: Comm, numbers: list[int]) -> list[int]:
    comm = comm.on_host()
    device = "cpu" if comm.device.type == "meta" else comm.device
    return broadcast_(comm, torch.tensor(numbers, device=device)).tolist()
