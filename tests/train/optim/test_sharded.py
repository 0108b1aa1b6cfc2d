"""Sharded steps equal unsharded ones: ZeRO 1, 2 and 3, tensor-parallel layers, and both; in as few messages as said."""

import pytest
import torch

from minidist.comm import World, launch
from minidist.models import TransformerLayer, seeded_
from minidist.parallel.data import average_gradients
from minidist.parallel.tensor import TensorLayer, shard, unshard
from minidist.parallel.zero import FullySharded
from minidist.train.optim import LAMB, LARS, groups
from minidist.train.optim.norms import summed_
from tests.train.optim import cases

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}
EVERYWHERE = pytest.mark.parametrize(
    ("where", "n"), [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 3)]
)
TRUSTED = ("lars", "lamb")


@pytest.fixture(scope="module")
def oracle():
    return {name: cases.serial(name) for name in cases.OPTIMIZERS}


def everything(comm):
    """All optimizers in all stages; {name: parameters}."""
    found = {
        (name, stage): cases.zero_12(comm, name, stage) for name in TRUSTED for stage in (1, 2)
    }
    return found | {(name, 3): cases.zero_3(comm, name) for name in cases.OPTIMIZERS}


@EVERYWHERE
def test_zero(where, n, oracle):
    for found in RUNS[where](n, everything):
        assert {
            key: cases.far(params, oracle[key[0]]) < 1e-12 for key, params in found.items()
        } == dict.fromkeys(found, True)


@pytest.mark.parametrize("name", TRUSTED)
def test_norms_of_pieces_are_told_apart(name, oracle):
    """The wrong way: each rank takes its piece for the layer."""
    assert cases.far(World(3).run(cases.zero_3, name, cases.STEPS, False)[0], oracle[name]) > 1e-4


@pytest.mark.parametrize("name", TRUSTED)
def test_a_smaller_last_batch_and_blocks(name, oracle):
    blocks = lambda module: isinstance(module, torch.nn.Linear)
    # 12 samples on 5 ranks
    for found in World(5).run(lambda comm: cases.zero_3(comm, name, blocks=blocks)):
        assert cases.far(found, oracle[name]) < 1e-12


def one_step(comm, name):
    """What the step alone sends."""
    made = FullySharded(cases.model(), comm)
    cls, how = cases.OPTIMIZERS[name]
    optimizer = cls(groups(made), **how, **(dict(across={"data": comm}) if name in TRUSTED else {}))
    for p in made.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


def start(comm):
    FullySharded(cases.model(), comm)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_one_all_reduce_of_16_bytes_a_parameter(n):
    weights = len(cases.WIDTHS) - 1
    before = World(n).run(start).trace
    for name in cases.OPTIMIZERS:
        trace = World(n).run(one_step, name).trace
        sent = [trace.bytes_sent(r) - before.bytes_sent(r) for r in range(n)]
        messages = [trace.messages(r) - before.messages(r) for r in range(n)]
        if name in TRUSTED:
            assert sum(sent) == 2 * (n - 1) * 16 * weights and messages == [2 * (n - 1)] * n
        else:
            assert sum(sent) == 0 and messages == [0] * n


HIDDEN, HEADS = 12, 3


def serial_layer():
    return seeded_(TransformerLayer(HIDDEN, HEADS, dtype=torch.float64))


def inputs(step):
    random = torch.Generator().manual_seed(step)
    return torch.randn(4, 6, HIDDEN, generator=random, dtype=torch.float64)


def loss(layer, x):
    return (layer(x) - x.flip(-1)).square().mean()


def train_layer(layer, optimizer, xs, after=lambda: None):
    for x in xs:
        optimizer.zero_grad()
        loss(layer, x).backward()
        after()
        optimizer.step()


def whole(cls, how, steps=4):
    layer = serial_layer()
    train_layer(layer, cls(groups(layer), **how), [inputs(step) for step in range(steps)])
    return layer.state_dict()


def tensor(comm, cls, how, alone=False, steps=4):
    layer = TensorLayer(HIDDEN, HEADS, comm, dtype=torch.float64)
    layer.load_state_dict(shard(serial_layer(), layer, comm))
    which = groups(layer)
    if alone:
        which = [g | {"split": ()} for g in which]
    train_layer(
        layer, cls(which, across={"tensor": comm}, **how), [inputs(step) for step in range(steps)]
    )
    return unshard(layer, comm)


# Attention does not feel a key's bias: its gradient is rounding, of which Adam with a small ε makes whole steps.
TENSOR = [(LARS, dict(lr=0.1, trust=0.1, weight_decay=0.01)), (LAMB, dict(lr=0.03, eps=1e-3))]


