"""LocalSGD is n serial runs averaged by hand, for any optimizer, in both worlds; with H = 1 it is data parallelism."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from minidist.collectives import broadcast_
from minidist.comm import Deadlock, World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp
from minidist.parallel.data import average_gradients
from minidist.parallel.local_sgd import (
    AdaComm,
    LocalSGD,
    average_,
    average_parameters,
)
from minidist.study.predict import local_sgd_bytes
from minidist.tasks import digits
from minidist.train.amp import LossScaler, Masters
from minidist.train.flat_optim import FlatAdamW
from tests.largest import largest, smallest
from tests.parallel import cases as serial_cases
from tests.parallel.cases import data, difference, made, mse, replicas_equal
from tests.parallel.local_sgd_cases import OPTIMIZERS, apart, both, oracle, parts, train
from tests.size import FULL


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_optimizer_the_oracle(optimizer, n):
    """8 steps end with an average where H is 4, not where it is 3."""
    H = 3 + n % 2
    results = World(n).run(train, "hard", optimizer, H, 8)
    assert apart(results, oracle("hard", optimizer, n, H, 8)) < 1e-13
    assert all(equal == (H == 4) for _, equal in results)


@pytest.mark.parametrize(("n", "optimizer", "H"), [(2, "adamw", 5), (4, "nesterov", 4)])
def test_over_processes(n, optimizer, H):
    results = launch(train, n, "hard", optimizer, H)
    assert apart(results, oracle("hard", optimizer, n, H)) < 1e-13 and all(
        equal for _, equal in results
    )


@pytest.mark.parametrize("name", ["mlp", "mixed"])
def test_other_models(name):
    """Parameters of two dtypes: those in fp32 round each of 20 steps."""
    results = World(3).run(train, name, "momentum", 4)
    assert apart(results, oracle(name, "momentum", 3, 4)) < (1e-13 if name == "mlp" else 1e-5)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_uneven_parts(n):
    """Every third batch of 26 samples has 2: some ranks have none of it, and the mean of nothing is nan."""
    expected = oracle("hard", "momentum", n, 4, 8, drop_last=False)
    for results in both(train, n, "hard", "momentum", 4, 8, drop_last=False):
        assert apart(results, expected) < 1e-13 and all(equal for _, equal in results)


def test_samples_of_a_period_count_in_it_alone():
    """Of 4 samples first rank 1 has 3, then rank 0: ¾·1, and from there ¼·1."""

    def program(comm):
        p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = LocalSGD(torch.optim.SGD([p], lr=1.0), comm, H=1)
        found = []
        for weights in ((1, 3), (3, 1)):
            p.grad = torch.full_like(p, -comm.rank)
            optimizer.weight = weights[comm.rank]
            optimizer.step()
            found.append(p.item())
        return found

    assert World(2).run(program) == [[0.75, 1.0]] * 2


def test_weights_of_nobody():
    """No rank had a sample: nobody moves, and nothing becomes nan."""

    def program(comm):
        module = made("mlp", 0)
        optimizer = LocalSGD(torch.optim.SGD(module.parameters(), lr=0.1), comm, H=1)
        optimizer.weight = 0
        optimizer.step()
        return [p.detach() for p in module.parameters()]

    start = list(made("mlp", 0).parameters())
    assert largest(difference(mine, start) for mine in World(3).run(program)) < 1e-15


LINEAR = [("sgd", "keep"), ("momentum", "keep"), ("momentum", "average"), ("nesterov", "keep")]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("optimizer", "states"), LINEAR)
def test_every_step_is_data_parallelism(optimizer, states, drop_last, monkeypatch):
    """With H = 1, where the step is linear in the gradient; parts of different size with weights, SGD alone: a rank
    without samples leaves its momentum as it is."""
    if not drop_last and optimizer != "sgd":
        return
    monkeypatch.setattr(torch.optim, "SGD", lambda params, **_: OPTIMIZERS[optimizer](params))
    _, expected = serial_cases.serial("hard", 12, 8, drop_last)
    for n in (1, 2, 3):
        results = World(n).run(train, "hard", optimizer, 1, 8, drop_last=drop_last, states=states)
        assert largest(difference(params, expected) for params, _ in results) < 1e-12
        assert all(same for _, same in results)


@pytest.mark.parametrize(
    ("optimizer", "states"), [("adamw", "keep"), ("adamw", "average"), ("momentum", "reset")]
)
def test_every_step_is_not_where_the_step_is_not_linear(optimizer, states, monkeypatch):
    monkeypatch.setattr(torch.optim, "SGD", lambda params, **_: OPTIMIZERS[optimizer](params))
    _, expected = serial_cases.serial("hard", 12, 8)
    results = World(2).run(train, "hard", optimizer, 1, 8, states=states)
    assert difference(results[0][0], expected) > 1e-3


@pytest.mark.parametrize(
    ("n", "optimizer"), [(1, "adamw"), (2, "momentum"), (3, "adamw"), (4, "momentum")]
)
def test_post_local(n, optimizer):
    """Data parallelism up to the switch: 5 steps, and 7 local ones, 2 averages."""
    expected = oracle("hard", optimizer, n, 3, 12, start=5)
    for results in both(train, n, "hard", optimizer, 3, 12, start=5):
        assert apart(results, expected) < 1e-13


def test_post_local_with_uneven_parts():
    results = World(3).run(train, "hard", "sgd", 3, 12, start=5, drop_last=False)
    assert apart(results, oracle("hard", "sgd", 3, 3, 12, start=5, drop_last=False)) < 1e-13


def test_post_local_without_data_parallelism():
    """Before the switch parameters are averaged instead: the same for a linear step, and momentum is not reset."""
    expected = oracle("hard", "momentum", 3, 4, 8, start=4, states="average")
    results = World(3).run(train, "hard", "momentum", 4, 8, start=4, states="average", dense=False)
    assert apart(results, expected) < 1e-12 and all(same for _, same in results)
    for states in ("keep", "reset"):
        results = World(3).run(train, "hard", "momentum", 4, 6, start=6, states=states, dense=False)
        assert apart(results, oracle("hard", "momentum", 3, 4, 6, start=6)) < 1e-12


class Gradients(LocalSGD):
    """Averages gradients after the step instead of parameters."""

    def average(self):
        with torch.no_grad():
            kept = {p: p.clone() for p in self._moved}
            super().average()
            for p, own in kept.items():
                p.copy_(own)


class Summed(LocalSGD):
    """Forgets to divide by n."""

    def average(self):
        moved = list(self._moved)
        super().average()
        with torch.no_grad():
            for p in moved:
                p.mul_(self.comm.size)


class Early(LocalSGD):
    """Averages a step too soon."""

    def step(self, *args, **kwargs):
        if self.since == 0 and self.steps == 0:
            self.since = 1
        return super().step(*args, **kwargs)


@pytest.mark.parametrize("wrong", [Gradients, Summed, Early])
def test_wrong_ones_are_found(wrong):
    off = apart(
        World(2).run(train, "hard", "momentum", 5, wrap=wrong), oracle("hard", "momentum", 2, 5)
    )
    assert off >= 1e-3 or math.isnan(off)


def sent(program, n, *args, steps=20, device="cpu", **kwargs):
    """Bytes that all ranks send after the start."""
    traces = [
        World(n, device=device).run(program, *args, steps=k, **kwargs).trace for k in (steps, 0)
    ]
    return traces[0].bytes_sent() - traces[1].bytes_sent()


def plain(comm, H, steps, start=0, **options):
    """An MLP of 53 parameters in 4 tensors, on any device."""
    device = comm.device.type
    module = mlp([6, 5, 3], seed=comm.rank, dtype=torch.float64, device=device)
    inner = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    optimizer = LocalSGD(inner, comm, H, start, **options)
    for step in range(steps):
        x = torch.full((4, 6), 0.1 * step + comm.rank, dtype=torch.float64, device=device)
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step(loss=loss)


@pytest.mark.parametrize(
    ("n", "H", "steps", "start"),
    [(1, 1, 3, 0), (2, 4, 6, 0), (3, 3, 6, 0), (4, 4, 8, 4), (3, 5, 3, 8), (2, 1, 3, 0)],
)
def test_bytes_are_the_formulas(n, H, steps, start):
    for states, copies, device in (("keep", 1, "cpu"), ("average", 2, "cpu"), ("keep", 1, "meta")):
        said = local_sgd_bytes(steps, H, 53, n, 8, start, copies=copies)
        assert sent(plain, n, H, steps=steps, start=start, states=states, device=device) == said


def test_a_step_sends_a_part_of_data_parallelism():
    dense = sent(plain, 3, 1, steps=8, start=8)
    assert all(sent(plain, 3, H, steps=8) * H == dense for H in (2, 4, 8))


def test_weights_cost_eight_bytes_an_average():
    whole, weighted = (
        sent(train, 3, "hard", "sgd", 3, steps=6, drop_last=drop_last)
        for drop_last in (True, False)
    )
    assert weighted - whole == 2 * 2 * (3 - 1) * 8


def test_the_meta_device_and_the_clock():
    """A step of 175 million parameters, with data nowhere: time by the formula, H as it begins."""
    device = Device("d", {torch.float32: 1e12}, 1 << 40, 1e18)

    def program(comm, H):
        module = mlp([5000] * 8, device="meta")
        optimizer = LocalSGD(torch.optim.SGD(module.parameters(), 0.1), comm, H)
        start = comm.now()
        for _ in range(4):
            loss = module(torch.empty(8, 5000, device="meta")).square().mean()
            loss.backward()
            optimizer.step(loss=loss)
        return comm.now() - start, optimizer.H

    def seconds(H, n=2):
        return World(n, device="meta", cluster=Cluster.uniform(n, 1e-3, 1e-8, device)).run(
            program, H
        )[0]

    # a bias each bucket, and a weight, which is larger than one
    message = 14 * 2 * 1e-3 + 8 * 87_517_500 // 2 * 1e-8 * 2
    compute = seconds(1, n=1)[0]
    assert [seconds(H)[0] for H in (1, 4)] == pytest.approx(
        [compute + k * message for k in (4, 1)], rel=1e-3
    )
    assert seconds(AdaComm(4, steps=1000))[1] == 4


def resumed(comm, H, cut, options):
    """Parameters after 12 steps, in one go or with everything saved and made anew after `cut` of them."""
    x, y = data()

    def start(seed):
        model = made("hard", seed)
        return model, LocalSGD(torch.optim.Adam(model.parameters(), 0.02), comm, H(), 3, **options)

    model, optimizer = start(0)
    for step in range(12):
        if step == cut:
            saved = [
                {k: v.clone() for k, v in model.state_dict().items()},
                copy_of(optimizer.state_dict()),
            ]
            model, optimizer = start(7)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.weight = 1 + comm.rank
        optimizer.zero_grad()
        loss = mse(model(x[comm.rank + step :: 5]), y[comm.rank + step :: 5])
        loss.backward()
        optimizer.step(loss=loss)
    return [p.detach() for p in model.parameters()], optimizer.H


def copy_of(state):
    if torch.is_tensor(state):
        return state.clone()
    if isinstance(state, dict):
        return {k: copy_of(v) for k, v in state.items()}
    return [copy_of(v) for v in state] if isinstance(state, list) else state


@pytest.mark.parametrize(
    "options", [{}, {"slow_momentum": 0.5, "states": "average"}, {"states": "reset"}]
)
def test_resumed_bit_for_bit(options):
    """Before the switch, inside a period, and at an average."""
    for H in (lambda: 3, lambda: AdaComm(4, steps=3)):
        whole = World(2).run(resumed, H, None, options)
        for cut in (2, 5, 9):
            for (mine, period), (expected, same) in zip(
                World(2).run(resumed, H, cut, options), whole, strict=True
            ):
                assert all(map(torch.equal, mine, expected)) and period == same


def test_a_state_of_the_optimizer_alone():
    def program(comm):
        module = made("mlp", 0)
        plain = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
        optimizer = LocalSGD(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), comm, H=4)
        optimizer.load_state_dict(plain.state_dict())
        plain.load_state_dict(optimizer.state_dict())
        return optimizer.param_groups[0]["lr"], optimizer.steps, optimizer.defaults["lr"]

    assert World(1).run(program) == [(0.3, 0, 0.1)]


# ------------------------------------------------------------
# AdaComm: the paper's rule, number by number, the same H on all ranks, in steps and in seconds.


def periods(losses, tau_0, gamma=0.5):
    """τ of each interval, from the losses at their beginnings."""
    found = [tau_0]
    for loss in losses[1:]:
        wanted = max(1, math.ceil((loss / losses[0]) ** 0.5 * tau_0))
        found.append(wanted if wanted < found[-1] else math.ceil(gamma * found[-1]))
    return found


def asked(comm, losses, **options):
    """τ of intervals whose losses are given: each rank sees its own, above and below by turns; their mean is the loss."""
    adaptive = AdaComm(steps=1, **options)
    for step, loss in enumerate(losses):
        off = (-1) ** step * (comm.rank - (comm.size - 1) / 2) / 4
        mine = torch.tensor(loss + off, dtype=torch.float64)
        adaptive.begin(comm, step, mine, None)
    return [interval.period for interval in adaptive.intervals]


LOSSES = [2.0, 1.0, 0.5, 0.5, 0.6, 0.01, 0.02, 0.0]


@pytest.mark.parametrize(("tau_0", "gamma"), [(20, 0.5), (7, 0.5), (100, 0.8), (1, 0.5)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_rule(n, tau_0, gamma):
    results = World(n).run(asked, LOSSES, tau_0=tau_0, gamma=gamma)
    assert results == [periods(LOSSES, tau_0, gamma)] * n


def test_the_rule_by_hand():
    """√½·20 = 14.1; ½·20 = 10; a loss that stands still, or rises: half as long; 0.01: √0.005·20 = 1.4; then 1."""
    assert World(2).run(asked, LOSSES, tau_0=20)[0] == [20, 15, 10, 5, 3, 2, 1, 1]


def test_it_steers_local_sgd():
    """Losses are looked at when an interval of 5 steps is over, at the next step after an average."""

    def program(comm):
        p = torch.ones(1, requires_grad=True)
        adaptive = AdaComm(4, steps=5)
        optimizer = LocalSGD(torch.optim.SGD([p], 0.0), comm, adaptive, start=2)
        averages = []
        for step in range(26):
            p.grad = torch.ones(1)
            optimizer.step(loss=1.0 if step < 12 else 0.1)
            averages += [step + 1] if optimizer.since == 0 else []
        return averages, adaptive.intervals, optimizer.H

    averages, intervals, H = World(2).run(program)[0]
    # Every step before the switch; τ = 4 until step 10, where the loss is 1 still: τ = 2; at 16 it is 0.1: τ = ⌈1.26⌉
    # is not below 2: τ = 1.
    assert averages == [1, 2, 6, 10, 12, 14, 16, *range(17, 27)]
    assert [(i.step, i.period) for i in intervals] == [(2, 4), (10, 2), (16, 1), (21, 1)]
    assert intervals[0].loss == 1.0 and intervals[2].loss == pytest.approx(0.1) and H == 1


def test_the_parameters():
    """An interval that never ends is a fixed H; losses of ranks without samples are left out."""

    def adaptive(comm, *args, **kwargs):
        return train(comm, "hard", "momentum", AdaComm(4, steps=1000), **kwargs)

    for drop_last in (True, False):
        results = World(3).run(adaptive, drop_last=drop_last)
        assert apart(results, oracle("hard", "momentum", 3, 4, drop_last=drop_last)) < 1e-13


def learning(comm, **interval):
    """A loss that falls; ranks see different ones."""
    module = mlp([6, 5, 3], dtype=torch.float64)
    adaptive = AdaComm(8, **interval)
    optimizer = LocalSGD(torch.optim.SGD(module.parameters(), 0.05), comm, adaptive)
    for _ in range(40):
        x = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 6) * (1 + comm.rank)
        optimizer.zero_grad()

        def closure(x=x):
            loss = (module(x) - x[:, :3]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    optimizer.average()
    return [i.period for i in adaptive.intervals], replicas_equal(comm, list(module.parameters()))


def test_adaptive_in_both_worlds():
    in_world, over_processes = World(3).run(learning, steps=8), launch(learning, 3, steps=8)
    assert in_world == over_processes and len({tuple(p) for p, _ in in_world}) == 1
    assert in_world[0][1] and in_world[0][0][0] == 8 and in_world[0][0][-1] < 4


def test_ranks_that_do_not_agree_are_found():
    """If each rank went by its own loss, they would average at different steps."""

    class Alone(AdaComm):
        def _agreed(self, comm, loss, weight):
            return float(loss)

    def program(comm):
        p = torch.ones(1, requires_grad=True)
        optimizer = LocalSGD(torch.optim.SGD([p], 0.0), comm, Alone(8, steps=8))
        for step in range(20):
            p.grad = torch.ones(1)
            optimizer.step(loss=0.5 ** (step * comm.rank))

    with pytest.raises(Deadlock):
        World(2).run(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau_0": 0, "steps": 1}, "at least 1.* not 0, 1 and"),
        ({"tau_0": 1, "steps": 0}, "at least 1.* not 1, 0 and"),
        ({"tau_0": 1, "steps": 1, "gamma": 1.0}, "gamma between.* and 1.0"),
    ],
)
def test_adaptive_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaComm(**arguments)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([0.0], "not 0.0"),
        ([-1.0], "not -1.0"),
        ([math.nan], "not nan"),
        ([1.0, math.inf], "not inf by the first one, 1.0"),
    ],
)
def test_losses_that_cannot_be_divided(losses, message):
    with pytest.raises(ValueError, match=message):
        World(2).run(asked, losses, tau_0=4)


def test_a_loss_that_was_not_given():
    def program(comm):
        p = torch.ones(1, requires_grad=True)
        LocalSGD(torch.optim.SGD([p], 0.1), comm, AdaComm(2, steps=2)).step()

    with pytest.raises(ValueError, match=r"rank \d gave no loss, and H depends on it"):
        World(2).run(program)


# ------------------------------------------------------------
# The average of all ranks' tensors: naive and in buckets, weighted, in any dtype and layout.


SHAPES = [(3, 4), (), (5,), (0,), (2, 3, 2), (1,)]


def tensors(rank, dtype=torch.float64):
    random = torch.Generator().manual_seed(rank)
    made = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in SHAPES]
    return [*made, torch.randn(4, 3, generator=random, dtype=torch.float64).to(dtype).t()]


def averaged(comm, how, weights=None, dtype=torch.float64, **options):
    xs = tensors(comm.rank, dtype)
    how(comm, xs, None if weights is None else weights[comm.rank], **options)
    return xs


def off(results, weights, dtype=torch.float64):
    """How far any rank's are from the mean in float64; replicas that differ are infinitely far."""
    every = [tensors(rank, dtype) for rank in range(len(results))]
    total, worst = sum(weights), 0.0
    for i, same in enumerate(zip(*every, strict=True)):
        mean = sum(x.double() * w / total for x, w in zip(same, weights, strict=True))
        for mine in results:
            worst = largest([worst, *(mine[i].double() - mean).abs().flatten().tolist()])
            worst = worst if torch.equal(mine[i], results[0][i]) else float("inf")
    return worst


