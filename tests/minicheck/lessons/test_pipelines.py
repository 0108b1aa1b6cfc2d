"""Lesson 16: other right ways pass, and what is right only for some stages, lists or worlds does not.

The usual mistakes are in course/16_pipelines/bugs.py, which tests/bank examines.
"""

import sys
from functools import cache

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons.pipelines import actions, in_order, part_of, predict_pipeline
from minicheck.oracles.pipelines import time_of, whole_gradient, words
from minidist.collectives import all_reduce_
from minidist.parallel.schedules import gpipe, lists, parse
from minidist.parallel.simulate import simulate
from tests.bank.bank import solved
from tests.minicheck.examined import accepted
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def test_other_ways_to_take_the_time(capsys):
    def recursive(lists, forward, backward):
        place = {(s, word): i for s, row in enumerate(lists) for i, word in enumerate(row)}
        under_way = set()

        @cache
        def end(s, word):
            if (s, word) in under_way or (s, word) not in place:
                raise ValueError("a circle")
            under_way.add((s, word))
            kind = word[0]
            i = place[s, word]
            last = len(lists) - 1
            needs = [(s, lists[s][i - 1])] if i else []
            needs += (
                [(s - 1, word)]
                if kind == "F" and s
                else [(s + 1, word)]
                if kind == "B" and s < last
                else []
            )
            needs += [(s, "F" + word[1:])] if kind == "B" else []
            start = max((end(*need) for need in needs), default=0)
            under_way.discard((s, word))
            return start + (forward if kind == "F" else backward)[s]

        return max(end(s, word) for s, row in enumerate(lists) for word in row)

    check.step_time(recursive)
    assert "step_time: right." in capsys.readouterr().out


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
                out.append(f"B{b}")
                b += 1
        return tuple(out)

    check.one_f_one_b(by_counting)
    assert capsys.readouterr().out.count("right.") == 1


def test_other_stages(capsys):
    def with_grad(down, up, part, words, xs, ys, loss_fn):
        """Gradients by autograd.grad, sends waited for when their stage needs nothing else."""
        rank = down.rank
        n = down.size
        held = {}
        works = []
        params = list(part.parameters())
        total = [torch.zeros_like(p) for p in params]
        for word in words:
            m = int(word[1:])
            if word.startswith("F"):
                x = xs[m].clone()
                if rank:
                    down.irecv(x, rank - 1).wait()
                x.requires_grad_(rank > 0)
                y = part(x)
                if rank + 1 < n:
                    works.append(down.isend(y, rank + 1))
                held[m] = x, y if rank + 1 < n else loss_fn(y, ys[m])
                continue
            x, y = held.pop(m)
            dy = torch.full_like(y, 1 / len(xs))
            if rank + 1 < n:
                up.recv(dy, rank + 1)
            *grads, dx = torch.autograd.grad(y, [*params, x] if rank else params, dy) + (
                () if rank else (None,)
            )
            total = [t + g for t, g in zip(total, grads, strict=True)]
            works += [up.isend(dx, rank - 1)] if rank else []
        for p, g in zip(params, total, strict=True):
            p.grad = g
        [work.wait() for work in works]

    solution = solved("16_pipelines")["run_stage"]

    def on_one_channel(down, up, part, words, xs, ys, loss_fn):
        """What is posted matches in any order: the gradients need no channel of their own."""
        solution(down, down, part, words, xs, ys, loss_fn)

    def receives_first(down, up, part, words, xs, ys, loss_fn):
        """All receives of a stage are posted before it begins, in the order of its lists."""
        rank = down.rank
        n = down.size
        kept = {}
        works = []
        numbers = {kind: [int(word[1:]) for word in words if word[0] == kind] for kind in "FB"}
        inputs = {m: xs[m].clone() for m in numbers["F"]}
        grads = {m: torch.empty_like(xs[m]) for m in numbers["B"]}
        coming = {f"F{m}": down.irecv(inputs[m], rank - 1) for m in numbers["F"] if rank}
        coming |= {f"B{m}": down.irecv(grads[m], rank + 1) for m in numbers["B"] if rank + 1 < n}
        for word in words:
            m = int(word[1:])
            if word in coming:
                coming.pop(word).wait()
            if word[0] == "F":
                x = inputs.pop(m).requires_grad_(rank > 0)
                y = part(x)
                works += [down.isend(y.detach(), rank + 1)] if rank + 1 < n else []
                kept[m] = x, y if rank + 1 < n else loss_fn(y, ys[m]) / len(xs)
            else:
                x, y = kept.pop(m)
                y.backward(grads[m] if rank + 1 < n else None)
                works += [down.isend(x.grad, rank - 1)] if rank else []
        for work in reversed(works):
            work.wait()

    assert accepted(check.run_stage, [with_grad, on_one_channel, receives_first]) == [0, 1, 2]
    assert capsys.readouterr().out.count("run_stage: right.") == 3


def test_other_sums(capsys):
    def gathers(comm, holders, tied):
        for name in sorted(holders, reverse=True):
            group = comm.split([0 if r in holders[name] else None for r in range(comm.size)])
            if group is not None:
                p = tied[name]
                mine = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = all_reduce_(group, mine.clone())

    check.sum_tied(gathers)
    assert "sum_tied: right." in capsys.readouterr().out


