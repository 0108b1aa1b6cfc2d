"""Lesson 12: other right ways pass, what is right only somewhere does not, the oracle's mistakes are mistakes.

The usual mistakes are in course/12_operators/bugs.py, which tests/bank examines.
"""

import re
import sys
from fractions import Fraction
from threading import Thread

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

import minicheck as check
from minicheck.lessons import operators
from minicheck.lessons.operators import (
    DEVICES,
    WALLS,
    Attention,
    Entropy,
    Fused,
    RunAhead,
    Seen,
    Unseen,
    predict_operators,
)
from minicheck.oracles import operators as oracle
from tests.bank.bank import solved
from tests.largest import smallest
from tests.minicheck.examined import assert_odd_answers_are_told, rng, verdicts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


# --------------------------------------------------------------------------------------------- other right ways
def by_checkpoint(h, b):
    def gated(h, b):
        gate, value = (h + b).tensor_split(2, -1)
        return value * F.gelu(gate)

    return checkpoint(gated, h, b, use_reentrant=False)


def by_mean(parts):
    """In place of t the mean of x, which a sum with weights moves: log s + m − mean."""
    m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
    s, mean = torch.zeros_like(m), torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        p = (part - peak[:, None]).exp()
        old, new = s * (m - peak).exp(), p.sum(1)
        here = torch.where(p == 0, 0, p * part).sum(1)
        mean = (mean * old + here) / (old + new).clamp(min=1e-30)
        s, m = old + new, peak
    return s.log() + m - mean


def keys_outside(q, k, v, tile):
    """The loops in the other order: what is kept between tiles of keys lies in whole tensors, of q's size at most."""
    q, ahead = q * q.shape[1] ** -0.5, len(k) - len(q)
    m = torch.full_like(q[:, :1], torch.finfo(q.dtype).min)
    s = torch.zeros_like(q[:, :1])
    a = torch.zeros_like(q)
    for start in range(0, len(k), tile):
        for first in range(0, len(q), tile):
            mi, si, ai, qi = (x[first : first + tile] for x in (m, s, a, q))
            kj, vj = k[start : start + tile], v[start : start + tile]
            if start > first + ahead + len(qi) - 1:
                continue
            late = (
                torch.arange(start, start + len(kj))
                > torch.arange(first, first + len(qi))[:, None] + ahead
            )
            scores = torch.einsum("td,kd->tk", qi, kj).masked_fill(late, -torch.inf)
            peak = torch.maximum(mi, scores.amax(1, keepdim=True))
            p = (scores - peak).exp()
            si.mul_((mi - peak).exp()).add_(p.sum(1, keepdim=True))
            ai.mul_((mi - peak).exp()).addmm_(p, vj)
            mi.copy_(peak)
    return a / s, (m + s.log()).squeeze(1)


def no_key_too_many(q, k, v, tile):
    """From the diagonal backwards, whose tile ends with the last key that is seen."""
    out, logs = [], []
    for first in range(0, len(q), tile):
        qi = q[first : first + tile] * q.shape[1] ** -0.5
        end = first + len(qi) + len(k) - len(q)
        m, s = None, 0
        a = 0
        for start in reversed(range(0, end, tile)):
            scores = qi @ k[start : min(start + tile, end)].T
            late = torch.arange(start, start + scores.shape[1]) > torch.arange(
                end - len(qi), end
            ).unsqueeze(1)
            scores = scores.masked_fill(late, torch.finfo(q.dtype).min)
            peak = scores.amax(1, keepdim=True)
            peak = peak if m is None else torch.maximum(m, peak)
            less = 0 if m is None else (m - peak).exp()
            p = (scores - peak).exp().masked_fill(late, 0)
            s = s * less + p.sum(1, keepdim=True)
            a, m = a * less + p @ v[start : min(start + tile, end)], peak
        out.append(a / s)
        logs.append((m + s.log()).flatten())
    return [torch.cat(out), torch.cat(logs)]


def without_history(q, k, v, tile):
    """In inference mode operators arrive whole."""
    with torch.inference_mode():
        out, logs = keys_outside(q, k, v, tile)
    return out.clone(), logs.clone()


