"""ShardedOptimizer is the serial optimizer, at both stages, for any class, in every world."""

import itertools

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero import ShardedOptimizer
from minidist.parallel.zero.averages import Averages
from tests.largest import largest
from tests.parallel.cases import difference, made
from tests.parallel.zero.cases import OPTIMIZERS, losses, serial, train

SMALL = {"bucket_bytes": 300, "first_bucket_bytes": 100}  # of stage 2: several buckets


def wrong(results, oracle, tolerance=1e-12):
    """What is not as the oracle's, or not alike on all ranks."""
    return [
        (rank, difference(params, oracle), alike)
        for rank, (params, alike, *_) in enumerate(results)
        if not alike or not difference(params, oracle) < tolerance
    ]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "n"), [*itertools.product(OPTIMIZERS, (1, 2, 3, 4)), ("users", 12)]
)
def test_serial(optimizer, n, stage):
    """12 ranks for 7 parameters: five own nothing."""
    results = World(n).run(train, "hard", optimizer, stage, **SMALL)
    assert wrong(results, serial("hard", optimizer)[0]) == []


@pytest.mark.parametrize(
    ("n", "stage", "optimizer"),
    [(2, 1, "users"), (2, 2, "adamw"), (3, 1, "momentum"), (4, 2, "users")],
)
def test_serial_over_processes(n, stage, optimizer):
    results = launch(train, n, "hard", optimizer, stage, **SMALL)
    assert wrong(results, serial("hard", optimizer)[0]) == []


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "mixed"])
def test_other_models(name, stage):
    """Parameters of two dtypes: those in fp32 round each of 20 steps."""
    results = World(3).run(train, name, "adamw", stage, **SMALL)
    assert wrong(results, serial(name, "adamw")[0], 1e-12 if name == "mlp" else 1e-5) == []


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_uneven_batches(n, stage):
    """The last batch of 26 samples has 2: some ranks have none of it, and the mean of nothing is nan."""
    results = World(n).run(train, "hard", "momentum", stage, 12, 20, False, **SMALL)
    assert wrong(results, serial("hard", "momentum", drop_last=False)[0]) == []


@pytest.mark.parametrize(
    "options",
    [
        {"overlap": False},
        {"bucket_bytes": 1},
        {},
        {"algorithm": "halving_doubling"},
        {"algorithm": "naive"},
    ],
)
def test_options(options):
    for stage in (1, 2):
        results = World(3).run(train, "hard", "adamw", stage, **options)
        assert wrong(results, serial("hard", "adamw")[0]) == []


class Summed(ShardedOptimizer):
    """Forgets to divide by n."""

    def gradients(self):
        grads = super().gradients()
        torch._foreach_mul_(grads, float(self.comm.size))
        return grads


class NotGathered(ShardedOptimizer):
    """Keeps its parameters to itself."""

    def _pull(self):
        super()._pull()
        self._shards.gather = lambda: None


class NotStarted(ShardedOptimizer):
    """Leaves every rank its own start."""

    def __init__(self, params, *args, **options):
        params = list(params)
        before = [p.detach().clone() for p in params]
        super().__init__(params, *args, **options)
        for p, old in zip(params, before, strict=True):
            p.data.copy_(old)


@pytest.mark.parametrize("wrap", [Summed, NotGathered, NotStarted])
def test_wrong_ones_are_found(wrap):
    for stage in (1, 2):
        results = World(2).run(train, "hard", "momentum", stage, wrap=wrap)
        assert wrong(results, serial("hard", "momentum")[0], 1e-4) != []


def two_groups(model):
    """Of all that require a gradient, named, the biases with other options."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [x for x in named if x[1].ndim != 1], "weight_decay": 0.1},
        {"params": [x for x in named if x[1].ndim == 1], "lr": 0.3, "weight_decay": 0.0},
    ]


def scheduled(comm, make, scheduler):
    """Parameters, and the groups' options, after 20 steps with a scheduler."""
    model = made("hard", 0)
    optimizer = make(two_groups(model), comm)
    schedule = (
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=25)
        if scheduler == "cycle"
        else torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    )
    for _, loss in losses(model, comm, 24):
        optimizer.zero_grad()
        optimizer.step(lambda loss=loss: loss().backward())
        schedule.step()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return [p.detach() for p in model.parameters()], True, groups


def sgd(params, comm):
    return torch.optim.SGD(params, lr=0.1, momentum=0.8)


