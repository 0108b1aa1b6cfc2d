"""Lesson 09: other right ways pass, and what is right only for some formats, steps, functions or ranks does not.

The usual mistakes are in course/09_precision/bugs.py, which tests/bank examines.
"""

import math
import sys
from fractions import Fraction

import cloudpickle
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome, near
from minicheck.lessons.precision import (
    CALLS,
    FP32,
    PREDICTED,
    MasterStep,
    Overflowed,
    RoundTo,
    Scaler,
    ShardedStep,
    as_float,
    plain,
    predict_precision,
    probe,
    scale_of,
    tensors,
)
from minicheck.oracles.precision import (
    COUNTING,
    LOADING,
    ROUNDING,
    SLIPS,
    Masters,
    blamed,
    finite,
    looks_like,
    rounded,
    scales,
)
from minidist.collectives import all_gather
from tests.bank.bank import solved
from tests.largest import largest, smallest
from tests.minicheck.examined import accepted, assert_wrong
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
rng = lambda: torch.Generator().manual_seed(0)


# ------------------------------------------------------------------------------------------------------- the oracles
@pytest.mark.parametrize(
    ("exponent", "fraction", "dtype"),
    [(5, 10, torch.float16), (8, 7, torch.bfloat16), (5, 2, torch.float8_e5m2)],
)
def test_rounding_is_that_of_torch(exponent, fraction, dtype):
    numbers, *_ = RoundTo().draw(Case(1, "", (exponent, fraction)), rng())[0]
    low = torch.tensor(numbers).to(dtype).double().tolist()
    assert [rounded(x, exponent, fraction) for x in torch.tensor(numbers).double().tolist()] == low


def test_every_slip_of_rounding_is_known():
    for case in RoundTo.cases[2:5]:
        numbers, exponent, fraction = RoundTo().draw(case, rng())[0]
        right = [rounded(x, exponent, fraction) for x in numbers]
        for text, slip in ROUNDING.items():
            wrong = [rounded(x, exponent, fraction, **slip) for x in numbers]
            assert wrong != right and looks_like(numbers, wrong, exponent, fraction) == text
        assert looks_like(numbers, right, exponent, fraction) is None


def test_masters_are_those_of_torch_sgd():
    case = MasterStep.cases[2]
    weights, masters, momenta, places, grads, scale, lr, mu = MasterStep().draw(case, rng())[0]
    params = [torch.nn.Parameter(m.clone()) for m in masters]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=mu)
    for p, v in zip(params, momenta, strict=True):
        optimizer.state[p]["momentum_buffer"] = v.clone()
    mine = Masters(weights, masters, momenta, places, scale, lr, mu)
    for step in grads:
        assert mine.step(step)
        for p, g in zip(params, step, strict=True):
            p.grad = g.float() / scale
        optimizer.step()
    assert all(near(x, p.detach(), FP32) for x, p in zip(mine.masters, params, strict=True))
    assert all(map(torch.equal, mine.weights, [m.half() for m in mine.masters]))


def test_parts_of_a_shared_gradient_are_added_as_autograd_adds_them():
    case = next(case for case in MasterStep.cases if case.what == "a weight at three places")
    weights, masters, momenta, places, grads, scale, lr, mu = MasterStep().draw(case, rng())[0]
    params = [torch.nn.Parameter(m.clone()) for m in masters]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=mu)
    for p, v in zip(params, momenta, strict=True):
        optimizer.state[p]["momentum_buffer"] = v.clone()
    mine = Masters(weights, masters, momenta, places, scale, lr, mu)
    for step in grads:
        assert mine.step(step)
        optimizer.zero_grad()
        for i, g in zip(places, step, strict=True):
            (params[i] * g.float() / scale).sum().backward()
        optimizer.step()
    assert all(near(x, p.detach(), FP32) for x, p in zip(mine.masters, params, strict=True))


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_of_a_step_shows_somewhere(slip):
    for case in MasterStep.cases:
        *start, grads, scale, lr, mu = MasterStep().draw(case, rng())[0]
        right, wrong = (Masters(*start, scale, lr, mu, name) for name in ("", slip))
        told = [right.step(step) == wrong.step(step) for step in grads]
        if not all(told) or not all(
            near(x, y, FP32)
            for x, y in zip(
                wrong.masters + wrong.momenta, right.masters + right.momenta, strict=True
            )
        ):
            return
    pytest.fail(f"{slip} never shows")