def by_set(params, decays):
    pairs = sorted(zip(params, decays, strict=True), key=lambda pair: not pair[1])
    order = [p for p, _ in pairs]
    order = [p for i, p in enumerate(order) if all(p is not before for before in order[:i])]
    flat, grads = (
        torch.zeros(sum(p.numel() for p in order), dtype=params[0].dtype) for _ in range(2)
    )
    ends = torch.tensor([0] + [p.numel() for p in order]).cumsum(0).tolist()
    with torch.no_grad():
        for p, first, end in zip(order, ends, ends[1:], strict=False):
            part = flat[first:end].view(p.shape)
            part.copy_(p)
            p.set_(part)
            p.grad = grads[first:end].view(p.shape)
    first = {id(p): p.numel() for p, decay in zip(params, decays, strict=True) if decay}
    return [flat, grads, sum(first.values())]


def in_one_memory(params, decays):
    whole = torch.zeros(2, sum({id(p): p.numel() for p in params}.values()), dtype=params[0].dtype)
    at, end = 0, 0
    done = set()
    for p, decay in sorted(zip(params, decays, strict=True), key=lambda pair: not pair[1]):
        if id(p) in done:
            continue
        done.add(id(p))
        part, grad = (row[at : at + p.numel()].view(p.shape) for row in whole)
        p.data, p.grad, at = part.copy_(p.detach()), grad, at + p.numel()
        end = at if decay else end
    return whole[0], whole[1], end


def by_users(operators, sizes, wanted):
    """Lists of lists; each tensor's reader is looked for."""
    found, tiles = [], True
    for name, kind, _, _ in operators:
        if not found or kind == "product" or kind == "reduction" and tiles:
            found.append([[name], 0])
            tiles = kind == "product"
        else:
            found[-1][0].append(name)
    for one in found:
        inside = [operator for operator in operators if operator[0] in one[0]]
        made = [write for *_, write in inside]
        one[1] += sum(
            sizes[t] for t in {t for _, _, reads, _ in inside for t in reads} if t not in made
        )
        later = [t for name, _, reads, _ in operators if name not in one[0] for t in reads]
        one[1] += sum(sizes[t] for t in made if t in wanted or t in later)
    return found


def by_events(kernels, device):
    """Which launch and which end come first, each from the ones before."""
    launches, ends = [0.0], [0.0]
    words = []
    for i, (nbytes, flops, _) in enumerate(kernels):
        ready = ends[i] if i and kernels[i - 1][2] else launches[i]
        launches.append(ready + device["launch"])
        parts = sorted(
            [(nbytes / device["bandwidth"], "memory"), (flops / device["peak"], "compute")]
        )
        words.append("launch" if launches[-1] > ends[i] else parts[1][1])
        ends.append(max(launches[-1], ends[i]) + parts[1][0])
    return [ends[-1], tuple(words)]


def exactly(kernels, device):
    seconds, words = by_events(
        [(Fraction(b), Fraction(f), asked) for b, f, asked in kernels],
        {name: Fraction(value) for name, value in device.items()},
    )
    return torch.tensor(float(seconds), dtype=torch.float64), words


def in_tensors(operators, sizes, wanted):
    return tuple(
        (tuple(names), torch.tensor(nbytes)) for names, nbytes in by_users(operators, sizes, wanted)
    )


def every_step_named(parts):
    """Nothing of the last part is let go before the next has been worked on."""
    m = torch.full_like(parts[0][:, 0], torch.finfo(parts[0].dtype).min)
    s, t = torch.zeros_like(m), torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.max(1).values)
        shift = m - peak
        correction = shift.exp()
        x = part - peak[:, None]
        p = x.exp()
        px = torch.where(p > 0, p * x, torch.zeros_like(x))
        t = correction * (t + shift * s) + px.sum(1)
        s = correction * s + p.sum(1)
        m = peak
    return s.log() - t / s


RIGHT = [
    ("geglu", by_checkpoint),
    ("entropy", by_mean),
    ("entropy", every_step_named),
    ("attention", keys_outside),
    ("attention", no_key_too_many),
    ("attention", without_history),
    ("flatten", by_set),
    ("flatten", in_one_memory),
    ("fused", by_users),
    ("fused", in_tensors),
    ("run_ahead", by_events),
    ("run_ahead", exactly),
]


