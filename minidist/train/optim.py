"""Optimizers for large batches, and how large a batch is worth it.

SGD, LARS, AdamW, LAMB              two steps, each with and without a trust ratio; also of sharded layers
groups, bias_or_norm                what is stepped plainly, and what is cut over ranks
NoiseScale, noise_terms             the critical batch size, from gradients of two sizes of batch
steps_ratio, samples_ratio, best_rate    what follows from it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..collectives import all_reduce_
from ..comm.base import Comm
from ..decide import decide
from ..split import cuts
from .norm import all_reduce_cut_norms_, squares

# ------------------------------------------------------------
# What all four have in common: a layer's step may have a length of its own.
#
#     for every parameter     moments, from the gradient (AdamW and LAMB)
#     for all together        norms of weights and updates, over the ranks that share a parameter (see norm.py)
#     for every parameter     its step, times its trust ratio
#
# A group with trust=0 has no ratio: its parameters are stepped as by the plain optimizer, SGD or AdamW, and its norms
# are neither computed nor sent. Between the first loop and the last nothing is kept but two numbers a parameter, so an
# update that the norm needs is formed twice, and Ψ more elements of memory are not.


def not_negative(**values: float) -> None:
    """ValueError that names the first of these that is below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is not negative: it is {value}")


class Layerwise(torch.optim.Optimizer):
    """What SGD, LARS, AdamW and LAMB have in common.

    across: {way: Comm} of the ranks that share parameters; a group's option `split` names the ways in which its own
    are cut, () for none. All ranks of a Comm have the same groups, and step together.
    ratios: {parameter: trust ratio of the last step, a 0-d tensor}, to be looked at; plain parameters are not in it.
    `step(closure=None)` steps every parameter that has a gradient, and returns the closure's loss. Raises ValueError
    for sparse gradients, and for amsgrad, maximize and differentiable in a loaded state.

    >>> import torch
    >>> from minidist.train import LARS
    >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> optimizer = LARS([w], lr=1.0, trust=0.125)
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> optimizer.step()
    >>> optimizer.ratios[w].item()  # 0.125 · 5/2
    0.3125
    """

    # also of a copy, for which torch takes over states and groups alone
    across: Mapping[str, Comm] = MappingProxyType({})
    ratios: Mapping[Tensor, Tensor] = MappingProxyType({})

    def __init__(self, params, across: Mapping[str, Comm] | None, **defaults):
        super().__init__(params, defaults | {"split": ()})
        if across:
            self.across = dict(across)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also torch.optim's: options that a group there lacks, as it knows of no trust, stay as they are here, and so
        does `split`, which belongs to this run."""
        saved = state_dict["param_groups"]
        if len(saved) == len(self.param_groups):  # else torch says what is wrong
            saved = [
                own | group | {"split": own["split"]}
                for own, group in zip(self.param_groups, saved, strict=True)
            ]
        super().load_state_dict(state_dict | {"param_groups": saved})

    def evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """The closure's loss. Raises ValueError for options, from a state dict of torch.optim's, and for gradients of
        which no step is done here."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for option in ("amsgrad", "maximize", "differentiable"):
                if group.get(option):
                    raise ValueError(f"{option}=True is not done here: take torch.optim's class")
        for _, _, g in self.with_gradient():
            if g.layout is not torch.strided:
                raise ValueError(
                    f"the gradient of {tuple(g.shape)} is {g.layout}: steps are of dense ones"
                )
        return loss

    def with_groups(self) -> list[tuple[dict[str, Any], Tensor]]:
        """(group, parameter) of each parameter."""
        return [(group, p) for group in self.param_groups for p in group["params"]]

    def with_gradient(self) -> list[tuple[dict[str, Any], Tensor, Tensor]]:
        """(group, parameter, gradient) of each parameter that has a gradient."""
        return [(group, p, p.grad) for group, p in self.with_groups() if p.grad is not None]

    def trust_ratios(self, update: Callable, ratio: Callable) -> dict[Tensor, Tensor]:
        """ratio(group, norm of the weights, norm of update(group, p)) of each parameter p that has a trust ratio.

        Also of those that have no gradient here, and no update: other ranks may have one for their parts.
        """
        trusted = [(group, p) for group, p in self.with_groups() if group["trust"]]
        if not trusted:
            return {}
        sums = [squares([p, None if p.grad is None else update(g, p)]) for g, p in trusted]
        split = [group["split"] for group, _ in trusted]
        norms = all_reduce_cut_norms_(torch.stack(sums), split, self.across).sqrt()  # (P, 2)
        return {p: ratio(group, *both) for (group, p), both in zip(trusted, norms, strict=True)}


