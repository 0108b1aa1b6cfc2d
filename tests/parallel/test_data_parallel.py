"""DataParallel where it is difficult: accumulation, unused parameters, buffers, errors, and beside PyTorch's own."""

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import Deadlock, World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from tests.largest import largest
from tests.parallel.cases import Hard, difference, gradients, made, mse, replicas_equal

BUCKETS = [
    {},
    {"bucket_bytes": 1},
    {"bucket_bytes": 300, "first_bucket_bytes": 100, "overlap": False},
]


def both(program, n, *args):
    """The results of a World, and of processes."""
    return [World(n).run(program, *args), launch(program, n, *args)]


def everywhere(program, n, *args):
    """The same with some of BUCKETS, which the program takes as `options`; with all, over n = 1, 2, 3."""
    return [
        World(n).run(program, *args, options=BUCKETS[n % 3]),
        launch(program, n, *args, options=BUCKETS[(n + 1) % 3]),
    ]


def batch_of(rank, size=2, dtype=torch.float64):
    random = torch.Generator().manual_seed(10 + rank)
    return torch.randn(size, 6, generator=random, dtype=torch.float64).to(dtype)


def accumulate(comm, wrap, k, options={}):  # noqa: B006
    """k micro-batches, the last one outside `no_sync`."""
    model = wrap(made("hard", 0), comm, **options)
    for i in range(k):
        x = batch_of(comm.rank * k + i)
        if i < k - 1:
            with model.no_sync():
                (model(x).square().mean() / k).backward()
        else:
            (model(x).square().mean() / k).backward()
    return gradients(model.module)


def serial_gradients(module, x):
    module(x).square().mean().backward()
    return gradients(module)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_accumulation(n, k):
    oracle = serial_gradients(made("hard", 0), torch.cat([batch_of(i) for i in range(n * k)]))
    for results in everywhere(accumulate, n, DataParallel, k):
        assert largest(difference(mine, oracle) for mine in results) < 1e-14


class NeverSynchronised(DataParallel):
    """Stays inside `no_sync`."""

    def no_sync(self):
        self._averages = False
        return super().no_sync()


class Increments(DataParallel):
    """Averages in a hook that sees only what this backward adds."""

    def __init__(self, module, comm):
        super().__init__(module, comm)
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(
                    lambda grad: all_reduce_(comm, grad.clone(), "mean") if self._averages else grad
                )

    def _has_gradient(self, p):
        pass


@pytest.mark.parametrize("wrong", [NeverSynchronised, Increments])
def test_wrong_accumulation_is_found(wrong):
    oracle = serial_gradients(made("hard", 0), torch.cat([batch_of(i) for i in range(4)]))
    assert largest(difference(mine, oracle) for mine in World(2).run(accumulate, wrong, 2)) > 1e-4


def test_nothing_is_sent_inside_no_sync():
    def program(comm, inside):
        model = DataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), comm)
        with model.no_sync():
            for _ in range(inside):
                model(batch_of(comm.rank, dtype=torch.float32)).sum().backward()

    assert World(3).run(program, 5).trace == World(3).run(program, 0).trace


def test_no_sync_ends_with_its_block_even_after_an_error():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        with pytest.raises(RuntimeError), model.no_sync():
            raise RuntimeError
        with model.no_sync(), model.no_sync():
            pass
        model(batch_of(comm.rank)).sum().backward()
        return gradients(model.module)

    results = World(2).run(program)
    assert difference(*results) == 0


def again(comm, case, options):
    model = DataParallel(made("hard", 0), comm, **options)
    x = batch_of(comm.rank)
    loss = model(x).square().mean()
    if case == "two backwards":
        loss.backward()
        model(batch_of(comm.rank + 5)).square().mean().backward()
    elif case == "retain_graph":
        loss.backward(retain_graph=True)
        loss.backward()
    elif case == "two forwards":
        (loss + model(batch_of(comm.rank + 5)).square().mean()).backward()
    elif case == "create_graph":
        loss.backward(create_graph=True)
    elif case.startswith("after an error"):
        bad = model(x)
        bad.register_hook(lambda grad: 1 / 0)
        # early: before any gradient
        error = (bad.sum() + loss) if case.endswith("early") else failing(model, x)
        with pytest.raises(ZeroDivisionError):
            error.backward()
        model.zero_grad()
        model(x).square().mean().backward()
    elif case == "checkpointed":
        model.zero_grad()
        torch.utils.checkpoint.checkpoint(
            model, x.requires_grad_(), use_reentrant=True
        ).square().mean().backward()
    elif case == "recomputed":
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().mean().backward()
    return gradients(model.module)


