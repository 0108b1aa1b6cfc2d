"""ZeRO: what data parallelism keeps n times, kept once.

n replicas hold the same parameters, the same gradients and the same optimizer states, and take the same step n times. To
step one number an optimizer needs that number's gradient and states, and nothing of any other number. So each rank owns
1/n of all numbers, keeps the gradients and states of those, steps them, and sends the results to the others.

    stage   owned by 1/n          backward                               step
    1       states                whole gradients stay                   gradients to their owners, step, all-gather
    2       + gradients           each gradient to its owner, then free  step, all-gather
    3       + parameters          the same, block by block               step; blocks are gathered when they are used

An all-reduce is a reduce-scatter and an all-gather, so stages 1 and 2 send what data parallelism does, 2Ψ(n−1)/n numbers
a rank in a step. Stage 3 gathers in forward, gathers again in backward, and reduces: 3Ψ(n−1)/n. With 16-bit parameters and
gradients, fp32 masters and Adam a rank keeps 4Ψ + 12Ψ/n, 2Ψ + 14Ψ/n, and 16Ψ/n bytes instead of 16Ψ.

    ShardedOptimizer    stages 1 and 2: a rank owns whole parameters, as an optimizer may look at the rows of one
    FullySharded        stage 3: a rank owns a run of elements, cut evenly through parameters

Hybrid sharding, at any stage: n ranks are s shards × r replicas. What a rank owns is 1/s; shards are exchanged among s
neighbours, and each gradient is also summed over its r replicas: 2(r−1)/r·Ψ/s numbers more, alone between nodes.

Invariant: after a step all ranks would gather the same parameters, those of one rank with the whole batch.
Sources: Rajbhandari et al. 2020, "ZeRO", sections 5 and 7; Zhao et al. 2023, "PyTorch FSDP", sections 3.2, 3.3 and 4.3.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from ..arguments import floating, function, instance, whole
from ..collectives import (
    all_gather,
    all_gather_,
    all_gather_json,
    all_reduce_,
    broadcast_,
    gather,
    reduce_scatter_,
    scatter,
)
from ..comm.base import Comm, Host, Work
from ..split import bounds, uneven
from ..train.amp import Masters
from ..train.norm import clip_
from .reducer import (
    Averages,
    Averaging,
    Claim,
    Lane,
    Layout,
    Reducer,
    check_dense,
    check_devices,
    check_weight,
    same_group,
)

# ------------------------------------------------------------
# Who owns what: numbers lie in a flat buffer, which is cut into a chunk for each rank. There are two rules.
#
#     whole parameters, by owner   [ rank 0's: w1 b3 │ rank 1's: w2 b1 │ rank 2's: w3 b2 ]     chunks are uneven
#     cut evenly                   [ w1       │      b1   w2     │       b2   w3   b3    ]     parameters are cut
#
# Whole parameters go to the ranks largest first, each to the rank with the least so far: the fullest has at most 4/3 of
# the best possible (Graham 1969, "Bounds on Multiprocessing Timing Anomalies"). All ranks find the same owners.


def best_fit(nbytes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """The owner of each of these parameters.

    nbytes: their sizes.  loads: bytes that each rank owns already, zeros at first.  Of equally large parameters the
    first one goes first, of equally full ranks to the lowest.

    >>> from minidist.parallel.zero import best_fit
    >>> best_fit([4, 7, 2, 3], loads=[0, 0])  # 7 to rank 0; 4 and 3 to rank 1; 2 to rank 0
    [1, 0, 0, 1]
    """
    loads = list(loads)
    owners = [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += nbytes[i]
    return owners


class Chunks(Layout):
    """A flat buffer that is cut into a chunk for each rank.

    sizes[r]: elements of rank r's chunk.  owned[r]: where it begins and ends.  first, end: the same of this rank's.
    """

    def __init__(self, tensors: Sequence[Tensor], sizes: list[int], rank: int):
        super().__init__(tensors)
        self.sizes = sizes
        self.owned = bounds(sizes)
        self.first, self.end = self.owned[rank]

    def within(self, first: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """(i, where in tensor i, where between the two) of each tensor with elements between these places."""
        for i, (start, stop) in enumerate(self.cuts):
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield i, slice(low - start, high - start), slice(low - first, high - first)

    def parts(self, chunk: Tensor) -> list[Tensor]:
        """The elements of each tensor in this rank's chunk of a buffer: (k,), and k may be 0."""
        parts = [chunk[:0] for _ in self.cuts]
        for i, _, place in self.within(self.first, self.end):
            parts[i] = chunk[place]
        return parts


def by_owner(
    params: Sequence[Tensor], owner: dict[Tensor, int], comm: Comm
) -> tuple[list[Tensor], Chunks]:
    """The parameters in the order of their owners, and their layout."""
    sizes = [0] * comm.size
    for p in params:
        sizes[owner[p]] += p.numel()
    ordered = sorted(params, key=owner.__getitem__)
    return ordered, Chunks(ordered, sizes, comm.rank)


# ------------------------------------------------------------
# Gradients on their way to their owners, at any stage: packed into a flat buffer, times this rank's share of the average,
# and summed there by a reduce-scatter. As each is packed, it is freed.
#
# A parameter may have no gradient on this rank and one on another: then it counts as zeros. If no rank has one it keeps
# None, and optimizers skip it, as in serial training. No extra message tells the two apart: a missing gradient is sent as
# −0.0, a zero that is there as +0.0, and by IEEE 754 a sum is −0.0 only if all its terms are. (One mistake is possible: all
# that a rank owns of a gradient is negative and underflows, on every rank.)


class Leaving:
    """The gradients of `params`, taken from them, to be packed into a buffer of this layout.

    missing: the positions of those that this rank does not have.  flat: the others in the order of their memory, each
    until the last of it has been packed.
    """

    @torch.no_grad()
    def __init__(self, layout: Chunks, params: Sequence[Tensor]):
        self.layout = layout
        self.like = params[0]
        self.missing = [i for i, p in enumerate(params) if p.grad is None]
        self.flat: list[Tensor | None] = []
        for p, strides in zip(params, layout.strides, strict=True):
            grad, p.grad = p.grad, None
            if grad is not None:
                if grad.stride() != strides:  # flat, it would be in another order
                    grad = torch.empty_strided(
                        p.shape, strides, dtype=p.dtype, device=p.device
                    ).copy_(grad)
                grad = grad.detach().as_strided((p.numel(),), (1,))
            self.flat.append(grad)

    @torch.no_grad()
    def pack(self, first: int, end: int, factor: float) -> Tensor:
        """What lies between these places of the buffer, times `factor`; 0 makes zeros also of nan."""
        chunk = self.like.new_empty(end - first)
        zero = chunk.new_zeros(())
        for i, place, where in self.layout.within(first, end):
            flat = self.flat[i]
            if flat is None:
                chunk[where].fill_(-0.0)
                continue
            if factor == 0:
                chunk[where].zero_()
            else:  # 0.0 + factor·(−0.0) is 0.0
                torch.add(zero, flat[place], alpha=factor, out=chunk[where])
            if place.stop == len(flat):
                self.flat[i] = None
        return chunk


def nowhere(part: Tensor) -> bool:
    """Whether no rank has sent these elements. Meta tensors cannot be read: what is missing here is missing there."""
    return part.is_meta or bool((torch.signbit(part) & (part == 0)).all())


