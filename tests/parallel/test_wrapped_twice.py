"""A cell that wraps the same module runs again: the newer wrapper replaces the older one, and results stay right."""

import copy

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.parallel.batchnorm import SyncBatchNorm
from minidist.parallel.compress import Dense
from minidist.parallel.data import DataParallel
from minidist.parallel.local_sgd import LocalSGD
from tests.largest import largest
from tests.parallel.cases import data, difference, made, mse, replicas_equal
from tests.size import FULL

RUNNERS = {
    "World": lambda program, n, *args: World(n).run(program, *args),
    "shm": lambda program, n, *args: launch(program, n, *args),
    "gloo": lambda program, n, *args: launch(program, n, *args, transport="gloo"),
}
everywhere = pytest.mark.parametrize("where", list(RUNNERS))
except_gloo = pytest.mark.parametrize("where", list(RUNNERS) if FULL else ["World", "shm"])


def line():
    """One weight, of which the gradient is the input."""
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(net.weight)
    return net


def slope(comm, model, net):
    """The averaged gradient of the one weight."""
    net.zero_grad()
    model(torch.full((1, 1), comm.rank + 1.0, dtype=torch.float64)).sum().backward()
    return net.weight.grad.item()


WAYS = {
    "plain": {},
    "at the end": {"overlap": False},
    "compressed": {"compression": Dense},
}


def wrapped_again(comm, way, times=4):
    net, found = line(), []
    for i in range(times):
        # A loop over different kinds of averages, too: the last cell that ran is the one that counts.
        options = {
            key: value() if key == "compression" else value for key, value in WAYS[way].items()
        }
        model = DataParallel(net, comm, **({} if way == "compressed" and i % 2 else options))
        found.append(slope(comm, model, net))
    return found


@everywhere
@pytest.mark.parametrize("way", list(WAYS))
def test_data_parallel_in_a_loop(where, way):
    for found in RUNNERS[where](wrapped_again, 2, way):
        assert found == [1.5] * 4


@pytest.mark.parametrize("n", [1, 3])
def test_data_parallel_in_a_loop_over_other_numbers_of_ranks(n):
    for found in World(n).run(wrapped_again, "plain"):
        assert found == pytest.approx([(n + 1) / 2] * 4, rel=1e-15)


def test_the_name_that_a_cell_binds_is_wrapped_again():
    def program(comm):
        model = net = line()
        found = []
        for _ in range(3):
            model = DataParallel(model, comm)
            found.append(slope(comm, model, net))
        return found, [name for name, _ in model.named_parameters()]

    for found, names in World(2).run(program):
        assert found == [1.5] * 3
        assert names == ["module.weight"]


def test_another_comm_of_the_same_ranks_is_the_same_group():
    def program(comm):
        net, found = line(), []
        for _ in range(3):
            found.append(slope(comm, DataParallel(net, comm.split(0)), net))
        return found

    for run in RUNNERS.values():
        assert run(program, 2) == [[1.5] * 3] * 2


def test_the_older_one_says_that_it_was_replaced():
    def program(comm):
        net = line()
        old = DataParallel(net, comm)
        new = DataParallel(net, comm)
        for use in (
            lambda: old(torch.ones(1, 1).double()),
            old.average,
            lambda: old.no_sync().__enter__(),
        ):
            with pytest.raises(
                RuntimeError,
                match="DataParallel was replaced by a newer one over the same parameters",
            ):
                use()
        return slope(comm, new, net)

    assert World(2).run(program) == [1.5, 1.5]


STEPS = 4


def serial(optimizer_class=torch.optim.AdamW, steps=STEPS, **options):
    model = made("mlp", 0)
    optimizer = optimizer_class(model.parameters(), **(options or {"lr": 0.02}))
    x, y = data()
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model(x[:12]), y[:12]).backward()
        optimizer.step()
    return list(model.parameters())


def part(comm):
    """This rank's samples."""
    x, y = data()
    each = 12 // comm.size
    return x[comm.rank * each :][:each], y[comm.rank * each :][:each]


