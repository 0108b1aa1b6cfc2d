"""Offload: the plain optimizer bit for bit, what lies where and what that takes, and each rank its shard."""

import copy
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, Device, Level, World, launch
from minidist.parallel.data import DataParallel, Sampler
from minidist.parallel.offload import Hosted, OffloadedOptimizer
from minidist.parallel.zero import ShardedOptimizer
from minidist.study.predict import offload_kept, offload_update_seconds
from tests.largest import largest
from tests.parallel.cases import SAMPLES, data, difference, made, mse, replicas_equal

# ------------------------------------------------------------
# A step on the host is the plain optimizer's, bit for bit; delayed, it is that of a serial loop
# with old gradients.


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


@pytest.mark.parametrize("mode", ["exact", "delayed"])
def test_what_others_write_in_place_is_followed(mode):
    """A broadcast, an average, load_state_dict: nobody has to think of it."""

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
        ({"mode": "late"}, "'exact', 'delayed', not 'late'"),
        ({"warmup": -1}, "at least 0 steps, not -1"),
        ({"master_dtype": torch.int32}, "not torch.int32"),
        (
            {"params": [torch.nn.Parameter(torch.ones(3, device="meta"))]},
            r"parameter 0 is on meta, .* on cpu",
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
    with pytest.raises(ValueError, match=r"shape \(4, 2\) is sparse"):
        World(1).run(sparse)


# ------------------------------------------------------------
# What lies on the host, what crosses its link, and what that takes: seen in a World that has one.


WIDTH = 48
LAYERS = 5
STEPS = 4
SIZE = LAYERS * (WIDTH * WIDTH + WIDTH)


def net(comm, dtype=torch.float16):
    return nn.Sequential(
        *[nn.Linear(WIDTH, WIDTH, dtype=dtype, device=comm.device) for _ in range(LAYERS)]
    )


def step(comm, kind, options, steps=STEPS, dtype=torch.float16):
    """Train, with what is on the device after the last step; seconds and bytes of the first and the last step."""
    model = net(comm, dtype)
    optimizer = (
        OffloadedOptimizer(model.parameters(), kind, comm, **options)
        if options
        else kind(model.parameters())
    )
    times = [comm.now()]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.empty(32, WIDTH, dtype=dtype, device=comm.device)).sum().backward()
        optimizer.step()
        times.append(comm.now())
    return times[-1] - times[-2], times[-1]


def ran(options, steps=STEPS, kind=torch.optim.AdamW, device="meta", dtype=torch.float16, n=1):
    """(seconds of the last step, the device's memory after it, the trace) of rank n − 1."""
    run = World(n, cluster=Cluster.dgx_a100(), device=device).run(step, kind, options, steps, dtype)
    seconds, end = run[-1]
    return seconds, run.trace.memory[n - 1].at(end), run.trace


HALVES = {"master_dtype": torch.float32}


def offloads(options):
    """Whether bytes by category, on the device and on the host, and over the link, are the formulas'."""
    kept, moved = offload_kept(SIZE), 2 * SIZE
    _, device, trace = ran(options)
    before = ran(options, STEPS - 1)[2]
    most = {category: live.max() for category, live in trace.memory[0].live.items()}
    if not trace.host:
        return False
    there, here = trace.host[0], before.host[0]
    # Adam counts the steps of each tensor
    states = there.memory.live["optimizer states"].max() - 4 * 2 * LAYERS
    stays = kept["parameters"], kept["gradients"], 0
    return (
        all(
            tuple(of[name] for name in ("parameters", "gradients", "optimizer states")) == stays
            for of in (most, device)
        )
        and states == kept["host"]
        and there.memory.live["parameters"].max() == 0
        and (there.down - here.down, there.up - here.up) == (moved, moved)
    )


@pytest.mark.parametrize("mode", ["exact", "delayed"])
def test_bytes_on_the_device_on_the_host_and_between(mode):
    assert offload_kept(SIZE) == {"parameters": 2 * SIZE, "gradients": 2 * SIZE, "host": 12 * SIZE}
    assert offloads(HALVES | {"mode": mode, "warmup": 0})


