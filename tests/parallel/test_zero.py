"""ZeRO, stages 1 and 2: owners, the serial optimizer, masters, state dicts, bytes."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.comm.cluster import H100, Cluster
from minidist.models import gpt, mlp
from minidist.parallel.data import average_gradients
from minidist.parallel.reducer import Averages
from minidist.parallel.zero import ShardedOptimizer, best_fit, by_owner
from minidist.study.predict import states, zero_traffic
from minidist.train.amp import LossScaler, Masters
from tests.largest import largest
from tests.parallel.cases import difference, made, replicas_equal
from tests.parallel.zero_cases import OPTIMIZERS, Users, losses, serial, train
from tests.size import FULL

# ------------------------------------------------------------
# ShardedOptimizer is the serial optimizer, at both stages, for any class, in every world.


# several buckets at stage 2, several rounds at stage 1
SMALL = {"bucket_bytes": 100, "first_bucket_bytes": 100}


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
    ],
)
def test_options(options):
    for stage in (1, 2):
        results = World(3).run(train, "hard", "adamw", stage, **options)
        assert wrong(results, serial("hard", "adamw")[0]) == []


@pytest.mark.parametrize("algorithm", ["halving_doubling", "naive"])
def test_with_another_algorithm_of_the_comm(algorithm):
    """Without overlap: a lane has an algorithm of its own."""

    def program(comm, stage):
        comm.algorithm = algorithm
        return train(comm, "hard", "adamw", stage, overlap=False)

    for stage in (1, 2):
        assert wrong(World(3).run(program, stage), serial("hard", "adamw")[0]) == []


class Summed(ShardedOptimizer):
    """Forgets to divide by n."""

    def gradients(self):
        grads = super().gradients()
        torch._foreach_mul_(grads, float(self.comm.size))
        return grads


class NotGathered(ShardedOptimizer):
    """Keeps its parameters to itself."""

    def _gather(self):
        pass


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
        self._reducer.averages.__class__ = AddsToAverages


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


# ------------------------------------------------------------
# Who owns what: balanced, the same everywhere, and laid out by owner in one buffer.


def test_largest_first_to_the_emptiest():
    assert best_fit([3, 9, 4, 4, 2], [0, 0]) == [1, 0, 1, 1, 0]  # 9 | 4 4 3 | 2
    assert best_fit([5, 5, 5, 5], [0, 0, 0]) == [0, 1, 2, 0]
    assert best_fit([1, 2], [4, 0]) == [1, 1] and best_fit([], [0]) == []


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_balance(n):
    """No rank has more than 4/3 of the best possible, which is at least the mean and the largest."""
    random = torch.Generator().manual_seed(n)
    for _ in range(50):
        sizes = (torch.rand(20, generator=random) ** 3 * 1000).int().tolist()
        owners = best_fit(sizes, [0] * n)
        loads = [sum(s for s, o in zip(sizes, owners, strict=True) if o == r) for r in range(n)]
        assert largest(loads) <= 4 / 3 * max(sum(sizes) / n, max(sizes)) + 1


def test_a_layout_by_owner():
    """Each rank's parameters lie together, in the order of their memory; parts are cut where ranks are."""

    def program(comm):
        shapes = [(2, 3), (4,), (), (0,)]
        params = [nn.Parameter(torch.full(shape, float(i))) for i, shape in enumerate(shapes)]
        params.append(nn.Parameter(torch.arange(6.0).view(2, 3).t()))
        owner = dict(zip(params, [1, 0, 2, 1, 0], strict=True))
        ordered, layout = by_owner(params, owner, comm)
        flat = torch.zeros(layout.total)
        for p, view in zip(ordered, layout.views(flat), strict=True):
            view.copy_(p.detach())
        parts = layout.parts(flat[layout.first : layout.end])
        order = [next(i for i, q in enumerate(params) if q is p) for p in ordered]
        return order, layout.sizes, flat.tolist(), [part.tolist() for part in parts]

    wanted = [1.0] * 4 + [0, 1, 2, 3, 4, 5] + [0.0] * 6 + [2.0]
    empty = [[]] * 5
    parts = [[wanted[:4], wanted[4:10], *empty[:3]], [[], [], [0.0] * 6, [], []], [*empty[:4], [2]]]
    for rank, found in enumerate(World(3).run(program)):
        assert found == ([1, 4, 0, 3, 2], [10, 6, 1], wanted, parts[rank])


