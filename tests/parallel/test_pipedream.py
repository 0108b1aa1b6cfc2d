"""PipeDream equals a serial simulation of its rule, in which every version of every layer is kept."""

import functools
import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.pipedream import SEEDS, Layer, converge
from benchmarks.pipedream import batches as task_batches
from minidist.comm import Cluster, World, launch
from minidist.models import TransformerLayer, seeded_
from minidist.parallel.pipedream import Overwritten, PipeDream, PipeDream2BW, Versions
from minidist.parallel.schedules import lists, one_f_one_b, parse, pipedream, pipedream_2bw
from minidist.parallel.validate import ScheduleError, held
from minidist.parallel.validate import staleness as predicted_staleness
from minidist.study.predict import most_stale, most_versions, version_bytes
from minidist.tasks import digits
from tests.largest import largest, smallest
from tests.one_thread import _one_thread  # noqa: F401
from tests.parallel.pipedream_cases import (
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


# ------------------------------------------------------------
# Without stashing training fails where with it it works: by more than five seeds differ.


def test_no_stash_is_worse_by_more_than_the_spread_of_seeds():
    """Small: with stashing all five learn, without most diverge, whose loss counts as infinite."""
    outcomes = [converge(rule, 0.1, 200) for rule in ("stash", "no stash")]
    stash, without = (outcome.losses[-40:].mean(0).nan_to_num(math.inf) for outcome in outcomes)
    assert len(stash) == 5 and stash.max() < math.log(10)
    assert without.median() - stash.median() > stash.max() - stash.min()


@pytest.mark.parametrize("rule", ["flush", "vertical", "2bw"])
def test_the_others_learn(rule):
    """At a small rate the loss falls, for every seed."""
    outcome = converge(rule, 0.02, 64)
    assert outcome.losses.shape == (64, 5)
    assert (outcome.losses[-16:].mean(0) < outcome.losses[:16].mean(0) - 0.05).all()


def test_the_seeds_are_models_of_their_own():
    """Five side by side are five alone: the same start, batches and outcome."""
    together, alone = converge("stash", 0.05, 16, 2), converge("stash", 0.05, 16, 2, SEEDS[3:4])
    assert abs(together.loss[3] - alone.loss[0]) < 1e-4 and len(set(together.loss)) == 5
    task = digits(torch.float32)
    assert torch.equal(
        task_batches(task, 2, SEEDS)[1][0][3], task_batches(task, 2, SEEDS[3:4])[1][0][0]
    )
    assert torch.equal(Layer(2, SEEDS).weight[3], Layer(2, SEEDS[3:4]).weight[0])


# ------------------------------------------------------------
# Versions and staleness by formula: as counted in the lists, in runs, and by the meter of memory.


LISTS = {"stash": "newest", "vertical": "first", "2bw": "2bw", "no stash": "newest"}


def of_lists(rule, S, M, m):
    """(most versions, most stale) by stage, counted in the lists."""
    schedule = functools.partial(pipedream_2bw, m=m) if rule == "2bw" else pipedream
    made_lists, name = lists(schedule, S, M), (LISTS[rule], m if rule == "2bw" else None)
    return (
        [max(row) for row in held(made_lists, *name, stash=rule != "no stash")],
        [max(row.values()) for row in predicted_staleness(made_lists, *name)],
    )


@pytest.mark.parametrize("S", range(1, 9))
@pytest.mark.parametrize("rule", RULES)
def test_as_counted_in_the_lists(rule, S):
    for M in range(2 * S, 6 * S + 1, S):
        versions, stale = of_lists(rule, S, M, S)
        assert versions == [most_versions(rule, s, S) for s in range(S)]
        assert stale == [most_stale(rule, s, S) for s in range(S)]


@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_how_long_a_run_must_be(rule):
    S = 6
    for stage in range(S - 2):
        enough = 2 * (S - stage - 1) if rule == "stash" else 2 * (S - 1)
        assert of_lists(rule, S, enough, None)[0][stage] == most_versions(rule, stage, S)
        assert of_lists(rule, S, enough - 1, None)[0][stage] == most_versions(rule, stage, S) - 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("S", [1, 2, 3, 5])
def test_as_held_in_a_run(rule, S):
    for stage, (*_, versions, nbytes, of_stage) in enumerate(World(S).run(run, rule, 2 * S, m=S)):
        assert versions == most_versions(rule, stage, S)
        assert nbytes == version_bytes(rule, stage, S, of_stage)


@pytest.mark.parametrize("M", [1, 2, 3, 5])
def test_a_short_run_holds_what_the_lists_say(M):
    for rule in ("stash", "vertical"):
        assert [row[3] for row in World(4).run(run, rule, M)] == of_lists(rule, 4, M, None)[0]


def one_matrix(comm, rule):
    part = nn.Linear(512, 512, bias=False, device=comm.device)
    pipeline = made(comm, rule, lambda p: torch.optim.SGD(p, lr=0.1), part)
    pipeline.run([(torch.empty(2, 512, device=comm.device),) * 2] * 12)
    return pipeline.versions.most


@pytest.mark.parametrize("rule", RULES)
def test_the_meter_of_memory_says_the_same(rule):
    """A World's ledger follows every storage; it knows nothing of versions."""
    world = World(4, cluster=Cluster.dgx_h100(), device="meta")
    world.run(one_matrix, rule)
    for stage in range(4):
        at_peak = world.trace.memory[stage].at_peak
        assert at_peak["parameters"] == version_bytes(rule, stage, 4, 512 * 512 * 4)
        assert at_peak["gradients"] == 512 * 512 * 4


def test_of_equal_stages():
    whole = {rule: sum(most_versions(rule, s, 8) for s in range(8)) for rule in RULES}
    assert whole == {"stash": 36, "vertical": 64, "2bw": 16, "no stash": 8}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stashing", 0, 2), "stash, vertical, 2bw, no stash, not for 'stashing'"),
        (("stash", 2, 2), "no stage 2"),
    ],
)
def test_bad_arguments(arguments, words):
    for formula in (most_versions, most_stale):
        with pytest.raises(ValueError, match=words):
            formula(*arguments)