def trained(comm, module, model, optimizer, steps=STEPS):
    """The parameters after some steps, and whether all ranks have the same."""
    x, y = part(comm)
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
    params = [p.detach().clone() for p in module.parameters()]
    return params, replicas_equal(comm, params)


def remade(comm, stages, options):
    module = made("mlp", comm.rank)
    for stage in stages:
        optimizer = ShardedOptimizer(
            module.parameters(), torch.optim.AdamW, comm, stage, lr=0.02, **options
        )
    return trained(comm, module, module, optimizer)


@except_gloo
@pytest.mark.parametrize("stages", [(2, 2), (2, 1), (1, 2), (1, 1), (2, 1, 2)])
def test_sharded_optimizer_again(where, stages):
    for n in (1, 2, 3) if where == "World" else (2,):
        for params, same in RUNNERS[where](remade, n, stages, {}):
            assert same and difference(params, serial()) < 1e-13


def resumed(comm, stage, between):
    """Two steps, then the optimizer is made again and goes on with the states of the older one, or without."""
    module = made("mlp", comm.rank)
    make = lambda: ShardedOptimizer(module.parameters(), torch.optim.AdamW, comm, stage, lr=0.02)
    old = make()
    trained(comm, module, module, old, 2)
    if between == "a backward":
        x, y = part(comm)
        mse(module(x), y).backward()
    saved = old.state_dict()
    new = make()
    new.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="ShardedOptimizer was replaced by a newer one"):
        old.step()
    return trained(comm, module, module, new, STEPS - 2)


@pytest.mark.parametrize("between", ["nothing", "a backward"])
@pytest.mark.parametrize("stage", [1, 2])
def test_sharded_optimizer_resumes(stage, between):
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        for params, same in run(resumed, 2, stage, between):
            assert same and difference(params, serial()) < 1e-13


def unfinished(comm, stage):
    """An average lies at its owner alone when the optimizer is made again: it is no gradient of the newer one's."""
    module = made("mlp", 0)
    before = [p.detach().clone() for p in module.parameters()]
    make = lambda: ShardedOptimizer(module.parameters(), torch.optim.SGD, comm, stage, lr=0.1)
    old = make()
    x, y = part(comm)
    mse(module(x), y).backward()
    old.average()
    make().step()
    return difference([p.detach() for p in module.parameters()], before)


@pytest.mark.parametrize("stage", [1, 2])
def test_what_the_older_one_averaged_is_not_averaged_again(stage):
    assert World(2).run(unfinished, stage) == [0.0, 0.0]


def sharded_again(comm, times, options):
    module = made("hard", comm.rank)
    for _ in range(times):
        model = FullySharded(module, comm, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        x, y = part(comm)
        for _ in range(2):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
    return model.full_state_dict()


def sharded_serial(times):
    """Each time the optimizer is new, the parameters go on."""
    module = made("hard", 0)
    x, y = data()
    for _ in range(times):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
        for _ in range(2):
            optimizer.zero_grad()
            mse(module(x[:12]), y[:12]).backward()
            optimizer.step()
    return module.state_dict()


@except_gloo
@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"blocks": nn.Linear}])
def test_fully_sharded_again(where, options):
    oracle = sharded_serial(3)
    for n in (1, 2, 3) if where == "World" else (2,):
        for found in RUNNERS[where](sharded_again, n, 3, options):
            assert found.keys() == oracle.keys()
            assert (
                largest((found[name] - oracle[name]).abs().max().item() for name in oracle) < 1e-13
            )


def test_fully_sharded_again_in_16_bits_keeps_its_masters():
    def program(comm):
        module = made("mlp", 0).float()
        before = copy.deepcopy(module.state_dict())
        for compute_dtype in (torch.float16, torch.bfloat16, None):
            model = FullySharded(module, comm, compute_dtype)
        after = model.full_state_dict()
        return all(torch.equal(after[name], before[name]) for name in before)

    assert all(World(2).run(program))


