"""The predictions: by hand, against the calculator's, against published figures, and against Worlds."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, Device, Level, World
from minidist.comm.cluster import H100
from minidist.models import mlp
from minidist.parallel import OffloadedOptimizer, ShardedOptimizer
from minidist.study.literature import published
from minidist.study.predict import (
    offload_kept,
    offload_step_seconds,
    offload_update_seconds,
    states,
    zero_kept,
    zero_peak,
    zero_traffic,
)

# ------------------------------------------------------------
# ZeRO.


HALF, FULL = (2, 4), (4, 4)


@pytest.mark.parametrize(
    ("stage", "sizes", "each", "shared"),
    [(1, HALF, 4, 12), (2, HALF, 2, 14), (3, HALF, 0, 16), (1, FULL, 8, 8), (2, FULL, 4, 12)],
)
def test_by_hand(stage, sizes, each, shared):
    """4Ψ + 12Ψ/n, 2Ψ + 14Ψ/n, 16Ψ/n; without masters 8Ψ + 8Ψ/n and 4Ψ + 12Ψ/n."""
    for n in (1, 2, 3, 4):
        assert (
            sum(zero_kept(stage, 1200, 1200 // n, *sizes).values())
            == each * 1200 + shared * 1200 // n
        )


@pytest.mark.parametrize("n", [1, 3, 64])
def test_the_calculator_agrees(n):
    for stage in (1, 2, 3):
        for precision, sizes in (("fp16", HALF), ("fp32", FULL)):
            said = states(192_000, "adam", precision, zero=stage, data=n)
            assert zero_kept(stage, 192_000, 192_000 // n, *sizes) == said.bytes


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("moments", [0, 1])
def test_where_ranks_own_unequal_parts(stage, moments):
    """Counted when the second backward has ended: no rank has a third."""

    def program(comm):
        model = mlp([7, 5, 3, 2], dtype=torch.float16, device="meta")
        parameters = list(model.parameters())
        x = torch.empty(4, 7, dtype=torch.float16, device="meta")
        optimizer = ShardedOptimizer(
            parameters,
            torch.optim.SGD,
            comm,
            stage,
            torch.float32,
            lr=0.1,
            momentum=0.9 * moments,
        )
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()
            end = comm.now()
            x.neg()  # so that the step begins later
            optimizer.step()
        return (
            end,
            sum(p.numel() for p in parameters),
            [sum(p.numel() for p in parameters if optimizer.owner(p) == r) for r in range(3)],
        )

    run = World(3, device="meta", cluster=Cluster.uniform(3, 5e-6, 1 / 50e9, H100)).run(program)
    assert run[0][1:] == (66, [35, 15, 16])
    for rank, (end, params, owned) in enumerate(run):
        live = run.trace.memory[rank].at(end)
        want = zero_kept(stage, params, owned[rank], moments=moments)
        assert {name: live[name] for name in want} == want


def test_another_stage_is_refused():
    with pytest.raises(ValueError, match="stages of ZeRO are 1, 2 and 3, not 4"):
        zero_kept(4, 8, 4)


def test_traffic():
    assert zero_traffic(1, 12, 4) == zero_traffic(2, 12, 4) == 18
    assert zero_traffic(3, 12, 1) == 0
    assert zero_traffic(3, 12, 4) == 27
    assert zero_traffic(3, 10, 3, frozen=4) == Fraction(76, 3)
    assert zero_traffic(2, 12, 4, replicas=3) == 18 + 4


def test_peak():
    assert zero_peak(100, 10, 7, 3, prefetch=0) == 100 + 10 + 7 + 3
    assert zero_peak(100, 10, 7, 3) == 100 + 20 + 14 + 3
    assert zero_peak(100, 10, 7, 3, prefetch=2) == 100 + 30 + 14 + 3


# ------------------------------------------------------------
# Offload. The World knows nothing of the formulas, nor they of its seconds.


WIDTH = 64
LAYERS = 6
BATCH = 32
FLOPS, ALPHA = 1e12, 1e-6
NUMBERS = LAYERS * WIDTH * WIDTH
PRODUCTS = LAYERS * 2 * BATCH * WIDTH * WIDTH / FLOPS  # of forward; backward has twice as many


def test_offload_by_hand():
    """Forward 3 s, backward 6 s, two tensors, each 1 s down and 1 s up."""

    def takes(update, mode="exact", in_backward=False):
        return offload_step_seconds(3, 6, update, 10, 2, 0.5, 0.1, mode, in_backward)

    assert takes(5) == 9 + 2 + 5 + 2
    assert takes(5, in_backward=True) == 9 + 1 + 5 + 2  # the last gradient comes down alone
    assert takes(5, "delayed") == 9 + 2 + 2  # the host is done before
    assert takes(12, "delayed") == 12 + 2 + 2
    assert takes(5, "delayed", True) == 9 + 2  # the last gradient meets the first parameter
    # the link never rests
    assert offload_step_seconds(3, 6, 5, 100, 2, 0.0, 0.1, "exact", True) == 3 + 6 / 2 + 10 + 5 + 10


def test_memory_is_that_of_the_known_formulas():
    for moments, name in ((0, "sgd"), (1, "momentum"), (2, "adam")):
        known, ours = states(1000, name), offload_kept(1000, moments=moments)
        assert (known.parameters, known.gradients, known.optimizer_states) == tuple(ours.values())
    assert offload_kept(1000, low=8, wide=8)["host"] == 24_000


def test_a_published_figure():
    """What DeepSpeed's estimator says of 2851 million parameters with offload: a GPU holds 2Ψ bytes, for gradients
    leave it in backward."""
    rows = [row for row in published("zero") if row["stage"] == "offload_optimizer=cpu stage2"]
    row = next(row for row in rows if row["quantity"] == "per_gpu")
    assert offload_kept(int(row["params"]))["parameters"] / 2**30 == pytest.approx(
        row["value"], abs=0.005
    )


def test_what_cannot_be():
    for wrong in ((1, "late"), (0, "exact")):
        with pytest.raises(ValueError, match=f"{wrong[1]!r} and {wrong[0]} were given"):
            offload_step_seconds(1, 1, 1, 1, wrong[0], 0, 0, wrong[1])


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
    cluster = Cluster("one", device, {"pcie": Level(ALPHA, 1 / link)}, host=host)
    measured = World(1, cluster=cluster, device="meta").run(last_step, mode, in_backward)[0]
    update = offload_update_seconds(NUMBERS, 12, bandwidth)
    predicted = offload_step_seconds(
        PRODUCTS, 2 * PRODUCTS, update, 2 * NUMBERS, LAYERS, ALPHA, 1 / link, mode, in_backward
    )
    assert measured == pytest.approx(predicted, rel=1e-9)