@pytest.mark.parametrize(
    "make", [lambda: mlp([50] * 13), lambda: gpt(layers=6, hidden=32, heads=4, vocab=60, context=8)]
)
def test_models_are_shared_evenly(make):
    """Of a model with layers to share, no rank owns a tenth more than its part."""

    def program(comm):
        model = make()
        optimizer = ShardedOptimizer(model.named_parameters(), torch.optim.SGD, comm, lr=0.1)
        owners = [optimizer.owner(p) for p in model.parameters()]
        loads = [0] * comm.size
        for p, owner in zip(model.parameters(), owners, strict=True):
            loads[owner] += p.nbytes
        return loads, owners

    for n in (2, 3, 4):
        results = World(n).run(program)
        assert all(found == results[0] for found in results)
        loads = results[0][0]
        assert largest(loads) < 1.1 * sum(loads) / n and len(loads) == n


# ------------------------------------------------------------
# Gradients in buckets on their way to their owners: at any size of a bucket; laid out in odd ways.


@pytest.mark.parametrize("nbytes", [1, 16, 64, 400, 1 << 20])
def test_buckets(nbytes):
    for n, stage in ((2, 2), (3, 1)):
        results = World(n).run(train, "hard", "adamw", stage, bucket_bytes=nbytes)
        assert all(
            alike and difference(params, serial("hard", "adamw")[0]) < 1e-12
            for params, alike, _ in results
        )


def rounds(comm, sizes):
    """A reduction of gradients of so many numbers in one bucket."""
    params = [nn.Parameter(torch.zeros(size)) for size in sizes]
    optimizer = ShardedOptimizer(params, torch.optim.SGD, comm, 1, lr=1.0)
    for p in params:
        p.grad = torch.full_like(p, comm.rank)
    optimizer.step()
    return [p.detach().unique().tolist() for p in params]


def test_messages():
    """A broadcast in two messages of its root's, a reduce-scatter, an all-gather, however many gradients there are."""
    for sizes in ([250, 250], [100, 10], [40] * 10):
        world = World(2)
        assert world.run(rounds, sizes) == [[[-0.5]] * len(sizes)] * 2
        assert [world.trace.messages(rank) for rank in (0, 1)] == [4, 3]


def test_gradients_laid_out_otherwise():
    """By hand one rank's gradient is transposed, one expanded: the numbers meet their own."""

    def program(comm):
        p = nn.Parameter(torch.zeros(2, 3))
        optimizer = ShardedOptimizer([p], torch.optim.SGD, comm, 2, lr=1.0)
        p.grad = torch.arange(6.0).view(3, 2).t() if comm.rank else torch.ones(3).expand(2, 3)
        optimizer.step()
        return p.detach()

    want = -(torch.arange(6.0).view(3, 2).t() + 1) / 2
    assert all(torch.equal(found, want) for found in World(2).run(program))


# ------------------------------------------------------------
# Masters at the owners: 16-bit parameters trained as by serial fp32 copies, updates too small for
# 16 bits included.


def half(dtype):
    return made("hard", 0).to(dtype)


def loss_of(model, step, dtype):
    """Times 1024, so that an n-th of a gradient is no subnormal number of fp16; AdamW does not mind."""
    return 1024 * model(batch(step, dtype)).square().mean()


def batch(step, dtype):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)


def serial_masters(dtype, steps=10, lr=0.01):
    """Masters as one writes them without ranks; (parameters, masters)."""
    model = half(dtype)
    params = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float() for p in params]
    optimizer = torch.optim.AdamW(masters, lr=lr)
    for step in range(steps):
        model.zero_grad()
        loss_of(model, step, dtype).backward()
        for p, master in zip(params, masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)
    return [p.detach() for p in model.parameters()], masters, optimizer.state_dict()["state"]