def test_scales_are_those_of_torch():
    found = (torch.rand(60, generator=rng()) < 0.2).tolist()
    theirs, w = torch.amp.GradScaler("cpu", 64.0, 3.0, 0.25, 4), torch.nn.Parameter(torch.ones(1))
    optimizer, seen = torch.optim.SGD([w], lr=0.0), []
    for bad in found:
        w.grad = torch.full((1,), math.inf if bad else 1.0)
        theirs.scale(torch.ones(()))
        theirs.step(optimizer)
        theirs.update()
        seen.append(theirs.get_scale())
    assert scales((64.0, 3.0, 0.25, 4, 1, 0.0), found) == seen


def test_a_patient_scale_by_hand():
    marks = "x.x..xx...xxxx"
    found = [mark == "x" for mark in marks]
    patient = [8, 8, 4, 4, 4, 2, 1.5, 1.5, 1.5, 3, 3, 1.5, 1.5, 1.5]
    assert scales((8.0, 2.0, 0.5, 3, 2, 1.5), found) == patient


def test_every_slip_of_a_scale_shows_in_a_case():
    drawn = [case.given for case in Scaler.cases if case.given[1]]
    for slip in COUNTING:
        rows = [(how, [mark == "x" for mark in marks]) for how, marks in drawn]
        assert any(scales(how, found, slip) != scales(how, found) for how, found in rows), slip
    saved = {case.what: case.given for case in Scaler.cases if "saved" in case.what}
    assert len(saved) == 2
    for slip in LOADING:
        rows = [(how, [mark == "x" for mark in marks]) for how, marks in saved.values()]
        assert any(scales(how, found, slip, 4) != scales(how, found) for how, found in rows), slip


def test_who_is_to_blame():
    """Each kind of call shows one way of looking at it wrongly."""
    calls = [Overflowed()._call(kind, kind, rng()) for kind in CALLS]
    assert blamed(calls) == ["overflow", "nan", "a pair", "a list", "in place", "a number"]
    assert finite([1, "x", None, (torch.arange(3), {"a": 2.0})])
    assert not any(map(finite, ([math.nan], {"a": (1, torch.tensor([math.inf]))})))


def test_networks_overflow_where_they_should():
    """The answer by hand: what each operator of the network gives, in fp16."""
    for case in [case for case in Overflowed.cases if isinstance(case.given, str)]:
        for seed in range(20):
            (_, given), *_ = Overflowed().draw(case, torch.Generator().manual_seed(seed))
            assert (
                solved("09_precision")["overflowed"](
                    lambda *given: Overflowed()._network([], *given), *given
                )
                == Overflowed.networks[case.given]
            )