def test_what_does_not_offload_fails_that():
    class Stays(OffloadedOptimizer):
        """Widens its gradients before they go down."""

        def _gradients(self):
            for p in self._params():
                self.hosted.take(p, p.grad.float())
            return self.hosted.taken()

    assert not offloads({})  # the plain optimizer
    # other copies
    assert not offloads({"master_dtype": torch.float64}) and not offloads({"mode": "exact"})
    model, wide = World(1, cluster=Cluster.dgx_a100(), device="meta"), []
    for kind in (OffloadedOptimizer, Stays):

        def program(comm, kind=kind):
            layers = net(comm)
            optimizer = kind(layers.parameters(), torch.optim.AdamW, comm, **HALVES)
            layers(torch.empty(2, WIDTH, dtype=torch.float16, device="meta")).sum().backward()
            optimizer.step()

        # the masters, too, came down once
        wide.append(model.run(program).trace.host[0].down - 2 * SIZE)
    assert wide == [2 * SIZE, 4 * SIZE]


def test_gradients_that_go_down_in_backward_leave_the_device():
    late, early = (ran(HALVES | {"in_backward": early})[2].memory[0] for early in (False, True))
    assert late.live["gradients"].max() == 2 * SIZE
    assert early.live["gradients"].max() < 2 * SIZE and early.live["gradients"][-1] == 0


def test_delayed_and_early_steps_are_shorter():
    times = {
        (mode, early): ran(HALVES | {"mode": mode, "warmup": 0, "in_backward": early})[0]
        for mode in ("exact", "delayed")
        for early in (False, True)
    }
    assert times["delayed", True] < times["delayed", False] < 0.9 * times["exact", False]
    assert times["delayed", True] < times["exact", True] < times["exact", False]
    warm = ran(HALVES | {"mode": "delayed", "warmup": STEPS + 1})[0]
    assert warm == pytest.approx(times["exact", False], rel=1e-9)


def test_the_host_steps_while_the_device_computes():
    trace = ran(HALVES | {"mode": "delayed", "warmup": 0})[2]
    updates = [s for s in trace.spans if s.lane == "lane 1"]
    computed = [s for s in trace.spans if s.lane == "main" and s.kind in ("compute", "backward")]
    copies = [s for s in trace.spans if s.kind == "copy"]
    beside = [u for u in updates for c in computed if u.start < c.end and c.start < u.end]
    assert len(beside) > len(updates) / 4 and {s.lane for s in copies} == {"main"}
    assert not any(u.start < c.end and c.start < u.end for u in updates for c in copies)
    assert {s.name for s in copies} == {"to host", "to device"} and "addcdiv_" in {
        s.name for s in updates
    }


def test_a_world_with_values_tells_host_and_device_apart():
    run = ran({"mode": "exact"}, device="cpu", dtype=torch.float32)
    _, device, trace = run
    assert (
        device["parameters"] == device["gradients"] == 4 * SIZE and device["optimizer states"] == 0
    )
    host = trace.host[0].memory
    assert (
        host.live["optimizer states"].max() == 12 * SIZE + 4 * 2 * LAYERS and host.device == "host"
    )
    assert trace.host[0].up == STEPS * 4 * SIZE


def test_every_rank_has_a_part_of_the_host():
    slow = Device("bytes", {}, 1 << 40, 1e9)
    free = Level(0.0, 0.0)
    cluster = Cluster(links={"nic": free, "pcie": free}, host=slow)
    for n in (1, 2):
        node = replace(cluster, nodes=1, devices=n)
        times = [
            seconds
            for seconds, _ in World(n, cluster=node, device="meta", meter=True).run(
                step, torch.optim.SGD, HALVES
            )
        ]
        assert times == [pytest.approx(n * offload_update_seconds(SIZE, 12, 1e9))] * n