# ------------------------------------------------------------
# Stages 1 and 2. Parameters are views of flat buffers, ordered by owner, so that all of them are gathered where they lie.
#
#     backward     bucket by bucket: pack ─▶ reduce-scatter ─▶ p.grad of the owner, None elsewhere
#                  (stage 1: in step, a slice of what each owner gets after the other)
#     step         the optimizer steps what this rank owns ─▶ all-gather of the flat buffers


class OwnedBucket:
    """The gradients of `params` (one dtype) on their way to their owners, in the hands of a `Reducer`.

    They travel in rounds, in each a slice of what every owner gets, so that all wires are in use and n slices are in
    memory: together a sixteenth of all, unless a slice has less than 1 MiB, not worth a message's latency, or more than
    `most` bytes.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        owner: dict[Tensor, int],
        comm: Comm,
        averages: Averages,
        most: int,
        across: Lane | None = None,
    ):
        self.params, self.layout = by_owner(params, owner, comm)
        self.missing: set[Tensor] = set()  # of this backward
        self._own = [i for i, p in enumerate(self.params) if owner[p] == comm.rank]
        self._averages = averages
        self._across = across
        nbytes = max(1 << 20, sum(p.nbytes for p in params) // (16 * comm.size))
        self._slice = max(1, min(nbytes, most) // self.params[0].element_size())

    def put(self, p: Tensor, factor: float) -> None:
        """The gradient of `p` is there, or will not come."""
        self._averages.set_aside(p)
        self._factor = factor
        self.missing.discard(p)

    def mark_present(self) -> None:
        """All gradients are there: take them. Those that this rank owns stay in their place, to become averages."""
        self._leaving = Leaving(self.layout, self.params)
        self._sums: dict[int, Tensor] = {}
        for i in self._own:
            p, flat = self.params[i], self._leaving.flat[i]
            self._sums[i] = p.new_empty(p.numel()) if flat is None else flat

    @torch.no_grad()
    def reduce(self, comm: Comm, share: Work | None, algorithm: str | None) -> None:
        """Sum each gradient at its owner, times this rank's share where `put` did not know it; drop the others."""
        for at in range(0, max(self.layout.sizes), self._slice):
            cuts = [(min(a + at, b), min(a + at + self._slice, b)) for a, b in self.layout.owned]
            chunks = [self._leaving.pack(first, end, self._factor) for first, end in cuts]
            if share is not None:
                for chunk in chunks:
                    chunk.mul_(share.wait())
            reduce_scatter_(comm, chunks, algorithm=algorithm)
            own = chunks[comm.rank]
            if self._across is not None:
                self._across.run(all_reduce_, own).wait()
            for i, place, where in self.layout.within(*cuts[comm.rank]):
                self._sums[i][place] = own[where]

    def hand_out(self) -> None:
        """Give this rank the averages of what it owns."""
        for i, average in self._sums.items():
            p, strides = self.params[i], self.layout.strides[i]
            missing = i in self._leaving.missing and nowhere(average)
            self._averages.give(p, None if missing else average.as_strided(p.shape, strides))
        del self._sums