def test_a_probe_is_seen_by_modes():
    seen, names = [], []

    class Notes(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    f, x = probe("f_1", seen), torch.ones(2)
    with Notes():
        f([x, x], other=x)
    f(x, 3)
    assert (
        names[0] == "f_1"
        and [len(given) for given, *_ in seen] == [3, 1]
        and seen[0][1] == ["other"]
    )
    assert len(tensors(([x, (x,)], {"a": x, "b": 3}))) == 3


# -------------------------------------------------------------------------------------------------- other right ways
def test_other_ways_to_round(capsys):
    def by_fractions(x, exponent, fraction):
        if math.isinf(x):
            return x
        bias, q = 2 ** (exponent - 1) - 1, abs(Fraction(x))
        p = 1 - bias
        while q >= Fraction(2) ** (p + 1):
            p += 1
        y = float(round(q / Fraction(2) ** (p - fraction)) * Fraction(2) ** (p - fraction))
        return math.copysign(math.inf if y >= 2.0 ** (bias + 1) else y, x)

    check.round_to(by_fractions)
    assert "round_to: right." in capsys.readouterr().out


def test_other_steps(capsys):
    def by_optimizer(weights, masters, momenta, grads, scale, lr, mu):
        grads = [None if g is None else g.to(torch.float32) * (1 / scale) for g in grads]
        if any(bool((g - g).isnan().any()) for g in grads if g is not None):
            return torch.tensor(False)
        params = {id(m): torch.nn.Parameter(m) for m in masters}
        optimizer = torch.optim.SGD(params.values(), lr=lr, momentum=mu)
        for m, v, g in zip(masters, momenta, grads, strict=True):
            p = params[id(m)]
            optimizer.state[p]["momentum_buffer"] = v
            if g is not None:
                p.grad = g if p.grad is None else p.grad + g
        optimizer.step()
        for w, m in zip(weights, masters, strict=True):
            if params[id(m)].grad is not None:
                w.copy_(m)
        return True

    check.master_step(by_optimizer)
    assert "master_step: right." in capsys.readouterr().out


def test_other_scales_lists_and_ranks(capsys):
    class ByTensor:
        def __init__(self, init, growth, backoff, interval, patience, least):
            self.scale = torch.tensor(init, dtype=torch.float64)
            self.how = (growth, backoff, interval)
            self.least = torch.tensor(least, dtype=torch.float64)
            self.patience = patience
            self.left = patience
            self.run = []

        def scaled(self, loss):
            return loss.to(torch.float32).mul(self.scale.float())

        def update(self, found):
            self.run = [] if found else [*self.run, 1]
            self.left -= found
            if found and self.left <= 0:
                self.scale = torch.maximum(self.scale * self.how[1], self.least)
            if len(self.run) == self.how[2]:
                self.scale = self.scale * self.how[0]
                self.run = []
                self.left = self.patience

        def state(self):
            return [self.scale.item(), len(self.run), self.left]

        def load(self, state):
            self.scale = torch.tensor(state[0], dtype=torch.float64)
            self.run = [1] * state[1]
            self.left = state[2]

    def gathers(comm, weights, grads, scale, lr):
        mine = torch.tensor([any(not g.isfinite().all() for g in grads)], dtype=torch.uint8)
        good = not all_gather(comm, mine).any()
        for w, g in zip(weights, grads, strict=True):
            w.sub_(g * (lr / scale) if good else 0)
        return scale if good else torch.tensor(scale / 2)

    check.scaler(ByTensor)
    check.sharded_step(gathers)
    assert capsys.readouterr().out.count("right.") == 2


@pytest.mark.parametrize("name", ["round_to", "master_step", "scaler", "autocast", "overflowed"])
def test_an_error_where_there_are_no_ranks_names_none(name):
    assert_wrong(f"^{name}: [^:]*: your code raised", getattr(check, name), [lambda *args: 1 // 0])


def test_nor_does_an_error_in_another_process():
    class Tuples(solved("09_precision")["Scaler"]):
        def load(self, state):
            if not isinstance(state["counts"], tuple):
                raise TypeError("counts")
            self.scale = state["scale"]
            self.good, self.bad = state["counts"]

        def state(self):
            return {"scale": self.scale, "counts": (self.good, self.bad)}

    words = "^scaler: saved in one process, loaded in another: your code raised TypeError: counts"
    assert_wrong(words, check.scaler, [Tuples])


# ---------------------------------------------------------------------------------------------------- right only here
ROUNDED = [
    lambda x, e, f: (e, f) in ((5, 10), (8, 7), (4, 3), (3, 4), (6, 9)),
    lambda x, e, f: abs(x) < 2.0 ** (2 ** (e - 1)),
    lambda x, e, f: x >= 0,
    lambda x, e, f: x != 1.0,
]


def test_numbers_right_for_some_only():
    right = solved("09_precision")["round_to"]
    only = lambda fits: lambda x, e, f: right(x, e, f) if fits(x, e, f) else 7.0
    assert accepted(check.round_to, map(only, ROUNDED)) == []


SPOILED = [
    lambda w, m, v, g: m[0].mul_(1.00001),
    lambda w, m, v, g: v[2].mul_(1.00001),
    lambda w, m, v, g: w[1].mul_(1.01),
    lambda w, m, v, g: g[0].mul_(2),
    lambda w, m, v, g: w.__setitem__(0, w[0].clone()),
    lambda w, m, v, g: g.clear(),
    lambda w, m, v, g: g.append(g[0]),
    lambda w, m, v, g: torch._amp_update_scale_(m[0], v[0], g[0], 2.0, 0.5, 2),
]


def test_a_step_that_is_nearly_right():
    right = solved("09_precision")["master_step"]

    def spoiled(spoil):
        def answer(weights, masters, momenta, grads, *rest):
            if spoil.__code__.co_names == ("__setitem__", "clone"):
                # then the model's own tensor is no longer updated
                spoil(weights, masters, momenta, grads)
            told = right(weights, masters, momenta, grads, *rest)
            spoil(weights, masters, momenta, grads)
            return told

        return answer

    assert accepted(check.master_step, map(spoiled, SPOILED)) == []


def test_ranks_that_agree_here_only():
    right = solved("09_precision")["sharded_step"]

    def only(fits):
        def answer(comm, weights, grads, scale, lr):
            told = right(comm, weights, grads, scale, lr)
            return told if fits(comm) else told / 4

        return answer

    assert_wrong(
        "scale",
        check.sharded_step,
        map(
            only,
            [
                lambda comm: comm.size < 4,
                lambda comm: comm.rank == 0,
                lambda comm: type(comm).__name__ == "WorldComm",
            ],
        ),
    )


def test_ranks_that_say_nothing_in_processes():
    """Whatever they do there without a message: one of the two cases is of the other kind."""
    right = solved("09_precision")["sharded_step"]

    def silent(skips):
        def answer(comm, weights, grads, scale, lr):
            if type(comm).__name__ == "WorldComm":
                return right(comm, weights, grads, scale, lr)
            return scale / 2 if skips else right(comm.split(comm.rank), weights, grads, scale, lr)

        return answer

    assert_wrong("3 real processes", check.sharded_step, map(silent, [True, False]))


def test_weights_that_are_other_tensors():
    right = solved("09_precision")["sharded_step"]

    def spoiled(spoil):
        def answer(comm, weights, grads, scale, lr):
            told = right(comm, weights, grads, scale, lr)
            if weights:
                weights[0].data = spoil(weights[0])
            return told

        return answer

    assert_wrong(
        r"weights\[0\] (has|is of)",
        check.sharded_step,
        map(
            spoiled,
            [
                lambda w: w.double(),
                lambda w: w[:1],
                lambda w: w.to(torch.complex128),
                lambda w: w.int(),
            ],
        ),
    )


@pytest.mark.parametrize("lists", ["white", "black", "gray"])
def test_modes_right_for_some_only(lists):
    right = solved("09_precision")["Autocast"]

    def spoiled(where):
        class Spoiled(right):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                plain_call = (
                    self.dtype == torch.bfloat16
                    if where == "float16 only"
                    else isinstance(args[0], list)
                )
                if func.__name__ in getattr(self, lists) and plain_call:
                    return func(*args, **(kwargs or {}))
                return super().__torch_function__(func, types, args, kwargs)

        return Spoiled

    assert_wrong(
        f"a {lists} function",
        check.autocast,
        map(spoiled, ["float16 only", "two at most"]),
    )


def test_looking_right_for_some_only():
    right = solved("09_precision")["overflowed"]

    def only(fits):
        def answer(function, *given):
            found = right(function, *given)
            return found if fits(found) else found[:-1]

        return answer

    two = [lambda found: len(found) != 6, lambda found: found != ["exp"]]
    assert_wrong("is not in the list", check.overflowed, map(only, two))


def test_another_way_to_look(capsys):
    class Differences(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = {}

        def __torch_function__(self, func, types, args=(), kwargs=None):
            before = self.calm((args, tuple((kwargs or {}).values())))
            out = func(*args, **(kwargs or {}))
            if before > self.calm(out):
                self.seen[func.__name__] = None
            return out

        def calm(self, value):
            if isinstance(value, (list, tuple)):
                return all(map(self.calm, value))
            return not isinstance(value, (float, torch.Tensor)) or bool(
                (torch.as_tensor(value).double() * 0 == 0).all()
            )

    def by_class(function, *given):
        with Differences() as differences:
            function(*given)
        return (*differences.seen,)

    check.overflowed(by_class)
    assert "overflowed: right." in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------ small things
def test_the_cases_of_steps_hold_what_hurts():
    drawn = {case.what: MasterStep().draw(case, rng())[0] for case in MasterStep.cases}
    tiny = drawn["gradients near 2⁻³⁰"]
    # lost, if divided in half
    assert all((g / tiny[5]).abs().max() < 2**-24 for step in tiny[4] for g in step)
    large = drawn["large gradients, all finite"]
    assert all(g.isfinite().all() and g.sum().isinf() for step in large[4] for g in step)
    parts = drawn["a shared weight with large parts"][4]
    assert all((step[0] + step[4]).isinf().any() for step in parts)
    weights, _, _, _, grads, scale, lr, _ = drawn["updates below a step of the weights"]
    # half a step of fp16 at 1
    assert largest(float((lr * g.float() / scale).abs().max()) for g in grads[0]) < 2**-11
    assert smallest(float(w.abs().min()) for w in weights) >= 1


def test_states_and_scales():
    assert plain({"a": 1.0, "b": [2, None]})
    assert not any(map(plain, ({"a": torch.ones(1)}, {1: 2}, {3})))
    assert (
        as_float(torch.tensor(2.0)) == as_float(2) == scale_of(2) == 2
        and type(as_float(np.float64(2))) is float
    )
    assert math.isnan(scale_of("2")) and math.isnan(scale_of(True))


def test_traffic_is_judged():
    case = ShardedStep.cases[0]
    args = ShardedStep().draw(case, rng())
    results = [
        {"scale": s, "weights": [w - lr * g / s for w, g in zip(ws, gs)]} for ws, gs, s, lr in args
    ]
    ShardedStep().judge(case, args, Outcome(results, [(0, 1, 16)]))
    for sent, says in (
        ([(0, 1, 17)], "17 bytes"),
        ([(0, 1, 1)] * 3, "3 messages"),
    ):
        with pytest.raises(Wrong, match=f"rank 0 sends {says}"):
            ShardedStep().judge(case, args, Outcome(results, sent))


NUMBERS = {
    "climbs": 1 + 100 / 1024,
    "stops": 0.5,
    "stuck": 4096.0,
    "states": 27.0,
    "momentum": 18.0,
    "faster": 1 / (0.8 * 67 / 989 + 0.1),
    "recovered": 12000.0,
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"faster": 6.5}, None),
        ({"climbs": 1 + 75 / 1024}, "fp32"),
        ({"stops": 1}, "tie"),
        ({"stuck": 2048}, "step is 2"),
        ({"states": 24}, "Gradients in fp16"),
        ({"recovered": 6000}, "two doublings"),
        ({"climbs": None}, "not set yet"),
        ({"climbs": 2}, "too large"),
        ({"momentum": 9}, "O3"),
        ({"faster": 14.8}, "products alone"),
    ],
)
def test_predicted_numbers(numbers, says):
    facts = predict_precision()
    assert facts[0] == NUMBERS
    judge(facts, NUMBERS | numbers, says)


def test_no_slip_is_right_for_any_student():
    for _, choices in PREDICTED.own.values():
        assert choices
    for updates, part in [(100, 0.8), (50, 0.7), (200, 0.75), (300, 0.9), (400, 0.9)]:
        for billions in (1.5, 1.3, 2.7, 6.7):
            assert slips_are_wrong(predict_precision(updates, billions, part))


def test_sums_in_half_run_as_predicted():
    """What PyTorch adds up, for the three numbers that a run can tell."""

    def added(begin, update, times, dtype):
        w = torch.tensor(begin, dtype=dtype)
        for _ in range(times):
            w += update
        return w.item()

    for updates in (50, 100, 200, 300, 400):
        values, _ = predict_precision(updates)
        assert added(1.0, 0.75 * 2.0**-10, updates, torch.float16) == values["climbs"]
    assert added(0.25, 2.0**-9, 1000, torch.bfloat16) == NUMBERS["stops"]
    assert added(0.0, 2.0, 5000, torch.float16) == NUMBERS["stuck"]
