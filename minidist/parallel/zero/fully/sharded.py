"""ZeRO, stage 3: each rank keeps 1/n of everything, and a block's parameters are whole only while they are used.

    model = FullySharded(module, comm, blocks=nn.TransformerEncoderLayer)
    optimizer = torch.optim.AdamW(model.parameters())      # this rank's pieces: any elementwise optimizer
    loss(model(x), y).backward()                           # x: this rank's part of the batch
    optimizer.step()                                       # on 1/n of the elements, nothing to gather

Stage 1 shards the optimizer's states, stage 2 gradients too; here parameters are gathered block by block, in forward
and once more in backward, so a step sends half as much again as data parallelism: 3Ψ(n−1)/n elements a rank. Kept
between steps, with Adam, 16-bit compute and fp32 shards: 16Ψ/n bytes. Rajbhandari et al. 2020, ZeRO, sections 5.3, 7.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ....collectives import broadcast_
from ....comm.base import Comm, Host
from ..norm import clip_
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
    weight: set it before `backward()`, on all ranks, to the number of samples behind this rank's gradients where
    ranks differ (as in DataParallel).

    Each parameter of the module is replaced by its piece, the (k,) elements that this rank owns, which may be none:
    shards are cut without regard to parameters, as even as can be, not padded. So optimizers must act element by
    element, or sum over the ranks what they measure of a layer, as LARS and LAMB in `train.optim` do. All ranks start
    with rank 0's parameters and buffers, and must call the same blocks in the same order; a parameter without a
    gradient anywhere keeps None. Weights are to be read in the forward of the block that holds them: elsewhere they
    are pieces.
    Raises ValueError for a parameter on another device than the Comm's, one tied across a FullySharded inside,
    another Comm inside, prefetch < 0.
    """

    def __init__(self, module: nn.Module, comm: Comm, compute_dtype: torch.dtype | None = None, prefetch: int = 1,
                 offload: bool = False, blocks: Chooser = None, algorithm: str | None = None):  # fmt: skip
        super().__init__()
        if prefetch < 0:
            raise ValueError(f"{prefetch} blocks cannot be gathered ahead: at least 0")
        self.module, self.comm = module, comm
        self._schedule = Schedule(comm, prefetch, algorithm)
        self._nested: list[FullySharded] = []
        modules = list(walk(module, "", FullySharded, self._nested))
        found = assign(modules, chooser(blocks))
        self._check([h for held in found.values() for h in held])
        broadcast_(comm, [b for _, m in modules for b in m.buffers(False)])
        home, by_name = comm.host if offload else Host(comm.device), dict(modules)
        self._units = []
        for name, held in found.items():
            flats = [Flat(some, comm, compute_dtype, home) for some in _by_dtype(held)]
            self._units.append(Unit(name, by_name[name], flats, self._schedule, compute_dtype))
        self._adopt(self._schedule, True)
        self.register_load_state_dict_pre_hook(state.renamed)

    def _check(self, held: list[Held]) -> None:
        inside = {id(h.whole): h.name for nested in self._nested for unit in nested.units for h in unit.held}
        for h in held:
            if id(h.whole) in inside:
                raise ValueError(f"{h.name} is tied to {inside[id(h.whole)]} of a FullySharded inside, which has "
                                 "sharded it: with blocks=… the one around both takes it")  # fmt: skip
            if h.whole.device.type != self.comm.device.type:
                raise ValueError(f"{h.name} is on {h.whole.device}, this Comm passes tensors on {self.comm.device}: "
                                 "move the module")  # fmt: skip
        for nested in self._nested:
            if nested.comm is not self.comm:
                raise ValueError(f"a FullySharded inside has another Comm, of {nested.comm.size} ranks, "
                                 f"than the one around it, of {self.comm.size}")  # fmt: skip

    def _adopt(self, schedule: Schedule, root: bool) -> None:
        """One schedule for all blocks, the outermost's."""
        self._schedule, self._root = schedule, root
        for nested in self._nested:
            nested._adopt(schedule, False)
        for unit in self._units:
            unit.schedule = schedule
        schedule.units = self.units

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
        schedule = self._schedule
        if not self._root:
            return self.module(*args, **kwargs)
        schedule.begin_forward()
        try:
            output = self.module(*args, **kwargs)
            schedule.end_forward()
        except BaseException:
            if not schedule.active:  # else it is a recomputation, which may end itself by an exception
                schedule.abandon()
            raise
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A `backward()` in here only accumulates, whole gradients on each rank; the next one outside reduces them.

        Costs the memory of all gradients, in the compute dtype, and saves a reduce-scatter each time. Without it
        gradients accumulate in the shards, which is as right.
        """
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
        return state.full(self, root)

    def load_full_state_dict(self, found: dict[str, Tensor] | None, root: int | None = None) -> None:
        """Take the values of an unsharded module's state dict: given on every rank, or (root=…) on that one alone.

        Raises ValueError for a name too many or too few, or another shape. Collective where there is a root.
        """
        state.load(self, found, root)


def _by_dtype(held: list[Held]) -> list[list[Held]]:
    return [[h for h in held if h.whole.dtype == dtype] for dtype in dict.fromkeys(h.whole.dtype for h in held)]
