"""What autograd keeps of `models.mlp` and `models.resnet`, byte by byte.

A linear layer or a convolution keeps its input, ReLU its output, which is the next one's input: counted once. Batch
norm keeps its input too, the convolution's output: so a convolutional network holds every image twice at every depth,
and its activations outgrow its parameters with the second image or so (ResNet-50: 102 MB of parameters in fp32, and
86 MB for one image of 224 × 224). Max pooling keeps where each maximum was, 8 bytes. The loss is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minidist.models import BLOCKS, DEEP
from minidist.study.memory.items import Item, Items

INDEX = 8


def saved_mlp(sizes: Sequence[int], batch: int, dtype: torch.dtype = torch.float32) -> Items:
    """What `mlp(sizes)(x)` keeps for backward, x of (batch, sizes[0]) included."""
    inputs, *hidden, _ = [batch * size * dtype.itemsize for size in sizes]
    return Items(
        [Item("the batch", inputs), *(Item(f"ReLU {i}", b) for i, b in enumerate(hidden, 1))],
        f"an MLP, batch {batch}",
    )


def saved_resnet(
    depth: int,
    batch: int,
    size: int = 224,
    *,
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    small: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Items:
    """What `resnet(depth, ...)(x)` keeps for backward, images x of (batch, channels, size, size) included.

    The words are those of `models.resnet`. On a CPU norms keep statistics in `dtype`, elsewhere in fp32 at least.
    Raises ValueError for another depth.
    """
    if depth not in BLOCKS:
        raise ValueError(
            f"the depth of a ResNet is one of {', '.join(map(str, BLOCKS))}, not {depth}"
        )
    each, deep = dtype.itemsize, depth >= DEEP
    items = [Item("the batch", batch * channels * size**2 * each)]
    side = size if small else -(-size // 2)
    items.append(Item("stem", 2 * batch * width * side**2 * each))
    norms = width  # channels of all batch norms
    if not small:
        side = -(-side // 2)
        items.append(Item("pooling", batch * width * side**2 * (INDEX + each)))
    inputs = width
    for group, blocks in enumerate(BLOCKS[depth]):
        outputs, kept = (4 if deep else 1) * width * 2**group, 0
        for i in range(blocks):
            stride = 2 if group and i == 0 else 1
            elements, normed = _block(inputs, outputs, side, stride, deep)
            kept = kept + batch * elements * each
            norms = norms + normed
            inputs = outputs
            side = -(-side // stride)
        items.append(Item(f"group {group + 1}, {blocks} blocks, {side} × {side}", kept))
    items.append(
        Item(
            "means and deviations of batch norms",
            2 * norms * (each if device == "cpu" else max(each, 4)),
        )
    )
    items.append(Item("input of the classes", batch * inputs * each))
    return Items(items, f"ResNet-{depth}, {batch} × {size} × {size}")


def _block(inputs: int, outputs: int, side: int, stride: int, deep: bool) -> tuple[int, int]:
    """Elements that a block keeps of one image, and channels of its batch norms."""
    before, after = side**2, (-(-side // stride)) ** 2
    # Channels × pixels of each convolution's output, the last one's behind the sum.
    convs = (
        [(outputs // 4, before), (outputs // 4, after), (outputs, after)]
        if deep
        else [(outputs, after)] * 2
    )
    shortcut = [(outputs, after)] * (inputs != outputs or stride > 1)
    elements = sum(2 * c * pixels for c, pixels in convs) + sum(
        c * pixels for c, pixels in shortcut
    )
    return elements, sum(c for c, _ in convs + shortcut)
