"""On any mesh the model trains as it does on one rank: losses and parameters, whatever is combined."""

import copy
import functools

import pytest
import torch

from minidist.checkpoint import Checkpoints, random_state, set_random_state
from minidist.comm import Cluster, World
from minidist.comm.mesh import Grid, Mesh
from minidist.models import gpt, materialize_, names, next_token_loss, sequence
from minidist.parallel.compress import Dense, PowerSGD, Sign
from minidist.parallel.schedules import Shape, gpipe, interleaved, zb_h1, zb_v
from minidist.parallel.tensor import split_
from minidist.parallel.vocab import TensorEmbedding, TensorHead
from minidist.parallelize import (
    Stages,
    parallelize,
    seed_,
    serial_name,
    stage_chunks,
)
from minidist.split import cuts
from minidist.study.predict import zero_traffic
from tests import parallelized
from tests.largest import largest
from tests.parallelized import (
    BATCH,
    CLIP,
    MODERN,
    SHAPE,
    adam,
    data,
    gaps,
    held,
    mine,
    ranks,
    serial,
    train,
)
from tests.size import FULL

EXPLICIT = SHAPE | dict(attention="explicit")
UNTIED = MODERN | dict(tied=False)
LLAMA = UNTIED | dict(bias=False, norm="rms", eps=1e-3, theta=100.0)

# dp, pp, tp, and cp if there is one; the model; the options
CASES = {
    "one rank": ((1, 1, 1), SHAPE, dict(micro_batches=5)),
    "one rank, zero 3": ((1, 1, 1), MODERN, dict(zero=3, recompute="full")),
    "dp 2, pp 2, overlapped": ((2, 2, 1), UNTIED, dict(micro_batches=2)),
    "dp 2, pp 2, zero 2, uneven stages": (
        (2, 2, 1),
        SHAPE | dict(context=50),
        dict(zero=2, micro_batches=2),
    ),
    "pp 2": ((1, 2, 1), SHAPE, dict(micro_batches=3)),
    "tp 2": ((1, 1, 2), MODERN, dict(sequence_parallel=True, recompute="full")),
    "pp 3, whole stages again": ((1, 3, 1), UNTIED, dict(micro_batches=2, recompute="stage")),
    "dp 2, pp 2, zero 1, halves": ((2, 2, 1), SHAPE, dict(micro_batches=3, zero=1, schedule=zb_h1)),
    "dp 2, pp 2, zero 2, V": (
        (2, 2, 1),
        SHAPE,
        dict(micro_batches=2, zero=2, schedule=zb_v, chunks=2),
    ),
    "dp 2, pp 2, zero 3, interleaved": (
        (2, 2, 1),
        SHAPE,
        dict(micro_batches=4, zero=3, schedule=interleaved, chunks=2),
    ),
    "dp 2, tp 2, selective": ((2, 1, 2), EXPLICIT, dict(recompute="selective", zero=3)),
    "tp 4, more than groups": ((1, 1, 4), MODERN, {}),
    "dp 5, uneven": ((5, 1, 1), SHAPE, dict(zero=2, micro_batches=2)),
    "pp 2, tp 2": ((1, 2, 2), MODERN, dict(micro_batches=3, sequence_parallel=True)),
    "pp 2, tp 3": (
        (1, 2, 3),
        UNTIED,
        dict(micro_batches=2, sequence_parallel=True, recompute="full"),
    ),
    "dp 7, zero 3": ((7, 1, 1), SHAPE, dict(zero=3)),
    "cp 3": ((1, 1, 1, 3), SHAPE, {}),
    "cp 2, heads": ((1, 1, 1, 2), MODERN, dict(context_parallel="heads")),
    "dp 2, cp 3, uneven batches, zero 1": (
        (5, 1, 1, 3),
        MODERN,
        dict(zero=1, context_parallel="contiguous"),
    ),
    "tp 2, cp 3": ((1, 1, 2, 3), SHAPE, dict(recompute="full")),
    "dp 2, pp 2, cp 3, zero 2": (
        (2, 2, 1, 3),
        UNTIED,
        dict(zero=2, micro_batches=2, context_parallel="heads"),
    ),
    "pp 2, tp 2, cp 2, zero 3": (
        (1, 2, 2, 2),
        MODERN | dict(context=12),
        dict(zero=3, micro_batches=3, context_parallel="contiguous", recompute="full"),
    ),
    "dp 8, uneven, 2 replicas": ((8, 1, 1), SHAPE, dict(zero=3, replicas=2)),
    "dp 4, 2 replicas, tp 2": ((4, 1, 2), UNTIED, dict(zero=3, replicas=2, sequence_parallel=True)),
    "dp 4, pp 2, 2 replicas": (
        (4, 2, 1),
        SHAPE,
        dict(zero=3, replicas=2, micro_batches=2, recompute="full"),
    ),
    "dp 4, pp 2, 2 replicas, zero 1, halves": (
        (4, 2, 1),
        SHAPE,
        dict(zero=1, replicas=2, micro_batches=2, schedule=zb_h1),
    ),
    "dp 8, uneven, 4 replicas, zero 2": ((8, 1, 1), SHAPE, dict(zero=2, replicas=4)),
    "dp 2, pp 2, cp 2, 2 replicas, zero 2": (
        (2, 2, 1, 2),
        MODERN,
        dict(zero=2, replicas=2, context_parallel="contiguous", micro_batches=2),
    ),
    "a LLaMA": (
        (2, 2, 2),
        LLAMA,
        dict(micro_batches=2, zero=3, recompute="full", sequence_parallel=True),
    ),
    "dp 3, replicas alone": ((3, 1, 1), SHAPE, dict(zero=3, replicas=3)),
    "dp 2, tp 2, cp 2, 2 replicas": (
        (2, 1, 2, 2),
        MODERN,
        dict(zero=3, replicas=2, context_parallel="contiguous"),
    ),
    "zero 0": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=0, schedule=gpipe)),
    "zero 1": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=1, recompute="full")),
    "zero 2": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=2, recompute="full")),
    "zero 3": ((2, 2, 2), SHAPE, dict(micro_batches=3, zero=3, recompute="full")),
    "all at once": (
        (2, 2, 2),
        MODERN,
        dict(
            micro_batches=4,
            zero=3,
            recompute="full",
            sequence_parallel=True,
            schedule=interleaved,
            chunks=2,
        ),
    ),
}
STEPS = 2  # the second has the first's states; a third is no other
OUTSIDE = [
    ("processes", "dp 2, pp 2, zero 3, interleaved"),
    ("processes", "pp 2, tp 2"),
    ("processes", "dp 4, pp 2, 2 replicas"),
    ("processes", "dp 2, pp 2, cp 2, 2 replicas, zero 2"),
    ("gloo", "pp 2, tp 2"),
    ("processes", "tp 2, cp 3"),
]