# ------------------------------------------------------------
# The gradient of every micro-batch is the gradient at the weights that its forward used; not so without stashing.
#
# Nothing of the pipeline is asked: a hook sees the weights that each forward runs with, an optimizer the gradients that
# it is given; afterwards the whole model, put together from the weights seen, is differentiated by autograd alone.


S = 4


class Norm(nn.Module):
    """Uses a weight twice, beside a frozen one, with what autograd saves in other ways."""

    def __init__(self):
        super().__init__()
        self.norm, self.once = nn.LayerNorm(6), nn.Linear(6, 6)
        self.twice = self.once
        self.frozen = nn.Parameter(torch.full((6,), 0.5), requires_grad=False)

    def forward(self, x):
        return self.twice(torch.sigmoid(self.once(self.norm(x)))) * self.frozen


class Attention(nn.Module):
    """A transformer layer over the batch, as if it were a text."""

    def __init__(self):
        super().__init__()
        self.layer = TransformerLayer(6, 2)

    def forward(self, x):
        return self.layer(x[None])[0]


def model_stashing():
    parts = [
        nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 6)),
        Norm(),
        Attention(),
        nn.Sequential(nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 3)),
    ]
    return seeded_(nn.Sequential(*parts).double())


class Recorded(torch.optim.SGD):
    """Remembers the gradients of every step."""

    def __init__(self, parameters, seen):
        super().__init__(parameters, lr=0.05, momentum=0.5)
        self.seen = seen

    def step(self):
        self.seen.append(
            [None if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]
        )
        super().step()


def trained(module):
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def watched(comm, rule, M, **kwargs):
    """(weights of every forward, gradients of every update) of this stage."""
    part = model_stashing()[comm.rank]
    weights = []
    gradients = []
    part.register_forward_pre_hook(
        lambda module, _: weights.append(
            {name: p.detach().clone() for name, p in trained(module).items()}
        )
    )
    made(comm, rule, functools.partial(Recorded, seen=gradients), part, **kwargs).run(batches(M))
    return weights, [dict(zip(trained(part), row, strict=True)) for row in gradients]


