"""What tensor-parallel layers keep for backward, as the meter counts it."""

import functools

import pytest
import torch

from minidist.comm import Cluster, World
from minidist.parallel.tensor import TensorLayer
from minidist.study import memory


def step(comm, count, sequence=False, regather=False):
    """A step of `count` layers, with dropout-free data (8, 240, 96) on the meta device."""
    blocks = [TensorLayer(96, 12, comm, sequence=sequence, regather=regather) for _ in range(count)]
    x = torch.empty(8, 240 // (comm.size if sequence else 1), 96, device="meta", requires_grad=True)
    for block in blocks:
        x = block(x)
    x.sum().backward()


NUMBERS = 24  # bytes that the fused attention keeps to draw its random numbers again


@functools.cache
def kept(n, *args):
    """Bytes of activations of rank 0 at its peak, for one layer more."""
    most = [
        World(n, cluster=Cluster.dgx_h100(), device="meta")
        .run(step, count, *args)
        .trace.memory[0]
        .at_peak
        for count in (1, 2)
    ]
    return most[1]["activations"] - most[0]["activations"]


@pytest.mark.parametrize("n", [2, 3])
def test_what_is_kept_between_blocks_is_divided(n):
    """Whole: two norms' inputs and outputs. Split between blocks: their inputs are. Regathered: everything is."""
    serial_layer, data = kept(1) - NUMBERS, 8 * 240 * 96 * 4
    statistics = 2 * 2 * 8 * 240 * 4  # mean and deviation of two norms
    inside = serial_layer - 4 * data - statistics
    assert kept(n) - NUMBERS == 4 * data + statistics + inside // n
    assert kept(n, True) - NUMBERS == 2 * data + (2 * data + statistics + inside) // n
    assert kept(n, True, True) - NUMBERS == serial_layer // n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_as_the_calculator_of_memory_says(n):
    """study.memory knows nothing of these layers; its sequence parallelism is the paper's, which gathers again."""
    model = memory.Transformer(layers=1, hidden=96, heads=12, vocab=1, context=240)
    for split in (False, True):
        said = memory.saved_layer(
            model, 8, dtype=torch.float32, device="meta", tensor=n, sequence=split
        )
        assert kept(n, split, split) == said.total
