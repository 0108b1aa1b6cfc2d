"""The MLP: its layers and shapes."""

import pytest
import torch
from torch import nn

from minidist.models import mlp


def test_layers_and_shapes():
    model = mlp([64, 128, 10])
    assert [tuple(p.shape) for p in model.parameters()] == [(128, 64), (128,), (10, 128), (10,)]
    assert all(
        isinstance(layer, kind)
        for layer, kind in zip(model, (nn.Linear, nn.ReLU, nn.Linear), strict=True)
    )
    assert model(torch.zeros(3, 64)).shape == (3, 10)
    assert mlp([4, 5, 6, 7])[-1].out_features == 7


def test_one_size_is_too_few():
    with pytest.raises(ValueError, match=r"2 sizes.*1: \[64\]"):
        mlp([64])


def test_meta_needs_no_memory():
    model = mlp([10**6, 10**6], device="meta")
    assert all(p.is_meta for p in model.parameters())
