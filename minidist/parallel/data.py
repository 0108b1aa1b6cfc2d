"""Data parallelism: n copies of the model, each computes the gradient of its part of the batch.

The gradient of a mean over B samples is the mean of the gradients of its n parts, if these are of equal
size B/n; else it is their average weighted by size. So after one all-reduce of the gradients every rank
takes the very step that one rank with the whole batch would take, and the copies stay equal bit for bit.

    rank   samples      gradient    after the all-reduce
    0      x0 x1        g0          (g0 + g1)/2
    1      x2 x3        g1          (g0 + g1)/2

Cost of a step with N bytes of gradients in P tensors, by rings: 2(n−1)·Pα + 2(n−1)/n·Nβ one by one, and
2(n−1)·α + 2(n−1)/n·Nβ coalesced. Source: Li et al. 2020, "PyTorch Distributed", sections 2.2 and 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import torch
from torch import Tensor, nn

from ..arguments import flags, instance
from ..collectives import all_gather_json, all_reduce_, broadcast_
from ..collectives.verbs import ALGORITHMS
from ..comm.base import Comm, Work, describe
from ..split import bounds, even, uneven
from .reducer import (
    Averages,
    Averaging,
    Bucket,
    Claim,
    Reducer,
    check_devices,
    same_group,
    share,
)

# ------------------------------------------------------------
# A bucket whose average a compression makes: what it is handed, and what keeps lossy averages from mixing.
#
# A lossy average may not be taken for a gradient: it would send a second time what it has sent, and add a second time what
# it holds back. So what was averaged is set aside before the next increment comes, and added after (`Averages`).
#
# A gradient that no rank has is not compressed at all: what is held back of it waits until there is one.


class Copies(Averages):
    """Averages lie in the memory of a bucket, into which the next ones are written: those set aside are copies."""

    def set_aside(self, p: Tensor) -> None:
        before = self._held.get(p)
        super().set_aside(p)
        held = self._held.get(p)
        if held is not None and held is not before:
            self._held[p] = held.clone()


class CompressedBucket(Bucket):
    """A `Bucket` that `compression.average_(comm, bucket, algorithm)` averages. names: of the parameters.

    For it, besides `buffer`, `grads` and `flags`:  views: the gradients by name, in `grads`, each this rank's times its
    share, to become the sum over the ranks.  there(): the names of those that some rank has, once `flags` are summed.
    """

    def __init__(
        self, params: Sequence[Tensor], names: Sequence[str], compression, averages: Averages
    ):
        super().__init__(params)
        self._compression, self._averages = compression, averages
        self.views = {name: self._views[p] for name, p in zip(names, self.params, strict=True)}

    def put(self, p: Tensor, factor: float) -> None:
        self._averages.set_aside(p)
        super().put(p, factor)

    @torch.no_grad()
    def reduce(self, comm: Comm, share: Work | None, algorithm: str | None) -> None:
        if share is not None:
            self.grads.mul_(share.wait())
        self._compression.average_(comm, self, algorithm)

    def there(self) -> set[str]:
        """Meta flags cannot be read: there all are."""
        if not self._absent or self.buffer.is_meta:
            return set(self.views)
        return {name for name, ranks in zip(self.views, self.flags.tolist(), strict=True) if ranks}

    def hand_out(self) -> None:
        super().hand_out()
        for p in self.params:
            self._averages.give(p, p.grad)


# ------------------------------------------------------------
# Whether every rank's model has the same parameters and buffers: what data parallelism takes for granted.
#
# Each rank describes them, a line each, and a digest of the lines goes round: one all-reduce of 16 bytes by a tree, which
# takes 2·log₂(n) messages one after the other. The lines themselves travel only where the digests differ, to be named.


SHOWN = 3  # differences that are named


def check_arguments(module, comm, overlap: bool, broadcast_buffers: bool, compression) -> None:
    """ValueError for arguments of another kind than `DataParallel` takes."""
    instance(module, nn.Module, "DataParallel(module, comm) wraps an nn.Module")
    instance(comm, Comm, "DataParallel(module, comm) averages over the ranks of a Comm")
    flags(overlap=overlap, broadcast_buffers=broadcast_buffers)
    if compression is not None and not hasattr(compression, "average_"):
        raise ValueError(
            f"compression is a Compression, such as parallel.compress.PowerSGD(2), not {compression!r}"
        )


def check_alike(comm: Comm, module: nn.Module) -> None:
    """ValueError on every rank, naming what differs, unless the models are alike: names, shapes, dtypes, and order."""
    lines = [f"{kind} {name}, {describe(x)}" for kind, name, x in _tensors(module)]
    digest = int.from_bytes(sha256("\n".join(lines).encode()).digest()[:7], "big")
    words = comm.on_host()
    both = torch.tensor([digest, -digest], device="cpu")
    largest, least = all_reduce_(
        words, both, op="max", algorithm=None if words.native else "tree"
    ).tolist()
    if largest == -least:
        return
    everyone = all_gather_json(comm, lines)
    rank = next(rank for rank, theirs in enumerate(everyone) if theirs != everyone[0])
    ours, theirs = everyone[0], everyone[rank]
    only = [f"rank 0 alone has {line}" for line in ours if line not in theirs]
    only += [f"rank {rank} alone has {line}" for line in theirs if line not in ours]
    if not only:
        a, b = next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
        only = [f"they are in another order, where rank 0 has {a}, rank {rank} has {b}"]
    more = f"; and {len(only) - SHOWN} more" if len(only) > SHOWN else ""
    raise ValueError(
        f"the models of rank 0 and rank {rank} differ, with {len(ours)} and {len(theirs)} parameters and "
        f"buffers: {'; '.join(only[:SHOWN])}{more}. Make the same model on every rank."
    )


def _tensors(module: nn.Module):
    for name, p in module.named_parameters():
        yield "parameter" if p.requires_grad else "frozen parameter", name, p
    for name, x in module.named_buffers():
        yield "buffer", name, x


# ------------------------------------------------------------
# Data parallelism itself: the parts of a batch, the naive average, and the wrapper.


class Sampler:
    """This rank's part of every batch: iterate over it for 1-D int64 tensors of indices into the data.

    length: number of samples.  batch: samples of a batch, all ranks together; each gets batch/n.
    shuffle: a new order every epoch, from `seed` and the epoch, the same on every rank and for every n.
    drop_last: leave out the samples that do not fill a batch. Without it they are one smaller batch,
    split as evenly as can be, also empty: then gradients need the weighted average.

    Put together in rank order, the parts are the batch of one rank. Every rank gets equally many.
    Raises ValueError if n does not divide `batch`, or if there is no batch at all.

    >>> from minidist import World
    >>> from minidist.parallel import Sampler
    >>> def program(comm):
    ...     return [part.tolist() for part in Sampler(10, batch=4, comm=comm, shuffle=False)]
    >>> for parts in World(2).run(program):  # two batches a rank; samples 8 and 9 fill none
    ...     print(parts)
    [[0, 1], [4, 5]]
    [[2, 3], [6, 7]]
    """

    def __init__(
        self,
        length: int,
        batch: int,
        comm: Comm,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
    ):
        if batch < 1 or length < (batch if drop_last else 1):
            raise ValueError(f"{length} samples do not make a batch of {batch}")
        self.length = length
        self.batch = batch
        self.comm = comm
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self._sizes = even(batch, comm.size, "samples of a batch")

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch. Without it every epoch has the same."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of batches in an epoch, the same on every rank."""
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def __iter__(self) -> Iterator[Tensor]:
        """This rank's part of each batch of the epoch: a 1-D int64 tensor of indices."""
        order = torch.arange(self.length)
        if self.shuffle:
            random = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
            order = torch.randperm(self.length, generator=random)
        for batch in order.split(self.batch)[: len(self)]:
            full = len(batch) == self.batch
            first, end = bounds(self._sizes if full else uneven(len(batch), self.comm.size))[
                self.comm.rank
            ]
            yield batch[first:end]


