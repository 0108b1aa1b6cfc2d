"""ZeRO, stage 3: it trains as one rank does, however it is cut, called, gathered ahead, and saved."""

import functools
import gc
import math
import tempfile
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import checkpoint as files
from minidist.checkpoint import Checkpoints, load
from minidist.collectives import barrier
from minidist.comm import Mesh, World, launch
from minidist.comm.base import Host
from minidist.comm.cluster import Cluster, Device
from minidist.models import MLP, Attention, TransformerLayer, gpt, mlp, next_token_loss
from minidist.parallel import zero
from minidist.parallel.data import Sampler
from minidist.parallel.zero import Flat, FullySharded, Held, Leaving
from minidist.study.predict import states, zero_kept, zero_peak, zero_traffic
from minidist.train.amp import LossScaler, prepare
from minidist.train.norm import clip_grad_norm_, global_norm
from tests.largest import largest
from tests.one_thread import _one_thread  # noqa: F401
from tests.parallel.cases import SAMPLES, data, made, mse, replicas_equal
from tests.parallel.fully_sharded_cases import (
    LAYER,
    OPTIMIZERS,
    WIDTHS,
    Block,
    batches,
    far,
    large,
    rows,
    serial,
    tower,
    train,
)
from tests.size import FULL

# ------------------------------------------------------------
# FullySharded trains as one rank does: optimizers, sizes, models that are hard to shard, both
# transports.


serial = functools.cache(serial)
CUTS = [
    {"blocks": nn.Linear},
    {"blocks": nn.Linear, "prefetch": 0},
    {},
    {"blocks": nn.Linear, "prefetch": 2},
]


@pytest.mark.parametrize(
    ("n", "name", "optimizer"),
    [
        *((n, "hard", optimizer) for n in (1, 2, 3, 4) for optimizer in OPTIMIZERS),
        (1, "mlp", "mine"),
        (2, "mlp", "adamw"),
        (3, "mlp", "momentum"),
        (4, "mlp", "mine"),
        (6, "hard", "adamw"),
    ],
)
def test_trains_as_one_rank(n, name, optimizer):
    for state in World(n).run(train, name, optimizer, **CUTS[n % 4]):
        assert far(state, serial(name, optimizer)) < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_uneven_last_batches(n):
    for state in World(n).run(train, "hard", "adamw", drop_last=False, **CUTS[n % 4]):
        assert far(state, serial("hard", "adamw", drop_last=False)) < 1e-12


@pytest.mark.parametrize(
    ("n", "optimizer", "drop_last"), [(3, "momentum", False), (4, "adamw", True)]
)
def test_over_processes(n, optimizer, drop_last):
    for state in launch(train, n, "hard", optimizer, drop_last=drop_last, blocks=nn.Linear):
        assert far(state, serial("hard", optimizer, drop_last=drop_last)) < 1e-12


def test_parameters_of_two_dtypes():
    for state in World(3).run(train, "mixed", "momentum", blocks=nn.Linear):
        assert (
            state["low.weight"].dtype == torch.float32
            and state["high.weight"].dtype == torch.float64
        )
        assert far(state, serial("mixed", "momentum")) < 1e-6  # of float32


def test_groups_of_parameters():
    """Decay for matrices alone, by name: pieces keep the names and are the optimizer's units."""

    def program(comm, x):
        model = FullySharded(tower(seed=comm.rank), comm, blocks=Block)
        grouped(model, rows(comm, x))
        return model.full_state_dict()

    x = torch.randn(12, 5, dtype=torch.float64)
    oracle = tower()
    grouped(oracle, x)
    for state in World(3).run(program, x):
        assert far(state, oracle.state_dict()) < 1e-14


def grouped(model, x):
    matrices = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    opt = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    )
    model(x).square().mean().backward()
    opt.step()


def counted(comm, name, how):
    """What the optimizer sees, by name."""
    model = FullySharded(made(name, comm.rank), comm, **how)
    return {name: (p.shape, p.requires_grad) for name, p in model.named_parameters()}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("how", CUTS)
def test_pieces_are_cut_as_even_as_can_be_and_are_all_there(n, how):
    pieces = World(n).run(counted, "hard", how)
    for name, p in made("hard", 0).named_parameters():
        mine = [piece["module." + name] for piece in pieces]
        assert sum(shape.numel() for shape, _ in mine) == p.numel()
        assert {trains for _, trains in mine} == {p.requires_grad}
    if not how:
        totals = [sum(shape.numel() for shape, _ in piece.values()) for piece in pieces]
        assert max(totals) - min(totals) <= 1


