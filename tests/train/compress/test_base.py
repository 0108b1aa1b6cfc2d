"""The interface: states that are saved, gradients that are accumulated, what no compression may change."""

import copy

import pytest
import torch

from minidist.comm import World
from minidist.parallel.data import DataParallel
from minidist.train.compress import DGC, Dense, Half, PowerSGD, Sign
from tests.parallel.cases import difference, replicas_equal
from tests.train.compress.cases import (
    EVERYWHERE,
    RUNS,
    Momentum,
    by_oracle,
    loss_of,
    net,
    train,
    worst,
)

MAKE = {
    "dense": Dense,
    "half": Half,
    "sign": Sign,
    "powersgd": lambda: PowerSGD(2, start=1),
    "cold": lambda: PowerSGD(1, warm_start=False),
    "dgc": lambda: DGC(0.9, small=30, clip=0.5),
    "sampled": lambda: DGC(0.9, small=30, sample=0.3, nesterov=True),
}


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("weighted", [False, True])
def test_dense_is_the_average(run, n, weighted):
    results = RUNS[run](n, train, Dense(), 4, weighted)
    assert worst(results, by_oracle(Momentum(0), n, 4, weighted)) < 1e-14


def resumed(comm, make, first, steps, through):
    """The parameters after `first + steps`, saved and loaded after `first` of them."""

    def some(model, begin, end):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(begin, end):
            if hasattr(model.compression, "set_epoch"):
                model.compression.set_epoch(step // 2)
            optimizer.zero_grad()
            loss_of(model, comm.rank, step).backward()
            optimizer.step()

    model = DataParallel(net(), comm, compression=make())
    some(model, 0, first)
    if through:
        saved = copy.deepcopy((model.state_dict(), model.compression.state_dict()))
        model = DataParallel(net(5), comm, compression=make())
        model.load_state_dict(saved[0])
        model.compression.load_state_dict(saved[1])
    some(model, first, first + steps)
    return [p.detach() for p in model.parameters()], copy.deepcopy(model.compression.state_dict())


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", MAKE)
def test_resumed_bit_for_bit(name):
    runs = [World(3).run(resumed, MAKE[name], 2, 3, through) for through in (False, True)]
    for one, other in zip(*runs, strict=True):
        assert difference(one[0], other[0]) == 0 and equal(one[1], other[1])


@pytest.mark.parametrize("name", ["sign", "powersgd", "dgc"])
def test_without_its_state_it_goes_another_way(name):
    def forgetful():
        made = MAKE[name]()
        made.load_state_dict = lambda state: None
        return made

    runs = [World(2).run(resumed, make, 3, 3, True)[0][0] for make in (MAKE[name], forgetful)]
    assert difference(*runs) > 1e-5


def test_loading_what_another_kept():
    with pytest.raises(ValueError, match=r"kept by Sign.*DGC"):
        DGC().load_state_dict(Sign().state_dict())

    def program(comm):
        compression = Sign()
        compression.load_state_dict(
            {
                "kind": "Sign",
                "progress": {},
                "parameters": {"first.weight": {"error": torch.zeros(7)}},
            }
        )
        train(comm, compression, 1)

    with pytest.raises(ValueError, match=r"first\.weight has 240 numbers.*7"):
        World(2).run(program)


def test_a_loaded_state_is_a_copy():
    one, two = Sign(), Sign()
    one.of("w")["error"] = torch.zeros(3)
    two.load_state_dict(one.state_dict())
    two.of("w")["error"].add_(1)
    assert one.of("w")["error"].sum() == 0


def accumulated(comm, make, how):
    """The gradients after two micro-batches in one of several ways, twice, and what is kept."""
    model = DataParallel(net(), comm, compression=make())
    for step in range(2):
        one, two = (lambda i=i: loss_of(model, comm.rank, 2 * step + i) / 2 for i in (1, 2))  # noqa: B023
        model.zero_grad(set_to_none=how != "zeros")
        if how == "no_sync":
            with model.no_sync():
                one().backward()
            two().backward()
        else:
            (one() + two()).backward()
        if how == "average again":
            model.average()
    return [
        p.grad.clone() for p in model.parameters() if p.grad is not None
    ], model.compression.state_dict()


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("how", ["no_sync", "average again", "zeros"])
def test_accumulation(name, how):
    for one, other in zip(
        World(3).run(accumulated, MAKE[name], "at once"),
        World(3).run(accumulated, MAKE[name], how),
        strict=True,
    ):
        assert len(one[0]) == 7 and difference(one[0], other[0]) < (
            2e-3 if name == "half" else 1e-13
        )
        for param, kept in one[1]["parameters"].items():
            for what in kept.keys() & {"error", "u", "v"}:
                assert torch.allclose(kept[what], other[1]["parameters"][param][what], atol=1e-13)


@pytest.mark.parametrize("name", ["sign", "dgc"])
def test_two_backwards_add_two_averages(name):
    """What was averaged is not compressed a second time."""

    def program(comm, twice):
        model, total = DataParallel(net(), comm, compression=MAKE[name]()), 0
        for step in range(3):
            if not twice:
                model.zero_grad()
            loss_of(model, comm.rank, step).backward()
            total = total * (not twice) + model.module.first.weight.grad
        return total

    runs = [World(2).run(program, twice) for twice in (False, True)]
    assert (runs[0][0] - runs[1][0]).abs().max() < 1e-14


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    "options", [{"overlap": False, "bucket_bytes": 1}, {"algorithm": "halving_doubling"}]
)
def test_buckets_and_algorithms_do_not_matter(name, options):
    """Nor overlap. But for the Qs, which are drawn for each bucket, and rounding."""
    if name in ("powersgd", "cold") and "bucket_bytes" in options:
        options = options | {"bucket_bytes": 2000}
    runs = [
        World(4).run(train, MAKE[name](), 3, False, False, o)
        for o in ({"bucket_bytes": 25 << 20}, options)
    ]
    assert all(same for results in runs for _, same, _ in results)
    if "algorithm" in options or name not in ("powersgd", "cold"):
        assert difference(runs[0][0][0][-1], runs[1][0][0][-1]) < (
            1e-3 if name == "half" else 1e-12
        )