def sharded(comm, dtype, stage, steps=10, lr=0.01):
    """Each rank with the whole batch, so that the average of n = 2 or 4 gradients is exactly the serial one."""
    model = half(dtype)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(
        params, torch.optim.AdamW, comm, stage, torch.float32, bucket_bytes=100, lr=lr
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, dtype).backward()
        optimizer.step()
    state = optimizer.state_dict()
    params = [p.detach() for p in model.parameters()]
    return params, state["masters"], state["state"], replicas_equal(comm, params)


def equal(ours, theirs):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "stage"), [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_serial_bit_for_bit(dtype, n, stage):
    params, masters, states = serial_masters(dtype)
    for found in World(n).run(sharded, dtype, stage):
        assert equal(found[0], params) and equal(found[1].values(), masters) and found[3]
        assert list(found[2]) == list(states)
        for i, state in states.items():
            assert all(torch.equal(found[2][i][name], value) for name, value in state.items())


def test_masters_over_processes():
    params, *_ = serial_masters(torch.float16)
    assert all(equal(found[0], params) for found in launch(sharded, 2, torch.float16, 2))


def test_small_updates_are_kept():
    """Updates of 1e-5 on bf16 weights: without masters most of them never move, with masters they do."""

    def moved(comm, master_dtype):
        weight = nn.Parameter(torch.ones(50, dtype=torch.bfloat16))
        optimizer = ShardedOptimizer([weight], torch.optim.SGD, comm, 1, master_dtype, lr=1e-3)
        for _ in range(300):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach().float().mean().item()

    assert World(2).run(moved, None) == [1.0, 1.0]
    assert all(abs(mean - 0.7) < 0.002 for mean in World(2).run(moved, torch.float32))


def resumed(comm, state, params):
    """10 of 20 steps from a state dict."""
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, 2, torch.float32, lr=0.01)
    with torch.no_grad():
        for p, value in zip(model.parameters(), params, strict=True):
            p.copy_(value)
    optimizer.load_state_dict(state)
    for step in range(10, 20):
        optimizer.zero_grad()
        loss_of(model, step, torch.float16).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def saved(comm):
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, 1, torch.float32, lr=0.01)
    for step in range(10):
        optimizer.zero_grad()
        loss_of(model, step, torch.float16).backward()
        optimizer.step()
    return optimizer.state_dict(), [p.detach() for p in model.parameters()]


def test_masters_are_saved():
    """On another number of ranks it goes on bit for bit; from a state dict without masters it does not."""
    state, params = World(4).run(saved)[0]
    expected = serial_masters(torch.float16, 20)[0]
    assert all(equal(found, expected) for found in World(2).run(resumed, state, params))
    without = {key: value for key, value in state.items() if key != "masters"}
    assert not equal(World(2).run(resumed, without, params)[0], expected)


def scaled(comm, stage, bad):
    """Ten steps with a loss scaler; in step `bad`, an inf on the last rank."""
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, stage, torch.float32, lr=0.01)
    scaler = LossScaler(init=2.0**10, comm=comm)
    before, stood = None, []
    for step in range(10):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in mine]
        x = batch(step, torch.float16)
        if step == bad and comm.rank == comm.size - 1:
            x = x * float("inf")
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        stood += [step] * equal([p.detach() for p in mine], before)
    return stood, [p.detach() for p in mine], scaler.get_scale()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_loss_scaler_steps_all_ranks_or_none(stage):
    """It unscales the masters' gradients, of which some ranks have none here."""
    plain, _, _ = serial_masters(torch.float16)
    for n in (2, 12):
        results = World(n).run(scaled, stage, 4)
        assert all(stood == [4] and scale == 2.0**9 for stood, _, scale in results)
        assert all(equal(params, results[0][1]) for _, params, _ in results)
    for _, params, _ in World(2).run(scaled, stage, None):
        expected = [
            p
            for p, q in zip(plain, half(torch.float16).parameters(), strict=True)
            if q.requires_grad
        ]
        assert (
            largest(
                (a.float() - b.float()).abs().max().item()
                for a, b in zip(params, expected, strict=True)
            )
            < 2e-3
        )


def test_a_dtype_without_fractions_is_refused():
    def program(comm):
        ShardedOptimizer(
            nn.Linear(2, 2).parameters(), torch.optim.SGD, comm, master_dtype=torch.int32
        )

    with pytest.raises(ValueError, match=r"floating-point dtype, not torch\.int32"):
        World(1).run(program)


