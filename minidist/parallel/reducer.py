"""Gradients in buckets, and overlap: a bucket is averaged while backward still computes those of the layers before it.

    backward   layer 3 │ layer 2 │ layer 1 │            finish: wait for the last bucket only
    lane               └─ bucket 0 ─┘ └─ bucket 1 ─┘ └─ bucket 2 ─┘

The last gradient of a bucket starts its all-reduce on a lane of the Comm, beside the computation. Which
gradient that is differs from rank to rank; the order of the buckets must not: bucket k starts when it and
all before it are complete. What no backward reached is completed at the end. After the first backward the
buckets are laid out anew, in the order in which rank 0's gradients became ready.

Time with compute T and one all-reduce of c seconds a bucket, b of them: T + c at best, T/b + bc where the
wire is slower. Source: Li et al. 2020, "PyTorch Distributed", sections 3.2.3 and 4.2.

In this file: flat buckets; which gradients are averages already (`Averages`); jobs beside the computation (`Lane`); the
`Reducer`; which wrapper works on a parameter (`Claim`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from ..arguments import whole
from ..collectives import all_reduce_, broadcast_
from ..comm.base import Comm, Work
from ..split import bounds

# ------------------------------------------------------------
# Flat buckets: P small gradients travel as b messages, each long enough to be worth its latency.
#
# One all-reduce for each gradient costs P latencies, one for all of them cannot start before the last is
# ready. Between the two: gradients of one dtype lie one after the other in a flat buffer, and `p.grad` is a
# view of it. The buffer is what is sent, so nothing is packed and nothing is unpacked.
#
#     ready first ─▶                                       last
#     [ bias 3 | flag ] [ weight 3 | bias 2 | weight 2 | flags ] [ bias 1 | weight 1 | flags ]
#     bucket 0, small   bucket 1                                 bucket 2
#
# A flag for each gradient says on how many ranks there is one. Cost with rings: 2(n−1)·bα + 2(n−1)/n·Nβ.
# Source: Li et al. 2020, "PyTorch Distributed", sections 3.2.2 (bucketing) and 4.2 (the order of buckets).


def assign(
    nbytes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int, first_bucket_bytes: int
) -> list[list[int]]:
    """Which gradients share a bucket: lists of their positions, the bucket that is complete first in front.

    nbytes: bytes of each gradient, in the order in which they become ready.  kinds: the dtype of each.
    A bucket takes gradients of its dtype while they fit into `bucket_bytes`; the first one of a dtype is
    smaller, so that the wire has something to do early. A gradient that is larger has a bucket of its own.
    Raises ValueError for a size below 1.
    """
    whole(bucket_bytes, "a bucket has room for at least 1 byte", 1)
    whole(first_bucket_bytes, "the first bucket has room for at least 1 byte", 1)
    buckets: list[list[int]] = []
    # by dtype: the bucket, and the bytes that still fit
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for i, (size, kind) in enumerate(zip(nbytes, kinds, strict=True)):
        bucket, free = filling.get(kind, ([], -1))
        if size > free:
            free = bucket_bytes if kind in filling else min(first_bucket_bytes, bucket_bytes)
            bucket = []
            buckets.append(bucket)
        bucket.append(i)
        filling[kind] = bucket, free - size
    return sorted(buckets, key=lambda bucket: bucket[-1])


class Layout:
    """Where tensors lie in a flat buffer of `total` elements, one after the other, each in the order of its memory.

    cuts: (first, end) of each tensor.  strides: those that autograd would give the tensor's gradient.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.shapes = [x.shape for x in tensors]
        self.strides = [torch.empty_like(x, device="meta").stride() for x in tensors]
        self.cuts = bounds([x.numel() for x in tensors])
        self.total = sum(x.numel() for x in tensors)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each tensor's place in a buffer, in the tensor's shape."""
        places = zip(self.shapes, self.strides, self.cuts, strict=True)
        return [flat.as_strided(shape, strides, first) for shape, strides, (first, _) in places]


class Bucket:
    """The gradients of `params` (one dtype), and their flags, in one flat `buffer`.

    In a backward: `put` each gradient, `mark_present` once all are there, `reduce`, `hand_out`.
    """

    def __init__(self, params: Sequence[Tensor]):
        self.params = list(params)
        layout = Layout(self.params)
        self.buffer = self.params[0].new_empty(layout.total + len(self.params))
        self.grads, self.flags = self.buffer[: layout.total], self.buffer[layout.total :]
        # not `put` yet in this backward; some may never get a gradient
        self.missing: set[Tensor] = set()
        self._absent: list[int] = []  # positions of the parameters without a gradient on this rank
        self._views = dict(zip(self.params, layout.views(self.buffer), strict=True))

    @torch.no_grad()
    def put(self, p: Tensor, factor: float) -> None:
        """Make `p.grad` a view of the buffer, times `factor` (0: zeros, whatever it was). None counts as zeros.

        The pass that scales a new gradient also moves it, and one that is a view already stays where it is:
        so nothing is copied for the sake of the bucket.
        """
        view, grad = self._views[p], p.grad
        if grad is None or factor == 0:
            view.zero_()
        elif grad is not view:
            torch.mul(grad.detach(), factor, out=view)
        elif factor != 1:
            view.mul_(factor)
        if grad is not None:
            p.grad = view
        self.missing.discard(p)

    def mark_present(self) -> None:
        """All gradients are there: set the flags of those that this rank really has."""
        self._absent = [i for i, p in enumerate(self.params) if p.grad is None]
        self.flags.fill_(1)
        if self._absent:
            self.flags[self._absent] = 0

    @torch.no_grad()
    def reduce(self, comm: Comm, share: Work | None, algorithm: str | None) -> None:
        """Sum the gradients over the ranks, times this rank's share where `put` did not know it yet."""
        if share is not None:
            self.grads.mul_(share.wait())
        all_reduce_(comm, self.buffer, algorithm=algorithm)

    def hand_out(self) -> None:
        """Give a parameter without a gradient here the average of those elsewhere; without any, it keeps None.

        On meta tensors there are no flags to read, and it keeps None.
        """
        if not self._absent or self.buffer.is_meta:
            return
        ranks = self.flags.tolist()
        for i in self._absent:
            if ranks[i]:
                self.params[i].grad = self._views[self.params[i]]