def average_gradients(comm: Comm, module: nn.Module, weight: float | None = None) -> None:
    """The naive five lines: the mean of every gradient over all ranks, one all-reduce for each parameter.

    Call it between `backward()` and `step()`. `weight`: number of samples behind this rank's gradients,
    where ranks differ, given on all of them. A missing gradient counts as zeros. Afterwards every parameter that trains
    has a gradient, in place, the same on every rank. Raises ValueError for a weight below 0.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import average_gradients
    >>> def program(comm):
    ...     net = mlp([1, 1])
    ...     net(torch.tensor([[10.0 * comm.rank]])).sum().backward()  # the weight's gradient is x
    ...     average_gradients(comm, net)
    ...     return net[0].weight.grad.item()
    >>> World(3).run(program)
    [10.0, 10.0, 10.0]
    """
    part = share(comm, weight)
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, scaled_(p.grad, part, weight))


@torch.no_grad()
def scaled_(grad: Tensor, part: Tensor | float, weight: float | None) -> Tensor:
    """`grad` times this rank's share. The mean loss of no samples is nan; its weight 0 makes it zeros."""
    return grad.zero_() if weight == 0 else grad.mul_(part)


class DataParallel(Averaging, nn.Module):
    """Keeps `module` equal on all ranks of `comm` by averaging its gradients while a backward runs.

        model = DataParallel(module, comm)      # every rank now has rank 0's parameters and buffers
        loss(model(x), y).backward()            # x: this rank's part of the batch
        optimizer.step()                        # the same step everywhere

    bucket_bytes, first_bucket_bytes: gradients travel in flat buckets of at most this many bytes (1: each gradient
    alone).  overlap: send a bucket as soon as it is complete, on lane 0 of the Comm; False: send all at the end.
    weight: where ranks have different numbers of samples, set it on all ranks before `backward()` to the number behind
    this rank's gradients (`model.weight = len(x)`); None: all ranks count alike, which is also right with SyncBatchNorm
    (see there).
    broadcast_buffers: before each forward in training mode, buffers (running means…) become rank 0's; False lets every
    rank keep its own.  algorithm: of the all-reduces, and of the broadcasts if it has one.
    compression: an object of `parallel.compress` that makes the averages instead of an all-reduce, one for each model
    and rank; each rank saves what its own object holds back with `model.compression.state_dict()`.

    After a backward, each gradient is a view of its bucket, whose memory is used again: `zero_grad` may set the
    gradient to None or to zeros, but a gradient that is kept for later must be cloned. Frozen parameters are broadcast
    once, at the start. If a parameter has a gradient on other ranks only, it counts as zeros here; if it has none on
    any rank, its gradient stays None, so optimizers skip it everywhere. Every rank's backward must reach a parameter of
    the module; a rank that has no work calls `average()`.

    A new DataParallel over the same parameters and ranks replaces the old one, even if the old one is its `module`; the
    old one raises RuntimeError if it is used again. DataParallel goes together with SyncBatchNorm, and with an
    OffloadedOptimizer (in_backward=False). It does not go together with a ShardedOptimizer or FullySharded, which
    average the gradients themselves, or with a LocalSGD, which averages parameters instead (parallel/reducer.py).
    Raises ValueError for models that differ between the ranks, a DataParallel inside the module, parameters that belong
    to a wrapper that it does not go together with, a parameter that is on another device than the Comm, and a sparse
    gradient.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import DataParallel
    >>> def program(comm, x):
    ...     net = mlp([2, 1], seed=comm.rank)  # each rank has other values: all get rank 0's
    ...     model = DataParallel(net, comm)
    ...     model(x.chunk(comm.size)[comm.rank]).mean().backward()
    ...     return net[0].weight.grad
    >>> World(2).run(program, torch.arange(8.0).view(4, 2))  # the mean of all four rows, on both
    [tensor([[3., 4.]]), tensor([[3., 4.]])]
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        bucket_bytes: int = 25 << 20,
        first_bucket_bytes: int = 1 << 20,
        overlap: bool = True,
        broadcast_buffers: bool = True,
        algorithm: str | None = None,
        compression=None,
    ):
        super().__init__()
        if isinstance(module, DataParallel) and same_group(module.comm, comm):
            module = module.module  # `model = DataParallel(model, comm)`, run again
        check_arguments(module, comm, overlap, broadcast_buffers, compression)
        if any(isinstance(inside, DataParallel) for inside in module.modules()):
            raise ValueError(
                f"a DataParallel is inside the module that is to be one over {comm.size} ranks: leave out "
                "the one inside, and average over all ranks at once"
            )
        self.module: nn.Module = module
        self.comm: Comm = comm
        self.compression = compression
        self.broadcast_buffers, self._to_all = broadcast_buffers, _for_broadcasts(algorithm)
        compressed = {}
        if compression is not None:
            compressed = {
                "bucket": self._compressed,
                "averages": Copies(),
                "first": compression.first,
            }
        self._reducer = Reducer(
            comm,
            self._named,
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
            overlap=overlap,
            algorithm=algorithm,
            **compressed,
        )
        check_devices(comm, module.named_parameters())
        self._claim = Claim(self, "DataParallel", comm, self._reducer.unwatch)
        # first: what has claims may have taken its parameters to pieces
        self._claim.verify(module.parameters())
        check_alike(comm, module)
        self._claim.take(module.parameters())
        broadcast_(comm, [*module.parameters(), *module.buffers()], algorithm=self._to_all)
        self._reducer.watch(self.module.parameters())

    def forward(self, *args, **kwargs):
        """`module`'s own forward, with its arguments. In training the buffers become rank 0's before it, unless told otherwise."""
        self._claim.check()
        buffers = list(self.module.buffers())
        if buffers and self.training and self._reducer.in_backward and self.broadcast_buffers:
            broadcast_(self.comm, buffers, algorithm=self._to_all)
        self._reducer.watch(self.module.parameters())
        return self.module(*args, **kwargs)

    def average(self) -> None:
        """Do what the end of a backward does, for a rank whose backward reaches no parameter. A second call changes
        nothing."""
        self._claim.check()
        self._reducer.average()

    def _named(self) -> dict[Tensor, str]:
        """The parameters that train now, and their names."""
        return {p: name for name, p in self.module.named_parameters() if p.requires_grad}

    def _compressed(self, params: list[Tensor]) -> CompressedBucket:
        names = self._named()
        return CompressedBucket(
            params, [names[p] for p in params], self.compression, self._reducer.averages
        )

    @property
    def buckets(self) -> list[list[str]]:
        """The names of the parameters in each bucket, in the order of sending. The first backward lays the buckets out."""
        return self._reducer.names()

    def state_dict(self, *args, **kwargs):
        """The module's own, so a checkpoint does not depend on how the module was trained."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state_dict of the module into it: the same one on every rank, because nothing is sent."""
        return self.module.load_state_dict(*args, **kwargs)


def _for_broadcasts(algorithm):
    """`algorithm`, or None (the Comm's own) if it has no broadcast."""
    known = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else algorithm
    return algorithm if known is None or hasattr(known, "broadcast") else None