# ------------------------------------------------------------
# SGD with momentum, and LARS: the same step, each layer's times a trust ratio.
#
# With a large batch and a large rate λ, ‖λg‖ is more than ‖w‖ in some layers, and little in others: one rate does not fit
# all. LARS makes the length of each layer's step a fixed part of its weights' length, whatever the gradient's:
#
#     SGD      d = g + βw                                v = m·v + d      w −= λ·v
#     LARS     r = η‖w‖ / (‖g‖ + β‖w‖)   d = λ·r·(g + βw)   v = m·v + d      w −= v
#
# The rate is within v in LARS, as its paper has it; both agree as long as it is constant. A gradient of 0 is no exception
# in the paper: r = η/β, and the step, λη·w, is as long as any other, which is also the limit of small gradients. Others
# make it one: MLPerf's has r = 1, so λβ·w, the whole decay; NVIDIA's LARC in apex steps such a layer by nothing at all.
# Weights of 0 are one here, where by the paper they would stay 0 for ever: their r is 1.
# Sources: You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1; Sutskever et al.
# 2013, "On the importance of initialization and momentum". The one rule for both is that of tinygrad's nn/optim.py.


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling.

    params: parameters, or groups as `groups` makes them.  lr: the rate.
    trust: η, the part of a layer's weights that a step of rate 1 is long. 0, for a group: it is stepped as by SGD,
    with the rate outside of the momentum; so `groups` has it for biases and norms. A trusted layer sees the product
    η·lr alone, these see lr alone: take an lr that suits SGD, and η to fit, or give them an lr of their own.
    weight_decay: β, a part of the gradient, as for SGD; a layer with no gradient but zeros shrinks by η·lr, whatever β
    above 0.  nesterov: look ahead, w −= d + m·v.
    across: {way: Comm} of ranks that share parameters, which `groups` names in `split`.  States are those of
    torch.optim.SGD: `momentum_buffer`. Raises ValueError for negative values, and for Nesterov without momentum.
    Source: You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1.

    >>> import torch
    >>> from minidist.train import LARS
    >>> for slope in (2.0, 1024.0):  # of length 5, so a step is 0.125 · 5 long
    ...     w = torch.tensor([3.0, 4.0], requires_grad=True)
    ...     w.grad = torch.tensor([0.0, slope])
    ...     LARS([w], lr=1.0, trust=0.125).step()
    ...     print(w.tolist())
    [3.0, 3.375]
    [3.0, 3.375]
    """

    def __init__(
        self,
        params,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        nesterov: bool = False,
        dampening: float = 0.0,
        across: Mapping[str, Comm] | None = None,
    ):
        options = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        not_negative(**options)
        if nesterov and (not momentum or dampening):
            raise ValueError(
                f"Nesterov's momentum has no dampening: momentum {momentum}, dampening {dampening}"
            )
        super().__init__(params, across, **options, nesterov=nesterov, dampening=dampening)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None):
        """One step of every parameter that has a gradient. Returns the closure's loss."""
        loss = self.evaluate(closure)
        self.ratios = self.trust_ratios(lambda group, p: p.grad, self._ratio)
        for group, p, g in self.with_gradient():
            lr, momentum = group["lr"], group["momentum"]
            state = self.state[p]
            d = g.add(p, alpha=group["weight_decay"])
            if p in self.ratios:
                d.mul_(self.ratios[p] * lr)
                lr = 1.0
            if momentum:
                v = state.get("momentum_buffer")
                if v is None:
                    v = d.clone()
                else:
                    v.mul_(momentum).add_(d, alpha=1 - group["dampening"])
                state["momentum_buffer"] = v
                d = d.add_(v, alpha=momentum) if group["nesterov"] else v
            p.sub_(d, alpha=lr)
        return loss

    def _ratio(self, group: dict[str, Any], weights: Tensor, gradient: Tensor) -> Tensor:
        below = gradient + group["weight_decay"] * weights
        return torch.where((weights > 0) & (below > 0), group["trust"] * weights / below, 1.0)


