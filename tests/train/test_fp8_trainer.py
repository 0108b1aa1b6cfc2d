"""A GPT whose layers multiply in eight bits: on any grid as on one rank, and what loses without scales that fit."""

import functools

import pytest
import torch

from minidist.comm import World
from minidist.comm.mesh import Mesh
from minidist.models import gpt, next_token_loss
from minidist.parallelize import parallelize
from minidist.study.predict import amax_bytes
from minidist.train.fp8 import eight_bits_
from tests import parallelized
from tests.parallelized import SHAPE, adam, data, gaps, held, mine, ranks, train

WIDER = SHAPE | dict(hidden=24)
STEPS = 2
# (dp, pp, tp), options. At dp 2 a rank's loss is the mean over half of the samples, and its gradients are twice as large:
# a power of two, which rounds to the same bits. At dp 3 they round otherwise (below).
CASES = {
    "dp 2, zero 3, recompute": ((2, 1, 1), dict(zero=3, recompute="full")),
    "tp 3, sequence": ((1, 1, 3), dict(sequence_parallel=True)),
    "pp 2, halves": ((1, 2, 1), dict(micro_batches=3, schedule="zb_h1")),
    "dp 2, pp 2, tp 2": ((2, 2, 2), dict(zero=1, micro_batches=3)),
    "dp 4": ((4, 1, 1), {}),
}