@functools.cache
def oracle(shape):
    return parallelized.serial(dict(shape), STEPS)


def compare(run, name):
    sizes, shape, options = CASES[name]
    grid = dict(zip(("dp", "pp", "tp", "cp"), sizes, strict=False))
    results = parallelized.RUNS[run](ranks(grid), train, grid, shape, options, STEPS)
    losses, params = oracle(tuple(shape.items()))
    loss, parameter = parallelized.gaps(results, losses, params)
    assert loss < 1e-12, (name, loss)
    assert parameter < 1e-10, (name, parameter)  # AdamW divides by roots of squares, small ones too


@pytest.mark.parametrize("name", CASES)
def test_the_serial_run(name):
    compare("world", name)


@pytest.mark.parametrize(("run", "name"), OUTSIDE)
def test_in_processes(run, name):
    compare(run, name)


# ------------------------------------------------------------
# Hybrid sharding: what lies between nodes is a shard's gradients, and nothing else.


def backwards(comm, dp, replicas, count):
    """One backward in so many micro-batches; how many elements this rank holds."""
    mesh = Mesh(comm, dp=dp)
    ours = engine(mesh, zero=3, replicas=replicas, micro_batches=count)
    ours.backward(*(mine(mesh, both) for both in data(0)))
    return sum(p.numel() for p in ours.module.parameters())


@pytest.mark.parametrize(("s", "r"), [(2, 2), (3, 2), (2, 3), (1, 2)])
def test_bytes_between_nodes(s, r, figure):
    """Of a micro-batch more, which sends its gradients once more: in sum, as shards are not even."""
    sent = []
    for count in (1, 2):
        run = World(s * r)
        held_elements = run.run(backwards, s * r, r, count)
        within = across = 0
        for src in range(s * r):
            for dst in range(s * r):
                if src != dst:
                    nbytes = run.trace.bytes_sent(link=(src, dst))
                    within += nbytes * (src // s == dst // s)
                    across += nbytes * (src // s != dst // s)
        sent.append((within, across))
    params = sum(p.numel() for p in gpt(**SHAPE, device="meta").parameters())
    (within, across), n = [b - a for a, b in zip(*sent, strict=True)], s * r
    expected = 8 * n * zero_traffic(3, params, s), 8 * n * zero_traffic(3, params, s, replicas=r)
    figure(
        f"{s} shards × {r} replicas: {across} bytes between nodes, {within} within, of all ranks"
    )
    assert (within, within + across) == expected
    for first in range(0, n, s):  # each node has the model once
        assert sum(held_elements[first : first + s]) == params
        assert largest(held_elements) < params / s + 20


# ------------------------------------------------------------
# What a trainer asks of a model on a mesh beside its steps: to evaluate, to sample, to save, to go on elsewhere.


LOW = SHAPE | dict(dtype=torch.float32)


def engine(mesh, shape=SHAPE, **options):
    return parallelize(gpt(**shape, device="meta"), mesh, adam, **options)


def look(comm, grid, shape, options):
    """Differences from the serial model with the same values, none of them the initial ones."""
    mesh, model = Mesh(comm, **grid), gpt(**shape, seed=7)
    ours = parallelize(model, mesh, adam, **options)
    x, y = data(0)
    loss = next_token_loss(model(x), y).item()
    logits = mine(mesh, model(x))
    part = mine(mesh, x)
    shown = ours.logits(part)
    assert shown.shape == (*part.shape, SHAPE["vocab"]) and ours.module.training
    found = ours.evaluate(part, mine(mesh, y)), ours.backward(part, mine(mesh, y))
    return (shown - logits).abs().max().item(), *(one.item() - loss for one in found), shown


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (dict(pp=2, tp=3), dict(micro_batches=5)),
        (dict(dp=2, pp=2), dict(micro_batches=3, zero=3)),
        (dict(pp=2, tp=2, cp=3), dict(micro_batches=2, zero=1)),
        (dict(dp=2, pp=2), dict(micro_batches=4, schedule=interleaved, chunks=2, zero=1)),
    ],
)
def test_values_that_are_given_logits_and_losses(grid, options):
    results = World(ranks(grid)).run(look, grid, MODERN, options)
    for logits, evaluated, loss, _ in results:
        assert largest(logits, abs(evaluated), abs(loss)) < 1e-12