def test_the_older_fully_sharded_says_that_it_was_replaced():
    def program(comm):
        module = made("mlp", 0)
        old = FullySharded(module, comm)
        FullySharded(module, comm)
        for use in (
            lambda: old(part(comm)[0]),
            old.full_state_dict,
            lambda: old.clip_grad_norm_(1.0),
        ):
            with pytest.raises(RuntimeError, match="FullySharded was replaced by a newer one"):
                use()

    World(2).run(program)


@pytest.mark.parametrize("in_backward", [False, True])
def test_offloaded_optimizer_again(in_backward):
    def program(comm):
        module = made("mlp", 0)
        options = {"in_backward": in_backward, "lr": 0.02}
        make = lambda: OffloadedOptimizer(module.parameters(), torch.optim.AdamW, comm, **options)
        old, optimizer = make(), make()
        with pytest.raises(RuntimeError, match="OffloadedOptimizer was replaced by a newer one"):
            old.step()
        x, y = data()
        for _ in range(STEPS):
            optimizer.zero_grad()
            mse(module(x[:12]), y[:12]).backward()
            assert (next(module.parameters()).grad is None) is in_backward
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    for run in (RUNNERS["World"], RUNNERS["shm"]):
        for params in run(program, 2):
            assert difference(params, serial()) < 1e-15


def local_again(comm, times):
    module = made("mlp", comm.rank)
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = inner
    for i in range(times):
        old = optimizer
        optimizer = LocalSGD(inner if i % 2 else optimizer, comm, H=1)
    if times > 1:
        with pytest.raises(RuntimeError, match="LocalSGD was replaced by a newer one"):
            old.step()
    found = trained(comm, module, module, optimizer)
    return *found, optimizer.steps


@everywhere
def test_local_sgd_again(where):
    for times in (1, 2, 3):
        for params, same, steps in RUNNERS[where](local_again, 2, times):
            assert same and steps == STEPS
            assert difference(params, serial(torch.optim.SGD, lr=0.1)) < 1e-14


def converted_again(comm, times):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    nn.init.normal_(net[0].weight, generator=torch.Generator().manual_seed(comm.rank))
    for i in range(times):
        net = SyncBatchNorm.convert(net, comm.split(0) if i % 2 else comm)
        model = DataParallel(net, comm)
    x, y = part(comm)
    mse(model(x), y).backward()
    return [p.grad for p in net.parameters()]


@everywhere
def test_batch_norm_converted_again(where):
    first, again = RUNNERS[where](converted_again, 2, 1), RUNNERS[where](converted_again, 2, 3)
    for a, b in zip(first, again, strict=True):
        assert difference(a, b) == 0


def test_batch_norm_of_another_group_is_refused():
    def program(comm):
        net = SyncBatchNorm.convert(nn.Sequential(nn.BatchNorm1d(3)), comm)
        with pytest.raises(ValueError, match="synchronized over 4 ranks already, not over these 2"):
            SyncBatchNorm.convert(net, comm.split(comm.rank % 2))

    World(4).run(program)


MAKE = {
    "DataParallel": lambda module, comm: DataParallel(module, comm),
    "ShardedOptimizer": lambda module, comm: ShardedOptimizer(
        module.parameters(), torch.optim.SGD, comm, 2, lr=0.1
    ),
    "FullySharded": lambda module, comm: FullySharded(module, comm),
    "LocalSGD": lambda module, comm: LocalSGD(
        torch.optim.SGD(module.parameters(), lr=0.1), comm, 2
    ),
}


@pytest.mark.parametrize("kind", list(MAKE))
def test_another_group_is_refused(kind):
    def program(comm):
        module = made("mlp", 0)
        MAKE[kind](module, comm)
        with pytest.raises(ValueError, match=f"{kind} over 4 ranks.* over 2"):
            MAKE[kind](module, comm.split(comm.rank % 2))

    World(4).run(program)


