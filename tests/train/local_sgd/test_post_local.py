"""Beside PyTorch's PostLocalSGDOptimizer, over the same processes; frozen parameters, buffers, masters, errors."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.amp import LossScaler, Masters
from minidist.train.local_sgd import LocalSGD, average_bytes
from tests.largest import largest
from tests.parallel.cases import data, difference, made, mse, replicas_equal
from tests.train.local_sgd.cases import OPTIMIZERS

START, H = 6, 4


def theirs(comm, seed, optimizer, aligned, dtype):
    """PyTorch's own: a hook that averages gradients up to the switch, an averager of parameters after it.

    Its averager averages after the first local step, then every H; aligned: after H, as ours.
    """
    import torch.distributed.algorithms.model_averaging.averagers as averagers
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
    from torch.distributed.optim import PostLocalSGDOptimizer

    module = mlp([6, 5, 3], seed, dtype)
    model = nn.parallel.DistributedDataParallel(module, process_group=comm.group)
    state = hook.PostLocalSGDState(comm.group, None, START, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(
        H, START + (H - 1 if aligned else 0), process_group=comm.group
    )
    return module, model, PostLocalSGDOptimizer(OPTIMIZERS[optimizer](model.parameters()), averager)


def ours(comm, seed, optimizer, dtype):
    module = mlp([6, 5, 3], seed, dtype)
    model = DataParallel(module, comm)
    return (
        module,
        model,
        LocalSGD(OPTIMIZERS[optimizer](module.parameters()), comm, H, START, model),
    )


def beside(comm, optimizer, dtype=torch.float64, steps=20):
    """The largest difference after the steps: with their first average put off, and as it comes by itself."""
    x, y = data(dtype)
    found = []
    for aligned in (True, False):
        mine, other = ours(comm, 0, optimizer, dtype), theirs(comm, 0, optimizer, aligned, dtype)
        for step in range(steps):
            part = slice(comm.rank + step, None, 2 * comm.size)
            for _, model, wrapped in (mine, other):
                wrapped.zero_grad()
                with wrapped.local() if isinstance(wrapped, LocalSGD) else torch.enable_grad():
                    mse(model(x[part]), y[part]).backward()
                wrapped.step()
            if not aligned and step == START:
                mine[2].average()
        found.append(difference(list(mine[0].parameters()), list(other[0].parameters())))
    return max(found)


def all_beside(comm, dtype=torch.float64):
    return {optimizer: beside(comm, optimizer, dtype) for optimizer in ("sgd", "momentum", "adamw")}


@pytest.mark.parametrize("n", [2, 3])
def test_pytorchs_own(n):
    """Its averager averages once more, after the first local step: `average()` does the same here."""
    for worst in launch(all_beside, n, transport="gloo"):
        assert largest(worst.values()) < 1e-13


def test_pytorchs_own_in_float32():
    # as far as it reaches
    assert largest(launch(beside, 2, "momentum", torch.float32, transport="gloo")) < 1e-6


def frozen(comm, when):
    """Bytes after the start, and whether replicas are equal, where a layer is frozen from step `when` on, of 4."""
    module = mlp([6, 5, 3], dtype=torch.float64)
    optimizer = LocalSGD(torch.optim.SGD(module.parameters(), 0.1), comm, H=4)
    for step in range(8):
        if step == when:
            module[0].requires_grad_(False)
        optimizer.zero_grad()
        module(
            torch.full((2, 6), 1.0 + comm.rank + step, dtype=torch.float64)
        ).square().sum().backward()
        optimizer.step()
    return replicas_equal(comm, list(module.parameters()))


@pytest.mark.parametrize(
    ("when", "numbers"), [(0, 18 + 18), (2, 53 + 18), (4, 53 + 18), (8, 53 + 53)]
)
def test_frozen_parameters(when, numbers):
    """What moved in a period is averaged once more; what was frozen all through it is not sent."""

    def start(comm):
        LocalSGD(torch.optim.SGD(mlp([6, 5, 3], dtype=torch.float64).parameters(), 0.1), comm, H=4)
        return replicas_equal(comm, list(mlp([6, 5, 3], dtype=torch.float64).parameters()))

    run = World(2).run(frozen, when)
    assert run == [True, True]
    assert run.trace.bytes_sent() - World(2).run(start).trace.bytes_sent() == average_bytes(
        numbers, 2, 8
    )


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4))


def test_buffers():
    """Running statistics are averaged if they are given; else each rank keeps its own."""

    def program(comm, given):
        module = Normed()
        statistics = [module[1].running_mean, module[1].running_var]
        statistics[0].fill_(comm.rank)
        optimizer = LocalSGD(
            torch.optim.SGD(module.parameters(), 0.1), comm, 2, buffers=statistics if given else ()
        )
        for _ in range(2):
            module(torch.randn(8, 6)).sum().backward()
            optimizer.step()
        return statistics[0].clone(), replicas_equal(comm, statistics)

    assert [same for _, same in World(3).run(program, True)] == [True] * 3
    alone = World(3).run(program, False)
    assert not alone[0][1] and alone[2][0].mean() > alone[0][0].mean() + 1


@pytest.mark.parametrize("n", [2, 3])
def test_masters_are_averaged(n):
    """fp16 parameters are the rounded averages of fp32 masters."""

    def program(comm, half):
        module = mlp([6, 5, 3], dtype=torch.float16 if half else torch.float32)
        scaler = LossScaler(init=8.0, comm=comm)
        wrapped = lambda params: LocalSGD(torch.optim.SGD(params, lr=0.01, momentum=0.9), comm, H=3)
        optimizer = Masters(module.parameters(), wrapped) if half else wrapped(module.parameters())
        random = torch.Generator().manual_seed(comm.rank)
        for _ in range(6):
            x = torch.randn(4, 6, generator=random)
            optimizer.zero_grad()
            scaler.scale(module(x.half() if half else x).float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        masters = optimizer.masters() if half else list(module.parameters())
        return [p.detach().clone() for p in masters], replicas_equal(
            comm, [*masters, *module.parameters()]
        )

    halves, wholes = (World(n).run(program, half) for half in (True, False))
    assert all(same for _, same in [*halves, *wholes])
    assert difference(halves[0][0], wholes[0][0]) < 2e-3  # some roundings of fp16 near 1
    assert any((m != m.half().float()).any() for m in halves[0][0])


def test_a_scheduler_and_a_group_more():
    def program(comm):
        module = made("mlp", comm.rank)
        optimizer = LocalSGD(torch.optim.SGD(module[0].parameters(), lr=0.4), comm, H=2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.1})
        for _ in range(4):
            optimizer.zero_grad()
            module(
                torch.full((2, 6), 1.0 + comm.rank, dtype=torch.float64)
            ).square().mean().backward()
            optimizer.step()
            schedule.base_lrs = [group["lr"] for group in optimizer.param_groups]
            schedule.step()
        return optimizer.param_groups[0]["lr"], replicas_equal(comm, list(module.parameters()))

    assert World(2).run(program) == [(0.1, True)] * 2


def test_average_ends_a_period_and_twice_changes_nothing():
    def program(comm):
        module = made("mlp", 0)
        optimizer = LocalSGD(torch.optim.SGD(module.parameters(), lr=0.1), comm, H=3)
        spans = []
        for step in range(8):
            module(
                torch.full((2, 6), 1.0 + comm.rank, dtype=torch.float64)
            ).square().mean().backward()
            optimizer.step()
            spans.append(optimizer.since)
            if step == 4:
                optimizer.average()
                once = [p.detach().clone() for p in module.parameters()]
                optimizer.average()
                assert all(map(torch.equal, once, module.parameters()))
        return spans, replicas_equal(comm, once)

    assert World(3).run(program) == [([1, 2, 0, 1, 2, 1, 2, 0], True)] * 3


def test_a_local_step_whose_gradients_were_averaged():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        optimizer = LocalSGD(
            torch.optim.SGD(model.parameters(), lr=0.1), comm, H=3, start=1, model=model
        )
        for _ in range(2):
            model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
            optimizer.step()

    with pytest.raises(RuntimeError, match=r"step 1 is local.*with optimizer\.local\(\)"):
        World(2).run(program)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"H": 0}, r"H >= 1 steps and starts after 0 or more, not 0 after 0"),
        ({"H": 2, "start": -1}, "not 2 after -1"),
        ({"H": 2, "states": "forget"}, r"'keep', 'reset', 'average', not 'forget'"),
        ({"H": 2, "bucket_bytes": 0}, "at least 1 byte, not 0"),
        (
            {"H": 2, "buffers": [torch.zeros(3, dtype=torch.int64)]},
            r"a buffer of torch\.int64 has no average",
        ),
        (
            {"H": 2, "buffers": [torch.zeros(3, device="meta")]},
            r"\(3,\) is on meta, this Comm passes tensors on cpu",
        ),
    ],
)
def test_values_that_cannot_be(options, message):
    def program(comm, options):
        LocalSGD(torch.optim.SGD(made("mlp", 0).parameters(), lr=0.1), comm, **options)

    with pytest.raises(ValueError, match=message):
        World(1).run(program, options)