class ShardedOptimizer(Averaging, torch.optim.Optimizer):
    """Shards an optimizer over the ranks of `comm`: each rank steps the parameters that it owns.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, stage=2, lr=1e-3)
        loss(model(x), y).backward()            # x: this rank's part of the batch; no DataParallel around the model
        optimizer.step()                        # averages the gradients itself

    params, **kwargs: as for `optimizer_class`, with groups and names. Its step must look at one parameter at a time, as
    nearly all do; L-BFGS is refused.  stage: 1 or 2 (of ZeRO).  master_dtype: for a parameter with fewer bits, its
    owner steps a copy in this dtype, made by `train.amp.Masters`.  bucket_bytes, first_bucket_bytes: sizes of the
    buckets in which gradients travel; at stage 1, all gradients form one bucket. A bucket is reduced in rounds, a
    sixteenth of it in each (in more than 16 rounds if one rank owns most of it): each owner gets at least 1 MiB, and at
    most bucket_bytes.
    overlap: at stage 2, as in `DataParallel`.
    weight: as in `DataParallel`, set before the backward; None: all ranks count alike.  tied: parameters that other
    stages of a pipeline hold as well. The same rank of each stage's group owns them, provided that every stage gives
    them in the same order.
    replicas: for hybrid sharding, the ranks, including this one, that own the same parameters in other groups like
    `comm`. Gradients are averaged over both, such as two axes of a mesh; parameters are gathered within `comm`.

    At the start, all ranks get rank 0's parameters, which become views of a flat buffer: move the model to its device
    first. Change a learning rate in `param_groups`, on all ranks. Frozen parameters cost nothing; one that is unfrozen
    gets an owner at the next `zero_grad()` or `step()`. After averaging, a gradient is kept by its owner only and is
    None on the other ranks; `gradients()` returns this rank's. A parameter without a gradient on any rank is not
    stepped.
    Accumulation: the gradients of several backwards before `step()` add up. At stage 1 that sends nothing; at stage 2,
    each backward's are reduced and added to those at their owners, or stay whole within `no_sync()`, for 2Ψ bytes in
    fp16. Every rank's backward must reach a parameter; at stage 2, a rank without work calls `average()`. A closure is
    called once, before the step.

    A new ShardedOptimizer over the same parameters and ranks (to resume, or at another stage) replaces the old one,
    whose state_dict can still be taken; its gradients are dropped. It goes together with SyncBatchNorm, and with an
    OffloadedOptimizer inside it; DataParallel, FullySharded and LocalSGD are refused (parallel/reducer.py).
    Raises ValueError for any other stage, for a parameter that is on another device than the Comm or was replaced after
    the start, and for replicas that do not own the same parameters.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import ShardedOptimizer
    >>> def program(comm, x):
    ...     net = mlp([4, 8, 2])
    ...     optimizer = ShardedOptimizer(net.parameters(), torch.optim.AdamW, comm, stage=2)
    ...     net(x.chunk(comm.size)[comm.rank]).square().mean().backward()
    ...     optimizer.step()
    ...     return [p.numel() for p in net.parameters() if optimizer.steps(p)], net[2].bias.tolist()
    >>> ranks = World(2).run(program, torch.ones(4, 4))
    >>> [owned for owned, _ in ranks]  # the states of each number lie on one of the ranks
    [[32], [8, 16, 2]]
    >>> ranks[0][1] == ranks[1][1]  # and the parameters, after the step, on both
    True
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: Callable[..., torch.optim.Optimizer],
        comm: Comm,
        stage: int = 1,
        master_dtype: torch.dtype | None = None,
        *,
        bucket_bytes: int = 25 << 20,
        first_bucket_bytes: int = 1 << 20,
        overlap: bool = True,
        tied: Collection[Tensor] = (),
        replicas: Comm | None = None,
        **kwargs,
    ):
        if stage not in (1, 2):
            raise ValueError(
                f"a sharded optimizer has the stages 1 and 2 of ZeRO, not {stage}: 3 is FullySharded"
            )
        function(optimizer_class, "optimizer_class makes an optimizer, as AdamW does")
        lbfgs = isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.LBFGS)
        if lbfgs:
            raise ValueError(
                "L-BFGS looks at all parameters at once: its step cannot be cut into those of n owners"
            )
        if master_dtype is not None:
            stepping = functools.partial(self._claimed, optimizer_class)
            optimizer_class = functools.partial(
                Masters, optimizer_class=stepping, dtype=master_dtype
            )
        check_replicas(comm, replicas)
        self.comm = comm
        self.replicas = replicas
        self.stage = stage
        self._inner: torch.optim.Optimizer  # made when all groups are placed
        self._owner: dict[Tensor, int] = {}  # in the order in which they were placed
        self._loads = [0] * comm.size  # bytes owned by each rank
        self._places: dict[Tensor, Tensor] = {}  # where each parameter lies in its flat buffer
        self._chunks: list[list[Tensor]] = []  # of each flat buffer
        self._bucket_bytes = whole(bucket_bytes, "a bucket has room for at least 1 byte", 1)
        self._reducer = Reducer(
            comm,
            self._named,
            bucket_bytes=bucket_bytes if stage == 2 else sys.maxsize,
            first_bucket_bytes=first_bucket_bytes if stage == 2 else sys.maxsize,
            overlap=overlap and stage == 2,
            bucket=self._bucket,
            averages=Averages(),
            in_backward=stage == 2,
            in_flight=1,
            across=None if replicas is None else Lane(replicas, overlap and stage == 2),
        )
        self._claim = Claim(self, "ShardedOptimizer", comm, self._let_go)
        super().__init__(params, {})
        self._start(self.names(), frozenset(tied))
        self._claim.making = True
        self._inner = optimizer_class([self._own_group(g) for g in self.param_groups], **kwargs)
        self.defaults, self.state = self._inner.defaults, self._inner.state
        self._claim.making = False
        copy_options(self._inner.param_groups, self.param_groups)

    def _claimed(self, optimizer_class: Callable, groups: list[dict], **kwargs):
        """The optimizer of masters, which nobody else may step."""
        self._claim.take_masters([master for group in groups for master in group["params"]])
        made = optimizer_class(groups, **kwargs)
        if "masters" in made.state_dict():
            raise ValueError(
                f"masters of masters: the {type(made).__name__} inside keeps its own, so give it a "
                "master_dtype, and the ShardedOptimizer none"
            )
        return made

    def _let_go(self) -> None:
        """A newer one takes over. An average lies at its owner alone: nobody else could use it."""
        self._reducer.unwatch()
        super().zero_grad()

    def _start(self, names: dict[Tensor, str], first: Collection[Tensor] = ()) -> None:
        """Rank 0's values for all of these parameters; an owner for those that train, `first` first."""
        check_devices(self.comm, ((name, p) for p, name in names.items()))
        self._claim.take(names)
        broadcast_to_all_(self.comm, self.replicas, [p for p in names if not p.requires_grad])
        self._place([p for p in names if p.requires_grad and p in first])
        self._place_new()

    def _place_new(self, also: Collection[Tensor] = ()) -> None:
        """Place what trains and has no owner yet, such as a frozen one that was thawed, and those in `also`."""
        unowned = [p for p in self.names() if p not in self._owner]
        new = dict.fromkeys(p for p in unowned if p.requires_grad or p in also)
        self._place(list(new))
        if hasattr(self, "_inner"):  # a new group is not there yet
            for group, inner in zip(self.param_groups, self._inner.param_groups, strict=False):
                inner["params"] += self._own(p for p in group["params"] if p in new)
        self._reducer.watch(self._owner)

    @torch.no_grad()
    def _place(self, params: list[Tensor]) -> None:
        """Give these an owner, and a place in a flat buffer for each dtype, with rank 0's values."""
        for p, owner in zip(params, best_fit([p.nbytes for p in params], self._loads), strict=True):
            self._owner[p] = owner
            self._loads[owner] += p.nbytes
        for alike in by_dtype(params):
            ordered, layout = by_owner(alike, self._owner, self.comm)
            flat = alike[0].new_empty(layout.total)
            for p, view in zip(ordered, layout.views(flat), strict=True):
                view.copy_(p.detach())
                p.data = view
                self._places[p] = view
            broadcast_to_all_(self.comm, self.replicas, flat)
            self._chunks.append(list(flat.split(layout.sizes)))

    def _own(self, params: Iterable[Tensor]) -> list[Tensor]:
        """Those of `params` that this rank owns."""
        return [p for p in params if self.owner(p) == self.comm.rank]

    def _own_group(self, group: dict[str, Any]) -> dict[str, Any]:
        return options(group) | {"params": self._own(group["params"])}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, on all ranks; this is possible after steps, too."""
        super().add_param_group(param_group)
        if not hasattr(self, "_inner"):
            return  # all groups are placed together
        group = self.param_groups[-1]
        self._claim.check()
        names = self.names()
        self._start({p: names[p] for p in group["params"]})
        self._inner.add_param_group(self._own_group(group))

    def names(self) -> dict[Tensor, str]:
        """The name of each parameter: as it was given, or its place in the groups."""
        names: dict[Tensor, str] = {}
        for g, group in enumerate(self.param_groups):
            numbered = [f"parameter {i} of group {g}" for i in range(len(group["params"]))]
            names |= zip(group["params"], group.get("param_names", numbered), strict=True)
        return names

    def owner(self, p: Tensor) -> int | None:
        """The rank that owns a parameter; None if it has always been frozen."""
        return self._owner.get(p)

    def steps(self, p: Tensor) -> bool:
        """Whether a parameter is this rank's to step, or nobody's yet."""
        return self.owner(p) in (None, self.comm.rank)

    def _named(self) -> dict[Tensor, str]:
        """The parameters that train now, and their names."""
        names = self.names()
        return {p: names[p] for p in self._owner if p.requires_grad}

    def _bucket(self, params: list[Tensor]) -> OwnedBucket:
        reducer = self._reducer
        return OwnedBucket(
            params, self._owner, self.comm, reducer.averages, self._bucket_bytes, reducer.across
        )

    def average(self) -> None:
        """Do what the end of a backward does at stage 2: give each owner the averages of its gradients."""
        self._claim.check()
        self._reducer.average()

    def gradients(self) -> list[Tensor]:
        """This rank's averaged gradients as `step()` will use them, with masters in their dtype.

        All ranks call it; it averages those that are not averaged yet. To clip or unscale the gradients, change them in
        place.
        """
        self._claim.check()
        self._place_new()
        if not self._reducer.averaged:
            self.average()
        if isinstance(self._inner, Masters):
            self._inner.gradients()
        grads = {p: p.grad for p in self._own(self.names()) if p.grad is not None}
        for p, grad in grads.items():
            self._reducer.averages.note(p, grad)
        return list(grads.values())

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        comm: Comm | None = None,
        counted: Iterable[Tensor] | None = None,
    ) -> Tensor:
        """Scale all ranks' gradients so that their norm is at most `max_norm`; returns what it was, before `step()`.

        comm: where the model itself lies on several ranks, these and the optimizer's own together.  counted: then, the
        parameters that this rank counts, as from `train.norm.counted`.
        """
        grads = self.gradients()
        if counted is not None:
            counted = [p.grad for p in self._own(counted) if p.grad is not None]
        return clip_(comm or self.comm, grads, max_norm, norm_type, counted)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs):
        """Average what is not averaged yet, step the parameters that this rank owns, and send them to the others.
        Returns the loss.

        kwargs: passed on to the step of `optimizer_class`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._claim.check()
        self._check_places()
        self.gradients()
        copy_options(self.param_groups, self._inner.param_groups)
        self._inner.step(**kwargs)
        copy_options(self._inner.param_groups, self.param_groups)
        self._gather()
        self._reducer.averaged = False
        return loss

    def _check_places(self) -> None:
        for p, view in self._places.items():
            if p.data_ptr() != view.data_ptr():
                raise ValueError(
                    f"the data of {self.names()[p]} were replaced since the start: move or convert the model "
                    "before its optimizer is made, and change values in place"
                )

    def _gather(self) -> None:
        """The parameters as their owners have them, on all ranks."""
        for chunks in self._chunks:
            all_gather_(self.comm, chunks)

    @torch.no_grad()
    def finish(self) -> None:
        """Apply what the optimizer inside still holds back, on all ranks: the last update of a delayed
        OffloadedOptimizer.

        All ranks call it after the last step, before they look at the parameters. Other optimizers hold nothing back.
        """
        self._claim.check()
        if hasattr(self._inner, "finish"):
            self._inner.finish()
            self._gather()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or make those that are there zeros."""
        self._claim.check()
        super().zero_grad(set_to_none)
        self._reducer.averages.forget()
        self._reducer.averaged = False
        self._place_new()

    # State dicts: each rank has the states of what it owns; together they are the serial optimizer's. A whole one belongs
    # to no number of ranks. What else the optimizer inside adds comes along, so that it can go on bit for bit:
    # {"masters": {index: tensor}} with masters, an OffloadedOptimizer's "offload".

    def state_dict(self) -> dict[str, Any]:
        """The state_dict that a serial `optimizer_class` would give, on every rank; all ranks call it.

        It loads into the serial optimizer, and that optimizer's state_dict loads here.
        """
        whole = self.own_state_dict()
        del whole["owner"]
        groups = whole.pop("param_groups")
        everyone = gather_values(self.comm, whole)
        for key in whole:
            entries: dict[int | str, Any] = {}
            for own in everyone:
                entries |= own[key]
            whole[key] = dict(sorted(entries.items()))  # by number, or by name
        return whole | {"param_groups": groups}

    def own_state_dict(self) -> dict[str, Any]:
        """The part of the state_dict that this rank owns, made without messages: what a checkpoint saves.

        It loads on this rank only; {"owner": [rank, size]} in it says whose it is.
        """
        numbers, inner = self._numbers(), self._inner.state_dict()
        state: dict[str, Any] = {}
        del inner["param_groups"]
        for key, entries in inner.items():
            entries = by_number(entries)
            if not isinstance(entries, dict):
                raise ValueError(
                    f"{key!r} in the state_dict of {type(self._inner).__name__} is a "
                    f"{type(entries).__name__}: what is not by parameter or by name cannot be put "
                    "together from several ranks"
                )
            state[key] = {numbers[i] if isinstance(i, int) else i: x for i, x in entries.items()}
        state["param_groups"] = numbered(self.param_groups)
        return state | {"owner": [self.comm.rank, self.comm.size]}

    def _numbers(self) -> list[int]:
        """The number among all parameters of each that the inner optimizer steps, in its order."""
        index = {p: i for i, p in enumerate(self.names())}
        return [index[p] for group in self._inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict, from here or from the serial optimizer, on all ranks; each rank reads the part that it
        owns.

        Masters that it lacks are copied from the parameters as they are now, so always load the parameters first.
        Raises ValueError if the groups differ, and for a part that belongs to another rank.
        """
        self._claim.check()
        here = [self.comm.rank, self.comm.size]
        rank, size = state_dict.get("owner", here)
        if [rank, size] != here:
            raise ValueError(
                f"this is the own state of rank {rank} of {size}, loaded on rank {here[0]} of "
                f"{here[1]}: take each rank's own, or state_dict(), which is whole"
            )
        theirs = [len(group["params"]) for group in state_dict["param_groups"]]
        ours = [len(group["params"]) for group in self.param_groups]
        if theirs != ours:
            raise ValueError(
                f"the state_dict has groups of {theirs} parameters, the optimizer of {ours}"
            )
        params = list(self.names())
        self._place_new({params[i] for i in state_dict["state"]})
        position = {number: k for k, number in enumerate(self._numbers())}
        own = self._inner.state_dict()
        loaded: dict[str, Any] = {}
        for key in own.keys() & state_dict.keys() - {"param_groups"}:
            entries = {
                position.get(i, i): x
                for i, x in by_number(state_dict[key]).items()
                if i in position or not isinstance(i, int)
            }
            as_list = isinstance(own[key], list)
            loaded[key] = [entries[k] for k in range(len(position))] if as_list else entries
        loaded["param_groups"] = [
            options(saved) | {"params": group["params"]}
            for saved, group in zip(state_dict["param_groups"], own["param_groups"], strict=True)
        ]
        self._inner.load_state_dict(loaded)
        self.state = self._inner.state
        copy_options(self._inner.param_groups, self.param_groups)