@pytest.mark.parametrize("kind", list(MAKE))
def test_a_part_is_refused_and_the_whole_replaces(kind):
    def program(comm):
        module = made("mlp", 0)
        MAKE[kind](module, comm)
        with pytest.raises(ValueError, match=f"2 of the 4 parameters of a {kind}"):
            MAKE[kind](
                module[0] if isinstance(module, nn.Sequential) else next(module.children()), comm
            )
        other = made("mlp", 0)
        first = MAKE[kind](other[0], comm)
        MAKE[kind](other, comm)
        with pytest.raises(RuntimeError, match=f"{kind} was replaced"):
            if hasattr(first, "no_sync"):
                first.no_sync().__enter__()
            else:
                first.average()

    World(2).run(program)


def test_two_modules_that_share_a_parameter_are_refused():
    def program(comm):
        one, two = nn.Linear(3, 3), nn.Linear(3, 3)
        two.weight = one.weight
        DataParallel(one, comm)
        with pytest.raises(ValueError, match="1 of the 2 parameters of a DataParallel"):
            DataParallel(two, comm)

    World(2).run(program)


def test_what_was_refused_has_changed_nothing():
    def program(comm):
        net = nn.Sequential(line(), line())
        model = DataParallel(net, comm)
        with pytest.raises(ValueError):
            DataParallel(net[0], comm)
        model(torch.full((1, 1), comm.rank + 1.0, dtype=torch.float64)).sum().backward()
        return [p.grad.item() for p in net.parameters()]

    assert World(2).run(program) == [[1.5, 1.5]] * 2


def copied(comm, net):
    """`net` was wrapped before it became an argument."""
    other = copy.deepcopy(net)
    sharded = ShardedOptimizer(net.parameters(), torch.optim.SGD, comm, 2, lr=1.0)
    found = slope(comm, DataParallel(other, comm), other)
    slope_here = net(torch.full((1, 1), comm.rank + 1.0, dtype=torch.float64)).sum()
    slope_here.backward()
    sharded.step()
    return found, net.weight.item()


@pytest.mark.parametrize("kind", ["DataParallel", "ShardedOptimizer", "LocalSGD"])
def test_a_copy_belongs_to_nobody(kind):
    def wrapped(comm):
        net = line()
        MAKE[kind](net, comm)
        return net

    net = World(1).run(wrapped)[0]
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        assert run(copied, 2, net) == [(1.5, 1.0 - 1.5)] * 2
    net = launch(wrapped, 1)[0]
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        assert run(copied, 2, net) == [(1.5, 1.0 - 1.5)] * 2


@pytest.mark.parametrize("kind", ["DataParallel", "FullySharded"])
def test_a_wrapper_is_not_copied(kind):
    """Its hooks would stay behind: the copy would train without averages, and say nothing."""

    def program(comm):
        net = made("mlp", 0)
        model = MAKE[kind](net, comm)
        with pytest.raises(TypeError, match=f"{kind}.* cannot be copied"):
            copy.deepcopy(model)
        if kind == "FullySharded":
            with pytest.raises(TypeError, match="FullySharded has sharded cannot be copied"):
                copy.deepcopy(net)

    for run in (RUNNERS["World"], RUNNERS["shm"]):
        run(program, 2)


def test_a_copy_of_a_synchronized_batch_norm_is_synchronized():
    def program(comm):
        net = SyncBatchNorm.convert(nn.Sequential(nn.BatchNorm1d(3)).double(), comm)
        x = torch.arange(6.0, dtype=torch.float64).view(2, 3) * (comm.rank + 1)
        return torch.equal(net(x), copy.deepcopy(net)(x))

    assert all(RUNNERS["World"](program, 2) + RUNNERS["shm"](program, 2))


def test_a_dropped_wrapper_still_averages_until_it_is_replaced():
    def program(comm):
        net = line()
        DataParallel(net, comm)
        alone = slope(comm, net, net)
        DataParallel(net, comm)
        return alone, slope(comm, net, net)

    assert World(2).run(program) == [(1.5, 1.5)] * 2
