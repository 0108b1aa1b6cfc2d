"""Lesson 18: other right ways pass, and what is right only for some stages, lists or worlds does not.

The usual mistakes are in course/18_pipedream/bugs.py, which tests/bank examines.
"""

import sys
from copy import deepcopy

import cloudpickle
import pytest
import torch
from torch import nn
from torch.func import functional_call, vjp
from torch.nn.functional import mse_loss

import minicheck as check
from minicheck.lessons.pipedream import predict_pipedream, slope
from minicheck.oracles.pipedream import before, buffered, delayed, late_weights, updated
from minidist.comm import World
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.parallel.schedules import lists, parse, pipedream
from minidist.parallel.validate import forward_versions, staleness
from minidist.study.predict import most_stale, most_versions
from tests.bank.bank import solved
from tests.minicheck.examined import accepted
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def test_other_lists(capsys):
    def by_counting(stage, S, M):
        out = []
        f = 0
        b = 0
        while b < M:
            if f < M and f - b < S - stage:
                out.append(f"F{f}")
                f += 1
            else:
                out += [f"B{b}", f"U{b}"]
                b += 1
        return tuple(out)

    check.no_flush(by_counting)
    assert "no_flush: right." in capsys.readouterr().out


def test_other_ways_to_read_lists(capsys):
    def one_walk(words):
        version = 0
        met = {}
        late = {}
        for word in words:
            if word[0] == "F":
                met[word[1:]] = version
            elif word[0] == "B":
                late[int(word[1:])] = version - met[word[1:]]
            else:
                version += 1
        return tuple(late[m] for m in range(len(late)))

    def one_pass(lists, vertical):
        rows = []
        for words in lists:
            version, row = 0, []
            for word in words:
                row += [version] if word.startswith("F") else []
                version += word.startswith("U")
            rows.append(row)
        return tuple(rows[:1] * len(rows) if vertical else rows)

    check.staleness(one_walk)
    check.needed(one_pass)
    assert capsys.readouterr().out.count("right.") == 2


def test_another_store(capsys):
    class Counting:
        """Versions by number, with a count of their users."""

        def __init__(self, weight):
            self.versions = {0: weight.clone()}
            self.users = {0: 0}
            self.newest = 0
            self.of = {}

        def forward(self, m):
            self.of[m] = self.newest
            self.users[self.newest] += 1
            return self.versions[self.newest]

        def backward(self, m):
            version = self.of.pop(m)
            found = self.versions[version]
            self.users[version] -= 1
            if version != self.newest and not self.users[version]:
                del self.versions[version]
            return found

        def update(self, grad, rate):
            new = torch.sub(self.versions[self.newest], grad, alpha=rate)
            if not self.users[self.newest]:
                del self.versions[self.newest]
            self.newest += 1
            self.versions[self.newest], self.users[self.newest] = new, 0

    check.store(Counting)
    assert "store: right." in capsys.readouterr().out


def test_other_stages(capsys):
    def with_copies(down, up, part, words, xs, ys, loss_fn, rate):
        """A copy of the module for each micro-batch."""
        rank = down.rank
        n = down.size
        held = {}
        works = []
        for word in words:
            m = int(word[1:])
            if word.startswith("F"):
                mine, x = deepcopy(part), xs[m].clone()
                if rank:
                    down.irecv(x, rank - 1).wait()
                y = mine(x.requires_grad_())
                works += [down.isend(y, rank + 1)] if rank + 1 < n else []
                held[m] = mine, x, y if rank + 1 < n else loss_fn(y, ys[m])
            elif word.startswith("B"):
                done, x, y = held.pop(m)
                y.backward(up.recv(torch.empty_like(y), rank + 1) if rank + 1 < n else None)
                works += [up.isend(x.grad, rank - 1)] if rank else []
            else:
                with torch.no_grad():
                    for p, q in zip(part.parameters(), done.parameters(), strict=True):
                        p -= rate * q.grad
        for work in works:
            work.wait()

    solution = solved("18_pipedream")["run_pipedream"]

    def on_one_channel(down, up, part, words, xs, ys, loss_fn, rate):
        """What is posted matches in any order: the gradients need no channel of their own."""
        solution(up, up, part, words, xs, ys, loss_fn, rate)

    answers = [with_copies, with_states, with_vjp, on_one_channel]
    assert accepted(check.run_pipedream, answers) == [0, 1, 2, 3]
    assert capsys.readouterr().out.count("run_pipedream: right.") == 4


def with_vjp(down, up, part, words, xs, ys, loss_fn, rate):
    """A forward gives the function of its backward, which knows its weights."""
    stage, last = down.rank, down.rank == down.size - 1
    newest = {name: p.detach() for name, p in part.named_parameters()}
    backs, works = {}, []
    for word in words:
        m = int(word[1:])
        if word[0] == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage else xs[m]
            loss = (lambda y, m=m: loss_fn(y, ys[m])) if last else lambda y: y
            run = lambda version, x, loss=loss: loss(functional_call(part, version, x))
            y, backs[m] = vjp(run, newest, x)
            works += [] if last else [down.isend(y.detach(), stage + 1)]
        elif word[0] == "B":
            dy = torch.ones_like(y) if last else up.recv(torch.empty_like(xs[m]), stage + 1)
            grads, dx = backs.pop(m)(dy)
            works += [up.isend(dx, stage - 1)] if stage else []
        else:
            newest = {name: w - rate * grads[name] for name, w in newest.items()}
    for work in works:
        work.wait()
    part.load_state_dict(newest)


