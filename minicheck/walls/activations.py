"""The exercise of lesson 01, The walls, about activations: what an MLP's forward keeps for its backward.

The right number is not calculated here: autograd is asked, on tensors without data, what it saves.
"""

from __future__ import annotations

from itertools import pairwise, product

import torch

from minidist.comm.base import Comm

from ..exam import Case, ask
from ..wrong import Wrong
from . import oracle
from .figures import Sheet, whole

# hidden layers, bytes a number
SHAPES = ((3, 4), (1, 4), (2, 2), (0, 4), (5, 8), (4, 2), (0, 2), (1, 8))


class ActivationBytes(Sheet):
    name = "activation_bytes"
    right = "16 MLPs, 0 to 5 hidden layers, relu and gelu, 2, 4 and 8 bytes a number: what autograd saves, to the byte."
    cases = tuple(
        Case(
            1,
            f"{hidden} hidden layer{'s' * (hidden != 1)}, {word}, {itemsize} bytes a number",
            (hidden, word, itemsize),
        )
        for (hidden, itemsize), word in product(SHAPES, oracle.ACTIVATIONS)
    )

    def draw(self, case, rng):
        hidden, word, itemsize = case.given
        batch, *sizes = torch.randint(2, 3000, (hidden + 3,), generator=rng).tolist()
        return [(batch, sizes, itemsize, word)]

    def run(self, comm: Comm, yours, batch, sizes, itemsize, word):
        return {"bytes": yours(batch, sizes, itemsize, word), "sizes": sizes}

    def judge(self, case, args, outcome):
        batch, sizes, itemsize, word = args[0]
        got = outcome.results[0]
        if got["sizes"] != sizes:
            raise Wrong("`sizes` was changed, and belongs to the caller.")
        name = f"for a batch of {batch} and sizes {sizes}, the result"
        want = oracle.kept(*args[0])
        whole(got["bytes"], want, name, _looks(want, batch, sizes, itemsize, word))


def _looks(want: int, batch: int, sizes: list[int], itemsize: int, word: str) -> dict[str, int]:
    row = batch * itemsize
    hidden = row * sum(sizes[1:-1])
    out = row * sizes[-1]
    first = row * sizes[0]
    weights = itemsize * sum(a * b + b for a, b in pairwise(sizes))
    once, twice = hidden + out, 2 * hidden + out
    slips = {
        "A number has the bytes that are given: 4 only in fp32.": want // itemsize * 4,
        "A number has the bytes that are given: 2 only in fp16.": want // itemsize * 2,
        "gelu keeps its input, and the next layer keeps gelu's output: two tensors a hidden layer.": once,
        "relu keeps its output, which is the next layer's input: one tensor, not two.": twice,
        "The last layer's output is missing: mse_loss keeps it.": want - out,
        "The last layer has no activation function behind it: its output is kept once.": want
        + out * (word == "gelu"),
        "The input x is the batch itself, and not counted.": want + first,
        "x and y are the batch itself, and not counted.": want + first + out,
        "The input x is not counted, and mse_loss keeps the last layer's output.": want
        + first
        - out,
        "Weights are model states, not activations.": want + weights,
        "Those are numbers: multiply with their bytes.": want // itemsize,
        "That is for one sample: the batch has more.": want // batch,
        "Is it the weights? They are model states: outputs are asked for.": weights,
        "Only the largest layer? Forward keeps all layers.": row * max(sizes[1:]),
        "Only the largest hidden layer? Forward keeps all layers.": row
        * max(sizes[1:-1], default=0),
        "Only the last layer's output? Forward keeps all layers.": out,
        "The last hidden layer is missing.": want - row * (sizes[-2] if len(sizes) > 2 else 0),
        "The gradients of outputs come in backward, one at a time, and are not kept.": 2 * want,
    }
    return {text: value for text, value in slips.items() if value != want}


def activation_bytes(yours) -> None:
    """`activation_bytes(batch, sizes, itemsize, activation)`: bytes that an MLP's forward keeps for its backward."""
    ask(ActivationBytes(), yours)
