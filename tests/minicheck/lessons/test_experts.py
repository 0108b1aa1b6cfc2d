"""Lesson 20: other right ways pass, and odd answers are told.

The usual mistakes are in course/20_experts/bugs.py, which tests/bank examines.
"""

import torch

from minicheck.lessons import experts
from minicheck.lessons.experts import Combine, Dispatch, Seated
from minicheck.oracles import experts as oracle
from tests.minicheck.examined import assert_odd_answers_are_told, refused, rng

STYLES = [
    (
        "seated",
        """
place = so_far.gather(1, wanted[:, None])[:, 0]  # 1 for the surest
sits = torch.empty(choices.numel(), dtype=torch.bool)
sits[order] = place <= seats
return sits.view(choices.shape)
""",
        """
taken = [0] * experts
sits = torch.zeros(choices.numel(), dtype=torch.bool)
for at, choice in zip(order.tolist(), wanted.tolist()):
    sits[at] = taken[choice] < seats
    taken[choice] += int(sits[at])
return sits.view(choices.shape)
""",
    ),
    (
        "dispatch",
        "weights.append((gates[..., None] * chosen).sum(1)[here])",
        "weights.append(torch.einsum('tk,tke->te', gates, chosen.to(gates.dtype))[here])",
    ),
    (
        "combine",
        "out[here] += rows",
        "out.index_add_(0, here.nonzero()[:, 0], rows)",
    ),
    (
        "clip_experts",
        "expert = all_reduce_(data, expert.clone()) / comm.size",
        'expert = all_reduce_(data, expert / ep, op="mean")',
    ),
    (
        "clip_experts",
        """
squares = all_reduce_(replica, expert.double().square().sum())
norm = float((squares + rest.double().square().sum()).sqrt())
""",
        """
own = expert.double().square().sum() + rest.double().square().sum() / ep
norm = float(all_reduce_(replica, own).sqrt())
""",
    ),
]


def test_other_right_ways():
    assert refused("20_experts", STYLES) == {}


def test_odd_answers_are_told():
    assert_odd_answers_are_told(experts)


def test_what_is_drawn_can_tell_the_mistakes():
    """Gates are equal, the order of tokens gives another answer; a rank has no token, an expert has none, some have two here."""
    exam = Seated()
    choices, gates, count, seats = exam.draw(exam.cases[0], rng())[0]
    assert gates.unique().numel() < gates.numel()
    in_order = oracle.seated(choices, gates * 0, count, seats)
    assert not in_order.equal(oracle.seated(choices, gates, count, seats))
    exam = Dispatch()
    args = exam.draw(exam.cases[1], rng())
    assert not len(args[1][0]) and not any((a[1] == 1).any() for a in args)
    assert any((oracle.received(args, r)[1] != 0).sum(1).max() > 1 for r in range(3))


def test_tokens_come_home():
    """Sums by weights on the ranks of the experts are sums by gates on the token's own: experts that multiply by e + 1."""
    exam = Dispatch()
    for case in exam.cases:
        args = exam.draw(case, rng())
        back = []
        for r, (first, end) in enumerate(oracle.bounds(oracle.uneven(args[0][3], case.n))):
            received, weights, come = oracle.received(args, r)
            factors = torch.arange(first + 1, end + 1).to(weights.dtype)
            results = received * (weights @ factors)[:, None]
            back.append((results, come, args[r][1], args[r][3]))
        for r, found in enumerate(Combine().wants(case, back)):
            tokens, choices, gates, _ = args[r]
            want = tokens * (gates * (choices + 1)).sum(1, keepdim=True)
            assert torch.allclose(found["the result"], want)