def test_a_step_of_a_large_model():
    """13 billion parameters on one V100 of 32 GB, as in the paper: 4Ψ bytes would not fit, 2Ψ do."""

    def program(comm):
        shapes = [(4096, 12 * 4096)] * 65
        weights = [
            nn.Parameter(torch.empty(s, dtype=torch.float16, device=comm.device)) for s in shapes
        ]
        optimizer = OffloadedOptimizer(weights, torch.optim.Adam, comm, in_backward=True, **HALVES)
        x = torch.empty(1, 4096, dtype=torch.float16, device=comm.device)
        for w in weights:
            x = (x @ w)[:, :4096]
        x.sum().backward()
        optimizer.step()
        return sum(w.numel() for w in weights)

    cluster = Cluster.dgx1_v100()
    run = World(1, cluster=cluster, device="meta").run(program)
    size = run[0]
    assert size > 13e9 and run.trace.memory[0].peak < cluster.device.memory < 4 * size
    assert run.trace.host[0].memory.live["optimizer states"].max() == 12 * size + 4 * 65


def test_the_masters_keep_the_parameters_strides():
    def program(comm):
        p = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        hosted = Hosted([{"params": [p]}], torch.optim.SGD, comm.host, torch.float64, lr=1.0)
        hosted.take(p, torch.ones(3, 2))
        hosted.update(comm, *hosted.taken(), [{"lr": 0.5}])
        value = p.detach().clone()
        hosted.up()
        return hosted.masters[p].stride(), value.tolist(), p.tolist(), hosted.fresh

    stride, before, after, fresh = World(1).run(program)[0]
    assert (
        stride == (1, 3)
        and before == [[0, 3], [1, 4], [2, 5]]
        and after == [[-0.5, 2.5], [0.5, 3.5], [1.5, 4.5]]
    )
    assert fresh is None


# ------------------------------------------------------------
# Several hosts: with ShardedOptimizer each steps its shard alone, and together they take the serial
# step.


SHARDED_STEPS = 6


def batch(k, part=slice(None)):
    x, y = data()
    return x[k::SHARDED_STEPS][:4][part], y[k::SHARDED_STEPS][:4][part]


def sharded(comm, optimizer, mode, stage, model="hard"):
    kind, options = OPTIMIZERS[optimizer]
    model = made(model, comm.rank)
    host = partial(OffloadedOptimizer, optimizer_class=kind, comm=comm, mode=mode, warmup=1)
    ours = ShardedOptimizer(model.parameters(), host, comm, stage, **options)
    for k in range(SHARDED_STEPS):
        ours.zero_grad()
        x, y = batch(k, slice(comm.rank, None, comm.size))
        ours.weight = len(x)
        mse(model(x), y).backward()
        ours.step()
    return list(model.parameters()), replicas_equal(comm, list(model.parameters()))


def serial(optimizer, mode):
    """The parameters that forward `STEPS` would use."""
    kind, options = OPTIMIZERS[optimizer]
    model = made("hard", 0)
    plain, then = kind(model.parameters(), **options), []
    for k in range(SHARDED_STEPS):
        then.append([p.detach().clone() for p in model.parameters()])
        late = mode == "delayed" and k > 1
        with torch.no_grad():
            for p, value in zip(model.parameters(), then[k - late], strict=True):
                p.copy_(value)
        plain.zero_grad()
        x, y = batch(k)
        mse(model(x), y).backward()
        with torch.no_grad():
            for p, value in zip(model.parameters(), then[k], strict=True):
                p.copy_(value)
        plain.step()
    return then[-1] if mode == "delayed" else list(model.parameters())


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_shards_on_several_hosts(optimizer, mode, stage):
    oracle = serial(optimizer, mode)
    assert (difference(oracle, serial(optimizer, "exact")) > 1e-6) == (mode == "delayed")
    for n in (1, 2, 3, 4):
        for ours, same in World(n).run(sharded, optimizer, mode, stage):
            assert same and difference(ours, oracle) <= 1e-12


def test_over_processes():
    for ours, same in launch(sharded, 3, "adamw", "delayed", 2):
        assert same and difference(ours, serial("adamw", "delayed")) <= 1e-12


