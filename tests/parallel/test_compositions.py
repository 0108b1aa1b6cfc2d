"""All pairs of what works on parameters and their gradients: each is right, or refused in words, and nothing else."""

import functools
import re

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.parallel.batchnorm import SyncBatchNorm
from minidist.parallel.compress import Dense
from minidist.parallel.data import DataParallel, average_gradients
from minidist.parallel.local_sgd import LocalSGD
from tests.largest import largest
from tests.parallel.cases import data, mse, replicas_equal
from tests.size import FULL

RUNNERS = {
    "World": lambda program, n, *args: World(n).run(program, *args),
    "shm": lambda program, n, *args: launch(program, n, *args),
    "gloo": lambda program, n, *args: launch(program, n, *args, transport="gloo"),
}

DP, DPC, Z1, Z2, FS, OFF, LOCAL, SBN = KINDS = (
    "DataParallel",
    "DataParallel, compressed",
    "ShardedOptimizer 1",
    "ShardedOptimizer 2",
    "FullySharded",
    "OffloadedOptimizer",
    "LocalSGD",
    "SyncBatchNorm",
)
right = "right"
again = "replaced"
no = "refused"  # a replaced one is right, too
VERDICTS = {
    #        DP     DPC    Z1     Z2     FS     OFF    LOCAL  SBN        the newer one
    DP: (again, again, no, no, no, right, no, right),
    DPC: (again, again, no, no, no, right, no, right),
    Z1: (no, no, again, again, no, no, no, right),
    Z2: (no, no, again, again, no, no, no, right),
    FS: (no, no, no, no, again, right, no, no),
    OFF: (right, right, no, no, no, again, right, right),
    LOCAL: (no, no, no, no, no, no, again, right),
    SBN: (right, right, right, right, right, right, right, again),
}
STEPS = 6
BATCH = 12
H = 2
START = 2


def net(seed, norm):
    """Of other parameters for each seed."""
    torch.manual_seed(seed)
    middle = nn.BatchNorm1d(5) if norm else nn.Identity()
    # Without a bias before the norm: its gradient is 0 but for rounding, which AdamW divides by itself.
    return nn.Sequential(
        nn.Linear(6, 5, bias=not norm), middle, nn.Tanh(), nn.Linear(5, 3)
    ).double()


class Training:
    """What a notebook has at hand: a module, what is called, what steps; each wrapper goes around what is there."""

    def __init__(self, comm, norm, *kinds):
        self.comm = comm
        # else by hand, as is the start
        self.averaged = not {DP, DPC, Z1, Z2, FS, LOCAL}.isdisjoint(kinds)
        self.module = self.model = net(comm.rank if self.averaged else 0, norm)
        self.optimizer, self.kinds = None, kinds

    def add(self, kind, comm=None):
        comm, params = comm or self.comm, self.model.parameters()
        inner = (
            functools.partial(torch.optim.SGD, lr=0.1)
            if LOCAL in self.kinds
            else functools.partial(torch.optim.AdamW, lr=0.02)
        )
        if kind == DP:
            self.model = DataParallel(self.model, comm)
        if kind == DPC:
            self.model = DataParallel(self.model, comm, compression=Dense())
        if kind in (Z1, Z2):
            self.optimizer = ShardedOptimizer(params, inner, comm, int(kind[-1]))
        if kind == FS:
            self.model = FullySharded(self.model, comm)
        if kind == OFF:
            self.optimizer = OffloadedOptimizer(params, inner, comm)
        if kind == LOCAL:
            self.optimizer = LocalSGD(self.optimizer or inner(params), comm, H, START)
        if kind == SBN:
            self.model = SyncBatchNorm.convert(self.model, comm)

    def build(self):
        for kind in self.kinds:
            self.add(kind)
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        return self

    def steps(self, steps=STEPS):
        x, y = data()
        each = BATCH // self.comm.size
        mine = slice(self.comm.rank * each, (self.comm.rank + 1) * each)
        for _ in range(steps):
            self.optimizer.zero_grad()
            mse(self.model(x[mine]), y[mine]).backward()
            if not self.averaged:
                average_gradients(self.comm, self.module)
            self.optimizer.step()
        if LOCAL in self.kinds:
            self.optimizer.average()
        if isinstance(self.model, FullySharded):
            state = self.model.full_state_dict()
            return {name: state[name] for name, p in net(0, SBN in self.kinds).named_parameters()}
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}


