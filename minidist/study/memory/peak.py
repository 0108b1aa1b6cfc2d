"""The peak of a training step of `models.gpt`: at its turning point, when the loss sends its gradient back.

    forward   activations pile up, to the last logits
    turn      all of them, and the gradient of the logits twice: of the loss, and of the softmax before it
    backward  activations go, gradients of parameters come

The turn is the peak where a layer's activations outweigh its gradients, B·T·H·34 against 12H² elements: nearly always.
It is what `study.meter` finds; in between only the words differ, gradients of activations are "other" there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidist.study.memory.items import Totals
from minidist.study.memory.saved import saved
from minidist.study.memory.states import states
from minidist.study.memory.transformer import Transformer, parameter_tensors, parameters


@dataclass(frozen=True)
class Peak(Totals):
    """Bytes that are live when the loss sends its gradient back."""

    parameters: int
    optimizer_states: int
    activations: int
    gradients_of_logits: int


def peak(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    attention: str = "sdpa",
    device: str = "cpu",
    optimizer: str | None = "adam",
) -> Peak:
    """Bytes at the peak of a step of `models.gpt` with `next_token_loss`, all in `dtype`, one process.

    Gradients of parameters were set to None before. optimizer: one of torch's that has made a step already, or
    None. The other words are those of `saved`. Raises ValueError for a dtype of other than 2 or 4 bytes.
    """
    precision = {2: "all 16 bits", 4: "fp32"}.get(dtype.itemsize)
    if precision is None:
        raise ValueError(f"a parameter has 2 or 4 bytes here, not the {dtype.itemsize} of {dtype}")
    tensors = parameter_tensors(model) if device == "cpu" else 0
    kept = states(parameters(model), optimizer or "sgd", precision, tensors=tensors)
    rows = batch * (model.context if tokens is None else tokens)
    return Peak(
        kept.parameters,
        kept.optimizer_states,
        saved(
            model, batch, tokens, dtype=dtype, dropout=dropout, attention=attention, device=device
        ).total,
        2 * 4 * rows * model.vocab + 4,  # in fp32, and of the loss itself
    )
