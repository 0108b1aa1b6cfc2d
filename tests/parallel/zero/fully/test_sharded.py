"""FullySharded trains as one rank does: optimizers, sizes, models that are hard to shard, both transports."""

import functools
import gc
import tempfile

import pytest
import torch
from torch import nn

from minidist.collectives import barrier
from minidist.comm import World, launch
from minidist.parallel.zero.fully import FullySharded
from tests.largest import largest
from tests.parallel.cases import made
from tests.parallel.zero.fully.cases import OPTIMIZERS, Block, far, rows, serial, tower, train

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