def serial(norm):
    """One rank with the whole batch, by AdamW."""
    model = net(0, norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    x, y = data()
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse(model(x[:BATCH]), y[:BATCH]).backward()
        optimizer.step()
    return dict(model.named_parameters())


def local(n, norm):
    """n copies on one rank, as Local SGD is defined: each steps by its own gradient, and their mean is taken after each
    of the first START steps, then after every H. The batch norm is that of all copies' samples together, and its
    gradients those of the sum of their losses: a copy that holds 1 of n equal parts of it all takes its part."""
    start = net(0, norm)
    copies = [{name: p.detach().clone() for name, p in start.named_parameters()} for _ in range(n)]
    x, y = (whole[:BATCH].chunk(n) for whole in data())
    for step in range(STEPS):
        copies = [
            {name: p.detach().requires_grad_() for name, p in copy.items()} for copy in copies
        ]
        hidden = [
            nn.functional.linear(part, copy["0.weight"], copy.get("0.bias"))
            for part, copy in zip(x, copies, strict=True)
        ]
        if norm:
            every = torch.cat(hidden)
            mean, var = every.mean(0), every.var(0, unbiased=False)
            hidden = [
                (h - mean) / (var + 1e-5).sqrt() * copy["1.weight"] + copy["1.bias"]
                for h, copy in zip(hidden, copies, strict=True)
            ]
        losses = [
            mse(nn.functional.linear(h.tanh(), copy["3.weight"], copy["3.bias"]), target)
            for h, copy, target in zip(hidden, copies, y, strict=True)
        ]
        sum(losses).backward()
        copies = [
            {name: (p - 0.1 * p.grad).detach() for name, p in copy.items()} for copy in copies
        ]
        if step < START or (step + 1 - START) % H == 0:
            mean = {name: sum(copy[name] for copy in copies) / n for name in copies[0]}
            copies = [mean] * n
    return copies[0]


def far(ours, oracle):
    assert ours.keys() == oracle.keys()
    # nan stays nan
    return torch.stack([(ours[name] - oracle[name]).abs().max() for name in oracle]).max().item()


def every_cell(comm):
    """{(older, newer): a refusal's words, or the parameters after some steps, and whether all ranks have the same}"""
    found = {}
    for older in KINDS:
        for newer in KINDS:
            training = Training(comm, SBN in (older, newer), older, newer)
            try:
                training.build()
            except ValueError as error:
                found[older, newer] = str(error)
                continue
            params = training.steps()
            found[older, newer] = params, replicas_equal(comm, list(params.values()))
    return found


def verdict(cell, oracle):
    """What became of a pair: right, or refused, or something worse."""
    if isinstance(cell, str):
        return "refused"
    params, same = cell
    if not same:
        return "ranks differ"
    distance = far(params, oracle)
    return "right" if distance < 1e-12 else f"{distance:.1e} off"


PLACES = [("World", 1), ("World", 3), ("shm", 2)] + [("World", 2), ("gloo", 2)] * FULL


@pytest.mark.parametrize(("where", "n"), PLACES)
def test_all_pairs(where, n):
    oracles = {
        (norm, locally): local(n, norm) if locally else serial(norm)
        for norm in (False, True)
        for locally in (False, True)
    }
    for found in RUNNERS[where](every_cell, n):
        wrong = {}
        for older, row in VERDICTS.items():
            for newer, expected in zip(KINDS, row, strict=True):
                pair = older, newer
                if n == 1:  # a group of one rank is across any other
                    expected = CROSSING.get(pair, expected)
                became = verdict(found[pair], oracles[SBN in pair, LOCAL in pair])
                if became != expected.replace("replaced", "right"):
                    wrong[pair] = became, found[pair] if became == "refused" else ""
                if became == "refused":
                    names = {re.match(r"\w+", kind)[0] for kind in pair}
                    if not all(name in found[pair] for name in names) or len(found[pair]) < 100:
                        wrong[pair] = found[pair]
        assert not wrong


def used_again(comm):
    """The words with which what was replaced refuses to work."""
    found = {}
    x, _ = data()
    uses = {DP: lambda t: t.model(x), DPC: lambda t: t.model(x), FS: lambda t: t.model(x)}
    for older in KINDS:
        for newer in KINDS:
            at = VERDICTS[older][KINDS.index(newer)]
            if at != again or older == SBN:
                continue
            training = Training(comm, False, older, newer)
            training.add(older)
            if older in uses:
                use = functools.partial(uses[older], training)
                model, training.model = training.model, training.module
                training.add(newer)
                training.model = model
            else:
                use = training.optimizer.step
                if LOCAL in (older, newer):
                    training.optimizer = training.optimizer.optimizer
                training.add(newer)
            with pytest.raises(RuntimeError) as error:
                use()
            found[older, newer] = str(error.value)
    return found


@pytest.mark.parametrize("where", ["World", "shm"] + ["gloo"] * FULL)
def test_what_was_replaced_says_so(where, figure):
    verdicts = [verdict for row in VERDICTS.values() for verdict in row]
    figure(
        f"{where}: of {len(verdicts)} ordered pairs {verdicts.count(again)} replace the older one, which says so, "
        f"{verdicts.count(no)} are refused"
    )
    for found in RUNNERS[where](used_again, 2):
        assert len(found) == sum(row.count(again) for row in VERDICTS.values()) - 1
        for (older, _), words in found.items():
            assert re.match(
                rf"this {re.match(r'[A-Za-z]+', older)[0]} was replaced by a newer one", words
            )


INSTEAD = {
    "an OffloadedOptimizer inside a ShardedOptimizer": lambda comm, model, stage: ShardedOptimizer(
        model.parameters(),
        functools.partial(OffloadedOptimizer, optimizer_class=torch.optim.AdamW, comm=comm),
        comm,
        stage,
        lr=0.02,
    ),
    "the same, made twice": lambda comm, model, stage: [
        ShardedOptimizer(
            model.parameters(),
            functools.partial(OffloadedOptimizer, optimizer_class=torch.optim.AdamW, comm=comm),
            comm,
            stage,
            lr=0.02,
        )
        for _ in range(2)
    ][1],
    "a ShardedOptimizer after one with an OffloadedOptimizer inside": lambda comm, model, stage: [
        ShardedOptimizer(model.parameters(), make, comm, stage, lr=0.02)
        for make in (
            functools.partial(OffloadedOptimizer, optimizer_class=torch.optim.AdamW, comm=comm),
            torch.optim.AdamW,
        )
    ][1],
}


def instead(comm, name, stage):
    training = Training(comm, False, f"ShardedOptimizer {stage}")
    training.optimizer = INSTEAD[name](comm, training.model, stage)
    return training.steps()


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("name", list(INSTEAD))
def test_what_a_refusal_says_to_do_is_right(name, stage):
    for where in ("World", "shm"):
        for params in RUNNERS[where](instead, 2, name, stage):
            assert far(params, serial(False)) < 1e-13


def test_gradients_that_leave_in_backward_cannot_be_averaged():
    def program(comm):
        make = functools.partial(
            OffloadedOptimizer, optimizer_class=torch.optim.SGD, comm=comm, in_backward=True
        )
        words = r"OffloadedOptimizer.*in_backward=(True|False)"
        data_first, optimizer_first, sharded = (net(0, False) for _ in range(3))
        DataParallel(data_first, comm)
        with pytest.raises(ValueError, match=words):
            make(data_first.parameters(), lr=0.1)
        make(optimizer_first.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=words):
            DataParallel(optimizer_first, comm)
        with pytest.raises(ValueError, match=words):
            ShardedOptimizer(sharded.parameters(), make, comm, lr=0.1)

    World(2).run(program)


def test_a_local_optimizer_inside_is_refused():
    def program(comm):
        inside = lambda params, **options: LocalSGD(torch.optim.SGD(params, **options), comm, 2)
        for dtype in (None, torch.float64):
            with pytest.raises(ValueError, match=r"ShardedOptimizer.*LocalSGD"):
                ShardedOptimizer(net(0, False).float().parameters(), inside, comm, 1, dtype, lr=0.1)
        with pytest.raises(ValueError, match=r"LocalSGD.*OffloadedOptimizer"):
            OffloadedOptimizer(net(0, False).parameters(), inside, comm, lr=0.1)

    World(2).run(program)


def landing(comm, mode):
    module = net(comm.rank, False)
    inside = OffloadedOptimizer(module.parameters(), torch.optim.SGD, comm, mode, 0, lr=0.1)
    training = Training(comm, False, LOCAL)
    training.module = training.model = module
    training.optimizer = LocalSGD(inside, comm, H, START)
    return training.steps()


def test_a_delayed_update_lands_before_an_average():
    """Within a period it is one step behind, and at its end nothing is lost: with periods of one step it is exact."""
    exact = World(2).run(landing, "exact")
    assert all(far(params, local(2, False)) < 1e-13 for params in exact)
    delayed = World(2).run(landing, "delayed")
    assert far(delayed[0], delayed[1]) == 0
    assert 0 < far(delayed[0], exact[0]) < 0.05


# Two axes of a mesh: the older one over the ranks of one, the newer over those of the other.
CROSSING = {
    (DP, LOCAL): right,
    (DPC, LOCAL): right,
    (FS, LOCAL): right,
    (LOCAL, DP): right,
    (LOCAL, DPC): right,
}


def crossing_cells(comm):
    found = {}
    inner, outer = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    for older in (DP, DPC, Z1, Z2, FS, LOCAL):
        for newer in (DP, DPC, Z1, Z2, FS, LOCAL):
            training = Training(comm, False, older, newer)
            over = {kind: outer if kind == LOCAL else inner for kind in (older, newer)}
            try:
                training.add(older, over[older])
                training.add(
                    newer,
                    outer
                    if LOCAL not in (older, newer)
                    else inner
                    if older == newer == LOCAL
                    else over[newer],
                )
            except ValueError as error:
                found[older, newer] = str(error)
                continue
            params = training.steps()
            found[older, newer] = params, replicas_equal(comm, list(params.values()))
    return found


@pytest.mark.parametrize("where", ["World", "shm"])
def test_pairs_over_two_axes_of_a_mesh(where):
    """Each pair of ranks that share an axis of gradients is one copy of Local SGD."""
    oracle = local(2, False)
    for found in RUNNERS[where](crossing_cells, 4):
        for pair, cell in found.items():
            assert (pair, verdict(cell, oracle)) == (pair, CROSSING.get(pair, no))


def grouped(comm):
    """Batch norm over pairs of ranks, gradients averaged over all."""
    found = []
    for kind in (DP, DPC, Z1, Z2, FS):
        training = Training(comm, True, SBN, kind)
        training.add(SBN, comm.split(comm.rank // 2))
        training.add(kind)
        if training.optimizer is None:
            training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.02)
        found.append(training.steps())
    return found


def test_batch_norm_over_a_part_of_the_ranks():
    model = net(0, True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    x, y = (whole[:BATCH].chunk(2) for whole in data())
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(mse(model(a), b) / 2 for a, b in zip(x, y, strict=True)).backward()
        optimizer.step()
    for where in ("World", "shm"):
        for results in RUNNERS[where](grouped, 4):
            assert (
                largest(far(params, dict(model.named_parameters())) for params in results) < 1e-12
            )


def hybrid(comm):
    """Shards in pairs, copies of them over the other axis, and a batch norm over all."""
    training = Training(comm, True, FS, SBN)
    training.model = SyncBatchNorm.convert(training.model, comm)
    training.model = FullySharded(
        training.model, comm.split(comm.rank // 2), replicas=comm.split(comm.rank % 2)
    )
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.02)
    return training.steps()


def test_hybrid_sharding_with_batch_norm_over_all():
    for params in World(4).run(hybrid):
        assert far(params, serial(True)) < 1e-12


def test_data_parallel_around_fully_sharded_points_to_replicas():
    def program(comm):
        model = FullySharded(net(0, False), comm.split(comm.rank // 2))
        with pytest.raises(ValueError, match=r"FullySharded\(module, comm, replicas=other\)"):
            DataParallel(model, comm.split(comm.rank % 2))

    World(4).run(program)