# ------------------------------------------------------------
# Which gradients are averages already. An all-reduce can treat an average as one more gradient: equal gradients are their
# own average. A gradient that is averaged at its owner alone, or by a lossy compression, must be told from one that is not: if
# the next backward added its increment there, the next average would take the old one for one rank's part of n. So it is set
# aside before the increment comes, and added after:
#
#     p.grad   avg 1 ── set aside ──▶ None ── backward ──▶ g2 ── averaged ──▶ avg 2 ──▶ avg 1 + avg 2
#     held              avg 1                                                  ──────────┘


class Averages:
    """The averaged gradients of parameters, and those of them that were set aside."""

    def __init__(self) -> None:
        # Weak: a gradient that the user drops is gone. While it is somebody's .grad its Python object lives, too.
        self._made: weakref.WeakValueDictionary[Tensor, Tensor] = weakref.WeakValueDictionary()
        self._held: dict[Tensor, Tensor] = {}

    def set_aside(self, p: Tensor) -> None:
        """Leave in `p.grad` only what is not averaged yet."""
        if p.grad is None:
            self._held.pop(p, None)  # it was dropped in between, as `module.zero_grad()` does
        elif p.grad is self._made.get(p):
            self._held[p], p.grad = p.grad, None

    def give(self, p: Tensor, average: Tensor | None) -> None:
        """Add `average` (None: there is none) to what was set aside, as the gradient of `p`."""
        held = self._held.pop(p, None)
        if held is not None:
            average = held if average is None else held.add_(average)
        p.grad = average
        if average is not None:
            self._made[p] = average

    def note(self, p: Tensor, grad: Tensor) -> None:
        """`grad`, the gradient of `p`, is an average, in whatever dtype it is now."""
        self._made[p] = grad

    def forget(self) -> None:
        """Drop what is set aside."""
        self._held.clear()


# ------------------------------------------------------------
# What several techniques do beside the computation.


class Done(Work):
    """A work that was done at once."""

    def __init__(self, result=None):
        self._result = result
        self.source = None

    def done(self) -> bool:
        return True

    def wait(self):
        return self._result


