"""Small models on which data parallelism goes wrong, and the serial program that says what is right.

Every model maps (B, 3) to (B, 2). Its width is drawn anew for each case, so that no size is known
beforehand. The oracle is one rank with the samples of all: its gradient, parameter by parameter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

INPUTS, OUTPUTS = 3, 2


class Plain(nn.Sequential):
    def __init__(self, width: int):
        super().__init__(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, OUTPUTS))


class Frozen(Plain):
    def __init__(self, width: int):
        super().__init__(4 * width)
        self[0].requires_grad_(False)


class Unused(Plain):
    def __init__(self, width: int):
        super().__init__(width)
        self.spare = nn.Linear(width, width)

    def forward(self, x):
        return self[2](self[1](self[0](x)))


class Tied(nn.Module):
    """One matrix in two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, 2 * width), nn.Linear(2 * width, 2 * width)
        self.third, self.last = (
            nn.Linear(2 * width, 2 * width, bias=False),
            nn.Linear(2 * width, OUTPUTS),
        )
        self.third.weight = self.second.weight

    def forward(self, x):
        return self.last(self.third(self.second(self.first(x)).tanh()).tanh())


class Routed(nn.Module):
    """`rare` sees only samples whose first number is above zero."""

    def __init__(self, width: int):
        super().__init__()
        self.rare, self.often = nn.Linear(INPUTS, OUTPUTS), Plain(width)

    def forward(self, x):
        chosen = (x[:, 0] > 0).nonzero()[:, 0]
        y = self.often(x)
        return y.index_add(0, chosen, self.rare(x[chosen])) if len(chosen) else y


class Buffers(nn.Module):
    """Buffers of two kinds, a parameter of its own without a dimension, and a layer two levels down."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.inner = nn.ModuleDict({"body": Plain(width)})
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.zeros(OUTPUTS, 1), persistent=False)

    def forward(self, x):
        return self.inner["body"](x - self.mean) * self.scale + self.shift[:, 0]


MODELS = {
    "plain": Plain,
    "frozen": Frozen,
    "unused": Unused,
    "tied": Tied,
    "routed": Routed,
    "buffers": Buffers,
}
WORDS = {
    "plain": "two layers",
    "routed": "a layer that only one rank uses",
    "frozen": "a frozen layer",
    "tied": "two layers with one matrix",
    "unused": "a layer that no rank uses",
    "buffers": "a module with buffers",
}


def state(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name, what is shared once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class Model(NamedTuple):
    """How to build a model: the values travel, the class is looked up by its name."""

    kind: str
    width: int
    values: dict[str, Tensor]

    def build(self) -> nn.Module:
        module = MODELS[self.kind](self.width).to(self.values_dtype)
        with torch.no_grad():
            for name, tensor in state(module).items():
                tensor.copy_(self.values[name])
        return module

    @property
    def values_dtype(self) -> torch.dtype:
        return next(v.dtype for v in self.values.values() if v.is_floating_point())


def drawn(
    kind: str, rng: torch.Generator, dtype: torch.dtype = torch.float64, width: int | None = None
) -> Model:
    """A model with random values, and of random width unless told."""
    width = width or int(torch.randint(4, 9, (), generator=rng))
    values = {name: _random(t, rng, dtype) for name, t in state(MODELS[kind](width)).items()}
    return Model(kind, width, values)


def _random(like: Tensor, rng: torch.Generator, dtype: torch.dtype) -> Tensor:
    if not like.is_floating_point():
        return torch.randint(1, 1000, like.shape, generator=rng)
    return torch.randn(like.shape, generator=rng, dtype=torch.float64).to(dtype)


def samples(
    count: int, rank: int, rng: torch.Generator, dtype: torch.dtype = torch.float64, user: int = 0
) -> tuple[Tensor, Tensor]:
    """Inputs (count, 3) and targets (count, 2) of `rank`; the first number is above zero on rank `user` only."""
    x = torch.randn(count, INPUTS, generator=rng, dtype=torch.float64)
    x[:, 0] = (x[:, 0].abs() + 0.1) * (1 if rank == user else -1)
    return x.to(dtype), torch.randn(count, OUTPUTS, generator=rng, dtype=torch.float64).to(dtype)


def one_of(n: int, rng: torch.Generator) -> int:
    """A rank; not rank 0, which is special anyhow, if there are others."""
    return int(torch.randint(min(1, n - 1), n, (), generator=rng))


def grads(module: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient by name."""
    return {name: p.grad for name, p in module.named_parameters()}


def gradient(model: Model, x: Tensor, y: Tensor, loss_fn=mse_loss) -> dict[str, Tensor | None]:
    """What the serial program finds: the gradient of the mean loss of these samples. None where nothing is reached."""
    module = model.build()
    if len(x):
        loss_fn(module(x), y).backward()
    return grads(module)


def filled(
    model: Model, parts: list[tuple[Tensor, Tensor]], name: str, loss_fn=mse_loss
) -> list[Tensor]:
    """Each rank's own gradient of a parameter, zeros where nothing reaches it."""
    own = [gradient(model, *part, loss_fn)[name] for part in parts]
    return [torch.zeros_like(model.values[name]) if g is None else g for g in own]


def together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The samples of all ranks, in rank order."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def trainable(model: Model) -> list[Tensor]:
    """The parameters that are trained, what is shared once."""
    return [p.detach() for p in model.build().parameters() if p.requires_grad]