def test_other_right_ways(capsys):
    assert verdicts(*[(getattr(check, exercise), answer) for exercise, answer in RIGHT]) == [
        None
    ] * len(RIGHT)
    said = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(": right.")[0] for line in said) == sorted(
        exercise for exercise, _ in RIGHT
    )


# --------------------------------------------------------------------------------------- right only somewhere
def varied(exercise, change):
    """The solution, called with other arguments, or its result changed."""
    answer = solved("12_operators")[exercise]
    return lambda *args: change(answer, *args)


def both(change):
    """Done to both results of attention."""
    return lambda f, *args: tuple(map(change, f(*args)))


WRONG = [
    ("attention", lambda f, q, k, v, tile: f(q, k, v, 64), "a tensor of|are made"),
    ("attention", both(torch.Tensor.float), "float32"),
    ("attention", lambda f, q, k, v, tile: f(q, k, v, tile)[0], "a tuple of 2"),
    ("attention", both(lambda x: x[:5]), "shape"),
    ("attention", lambda f, q, k, v, tile: (f(q, k, v, tile), f(q, k, v, tile))[0], "FLOPs"),
    ("entropy", lambda f, parts: f([torch.cat(parts, 1)]), "one part at a time"),
    ("entropy", lambda f, parts: f(parts[:3]), "numbers are wrong"),
    ("entropy", lambda f, parts: (f(parts),), "tensor"),
    ("geglu", lambda f, h, b: f(h.detach(), b), "dh is None"),
    ("geglu", lambda f, h, b: f(h.reshape(-1, h.shape[-1]), b), "shape"),
    ("geglu", lambda f, h, b: f(h, b).detach(), "no backward"),
    ("flatten", lambda f, params, decays: f(params, decays)[:2], "whole number"),
    ("flatten", lambda f, params, decays: f(params[:1], decays[:1]), "shape|no operator"),
    ("flatten", lambda f, params, decays: f(params[::-1], decays[::-1]), "should begin at"),
    ("fused", lambda f, operators, sizes, wanted: f(operators, sizes, []), "wanted"),
    ("fused", lambda f, *args: 3, "list of"),
    ("run_ahead", lambda f, *args: (f(*args)[0] * 1.001, f(*args)[1]), "should be"),
    ("run_ahead", lambda f, *args: (f(*args)[0], ["bytes"] * 12), "kernels.0. is 'bytes'"),
    ("run_ahead", lambda f, *args: (f(*args)[0], f(*args)[1][1:]), "11 words"),
]


def test_what_is_right_only_somewhere():
    found = verdicts(
        *[(getattr(check, exercise), varied(exercise, change)) for exercise, change, _ in WRONG]
    )
    for (exercise, _, words), wrong in zip(WRONG, found, strict=True):
        assert wrong and re.search(words, wrong), (exercise, words, wrong)


# -------------------------------------------------------------------------------------------------- the graders
def test_the_cases_hold_what_hurts():
    drawn = [RunAhead().draw(case, rng())[0] for case in RunAhead.cases]
    words = [oracle.run_ahead(*args)[1] for args in drawn]
    assert {word for some in words for word in some} == set(WALLS) and [] in words
    assert len({args[1]["launch"] for args in drawn}) == len(DEVICES)
    sizes = [case.given for case in Attention.cases]
    assert (
        all(T <= K for T, K, *_ in sizes)
        and any(T % tile and K % tile for T, K, _, tile, *_ in sizes)
        and any(tile > T for T, _, _, tile, *_ in sizes)
    )
    assert any(smallest(T, K) > 8 * max(d, tile) for T, K, d, tile, *_ in sizes)
    for case in Entropy.cases:
        ((parts,),) = Entropy().draw(case, rng())
        assert int(oracle.entropy(parts).isnan().sum()) == ("a nan" in case.what)
    drawn = [Fused().draw(case, rng(seed))[0] for case in Fused.cases for seed in range(3)]
    groups = [oracle.runs(operators) for operators, *_ in drawn]
    assert any(len(group) > 2 for found in groups for group in found) and any(
        len(found) > 4 for found in groups
    )