@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 1}, {"bucket_bytes": 100}])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_in_buckets(n, options):
    assert off(World(n).run(averaged, average_, **options), [1] * n) < 1e-15


@pytest.mark.parametrize("weights", [None, [3, 1, 2], [0, 5, 1]])
def test_both_in_both_worlds(weights):
    for how in (average_parameters, average_):
        for results in both(averaged, 3, how, weights):
            assert off(results, weights or [1, 1, 1]) < 1e-15


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)]
)
def test_dtypes(dtype, bound):
    """Bounds: some roundings of numbers near 2 in that dtype."""
    assert off(World(3).run(averaged, average_, [1, 2, 3], dtype), [1, 2, 3], dtype) < bound


def test_float16_does_not_overflow_in_the_sum():
    def program(comm):
        x = torch.tensor([40_000.0], dtype=torch.float16)
        average_(comm, [x])
        return x.item()

    assert World(4).run(program) == [40_000.0] * 4


def test_a_negative_weight_and_a_bucket_without_room():
    with pytest.raises(ValueError, match=r"rank 1 has a weight of -1"):
        World(2).run(lambda comm: average_(comm, [torch.ones(2)], -comm.rank))
    with pytest.raises(ValueError, match=r"room for at least 1 byte, not 0"):
        World(2).run(lambda comm: average_(comm, [torch.ones(2)], bucket_bytes=0))