def check_replicas(comm: Comm, replicas: Comm | None) -> None:
    """ValueError, on all of them, for replicas that are not of one shard. Collective."""
    if replicas is None:
        return
    shards = all_gather_json(replicas, [comm.rank, comm.size])
    if any(shard != shards[0] for shard in shards):
        words = ", ".join(f"shard {rank} of {size}" for rank, size in shards)
        raise ValueError(
            f"replicas hold the same shard, and these {len(shards)} ranks hold {words}: the two "
            "groups have this rank in common and no other, as two axes of a mesh do"
        )


def broadcast_to_all_(comm: Comm, replicas: Comm | None, x: Tensor | list[Tensor]) -> None:
    """What rank 0 of the first of the replicas has, on all ranks of all of them."""
    broadcast_(comm, x)
    if replicas is not None:
        broadcast_(replicas, x)


def options(group: dict[str, Any]) -> dict[str, Any]:
    """A group without its parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def copy_options(source: list[dict], to: list[dict]) -> None:
    """What schedulers and users have changed in the groups, or the optimizer itself."""
    for a, b in zip(source, to, strict=True):
        b.update(options(a))


def numbered(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of a state_dict: in place of each parameter its number among all of them."""
    index = itertools.count()
    return [{**group, "params": [next(index) for _ in group["params"]]} for group in groups]


def by_number(entries):
    """A list as {position: entry}; anything else as it is."""
    return dict(enumerate(entries)) if isinstance(entries, list) else entries


def by_dtype(tensors: Sequence) -> list[list]:
    """The tensors, or what else has a dtype, of each dtype."""
    dtypes = dict.fromkeys(x.dtype for x in tensors)
    return [[x for x in tensors if x.dtype == dtype] for dtype in dtypes]


def gather_values(comm: Comm, value: Any) -> list[Any]:
    """Every rank's `value`, in rank order: dicts, lists and tuples of tensors, numbers and words. Collective.

    Tensors are broadcast as they are; all else travels as JSON, exactly (Python's floats are printed so that they read
    back the same). Raises ValueError for anything else.
    """
    leaves, form = tree_flatten(value)
    everyone = all_gather_json(comm, [treespec_dumps(form), [leaf_as_json(x) for x in leaves]])
    values = []
    for rank, (form, notes) in enumerate(everyone):
        for i, note in enumerate(notes):
            if isinstance(note, list):
                dtype, shape, strides, device = note
                place = comm.device if device == comm.device.type else device
                notes[i] = torch.empty_strided(
                    shape, strides, dtype=getattr(torch, dtype), device=place
                )
                if rank == comm.rank:
                    notes[i].copy_(leaves[i])
                # beside meta tensors there are step counts on the CPU
                sent = notes[i] if comm.device.type == "meta" else notes[i].to(comm.device)
                notes[i].copy_(broadcast_(comm, sent, rank))
        values.append(tree_unflatten(notes, treespec_loads(form)))
    return values


