"""The norm over all ranks is that of all gradients, and clipping by it the serial clipping."""

import math

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.models import TransformerLayer, gpt, next_token_loss, seeded_, sequence
from minidist.parallel.pipeline import Pipeline, partition
from minidist.parallel.tensor import gather_from, shard
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from minidist.split import cuts
from minidist.train.norm import clip_, clip_grad_norm_, counted, global_norm
from minidist.train.optim import SGD
from tests.largest import largest
from tests.parallel.cases import difference, made
from tests.parallel.tensor_cases import tensor_layer
from tests.parallel.zero_cases import losses
from tests.train import optim_cases

NORMS = [1.0, 2.0, 3.5, math.inf]


def grads(rank):
    """Uneven: rank 2 has none."""
    random = torch.Generator().manual_seed(rank)
    return [
        torch.randn(size, generator=random, dtype=torch.float64)
        for size in ((3, 2), (5,), (0,))[: 3 - rank]
    ]


@pytest.mark.parametrize("kind", NORMS)
def test_norm(kind):
    everything = torch.cat([g.reshape(-1) for r in range(3) for g in grads(r)])
    want = torch.linalg.vector_norm(everything, kind)
    found = World(3).run(
        lambda comm: global_norm(comm, [g for g in grads(comm.rank) if g.numel()], kind)
    )
    assert all(torch.equal(x, found[0]) for x in found) and abs(found[0] - want) < 1e-14


def test_a_norm_beyond_fp16():
    def program(comm):
        mine = [torch.full((300,), 1e4, dtype=torch.float16)]
        return clip_(comm, mine, 1.0), mine[0]

    for norm, g in World(2).run(program):
        assert norm == pytest.approx(1e4 * 600**0.5, rel=1e-6)
        assert g.double().norm().item() == pytest.approx(0.5**0.5, rel=2e-3)


@pytest.mark.parametrize("kind", [0.0, -1.0, math.nan])
def test_what_is_no_norm(kind):
    with pytest.raises(ValueError, match="type of a norm is above 0"):
        World(1).run(lambda comm: global_norm(comm, [], kind))


def clipped(comm, make, most, kind):
    """20 steps with clipping; the parameters, and the norm before each."""
    model = made("hard", 0)
    optimizer = make(model.parameters(), comm)
    norms = []
    for _, loss in losses(model, comm):
        optimizer.zero_grad()
        loss().backward()
        clip = getattr(optimizer, "clip_grad_norm_", None)
        norm = (
            clip(most, kind) if clip else nn.utils.clip_grad_norm_(model.parameters(), most, kind)
        )
        norms.append(norm.item())
        optimizer.step()
    return [p.detach() for p in model.parameters()], norms


def sgd(params, comm):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("most", "kind"), [(0.3, 2.0), (0.1, math.inf), (1e6, 2.0)])
def test_clipping(stage, most, kind):
    params, norms = World(1).run(clipped, sgd, most, kind)[0]
    assert (max(norms) > most) == (most < 1)
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.9
    )
    for n in (3, 12):
        for found, ours in World(n).run(clipped, sharded, most, kind):
            assert difference(found, params) < 1e-12 and ours == pytest.approx(norms, rel=1e-12)


class OwnNorm(ShardedOptimizer):
    """Each rank clips by the norm of what it has itself."""

    def clip_grad_norm_(self, most, kind):
        self.gradients()
        return nn.utils.clip_grad_norm_(
            [p for g in self._inner.param_groups for p in g["params"]], most, kind
        )


def test_a_norm_of_one_rank_is_found():
    params, _ = World(1).run(clipped, sgd, 0.3, 2.0)[0]
    own = lambda params, comm: OwnNorm(params, torch.optim.SGD, comm, 1, lr=0.1, momentum=0.9)
    assert difference(World(2).run(clipped, own, 0.3, 2.0)[0][0], params) > 1e-4


