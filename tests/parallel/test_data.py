"""n ranks with parts of the batch take the step of one rank with the whole batch."""

import functools

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import Deadlock, World, launch
from minidist.models import mlp
from minidist.parallel.data import (
    CompressedBucket,
    Copies,
    DataParallel,
    Sampler,
    average_gradients,
)
from minidist.parallel.reducer import Reducer
from tests.largest import largest
from tests.parallel.cases import (
    MODELS,
    SAMPLES,
    Hard,
    difference,
    gradients,
    made,
    mse,
    naive,
    replicas_equal,
    serial,
    train,
    with_reducer,
)

BOUND = {"mlp": 1e-13, "hard": 1e-13, "mixed": 1e-6}  # the mixed one computes in float32 on its way


def parts(n, *args, epoch=0, **kwargs):
    """Every rank's list of batches."""

    def program(comm):
        sampler = Sampler(*args, comm, **kwargs)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(sampler) == len(batches)
        return batches

    return World(n).run(program)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("length", [12, 13, 25, 100])
def test_the_parts_of_a_batch_are_the_serial_batch(length, drop_last):
    whole = parts(1, length, 12, drop_last=drop_last)[0]
    for n in (2, 3, 4, 6, 12):
        of_ranks = parts(n, length, 12, drop_last=drop_last)
        assert {len(batches) for batches in of_ranks} == {len(whole)}
        for i, batch in enumerate(whole):
            assert torch.equal(torch.cat([batches[i] for batches in of_ranks]), batch)
            sizes = [len(batches[i]) for batches in of_ranks]
            assert sizes == [12 // n] * n if len(batch) == 12 else max(sizes) - min(sizes) <= 1
    seen = torch.cat(whole)
    assert len(seen) == len(seen.unique()) == (length - length % 12 if drop_last else length)
    assert seen.dtype == torch.int64 and set(seen.tolist()) <= set(range(length))


def test_the_last_batch_may_leave_ranks_without_samples():
    assert [len(batches[-1]) for batches in parts(4, 14, 12, drop_last=False)] == [1, 1, 0, 0]
    assert [len(batches[0]) for batches in parts(4, 3, 12, drop_last=False)] == [1, 1, 1, 0]


def test_orders():
    first, again = parts(2, 50, 10)[1], parts(2, 50, 10)[1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], parts(2, 50, 10, epoch=1)[1][0])
    assert not torch.equal(first[0], parts(2, 50, 10, seed=1)[1][0])
    assert torch.equal(torch.cat(parts(1, 50, 10, shuffle=False)[0]), torch.arange(50))


def test_sampling_leaves_the_ranks_random_numbers_alone():
    def program(comm, sample):
        if sample:
            list(Sampler(20, 4, comm))
        return torch.randn(1)

    assert World(2).run(program, True) == World(2).run(program, False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((100, 10), ("10 samples", "4 ranks")),
        ((7, 8), ("7", "8")),
        ((0, 4), ("0", "4")),
        ((8, 0), ("8", "0")),
    ],
)
def test_a_batch_that_cannot_be(args, words):
    with pytest.raises(ValueError) as caught:
        parts(4, *args)
    assert all(word in str(caught.value) for word in words)


RUNS = {
    "world": lambda n, *args, **kwargs: World(n).run(*args, **kwargs),
    "processes": lambda n, program, *args, **kwargs: launch(program, n, *args, **kwargs),
    "gloo": lambda n, program, *args, **kwargs: launch(
        program, n, *args, transport="gloo", **kwargs
    ),
}


WRAPPERS = {
    "DataParallel": DataParallel,
    "naive": None,
    "many buckets": functools.partial(DataParallel, bucket_bytes=1),
    "at the end": functools.partial(
        DataParallel, bucket_bytes=250, first_bucket_bytes=50, overlap=False
    ),
}


EVERY = [
    (name, how, drop_last)
    for name in MODELS
    for how in WRAPPERS
    for drop_last in ((True, False) if how in ("DataParallel", "naive") else (False,))
]
SOME = [("hard", "DataParallel", False), ("hard", "naive", False), ("mixed", "many buckets", False)]