class SGD(LARS):
    """Stochastic gradient descent: LARS without a trust ratio. Arguments, steps and states as of `torch.optim.SGD`.
    Raises ValueError for negative values, and for Nesterov without momentum.
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum".

    >>> import torch
    >>> from minidist.train import SGD
    >>> w = torch.tensor([4.0], requires_grad=True)
    >>> optimizer = SGD([w], lr=0.5, momentum=0.5)
    >>> for _ in range(2):
    ...     w.grad = torch.tensor([1.0])
    ...     optimizer.step()
    ...     print(w.item())
    3.5
    2.75
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        super().__init__(params, lr, momentum, weight_decay, 0.0, nesterov, dampening)


# ------------------------------------------------------------
# AdamW, and LAMB: the same step, each layer's times a trust ratio.
#
#     both     m = β₁m + (1 − β₁)g     v = β₂v + (1 − β₂)g²     m̂ = m/(1 − β₁ᵗ)     v̂ = v/(1 − β₂ᵗ)
#              u = m̂/(√v̂ + ε) + λw
#     AdamW    w −= η·u
#     LAMB     w −= η·‖w‖/‖u‖·u               a layer's step is η times as long as its weights
#
# Public LAMBs disagree. This one is the paper's algorithm 2: the moments are corrected for their start at zero, which
# some leave out; ‖w‖ is taken as it is, which some clamp to 10; and nothing is divided by the norm of all gradients
# first, as in NVIDIA's. Where a norm is 0, of which the paper does not speak, the ratio is 1.
# Sources: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2;
# Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.


def moments_(m: Tensor, v: Tensor, g: Tensor, betas: tuple[float, float]) -> None:
    """Take the gradient `g` into the moving averages `m` of gradients and `v` of their squares."""
    beta1, beta2 = betas
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)


def corrections(betas: tuple[float, float], steps: int) -> tuple[float, float]:
    """1 − β₁ᵗ and 1 − β₂ᵗ: how full the averages are after `steps` gradients, 1, 2, …"""
    beta1, beta2 = betas
    return 1 - beta1**steps, 1 - beta2**steps


def adam_update(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    corrected: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Tensor:
    """u, in memory of its own, from averages with these `corrections`."""
    full1, full2 = corrected
    root = (v / full2).sqrt_().add_(eps)
    return (m / full1).div_(root).add_(p, alpha=weight_decay)


class LAMB(Layerwise):
    """Layer-wise adaptive moments for batches.

    params: parameters, or groups as `groups` makes them.  lr: the rate.
    trust: 1.0 as in the paper, times which each ratio goes. 0, for a group: it is stepped as by AdamW; so `groups` has
    it for biases and norms.  across: {way: Comm} of ranks that share parameters, which `groups` names in `split`.
    States are those of torch.optim.AdamW: `step`, `exp_avg`, `exp_avg_sq`; `step` is a number here and a tensor there,
    and each loads the other's. Raises ValueError for negative values, and betas outside 0 … 1.
    Source: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2.

    >>> import torch
    >>> from minidist.train import LAMB
    >>> w = torch.tensor([3.0, 4.0], requires_grad=True)  # a layer of length 5
    >>> w.grad = torch.tensor([0.0, 1e-3])
    >>> LAMB([w], lr=0.125, weight_decay=0.0).step()
    >>> [round(x, 3) for x in w.tolist()]  # its step is 0.125 · 5 long
    [3.0, 3.375]
    """

    def __init__(
        self,
        params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        trust: float = 1.0,
        across: Mapping[str, Comm] | None = None,
    ):
        options = dict(lr=lr, eps=eps, weight_decay=weight_decay, trust=trust)
        not_negative(**options)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are at least 0 and below 1, not {betas}")
        super().__init__(params, across, **options, betas=betas)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None):
        """One step of every parameter that has a gradient. Returns the closure's loss."""
        loss = self.evaluate(closure)
        for group, p, g in self.with_gradient():
            state = self.state[p]
            if not state:
                averages = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state |= {"step": 0} | averages
            state["step"] = int(state["step"]) + 1
            moments_(state["exp_avg"], state["exp_avg_sq"], g, group["betas"])
        self.ratios = self.trust_ratios(self._update, self._ratio)
        for group, p, _ in self.with_gradient():
            update = self._update(group, p)
            if p in self.ratios:
                update.mul_(self.ratios[p])
            p.sub_(update, alpha=group["lr"])
        return loss

    def _update(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """u, from the states."""
        state = self.state[p]
        corrected = corrections(group["betas"], state["step"])
        averages = state["exp_avg"], state["exp_avg_sq"]
        return adam_update(p, *averages, corrected, group["eps"], group["weight_decay"])

    def _ratio(self, group: dict[str, Any], weights: Tensor, update: Tensor) -> Tensor:
        ratio = group["trust"] * weights / update
        return torch.where((weights > 0) & (update > 0), ratio, 1.0)


class AdamW(LAMB):
    """Adam with decoupled weight decay: LAMB without a trust ratio. Steps and states as of `torch.optim.AdamW`.
    Raises ValueError for negative values, and betas outside 0 … 1.
    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.

    >>> import torch
    >>> from minidist.train import AdamW
    >>> w, theirs = (torch.tensor([1.0, -2.0], requires_grad=True) for _ in range(2))
    >>> w.grad, theirs.grad = (torch.tensor([0.5, 100.0]) for _ in range(2))
    >>> AdamW([w], lr=0.25, weight_decay=0.0).step()
    >>> torch.optim.AdamW([theirs], lr=0.25, weight_decay=0.0).step()
    >>> [round(x, 3) for x in w.tolist()], torch.allclose(w, theirs)
    ([0.75, -2.25], True)
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, 0.0)


# ------------------------------------------------------------
# Parameter groups: which parameters are stepped plainly, and which are cut over ranks.
#
# Biases and the scales and shifts of norms are excluded from weight decay and from trust ratios: they are few, start at
# 0 or 1, and their length says nothing of how far they may move. (You et al. 2017 have one rate for each layer's weights;
# to leave these out became the custom with LARS on ResNet-50 and with BERT.)
#
#     optimizer = LAMB(groups(model), lr=…)                                          whole parameters, ZeRO 1 and 2
#     optimizer = LAMB(groups(model), lr=…, across={"data": comm})                   model: a FullySharded over comm
#     optimizer = LAMB(groups(model), lr=…, across={"tensor": comm})                 tensor-parallel layers
#     optimizer = LAMB(groups(model), lr=…, across={"data": rows, "tensor": columns})      both


def bias_or_norm(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter with this name and whole shape is a bias, or of a norm: fewer than 2 dimensions.

    >>> from minidist.train.optim import bias_or_norm
    >>> bias_or_norm("norm.weight", (64,)), bias_or_norm("fc.weight", (256, 64))
    (True, False)
    """
    return len(shape) < 2 or name.rpartition(".")[2] == "bias"


def groups(
    module: nn.Module, plain: Callable[[str, Sequence[int]], bool] = bias_or_norm
) -> list[dict[str, Any]]:
    """Groups of the module's parameters, with their names, for any optimizer: on all ranks of the module the same.

    plain(name, shape): whether this one is stepped without weight decay and trust ratio (weight_decay=0, trust=0).
    The shape is the unsharded one. Each group has `split`, the ways in which its parameters are cut: "data" those that
    a `FullySharded` names in its `whole_shapes`, "tensor" those that a split module names in its `cuts`.
    Pieces keep the order of `named_parameters`; those without elements are there, too.

    >>> from minidist.models import mlp
    >>> from minidist.train import AdamW, groups
    >>> optimizer = AdamW(groups(mlp([4, 8, 2])), weight_decay=0.1)
    >>> for group in optimizer.param_groups:
    ...     print(group["param_names"], group["weight_decay"])
    ['0.weight', '2.weight'] 0.1
    ['0.bias', '2.bias'] 0.0
    """
    tensor_cuts = cuts(module)
    whole_shapes: dict[Tensor, Sequence[int]] = {}
    for layer in module.modules():
        whole_shapes |= getattr(layer, "whole_shapes", {})
    by_kind: dict[tuple, dict[str, Any]] = {}
    for name, p in module.named_parameters():
        split = ("data",) * (p in whole_shapes) + ("tensor",) * (name in tensor_cuts)
        stepped_plainly = plain(name, whole_shapes.get(p, p.shape))
        group = by_kind.setdefault((stepped_plainly, split), {"params": [], "split": split})
        group["params"].append((name, p))
        if stepped_plainly:
            group |= {"weight_decay": 0.0, "trust": 0.0}
    return list(by_kind.values())


# ------------------------------------------------------------
# How large a batch is worth it: the gradient noise scale, from gradients that data parallelism has anyway.
#
# A batch of B samples has the gradient G plus noise of variance tr(Σ)/B. Up to B ≈ B_noise = tr(Σ)/|G|² twice the batch
# is nearly twice the progress of a step; beyond it the noise is gone, and more samples add nothing. Two sizes of batch
# are two equations for the two unknowns, without bias:
#
#     E|G_B|² = |G|² + tr(Σ)/B        rank: B/n samples, before the average         all: B, after it
#     |G|²  = (B·|G_B|² − b·|G_b|²)/(B − b)            tr(Σ) = (|G_b|² − |G_B|²)/(1/b − 1/B)
#
# Both are noisy, |G|² may even come out negative: average each over steps, then divide. Cost: 8 bytes a rank and step.
# To a target loss: steps/fewest = 1 + B_noise/B, samples/fewest = 1 + B/B_noise; best rate/highest = 1/(1 + B_noise/B).
# Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2 and appendix A.1.


class Terms(NamedTuple):
    """|G|² and tr(Σ), estimated.

    >>> from minidist.train.optim import Terms
    >>> Terms(square=2.0, trace=64.0).scale
    32.0
    """

    square: float
    trace: float

    @property
    def scale(self) -> float:
        """B_noise, in samples; nan where |G|² came out below 0, which more steps mend."""
        return self.trace / self.square if self.square > 0 else math.nan


def noise_terms(small_square: float, big_square: float, small: float, big: float) -> Terms:
    """From the mean |G_b|² of gradients of `small` samples, and |G_B|² of their mean, over `big` samples.

    Raises ValueError unless 0 < small < big.
    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1.

    >>> from minidist.train.optim import noise_terms
    >>> noise_terms(small_square=5.0, big_square=4.0, small=4, big=8)
    Terms(square=3.0, trace=8.0)
    """
    if not 0 < small < big:
        raise ValueError(
            f"the noise shows between a small batch and a larger one, not between {small} and {big}"
        )
    return Terms(
        (big * big_square - small * small_square) / (big - small),
        (small_square - big_square) / (1 / small - 1 / big),
    )


class NoiseScale:
    """The noise scale of a run over ranks, averaged over its steps.

        noise = NoiseScale(model.parameters(), comm)           # model: a DataParallel, or any whose ranks average
        loss.backward(); noise.update(samples=len(x))          # x: this rank's part; every rank has as many
        noise.scale                                            # B_noise, in samples

    Hooks see each rank's gradient as autograd makes it, before it is averaged; `update` reads `.grad`, the average.
    One backward a step: with accumulation, `update` after each would see sums.  decay: of the averages over steps,
    corrected for their start.  terms, scale: nan before the first step. All ranks find the same.
    Raises ValueError for a Comm of one rank, which has one size of batch: give `noise_terms` its micro-batches; for a
    decay outside 0 … 1, and where no parameter trains.
    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2 and appendix A.1.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_reduce_
    >>> from minidist.train import NoiseScale
    >>> def program(comm):
    ...     w = torch.zeros(1, requires_grad=True)
    ...     noise = NoiseScale([w], comm)
    ...     (w * (1.0 + 2 * comm.rank)).sum().backward()  # gradients 1 and 3, of 4 samples each
    ...     all_reduce_(comm, w.grad, "mean")
    ...     return noise.update(samples=4)
    >>> World(2).run(program)[0]
    Terms(square=3.0, trace=8.0)
    """

    def __init__(self, params: Iterable[Tensor], comm: Comm, decay: float = 0.9):
        if comm.size < 2 or not 0 <= decay < 1:
            raise ValueError(
                f"noise shows between at least 2 ranks, averaged with a decay of 0 to 1, not between "
                f"{comm.size} with {decay}"
            )
        self.comm, self.decay = comm, decay
        self._params = [p for p in params if p.requires_grad]
        if not self._params:
            raise ValueError("noise is measured on parameters that train, and none was given")
        self._own: float | Tensor = 0.0
        self._sums = [0.0, 0.0]
        self._weight = 0.0
        self._hooks = [p.register_hook(self._seen) for p in self._params]

    def _seen(self, grad: Tensor) -> None:
        self._own = self._own + squares([grad]).sum()

    def update(self, samples: int) -> Terms:
        """After a backward of `samples` on this rank: what this step alone says."""
        own, self._own = self._own, 0.0
        small = torch.as_tensor(own, dtype=torch.float64, device=self.comm.device)
        all_reduce_(self.comm, small, "mean")
        big = squares([p.grad for p in self._params]).sum()
        small_square, big_square = (decide(x, math.nan) for x in (small, big))
        terms = noise_terms(small_square, big_square, samples, self.comm.size * samples)
        self._sums = [
            self.decay * s + (1 - self.decay) * x for s, x in zip(self._sums, terms, strict=True)
        ]
        self._weight = self.decay * self._weight + 1 - self.decay
        return terms

    @property
    def terms(self) -> Terms:
        """|G|² and tr(Σ), averaged over the steps so far."""
        return Terms(*(s / self._weight if self._weight else math.nan for s in self._sums))

    @property
    def scale(self) -> float:
        """B_noise, in samples; nan before the first step, and where |G|² came out below 0."""
        return self.terms.scale

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()


def steps_ratio(batch: float, noise: float) -> float:
    """Steps to a loss, over the fewest possible with any batch: 1 + B_noise/B.

    >>> from minidist.train.optim import steps_ratio
    >>> [steps_ratio(batch, noise=1000) for batch in (100, 1000, 10_000)]
    [11.0, 2.0, 1.1]
    """
    return 1 + noise / batch


def samples_ratio(batch: float, noise: float) -> float:
    """Samples to a loss, over the fewest possible: 1 + B/B_noise.

    >>> from minidist.train.optim import samples_ratio
    >>> [samples_ratio(batch, noise=1000) for batch in (100, 1000, 10_000)]
    [1.1, 2.0, 11.0]
    """
    return 1 + batch / noise


def best_rate(highest: float, batch: float, noise: float) -> float:
    """The rate of SGD that gains most in a step: highest/(1 + B_noise/B), linear in B while B is far below B_noise.

    >>> from minidist.train.optim import best_rate
    >>> best_rate(highest=0.5, batch=1000, noise=1000)
    0.25
    """
    return highest / steps_ratio(batch, noise)