def kept(comm, stage):
    """Two steps on gradients that nobody drops in between: the second takes their sum."""
    model = made("mlp", 0).half()
    params = list(model.parameters())
    optimizer = ShardedOptimizer(params, torch.optim.AdamW, comm, stage, torch.float32, lr=0.01)
    for step in range(2):
        loss_of(model, step, torch.float16).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_that_are_kept_add_up(stage):
    model = made("mlp", 0).half()
    params = list(model.parameters())
    masters, sums = [p.detach().float() for p in params], [0.0] * len(params)
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    for step in range(2):
        model.zero_grad()
        loss_of(model, step, torch.float16).backward()
        for i, (p, master) in enumerate(zip(params, masters, strict=True)):
            sums[i] = sums[i] + p.grad.float()
            master.grad = sums[i]
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)
    expected = [p.detach() for p in model.parameters()]
    assert all(equal(found, expected) for found in World(2).run(kept, stage))


def test_one_that_is_unfrozen_gets_a_master():
    """Updates too small for bf16 show after many, also in a parameter that was frozen at the start."""

    def program(comm):
        weights = [nn.Parameter(torch.ones(50, dtype=torch.bfloat16)) for _ in range(3)]
        weights[0].requires_grad_(False)
        optimizer = ShardedOptimizer(weights, torch.optim.SGD, comm, 1, torch.float32, lr=1e-3)
        weights[0].requires_grad_(True)
        for _ in range(300):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        state = optimizer.state_dict()
        return [w.detach().float().mean().item() for w in weights], sorted(state["masters"])

    for means, masters in World(2).run(program):
        assert masters == [0, 1, 2] and all(abs(mean - 0.7) < 0.002 for mean in means)


# ------------------------------------------------------------
# The state dict of n ranks is the serial optimizer's; it loads there and comes back; shards go to
# their ranks.


def same(ours, theirs, tolerance=1e-12):
    """Whether two states are equal, tensors within a tolerance, all else exactly, kinds too."""
    if isinstance(theirs, torch.Tensor):
        alike = isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape) == (
            theirs.dtype,
            theirs.shape,
        )
        return alike and (not ours.numel() or (ours - theirs).abs().max().item() < tolerance)
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(same(ours[k], theirs[k], tolerance) for k in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(
            same(a, b, tolerance) for a, b in zip(ours, theirs, strict=True)
        )
    return ours == theirs if not isinstance(theirs, float) else abs(ours - theirs) < tolerance


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_whole(optimizer):
    oracle = serial("hard", optimizer)[1].state_dict()
    for n, stage in ((1, 1), (2, 2), (3, 1), (6, 2)):
        for _, _, state in World(n).run(train, "hard", optimizer, stage):
            assert same(state, oracle)
    assert not same(oracle, serial("hard", optimizer, steps=19)[1].state_dict(), 1e-6)


def test_whole_over_processes():
    oracle = serial("hard", "users")[1].state_dict()
    assert all(same(state, oracle) for _, _, state in launch(train, 3, "hard", "users", 2))


def state_of(optimizer, own):
    return optimizer.own_state_dict() if own else optimizer.state_dict()


def on(comm, name, weights, state, stage, sharded=False, steps=10):
    """20 steps, with a change of optimizer after 10: from a state dict, on n ranks. None: from the start."""
    model = made("hard", 0)
    optimizer = ShardedOptimizer(model.parameters(), OPTIMIZERS[name], comm, stage)
    if weights is not None:
        with torch.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(w)
    if state is not None:
        optimizer.load_state_dict(state[comm.rank] if sharded else state)
    for step, (_, loss) in enumerate(losses(model, comm)):
        if (step >= 10) == (state is not None) and (step < 10) == (steps == 10 and state is None):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()], state_of(optimizer, sharded)


