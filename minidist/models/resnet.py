"""A residual network: convolutions with batch norm, whose activations outweigh its parameters by far.

    image (B, 3, 224, 224) → stem 7×7/2, pool → 4 groups of blocks, each half as high and twice as wide → classes
    block: x + conv(relu(conv(x))), and for depth 50 and more x + 1×1(relu(3×3(relu(1×1(x)))))

He et al. 2016, "Deep Residual Learning for Image Recognition", Table 1; the stride of a deep block is in its
3×3, as torchvision has it. ResNet-50 has 25,557,032 parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidist.models.layers import BatchNorm2d, Conv2d, Linear
from minidist.models.seeds import made

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each of the four groups, by depth."""

DEEP = 50
"""From this depth on a block narrows to a quarter and widens again."""


class ConvNorm(nn.Sequential):
    """A convolution without bias, and batch norm."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, **like):
        super().__init__(
            Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False, **like),
            BatchNorm2d(outputs, **like),
        )


class Block(nn.Module):
    """(B, inputs, h, w) to (B, outputs, h/stride, w/stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int, deep: bool, **like):
        super().__init__()
        narrow = outputs // 4
        shapes = (
            [(inputs, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, outputs, 1, 1)]
            if deep
            else [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        )
        self.convs = nn.ModuleList(ConvNorm(*shape, **like) for shape in shapes)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, **like)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for conv in self.convs[:-1]:
            y = F.relu(conv(y))
        return F.relu(self.convs[-1](y) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (B, channels, h, w) to logits (B, classes). `resnet` builds one with its initial values."""

    def __init__(self, depth: int, classes: int, channels: int, width: int, small: bool, **like):
        super().__init__()
        self.small, deep = small, depth >= DEEP
        self.stem = (
            ConvNorm(channels, width, 3, 1, **like)
            if small
            else ConvNorm(channels, width, 7, 2, **like)
        )
        blocks, inputs = [], width
        for group, number in enumerate(BLOCKS[depth]):
            outputs = (4 if deep else 1) * width * 2**group
            for i in range(number):
                blocks.append(Block(inputs, outputs, 2 if group and i == 0 else 1, deep, **like))
                inputs = outputs
        self.blocks, self.fc = nn.Sequential(*blocks), Linear(inputs, classes, **like)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x if self.small else F.max_pool2d(x, 3, stride=2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))  # (B, classes)


def resnet(
    depth: int = 50,
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    small: bool = False,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> ResNet:
    """A ResNet-18, -34, -50, -101 or -152 with its initial values.

    width: channels of the first group. small: for images of a few pixels (3×3 stem, no pooling), as
    `resnet(18, classes=10, channels=1, width=8, small=True)` for digits of 8 × 8.
    Raises ValueError for another depth.
    """
    if depth not in BLOCKS:
        raise ValueError(
            f"the depth of a ResNet is one of {', '.join(map(str, BLOCKS))}, not {depth}"
        )
    model = made(
        ResNet(depth, classes, channels, width, small, dtype=dtype, device="meta"), seed, device
    )
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            module.reset_parameters()  # its statistics; scale and shift are these values, too
    return model