class Branches(torch.nn.Module):
    """Each rank takes the branch of its choice."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(3))

    def forward(self, x, which):
        return self.branches[which](x)


@pytest.mark.parametrize("name", MAKE)
def test_what_no_rank_has_waits(name):
    """Branch 2 has a gradient in the first step, then none: None for the optimizer, and what is kept does not move."""

    def program(comm):
        torch.manual_seed(0)
        model = DataParallel(Branches().double(), comm, compression=MAKE[name]())
        seen = []
        for which in (2, comm.rank, comm.rank, 2):
            model.zero_grad()
            model(
                torch.ones(2, 12, dtype=torch.float64) * (comm.rank + 1), which
            ).square().mean().backward()
            seen.append([p.grad is not None for b in model.module.branches for p in b.parameters()])
            seen.append(
                {
                    k: x.clone()
                    for k, x in model.compression.of("branches.2.weight").items()
                    if k != "steps"
                }
            )
        return seen, replicas_equal(comm, [p.grad for p in model.module.branches[2].parameters()])

    for seen, same in World(2).run(program):
        assert same and seen[0::2] == [
            [False] * 4 + [True] * 2,
            [True] * 4 + [False] * 2,
            [True] * 4 + [False] * 2,
            [False] * 4 + [True] * 2,
        ]
        assert equal(seen[1], seen[3]) and equal(seen[1], seen[5])


@pytest.mark.parametrize("name", MAKE)
def test_meta_sends_the_same(name):
    if name == "sampled":  # how many, only values say
        return

    def program(comm, device):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 14)).to(device)
        model = DataParallel(layers, comm, compression=MAKE[name]())
        for _ in range(2):
            model(torch.ones(2, 12, device=device)).sum().backward()

    real, meta = World(3).run(program, "cpu"), World(3, device="meta").run(program, "meta")
    assert real.trace == meta.trace


def test_meta_with_a_sampled_threshold():
    def program(comm):
        layers = torch.nn.Linear(40, 40, device="meta")
        model = DataParallel(layers, comm, compression=DGC(0.9, sample=0.1))
        model(torch.ones(2, 40, device="meta")).sum().backward()

    k, w = 160, 4
    assert World(3, device="meta").run(program).trace.bytes_sent() > 6 * (w + 2) * k
