"""Buckets that travel during backward: in one order on every rank, counted, and never touched while they do."""

import gc
import itertools
import random
import weakref

import pytest
import torch
from torch import nn

from minidist.comm import Deadlock, PeerLost, World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.parallel.reducer import Averages, Bucket, Reducer, assign
from tests.largest import largest
from tests.parallel.cases import difference, gradients, made, mse, replicas_equal, with_reducer

SIZES = [6, 5, 4, 3]  # 6 gradients


def batch_of(rank, size=2):
    random = torch.Generator().manual_seed(10 + rank)
    return torch.randn(size, 6, generator=random, dtype=torch.float64)


def steps(comm, count, weight=None, module=None, **options):
    """`count` steps of SGD; the number of buckets, where the gradients lie at each end, and the replicas."""
    model = DataParallel(module or mlp(SIZES, seed=comm.rank, dtype=torch.float64), comm, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight, places = weight, []
    for step in range(count):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(batch_of(comm.rank + 7 * step)).square().mean().backward()
        places.append([p.grad.data_ptr() for p in model.parameters()])
        optimizer.step()
    return (
        len(model.buckets),
        places,
        replicas_equal(comm, [p.detach() for p in model.parameters()]),
    )


def a_step(n, *args, **options):
    """(messages, bytes) of the third step, of each rank; the numbers of buckets after the second."""
    three, two = (World(n).run(steps, count, *args, **options) for count in (3, 2))
    return [
        (
            three.trace.messages(r) - two.trace.messages(r),
            three.trace.bytes_sent(r) - two.trace.bytes_sent(r),
        )
        for r in range(n)
    ], {found for found, _, _ in two}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("bucket_bytes", "first", "buckets"), [(1, 1, 6), (200, 100, 4), (999, 999, 1)]
)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_messages_and_bytes(n, bucket_bytes, first, buckets, overlap):
    counted, found = a_step(n, bucket_bytes=bucket_bytes, first_bucket_bytes=first, overlap=overlap)
    assert found == {buckets}
    numbers = sum(a * b + b for a, b in itertools.pairwise(SIZES)) + 6  # a flag for each gradient
    assert {messages for messages, _ in counted} == {2 * (n - 1) * buckets}
    assert sum(nbytes for _, nbytes in counted) == 2 * (n - 1) * numbers * 8


@pytest.mark.parametrize("overlap", [True, False])
def test_weights_are_one_message_more(overlap):
    counted, _ = a_step(3, 2.0, bucket_bytes=200, overlap=overlap)
    assert {messages for messages, _ in counted} == {2 * (3 - 1) * (3 + 1)}


def test_on_a_lane_of_its_own_or_on_none():
    def program(comm, overlap):
        model = DataParallel(
            mlp(SIZES, dtype=torch.float64), comm, bucket_bytes=200, overlap=overlap
        )
        for _ in range(2):
            model(batch_of(0)).sum().backward()

    for overlap in (True, False):
        lanes = [(m.lane, m.label) for m in World(3).run(program, overlap).trace]
        # the first of backward
        start = lanes.index(("lane 0" if overlap else "main", "reduce-scatter"))
        assert {lane for lane, _ in lanes[:start]} == {"main"}
        assert {lane for lane, _ in lanes[start:]} == {"lane 0" if overlap else "main"}


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_stay_where_they_are(overlap):
    for _, places, same in World(2).run(steps, 5, bucket_bytes=200, overlap=overlap):
        # laid out anew once, after the first
        assert same and places[1] == places[2] == places[3] == places[4]


class Crossed(nn.Module):
    """Registered in another order than used; which of two branches comes first is the caller's choice."""

    def __init__(self):
        super().__init__()
        self.last, self.left, self.right, self.first = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x, swap):
        x = self.first(x)
        one, other = (self.right, self.left) if swap else (self.left, self.right)
        return self.last(torch.tanh(one(x)) * torch.tanh(other(x)))


