"""The residual network: its published sizes and shapes, and that it learns."""

import pytest
import torch
import torch.nn.functional as F

from minidist.models import resnet


@pytest.mark.parametrize(
    ("depth", "params"),
    [
        # He et al. 2016, as torchvision's checkpoints have them.
        (18, 11_689_512),
        (34, 21_797_672),
        (50, 25_557_032),
        (101, 44_549_160),
        (152, 60_192_808),
    ],
)
def test_parameters(depth, params):
    model = resnet(depth, device="meta")
    assert sum(p.numel() for p in model.parameters()) == params
    layers = [
        name
        for name, m in model.named_modules()
        if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))
    ]
    assert len([name for name in layers if "shortcut" not in name]) == depth


def test_shapes_at_the_size_of_imagenet():
    model, seen = resnet(50, device="meta"), []
    for block in model.blocks:
        block.register_forward_hook(lambda m, x, y: seen.append(tuple(y.shape[1:])))
    assert model(torch.empty(8, 3, 224, 224, device="meta")).shape == (8, 1000)
    assert list(dict.fromkeys(seen)) == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]


def test_small_images_learn_and_running_means_follow():
    model = resnet(18, classes=4, channels=1, width=4, small=True)
    assert all(
        m.running_var.eq(1).all() and m.running_mean.eq(0).all() and m.num_batches_tracked == 0
        for m in model.modules()
        if isinstance(m, torch.nn.BatchNorm2d)
    )
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert model.stem[1].num_batches_tracked == 12 and not model.stem[1].running_mean.eq(0).any()


def test_a_block_is_a_sum():
    block = resnet(50, width=4).blocks[1].eval()
    x = torch.randn(1, 16, 5, 5).relu()
    with torch.no_grad():
        block.convs[-1][1].weight.zero_()
        assert torch.equal(block(x), x)


def test_another_depth():
    with pytest.raises(ValueError, match=r"18, 34, 50, 101, 152, not 20"):
        resnet(20)
