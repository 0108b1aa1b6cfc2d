"""LocalSGD is n serial runs averaged by hand, for any optimizer, in both worlds; with H = 1 it is data parallelism."""

import math

import pytest
import torch

from minidist.comm import World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.local_sgd import AdaComm, LocalSGD, average_bytes, run_bytes
from tests.largest import largest
from tests.parallel import cases as serial_cases
from tests.parallel.cases import data, difference, made, mse
from tests.train.local_sgd.cases import BUCKETS, OPTIMIZERS, apart, both, oracle, train


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_oracle(optimizer, n):
    """8 steps end with an average where H is 4, not where it is 3."""
    H = 3 + n % 2
    results = World(n).run(train, "hard", optimizer, H, 8, **BUCKETS[n % 3])
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
    model = DataParallel(module, comm)
    optimizer = LocalSGD(
        torch.optim.SGD(module.parameters(), 0.1, momentum=0.9), comm, H, start, model, **options
    )
    for step in range(steps):
        x = torch.full((4, 6), 0.1 * step + comm.rank, dtype=torch.float64, device=device)
        optimizer.zero_grad()
        with optimizer.local():
            loss = model(x).square().mean()
            loss.backward()
        optimizer.step(loss=loss)


@pytest.mark.parametrize(
    ("n", "H", "steps", "start"),
    [(1, 1, 3, 0), (2, 4, 6, 0), (3, 3, 6, 0), (4, 4, 8, 4), (3, 5, 3, 8), (2, 1, 3, 0)],
)
def test_bytes_are_the_formulas(n, H, steps, start):
    for states, copies, device in (("keep", 1, "cpu"), ("average", 2, "cpu"), ("keep", 1, "meta")):
        said = run_bytes(steps, H, 53, n, 8, start, tensors=4, copies=copies)
        assert sent(plain, n, H, steps=steps, start=start, states=states, device=device) == said


def test_a_step_sends_a_part_of_data_parallelism():
    """1/H, but for the flag that goes with each gradient: Ψ/(Ψ + P) of it."""
    dense = sent(plain, 3, 1, steps=8, start=8)
    assert all(sent(plain, 3, H, steps=8) * H * (53 + 4) == dense * 53 for H in (2, 4, 8))


def test_weights_cost_eight_bytes_an_average():
    whole, weighted = (
        sent(train, 3, "hard", "sgd", 3, steps=6, drop_last=drop_last)
        for drop_last in (True, False)
    )
    assert weighted - whole == 2 * average_bytes(1, 3, 8)


def test_the_meta_device_and_the_clock():
    """A step of 175 million parameters, with data nowhere: time by the formula, H as it begins."""
    device = Device("d", {torch.float32: 1e12}, 1 << 40, 1e18)

    def program(comm, H):
        module = mlp([5000] * 8, device="meta")
        optimizer = LocalSGD(
            torch.optim.SGD(module.parameters(), 0.1), comm, H, bucket_bytes=1 << 40
        )
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

    message = 2 * 1e-3 + 8 * 87_517_500 // 2 * 1e-8 * 2
    compute = seconds(1, n=1)[0]
    assert [seconds(H)[0] for H in (1, 4)] == pytest.approx(
        [compute + k * message for k in (4, 1)], rel=1e-3
    )
    assert seconds(AdaComm(4, steps=1000))[1] == 4


def resumed(comm, H, cut, options):
    """Parameters after 12 steps, in one go or with everything saved and made anew after `cut` of them."""
    x, y = data()

    def start(seed):
        module = made("hard", seed)
        model = DataParallel(module, comm)
        return model, LocalSGD(
            torch.optim.Adam(module.parameters(), 0.02), comm, H(), 3, model, **options
        )

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
        optimizer.weight = model.weight = 1 + comm.rank
        optimizer.zero_grad()
        with optimizer.local():
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
    for H in (lambda: 3, lambda: AdaComm(4, steps=3, rate_power=1)):
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
