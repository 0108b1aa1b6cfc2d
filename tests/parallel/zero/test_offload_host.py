"""What lies on the host, what crosses its link, and what that takes: seen in a World that has one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, Device, Level, World
from minidist.parallel.zero.offload import OffloadedOptimizer
from minidist.parallel.zero.offload_cost import memory, traffic, update_seconds
from minidist.parallel.zero.offload_host import Hosted

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
    kept, moved = memory(SIZE), traffic(SIZE)
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
        and (there.down - here.down, there.up - here.up) == (moved["down"], moved["up"])
    )


@pytest.mark.parametrize("mode", ["exact", "delayed"])
def test_bytes_on_the_device_on_the_host_and_between(mode):
    assert memory(SIZE) == {"parameters": 2 * SIZE, "gradients": 2 * SIZE, "host": 12 * SIZE}
    assert traffic(SIZE) == {"down": 2 * SIZE, "up": 2 * SIZE}
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
    cluster = Cluster.uniform(1, 0.0, 0.0, host=slow, pcie=Level(0.0, 0.0))
    for n in (1, 2):
        node = replace(cluster, nodes=1, devices=n)
        times = [
            seconds
            for seconds, _ in World(n, cluster=node, device="meta", meter=True).run(
                step, torch.optim.SGD, HALVES
            )
        ]
        assert times == [pytest.approx(n * update_seconds(SIZE, 12, 1e9))] * n


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