@pytest.mark.parametrize("scheduler", ["cycle", "step"])
@pytest.mark.parametrize("stage", [1, 2])
def test_groups_and_schedulers(scheduler, stage):
    """A cycle turns the momentum, too. The groups hold what the serial optimizer's hold."""
    oracle = World(1).run(scheduled, sgd, scheduler)[0]
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.8
    )
    results = World(3).run(scheduled, sharded, scheduler)
    assert wrong(results, oracle[0]) == [] and all(groups == oracle[2] for _, _, groups in results)


def growing(comm, make):
    """A group added after two steps, a parameter unfrozen after four, one frozen after six."""
    model = made("hard", 0)
    model.strided.requires_grad_(False)
    first = [p for name, p in model.named_parameters() if not name.startswith("again")]
    optimizer = make(first, comm)
    for step, (_, loss) in enumerate(losses(model, comm, 24, 8)):
        if step == 2:
            optimizer.add_param_group({"params": [model.again.bias], "lr": 0.2})
        if step == 4:
            model.strided.requires_grad_(True)
        optimizer.zero_grad()
        if step == 6:
            model.scale.requires_grad_(False)
        loss().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()], True, optimizer.state_dict()


@pytest.mark.parametrize("stage", [1, 2])
def test_groups_grow_and_parameters_thaw(stage):
    oracle = World(1).run(growing, sgd)[0]
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.8, **SMALL
    )
    results = World(3).run(growing, sharded)
    assert wrong(results, oracle[0]) == []
    for _, _, state in results:
        assert sorted(state["state"]) == sorted(oracle[2]["state"])
        assert state["param_groups"] == oracle[2]["param_groups"]


def accumulated(comm, make, how, k=2, steps=4):
    """k micro-batches a step, on all ranks together those of one rank; `how` gradients are kept and dropped."""
    model = made("hard", 0)
    optimizer = make(model.parameters(), comm)
    for step, (_, loss) in enumerate(losses(model, comm, 12, k * steps)):
        last = step % k == k - 1
        if how == "no_sync" and not last:
            with getattr(optimizer, "no_sync", torch.enable_grad)():
                (loss() / k).backward()
        else:
            (loss() / k).backward()
        if how == "average" and hasattr(optimizer, "average"):
            optimizer.average()
        if last:
            optimizer.step()
        if last and how != "kept":
            (model if how == "module" else optimizer).zero_grad(set_to_none=how != "zeros")
    return [p.detach() for p in model.parameters()], True


@pytest.mark.parametrize("how", ["no_sync", "none", "zeros", "module", "kept", "average"])
@pytest.mark.parametrize("stage", [1, 2])
def test_accumulation(stage, how):
    """Within no_sync or without; gradients dropped by either zero_grad, made zeros, or never dropped at all."""
    oracle = World(1).run(accumulated, sgd, how)[0][0]
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.8, **SMALL
    )
    assert wrong(World(3).run(accumulated, sharded, how), oracle) == []


def mixed_accumulation(comm, make, case):
    """What is averaged already, what is not, and what was dropped in between."""
    model = made("hard", 0)
    optimizer = make(model.parameters(), comm)
    first, second, third = (loss for _, loss in losses(model, comm, 24, 3))
    no_sync = getattr(optimizer, "no_sync", torch.enable_grad)
    first().backward()
    with no_sync():
        second().backward()
    if case == "dropped":
        model.zero_grad()
        third().backward()
    if case == "clipped":
        clip(optimizer, model, 0.01)
        third().backward()
    optimizer.step()
    if case == "again":
        optimizer.step()
    return [p.detach() for p in model.parameters()], True


def clip(optimizer, model, most, kind=2.0):
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer.clip_grad_norm_(most, kind)
    return nn.utils.clip_grad_norm_(model.parameters(), most, kind)


@pytest.mark.parametrize("case", ["plain", "dropped", "clipped", "again"])
def test_an_average_is_told_from_what_is_added_to_it(case):
    oracle = World(1).run(mixed_accumulation, sgd, case)[0][0]
    for stage in (1, 2):
        sharded = lambda params, comm, stage=stage: ShardedOptimizer(
            params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.8, **SMALL
        )
        assert wrong(World(3).run(mixed_accumulation, sharded, case), oracle) == []


class AddsToAverages(Averages):
    """Lets a backward add to an average as if it were one rank's part."""

    def set_aside(self, p):
        pass