def looked_at(comm, grid, shape, options):
    """The loss of a batch of which some ranks have fewer samples than micro-batches, before any step."""
    mesh = Mesh(comm, **grid)
    x, y = (mine(mesh, both) for both in data(0))
    return engine(mesh, shape, micro_batches=3, **options).evaluate(x, y, len(x)).item()


@pytest.mark.parametrize(
    ("grid", "shape", "options"),
    [
        (dict(dp=5), MODERN, dict(zero=3)),
        (dict(dp=5), LOW, dict(fp8="tensor")),
        (dict(ep=5), SHAPE | dict(experts=5), {}),
    ],
    ids=("zero 3", "fp8", "experts"),
)
def test_ranks_with_few_samples_evaluate_as_often(grid, shape, options):
    """Where a forward sends messages, all ranks must have as many of them."""
    losses = World(5).run(looked_at, grid, shape, options)
    x, y = data(0)
    right = next_token_loss(gpt(**shape)(x), y).item()
    assert losses.count(losses[0]) == 5
    assert losses[0] == pytest.approx(right, rel=0.05 if "fp8" in options else 1e-12)


def rest(comm):
    """Dropout is off where nothing is trained, and on where it is: the same on all ranks that hold the same."""
    mesh = Mesh(comm, dp=2, pp=1, tp=2)
    ours = engine(mesh, MODERN | dict(dropout=0.3))
    x, y = (mine(mesh, both) for both in data(0))
    once, twice = ours.evaluate(x, y), ours.evaluate(x, y)
    losses = [ours.step(x, y).item() for _ in range(2)]
    values = {name: p.detach().clone() for name, p in ours.module.named_parameters()}
    return torch.equal(once, twice), losses, values, cuts(ours.module).keys()


def test_dropout():
    results = World(4).run(rest)
    assert all(quiet for quiet, *_ in results)
    losses = [losses for _, losses, *_ in results]
    assert losses.count(losses[0]) == 4 and losses[0][0] != losses[0][1]
    undropped, _ = serial(MODERN, 1)
    assert abs(losses[0][0] - undropped[0]) > 1e-3
    values, cut = [found for *_, found, _ in results], results[0][3]
    assert 0 < len(cut) < len(values[0])
    for name in values[0]:
        assert torch.equal(values[0][name], values[2][name]) and torch.equal(
            values[1][name], values[3][name]
        )
        assert torch.equal(values[0][name], values[1][name]) is (name not in cut), name


def part_of(comm, first, then, folder):
    """Two steps on one mesh, saved; then two on another."""
    if then is None:
        mesh, options = Mesh(comm, **first[0]), first[1]
    else:
        mesh, options = Mesh(comm, **then[0]), then[1]
    ours = engine(mesh, seed=0 if then is None else 3, **options)
    checkpoints = Checkpoints(folder, comm)
    losses = []
    if then is not None:
        ours.load(checkpoints.latest())
    for step in (0, 1) if then is None else (2, 3):
        x, y = (mine(mesh, both) for both in data(step))
        losses.append(ours.step(x, y, max_norm=CLIP).item())
    if then is None:
        checkpoints.save(2, ours.pieces())
    return losses, held(ours)


CUBE = dict(dp=2, pp=2, tp=2), dict(micro_batches=2, zero=2)
ELSEWHERE = [
    ({}, {}),
    (dict(pp=4), dict(micro_batches=3)),
    (dict(dp=2, tp=2), dict(zero=3)),
    (dict(dp=2, cp=3), dict(zero=3)),
    (dict(dp=4), dict(zero=3, replicas=2)),
    (dict(dp=4), dict(zero=1, replicas=2)),
]