def batch_and_steps(n, drop_last):
    """Steps go on after the smaller, last batch."""
    batch = 4 * n if n < 5 else n
    return batch, 3 if drop_last else SAMPLES // batch + 2


def every_case(comm, cases):
    """{case: result} of models, in several ways, with equal and with uneven batches."""
    return {
        (name, how, drop_last): train(
            comm,
            name,
            *batch_and_steps(comm.size, drop_last),
            drop_last,
            "naive" if how == "naive" else "DataParallel",
            WRAPPERS[how],
        )
        for name, how, drop_last in cases
    }


@pytest.mark.parametrize(
    ("run", "n"),
    [
        *(("world", n) for n in (1, 2, 3, 4, 5)),
        *(("processes", n) for n in (1, 2, 3, 4)),
        ("gloo", 2),
    ],
)
def test_the_serial_step(run, n):
    results = RUNS[run](n, every_case, EVERY if run == "world" else SOME)
    for name, how, drop_last in results[0]:
        oracle = serial(name, *batch_and_steps(n, drop_last), drop_last)
        for mine in results:
            grads, params, same = mine[name, how, drop_last]
            if how == "naive":  # a missing gradient is zeros there
                grads = {k: None if oracle[0][k] is None else g for k, g in grads.items()}
            assert same, (name, how, drop_last)
            assert difference(grads, oracle[0]) < BOUND[name], (name, how, drop_last)
            assert difference(params, oracle[1]) < BOUND[name], (name, how, drop_last)


class Forgotten(Reducer):
    def _has_gradient(self, p):
        pass


class Summed(Reducer):
    def finish(self):
        super().finish()
        for p in self.named():
            if p.grad is not None:
                p.grad *= self.comm.size


class Unweighted(Reducer):
    def begin(self):
        self.weight = None
        super().begin()


class WithoutUnused(Reducer):
    def finish(self):
        for p in self.named():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        super().finish()


class NotBroadcast(DataParallel):
    def __init__(self, module, comm):
        kept = [p.detach().clone() for p in module.parameters()]
        super().__init__(module, comm)
        with torch.no_grad():
            for p, old in zip(module.parameters(), kept, strict=True):
                p.copy_(old)


@pytest.mark.parametrize(
    ("wrapper", "drop_last"),
    [
        (with_reducer(Forgotten), True),
        (with_reducer(Summed), True),
        (with_reducer(Unweighted), False),
        (with_reducer(WithoutUnused), True),
        (NotBroadcast, True),
    ],
)
def test_a_wrong_variant_is_found(wrapper, drop_last):
    steps = 3 if drop_last else 4
    oracle = serial("hard", 8, steps, drop_last)
    for right in (True, False):
        results = World(4).run(
            train, "hard", 8, steps, drop_last, wrapper=DataParallel if right else wrapper
        )
        worst = largest(
            difference(mine, theirs)
            for r in results
            for mine, theirs in zip(r, oracle, strict=False)
        )
        assert (worst < 1e-13 and all(r[2] for r in results)) if right else (worst > 1e-4)


def forgotten(comm, module, weight):
    pass


def weights_averaged(comm, module, weight):
    for p in module.parameters():
        all_reduce_(comm, p, "mean")


def first_rank_only(comm, module, weight):
    for p in module.parameters():
        broadcast_(comm, p.grad)


@pytest.mark.parametrize("wrong", [forgotten, weights_averaged, first_rank_only])
def test_a_wrong_naive_average_is_found(wrong):
    oracle = serial("mlp", 8, 3)
    for average in (naive, wrong):
        results = World(4).run(train, "mlp", 8, 3, how="naive", average=average)
        worst = largest(difference(r[1], oracle[1]) for r in results)
        assert worst < 1e-13 if average is naive else worst > 1e-4