class Lane:
    """Jobs over `comm` one after the other: on a lane, beside the computation, or here and now. last: the latest one."""

    def __init__(self, comm: Comm, beside: bool):
        self.comm = comm
        self.beside = beside
        self.last: Work = Done()

    def run(self, job: Callable, *args, after: Work | None = None) -> Work:
        """`job(comm, *args)`, after the earlier jobs and `after`. If one of them raised it does not run: ranks are out of
        step."""
        if not self.beside:
            return Done(job(self.comm, *args))
        self.last = self.comm.stream(_in_turn, [self.last, after or self.last, job, *args])
        return self.last


def _in_turn(comm: Comm, todo: list):
    """On the lane: wait for the job before and for `after`, then do this one. `todo` is emptied, because a lane keeps its
    arguments until its next job, and they may be a block's gradients."""
    last, after, job, *args = todo
    todo.clear()
    last.wait()
    after.wait()
    return job(comm, *args)


# ------------------------------------------------------------
# The reducer: averages the buckets of one backward after the other, in one order on all ranks.


def share(comm: Comm, weight: float | None, across: Lane | None = None) -> Tensor | float:
    """This rank's share in an average: 1/n, or weight/(sum of all ranks' weights), an all-reduce of 8 bytes.

    across: the ranks of other groups like `comm`, with which the sums are summed.
    """
    if weight is None:
        return 1 / comm.size
    check_weight(comm, weight)
    own = torch.tensor(float(weight), dtype=torch.float64, device=comm.device)
    total = all_reduce_(comm, own.clone())
    if across is not None:
        across.run(all_reduce_, total).wait()
    return own / total


def check_weight(comm: Comm, weight: float | None) -> None:
    """Raise ValueError for a weight that is no number of samples."""
    if weight is not None and not weight >= 0:
        raise ValueError(
            f"rank {comm.rank} has a weight of {weight}: a number of samples is at least 0"
        )


