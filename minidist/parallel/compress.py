"""Averages of gradients that send less than the gradients: what `DataParallel(module, comm, compression=…)` takes.

    Dense()             everything, by an all-reduce: the same as no compression
    Half(dtype)         everything, in 16 bits                        exact but for the rounding
    Sign()              one bit a number and a scale                  error feedback
    PowerSGD(rank)      two thin matrices instead of each matrix      error feedback, warm start
    DGC(sparsity)       the largest 0.1 % of all numbers              momentum correction and factor masking, warm-up

`Compression` says what a compression is handed, and what it saves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..collectives import all_gather, all_reduce_
from ..comm.base import Comm, Work
from ..decide import decide

# ------------------------------------------------------------
# What stands between a bucket of gradients and its average: one small interface for all ways to send less.
#
# A `Compression` is handed a bucket in which each gradient is multiplied by this rank's share, 1/n or its weight, so that
# the average is the sum over the ranks; it leaves that sum, or what it makes of it, in the bucket, the same on every rank
# bit for bit. What it does not send it may keep, by the name of the parameter: so buckets may be laid out anew, and the
# state can be saved. Error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3) is this rule:
#
#     p = g + e      sent: c = C(p)      kept: e ← p − c      so that Σ_r (c_r + e_r) = Σ_r (g_r + e_r before)
#
# Nothing is lost, it only comes later; without it a gradient that is always too small is never heard.


State = dict[str, dict[str, Any]]


class Compression(ABC):
    """An object for each model and each rank. `average_` is its interface with a bucket, all else has a default.

    first: None, or `first(comm, buckets, share)`, called in every backward before the first bucket, with all of them;
    share: a Work, of what the gradients are still to be multiplied by, None for nothing.  progress: names of attributes, numbers,
    that are saved with the state.  On meta tensors every compression runs, and sends as many bytes.
    """

    first: Callable | None = None
    progress: tuple[str, ...] = ()

    def __init__(self):
        self._kept: State = {}  # by parameter; tensors and numbers

    @abstractmethod
    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        """Make the gradients of a bucket (parallel/data.py) their average. algorithm: of its all-reduces."""

    def of(self, name: str) -> dict[str, Any]:
        """What is kept of a parameter."""
        return self._kept.setdefault(name, {})

    def kept(self, name: str, what: str, x: Tensor) -> Tensor:
        """What is kept of a parameter in a tensor like `x`, at first zeros. ValueError if it is of another length."""
        state = self.of(name)
        if what not in state:
            state[what] = torch.zeros_like(x)
        if state[what].shape != x.shape:
            raise ValueError(
                f"{name} has {x.numel()} numbers, the loaded {what} {state[what].numel()}: "
                "this state is another model's"
            )
        return beside(x, state, what)

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps: {"kind", "progress": {…}, "parameters": {name: {what: tensor or number}}}.

        Ranks keep different things, so each saves its own. As with optimizers, the tensors are not copies.
        """
        return {
            "kind": type(self).__name__,
            "progress": {name: getattr(self, name) for name in self.progress},
            "parameters": self._kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where this rank's `state_dict` was called, bit for bit. ValueError for another kind of compression."""
        if state["kind"] != type(self).__name__:
            raise ValueError(
                f"this state was kept by {state['kind']}, {type(self).__name__} cannot go on from it"
            )
        self._kept = {
            name: {what: x.clone() if isinstance(x, Tensor) else x for what, x in of.items()}
            for name, of in state["parameters"].items()
        }
        for name in self.progress:
            setattr(self, name, state["progress"][name])


class Dense(Compression):
    """Everything, by an all-reduce: 2(n−1)/n·N bytes a rank. What `compression=None` does, with another bucket."""

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        all_reduce_(comm, bucket.buffer, algorithm=algorithm)


class Lossy(Compression):
    """What the three that hold something back have in common: small tensors are averaged exactly, with the flags."""

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        small = {name: flat(g) for name, g in bucket.views.items() if self.is_small(name, g)}
        all_reduce_(
            comm, [bucket.flags, *small.values()] if small else bucket.flags, algorithm=algorithm
        )
        there = bucket.there()
        self.begin(there)
        self.exact_({name: g for name, g in small.items() if name in there})
        rest = {name: g for name, g in bucket.views.items() if name in there and name not in small}
        if rest:
            self.compress_(comm, bucket.grads, rest, algorithm)

    def is_small(self, name: str, g: Tensor) -> bool:
        """Whether this gradient is sent as it is; the same on every rank."""
        return False

    def begin(self, names: set[str]) -> None:
        """A step of these parameters, of which some rank has a gradient, begins; which are small is decided."""

    def exact_(self, averages: dict[str, Tensor]) -> None:
        """What is still to be done with the averages, flat, of the small ones."""

    @abstractmethod
    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        """Make the gradients `views`, which lie in the flat `grads`, their average. Some rank has each of them."""


def beside(x: Tensor, state: dict[str, Any], what: str) -> Tensor:
    """`state[what]` on the device of `x`. What was loaded from a file is in the memory of the host, and moves once."""
    if state[what].device != x.device:
        state[what] = state[what].to(x.device)
    return state[what]


def flat(x: Tensor) -> Tensor:
    """The numbers of `x`, which fill one piece of memory, in the order of the memory: (N,), a view."""
    return x.as_strided((x.numel(),), (1,))


# ------------------------------------------------------------
# Half: gradients travel, and are added, in 16 bits.
#
# fp16 has 11 bits of precision and ends at 65,504; bf16 has 8 bits and the range of fp32. Each rank's part is multiplied
# by its share, 1/n, before it is rounded, so the sum does not overflow where the average would not. Rounding does not
# hold back anything: there is no error to feed back that would not be another rounding.
#
#     g/n in fp32 ── round ──▶ 16 bits ── all-reduce ──▶ 16 bits ──▶ fp32
#
# Cost: an all-reduce of half the bytes, 2(n−1)α + 2(n−1)/n·(N/2)β. Source: Micikevicius et al. 2018, section 3; the hooks
# `fp16_compress_hook` and `bf16_compress_hook` of PyTorch do the same.


class Half(Compression):
    """Averages in `dtype`, torch.float16 or torch.bfloat16. ValueError for another. Keeps nothing."""

    def __init__(self, dtype: torch.dtype = torch.float16):
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"16 bits are torch.float16 or torch.bfloat16, not {dtype}")
        super().__init__()
        self.dtype = dtype

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        half = bucket.buffer.to(self.dtype)
        all_reduce_(comm, half, algorithm=algorithm)
        bucket.buffer.copy_(half)


