"""Averages of gradients that send less than the gradients: what `DataParallel(module, comm, compression=…)` takes.

    Dense()             everything, by an all-reduce: the same as no compression
    Half(dtype)         everything, in 16 bits                        exact but for the rounding
    Sign()              one bit a number and a scale                  error feedback
    PowerSGD(rank)      two thin matrices instead of each matrix      error feedback, warm start
    DGC(sparsity)       the largest 0.1 % of all numbers              momentum correction and factor masking, warm-up

A compression is handed a bucket in which each gradient is multiplied by this rank's share, 1/n or its weight, so that
the average is the sum over the ranks; it leaves that sum, or what it makes of it, in the bucket, the same on every rank
bit for bit. What it does not send it keeps, by the name of the parameter: so buckets may be laid out anew, and the state
can be saved. Error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3) is this rule:

    p = g + e      sent: c = C(p)      kept: e ← p − c      so that Σ_r (c_r + e_r) = Σ_r (g_r + e_r before)

Nothing is lost, it only comes later; without it a gradient that is always too small is never heard. The bytes of each
way are formulas in study/predict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..collectives import all_gather, all_reduce_
from ..comm.base import Comm, Work
from ..models import generator

# ------------------------------------------------------------
# What all ways have in common: what is kept of each parameter, and gradients that are too small to be compressed.


class Compression:
    """Makes averages of gradients out of fewer bytes: the base of `Half`, `Sign`, `PowerSGD` and `DGC`, which a
    DataParallel takes as `compression`. There is an object for each model and each rank. On meta tensors every compression
    runs, and sends as many bytes.

    state: what is kept, {parameter: {what: tensor}}.  first: None, or `first(comm, buckets, share)`, called in every
    backward before the first bucket, with all of them; share: a Work, of what the gradients are still to be multiplied
    by, None for nothing.

    >>> from minidist.parallel import PowerSGD
    >>> compression = PowerSGD(rank=2)
    >>> compression.state_dict()  # before the first step nothing is kept
    {'kind': 'PowerSGD', 'parameters': {}}
    """

    first: Callable | None = None

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Tensor]] = {}

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        """Make the gradients of a bucket (parallel/data.py) their average. algorithm: of its all-reduces."""
        raise NotImplementedError

    def kept(self, name: str, what: str, like: Tensor) -> Tensor:
        """What is kept of a parameter in a tensor like `like`, at first zeros. ValueError if it has another shape."""
        state = self.state.setdefault(name, {})
        x = state[what] if what in state else torch.zeros_like(like)
        if x.shape != like.shape:
            raise ValueError(
                f"{name} needs a kept {what} of shape {tuple(like.shape)}, the loaded one has {tuple(x.shape)}: "
                "this state is another model's, or another rank's"
            )
        state[what] = x.to(like.device)  # it was loaded into the memory of the host
        return state[what]

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps: {"kind": …, "parameters": {name: {what: tensor}}}.

        Ranks keep different things, so each saves its own. As with optimizers, the tensors are not copies.
        """
        return {"kind": type(self).__name__, "parameters": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where this rank's `state_dict` was called, bit for bit. ValueError for another kind of compression."""
        if state["kind"] != type(self).__name__:
            raise ValueError(
                f"this state was kept by {state['kind']}, {type(self).__name__} cannot go on from it"
            )
        self.state = {
            name: {what: x.clone() for what, x in tensors.items()}
            for name, tensors in state["parameters"].items()
        }


def average_small_(
    comm: Comm, bucket, algorithm: str | None, is_small: Callable[[Tensor], bool]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Average the small gradients of a bucket as they are, in one all-reduce with its flags.

    Returns those gradients of which some rank has one, by name: the small ones, and the others.
    """
    small = {name: g for name, g in bucket.views.items() if is_small(g)}
    all_reduce_(comm, [bucket.flags, *map(flat, small.values())], algorithm=algorithm)
    there = bucket.there()
    large = {name: g for name, g in bucket.views.items() if name in there and name not in small}
    return {name: g for name, g in small.items() if name in there}, large


def flat(x: Tensor) -> Tensor:
    """The numbers of `x`, which fill one piece of memory, in the order of the memory: (N,), a view."""
    return x.as_strided((x.numel(),), (1,))


class Dense(Compression):
    """Everything, by an all-reduce: 2(n−1)/n·N bytes a rank. What `compression=None` does, with another bucket.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import DataParallel
    >>> from minidist.parallel.compress import Dense
    >>> def program(comm):
    ...     model = DataParallel(torch.nn.Linear(2, 1, bias=False), comm, compression=Dense())
    ...     model(torch.tensor([[4.0, 2.0 * comm.rank]])).sum().backward()
    ...     return model.module.weight.grad
    >>> World(2).run(program)[0]
    tensor([[4., 1.]])
    """

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        all_reduce_(comm, bucket.buffer, algorithm=algorithm)


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
    """Gradients travel, and are added, in 16 bits: half of the bytes of fp32. What rounding loses is not kept.

    dtype: torch.float16 or torch.bfloat16; ValueError for another.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import DataParallel, Half
    >>> def program(comm, compression):
    ...     model = DataParallel(mlp([32, 32]), comm, compression=compression)
    ...     model(torch.ones(1, 32)).sum().backward()
    >>> dense, ours = (World(2).run(program, kind).trace.bytes_sent(1) for kind in (None, Half()))
    >>> dense - ours  # half of the 4 bytes of each of 1056 gradients and 2 flags
    2116
    """

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


class Sign(Compression):
    """Gradients are sent as their signs, one bit for each number, with a scale for each tensor, the mean of its absolute
    values. What that misses is kept, and added to the next gradient.

    state: {parameter: {"error": (N,)}}, this rank's own.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import DataParallel, Sign
    >>> def program(comm):
    ...     model = DataParallel(torch.nn.Linear(2, 1, bias=False), comm, compression=Sign())
    ...     model(torch.tensor([[4.0, -2.0]])).sum().backward()  # that is the gradient on each rank
    ...     return model.module.weight.grad, model.compression.state["weight"]["error"]
    >>> World(2).run(program)[0]  # the average; what this rank's half of it has missed
    (tensor([[ 3., -3.]]), tensor([0.5000, 0.5000]))
    """

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        _, grads = average_small_(comm, bucket, algorithm, lambda g: False)
        if not grads:
            return
        grads = {name: flat(g) for name, g in grads.items()}
        lengths = [len(g) for g in grads.values()]
        for name, g in grads.items():
            g.add_(self.kept(name, "error", g))
        scales = torch.stack([g.abs().sum() / max(1, len(g)) for g in grads.values()])
        rest = torch.cat(list(grads.values()))
        message = torch.cat([scales.view(torch.uint8), pack_signs(rest >= 0)])
        total = torch.zeros_like(rest)
        for rank, theirs in enumerate(all_gather(comm, message[None])):  # (n, bytes)
            # a copy begins where its dtype may
            their_scales = theirs[: scales.nbytes].clone().view(scales.dtype)
            sent = unpack_signs(theirs[scales.nbytes :], len(rest), rest.dtype)
            for part, scale in zip(sent.split(lengths), their_scales, strict=True):
                part.mul_(scale)
            total.add_(sent)
            if rank == comm.rank:
                rest.sub_(sent)
        errors, averages = rest.split(lengths), total.split(lengths)
        for (name, g), error, average in zip(grads.items(), errors, averages, strict=True):
            self.kept(name, "error", g).copy_(error)
            g.copy_(average)


BITS = (128, 64, 32, 16, 8, 4, 2, 1)


def pack_signs(positive: Tensor) -> Tensor:
    """(N,) bool to (⌈N/8⌉,) uint8, the first in the highest bit."""
    eights = F.pad(positive.to(torch.uint8), (0, -positive.numel() % 8)).view(-1, 8)
    return (eights * eights.new_tensor(BITS)).sum(1, dtype=torch.uint8)


def unpack_signs(packed: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Back to `length` signs, +1 or −1."""
    ones = packed[:, None].bitwise_and(packed.new_tensor(BITS)) != 0
    return ones.view(-1)[:length].to(dtype).mul_(2).sub_(1)


# ------------------------------------------------------------
# PowerSGD: each gradient matrix as the product of two thin ones, found by one step of the power iteration.
#
#     M_k (a, b) of rank k            P = Σ_k M_k Q      an all-reduce of r·a numbers, then orthonormal columns
#     Q   (b, r) from the last step   Q ← Σ_k M_kᵀ P     an all-reduce of r·b numbers
#                                     P Qᵀ ≈ Σ_k M_k     in place of a·b numbers
#
# Both steps are linear in M_k, so a plain all-reduce serves: nothing grows with n. The Q of one step, with orthonormal
# columns, is the start of the next (warm start), so over the steps it becomes what many iterations would give; what the
# product misses is fed back.
#
# Cost in numbers a step: r(a+b) instead of ab, all-reduced; 2(n−1)α more. A tensor of fewer than two dimensions, or one
# for which that saves less than half, is averaged exactly. Source: Vogels et al. 2019, "PowerSGD", Algorithms 1 and 2;
# a matrix is (shape[0], all the rest), as in torch's powerSGD_hook.


class PowerSGD(Compression):
    """A gradient matrix (a, b) is sent as the product of two thin ones, (a, r) and (r, b), found by one step of the power
    iteration. What that misses is kept, and added to the next gradient. A tensor for which it saves less than half, such
    as a bias, is averaged exactly.

    rank: r; ValueError below 1.  state: {parameter: {"error": (a·b,), "q": (b, r)}}.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import DataParallel, PowerSGD
    >>> def program(comm, compression):
    ...     x = torch.arange(16.0)[None]
    ...     model = DataParallel(torch.nn.Linear(16, 16), comm, compression=compression)
    ...     model(x).sum().backward()
    ...     return torch.allclose(model.module.weight.grad, x.expand(16, 16), atol=1e-4)
    >>> dense, ours = (World(2).run(program, kind) for kind in (None, PowerSGD(rank=1)))
    >>> list(ours)  # the gradient of one sample has rank 1, so nothing is missed
    [True, True]
    >>> dense.trace.bytes_sent(1) - ours.trace.bytes_sent(1)  # 16 + 16 numbers in place of 256
    896
    """

    def __init__(self, rank: int = 1):
        if rank < 1:
            raise ValueError(f"the rank is 1 or more, not {rank}")
        super().__init__()
        self.rank = rank

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        _, grads = average_small_(comm, bucket, algorithm, self._is_small)
        if not grads:
            return
        for name, g in grads.items():
            flat(g).add_(self.kept(name, "error", flat(g)))
        matrices = [g.reshape(len(g), -1) for g in grads.values()]  # (a, b)
        qs = [orthogonalize_(self._q(name, m)) for name, m in zip(grads, matrices, strict=True)]
        ps = [m @ q for m, q in zip(matrices, qs, strict=True)]
        all_reduce_(comm, ps, algorithm=algorithm)  # (a, r)
        for m, p, q in zip(matrices, ps, qs, strict=True):
            torch.matmul(m.T, orthogonalize_(p), out=q)
        all_reduce_(comm, qs, algorithm=algorithm)  # (b, r)
        for (name, g), p, q in zip(grads.items(), ps, qs, strict=True):
            average = (p @ q.T).view(g.shape)
            g.sub_(average, alpha=1 / comm.size)  # what it misses, this rank's n-th part of it
            self.kept(name, "error", flat(g)).copy_(flat(g))
            g.copy_(average)

    def _is_small(self, g: Tensor) -> bool:
        if g.ndim < 2:
            return True
        rows, columns = g.shape[0], g.shape[1:].numel()
        return 2 * min(rows, columns, self.rank) * (rows + columns) >= rows * columns

    def _q(self, name: str, matrix: Tensor) -> Tensor:
        """(b, r): of the last step, or random, and the same on every rank."""
        like = matrix.new_empty(matrix.shape[1], min(*matrix.shape, self.rank))
        if "q" not in self.state[name]:
            self.state[name]["q"] = torch.randn(
                like.shape, dtype=like.dtype, generator=generator(0, name)
            )
        return self.kept(name, "q", like)


def orthogonalize_(x: Tensor) -> Tensor:
    """Make the columns of `x`, (rows, r) with r ≤ rows, orthonormal, of the same span. Returns `x`."""
    return x.copy_(torch.linalg.qr(x.to(torch.promote_types(x.dtype, torch.float32))).Q)


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
#
# The sparse vectors are gathered, not reduced: (n−1)α + (n−1)·(w+2)k·β a rank, places included (see `pack_sparse`). Against
# dense in fp32 that is 0.75n times 1 − sparsity: 1/667 at 99.9 % and n = 2, 1/167 at n = 8; at 75 % more from n = 6 on.
# Source: Lin et al. 2018, "Deep Gradient Compression", section 3 and Algorithms 4 and 5. How many are sent is from its
# authors' code (synxlin/deep-gradient-compression), which rounds up; it finds the threshold in a sample, and may then send
# up to a fifth fewer, or a third more where it does not choose again. Here all numbers are looked at, and exactly k sent.


WARM_UP = (0.75, 0.9375, 0.984375, 0.996)


class DGC(Compression):
    """Top-k with momentum inside: the optimizer is plain SGD, `torch.optim.SGD(params, lr)`, without momentum.

        compression = DGC(momentum=0.9)
        model = DataParallel(module, comm, compression=compression)
        for epoch in range(epochs):
            compression.set_epoch(epoch)            # as with Sampler; else it stays at the first of `warm_up`

    sparsity: the share that is not sent, of each tensor of at least `small` numbers; the others are averaged exactly.
    momentum: 0 is no momentum correction: gradients are gathered, and the momentum left to the optimizer.
    masking: momentum factor masking.  warm_up: the sparsities of the first epochs, () for none.
    clip: the norm of the average above which gradients are scaled; each rank's, all parameters together, is held to
    clip/√n, for which all must be there: then nothing is sent while backward runs.

    U and V have the dtype of the gradient: train in fp32 (in 16 bits they would round away what they gather).
    A weight decay of the optimizer does not pass through the momentum: for the same effect divide it by 1 − momentum.
    Raises ValueError for a sparsity or a momentum outside 0 … 1, and for a clip that is not above 0.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import DGC, DataParallel
    >>> def program(comm, x):
    ...     dgc = DGC(sparsity=0.75, momentum=0.0, warm_up=(), small=1)
    ...     model = DataParallel(torch.nn.Linear(4, 1, bias=False), comm, compression=dgc)
    ...     model(x[comm.rank : comm.rank + 1]).sum().backward()  # a row of x is the gradient
    ...     return model.module.weight.grad
    >>> x = torch.tensor([[1.0, 8.0, 2.0, 0.0], [1.0, 0.0, 2.0, 6.0]])
    >>> World(2).run(program, x)[0]  # each rank sends a quarter: 8, and 6; 1 and 2 wait
    tensor([[0., 4., 0., 3.]])
    """

    def __init__(
        self,
        sparsity: float = 0.999,
        momentum: float = 0.9,
        masking: bool = True,
        clip: float | None = None,
        warm_up: Sequence[float] = WARM_UP,
        small: int = 1024,
    ):
        for value in (sparsity, *warm_up):
            if not 0 <= value < 1:
                raise ValueError(f"a sparsity is at least 0 and below 1, not {value}")
        if not 0 <= momentum < 1:
            raise ValueError(f"a momentum is at least 0 and below 1, not {momentum}")
        if clip is not None and not clip > 0:
            raise ValueError(f"a clip is above 0, not {clip}")
        super().__init__()
        self.sparsities = (*warm_up, sparsity)
        self.momentum = momentum
        self.masking = masking
        self.clip = clip
        self.small = max(1, small)
        self.first = None if clip is None else self._measure
        self.epoch, self._scale = 0, None

    def set_epoch(self, epoch: int) -> None:
        """Choose the sparsity of this epoch."""
        self.epoch = epoch

    @property
    def sparsity(self) -> float:
        """Of this epoch."""
        return self.sparsities[min(self.epoch, len(self.sparsities) - 1)]

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
        small, large = average_small_(comm, bucket, algorithm, lambda g: g.numel() < self.small)
        for name, g in small.items():
            g.copy_(self._velocity(name, g))
        if not large:
            return
        values, places = [], []
        for name, g in large.items():
            chosen, sent = self._choose(name, flat(g))
            values.append(sent)
            places.append(chosen + (g.storage_offset() - bucket.grads.storage_offset()))
            g.zero_()
        places, order = torch.cat(places).sort()
        message = pack_sparse(torch.cat(values)[order], places, len(bucket.grads))
        for theirs in all_gather(comm, message[None]):  # (n, bytes)
            sent, where = unpack_sparse(theirs, len(places), len(bucket.grads), bucket.grads.dtype)
            bucket.grads.index_add_(0, where, sent)

    def _velocity(self, name: str, g: Tensor) -> Tensor:
        """What a step with momentum adds for the gradient `g`."""
        return self.kept(name, "u", g).mul_(self.momentum).add_(g) if self.momentum else g

    def _choose(self, name: str, g: Tensor) -> tuple[Tensor, Tensor]:
        """Which places of a tensor are sent, and what; it is no longer kept."""
        v = self.kept(name, "v", g).add_(self._velocity(name, g))
        chosen = v.abs().topk(wanted(len(v), self.sparsity), sorted=False).indices
        sent = v[chosen]
        v[chosen] = 0
        if self.momentum and self.masking:
            self.state[name]["u"][chosen] = 0
        return chosen, sent


def wanted(length: int, sparsity: float) -> int:
    """k: how many of `length` numbers are sent at this sparsity, ⌈(1 − sparsity)·length⌉ as its authors' code has it.

    The sparsity is meant as it is written, 0.999, so that rounding does not send one of 1,000 numbers more.
    """
    return length - math.floor(length * Fraction(str(sparsity)))


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
    blocks = torch.arange(BLOCK, length + BLOCK, BLOCK, device=places.device)
    parts = (torch.searchsorted(places, blocks), values, places.to(torch.int16))
    return torch.cat([part.view(torch.uint8) for part in parts])


def unpack_sparse(
    packed: Tensor, count: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Back to `count` values of `dtype`, and their places."""
    sizes = [8 * -(-length // BLOCK), count * dtype.itemsize, 2 * count]
    ends, values, low = packed.clone().split(sizes)  # a copy begins where its dtypes may
    block = torch.searchsorted(
        ends.view(torch.int64), torch.arange(count, device=packed.device), right=True
    )
    low = low.view(torch.int16).to(torch.int64).bitwise_and(BLOCK - 1)
    return values.view(dtype), block * BLOCK + low