def test_the_oracle():
    h, b = (
        torch.randn(7, 6, generator=rng(1), dtype=torch.float64, requires_grad=True),
        torch.ones(6).double(),
    )
    dy = torch.randn(7, 3, generator=rng(2), dtype=torch.float64)
    (dh,) = torch.autograd.grad(oracle.geglu(h, b), h, dy)
    assert torch.allclose(oracle.dh(dy, h, b), dh, rtol=0, atol=1e-12)
    q, k, v = torch.randn(3, 9, 4, generator=rng(3), dtype=torch.float64)
    right = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert torch.allclose(oracle.attention(q, k, v)[0], right, rtol=0, atol=1e-12)
    short = oracle.attention(q[5:], k, v)
    assert torch.allclose(short[0], right[5:], rtol=0, atol=1e-12)
    assert oracle.causal_flops(4, 5, 1, 2) == (4 * (2 + 3 + 4 + 5), 4 * (2 * 4 + 2 * 5))
    with torch.no_grad():
        looks = [
            (oracle.dh_looks(dy, h, b), dh),
            (oracle.geglu_looks(h, b), oracle.geglu(h, b)),
            (oracle.attention_looks(q[5:], k, v, 4), short[0]),
            (oracle.log_looks(q[5:], k), short[1]),
        ]
    parts = torch.arange(18.0, dtype=torch.float64).view(2, 9).div(4).split(3, 1)
    looks.append((oracle.entropies(parts), oracle.entropy(parts)))
    weak = "Later keys still have a weight: with scores so far below 0, only −inf masks them."
    low = -1e6 * q[5:].abs(), k.abs(), v
    assert (looks[2][0].pop(weak) - short[0]).abs().max() < 1e-12  # only where scores are low
    assert (oracle.attention_looks(*low, 4)[weak] - oracle.attention(*low)[0]).abs().max() > 1e-4
    for some, want in looks:
        for text, wrong in some.items():
            assert (wrong - want).abs().max() > 1e-4, text


def test_entropy_by_hand():
    """Of 1/2, 1/4, 1/4: 1.5 bits."""
    parts = torch.tensor([[0.25, 0.5], [0.5, 0.25]]).log(), torch.tensor([[0.25], [0.25]]).log()
    assert torch.allclose(oracle.entropy(list(parts)), torch.full((2,), 1.5 * 0.6931472))


def test_running_ahead_by_hand():
    """Launches of 2 s: work of 5 and 1 s hides one launch; what is asked for hides none."""
    device = {"launch": 2.0, "bandwidth": 1.0, "peak": 10.0}
    kernels = [(5, 10, False), (1, 30, True), (1, 0, False)]
    assert oracle.run_ahead(kernels, device) == (13.0, ["launch", "compute", "launch"])


def test_bytes_of_a_group_by_hand():
    operators = [
        ("a", "pointwise", ["x", "x"], "t"),
        ("b", "pointwise", ["t", "y"], "u"),
        ("c", "product", ["u"], "z"),
        ("d", "pointwise", ["z", "x"], "v"),
        ("e", "reduction", ["v"], "w"),
    ]
    sizes = {"x": 1, "y": 10, "t": 100, "u": 1000, "z": 10_000, "v": 10**5, "w": 10**6}
    kernels = [(["a", "b"], 1011), (["c", "d"], 101_001), (["e"], 1_100_000)]
    assert oracle.fused(operators, sizes, ["w"]) == kernels
    assert oracle.fused(operators, sizes, ["w", "t"])[0] == (["a", "b"], 1111)


