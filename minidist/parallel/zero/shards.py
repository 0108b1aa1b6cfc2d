"""Where everything is: which rank owns a parameter, its place in a flat buffer, and its master."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from ...collectives import broadcast_
from ...comm.base import Comm
from .layout import FlatParameters, best_fit
from .masters import Masters


class Shards:
    """The parameters that were placed, the same on all ranks.

    owner: {parameter: rank}, in the order in which they were placed.  masters: of this rank's.
    """

    def __init__(self, comm: Comm, master_dtype: torch.dtype | None, algorithm: str | None):
        self.comm, self.algorithm = comm, algorithm
        self.owner: dict[Tensor, int] = {}
        self.masters = Masters(master_dtype)
        self._loads = [0] * comm.size  # bytes owned by each rank
        self._flats: list[FlatParameters] = []

    def check_device(self, names: dict[Tensor, str]) -> None:
        """ValueError for a parameter on another device than the Comm's."""
        for p, name in names.items():
            if p.device.type != self.comm.device.type:
                raise ValueError(
                    f"{name} is on {p.device}, this Comm passes tensors on {self.comm.device}: "
                    "move the model first"
                )

    def start(self, names: dict[Tensor, str], first: Collection[Tensor] = ()) -> None:
        """Rank 0's values for all of these parameters; a place for those that require a gradient, `first` first."""
        frozen = [p for p in names if not p.requires_grad]
        broadcast_(self.comm, frozen)
        for chosen in (True, False):
            self.place([p for p in names if p.requires_grad and (p in first) is chosen])

    @torch.no_grad()
    def place(self, params: list[Tensor]) -> None:
        """Give these an owner, and a place in a flat buffer for each dtype."""
        owners = best_fit([p.nbytes for p in params], self._loads)
        for p, owner in zip(params, owners, strict=True):
            self.owner[p] = owner
            self._loads[owner] += p.nbytes
        for dtype in dict.fromkeys(p.dtype for p in params):
            some = [p for p in params if p.dtype == dtype]
            flat = FlatParameters(some, [self.owner[p] for p in some], self.comm, self.algorithm)
            self._flats.append(flat)
            self.masters.add(flat)

    def mine(self, params: Iterable[Tensor]) -> list[Tensor]:
        """Those of `params` that this rank owns."""
        return [p for p in params if self.owner.get(p) == self.comm.rank]

    def gather(self) -> None:
        """The owners' parameters on all ranks."""
        for flat in self._flats:
            flat.gather()

    def check(self, names: dict[Tensor, str]) -> None:
        """ValueError for a parameter whose data are no longer in its flat buffer."""
        for flat in self._flats:
            for p in flat.moved():
                raise ValueError(
                    f"the data of {names[p]} were replaced since the start: move or convert the model "
                    "before its optimizer is made, and change values in place"
                )