@pytest.mark.parametrize(("cls", "how"), TENSOR)
@EVERYWHERE
def test_tensor_parallel(where, n, cls, how):
    """Heads and features that n does not divide; with 4 ranks one has no head."""
    expected = whole(cls, how)
    for found in RUNS[where](n, tensor, cls, how):
        assert cases.far(found, expected) < 1e-12


@pytest.mark.parametrize(("cls", "how"), TENSOR)
def test_tensor_parallel_norms_of_parts_are_told_apart(cls, how):
    assert cases.far(World(3).run(tensor, cls, how, True)[0], whole(cls, how)) > 1e-5


def test_what_is_whole_on_every_rank_counts_once():
    """Trust for all, also norms and biases of rows, which every tensor rank has: summed they would be too long.

    A ratio of two norms that are √n times too long is right again, so φ must be another than z to show it.
    """
    everything = lambda module: groups(module, lambda name, shape: False)
    how = dict(lr=0.03, eps=1e-3, clamp=(0.0, 1.0))

    def program(comm, wrong):
        layer = TensorLayer(HIDDEN, HEADS, comm, dtype=torch.float64)
        layer.load_state_dict(shard(serial_layer(), layer, comm))
        which = [g | ({"split": ("tensor",)} if wrong else {}) for g in everything(layer)]
        train_layer(layer, LAMB(which, across={"tensor": comm}, **how), [inputs(0), inputs(1)])
        return unshard(layer, comm)

    layer = serial_layer()
    train_layer(layer, LAMB(everything(layer), **how), [inputs(0), inputs(1)])
    assert cases.far(World(2).run(program, False)[0], layer.state_dict()) < 1e-12
    assert cases.far(World(2).run(program, True)[0], layer.state_dict()) > 1e-4


def grid(comm, cls, how, columns):
    """Tensor-parallel layers, each part of them sharded over the data ranks (ZeRO 3)."""
    across = {"tensor": comm.split(comm.rank // columns), "data": comm.split(comm.rank % columns)}
    layer = TensorLayer(HIDDEN, HEADS, across["tensor"], dtype=torch.float64)
    layer.load_state_dict(shard(serial_layer(), layer, across["tensor"]))
    model = FullySharded(layer, across["data"])
    rows = across["data"].size
    xs = [inputs(step).chunk(rows)[across["data"].rank] for step in range(4)]
    train_layer(model, cls(groups(model), across=across, **how), xs)
    mine = TensorLayer(HIDDEN, HEADS, across["tensor"], dtype=torch.float64)
    mine.load_state_dict(model.full_state_dict())
    return unshard(mine, across["tensor"])


@pytest.mark.parametrize(("cls", "how"), TENSOR)
@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (1, 3), (2, 2), (2, 3)])
def test_both(rows, columns, cls, how):
    expected = whole(cls, how)
    for found in World(rows * columns).run(grid, cls, how, columns):
        assert cases.far(found, expected) < 1e-12


def copied(comm, cls, how):
    """Data parallelism beside tensor parallelism: replicas need no norms of each other."""
    tensors, data = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    layer = TensorLayer(HIDDEN, HEADS, tensors, dtype=torch.float64)
    layer.load_state_dict(shard(serial_layer(), layer, tensors))
    xs = [inputs(step).chunk(data.size)[data.rank] for step in range(4)]
    optimizer = cls(groups(layer), across={"tensor": tensors}, **how)
    train_layer(layer, optimizer, xs, lambda: average_gradients(data, layer))
    return unshard(layer, tensors)


@pytest.mark.parametrize(("cls", "how"), TENSOR)
def test_replicas(cls, how):
    for found in World(4).run(copied, cls, how):
        assert cases.far(found, whole(cls, how)) < 1e-12


def test_groups_say_how_parameters_are_cut():
    def program(comm):
        layer = TensorLayer(HIDDEN, HEADS, comm, dtype=torch.float64)
        ways = {name: group["split"] for group in groups(layer) for name, _ in group["params"]}
        ways |= {
            f"sharded {name}": group["split"]
            for group in groups(FullySharded(layer, comm.split(comm.rank)))
            for name, _ in group["params"]
        }
        return ways

    ways = World(2).run(program)[0]
    assert (
        ways["attention.qkv.weight"]
        == ways["mlp.proj.weight"]
        == ways["mlp.fc.bias"]
        == ("tensor",)
    )
    assert ways["attention.proj.bias"] == ways["norm_1.weight"] == ()
    assert ways["sharded module.mlp.fc.weight"] == ("data", "tensor")
    assert ways["sharded module.norm_1.weight"] == ("data",)


def test_ranks_that_are_not_named():
    with pytest.raises(
        ValueError, match=r"over 'data', but across=\{…\} names the ranks of \['tensor'\]"
    ):
        World(2).run(lambda comm: summed_(torch.ones(1, 2), [("data",)], {"tensor": comm}))
