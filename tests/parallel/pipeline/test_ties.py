"""Tied parameters: equal at the start, their gradients summed once over the stages that hold them."""

import pytest
import torch

from minidist.collectives import all_gather_json
from minidist.comm import World, launch
from minidist.models import gpt, next_token_loss, sequence
from minidist.parallel.pipeline import Pipeline, partition
from minidist.parallel.pipeline.ties import Ties, looks
from minidist.parallel.schedules import gpipe, interleaved, one_f_one_b, zb_h1
from tests.parallel.pipeline.test_executor import TRANSPORTS

SHAPE = dict(layers=3, hidden=8, heads=2, vocab=13, context=6, dtype=torch.float64)


def batch():
    random = torch.Generator().manual_seed(0)
    return [torch.randint(0, 13, (5, 6), generator=random) for _ in range(2)]


def train(comm, schedule, v, steps):
    """A GPT in S·v parts, started from other seeds on every rank but for what is tied: it becomes rank 0's."""
    parts = sequence(gpt(**SHAPE))
    mine = [
        parts[first:end]
        for first, end in partition([1] * len(parts), comm.size * v)[comm.rank :: comm.size]
    ]
    tables = [p for chunk in mine for p in chunk.parameters() if p.shape == (13, 8)]
    tied = dict(zip(["tokens"], tables, strict=False))
    if comm.rank:
        for p in tied.values():
            p.data.mul_(2)
    pipeline = Pipeline(mine, comm, schedule, next_token_loss, tied=tied)
    parameters = {id(p): p for chunk in mine for p in chunk.parameters()}.values()
    optimizer = torch.optim.SGD(parameters, lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):  # gradients of two batches accumulate
            pipeline.step(2 * comm.size, *(x.repeat(2, 1) for x in batch()))
        optimizer.step()
    return {
        name: p.detach()
        for chunk in mine
        for name, p in chunk.named_parameters(remove_duplicate=False)
    }


def oracle(M, steps):
    model = gpt(**SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x, y = (x.repeat(2, 1) for x in batch())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            for a, b in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
                (next_token_loss(model(a), b) * (len(a) / len(x))).backward()
        optimizer.step()
    return dict(sequence(model).named_parameters(remove_duplicate=False))


@pytest.mark.parametrize(
    ("transport", "n", "schedule", "v"),
    [
        ("world", 1, one_f_one_b, 1),
        ("world", 1, interleaved, 2),
        ("world", 2, interleaved, 2),
        ("world", 2, gpipe, 1),
        ("world", 3, zb_h1, 1),
        ("world", 4, one_f_one_b, 1),
        ("world", 5, zb_h1, 1),
        ("processes", 3, one_f_one_b, 1),
    ],
)
def test_the_serial_steps(transport, n, schedule, v):
    results = (
        World(n).run(train, schedule, v, 3)
        if transport == "world"
        else launch(train, n, schedule, v, 3, transport=TRANSPORTS[transport])
    )
    expected, seen = oracle(2 * n, 3), set()
    for found in results:
        seen |= set(found)
        for name, p in found.items():
            assert (p - expected[name]).abs().max() < 1e-12, name
    assert seen == set(expected)
    copies = [p for found in results for name, p in found.items() if name.endswith("tokens.weight")]
    assert len(copies) == 2 and torch.equal(*copies), "both copies have taken the same steps"


def sums(comm, holders, grads, before=None, frozen=False):
    """What a rank's gradient is after Ties have begun and ended."""
    p = torch.nn.Parameter(torch.full((2,), float(comm.rank)), requires_grad=not frozen)
    tied = {"p": p} if comm.rank in holders else {}
    ties = Ties(comm, tied, all_gather_json(comm, looks(tied)))
    if before is not None:
        p.grad = torch.full((2,), before)
    ties.begin()
    if grads[comm.rank] is not None:
        add = torch.full((2,), grads[comm.rank])
        p.grad = add if p.grad is None else p.grad + add
    ties.end()
    return p.detach()[0].item(), None if p.grad is None else p.grad[0].item()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_sums(n):
    grads = [float(2**r) for r in range(n)]
    everyone = range(n)
    assert World(n).run(sums, everyone, grads) == [(0.0, sum(grads))] * n
    assert World(n).run(sums, everyone, grads, 100.0) == [(0.0, 100 + sum(grads))] * n, (
        "not summed again"
    )


def test_some_hold_it_and_some_have_no_gradient():
    assert World(4).run(sums, [1, 3], [1.0, None, 4.0, 8.0]) == [
        (0.0, 1.0),
        (1.0, 8.0),
        (2.0, 4.0),
        (1.0, 8.0),
    ]
    assert World(2).run(sums, [0, 1], [None, None], frozen=True) == [(0.0, None), (0.0, None)]


def test_two_names_are_two_sums():
    def program(comm):
        tied = {name: torch.nn.Parameter(torch.zeros(3)) for name in ("aé", "b")[: comm.rank + 1]}
        ties = Ties(comm, tied, all_gather_json(comm, looks(tied)))
        ties.begin()
        for name, p in tied.items():
            p.grad = torch.full((3,), 1.0 if name == "b" else 10.0)
        ties.end()
        return {name: p.grad[0].item() for name, p in tied.items()}

    assert World(2).run(program) == [{"aé": 20.0}, {"aé": 20.0, "b": 1.0}]


def test_shapes_that_do_not_match():
    def program(comm):
        tied = {"p": torch.zeros(2 + comm.rank)}
        Ties(comm, tied, all_gather_json(comm, looks(tied)))

    with pytest.raises(
        ValueError, match=r"p is tied, but \(2,\) float32 on rank 0 and \(3,\) float32 on rank 1"
    ):
        World(2).run(program)
