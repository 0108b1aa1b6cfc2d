"""What becomes of momentum: kept, reset, averaged, against the same done by hand; for every optimizer of PyTorch."""

import pytest
import torch

from minidist.comm import World
from minidist.models import mlp
from minidist.train.fuse import FlatAdamW, FlatSGD
from minidist.train.local_sgd import LocalSGD, average_bytes
from tests.largest import smallest
from tests.parallel.cases import difference, made, replicas_equal
from tests.train.local_sgd.cases import OPTIMIZERS, apart, oracle, train

STATES = ["keep", "reset", "average"]


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_the_oracle(optimizer, states):
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
    "FlatSGD": lambda params: FlatSGD(params, 0.01, 0.9),
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
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("FlatSGD", lambda params: torch.optim.SGD(params, 0.01, 0.9)),
        ("FlatAdamW", lambda params: torch.optim.AdamW(params, 0.01)),
    ],
)
def test_states_in_a_flat_buffer(ours, theirs, states):
    found, expected = (World(2).run(steps, make, states) for make in (OURS[ours], theirs))
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
        assert sent(states, 2) - sent(states, 1) == average_bytes(53, 3, copies=copies)
