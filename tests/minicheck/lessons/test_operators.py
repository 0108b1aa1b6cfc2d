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
    Flatten,
    Fused,
    Normalizer,
    Roofline,
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
def by_checkpoint(x, b):
    return checkpoint(lambda x, b: F.gelu(x + b), x, b, use_reentrant=False)


def by_log(parts):
    """m, and log s merged by logaddexp."""
    m = total = torch.full(parts[0].shape[:1], -torch.inf, dtype=parts[0].dtype)
    for part in parts:
        m, total = torch.maximum(m, part.amax(1)), torch.logaddexp(total, part.logsumexp(1))
    return m, (total - m).exp()


def keys_outside(q, k, v, tile):
    """The loops in the other order: what is kept between tiles of keys lies in whole tensors, of q's size at most."""
    q = q * q.shape[1] ** -0.5
    m = torch.full_like(q[:, :1], torch.finfo(q.dtype).min)
    s = torch.zeros_like(q[:, :1])
    a = torch.zeros_like(q)
    for kj, vj in zip(k.split(tile), v.split(tile), strict=True):
        for mi, si, ai, qi in zip(*(x.split(tile) for x in (m, s, a, q)), strict=True):
            scores = torch.einsum("td,kd->tk", qi, kj)
            peak = torch.maximum(mi, scores.amax(1, keepdim=True))
            p = (scores - peak).exp()
            si.mul_((mi - peak).exp()).add_(p.sum(1, keepdim=True))
            ai.mul_((mi - peak).exp()).addmm_(p, vj)
            mi.copy_(peak)
    return a / s


def without_history(q, k, v, tile):
    """In inference mode operators arrive whole."""
    with torch.inference_mode():
        out = keys_outside(q, k, v, tile)
    return out.clone()


def by_set(params):
    flat, grads = (
        torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype) for _ in range(2)
    )
    ends = torch.tensor([0] + [p.numel() for p in params]).cumsum(0).tolist()
    with torch.no_grad():
        for p, first, end in zip(params, ends, ends[1:], strict=False):
            part = flat[first:end].view(p.shape)
            part.copy_(p)
            p.set_(part)
            p.grad = grads[first:end].view(p.shape)
    return [flat, grads]


def in_one_memory(params):
    whole, at = torch.zeros(2, sum(p.numel() for p in params), dtype=params[0].dtype), 0
    for p in params:
        part, grad = (row[at : at + p.numel()].view(p.shape) for row in whole)
        p.data, p.grad, at = part.copy_(p.detach()), grad, at + p.numel()
    return whole[0], whole[1]


def by_users(operators, sizes, wanted):
    """Lists of lists; each tensor's reader is looked for."""
    found = []
    for i, (name, kind, _, _) in enumerate(operators):
        if i and kind == operators[i - 1][1] == "pointwise":
            found[-1][0].append(name)
        else:
            found.append([[name], 0])
    for one in found:
        inside = [operator for operator in operators if operator[0] in one[0]]
        made = [write for *_, write in inside]
        one[1] += sum(
            sizes[t] for t in {t for _, _, reads, _ in inside for t in reads} if t not in made
        )
        later = [t for name, _, reads, _ in operators if name not in one[0] for t in reads]
        one[1] += sum(sizes[t] for t in made if t in wanted or t in later)
    return found


def by_sorting(launches, nbytes, flops, device):
    parts = [(launches * device["launch"], "launch"), (nbytes / device["bandwidth"], "memory")]
    parts.append((flops / device["peak"], "compute"))
    return [parts[0][0] + max(parts[1:])[0], sorted(parts)[-1][1]]


def by_fractions(launches, nbytes, flops, device):
    seconds, word = by_sorting(*map(Fraction, (launches, nbytes, flops)), device)
    return torch.tensor(seconds, dtype=torch.float64), word


def exactly(launches, nbytes, flops, device):
    exact = {name: Fraction(value) for name, value in device.items()}
    return by_sorting(launches, nbytes, flops, exact)


def in_tensors(operators, sizes, wanted):
    return tuple(
        (tuple(names), torch.tensor(nbytes)) for names, nbytes in by_users(operators, sizes, wanted)
    )