def test_messages():
    """One all-reduce a bucket; 10 numbers of 8 bytes over 2 ranks."""

    def program(comm, bucket_bytes):
        average_(
            comm, [torch.ones(4, dtype=torch.float64) for _ in range(5)], bucket_bytes=bucket_bytes
        )

    for bucket_bytes, buckets in ((1, 5), (64, 3), (1 << 20, 1)):
        trace = World(2).run(program, bucket_bytes).trace
        assert (trace.messages(0), trace.bytes_sent(0)) == (2 * buckets, 20 * 8)


# ------------------------------------------------------------
# Local SGD learns as data parallelism does, with a fraction of the bytes; variants that are wrong do not.


RANKS = 3
SEEDS = range(5)
STEPS = 40
BATCH = 16


class OnlyAtTheEnd(LocalSGD):
    """Each rank trains alone; one average at the very end."""

    def average(self):
        if self.steps == STEPS:
            super().average()


class FirstWins(LocalSGD):
    """All take the parameters of rank 0 instead of the average."""

    def average(self):
        broadcast_(self.comm, list(self._moved))
        self.since = 0


def trained(comm, task, seed, wrap=LocalSGD, H=4, **options):
    """The loss on the test set. Rank r has the images of few classes: those of the sorted data's r-th part."""
    order = task.y.argsort(stable=True)
    mine = order[comm.rank * len(order) // comm.size : (comm.rank + 1) * len(order) // comm.size]
    module = mlp([64, 32, 10], seed=seed)
    optimizer = wrap(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), comm, H, **options)
    random = torch.Generator().manual_seed(seed * comm.size + comm.rank)
    for _ in range(STEPS):
        part = mine[torch.randint(len(mine), (BATCH,), generator=random)]
        optimizer.zero_grad()
        loss = cross_entropy(module(task.x[part]), task.y[part])
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.average()
    with torch.no_grad():
        return cross_entropy(module(task.test_x), task.test_y).item()


