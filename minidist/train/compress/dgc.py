"""Deep gradient compression: a rank sends the 0.1 % largest of what it has gathered, and keeps the rest.

    U ← mU + g        momentum correction: what is gathered is velocity, as the optimizer would have made it
    V ← V + U         what was not sent comes later, with its momentum
    send V where |V| is among the k largest of its tensor; there V ← 0, and U ← 0      momentum factor masking

Without correction the optimizer's momentum sees only the rare arrivals of a weight, long after their time; without
masking the velocity of what was sent goes on pushing in a direction of long ago. Besides: g is clipped to n^(−1/2) of
the threshold for the sum, on each rank; the sparsity rises over the first epochs; small tensors are averaged exactly.
With Nesterov's momentum: U ← m(U + g), V ← V + U + g.

The sparse vectors are gathered, not reduced: (n−1)α + (n−1)·(w+2)k·β a rank, places included (see coding.py). Against
dense in fp32 that is 0.75n times 1 − sparsity: 1/667 at 99.9 % and n = 2, 1/167 at n = 8; at 75 % more from n = 6 on.
Source: Lin et al. 2018, "Deep Gradient Compression", section 3 and Algorithms 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...collectives import all_gather
from ...comm.base import Comm
from ..decide import decide
from .base import Lossy, flat
from .coding import pack, unpack
from .select import exact, sampled, wanted

WARM_UP = (0.75, 0.9375, 0.984375, 0.996)


class DGC(Lossy):
    """Top-k with momentum inside: the optimizer is plain SGD, `torch.optim.SGD(params, lr)`, without momentum.

        compression = DGC(momentum=0.9)
        model = DataParallel(module, comm, compression=compression)
        for epoch in range(epochs):
            compression.set_epoch(epoch)            # as with Sampler; else it stays at the first of `warm_up`

    sparsity: the share that is not sent, of each tensor of at least `small` numbers; the others are averaged exactly.
    momentum: 0 is no momentum correction: gradients are gathered, and the momentum left to the optimizer.
    nesterov: as in torch.optim.SGD.  masking: momentum factor masking.  warm_up: the sparsities of the first epochs, ()
    for none.  clip: the norm of the average above which gradients are scaled; each rank's, all parameters together, is
    held to clip/√n, for which all must be there: then nothing is sent while backward runs.  sample: the share of a
    tensor that gives a threshold (the paper: 0.1 % to 1 %); None: the k largest, exactly.

    U and V have the dtype of the gradient: train in fp32 (in 16 bits they would round away what they gather).
    A weight decay of the optimizer does not pass through the momentum: for the same effect divide it by 1 − momentum.
    Raises ValueError for a sparsity, a momentum or a sample outside 0 … 1, and for a clip that is not above 0.
    """

    progress = ("epoch",)

    def __init__(
        self,
        sparsity: float = 0.999,
        momentum: float = 0.9,
        nesterov: bool = False,
        masking: bool = True,
        clip: float | None = None,
        warm_up: Sequence[float] = WARM_UP,
        sample: float | None = None,
        small: int = 1024,
    ):
        for what, value in [
            *(("sparsity", s) for s in (sparsity, *warm_up)),
            ("momentum", momentum),
        ]:
            if not 0 <= value < 1:
                raise ValueError(f"a {what} is at least 0 and below 1, not {value}")
        if (clip is not None and not clip > 0) or (sample is not None and not 0 < sample <= 1):
            raise ValueError(
                f"a clip is above 0, not {clip}, and a sample above 0 and at most 1, not {sample}"
            )
        if nesterov and not momentum:
            raise ValueError(f"Nesterov's momentum needs one above 0, not {momentum}")
        super().__init__()
        self.final = sparsity
        self.warm_up = tuple(warm_up)
        self.small = small
        self.sample = sample
        self.momentum = momentum
        self.nesterov = nesterov
        self.masking = masking
        self.clip = clip
        self.first = None if clip is None else self._measure
        self.epoch, self._scale = 0, None

    def set_epoch(self, epoch: int) -> None:
        """Choose the sparsity of this epoch."""
        self.epoch = epoch

    @property
    def sparsity(self) -> float:
        """Of this epoch."""
        return self.warm_up[self.epoch] if self.epoch < len(self.warm_up) else self.final

    @torch.no_grad()
    def _measure(self, comm: Comm, buckets: list, share: Tensor | float | None) -> None:
        """How much this rank's gradients are to be scaled, by the norm of all of them."""
        norms = torch.stack(
            [torch.linalg.vector_norm(b.grads, dtype=torch.float64) for b in buckets]
        )
        norm = torch.linalg.vector_norm(norms) * (1 if share is None else share)
        self._scale = (self.clip / comm.size**0.5 / (norm + 1e-6)).clamp(max=1)

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        if self._scale is not None:
            bucket.grads.mul_(self._scale)
        super().average_(comm, bucket, algorithm)

    def is_small(self, name: str, g: Tensor) -> bool:
        return g.numel() < max(1, self.small)

    def exact_(self, averages: dict[str, Tensor]) -> None:
        for name, g in averages.items():
            g.copy_(self._moved(name, g))

    def _moved(self, name: str, g: Tensor) -> Tensor:
        """What a step with momentum adds for the gradient `g`."""
        if not self.momentum:
            return g
        u = self.kept(name, "u", g)
        if self.nesterov:
            return u.add_(g).mul_(self.momentum) + g
        return u.mul_(self.momentum).add_(g)

    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        values, places = [], []
        for name, view in views.items():
            g = flat(view)
            chosen, sent = self._choose(name, g)
            values.append(sent)
            places.append(chosen + (g.storage_offset() - grads.storage_offset()))
            g.zero_()
        places, order = torch.cat(places).sort()
        message = pack(torch.cat(values)[order], places, grads.numel())
        counts = (
            [places.numel()] * comm.size if self.sample is None else _counts(comm, places.numel())
        )
        sizes = [
            message.numel() + (count - places.numel()) * (grads.element_size() + 2)
            for count in counts
        ]
        for count, packed in zip(
            counts, all_gather(comm, message, sizes=sizes).split(sizes), strict=True
        ):
            theirs, where = unpack(packed, count, grads.numel(), grads.dtype)
            grads.index_add_(0, where, theirs)

    def _choose(self, name: str, g: Tensor) -> tuple[Tensor, Tensor]:
        """Which places of a tensor are sent, and what; it is no longer kept."""
        v = self.kept(name, "v", g)
        v.add_(self._moved(name, g))
        k, state = wanted(g.numel(), self.sparsity), self.of(name)
        state["steps"] = state.get("steps", 0) + 1
        chosen = (
            exact(v.abs(), k)
            if self.sample is None
            else sampled(v.abs(), k, self.sample, state["steps"])
        )
        sent = v[chosen]
        v[chosen] = 0
        if self.momentum and self.masking:
            state["u"][chosen] = 0
        return chosen, sent


def _counts(comm: Comm, count: int) -> list[int]:
    """How many entries each rank sends: 8 bytes from each to each."""
    everyone = all_gather(comm, torch.tensor([count], device=comm.device))
    return [decide(x, on_meta=count) for x in everyone]