def crossed(comm, wrap, swaps, count=3):
    """Names in the order of the buckets, and the last gradients."""
    torch.manual_seed(0)
    model = wrap(Crossed().double(), comm, bucket_bytes=1)
    for step in range(count):
        model.zero_grad()
        model(batch_of(comm.rank + 3 * step), swaps[comm.rank]).square().mean().backward()
    return [name.partition(".")[0] for names in model.buckets for name in names][::2], gradients(
        model.module
    )


class Eager(Reducer):
    """Starts a bucket when it is complete, whatever the others do."""

    def ready(self, p):
        self._put(p)
        if not self._bucket_of[p].missing:
            self.buckets.remove(self._bucket_of[p])
            self.buckets.insert(self._started, self._bucket_of[p])
            self._start()


def crossed_oracle(n):
    torch.manual_seed(0)
    module = Crossed().double()
    module(torch.cat([batch_of(r + 6) for r in range(n)]), False).square().mean().backward()
    return gradients(module)


@pytest.mark.parametrize(
    "swaps", [(False,) * 3, (True,) * 3, (False, True, False), (True, False, False)]
)
def test_the_order_of_use_is_rank_0s(swaps):
    middle = ["left", "right"] if swaps[0] else ["right", "left"]
    runs = [World(3).run(crossed, DataParallel, swaps), launch(crossed, 3, DataParallel, swaps)]
    for order, grads in [result for results in runs for result in results]:
        assert order == ["last", *middle, "first"]
        assert difference(grads, crossed_oracle(3)) < 1e-14


def test_buckets_in_the_order_of_local_hooks_are_found():
    alike = World(3).run(crossed, with_reducer(Eager), (True, True, True))
    assert difference(alike[0][1], crossed_oracle(3)) < 1e-14
    # left's bytes are added to right's
    mixed = World(3).run(crossed, with_reducer(Eager), (False, True, False))
    assert difference(mixed[0][1], crossed_oracle(3)) > 1e-4


def test_one_bucket_needs_no_order():
    first = [World(2).run(steps, count).trace.messages(0) for count in (0, 1, 2)]
    assert first[2] - first[1] == first[1] - first[0] == 2
    first = [World(2).run(steps, count, bucket_bytes=1).trace.messages(0) for count in (0, 1, 2)]
    assert first[2] - first[1] == 12 and first[1] - first[0] > 12


class Tied(nn.Module):
    """One layer within reentrant checkpoints, and outside them."""

    def __init__(self):
        super().__init__()
        self.layer, self.between = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, checkpointed):
        for _ in range(2):
            x = (
                torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True)
                if checkpointed
                else self.layer(x)
            )
            x = torch.tanh(self.between(x))
        return self.layer(x)


class Unguarded(Reducer):
    def _before(self, p, increment):
        pass


def tied(comm, wrap, steps=2):
    torch.manual_seed(0)
    model = wrap(Tied().double(), comm, bucket_bytes=1)
    for _ in range(steps):
        model.zero_grad()
        model(batch_of(comm.rank).requires_grad_(), True).square().mean().backward()
    return gradients(model.module)


def test_backwards_within_a_backward():
    torch.manual_seed(0)
    module = Tied().double()
    module(torch.cat([batch_of(r) for r in range(3)]), False).square().mean().backward()
    for results in (World(3).run(tied, DataParallel), launch(tied, 3, DataParallel)):
        assert largest(difference(mine, gradients(module)) for mine in results) < 1e-14
    counts = [World(2).run(tied, DataParallel, steps).trace.messages(0) for steps in (2, 3)]
    assert counts[1] - counts[0] == 4 * 4 * 2  # outside, twice within, outside: 4 buckets each time
    with pytest.raises(KeyError):  # the gradient of `layer` comes twice
        World(3).run(tied, with_reducer(Unguarded))


