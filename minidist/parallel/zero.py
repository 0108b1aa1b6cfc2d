"""ZeRO: what data parallelism keeps n times, kept once.

n replicas hold the same parameters, the same gradients and the same optimizer states, and take the same step n times. An
optimizer's step needs of a number its gradient and its states, and nothing of the others: so let each rank own 1/n of
all numbers, keep what belongs to these, step these, and hand them to the others.

    stage   owned by 1/n          backward                               step
    1       states                whole gradients stay                   gradients to their owners, step, all-gather
    2       + gradients           each gradient to its owner, then free  step, all-gather
    3       + parameters          the same, block by block               step; blocks are gathered when they are used

An all-reduce is a reduce-scatter and an all-gather, so stages 1 and 2 send what data parallelism does, 2Ψ(n−1)/n numbers
a rank in a step. Stage 3 gathers in forward, gathers again in backward, and reduces: 3Ψ(n−1)/n. With 16-bit parameters and
gradients, fp32 masters and Adam a rank keeps 4Ψ + 12Ψ/n, 2Ψ + 14Ψ/n, and 16Ψ/n bytes instead of 16Ψ.

    ShardedOptimizer    stages 1 and 2: a rank owns whole parameters, as an optimizer may look at the rows of one
    FullySharded        stage 3, and hybrid sharding: a rank owns a run of elements, cut evenly through parameters

Invariant: after a step all ranks would gather the same parameters, those of one rank with the whole batch.
Sources: Rajbhandari et al. 2020, "ZeRO", sections 5 and 7; Zhao et al. 2023, "PyTorch FSDP", sections 3.2, 3.3 and 4.3.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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

from ..arguments import whole
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
from .claims import Claim, same_group
from .reducer import Averages, Lane, Reducer, check_weight

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
    """
    ranks = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(ranks)
    owners = [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        load, owners[i] = ranks[0]
        heapq.heapreplace(ranks, (load + nbytes[i], owners[i]))
    return owners


class Layout:
    """Where tensors lie in a flat buffer, one after the other, each in the order of its own memory.

    sizes[r]: elements that rank r owns of the buffer.  first, end: those of this rank.
    """

    def __init__(self, tensors: Sequence[Tensor], sizes: list[int], rank: int):
        self.shapes = [x.shape for x in tensors]
        self.strides = [gradient_strides(x) for x in tensors]
        self.cuts = bounds([x.numel() for x in tensors])
        self.sizes = sizes
        self.total = sum(sizes)
        self.first, self.end = bounds(sizes)[rank]

    @classmethod
    def by_owner(cls, params: Sequence[Tensor], owner: dict[Tensor, int], comm: Comm):
        """The parameters in the order of their owners, and their layout."""
        sizes = [0] * comm.size
        for p in params:
            sizes[owner[p]] += p.numel()
        ordered = sorted(params, key=owner.__getitem__)
        return ordered, cls(ordered, sizes, comm.rank)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each tensor's place in a whole buffer, in the tensor's shape."""
        return [
            flat.as_strided(shape, strides, first)
            for shape, strides, (first, _) in zip(self.shapes, self.strides, self.cuts, strict=True)
        ]

    def parts(self, chunk: Tensor) -> list[Tensor]:
        """The elements of each tensor in this rank's chunk of a buffer: (k,), and k may be 0."""
        within = lambda i: min(max(i, self.first), self.end) - self.first
        return [chunk[within(first) : within(end)] for first, end in self.cuts]


def gradient_strides(p: Tensor) -> tuple[int, ...]:
    """The strides that autograd gives the gradient of `p`: dense, in the order of its memory."""
    return torch.empty_like(p, device="meta").stride()


# ------------------------------------------------------------
# Gradients on their way to their owners, at any stage: packed into a flat buffer, times this rank's share of the average,
# and summed there by a reduce-scatter. As each is packed, it is freed.
#
# A parameter may have no gradient here and one elsewhere: then it counts as zeros. Or none anywhere: then it keeps None,
# and optimizers skip it, as in serial training. To tell the two apart nothing more is sent: a missing gradient travels as
# −0.0, a zero of one that is there as 0.0, and by IEEE 754 a sum is −0.0 only if all its terms are. (They are mistaken only
# if a rank owns nothing of the gradient but what underflows from below, on every rank.)


@torch.no_grad()
def pack(
    layout: Layout, params: Sequence[Tensor], factor: float, names: Sequence[str]
) -> tuple[Tensor, list[int]]:
    """Move the gradients of `params`, times `factor`, into one flat buffer; and say which, by position, are missing.

    factor: 0 makes zeros of whatever the gradient is, also of nan. Raises ValueError for a sparse gradient.
    """
    buffer = torch.empty(layout.total, dtype=params[0].dtype, device=params[0].device)
    zero = buffer.new_zeros(())
    missing = []
    for i, (p, view) in enumerate(zip(params, layout.views(buffer), strict=True)):
        grad, p.grad = p.grad, None
        if grad is None:
            missing.append(i)
        elif grad.layout is not torch.strided:
            raise ValueError(
                f"the gradient of {names[i]} is {grad.layout}: a flat buffer takes dense ones "
                "(sparse=False)"
            )
        scale_into(view, grad, factor, zero)
        del grad
    return buffer, missing


def scale_into(part: Tensor, grad: Tensor | None, factor: float, zero: Tensor) -> None:
    """Write `factor` times the gradient into its part of a buffer; −0.0 where there is no gradient."""
    if grad is None:
        part.fill_(-0.0)
    elif factor == 0:
        part.zero_()
    else:  # 0.0 + factor·(−0.0) is 0.0
        torch.add(zero, grad.detach(), alpha=factor, out=part)


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
    memory; slice_bytes: of a slice.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        owner: dict[Tensor, int],
        comm: Comm,
        averages: Averages,
        slice_bytes: int,
    ):
        self.params, self.layout = Layout.by_owner(params, owner, comm)
        self.missing: set[Tensor] = set()  # of this backward
        self._own = {p for p in self.params if owner[p] == comm.rank}
        self._averages = averages
        self._slice = max(1, slice_bytes // self.params[0].element_size())
        self._factor = 1.0
        self._flat: list[
            Tensor | None
        ] = []  # the gradients in the order of their memory, until they have left
        self._absent: set[Tensor] = set()  # those without a gradient on this rank
        self._grads: dict[Tensor, Tensor] = {}  # of what this rank owns, to become averages

    def put(self, p: Tensor, factor: float) -> None:
        """The gradient of `p` is there, or will not come."""
        self._averages.set_aside(p)
        self._factor = factor
        self.missing.discard(p)

    @torch.no_grad()
    def seal(self) -> None:
        """All gradients are there. What this rank owns stays in its place."""
        self._absent = {p for p in self.params if p.grad is None}
        for p, strides in zip(self.params, self.layout.strides, strict=True):
            grad, p.grad = p.grad, None
            if grad is not None and grad.stride() != strides:  # flat, it would be in another order
                grad = torch.empty_strided(p.shape, strides, dtype=p.dtype, device=p.device).copy_(
                    grad
                )
            self._flat.append(None if grad is None else flat_view(grad.detach()))
            if p in self._own:
                self._grads[p] = torch.empty_like(p) if grad is None else grad.detach()

    @torch.no_grad()
    def reduce(self, comm: Comm, share: Work | None, algorithm: str | None) -> None:
        """Sum each gradient at its owner, times this rank's share where `put` did not know it; drop the others."""
        owned = bounds(self.layout.sizes)
        for at in range(0, max(self.layout.sizes), self._slice):
            cuts = [(min(a + at, b), min(a + at + self._slice, b)) for a, b in owned]
            chunks = [self._packed(first, end) for first, end in cuts]
            if share is not None:
                for chunk in chunks:
                    chunk.mul_(share.wait())
            reduce_scatter_(comm, chunks, algorithm=algorithm)
            first, end = cuts[comm.rank]
            for i, low, high in self._within(first, end):
                start = self.layout.cuts[i][0]
                average = flat_view(self._grads[self.params[i]])
                average[low - start : high - start] = chunks[comm.rank][low - first : high - first]
        self._flat = []

    def _within(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The parameters of which something lies between these places of the layout, and where it begins and ends."""
        for i, (low, high) in enumerate(self.layout.cuts):
            if max(low, first) < min(high, end):
                yield i, max(low, first), min(high, end)

    def _packed(self, first: int, end: int) -> Tensor:
        """What lies between these places of the layout, times the factor. What has left as a whole is freed."""
        chunk = self.params[0].new_empty(end - first)
        zero = chunk.new_zeros(())
        for i, low, high in self._within(first, end):
            part = chunk[low - first : high - first]
            start, stop = self.layout.cuts[i]
            flat = self._flat[i]
            grad = None if flat is None else flat[low - start : high - start]
            scale_into(part, grad, self._factor, zero)
            if high == stop:
                self._flat[i] = None
        return chunk

    def hand_out(self) -> None:
        """Give this rank the averages of what it owns."""
        for p, grad in self._grads.items():
            self._averages.give(p, None if p in self._absent and nowhere(grad) else grad)
        self._grads = {}


def flat_view(x: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of its memory."""
    return x.as_strided((x.numel(),), (1,))


class ShardedOptimizer(torch.optim.Optimizer):
    """`optimizer_class` over the ranks of `comm`, each of which steps the parameters that it owns.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, stage=2, lr=1e-3)
        loss(model(x), y).backward()            # x: this rank's part of the batch; no DataParallel around the model
        optimizer.step()                        # averages the gradients itself

    params, **kwargs: as of `optimizer_class`, with groups and names. Its step must look at one parameter at a time, as
    nearly all do; L-BFGS is refused.  stage: 1 or 2.  master_dtype: of a parameter with fewer bits its owner steps a
    copy in this dtype, by `train.amp.Masters`.  bucket_bytes, first_bucket_bytes: of the buckets in which gradients
    travel; at stage 1 bucket_bytes of all owners' slices.  overlap: of stage 2, as in `DataParallel`.  algorithm: of the reduce-scatters and all-gathers.
    weight: as in `DataParallel`, set before the backward; None: all ranks alike.  tied: parameters that other stages of
    a pipeline hold, too. They are owned by the same rank of each stage's group, where these are given in the same order.

    At the start all ranks get rank 0's parameters, which become views of a flat buffer: move the model to its device
    before. Change a learning rate in `param_groups`, on all ranks. Frozen parameters cost nothing; one that is unfrozen
    gets an owner at the next `zero_grad()` or `step()`. After the average a gradient is at its owner alone, elsewhere
    None; `gradients()` gives this rank's. A parameter without a gradient on any rank is not stepped.
    Accumulation: backwards before `step()` add up. At stage 1 that sends nothing; at stage 2 each is reduced, in the
    memory of one, or stays whole within `no_sync()`, for 2Ψ bytes in fp16. Every rank's backward must reach a
    parameter; at stage 2 a rank without work calls `average()`. A closure is called once, before the step.

    Made again over the same parameters and ranks (to resume, or at another stage), it replaces the older one, whose
    state_dict can still be taken; gradients are dropped. It goes with SyncBatchNorm, and with an OffloadedOptimizer
    inside; DataParallel, FullySharded and LocalSGD are refused (parallel/claims.py).
    Raises ValueError for another stage, a parameter on another device than the Comm's, or one replaced after the start.
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
        algorithm: str | None = None,
        tied: Collection[Tensor] = (),
        **kwargs,
    ):
        if stage not in (1, 2):
            raise ValueError(
                f"a sharded optimizer has the stages 1 and 2 of ZeRO, not {stage}: 3 is FullySharded"
            )
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.LBFGS):
            raise ValueError(
                "L-BFGS looks at all parameters at once: its step cannot be cut into those of n owners"
            )
        if master_dtype is not None:
            stepping = functools.partial(self._claimed, optimizer_class)
            optimizer_class = functools.partial(
                Masters, optimizer_class=stepping, dtype=master_dtype
            )
        self.comm = comm
        self.stage = stage
        self.algorithm = algorithm
        self._inner = None
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
            algorithm=algorithm,
            bucket=self._bucket,
            averages=Averages(),
            in_backward=stage == 2,
            in_flight=1,
        )
        self._claim = Claim(self, "ShardedOptimizer", comm, self._let_go)
        super().__init__(params, {})
        self._start(self.names(), frozenset(tied))
        self._claim.making = True
        self._inner = optimizer_class([self._own_group(g) for g in self.param_groups], **kwargs)
        self.defaults, self.state = self._inner.defaults, self._inner.state
        self._claim.making = False
        self._copy_options(self._inner.param_groups, self.param_groups)

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
        for p, name in names.items():
            if p.device.type != self.comm.device.type:
                raise ValueError(
                    f"{name} is on {p.device}, this Comm passes tensors on {self.comm.device}: "
                    "move the model first"
                )
        self._claim.take(names)
        broadcast_(self.comm, [p for p in names if not p.requires_grad])
        for chosen in (True, False):
            self._place([p for p in names if p.requires_grad and (p in first) is chosen])
        self._reducer.watch(self._owner)

    @torch.no_grad()
    def _place(self, params: list[Tensor]) -> None:
        """Give these an owner, and a place in a flat buffer for each dtype, with rank 0's values."""
        for p, owner in zip(params, best_fit([p.nbytes for p in params], self._loads), strict=True):
            self._owner[p] = owner
            self._loads[owner] += p.nbytes
        for alike in by_dtype(params):
            ordered, layout = Layout.by_owner(alike, self._owner, self.comm)
            flat = alike[0].new_empty(layout.total)
            for p, view in zip(ordered, layout.views(flat), strict=True):
                view.copy_(p.detach())
                p.data = view
                self._places[p] = view
            broadcast_(self.comm, flat)
            self._chunks.append(list(flat.split(layout.sizes)))

    def _own(self, params: Iterable[Tensor]) -> list[Tensor]:
        """Those of `params` that this rank owns."""
        return [p for p in params if self._owner.get(p) == self.comm.rank]

    def _own_group(self, group: dict[str, Any]) -> dict[str, Any]:
        return options(group) | {"params": self._own(group["params"])}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group more, on all ranks; also after steps."""
        super().add_param_group(param_group)
        if self._inner is None:
            return  # all groups are placed together
        group = self.param_groups[-1]
        self._claim.check()
        new = set(group["params"])
        self._start({p: name for p, name in self.names().items() if p in new})
        self._inner.add_param_group(self._own_group(group))

    def _place_thawed(self, also: Collection[Tensor] = ()) -> None:
        """Place parameters that were frozen until now, and those in `also`, on all ranks alike."""
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            frozen = [p for p in group["params"] if p not in self._owner]
            new = [p for p in frozen if p.requires_grad or p in also]
            if new:
                self._place(new)
                inner["params"] += self._own(new)
        self._reducer.watch(self._owner)

    def names(self) -> dict[Tensor, str]:
        """The name of each parameter: as it was given, or its place in the groups."""
        found = {}
        for g, group in enumerate(self.param_groups):
            numbered = [f"parameter {i} of group {g}" for i in range(len(group["params"]))]
            found |= zip(group["params"], group.get("param_names", numbered), strict=True)
        return found

    @property
    def owners(self) -> dict[str, int]:
        """Which rank owns each parameter, by name."""
        names = self.names()
        return {names[p]: owner for p, owner in self._owner.items()}

    def _named(self) -> dict[Tensor, str]:
        """The parameters that train now, and their names."""
        names = self.names()
        return {p: names[p] for p in self._owner if p.requires_grad}

    def _bucket(self, params: list[Tensor]) -> OwnedBucket:
        size = self._bucket_bytes
        if self.stage == 1:  # all gradients in one bucket, whose slices go to all owners at once
            size = max(size // self.comm.size, sum(p.nbytes for p in params) // 64)
        return OwnedBucket(params, self._owner, self.comm, self._reducer.averages, size)

    @property
    def weight(self) -> float | None:
        return self._reducer.weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        self._reducer.weight = weight

    def no_sync(self) -> AbstractContextManager:
        """A `backward()` in here only accumulates; the next one outside averages the total."""
        self._claim.check()
        return self._reducer.no_sync()

    def average(self) -> None:
        """What the end of a backward does at stage 2: give each owner the averages of its gradients."""
        self._claim.check()
        self._reducer.average()

    def gradients(self) -> list[Tensor]:
        """This rank's averaged gradients as `step()` will use them, with masters in their dtype.

        All ranks call it; it averages what is not averaged yet. Change them in place to clip or unscale them.
        """
        self._claim.check()
        self._place_thawed()
        if not self._reducer.averaged:
            self.average()
        if isinstance(self._inner, Masters):
            self._inner.gradients()
        stepped = self._stepped()
        for p in stepped:
            self._reducer.averages.note(p)
        return [p.grad for p in stepped]

    def _stepped(self) -> list[Tensor]:
        """The parameters that the inner optimizer steps, those with a gradient."""
        groups = self._inner.param_groups
        params = itertools.chain.from_iterable(group["params"] for group in groups)
        return [p for p in params if p.grad is not None]

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
            once = set(counted)
            counted = [p.grad for p in self._stepped() if p in once]
        return clip_(comm or self.comm, grads, max_norm, norm_type, counted)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs):
        """Average what is not averaged, step what this rank owns, and give it to the others. Returns the loss.

        kwargs: of the step of `optimizer_class`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._claim.check()
        self._check_places()
        self.gradients()
        self._copy_options(self.param_groups, self._inner.param_groups)
        self._inner.step(**kwargs)
        self._copy_options(self._inner.param_groups, self.param_groups)
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
            all_gather_(self.comm, chunks, algorithm=self.algorithm)

    @staticmethod
    def _copy_options(source: list[dict], to: list[dict]) -> None:
        """What schedulers and users have changed in the groups, or the optimizer itself."""
        for a, b in zip(source, to, strict=True):
            b.update(options(a))

    @torch.no_grad()
    def finish(self) -> None:
        """What the optimizer inside holds back lands, on all ranks: a delayed OffloadedOptimizer's last update.

        All ranks call it after the last step, and before they look at the parameters. Others hold nothing back.
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
        self._place_thawed()

    # State dicts: each rank has the states of what it owns; together they are the serial optimizer's. A whole one belongs
    # to no number of ranks: to change n, save it whole and load it.

    def state_dict(self, sharded: bool = False) -> dict[str, Any]:
        """What `optimizer_class` would give without ranks, on every rank; all call it.

        It loads there, and a state_dict from there loads here. What else the optimizer inside adds comes along, so that
        it can go on bit for bit: {"masters": {index: tensor}} with masters, an OffloadedOptimizer's "offload".
        sharded: without messages, only what this rank owns, and {"shard": {"rank", "size"}} more.
        """
        whole = self._own_state()
        if sharded:
            whole["shard"] = {"rank": self.comm.rank, "size": self.comm.size}
        else:
            everyone = gather_values(self.comm, whole)
            for key in whole:
                entries = itertools.chain.from_iterable(own[key].items() for own in everyone)
                whole[key] = dict(sorted(dict(entries).items()))  # by number, or by name
        index = itertools.count()
        whole["param_groups"] = [
            {**group, "params": [next(index) for _ in group["params"]]}
            for group in self.param_groups
        ]
        return whole

    def _own_state(self) -> dict[str, dict]:
        """The inner optimizer's state dict by the parameters' numbers among all, without its groups."""
        numbers, found = self._numbers(), {}
        for key, entries in self._inner.state_dict().items():
            if key == "param_groups":
                continue
            entries = by_number(entries)
            if not isinstance(entries, dict):
                raise ValueError(
                    f"{key!r} in the state_dict of {type(self._inner).__name__} is a "
                    f"{type(entries).__name__}: what is not by parameter or by name cannot be put "
                    "together from several ranks"
                )
            found[key] = {numbers[i] if isinstance(i, int) else i: x for i, x in entries.items()}
        return found

    def _numbers(self) -> list[int]:
        """The number among all parameters of each that the inner optimizer steps, in its order."""
        index = {p: i for i, p in enumerate(self._params())}
        return [index[p] for group in self._inner.param_groups for p in group["params"]]

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a whole state_dict, ours or the serial optimizer's, or this rank's sharded one; on all ranks.

        Masters that it does not have become the parameters as they are now: load those first, always.
        Raises ValueError for other groups, another number of ranks, or another rank's shard.
        """
        self._claim.check()
        self._check_groups(state_dict)
        params = self._params()
        self._place_thawed({params[i] for i in state_dict["state"]})
        numbers = self._numbers()
        lost = set(state_dict["state"]) - set(numbers)
        if "shard" in state_dict and lost:
            raise ValueError(
                f"this shard has the states of parameters {sorted(lost)}, of which rank {self.comm.rank} "
                f"owns none: it owns {sorted(numbers)}"
            )
        own = self._inner.state_dict()
        position = {number: k for k, number in enumerate(numbers)}
        loaded = {}
        for key in own.keys() & state_dict.keys() - {"param_groups"}:
            entries = {
                position.get(i, i): x
                for i, x in by_number(state_dict[key]).items()
                if not isinstance(i, int) or i in position
            }
            as_list = isinstance(own[key], list)
            loaded[key] = [entries[k] for k in range(len(numbers))] if as_list else entries
        loaded["param_groups"] = [
            options(saved) | {"params": group["params"]}
            for saved, group in zip(state_dict["param_groups"], own["param_groups"], strict=True)
        ]
        self._inner.load_state_dict(loaded)
        self.state = self._inner.state
        self._copy_options(self._inner.param_groups, self.param_groups)

    def _check_groups(self, state_dict: dict[str, Any]) -> None:
        """ValueError unless the state_dict has these groups, and is whole or this rank's shard."""
        theirs, ours = (
            [len(group["params"]) for group in groups]
            for groups in (state_dict["param_groups"], self.param_groups)
        )
        if theirs != ours:
            raise ValueError(
                f"the state_dict has groups of {theirs} parameters, the optimizer of {ours}"
            )
        here = {"rank": self.comm.rank, "size": self.comm.size}
        shard = state_dict.get("shard", here)
        if shard != here:
            raise ValueError(
                f"this is the shard of rank {shard['rank']} of {shard['size']}, loaded on rank "
                f"{self.comm.rank} of {self.comm.size}: save the whole state_dict to change ranks"
            )


def options(group: dict[str, Any]) -> dict[str, Any]:
    """A group without its parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def by_number(entries):
    """A list as {position: entry}; anything else as it is."""
    return dict(enumerate(entries)) if isinstance(entries, list) else entries


def by_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors of each dtype."""
    dtypes = dict.fromkeys(x.dtype for x in tensors)
    return [[x for x in tensors if x.dtype == dtype] for dtype in dtypes]


def gather_values(comm: Comm, value: Any) -> list[Any]:
    """Every rank's `value`, in rank order: dicts, lists and tuples of tensors, numbers and words. Collective.

    Tensors are broadcast as they are; all else travels as JSON, exactly (Python's floats are printed so that they read
    back the same). Raises ValueError for anything else.
    """
    leaves, form = tree_flatten(value)
    everyone = all_gather_json(comm, [treespec_dumps(form), [_note(x) for x in leaves]])
    found = []
    for rank, (form, notes) in enumerate(everyone):
        copies = [_room(note, comm) for note in notes]
        for i, copy in enumerate(copies):
            if isinstance(copy, Tensor):
                if rank == comm.rank:
                    copy.copy_(leaves[i])
                # beside meta tensors there are step counts on the CPU
                sent = copy if comm.device.type == "meta" else copy.to(comm.device)
                copy.copy_(broadcast_(comm, sent, rank))
        found.append(tree_unflatten(copies, treespec_loads(form)))
    return found


def _note(leaf: Any) -> Any:
    """A leaf as JSON: of a tensor what it looks like, in a list."""
    if isinstance(leaf, Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return [dtype, list(leaf.shape), list(leaf.stride()), leaf.device.type]
    if isinstance(leaf, int | float | bool | str | None):
        return leaf
    raise ValueError(
        f"a state holds tensors, numbers, words, lists and dicts, not {type(leaf).__name__}: {leaf!r}"
    )


def _room(note: Any, comm: Comm) -> Any:
    """A tensor that looks like the note, or the note itself."""
    if not isinstance(note, list):
        return note
    dtype, shape, strides, device = note
    place = comm.device if device == comm.device.type else device
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=place)


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
    """A parameter: `whole`, as the module came with it; `piece`, this rank's; and the sites in the module where it stands.

    sites: (module, attribute, full name); a tied parameter has several.
    """

    def __init__(self, name: str, whole: nn.Parameter):
        self.name = name
        self.whole = whole
        self.piece: nn.Parameter | None = None
        self.sites: list[tuple[nn.Module, str, str]] = []
        self.shape = whole.shape
        self.strides = gradient_strides(whole)

    def put(self, p: nn.Parameter) -> None:
        """Let the module hold `p`."""
        for module, attribute, _ in self.sites:
            module._parameters[attribute] = p


class Flat(Layout):
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
        self.nbytes = self.full.nbytes
        self.chunks = list(self.full.split(self.sizes))
        for h, part, view in zip(held, self.parts(self.shard), self.views(self.full), strict=True):
            h.piece = nn.Parameter(part, requires_grad=h.whole.requires_grad)
            h.whole.data = view  # keeps its own count of changes: a new gather is none to autograd
        self.release()

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
            self.shard.copy_(whole[self.first : self.end])
            return
        own = torch.empty(self.shard.shape, dtype=self.shard.dtype, device=self.comm.device)
        if replicas is None or replicas.rank == 0:
            scatter(self.comm, whole, root, sizes=self.sizes, out=own)
        if replicas is not None:
            broadcast_(replicas, own)
        self.shard.copy_(own)

    @property
    def trains(self) -> bool:
        """Whether any parameter requires a gradient now."""
        return any(h.piece.requires_grad for h in self.held)

    @torch.no_grad()
    def allocate(self) -> None:
        """Take memory for the whole, and fill in this rank's part: what comes next is the all-gather."""
        self.full.untyped_storage().resize_(self.nbytes)
        own = self.shard
        if self.home is self.comm.host:
            with self.home:
                own = own.to(self.full.dtype)
        self.chunks[self.comm.rank].copy_(own)

    def show(self) -> None:
        """The module holds whole parameters."""
        for h in self.held:
            if h.whole.requires_grad != h.piece.requires_grad:  # frozen or thawed since
                h.whole.requires_grad_(h.piece.requires_grad)
            h.put(h.whole)

    def release(self) -> None:
        """Free the whole; the module holds pieces."""
        for h in self.held:
            h.put(h.piece)
        self.full.untyped_storage().resize_(0)

    @torch.no_grad()
    def deposit(self, own: Tensor, missing: list[int]) -> None:
        """Add this rank's chunk of an average to the gradients of its pieces, in the dtype of the shard."""
        there = [
            h.piece.requires_grad and not (i in missing and nowhere(part))
            for i, (h, part) in enumerate(zip(self.held, self.parts(own), strict=True))
        ]
        if self.home is self.comm.host:
            with self.home:
                own = torch.empty_like(own, device=self.home.device).copy_(own)
        if any(new and h.piece.grad is None for h, new in zip(self.held, there, strict=True)):
            with self.home:
                own = torch.empty_like(self.shard).copy_(own)
        for h, new, part in zip(self.held, there, self.parts(own), strict=True):
            if new and h.piece.grad is None:
                h.piece.grad = part
            elif new:
                h.piece.grad.add_(part)

    @torch.no_grad()
    def gathered(self, root: int | None = None) -> list[Tensor]:
        """The whole parameters in the dtype of the shards, on every rank; or on rank `root` alone, none elsewhere."""
        own = torch.empty(self.shard.shape, dtype=self.shard.dtype, device=self.comm.device).copy_(
            self.shard
        )
        if root is None:
            return self.views(all_gather(self.comm, own, sizes=self.sizes))
        whole = gather(self.comm, own, root, sizes=self.sizes)
        return [] if whole is None else self.views(whole)

    def restore(self) -> None:
        """The module holds whole parameters for good, as they are now, in the dtype that it came with. Collective."""
        for h, value in zip(self.held, self.gathered(), strict=True):
            h.whole.data = value.clone()
            h.whole.requires_grad_(h.piece.requires_grad)
            h.put(h.whole)


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
    """{name of a block: the parameters that it holds}, outer blocks first, those that hold any."""
    kinds = () if blocks is None else blocks
    is_block = blocks
    if isinstance(kinds, type | tuple):
        is_block = lambda m: isinstance(m, kinds)
    modules = list(module.named_modules(remove_duplicate=False))
    found: dict[str, list[Held]] = {name: [] for name, m in modules if m is module or is_block(m)}
    held: dict[nn.Parameter, Held] = {}
    around: dict[nn.Parameter, list[str]] = {}  # the blocks around all uses of a parameter
    for name, m in modules:
        chain = [block for block in found if not block or f"{name}.".startswith(f"{block}.")]
        for attribute, p in m._parameters.items():
            if p is None:
                continue
            full = f"{name}.{attribute}" if name else attribute
            held.setdefault(p, Held(full, p)).sites.append((m, attribute, full))
            around[p] = [block for block in around.get(p, chain) if block in chain]
    for p, h in held.items():
        found[around[p][-1]].append(h)
    return {name: some for name, some in found.items() if some}


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
            self._works = [self.schedule.gather(flat.chunks) for flat in self.flats]

    def need(self) -> None:
        """Be whole, and the module with it."""
        self.start()
        self._wait()
        for flat in self.flats:
            flat.show()

    def free(self) -> None:
        """Keep the shards alone."""
        if self.whole:
            self._wait()
            for flat in self.flats:
                flat.release()
            self.whole = False

    def _wait(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

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
            inputs = Leave.apply(self._left, self._open[-1], *(leaves[i] for i in where))
            for i, x in zip(where, inputs, strict=True):
                leaves[i] = x
        if self.compute_dtype is not None:
            for i, x in enumerate(leaves):
                if isinstance(x, Tensor) and x.is_floating_point():
                    leaves[i] = x.to(self.compute_dtype)
        return tree_unflatten(leaves, form)

    def _after(self, module: nn.Module, args, kwargs, output) -> None:
        """Also after an exception, without an output."""
        call = self._open.pop()
        if torch.is_grad_enabled() and not self.inside:
            for x in tree_leaves(output):
                if isinstance(x, Tensor) and x.requires_grad:
                    self.calls.add(call)
                    x.register_hook(lambda grad: self.schedule.enter_backward(self, call))
        if not self._open and not self.inside:
            self.free()
            self.schedule.leave_forward(self)

    def _left(self, call: Call) -> None:
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
        """Drop those that are whole."""
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
    """The order of the blocks' traffic over `comm`, and over `replicas`, the ranks with the same shard."""

    def __init__(
        self, comm: Comm, prefetch: int, algorithm: str | None, replicas: Comm | None = None
    ):
        self.comm = comm
        self.prefetch = prefetch
        self.algorithm = algorithm
        self.units: list[Unit] = []
        self.averages = True  # not within no_sync
        self.weight: float | None = None
        self.active = False  # whether a backward has begun and not ended
        self._lane = Lane(comm, prefetch > 0)
        self._across = None if replicas is None else Lane(replicas, prefetch > 0)
        self._entered: list[Unit] = []  # in this forward, or the one before
        self._left: list[Unit] = []
        self._next: list[Unit] = []  # what is expected to be used, in this order
        self._reducing: list[tuple[Flat, Tensor, list[int], Work]] = []
        self._total: Tensor | None = None  # the sum of all ranks' weights, once `_summed` is done
        self._summed: Work | None = None

    def begin_forward(self) -> None:
        """A forward of the whole begins, perhaps again, within a backward."""
        if self.active and torch._C._current_graph_task_id() == -1:
            self.abandon()  # the backward before raised
        if not self.active:
            self._next, self._entered = self._entered, []
            self._left = []

    def enter_forward(self, unit: Unit) -> None:
        """A forward of `unit` begins."""
        unit.start()
        if not self.active:
            self._entered.append(unit)
            self._ahead(unit)
        unit.need()

    def _ahead(self, unit: Unit) -> None:
        """Begin to gather what comes after `unit`."""
        if unit in self._next:
            self._next = self._next[self._next.index(unit) + 1 :]
            for later in self._next[: self.prefetch]:
                later.start()

    def leave_forward(self, unit: Unit) -> None:
        """It has ended."""
        if not self.active:
            self._left.append(unit)

    def end_forward(self) -> None:
        """So has that of the whole: drop what was gathered ahead for nothing."""
        if not self.active:
            for unit in self.units:
                unit.free()

    def enter_backward(self, unit: Unit, call: Call) -> None:
        """The gradient of an output of `unit` is there."""
        if not self.active:
            self._begin_backward()
        if not call.inside:
            call.inside = True
            unit.dirty = True
            unit.calls.add(call)
            unit.start()
            self._ahead(unit)
        unit.need()

    def _begin_backward(self) -> None:
        """Ask autograd for a call when this backward ends."""
        self.active = True
        self._next = self._left[::-1]
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        check_weight(self.comm, self.weight)
        if self.averages and self.weight is not None:
            self._total = torch.tensor(
                float(self.weight), dtype=torch.float64, device=self.comm.device
            )
            self._summed = self._lane.run(all_reduce_, self._total)
            if self._across is not None:
                self._summed = self._across.run(all_reduce_, self._total, after=self._summed)

    def gather(self, chunks: list[Tensor]) -> Work:
        """Begin to fill in the other ranks' chunks."""
        return self._lane.run(all_gather_, chunks, self.algorithm)

    def reduce(self, unit: Unit) -> None:
        """Begin to average the gradients of `unit`, which is free again, if any have come."""
        if not unit.dirty or not self.averages:
            return
        unit.dirty = False
        self._deposit()  # one block's gradients are on the way, no more
        for flat in unit.flats:
            if flat.trains:
                self._send(flat)
        if not self.prefetch:
            self._deposit()

    def _send(self, flat: Flat) -> None:
        copies = 1 if self._across is None else self._across.comm.size
        share = 1 / (self.comm.size * copies) if self.weight is None else float(self.weight > 0)
        buffer, missing = pack(
            flat, [h.whole for h in flat.held], share, [h.name for h in flat.held]
        )
        if self.weight:
            self._summed.wait()
            buffer.mul_(self.weight / self._total)
        chunks = list(buffer.split(flat.sizes))
        own = chunks[self.comm.rank]
        work = self._lane.run(reduce_scatter_, chunks, "sum", self.algorithm)
        if self._across is not None:
            work = self._across.run(all_reduce_, own, "sum", self.algorithm, after=work)
        self._reducing.append((flat, own, missing, work))

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
        self._left = []
        self._reducing = []
        for unit in self.units:
            unit.abandon()
        for lane in (self._lane, self._across):
            if lane is not None:
                lane.last.wait()


class FullySharded(nn.Module):
    """`module` with its parameters sharded over `comm`. Trains as one rank with the whole batch would.

        model = FullySharded(module, comm, blocks=nn.TransformerEncoderLayer)
        optimizer = torch.optim.AdamW(model.parameters())      # this rank's pieces: any elementwise optimizer
        loss(model(x), y).backward()                           # x: this rank's part of the batch
        optimizer.step()                                       # on 1/n of the elements, nothing to gather

    compute_dtype: of gathered parameters, of what blocks are given, and of gradients on their way; the shards, their
    gradients and so the optimizer keep the dtype that the module came with (fp32 masters under fp16). None: that.
    prefetch: blocks gathered ahead; 0: nothing overlaps.  offload: shards, their gradients and so the optimizer's states
    lie in the memory of the host; the step runs there (`with comm.host: optimizer.step()` tells a World so).
    blocks: modules that are gathered on their own, by type or predicate. What is left is one more block.
    algorithm: of the collectives, None for the Comm's own.
    replicas: hybrid sharding: the ranks, this one among them, that hold the same shard in other groups like `comm`.
    Parameters are gathered within `comm`, gradients are averaged over both, such as two axes of a mesh. With `root`, a
    full state dict is loaded from that rank of the first of the replicas.
    weight: set it before `backward()`, on all ranks, to the number of samples behind this rank's gradients where
    ranks differ (as in DataParallel).

        ranks 0 … 3 as 2 × 2     comm: 0 1 │ 2 3, gather and reduce-scatter     replicas: 0 2 │ 1 3, all-reduce of a shard

    Each parameter of the module is replaced by its piece, the (k,) elements that this rank owns, which may be none:
    shards are cut without regard to parameters, as even as can be, not padded. So optimizers must act element by
    element, or sum over the ranks what they measure of a layer, as LARS and LAMB in `train.optim` do. All ranks start
    with rank 0's parameters and buffers, and must call the same blocks in the same order; a parameter without a
    gradient anywhere keeps None. Weights are to be read in the forward of the block that holds them: elsewhere they
    are pieces.
    Made again over the same parameters and ranks, it replaces the older one, from whose values it starts: make the
    optimizer anew as well, as its pieces are others. It goes with SyncBatchNorm (convert first) and with an
    OffloadedOptimizer of its parameters; DataParallel and ShardedOptimizer are refused (parallel/claims.py).
    Raises ValueError for a parameter on another device than the Comm's, a FullySharded inside, prefetch < 0, and for
    replicas that do not hold the same shard.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        compute_dtype: torch.dtype | None = None,
        prefetch: int = 1,
        offload: bool = False,
        blocks: Blocks = None,
        algorithm: str | None = None,
        replicas: Comm | None = None,
    ):
        super().__init__()
        if prefetch < 0:
            raise ValueError(f"{prefetch} blocks cannot be gathered ahead: at least 0")
        if isinstance(module, FullySharded) and same_group(module.comm, comm):
            module = module.module  # `model = FullySharded(model, comm)`, run again
        self.module = module
        self.comm = comm
        self.replicas = replicas
        self._check()
        self._claim = Claim(self, "FullySharded", comm, self._let_go)
        self._claim.take(module.parameters())
        for group in (comm, replicas):
            if group is not None:
                broadcast_(group, list(module.buffers()))
        home = comm.host if offload else Host(comm.device)
        self._schedule = Schedule(comm, prefetch, algorithm, replicas)
        for name, held in assign(module, blocks).items():
            dtypes = dict.fromkeys(h.whole.dtype for h in held)
            flats = [
                Flat(
                    [h for h in held if h.whole.dtype == dtype], comm, compute_dtype, home, replicas
                )
                for dtype in dtypes
            ]
            block = module.get_submodule(name)
            self.units.append(Unit(name, block, flats, self._schedule, compute_dtype))
        self._claim.leave()
        self._claim.take(h.piece for unit in self.units for h in unit.held)
        self.register_load_state_dict_pre_hook(_wrap_names)

    def _check(self) -> None:
        for name, m in self.module.named_modules():
            if isinstance(m, FullySharded):
                raise ValueError(
                    f"{name} is a FullySharded inside the module that is to be one: leave it out, and let "
                    "blocks=… say that it is a block"
                )
        for name, p in self.module.named_parameters():
            if p.device.type != self.comm.device.type:
                raise ValueError(
                    f"{name} is on {p.device}, this Comm passes tensors on {self.comm.device}: "
                    "move the module"
                )
        if self.replicas is not None:
            shards = all_gather_json(self.replicas, [self.comm.rank, self.comm.size])
            if any(shard != shards[0] for shard in shards):
                found = ", ".join(f"shard {rank} of {size}" for rank, size in shards)
                raise ValueError(
                    f"replicas hold the same shard, and these {len(shards)} ranks hold {found}: the two "
                    "groups have this rank in common and no other, as two axes of a mesh do"
                )

    def _let_go(self) -> None:
        """The module is as it was before, with the values of now. Collective."""
        for unit in self.units:
            unit.let_go()

    @property
    def units(self) -> list[Unit]:
        """The blocks, outer ones first."""
        return self._schedule.units

    @property
    def whole_shapes(self) -> dict[nn.Parameter, torch.Size]:
        """The shape of each whole parameter, by this rank's piece of it."""
        return {h.piece: h.shape for unit in self.units for h in unit.held}

    @property
    def weight(self) -> float | None:
        return self._schedule.weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        self._schedule.weight = weight

    def forward(self, *args, **kwargs):
        self._claim.check()
        schedule = self._schedule
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

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A `backward()` in here only accumulates, whole gradients on each rank; the next one outside reduces them.

        Costs the memory of all gradients, in the compute dtype, and saves a reduce-scatter each time. Without it
        gradients accumulate in the shards, which is as right.
        """
        self._claim.check()
        before, self._schedule.averages = self._schedule.averages, False
        try:
            yield
        finally:
            self._schedule.averages = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also what `no_sync` has accumulated."""
        super().zero_grad(set_to_none)
        for unit in self.units:
            unit.drop_gradients()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks' pieces, is at most `max_norm`. Collective.

        Returns the norm before, a 0-d tensor, the same on every rank. norm_type: 2.0, another power, or inf.
        """
        self._claim.check()
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        with torch.no_grad():
            return clip_(self.comm, grads, max_norm, norm_type)

    def state_dict(self, *args, **kwargs):
        """This rank's pieces, under the names that the module has without us. Not collective."""
        return self.module.state_dict(*args, **kwargs)

    # The state dict of the unsharded module is free of n. Blocks are gathered one at a time, in the dtype of the shards, so
    # the peak is the result and one block. Tied parameters stand under each of their names, as in the module's own.

    @torch.no_grad()
    def full_state_dict(self, root: int | None = None) -> dict[str, Tensor]:
        """The state dict of the unsharded module, in the memory of the CPU, in the shards' dtype. Collective.

        root: only this rank gets it, the others an empty one. Gathered one block at a time.
        """
        self._claim.check()
        found = {}
        for flat in self._flats():
            for h, value in zip(flat.held, flat.gathered(root), strict=False):
                copy = value.clone() if value.is_meta else value.to("cpu", copy=True)
                found |= {name: copy for *_, name in h.sites}
        if root in (None, self.comm.rank):
            found |= {name: x.detach().clone() for name, x in self._buffers_by_name().items()}
        return found

    @torch.no_grad()
    def load_full_state_dict(
        self, found: dict[str, Tensor] | None, root: int | None = None
    ) -> None:
        """Take the values of an unsharded module's state dict: given on every rank, or (root=…) on that one alone.

        Raises ValueError for a name too many or too few, or another shape. Collective where there is a root.
        """
        self._claim.check()
        first = self.replicas is None or self.replicas.rank == 0
        given = root is None or (self.comm.rank == root and first)
        buffers = self._buffers_by_name()
        if given:
            self._check_names(found)
        for flat in self._flats():
            flat.receive([found[h.name] for h in flat.held] if given else None, root, self.replicas)
        if given:
            for name, x in buffers.items():
                x.copy_(found[name])
        if root is not None:
            broadcast_(self.comm, list(buffers.values()), root)
            if self.replicas is not None:
                broadcast_(self.replicas, list(buffers.values()))

    def _flats(self) -> list[Flat]:
        return [flat for unit in self.units for flat in unit.flats]

    def _buffers_by_name(self) -> dict[str, Tensor]:
        """The buffers that a state dict holds."""
        saved = self.module.state_dict(keep_vars=True)
        return {name: x for name, x in saved.items() if not isinstance(x, nn.Parameter)}

    def _check_names(self, found: dict[str, Tensor]) -> None:
        shapes = {name: x.shape for name, x in self._buffers_by_name().items()}
        for flat in self._flats():
            for h in flat.held:
                shapes |= {name: h.shape for *_, name in h.sites}
        given = {name: x.shape for name, x in found.items()}
        for name in sorted(shapes.keys() | given.keys()):
            if given.get(name) != shapes.get(name):
                theirs, ours = (
                    "nothing" if shape is None else tuple(shape)
                    for shape in (given.get(name), shapes.get(name))
                )
                raise ValueError(f"{name}: {theirs} was given, where the model has {ours}")


def _wrap_names(model: nn.Module, found: dict, prefix: str, *others) -> None:
    """Before `model` loads from `found`: its names there do not say that it is wrapped."""
    for name in [name for name in found if name.startswith(prefix)]:
        found[f"{prefix}module.{name.removeprefix(prefix)}"] = found.pop(name)