HYBRID = dict(dp=4, pp=2), dict(micro_batches=2, zero=2, replicas=2)


@pytest.mark.parametrize(
    ("first", "elsewhere"),
    [(CUBE, ELSEWHERE), (HYBRID, ELSEWHERE if FULL else ELSEWHERE[:1])],
    ids=("cube", "hybrid"),
)
def test_saved_on_a_cube_and_resumed_elsewhere(first, elsewhere, tmp_path):
    losses, params = serial(SHAPE, 4)
    found = World(8).run(part_of, first, None, tmp_path)
    assert all(
        abs(a - b) < 1e-12 for before, _ in found for a, b in zip(before, losses[:2], strict=True)
    )
    for then in elsewhere:
        resumed = World(ranks(then[0])).run(part_of, first, then, tmp_path)
        loss, parameter = gaps(resumed, losses[2:], params)
        assert loss < 1e-12 and parameter < 1e-10, then


class Run:
    """All that a trainer keeps: dropout's random numbers, a loss scale that grows, a schedule."""

    def __init__(self, comm, seed):
        self.mesh = Mesh(comm, dp=2, pp=2)
        self.engine = engine(
            self.mesh,
            LOW | dict(dropout=0.1),
            amp="O2",
            half=torch.float16,
            zero=2,
            micro_batches=2,
            seed=seed,
        )
        self.engine.scaler.growth_interval = 2
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.engine.optimizer, lambda step: 1 / (1 + step)
        )

    def steps(self, *numbers):
        losses = []
        for number in numbers:
            losses.append(
                self.engine.step(
                    *(mine(self.mesh, both) for both in data(number)), max_norm=CLIP
                ).item()
            )
            self.schedule.step()
        return losses


def stop_and_go(comm, folder):
    """Four steps; two, saved, and two more in a run that began otherwise: losses, and what is held, of both."""
    whole = Run(comm, 0)
    first = Run(comm, 0)
    second = Run(comm, 1)
    checkpoints, found = Checkpoints(folder, comm), []
    set_random_state(start := random_state())
    found.append(
        (whole.steps(0, 1, 2, 3)[2:], held(whole.engine), whole.engine.scaler.state_dict())
    )
    set_random_state(start)
    first.steps(0, 1)
    common = {"scaler": first.engine.scaler.state_dict(), "schedule": first.schedule.state_dict()}
    checkpoints.save(2, first.engine.pieces(), common, {"random": random_state()})
    torch.manual_seed(77)
    saved = checkpoints.latest()
    second.engine.load(saved)
    second.engine.scaler.load_state_dict(checkpoints.common(saved)["scaler"])
    second.schedule.load_state_dict(checkpoints.common(saved)["schedule"])
    set_random_state(checkpoints.own(saved)["random"])
    found.append((second.steps(2, 3), held(second.engine), second.engine.scaler.state_dict()))
    (losses, params, scale), (again, others, other) = found
    return (
        losses == again,
        all(torch.equal(a, b) for (*_, a), (*_, b) in zip(params, others, strict=True)),
        scale == other and scale["scale"] > 2**16,
    )


def test_stopped_and_resumed_bit_for_bit(tmp_path):
    assert World(4).run(stop_and_go, tmp_path) == [(True, True, True)] * 4


def mixed(comm, grid, options):
    mesh = Mesh(comm, **grid)
    losses = []
    norms = []
    ours = engine(mesh, LOW, **options)
    for step in range(3):
        losses.append(ours.backward(*(mine(mesh, both) for both in data(step))).item())
        norms.append(ours.clip(CLIP).item())
        ours.update()
    return losses, norms, {p.dtype for p in ours.module.parameters()}, ours.scaler.state_dict()


@pytest.mark.parametrize(
    ("amp", "half"),
    [
        ("O1", torch.bfloat16),
        ("O2", torch.float16),
        ("O3", torch.bfloat16),
    ],
)
def test_mixed_precision(amp, half):
    """As near to float32 as 16 bits allow, gradients too; the level's dtypes; all ranks at one scale."""
    options, near = dict(amp=amp, half=half), 40 * torch.finfo(half).eps
    ((expected, lengths, *_),) = World(1).run(mixed, {}, {})
    for grid, zero in ((dict(dp=2), 3), (dict(dp=2, pp=2), 1), (dict(tp=2), 0)):
        results = World(ranks(grid)).run(mixed, grid, options | dict(zero=zero, micro_batches=2))
        for losses, norms, dtypes, scaler in results:
            assert largest(abs(a - b) for a, b in zip(losses, expected, strict=True)) < near, grid
            assert largest(abs(a / b - 1) for a, b in zip(norms, lengths, strict=True)) < near, grid
            assert dtypes == {
                half if amp != "O1" and not (amp == "O2" and zero == 3) else torch.float32
            }
            assert scaler == results[0][3] and bool(scaler) == (
                half == torch.float16 and amp != "O3"
            )


