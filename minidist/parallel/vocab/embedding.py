"""An embedding whose V rows lie on n ranks, and the projection to the vocabulary that is tied to it.

A rank looks up the tokens whose rows it holds and gives zeros for the others: the sum over the ranks is the
embedding, exactly, since all but one term of it are zero.

    forward    look up, mask, all-reduce (…, H)            2(n−1)/n·tokens·H numbers by a ring; backward: nothing
    project    x · own rowsᵀ → (…, V/n), no message        backward: all-reduce of dx, as many numbers

So a rank holds V/n·H numbers, and as many gradients. The logits stay split: `vocab_cross_entropy` takes them so.
Source: Shoeybi et al. 2019, "Megatron-LM", section 3. Invariant: put together in rank order, the rows
are those of one rank, at the start and after every step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...comm.base import Comm
from ...split import bounds, uneven
from ..tensor.operators import copy_to, reduce_from
from ..tensor.parts import Cut, join, parameter
from .tokens import check_tokens


class VocabEmbedding(nn.Module):
    """`nn.Embedding(vocab, hidden)` split by rows: token numbers (…) to (…, H), the same on every rank.

    weight: this rank's rows, (V_r, H), V_r = `uneven(vocab, n)[rank]`, which n need not divide and which may be 0.
    seed, name: of the initial value; as they stand, the rows are those of `models.gpt`'s token embedding. To begin
    with, every rank draws all V rows, a block at a time, and keeps its own.
    dtype, device: as for nn.Embedding; the Comm's device.

    The gradient of an output that is the same on all ranks, and used alike by them, is the serial one.
    Raises ValueError for fewer than 1 row or column, and in `forward` for what is no token.
    """

    def __init__(
        self,
        vocab: int,
        hidden: int,
        comm: Comm,
        seed: int = 0,
        name: str = "tokens",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__()
        if vocab < 1 or hidden < 1:
            raise ValueError(
                f"an embedding has at least 1 row and 1 column, not {vocab} and {hidden}"
            )
        self.vocab = vocab
        self.hidden = hidden
        self.comm = comm
        cut = Cut(0, uneven(vocab, comm.size))
        self.first, self.end = bounds(cut.sizes)[comm.rank]
        self.weight = parameter(
            (vocab, hidden), cut, comm, seed, join(name, "weight"), dtype, device
        )
        self.cuts = {"weight": cut}

    def forward(self, tokens: Tensor) -> Tensor:  # (…) → (…, H)
        check_tokens(tokens, self.vocab, "token")
        return reduce_from(self._own(tokens), self.comm)

    def _own(self, tokens: Tensor) -> Tensor:
        """The rows that this rank holds, and zeros for the rest."""
        if self.first == self.end:  # the sum of no rows: zeros with a gradient, of no rows
            return self.weight.sum(0).expand(*tokens.shape, self.hidden)
        elsewhere = (tokens < self.first) | (tokens >= self.end)
        rows = F.embedding((tokens - self.first).masked_fill(elsewhere, 0), self.weight)
        return rows.masked_fill(elsewhere[..., None], 0)  # not ·0, which keeps nan and inf of row 0

    def project(self, x: Tensor) -> Tensor:
        """This rank's part of the logits, x · weightᵀ: (…, H) → (…, V_r). `x` is the same on all ranks."""
        return F.linear(copy_to(x, self.comm), self.weight)

    def extra_repr(self) -> str:
        return f"{self.vocab}, {self.hidden}, {len(self.weight)} rows from {self.first} on rank {self.comm.rank}"
