"""What ranks compute takes virtual time: the roofline of their device, in every fiber, charged to nobody else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.charge.charge import roofline
from minidist.comm.charge.flops import Cost
from minidist.comm.cluster import Device
from minidist.comm.cluster.presets import H100
from tests.comm.nets import ALPHA, BETA, TOY, seconds_of, world

SLOW_START = Device("slow to start", {torch.float32: 1e12}, 10**9, bandwidth=1e11, launch=1e-3)


def test_roofline():
    assert roofline(TOY, Cost(2 * 10**12, 10**9, torch.float32)) == 2.0  # bound by its FLOPs
    assert roofline(TOY, Cost(10**9, 10**11, torch.float32)) == 1.0  # by its bytes
    assert roofline(TOY, Cost(10**12, 0, torch.float64)) == 2.0  # by the peak of its dtype
    assert roofline(SLOW_START, Cost(0, 0, None)) == 1e-3
    assert roofline(H100, Cost(989 * 10**12, 0, torch.bfloat16)) == 1.0 + H100.launch
    with pytest.raises(ValueError, match="toy has a peak for float32, float64, not for int32"):
        roofline(TOY, Cost(1, 1, torch.int32))


PROGRAMS = {
    "a product": (
        lambda comm: (
            torch.ones(100, 100, device=comm.device) @ torch.ones(100, 100, device=comm.device)
        ),
        2 * 4e4 / 1e11 + 2e6 / 1e12,
    ),
    "in place": (
        lambda comm: torch.empty(1000, device=comm.device).add_(
            torch.empty(1000, device=comm.device)
        ),
        3 * 4e3 / 1e11,
    ),
    "views": (
        lambda comm: torch.empty(1000, device=comm.device).view(10, 100).t()[3:].detach(),
        0.0,
    ),
    "nothing": (lambda comm: comm.size, 0.0),
    "host": (
        lambda comm: torch.ones(1000, device="meta" if comm.device.type == "cpu" else "cpu"),
        0.0,
    ),
}


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("what", PROGRAMS)
def test_operators_take_time(what, where):
    fn, seconds = PROGRAMS[what]
    assert world(2, where=where).run(seconds_of, fn) == pytest.approx([seconds] * 2, rel=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.add_(x[:2]),
        lambda x: x.int().add_(x),
        lambda x: x.add_(torch.ones(3, device="meta").to("cpu")),
        lambda x: x.div_(x, rounding_mode="up"),
        lambda x: x.addcmul_(x, x[:2]),
    ],
)
def test_what_does_not_fit_is_refused_on_meta_as_without_a_meter(wrong):
    program = lambda comm: wrong(torch.empty(3, device="meta"))
    with pytest.raises((RuntimeError, ValueError)) as plain:
        World(1, device="meta").run(program)
    with pytest.raises(type(plain.value)) as metered:
        world(1, where="meta").run(program)
    assert str(metered.value) == str(plain.value)


def test_what_fits_is_what_it_is_on_meta():
    def program(comm):
        x, y = torch.empty(3, 4, device="meta"), torch.empty(4, 3, device="meta").t()
        version = x._version
        same = x.add_(y, alpha=2).mul_(0.5).addcmul_(x, y, value=3).lerp_(y, 0.1).div_(2) is x
        w = nn.Parameter(x.clone())
        (w * 1).mul_(y).sum().backward()
        return same, x._version - version, w.grad.shape

    run = world(1, where="meta").run(program)
    assert run == World(1, device="meta").run(program) == [(True, 5, (3, 4))]
    assert [s.name for s in run.trace.spans][:5] == ["add_", "mul_", "addcmul_", "lerp_", "div_"]


def train(comm, net):
    x = torch.empty(32, 64, device=comm.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = comm.now()
    loss = F.mse_loss(net(x), torch.empty(32, 8, device=comm.device))
    forward = comm.now()
    loss.backward()
    backward = comm.now()
    optimizer.step()
    return forward - before, backward - forward, comm.now() - backward


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_forward_backward_and_step_are_charged(where):
    by_flops = Device("toy", {torch.float32: 1e9}, 10**9, bandwidth=1e30)
    once = 2 * 32 * 64 * 8 / 1e9
    forward, backward, step = world(1, by_flops, where).run(train, nn.Linear(64, 8).to(where))[0]
    # no gradient of x
    assert (forward, backward) == pytest.approx((once, once), rel=1e-9) and step < 1e-20
    by_launch = Device("toy", {torch.float32: 1e30}, 10**9, bandwidth=1e30, launch=1.0)
    launches = world(1, by_launch, where).run(train, nn.Linear(64, 8).to(where))[0]
    # addmm, mse; the 1 that backward starts from, the gradient of mse, a product, a sum; an addition each
    assert launches == (2.0, 4.0, 2.0)


def test_a_device_without_that_dtype_is_named_with_the_rank():
    with pytest.raises(
        ValueError, match="toy has a peak for float32, float64, not for bfloat16"
    ) as error:
        world(2).run(lambda comm: torch.ones(2, 2).bfloat16() @ torch.ones(2, 2).bfloat16())
    assert error.value.rank == 0


def share(comm, nbytes):
    x = torch.empty(nbytes // 4, device=comm.device)
    start = comm.now()
    all_reduce_(comm, x, algorithm="ring")
    return comm.now() - start


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_pays_for_its_additions_and_for_no_copy_of_the_network(n, where, rendezvous):
    nbytes = 48_000 * n
    gamma = 3 / TOY.bandwidth  # an addition in place reads two operands and writes one
    formula = 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * nbytes * BETA + (n - 1) / n * nbytes * gamma
    run = world(n, where=where, rendezvous=rendezvous)
    if rendezvous:
        assert run.run(share, nbytes) == pytest.approx([formula] * n, rel=1e-9)
    results = run.run(share, nbytes)
    assert {s.name for s in results.trace.spans} == {"add_"} and len(results.trace.spans) == n * (
        n - 1
    )
    # The buffers of a rank: what is reduced, and room for a chunk that arrives.
    assert [results.trace.memory[r].peak for r in range(n)] == [nbytes + nbytes // n] * n


def overlap(comm, streamed):
    x, w = torch.empty(1_000_000, device=comm.device), torch.empty(512, 512, device=comm.device)
    job = comm.stream(lambda lane: all_reduce_(lane, x)) if streamed else None
    for _ in range(4):
        w @ w
    if streamed:
        job.wait()
    else:
        all_reduce_(comm, x)
    return comm.now()


def test_a_stream_runs_beside_the_computation():
    products = 4 * 2 * 512**3 / 1e12
    alone = world(2).run(lambda comm: all_reduce_(comm, torch.empty(1_000_000))).time
    after, beside = (world(2).run(overlap, streamed) for streamed in (False, True))
    assert after.time == pytest.approx(products + alone, rel=1e-9)
    assert beside.time == pytest.approx(max(products, alone), rel=1e-9)
    lanes = {(s.lane, s.name) for s in beside.trace.spans if s.rank == 0}
    assert lanes == {("main", "mm"), ("lane 0", "add_")}
    assert any(
        a.start < b.end and b.start < a.end
        for a in beside.trace.spans
        for b in beside.trace.spans
        if (a.lane, b.lane) == ("main", "lane 0") and a.rank == b.rank
    )


def test_what_a_lane_computes_takes_its_own_time():
    def program(comm):
        w = torch.empty(512, 512)
        job = comm.stream(lambda lane: w @ w)
        w @ w
        job.wait()
        return comm.now()

    assert world(1).run(program) == [2 * 512**3 / 1e12]


def test_a_job_starts_when_its_rank_has_asked_for_it():
    """The lane is free after one product; the second job is asked for after three."""

    def program(comm):
        w = torch.empty(512, 512)
        comm.stream(lambda lane: w @ w)
        for _ in range(3):
            w @ w
        return comm.stream(lambda lane: lane.now()).wait()

    assert world(1).run(program) == [3 * 2 * 512**3 / 1e12]


def test_hooks_communicate_and_compute_in_backward():
    def program(comm, net):
        def add_up(p):
            all_reduce_(comm, p.grad)

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(add_up)
        before = comm.now()
        net(torch.ones(4, 64)).sum().backward()
        return comm.now() - before, net.weight.grad.sum().item()

    results = world(3).run(program, nn.Linear(64, 8))
    # two rings of 2(n−1) steps
    assert all(2 * 2 * 2 * ALPHA < seconds < 2.1 * 2 * 2 * ALPHA for seconds, _ in results)
    assert {total for _, total in results} == {3.0 * 4 * 64 * 8}
    assert all(
        results.trace.memory[r].live["gradients"].max() == (64 + 1) * 8 * 4 for r in range(3)
    )


def test_splitting_costs_messages_only():
    assert world(4).run(lambda comm: comm.split(comm.rank % 2).size).trace.spans == []