def gradient_at(weights, x, target, share=1.0):
    """{name: gradient} of each stage, of the whole model with these weights of its stages."""
    whole = model_stashing()
    leaves = [{name: p.clone().requires_grad_() for name, p in own.items()} for own in weights]
    for part, own in zip(whole, leaves, strict=True):
        x = functional_call(part, own, x)
    (mse(x, target) * share).backward()
    return [{name: p.grad for name, p in own.items()} for own in leaves]


def errors(results, M, m=1):
    """By micro-batch (or group of m) and stage: how far from the gradient at the weights of the forward."""
    data, found = batches(M), []
    for first in range(0, M, m):
        at = [
            gradient_at([weights[i] for weights, _ in results], *data[i], 1 / m)
            for i in range(first, first + m)
        ]
        found.append(
            [
                largest(
                    (seen[first // m][name] - sum(g[s][name] for g in at)).abs().max().item()
                    for name in seen[first // m]
                )
                for s, (_, seen) in enumerate(results)
            ]
        )
    return found


def worst(rows):
    return largest(map(largest, rows))


@pytest.mark.parametrize(
    "runner",
    [
        lambda program, *args: World(S).run(program, *args),
        lambda program, *args: launch(program, S, *args),
    ],
    ids=["world", "processes"],
)
@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_the_gradient_at_the_weights_of_the_forward(runner, rule):
    results = runner(watched, rule, 9)
    assert worst(errors(results, 9)) < 1e-12
    for s, (weights, _) in enumerate(results):  # and those were old ones
        same = [
            all(torch.equal(weights[i][name], weights[i + 1][name]) for name in weights[i])
            for i in range(8)
        ]
        assert same == [i < (S - 1 if rule == "vertical" else S - 1 - s) for i in range(8)]


def test_of_a_group():
    results = World(S).run(watched, "2bw", 12, m=4)
    assert worst(errors(results, 12, 4)) < 1e-12


def test_without_stashing_it_is_not():
    """From the first update on; only the last stage is right, whose backward comes at once."""
    found = errors(World(S).run(watched, "no stash", 9), 9)
    assert largest(found[0]) < 1e-12  # nothing has been updated before
    assert all(row[S - 1] < 1e-12 for row in found)
    for row in found[1:]:
        assert smallest(row[: S - 1]) > 1e-5, row


def nearest(rows, weights):
    """The version that these weights are."""
    far = [
        largest((row[name] - p).abs().max().item() for name, p in weights.items()) for row in rows
    ]
    assert sorted(far)[0] < 1e-12 < 1e-5 < sorted(far)[1]
    return far.index(min(far))


@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_all_stages_use_one_version_only_with_vertical_sync(rule):
    """With it the gradient of micro-batch i is that of the whole model after k updates, k the same everywhere."""
    M = 9
    results, made_by = World(S).run(watched, rule, M), []
    for weights, gradients in results:  # all versions of a stage, from its gradients
        own = weights[0]
        rows, speed = [own], {name: torch.zeros_like(p) for name, p in own.items()}
        for row in gradients:
            speed = {name: 0.5 * v + row[name] for name, v in speed.items()}
            rows.append({name: p - 0.05 * speed[name] for name, p in rows[-1].items()})
        made_by.append(rows)
    for i in range(M):
        ages = [
            nearest(rows, weights[i]) for rows, (weights, _) in zip(made_by, results, strict=True)
        ]
        assert ages == [max(0, i - (S - 1 if rule == "vertical" else S - 1 - s)) for s in range(S)]


def test_2bw_default_group_is_a_stage_each():
    def program(comm):
        return PipeDream2BW(nn.Linear(1, 1), comm, lambda p: torch.optim.SGD(p, lr=1), mse).group

    assert World(3).run(program) == [3, 3, 3]


# ------------------------------------------------------------
# Old versions stay as they were, share memory while they can, and go with their last use.


def stepping(module, change=1.0):
    """A step in place, as an optimizer makes it."""

    @torch.no_grad()
    def step():
        for p in module.parameters():
            p.add_(change)

    return step


def values(tensors):
    return {name: t.detach().clone() for name, t in tensors.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_version_stays_as_it_was():
    module = nn.Linear(3, 2)
    for p in module.parameters():
        nn.init.ones_(p)
    versions = Versions(module)
    versions.begin({0: 2, 1: 1, 2: 1, 3: 1})
    made = []
    for number in range(3):
        made.append(values(versions[number]))
        versions.advance(stepping(module))
    assert versions.held == [0, 1, 2, 3] and versions.newest == 3
    assert all(same(values(versions[number]), made[number]) for number in range(3))
    assert same(values(versions[3]), {name: p + 3 for name, p in made[0].items()})
    assert same(values(versions[3]), values(dict(module.named_parameters())))


def test_a_version_goes_with_its_last_use():
    module = nn.Linear(3, 2)
    versions = Versions(module)
    versions.begin({0: 2, 1: 1})
    memory = weakref.ref(versions[0]["weight"])
    versions.advance(stepping(module))
    versions.done(0)
    assert versions.held == [0, 1]
    versions.done(0)
    gc.collect()
    assert versions.held == [1] and memory() is None
    with pytest.raises(ValueError, match=r"version 0 .* only \[1\]"):
        versions[0]
    versions.done(1)
    assert versions.held == [1]  # the newest stays
    assert (versions.most, versions.most_bytes) == (2, 2 * 8 * 4)


def test_without_another_use_a_version_is_changed_in_place():
    module = nn.Linear(3, 2)
    versions = Versions(module)
    versions.begin({0: 1, 2: 1})
    where = module.weight.data_ptr()
    versions.done(0)
    versions.advance(stepping(module))
    versions.advance(stepping(module))
    assert module.weight.data_ptr() == where and versions.most == 1
    versions.advance(stepping(module))
    assert module.weight.data_ptr() != where and versions.nbytes == 2 * 8 * 4
    assert (
        versions[2]["weight"].data_ptr() == where
        and versions[3]["weight"].data_ptr() == module.weight.data_ptr()
    )


def loss_at(module, tensors, x):
    return functional_call(module, tensors, (x,)).pow(2).sum()


@pytest.mark.parametrize("kind", [Versions, Overwritten])
def test_backward_after_a_step(kind):
    """With the old weights; overwritten, with the new ones, and autograd says nothing."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    versions = kind(module)
    versions.begin({0: 2, 1: 1})
    used = versions[0]
    loss = loss_at(module, used, x)
    leaves = {name: p.requires_grad_() for name, p in values(used).items()}
    expected = torch.autograd.grad(loss_at(module, leaves, x), leaves.values())
    versions.advance(stepping(module, 0.1))
    loss.backward()
    wrong = [not torch.equal(t.grad, g) for t, g in zip(used.values(), expected, strict=True)]
    # nothing lies behind the last
    assert wrong == ([False] * 4 if kind is Versions else [True, True, False, False])
    assert versions.nbytes == (2 if kind is Versions else 1) * 26 * 4


def test_the_parameters_themselves_in_the_graph():
    """Autograd notices a step in place."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    loss = module(torch.ones(1, 2)).sum()
    stepping(module)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("kind", "reads_old"), [(lambda: nn.Linear(3, 3), True), (lambda: nn.LayerNorm(3), False)]
)
def test_moved_parameters_in_the_graph(kind, reads_old):
    """It does not notice that they move, and then it depends on the layer what backward reads; a version is right."""
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).pow(2).sum(), x)
    loss = module(x).pow(2).sum()
    for p in module.parameters():
        p.data = p.data + 1
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected) == reads_old
    versions = Versions(module)
    versions.begin({0: 1})
    loss = loss_at(module, versions[0], x)
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
    versions.advance(stepping(module))
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


def test_only_what_is_trained():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    versions = Versions(module)
    assert list(versions.parameters) == ["weight"] and versions.nbytes == 24
    module.bias.requires_grad_(True)
    versions.begin({})
    assert list(versions.parameters) == ["weight", "bias"]


def test_tied_weights_count_once():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    versions = Versions(module)
    versions.begin({0: 1, 1: 1})
    versions.advance(stepping(module))
    assert versions.nbytes == 2 * 8 * 4
    x = torch.ones(1, 2)
    assert not torch.equal(loss_at(module, versions[0], x), loss_at(module, versions[1], x))
    assert torch.equal(loss_at(module, versions[1], x), module(x).pow(2).sum())