@pytest.mark.parametrize("n", [1, 2, 4])
def test_messages_and_bytes_of_a_step(n):
    def traced(how, steps):
        trace = World(n).run(train, "mlp", 8, steps, how=how).trace
        return [(trace.messages(r), trace.bytes_sent(r)) for r in range(n)]

    sizes = [p.numel() for p in made("mlp", 0).parameters()]
    # + one flag for each tensor
    for how, chunks in (("DataParallel", [sum(sizes) + len(sizes)]), ("naive", sizes)):
        more = [
            (a[0] - b[0], a[1] - b[1]) for a, b in zip(traced(how, 3), traced(how, 2), strict=True)
        ]
        assert {messages for messages, _ in more} == {2 * (n - 1) * len(chunks)}
        assert sum(nbytes for _, nbytes in more) == 2 * (n - 1) * sum(chunks) * 8


def test_one_message_for_each_dtype():
    def program(comm, steps):
        model = DataParallel(made("mixed", 0), comm)
        for _ in range(steps):
            model(torch.ones(2, 6)).sum().backward()

    count = [World(3).run(program, steps).trace.messages(0) for steps in (1, 2)]
    assert count[1] - count[0] == 2 * 2 * (3 - 1)


def test_meta_costs_the_same():
    def program(comm, device):
        model = DataParallel(made("mlp", 0).to(device), comm)
        model(torch.ones(2, 6, dtype=torch.float64, device=device)).sum().backward()
        average_gradients(comm, model)

    real, meta = World(3), World(3, device="meta")
    real.run(program, "cpu")
    meta.run(program, "meta")
    assert real.time == meta.time and real.trace == meta.trace


def test_naive_a_missing_gradient_counts_as_zeros():
    """One layer is used by a rank alone, the other by none."""

    def program(comm):
        layers = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(2))
        if comm.rank == 1:
            layers[0](torch.ones(1, 1)).sum().backward()
        average_gradients(comm, layers)
        return [p.grad.item() for p in layers.parameters()]

    assert World(4).run(program) == [[0.25, 0.0]] * 4


def test_naive_weights_of_zero():
    def program(comm):
        layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(layer.weight)
        mse(layer(torch.ones(comm.rank, 2)), torch.zeros(comm.rank, 1)).backward()
        if comm.rank == 0:
            layer.weight.grad.fill_(torch.nan)  # what a loss gives that divides by no samples
        average_gradients(comm, layer, weight=comm.rank)
        return gradients(layer)["weight"].tolist()

    assert World(3).run(program) == [[[4.0, 4.0]]] * 3


def test_a_negative_weight():
    with pytest.raises(ValueError, match=r"rank 1.*-1"):
        World(2).run(lambda comm: average_gradients(comm, torch.nn.Linear(2, 1), weight=-comm.rank))


# ------------------------------------------------------------
# DataParallel where it is difficult: accumulation, unused parameters, buffers, errors, and beside PyTorch's own.


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


def batch_of_data_parallel(rank, size=2, dtype=torch.float64):
    random = torch.Generator().manual_seed(10 + rank)
    return torch.randn(size, 6, generator=random, dtype=torch.float64).to(dtype)


def accumulate(comm, wrap, k, options={}):  # noqa: B006
    """k micro-batches, the last one outside `no_sync`."""
    model = wrap(made("hard", 0), comm, **options)
    for i in range(k):
        x = batch_of_data_parallel(comm.rank * k + i)
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
    oracle = serial_gradients(
        made("hard", 0), torch.cat([batch_of_data_parallel(i) for i in range(n * k)])
    )
    for results in everywhere(accumulate, n, DataParallel, k):
        assert largest(difference(mine, oracle) for mine in results) < 1e-14


class NeverSynchronised(Reducer):
    """Stays inside `no_sync`."""

    def _has_gradient(self, p):
        pass


class Increments(Reducer):
    """Averages in a hook that sees only what this backward adds."""

    def watch(self, params):
        for p in params:
            if p.requires_grad and p not in self._hooks:
                self._hooks[p] = (p.register_hook(self._average_of),)

    def _average_of(self, grad):
        return all_reduce_(self.comm, grad.clone(), "mean") if self.in_backward else grad