@functools.cache
def oracle(fp8, micro_batches, dp=1):
    """(losses, parameters) of one process: micro-batches in turn; dp: as many times the gradient, and so rounded."""
    model = gpt(**WIDER)
    for layer in model.layers:
        eight_bits_(layer, fp8)
    params = list(model.parameters())
    kinds = [p for p in params if p.dim() > 1], [p for p in params if p.dim() == 1]
    optimizer = adam([{"params": kinds[0]}, {"params": kinds[1], "weight_decay": 0.0}])
    losses = []
    for step in range(STEPS):
        x, y = data(step)
        loss = 0.0
        parts = [rows.tensor_split(micro_batches) for batch in (x, y) for rows in batch.chunk(dp)]
        for m in range(micro_batches):
            xs = torch.cat([rows[m] for rows in parts[:dp]])
            ys = torch.cat([rows[m] for rows in parts[dp:]])
            part = next_token_loss(model(xs), ys) * len(xs) / len(x)
            (part * dp).backward()
            loss += part.item()
        for p in params:
            p.grad /= dp
        torch.nn.utils.clip_grad_norm_(params, parallelized.CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def compare(run, name, fp8, figure):
    (dp, pp, tp), options = CASES[name]
    grid = dict(dp=dp, pp=pp, tp=tp)
    want = oracle(fp8, options.get("micro_batches", 1), dp)
    results = parallelized.RUNS[run](
        ranks(grid), train, grid, WIDER, options | dict(fp8=fp8), STEPS
    )
    loss, parameter = gaps(results, *want)
    assert loss < 1e-12 and parameter < 1e-10
    figure(
        f"{name}, by {fp8}, {run}: losses {loss:.0e}, parameters {parameter:.0e} from one process"
    )


@pytest.mark.parametrize(
    ("name", "fp8"),
    [(name, "tensor") for name in CASES]
    + [("dp 4", "row")]
    + [pytest.param(name, "row", marks=pytest.mark.full) for name in CASES if name != "dp 4"],
)
def test_any_grid_is_the_serial_run(name, fp8, figure):
    compare("world", name, fp8, figure)


def test_in_processes(figure):
    compare("processes", "dp 2, pp 2, tp 2", "tensor", figure)


def test_three_data_ranks(figure):
    """The gradients of a mean over a third of the samples are three times as large, and round otherwise: the serial
    run that multiplies its loss by 3 is the same run, the one that does not is another."""
    results = World(3).run(train, dict(dp=3, pp=1, tp=1), WIDER, dict(fp8="tensor"), STEPS)
    same, other = gaps(results, *oracle("tensor", 1, 3)), gaps(results, *oracle("tensor", 1))
    assert same[1] < 1e-10 and other[1] > 1e-6
    figure(
        f"dp 3: {same[1]:.0e} from the serial run with 3 times the loss, {other[1]:.0e} from that without"
    )


def mixed(comm, options):
    """Losses with parameters in fp32, and whether the layers' weights are still the same on all ranks."""
    mesh = Mesh(comm, dp=2, tp=2)
    engine = parallelize(
        gpt(**WIDER | dict(dtype=torch.float32), device="meta"), mesh, adam, **options
    )
    losses = []
    for step in range(3):
        x, y = (mine(mesh, both) for both in data(step))
        losses.append(engine.step(x, y, max_norm=1.0).item())
    return losses, [values for _, _, values in held(engine)], engine.scaler.skipped


@pytest.mark.parametrize(
    ("amp", "half"),
    [
        ("O1", torch.bfloat16),
        ("O2", torch.float16),
        pytest.param("O1", torch.float16, marks=pytest.mark.full),
        pytest.param("O2", torch.bfloat16, marks=pytest.mark.full),
    ],
)
def test_beside_mixed_precision(amp, half):
    run = lambda **options: World(4).run(mixed, dict(amp=amp, half=half) | options)
    exact, narrow = run(), run(fp8="tensor")
    losses = [result[0] for result in narrow]
    assert losses == [losses[0]] * 4
    for a, b in zip(
        narrow[0][1], narrow[2][1], strict=True
    ):  # the same tensor rank of both data ranks
        assert torch.equal(a, b)
    assert narrow[0][2] == exact[0][2]  # steps skipped
    assert losses[0] == pytest.approx(exact[0][0], rel=0.02)
    assert losses[0] != exact[0][0]


def overflow(comm):
    mesh = Mesh(comm, dp=2)
    engine = parallelize(
        gpt(**WIDER | dict(dtype=torch.float32), device="meta"),
        mesh,
        adam,
        amp="O1",
        half=torch.float16,
        fp8="tensor",
    )
    engine.scaler._scale = 2.0**40
    x, y = (mine(mesh, both) for both in data(0))
    before = [p.detach().clone() for p in engine.module.parameters()]
    engine.step(x, y)
    after = list(engine.module.parameters())
    return engine.scaler.skipped, all(map(torch.equal, before, after))


def test_an_overflow_is_not_rounded_away():
    """Values beyond E5M2 are cut off only where their scale is stale: an inf of fp16 still skips the step."""
    assert list(World(2).run(overflow)) == [(1, True)] * 2


def test_an_unknown_grain():
    with pytest.raises(ValueError, match="fp8 is one of 'tensor', 'row', 'block', not 'column'"):
        World(1).run(mixed_wrong)


def mixed_wrong(comm):
    parallelize(gpt(**SHAPE, device="meta"), Mesh(comm), adam, fp8="column")


def one_step(comm, grid, fp8):
    engine = parallelize(gpt(**WIDER, device="meta"), Mesh(comm, **grid), adam, fp8=fp8)
    engine.step(*(mine(engine.mesh, both) for both in data(0)))


@pytest.mark.parametrize("fp8", ["tensor", "row", "block"])
@pytest.mark.parametrize(
    "grid",
    [
        dict(dp=2, tp=2),
        pytest.param(dict(dp=3), marks=pytest.mark.full),
        pytest.param(dict(tp=3), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_bytes_of_a_step(grid, fp8, figure):
    """What eight bits add: agreement on the scales of four products a layer, and nothing else."""
    sent = [World(ranks(grid)).run(one_step, grid, how).trace.bytes_sent() for how in (None, fp8)]
    H, tokens = WIDER["hidden"], parallelized.BATCH * WIDER["context"]
    d, t = grid.get("dp", 1), grid.get("tp", 1)
    products = [(H, 3 * H, "column"), (H, H, "row"), (H, 4 * H, "column"), (4 * H, H, "row")]
    formula = WIDER["layers"] * sum(
        amax_bytes(inputs, outputs, tokens, d, t, split, fp8) for inputs, outputs, split in products
    )
    assert sent[1] - sent[0] == formula
    figure(f"{grid}, by {fp8}: {formula:,} bytes more of {sent[0]:,}, as by formula")