def beside_torch(comm, folder, optimizer, dtype):
    """PyTorch's fully_shard and ours, in the same processes: their parameters after 5 steps."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/s", comm.size), rank=comm.rank, world_size=comm.size
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (comm.size,))
    theirs, x = tower(), torch.randn(12, 5, generator=torch.Generator().manual_seed(3)).double()
    ours = FullySharded(tower(), comm, dtype, blocks=Block)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for layer in theirs.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(theirs, mesh=mesh, mp_policy=policy)
    for model in (theirs, ours):
        opt = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(5):
            opt.zero_grad()
            model(rows(comm, x)).double().square().mean().backward()
            opt.step()
    state = {name: p.full_tensor() for name, p in theirs.state_dict().items()}
    found = far(ours.full_state_dict(), state)
    barrier(comm)
    del theirs, mesh
    gc.collect()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("optimizer", "dtype", "bound"), [("adamw", None, 1e-12), ("momentum", torch.bfloat16, 0.02)]
)
def test_beside_fully_shard(optimizer, dtype, bound):
    with tempfile.TemporaryDirectory() as folder:
        assert largest(launch(beside_torch, 2, folder, optimizer, dtype)) < bound


def accumulated(comm, x, k, synced):
    """k micro-batches, then a step."""
    model = FullySharded(tower(seed=comm.rank), comm, blocks=Block)
    opt = OPTIMIZERS["momentum"](model.parameters())
    held = []
    for _ in range(2):
        model.zero_grad()
        parts = rows(comm, x).chunk(k)
        for i, part in enumerate(parts):
            if synced or i == k - 1:
                (model(part).square().mean() / k).backward()
            else:
                with model.no_sync():
                    (model(part).square().mean() / k).backward()
            held.append(sum(h.whole.grad is not None for unit in model.units for h in unit.held))
        opt.step()
    return model.full_state_dict(), held


def plainly(x, steps=2, module=None):
    model = module or tower()
    opt = OPTIMIZERS["momentum"](model.parameters())
    for _ in range(steps):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    return model.state_dict()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("synced", [False, True])
def test_accumulation(n, synced):
    x = torch.randn(24, 5, dtype=torch.float64)
    for state, held in World(n).run(accumulated, x, 4, synced):
        assert far(state, plainly(x)) < 1e-14
        assert held == ([0] * 8 if synced else [20, 20, 20, 0] * 2)


def test_nothing_is_reduced_inside_no_sync():
    x = torch.randn(24, 5, dtype=torch.float64)
    sent = [World(3), World(3)]
    for world, synced in zip(sent, (False, True), strict=True):
        world.run(accumulated, x, 4, synced)
    reduced = [sum(m.nbytes for m in w.trace if m.label == "reduce-scatter") for w in sent]
    elements = sum(p.numel() for p in tower().parameters())
    assert reduced == [2 * elements * 8 * 2, 8 * elements * 8 * 2]


def test_zero_grad_drops_what_no_sync_has_kept():
    def program(comm, x):
        model, found = FullySharded(tower(seed=comm.rank), comm, blocks=Block), []
        for kept in (False, True):
            model.zero_grad()
            if kept:
                with model.no_sync():
                    model(rows(comm, x)).square().mean().backward()
                model.zero_grad()
            model(rows(comm, x)).square().mean().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        return found

    for once, again in World(2).run(program, torch.randn(12, 5, dtype=torch.float64)):
        assert all(map(torch.equal, once, again))


def frozen_later(comm, x):
    module = tower(seed=comm.rank)
    module.layers[1].requires_grad_(False)
    model = FullySharded(module, comm, blocks=Block)
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step in range(3):
        if step:
            module.layers[1].requires_grad_(True)
            module.layers[2].requires_grad_(step == 1)
        opt.zero_grad()
        model(rows(comm, x)).square().mean().backward()
        opt.step()
    return model.full_state_dict()


def test_frozen_and_thawed_on_the_way():
    x = torch.randn(12, 5, dtype=torch.float64)
    module = tower()
    opt = OPTIMIZERS["momentum"](module.parameters())
    for step in range(3):
        module.layers[1].requires_grad_(step > 0)
        module.layers[2].requires_grad_(step < 2)
        opt.zero_grad()
        module(x).square().mean().backward()
        opt.step()
    for state in World(3).run(frozen_later, x):
        assert far(state, module.state_dict()) < 1e-14


# ------------------------------------------------------------
# When a block is whole: recomputation, blocks called twice, no graph, exceptions, inputs and
# outputs of any form.


X = torch.randn(12, 5, generator=torch.Generator().manual_seed(2)).double()
HOW = ["plain", "inside", "inside reentrant", "outside", "outside reentrant", "segments", "twice"]


def trained(comm, how, around=False, prefetch=1, steps=3):
    model = FullySharded(tower(how, comm.rank), comm, blocks=Block, prefetch=prefetch)
    opt = OPTIMIZERS["momentum"](model.parameters())
    for _ in range(steps):
        opt.zero_grad()
        x = rows(comm, X)
        out = checkpoint(model, x, use_reentrant=False) if around else model(x)
        out.square().mean().backward()
        opt.step()
        assert not any(unit.whole for unit in model.units)
    return model.full_state_dict()


@functools.cache
def oracle(how):
    model = tower(how)
    opt = OPTIMIZERS["momentum"](model.parameters())
    for _ in range(3):
        opt.zero_grad()
        model(X).square().mean().backward()
        opt.step()
    return model.state_dict()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", [1, 3])
def test_recomputed_and_called_twice(how, n):
    for state in World(n).run(trained, how, prefetch=n % 3 + 1):
        assert far(state, oracle(how)) < 1e-14


@pytest.mark.parametrize(
    "how", ["inside ours", "inside ours reentrant", "outside ours", "outside ours reentrant"]
)
def test_recomputed_by_our_own_checkpoint(how):
    for state in World(3).run(trained, how):
        assert far(state, oracle("plain")) < 1e-14


@pytest.mark.parametrize("how", ["plain", "outside"])
def test_the_whole_recomputed(how):
    for state in World(2).run(trained, how, True):
        assert far(state, oracle(how)) < 1e-14


def test_recomputed_over_processes():
    for state in launch(trained, 2, "outside"):
        assert far(state, oracle("outside")) < 1e-14


@pytest.mark.parametrize(
    ("how", "times"),
    [
        ("plain", 3),
        ("inside", 3),
        ("outside", 3),
        ("outside reentrant", 4),
        ("inside ours", 3),
        ("inside ours reentrant", 3),
        ("outside ours", 3),
        ("outside ours reentrant", 4),
        ("twice", 5),
    ],
)
def test_traffic_with_recomputation(how, times):
    """A block whose backward has begun is whole already; one recomputed before it is gathered once more."""
    sent = []
    for steps in (1, 2):
        world = World(3)
        world.run(trained, how, steps=steps)
        sent.append(world.trace.bytes_sent())
    outer, blocks = 2 * 5 * 6, 4 * (5 * 10 + 10 + 10 * 5 + 5)  # elements
    assert sent[1] - sent[0] == 8 * 2 * (3 * outer + times * blocks)


class Recursive(nn.Module):
    """Calls itself within its forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x, depth=2):
        x = torch.tanh(self.layer(x))
        return torch.tanh(self.layer(self(x, depth - 1))) if depth else x


def test_a_block_that_calls_itself():
    def program(comm, sharded):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 5), Recursive()).double()
        model = FullySharded(module, comm, blocks=Recursive) if sharded else module
        model(rows(comm, X)).square().mean().backward()
        return [p.grad for p in module.parameters()]

    for p, *pieces in zip(
        World(1).run(program, False)[0], *World(2).run(program, True), strict=True
    ):
        assert (torch.cat(pieces) - p.reshape(-1)).abs().max() < 1e-14


def graphless(comm, how):
    model = FullySharded(tower(seed=1), comm, blocks=Block)
    model.train(how != "eval")
    context = {
        "eval": torch.no_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "graph": torch.enable_grad,
    }[how]
    with context():
        out = model(X)
    whole = [unit.whole for unit in model.units]
    model(X).sum().backward()  # as if nothing had been
    return out.detach().clone(), whole, [p.grad.abs().sum().item() for p in model.parameters()]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference", "graph"])
def test_without_a_backward(how):
    module = tower(seed=1)
    expected = module(X)
    for out, whole, grads in World(2).run(graphless, how):
        assert torch.equal(out, expected)
        assert not any(whole) and sum(grads) > 0


class Fails(nn.Module):
    """Raises where it is told to, once."""

    def __init__(self, place):
        super().__init__()
        self.layers, self.place = nn.ModuleList(Block(5) for _ in range(3)), place

    def forward(self, x):
        x = self.layers[1](self.layers[0](x))
        if self.place == "forward":
            raise KeyError("forward")
        if self.place == "backward":
            x = x * 1.0
            x.register_hook(lambda grad: {}["backward"])
        return self.layers[2](x)


