"""The formulas say what the blocks send, byte for byte; neither is computed from the other."""

import functools

import pytest
import torch

from minidist.comm import World
from minidist.parallel.tensor import (
    RowFirstMLP,
    TensorAttention,
    TensorLayer,
    TensorMLP,
    block_bytes,
    layer_bytes,
    row_first_bytes,
)

BATCH = 2
TOKENS = 60
HIDDEN = 20  # 10 heads, and 4H over 3 ranks, are uneven
BLOCKS = {
    "mlp": (TensorMLP, block_bytes),
    "attention": (functools.partial(TensorAttention, heads=10), block_bytes),
    "layer": (functools.partial(TensorLayer, heads=10, kv_heads=5), layer_bytes),
    "row first": (RowFirstMLP, row_first_bytes),
}
SPLITS = [{}, dict(sequence=True), dict(sequence=True, regather=True)]


def sent(n, make, backward, dtype, **options):
    def program(comm):
        tokens = TOKENS // (comm.size if options else 1)
        x = torch.ones(BATCH, tokens, HIDDEN, dtype=dtype, requires_grad=True)
        y = make(HIDDEN, comm=comm, dtype=dtype, **options)(x)
        if backward:
            y.sum().backward()

    return World(n).run(program).trace.bytes_sent()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_bytes(n):
    dtype = torch.float64 if n % 2 else torch.bfloat16
    for name, (make, formula) in BLOCKS.items():
        for options in SPLITS[: 1 if name == "row first" else 3]:
            said = formula(n, BATCH, TOKENS, HIDDEN, dtype.itemsize, **options)
            assert sent(n, make, True, dtype, **options) == said.total, (name, options)
            assert n != 3 or sent(n, make, False, dtype, **options) == said.forward, (name, options)


def test_the_ways_compared():
    """Column first sends 4/15 of what rows first do; a sequence split sends the same activations."""
    column, rows = block_bytes(4, 8, 128, 512, 2), row_first_bytes(4, 8, 128, 512, 2)
    assert 15 * column.total == 4 * rows.total and column.forward == column.backward
    split, whole = (layer_bytes(4, 8, 128, 512, 2, sequence) for sequence in (True, False))
    assert split.forward == whole.forward and split.backward - whole.backward == 2 * 3 * 6 * 512 * 2
