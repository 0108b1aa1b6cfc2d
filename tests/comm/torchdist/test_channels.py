"""Several Comms of one group: their messages never mix, nor those of their groups, meshes and lanes."""

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import Mesh, RankMissing, from_env, launch
from minidist.comm.torchdist import TorchComm
from minidist.parallel.data import DataParallel
from tests.comm.torchrun import in_its_place


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
        (dict(seed=None), "a seed is a whole number"),
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