def failing(model, x):
    """A loss whose backward raises when the gradients of the last layers are there."""
    h = torch.tanh(model.module.first(x))
    h.register_hook(lambda grad: 1 / 0)
    model(x)
    return (model.module.scale * torch.nn.functional.linear(h, model.module.strided)).sum()


@pytest.mark.parametrize(
    ("case", "factor"),
    [
        ("two backwards", None),
        ("retain_graph", 2),
        ("two forwards", None),
        ("create_graph", 1),
        ("after an error early", 1),
        ("after an error late", 1),
        ("checkpointed", 1),
        ("recomputed", 1),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_backward_in_other_ways(case, factor, n):
    oracle = serial_gradients(made("hard", 0), torch.cat([batch_of(r) for r in range(n)]))
    if factor is None:
        other = serial_gradients(made("hard", 0), torch.cat([batch_of(r + 5) for r in range(n)]))
        oracle = {name: None if g is None else g + other[name] for name, g in oracle.items()}
    else:
        oracle = {name: None if g is None else factor * g for name, g in oracle.items()}
    for results in everywhere(again, n, case):
        assert largest(difference(mine, oracle) for mine in results) < 1e-14


class Branches(nn.Module):
    """Each rank takes a branch of its own; no rank takes the last one."""

    def __init__(self, n):
        super().__init__()
        self.trunk = nn.Linear(6, 6)
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(n))
        self.never = nn.Linear(6, 3)

    def forward(self, x, which):
        return self.branches[which](self.trunk(x))


def branches(comm, weighted, options):
    torch.manual_seed(comm.rank)
    model = DataParallel(Branches(comm.size).double(), comm, **options)
    size = comm.rank if weighted else 2
    model.weight = size if weighted else None
    model(batch_of(comm.rank, size), comm.rank).square().sum().div(3 * max(1, size)).backward()
    return gradients(model.module)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_unused_on_some_ranks_and_on_all(n, weighted):
    torch.manual_seed(0)
    module = Branches(n).double()
    for r in range(n):
        size = r if weighted else 2
        share = r / sum(range(n)) if weighted else 1 / n
        module(batch_of(r, size), r).square().sum().mul(share / 3 / max(1, size)).backward()
    oracle = gradients(module)
    assert oracle["never.weight"] is None
    for results in everywhere(branches, n, weighted):
        assert largest(difference(mine, oracle) for mine in results) < 1e-14


def test_a_rank_without_work_calls_average():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        if comm.rank == 1:
            model.average()
        else:
            model(batch_of(0)).square().mean().backward()
        return gradients(model.module)

    oracle = serial_gradients(made("mlp", 0), batch_of(0))
    oracle = {name: g / 2 for name, g in oracle.items()}
    assert largest(difference(mine, oracle) for mine in World(2).run(program)) < 1e-15


def test_a_rank_that_never_comes_is_named():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        if comm.rank != 1:
            model(batch_of(0)).sum().backward()

    with pytest.raises(Deadlock, match=r"loss|backward|sum"):
        World(2).run(program)


def starts(comm):
    module = made("hard", comm.rank)
    random = torch.randn(2)
    model = DataParallel(module, comm)
    frozen = [p.detach().clone() for p in module.frozen.parameters()]
    return (
        replicas_equal(comm, list(module.parameters())),
        random,
        frozen,
        [p.detach() for p in model.parameters()],
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_start_as_rank_0(n):
    for results in both(starts, n):
        assert all(equal for equal, *_ in results)
        for mine, start in zip(results[-1][3], made("hard", 0).parameters(), strict=True):
            assert torch.equal(mine, start)  # the frozen ones too
        assert n == 1 or not torch.equal(results[0][1], results[1][1])


def test_buffers_start_as_rank_0s():
    """Also where each rank's are left alone later."""

    def program(comm):
        norm = nn.BatchNorm1d(2)
        norm.running_mean.fill_(comm.rank + 1)
        DataParallel(norm, comm, broadcast_buffers=False)
        return norm.running_mean.tolist()

    assert World(3).run(program) == [[1.0, 1.0]] * 3


def test_what_is_sent_at_the_start():
    def program(comm):
        module = Hard()
        DataParallel(module, comm, algorithm="naive")
        return sum(p.numel() for p in module.parameters())

    world = World(3)
    numbers = world.run(program)[0]
    alike = 2 * 2 * 16  # whether the models are alike is asked by a tree, up and down
    # tied ones once
    assert (world.trace.messages(), world.trace.bytes_sent()) == (2 + 4, 2 * 4 * numbers + alike)


def test_frozen_parameters_are_not_communicated_and_may_thaw():
    def program(comm, frozen, steps):
        module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
        module[0].requires_grad_(not frozen)
        model = DataParallel(module, comm)
        for _ in range(steps):
            model(batch_of(comm.rank)).square().mean().backward()
        module[0].requires_grad_(True)
        model.zero_grad()
        model(batch_of(comm.rank)).square().mean().backward()
        return gradients(module)

    step = [
        World(2).run(program, frozen, 2).trace.bytes_sent(0)
        - World(2).run(program, frozen, 1).trace.bytes_sent(0)
        for frozen in (True, False)
    ]
    assert step == [8 * (42 + 2), 8 * (84 + 4)]
    thawed, never_frozen = World(2).run(program, True, 1), World(2).run(program, False, 1)
    assert difference(thawed[0], never_frozen[0]) == difference(thawed[1], thawed[0]) == 0
    assert thawed[0]["0.weight"] is not None


def test_all_frozen():
    def program(comm):
        model = DataParallel(made("mlp", comm.rank).requires_grad_(False), comm)
        x = batch_of(comm.rank).requires_grad_()
        model(x).sum().backward()
        model.average()
        return replicas_equal(comm, list(model.parameters()))

    assert all(World(3).run(program))


def normed(comm, wrap, training=True, **options):
    torch.manual_seed(comm.rank)
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    model = wrap(module, comm, **options).train(training)
    seen = []
    for step in range(3):
        model(batch_of(3 * step + comm.rank)).square().mean().backward()
        seen.append({name: b.clone() for name, b in module.named_buffers()})
    return seen


def test_buffers_follow_rank_0():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    for results in both(normed, 3, DataParallel):
        fresh = nn.BatchNorm1d(4).double()
        for step in range(3):
            before = {name: b.clone() for name, b in fresh.named_buffers()}
            for rank in range(3):  # each starts from rank 0's and adds its own batch
                mine = nn.BatchNorm1d(4).double()
                mine.load_state_dict(fresh.state_dict() | before)
                mine(module[0](batch_of(3 * step + rank)))
                for name, b in mine.named_buffers():
                    assert torch.allclose(results[rank][step]["1." + name], b, rtol=1e-14)
            fresh(module[0](batch_of(3 * step)))


def test_buffers_left_alone():
    kept = World(2).run(normed, DataParallel, broadcast_buffers=False)
    assert not torch.equal(kept[0][2]["1.running_mean"], kept[1][2]["1.running_mean"])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    for step in range(3):
        module(batch_of(3 * step + 1))
    assert torch.allclose(kept[1][2]["1.running_mean"], module[1].running_mean, rtol=1e-14)


def test_no_buffers_are_sent_in_evaluation():
    def program(comm, forwards):
        model = DataParallel(nn.BatchNorm1d(6), comm).eval()
        for _ in range(forwards if comm.rank == 0 else 0):  # rank 0 alone evaluates
            model(torch.ones(2, 6))

    assert World(2).run(program, 3).trace == World(2).run(program, 0).trace


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [
        (torch.float64, 1e-15),
        (torch.float32, 1e-6),
        (torch.bfloat16, 2e-2),
        (torch.float16, 2e-3),
    ],
)
def test_dtypes(dtype, bound):
    """Bounds: some roundings of numbers near 1 in that dtype."""

    def program(comm):
        model = DataParallel(mlp([6, 5, 3], seed=comm.rank, dtype=dtype), comm)
        mse(model(batch_of(comm.rank, dtype=dtype)), torch.zeros(2, 3, dtype=dtype)).backward()
        return gradients(model.module)

    oracle = mlp([6, 5, 3], dtype=torch.float64)
    mse(oracle(torch.cat([batch_of(r) for r in range(3)])), torch.zeros(6, 3)).backward()
    for results in both(program, 3):
        assert all(g.dtype == dtype for g in results[0].values())
        assert difference(results[0], results[1]) == difference(results[0], results[2]) == 0
        assert difference(results[0], gradients(oracle)) < bound


def test_float16_does_not_overflow_in_the_sum():
    def program(comm):
        layer = nn.Linear(1, 1, bias=False, dtype=torch.float16)
        model = DataParallel(layer, comm)
        (model(torch.ones(1, 1, dtype=torch.float16)) * 40_000).sum().backward()
        return layer.weight.grad.item()

    assert World(4).run(program) == [40_000.0] * 4


def test_the_state_is_the_modules():
    def program(comm):
        module = made("hard", 3)
        model = DataParallel(module, comm)
        state = {name: t.clone() for name, t in model.state_dict().items()}
        assert list(state) == list(module.state_dict())
        other = DataParallel(made("hard", 4), comm)
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        return all(torch.equal(t, other.module.state_dict()[name]) for name, t in state.items())

    assert World(2).run(program) == [True, True]


def test_a_parameter_elsewhere():
    def program(comm):
        DataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), comm)

    with pytest.raises(ValueError, match=r"1\.weight is on meta.*cpu"):
        World(1).run(program)


