"""Any torch.distributed group as a Comm: groups that exist already, and torchrun."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.hosts import ADDRESSES, LINK, hosts, ip, missing
from minidist.collectives import all_reduce_
from minidist.comm import ANY, Mesh, RankMissing, Recv, World, from_env, launch, torchdist
from minidist.comm.message import says
from minidist.comm.torchdist import Inbox, Receive, TorchComm
from minidist.comm.trace import Trace
from minidist.parallel.data import DataParallel
from tests.comm.torchrun import in_its_place
from tests.repository.files import ROOT


def program():
    comm = from_env(seed=7)
    n, r = comm.size, comm.rank
    x = torch.tensor([r])
    y = comm.sendrecv(x, (r + 1) % n, torch.zeros_like(x), (r - 1) % n)
    half = comm.split(r % 2, key=-r)
    lane = comm.stream(
        lambda c: c.sendrecv(x, (r + 1) % n, torch.zeros_like(x), (r - 1) % n).item()
    )
    total = torch.ones(2)
    comm.native.all_reduce(total, "sum")
    try:
        if r == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.recv(torch.ones(3), 0) if r == 1 else None
        said = "agreed"
    except ValueError as error:
        said = "refused" if "rank 0 sends (2,)" in str(error) else str(error)
    number = torch.rand(1).item()
    trace = Trace(n)
    again = from_env(trace=trace)  # a second time is the same, and leaves the random numbers alone
    again.sendrecv(x, (r + 1) % n, torch.zeros_like(x), (r - 1) % n)
    assert [(m.src, m.dst, m.nbytes) for m in trace] == [(r, (r + 1) % n, 8)]
    after = torch.rand(1).item()
    return (
        r,
        n,
        type(comm).__name__,
        y.item(),
        half.rank,
        half.size,
        lane.wait(),
        total.sum().item(),
        said,
        again.rank,
        number,
        after,
    )


def test_from_env(capsys):
    """Under torchrun itself: tests/examples."""
    numbers = World(3, seed=7).run(lambda comm: (torch.rand(1).item(), torch.rand(1).item()))
    assert list(in_its_place(program, 3)) == [
        (r, 3, "TorchComm", (r - 1) % 3, half, 2 - r % 2, (r - 1) % 3, 6.0, said, r, *numbers[r])
        for r, half, said in [(0, 1, "agreed"), (1, 0, "refused"), (2, 0, "agreed")]
    ]
    assert "Warning" not in capsys.readouterr().err


def test_from_env_outside_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node 4"):
        from_env()
    for name, value in {"RANK": "0", "WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "64"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"64 ranks on this machine and \d GPUs"):
        from_env(backend="nccl")
    for name, value in {
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RuntimeError, match=r"--max-restarts 3: .* TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    ):
        from_env()
    assert not dist.is_initialized()


def test_groups_that_exist_already():
    def program(comm):
        group = dist.new_group([1, 3])
        everyone = TorchComm()
        x = torch.tensor([comm.rank])
        around = everyone.sendrecv(
            x, (comm.rank + 1) % 4, torch.zeros_like(x), (comm.rank - 1) % 4
        ).item()
        if comm.rank % 2 == 0:
            return around
        pair = TorchComm(group)
        y = pair.sendrecv(x, 1 - pair.rank, torch.zeros_like(x), 1 - pair.rank)
        any_ = torch.zeros(1)
        if pair.rank == 1:
            pair.send(torch.ones(1), 0)
            source = None
        else:
            work = pair.irecv(any_, ANY)
            work.wait()
            source = work.source
        alone = pair.split(pair.rank)
        reverse = pair.split(0, key=-pair.rank)
        z = reverse.sendrecv(x, 1 - reverse.rank, torch.zeros_like(x), 1 - reverse.rank)
        pair.native.all_reduce(x, "sum")
        return around, pair.rank, y.item(), source, alone.size, reverse.rank, z.item(), x.item()

    assert launch(program, 4, transport="gloo") == [
        3,
        (0, 0, 3, 1, 1, 1, 3, 4),
        1,
        (2, 1, 1, None, 1, 0, 1, 4),
    ]


def test_works_are_waited_for_in_any_order():
    def program(comm):
        xs = [torch.zeros(1) for _ in range(4)]
        works = [
            comm.isend(torch.tensor([float(i)]), 1) if comm.rank == 0 else comm.irecv(x, 0)
            for i, x in enumerate(xs)
        ]
        for i in (2, 0, 3, 1):
            if i == 3:
                while not works[i].done():  # a thread reads the headers that come before
                    pass
            works[i].wait()
            works[i].wait()  # waiting twice is waiting once
        return [x.item() for x in xs]

    assert launch(program, 2, transport="gloo")[1] == [0, 1, 2, 3]


def test_checked_or_not():
    def program(comm):
        plain = TorchComm(checked=False)
        assert comm.checked and not plain.checked
        x = torch.full((2,), float(comm.rank))
        work = plain.irecv(x, ANY) if comm.rank else plain.isend(x, 1)
        work.wait()
        strided = torch.zeros(2, 2)[:, 0]
        if comm.rank:
            plain.recv(strided, 0)
        else:
            plain.send(torch.ones(2), 1)
        return work.source, x.tolist(), strided.tolist()

    assert launch(program, 2, transport="gloo")[1] == (0, [0, 0], [1, 1])


def test_a_header_needs_gloo():
    class Other:
        pass

    with pytest.raises((ValueError, TypeError, RuntimeError)):
        TorchComm(Other(), checked=True)


# ------------------------------------------------------------
# Hosts whose names stand for loopback, as Debian's do, find each other all the same.


PROGRAM = """
import os, sys, torch
from minidist.collectives import all_reduce_
from minidist.comm import from_env
for port, master in enumerate(sys.argv[1:], 29411):  # they meet here, then there
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(port))
    comm = from_env(timeout=30)
    print(all_reduce_(comm, torch.ones(2) + comm.rank).tolist(), os.environ.pop("GLOO_SOCKET_IFNAME"))
    torch.distributed.destroy_process_group()