# ------------------------------------------------------------
# Clipping by the norm of all gradients of a model on a grid of ranks: that of the serial model, whatever the grid.


HIDDEN = 12
HEADS = 3
MOST = 0.5
KINDS = pytest.mark.parametrize("kind", [2.0, 1.0, math.inf])
GPT = dict(layers=3, hidden=8, heads=2, vocab=13, context=6, dtype=torch.float64)


def layers(count):
    """A serial model of transformer layers whose gradients are of different lengths."""
    made = [
        seeded_(TransformerLayer(HIDDEN, HEADS, dtype=torch.float64), seed) for seed in range(count)
    ]
    return nn.Sequential(*made)


def mse(y, target):
    return 30 * (y - target).square().mean()


def batch():
    random = torch.Generator().manual_seed(0)
    return [torch.randn(4, 6, HIDDEN, generator=random, dtype=torch.float64) for _ in range(2)]


def serial(count, most=MOST, kind=2.0):
    """Norm before, and {name: clipped gradient}."""
    model = layers(count)
    mse(model(batch()[0]), batch()[1]).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), most, kind)
    assert norm > 2 * MOST
    return norm.item(), {name: p.grad for name, p in model.named_parameters()}


def off(norm, grads, oracle):
    expected, gradients = oracle
    assert grads.keys() <= gradients.keys()
    return largest(
        [
            abs(norm / expected - 1),
            *((g - gradients[name]).abs().max().item() for name, g in grads.items()),
        ]
    )


@KINDS
@pytest.mark.parametrize("most", [MOST, 1e6])
def test_one_rank_is_torchs(kind, most):
    def program(comm):
        model = layers(1)
        mse(model(batch()[0]), batch()[1]).backward()
        norm = clip_grad_norm_(model, most, comm, norm_type=kind).item()
        return norm, {name: p.grad for name, p in model.named_parameters()}

    assert off(*World(1).run(program)[0], serial(1, most, kind)) < 1e-12


