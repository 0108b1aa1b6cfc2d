"""A step on the host is the plain optimizer's, bit for bit; delayed, it is that of a serial loop with old gradients."""

import copy
import threading

import pytest
import torch

from minidist.comm import World, launch
from minidist.parallel.data import DataParallel, Sampler
from minidist.parallel.zero.offload import OffloadedOptimizer
from tests.parallel.cases import SAMPLES, data, difference, made, mse, replicas_equal

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}


class Lion(torch.optim.Optimizer):
    """A user's: its state is not Adam's, it has no `foreach`, and it changes an option of its group in each step."""

    def __init__(self, params, lr=1e-2, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "shrink": 1.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["shrink"] *= 0.9
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.lerp_(p.grad, 1 - group["beta"])
                    p.sub_(mean.sign(), alpha=group["lr"] * group["shrink"])


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "lion": (Lion, {"lr": 0.01}),
}


def batches(steps):
    x, y = data()
    return [(x[i % 5 :: 5], y[i % 5 :: 5]) for i in range(steps)]


def train(optimizer, model, steps, scheduler=None):
    for x, y in batches(steps):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return list(model.parameters())


def plain(model, optimizer, steps):
    kind, options = OPTIMIZERS[optimizer]
    model = made(model, 0)
    return train(kind(model.parameters(), **options), model, steps)


def offloaded(comm, model, optimizer, steps, mode="exact", in_backward=False, warmup=0):
    kind, options = OPTIMIZERS[optimizer]
    model = made(model, 0)
    ours = OffloadedOptimizer(
        model.parameters(), kind, comm, mode, warmup, in_backward=in_backward, **options
    )
    train(ours, model, steps)
    ours.finish()
    return list(model.parameters())


def delayed(model, optimizer, steps, warmup):
    """The serial loop: one model is updated, gradients are taken at what it was."""
    kind, options = OPTIMIZERS[optimizer]
    model = made(model, 0)
    ours, then = kind(model.parameters(), **options), [copy.deepcopy(model.state_dict())]
    for k, (x, y) in enumerate(batches(steps)):
        old = copy.deepcopy(model)
        old.load_state_dict(then[k if k <= warmup else k - 1])
        for p in old.parameters():
            p.grad = None
        mse(old(x), y).backward()
        for p, q in zip(model.parameters(), old.parameters(), strict=True):
            p.grad = q.grad
        ours.step()
        then.append(copy.deepcopy(model.state_dict()))
    return list(model.parameters())


def equal(ours, oracle):
    return all(torch.equal(a, b) for a, b in zip(ours, oracle, strict=True))


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "hard", "mixed"])
def test_exact_is_the_plain_optimizer(model, optimizer, in_backward):
    run = World(1).run(offloaded, model, optimizer, 6, "exact", in_backward)
    assert equal(run[0], plain(model, optimizer, 6))


@pytest.mark.parametrize("warmup", [0, 1, 3, 9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_delayed_is_a_serial_loop_one_update_behind(optimizer, warmup):
    oracle = delayed("hard", optimizer, 7, warmup)
    exact = plain("hard", optimizer, 7)
    for in_backward in (False, True):
        ours = World(1).run(offloaded, "hard", optimizer, 7, "delayed", in_backward, warmup)[0]
        assert difference(ours, oracle) <= 1e-12
        # the last of 7 steps has nobody to delay
        assert (difference(ours, exact) > 1e-6) == (warmup < 6)


def test_when_an_update_lands():
    """Of step k before forward k + 2: parameters do not change in between, and exact steps show at once."""

    def program(comm, mode, warmup):
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, warmup, lr=1.0)
        seen = []
        for _ in range(4):
            seen.append(p.item())
            (-p).backward()  # each update adds 1
            seen.append(p.item())
            optimizer.step()
            optimizer.zero_grad()
        optimizer.finish()
        return seen[::2], seen[1::2], p.item()

    assert World(1).run(program, "exact", 0) == [([0, 1, 2, 3], [0, 1, 2, 3], 4)]
    assert World(1).run(program, "delayed", 0) == [([0, 0, 1, 2], [0, 0, 1, 2], 4)]
    for run in RUNS.values():
        assert run(1, program, "delayed", 2) == [([0, 1, 2, 2], [0, 1, 2, 2], 4)]


def replicas(comm, mode, steps=5):
    """Data parallel, each host steps a replica: from different seeds, with uneven batches."""
    model = made("hard", comm.rank)
    parallel = DataParallel(model, comm)
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, comm, mode, 1, lr=0.01)
    x, y = data()
    for part in list(Sampler(SAMPLES, 12, comm, shuffle=False, drop_last=False)) * 2:
        optimizer.zero_grad()
        parallel.weight = len(part)
        mse(parallel(x[part]), y[part]).backward()
        optimizer.step()
    optimizer.finish()
    return list(model.parameters()), replicas_equal(comm, list(model.parameters()))