RIGHT = [
    ("bias_gelu", by_checkpoint),
    ("normalizer", by_log),
    ("attention", keys_outside),
    ("attention", without_history),
    ("flatten", by_set),
    ("flatten", in_one_memory),
    ("fused", by_users),
    ("fused", in_tensors),
    ("roofline", by_sorting),
    ("roofline", by_fractions),
    ("roofline", exactly),
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


WRONG = [
    ("attention", lambda f, q, k, v, tile: f(q, k, v, 64), "a tensor of|are made"),
    ("attention", lambda f, q, k, v, tile: f(q, k, v, tile).float(), "float32"),
    ("attention", lambda f, q, k, v, tile: f(q, k, v, tile)[: len(k)], "shape"),
    (
        "attention",
        lambda f, q, k, v, tile: f(q.float(), k.float(), v.float(), tile).to(q.dtype),
        "numbers are wrong",
    ),
    (
        "attention",
        lambda f, q, k, v, tile: (f(q, k, v, tile), f(q, k, v, tile))[0],
        "FLOPs of products",
    ),
    ("normalizer", lambda f, parts: f([torch.cat(parts, 1)]), "one part at a time"),
    ("normalizer", lambda f, parts: f(parts[:3]), "numbers are wrong"),
    ("normalizer", lambda f, parts: f(parts)[0], "of m is|m.0. is|m has shape|type|None"),
    ("bias_gelu", lambda f, x, b: f(x.detach(), b), "dx is None"),
    ("bias_gelu", lambda f, x, b: f(x.reshape(-1, x.shape[-1]), b), "shape"),
    ("bias_gelu", lambda f, x, b: f(x, b).detach(), "no backward"),
    ("flatten", lambda f, params: f(params)[::-1], "numbers are wrong|no view|values"),
    ("flatten", lambda f, params: f(params[:2]), "shape"),
    ("flatten", lambda f, params: f(params[::-1]), "should begin at"),
    ("fused", lambda f, operators, sizes, wanted: f(operators, sizes, []), "wanted"),
    ("fused", lambda f, *args: 3, "list of"),
    ("roofline", lambda f, *args: (f(*args)[0] * 1.001, f(*args)[1]), "should be"),
    ("roofline", lambda f, *args: (f(*args)[0], "bytes"), "the word is 'bytes'"),
]


def test_what_is_right_only_somewhere():
    found = verdicts(
        *[(getattr(check, exercise), varied(exercise, change)) for exercise, change, _ in WRONG]
    )
    for (exercise, _, words), wrong in zip(WRONG, found, strict=True):
        assert wrong and re.search(words, wrong), (exercise, words, wrong)


# -------------------------------------------------------------------------------------------------- the graders
def test_the_cases_hold_what_hurts():
    for case in Roofline.cases:
        ((launches, nbytes, flops, device),) = Roofline().draw(case, rng())
        assert oracle.seconds(launches, nbytes, flops, device)[1] == case.given[1]
    assert len(DEVICES) * len(WALLS) == len(Roofline.cases)
    sizes = [case.given for case in Attention.cases]
    assert any(T % tile and K % tile for T, K, _, tile, *_ in sizes) and any(
        tile > T for T, _, _, tile, *_ in sizes
    )
    assert any(smallest(T, K) > 8 * max(d, tile) for T, K, d, tile, *_ in sizes)
    for case in Normalizer.cases:
        ((parts,),) = Normalizer().draw(case, rng())
        m, s = oracle.normalizer(parts)
        assert m.isnan().equal(s.isnan()) and int(m.isnan().sum()) == ("a nan" in case.what)
        assert m.isinf().sum() == 0 and (s[~s.isnan()] >= 1).all()
    assert any(len(set(case.given)) < len(case.given) or () in case.given for case in Flatten.cases)
    drawn = [Fused().draw(case, rng(seed))[0] for case in Fused.cases for seed in range(3)]
    groups = [oracle.runs(operators) for operators, *_ in drawn]
    assert any(len(group) > 2 for found in groups for group in found) and any(
        len(found) > 4 for found in groups
    )


def test_the_oracle():
    x, b = (
        torch.randn(7, 3, generator=rng(1), dtype=torch.float64, requires_grad=True),
        torch.ones(3).double(),
    )
    dy = torch.randn(7, 3, generator=rng(2), dtype=torch.float64)
    (dx,) = torch.autograd.grad(F.gelu(x + b), x, dy)
    assert torch.allclose(dy * oracle.slope(x + b), dx, rtol=0, atol=1e-12)
    q, k, v = torch.randn(3, 9, 4, generator=rng(3), dtype=torch.float64)
    right = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    assert torch.allclose(oracle.attention(q, k, v), right, rtol=0, atol=1e-12)
    with torch.no_grad():
        looks = [
            (oracle.dx_looks(dy, x, b), dx),
            (oracle.gelu_looks(x, b), F.gelu(x + b)),
            (oracle.attention_looks(q, k, v, 4), right),
        ]
    parts = torch.arange(18.0, dtype=torch.float64).view(2, 9).div(4).split(3, 1)
    looks.append((oracle.sums(parts), oracle.normalizer(parts)[1]))
    for some, want in looks:
        for text, wrong in some.items():
            assert (wrong - want).abs().max() > 1e-4, text


def test_bytes_of_a_group_by_hand():
    operators = [
        ("a", "pointwise", ["x", "x"], "t"),
        ("b", "pointwise", ["t", "y"], "u"),
        ("c", "product", ["u"], "z"),
    ]
    sizes = {"x": 1, "y": 10, "t": 100, "u": 1000, "z": 10_000}
    assert oracle.fused(operators, sizes, ["z"]) == [(["a", "b"], 1011), (["c"], 11_000)]
    assert oracle.fused(operators, sizes, ["z", "t"])[0] == (["a", "b"], 1111)


def test_predictions():
    """By hand, for other numbers: 10⁶ weights in 10 tensors, 2 heads, T = 512: 1 MiB of scores."""
    values, slips = predict_operators(weights=10**6, tensors=10, heads=2, T=512)
    assert values["launches"] == 80 and values["scores_mib"] == 1.0
    assert values["loop_ms"] == pytest.approx(0.4 + 84 / 3350) and values[
        "flat_ms"
    ] == pytest.approx(0.005 + 28 / 3350)
    assert values["edge"] == pytest.approx(16.75e6 / 6) and values["ridge_n"] == pytest.approx(
        885.67, rel=1e-4
    )
    values, slips = predict_operators(weights=10**9, tensors=500, heads=16, T=8192)
    assert all(
        abs(slip - values[name]) > 0.02 * values[name]
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