def stage_of(comm, S, T, wrong=None):
    """One stage of S, each on T tensor ranks, in as many replicas as there are; norm, and whole gradients by name."""
    per = S * T
    replica = comm.split(comm.rank // per)  # one model: pipeline × tensor
    tensor = replica.split(replica.rank // T)
    pipe = replica.split(replica.rank % T)
    data = comm.split(comm.rank % per)
    mine = tensor_layer(HIDDEN, HEADS, tensor, seed=pipe.rank, dtype=torch.float64)
    x, y = (t.chunk(data.size)[data.rank] for t in batch())
    pipeline = Pipeline(mine, pipe, loss_fn=mse)
    pipeline.step(2, x if pipeline.first_stage else None, y if pipeline.last_stage else None)
    for p in mine.parameters():
        all_reduce_(data, p.grad, "mean")
    norm = clip_grad_norm_(
        mine, MOST, comm if wrong == "replicas" else replica, None if wrong == "copies" else tensor
    )
    how = cuts(mine)
    return norm.item(), {
        f"{pipe.rank}.{name}": gather_from(p.grad, tensor, *how[name]) if name in how else p.grad
        for name, p in mine.named_parameters()
    }


GRIDS = [(1, 1, 1), (1, 2, 1), (1, 1, 3), (2, 1, 1), (1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 3, 4)]


@pytest.mark.parametrize(("data", "S", "T"), GRIDS)
def test_data_pipeline_and_tensor(data, S, T):
    oracle = serial(S)
    results = World(data * S * T).run(stage_of, S, T)
    assert all(off(*found, oracle) < 1e-12 for found in results)
    assert len({norm for norm, _ in results[: S * T]}) == 1


def test_processes():
    assert all(off(*found, serial(2)) < 1e-12 for found in launch(stage_of, 4, 2, 2))


@pytest.mark.parametrize("wrong", ["replicas", "copies"])
def test_what_counts_twice_is_told_apart(wrong):
    assert off(*World(8).run(stage_of, 2, 2, wrong)[0], serial(2)) > 1e-3


def tied(comm, repeated=True):
    """A GPT in stages, whose token embedding is on the first and on the last."""
    parts = sequence(gpt(**GPT))
    ((first, end),) = [partition([1] * len(parts), comm.size)[comm.rank]]
    mine = parts[first:end]
    table = [p for p in mine.parameters() if p.shape == (13, 8)]
    pipeline = Pipeline(
        mine, comm, loss_fn=next_token_loss, tied=dict(zip(["tokens"], table, strict=False))
    )
    x, y = tokens()
    pipeline.step(2, x, y)
    return clip_grad_norm_(
        mine, 0.1, comm, repeated=pipeline.ties.repeated if repeated else ()
    ).item()


def tokens():
    random = torch.Generator().manual_seed(0)
    return [torch.randint(0, 13, (4, 6), generator=random) for _ in range(2)]


def test_a_tied_embedding_counts_once():
    model = gpt(**GPT)
    x, y = tokens()
    next_token_loss(model(x), y).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    for n in (1, 2, 3):
        assert World(n).run(tied) == pytest.approx([expected] * n, rel=1e-12)
    assert abs(World(3).run(tied, False)[0] - expected) > 1e-3


def fully(comm, T):
    """Tensor-parallel layers, sharded over the data ranks: `comm` has both."""
    tensor, data = comm.split(comm.rank // T), comm.split(comm.rank % T)
    layer = tensor_layer(HIDDEN, HEADS, tensor, dtype=torch.float64)
    layer.load_state_dict(shard(layers(1)[0], layer, tensor))
    model = FullySharded(layer, data)
    x, y = (t.chunk(data.size)[data.rank] for t in batch())
    mse(model(x), y).backward()
    norm = clip_grad_norm_(model, MOST, comm, tensor)
    return norm.item(), clip_grad_norm_(model, math.inf, comm, tensor).item()


def owners(comm, T, stage):
    """The same with whole gradients at their owners; the optimizer's own clipping, over both."""
    tensor, data = comm.split(comm.rank // T), comm.split(comm.rank % T)
    layer = tensor_layer(HIDDEN, HEADS, tensor, dtype=torch.float32)
    layer.load_state_dict(
        {name: x.float() for name, x in shard(layers(1)[0], layer, tensor).items()}
    )
    optimizer = ShardedOptimizer(
        layer.parameters(), SGD, data, stage, master_dtype=torch.float64, lr=0.1
    )
    x, y = (t.chunk(data.size)[data.rank].float() for t in batch())
    mse(layer(x), y).backward()
    clip = lambda most: optimizer.clip_grad_norm_(
        most, comm=comm, counted=counted(layer, tensor)
    ).item()
    return clip(MOST), clip(math.inf)


@pytest.mark.parametrize(("data", "T"), [(1, 2), (2, 1), (2, 2), (2, 3), (4, 2)])
def test_sharded_gradients_beside_tensor_ranks(data, T):
    norm, _ = serial(1)
    for before, after in World(data * T).run(fully, T):
        assert before == pytest.approx(norm, rel=1e-12) and after == pytest.approx(MOST, rel=1e-5)
    for stage in (1, 2):
        for before, after in World(data * T).run(owners, T, stage):
            assert before == pytest.approx(norm, rel=1e-5) and after == pytest.approx(
                MOST, rel=1e-5
            )


def test_eight_bytes():
    def program(comm, clip):
        model = optim_cases.model()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        if clip:
            clip_grad_norm_(model, 1.0, comm)

    for n in (1, 2, 3, 4):
        assert (
            sum(World(n).run(program, True).trace.bytes_sent(r) for r in range(n))
            == 2 * (n - 1) * 8
        )


def test_a_limit_below_zero():
    with pytest.raises(ValueError, match="not -1"):
        World(1).run(lambda comm: clip_grad_norm_(optim_cases.model(), -1, comm))
