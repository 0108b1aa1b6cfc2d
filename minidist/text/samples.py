"""Equal pieces of a text, shuffled anew in each epoch, in an order that is a function of one number.

    packed     a b c end d e end f g …         documents one behind the other: no padding, none is lost but a few
    epoch 0    │a b c end│d e end f│g …        pieces of T tokens, in random order
    epoch 1    a│b c end d│e end f g│…         shifted, so that a piece does not always begin at the same token

Sample k of a run is always the same piece, on however many data ranks it is trained: rank r takes its rows of each
batch. So what a checkpoint must remember is how many samples were seen, also in the middle of an epoch, and a run may
go on with another batch or on another number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..models.seeds import generator


def packed(texts: Iterable[str], tokenizer) -> Tensor:
    """The tokens of all texts, each followed by `tokenizer.end`: (tokens,) int32."""
    return torch.tensor(
        [t for text in texts for t in (*tokenizer.encode(text), tokenizer.end)], dtype=torch.int32
    )


def split(tokens: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """What to train on, and the last `share` of it, to test on. ValueError unless 0 ≤ share < 1."""
    if not 0 <= share < 1:
        raise ValueError(f"a share of the text to test on is from 0 to below 1, not {share}")
    kept = len(tokens) - round(share * len(tokens))
    return tokens[:kept], tokens[kept:]


class Samples:
    """Pieces of `length` tokens with the next token of each.

        samples = Samples(tokens, 1024, seed=0)
        x, y = samples(seen, 8)                # the 8 samples after the first `seen`: (8, 1024) int64 each

    epoch: pieces in one.  Raises ValueError where the text is too short for one.
    """

    def __init__(self, tokens: Tensor, length: int, seed: int = 0):
        self.tokens = tokens
        self.length = length
        self.seed = seed
        self.epoch = (len(tokens) - 1) // max(1, length)
        if length < 1 or self.epoch < 1:
            raise ValueError(f"{len(tokens)} tokens have no piece of {length} with a next token")
        self._places: tuple[int, Tensor] | None = None

    def __call__(self, seen: int, count: int) -> tuple[Tensor, Tensor]:
        """x and y, (count, length): y is x one token later."""
        starts = torch.tensor(
            [int(self._start(k)) for k in range(seen, seen + count)], dtype=torch.long
        )
        pieces = self.tokens[starts[:, None] + torch.arange(self.length + 1)].long()
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()

    def _start(self, sample: int) -> Tensor:
        """Where a sample begins in the text."""
        epoch, k = divmod(sample, self.epoch)
        if self._places is None or self._places[0] != epoch:
            self._places = epoch, self._shuffled(epoch)
        return self._places[1][k]

    def _shuffled(self, epoch: int) -> Tensor:
        random = generator(self.seed, f"epoch {epoch}")
        room = len(self.tokens) - 1 - self.epoch * self.length  # tokens that are left over
        shift = torch.randint(room + 1, (), generator=random)
        return torch.randperm(self.epoch, generator=random) * self.length + shift