class Reducer:
    """Averages gradients over `comm`, bucket by bucket, while a backward computes those of the layers before.

        reducer = Reducer(comm, lambda: {p: name for name, p in module.named_parameters()})
        reducer.watch(module.parameters())      # from now on every backward ends with averages

    named: gives the parameters that train now, in the order of registration, and their names.
    bucket: makes one of a list of parameters, a `Bucket` or like one; it says where their averages go.
    averages: where an average must be told from an increment.  in_backward: False: nothing is sent before `average()`.
    in_flight: how many buckets may be under way; the next one waits, and backward with it, so that on a slow wire they do
    not pile up in memory. None: any number.
    first: `first(comm, buckets, share)` is run where the buckets are, before the first of them, once all gradients are
    there: then nothing is sent while backward runs.
    across: the ranks of other groups like `comm`, over which the averages are, too: weights, and the order of the buckets,
    are theirs as well; the buckets see to the gradients themselves.
    weight: of this rank's gradients, or None where all ranks weigh alike.  averaged: whether nothing has come since the
    last average.  active: whether a backward has begun and not finished.

    A backward calls `begin`, `ready(p)` for each gradient, `finish`:

        AccumulateGrad of p:   _before(p)  ·  p.grad += increment  ·  _has_gradient(p)  → ready(p)
        the backward ends:     average()   → finish()

    `register_hook` sees the increment, before it is added; `register_post_accumulate_grad_hook` is called when it has been.
    """

    def __init__(
        self,
        comm: Comm,
        named: Callable[[], Mapping[Tensor, str]],
        bucket_bytes: int = 25 << 20,
        first_bucket_bytes: int = 1 << 20,
        overlap: bool = True,
        algorithm: str | None = None,
        bucket: Callable[[list[Tensor]], Any] = Bucket,
        averages: Averages | None = None,
        in_backward: bool = True,
        in_flight: int | None = None,
        first: Callable | None = None,
        across: Lane | None = None,
    ):
        assign([], [], bucket_bytes, first_bucket_bytes)  # raises for a size that cannot be
        self.comm = comm
        self.named = named
        self.bucket_bytes = bucket_bytes
        self.first_bucket_bytes = first_bucket_bytes
        self.overlap = overlap
        self.algorithm = algorithm
        self.bucket = bucket
        self.averages = averages
        self.in_backward = in_backward
        self.in_flight = in_flight
        self.first = first
        self.across = across
        self.weight: float | None = None
        self.averaged = False
        self.active = False
        self.buckets: list[Bucket] = []
        self._names: dict[Tensor, str] = {}  # of the parameters that the buckets are for
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._order: list[Tensor] | None = None  # rank 0's, for the next layout; None: it stays
        self._agreed = False  # whether rank 0's order has been asked for
        self._works: list[Work] = []
        self._backward: int | None = None  # the number of the backward that began
        self._hooks: dict[Tensor, tuple] = {}

    def watch(self, params: Iterable[Tensor]) -> None:
        """Hear of the gradients of these parameters, also of those that were frozen before."""
        for p in params:
            if p.requires_grad and p not in self._hooks:
                after = p.register_post_accumulate_grad_hook(self._has_gradient)
                self._hooks[p] = p.register_hook(functools.partial(self._before, p)), after

    def unwatch(self) -> None:
        """Hear of no gradient any more."""
        for handles in self._hooks.values():
            for handle in handles:
                handle.remove()
        self._hooks = {}

    def average(self) -> None:
        """What the end of a backward does: average what is not averaged yet of the gradients that every rank holds.

        Calling it twice is harmless: the average of equal gradients is that gradient. So a gradient that was averaged
        and then accumulated into comes out right, too.
        """
        if not self.active:
            self.begin()
        self.finish()

    def _before(self, p: Tensor, increment: Tensor) -> None:
        """Before an increment is added to `p.grad`. If another backward is open still (the one around this, in
        reentrant checkpointing, or one that raised) finish it: this one would add to buckets that are being sent."""
        if self.active and _backward_now() != self._backward:
            self.average()
        if self.averages is not None:
            self.averages.set_aside(p)
        self.averaged = False

    def _has_gradient(self, p: Tensor) -> None:
        """A gradient is there. The first one of a backward asks autograd for a call when this backward ends."""
        if not self.in_backward:
            return
        if not self.active:
            self._backward = _backward_now()
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)
            self.begin()
        self.ready(p)

    def _ended(self) -> None:
        if self.active:  # not if a backward within it came last
            self.average()

    def begin(self) -> None:
        """A backward begins. Nothing is waited for."""
        check_weight(self.comm, self.weight)
        names = self.named()
        if list(map(id, names)) != list(map(id, self._names)):
            self._names, self._agreed = dict(names), False
            self._lay_out(list(names)[::-1])
        elif self._order is not None:
            self._lay_out(self._order)
        for bucket in self.buckets:
            bucket.missing = set(bucket.params)
        self.active = True
        self._ready: list[Tensor] = []
        self._started = 0
        self._works = []
        self._lane = Lane(self.comm, self.overlap)
        # Without weights `put` scales by 1/n as it moves a gradient. With weights their sum is still on its way: `put`
        # multiplies by 1, by 0 for a weight of 0, and the bucket's `reduce` by the share.
        copies = self.comm.size * (1 if self.across is None else self.across.comm.size)
        self._factor = 1 / copies if self.weight is None else float(self.weight > 0)
        self._share = None if self.weight is None else self._run(share, self.weight, self.across)

    def names(self) -> list[list[str]]:
        """The parameters of each bucket."""
        return [[self._names[p] for p in bucket.params] for bucket in self.buckets]

    def _lay_out(self, order: list[Tensor]) -> None:
        sizes = [p.numel() * p.element_size() for p in order]
        positions = assign(
            sizes, [p.dtype for p in order], self.bucket_bytes, self.first_bucket_bytes
        )
        self.buckets = [self.bucket([order[i] for i in bucket]) for bucket in positions]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}
        self._order = None

    def _run(self, job: Callable, *args) -> Work:
        self._works.append(self._lane.run(job, *args))
        return self._works[-1]

    def ready(self, p: Tensor) -> None:
        """The gradient of `p` is there: start to reduce every bucket that is complete, and all before it."""
        self._put(p)
        self._ready.append(p)
        early = self.overlap and self.first is None
        while early and self._started < len(self.buckets):
            if self.buckets[self._started].missing:
                break
            self._start()

    def _put(self, p: Tensor) -> None:
        check_dense(p.grad, self._names[p])
        self._bucket_of[p].put(p, self._factor)

    def _start(self) -> None:
        bucket = self.buckets[self._started]
        self._started += 1
        if self.in_flight is not None and len(self._works) >= self.in_flight:
            with suppress(Exception):  # `finish` raises it
                self._works[-self.in_flight].wait()
        bucket.mark_present()
        self._run(bucket.reduce, self._share, self.algorithm)

    def finish(self) -> None:
        """The backward has ended: complete the buckets, wait for all of them, hand out the averages."""
        late = self.buckets[self._started :]
        for bucket in late:
            for p in bucket.params:
                if p in bucket.missing:
                    self._put(p)
        if self.first is not None:
            self._run(self.first, self.buckets, self._share)
        for _ in late:
            self._start()
        agreed = None if self._agreed else self._agree()
        self.active = False
        self._wait()
        if agreed is not None:
            self._order = [list(self._bucket_of)[i] for i in agreed.wait()]
        for bucket in self.buckets:
            bucket.hand_out()
        self.averaged = True

    def _agree(self) -> Work | None:
        """Learn in which order rank 0's gradients became ready; one bucket for each dtype needs no order."""
        self._agreed = True
        if len(self.buckets) == len({p.dtype for p in self._names}):
            return None
        place = {p: i for i, p in enumerate(self._bucket_of)}
        seen = [place.pop(p) for p in self._ready]
        return self._run(_from_rank_0, [*seen, *place.values()], self.across)

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