def leaf_as_json(leaf: Any) -> Any:
    """A leaf of a state; of a tensor, what it looks like, in a list."""
    if isinstance(leaf, Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return [dtype, list(leaf.shape), list(leaf.stride()), leaf.device.type]
    if isinstance(leaf, int | float | bool | str | None):
        return leaf
    raise ValueError(
        f"a state holds tensors, numbers, words, lists and dicts, not {type(leaf).__name__}: {leaf!r}"
    )


# ------------------------------------------------------------
# Stage 3: each rank keeps a run of elements of every block, and a block is whole only while it is used.
#
#     flat      [ weight 1      | bias 1 | weight 2             | bias 2 ]     gathered: compute dtype, only while used
#     rank      [ 0                | 1                | 2                ]     kept: the dtype that the module came with
#     pieces    [ weight 1         ] [ bias 1 | w 2   ] [ w 2 | bias 2   ]     what rank 0, 1, 2 gives the optimizer
#
# A piece is an nn.Parameter, a view of the shard; the module holds it between uses. To free is to resize the storage to
# zero: whatever autograd has kept of the parameter sees it empty, and full again once gathered.


class Held:
    """A parameter of the module.

    whole: the nn.Parameter that the module came with; its data is a view of `Flat.full`, empty unless gathered.
    piece: this rank's elements.  sites: (module, attribute) wherever the module holds it; a tied one has several.
    """

    def __init__(self, name: str, whole: nn.Parameter):
        self.name = name
        self.whole = whole
        self.dtype = whole.dtype
        self.piece: nn.Parameter  # made with its shard, by `Flat`
        self.sites: list[tuple[nn.Module, str]] = []

    def put(self, p: nn.Parameter) -> None:
        """Let the module hold `p`."""
        for module, attribute in self.sites:
            module._parameters[attribute] = p

    def show(self) -> None:
        """Let the module hold the whole."""
        if self.whole.requires_grad != self.piece.requires_grad:  # frozen or thawed since
            self.whole.requires_grad_(self.piece.requires_grad)
        self.put(self.whole)


class Flat(Chunks):
    """The parameters `held` (all of one dtype) in one buffer, with the values of rank 0 of the first replicas.

    full: the whole, in the compute dtype; memory is taken between `allocate` and `release`.  chunks: of each rank.
    shard: this rank's for good, at `home`: `comm.host`, or a Host that is the Comm's device. What goes between the two
    travels in the compute dtype: the host converts.
    """

    def __init__(
        self,
        held: list[Held],
        comm: Comm,
        compute_dtype: torch.dtype | None,
        home: Host,
        replicas: Comm | None = None,
    ):
        wholes = [h.whole for h in held]
        total = sum(p.numel() for p in wholes)
        super().__init__(wholes, uneven(total, comm.size), comm.rank)
        self.held = held
        self.comm = comm
        self.home = home
        dtype = wholes[0].dtype
        with home:
            self.shard = torch.empty(self.end - self.first, dtype=dtype, device=home.device)
        self.receive([p.detach() for p in wholes] if comm.rank == 0 else None, 0, replicas)
        if compute_dtype is None or not dtype.is_floating_point:
            compute_dtype = dtype
        self.full = torch.empty(total, dtype=compute_dtype, device=comm.device)
        self.chunks = list(self.full.split(self.sizes))
        for h, part, view in zip(held, self.parts(self.shard), self.views(self.full), strict=True):
            h.piece = nn.Parameter(part, requires_grad=h.whole.requires_grad)
            h.whole.data = view  # keeps its own count of changes: a new gather is none to autograd
        self.release()

    def _room_for_shard(self) -> Tensor:
        """Memory for the shard on the Comm's device, not filled."""
        return torch.empty(self.shard.shape, dtype=self.shard.dtype, device=self.comm.device)

    @torch.no_grad()
    def receive(self, values: list[Tensor] | None, root: int | None, replicas: Comm | None) -> None:
        """The shard becomes this rank's part of the parameters' `values`: of its own (root: None), or of rank `root`'s
        in the first of the replicas."""
        whole = None
        if values is not None:
            whole = torch.empty(self.total, dtype=self.shard.dtype, device=self.comm.device)
            for view, value in zip(self.views(whole), values, strict=True):
                view.copy_(value)
        if root is None:
            assert whole is not None, "without a root each rank has the values"
            self.shard.copy_(whole[self.first : self.end])
            return
        own = self._room_for_shard()
        if replicas is None or replicas.rank == 0:
            scatter(self.comm, whole, root, sizes=self.sizes, out=own)
        if replicas is not None:
            broadcast_(replicas, own)
        self.shard.copy_(own)

    @torch.no_grad()
    def gathered(self, root: int | None = None) -> list[Tensor]:
        """The whole parameters in the dtype of the shards, on every rank; or on rank `root` alone, none elsewhere."""
        own = self._room_for_shard().copy_(self.shard)
        if root is None:
            return self.views(all_gather(self.comm, own, sizes=self.sizes))
        whole = gather(self.comm, own, root, sizes=self.sizes)
        return [] if whole is None else self.views(whole)

    @property
    def trains(self) -> bool:
        """Whether any parameter requires a gradient now."""
        return any(h.piece.requires_grad for h in self.held)

    @torch.no_grad()
    def allocate(self) -> None:
        """Take memory for the whole, and fill in this rank's part: what comes next is the all-gather."""
        self.full.untyped_storage().resize_(self.full.nbytes)
        own = self.shard
        if self.home is self.comm.host:
            with self.home:
                own = own.to(self.full.dtype)
        self.chunks[self.comm.rank].copy_(own)

    def release(self) -> None:
        """Free the whole; the module holds pieces."""
        for h in self.held:
            h.put(h.piece)
        self.full.untyped_storage().resize_(0)

    @torch.no_grad()
    def deposit(self, own: Tensor, missing: list[int]) -> None:
        """Add this rank's chunk of an average to the gradients of its pieces, in the dtype of the shard."""
        trained = [
            (i, h.piece)
            for i, (h, part) in enumerate(zip(self.held, self.parts(own), strict=True))
            if h.piece.requires_grad and not (i in missing and nowhere(part))
        ]
        with self.home:
            if self.home is self.comm.host:
                own = torch.empty_like(own, device=self.home.device).copy_(own)
            if any(piece.grad is None for _, piece in trained):
                own = torch.empty_like(self.shard).copy_(own)
        parts = self.parts(own)
        for i, piece in trained:
            if piece.grad is None:
                piece.grad = parts[i]
            else:
                piece.grad.add_(parts[i])

    def restore(self) -> None:
        """The module holds whole parameters for good, as they are now, in the dtype that it came with. Collective."""
        for h, value in zip(self.held, self.gathered(), strict=True):
            h.whole.data = value.clone()
            h.show()


# ------------------------------------------------------------
# Which parameter belongs to which block: to the innermost block around the module that uses it; one that modules of
# several blocks share (a tied embedding) to the innermost block around all of these, the whole model in the end.
#
#     whole ┬ layer 0 ┬ attention        blocks=TransformerLayer: three blocks, layer 0, layer 1, and the whole, which
#           │         └ mlp              takes what is left: embeddings, the last norm
#           └ layer 1 …
#
# A block is whole as long as its forward runs: so the whole model's rest is, during all of a forward, and of a backward.


Blocks = type | tuple[type, ...] | Callable[[nn.Module], bool] | None


def assign(module: nn.Module, blocks: Blocks) -> dict[str, list[Held]]:
    """{name of a block: the parameters that it holds}, outer blocks first, of the blocks that hold any."""
    if blocks is None or isinstance(blocks, type | tuple):
        is_block = lambda m: isinstance(m, blocks or ())
    else:
        is_block = blocks
    modules = list(module.named_modules(remove_duplicate=False))
    held_by: dict[str, list[Held]] = {name: [] for name, m in modules if m is module or is_block(m)}
    held: dict[nn.Parameter, Held] = {}
    around: dict[nn.Parameter, list[str]] = {}  # the blocks around all uses of a parameter
    for name, m in modules:
        chain = [block for block in held_by if not block or f"{name}.".startswith(f"{block}.")]
        for attribute, p in m._parameters.items():
            if p is None:
                continue
            full = f"{name}.{attribute}" if name else attribute
            held.setdefault(p, Held(full, p)).sites.append((m, attribute))
            around[p] = [block for block in around.get(p, chain) if block in chain]
    for p, h in held.items():
        held_by[around[p][-1]].append(h)
    return {name: own for name, own in held_by.items() if own}


# ------------------------------------------------------------
# A block is made whole by hooks, before its forward and before its backward, and freed after either.
#
#     forward    gather │ F │ free                 backward   gather │ B │ free, reduce the gradients
#                       ▲                                     ▲        ▲
#                pre-hook of the module      the gradient of an output  those of the inputs are all there
#                (inputs go through `Leave`)   (a hook on the tensor)    (`Leave` runs backward)
#
# A block may be called several times in a forward, and then again by activation checkpointing in the backward: each call
# that autograd records is a `Call`, and gradients are reduced when the last one is done. Where no input requires a
# gradient there is no `Leave`; then the block is done when the backward ends.
#
# Invariant: a block is whole only between its hooks, or while it is being prefetched.


class Call:
    """One forward of a block, as long as its graph lives. inside: its backward has begun and not ended."""

    inside = False


class Leave(torch.autograd.Function):
    """Nothing forward; backward runs when the gradients of all the block's inputs are there."""

    @staticmethod
    def forward(ctx, done, call: Call, *inputs: Tensor):
        ctx.done, ctx.call = done, call
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx, *grads):
        ctx.done(ctx.call)
        return None, None, *grads