def test_two_models_in_one_backward():
    def program(comm):
        one, two = (
            DataParallel(mlp(SIZES, seed=s, dtype=torch.float64), comm, bucket_bytes=1)
            for s in (1, 2)
        )
        for _ in range(2):
            one.zero_grad()
            two.zero_grad()
            x = batch_of(comm.rank)
            (one(x) * two(x)).sum(1).mean().backward()
        return gradients(one.module) | {f"two.{k}": g for k, g in gradients(two.module).items()}

    one, two = (mlp(SIZES, seed=s, dtype=torch.float64) for s in (1, 2))
    x = torch.cat([batch_of(r) for r in range(2)])
    (one(x) * two(x)).sum(1).mean().backward()
    oracle = gradients(one) | {f"two.{k}": g for k, g in gradients(two).items()}
    for results in (World(2).run(program), launch(program, 2)):
        assert largest(difference(mine, oracle) for mine in results) < 1e-14


def test_a_rank_without_work_calls_average_at_every_step():
    def program(comm):
        model = DataParallel(mlp(SIZES, dtype=torch.float64), comm, bucket_bytes=200)
        for step in range(3):
            model.zero_grad()
            idle = comm.rank == step % comm.size
            model.weight = 0 if idle else 2
            if idle:
                model.average()
            else:
                mse(model(batch_of(step)), 0).backward()
        return gradients(model.module)

    module = mlp(SIZES, dtype=torch.float64)
    mse(module(batch_of(2)), 0).backward()
    for results in (World(3).run(program), launch(program, 3)):
        assert largest(difference(mine, gradients(module)) for mine in results) < 1e-14


class OfTheMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x.mean()


def test_gradients_without_weight_may_be_nan():
    def program(comm):
        model = DataParallel(OfTheMean(), comm)
        model.weight = comm.rank
        model(torch.ones(comm.rank)).backward()  # of nothing, on rank 0
        return model.module.scale.grad.item()

    assert World(3).run(program) == [1.0, 1.0, 1.0]


def test_a_weight_may_change_its_mind():
    """Ranks weigh alike in one step and not in the next."""

    def program(comm):
        model = DataParallel(made("hard", 0), comm, bucket_bytes=100)
        for weight in (None, comm.rank, None, comm.rank + 1):
            model.zero_grad()
            model.weight = weight
            mse(model(batch_of(comm.rank, comm.rank + 1)), 0).backward()
        return gradients(model.module)

    module = made("hard", 0)
    mse(module(torch.cat([batch_of(r, r + 1) for r in range(3)])), 0).backward()
    assert largest(difference(mine, gradients(module)) for mine in World(3).run(program)) < 1e-14


@pytest.mark.parametrize(
    "run",
    [
        lambda p: World(3, on_failure="continue").run(p),
        lambda p: launch(p, 3, on_failure="continue", timeout=5),
    ],
    ids=["world", "shm"],
)
def test_a_rank_that_dies_is_found_in_backward(run):
    def program(comm):
        model = DataParallel(mlp(SIZES, dtype=torch.float64), comm, bucket_bytes=1)
        if comm.rank == 1:
            raise KeyError("gone")
        with pytest.raises(PeerLost) as caught:
            model(batch_of(0)).sum().backward()
        return caught.value.rank

    first, dead, last = run(program)
    assert isinstance(dead, KeyError) and first in (1, 2) and last in (0, 1)


@pytest.mark.parametrize("sizes", [{"bucket_bytes": 0}, {"first_bucket_bytes": -1}])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(ValueError, match="at least 1 byte"):
        World(1).run(lambda comm: DataParallel(nn.Linear(2, 2), comm, **sizes))


def test_another_set_of_parameters_is_laid_out_anew():
    def program(comm, thaw):
        model = DataParallel(mlp(SIZES, dtype=torch.float64), comm, bucket_bytes=1)
        frozen = [*model.parameters()][2:4]
        for step in range(4):
            for p in frozen:
                p.requires_grad_(step >= thaw)
            model.zero_grad()
            mse(model(batch_of(comm.rank)), 0).backward()
        return gradients(model.module), len(model.buckets)

    module = mlp(SIZES, dtype=torch.float64)
    mse(module(torch.cat([batch_of(r) for r in range(2)])), 0).backward()
    for thaw in (0, 1, 2, 3):
        for grads, buckets in World(2).run(program, thaw):
            assert buckets == 6 and difference(grads, gradients(module)) < 1e-14


