"""Lesson 18: other right ways pass, and what is right only for some stages, lists or worlds does not.

The usual mistakes are in course/18_pipedream/bugs.py, which tests/bank examines.
"""

import sys
from copy import deepcopy
from math import pi, sin

import cloudpickle
import pytest
import torch
from torch import nn
from torch.func import functional_call, vjp
from torch.nn.functional import mse_loss

import minicheck as check
from minicheck.lessons.pipedream import predict_pipedream, slope
from minicheck.oracles.pipedream import before, buffered, holding, late_weights, updated, within
from minidist.comm import World
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.parallel.schedules import lists, parse, pipedream
from minidist.parallel.validate import forward_versions, held, staleness
from minidist.study.predict import most_versions
from tests.bank.bank import solved
from tests.minicheck.examined import accepted
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def test_other_lists(capsys):
    def by_counting(stage, S, M, room):
        out = []
        f = 0
        b = 0
        while b < M:
            if f < M and f - b < min(S - stage, *room[: stage + 1]):
                out.append(f"F{f}")
                f += 1
            else:
                out += [f"B{b}", f"U{b}"]
                b += 1
        return tuple(out)

    check.no_flush(by_counting)
    assert "no_flush: right." in capsys.readouterr().out


def test_other_ways_to_read_lists(capsys):
    def one_walk(lists, leader):
        met = []
        rows = []
        for words, lead in zip(lists, leader):
            version = 0
            late = {}
            met.append({})
            for word in words:
                if word[0] == "F":
                    met[-1][word[1:]] = version
                elif word[0] == "B":
                    late[int(word[1:])] = version - met[lead][word[1:]]
                else:
                    version += 1
            rows.append(tuple(late[m] for m in range(len(late))))
        return tuple(rows)

    def intervals(lists, leader):
        """A version is held from its update, or its first use, to its last."""
        peaks = []
        for words, lead in zip(lists, leader):
            used = {}
            for i, word in enumerate(lists[lead]):
                if word[0] == "F":
                    used[word[1:]] = sum(w[0] == "U" for w in lists[lead][:i])
            ends = [i for i, word in enumerate(words) if word[0] == "U"]
            lives = []
            for version, made in enumerate([0, *ends]):
                last = [i for i, w in enumerate(words) if w[0] == "B" and used[w[1:]] == version]
                newest_until = ends[version] if version < len(ends) else len(words)
                lives.append((made, max([newest_until, *last])))
            counts = (sum(a <= i < b for a, b in lives) for i in range(len(words)))
            peaks.append(max(counts))
        return tuple(peaks)

    check.staleness(one_walk)
    check.needed(intervals)
    assert capsys.readouterr().out.count("right.") == 2


def test_another_store(capsys):
    class Counting:
        """Versions by number, with a count of their users."""

        def __init__(self, weight):
            self.versions = {0: weight.clone()}
            self.users = {0: 0}
            self.newest = 0
            self.asked = 0
            self.of = {}

        def swept(self):
            for version in list(self.versions):
                if version < self.asked and not self.users[version]:
                    del self.versions[version]

        def forward(self, m, number):
            self.of[m] = self.asked = number
            self.users[number] += 1
            self.swept()
            return self.versions[number]

        def backward(self, m):
            version = self.of.pop(m)
            found = self.versions[version]
            self.users[version] -= 1
            self.swept()
            return found

        def update(self, grad, rate):
            new = torch.sub(self.versions[self.newest], grad, alpha=rate)
            self.newest += 1
            self.versions[self.newest], self.users[self.newest] = new, 0

    check.store(Counting)
    assert "store: right." in capsys.readouterr().out


def test_other_stages(capsys):
    solution = solved("18_pipedream")["run_2bw"]

    def on_one_channel(down, up, *rest):
        """What is posted matches in any order: the gradients need no channel of their own."""
        solution(up, up, *rest)

    assert accepted(check.run_2bw, [with_buffers, with_vjp, on_one_channel]) == [0, 1, 2]
    assert capsys.readouterr().out.count("run_2bw: right.") == 3