def with_masters(comm, folder, before, after):
    """Two steps at one stage of ZeRO, saved; loaded at another: the parameters, and the next losses of both."""
    found = []
    for zero, seed in ((before, 0), (after, 1)):
        mesh = Mesh(comm, dp=2)
        ours, checkpoints = (
            engine(mesh, LOW, amp="O2", zero=zero, seed=seed),
            Checkpoints(folder, comm),
        )
        if seed:
            ours.load(checkpoints.latest())
        for step in range(0 if seed else 2):
            ours.step(*(mine(mesh, both) for both in data(step)))
        if not seed:
            checkpoints.save(2, ours.pieces())
        values = [p.detach().clone() for p in ours.module.parameters()]
        found.append(
            (
                values,
                [
                    ours.step(*(mine(mesh, both) for both in data(step))).item()
                    for step in (2, 3, 4)
                ],
            )
        )
    (p, losses), (q, again) = found
    return all(map(torch.equal, p, q)) and losses == again


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (2, 0), (3, 3)])
def test_masters_at_another_stage(tmp_path, before, after):
    assert World(2).run(with_masters, tmp_path, before, after) == [True, True]


def frozen(comm, zero):
    """The largest differences of losses and norms from the serial model, some parameters of which do not learn."""
    mesh, model = Mesh(comm, dp=2, pp=2), gpt(**SHAPE)
    for name in ("tokens.weight", "layers.1.mlp.fc.weight"):
        model.get_parameter(name).requires_grad_(False)
    ours = parallelize(model, mesh, adam, zero=zero, micro_batches=3)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() > 1]},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        weight_decay=0.1,
    )
    worst = 0.0
    for step in range(3):
        x, y = data(step)
        loss = next_token_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        found = ours.backward(mine(mesh, x), mine(mesh, y)), ours.clip(CLIP)
        ours.update()
        assert norm > CLIP
        worst = largest(
            worst,
            *((a - b).abs().item() for a, b in zip(found, (loss.detach(), norm), strict=True)),
        )
    return worst


@pytest.mark.parametrize("zero", range(4))
def test_frozen_parameters_and_norms(zero):
    assert largest(World(4).run(frozen, zero)) < 1e-12


def overflow(comm):
    """Rank 3's gradients overflow in the second step: nobody steps, and S is halved on all."""
    mesh = Mesh(comm, dp=2, pp=2)
    ours = engine(mesh, LOW, amp="O2", half=torch.float16, micro_batches=2, zero=1)
    before, after = [], []
    for step in range(2):
        before.append([p.detach().clone() for p in ours.module.parameters()])
        ours.backward(*(mine(mesh, both) for both in data(step)))
        if step and comm.rank == 3:
            for p in ours.module.parameters():
                p.grad = torch.full_like(p, torch.inf) if p.grad is not None else None
        ours.update()
        after.append(
            [torch.equal(a, b) for a, b in zip(before[-1], ours.module.parameters(), strict=True)]
        )
    return [all(same) for same in after], ours.scaler.get_scale(), ours.scaler.skipped


def test_all_ranks_skip_a_step_together():
    assert World(4).run(overflow) == [([False, True], 2.0**15, 1)] * 4


def compressed(comm, grid, make, steps):
    mesh = Mesh(comm, **grid)
    ours = engine(mesh, SHAPE | dict(tied=False), compression=make(), micro_batches=2)
    losses = [
        ours.step(*(mine(mesh, both) for both in data(step)), max_norm=CLIP).item()
        for step in range(steps)
    ]
    return (
        losses,
        held(ours),
        [p.detach().clone() for p in ours.module.parameters()],
        ours.compression.state_dict(),
    )


def tied_copies(comm, dp, schedule, chunks):
    """The embedding of this rank after two steps, on the first stage and on the last."""
    mesh = Mesh(comm, dp=dp, pp=2)
    ours = engine(mesh, SHAPE, micro_batches=2, zero=0, schedule=schedule, chunks=chunks)
    for step in range(2):
        ours.step(*(mine(mesh, both) for both in data(step)))
    ((copy, _),) = ours.pipeline.ties._groups
    return copy.detach()


@pytest.mark.parametrize(("schedule", "chunks"), [(interleaved, 2), (zb_h1, 1), ("1f1b", 1)])
@pytest.mark.parametrize("dp", [3, 5])
def test_copies_of_a_tied_embedding_are_equal_bit_for_bit(dp, schedule, chunks):
    """Also where gradients are averaged after the step: first that, then the sum over stages."""
    first, *others = World(2 * dp).run(tied_copies, dp, schedule, chunks)
    assert all(torch.equal(first, other) for other in others)