class Unit:
    """The block `module`, whose parameters are in `flats`. `schedule` says when what is sent."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        flats: list[Flat],
        schedule: Schedule,
        compute_dtype: torch.dtype | None,
    ):
        self.name = name
        self.module = module
        self.flats = flats
        self.held = [h for flat in flats for h in flat.held]
        self.schedule = schedule
        self.compute_dtype = compute_dtype
        self.whole = False  # whether its memory is taken: gathered, or about to be
        self.dirty = False  # whether whole gradients may be there that no rank has reduced
        self.calls: weakref.WeakSet[Call] = weakref.WeakSet()  # those whose backward may come
        self._open: list[Call] = []  # forwards that run now
        self._works: list[Work] = []  # of the gathers under way
        self._hooks = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def __reduce__(self):
        raise TypeError(
            "a module whose parameters FullySharded has sharded cannot be copied: copy it before, or load "
            "a full_state_dict() into another"
        )

    def start(self) -> None:
        """Begin to gather."""
        if not self.whole:
            self.whole = True
            for flat in self.flats:
                flat.allocate()
            self._works = [self.schedule.lane.run(all_gather_, flat.chunks) for flat in self.flats]

    def need(self) -> None:
        """Be whole, and the module with it."""
        self.start()
        self._wait()
        for h in self.held:
            h.show()

    def free(self) -> None:
        """Keep the shards alone."""
        if self.whole:
            self._wait()
            for flat in self.flats:
                flat.release()
            self.whole = False

    def _wait(self) -> None:
        while self._works:
            self._works.pop().wait()

    @property
    def inside(self) -> bool:
        """Whether a backward is at work in it."""
        return any(call.inside for call in self.calls)

    def _before(self, module: nn.Module, args, kwargs):
        self._open.append(Call())
        self.schedule.enter_forward(self)
        leaves, form = tree_flatten((args, kwargs))
        where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        if where and torch.is_grad_enabled() and not self.inside:
            inputs = Leave.apply(self._end_call, self._open[-1], *(leaves[i] for i in where))
            for i, x in zip(where, inputs, strict=True):
                leaves[i] = x
        if self.compute_dtype is not None:
            for i, x in enumerate(leaves):
                if isinstance(x, Tensor) and x.is_floating_point():
                    leaves[i] = x.to(self.compute_dtype)
        return tree_unflatten(leaves, form)

    def _after(self, module: nn.Module, args, kwargs, output) -> None:
        """A forward of the block has ended, or raised; then there is no output."""
        call = self._open.pop()
        if torch.is_grad_enabled() and not self.inside:
            for x in tree_leaves(output):
                if isinstance(x, Tensor) and x.requires_grad:
                    self.calls.add(call)
                    x.register_hook(lambda grad: self.schedule.enter_backward(self, call))
        if not self._open and not self.inside:
            self.free()
            self.schedule.leave_forward(self)

    def _end_call(self, call: Call) -> None:
        """The backward of a call has ended: free, unless another is at work; reduce, unless others are to come."""
        call.inside = False
        self.calls.discard(call)
        if not self.inside:
            self.free()
        if not self.calls:  # a parameter gets the sum over all calls at once
            self.schedule.reduce(self)

    def end_backward(self) -> None:
        """The backward of the whole is over."""
        for call in [call for call in self.calls if call.inside]:
            self.calls.discard(call)
        self.free()
        self.schedule.reduce(self)

    def abandon(self) -> None:
        """Something was raised: drop what a forward or backward left behind."""
        self.calls.clear()
        self._open.clear()
        self.dirty = False
        self.free()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the whole parameters' gradients, not those of the pieces."""
        for h in self.held:
            h.whole.grad = None

    def let_go(self) -> None:
        """The module is as it was before, without hooks, and with the values of now. Collective."""
        self.abandon()
        for hook in self._hooks:
            hook.remove()
        for flat in self.flats:
            flat.restore()


# ------------------------------------------------------------
# When what is sent: each block gathered just before use, the next ones ahead of time, gradients behind.
#
#     forward    compute          F1     │ F2     │ F3          backward  B3       │ B2          │ B1
#                lane     gather 1│2     │ 3      │                  3 │ 2          │ reduce 3, 1 │ reduce 2 …
#
# With prefetch = k the blocks that come next, k of them, are gathered on a lane of the Comm beside the computation, in the
# order of the forward before; in backward in the reverse order of this one. The gradients of a block are reduced on the
# same lane, and waited for only when those of the next block are complete. prefetch = 0 is the naive version: gather, use,
# free, reduce, one after the other, on the program's own channel.
#
# Cost a step of N bytes in P blocks: 3P(n−1)α + 3(n−1)/n·Nβ, of which k ≥ 1 hides what computing takes. Memory beside the
# shards: 1 + k whole blocks and the gradients of one, or of two where k ≥ 1. Every rank must call the same blocks in the
# same order. Where each of s shards has r replicas (hybrid sharding), an all-reduce over these follows the reduce-scatter
# of a block, on a lane of their group: 2(r−1)Pα + 2(r−1)/r·N/s·β more.