def continued(name, weights, state):
    """The serial optimizer from a state dict, for the last 10 of 20 steps."""
    model = made("hard", 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    optimizer.load_state_dict(state)
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    for step, (_, loss) in enumerate(losses(model, World(1).run(lambda comm: comm)[0])):
        if step >= 10:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_there_and_back(name):
    """Half of the steps on 3 ranks, half by the serial optimizer; the other way round; and on 2 ranks."""
    oracle = serial("hard", name)[0]
    weights, state = World(3).run(on, name, None, None, 2)[0]
    assert difference(continued(name, weights, copy.deepcopy(state)), oracle) < 1e-12
    half, optimizer = serial("hard", name, steps=10)
    half = [p.detach() for p in half]
    for n, stage in ((1, 1), (2, 1), (4, 2)):
        for params, back in World(n).run(on, name, half, optimizer.state_dict(), stage):
            assert difference(params, oracle) < 1e-12
            assert same(back, serial("hard", name)[1].state_dict())


def test_sharded():
    oracle = serial("hard", "adamw")[0]
    results = World(3).run(on, "adamw", None, None, 1, True)
    states = [state for _, state in results]
    numbers = [i for state in states for i in state["state"]]
    assert sorted(numbers) == sorted(set(numbers)) == [0, 1, 2, 3, 4]
    assert all(len(state["state"]) < 5 for state in states)
    for params, _ in World(3).run(on, "adamw", results[0][0], states, 2, True):
        assert difference(params, oracle) < 1e-12


def test_nothing_is_sent_for_a_shard():
    def program(comm, sharded):
        model = nn.Linear(3, 3)
        optimizer = ShardedOptimizer(
            model.parameters(), torch.optim.SGD, comm, momentum=0.9, lr=0.1
        )
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for _ in range(5 if sharded else 0):
            optimizer.load_state_dict(optimizer.own_state_dict())

    assert World(3).run(program, True).trace == World(3).run(program, False).trace


def test_what_does_not_fit():
    def program(comm, case):
        model = nn.Linear(3, 3)
        optimizer = ShardedOptimizer(model.parameters(), Users, comm)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state = optimizer.own_state_dict()
        if case == "another rank":
            state["owner"] = [1, 4]
        if case == "groups":
            state["param_groups"][0]["params"].append(2)
        if case == "kind":
            for states in optimizer.state.values():
                states["odd"] = {1, 2}
            optimizer.state_dict()
        optimizer.load_state_dict(state)

    for case, message in {
        "another rank": r"the own state of rank 1 of 4, loaded on rank \d of 2",
        "groups": r"groups of \[3\] parameters, the optimizer of \[2\]",
        "kind": "not set: {1, 2}",
    }.items():
        with pytest.raises(ValueError, match=message):
            World(2).run(program, case)


def test_on_meta_tensors():
    def program(comm):
        model = nn.Linear(30, 30, device="meta")
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, comm)
        model(torch.empty(1, 30, device="meta")).sum().backward()
        optimizer.step()
        states = optimizer.state_dict()["state"]
        return {
            i: {k: (v.device.type, v.shape) for k, v in state.items()}
            for i, state in states.items()
        }

    for found in World(2, device="meta").run(program):
        assert (
            found[1]["exp_avg"] == ("meta", (30,))
            and found[0]["step"] == ("cpu", ())
            and len(found) == 2
        )


def with_masters(comm, steps, saved=None, shards=False):
    """Some steps of fp16 parameters by `Masters` inside: (state_dict, parameters)."""
    model = made("mlp", 0).half()
    inside = partial(Masters, optimizer_class=torch.optim.AdamW, lr=1e-3)
    optimizer = ShardedOptimizer(model.parameters(), inside, comm)
    if saved is not None:
        state, params = copy.deepcopy(saved[comm.rank if shards else 0])
        with torch.no_grad():
            for p, value in zip(model.parameters(), params, strict=True):
                p.copy_(value)
        optimizer.load_state_dict(state)
    for step in steps:
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(
                p.shape, generator=torch.Generator().manual_seed(10 * step + i)
            ).half()
        optimizer.step()
        optimizer.zero_grad()
    return state_of(optimizer, shards), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("n", "then", "shards"), [(2, 2, True), (4, 1, False), (1, 4, False)])
def test_what_the_optimizer_inside_adds_is_saved(n, then, shards):
    """Its masters, in a list there; without them it would go on from rounded ones."""
    whole = World(2).run(with_masters, range(8))[0]
    saved = World(n).run(with_masters, range(4), None, shards)
    for state, params in World(then).run(with_masters, range(4, 8), saved, shards):
        assert difference(params, whole[1]) == 0
        assert shards or same(state["masters"], whole[0]["masters"], 1e-30)
    for state, _ in saved:
        del state["masters"]
    assert difference(World(then).run(with_masters, range(4, 8), saved, shards)[0][1], whole[1]) > 0


