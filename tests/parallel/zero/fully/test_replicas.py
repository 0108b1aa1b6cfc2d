"""Hybrid sharding: shards within a group, copies of them across groups, beside the serial program."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from minidist.checkpoint import Checkpoints, load, pieces
from minidist.comm import Mesh, World, launch
from minidist.parallel.data import Sampler
from minidist.parallel.zero.fully import FullySharded, traffic
from minidist.train.norm import clip_grad_norm_
from tests.parallel.cases import SAMPLES, data, made, mse, replicas_equal
from tests.parallel.zero.fully.cases import OPTIMIZERS, batches, far, serial

RUNNERS = {
    "World": lambda program, n, *args: World(n).run(program, *args),
    "shm": lambda program, n, *args: launch(program, n, *args),
    "gloo": lambda program, n, *args: launch(program, n, *args, transport="gloo"),
}
GRIDS = [(2, 2), (3, 1), (1, 3), (2, 3)]  # (ranks that share a copy, copies)
STEPS = 5


def groups(comm, s):
    """The ranks of one copy of the model, and those that hold the same shard."""
    return comm.split(comm.rank // s), comm.split(comm.rank % s)


def train(comm, s, name, optimizer, drop_last, options, steps=STEPS, clip=None):
    """This rank's part of the batch of all. Ranks start from different seeds. The state dict, and whether replicas of
    a shard are equal bit for bit."""
    inner, outer = groups(comm, s)
    model = FullySharded(made(name, comm.rank), inner, replicas=outer, **options)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    x, y = data()
    parts = list(Sampler(SAMPLES, 12, comm, shuffle=False, drop_last=drop_last))
    norms = []
    for step in range(steps):
        part = parts[step % len(parts)]
        optimizer.zero_grad()
        model.weight = None if drop_last else len(part)
        mse(model(x[part]), y[part]).backward()
        if clip:
            norms.append(model.clip_grad_norm_(clip).item())
        with comm.host:
            optimizer.step()
    return model.full_state_dict(), replicas_equal(outer, list(model.parameters())), norms


@pytest.mark.parametrize(
    ("where", "s", "r"),
    [
        *((where, s, r) for where in ("World", "shm") for s, r in GRIDS),
        ("gloo", 2, 3),
    ],
)
def test_it_trains_as_one_rank(where, s, r):
    for drop_last, name, options in [(True, "hard", {}), (False, "hard", {"blocks": nn.Linear})]:
        oracle = serial(name, "adamw", STEPS, drop_last)
        for state, same, _ in RUNNERS[where](train, s * r, s, name, "adamw", drop_last, options):
            assert same and far(state, oracle) < 1e-13


@pytest.mark.parametrize(
    "options", [{"prefetch": 0}, {"prefetch": 2, "blocks": nn.Linear}, {"offload": True}]
)
@pytest.mark.parametrize("name", ["hard", "mixed"])
def test_options(name, options):
    for drop_last in (True, False):
        oracle = serial(name, "momentum", STEPS, drop_last)
        for state, same, _ in World(4).run(train, 2, name, "momentum", drop_last, options):
            assert same and far(state, oracle) < (1e-13 if name == "hard" else 1e-5)


@pytest.mark.parametrize(("s", "r"), [(2, 2), (2, 3)])
def test_clipping_counts_each_shard_once(s, r):
    model, norms = made("hard", 0), []
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    x, y = data()
    for step in range(STEPS):
        part = batches(True)[step % len(batches(True))]
        optimizer.zero_grad()
        mse(model(x[part]), y[part]).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())
        optimizer.step()
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        for state, _, found in run(train, s * r, s, "hard", "momentum", True, {}, STEPS, 0.2):
            assert found == pytest.approx(norms, rel=1e-13)
            assert far(state, model.state_dict()) < 1e-13


def test_clipping_by_the_function_for_any_model():
    def program(comm):
        inner, outer = groups(comm, 2)
        model = FullySharded(made("mlp", 0), inner, replicas=outer)
        x, y = data()
        mse(model(x[comm.rank * 3 :][:3]), y[comm.rank * 3 :][:3]).backward()
        return clip_grad_norm_(model, 0.1, inner).item()

    model = made("mlp", 0)
    x, y = data()
    mse(model(x[:12]), y[:12]).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    assert World(4).run(program) == pytest.approx([expected] * 4, rel=1e-13)


WIDTH = 24


def traced(comm, s, steps):
    inner, outer = groups(comm, s)
    model = FullySharded(nn.Linear(WIDTH, WIDTH, bias=False), inner, replicas=outer)
    for _ in range(steps):
        model(torch.ones(1, WIDTH)).sum().backward()


@pytest.mark.parametrize(("s", "r"), [(2, 2), (3, 1), (1, 3), (2, 3), (4, 2)])
def test_bytes_of_a_step(s, r):
    """Two gathers and a reduce-scatter of N bytes within a copy; an all-reduce of N/s bytes across."""
    N = 4 * WIDTH**2
    within, across = Fraction(3 * (s - 1) * N, s), Fraction(2 * (r - 1) * N, r * s)
    for run in (RUNNERS["World"], RUNNERS["shm"]):
        one, two = (run(traced, s * r, s, steps).trace for steps in (1, 2))
        for rank in range(s * r):
            sent = {True: 0, False: 0}  # to ranks of the same copy, or of another one
            for other in range(s * r):
                link = rank, other
                if other != rank:
                    sent[other // s == rank // s] += two.bytes_sent(link=link) - one.bytes_sent(
                        link=link
                    )
            assert (sent[True], sent[False]) == (within, across)
    assert within + across == 4 * traffic(WIDTH**2, s, replicas=r)


def test_bytes_of_a_step_with_uneven_shards():
    """A part that is not even costs the same in sum over ranks."""

    def program(comm, steps):
        inner, outer = groups(comm, 2)
        # 18 numbers, 9 a shard, in 3 parts of 3
        model = FullySharded(nn.Linear(5, 3), inner, replicas=outer)
        # 21 numbers, 11 and 10, parts of 4 4 3, 4 3 3
        other = FullySharded(nn.Linear(6, 3), inner, replicas=outer)
        for _ in range(steps):
            (model(torch.ones(1, 5)).sum() + other(torch.ones(1, 6)).sum()).backward()

    sent = [World(6).run(program, steps).trace.bytes_sent() for steps in (1, 2)]
    assert sent[1] - sent[0] == 6 * 4 * traffic(18 + 21, 2, replicas=3)


def test_a_full_state_dict_from_one_rank_reaches_all():
    def program(comm, found):
        inner, outer = groups(comm, 2)
        model = FullySharded(made("hard", comm.rank), inner, replicas=outer)
        here = inner.rank == 1 and outer.rank == 0
        model.load_full_state_dict(found if here else None, root=1)
        return model.full_state_dict(), model.full_state_dict(root=0)

    wanted = made("hard", 7).state_dict()
    for runner in (RUNNERS["World"], RUNNERS["shm"]):
        for rank, (everywhere, at_root) in enumerate(runner(program, 4, wanted)):
            assert far(everywhere, wanted) == 0
            assert bool(at_root) == (rank % 2 == 0)


def saved(comm, folder, s, r, steps):
    mesh = Mesh(comm, dp=r, tp=s)
    model = FullySharded(made("mlp", comm.rank), mesh.tp, replicas=mesh.dp)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    checkpoints = Checkpoints(folder, comm)
    found = checkpoints.latest()
    if found is not None:
        load(found, model, optimizer)
    x, y = data()
    each = 12 // comm.size
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model(x[comm.rank * each :][:each]), y[comm.rank * each :][:each]).backward()
        optimizer.step()
    checkpoints.save(steps if found is None else found.step + steps, pieces(model, optimizer))
    return model.full_state_dict()


def test_a_checkpoint_goes_from_one_grid_to_another(tmp_path):
    """And is written once, however many copies there are."""
    model = made("mlp", 0)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    x, y = data()
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x[:12]), y[:12]).backward()
        optimizer.step()
    for run, (s, r) in (
        (RUNNERS["World"], (2, 2)),
        (RUNNERS["shm"], (1, 3)),
        (RUNNERS["World"], (3, 2)),
    ):
        for state in run(saved, s * r, str(tmp_path), s, r, 2):
            last = state
    assert far(last, model.state_dict()) < 1e-13


@pytest.mark.parametrize("kind", ["the same ranks", "other shards"])
def test_replicas_that_do_not_hold_the_same_shard(kind):
    def program(comm):
        inner = comm.split([0, 0, 1, 1])
        if kind == "the same ranks":
            outer, words = (
                inner,
                r"shards lie on the ranks \[., .\], and their replicas on \[., .\]",
            )
        else:
            outer, words = comm.split([0, 1, 1, 0]), "these 2 ranks hold shard . of 2, shard . of 2"
        with pytest.raises(ValueError, match=words):
            FullySharded(nn.Linear(3, 3), inner, replicas=outer)

    World(4).run(program)


def test_other_replicas_inside():
    def program(comm):
        inner, outer = groups(comm, 2)
        net = nn.Sequential(FullySharded(nn.Linear(3, 3), inner), nn.Linear(3, 3))
        with pytest.raises(
            ValueError, match="other replicas, 1 of each shard, than the one around it, with 2"
        ):
            FullySharded(net, inner, replicas=outer)

    World(4).run(program)


def test_one_inside_with_the_same_replicas():
    def program(comm):
        inner, outer = groups(comm, 2)
        net = made("mlp", comm.rank)
        net[0] = FullySharded(net[0], inner, replicas=outer)
        model = FullySharded(net, inner, replicas=outer)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        x, y = data()
        for _ in range(2):
            optimizer.zero_grad()
            mse(model(x[comm.rank * 3 :][:3]), y[comm.rank * 3 :][:3]).backward()
            optimizer.step()
        return model.full_state_dict()

    model = made("mlp", 0)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    x, y = data()
    for _ in range(2):
        optimizer.zero_grad()
        mse(model(x[:12]), y[:12]).backward()
        optimizer.step()
    for state in World(4).run(program):
        assert far(state, model.state_dict()) < 1e-13