def _from_rank_0(comm: Comm, numbers: list[int], across: Lane | None) -> list[int]:
    comm = comm.on_host()
    device = "cpu" if comm.device.type == "meta" else comm.device
    found = broadcast_(comm, torch.tensor(numbers, device=device))
    if across is not None:
        across.run(lambda lane: broadcast_(lane.on_host(), found)).wait()
    return found.tolist()


def _backward_now() -> int:
    """A number for the backward that runs in this thread, -1 outside. Autograd has no public name for it."""
    return torch._C._current_graph_task_id()


class Averaging:
    """`weight` and `no_sync` of what has a `_reducer` (a Reducer; in FullySharded a Schedule) and a `_claim`."""

    _reducer: Any
    _claim: Claim

    @property
    def weight(self) -> float | None:
        """The number of samples behind this rank's gradients, for ranks whose numbers differ; set it before the
        backward."""
        return self._reducer.weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        self._reducer.weight = weight

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context a `backward()` only accumulates; the next one outside it averages the total.

        For k micro-batches of equal size, divide each loss by k, and run the last one outside the context.
        """
        self._claim.check()
        before, self._reducer.in_backward = self._reducer.in_backward, False
        try:
            yield
        finally:
            self._reducer.in_backward = before


def check_dense(grad: Tensor | None, name: str) -> None:
    """Raise ValueError for a sparse gradient."""
    if grad is not None and grad.layout != torch.strided:
        raise ValueError(
            f"the gradient of {name} is sparse: a flat buffer takes dense ones (sparse=False)"
        )


def check_devices(comm: Comm, named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ValueError for a parameter on another device than the Comm's."""
    for name, p in named:
        if p.device.type != comm.device.type:
            raise ValueError(
                f"{name} is on {p.device}, this Comm passes tensors on {comm.device}: move the model first"
            )


# ------------------------------------------------------------
# Who works on a parameter: each wrapper leaves a claim on its parameters, and whoever comes next finds it there.
#
# A notebook's cell runs again, and `DataParallel(net, comm)` hooks a second time into the parameters that the first one
# hooks into: each would average what the other has averaged, 1.5, then 0.75. So:
#
#     p ◀── DataParallel   then DataParallel, the same ranks       replaces it: the older one lets go, and says so if used
#                          then DataParallel, other ranks          ValueError
#                          then ShardedOptimizer                   ValueError, with what to do instead
#                          then OffloadedOptimizer                 goes together: `GO_TOGETHER` lists all that do
#
# Claims lie on the parameters, not in a table of the module: they live as long as these, and a copy of a parameter (by
# deepcopy, or in another process) has none. Two Comms of the same ranks are one group.

