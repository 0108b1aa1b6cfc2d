"""What an MLP and a ResNet keep, against autograd's own, byte for byte."""

import pytest
import torch

from minidist.models import mlp, resnet
from tests.study.predict.kept import kept
from tests.study.predict.saved import saved_mlp, saved_resnet


@pytest.mark.parametrize("sizes", [[10, 5], [10, 20, 5], [7, 3, 9, 4, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_mlp(sizes, dtype):
    model, x = mlp(sizes, dtype=dtype), torch.randn(6, sizes[0], dtype=dtype)
    assert saved_mlp(sizes, 6, dtype).total == kept(model, lambda: model(x))


@pytest.mark.parametrize(
    ("dtype", "device"),
    [
        (torch.float32, "cpu"),
        (torch.float32, "meta"),
        (torch.bfloat16, "meta"),
        (torch.float64, "cpu"),
    ],
)
@pytest.mark.parametrize(
    ("words", "batch", "size"),
    [
        (dict(depth=18, width=4), 2, 40),
        (dict(depth=18, width=4, small=True, classes=10, channels=1), 3, 9),
        (dict(depth=34, width=4), 1, 45),
        (dict(depth=50, width=4), 2, 33),
    ],
)
def test_resnet(words, batch, size, dtype, device):
    model = resnet(**words, dtype=dtype, device=device)
    x = torch.randn(batch, words.get("channels", 3), size, size, dtype=dtype).to(device)
    ours = saved_resnet(batch=batch, size=size, dtype=dtype, device=device, **words)
    assert ours.total == kept(model, lambda: model(x))


@pytest.mark.parametrize("depth", [50, 152])
def test_at_the_size_of_imagenet(depth):
    model, x = resnet(depth, device="meta"), torch.empty(16, 3, 224, 224, device="meta")
    ours = saved_resnet(depth, 16)
    assert ours.total == kept(model, lambda: model(x))
    assert ours.total > 5 * sum(4 * p.numel() for p in model.parameters())
    assert "group 3" in repr(ours)


def test_another_depth():
    with pytest.raises(ValueError, match="152, not 20"):
        saved_resnet(20, 1)
