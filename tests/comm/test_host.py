"""The host as a technique sees it: outside a World it does nothing; in one it tells the two memories apart."""

import pytest
import torch

from minidist.comm import Cluster, Device, Level, World, launch
from minidist.comm.base import Host
from minidist.comm.trace import OnHost
from tests.comm.nets import ALPHA, BETA, TOY
from tests.largest import largest

CORES = Device("cores", {torch.float32: 1e9}, 10**9, bandwidth=1e9, launch=1e-3)
PCIE = Level(0.5, 1e-6)


def hosted(n=1, where="cpu", host=CORES, **kwargs):
    """A World of ranks with a host each; a copy to or from it takes half a second and a microsecond a byte."""
    cluster = Cluster.uniform(n, ALPHA, BETA, TOY, host, PCIE)
    return World(n, cluster=cluster, device=where, **kwargs)


def down(comm, x):
    with comm.host:
        return torch.empty_like(x, device=comm.host.device).copy_(x)


def there_and_back(comm):
    x = torch.ones(1000, device=comm.device)
    times = [comm.now()]
    there = down(comm, x)
    times.append(comm.now())
    there.add_(there)  # on the host, also outside
    times.append(comm.now())
    x.copy_(there)
    times.append(comm.now())
    x.add_(x)
    return [b - a for a, b in zip(times, [*times[1:], comm.now()], strict=True)], x


SECONDS = [0.5 + 4e-3, 1e-3 + 12e3 / 1e9, 0.5 + 4e-3, 12e3 / 1e11]


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_the_host_and_its_link_take_their_time(where):
    run = hosted(where=where).run(there_and_back)
    seconds, x = run[0]
    assert seconds == pytest.approx(SECONDS, rel=1e-9) and x.device.type == where
    assert where == "meta" or x.tolist() == [4.0] * 1000
    assert [(s.kind, s.name) for s in run.trace.spans][1:] == [
        ("copy", "to host"),
        ("compute", "add_"),
        ("copy", "to device"),
        ("compute", "add_"),
    ]
    there = run.trace.host[0]
    assert (there.down, there.up, there.memory.peak, run.trace.memory[0].peak) == (
        4000,
        4000,
        4000,
        4000,
    )


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_without_a_modelled_host_it_takes_none(where):
    run = World(1, cluster=Cluster.uniform(1, ALPHA, BETA, TOY), device=where).run(there_and_back)
    assert run[0][0] == pytest.approx([0, 0, 0, SECONDS[3]]) and run.trace.host[0].up == 4000
    assert World(1).run(there_and_back)[0][0] == [0.0] * 4
    unused = hosted(where=where).run(lambda comm: torch.ones(3, device=comm.device) + 1)
    assert unused.trace.host == {}


def test_elsewhere_it_does_nothing():
    for seconds, x in launch(there_and_back, 1):
        assert x.tolist() == [4.0] * 1000 and largest(seconds) < 60
    host = Host()
    with host as inside:
        assert inside is host and host.device == torch.device("cpu")
    with pytest.raises(ZeroDivisionError), Host("meta"):
        _ = 1 / 0


def test_a_slow_rank_has_a_slow_host():
    cluster = Cluster.uniform(2, ALPHA, BETA, TOY, CORES, PCIE).slow_rank(1, 3)
    (fast, _), (slow, _) = World(2, cluster=cluster).run(there_and_back)
    assert fast == pytest.approx(SECONDS) and slow == pytest.approx([3 * s for s in SECONDS])
    noisy = World(1, cluster=cluster.jitter(0.5, 1)).run(there_and_back)[0][0]
    assert all(abs(a / b - 1) > 1e-3 for a, b in zip(noisy, fast, strict=True))


def test_what_a_lane_does_on_the_host_is_the_lanes():
    def program(comm):
        job = comm.stream(there_and_back)
        torch.ones(1000, device=comm.device)
        before = comm.now()
        job.wait()
        return before, comm.now()

    before, after = hosted().run(program)[0]
    assert before == pytest.approx(4e3 / 1e11) and after == pytest.approx(sum(SECONDS) + 4e3 / 1e11)


def test_the_context_is_the_running_fibers_alone():
    """While a lane is in it, waiting for a message, the program computes on its device."""

    def program(comm):
        def job(lane):
            with lane.host:
                lane.sendrecv(torch.ones(1), 1 - lane.rank, x := torch.empty(1), 1 - lane.rank)
                return x + 1

        work = comm.stream(job)
        torch.ones(1000)
        work.wait()

    run = hosted(2).run(program)
    assert run.trace.memory[0].live["other"].max() == 4000 and run.trace.host[1].memory.peak <= 12


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_operands_on_both_sides(where):
    def program(comm, wrong):
        x = torch.ones(4, device=comm.device)
        there = down(comm, x)
        with comm.host:
            number = torch.ones((), device=comm.host.device)
        x.mul_(number)  # a number goes anywhere
        return wrong(x, there)

    for wrong in (lambda x, y: x + y, lambda x, y: y.add_(x), lambda x, y: torch.cat([x, y])):
        with pytest.raises(RuntimeError, match="has operands on the host and on the device"):
            hosted(where=where).run(program, wrong)
    for fine in (
        lambda x, y: x.copy_(y),
        lambda x, y: y.view(2, 2).clone(),
        lambda x, y: y.double(),
    ):
        hosted(where=where).run(program, fine)


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_an_optimizers_states_are_where_its_parameters_are(where):
    def program(comm):
        x = torch.nn.Parameter(torch.ones(100, device=comm.device))
        with comm.host:
            p = down(comm, x.detach())
            p.grad = torch.ones_like(p)
            optimizer = torch.optim.Adam([p])
            optimizer.step()
        return comm.now()

    run = hosted(where=where).run(program)
    host, device = run.trace.host[0].memory, run.trace.memory[0]
    assert host.live["optimizer states"].max() == 1200 + 4 and host.live["gradients"].max() == 400
    assert device.live["parameters"].max() == 400 and device.live["optimizer states"].max() == 0
    assert {s.kind for s in run.trace.spans if s.name == "addcdiv_"} == {"update"}


def test_traces_tell_hosts_apart():
    one, other = (hosted(2).run(there_and_back).trace for _ in range(2))
    assert one == other and isinstance(one.host[1], OnHost)
    one.host[1] = one.host[1]._replace(up=1)
    assert one != other
    other.merge(one)
    assert other.host[1].up == 1
    other.since(0.25)
    assert other.host[1].memory.times[0] == one.host[1].memory.times[0] - 0.25


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_what_is_made_within_from_the_device_came_over_the_link(where):
    def program(comm, make):
        x = torch.ones(1000, device=comm.device)
        with comm.host:
            return make(x).dtype

    run = hosted(where=where).run(program, lambda x: x.double())
    assert (run.trace.host[0].down, run.trace.host[0].up) == (8000, 0)
    with pytest.raises(RuntimeError, match="add has operands on the host and on the device"):
        hosted(where=where).run(program, lambda x: x + 1)
