"""n ranks with parts of the batch take the step of one rank with the whole batch."""

import functools

import pytest
import torch

from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import World, launch
from minidist.parallel.data import DataParallel, Sampler, average_gradients
from tests.largest import largest
from tests.parallel.cases import (
    MODELS,
    SAMPLES,
    difference,
    gradients,
    made,
    mse,
    naive,
    serial,
    train,
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


class Forgotten(DataParallel):
    def _has_gradient(self, p):
        pass


class Summed(DataParallel):
    def average(self):
        super().average()
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad *= self.comm.size


class Unweighted(DataParallel):
    def _begin(self):
        self.weight = None
        super()._begin()


class WithoutUnused(DataParallel):
    def average(self):
        for p in self.module.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        super().average()


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
        (Forgotten, True),
        (Summed, True),
        (Unweighted, False),
        (WithoutUnused, True),
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
