"""A GPT as a list of its parts, to be cut into stages: embedding, L layers, head.

    parts = sequence(gpt(layers=6, …))       nn.Sequential of 8 parts, the model's own modules and parameters
    stage = parts[2:5]                       what one stage of a pipeline holds

The head projects with the token embedding where the model is tied, so that parameter is in the first part and in the
last: whoever cuts between them has two copies, to be kept equal. No part needs another: a stage is made alone, with
the numbers that the whole model would have had.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from minidist.models.gpt import GPT
from minidist.models.seeds import initial_


class Embedding(nn.Module):
    """The first part: token numbers (B, T) to (B, T, H). ValueError for more than `context` tokens."""

    def __init__(self, model: GPT):
        super().__init__()
        self.tokens = model.tokens
        self.positions = model.positions
        self.dropout = model.dropout
        self.context = model.context

    forward = GPT.embed


class Head(nn.Module):
    """The last part: (B, T, H) to logits (B, T, V), with a head of its own or the tokens' embedding."""

    def __init__(self, model: GPT):
        super().__init__()
        self.norm = model.norm
        self.head = model.head
        self.tokens = None if model.head else model.tokens

    forward = GPT.project


def sequence(model: GPT) -> nn.Sequential:
    """The parts of `model`, which compute the same, (B, T) to (B, T, V), with its own modules and parameters."""
    return nn.Sequential(Embedding(model), *model.layers, Head(model))


def names(model: GPT) -> dict[str, str]:
    """{name in `sequence(model)`: name in `model`} of every parameter, the tied one once for each part that has it."""
    own = {p: name for name, p in model.named_parameters()}
    return {name: own[p] for name, p in sequence(model).named_parameters(remove_duplicate=False)}


@torch.no_grad()
def stage_of(model: GPT, first: int, end: int, seed: int = 0, device: str = "cpu") -> nn.Sequential:
    """Parts `first` to `end` − 1 of a GPT on the meta device, on `device` with their initial values, and no others.

    `stage_of(gpt(…, device="meta"), 2, 5)` has the numbers of `sequence(gpt(…))[2:5]`. The model stays as it is.
    Raises ValueError for parts that there are not.
    """
    parts = sequence(model)
    known = names(model)
    made = {}
    if not 0 <= first <= end <= len(parts):
        raise ValueError(f"there are no parts {first} to {end} of a model of {len(parts)} parts")
    stage = deepcopy(parts[first:end])
    for name, p in list(stage.named_parameters(remove_duplicate=False)):
        whole = known[name]  # a slice of nn.Sequential keeps the numbers of its parts
        if whole not in made:
            values = initial_(torch.empty_like(p, device=device), seed, whole)
            made[whole] = nn.Parameter(values, p.requires_grad)
        owner, _, last = name.rpartition(".")
        setattr(stage.get_submodule(owner), last, made[whole])
    return stage