class Schedule:
    """When what is sent: the blocks' traffic over `comm`, and over `replicas`, the ranks with the same shard."""

    def __init__(self, comm: Comm, prefetch: int, replicas: Comm | None = None):
        self.comm = comm
        self.prefetch = prefetch
        self.copies = comm.size * (1 if replicas is None else replicas.size)  # of the gradients
        self.units: list[Unit] = []
        self.in_backward = True  # whether gradients are averaged there: not within no_sync
        self.weight: float | None = None
        self.active = False  # whether a backward has begun and not ended
        self.lane = Lane(comm, prefetch > 0)
        self._across = None if replicas is None else Lane(replicas, prefetch > 0)
        self._entered: list[Unit] = []  # in this forward, or the one before
        self._forwards_ended: list[Unit] = []
        self._next: list[Unit] = []  # what is expected to be used, in this order
        self._reducing: list[tuple[Flat, Tensor, list[int], Work]] = []
        self._total: Tensor  # the sum of all ranks' weights, once `_summed` is done
        self._summed: Work

    def begin_forward(self) -> None:
        """A forward of the whole begins, perhaps again, within a backward."""
        if self.active and torch._C._current_graph_task_id() == -1:
            self.abandon()  # the backward before raised
        if not self.active:
            self._next, self._entered = self._entered, []
            self._forwards_ended = []

    def enter_forward(self, unit: Unit) -> None:
        """A forward of `unit` begins."""
        if not self.active:
            self._entered.append(unit)
        self._use(unit, not self.active)

    def _use(self, unit: Unit, first: bool) -> None:
        """Make `unit` whole; the first time, begin to gather what comes after it."""
        unit.start()
        if first and unit in self._next:
            self._next = self._next[self._next.index(unit) + 1 :]
            for later in self._next[: self.prefetch]:
                later.start()
        unit.need()

    def leave_forward(self, unit: Unit) -> None:
        """The forward of `unit` has ended."""
        if not self.active:
            self._forwards_ended.append(unit)

    def end_forward(self) -> None:
        """The forward of the whole model has ended: free what was gathered ahead and not used."""
        if not self.active:
            for unit in self.units:
                unit.free()

    def enter_backward(self, unit: Unit, call: Call) -> None:
        """The gradient of an output of `unit` is there."""
        if not self.active:
            self._begin_backward()
        first = not call.inside
        call.inside = unit.dirty = True
        unit.calls.add(call)
        self._use(unit, first)

    def _begin_backward(self) -> None:
        """Ask autograd for a call when this backward ends."""
        self.active = True
        self._next = self._forwards_ended[::-1]
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        check_weight(self.comm, self.weight)
        if self.in_backward and self.weight is not None:
            self._total = torch.tensor(
                float(self.weight), dtype=torch.float64, device=self.comm.device
            )
            self._summed = self._sum(all_reduce_, self._total, self._total)

    def _sum(self, job: Callable, x: Tensor | list[Tensor], own: Tensor) -> Work:
        """Begin to sum `x` within `comm`, then what has become of `own` over the replicas."""
        work = self.lane.run(job, x)
        if self._across is not None:
            work = self._across.run(all_reduce_, own, after=work)
        return work

    def reduce(self, unit: Unit) -> None:
        """Begin to average the gradients of `unit`, which is free again, if any have come."""
        if not unit.dirty or not self.in_backward:
            return
        unit.dirty = False
        self._deposit()  # one block's gradients are on the way, no more
        for flat in unit.flats:
            if flat.trains:
                self._send(flat)
        if not self.prefetch:
            self._deposit()

    def _send(self, flat: Flat) -> None:
        for h in flat.held:
            check_dense(h.whole.grad, h.name)
        leaving = Leaving(flat, [h.whole for h in flat.held])
        # with weights 0 or 1 now, and the share itself once their sum is there
        factor = 1 / self.copies if self.weight is None else float(self.weight > 0)
        buffer = leaving.pack(0, flat.total, factor)
        if self.weight:
            self._summed.wait()
            buffer.mul_(self.weight / self._total)
        chunks = list(buffer.split(flat.sizes))
        own = chunks[self.comm.rank]
        self._reducing.append((flat, own, leaving.missing, self._sum(reduce_scatter_, chunks, own)))

    def _deposit(self) -> None:
        """Wait for the gradients on the way."""
        while self._reducing:
            flat, own, missing, work = self._reducing.pop(0)
            work.wait()
            flat.deposit(own, missing)

    def _end_backward(self) -> None:
        for unit in reversed(self.units):
            unit.end_backward()
        self._deposit()
        self.active = False

    def abandon(self) -> None:
        """Something was raised: leave nothing gathered, and nothing on the way."""
        self.active = False
        self._entered = []
        self._forwards_ended = []
        self._reducing = []
        for unit in self.units:
            unit.abandon()
        for lane in (self.lane, self._across):
            if lane is not None:
                lane.last.wait()