"""
# A name of its own, and a list of names of its own.
NAMED = (
    'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
)
NAMES = ("hosta", "hostb")


def started(host, place, folder, command, **variables):
    """Start a command on a host that knows itself by loopback only, and the other by its address."""
    lines = ["127.0.0.1 localhost"]
    lines += [
        f"{'127.0.1.1' if i == place else ADDRESSES[i]} {name}" for i, name in enumerate(NAMES)
    ]
    (folder / NAMES[place]).write_text("\n".join(lines) + "\n")
    inside = [
        "unshare",
        "--uts",
        "--mount",
        "sh",
        "-c",
        NAMED,
        "sh",
        NAMES[place],
        str(folder / NAMES[place]),
    ]
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *inside, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


def both(folder, *masters):
    """What a rank on each host prints, and the errors."""
    with hosts(1000) as names:
        command = [sys.executable, "-c", PROGRAM, *masters]
        ranks = [
            started(
                host,
                i,
                folder,
                command,
                RANK=str(i),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                OMP_NUM_THREADS="1",
            )
            for i, host in enumerate(names)
        ]
        return [rank.communicate(timeout=120) for rank in ranks]


@pytest.mark.alone
def test_two_hosts_whose_names_stand_for_loopback(tmp_path):
    """They meet at an address, or at a name that stands for loopback on one of the two."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    found = both(tmp_path, ADDRESSES[0], NAMES[0])
    assert [printed for printed, _ in found] == [f"[3.0, 3.0] {LINK}\n" * 2] * 2, found