class Forgetful(ShardedOptimizer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._averaged.__class__ = AddsToAverages


@pytest.mark.parametrize("stage", [1, 2])
def test_adding_to_averages_is_found(stage):
    oracle = World(1).run(accumulated, sgd, "kept")[0][0]
    forgetful = lambda params, comm: Forgetful(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.8
    )
    assert wrong(World(2).run(accumulated, forgetful, "kept"), oracle, 1e-4) != []


class Chosen(nn.Module):
    """Each sample goes through one of three layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x, which):
        return self.layers[which](x)


def choosing(comm, make, routes):
    """Rank r takes layer routes[r]; a layer that no rank takes must not even decay."""
    torch.manual_seed(0)
    model = Chosen().double()
    optimizer = make(model.parameters(), comm)
    for step in range(4):
        optimizer.zero_grad()
        mine = [
            route for i, route in enumerate(routes) if i * comm.size // len(routes) == comm.rank
        ]
        x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        sum(model(x, which).square().mean() / len(mine) for which in mine).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()], True, sorted(optimizer.state_dict()["state"])


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("routes", [(0, 1), (2, 2), (1, 1, 1), (0, 2, 2), (0, 1, 2)])
def test_gradients_that_some_ranks_or_none_have(routes, stage):
    decays = lambda params, comm: torch.optim.AdamW(params, lr=0.1, weight_decay=0.5)
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.AdamW, comm, stage, lr=0.1, weight_decay=0.5
    )
    oracle = World(1).run(choosing, decays, routes)[0]
    results = World(len(routes)).run(choosing, sharded, routes)
    assert wrong(results, oracle[0]) == [] and all(states == oracle[2] for _, _, states in results)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_closure_is_called_once(stage):
    def program(comm):
        model = nn.Linear(2, 1).double()
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.SGD, comm, stage, lr=0.1)
        calls = []

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2, dtype=torch.float64)).sum()
            loss.backward()
            calls.append(loss.item())
            return loss

        return optimizer.step(closure).item(), calls, model.weight.detach().clone()

    (loss, calls, weight), other = World(2).run(program)
    assert [loss] == calls and torch.equal(weight, other[2])


def test_a_rank_without_work_averages():
    """Of three backwards, one rank has no part in the second; at stage 1 nothing is to be done for it."""

    def program(comm, stage):
        model = made("hard", 0)
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.SGD, comm, stage, lr=0.1)
        for i, (_, loss) in enumerate(losses(model, comm, 24, 3)):
            if i != 1 or comm.rank != 1:
                loss().backward()
            elif stage == 2:
                optimizer.average()
        optimizer.step()
        return [p.detach() for p in model.parameters()]

    results = {stage: World(3).run(program, stage) for stage in (1, 2)}
    assert all(
        difference(params, results[1][0]) < 1e-14 for found in results.values() for params in found
    )


def test_wrong_arguments():
    def program(comm, case):
        model = nn.Linear(2, 1)
        if case == "stage":
            ShardedOptimizer(model.parameters(), torch.optim.SGD, comm, stage=3)
        if case == "lbfgs":
            ShardedOptimizer(model.parameters(), torch.optim.LBFGS, comm)
        if case == "device":
            ShardedOptimizer(
                nn.Linear(2, 1, device="meta").named_parameters(), torch.optim.SGD, comm
            )
        optimizer = ShardedOptimizer(
            model.named_parameters(), torch.optim.SGD, comm, stage=2, lr=0.1
        )
        if case == "replaced":
            model.bias.data = model.bias.data.clone()
            optimizer.step()
        if case == "sparse":
            words = nn.Embedding(4, 2, sparse=True)
            optimizer.add_param_group({"params": [("words", words.weight)]})
            words(torch.tensor([1])).sum().backward()

    for case, message in {
        "stage": "stages 1 and 2 of ZeRO, not 3",
        "lbfgs": "all parameters at once",
        "device": "weight is on meta, this Comm passes tensors on cpu",
        "replaced": "the data of bias were replaced",
        "sparse": "of words is sparse",
    }.items():
        with pytest.raises(ValueError, match=message):
            World(2).run(program, case)


def beside_pytorch(comm):
    """Parameters after 20 steps of AdamW: ours at both stages, and theirs with DDP, on the same group."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def theirs():
        model = nn.parallel.DistributedDataParallel(
            made("mlp", comm.rank), process_group=comm.group
        )
        return model, ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, process_group=comm.group, lr=0.02
        )

    def ours(stage):
        model = made("mlp", comm.rank)
        return model, ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, stage, lr=0.02)

    found = []
    for model, optimizer in (theirs(), ours(1), ours(2)):
        for _, loss in losses(model, comm):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    return found


def test_beside_zero_redundancy_optimizer():
    for theirs, *ours in launch(beside_pytorch, 2, transport="gloo"):
        assert largest(difference(params, theirs) for params in ours) < 1e-13