@pytest.mark.parametrize("wrong", [NeverSynchronised, Increments])
def test_wrong_accumulation_is_found(wrong):
    oracle = serial_gradients(
        made("hard", 0), torch.cat([batch_of_data_parallel(i) for i in range(4)])
    )
    assert (
        largest(
            difference(mine, oracle) for mine in World(2).run(accumulate, with_reducer(wrong), 2)
        )
        > 1e-4
    )


def test_nothing_is_sent_inside_no_sync():
    def program(comm, inside):
        model = DataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), comm)
        with model.no_sync():
            for _ in range(inside):
                model(batch_of_data_parallel(comm.rank, dtype=torch.float32)).sum().backward()

    assert World(3).run(program, 5).trace == World(3).run(program, 0).trace


def test_no_sync_ends_with_its_block_even_after_an_error():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        with pytest.raises(RuntimeError), model.no_sync():
            raise RuntimeError
        with model.no_sync(), model.no_sync():
            pass
        model(batch_of_data_parallel(comm.rank)).sum().backward()
        return gradients(model.module)

    results = World(2).run(program)
    assert difference(*results) == 0


def again(comm, case, options):
    model = DataParallel(made("hard", 0), comm, **options)
    x = batch_of_data_parallel(comm.rank)
    loss = model(x).square().mean()
    if case == "two backwards":
        loss.backward()
        model(batch_of_data_parallel(comm.rank + 5)).square().mean().backward()
    elif case == "retain_graph":
        loss.backward(retain_graph=True)
        loss.backward()
    elif case == "two forwards":
        (loss + model(batch_of_data_parallel(comm.rank + 5)).square().mean()).backward()
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
    oracle = serial_gradients(
        made("hard", 0), torch.cat([batch_of_data_parallel(r) for r in range(n)])
    )
    if factor is None:
        other = serial_gradients(
            made("hard", 0), torch.cat([batch_of_data_parallel(r + 5) for r in range(n)])
        )
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
    model(batch_of_data_parallel(comm.rank, size), comm.rank).square().sum().div(
        3 * max(1, size)
    ).backward()
    return gradients(model.module)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_unused_on_some_ranks_and_on_all(n, weighted):
    torch.manual_seed(0)
    module = Branches(n).double()
    for r in range(n):
        size = r if weighted else 2
        share = r / sum(range(n)) if weighted else 1 / n
        module(batch_of_data_parallel(r, size), r).square().sum().mul(
            share / 3 / max(1, size)
        ).backward()
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
            model(batch_of_data_parallel(0)).square().mean().backward()
        return gradients(model.module)

    oracle = serial_gradients(made("mlp", 0), batch_of_data_parallel(0))
    oracle = {name: g / 2 for name, g in oracle.items()}
    assert largest(difference(mine, oracle) for mine in World(2).run(program)) < 1e-15


def test_a_rank_that_never_comes_is_named():
    def program(comm):
        model = DataParallel(made("mlp", 0), comm)
        if comm.rank != 1:
            model(batch_of_data_parallel(0)).sum().backward()

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
            model(batch_of_data_parallel(comm.rank)).square().mean().backward()
        module[0].requires_grad_(True)
        model.zero_grad()
        model(batch_of_data_parallel(comm.rank)).square().mean().backward()
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
        x = batch_of_data_parallel(comm.rank).requires_grad_()
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
        model(batch_of_data_parallel(3 * step + comm.rank)).square().mean().backward()
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
                mine(module[0](batch_of_data_parallel(3 * step + rank)))
                for name, b in mine.named_buffers():
                    assert torch.allclose(results[rank][step]["1." + name], b, rtol=1e-14)
            fresh(module[0](batch_of_data_parallel(3 * step)))