def test_a_sparse_gradient():
    def program(comm):
        model = DataParallel(nn.Embedding(4, 2, sparse=True), comm)
        model(torch.tensor([1])).sum().backward()

    with pytest.raises(ValueError, match=r"gradient of weight is sparse"):
        World(2).run(program)


@pytest.mark.parametrize(
    "run", [lambda p: World(2).run(p), lambda p: launch(p, 2)], ids=["world", "processes"]
)
def test_models_that_differ_are_named(run):
    def program(comm):
        DataParallel(nn.Linear(2, 2 + comm.rank), comm)

    with pytest.raises(ValueError, match=r"rank 0[\s\S]*rank 1|rank 1[\s\S]*rank 0"):
        run(program)


def test_a_negative_weight_inside_backward():
    def program(comm):
        model = DataParallel(nn.Linear(6, 1).double(), comm)
        model.weight = -comm.rank
        model(batch_of(0)).sum().backward()

    with pytest.raises(ValueError, match=r"rank 1 has a weight of -1"):
        World(2).run(program)


def torchs(module, comm, **options):
    """PyTorch's own, on the same group."""
    return nn.parallel.DistributedDataParallel(module, process_group=comm.group, **options)


def trained(comm, wrap, options):
    """The parameters after three steps."""
    model = wrap(made("mlp", comm.rank), comm, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(3 * step + comm.rank)).square().mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.module.named_parameters()}