def after_an_error(comm, place):
    torch.manual_seed(comm.rank)
    module = Fails(place).double()
    model = FullySharded(
        module, comm, blocks=lambda m: isinstance(m, Block) or m is module.layers[2].b
    )
    with pytest.raises(KeyError):
        model(rows(comm, X)).square().mean().backward()
    whole = [unit.whole for unit in model.units]
    module.place = None
    model.zero_grad()
    model(rows(comm, X)).square().mean().backward()
    return whole, [None if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize(
    "run", [lambda *args: World(2).run(*args), lambda *args: launch(args[0], 2, *args[1:])]
)
def test_after_an_error(place, run):
    torch.manual_seed(0)
    module = Fails(None).double()
    module(X).square().mean().backward()
    results = run(after_an_error, place)
    assert place == "backward" or not any(w for whole, _ in results for w in whole)
    for p, *pieces in zip(module.parameters(), *(grads for _, grads in results), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


class Forms(nn.Module):
    """Takes and gives nested containers, keywords, what is no tensor, and one input as it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, pair, *, scale, extra=None):
        x, rest = pair["x"], pair["rest"]
        y = self.layer(x) * scale
        return {"y": (y, [rest, None]), "name": "forms"}, y.detach(), extra


def forms(comm, sharded):
    torch.manual_seed(0)
    block = Forms().double()
    block = FullySharded(block, comm) if sharded else block
    x = X.clone().requires_grad_()
    found, constant, extra = block({"x": x * 2, "rest": x}, scale=3, extra="as it is")
    (found["y"][0].sum() + found["y"][1][0].square().sum()).backward()
    return x.grad, found["name"], extra, constant.requires_grad


def test_forms_of_inputs_and_outputs():
    ours, plain = World(2).run(forms, True), World(1).run(forms, False)[0]
    for mine in ours:
        assert torch.equal(mine[0], plain[0]) and mine[1:] == plain[1:]


def dropout(comm):
    module = tower("dropout", comm.rank)
    model = FullySharded(module, comm, blocks=Block)
    torch.manual_seed(7)
    model(X).square().mean().backward()
    return [p.grad for p in model.parameters()]


def test_recomputation_draws_the_same_numbers():
    """Gathering between forward and its repetition draws none."""
    module = tower("dropout")
    torch.manual_seed(7)
    module(X).square().mean().backward()
    for p, *pieces in zip(module.parameters(), *World(2).run(dropout), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


def test_a_block_that_changes_its_input_in_place_is_refused():
    """By torch: the one who gave the input could not know."""

    def program(comm):
        model = nn.Sequential(
            nn.Linear(5, 5), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5))
        )
        FullySharded(model, comm, blocks=nn.Sequential)(X.float()).sum().backward()

    with pytest.raises(RuntimeError, match="modified inplace"):
        World(2).run(program)


# ------------------------------------------------------------
# Which block holds which parameter: types, predicates, nesting, ties.


TOKENS = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(1))


def small(seed=0, tied=True):
    return gpt(
        layers=2, hidden=8, heads=2, vocab=11, context=8, tied=tied, seed=seed, dtype=torch.float64
    )


def names(comm, blocks):
    model = FullySharded(small(), comm, blocks=blocks)
    return {unit.name: len(unit.held) for unit in model.units}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (None, {"": 28}),
        (TransformerLayer, {"": 4, "layers.0": 12, "layers.1": 12}),
        (
            (Attention, MLP),
            {
                "": 12,
                "layers.0.attention": 4,
                "layers.0.mlp": 4,
                "layers.1.attention": 4,
                "layers.1.mlp": 4,
            },
        ),
        (
            lambda m: isinstance(m, TransformerLayer | MLP),
            {"": 4, "layers.0": 8, "layers.0.mlp": 4, "layers.1": 8, "layers.1.mlp": 4},
        ),
    ],
)
def test_blocks_by_type_and_predicate(blocks, expected):
    assert World(2).run(names, blocks) == [expected] * 2


def test_what_modules_share_belongs_to_the_block_around_them():
    """A pair of tied layers in one block, and a third outside."""

    def program(comm, third):
        module = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
        module[0][1].weight = module[0][0].weight
        if third:
            module[1].weight = module[0][0].weight
        model = FullySharded(module, comm, blocks=nn.Module)
        names = {m: name for name, m in module.named_modules()}
        sites = lambda h: [f"{names[m]}.{attribute}" for m, attribute in h.sites]
        return {unit.name: [sites(h) for h in unit.held] for unit in model.units}

    tied = ["0.0.weight", "0.1.weight"]
    assert World(1).run(program, False)[0] == {
        "0": [tied],
        "0.0": [["0.0.bias"]],
        "0.1": [["0.1.bias"]],
        "1": [["1.weight"], ["1.bias"]],
    }
    assert World(1).run(program, True)[0][""] == [[*tied, "1.weight"]]


BLOCKS = {"one": None, "deep": (TransformerLayer, MLP)}


def trained_gpt(comm, how, tied=True):
    model = FullySharded(small(comm.rank, tied), comm, blocks=BLOCKS[how])
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        opt.zero_grad()
        tokens = rows(comm, TOKENS)
        next_token_loss(model(tokens), tokens.roll(-1, 1)).backward()
        opt.step()
    assert not any(unit.whole for unit in model.units)
    return model.full_state_dict()


def gpt_oracle(tied=True):
    module = small(0, tied)
    opt = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        opt.zero_grad()
        next_token_loss(module(TOKENS), TOKENS.roll(-1, 1)).backward()
        opt.step()
    return module.state_dict()


@pytest.mark.parametrize(("how", "tied"), [("one", True), ("deep", True), ("deep", False)])
def test_a_gpt(how, tied):
    for state in World(3).run(trained_gpt, how, tied):
        assert far(state, gpt_oracle(tied)) < 1e-12


def test_a_gpt_over_processes():
    for state in launch(trained_gpt, 2, "deep"):
        assert far(state, gpt_oracle()) < 1e-12


def test_one_inside_is_refused():
    def program(comm):
        FullySharded(nn.Sequential(FullySharded(nn.Linear(3, 3), comm), nn.Linear(3, 3)), comm)

    with pytest.raises(ValueError, match=r"0 is a FullySharded inside .* blocks="):
        World(2).run(program)


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="weight is on meta"):
        World(2).run(lambda comm: FullySharded(nn.Linear(3, 3, device="meta"), comm))


def test_a_module_without_parameters():
    def program(comm):
        return FullySharded(nn.ReLU(), comm)(torch.ones(2)), FullySharded(nn.Linear(2, 0), comm)(
            torch.ones(1, 2)
        ).shape

    for out, shape in World(3).run(program):
        assert out.tolist() == [1.0, 1.0] and shape == (1, 0)


# ------------------------------------------------------------
# The flat buffer: cuts, strides, what is there when it is free and when it is whole.


def params(seed):
    torch.manual_seed(seed)
    shapes = [
        torch.randn(3, 2).t(),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(5),
    ]
    return [nn.Parameter(shape.double(), requires_grad=i != 4) for i, shape in enumerate(shapes)]


def flat_of(comm, dtype=None, seed=0, offload=False):
    module = nn.Module()
    held = []
    for i, p in enumerate(params(seed)):
        setattr(module, f"p{i}", p)
        h = Held(f"p{i}", p)
        h.sites.append((module, f"p{i}"))
        held.append(h)
    return module, Flat(held, comm, dtype, comm.host if offload else Host(comm.device))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 90])
def test_shards_put_together(n):
    def program(comm):
        _, flat = flat_of(comm, seed=comm.rank)
        return (
            flat.sizes,
            flat.shard,
            [h.piece.numel() for h in flat.held],
            flat.strides,
        )

    results = World(n).run(program)
    whole = torch.cat([shard for _, shard, *_ in results])
    assert results[0][0] == [84 // n + (r < 84 % n) for r in range(n)]
    # in the order of its memory
    memory = [p.detach().as_strided((p.numel(),), (1,)) for p in params(0)]
    memory[2] = torch.empty(0)
    assert torch.equal(whole, torch.cat(memory))
    for *_, strides in results:
        assert strides[:2] == [(1, 2), ()] and strides[3] == (36, 1, 12, 4)
    assert [sum(counts) for counts in zip(*(counts for *_, counts, _ in results), strict=True)] == [
        6,
        1,
        0,
        72,
        5,
    ]


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("offload", [False, True])
def test_whole_and_free(dtype, offload):
    def program(comm):
        module, flat = flat_of(comm, dtype, offload=offload)
        seen = []
        for _ in range(2):
            assert flat.full.untyped_storage().nbytes() == 0
            assert all(getattr(module, f"p{i}") is h.piece for i, h in enumerate(flat.held))
            flat.allocate()
            for h in flat.held:
                h.show()
            seen.append([getattr(module, f"p{i}").detach().clone() for i in range(5)])
            assert all(getattr(module, f"p{i}") is h.whole for i, h in enumerate(flat.held))
            flat.release()
            with torch.no_grad():
                flat.held[0].piece.mul_(2)  # a step of the optimizer is seen in the next gather
        return seen, flat.trains

    (first, second), trains = World(1).run(program)[0]
    for i, (a, b, p) in enumerate(zip(first, second, params(0), strict=True)):
        assert (
            torch.equal(a, p.to(a.dtype))
            and a.stride() == p.stride()
            and a.dtype == dtype
            or a.dtype == p.dtype
        )
        assert torch.equal(b, a * 2 if i == 0 else a)
    assert trains


def test_gathering_again_is_no_change_to_autograd():
    """What forward has saved is full of the same values in backward, and torch's check for changes is at peace."""

    def program(comm):
        _, flat = flat_of(comm)
        flat.allocate()
        w = flat.held[0].whole
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        y = (w.t() @ x).sum()
        flat.release()
        flat.allocate()
        y.backward()
        return x.grad, w.detach().clone()

    grad, w = World(1).run(program)[0]
    assert torch.equal(grad, w.sum(1))


# ------------------------------------------------------------
# Whole gradients to shards: averages, weights, and those that are missing here, elsewhere, or
# everywhere.


class Branches(nn.Module):
    """Each rank takes a branch of its own; no rank takes the last one."""

    def __init__(self, n):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(n + 1))

    def forward(self, x, which):
        return self.branches[which](x)


def batch_of(rank, size):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(10 + rank)).double()