def test_buffers_left_alone():
    kept = World(2).run(normed, DataParallel, broadcast_buffers=False)
    assert not torch.equal(kept[0][2]["1.running_mean"], kept[1][2]["1.running_mean"])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    for step in range(3):
        module(batch_of_data_parallel(3 * step + 1))
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
        mse(
            model(batch_of_data_parallel(comm.rank, dtype=dtype)), torch.zeros(2, 3, dtype=dtype)
        ).backward()
        return gradients(model.module)

    oracle = mlp([6, 5, 3], dtype=torch.float64)
    mse(
        oracle(torch.cat([batch_of_data_parallel(r) for r in range(3)])), torch.zeros(6, 3)
    ).backward()
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
        model(batch_of_data_parallel(0)).sum().backward()

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
        model(batch_of_data_parallel(3 * step + comm.rank)).square().mean().backward()
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
            model(batch_of_data_parallel(comm.rank), comm.rank % n).square().mean().backward()
            models.append(gradients(model.module))
        found[f"branches {n}"] = models
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_beside_pytorchs_own(n):
    for rank, found in enumerate(launch(beside_pytorch, n, transport="gloo")):
        for case, (ours, theirs) in found.items():
            if rank == 0 or not case.startswith("buffers"):
                assert difference(ours, theirs) < 1e-14, case


# ------------------------------------------------------------
# Buckets whose average a compression makes: what it is handed, when, and what is never handed to it twice.


class Recorded:
    """An exact average that writes down what it sees."""

    def __init__(self, whole=False):
        self.calls, self.shares = [], []
        self.first = self.before if whole else None

    def before(self, comm, buckets, share):
        self.shares.append(1.0 if share is None else float(share.wait()))
        self.calls.append([name for bucket in buckets for name in bucket.views])

    def average_(self, comm, bucket, algorithm):
        self.calls.append({name: g.clone() for name, g in bucket.views.items()})
        all_reduce_(comm, bucket.buffer, algorithm=algorithm)
        self.calls.append(bucket.there())


def batch_of_compressed(rank, size=2):
    random = torch.Generator().manual_seed(10 + rank)
    return torch.randn(size, 6, generator=random, dtype=torch.float64)


def program(comm, options, weighted, whole):
    compression = Recorded(whole)
    model = DataParallel(made("hard", comm.rank), comm, compression=compression, **options)
    size = comm.rank + 1 if weighted else 2
    model.weight = size if weighted else None
    mse(model(batch_of_compressed(comm.rank, size)), 0).backward()
    return gradients(model.module), compression.calls, compression.shares


@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 1}, {"bucket_bytes": 300, "overlap": False}]
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_shares_in_sums_out(options, weighted, whole):
    n, module = 3, made("hard", 0)
    mse(
        module(torch.cat([batch_of_compressed(r, r + 1 if weighted else 2) for r in range(n)])), 0
    ).backward()
    results = World(n).run(program, options, weighted, whole)
    for grads, calls, shares in results:
        assert difference(grads, gradients(module)) < 1e-14
        assert shares == ([] if not whole else pytest.approx([1.0 if not weighted else shares[0]]))
        if whole:
            assert "never.weight" in calls.pop(0)
        assert not {"never.weight", "never.bias"} & set().union(*calls[1::2])
        assert set().union(*calls[1::2]) == {name for name, g in grads.items() if g is not None}
    if weighted and whole:
        assert [shares[0] for _, _, shares in results] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    parts = [
        {name: g for call in calls[0::2] for name, g in call.items()} for _, calls, _ in results
    ]
    total = sum(part["first.weight"] for part in parts)
    if not whole or not weighted:
        assert (total - results[0][0]["first.weight"]).abs().max() < 1e-14


def test_over_processes():
    ours, shm = World(2).run(program, {}, True, True), launch(program, 2, {}, True, True)
    assert difference(ours[0][0], shm[0][0]) == 0


def test_views_keep_the_strides_of_the_parameters():
    p = nn.Parameter(torch.randn(3, 4).t())
    bucket = CompressedBucket([p], ["p"], None, Copies())
    assert bucket.views["p"].shape == (4, 3) and bucket.views["p"].stride() == (1, 4)
    assert bucket.views["p"].untyped_storage()._cdata == bucket.grads.untyped_storage()._cdata


def test_an_average_is_set_aside_as_a_copy():
    p = nn.Parameter(torch.zeros(2))
    averages = Copies()
    room = torch.tensor([1.0, 2.0])
    averages.give(p, room)
    assert p.grad is room
    averages.set_aside(p)
    assert p.grad is None
    room.fill_(10)
    averages.give(p, room)
    assert p.grad.tolist() == [11.0, 12.0]