def beside_pytorch(comm):
    """{case: (ours, theirs)}: gradients, or buffers, by both."""
    found = {}
    unused = lambda module, comm: torchs(module, comm, find_unused_parameters=True)
    for k in (1, 3):
        found[f"accumulation {k}"] = [accumulate(comm, wrap, k) for wrap in (DataParallel, unused)]
    found["trained"] = [
        trained(comm, *how)
        for how in (
            (DataParallel, {"bucket_bytes": 200, "first_bucket_bytes": 50}),
            (torchs, {"bucket_cap_mb": 2e-4}),
        )
    ]
    found["buffers on rank 0"] = [normed(comm, wrap)[-1] for wrap in (DataParallel, torchs)]
    for n in (1, 2):  # ranks share branches, or take one each; the last is never used
        models = []
        for wrap in (DataParallel, unused):
            torch.manual_seed(comm.rank)
            model = wrap(Branches(2).double(), comm)
            model(batch_of(comm.rank), comm.rank % n).square().mean().backward()
            models.append(gradients(model.module))
        found[f"branches {n}"] = models
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_beside_pytorchs_own(n):
    for rank, found in enumerate(launch(beside_pytorch, n, transport="gloo")):
        for case, (ours, theirs) in found.items():
            if rank == 0 or not case.startswith("buffers"):
                assert difference(ours, theirs) < 1e-14, case