def swap(weights, numbers):
    for w, data in zip(weights, numbers, strict=True):
        w.data = data


def with_states(down, up, part, words, xs, ys, loss_fn, rate):
    """The old numbers are put back for the backward, which runs the forward's graph: right for all layers."""
    first = down.rank == 0
    last = down.rank == down.size - 1
    held = {}
    works = []
    weights = list(part.parameters())
    for kind, m in ((word[0], int(word[1:])) for word in words):
        if kind == "F":
            x = xs[m].clone() if first else down.recv(torch.empty_like(xs[m]), down.rank - 1)
            y = part(x.requires_grad_())
            works += [] if last else [down.isend(y, down.rank + 1)]
            held[m] = x, loss_fn(y, ys[m]) if last else y, [w.data for w in weights]
        elif kind == "B":
            x, y, used = held.pop(m)
            newest = [w.data for w in weights]
            swap(weights, used)
            dy = None if last else up.recv(torch.empty_like(y), up.rank + 1)
            dx, *grads = torch.autograd.grad(y, [x, *weights], dy)
            swap(weights, newest)
            works += [] if first else [up.isend(dx, up.rank - 1)]
        else:
            swap(weights, [w.data - rate * g for w, g in zip(weights, grads, strict=True)])
    for work in works:
        work.wait()


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
        """The last stage of a pipeline never copies: as the library's Versions."""

        def __init__(self, weight):
            self.newest, self.used = weight.clone(), {}

        def forward(self, m):
            self.used[m] = self.newest
            return self.newest

        def backward(self, m):
            return self.used.pop(m)

        def update(self, grad, rate):
            if any(version is self.newest for version in self.used.values()):
                self.newest = self.newest - rate * grad
            else:
                self.newest.sub_(rate * grad)

    check.store(InPlace)
    assert "store: right." in capsys.readouterr().out


FITS = {
    "few stages": lambda stage, S, M: S < 5,
    "enough micro-batches": lambda stage, S, M: M >= S,
    "what stands in the grader": lambda stage, S, M: (S, M) in ((4, 8), (3, 3), (8, 16), (5, 12)),
    "not the last stage": lambda stage, S, M: stage < S - 1,
}


def test_lists_right_for_some_only():
    right = solved("18_pipedream")["no_flush"]

    def only(fits):
        def answer(stage, S, M):
            words = right(stage, S, M)
            return words if fits(stage, S, M) else [*words[1:], words[0]]

        return answer

    assert accepted(check.no_flush, {what: only(fits) for what, fits in FITS.items()}) == []


def test_a_stage_right_for_some_only():
    right = solved("18_pipedream")["run_pipedream"]

    def only(fits):
        return lambda down, up, part, words, xs, ys, loss_fn, rate: right(
            down, up, part, words, xs, ys, loss_fn, rate if fits(down, xs) else 1.001 * rate
        )

    assert (
        accepted(
            check.run_pipedream,
            map(
                only,
                [
                    lambda down, xs: down.size < 4,
                    lambda down, xs: len(xs) < 10,
                    lambda down, xs: type(down).__name__ == "WorldComm",
                    lambda down, xs: down.rank < down.size - 1,
                ],
            ),
        )
        == []
    )


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


def test_the_updates_that_come_a_forward_later():
    for S, M in ((3, 6), (4, 2), (1, 3)):
        rows = [delayed(updated("1f1b", s, S, M, 1)) for s in range(S)]
        assert [before(row, "F") for row in rows] == [
            [max(0, m - (S - s)) for m in range(M)] for s in range(S)
        ]
        assert all(row.index(f"B{m}") < row.index(f"U{m}") for row in rows for m in range(M))


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
    run = lambda used, x: x @ used[0].T
    ends = [
        late_weights(run, [[w] for w in weights], xs, ys, mse_loss, some, 0.1)
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
    "versions": 6,
    "stale": 5,
    "stash_bytes": 3.6e9,
    "vertical_bytes": 6.4e9,
    "two_bytes": 1.6e9,
    "updates": 60,
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"versions": 3}, "other way"),
        ({"stale": 6}, "own update"),
        ({"stash_bytes": 2.8e9}, "newest version"),
        ({"vertical_bytes": 3.6e9}, "stashing"),
        ({"two_bytes": 2e8}, "all stages"),
        ({"updates": 600}, "PipeDream's"),
        ({"stale": None}, "not set yet"),
        ({"updates": 61}, "too large"),
        ({"updates": 75}, "m, not S"),
    ],
)
def test_predicted_numbers(numbers, says):
    assert FACTS[0] == NUMBERS
    judge(FACTS, NUMBERS | numbers, says)


def test_all_slips_are_wrong_numbers_and_the_right_ones_the_formulas():
    assert slips_are_wrong(FACTS)
    values, _ = FACTS
    assert (values["versions"], values["stale"]) == (
        most_versions("stash", 2, 8),
        most_stale("stash", 2, 8),
    )
    for name, rule in (
        ("stash_bytes", "stash"),
        ("vertical_bytes", "vertical"),
        ("two_bytes", "2bw"),
    ):
        assert values[name] == 1e8 * sum(most_versions(rule, s, 8) for s in range(8))