def test_a_backward_that_raised_on_one_rank_only_is_a_deadlock():
    def program(comm):
        model = DataParallel(mlp(SIZES, dtype=torch.float64), comm, bucket_bytes=1)
        y = model(batch_of(0))
        if comm.rank == 1:
            y.register_hook(lambda grad: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                y.sum().backward()
        else:
            y.sum().backward()

    with pytest.raises(Deadlock):
        World(2).run(program)


# ------------------------------------------------------------
# Buckets: which gradients share one, and gradients that are views of it.


@pytest.mark.parametrize(
    ("nbytes", "kinds", "found"),
    [
        ([], "", []),
        ([4], "a", [[0]]),
        ([4, 4, 4, 4, 4, 4], "aaaaaa", [[0], [1, 2, 3], [4, 5]]),  # a small first one
        ([2, 2, 2], "aaa", [[0, 1], [2]]),
        ([40, 4, 4, 40, 4], "aaaaa", [[0], [1, 2], [3], [4]]),  # too large for any
        ([4, 0, 0, 12, 0], "aaaaa", [[0, 1, 2], [3, 4]]),
        ([4, 4, 4, 4], "abab", [[0], [1], [2], [3]]),  # each dtype has a first one
        ([4, 4, 4, 4, 4, 4], "aabaab", [[0], [2], [1, 3, 4], [5]]),  # by when they are complete
    ],
)
def test_assign(nbytes, kinds, found):
    assert assign(nbytes, kinds, 12, 5) == found


def test_every_gradient_has_one_bucket_which_is_not_too_large():
    drawn = random.Random(0)
    for _ in range(200):
        count = drawn.randint(0, 30)
        limit = drawn.randint(1, 60)
        first = drawn.randint(1, 60)
        nbytes = [drawn.choice([0, 1, 4, 20, 70]) for _ in range(count)]
        kinds = [drawn.choice("ab") for _ in range(count)]
        buckets = assign(nbytes, kinds, limit, first)
        assert sorted(i for bucket in buckets for i in bucket) == list(range(count))
        assert [bucket[-1] for bucket in buckets] == sorted(bucket[-1] for bucket in buckets)
        for kind in "ab":
            own = [bucket for bucket in buckets if kinds[bucket[0]] == kind]
            assert [i for bucket in own for i in bucket] == [
                i for i in range(count) if kinds[i] == kind
            ]
            for k, bucket in enumerate(own):
                room = limit if k else min(first, limit)
                total = sum(nbytes[i] for i in bucket)
                assert total <= room or len([i for i in bucket if nbytes[i]]) == 1
                if k + 1 < len(own):  # it is full
                    assert total + nbytes[own[k + 1][0]] > room


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-5, 7)])
def test_a_bucket_without_room(sizes):
    with pytest.raises(ValueError, match=f"bucket has room for at least 1 byte, not {min(sizes)}"):
        assign([4], ["a"], *sizes)


def parameters():
    """Of all kinds of shape and stride."""
    torch.manual_seed(0)
    return [
        nn.Parameter(t)
        for t in (
            torch.randn(2, 3),
            torch.randn(4, 3).t(),
            torch.tensor(1.5),
            torch.randn(0, 3),
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        )
    ]


def backward(params):
    sum((p * p).sum() for p in params).backward()
    return [2 * p.detach() for p in params]


def test_gradients_become_views_and_stay():
    params = parameters()
    bucket = Bucket(params)
    assert bucket.buffer.numel() == sum(p.numel() for p in params) + len(params)
    for step in range(3):
        grads = backward(params)
        before = [p.grad for p in params]
        bucket.missing = set(params)
        for p in params:
            bucket.put(p, 0.5)
        assert not bucket.missing
        for i, p in enumerate(params):
            assert torch.equal(p.grad, grads[i] / 2) and p.grad.stride() == before[i].stride()
            assert p.grad.untyped_storage().data_ptr() == bucket.buffer.data_ptr()
            assert step == 0 or p.grad is before[i]  # in place: autograd has added to the view
            p.grad.zero_()
    assert not bucket.grads.any() and bucket.grads.data_ptr() == bucket.buffer.data_ptr()