# Each entry is "older, newer". Over the same ranks, each does what it does alone:
GO_TOGETHER = {
    "DataParallel, OffloadedOptimizer",
    "OffloadedOptimizer, DataParallel",
    "FullySharded, OffloadedOptimizer",
}
# The newer one is made by the older one, as the optimizer of the part that it steps:
INSIDE = {"ShardedOptimizer, OffloadedOptimizer"}
# The newer one was given the older one to work with:
GIVEN = {"OffloadedOptimizer, LocalSGD"}
# Over two groups which have this rank alone in common, such as two axes of a mesh:
CROSSING = {"DataParallel, LocalSGD", "LocalSGD, DataParallel", "FullySharded, LocalSGD"}

_HYBRID = (
    "for copies of the shards on other ranks there is FullySharded(module, comm, replicas=other)"
)
# What to do instead, by the kinds in the order of the alphabet.
INSTEAD = {
    "DataParallel, DataParallel": "average over all these ranks at once, by one DataParallel",
    "ShardedOptimizer, ShardedOptimizer": "shard over one group of ranks, by one ShardedOptimizer",
    "FullySharded, FullySharded": _HYBRID,
    "LocalSGD, LocalSGD": "average over one group of ranks, by one LocalSGD",
    "DataParallel, ShardedOptimizer": "the optimizer averages the gradients itself, so leave out the DataParallel",
    "DataParallel, FullySharded": "FullySharded averages the gradients itself, so leave out the DataParallel; "
    + _HYBRID,
    "DataParallel, OffloadedOptimizer": "with in_backward=True gradients leave the device before they can be averaged: "
    "take in_backward=False",
    "DataParallel, LocalSGD": "LocalSGD averages parameters instead of gradients: leave out the "
    "DataParallel",
    "FullySharded, ShardedOptimizer": "FullySharded shards the optimizer's states, too: give its parameters() to a "
    "plain optimizer",
    "OffloadedOptimizer, ShardedOptimizer": "to shard what is offloaded, put it inside, with in_backward=False: "
    "ShardedOptimizer(params, partial(OffloadedOptimizer, optimizer_class=…, comm=comm), comm)",
    "LocalSGD, ShardedOptimizer": "a ShardedOptimizer averages the gradients of each step, so that no step is local: "
    "take one of the two",
    "FullySharded, OffloadedOptimizer": "shard first: OffloadedOptimizer(FullySharded(module, comm).parameters(), …)",
    "FullySharded, LocalSGD": "LocalSGD averages whole parameters over its ranks, and here each of them has other "
    "pieces: take one of the two, or shard first, and give LocalSGD the ranks that have the same pieces",
    "LocalSGD, OffloadedOptimizer": "offload first, and wrap that: LocalSGD(OffloadedOptimizer(params, …), comm, H)",
}


class Claims(list):
    """The claims on one parameter. They do not travel with a copy of it."""

    def __deepcopy__(self, memo) -> Claims:
        return Claims()

    def __reduce__(self):
        return Claims, ()