def branches(comm, weighted, dead):
    torch.manual_seed(comm.rank)
    module = Branches(comm.size).double()
    model = FullySharded(module, comm)  # one block: its ranks take other branches within it
    size = comm.rank if weighted else 2
    model.weight = size if weighted else None
    loss = model(batch_of(comm.rank, size), comm.rank).square().sum().div(3 * max(1, size))
    (loss * (0 if dead else 1)).backward()
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def expected(n, weighted, dead):
    torch.manual_seed(0)
    module = Branches(n).double()
    for r in range(n):
        size = r if weighted else 2
        share = r / sum(range(n)) if weighted else 1 / n
        module(batch_of(r, size), r).square().sum().mul(
            (not dead) * share / 3 / max(1, size)
        ).backward()
    return [None if p.grad is None else p.grad.reshape(-1) for p in module.parameters()]


def put_together(found):
    """Pieces of all ranks, or None where all that has elements is None."""
    for pieces in zip(*found, strict=True):
        there = [p for p in pieces if p is not None]
        yield torch.cat(there) if there and sum(p.numel() for p in there) else None


@pytest.mark.parametrize("dead", [False, True])  # a gradient of zeros is a gradient
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_missing_here_elsewhere_and_everywhere(n, weighted, dead):
    if n == 1 and weighted:
        weighted = False
    for mine, oracle in zip(
        put_together(World(n).run(branches, weighted, dead)),
        expected(n, weighted, dead),
        strict=True,
    ):
        assert (mine is None) == (oracle is None)
        assert mine is None or (mine - oracle).abs().max() < 1e-15


def test_missing_over_processes():
    for mine, oracle in zip(
        put_together(launch(branches, 3, True, False)), expected(3, True, False), strict=True
    ):
        assert (mine is None) == (oracle is None)
        assert mine is None or (mine - oracle).abs().max() < 1e-15


def one_flat(comm, grads):
    held = [Held(str(i), nn.Parameter(torch.zeros(3))) for i in range(len(grads))]
    flat = Flat(held, comm, None, Host(comm.device))
    for h, grad in zip(held, grads, strict=True):
        h.whole.grad = grad
    return flat


def packed(flat, part):
    leaving = Leaving(flat, [h.whole for h in flat.held])
    return leaving.pack(0, flat.total, part), leaving.missing


@pytest.mark.parametrize("part", [0.5, 0.0])
def test_minus_zero_is_sent_for_what_is_missing_alone(part):
    def program(comm):
        flat = one_flat(comm, [torch.tensor([-0.0, 2.0, -1.0]), None])
        buffer, missing = packed(flat, part)
        assert all(h.whole.grad is None for h in flat.held)
        return buffer, missing

    flat, missing = World(1).run(program)[0]
    assert missing == [1]
    assert torch.signbit(flat).tolist() == [False, False, float(part) > 0] + [True] * 3
    assert flat.tolist() == [0.0, 2.0 * float(part), -1.0 * float(part), 0.0, 0.0, 0.0]


def test_the_mean_loss_of_no_samples_is_nan_and_counts_nothing():
    def program(comm):
        return packed(one_flat(comm, [torch.full((3,), float("nan"))]), 0.0)[0]

    assert World(1).run(program)[0].tolist() == [0.0, 0.0, 0.0]


def test_a_sparse_gradient_is_refused():
    def program(comm):
        model = FullySharded(nn.Embedding(4, 2, sparse=True), comm)
        model(torch.tensor([1, 2])).sum().backward()

    with pytest.raises(ValueError, match=r"gradient of weight is sparse.*sparse=False"):
        World(2).run(program)


@pytest.mark.parametrize("weight", [-1, float("nan")])
def test_a_weight_below_zero_is_refused(weight):
    def program(comm):
        model = FullySharded(nn.Linear(2, 2), comm)
        model.weight = weight
        model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(ValueError, match="at least 0"):
        World(1).run(program)


# ------------------------------------------------------------
# The order of gathers and reductions, and that they run beside the computation.


def logged(comm, prefetch, steps, skip=()):
    """What was started, in order, in the last step: `g0` gathers block 0, `r0` reduces it, `F0` and `B0` compute."""
    module = tower().layers
    module = nn.Sequential(*module)
    model = FullySharded(module, comm, blocks=Block, prefetch=prefetch)
    log = []
    for i, unit in enumerate(model.units):
        unit.start = lambda unit=unit, i=i, start=unit.start: (
            log.append(f"g{i}") if not unit.whole else 0,
            start(),
        )
        module[i].b.register_forward_hook(lambda *_, i=i: log.append(f"F{i}"))
        module[i].b.register_full_backward_hook(lambda *_, i=i: log.append(f"B{i}"))
    reduce = model._reducer.reduce
    position = {id(unit): i for i, unit in enumerate(model.units)}
    model._reducer.reduce = lambda unit: (
        log.append(f"r{position[id(unit)]}") if unit.dirty else 0,
        reduce(unit),
    )
    for step in range(steps):
        log.clear()
        if step == steps - 1:
            for i in skip:
                module[i].forward = lambda x: x
        model(rows(comm, X)).sum().backward()
    return " ".join(log)


def test_naive_order():
    order = "g0 F0 g1 F1 g2 F2 g3 F3 g3 B3 r3 g2 B2 r2 g1 B1 r1 g0 B0 r0"
    for steps in (1, 2):
        assert World(2).run(logged, 0, steps) == [order] * 2


def test_one_ahead():
    """In the first forward the order is not known; backward knows it from then on."""
    back = "g3 g2 B3 r3 g1 B2 r2 g0 B1 r1 B0 r0"
    assert World(2).run(logged, 1, 1) == ["g0 F0 g1 F1 g2 F2 g3 F3 " + back] * 2
    assert World(2).run(logged, 1, 2) == ["g0 g1 F0 g2 F1 g3 F2 F3 " + back] * 2


def test_two_ahead():
    order = "g0 g1 g2 F0 g3 F1 F2 F3 g3 g2 g1 B3 r3 g0 B2 r2 B1 r1 B0 r0"
    assert World(2).run(logged, 2, 2) == [order] * 2


def other_order(comm, skip):
    """A forward that leaves a block out, after one that did not."""

    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.out = tower(seed=comm.rank).layers, ()

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = x if i in self.out else layer(x)
            return x

    module = Some()
    model = FullySharded(module, comm, blocks=Block)
    grads = []
    for module.out in ((), skip, ()):
        model.zero_grad()
        model(rows(comm, X)).square().mean().backward()
        assert not any(unit.whole for unit in model.units)
        grads.append([p.grad for p in model.parameters()])
    return grads


