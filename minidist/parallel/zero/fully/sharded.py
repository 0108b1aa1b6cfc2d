"""ZeRO, stage 3: each rank keeps 1/n of everything, and a block's parameters are whole only while they are used.

    model = FullySharded(module, comm, blocks=nn.TransformerEncoderLayer)
    optimizer = torch.optim.AdamW(model.parameters())      # this rank's pieces: any elementwise optimizer
    loss(model(x), y).backward()                           # x: this rank's part of the batch
    optimizer.step()                                       # on 1/n of the elements, nothing to gather

Stage 1 shards the optimizer's states, stage 2 gradients too; here parameters are gathered block by block, in forward
and once more in backward, so a step sends half as much again as data parallelism: 3Ψ(n−1)/n elements a rank. Kept
between steps, with Adam, 16-bit compute and fp32 shards: 16Ψ/n bytes.

Hybrid sharding, over s·r ranks, keeps the gathers within s of them that are close, and the shards r times:

    ranks 0 … 3 as 2 × 2     comm: 0 1 │ 2 3, gather and reduce-scatter     replicas: 0 2 │ 1 3, all-reduce of a shard

A step of N bytes sends 3(s−1)/s·N within comm and 2(r−1)/r·N/s over replicas, a rank. Sources: Rajbhandari et al. 2020,
ZeRO, sections 5.3, 7.2; Zhao et al. 2023, "PyTorch FSDP", section 3.2.2 (hybrid).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ....collectives import all_gather, broadcast_
from ....comm.base import Comm, Host
from ....train.norm import clip_
from ...claims import Claim, crossing, members, same_group
from . import state
from .blocks import Chooser, assign, chooser, walk
from .flat import Flat, Held
from .schedule import Schedule
from .unit import Unit


class FullySharded(nn.Module):
    """`module` with its parameters sharded over `comm`. Trains as one rank with the whole batch would.

    compute_dtype: of gathered parameters, of what blocks are given, and of gradients on their way; the shards, their
    gradients and so the optimizer keep the dtype that the module came with (fp32 masters under fp16). None: that.
    prefetch: blocks gathered ahead (see schedule.py); 0: nothing overlaps.
    offload: shards, their gradients and so the optimizer's states lie in the memory of the host; the step runs there
    (`with comm.host: optimizer.step()` tells a World so).
    blocks: modules that are gathered on their own, by type or predicate; a FullySharded inside, over the same Comm, is
    one as well, and does as the one around it says. What is left is one more block.
    algorithm: of the collectives, None for the Comm's own.
    replicas: hybrid sharding: the ranks, this one among them, that hold the same shard in other groups like `comm`.
    Parameters are gathered within `comm`, gradients are averaged over both, such as two axes of a mesh. With `root`, a
    full state dict is loaded from that rank of the first of the replicas.
    weight: set it before `backward()`, on all ranks, to the number of samples behind this rank's gradients where
    ranks differ (as in DataParallel).

    Each parameter of the module is replaced by its piece, the (k,) elements that this rank owns, which may be none:
    shards are cut without regard to parameters, as even as can be, not padded. So optimizers must act element by
    element, or sum over the ranks what they measure of a layer, as LARS and LAMB in `train.optim` do. All ranks start
    with rank 0's parameters and buffers, and must call the same blocks in the same order; a parameter without a
    gradient anywhere keeps None. Weights are to be read in the forward of the block that holds them: elsewhere they
    are pieces.
    Made again over the same parameters and ranks, it replaces the older one, from whose values it starts: make the
    optimizer anew as well, as its pieces are others. It goes with SyncBatchNorm (convert first) and with an
    OffloadedOptimizer of its parameters; DataParallel and ShardedOptimizer are refused (parallel/claims.py).
    Raises ValueError for a parameter on another device than the Comm's, one tied across a FullySharded inside,
    another Comm inside, prefetch < 0, and for replicas that have more than this rank in common with `comm`, or hold
    another shard.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        compute_dtype: torch.dtype | None = None,
        prefetch: int = 1,
        offload: bool = False,
        blocks: Chooser = None,
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
        self._check_replicas()
        self._schedule = Schedule(comm, prefetch, algorithm, replicas)
        self._nested: list[FullySharded] = []
        modules = list(walk(module, "", FullySharded, self._nested))
        self._check([h for held in assign(modules, chooser(blocks)).values() for h in held])
        self._claim = Claim(self, "FullySharded", comm, self._let_go)
        self._claim.take(p for _, m in modules for p in m.parameters(False))
        found = assign(modules, chooser(blocks))  # whole again, if an older one had them
        for group in (comm, replicas):
            if group is not None:
                broadcast_(group, [b for _, m in modules for b in m.buffers(False)])
        home, by_name = comm.host if offload else Host(comm.device), dict(modules)
        self._units = []
        for name, held in found.items():
            flats = [Flat(some, comm, compute_dtype, home, replicas) for some in _by_dtype(held)]
            self._units.append(Unit(name, by_name[name], flats, self._schedule, compute_dtype))
        self._claim.leave()
        self._claim.take(h.piece for held in found.values() for h in held)
        self._adopt(self._schedule, True)
        self.register_load_state_dict_pre_hook(state.renamed)

    def _check(self, held: list[Held]) -> None:
        inside = {
            id(h.whole): h.name
            for nested in self._nested
            for unit in nested.units
            for h in unit.held
        }
        for h in held:
            if id(h.whole) in inside:
                raise ValueError(
                    f"{h.name} is tied to {inside[id(h.whole)]} of a FullySharded inside, which has "
                    "sharded it: with blocks=… the one around both takes it"
                )
            if h.whole.device.type != self.comm.device.type:
                raise ValueError(
                    f"{h.name} is on {h.whole.device}, this Comm passes tensors on {self.comm.device}: "
                    "move the module"
                )
        for nested in self._nested:
            if nested.comm is not self.comm:
                raise ValueError(
                    f"a FullySharded inside has another Comm, of {nested.comm.size} ranks, "
                    f"than the one around it, of {self.comm.size}"
                )
            if nested.replicas is not self.replicas:
                inner, outer = (
                    1 if m.replicas is None else m.replicas.size for m in (nested, self)
                )
                raise ValueError(
                    f"a FullySharded inside has other replicas, {inner} of each shard, than the one "
                    f"around it, with {outer}: give both the same Comm"
                )

    def _check_replicas(self) -> None:
        """That ranks which are to hold the same shard do."""
        comm, replicas = self.comm, self.replicas
        if replicas is None:
            return
        if (
            members(comm) is not None
            and members(replicas) is not None
            and not crossing(comm, replicas)
        ):
            raise ValueError(
                f"shards lie on the ranks {list(members(comm))}, and their replicas on "
                f"{list(members(replicas))}: the two groups have this rank in common, and no other, as "
                "two axes of a mesh do"
            )
        if comm.device.type != "meta":
            words = replicas.on_host()
            shards = all_gather(
                words, torch.tensor([[comm.rank, comm.size]], device=words.device)
            ).tolist()
            if any(shard != shards[0] for shard in shards):
                found = ", ".join(f"shard {rank} of {size}" for rank, size in shards)
                raise ValueError(
                    f"replicas hold the same shard, and these {replicas.size} ranks hold {found}"
                )

    def _let_go(self) -> None:
        """The module is as it was before, with the values of now. Collective."""
        for unit in self._units:
            unit.let_go()

    def _adopt(self, schedule: Schedule, root: bool) -> None:
        """One schedule for all blocks, the outermost's."""
        self._schedule, self._root = schedule, root
        for nested in self._nested:
            nested._adopt(schedule, False)
        for unit in self._units:
            unit.schedule = schedule
        schedule.units = self.units

    @property
    def whole_shapes(self) -> dict[nn.Parameter, torch.Size]:
        """The shape of each whole parameter, by this rank's piece of it."""
        return {held.piece: held.shape for unit in self.units for held in unit.held}

    @property
    def units(self) -> list[Unit]:
        """All blocks, also of those FullySharded that are inside."""
        return self._units + [unit for nested in self._nested for unit in nested.units]

    @property
    def weight(self) -> float | None:
        return self._schedule.weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        self._schedule.weight = weight

    def forward(self, *args, **kwargs):
        self._claim.check()
        schedule = self._schedule
        if not self._root:
            return self.module(*args, **kwargs)
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
            unit.forget()

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

    def full_state_dict(self, root: int | None = None) -> dict[str, Tensor]:
        """The state dict of the unsharded module, in the memory of the CPU, in the shards' dtype. Collective.

        root: only this rank gets it, the others an empty one. Gathered one block at a time.
        """
        self._claim.check()
        return state.full(self, root)

    def load_full_state_dict(
        self, found: dict[str, Tensor] | None, root: int | None = None
    ) -> None:
        """Take the values of an unsharded module's state dict: given on every rank, or (root=…) on that one alone.

        Raises ValueError for a name too many or too few, or another shape. Collective where there is a root.
        """
        self._claim.check()
        state.load(self, found, root)


def _by_dtype(held: list[Held]) -> list[list[Held]]:
    return [
        [h for h in held if h.whole.dtype == dtype]
        for dtype in dict.fromkeys(h.whole.dtype for h in held)
    ]