def test_compression():
    """The dense one changes nothing; a lossy one does, the same on all replicas."""
    losses, params = serial(SHAPE | dict(tied=False))
    for grid in (dict(dp=2, pp=2), dict(dp=2, tp=2)):
        results = World(ranks(grid)).run(compressed, grid, Dense, 3)
        assert largest(gaps([result[:2] for result in results], losses, params)) < 1e-10
        for make in (Sign, PowerSGD):
            lossy = World(ranks(grid)).run(compressed, grid, make, 2)
            assert abs(lossy[0][0][1] - losses[1]) > 1e-9
            assert all(result[0] == lossy[0][0] for result in lossy)
            for a, b in [(0, 1), (2, 3)] if "pp" in grid else [(0, 2), (1, 3)]:
                assert all(
                    torch.equal(p, q) for p, q in zip(lossy[a][2], lossy[b][2], strict=True)
                ), (grid, make)


@pytest.mark.parametrize(
    ("grid", "shape", "options", "words"),
    [
        ({}, SHAPE, dict(zero=4), r"stages 0 to 3, not 4"),
        (
            {},
            SHAPE,
            dict(recompute="some"),
            "recompute is one of 'none', 'selective', 'full', 'stage', not 'some'",
        ),
        ({}, SHAPE, dict(amp="O4"), "amp is one of 'O0', 'O1', 'O2', 'O3', not 'O4'"),
        (
            {},
            SHAPE,
            dict(amp="O2"),
            r"amp='O2' starts from parameters in float32; this model has .*float64",
        ),
        (
            {},
            SHAPE,
            dict(recompute="selective"),
            r"attention='explicit' again; this model's is 'sdpa'",
        ),
        (dict(dp=2), SHAPE, dict(replicas=2), r"replicas=2 are of ZeRO's shards.*ZeRO 0 has none"),
        (dict(dp=3), SHAPE, dict(zero=3, replicas=2), r"2 replicas .* do not divide 3 data ranks"),
        ({}, SHAPE, dict(zero=3, replicas=0), r"at least 1 replica, not 0"),
        (dict(dp=2), SHAPE, dict(compression=Dense(), zero=1), r"as ZeRO 0 has them, not ZeRO 1"),
        (dict(pp=2), SHAPE, dict(compression=Dense()), r"on 2 of 2 stages: each would compress"),
        (
            dict(dp=2),
            SHAPE,
            dict(zero=3, chunks=2, schedule=interleaved),
            r"tied embedding in 2 of its 2 chunks",
        ),
        (
            dict(pp=2),
            SHAPE,
            dict(zero=3, schedule=zb_h1),
            r"after 1 backward, and this schedule's come in 2 halves",
        ),
        (dict(pp=5), SHAPE, {}, r"4 layers do not make 5 stages"),
        (dict(pp=2), SHAPE, dict(micro_batches=13), r"a batch of 12 samples does not make 13"),
        (dict(tp=4), SHAPE, dict(sequence_parallel=True), r"6 .* do not split over 4 ranks"),
        (dict(cp=2), SHAPE, {}, r"6 tokens do not make 4 equal chunks, which 2 ranks"),
        (dict(cp=3), SHAPE | dict(dropout=0.1), {}, r"take dropout=0, not 0\.1 with cp=3"),
        (dict(cp=3), EXPLICIT, dict(recompute="selective"), r"with cp=3 they are never kept"),
        (
            {},
            SHAPE,
            dict(context_parallel="ring"),
            "one of 'zigzag', 'contiguous', 'heads', not 'ring'",
        ),
    ],
)
def test_what_does_not_go_together(grid, shape, options, words):
    def program(comm):
        mesh = Mesh(comm, **grid)
        return engine(mesh, shape, **options).step(*(mine(mesh, both) for both in data(0)))

    with pytest.raises(ValueError, match=words):
        World(ranks(grid)).run(program)


def steps(comm):
    ours = engine(Mesh(comm, dp=2), LOW | dict(layers=3, hidden=768, tied=False))
    x = torch.zeros(512, 6, dtype=torch.long, device=comm.device)
    for _ in range(2):  # the second has its buckets in the order of use
        ours.step(x, x)


def test_the_last_backward_hides_the_average(monkeypatch):
    times, sent = [], []
    for overlaps in (True, False):
        if not overlaps:
            # as if backwards came in halves
            monkeypatch.setattr(Stages, "actions", lambda *args: ([], True))
        world = World(
            2, cluster=Cluster.uniform(2, 1e-6, 5e-11, Cluster.dgx_h100().device), device="meta"
        )
        world.run(steps)
        times.append(world.time)
        sent.append(world.trace.bytes_sent())
    assert times[0] < 0.9 * times[1] and sent[0] == sent[1]