@pytest.mark.parametrize("skip", [(0,), (1,), (2, 3), (0, 1, 2)])
def test_a_wrong_guess_costs_no_more_than_a_gather(skip):
    for first, second, third in World(3).run(other_order, skip):
        assert all((a == b).all() for a, b in zip(first, third, strict=True))
        assert [g is None for g in second] == [i // 4 in skip for i in range(16)]


def step_time(comm, prefetch):
    model = FullySharded(large("meta"), comm, prefetch=prefetch, blocks=nn.Linear)
    x = torch.empty(512, 1000, device="meta")
    for _ in range(2):
        start = comm.now()
        model(x).sum().backward()
    return comm.now() - start


def test_prefetch_hides_what_computing_takes():
    """A block's gather takes as long as its forward; with one ahead nearly all of it is hidden."""
    flops = 2 * 512 * 1000 * 1000
    rank = Device("a rank", {torch.float32: 1e12}, 1 << 40, 1e18)
    cluster = Cluster.uniform(2, 0.0, flops / 1e12 / (4 * 1001000 / 2), rank)
    block = flops / 1e12
    naive, ahead, two = (
        max(World(2, cluster=cluster, device="meta").run(step_time, k)) for k in (0, 1, 2)
    )
    # computing, and 3 messages a block
    assert naive == pytest.approx((10 + 19 + 30) * block, rel=0.02)
    # gathers and reductions fit under backward
    assert ahead == pytest.approx((1 + 10 + 1 + 19 + 1) * block, rel=0.1)
    assert ahead >= 30 * block > 0 and two <= ahead * 1.01


def test_prefetch_below_zero_is_refused():
    with pytest.raises(ValueError, match="blocks are gathered ahead, not -1"):
        World(1).run(lambda comm: FullySharded(nn.Linear(1, 1), comm, prefetch=-1))


# ------------------------------------------------------------
# Bytes by category, the peak of a step, traffic: counted on a model of 10 million parameters,
# against the formulas.


PARAMS = 10 * LAYER
RANK = Device("a rank", {torch.float32: 1e12, torch.float16: 1e12}, 1 << 40, 1e12)


def steps(comm, count, backwards=1, prefetch=1, planted=None, compute=torch.float16):
    """(start of the forward, end of the backward) of each step, in virtual seconds."""
    model = FullySharded(
        large(comm.device.type), comm, compute, prefetch=prefetch, blocks=nn.Linear
    )
    if planted:
        planted(model)
    opt = torch.optim.Adam(model.parameters())
    x = torch.empty(8, WIDTHS[0], device=comm.device)
    times = []
    for _ in range(count):
        opt.zero_grad()
        start = comm.now()
        for _ in range(backwards):
            model(x).float().square().mean().backward()
        times.append((start, comm.now()))
        opt.step()
    return times


@functools.cache
def metered(n, *args):
    """Rank 0's timeline, and the span of the last step."""
    world = World(n, cluster=Cluster.uniform(n, 1e-6, 1e-10, RANK), device="meta")
    times = world.run(steps, *args)
    return world.trace.memory[0], times[0][-1]


def most(timeline, start, end, category=None):
    within = (timeline.times >= start) & (timeline.times <= end)
    return int((timeline.total if category is None else timeline.live[category])[within].max())


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_is_kept(n):
    timeline, (_, end) = metered(n, 2, 1, 1)
    found = timeline.at(end)
    assert found.pop("other") < 100_000  # inputs and outputs; a block's gradients are 2 MB
    # of a layer: each is cut on its own
    formula = states(PARAMS // 10, "adam", "fp32", zero=3, data=n)
    expected = {
        "parameters": 10 * formula.parameters,
        "gradients": 10 * formula.gradients,
        "optimizer states": 10 * formula.optimizer_states,
    }
    assert found == expected | {"activations": 0, "buffers": 0}
    assert expected == {
        name: 10 * nbytes for name, nbytes in zero_kept(3, LAYER, -(-LAYER // n), 4).items()
    }
    paper = states(PARAMS // 10, "adam", "fp16", zero=3, data=n)
    assert sum(expected.values()) == 10 * paper.total
    if LAYER % n == 0:
        assert sum(expected.values()) == 16 * PARAMS // n


def violated(n, prefetch, *args):
    """Which of the promises the last step broke. Blocks are in fp16, 2 bytes an element, shards in fp32."""
    timeline, span = metered(n, 2, args[0] if args else 1, prefetch, *args[1:])
    shards = {name: 10 * nbytes for name, nbytes in zero_kept(3, LAYER, -(-LAYER // n), 4).items()}
    live = {name: most(timeline, *span, name) for name in timeline.live}
    whole = zero_peak(sum(shards.values()), 2 * LAYER, 2 * LAYER, live["activations"], prefetch)
    limits = {
        "parameters": shards["parameters"] + (1 + prefetch) * 2 * LAYER,
        "gradients": shards["gradients"] + 2 * LAYER,
        "optimizer states": shards["optimizer states"],
    }
    broken = [name for name, limit in limits.items() if live[name] > limit]
    broken += [
        f"{name} after it"
        for name, nbytes in shards.items()
        if timeline.at(span[1])[name] != nbytes
    ]
    return broken + ["peak"] * (most(timeline, *span) > whole)


@pytest.mark.parametrize(
    ("n", "prefetch"), [(2, 0), (2, 1), (3, 1), (3, 2), (4, 0), (4, 1)] + [(3, 0)] * FULL
)
def test_peak_of_a_step(n, prefetch, figure):
    timeline, span = metered(n, 2, 1, prefetch)
    live = most(timeline, *span, "activations")
    shards = 10 * sum(zero_kept(3, LAYER, -(-LAYER // n), 4).values())
    bound = zero_peak(shards, 2 * LAYER, 2 * LAYER, live, prefetch)
    figure(f"n={n}, {prefetch} blocks ahead: peak {most(timeline, *span):,} B, bound {bound:,}")
    assert violated(n, prefetch) == []


def test_gradients_that_accumulate_in_the_shards_cost_a_chunk_more():
    """The ring's: while one block is reduced, the shards of all have their gradients already."""
    timeline, span = metered(3, 2, 2, 1)
    shards = 10 * sum(zero_kept(3, LAYER, LAYER // 3, 4).values())
    found = most(timeline, *span) - zero_peak(
        shards, 2 * LAYER, 2 * LAYER, most(timeline, *span, "activations")
    )
    # and two outputs of a layer, which are "other"
    assert found <= 2 * LAYER // 3 + 2 * 8 * 1000 * 2


def never_frees(model):
    for unit in model.units:
        for flat in unit.flats:
            flat.full.untyped_storage().resize_(flat.full.nbytes)
            flat.release = lambda: None


def gathers_all_ahead(model):
    model._reducer.prefetch = 10


def keeps_gradients(model):
    model._reducer.in_backward = False


def frees_after_backward_only(model):
    for unit in model.units:
        unit.free_, unit.free = (
            unit.free,
            lambda unit=unit: unit.free_() if model._reducer.active else None,
        )


WRONG = {
    never_frees: "parameters",
    gathers_all_ahead: "parameters",
    keeps_gradients: "optimizer states after it",
    frees_after_backward_only: "parameters",
}


@pytest.mark.parametrize(
    ("n", "wrong"),
    [*((2, wrong) for wrong in WRONG), (4, never_frees), (4, frees_after_backward_only)],
)
def test_what_shards_too_little_is_found(n, wrong):
    assert WRONG[wrong] in violated(n, 1, 1, wrong)
    assert n == 2 or "peak" in violated(n, 1, 1, wrong)


def test_a_rank_that_owns_all_is_found(monkeypatch):
    monkeypatch.setattr(zero, "uneven", lambda total, n: [total] + [0] * (n - 1))
    found = violated(2, 1, 1, id)
    assert {"parameters after it", "gradients after it", "optimizer states after it", "peak"} <= {
        *found
    }


@pytest.mark.parametrize(("n", "prefetch"), [(1, 1), (2, 0), (3, 1), (4, 0), (4, 1)])
def test_traffic_of_a_step(n, prefetch):
    sent = []
    for count in (1, 2):
        world = World(n, device="meta", meter=False)
        world.run(steps, count, 1, prefetch)
        sent.append(world.trace.bytes_sent())
    # elements of 2 bytes, the mean over ranks
    assert Fraction(sent[1] - sent[0], 2 * n) == zero_traffic(3, PARAMS, n)


def freezes_one(model):
    for h in model.units[5].held:
        h.piece.requires_grad_(False)


@pytest.mark.parametrize("n", [2, 3])
def test_traffic_of_a_step_with_frozen_blocks(n):
    """One in the midst is gathered twice, as backward passes through it, and never reduced."""
    sent = []
    for count in (1, 2):
        world = World(n, device="meta", meter=False)
        world.run(steps, count, 1, 1, freezes_one)
        sent.append(world.trace.bytes_sent())
    assert Fraction(sent[1] - sent[0], 2 * n) == zero_traffic(3, 9 * LAYER, n, frozen=LAYER)


def test_the_peak_of_memory_in_use_is_the_same_on_real_tensors():
    """Storages are resized by a method of their own: the meter hears it on the CPU, too."""
    found = []
    for device in ("cpu", "meta"):
        world = World(2, cluster=Cluster.uniform(2, 1e-6, 1e-10, RANK), device=device)
        times = world.run(steps, 1, 1, 1, None, None)
        found.append([most(world.trace.memory[rank], *times[rank][-1]) for rank in (0, 1)])
    assert np.allclose(*found, rtol=0.01)


# ------------------------------------------------------------
# State dicts: whole ones in and out, shards, other numbers of ranks, buffers, mistakes.


def module_of(seed):
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(5)
    norm.running_mean.add_(seed)
    return nn.Sequential(tower(seed=seed), norm, made("hard", seed)).double()


def in_blocks(comm, seed):
    return FullySharded(module_of(seed), comm, blocks=nn.Linear)


def out(comm, root):
    return in_blocks(comm, comm.rank).full_state_dict(root)


@pytest.mark.parametrize("root", [None, 0, 1])
def test_the_state_dict_of_the_unsharded_module(root):
    oracle = module_of(0).state_dict()
    for runner in (World(3).run, lambda *args: launch(args[0], 3, *args[1:])):
        for rank, state in enumerate(runner(out, root)):
            if root in (None, rank):
                assert far(state, oracle) == 0
                assert all(state[name].dtype == oracle[name].dtype for name in oracle)
                module_of(1).load_state_dict(state)
            else:
                assert state == {}


def in_and_out(comm, state, root):
    model = in_blocks(comm, 5)
    model.load_full_state_dict(state if root in (None, comm.rank) else None, root)
    return model.full_state_dict()


@pytest.mark.parametrize("root", [None, 0, 2])
def test_loading(root):
    state = {name: value + 1 for name, value in module_of(0).state_dict().items()}
    state["0.first.weight"] = state["0.first.weight"].float().double()
    for found in World(3).run(in_and_out, state, root):
        assert far(found, state) == 0


def test_a_shard_of_the_memory_at_a_time():
    def program(comm):
        model = in_blocks(comm, 0)
        model.load_full_state_dict({k: v.half() for k, v in model.full_state_dict().items()})
        return model.full_state_dict()["0.first.weight"]

    expected = module_of(0).state_dict()["0.first.weight"].half().double()
    assert torch.equal(World(2).run(program)[0], expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("1.bias"), "1.bias: nothing was given"),
        (
            lambda s: s.update(other=torch.ones(1)),
            r"other: \(1,\) was given, where the model has nothing",
        ),
        (
            lambda s: s.update({"1.bias": torch.ones(7)}),
            r"1.bias: \(7,\) was given, where the model has \(5,\)",
        ),
    ],
)
def test_mistakes_in_a_state(change, words):
    state = module_of(0).state_dict()
    change(state)
    with pytest.raises(ValueError, match=words):
        World(2).run(in_and_out, state, None)


def test_no_state_where_it_is_read():
    with pytest.raises(ValueError, match=r"0.first.bias: nothing was given"):
        World(2).run(in_and_out, None, None)


def take_steps(model, opt, steps, x):
    for _ in range(steps):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()


def resumed(comm):
    """Shards and the optimizer's states, saved after two steps and loaded by others: the same as four in a row."""
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(comm.rank)).double()

    def made_anew(seed):
        model = FullySharded(tower(seed=seed), comm, blocks=nn.Linear)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    straight = made_anew(0)
    again = made_anew(0)
    late = made_anew(3)
    take_steps(*straight, 4, x)
    take_steps(*again, 2, x)
    saved = [
        {name: value.clone() for name, value in again[0].state_dict().items()},
        again[1].state_dict(),
    ]
    late[0].load_state_dict(saved[0])
    late[1].load_state_dict(saved[1])
    take_steps(*late, 2, x)
    return list(saved[0]), straight[0].full_state_dict(), late[0].full_state_dict()


def test_shards_are_saved_and_loaded():
    for names, straight, late in World(3).run(resumed):
        assert far(late, straight) == 0
        assert names == list(tower().state_dict())


# ------------------------------------------------------------
# The norm of gradients in pieces, and clipping by it.


def clipped(comm, limit, kind):
    model = FullySharded(tower(seed=comm.rank), comm, blocks=nn.Linear)
    model(rows(comm, X)).square().mean().backward()
    total = model.clip_grad_norm_(limit, kind)
    return total, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.0, 0.01, 100.0])
@pytest.mark.parametrize("n", [1, 3])
def test_as_torch_clips(n, limit, kind):
    module = tower()
    module(X).square().mean().backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), limit, kind)
    results = World(n).run(clipped, limit, kind)
    for total, _ in results:
        assert abs(total - expected) < 1e-12
    for p, *pieces in zip(module.parameters(), *(grads for _, grads in results), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


@pytest.mark.parametrize(
    "run", [World(3).run, lambda *args, **more: launch(args[0], 3, *args[1:], **more)]
)
def test_training_with_clipping(run):
    for state in run(train, "hard", "momentum", clip=0.2, blocks=nn.Linear):
        assert far(state, serial("hard", "momentum", clip=0.2)) < 1e-12
    assert far(serial("hard", "momentum", clip=0.2), serial("hard", "momentum")) > 1e-3


def test_each_rank_by_its_own_norm_is_another_direction():
    def wrong(comm):
        model = FullySharded(tower(seed=comm.rank), comm, blocks=nn.Linear)
        model(rows(comm, X)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return global_norm(comm, [p.grad for p in model.parameters()])

    assert abs(World(2).run(wrong)[0] - 0.01) > 1e-3


def test_nothing_to_clip():
    """On two of three ranks there is nothing."""

    def program(comm):
        model = FullySharded(nn.Linear(1, 1, bias=False), comm)
        before = model.clip_grad_norm_(1.0)
        (model(torch.full((1, 1), 300.0)) * 1e3).sum().backward()
        return before, model.clip_grad_norm_(1.0)

    for before, total in World(3).run(program):
        assert before == 0 and total == 3e5


def test_mistakes_in_clipping():
    with pytest.raises(ValueError, match="at least 0, not -1"):
        World(1).run(clipped, -1, 2.0)
    with pytest.raises(ValueError, match="above 0, not 0"):
        World(1).run(clipped, 1.0, 0)


# ------------------------------------------------------------
# 16-bit compute over fp32 shards.


SINGLE = torch.randn(12, 5, generator=torch.Generator().manual_seed(2))


def sharded_halves(comm, dtype):
    module = tower(seed=comm.rank).float()
    module.layers[1].requires_grad_(False)
    module.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    model = FullySharded(module, comm, dtype, blocks=Block)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        opt.zero_grad()
        out = model(rows(comm, SINGLE))
        assert out.dtype == dtype
        (256 * out.float().square().mean()).backward()
        assert {p.grad.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
        for p in model.parameters():
            if p.requires_grad:
                p.grad.div_(256)
        opt.step()
    return model.full_state_dict()


def halves_by_hand(dtype):
    """fp32 masters, copied to 16 bits before each forward, by hand."""
    low, high = tower().to(dtype), tower().float()
    opt = torch.optim.Adam(high.parameters(), lr=0.01)
    high.layers[1].requires_grad_(False)
    low.layers[1].requires_grad_(False)
    for _ in range(5):
        with torch.no_grad():
            for a, b in zip(low.parameters(), high.parameters(), strict=True):
                a.copy_(b)
                a.grad = None
        (256 * low(SINGLE.to(dtype)).float().square().mean()).backward()
        for a, b in zip(low.parameters(), high.parameters(), strict=True):
            b.grad = None if a.grad is None else a.grad.float().div_(256)
        opt.step()
    return high.state_dict() | {"steps": torch.zeros((), dtype=torch.int64)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masters_by_hand(dtype):
    assert far(World(1).run(sharded_halves, dtype)[0], halves_by_hand(dtype)) == 0
    for run in (World(3).run, lambda *args: launch(args[0], 3, *args[1:])):
        first, *others = run(sharded_halves, dtype)
        assert all(far(state, first) == 0 for state in others)
        assert {value.dtype for value in first.values()} == {torch.float32, torch.int64}
        assert (
            far(first, halves_by_hand(dtype)) < 0.02
        )  # Adam's five steps of 0.01, sums in 16 bits


def test_what_travels_is_16_bits():
    def program(comm):
        sharded_once = FullySharded(nn.Linear(30, 30), comm, torch.bfloat16)
        sharded_once(torch.ones(1, 30)).sum().backward()

    world = World(2)
    world.run(program)
    assert world.trace.bytes_sent() == 4 * 930 // 2 + 3 * 2 * 930


def test_integers_stay_as_they_are():
    def program(comm):
        model = FullySharded(nn.Embedding(5, 4), comm, torch.float16)
        model(torch.tensor([1, 4, 4])).sum().backward()
        return model.module.weight.grad

    grads = torch.cat(World(2).run(program))
    assert grads.view(5, 4)[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 2.0]


def from_halves():
    """fp32, with values that fp16 has, as O2's masters start from them."""
    return mlp([5, 7, 6, 3]).half().float()


def adamw(params):
    return torch.optim.AdamW(params, lr=0.02)


def at_o2(bad_step):
    """Losses of six steps on one rank; in one of them is an inf."""
    amp, losses = prepare(from_halves(), adamw, "O2", scaler=LossScaler(2.0**12)), []
    for step in range(6):
        loss = amp.model(SINGLE).square().mean()
        losses.append(loss.item())
        amp.step(loss * (math.inf if step == bad_step else 1))
    return losses


def scaled(comm, bad_step, agree=True):
    """The same, each rank with the whole batch; the inf in one parameter's gradient, on the last rank."""
    model = FullySharded(from_halves(), comm, torch.float16, blocks=nn.Linear)
    optimizer, scaler = adamw(model.parameters()), LossScaler(2.0**12, comm=comm if agree else None)
    losses, skips = [], []
    for step in range(6):
        loss = model(SINGLE).float().square().mean()
        losses.append(loss.item())
        bad = step == bad_step and comm.rank == comm.size - 1
        hook = (
            model.units[0].held[-1].whole.register_hook(lambda grad: grad * math.inf)
            if bad
            else None
        )
        scaler.scale(loss).backward()
        if bad:
            hook.remove()
        before = scaler.skipped
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skips.append(scaler.skipped > before)
    return losses, skips, scaler.get_scale()


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("bad_step", [None, 2])
def test_a_loss_scaler_skips_on_all_ranks_and_losses_are_those_of_o2(n, bad_step):
    expected = at_o2(bad_step)
    assert expected == sorted(expected, reverse=True) and expected[-1] < 0.8 * expected[0]
    for losses, skips, scale in World(n).run(scaled, bad_step):
        assert losses == expected and skips == [step == bad_step for step in range(6)]
        assert scale == 2.0 ** (12 - (bad_step is not None))


def test_ranks_that_do_not_agree_step_apart():
    """The inf arrives in one rank's shard alone."""
    assert [sum(skips) for _, skips, _ in World(2).run(scaled, 2, False)] == [0, 1]


# ------------------------------------------------------------
# Hybrid sharding: shards within a group, copies of them across groups, beside the serial program.


RUNNERS = {
    "World": lambda program, n, *args: World(n).run(program, *args),
    "shm": lambda program, n, *args: launch(program, n, *args),
    "gloo": lambda program, n, *args: launch(program, n, *args, transport="gloo"),
}
GRIDS = [(2, 2), (3, 1), (1, 3), (2, 3)]  # (ranks that share a copy, copies)
STEPS = 5


def groups(comm, s):
    """The ranks of one copy of the model, and those that hold the same shard."""
    return comm.split(comm.rank // s), comm.split(comm.rank % s)


def train_hybrid(comm, s, name, optimizer, drop_last, options, steps=STEPS, clip=None):
    """This rank's part of the batch of all. Ranks start from different seeds. The state dict, and whether replicas of
    a shard are equal bit for bit."""
    inner, outer = groups(comm, s)
    model = FullySharded(made(name, comm.rank), inner, replicas=outer, **options)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    x, y = data()
    parts = list(Sampler(SAMPLES, 12, comm, shuffle=False, drop_last=drop_last))
    norms = []
    for step in range(steps):
        part = parts[step % len(parts)]
        optimizer.zero_grad()
        model.weight = None if drop_last else len(part)
        mse(model(x[part]), y[part]).backward()
        if clip:
            norms.append(model.clip_grad_norm_(clip).item())
        with comm.host:
            optimizer.step()
    return model.full_state_dict(), replicas_equal(outer, list(model.parameters())), norms


@pytest.mark.parametrize(
    ("where", "s", "r"),
    [
        *((where, s, r) for where in ("World", "shm") for s, r in GRIDS),
        *(("gloo", s, r) for s, r in (GRIDS if FULL else [(2, 3)])),
    ],
)
def test_it_trains_as_one_rank(where, s, r):
    for drop_last, name, options in [(True, "hard", {}), (False, "hard", {"blocks": nn.Linear})]:
        oracle = serial(name, "adamw", STEPS, drop_last)
        for state, same, _ in RUNNERS[where](
            train_hybrid, s * r, s, name, "adamw", drop_last, options
        ):
            assert same and far(state, oracle) < 1e-13


@pytest.mark.parametrize(
    "options", [{"prefetch": 0}, {"prefetch": 2, "blocks": nn.Linear}, {"offload": True}]
)
@pytest.mark.parametrize("name", ["hard", "mixed"])
def test_options(name, options):
    for drop_last in (True, False):
        oracle = serial(name, "momentum", STEPS, drop_last)
        for state, same, _ in World(4).run(train_hybrid, 2, name, "momentum", drop_last, options):
            assert same and far(state, oracle) < (1e-13 if name == "hard" else 1e-5)


@pytest.mark.parametrize(("s", "r"), [(2, 2), (2, 3)])
def test_clipping_counts_each_shard_once(s, r):
    model, norms = made("hard", 0), []
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    x, y = data()
    for step in range(STEPS):
        part = batches(True)[step % len(batches(True))]
        optimizer.zero_grad()
        mse(model(x[part]), y[part]).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())
        optimizer.step()
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        for state, _, found in run(
            train_hybrid, s * r, s, "hard", "momentum", True, {}, STEPS, 0.2
        ):
            assert found == pytest.approx(norms, rel=1e-13)
            assert far(state, model.state_dict()) < 1e-13


def test_clipping_by_the_function_for_any_model():
    def program(comm):
        inner, outer = groups(comm, 2)
        model = FullySharded(made("mlp", 0), inner, replicas=outer)
        x, y = data()
        mse(model(x[comm.rank * 3 :][:3]), y[comm.rank * 3 :][:3]).backward()
        return clip_grad_norm_(model, 0.1, inner).item()

    model = made("mlp", 0)
    x, y = data()
    mse(model(x[:12]), y[:12]).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    assert World(4).run(program) == pytest.approx([expected] * 4, rel=1e-13)


WIDTH = 24


def traced(comm, s, steps):
    inner, outer = groups(comm, s)
    model = FullySharded(nn.Linear(WIDTH, WIDTH, bias=False), inner, replicas=outer)
    for _ in range(steps):
        model(torch.ones(1, WIDTH)).sum().backward()


@pytest.mark.parametrize(("s", "r"), [(2, 2), (3, 1), (1, 3), (2, 3), (4, 2)])
def test_bytes_of_a_step(s, r, figure):
    """Two gathers and a reduce-scatter of N bytes within a copy; an all-reduce of N/s bytes across."""
    N = 4 * WIDTH**2
    within, across = Fraction(3 * (s - 1) * N, s), Fraction(2 * (r - 1) * N, r * s)
    figure(f"{s} shards × {r} replicas of {N} bytes: {within + across} bytes a rank and step")
    for run in RUNNERS.values() if FULL else (RUNNERS["World"], RUNNERS["shm"]):
        one, two = (run(traced, s * r, s, steps).trace for steps in (1, 2))
        for rank in range(s * r):
            sent = {True: 0, False: 0}  # to ranks of the same copy, or of another one
            for other in range(s * r):
                link = rank, other
                if other != rank:
                    sent[other // s == rank // s] += two.bytes_sent(link=link) - one.bytes_sent(
                        link=link
                    )
            assert (sent[True], sent[False]) == (within, across)
    assert within + across == 4 * zero_traffic(3, WIDTH**2, s, replicas=r)


def test_bytes_of_a_step_with_uneven_shards():
    """A part that is not even costs the same in sum over ranks."""

    def program(comm, steps):
        inner, outer = groups(comm, 2)
        # 18 numbers, 9 a shard, in 3 parts of 3
        model = FullySharded(nn.Linear(5, 3), inner, replicas=outer)
        # 21 numbers, 11 and 10, parts of 4 4 3, 4 3 3
        other = FullySharded(nn.Linear(6, 3), inner, replicas=outer)
        for _ in range(steps):
            (model(torch.ones(1, 5)).sum() + other(torch.ones(1, 6)).sum()).backward()

    sent = [World(6).run(program, steps).trace.bytes_sent() for steps in (1, 2)]
    assert sent[1] - sent[0] == 6 * 4 * zero_traffic(3, 18 + 21, 2, replicas=3)


def test_a_full_state_dict_from_one_rank_reaches_all():
    def program(comm, found):
        inner, outer = groups(comm, 2)
        model = FullySharded(made("hard", comm.rank), inner, replicas=outer)
        here = inner.rank == 1 and outer.rank == 0
        model.load_full_state_dict(found if here else None, root=1)
        return model.full_state_dict(), model.full_state_dict(root=0)

    wanted = made("hard", 7).state_dict()
    for runner in (RUNNERS["World"], RUNNERS["shm"]):
        for rank, (everywhere, at_root) in enumerate(runner(program, 4, wanted)):
            assert far(everywhere, wanted) == 0
            assert bool(at_root) == (rank % 2 == 0)


def saved(comm, folder, s, r, steps):
    mesh = Mesh(comm, dp=r, tp=s)
    model = FullySharded(made("mlp", comm.rank), mesh.tp, replicas=mesh.dp)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    checkpoints = Checkpoints(folder, comm)
    found = checkpoints.latest()
    if found is not None:
        load(found, model, optimizer)
    x, y = data()
    each = 12 // comm.size
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model(x[comm.rank * each :][:each]), y[comm.rank * each :][:each]).backward()
        optimizer.step()
    checkpoints.save(steps if found is None else found.step + steps, files.pieces(model, optimizer))
    return model.full_state_dict()


def test_a_checkpoint_goes_from_one_grid_to_another(tmp_path):
    """And is written once, however many copies there are."""
    model = made("mlp", 0)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    x, y = data()
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x[:12]), y[:12]).backward()
        optimizer.step()
    for run, (s, r) in (
        (RUNNERS["World"], (2, 2)),
        (RUNNERS["shm"], (1, 3)),
        (RUNNERS["World"], (3, 2)),
    ):
        for state in run(saved, s * r, str(tmp_path), s, r, 2):
            last = state
    assert far(last, model.state_dict()) < 1e-13


@pytest.mark.parametrize("kind", ["the same ranks", "other shards"])
def test_replicas_that_do_not_hold_the_same_shard(kind):
    def program(comm):
        inner = comm.split([0, 0, 1, 1])
        if kind == "the same ranks":
            outer = inner
        else:
            outer = comm.split([0, 1, 1, 0])
        with pytest.raises(ValueError, match=r"these 2 ranks hold shard . of 2, shard . of 2"):
            FullySharded(nn.Linear(3, 3), inner, replicas=outer)

    World(4).run(program)


# ------------------------------------------------------------
# Shards in the memory of the host: what lies where, what goes over its link, and the same numbers.


@pytest.mark.parametrize(
    "run", [World(3).run, lambda *args, **more: launch(args[0], 3, *args[1:], **more)]
)
def test_offloaded_trains_as_one_rank(run):
    for state in run(train, "hard", "adamw", clip=0.5, blocks=nn.Linear, offload=True):
        assert far(state, serial("hard", "adamw", clip=0.5)) < 1e-12


def offloaded(comm, device, backwards):
    model = FullySharded(large(device), comm, torch.float16, blocks=nn.Linear, offload=True)
    opt = torch.optim.Adam(model.parameters())
    start = comm.now()
    for _ in range(backwards):
        model(torch.empty(8, WIDTHS[0], device=device)).float().square().mean().backward()
    model.clip_grad_norm_(1.0)
    with comm.host:
        opt.step()
    end = comm.now()
    state = model.full_state_dict()
    model.load_full_state_dict(state)
    return start, end


@pytest.mark.parametrize(("device", "backwards"), [("meta", 1), ("meta", 2), ("cpu", 1)])
def test_what_lies_where(device, backwards):
    world = World(2, device=device, meter=True)
    times = world.run(offloaded, device, backwards)
    expected = {name: 10 * nbytes for name, nbytes in zero_kept(3, LAYER, LAYER // 2, 4).items()}
    expected["optimizer states"] += 4 * 20  # Adam counts the steps of each piece
    for rank, (_, end) in enumerate(times):
        host, device_ = world.trace.host[rank].memory.at(end), world.trace.memory[rank].at(end)
        assert {name: host[name] for name in expected} == expected
        assert sum(host.values()) <= sum(expected.values()) + 1000  # norms, say
        assert device_["parameters"] == device_["gradients"] == device_["optimizer states"] == 0


def test_the_host_narrows_what_goes_up():
    """Beside the shards it holds one block's part in 16 bits for a while."""

    def program(comm):
        model = FullySharded(
            large("meta"), comm, torch.float16, blocks=nn.Linear, prefetch=0, offload=True
        )
        with torch.no_grad():
            model(torch.empty(8, WIDTHS[0], device="meta"))

    world = World(2, device="meta", meter=True)
    world.run(program)
    assert world.trace.host[0].memory.peak == 10 * 4 * LAYER // 2 + 2 * LAYER // 2


def test_what_goes_over_the_link():
    """Each shard up twice in 16 bits, its gradient down once, and fp32 shards at the start and for a state dict."""

    def program(comm):
        model = FullySharded(large("meta"), comm, torch.float16, blocks=nn.Linear, offload=True)
        for _ in range(2):
            model(torch.empty(8, WIDTHS[0], device="meta")).float().square().mean().backward()

    world = World(2, device="meta", meter=True)
    world.run(program)
    shard = 10 * LAYER // 2
    assert world.trace.host[0].down == 4 * shard + 2 * (2 * shard)
    assert world.trace.host[0].up == 2 * 2 * (2 * shard)