def test_predictions():
    """By hand, for other numbers: 10⁶ weights, 2 heads, T = 512, a matrix of 1,000 × 1,000."""
    values, slips = predict_operators(weights=10**6, heads=2, T=512, width=1000)
    assert values["tensors"] == pytest.approx(84e6 / 3.35e12 / 40e-6)
    assert values["mixed_ms"] == pytest.approx(0.005 + 30 / 3350)
    assert values["edge"] == pytest.approx(16.75e6 / 8) and values["kept_mib"] == 260 / 1024
    rows = values["batch"]
    ridge = 2 * rows * 1e6 / (2 * (1e6 + 2 * rows * 1e3))
    assert ridge == pytest.approx(values["queries"]) == pytest.approx(295.22, rel=1e-4)
    values, slips = predict_operators()
    assert all(
        abs(slip - values[name]) > 0.015 * values[name]
        for name, own in slips.items()
        for slip in own
    )


# ------------------------------------------------------------
# Lesson 12's meter: it counts what PyTorch's operators do, and what they do not do has no numbers.


def test_seen_counts_storages_once():
    seen = Seen([torch.ones(8)])
    x = seen.given[0]
    with seen:
        y = x + 1
        view = y[:4]
        x.add_(1)
        assert seen.alive() == 32 and seen.alive(y) == 0 and seen.knows(view) and seen.knows(x)
        assert seen.alive(view) == 16  # what else lies in the memory is counted
        z = torch.ones(2, 3) @ torch.ones(3, 4)
        del y
        assert seen.alive(z) == 32  # the view holds it
        del view
        assert seen.alive(z) == 0
    assert seen.flops == 2 * 2 * 3 * 4 and seen.edge == 4 and seen.largest == 48
    assert (
        not seen.knows(torch.ones(1))
        and not seen.knows(torch.ones(1, device="meta"))
        and not seen.knows(3)
    )


def test_seen_computes_what_pytorch_does():
    """Views, in-place operators, factories, an index by a mask, autograd; numbers are those of the real tensors."""

    def work(x):
        w = x.new_zeros(3)
        w += x[0]
        x[1:].mul_(10)
        leaf = x.T.clone().requires_grad_()
        (leaf @ x * leaf.new_full((3, 3), 2.0)).sum().backward()
        parts = torch.cat([part.amax(1, keepdim=True) for part in x.split(1)], 1)
        return [
            w,
            x,
            leaf.grad,
            parts,
            x[x > 2],
            x.sort(1).values,
            torch.tensor([1.0, x.sum().item()]),
        ]

    given = torch.arange(6.0).view(2, 3)
    seen = Seen([given.clone()])
    found, wanted = seen.plain(seen.ask(work, seen.given[0])), work(given)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and seen.left == 1


def test_seen_notes_in_which_order_tensors_are_read():
    seen = Seen([torch.ones(2), torch.ones(3)])
    a, b = seen.given
    with seen:
        _ = a.sum() + (a * 2).sum() + b.view(3, 1).sum() + a.amax()
    assert seen.readings == [0, 1, 0]


@pytest.mark.parametrize(
    "leave",
    [lambda x: x.numpy(), lambda x: x.cpu().numpy(), lambda x: x.untyped_storage().tolist()],
)
def test_numbers_do_not_leave(leave):
    seen = Seen([torch.ones(3)])
    with pytest.raises(Unseen, match="numbers leave PyTorch"):
        seen.ask(leave, *seen.given)


def test_numbers_that_leave_are_counted():
    seen = Seen([torch.arange(3.0)])
    assert (
        seen.ask(lambda x: (x.tolist(), float(x[1])), *seen.given) == ([0.0, 1.0, 2.0], 1.0)
        and seen.left == 4
    )


def test_what_is_not_seen_is_nothing():
    def in_a_thread(x, y):
        thread = Thread(target=lambda: y.copy_(x + 1))
        thread.start()
        thread.join()

    def with_modes_off(x, y):
        with _disable_current_modes():
            y.copy_(x + 1)

    for hide in (in_a_thread, with_modes_off):
        seen = Seen([torch.ones(3), torch.zeros(3)])
        seen.ask(hide, *seen.given)
        assert torch.equal(seen.plain(seen.given[1]), torch.zeros(3))
    with _disable_current_modes():
        unknown = seen.given[0] + 1
    with pytest.raises(Unseen, match="no operator that the meter saw"):
        seen.ask(lambda x: unknown + x, seen.given[0])


def test_odd_answers_are_told():
    assert_odd_answers_are_told(operators)
