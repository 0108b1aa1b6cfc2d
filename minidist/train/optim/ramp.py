"""A batch that grows: small while its gradient is good enough, large when it no longer is.

Early in training the gradients of few samples agree (see noise.py), so a small batch learns more from each token; and
it takes the steps that a later, larger one could not afford. GPT-3 grew from 32 K to 3.2 M tokens, linearly in the
tokens seen, over the first 4 to 12 billion of them.

    batch(t) = first + (last − first)·t/over        of t tokens seen; after `over`, last
    steps of the ramp: dt/dstep = batch(t), so about over/(last − first)·ln(last/first)

Source: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix B. A function of the tokens seen has no
state: to resume is to know how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator


def batch_ramp(
    first: int = 32_000, last: int = 3_200_000, over: float = 4e9, multiple: int = 1
) -> Callable[[float], int]:
    """The batch, in tokens, as a function of the tokens seen so far.

    multiple: what a batch is a multiple of, rounded down but at least one: ranks · sequences of a micro-batch · T.
    Raises ValueError unless 0 < multiple ≤ first ≤ last, and for a ramp over fewer than 0 tokens.
    """
    if not 0 < multiple <= first <= last or over < 0:
        raise ValueError(
            f"a batch of {first} does not grow to {last} over {over} tokens in multiples of {multiple}"
        )

    def batch(seen: float) -> int:
        share = min(1.0, seen / over) if over else 1.0
        return int(first + (last - first) * share) // multiple * multiple

    return batch


def batches(
    batch: Callable[[float], int], total: float, seen: int = 0
) -> Iterator[tuple[int, int]]:
    """(tokens seen before it, its tokens) of each step until `total` tokens are seen; `seen` of them already.

    The last one may go beyond `total`.
    """
    while seen < total:
        size = batch(seen)
        yield seen, size
        seen += size


def ramp_steps(first: float, last: float, over: float) -> float:
    """Steps of a linear ramp, about: over/(last − first)·ln(last/first), as if the batch grew within a step, too."""
    return over / last if first == last else over / (last - first) * math.log(last / first)