def over_data_ranks(zero, micro_batches, schedule):
    """Bytes that data parallelism sends in a step, over all ranks, and those of the parameters of one replica."""

    def program(comm):
        ours = engine(
            Mesh(comm, **grid),
            SHAPE | dict(tied=False),
            zero=zero,
            micro_batches=micro_batches,
            schedule=schedule,
        )
        starts = []
        for step in range(2):  # the first one tells the layouts and finds the buckets
            ours.step(*(mine(ours.mesh, both) for both in data(step)))
            starts.append(len(world.trace))
        return starts

    grid, world = dict(dp=2, pp=2), World(4)
    starts = [start for rank in world.run(program) for start in rank]
    sent = [
        m.nbytes
        for m in list(world.trace)[sorted(starts)[3] :]
        if Grid(**grid).between(m.src, m.dst) == "dp"
    ]
    return sum(sent), sum(p.nbytes for p in gpt(**SHAPE | dict(tied=False)).parameters())


@pytest.mark.parametrize(
    ("zero", "schedule", "wholes"),
    [
        (0, gpipe, [2, 2]),
        (1, zb_h1, [2, 2]),
        (2, gpipe, [2, 5]),
        (2, zb_h1, [2, 5]),
        (3, gpipe, [3, 12]),
    ],
)
def test_how_often_gradients_are_sent(zero, schedule, wholes):
    """Times all parameters that the two data ranks send together, with 1 micro-batch and with 4, but for flags."""
    for micro_batches, expected in zip((1, 4), wholes, strict=True):
        sent, whole = over_data_ranks(zero, micro_batches, schedule)
        assert abs(sent / whole - expected) < 0.2, (micro_batches, sent / whole)


def test_what_zero_3_gathers_is_in_half():
    sent = []
    for amp in ("O0", "O2"):
        world = World(2)
        world.run(
            lambda comm, amp: engine(Mesh(comm, dp=2), LOW, zero=3, amp=amp).step(*data(0)), amp
        )
        sent.append(world.trace.bytes_sent())
    start = World(2)
    start.run(lambda comm: engine(Mesh(comm, dp=2), LOW, zero=3) and None)
    single, half = (total - start.trace.bytes_sent() for total in sent)
    assert abs(half / single - 0.5) < 0.02


def test_what_is_kept_is_computed_again():
    """Less memory without attention's scores, and less again with the inputs of the layers alone."""

    def program(comm, recompute):
        shape = LOW | dict(hidden=48, layers=4, context=96, attention="explicit")
        x = torch.zeros(4, 96, dtype=torch.long, device=comm.device)
        engine(Mesh(comm), shape, recompute=recompute).step(x, x)

    peaks = []
    for recompute in ("none", "selective", "full"):
        world = World(1, cluster=Cluster.dgx_h100(), device="meta")
        world.run(program, recompute)
        peaks.append(world.trace.memory[0].peak)
    assert peaks[1] < 0.8 * peaks[0] and peaks[2] < 0.8 * peaks[1]


