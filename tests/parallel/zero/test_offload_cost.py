"""The formulas of offload, by hand, and against a World whose every second they know nothing of."""

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, Device, Level, World
from minidist.parallel.zero.offload import OffloadedOptimizer
from minidist.parallel.zero.offload_cost import memory, step_time, traffic, update_seconds
from minidist.study.predict import states
from minidist.study.published import published

WIDTH = 64
LAYERS = 6
BATCH = 32
FLOPS, ALPHA = 1e12, 1e-6
NUMBERS = LAYERS * WIDTH * WIDTH
PRODUCTS = LAYERS * 2 * BATCH * WIDTH * WIDTH / FLOPS  # of forward; backward has twice as many


def test_by_hand():
    """Forward 3 s, backward 6 s, two tensors, each 1 s down and 1 s up."""

    def takes(update, mode="exact", in_backward=False):
        return step_time(3, 6, update, 10, 2, 0.5, 0.1, mode, in_backward)

    assert takes(5) == 9 + 2 + 5 + 2
    assert takes(5, in_backward=True) == 9 + 1 + 5 + 2  # the last gradient comes down alone
    assert takes(5, "delayed") == 9 + 2 + 2  # the host is done before
    assert takes(12, "delayed") == 12 + 2 + 2
    assert takes(5, "delayed", True) == 9 + 2  # the last gradient meets the first parameter
    # the link never rests
    assert step_time(3, 6, 5, 100, 2, 0.0, 0.1, "exact", True) == 3 + 6 / 2 + 10 + 5 + 10


def test_memory_is_that_of_the_known_formulas():
    for moments, name in ((0, "sgd"), (1, "momentum"), (2, "adam")):
        known, ours = states(1000, name), memory(1000, moments=moments)
        assert (known.parameters, known.gradients, known.optimizer_states) == tuple(ours.values())
    assert memory(1000, low=8, wide=8)["host"] == 24_000 and traffic(1000, low=8) == {
        "down": 8000,
        "up": 8000,
    }


def test_a_published_figure():
    """What DeepSpeed's estimator says of 2851 million parameters with offload: a GPU holds 2Ψ bytes, for gradients
    leave it in backward."""
    rows = [row for row in published("zero") if row["stage"] == "offload_optimizer=cpu stage2"]
    row = next(row for row in rows if row["quantity"] == "per_gpu")
    assert memory(int(row["params"]))["parameters"] / 2**30 == pytest.approx(
        row["value"], abs=0.005
    )


def test_what_cannot_be():
    for wrong in ((1, "late"), (0, "exact")):
        with pytest.raises(ValueError, match=f"{wrong[1]!r} and {wrong[0]} were given"):
            step_time(1, 1, 1, 1, wrong[0], 0, 0, wrong[1])


def last_step(comm, mode, in_backward):
    """Layers alike, so that backward makes equal gradients at an even pace."""
    layers = [
        nn.Linear(WIDTH, WIDTH, False, device="meta", dtype=torch.float16) for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers)
    optimizer = OffloadedOptimizer(
        model.parameters(), torch.optim.SGD, comm, mode, 0, torch.float32, in_backward, lr=0.1
    )
    x, grad = (torch.empty(BATCH, WIDTH, device="meta", dtype=torch.float16) for _ in range(2))
    for _ in range(5):
        start = comm.now()
        optimizer.zero_grad()
        model(x.requires_grad_()).backward(grad)
        optimizer.step()
    return comm.now() - start


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("link", [5e9, 1e11])
@pytest.mark.parametrize("bandwidth", [2e9, 1e11])
def test_the_world_agrees(bandwidth, link, mode, in_backward):
    """A device and a host of nothing but products and bytes. SGD reads two numbers of 4 bytes and writes one."""
    device, host = (
        Device("products", {torch.float16: FLOPS}, 1 << 40, 1e30),
        Device("bytes", {}, 1 << 40, bandwidth),
    )
    cluster = Cluster.uniform(1, 0.0, 0.0, device, host, Level(ALPHA, 1 / link))
    measured = World(1, cluster=cluster, device="meta").run(last_step, mode, in_backward)[0]
    update = update_seconds(NUMBERS, 12, bandwidth)
    predicted = step_time(
        PRODUCTS, 2 * PRODUCTS, update, 2 * NUMBERS, LAYERS, ALPHA, 1 / link, mode, in_backward
    )
    assert measured == pytest.approx(predicted, rel=1e-9)