@pytest.mark.parametrize("mode", ["exact", "delayed"])
def test_over_ranks(mode):
    oracle, same = World(1).run(replicas, mode)[0]
    assert same
    for n, run in [(2, "world"), (3, "world"), (4, "world"), (2, "processes")]:
        for ours, same in RUNS[run](n, replicas, mode):
            assert same and difference(ours, oracle) <= 1e-12


def reached(comm, mode):
    """Whether `step` returns before the host's optimizer has been allowed to run."""
    go = threading.Event()

    class Waits(torch.optim.SGD):
        def step(self):
            self.in_time = go.wait(0.3 if mode == "exact" else 30)
            return super().step()

    p = torch.nn.Parameter(torch.ones(3))
    optimizer = OffloadedOptimizer([p], Waits, comm, mode, 0, lr=1.0)
    p.sum().backward()
    optimizer.step()
    go.set()
    during = p.tolist()
    optimizer.finish()
    return optimizer.hosted.optimizer.in_time, during, p.tolist()


def test_the_program_runs_on_while_the_host_steps():
    assert launch(reached, 1, "delayed") == [(True, [1.0] * 3, [0.0] * 3)]
    assert launch(reached, 1, "exact") == [(False, [0.0] * 3, [0.0] * 3)]


def halves(dtype, mode, steps):
    """By hand: fp32 copies, which are stepped, and rounded into the model before its next forward."""
    model = made("mlp", 0).to(dtype)
    masters = [p.detach().float() for p in model.parameters()]
    optimizer, ready = torch.optim.AdamW(masters, lr=0.01), []
    for x, y in batches(steps):
        for p in model.parameters():
            p.grad = None
        mse(model(x.to(dtype)), y.to(dtype)).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        late = ready
        optimizer.step()
        ready = [master.to(dtype) for master in masters]
        with torch.no_grad():
            for p, value in zip(
                model.parameters(), late if mode == "delayed" else ready, strict=False
            ):
                p.copy_(value)
    return ready, masters


@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_with_masters(dtype, mode):
    def program(comm):
        model = made("mlp", 0).to(dtype)
        optimizer = OffloadedOptimizer(
            model.parameters(), torch.optim.AdamW, comm, mode, 0, torch.float32, lr=0.01
        )
        for x, y in batches(6):
            optimizer.zero_grad()
            mse(model(x.to(dtype)), y.to(dtype)).backward()
            optimizer.step()
        optimizer.finish()
        return list(model.parameters()), list(optimizer.hosted.masters.values())

    ours, masters = World(1).run(program)[0]
    oracle, copies = halves(dtype, mode, 6)
    assert equal(ours, oracle) and equal(masters, copies)
    assert {p.dtype for p in ours} == {dtype} and {m.dtype for m in masters} == {torch.float32}


def groups(model):
    first, *others = model.parameters()
    return [{"params": [first], "lr": 0.05}, {"params": others, "weight_decay": 0.2}]