def test_on_meta():
    """The step of a model without numbers: what it sends is what the same step with numbers sends."""

    def program(comm):
        ours = engine(
            Mesh(comm, pp=2, tp=2), LOW, amp="O2", zero=1, micro_batches=2, sequence_parallel=True
        )
        x = torch.zeros(BATCH // 2, 6, dtype=torch.long, device=comm.device)
        for _ in range(2):
            ours.step(x, x, max_norm=1.0)

    sent = []
    for device in ("cpu", "meta"):
        world = World(4, device=device)
        world.run(program)
        sent.append([[world.trace.bytes_sent(link=(a, b)) for a in range(4)] for b in range(4)])
    assert sent[0] == sent[1] and sum(map(sum, sent[0])) > 10_000


# ------------------------------------------------------------
# The steps of `parallelize` by themselves.


def test_random_numbers_differ_by_stage_and_by_data_rank():
    """And not by tensor rank: what all of a group hold, all of it drop alike."""

    def program(comm):
        mesh = Mesh(comm, dp=2, pp=2, tp=2)
        seed_(mesh, 5)
        return (mesh.dp.rank, mesh.pp.rank), torch.rand(4)

    drawn = {}
    for place, numbers in World(8).run(program):
        drawn.setdefault(place, []).append(tuple(numbers.tolist()))
    assert all(len(both) == 2 and both[0] == both[1] for both in drawn.values())
    assert len({both[0] for both in drawn.values()}) == len(drawn) == 4


# ------------------------------------------------------------
# The parts of a GPT on tensor ranks: names, values, and who has what.


def chunks_with_values(comm, shape, shapes, cut, given, seed=5):
    """This rank's chunks, of pipeline stage 0 in `shapes`, with their values; and their names in the model."""
    model = gpt(**shape, seed=seed, device="cpu" if given else "meta")
    first, *layers, last = split_(sequence(copy.deepcopy(model)), comm)
    parts = [TensorEmbedding(first, comm), *layers, TensorHead(last, comm)]
    module = stage_chunks(parts, cut, shapes, 0)
    rename = functools.partial(serial_name, in_model=names(model))
    whole = dict(model.named_parameters())
    materialize_(module, seed, rename, whole, comm.rank, device=comm.device)
    assert not set(module.parameters()) & set(model.parameters())
    return module, rename, model


def check_values(comm, shape, shapes, cut, given, held):
    module, rename, model = chunks_with_values(comm, shape, shapes, cut, given)
    whole, how = dict(gpt(**shape, seed=5).named_parameters()), cuts(module)
    assert all(p.is_meta or p.equal(whole[name]) for name, p in model.named_parameters())
    found = {rename(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, p in module.named_parameters(remove_duplicate=False):
        expected = whole[rename(name)]
        expected = how[name].part(expected, comm.rank) if name in how else expected
        assert torch.equal(p, expected), name
    assert found == {name for name in whole if held(name)}
    return len(list(module.parameters())) - len(found)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "shape", [SHAPE, MODERN, MODERN | dict(tied=False)], ids=["plain", "modern", "untied"]
)
def test_values(shape, n, given):
    every = Shape(1, 1), [(0, 4)], given, lambda name: True
    assert World(n).run(check_values, shape, *every) == [0] * n  # a tied parameter is one
    chunks = Shape(2, 1, 2), [(0, 1), (1, 2), (2, 3), (3, 4)], given
    held = lambda name: name.startswith(("tokens", "positions", "layers.1."))
    assert World(n).run(check_values, shape, *chunks, held) == [0] * n


def test_what_is_not_held_takes_no_memory():
    """Of two layers on two tensor ranks: half of one, and the buffer that its numbers are drawn in."""

    def program(comm):
        shape = SHAPE | dict(hidden=192)
        module, *_ = chunks_with_values(comm, shape, Shape(2, 1), [(2, 4), (0, 2)], False, 0)
        return module, sum(p.nbytes for p in module.parameters())

    world = World(2, cluster=Cluster.dgx_h100())
    found, layer = world.run(program), (12 * 192 + 13) * 192 * 8
    for rank, (_, nbytes) in enumerate(found):
        assert nbytes <= world.trace.memory[rank].peak < 0.5 * layer + 0.4 * layer
        assert 0.5 * layer < nbytes < 0.52 * layer + 13 * 192 * 8


def test_a_model_on_meta_is_no_memory_where_ranks_are_modelled_there():
    """A rank has its parameters, and gradients as large, in buckets, whatever the others hold."""

    def program(comm):
        engine = parallelize(
            gpt(**SHAPE, device="meta"), Mesh(comm, dp=1, pp=2, tp=2), torch.optim.SGD
        )
        return engine, sum(p.nbytes for p in engine.module.parameters())

    world = World(4, cluster=Cluster.dgx_h100(), device="meta")
    for rank, (_, nbytes) in enumerate(world.run(program)):
        assert world.trace.memory[rank].peak == 2 * nbytes


def test_serial_names():
    known = names(gpt(**SHAPE, device="meta"))
    expected = {
        "0.0.tokens.weight": "tokens.weight",
        "1.2.mlp.fc.bias": "layers.1.mlp.fc.bias",
        "0.module.1.norm_1.weight": "layers.0.norm_1.weight",
        "1.3.norm.weight": "norm.weight",
        "1.3.tokens.weight": "tokens.weight",
    }
    assert {name: serial_name(name, known) for name in expected} == expected


def test_the_model_stays_as_it_is():
    """Its modules, and its values, where it has some."""

    def program(comm, model):
        kinds = [type(module) for module in model.modules()]
        values = {name: p.clone() for name, p in model.named_parameters()}
        ours = parallelize(model, Mesh(comm, pp=2, tp=2), adam, sequence_parallel=True)
        ours.step(*data(0))
        assert [type(module) for module in model.modules()] == kinds
        assert all(p.equal(values[name]) and p.grad is None for name, p in model.named_parameters())

    World(4).run(program, gpt(**SHAPE))


class Doubting(torch.optim.SGD):
    """Steps `times` times."""

    def step(self, times=1):
        for _ in range(times):
            super().step()


@pytest.mark.parametrize("zero", [0, 3])
def test_keywords_reach_the_optimizer(zero):
    """A step told to step twice goes twice as far."""

    def program(comm, **kwargs):
        model = gpt(**SHAPE, device="meta")
        ours = parallelize(model, Mesh(comm, dp=2), lambda groups: Doubting(groups, 0.1), zero=zero)
        before = [values.clone() for _, _, values in held(ours)]
        ours.step(*(mine(ours.mesh, both) for both in data(0)), **kwargs)
        return [(values - old) for (_, _, values), old in zip(held(ours), before, strict=True)]

    for once, twice in zip(World(2).run(program), World(2).run(program, times=2), strict=True):
        assert all((b - 2 * a).abs().max() < 1e-15 for a, b in zip(once, twice, strict=True))
        assert any(a.any() for a in once)
