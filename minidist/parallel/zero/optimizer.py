"""ZeRO, stages 1 and 2: data parallelism in which each rank keeps the optimizer states of its part alone.

n replicas take the same step n times. Here each rank takes it for the parameters that it owns, and hands them out:

    stage 1   backward: whole gradients │ step(): gradients to their owners, step of what is mine, all-gather
    stage 2   backward: each gradient to its owner, and freed elsewhere │ step(): step of what is mine, all-gather

An all-reduce is a reduce-scatter and an all-gather, so both send what data parallelism does: 2(n−1)/n·Ψ numbers in a
step. Bytes a rank with fp16 parameters, fp32 masters and Adam: 4Ψ + 12Ψ/n and 2Ψ + 14Ψ/n instead of 16Ψ. Source:
Rajbhandari et al. 2020, "ZeRO", sections 5 and 7. Invariant: after step() all ranks hold the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from ...comm.base import Comm
from ...train.norm import clip_
from ..claims import Claim
from ..reducer import Backwards, Reducer
from . import state
from .averages import Averages
from .bucket import OwnedBucket
from .shards import Shards

EVERYTHING = 1 << 62  # bytes of a bucket that takes all


class ShardedOptimizer(Backwards, torch.optim.Optimizer):
    """`optimizer_class` over the ranks of `comm`, each of which steps the parameters that it owns.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, stage=2, lr=1e-3)
        loss(model(x), y).backward()            # x: this rank's part of the batch; no DataParallel around the model
        optimizer.step()                        # averages the gradients itself

    params, **kwargs: as of `optimizer_class`, with groups and names. Its step must look at one parameter at a time, as
    nearly all do; L-BFGS is refused.  stage: 1 or 2.  master_dtype: where a parameter has another dtype, its owner
    keeps a copy in this one, and steps that.  bucket_bytes, first_bucket_bytes, overlap: of stage 2, as in
    `DataParallel`.  algorithm: of the reduce-scatters and all-gathers.  weight: as in `DataParallel`, set before
    the backward; None: all ranks alike.  tied: parameters that other stages of a pipeline hold, too. They are owned by
    the same rank of each stage's group, where these are given in the same order.

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
        self.comm = comm
        self.stage = stage
        self.weight = None
        self._inner = None
        self._shards, self._averaged = Shards(comm, master_dtype, algorithm), Averages()
        # the gradients are averaged; and in the dtype of the step
        self._at_owners = self._converted = False
        sizes = (bucket_bytes, first_bucket_bytes) if stage == 2 else (EVERYTHING, EVERYTHING)
        self._follow(
            Reducer(comm, *sizes, overlap and stage == 2, algorithm, self._bucket, in_flight=1),
            stage == 2,
        )
        self._claim = Claim(self, "ShardedOptimizer", comm, self._let_go)
        super().__init__(params, {})
        self._shards.check_device(self.names())
        self._claim.take(self.names())
        self._shards.start(self.names(), frozenset(tied))
        self._claim.take_masters(self._shards.masters.of.values())
        self._claim.making = True
        self._inner = optimizer_class([self._mine(group) for group in self.param_groups], **kwargs)
        if master_dtype is not None and "masters" in self._inner.state_dict():
            raise ValueError(
                f"masters of masters: the {type(self._inner).__name__} inside keeps its own, so give it "
                f"{master_dtype} as its master_dtype, and the ShardedOptimizer none"
            )
        self.defaults, self.state = self._inner.defaults, self._inner.state
        self._claim.making = False
        self._pull()
        self._watch(self._shards.owner)

    def _let_go(self) -> None:
        """A newer one takes over. An average lies at its owner alone: nobody else could use it."""
        self._unwatch()
        super().zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group more, on all ranks; also after steps."""
        super().add_param_group(param_group)
        if self._inner is None:
            return  # all groups are placed together
        group = self.param_groups[-1]
        self._claim.check()
        names = {p: name for p, name in self.names().items() if p in set(group["params"])}
        self._shards.check_device(names)
        self._claim.take(names)
        self._shards.start(names)
        self._inner.add_param_group(self._mine(group))
        self._watch(self._shards.owner)

    def names(self) -> dict[Tensor, str]:
        """The name of each parameter: as it was given, or its place in the groups."""
        return {
            p: (
                group["param_names"][i] if "param_names" in group else f"parameter {i} of group {g}"
            )
            for g, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
        }

    @property
    def owners(self) -> dict[str, int]:
        """Which rank owns each parameter, by name."""
        names = self.names()
        return {names[p]: owner for p, owner in self._shards.owner.items()}

    def _mine(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with what this rank steps of it."""
        mine = self._shards.mine(group["params"])
        return state.options(group) | {"params": [self._shards.masters.stepped(p) for p in mine]}

    def _bucket(self, params: list[Tensor]) -> OwnedBucket:
        return OwnedBucket(
            params, [self._shards.owner[p] for p in params], self.comm, self._averaged
        )

    def _begin(self) -> None:
        names = self.names()
        self._reducer.begin(
            {p: names[p] for p in self._shards.owner if p.requires_grad}, self.weight
        )

    def _before(self, p: Tensor, increment: Tensor) -> None:
        super()._before(p, increment)
        self._averaged.set_aside(p)
        self._at_owners = self._converted = False

    def average(self) -> None:
        super().average()
        self._at_owners, self._converted = True, False

    def gradients(self) -> list[Tensor]:
        """This rank's averaged gradients as `step()` will use them, of the masters where there are any.

        All ranks call it; it averages what is not averaged yet. Change them in place to clip or unscale them.
        """
        self._claim.check()
        self._place_unfrozen()
        if not self._at_owners:
            self.average()
        if not self._converted:
            self._shards.masters.take_gradients()
            self._converted = True
        return [
            p.grad
            for group in self._inner.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

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
        if counted is None:
            return clip_(comm or self.comm, grads, max_norm, norm_type)
        own = {self._shards.masters.stepped(p).grad for p in counted}
        return clip_(comm or self.comm, grads, max_norm, norm_type, [g for g in grads if g in own])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None):
        """Average what is not averaged, step what this rank owns, and give it to the others. Returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._claim.check()
        self._shards.check(self.names())
        self.gradients()
        self._push()
        self._inner.step()
        self._pull()
        self._shards.masters.drop_gradients()
        self._hand_out()
        self._at_owners = self._converted = False
        return loss

    def _hand_out(self) -> None:
        """The parameters as their owners have them, on all ranks."""
        self._shards.masters.write_back()
        self._shards.gather()

    @torch.no_grad()
    def finish(self) -> None:
        """What the optimizer inside holds back lands, on all ranks: a delayed OffloadedOptimizer's last update.

        All ranks call it after the last step, and before they look at the parameters. Others hold nothing back.
        """
        self._claim.check()
        if hasattr(self._inner, "finish"):
            self._inner.finish()
            self._hand_out()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or make those that are there zeros."""
        self._claim.check()
        super().zero_grad(set_to_none)
        self._averaged.forget()
        self._shards.masters.drop_gradients()
        self._at_owners = self._converted = False
        self._place_unfrozen()

    def _place_unfrozen(self, also: Iterable[Tensor] = ()) -> None:
        """Place parameters that were frozen until now, and those in `also`, on all ranks alike."""
        placed, wanted = self._shards.owner, set(also)
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            new = [
                p for p in group["params"] if p not in placed and (p.requires_grad or p in wanted)
            ]
            if new:
                self._shards.place(new)
                inner["params"] = self._mine(group)["params"]
        self._watch(placed)

    def _push(self) -> None:
        """What schedulers and users have changed in the groups."""
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update(state.options(group))

    def _pull(self) -> None:
        """What the optimizer itself keeps in its groups."""
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(state.options(inner))

    def state_dict(self, sharded: bool = False) -> dict[str, Any]:
        """What `optimizer_class` would give without ranks, on every rank; all call it.

        It loads there, and a state_dict from there loads here. With masters there is {"masters": {index: tensor}} more,
        and what else the optimizer inside adds, so that it can go on bit for bit (an OffloadedOptimizer's "offload").
        sharded: without messages, only what this rank owns, and {"shard": {"rank", "size"}} more.
        """
        mine = state.pack(self._index(), self._shards, self._inner)
        whole = (
            mine | {"shard": {"rank": self.comm.rank, "size": self.comm.size}}
            if sharded
            else state.gathered(self.comm, mine)
        )
        return {
            "state": whole.pop("state"),
            "param_groups": state.groups(self.param_groups),
        } | whole

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a whole state_dict, ours or the serial optimizer's, or this rank's sharded one; on all ranks.

        Masters that it does not have become the parameters as they are now: load those first, always.
        Raises ValueError for other groups, another number of ranks, or another rank's shard.
        """
        self._claim.check()
        state.check(state_dict, self.param_groups, self.comm)
        index = {i: p for p, i in self._index().items()}
        self._place_unfrozen(index[i] for i in state_dict["state"])
        state.load(state_dict, index, self._shards, self._inner)
        self.state = self._inner.state
        self._pull()

    def _index(self) -> dict[Tensor, int]:
        """The number of each parameter in a state_dict."""
        return {
            p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])
        }