class Counting(torch.optim.SGD):
    def state_dict(self):
        return super().state_dict() | {"count": 3}


def test_what_cannot_be_put_together_is_refused():
    with pytest.raises(ValueError, match="'count' in the state_dict of Counting is a int"):
        World(2).run(
            lambda comm: ShardedOptimizer(
                [nn.Parameter(torch.ones(2))], Counting, comm, lr=1.0
            ).state_dict()
        )


# ------------------------------------------------------------
# Bytes by category and bytes sent, counted by a World, against formulas that know nothing of the
# optimizer. A model of 12.6 million parameters on meta tensors: 12 layers, which 2, 3 and 4 ranks
# share evenly.


WIDTHS = [1024] * 13
PARAMS = sum(a * b + b for a, b in itertools.pairwise(WIDTHS))
LAYER = 1024 * 1025
FP16 = (torch.float16, torch.float32)
FP32 = (torch.float32, None)


def steps(comm, stage, dtypes, count, wrap=ShardedOptimizer, **options):
    """`count` steps of Adam; the times at the end of the last one's forward, backward and step."""
    model = mlp(WIDTHS, dtype=dtypes[0], device="meta")
    optimizer = wrap(model.parameters(), torch.optim.Adam, comm, stage, dtypes[1], **options)
    x = torch.empty(8, WIDTHS[0], device="meta", dtype=dtypes[0])
    times = (0.0, 0.0, 0.0)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        forward = comm.now()
        loss.backward()
        times = forward, comm.now()
        x.neg()  # so that the step begins later than backward ends
        optimizer.step()
        times = *times, comm.now()
    return times


def run(n, *args, **options):
    """(times of each rank, trace)"""
    results = World(n, device="meta", cluster=Cluster.uniform(n, 5e-6, 1 / 50e9, H100)).run(
        steps, *args, **options
    )
    return list(results), results.trace


def unlike(n, stage, dtypes, precision, **options):
    """What is not as the formulas say, at the end of the second backward: (rank, category, bytes, formula)."""
    times, trace = run(n, stage, dtypes, 2, **options)
    found = []
    for rank, (_, backward, _) in enumerate(times):
        live = trace.memory[rank].at(backward)
        said = states(PARAMS, "adam", precision, zero=stage, data=n, rank=rank)
        want = {
            "parameters": said.parameters,
            "gradients": said.gradients,
            "optimizer states": said.optimizer_states,
        }
        found += [
            (rank, kind, live[kind], nbytes)
            for kind, nbytes in want.items()
            if live[kind] != nbytes
        ]
    return found


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("n", "dtypes", "precision"),
    [(1, FP16, "fp16"), (2, FP16, "fp16"), (3, FP32, "fp32"), (4, FP16, "fp16")]
    + [(3, FP16, "fp16"), (1, FP32, "fp32"), (2, FP32, "fp32"), (4, FP32, "fp32")] * FULL,
)
def test_bytes_by_category(n, stage, dtypes, precision, figure):
    """4Ψ + 12Ψ/n and 2Ψ + 14Ψ/n, and without masters 8Ψ + 8Ψ/n and 4Ψ + 12Ψ/n, to the byte."""
    assert unlike(n, stage, dtypes, precision) == []
    said = states(PARAMS, "adam", precision, zero=stage, data=n)
    figure(f"n={n}, stage {stage}, {precision}: {said.total:,} bytes a rank, {said.bytes}")
    total = {
        ("fp16", 1): 4 + 12 / n,
        ("fp16", 2): 2 + 14 / n,
        ("fp32", 1): 8 + 8 / n,
        ("fp32", 2): 4 + 12 / n,
    }
    assert said.total == PARAMS * total[precision, stage]