def test_each_host_holds_its_shard_alone():
    def states(n):
        run = World(n, meter=True).run(sharded, "adamw", "exact", 1, "mlp")
        found = [run.trace.host[r].memory.live["optimizer states"].max() for r in range(n)]
        assert all(
            memory.live["optimizer states"].max() == 0 for memory in run.trace.memory.values()
        )
        return found

    whole = states(1)[0]
    for n in (2, 3):
        parts = states(n)
        assert sum(parts) == whole and largest(parts) < 0.75 * whole


def test_one_that_is_unfrozen_later_moves_to_the_host_too():
    def program(comm, host):
        model = made("mlp", 0)
        first = next(model.parameters()).requires_grad_(False)
        kind = (
            partial(OffloadedOptimizer, optimizer_class=torch.optim.SGD, comm=comm)
            if host
            else torch.optim.SGD
        )
        ours = ShardedOptimizer(model.parameters(), kind, comm, lr=0.1)
        for k in range(3):
            first.requires_grad_(k > 0)
            ours.zero_grad()
            x, y = batch(k)
            mse(model(x), y).backward()
            ours.step()
        return list(model.parameters())

    plain, ours = (World(2).run(program, host)[1] for host in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert difference(ours[:1], list(made("mlp", 0).parameters())[:1]) > 1e-6


def run(comm, mode, steps, saved=None, shards=False):
    """Some of `STEPS` steps, each rank with the whole batch: (state_dict, parameters, those after the last update)."""
    model = made("hard", 3).float()
    host = partial(
        OffloadedOptimizer,
        optimizer_class=torch.optim.AdamW,
        comm=comm,
        mode=mode,
        warmup=1,
        master_dtype=torch.float64,
    )
    comm.algorithm = "halving_doubling"  # exact: 2g, 4g, …
    ours = ShardedOptimizer(model.parameters(), host, comm, lr=0.01)
    if saved is not None:
        state, params = copy.deepcopy(saved[comm.rank] if shards else saved[0])[:2]
        with torch.no_grad():
            for p, value in zip(model.parameters(), params, strict=True):
                p.copy_(value)
        ours.load_state_dict(state)
    for k in steps:
        ours.zero_grad()
        x, y = batch(k)
        mse(model(x.float()), y.float()).backward()
        ours.step()
    state, params = copy.deepcopy(
        (ours.own_state_dict() if shards else ours.state_dict(), list(model.parameters()))
    )
    ours.finish()
    assert replicas_equal(comm, list(model.parameters()))
    return state, params, list(model.parameters())


@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize(("n", "then", "shards"), [(2, 2, True), (1, 4, False), (16, 2, False)])
def test_a_sharded_run_goes_on_bit_for_bit(n, then, shards, first, mode):
    """The whole state on another number of ranks, too; 16 are more than there are parameters."""
    whole = World(2).run(run, mode, range(SHARDED_STEPS))[0]
    saved = World(n).run(run, mode, range(first), None, shards)
    for state, params, last in World(then).run(
        run, mode, range(first, SHARDED_STEPS), saved, shards
    ):
        assert equal(params, whole[1]) and equal(last, whole[2])
        assert (
            state["offload"]
            == {"steps": SHARDED_STEPS, "pending": mode == "delayed"}
            == whole[0]["offload"]
        )
        assert shards or equal(state["masters"].values(), whole[0]["masters"].values())
    assert equal(whole[1], whole[2]) == (mode == "exact")


@pytest.mark.parametrize("lost", ["masters", "offload"])
def test_what_is_not_saved_is_missed(lost):
    whole = World(2).run(run, "delayed", range(SHARDED_STEPS))[0]
    saved = World(2).run(run, "delayed", range(3))
    del saved[0][0][lost]
    assert not equal(World(2).run(run, "delayed", range(3, SHARDED_STEPS), saved)[0][2], whole[2])


def test_masters_of_masters_are_refused():
    def program(comm):
        host = partial(OffloadedOptimizer, optimizer_class=torch.optim.SGD, comm=comm)
        ShardedOptimizer(made("mlp", 0).parameters(), host, comm, master_dtype=torch.float32)

    with pytest.raises(
        ValueError, match=r"masters of masters: the OffloadedOptimizer inside keeps its own"
    ):
        World(2).run(program)