class Claim:
    """The claim of `holder`, a `kind`, over the ranks of `comm` (None: it sends nothing).

    let_go: called when a newer one replaces it, to take its hooks away.  making: set it while the holder makes what it
    steps the parameters with, which may then claim them, too (`INSIDE`).  detail: a word or two for error messages.
    """

    def __init__(
        self,
        holder,
        kind: str,
        comm: Comm | None,
        let_go: Callable[[], None] = lambda: None,
        detail: str = "",
    ):
        self.holder = holder
        self.kind = kind
        self.comm = comm
        self.detail = detail
        self.params: dict[Tensor, None] = {}
        self._masters: dict[Tensor, None] = {}
        self._inside: Claim | None = None  # the claim of the holder which made this one
        self.making = self.replaced = False
        self._let_go = let_go

    def take(self, params: Iterable[Tensor], given: Iterable = ()) -> None:
        """Claim these parameters, also in addition to those before; older claims of the same kind are replaced.

        given: what the holder was handed over to work with (`GIVEN`). Raises ValueError, before anything has changed,
        where somebody else's claim does not go together with this one.
        """
        params = self.params | dict.fromkeys(params)
        replaced = self.verify(params, given)
        for claim in claims_of(params):
            if claim.making and claim is not self:
                self._inside = claim
        for claim in replaced:
            claim.leave()
            claim.replaced = True
            claim._let_go()
        self._write(params)
        self.params = params

    def verify(self, params: Iterable[Tensor], given: Iterable = ()) -> list[Claim]:
        """The claims that this one would replace. Raises ValueError as `take` does, and changes nothing."""
        params = dict.fromkeys(params)
        older = [claim for claim in claims_of(params) if claim is not self]
        replaced = [claim for claim in older if self._replaces(claim, params)]
        replaced += [claim for claim in older if claim._inside in replaced]
        for claim in older:
            if claim not in replaced and not self._goes_with(claim, given):
                self._refuse(claim, params)
        return replaced

    def take_masters(self, masters: Iterable[Tensor]) -> None:
        """Claim the copies that are stepped instead of the parameters."""
        masters = dict.fromkeys(masters)
        for claim in claims_of(masters):
            if claim is not self:
                self._refuse(claim, masters)
        self._write(masters)
        self._masters |= masters

    def _write(self, params: Iterable[Tensor]) -> None:
        for p in params:
            claims = p.__dict__.setdefault("_claims", Claims())
            if self not in claims:
                claims.append(self)

    def leave(self) -> None:
        """Take the claim off its parameters."""
        for p in self.params | self._masters:
            if self in p.__dict__.get("_claims", ()):
                p.__dict__["_claims"].remove(self)
        self.params, self._masters = {}, {}

    def __reduce__(self):
        raise TypeError(
            f"a {self.kind} belongs to its parameters and ranks, and cannot be copied: copy the module "
            "before it is wrapped, or the module inside, and wrap the copy"
        )

    def check(self) -> None:
        """RuntimeError if a newer one has come."""
        if self.replaced:
            raise RuntimeError(
                f"this {self.kind} was replaced by a newer one over the same parameters, and has let go "
                "of them: use the newer one"
            )

    def _again(self, older: Claim) -> bool:
        return older.kind == self.kind and same_group(older.comm, self.comm)

    def _replaces(self, older: Claim, params: dict[Tensor, None]) -> bool:
        return self._again(older) and older.params.keys() <= params.keys()

    def _goes_with(self, older: Claim, given: Iterable) -> bool:
        pair = f"{older.kind}, {self.kind}"
        if pair in GIVEN and any(holder is older.holder for holder in given):
            return True
        if pair in GO_TOGETHER:
            return not (older.detail or self.detail) or older.kind == "FullySharded"
        if pair in INSIDE:
            return older.making and not self.detail
        ours, theirs = members(self.comm), members(older.comm)
        if pair in CROSSING and ours and theirs:
            return len({*ours} & {*theirs}) == 1
        return False

    def _refuse(self, older: Claim, params: dict[Tensor, None]) -> None:
        common = len(older.params.keys() & params.keys())
        if self._again(older):
            raise ValueError(
                f"{common} of the {len(older.params)} parameters of {older} were given to a newer one "
                "over the same ranks, which would replace only a part of it: make one "
                f"{self.kind} of all of them"
            )
        raise ValueError(
            f"{common} of these {len(params)} parameters are those of {older} already, and cannot be those "
            f"of {self}, too: {INSTEAD[', '.join(sorted([older.kind, self.kind]))]} "
            "(a copy.deepcopy of a module is nobody's)"
        )

    def __str__(self) -> str:
        words = f"{'an' if self.kind[0] in 'AEIOU' else 'a'} {self.kind}{self.detail}"
        if self.comm is not None:
            words += f" over {self.comm.size} ranks"
        ranks = members(self.comm)
        return f"{words} {list(ranks)}" if ranks else words


def claims_of(params: Iterable[Tensor]) -> list[Claim]:
    """All claims on these parameters, each once, in the order in which they were made."""
    return list(dict.fromkeys(claim for p in params for claim in p.__dict__.get("_claims", ())))


def members(comm: Comm | None) -> tuple[int, ...] | None:
    """The ranks of `comm` as the whole run numbers them; None where it does not say."""
    return getattr(comm, "members", None)


def same_group(a: Comm | None, b: Comm | None) -> bool:
    """Whether two Comms are of the same ranks. Those that do not say of which are the same only if they are one."""
    return a is b or (members(a) is not None and members(a) == members(b))