def late_group(optimizer, model):
    optimizer.add_param_group({"params": [model.extra], "lr": 0.3})
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def with_extra():
    model = made("mlp", 0)
    parameters = groups(model)
    model.extra = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    forward = model.forward
    model.forward = lambda x: forward(x) * model.extra
    return model, parameters


@pytest.mark.parametrize("in_backward", [False, True])
def test_groups_a_scheduler_and_a_group_that_comes_later(in_backward):
    def program(comm):
        model, parameters = with_extra()
        optimizer = OffloadedOptimizer(parameters, torch.optim.AdamW, comm, in_backward=in_backward)
        train(optimizer, model, 7, late_group(optimizer, model))
        return (
            list(model.parameters()),
            [g["lr"] for g in optimizer.param_groups],
            optimizer.defaults,
        )

    model, parameters = with_extra()
    oracle = torch.optim.AdamW(parameters)
    expected = train(oracle, model, 7, late_group(oracle, model))
    ours, rates, defaults = World(1).run(program)[0]
    assert (
        equal(ours, expected)
        and rates == [g["lr"] for g in oracle.param_groups]
        and defaults == oracle.defaults
    )


def test_options_that_the_optimizer_changes_show():
    def program(comm):
        model = made("mlp", 0)
        optimizer = OffloadedOptimizer(model.parameters(), Lion, comm, "delayed", 0)
        train(optimizer, model, 2)
        optimizer.param_groups[0]["lr"] = 0.5
        train(optimizer, model, 1)
        optimizer.finish()
        return optimizer.param_groups[0]["shrink"], optimizer.param_groups[0]["lr"]

    assert World(1).run(program) == [(pytest.approx(0.9**3), 0.5)]


def test_several_backwards_add_up_and_zero_grad_forgets():
    def program(comm, in_backward):
        model = made("hard", 0)
        optimizer = OffloadedOptimizer(
            model.parameters(), torch.optim.SGD, comm, in_backward=in_backward, lr=0.1
        )
        (x, y), (u, v), (w, z) = batches(3)
        mse(model(w), z).backward()
        optimizer.zero_grad()
        for inputs, target in ((x, y), (u, v)):
            mse(model(inputs), target).backward()
        held = [p.grad is None for p in model.parameters() if p.requires_grad]
        optimizer.step(lambda: mse(model(w), z).backward())  # and a closure, before which they stay
        return list(model.parameters()), all(held)

    (late, some), (early, none) = (
        World(1).run(program, in_backward)[0] for in_backward in (False, True)
    )
    assert equal(late, early) and none and not some
    assert difference(late, list(made("hard", 0).parameters())) > 1e-3


def resumed(comm, mode, first, then):
    """Train, save, load into new objects, train on."""
    saved = None
    for steps in (first, then):
        model = made("mlp", 3)
        optimizer = OffloadedOptimizer(
            model.parameters(), torch.optim.AdamW, comm, mode, 2, torch.float64
        )
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            assert optimizer.steps == first
        train(optimizer, model, steps)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.finish()
    return list(model.parameters())


@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("first", [1, 5])
def test_a_run_goes_on_bit_for_bit(mode, first):
    def whole(comm):
        model = made("mlp", 3)
        optimizer = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, comm, mode, 2)
        train(optimizer, model, first)
        train(optimizer, model, 5)
        optimizer.finish()
        return list(model.parameters())

    assert equal(World(1).run(resumed, mode, first, 5)[0], World(1).run(whole)[0])


def test_its_state_is_the_plain_optimizers_and_back():
    def program(comm):
        model, other = made("mlp", 0), made("mlp", 0)
        optimizer = OffloadedOptimizer(model.named_parameters(), torch.optim.AdamW, comm)
        train(optimizer, model, 3)
        other.load_state_dict(model.state_dict())
        back = torch.optim.AdamW(other.named_parameters(), lr=7.0)
        back.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(back, other, 2)  # ours → plain
        train(optimizer, model, 2)
        again = OffloadedOptimizer(other.named_parameters(), torch.optim.AdamW, comm)
        again.load_state_dict(copy.deepcopy(back.state_dict()))
        train(again, other, 2)  # → ours
        train(optimizer, model, 2)
        return (
            list(model.parameters()),
            list(other.parameters()),
            optimizer.state_dict(),
            back.state_dict(),
        )

    ours, others, mine, theirs = World(1).run(program)[0]
    assert equal(ours, others) and mine["param_groups"] == theirs["param_groups"]
    assert (
        mine["state"].keys() == theirs["state"].keys()
        and mine["state"][0].keys() == theirs["state"][0].keys()
    )