class ShardsNothing:
    """Averages all gradients and steps all parameters on every rank: right numbers, at the price of no sharding."""

    def __init__(self, params, optimizer_class, comm, stage, master_dtype=None):
        self.module = nn.ParameterList(params)
        self.comm = comm
        self.weight = None
        self.optimizer = optimizer_class(self.module)
        self.zero_grad, self.state_dict = self.optimizer.zero_grad, self.optimizer.state_dict

    def step(self):
        average_gradients(self.comm, self.module, self.weight)
        self.optimizer.step()


class FreesNothing(ShardedOptimizer):
    """Says stage 2 and does stage 1."""

    def __init__(self, params, optimizer_class, comm, stage, *args, **options):
        super().__init__(params, optimizer_class, comm, 1, *args, **options)


def test_one_that_shards_nothing_is_found():
    results = World(2).run(train, "mlp", "adamw", 1, wrap=ShardsNothing)
    # its numbers are right
    assert all(difference(params, serial("mlp", "adamw")[0]) < 1e-12 for params, *_ in results)
    wrong = unlike(2, 1, FP32, "fp32", wrap=ShardsNothing)
    assert {(rank, kind): nbytes / PARAMS for rank, kind, nbytes, _ in wrong} == {
        (0, "optimizer states"): 8,
        (1, "optimizer states"): 8,
    }
    wrong = unlike(2, 2, FP16, "fp16", wrap=FreesNothing)
    assert {kind for _, kind, *_ in wrong} == {"gradients"} and len(wrong) == 2


def most(timeline, kinds, start, end):
    """The most bytes of these categories at once between two times."""
    total = sum(timeline.live[kind] for kind in kinds)
    inside = (timeline.times >= start) & (timeline.times <= end)
    return int(total[inside].max())


@pytest.mark.parametrize("n", [2, 4])
def test_stage_1_packs_little_at_once(n):
    """In a step there are all gradients, of each owner one of which not all is packed, and n slices, what a ring receives
    besides: a sixteenth of all gradients, or 1 MiB for each owner where that is more."""
    times, trace = run(n, 1, FP32, 2)
    slices = (n + min(3, n - 1)) * max(1 << 20, 4 * PARAMS // (16 * n)) + n * 4 * LAYER
    for r, (_, backward, step) in enumerate(times):
        peak = most(trace.memory[r], ("gradients", "other"), backward, step)
        assert 4 * PARAMS < peak < 4 * PARAMS + slices + 2**18


@pytest.mark.parametrize("n", [2, 4])
def test_stage_2_frees_during_backward(n):
    """At most what is owned, a bucket that fills, one that is sent (of two layers), and what a ring receives: up to
    three slices, here layers. Stage 1 has all of it."""
    peaks = {}
    for stage, wrap in ((1, ShardedOptimizer), (2, ShardedOptimizer), (2, FreesNothing)):
        times, trace = run(
            n, stage, FP16, 2, wrap=wrap, bucket_bytes=4 * LAYER, first_bucket_bytes=2 * LAYER
        )
        peaks[stage, wrap] = max(
            most(trace.memory[r], ("gradients", "other"), forward, backward)
            for r, (forward, backward, _) in enumerate(times)
        )
    bound = 2 * PARAMS // n + (4 + min(3, n - 1)) * 2 * LAYER + 2**18
    assert peaks[2, ShardedOptimizer] < bound < peaks[2, FreesNothing] == peaks[1, ShardedOptimizer]
    assert peaks[1, ShardedOptimizer] >= 2 * PARAMS


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bytes_of_a_step(n, stage):
    """Ψ of gradients and Ψ of parameters, (n−1)/n of it from each rank."""
    traces = [run(n, stage, FP16, count)[1] for count in (1, 2)]
    for rank in range(n):
        sent = traces[1].bytes_sent(rank) - traces[0].bytes_sent(rank)
        assert sent == 2 * (n - 1) * 2 * PARAMS // n == 2 * zero_traffic(stage, PARAMS, n)


def test_bytes_of_a_step_where_the_shards_are_uneven():
    """All ranks together send the same, whoever owns what."""
    for n in (2, 3, 4, 6):
        for name, numbers in (("mlp", 53), ("hard", 73)):
            sent = [
                World(n).run(train, name, "momentum", 1 + n % 2, 12, count).trace.bytes_sent()
                for count in (1, 2)
            ]
            assert sent[1] - sent[0] == 8 * n * zero_traffic(1, numbers, n)


# ------------------------------------------------------------
# Hybrid sharding: s shards among neighbours, each of them on r ranks.


class Hybrid(ShardedOptimizer):
    """Over the ranks of `comm` as s shards × r replicas."""

    def __init__(self, params, optimizer_class, comm, stage, s, **options):
        inner, outer = comm.split(comm.rank // s), comm.split(comm.rank % s)
        super().__init__(params, optimizer_class, inner, stage, replicas=outer, **options)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("s", "r"), [(2, 2), (2, 3), *([(3, 1), (1, 3)] if FULL else [])])
@pytest.mark.parametrize("optimizer", ["adamw", "users"] if FULL else ["users"])
def test_replicas_are_the_serial_optimizer(optimizer, s, r, stage):
    """The last batch has 2 samples, on ranks of one replica alone: weights are theirs, too."""
    options = SMALL | dict(wrap=Hybrid, s=s, steps=4)
    for drop_last in (True, False):
        oracle = serial("hard", optimizer, steps=4, drop_last=drop_last)[0]
        results = World(s * r).run(train, "hard", optimizer, stage, drop_last=drop_last, **options)
        assert wrong(results, oracle) == []


@pytest.mark.parametrize(
    ("s", "r", "stage"), [(2, 2, 2), *([(2, 2, 1), (2, 3, 2), (1, 3, 2)] if FULL else [])]
)
def test_replicas_over_processes(s, r, stage):
    options = SMALL | dict(wrap=Hybrid, s=s, steps=6, drop_last=False)
    results = launch(train, s * r, "hard", "adamw", stage, **options)
    assert wrong(results, serial("hard", "adamw", steps=6, drop_last=False)[0]) == []


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("routes", [(0, 1, 2, 2), (2, 2, 0, 0), (1, 1, 1, 1)])
def test_gradients_that_one_replica_has_and_buckets_in_its_order(routes, stage):
    """Replicas have their gradients in another order each, and must average them in one."""
    decays = lambda params, comm: torch.optim.AdamW(params, lr=0.1, weight_decay=0.5)
    hybrid = lambda params, comm: Hybrid(
        params, torch.optim.AdamW, comm, stage, 2, lr=0.1, weight_decay=0.5, **SMALL
    )
    oracle = World(1).run(choosing, decays, routes)[0]
    results = World(4).run(choosing, hybrid, routes)
    assert wrong(results, oracle[0]) == [] and all(states == oracle[2] for *_, states in results)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("s", "r"), [(2, 3), *([(2, 2), (1, 3)] if FULL else [])])
