"""Token numbers that come from a caller: whole, and of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from ...comm.base import describe


def check_tokens(tokens: Tensor, vocab: int, what: str, ignored: int | None = None) -> None:
    """ValueError unless `tokens` are whole numbers 0 … vocab−1, or `ignored`. Without values (meta) nothing is read."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(
            f"a {what} is the number of a token, a whole one, and these are {describe(tokens)}"
        )
    if tokens.is_meta:
        return
    outside = (tokens < 0) | (tokens >= vocab)
    if ignored is not None:
        outside &= tokens != ignored
    if outside.any():
        raise ValueError(
            f"{what} {tokens[outside][0].item()} is no token of a vocabulary of {vocab}: 0 to {vocab - 1}"
        )