def losses(task, **options):
    return [World(RANKS).run(trained, task, seed, **options)[0] for seed in SEEDS]


def test_it_learns_and_wrong_variants_do_not():
    """By more than the spread of five seeds of either."""
    task = digits(torch.float32)
    right, wrong = losses(task), [losses(task, wrap=wrap) for wrap in (OnlyAtTheEnd, FirstWins)]
    # the other's are from 5 to 10
    spread = max(max(found) - min(found) for found in (right, wrong[0]))
    assert min(map(min, wrong)) - max(right) > spread


# ------------------------------------------------------------
# The formulas beside each other, and beside sums by hand; `test_bytes_are_the_formulas` compares them with traces.


def test_by_hand():
    """10 numbers of 4 bytes, 3 ranks: each sends 4/3 of 40 bytes; all together 160."""
    assert local_sgd_bytes(1, 1, 10, 3) == 160
    assert local_sgd_bytes(1, 1, 10, 3, itemsize=2, copies=3) == 240
    assert local_sgd_bytes(1, 1, 10, 1) == 0


@pytest.mark.parametrize(
    ("steps", "H", "start", "said"),
    [
        (8, 1, 0, 8 * 160),
        (8, 4, 0, 2 * 160),
        (9, 4, 0, 2 * 160),
        (3, 4, 0, 0),
        (8, 4, 8, 8 * 160),
        (8, 4, 4, 4 * 160 + 160),
        (5, 4, 9, 5 * 160),
    ],
)
def test_a_run(steps, H, start, said):
    assert local_sgd_bytes(steps, H, 10, 3, start=start) == said