FITS = {
    "few stages": lambda stage, S, M: S < 5,
    "enough micro-batches": lambda stage, S, M: M >= S,
    "what stands in the grader": lambda stage, S, M: (S, M) in ((4, 8), (3, 3), (8, 16), (5, 12)),
    "not the last stage": lambda stage, S, M: stage < S - 1,
}


def test_lists_right_for_some_only():
    right = solved("16_pipelines")["one_f_one_b"]

    def only(fits):
        def answer(stage, S, M):
            words = right(stage, S, M)
            return words if fits(stage, S, M) else [*words[1:], words[0]]

        return answer

    assert accepted(check.one_f_one_b, {what: only(fits) for what, fits in FITS.items()}) == []


def test_a_stage_right_for_some_only():
    right = solved("16_pipelines")["run_stage"]

    def only(fits):
        def answer(down, up, part, words, xs, ys, loss_fn):
            good = fits(down, words, xs)
            right(down, up, part, words, xs, ys, loss_fn)
            for p in part.parameters():
                p.grad = p.grad if good else p.grad * 1.001

        return answer

    assert (
        accepted(
            check.run_stage,
            map(
                only,
                [
                    lambda down, words, xs: down.size < 4,
                    lambda down, words, xs: len(xs) < 10,
                    lambda down, words, xs: type(down).__name__ == "WorldComm",
                    lambda down, words, xs: down.rank < down.size - 1,
                ],
            ),
        )
        == []
    )


def test_the_oracle_of_times_is_the_formula():
    for S, M in ((1, 1), (3, 5), (4, 8)):
        rows = {
            kind: [words(kind, s, S, M) for s in range(S)] for kind in ("naive", "gpipe", "1f1b")
        }
        took = {kind: time_of(some, [1.0] * S, [2.0] * S) for kind, some in rows.items()}
        assert took == {"naive": 3 * S * M, "gpipe": 3 * (M + S - 1), "1f1b": 3 * (M + S - 1)}
        assert [parse(" ".join(row)) for row in rows["gpipe"]] == lists(gpipe, S, M)
    assert (
        time_of([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]], [1.0] * 2, [2.0] * 2) is None
    )
    assert time_of([["F0", "B0"], ["B0", "F0"]], [1.0] * 2, [2.0] * 2) is None


def test_the_oracle_of_gradients():
    rng = torch.Generator().manual_seed(0)
    weights = [
        [torch.randn(5, 5, generator=rng, dtype=torch.float64) for _ in range(2)] for _ in range(3)
    ]
    xs, ys = (
        [torch.randn(3, 5, generator=rng, dtype=torch.float64) for _ in range(4)] for _ in range(2)
    )
    found = whole_gradient([part_of(w) for w in weights], xs, ys, torch.nn.functional.mse_loss)
    whole = torch.nn.Sequential(*[part_of(w) for w in weights])
    torch.nn.functional.mse_loss(whole(torch.cat(xs)), torch.cat(ys)).backward()
    assert all(
        map(
            torch.allclose,
            [g for part in found for g in part],
            [p.grad for p in whole.parameters()],
        )
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "None"),
        ("F0 B0", "type str"),
        ([("F", 0)], "type tuple"),
        (["F"], "no action"),
        (["f0"], "no action"),
        ([0], "type int"),
        (["F-1"], "no action"),
    ],
)
def test_what_is_no_list_of_words(given, says):
    with pytest.raises(Wrong, match=says):
        actions(0, given)


def test_the_order_of_a_kind():
    in_order(0, parse("F0 F1 B0 F2 B1 B2"), "B", "Backwards come")
    with pytest.raises(Wrong, match="B0 comes after B1"):
        in_order(0, parse("F0 F1 B1 B0"), "B", "Backwards come")


FACTS = predict_pipeline(S=8, M=32, stage=2, share=0.1)
NUMBERS = {
    "bubble": 7 / 39,
    "gpipe_keeps": 32,
    "keeps": 6,
    "messages": 64,
    "enough": 63,
    "longer": 4 / 3,
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"bubble": 0.18}, None),
        ({"bubble": 7 / 32}, "over the time without it"),
        ({"keeps": 3}, "other way"),
        ({"messages": 32}, "one direction"),
        ({"enough": 70}, "M . S"),
        ({"longer": 2}, "three units"),
        ({"gpipe_keeps": None}, "not set yet"),
        ({"bubble": 18}, "too large"),
    ],
)
def test_predicted_numbers(numbers, says):
    assert FACTS[0] == NUMBERS
    judge(FACTS, NUMBERS | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert slips_are_wrong(FACTS)


def test_the_predicted_numbers_are_those_of_the_lists():
    plain = simulate(lists(gpipe, 8, 32))
    again = simulate(lists(gpipe, 8, 32), backward=3)
    assert again.time / plain.time == pytest.approx(NUMBERS["longer"])
    assert len(lists(gpipe, 8, 32)[2]) == NUMBERS["messages"]  # each action sends one tensor
    few = [M for M in range(55, 70) if simulate(lists(gpipe, 8, M)).bubble <= 0.1 + 1e-9]
    assert few[0] == NUMBERS["enough"]
