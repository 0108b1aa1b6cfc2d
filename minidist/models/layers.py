"""The parts of models, built without values where there is nothing to hold them.

nn.Linear draws its initial values at once, also on the device "meta", where they are lost: a World charges the model's
builder for them. These draw them only where they are kept. `seeded_` gives the models of this package their own.
"""

from __future__ import annotations

from torch import nn


class _Bare(nn.Module):
    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class Linear(_Bare, nn.Linear):
    """nn.Linear; on the device "meta" nothing is drawn."""


class Embedding(_Bare, nn.Embedding):
    """nn.Embedding; on the device "meta" nothing is drawn."""


class LayerNorm(_Bare, nn.LayerNorm):
    """nn.LayerNorm; on the device "meta" nothing is filled."""


class Conv2d(_Bare, nn.Conv2d):
    """nn.Conv2d; on the device "meta" nothing is drawn."""


class BatchNorm2d(_Bare, nn.BatchNorm2d):
    """nn.BatchNorm2d; on the device "meta" nothing is filled."""
