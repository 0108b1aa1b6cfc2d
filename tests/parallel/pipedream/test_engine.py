"""PipeDream equals a serial simulation of its rule, in which every version of every layer is kept."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minidist.comm import World, launch
from minidist.parallel.pipedream import PipeDream
from minidist.parallel.schedules import ScheduleError, one_f_one_b, parse, pipedream
from tests.largest import largest, smallest
from tests.parallel.pipedream.cases import (
    OPTIMIZERS,
    RULES,
    batches,
    by_hand,
    distance,
    forward_version,
    made,
    model,
    mse,
    run,
)

BOUND = 1e-12


def cases(S, lengths):
    """(rule, M, optimizer, m)"""
    groups = [(4, "adam"), (6, "momentum"), (12, "momentum")]
    return [
        *((rule, M, "momentum", None) for rule in RULES if rule != "2bw" for M in lengths),
        ("stash", 12, "adam", None),
        ("vertical", 12, "adam", None),
        ("2bw", S, "momentum", None),
        *(("2bw", 12, optimizer, m) for m, optimizer in groups if m >= S),
    ]


FEW = [("stash", 5, "adam", None), ("vertical", 5, "momentum", None), ("2bw", 12, "momentum", 6)]


def every_case(comm, cases):
    return {case: run(comm, *case) for case in cases}


@pytest.mark.parametrize(
    ("runner", "S"),
    [
        *(("world", S) for S in (1, 2, 3, 4, 5)),
        *(("processes", S) for S in (1, 2, 3, 4)),
        ("gloo", 2),
    ],
)
def test_the_serial_simulation(runner, S):
    if runner == "world":
        results = World(S).run(every_case, cases(S, (1, 2, 3, 5, 12)))
    else:
        results = launch(every_case, S, FEW, transport="gloo" if runner == "gloo" else "shm")
    for case in results[0]:
        rule, M, optimizer, m = case
        assert (
            distance([row[case] for row in results], by_hand(rule, S, M, optimizer, m)) < BOUND
        ), case


def test_the_rules_differ():
    """So that equal to one is not equal to all."""
    runs = [World(3).run(run, rule, 12) for rule in RULES]
    for i, rule in enumerate(RULES):
        far = [distance(results, by_hand(rule, 3, 12)) for results in runs]
        assert far[i] < BOUND and smallest(far[:i] + far[i + 1 :]) > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_staleness(rule):
    S = 4
    M = 12
    m = 4
    updates = {i: i if rule != "2bw" else i // m for i in range(M)}
    for stage, (_, _, staleness, *_) in enumerate(World(S).run(run, rule, M, m=m)):
        assert staleness == [updates[i] - forward_version(rule, i, stage, S, m) for i in range(M)]


def test_a_second_stream_goes_on():
    """The pipeline is empty between two runs; optimizer states and the count of versions stay."""

    def program(comm):
        whole = (
            nn.Linear(5, 3, dtype=torch.float64)
            if comm.rank
            else nn.Linear(5, 5, dtype=torch.float64)
        )
        for p in whole.parameters():
            p.data.fill_(0.1)
        pipeline = made(comm, "vertical", OPTIMIZERS["momentum"], whole)
        pipeline.run(batches(4))
        first = pipeline.staleness
        pipeline.run(batches(3))
        return first, pipeline.staleness, pipeline.versions.newest, pipeline.versions.held

    assert World(2).run(program) == [([0, 1, 1, 1], [0, 1, 1], 7, [7])] * 2


@pytest.mark.parametrize("rule", ["stash", "vertical", "2bw"])
def test_recomputed_with_the_same_weights(rule):
    results = World(3).run(run, rule, 6, recompute=True)
    assert distance(results, by_hand(rule, 3, 6)) < BOUND


OWN = ("F0 F1 I0 W0 U0 F2 I1 F3 W1 U1 I2 I3 W2 W3 U3", "F0 I0 F1 I1 W0 U0 W1 U1 F2 B2 F3 B3 U3")
OWN_VERSIONS = {0: (0, 0), 1: (0, 0), 2: (1, 2), 3: (1, 2)}  # of the two stages, read off the lists


def own(stage, S, M):
    """One forward ahead, backwards in two halves, at the end two micro-batches an update."""
    return parse(OWN[stage])


def of_own(rank):
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3 if rank else 5)).double()


def test_a_list_of_ones_own():
    def program(comm):
        part = of_own(comm.rank)
        pipeline = PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.5), mse, schedule=own)
        pipeline.run(batches(4))
        return [p.detach() for p in part.parameters()], pipeline.staleness, pipeline.versions.most

    results = World(2).run(program)
    assert [row[1:] for row in results] == [([0, 1, 1, 1], 2), ([0, 1, 0, 0], 2)]
    for (weights, *_), expected in zip(results, expected_of_own(), strict=True):
        assert (
            largest((a - b).abs().max() for a, b in zip(weights, expected[-1], strict=True)) < BOUND
        )


def expected_of_own():
    """All versions of both stages, by autograd on the whole model."""
    versions = [[[p.detach() for p in of_own(rank).parameters()]] for rank in (0, 1)]
    for micros in ((0,), (1,), (2, 3)):
        grads = [
            gradient_of_own([versions[s][OWN_VERSIONS[i][s]] for s in (0, 1)], *batches(4)[i])
            for i in micros
        ]
        for s in (0, 1):
            versions[s].append(
                [p - 0.5 * sum(g[s][k] for g in grads) for k, p in enumerate(versions[s][-1])]
            )
    return versions


def gradient_of_own(weights, x, target):
    weights = [[p.clone().requires_grad_() for p in half] for half in weights]
    for w, b, v, c in weights:
        x = torch.tanh(x @ w.T + b) @ v.T + c
    return [torch.autograd.grad(mse(x, target), half, retain_graph=True) for half in weights]


def flops(run_it, *args):
    with FlopCounterMode(display=False) as counter:
        run_it(*args)
    return counter.get_total_flops()


def test_flops_are_those_of_the_serial_run():
    """Old weights are kept, nothing is computed again."""

    def serial():
        whole = model()
        for x, target in batches(9):
            mse(whole(x), target).backward()

    def program(comm):
        return [flops(run, comm, rule, 9) for rule in RULES]

    wanted = flops(serial)
    assert World(1).run(program) == [[wanted] * len(RULES)]
    assert [sum(column) for column in zip(*launch(program, 3), strict=True)] == [wanted] * len(
        RULES
    )


def test_other_stages():
    """Frozen, without parameters, several tensors between stages, integer inputs: as in any pipeline."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.frozen = nn.Embedding(7, 5), nn.Linear(5, 5).requires_grad_(False)

        def forward(self, tokens):
            return self.frozen(self.embedding(tokens)), tokens.clone()

    class Nothing(nn.Module):
        def forward(self, x, tokens):
            return x * tokens[..., None]

    def program(comm):
        torch.manual_seed(comm.rank)
        part = [Two(), Nothing(), nn.Linear(5, 3)][comm.rank]
        before = {name: p.clone() for name, p in part.named_parameters()}
        pipeline = PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), mse)
        pipeline.run([(torch.arange(4), torch.ones(4, 3))] * 5)
        changed = [name for name, p in part.named_parameters() if not torch.equal(p, before[name])]
        return changed, pipeline.staleness, pipeline.optimizer is None

    assert World(3).run(program) == [
        (["embedding.weight"], [0, 1, 2, 2, 2], False),
        ([], [0, 1, 1, 1, 1], True),
        (["weight", "bias"], [0] * 5, False),
    ]


def refused(error, words, S=2, M=4, rule="stash", **kwargs):
    def program(comm):
        part = nn.Linear(5, 5 - 2 * comm.rank).double()
        made(comm, rule, OPTIMIZERS["momentum"], part, **kwargs).run(batches(M))

    with pytest.raises(error, match=words):
        World(S).run(program)


def test_what_is_refused():
    refused(ValueError, "two versions do not do for 2 stages", rule="2bw", m=1)
    refused(ValueError, "3 micro-batches are not a multiple of the 2", rule="2bw", M=3)
    refused(ValueError, "at least 1 micro-batch, not 0", M=0)
    refused(
        ScheduleError,
        "stage 0, position 8, U3: the list ends without an update",
        schedule=one_f_one_b,
    )
    refused(
        ScheduleError,
        "stage 0, position 11, U3: the list ends without an update",
        schedule=lambda stage, S, M: pipedream(stage, S, M)[:-1],
    )
    with pytest.raises(ValueError, match="vertical sync means old versions"):
        World(1).run(
            lambda comm: PipeDream(
                nn.Linear(1, 1), comm, OPTIMIZERS["adam"], vertical=True, wrong_no_stash=True
            )
        )