def test_refresh_takes_what_others_wrote():
    def program(comm, refresh, mode):
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32))
        optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, 0, torch.float64, lr=1.0)
        p.backward()
        optimizer.step()
        p.data.fill_(5.0)
        if refresh:
            optimizer.refresh()
        optimizer.step()  # what waited is forgotten
        now = p.item()
        optimizer.finish()
        return now, p.item()

    found = {
        (refresh, mode): World(1).run(program, refresh, mode)[0]
        for refresh in (True, False)
        for mode in ("exact", "delayed")
    }
    assert found == {
        (True, "exact"): (4.0, 4.0),
        (True, "delayed"): (5.0, 4.0),
        (False, "exact"): (-2.0, -2.0),
        (False, "delayed"): (-1.0, -2.0),
    }


@pytest.mark.parametrize("mode", ["exact", "delayed"])
def test_what_others_write_in_place_is_followed(mode):
    """A broadcast, an average, load_state_dict: nobody has to think of `refresh`."""

    def program(comm):
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32))
        optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, 0, torch.float64, lr=1.0)
        p.backward()
        optimizer.step()
        with torch.no_grad():
            p.fill_(5.0)
        optimizer.step()
        optimizer.finish()
        return p.item()

    assert World(1).run(program) == [4.0]


def test_a_master_keeps_its_digits_where_nothing_was_written():
    def program(comm):
        p = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        optimizer = OffloadedOptimizer(
            [p], torch.optim.SGD, comm, "exact", 0, torch.float32, lr=1e-4
        )
        for _ in range(8):
            p.grad = torch.ones_like(p)
            optimizer.step()
            with torch.no_grad():
                p[1] = 3.0
        return optimizer.state_dict()["masters"][0].tolist()

    first, second = World(1).run(program)[0]
    assert abs(first - (1 - 8e-4)) < 1e-6
    # written once: 3.0 is what its master is rounded to, from then on
    assert abs(second - (3 - 7e-4)) < 1e-6


def test_one_that_has_no_gradient_for_a_while_is_not_stepped():
    def program(comm):
        p, q = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = OffloadedOptimizer([p, q], torch.optim.SGD, comm, lr=1.0)
        for loss in (lambda: p + q, lambda: p, lambda: p + q):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return p.item(), q.item()

    assert World(1).run(program) == [(-3.0, -2.0)]  # nor its copy on the host


def sparse(comm):
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = OffloadedOptimizer(table.parameters(), torch.optim.SGD, comm, lr=1.0)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mode": "late"}, "'exact' and 'delayed', not 'late'"),
        ({"warmup": -1}, "at least 0 steps, not -1"),
        ({"master_dtype": torch.int32}, "not torch.int32"),
        (
            {"params": [torch.nn.Parameter(torch.ones(3, device="meta"))]},
            r"shape \(3,\) is on meta, .* device is cpu",
        ),
        ({"params": []}, "empty parameter list"),
        ({"lr": -1.0}, "learning rate: -1.0"),
    ],
)
def test_what_cannot_be(how, words):
    def program(comm, params=None, lr=0.1, **how):
        params = [torch.nn.Parameter(torch.ones(3))] if params is None else params
        return OffloadedOptimizer(params, torch.optim.SGD, comm, lr=lr, **how)

    with pytest.raises(ValueError, match=words):
        World(1).run(program, **how)


def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match=r"shape \(4, 2\) is torch.sparse_coo"):
        World(1).run(sparse)