def test_bytes_of_replicas(s, r, stage, figure):
    """Between replicas go the gradients of what a rank owns, and nothing else; states lie in each of them once."""

    def program(comm, steps):
        model = made("mlp", 0)
        optimizer = Hybrid(model.parameters(), torch.optim.AdamW, comm, stage, s, lr=0.1)
        for _, loss in losses(model, comm, steps=steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return sorted(optimizer.own_state_dict()["state"])

    n, sent = s * r, []
    between = [(a, b) for a, b in itertools.permutations(range(n), 2) if a // s != b // s]
    for steps in (1, 2):
        world = World(n)
        owned = world.run(program, steps)
        across = sum(world.trace.bytes_sent(link=link) for link in between)
        sent.append((across, world.trace.bytes_sent()))
    across, every = (two - one for one, two in zip(*sent, strict=True))
    figure(f"ZeRO {stage}, {s} shards × {r} replicas: {across} of {every} bytes between replicas")
    assert every == 8 * n * zero_traffic(stage, 53, s, replicas=r)
    assert every - across == 8 * n * zero_traffic(stage, 53, s)
    for first in range(0, n, s):
        assert sorted(itertools.chain(*owned[first : first + s])) == [0, 1, 2, 3]


def test_replicas_of_another_shard_are_refused():
    def program(comm):
        inner, outer = comm.split([0, 0, 1, 1]), comm.split([0, 1, 1, 0])
        with pytest.raises(ValueError, match=r"these 2 ranks hold shard . of 2, shard . of 2"):
            ShardedOptimizer(made("mlp", 0).parameters(), torch.optim.SGD, inner, 1, replicas=outer)

    World(4).run(program)