# ------------------------------------------------------------
# How a sparse vector travels: 4 bytes for a value, 2 for its place.
#
#     ends    for each block of 65,536 places: how many entries there are up to its end     8 bytes a block
#     values  K of them, in the order of their places                                       w bytes each
#     low     the last 16 bits of each place                                                2 bytes each
#
# Places in full would be 4 or 8 bytes each. The paper sends runs of zeros, 16 bits each, too, and has to break up longer
# ones; here the length depends on K alone, so ranks with equal K need not tell each other. (w + 2)K + 8·⌈N/65536⌉ bytes,
# in one tensor, so that it is one message. Lin et al. 2018, "Deep Gradient Compression", section 3.1 (encode).


BLOCK = 1 << 16


def pack_sparse(values: Tensor, places: Tensor, length: int) -> Tensor:
    """`values` (K,) and their `places` (K,) int64, in rising order, of a vector of `length` numbers: uint8."""
    parts = (_ends(places, length), values, places.to(torch.int16))
    return torch.cat([part.view(torch.uint8) for part in parts])


def unpack_sparse(
    packed: Tensor, count: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Back to `count` values of `dtype`, and their places."""
    blocks = -(-length // BLOCK)
    sizes = [8 * blocks, count * dtype.itemsize, 2 * count]
    ends, values, low = packed.clone().split(sizes)  # a copy begins where its dtypes may
    block = torch.searchsorted(
        ends.view(torch.int64), torch.arange(count, device=packed.device), right=True
    )
    return values.view(dtype), block * BLOCK + low.view(torch.int16).to(torch.int64).bitwise_and(
        BLOCK - 1
    )


def _ends(places: Tensor, length: int) -> Tensor:
    """How many of the places lie before the end of each block."""
    return torch.searchsorted(
        places, torch.arange(BLOCK, length + BLOCK, BLOCK, device=places.device)
    )


# ------------------------------------------------------------
# The largest numbers of a tensor: exactly, or by a threshold from a sample.
#
# Sorting out the k largest of N reads all of them several times. A sample of 1 % has about the same distribution, so its
# k/100 largest give a threshold, and one pass over N compares with it:
#
#     sample ── top k/100 ──▶ threshold ── one pass ──▶ about k places ── far more than k? ──▶ exactly k of these
#
# So between none and 2k are chosen, and not the same number on every rank. On meta tensors k are.
# Source: Lin et al. 2018, "Deep Gradient Compression", section 5: "a precise threshold is calculated from the
# already-selected gradients. Hierarchically calculating the threshold significantly reduces top-k selection time".


FAR_MORE = 2  # times as many as wanted


def wanted(length: int, sparsity: float) -> int:
    """k: how many of `length` numbers are sent at this sparsity; at least one."""
    return max(1, round(length * (1 - sparsity)))


def exact(size: Tensor, k: int) -> Tensor:
    """The places, (k,) int64, of the k largest of `size`, (N,), not negative."""
    return size.topk(k, sorted=False).indices


def sampled(size: Tensor, k: int, share: float, seed: int) -> Tensor:
    """The places of about k of the largest. share: how much of `size` is looked at for a threshold."""
    length = size.numel()
    count = max(1, round(share * length))
    places = torch.randint(length, (count,), generator=torch.Generator().manual_seed(seed)).to(
        size.device
    )
    threshold = size[places].topk(max(1, round(k * count / length))).values[-1]
    above = size >= threshold
    found = decide(above.sum(), on_meta=k)
    chosen = torch.nonzero_static(above, size=found)[:, 0]
    return chosen[exact(size[chosen], k)] if found > FAR_MORE * k else chosen


# ------------------------------------------------------------
# Deep gradient compression: a rank sends the 0.1 % largest of what it has gathered, and keeps the rest.
#
#     U ← mU + g        momentum correction: what is gathered is velocity, as the optimizer would have made it
#     V ← V + U         what was not sent comes later, with its momentum
#     send V where |V| is among the k largest of its tensor; there V ← 0, and U ← 0      momentum factor masking
#
# Without correction the optimizer's momentum sees only the rare arrivals of a weight, long after their time; without
# masking the velocity of what was sent goes on pushing in a direction of long ago. Besides: g is clipped to n^(−1/2) of
# the threshold for the sum, on each rank; the sparsity rises over the first epochs; small tensors are averaged exactly.
# With Nesterov's momentum: U ← m(U + g), V ← V + U + g.
#
# The sparse vectors are gathered, not reduced: (n−1)α + (n−1)·(w+2)k·β a rank, places included (see `pack_sparse`). Against
# dense in fp32 that is 0.75n times 1 − sparsity: 1/667 at 99.9 % and n = 2, 1/167 at n = 8; at 75 % more from n = 6 on.
# Source: Lin et al. 2018, "Deep Gradient Compression", section 3 and Algorithms 4 and 5.


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
    def _measure(self, comm: Comm, buckets: list, share: Work | None) -> None:
        """How much this rank's gradients are to be scaled, by the norm of all of them."""
        norms = torch.stack(
            [torch.linalg.vector_norm(b.grads, dtype=torch.float64) for b in buckets]
        )
        norm = torch.linalg.vector_norm(norms) * (1 if share is None else share.wait())
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
        message = pack_sparse(torch.cat(values)[order], places, grads.numel())
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
            theirs, where = unpack_sparse(packed, count, grads.numel(), grads.dtype)
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


# ------------------------------------------------------------
# Orthonormal columns for a tall, thin matrix, as PyTorch's PowerSGD makes them.
#
# Gram–Schmidt, column by column, for one or two columns and for 16 bits; Householder's QR for more. Both span the same
# space; they differ in signs and rounding, and equal runs need equal ones. A column of zeros stays one (a division by its
# norm would make all parameters nan): the gradient of a layer that was not reached.
# Cost: N·r² for N rows and r columns. Source: Vogels et al. 2019, section 3; torch's powerSGD_hook for which when.


def orthogonalize_(x: Tensor) -> Tensor:
    """Make the columns of `x`, (rows, r) with r ≤ rows, orthonormal. Returns `x`."""
    if x.shape[1] > 2 and x.dtype not in (torch.float16, torch.bfloat16):
        return x.copy_(torch.linalg.qr(x).Q)
    for i in range(x.shape[1]):
        column, rest = x[:, i : i + 1], x[:, i + 1 :]
        norm = torch.linalg.vector_norm(column)
        column.div_(torch.where(norm == 0, torch.ones_like(norm), norm))
        rest.sub_((column * rest).sum(0, keepdim=True) * column)
    return x


# ------------------------------------------------------------
# PowerSGD: each gradient matrix as the product of two thin ones, found by one step of the power iteration.
#
#     M_k (a, b) of rank k            P = Σ_k M_k Q      an all-reduce of r·a numbers, then orthonormal columns
#     Q   (b, r) from the last step   Q ← Σ_k M_kᵀ P     an all-reduce of r·b numbers
#                                     P Qᵀ ≈ Σ_k M_k     in place of a·b numbers
#
# Both steps are linear in M_k, so a plain all-reduce serves: nothing grows with n. The Q of one step is the start of the
# next (warm start), so over the steps it becomes what many iterations would give; what the product misses is fed back.
#
# Cost in numbers a step: r(a+b) instead of ab, all-reduced; 2(n−1)α more. A tensor of fewer than two dimensions, or one
# for which that saves less than `min_rate`, is averaged exactly. Source: Vogels et al. 2019, "PowerSGD", Algorithms 1 and
# 2. The conventions are those of torch's powerSGD_hook: Q made orthonormal as well; matrices (shape[0], rest); random
# Qs drawn matrix by matrix, grouped by shape, from a seed that numpy draws for each bucket.


SEEDS = 1_000_000_000


class PowerSGD(Lossy):
    """Averages of rank `rank`. Torch has matrix_approximation_rank, start_powerSGD_iter, min_compression_rate.

    start: so many steps are averaged exactly before (torch needs 2, its buckets move; here any number goes).
    min_rate: what a matrix must save at least.  error_feedback, warm_start: False switches a part off, to see what it
    is for.  seed: of the first Qs; the same on all ranks.  Raises ValueError for a rank below 1, or a start below 0.
    """

    progress = ("draws",)

    def __init__(
        self,
        rank: int = 1,
        start: int = 0,
        min_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ):
        if rank < 1 or start < 0:
            raise ValueError(f"the rank is 1 or more, not {rank}, the start 0 or more, not {start}")
        super().__init__()
        self.rank = rank
        self.start = start
        self.min_rate = min_rate
        self.seed = seed
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self.draws, self._seeds = 0, np.random.RandomState(seed)
        self._random: torch.Generator | None = None  # of the bucket at hand, if its Qs are new

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._seeds = np.random.RandomState(self.seed)
        self._seeds.randint(SEEDS, size=self.draws)

    def begin(self, names: set[str]) -> None:
        steps, self._random = [self._steps(name) for name in names], None
        if self.start in steps or (not self.warm_start and max(steps, default=0) > self.start):
            self._draw()
        for name, before in zip(names, steps, strict=True):
            self.of(name)["steps"] = before + 1

    def _steps(self, name: str) -> int:
        """How often the gradient of this name was averaged."""
        return self.of(name).get("steps", 0)

    def _draw(self) -> None:
        """The next of numpy's numbers is the seed of this bucket's Qs."""
        self.draws += 1
        self._random = torch.Generator().manual_seed(int(self._seeds.randint(SEEDS)))

    def is_small(self, name: str, g: Tensor) -> bool:
        if self._steps(name) < self.start or g.ndim < 2:
            return True
        rows, columns = g.shape[0], g.shape[1:].numel()
        return min(rows, columns, self.rank) * (rows + columns) * self.min_rate >= rows * columns

    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, g in views.items():
            if self.error_feedback:
                flat(g).add_(self.kept(name, "error", flat(g)))
            by_shape.setdefault((g.shape[0], g.shape[1:].numel()), []).append(name)
        names = [name for group in by_shape.values() for name in group]
        matrices = [views[name].reshape(len(views[name]), -1) for name in names]
        qs = [orthogonalize_(self._q(name, m)) for name, m in zip(names, matrices, strict=True)]
        ps = [m @ q for m, q in zip(matrices, qs, strict=True)]
        all_reduce_(comm, ps, algorithm=algorithm)
        for m, p, q in zip(matrices, ps, qs, strict=True):
            torch.matmul(m.T, orthogonalize_(p), out=q)
        all_reduce_(comm, qs, algorithm=algorithm)
        for name, p, q in zip(names, ps, qs, strict=True):
            self._take(name, views[name], (p @ q.T).view(views[name].shape), comm.size)

    def _q(self, name: str, matrix: Tensor) -> Tensor:
        """(columns, r): of the last step, or random."""
        state, shape = self.of(name), (matrix.shape[1], min(*matrix.shape, self.rank))
        if not self.warm_start or "q" not in state:
            if self._random is None:  # a parameter that comes late
                self._draw()
            state["q"] = torch.randn(shape, dtype=matrix.dtype, generator=self._random).to(
                matrix.device
            )
        if state["q"].shape != shape:
            raise ValueError(
                f"{name} needs a Q of {shape}, the loaded one has {tuple(state['q'].shape)}: "
                "another model's, or another rank's"
            )
        return beside(matrix, state, "q")

    def _take(self, name: str, g: Tensor, average: Tensor, n: int) -> None:
        """Keep what `average` misses, this rank's n-th part of it; it becomes the gradient."""
        if self.error_feedback:
            torch.sub(g, average, alpha=1 / n, out=g)
            self.kept(name, "error", flat(g)).copy_(flat(g))
        g.copy_(average)


# ------------------------------------------------------------
# Sign: one bit for each number, one scale for each tensor, and the error kept for the next time.
#
#     p = g + e      c = mean|p| · sign(p), with sign(0) = 1      e ← p − c      average: the sum of all ranks' c
#
# Signs alone, or their majority, go the wrong way where a few large numbers stand against many small ones, and stay
# wrong; scaled, and with the error fed back, SGD converges as without compression. So it is the scaled sign here, a scale
# for each tensor, not the majority vote: what is summed is each rank's own c, so the bits are gathered, not reduced.
#
#     rank r sends   [ a scale for each tensor ][ 8 signs in a byte ]   to all others, by a ring: n−1 messages
#
# Cost with N numbers of w bytes in P tensors: (n−1)α + (n−1)(N/8 + wP)β, 32 times less than what dense ones send at
# n = 2 in fp32, but it grows with n: dense ones send less from about 64 ranks on. Source: Karimireddy et al. 2019, "Error
# Feedback Fixes SignSGD", Algorithm 1 and its layer-wise scaling, with e in the unit of a gradient, not of an update.


BITS = (128, 64, 32, 16, 8, 4, 2, 1)


class Sign(Lossy):
    """error_feedback: False forgets what the signs do not say, to see what it is for."""

    def __init__(self, error_feedback: bool = True):
        super().__init__()
        self.error_feedback = error_feedback

    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        tensors = {name: flat(g) for name, g in views.items()}
        if self.error_feedback:
            for name, x in tensors.items():
                x.add_(self.kept(name, "error", x))
        lengths = [x.numel() for x in tensors.values()]
        scales = torch.stack([x.abs().sum() / max(1, x.numel()) for x in tensors.values()])
        whole = torch.cat(list(tensors.values()))
        message = torch.cat([scales.view(torch.uint8), pack_signs(whole >= 0)])
        total = torch.zeros_like(whole)
        for rank, theirs in enumerate(all_gather(comm, message[None])):  # (n, bytes)
            # a copy begins where its dtype may
            scales_of = theirs[: scales.nbytes].clone().view(scales.dtype)
            sent = unpack_signs(theirs[scales.nbytes :], whole.numel(), whole.dtype)
            for part, scale in zip(sent.split(lengths), scales_of, strict=True):
                part.mul_(scale)
            total.add_(sent)
            if rank == comm.rank:
                whole.sub_(sent)
        for name, error, average in zip(
            tensors, whole.split(lengths), total.split(lengths), strict=True
        ):
            if self.error_feedback:
                self.kept(name, "error", error).copy_(error)
            tensors[name].copy_(average)


def pack_signs(positive: Tensor) -> Tensor:
    """(N,) bool to (⌈N/8⌉,) uint8, the first in the highest bit."""
    eights = F.pad(positive.to(torch.uint8), (0, -positive.numel() % 8)).view(-1, 8)
    return (eights * eights.new_tensor(BITS)).sum(1, dtype=torch.uint8)


def unpack_signs(packed: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Back to `length` signs, +1 or −1."""
    ones = packed[:, None].bitwise_and(packed.new_tensor(BITS)) != 0
    return ones.view(-1)[:length].to(dtype).mul_(2).sub_(1)