# ------------------------------------------------------------
# Beside PyTorch's PostLocalSGDOptimizer, over the same processes; frozen parameters, buffers, masters, errors.


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
    return module, module, LocalSGD(OPTIMIZERS[optimizer](module.parameters()), comm, H, START)


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
                mse(model(x[part]), y[part]).backward()
                if step < START and isinstance(wrapped, LocalSGD):
                    average_gradients(comm, model)
                wrapped.step()
            if not aligned and step == START:
                mine[2].average()
        found.append(difference(list(mine[0].parameters()), list(other[0].parameters())))
    return max(found)


def all_beside(comm, dtype=torch.float64):
    return {optimizer: beside(comm, optimizer, dtype) for optimizer in ("sgd", "momentum", "adamw")}


@pytest.mark.parametrize("n", [2, 3, 4] if FULL else [2, 3])
def test_pytorchs_own(n, figure):
    """Its averager averages once more, after the first local step: `average()` does the same here."""
    for worst in launch(all_beside, n, transport="gloo"):
        assert largest(worst.values()) < 1e-13
    figure(f"n={n}, float64: apart {', '.join(f'{name} {off:.1e}' for name, off in worst.items())}")


@pytest.mark.parametrize("n", [2, 3, 4] if FULL else [2])
def test_pytorchs_own_in_float32(n, figure):
    for optimizer in ("sgd", "momentum", "adamw") if FULL else ("momentum",):
        off = largest(launch(beside, n, optimizer, torch.float32, transport="gloo"))
        figure(f"n={n}, float32: apart {optimizer} {off:.1e}")
        assert off < 1e-6  # as far as it reaches


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
    assert run.trace.bytes_sent() - World(2).run(start).trace.bytes_sent() == local_sgd_bytes(
        1, 1, numbers, 2, 8
    )


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"H": 0}, r"a period has H steps, at least 1, not 0"),
        ({"H": 2, "start": -1}, "periods start after at least 0 steps, not -1"),
        ({"H": 2, "states": "forget"}, r"'keep', 'reset', 'average', not 'forget'"),
    ],
)
def test_values_that_cannot_be(options, message):
    def program(comm, options):
        LocalSGD(torch.optim.SGD(made("mlp", 0).parameters(), lr=0.1), comm, **options)

    with pytest.raises(ValueError, match=message):
        World(1).run(program, options)