def test_a_new_gradient_is_moved_and_scaled_and_no_other_memory_is_touched():
    params = parameters()
    bucket, grads = Bucket(params), backward(params)
    bucket.buffer.fill_(7)
    for p in params[1:3]:
        bucket.put(p, 2.0)
    left = bucket.grads[:6], bucket.grads[19:], bucket.flags
    assert all((part == 7).all() for part in left)
    assert torch.equal(params[1].grad, 2 * grads[1]) and torch.equal(params[2].grad, 2 * grads[2])
    assert params[0].grad.untyped_storage().data_ptr() != bucket.buffer.data_ptr()


def test_no_weight_makes_zeros_even_of_nan():
    params = parameters()
    bucket = Bucket(params)
    backward(params)
    params[0].grad.fill_(float("nan"))
    for p in params:
        bucket.put(p, 0.0)
    assert not bucket.grads.any() and all(p.grad is not None for p in params)


def test_flags_say_who_has_a_gradient():
    params = parameters()
    bucket = Bucket(params)
    backward([params[0], params[4]])
    bucket.buffer.fill_(7)
    for p in params:
        bucket.put(p, 1.0)
    bucket.mark_present()
    assert bucket.flags.tolist() == [1, 0, 0, 0, 1] and not bucket.grads[6:19].any()
    assert [p.grad is None for p in params] == [False, True, True, True, False]
    bucket.flags[1] += 2  # as if two other ranks had one
    bucket.hand_out()
    assert [p.grad is None for p in params] == [False, False, True, True, False]
    bucket.grads.fill_(3)
    assert all((p.grad == 3).all() for p in params if p.grad is not None)


def test_what_was_there_is_not_handed_out_again():
    """A gradient that was sent, and then set to None, stays None."""
    params = parameters()
    bucket = Bucket(params)
    backward(params)
    for p in params:
        bucket.put(p, 1.0)
    bucket.mark_present()
    params[0].grad = None
    bucket.hand_out()
    assert params[0].grad is None


def test_gradients_with_a_graph_leave_it():
    p = nn.Parameter(torch.tensor([2.0]))
    bucket = Bucket([p])
    p.grad = torch.autograd.grad((p**3).sum(), p, create_graph=True)[0]
    bucket.put(p, 0.5)
    assert p.grad.item() == 6 and not p.grad.requires_grad


# ------------------------------------------------------------
# What is an average, what was added to it, and what was dropped, told apart.


def given():
    p, averages = nn.Parameter(torch.zeros(2)), Averages()
    averages.give(p, torch.tensor([1.0, 2.0]))
    return p, averages


def test_set_aside_and_added():
    p, averages = given()
    averages.set_aside(p)
    assert p.grad is None
    p.grad = torch.ones(2)
    averages.set_aside(p)  # an increment is not an average
    assert p.grad.tolist() == [1, 1]
    averages.give(p, p.grad * 10)
    assert p.grad.tolist() == [11, 12]
    averages.set_aside(p)
    averages.give(p, None)  # no rank has added anything
    assert p.grad.tolist() == [11, 12]


def test_dropped_in_between():
    p, averages = given()
    averages.set_aside(p)
    p.grad = torch.ones(2)
    p.grad = None
    averages.set_aside(p)
    averages.give(p, torch.ones(2))
    assert p.grad.tolist() == [1, 1]
    averages.set_aside(p)
    averages.forget()
    averages.give(p, None)
    assert p.grad is None


def test_no_memory_is_held():
    """A gradient is known while it is somebody's, also when nothing in Python refers to it, and not longer."""
    p, averages = given()
    gc.collect()
    alive = weakref.ref(p.grad)
    averages.set_aside(p)
    assert p.grad is None and alive() is not None
    averages.give(p, None)
    p.grad = None
    assert alive() is None