class FullySharded(Averaging, nn.Module):
    """`module` with its parameters sharded over `comm`. Trains as one rank with the whole batch would.

        model = FullySharded(module, comm, blocks=nn.TransformerEncoderLayer)
        optimizer = torch.optim.AdamW(model.parameters())      # this rank's pieces: any elementwise optimizer
        loss(model(x), y).backward()                           # x: this rank's part of the batch
        optimizer.step()                                       # on 1/n of the elements, nothing to gather

    compute_dtype: the dtype of gathered parameters, of the blocks' inputs, and of gradients on their way. The shards
    and their gradients, and therefore the optimizer's states, keep the dtype that the module came with (fp32 masters
    under fp16). None: the module's own dtype throughout.
    prefetch: how many blocks to gather ahead; 0: nothing overlaps.  offload: shards and their gradients, and therefore
    the optimizer's states, lie in the host's memory, and the step runs there (`with comm.host: optimizer.step()` tells
    a World so).
    blocks: the modules that are gathered on their own, by type or predicate. The rest of the module is one more block.
    replicas: for hybrid sharding, the ranks, including this one, that hold the same shard in other groups like `comm`.
    Parameters are gathered within `comm`, and gradients are averaged over both, such as two axes of a mesh. With
    `root`, a full state dict is loaded from that rank of the first of the replicas.
    weight: where ranks have different numbers of samples, set it on all ranks before `backward()` to the number behind
    this rank's gradients (as in DataParallel).
    no_sync: within it, whole gradients accumulate on each rank in the compute dtype, which saves a reduce-scatter each
    time and costs the memory of all gradients. Without it, gradients accumulate in the shards, which is equally
    correct.

        ranks 0 … 3 as 2 × 2     comm: 0 1 │ 2 3, gather and reduce-scatter     replicas: 0 2 │ 1 3, all-reduce of a shard

    Each parameter of the module is replaced by its piece, the (k,) elements of it that this rank owns, of which there
    may be none: shards are cut as evenly as possible, without padding and without regard to where parameters begin.
    Optimizers must therefore act element by element, or sum over the ranks what they measure of a layer, as LARS and
    LAMB in `train.optim` do. All ranks start with rank 0's parameters and buffers, and must call the same blocks in the
    same order. If a parameter has no gradient on any rank, its gradient stays None. Weights can be read only in the
    forward of the block that holds them; elsewhere they are pieces.
    A new FullySharded over the same parameters and ranks replaces the old one and starts from its values: make a new
    optimizer as well, because the pieces are different. It goes together with SyncBatchNorm (convert first) and with an
    OffloadedOptimizer of its parameters; DataParallel and ShardedOptimizer are refused (parallel/reducer.py).
    Raises ValueError for a parameter that is on another device than the Comm, a FullySharded inside the module,
    prefetch < 0, and for replicas that do not hold the same shard.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import FullySharded
    >>> def program(comm, x):
    ...     model = FullySharded(mlp([4, 8, 2]), comm)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     model(x.chunk(comm.size)[comm.rank]).square().mean().backward()
    ...     optimizer.step()
    ...     return sum(p.numel() for p in model.parameters()), model.full_state_dict()
    >>> (held, state), _ = World(2).run(program, torch.ones(4, 4))
    >>> held, sum(x.numel() for x in state.values())  # a rank holds half of the numbers
    (29, 58)
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        compute_dtype: torch.dtype | None = None,
        prefetch: int = 1,
        offload: bool = False,
        blocks: Blocks = None,
        replicas: Comm | None = None,
    ):
        super().__init__()
        instance(comm, Comm, "FullySharded(module, comm) shards over the ranks of a Comm")
        floating(compute_dtype, "blocks compute in a dtype of real numbers of 16 bits or more")
        whole(prefetch, "at least 0 blocks are gathered ahead", 0)
        if isinstance(module, FullySharded) and same_group(module.comm, comm):
            module = module.module  # `model = FullySharded(model, comm)`, run again
        self.module: nn.Module = module
        self.comm: Comm = comm
        self.replicas = replicas
        self._check()
        self._claim = Claim(self, "FullySharded", comm, self._let_go)
        self._claim.take(module.parameters())
        broadcast_to_all_(comm, replicas, list(module.buffers()))
        home = comm.host if offload else Host(comm.device)
        # `Averaging` asks it for the weight and whether to average, as it would ask a Reducer
        self._reducer = Schedule(comm, prefetch, replicas)
        for name, held in assign(module, blocks).items():
            flats = [Flat(alike, comm, compute_dtype, home, replicas) for alike in by_dtype(held)]
            block = module.get_submodule(name)
            self.units.append(Unit(name, block, flats, self._reducer, compute_dtype))
        self._claim.leave()
        self._claim.take(h.piece for h in self.held)
        self.register_load_state_dict_pre_hook(_wrap_names)

    def _check(self) -> None:
        for name, m in self.module.named_modules():
            if isinstance(m, FullySharded):
                raise ValueError(
                    f"{name} is a FullySharded inside the module that is to be one: leave it out, and let "
                    "blocks=… say that it is a block"
                )
        check_devices(self.comm, self.module.named_parameters())
        check_replicas(self.comm, self.replicas)

    def _let_go(self) -> None:
        """The module is as it was before, with the values of now. Collective."""
        for unit in self.units:
            unit.let_go()

    @property
    def units(self) -> list[Unit]:
        """The blocks, outer ones first."""
        return self._reducer.units

    @property
    def held(self) -> list[Held]:
        """All parameters."""
        return [h for unit in self.units for h in unit.held]

    @property
    def whole_shapes(self) -> dict[Tensor, torch.Size]:
        """The shape of each whole parameter, by this rank's piece of it."""
        return {h.piece: h.whole.shape for h in self.held}

    def forward(self, *args, **kwargs):
        """`module`'s own forward, with its arguments; parameters are gathered block by block. All ranks call it."""
        self._claim.check()
        schedule = self._reducer
        schedule.begin_forward()
        try:
            output = self.module(*args, **kwargs)
            schedule.end_forward()
        except BaseException:
            # else it is a recomputation, which may end itself by an exception
            if not schedule.active:
                schedule.abandon()
            raise
        return output

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in nn.Module; gradients that `no_sync` has accumulated are dropped, too."""
        super().zero_grad(set_to_none)
        for unit in self.units:
            unit.drop_gradients()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks' pieces, is at most `max_norm`. Collective.

        Returns the norm before scaling, a 0-d tensor, the same on every rank. norm_type: 2.0, another power, or inf.
        """
        self._claim.check()
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        return clip_(self.comm, grads, max_norm, norm_type)

    def state_dict(self, *args, **kwargs):
        """This rank's pieces, under the names that the unsharded module uses. Not collective."""
        return self.module.state_dict(*args, **kwargs)

    # The state dict of the unsharded module is free of n. Blocks are gathered one at a time, in the dtype of the shards, so
    # the peak is the result and one block. Tied parameters stand under each of their names, as in the module's own.

    @torch.no_grad()
    def full_state_dict(self, root: int | None = None) -> dict[str, Tensor]:
        """The state dict of the unsharded module, in the CPU's memory, in the shards' dtype. Collective.

        root: only this rank gets it, and the others get an empty one. It is gathered one block at a time.
        """
        self._claim.check()
        wholes = {}
        for flat in self._flats():
            for h, value in zip(flat.held, flat.gathered(root), strict=False):
                wholes[h.piece] = value.clone() if value.is_meta else value.to("cpu", copy=True)
        if root not in (None, self.comm.rank):
            return {}
        state = self.module.state_dict(keep_vars=True)
        return {name: wholes[x] if x in wholes else x.clone() for name, x in state.items()}

    @torch.no_grad()
    def load_full_state_dict(
        self, state: dict[str, Tensor] | None, root: int | None = None
    ) -> None:
        """Load an unsharded module's state dict, given on every rank, or with `root` on that rank only.

        Raises ValueError for missing or unexpected names and for other shapes. With a root, it is collective.
        """
        self._claim.check()
        first = self.replicas is None or self.replicas.rank == 0
        reads = root is None or (self.comm.rank == root and first)
        own = self.module.state_dict(keep_vars=True)
        state = state or {}
        if reads:
            self._check_names(own, state)
        for flat in self._flats():
            flat.receive([state[h.name] for h in flat.held] if reads else None, root, self.replicas)
        buffers = {name: x for name, x in own.items() if not isinstance(x, nn.Parameter)}
        if reads:
            for name, x in buffers.items():
                x.copy_(state[name])
        if root is not None:
            broadcast_(self.comm, list(buffers.values()), root)
            if self.replicas is not None:
                broadcast_(self.replicas, list(buffers.values()))

    def _flats(self) -> list[Flat]:
        return [flat for unit in self.units for flat in unit.flats]

    def _check_names(self, own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        shapes = self.whole_shapes
        ours = {name: tuple(shapes.get(x, x.shape)) for name, x in own.items()}
        theirs = {name: tuple(x.shape) for name, x in state.items()}
        for name in sorted(ours.keys() | theirs.keys()):
            there, here = theirs.get(name, "nothing"), ours.get(name, "nothing")
            if there != here:
                raise ValueError(f"{name}: {there} was given, where the model has {here}")


def _wrap_names(model: nn.Module, state: dict, prefix: str, *others) -> None:
    """Before `model` loads `state`: put "module." into its names there, which do not say that the model is wrapped."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)