def with_vjp(down, up, part, words, xs, ys, loss_fn, rate, m):
    """A forward gives the function of its backward, which knows its weights."""
    stage, last = down.rank, down.rank == down.size - 1
    made = [{name: p.detach() for name, p in part.named_parameters()}]
    backs, works = {}, []
    total, count = {}, 0
    for word in words:
        i = int(word[1:])
        if word[0] == "F":
            x = down.recv(torch.empty_like(xs[i]), stage - 1) if stage else xs[i]
            loss = (lambda y, i=i: loss_fn(y, ys[i])) if last else lambda y: y
            run = lambda version, x, loss=loss: loss(functional_call(part, version, x))
            y, backs[i] = vjp(run, made[max(0, i // m - 1)], x)
            works += [] if last else [down.isend(y.detach(), stage + 1)]
        elif word[0] == "B":
            dy = torch.ones_like(y) if last else up.recv(torch.empty_like(xs[i]), stage + 1)
            grads, dx = backs.pop(i)(dy)
            works += [up.isend(dx, stage - 1)] if stage else []
            total = {name: g + total[name] if count else g for name, g in grads.items()}
            count += 1
        else:
            made.append({name: w - rate * total[name] / count for name, w in made[-1].items()})
            made[: len(made) - 2] = [None] * (len(made) - 2)
            total, count = {}, 0
    for work in works:
        work.wait()
    part.load_state_dict(made[-1])


def with_buffers(down, up, part, words, xs, ys, loss_fn, rate, m):
    """Two copies of the module, which take turns; gradients add up in the one that is used."""
    first, last = down.rank == 0, down.rank == down.size - 1
    copies = [deepcopy(part), deepcopy(part)]
    held, works = {}, []
    updates, count = 0, 0
    for word in words:
        i = int(word[1:])
        if word[0] == "F":
            x = xs[i].clone() if first else down.recv(torch.empty_like(xs[i]), down.rank - 1)
            version = max(0, i // m - 1)
            y = copies[version % 2](x.requires_grad_())
            works += [] if last else [down.isend(y, down.rank + 1)]
            held[i] = x, loss_fn(y, ys[i]) if last else y
        elif word[0] == "B":
            x, y = held.pop(i)
            y.backward(None if last else up.recv(torch.empty_like(y), up.rank + 1))
            works += [] if first else [up.isend(x.grad, up.rank - 1)]
            count += 1
        else:
            used = copies[max(0, updates - 1) % 2]
            newest, other = copies[updates % 2], copies[(updates + 1) % 2]
            for p, q, r in zip(newest.parameters(), other.parameters(), used.parameters()):
                q.data = p.data - rate * r.grad / count
                r.grad = None
            updates, count = updates + 1, 0
    for work in works:
        work.wait()
    part.load_state_dict(copies[updates % 2].state_dict())


def test_other_two_versions(capsys):
    def kept_all(weight, grad, xs, rate, m):
        made = [weight]
        for g in range(len(xs) // m):
            grads = [grad(made[max(0, g - 1)], x) for x in xs[g * m : g * m + m]]
            made.append(made[-1] - rate * torch.stack(grads).mean(0))
        return made[-1]

    check.two_versions(kept_all)
    assert "two_versions: right." in capsys.readouterr().out


def test_a_store_that_reuses_what_nobody_needs(capsys):
    class InPlace:
        """The first version is a copy, which is changed where nobody else will ask for it."""

        def __init__(self, weight):
            self.versions, self.newest = {0: weight.clone()}, 0
            self.used, self.asked = {}, 0

        def forward(self, m, number):
            self.asked = number
            for old in [k for k in self.versions if k < number]:
                del self.versions[old]
            self.used[m] = self.versions[number]
            return self.used[m]

        def backward(self, m):
            return self.used.pop(m)

        def update(self, grad, rate):
            self.versions[self.newest + 1] = self.versions[self.newest].clone().sub_(rate * grad)
            self.newest += 1

    check.store(InPlace)
    assert "store: right." in capsys.readouterr().out


FITS = {
    "few stages": lambda stage, S, M, room: S < 5,
    "enough micro-batches": lambda stage, S, M, room: M >= S,
    "what stands in the grader": lambda stage, S, M, room: (S, M) in ((4, 8), (3, 7), (5, 12)),
    "not the last stage": lambda stage, S, M, room: stage < S - 1,
    "as much room as before": lambda stage, S, M, room: room == sorted(room, reverse=True),
}


def test_lists_right_for_some_only():
    right = solved("18_pipedream")["no_flush"]

    def only(fits):
        def answer(stage, S, M, room):
            words = right(stage, S, M, room)
            return words if fits(stage, S, M, room) else [*words[1:], words[0]]

        return answer

    assert accepted(check.no_flush, {what: only(fits) for what, fits in FITS.items()}) == []


def test_a_stage_right_for_some_only():
    right = solved("18_pipedream")["run_2bw"]

    def only(fits):
        return lambda down, up, part, words, xs, ys, loss_fn, rate, m: right(
            *(down, up, part, words, xs, ys, loss_fn),
            rate if fits(down, xs, m) else 1.001 * rate,
            m,
        )

    fits = [
        lambda down, xs, m: down.size < 4,
        lambda down, xs, m: len(xs) < 10,
        lambda down, xs, m: type(down).__name__ == "WorldComm",
        lambda down, xs, m: down.rank < down.size - 1,
        lambda down, xs, m: len(xs) % m == 0,
    ]
    assert accepted(check.run_2bw, map(only, fits)) == []


def test_the_lists_of_the_grader():
    for S, M in ((1, 3), (3, 5), (4, 8)):
        rows = [updated("1f1b", s, S, M, 1) for s in range(S)]
        assert [parse(" ".join(row)) for row in rows] == lists(pipedream, S, M)
        late = [
            [b - f for f, b in zip(before(row, "F"), before(row, "B"), strict=True)] for row in rows
        ]
        assert late == [list(row.values()) for row in staleness(lists(pipedream, S, M))]
        assert [before(row, "F") for row in rows] == [
            list(row.values()) for row in forward_versions(lists(pipedream, S, M))
        ]


def test_the_versions_that_the_grader_counts():
    for S, M, every in ((1, 3, 1), (3, 5, 1), (4, 8, 1), (4, 12, 3)):
        rows = [updated("1f1b", s, S, M, every) for s in range(S)]
        parsed = [parse(" ".join(row)) for row in rows]
        for rule, leader in (("newest", range(S)), ("first", [0] * S)):
            found = [
                holding(row, before(rows[lead], "F"))
                for row, lead in zip(rows, leader, strict=True)
            ]
            assert found == held(parsed, rule)


def test_room_for_all_is_the_usual_list():
    for S, M in ((1, 3), (3, 5), (4, 2)):
        assert [within(s, S, M, [9] * S) for s in range(S)] == [
            updated("1f1b", s, S, M, 1) for s in range(S)
        ]


def test_the_list_whose_last_forward_goes_back_first():
    assert updated("last in", 0, 2, 2, 1) == ["F0", "F1", "B1", "U1", "B0", "U0"]


def drawn(S, M):
    rng = torch.Generator().manual_seed(S)
    weights, xs, ys = (
        [torch.randn(3, 3, generator=rng, dtype=torch.float64) for _ in range(n)] for n in (S, M, M)
    )
    return [w / 3 for w in weights], xs, ys


def trained(comm, weights, xs, ys, vertical):
    part = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    part.weight = nn.Parameter(weights[comm.rank].clone())
    PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), mse_loss, vertical=vertical).run(
        list(zip(xs, ys))
    )
    return part.weight.detach()


@pytest.mark.parametrize("vertical", [False, True])
@pytest.mark.parametrize("S", [1, 2, 3, 4])
def test_the_oracle_of_late_gradients_is_the_pipeline(S, vertical):
    weights, xs, ys = drawn(S, 9)
    found = World(S).run(trained, weights, xs, ys, vertical)
    late = [S - 1] * S if vertical else range(S)[::-1]
    met = lambda some: [[max(0, m - behind) for m in range(9)] for behind in some]
    run = lambda used, x: x @ used[0].T
    ends = [
        late_weights(run, [[w] for w in weights], xs, ys, mse_loss, met(some), 0.1)
        for some in (late, [9] * S)
    ]
    assert all(
        torch.allclose(got, own[0], rtol=1e-12) for got, own in zip(found, ends[0], strict=True)
    )
    assert not any(
        torch.allclose(got, own[0], rtol=1e-3) for got, own in zip(found, ends[1], strict=True)
    )


def buffered_run(comm, weight, xs):
    part = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    part.weight = nn.Parameter(weight[None].clone())
    half_square = lambda y, t: (y - t).square().sum() / 2
    pipeline = PipeDream2BW(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), half_square, m=3)
    pipeline.run([(x[None], torch.ones(1, 1, dtype=torch.float64)) for x in xs])
    return part.weight.detach()[0]


def test_the_oracle_of_two_versions_is_the_pipeline():
    rng = torch.Generator().manual_seed(3)
    weight, *xs = (torch.randn(4, generator=rng, dtype=torch.float64) for _ in range(13))
    want = buffered(weight, slope, xs, 0.1, 3)
    assert torch.allclose(World(1).run(buffered_run, weight, xs)[0], want, rtol=1e-12)
    assert not torch.allclose(buffered(weight, slope, xs, 0.1, 4), want, rtol=1e-3)


FACTS = predict_pipedream(S=8, stage=2, M=600, m=10, nbytes=100_000_000)
NUMBERS = {
    "stage_bytes": 8e8,
    "stash_bytes": 4.4e9,
    "vertical_bytes": 7.2e9,
    "two_bytes": 1.8e9,
    "updates": 60,
    "gain": 60 * 17 / 607,
    "rates": 2 * sin(pi / 6) / (2 * sin(pi / 30)),
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"stage_bytes": 5e8}, "other way"),
        ({"stage_bytes": 18e8}, "held once"),
        ({"stash_bytes": 3.5e9}, "newest version"),
        ({"stash_bytes": 3.6e9}, "twice"),
        ({"vertical_bytes": 4.4e9}, "stashing"),
        ({"two_bytes": 2e8}, "all stages"),
        ({"updates": 600}, "PipeDream's"),
        ({"gain": None}, "not set yet"),
        ({"gain": 1.7}, "endless"),
        ({"updates": 61}, "too large"),
        ({"updates": 75}, "m, not S"),
        ({"rates": 9.567}, "by one update"),
    ],
)
def test_predicted_numbers(numbers, says):
    assert FACTS[0] == NUMBERS
    judge(FACTS, NUMBERS | numbers, says)


def test_all_slips_are_wrong_numbers_and_the_right_ones_the_formulas():
    assert slips_are_wrong(FACTS)
    values, _ = FACTS
    assert values["stage_bytes"] == 1e8 * (most_versions("stash", 2, 8) + 2)
    for name, rule in (
        ("stash_bytes", "stash"),
        ("vertical_bytes", "vertical"),
        ("two_bytes", "2bw"),
    ):
        assert values[name] == 1e8 * sum(
            most_versions(rule, s, 8) * (1 + (s == 0)) for s in range(8)
        )