@pytest.fixture
def named(monkeypatch):
    """This host's name stands for the given address, and it has these interfaces and these ways."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(torchdist.sys, "platform", "linux")
    monkeypatch.setattr(torchdist.socket, "gethostname", lambda: "hosta")

    def given(address, found=(), ways=()):
        monkeypatch.setattr(torchdist, "address_of", lambda host: address)
        monkeypatch.setattr(torchdist, "interfaces", lambda: dict(found))
        monkeypatch.setattr(torchdist, "address_towards", lambda host: dict(ways).get(host, ""))
        return os.environ

    return given


TWO = {"10.0.0.1": "eth0", "172.17.0.1": "docker0"}


def test_the_interface_towards_the_others(named):
    environ = named("127.0.1.1", TWO, {"10.0.0.9": "10.0.0.1"})
    torchdist.name_interface("10.0.0.9")
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_default_route_if_all_meet_here(named):
    environ = named("127.0.1.1", TWO, {"hosta": "127.0.0.1", torchdist.ANYWHERE: "10.0.0.1"})
    torchdist.name_interface("hosta")
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_several_and_no_route_says_what_to_set(named):
    named("127.0.1.1", TWO)
    with pytest.raises(
        RuntimeError, match=r"hosta, stands for 127\.0\.1\.1.*set GLOO_SOCKET_IFNAME.*\(eth0, doc"
    ):
        torchdist.name_interface("hosta")


@pytest.mark.parametrize(
    ("own", "master"),
    [("10.0.0.1", "10.0.0.9"), ("127.0.1.1", "localhost"), ("127.0.1.1", "127.0.0.1")],
)
def test_a_good_name_and_a_lone_machine_stay_as_they_are(own, master, named):
    environ = named(own, TWO, {"10.0.0.9": "10.0.0.1"})
    torchdist.name_interface(master)
    assert "GLOO_SOCKET_IFNAME" not in environ


def test_what_the_user_has_set_stays(named, monkeypatch):
    named("127.0.1.1", TWO, {"10.0.0.9": "10.0.0.1"})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "docker0")
    torchdist.name_interface("10.0.0.9")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "docker0"


def test_this_machine_s_own():
    found = torchdist.interfaces()
    listed = ip("-4", "-o", "address").splitlines() if missing() is None else []
    assert set(found.values()) >= {
        line.split()[1].split("@")[0] for line in listed if " lo " not in line
    } - {"lo"}
    assert torchdist.address_towards("127.0.0.1").startswith("127.") and callable(from_env)


# ------------------------------------------------------------
# Several Comms of one group: their messages never mix, nor those of their groups, meshes and lanes.


def two_on_lanes(checked):
    """Two reductions at the same time, one on a lane of each Comm, opened in another order on each rank."""
    comms = [from_env("gloo", checked=checked, timeout=30) for _ in range(2)]
    n, rank = comms[0].size, comms[0].rank
    xs = [torch.ones(4), torch.full((4,), 100.0)]
    works = [None, None]
    for i in (0, 1) if rank % 2 else (1, 0):
        works[i] = comms[i].stream(lambda lane, x: all_reduce_(lane, x), xs[i])
    for work in works:
        work.wait()
    assert [x.unique().tolist() for x in xs] == [[float(n)], [100.0 * n]], xs
    return n


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_two_from_env_on_lanes(n, checked):
    assert in_its_place(two_on_lanes, n, checked) == [n] * n


def crossed(comm, checked):
    """Each rank sends on both Comms, on parts of them, in one order, and receives in the other."""
    found = []
    comms = [comm, TorchComm(checked=checked, timeout=20)]
    parts = [c.split([0] * c.size) for c in comms]
    grids = [Mesh(c, dp=c.size).dp for c in comms]
    for pair in (comms, parts, grids):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        works = [c.isend(torch.full((3,), 10.0 * i + comm.rank), right) for i, c in enumerate(pair)]
        ys = [torch.zeros(3) for _ in pair]
        works += [pair[i].irecv(ys[i], left) for i in (1, 0)]
        for work in works:
            work.wait()
        found.append([y[0].item() for y in ys] == [left, 10.0 + left])
    total = torch.ones(2)
    comms[1].native.all_reduce(total, "sum")
    return all(found) and total.tolist() == [comm.size] * 2


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_groups_and_meshes(n, checked):
    assert launch(crossed, n, checked, transport="gloo", checked=checked) == [True] * n


def two_models():
    nets, losses = [], []
    for i in range(2):
        comm = from_env("gloo", timeout=30)
        torch.manual_seed(i)
        nets.append(DataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), comm))
    x = torch.ones(4, 6) * (comm.rank + 1)
    for net in nets:
        losses.append(net(x).square().mean())
    for loss in losses:
        loss.backward()
    for net in nets:
        if hasattr(net, "synchronize"):
            net.synchronize()
    return [[p.grad.tolist() for p in net.parameters()] for net in nets]


def test_two_models_with_a_comm_each():
    first, second = in_its_place(two_models, 2)
    assert first == second and first[0] != first[1]


def test_a_comm_that_only_one_rank_has_made_is_named():
    def program(comm):
        if comm.rank == 0:
            TorchComm(timeout=0.5).recv(torch.zeros(1), 1)

    with pytest.raises(
        RankMissing, match="this is Comm number 2 of its group, and that rank has made 1"
    ):
        launch(program, 2, transport="gloo", timeout=10)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(timeout="5"), "a timeout is a number of seconds"),
        (dict(seed="7"), "a seed is a whole number"),
        (dict(backend="mpi"), 'a backend is "gloo" or "nccl", not \'mpi\''),
        (dict(checked="no"), "checked is True, False"),
    ],
)
def test_arguments_of_from_env(kwargs, words):
    def program():
        with pytest.raises((ValueError, TypeError), match=words):
            from_env(**dict(backend="gloo") | kwargs)

    in_its_place(program, 1)


def test_a_torch_comm_needs_a_group():
    with pytest.raises(RuntimeError, match="has no group yet"):
        TorchComm()
    with pytest.raises(TypeError, match=r"process group"):
        launch(lambda comm: TorchComm("gloo") and None, 1, transport="gloo")


def late(comm, given_up, sources):
    """The first messages come when a receive from `given_up` is no more, and before the receives from `sources`."""
    short = TorchComm(timeout=60)
    if comm.rank:
        comm.recv(torch.zeros(1), 0)
        works = [short.isend(torch.full((4,), 10.0 * comm.rank + k), 0) for k in range(2)]
        comm.send(torch.ones(1), 0)
        for work in works:
            work.wait()
        return None
    first, next_one = torch.zeros(4), torch.zeros(4)
    short.timeout = 0.1
    with pytest.raises(RankMissing):
        short.recv(first, given_up)
    short.timeout = 60
    for rank in range(1, comm.size):
        comm.send(torch.ones(1), rank)
        comm.recv(torch.ones(1), rank)
    time.sleep(0.2)  # until they lie there
    came = []
    for source in sources:
        short.recv(next_one, source)
        came.append(next_one[0].item())
    return first.tolist(), came


@pytest.mark.parametrize("given_up", [1, ANY])
@pytest.mark.parametrize("sources", [(1, 1), (ANY, 1), (1, ANY), (2, 1, 1, 2)])
def test_a_receive_that_was_given_up_takes_nothing(given_up, sources):
    expected = [20, 10, 11, 21] if 2 in sources else [10, 11]
    told = launch(late, 1 + max(sources), given_up, sources, transport="gloo", timeout=60)
    assert told[0] == ([0.0] * 4, expected)


def without_headers(comm, sources):
    """Receives from `sources`, on a Comm without headers where a wildcard was given up; then the messages come."""
    short = TorchComm(timeout=5, checked=False)
    if comm.rank:
        comm.recv(torch.zeros(1), 0)
        short.send(torch.full((4,), 10.0 * comm.rank), 0)
        return None
    short.timeout = 0.1
    with pytest.raises(RankMissing):
        short.recv(torch.zeros(4), ANY)
    short.timeout = 5
    came = [torch.zeros(4) for _ in sources]
    works = [short.irecv(x, source) for x, source in zip(came, sources, strict=True)]
    for rank, work in enumerate(works, 1):
        comm.send(torch.ones(1), rank)
        work.wait()
    return [x[0].item() for x in came]


@pytest.mark.parametrize("sources", [(1,), (1, 2)])
def test_without_headers_a_wildcard_that_was_given_up_takes_nothing_from_named_receives(sources):
    told = launch(without_headers, 1 + len(sources), sources, transport="gloo", timeout=5)
    assert told[0] == [10.0 * source for source in sources]


class Told:
    """A TorchWork whose header comes when `header` is set. taking(): called while it is given the message."""

    def __init__(self, header, taking=lambda: None):
        self.header = header
        self.taking = taking
        self.took = False

    def post_header(self, op):
        return self.header

    def read_header(self, header, op):
        header.wait()
        return 1, says(op, True)

    def take_values(self, op, src):
        self.taking()
        self.took = True

    def fail(self, error):
        raise error


def inbox_of_two():
    return Inbox(SimpleNamespace(checked=True, ranks=[0, 1], rank=0))


def posted(src, header, taking=lambda: None):
    """A receive that `inbox.post` takes."""
    op = Recv(torch.zeros(3), src)
    return Receive(Told(header, taking), op, says(op, True))


def test_the_header_of_a_wildcard_that_was_given_up_is_for_whoever_is_next():
    """The message has come for it, and nobody has read that yet, when a receive from its sender is posted."""
    inbox, came = inbox_of_two(), threading.Event()
    wildcard, named = posted(ANY, came), posted(1, threading.Event())
    inbox.post([wildcard])
    assert inbox.withdraw([wildcard])
    inbox.post([named])
    came.set()
    assert named.heard.wait(20) and named.work.took and not wildcard.work.took


def test_a_receive_is_given_a_message_or_taken_back_never_both():
    """It is taken back just when its message has come: if that succeeds, the message is the next receive's."""
    for moment in range(40):
        inbox, header = inbox_of_two(), threading.Event()
        first, second = (posted(1, header, lambda: time.sleep(2e-4)) for _ in range(2))
        inbox.post([first])
        header.set()
        time.sleep(1e-5 * moment)
        taken_back = inbox.withdraw([first])
        assert first.work.took != taken_back
        inbox.post([second])
        if taken_back:
            assert second.heard.wait(20)
        assert first.work.took != taken_back and second.work.took == taken_back


def given_up(comm):
    if comm.rank == 1:
        time.sleep(1.2)
        return "later"
    work = comm.irecv(torch.zeros(4), 1)
    work.done()
    with pytest.raises(RankMissing):
        work.wait()
    return "handled"


def test_what_was_handled_is_not_raised_again_at_the_end():
    assert launch(given_up, 2, transport="gloo", timeout=0.8) == ["handled", "later"]


def when_freed(comm):
    """Whether what has been sent and received is freed with its last name, without a collection."""
    peer = 1 - comm.rank
    freed = []
    gc.disable()
    for _ in range(3):
        sent, received = torch.zeros(4), torch.zeros(4)
        for x in (sent, received):
            weakref.finalize(x, freed.append, x.nbytes)
        comm.sendrecv(sent, peer, received, peer)
        del sent, received, x
    return len(freed)


@pytest.mark.parametrize("transport", ["gloo", "shm"])
def test_what_was_received_is_freed_at_once(transport):
    """A gathered layer that stays until Python collects its circles is a layer more in memory."""
    assert launch(when_freed, 2, transport=transport) == [6, 6]