# ------------------------------------------------------------
# Slow momentum against the paper's algorithm, written once more for n copies in one place.


def algorithm_1(n, tau, beta, optimizer="sgd", rates=None):
    """SlowMo, algorithm 1: 12 steps. rates: γ of each step, in place of the optimizer's."""
    models = [made("hard", 0) for _ in range(n)]
    bases = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    x, y = data()
    u = {}
    for t in range(12 // tau):
        start = [p.detach().clone() for p in models[0].parameters()]
        for k in range(tau):
            for i, (model, base) in enumerate(zip(models, bases, strict=True)):
                gamma = base.param_groups[0]["lr"] = (
                    rates[t * tau + k] if rates else base.param_groups[0]["lr"]
                )
                model.zero_grad()
                part = parts(n, t * tau + k, 12, True)[i]
                mse(model(x[part]), y[part]).backward()
                base.step()
        for j, same in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            average = torch.stack([p.detach() for p in same]).mean(0)
            u[j] = beta * u.get(j, 0) + (start[j] - average) / gamma
            for p in same:
                p.data = start[j] - gamma * u[j]
    return list(models[0].parameters())


@pytest.mark.parametrize("beta", [0.5, 0.7])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_algorithm_1(optimizer, beta):
    """With its α = 1."""
    for n, tau in ((1, 3), (3, 4)):
        results = World(n).run(train, "hard", optimizer, tau, 12, slow_momentum=beta)
        expected = algorithm_1(n, tau, beta, optimizer)
        assert all(difference(mine, expected) < 1e-11 and equal for mine, equal in results)


def test_slow_in_both_worlds():
    for results in both(train, 3, "hard", "sgd", 4, 12, slow_momentum=0.6):
        assert all(
            difference(mine, algorithm_1(3, 4, 0.6)) < 1e-12 and equal for mine, equal in results
        )


def test_without_it_is_local_sgd():
    assert (
        apart(World(2).run(train, "hard", "sgd", 4, slow_momentum=0.0), oracle("hard", "sgd", 2, 4))
        < 1e-13
    )


class Unscaled(LocalSGD):
    """Adds the way itself to the momentum, not the way over the rate."""

    def _end_local(self, params):
        for p in params:
            anchor, momentum = self._slow[p]
            momentum.mul_(self.slow_momentum).add_(anchor - p)
            p.copy_(anchor.sub_(momentum))


def scheduled(comm, rates, wrap=LocalSGD):
    module = made("hard", 0)
    optimizer = wrap(OPTIMIZERS["sgd"](module.parameters()), comm, 3, slow_momentum=0.5)
    x, y = data()
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        part = parts(comm.size, step, 12, True)[comm.rank]
        optimizer.zero_grad()
        mse(module(x[part]), y[part]).backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


def test_a_rate_that_changes():
    """u does not depend on the rate: so after a fall it moves as much as the new rate allows."""
    rates = [0.1] * 6 + [0.01] * 6
    expected = algorithm_1(2, 3, 0.5, rates=rates)
    assert difference(World(2).run(scheduled, rates)[0], expected) < 1e-12
    assert difference(World(2).run(scheduled, rates, Unscaled)[0], expected) > 1e-3


def test_a_rate_of_zero():
    """Warm-up may begin with it: nobody moves, nothing becomes nan."""
    mine = World(2).run(scheduled, [0.0] * 3 + [0.1] * 9)[0]
    assert all(p.isfinite().all() for p in mine)
    assert (
        difference(World(2).run(scheduled, [0.0] * 3)[0], list(made("hard", 0).parameters()))
        < 1e-15
    )


def test_after_the_switch_only():
    """Before it, each step is data parallelism."""
    early = World(2).run(train, "hard", "sgd", 4, 6, start=6, slow_momentum=0.9, dense=False)
    assert apart(early, oracle("hard", "sgd", 2, 4, 6, start=6)) < 1e-13


@pytest.mark.parametrize("beta", [1.0, -0.1])
def test_slow_values_out_of_range(beta):
    def program(comm):
        LocalSGD(torch.optim.SGD([torch.ones(1)], 0.1), comm, 2, slow_momentum=beta)

    with pytest.raises(ValueError, match=f"from 0 to below 1, not {beta}"):
        World(1).run(program)


# ------------------------------------------------------------
# What becomes of momentum: kept, reset, averaged, against the same done by hand; for every optimizer of PyTorch.


STATES = ["keep", "reset", "average"]


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_states_the_oracle(optimizer, states):
    for n, H in ((2, 4), (3, 3)):
        results = World(n).run(train, "hard", optimizer, H, 8, states=states)
        assert apart(results, oracle("hard", optimizer, n, H, 8, states=states)) < 1e-13


def test_the_three_differ():
    for optimizer in ("momentum", "adamw"):
        found = {
            states: World(2).run(train, "hard", optimizer, 4, 8, states=states)[0][0]
            for states in STATES
        }
        assert (
            smallest(
                difference(found[a], found[b]) for a, b in (STATES[:2], STATES[1:], STATES[::2])
            )
            > 1e-3
        )


def momenta(comm, states):
    """Whether ranks' momenta are equal after an average, which states there are, and bytes."""
    module = made("mlp", 0)
    optimizer = LocalSGD(OPTIMIZERS["adamw"](module.parameters()), comm, H=2, states=states)
    for _ in range(2):
        module(torch.full((2, 6), 1.0 + comm.rank, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    found = [
        state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    ]
    return (
        len(found),
        replicas_equal(comm, found),
        {float(s["step"]) for s in optimizer.state.values()},
    )


def test_what_is_left_of_them():
    assert World(3).run(momenta, "keep")[0] == (8, False, {2.0})
    assert World(3).run(momenta, "average")[0] == (8, True, {2.0})
    assert World(3).run(momenta, "reset")[0] == (0, True, set())


def steps(comm, make, states, count=4):
    """`count` steps of H = 2: losses, parameters, whether replicas are equal."""
    module = mlp([6, 5, 3], dtype=torch.float64)
    optimizer = LocalSGD(make(module.parameters()), comm, H=2, states=states)
    x = torch.linspace(-1, 1, 12 * (comm.rank + 1), dtype=torch.float64).view(-1, 6)

    def closure():
        optimizer.zero_grad()
        loss = module(x).square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(count)]
    return (
        losses,
        [p.detach() for p in module.parameters()],
        replicas_equal(comm, list(module.parameters())),
    )


OURS = {
    "FlatAdamW": lambda params: FlatAdamW(params, 0.01),
}
PYTORCHS = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in ("Optimizer", "SparseAdam", "Muon")
]


@pytest.mark.parametrize("name", [*PYTORCHS, *OURS])
def test_any_optimizer(name):
    """Replicas are equal after an average, and have moved."""
    make = OURS.get(name) or (lambda params: getattr(torch.optim, name)(params, lr=0.01))
    for states in STATES:
        for losses, params, equal in World(2).run(steps, make, states):
            assert equal and len(set(losses)) == 4 and all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("states", STATES)
def test_states_in_a_flat_buffer(states):
    found, expected = (
        World(2).run(steps, lambda params, kind=kind: kind(params, 0.01), states)
        for kind in (FlatAdamW, torch.optim.AdamW)
    )
    assert all(
        difference(mine[1], plain[1]) < 1e-14 for mine, plain in zip(found, expected, strict=True)
    )


def test_states_made_at_the_start_come_back():
    """Adagrad begins with a sum of 5, not of nothing."""

    def program(comm):
        p = torch.ones(3, dtype=torch.float64, requires_grad=True)
        optimizer = LocalSGD(
            torch.optim.Adagrad([p], initial_accumulator_value=5), comm, H=2, states="reset"
        )
        for _ in range(2):
            p.grad = torch.full_like(p, 1.0 + comm.rank)
            optimizer.step()
        return {k: v.tolist() for k, v in optimizer.state[p].items()}

    assert World(2).run(program) == [{"step": 0.0, "sum": [5.0] * 3}] * 2


def test_bytes():
    def sent(states, steps):
        def program(comm):
            module = mlp([6, 5, 3])
            optimizer = LocalSGD(torch.optim.AdamW(module.parameters()), comm, H=1, states=states)
            for _ in range(steps):
                module(torch.ones(1, 6)).sum().backward()
                optimizer.step()

        return World(3).run(program).trace.bytes_sent()

    for states, copies in (("keep", 1), ("reset", 1), ("average", 3)):
        assert sent(states, 2) - sent(states, 1) == local_sgd_bytes(1, 1, 53, 3, copies=copies)
