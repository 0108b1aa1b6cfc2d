"""A block's parameters as one flat buffer, of which each rank keeps a part.

Parameters of one dtype lie one after the other, each in the order of its own memory, without padding. Rank r owns
elements `bounds(uneven(N, n))[r]`: the first ranks have one more, a part may be empty, and one parameter may lie on
several ranks.

    flat      [ weight 1      | bias 1 | weight 2             | bias 2 ]     gathered: compute dtype, only while used
    rank      [ 0                | 1                | 2                ]     kept: the dtype that the module came with
    pieces    [ weight 1         ] [ bias 1 | w 2   ] [ w 2 | bias 2   ]     what rank 0, 1, 2 gives the optimizer

A piece is an nn.Parameter, a view of the shard; the module holds it between uses. To free is to resize the storage to
zero: whatever autograd has kept of the parameter sees it empty, and full again once gathered. Rajbhandari et al.
2020, ZeRO, section 5.3; Zhao et al. 2023, "PyTorch FSDP", section 3.2.1 (which pads).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ....collectives import all_gather, broadcast_, gather, scatter
from ....comm.base import Comm, Host
from ....split import bounds, uneven


@dataclass(eq=False)
class Held:
    """A parameter: `whole`, as the module came with it; `piece`, this rank's; and where in the module it stands."""

    name: str
    whole: nn.Parameter
    # (module, attribute, full name)
    sites: list[tuple[nn.Module, str, str]] = field(default_factory=list)
    piece: nn.Parameter | None = None

    def __post_init__(self):
        self.shape = self.whole.shape
        # dense, in the order of its memory
        self.strides = torch.empty_like(self.whole, device="meta").stride()


class Flat:
    """The parameters `held` (all of one dtype) in one buffer, with rank 0's values, in the first of the `replicas`.

    compute_dtype: of the gathered buffer and of gradients on their way; None: as the parameters are.
    home: where shards live, and so their gradients and the optimizer's states: `comm.host`, or a Host that is the
    Comm's device. What goes between the two travels in the compute dtype: the host converts.
    """

    def __init__(
        self,
        held: list[Held],
        comm: Comm,
        compute_dtype: torch.dtype | None,
        home: Host,
        replicas: Comm | None = None,
    ):
        self.held = held
        self.comm = comm
        self.home = home
        self.replicas = replicas
        dtype = held[0].whole.dtype
        self._cuts = bounds([h.shape.numel() for h in held])
        self.total = self._cuts[-1][1]
        self.sizes = uneven(self.total, comm.size)
        self.first, self.end = bounds(self.sizes)[comm.rank]
        with home:
            self.shard = torch.empty(self.end - self.first, dtype=dtype, device=home.device)
        self.shard.copy_(self._received(dtype))
        compute = compute_dtype if compute_dtype is not None and dtype.is_floating_point else dtype
        self.full = torch.empty(self.total, dtype=compute, device=comm.device)
        self.nbytes = self.full.nbytes
        self.chunks = list(self.full.split(self.sizes))
        for h, part, view in zip(held, self.parts(self.shard), self.views(self.full), strict=True):
            h.piece = nn.Parameter(part, requires_grad=h.whole.requires_grad)
            h.whole.data = view  # keeps its own count of changes: a new gather is none to autograd
        self.release()

    def _received(self, dtype: torch.dtype) -> Tensor:
        """This rank's part of rank 0's values."""
        whole = None
        if self.comm.rank == 0:
            whole = torch.empty(self.total, dtype=dtype, device=self.comm.device)
            self.fill_(whole, [h.whole.detach() for h in self.held])
        mine = torch.empty(self.end - self.first, dtype=dtype, device=self.comm.device)
        scatter(self.comm, whole, sizes=self.sizes, out=mine)
        if self.replicas is not None:
            broadcast_(self.replicas, mine)
        return mine

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a whole flat buffer, in the parameter's shape."""
        return [
            flat.as_strided(h.shape, h.strides, first)
            for h, (first, _) in zip(self.held, self._cuts, strict=True)
        ]

    def parts(self, shard: Tensor) -> list[Tensor]:
        """Each parameter's part of a shard: (elements that this rank owns,)."""
        found = []
        for a, b in self._cuts:
            low, high = max(a, self.first), min(b, self.end)
            found.append(shard[low - self.first : high - self.first] if low < high else shard[:0])
        return found

    @torch.no_grad()
    def fill_(self, flat: Tensor, values: list[Tensor]) -> None:
        """Copy the parameters' `values` into a whole flat buffer."""
        for view, value in zip(self.views(flat), values, strict=True):
            view.copy_(value)

    @property
    def trains(self) -> bool:
        """Whether any parameter requires a gradient now."""
        return any(h.piece.requires_grad for h in self.held)

    @torch.no_grad()
    def allocate(self) -> None:
        """Room for the whole, this rank's part filled in: what comes next is the all-gather."""
        self.full.untyped_storage().resize_(self.nbytes)
        self.chunks[self.comm.rank].copy_(self._narrow(self.shard))

    def _narrow(self, shard: Tensor) -> Tensor:
        """What goes up to the device: made at home, where that is elsewhere; else the copy itself converts."""
        if self.home is not self.comm.host:
            return shard
        with self.home:
            return shard.to(self.full.dtype)

    @torch.no_grad()
    def come_home(self, mine: Tensor) -> Tensor:
        """This rank's part of something whole, from the device: copied where home is elsewhere, else itself."""
        if self.home is not self.comm.host:
            return mine
        with self.home:
            there = torch.empty_like(mine, device=self.home.device)
        return there.copy_(mine)

    @torch.no_grad()
    def gathered(self, root: int | None = None) -> Tensor | None:
        """The whole, in the dtype of the shards, on every rank; or on rank `root` alone, None elsewhere. Collective."""
        mine = torch.empty(
            self.end - self.first, dtype=self.shard.dtype, device=self.comm.device
        ).copy_(self.shard)
        if root is None:
            return all_gather(self.comm, mine, sizes=self.sizes)
        return gather(self.comm, mine, root, sizes=self.sizes)

    @torch.no_grad()
    def restore(self) -> None:
        """The module holds whole parameters for good, as they are now, in the dtype that it came with. Collective."""
        for h, view in zip(self.held, self.views(self.gathered()), strict=True):
            h.whole.data = view.clone()
            h.whole.requires_grad_(h.piece.requires_grad)
            _put(h, h.whole)

    def show(self) -> None:
        """The module holds whole parameters."""
        for h in self.held:
            if h.whole.requires_grad != h.piece.requires_grad:  # frozen or thawed since
                h.whole.requires_grad_(h.piece.requires_grad)
            _put(h, h.whole)

    def release(self) -> None:
        """Free the whole; the module holds pieces."""
        for h in self.held:
            _put(h, h.piece)
        self.full.untyped_storage().resize_(0)


def _put(h: Held, p: nn.Parameter) -> None:
    for module, attribute, _ in h.sites:
        module._parameters[attribute] = p
